"""attnkit near: the nearest of many vectors, by cosine, dot product or distance."""

import math
import warnings
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import display, formats, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.display.cells import Cells
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.formats.streams import name_errors
from attnkit.inputs.padding import find_real_tokens
from attnkit.inputs.vector_index import flatten_texts, stack_vectors
from attnkit.model.formulas.late_interaction import LATE_METRICS, find_nearest_texts, token_similarities
from attnkit.model.formulas.nearest import METRICS, check_queries, find_nearest
from attnkit.records import Array, Labels, Record, Tensor, join_names, row_labels, shared_labels
from attnkit.tokenizers import PADDING

LONGEST = 60  # characters of the name of a text above its tokens
FORMULAS = {
    "cosine": "q · r / (|q| |r|)",
    "dot": "q · r",
    "euclidean": "|q − r|",
    "maxsim": "Σ over tokens q of the largest q · r",
    "meanmaxsim": "mean over tokens q of the largest q · r",
}
SCORES = {"cosine": "cosine", "dot": "dot", "euclidean": "distance", "maxsim": "maxsim", "meanmaxsim": "meanmaxsim"}


def view_nearest(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    blocks: list[display.Block] = [*list_tables(record, stage, style)]
    if stage.parameters["explain"]:
        blocks += explain_tokens(record, style)
    return display.ResultView(blocks, lambda: list_rows(record, stage))


def explain_tokens(record: Record, style: display.Style) -> list[display.Block]:
    """A table and a heat map of each text: which token found which."""
    blocks: list[display.Block] = []
    asked = shared_labels(record.labels.get("asked"))
    texts = record.labels.get("rows")
    for rank, (products, is_real) in enumerate(zip(record["products"], record["products_mask"], strict=True)):
        words = row_labels(record.labels.get("found"), rank)[: int(is_real.sum())]
        part = products[:, is_real]
        best = part.argmax(axis=1)
        cells = [[word, words[at], f"{part[row, at]:.{style.precision}f}"] for row, (word, at) in
                 enumerate(zip(asked, best, strict=True))]  # fmt: skip
        name = row_labels(texts, 0)[rank] if texts else f"text {record['rows'][rank]}"
        title = f"{rank + 1}: {name if len(name) <= LONGEST else name[: LONGEST - 1] + '…'}"
        blocks.append(display.TextTable(["token", "found", "product"], cells, (2,), title))
        view = display.TensorView(title, part, ("asked", "found"), (asked, words), style, "q · r")
        blocks.append(display.Map(view))
    return blocks


def list_tables(record: Record, stage: Stage, style: display.Style) -> list[display.TextTable]:
    """Tables of the scores, numbers and labels of the nearest rows to each query."""
    headings = [SCORES[stage.parameters["metric"]], "row", "label"]
    tables = []
    for title, rows in list_queries(record):
        cells = [[f"{score:.{style.precision}f}", str(index), label] for score, index, label in rows]
        is_labelled = any(label for *_, label in rows)
        columns = [row[: 2 + is_labelled] for row in (headings, *cells)]
        tables.append(display.TextTable(columns[0], columns[1:], (0, 1), title))
    return tables


def list_rows(record: Record, stage: Stage) -> Cells:
    headings = ["query", "rank", SCORES[stage.parameters["metric"]], "row", "label"]
    return Cells(
        headings,
        [
            [title, rank, score, index, label or None]
            for title, rows in list_queries(record)
            for rank, (score, index, label) in enumerate(rows)
        ],
    )


def list_queries(record: Record) -> list[tuple[str, list[tuple[float, int, str]]]]:
    """The label of each query, with score, index and label of its nearest rows."""
    scores, numbers = record["x"], record["rows"]
    top = scores.shape[-1]
    names = shared_labels(record.labels_of("x", 0)) if scores.ndim > 1 else []
    labels = record.labels.get("rows")
    queries = []
    for query, (near, rows) in enumerate(zip(scores.reshape(-1, top), numbers.reshape(-1, top), strict=True)):
        words = row_labels(labels, query) or [""] * top
        title = (names[query] if names else f"query {query}") if scores.ndim > 1 else ""
        queries.append((title, [*zip(near, map(int, rows), words, strict=True)]))
    return queries


@tool(
    view=view_nearest,
    gives="answer",
    rules=Constraints(one_of=[("index",)]),
)
def near(
    record: Record,
    *,
    index: Annotated[
        Any,
        options.file(
            "index",
            "vectors to search: x (N, D) of a file, or FILE:NAME; DIR: those of all words of a model, DIR:LAYER those "
            "of another of its embedding layers",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="largest number of nearest rows to return")] = 5,
    metric: Annotated[
        str,
        options.choice(
            (*METRICS, *LATE_METRICS),
            "measure of nearness: a large cosine, a large dot product, a small Euclidean distance; or, of texts with a "
            "vector for each token, the sum (maxsim) or mean (meanmaxsim) of the largest products of each token",
        ),
    ] = "cosine",
    explain: Annotated[
        bool, typer.Option(help="show for each text that was found which of its tokens each token of the query found")
    ] = False,
) -> Record:
    """Find the nearest of many vectors to each vector of x: sentences or words.

    They are near in meaning where the vectors are those of a model.

    The result is exact, not approximate: x has the scores of the nearest rows of --index, nearest first, and `rows`
    has their numbers (from 0); the label `rows` lists their names for each query. Of equal scores the lower number
    comes first.
    Scores are computed in float64 and rounded; they do not depend on the other queries or rows. A query is x (D), each
    row of x (N, D), or each vector of an x of more dimensions, one after another, but those of padding. A row of zeros
    has the cosine 0.

    An index in a file is mapped into memory and read in blocks, so that it may be larger than the memory. A stream of
    records, such as that of `encode --lines --pool mean`, is an index, too: each vector is a row, copied to
    a temporary file. The folder of a model is an index of its words: the rows of its embedding table, as `embed
    --model` gives them, labelled with the tokens.

    With --metric maxsim a query and a row are texts, each with as many vectors as it has tokens: those of `encode
    --model DIR --task query` and `--task document` by a model of late interaction (ColBERT). Padding takes no part.

    \b
    Examples:
      attnkit encode --model DIR --batch --pool mean < sentences.txt -o index.npz
      attnkit encode --model DIR --pool mean "a question" | attnkit near --index index.npz --top 3
      attnkit embed --model DIR " cat" | attnkit near --index DIR
      attnkit embed "The cat sat" --dim 8 | attnkit near --index :table --top 2
    """
    rows = stack_vectors([index if "text_lengths" in index else flatten_texts(index, "", "--index")], "--index")
    queries = read_queries(record, rows["x"])
    if metric in LATE_METRICS:
        return find_texts_by_tokens(record, rows, queries, top, metric, explain)
    if explain:
        raise UsageError("needs --metric maxsim or meanmaxsim", "--explain")
    real = find_queries(record)
    queries = queries[real]
    top = min(top, len(rows["x"]))
    check_queries(queries, metric)
    with name_errors(getattr(index, "file", "--index")):
        nearest = find_nearest(rows["x"], queries, top, metric, formats.release_pages)
    if metric == "cosine" and nearest.zeros:
        subject = "1 row of the index is" if nearest.zeros == 1 else f"{nearest.zeros} rows of the index are"
        warnings.warn(f"{subject} all zeros, with a cosine of 0", AttnkitWarning, 2)
    lead, labels = query_axes(record, real)
    if words := rows.labels.get("row"):
        names = [[str(words[at]) for at in row] for row in nearest.indices]
        labels["rows"] = names if lead else names[0]
    shape = (*(len(queries) for _ in lead), top)
    tensors = {
        "x": Tensor(nearest.scores.reshape(shape), (*lead, "rank"), formula=FORMULAS[metric]),
        "rows": Tensor(nearest.indices.reshape(shape), (*lead, "rank")),
    }
    others = {axis: names for axis, names in record.labels.items() if axis not in ("rows", "query")}
    return replace(record, labels=others).with_tensors(tensors, labels)


def find_texts_by_tokens(record: Record, rows: Record, vectors: Array, top: int, metric: str, explain: bool) -> Record:
    """The nearest texts to the texts of a record, by the vectors of their tokens.

    vectors (N, D), of all tokens of the record
    """
    lengths, texts = rows["text_lengths"], shared_labels(rows.labels.get("text"))
    queries = split_queries(record, vectors)
    is_one = record["x"].ndim < 3
    if explain and not is_one:
        raise UsageError(f"takes one query, and there are {len(queries)}", "--explain")
    with name_errors("--index"):
        nearest = find_nearest_texts(rows["x"], lengths, queries, min(top, len(lengths)), metric, formats.release_pages)
    lead = () if is_one else ("batch",)
    shape = (*(len(queries) for _ in lead), nearest.scores.shape[1])
    labels: dict[str, Labels] = {}
    if texts:
        names = [[str(texts[at]) for at in row] for row in nearest.indices]
        labels["rows"] = names[0] if is_one else names
    tensors = {
        "x": Tensor(nearest.scores.reshape(shape), (*lead, "rank"), formula=FORMULAS[metric]),
        "rows": Tensor(nearest.indices.reshape(shape), (*lead, "rank")),
    }
    kept = {axis: names for axis, names in record.labels.items() if axis == "batch" and not is_one}
    found = Record({}).with_tensors(tensors, labels | kept)
    found = replace(found, history=record.history)
    return found.with_tensors(*explain_found(record, rows, queries[0], nearest.indices[0])) if explain else found


def split_queries(record: Record, vectors: Array) -> list[Array]:
    """The vectors of each text that is a query, without padding: (R, D).

    DataError for texts that have a single vector each.
    """
    x = record["x"]
    if x.ndim == 2 and record.axes_of("x")[0] == "batch":
        raise DataError(f"x {x.shape}: a vector for each text (expected one for each token, as maxsim compares)")
    if x.ndim < 3:
        real = find_real_tokens(record, x.shape[:1]) if x.ndim == 2 else None
        return [vectors if real is None else vectors[real]]
    if x.ndim > 3:
        raise DataError(f"x {x.shape}: expected the vectors of texts (B, T, D)")
    real = find_real_tokens(record, x.shape[:-1])
    return [row if real is None else row[real[at]] for at, row in enumerate(x)]


def explain_found(
    record: Record, rows: Record, query: Array, found: Array
) -> tuple[dict[str, Tensor], dict[str, Labels]]:
    """The products of the tokens of a query and of the found texts, with labels.

    products (rank, asked, found), of which products_mask (rank, found) tells the real ones
    """
    lengths, words = rows["text_lengths"], shared_labels(rows.labels.get("row"))
    ends = np.cumsum(lengths)
    each = [np.arange(ends[at] - lengths[at], ends[at]) for at in found]
    longest = max(map(len, each))
    products = np.zeros((len(found), len(query), longest))
    real = np.arange(longest) < np.array([[len(one)] for one in each])
    names = []
    for rank, places in enumerate(each):
        products[rank, :, : len(places)] = token_similarities(query, rows["x"][places])
        own = [words[at] if words else str(at - places[0]) for at in places]
        names.append([*own, *[PADDING[0]] * (longest - len(own))])
    asked = shared_labels(record.labels_of("x", 0)) if record["x"].ndim == 2 else []
    asked = asked if len(asked) == len(query) else [str(at) for at in range(len(query))]
    tensors = {
        "products": Tensor(products, ("rank", "asked", "found"), formula="q · r"),
        "products_mask": Tensor(real, ("rank", "found")),
    }
    return tensors, {"asked": asked, "found": names}


def read_queries(record: Record, vectors: Array) -> Array:
    if "x" not in record:
        raise DataError(f"no x, whose vectors are the queries; the record has {join_names(record.tensors)}")
    x = record["x"]
    if not x.ndim or x.shape[-1] != vectors.shape[1]:
        raise DataError(f"x {x.shape}: expected vectors of {vectors.shape[1]}, as those of the index {vectors.shape}")
    if not x.size:
        raise DataError(f"x {x.shape}: there are no vectors in it")
    return x.reshape(-1, x.shape[-1])


def find_queries(record: Record) -> Array:
    """The numbers of the vectors of x that are queries: all but padding.

    x (B, T, D), tokens (T, D)
    """
    x, ids = record["x"], record.get("ids")
    has_tokens = x.ndim == 3 or (ids is not None and ids.shape == x.shape[:-1])
    real = find_real_tokens(record, x.shape[:-1]) if has_tokens else None
    return np.arange(math.prod(x.shape[:-1])) if real is None else np.flatnonzero(real)


def query_axes(record: Record, real: Array) -> tuple[tuple[str, ...], dict[str, Labels]]:
    """The axis of the queries, and its labels if they are not the labels of x.

    real  the numbers of the vectors of x that are queries
    """
    dimensions = record["x"].ndim
    if dimensions == 1:
        return (), {}
    axis, labels = record.axes_of("x")[-2], record.labels_of("x", dimensions - 2)
    count = math.prod(record["x"].shape[:-1])
    if dimensions == 2 and axis != "rank" and len(real) == count:
        return (axis,), {}
    texts = record["x"].shape[0] if dimensions == 3 else 1
    names = [name for row in range(texts) for name in row_labels(labels, row)]
    return ("query",), {"query": [names[at] for at in real]} if len(names) == count else {}
