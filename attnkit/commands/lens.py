"""attnkit lens: the words in the state of each layer, and what adds to a logit."""

from typing import Annotated, Any, Literal

import numpy as np
import typer

from attnkit import display, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.text_input import read_trace_or_text
from attnkit.display.cells import Cells
from attnkit.display.slicing import elide_rows
from attnkit.interpret.lens import apply_lens, attribute_logit, text_size
from attnkit.records import Record, row_labels, shared_labels

MAX_POSITIONS = 30  # tables of one text
WORDS = {"x", "ids"}
PARTS = {"x", "logit"}


def view_lens(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View a table of the layers for each position, or the parts of a logit."""
    if {*record} >= PARTS:
        return display.ResultView(part_tables(record, style), lambda: part_rows(record))
    if not {*record} >= WORDS:
        return display.computed_view(record, style)
    blocks: list[display.Block] = []
    for text in range(text_count(record)):
        ones = list_positions(record, text)
        elision = elide_rows(len(ones), MAX_POSITIONS)
        shown = {*elision.indices().tolist()}
        drawn: list[display.Block] = [
            one if at in shown else display.Only("figure", one) for at, one in enumerate(ones)
        ]
        if elision.hidden:
            note = display.Text(f"{elision.hidden} more positions: --position N, or -f csv")
            drawn.insert(elision.head, display.Only("terminal", note))
        blocks += drawn
    return display.ResultView(blocks, lambda: word_rows(record))


def text_count(record: Record) -> int:
    return len(record["x"]) if record.axes_of("x")[0] == "batch" else 1


def list_positions(record: Record, text: int) -> list[display.Candidates]:
    is_batch = record.axes_of("x")[0] == "batch"
    ids, shares = (record[name][text] if is_batch else record[name] for name in ("ids", "x"))
    layers, count, _ = ids.shape
    states = range(text * layers * count, (text + 1) * layers * count)
    words = [word for state in states for word in row_labels(record.labels.get("ids"), state)]
    places = np.arange(ids.size).reshape(ids.shape) if words else ids
    rows, lead = shared_labels(record.labels.get("layer")), f"batch {text}, " * is_batch
    return [
        display.Candidates(rows, places[:, at], shares[:, at], words or None, f"{lead}position {name}", corner="layer")
        for at, name, _ in list_tokens(record, text)
    ]


def list_tokens(record: Record, text: int) -> list[tuple[int, str, str]]:
    """The place, the name of the position and the label of each token but padding."""
    numbers = row_labels(record.labels.get("position"), text)
    count = len(numbers) or text_size(record, text, record["x"].shape[-2])
    numbers = numbers or [str(at) for at in range(count)]
    tokens = row_labels(record.labels.get("token"), text) or [""] * count
    return [(at, f"{numbers[at]} {tokens[at]}".rstrip(), tokens[at]) for at in range(count)]


def part_tables(record: Record, style: display.Style) -> list[display.TextTable]:
    word, *other = (repr(one) for one in shared_labels(record.labels.get("word")))
    names, places = (shared_labels(record.labels.get(axis)) for axis in ("part", "position"))
    tables = []
    for text, x in enumerate(np.atleast_2d(record["x"])):
        most = float(np.abs(x).max())
        rows = [
            [name, f"{part:z.{style.precision}f}", bar]
            for name, part, bar in zip(names, x, display.draw_signed_bars(x, most, style), strict=True)
        ]
        lead = f"batch {text}, " * (record["x"].ndim > 1)
        title = f"{lead}logit of {word}{f' less that of {other[0]}' if other else ''} at position {places[text]}"
        footer = f"sum {x.sum():.{style.precision}f}, the logit of the model"
        tables.append(display.TextTable(["part", "adds", ""], rows, (1,), title, footer, signed=(2,)))
    return tables


def part_rows(record: Record) -> Cells:
    names, is_batch = shared_labels(record.labels.get("part")), record["x"].ndim > 1
    texts = [zip(names, x, strict=True) for x in np.atleast_2d(record["x"])]
    rows = [[*[text] * is_batch, *part] for text, parts in enumerate(texts) for part in parts]
    return Cells([*["batch"] * is_batch, "part", "adds"], rows)


def word_rows(record: Record) -> Cells:
    """Cells with a row for each likely word of each layer at each position."""
    layers, words = shared_labels(record.labels.get("layer")), record.labels.get("ids")
    is_batch, top = record.axes_of("x")[0] == "batch", record["x"].shape[-1]
    rows: list[list[Any]] = []
    for *batch, layer in np.ndindex(record["x"].shape[:-2]):
        for at, name, token in list_tokens(record, sum(batch)):
            index = (*batch, layer, at)
            state = int(np.ravel_multi_index(index, record["x"].shape[:-1]))
            spellings = row_labels(words, state) or [""] * top
            place = [*batch, layers[layer], int(name.split()[0]), token]
            columns = zip(record["ids"][index], spellings, record["x"][index], strict=True)
            rows += [[*place, rank, *column] for rank, column in enumerate(columns)]
    return Cells([*["batch"] * is_batch, "layer", "position", "token", "rank", "id", "word", "probability"], rows)


TOP = 3  # words of each layer, unless --top sets another number


@tool(
    reader=lambda stage, upstream: read_trace_or_text(stage, upstream, "*"),
    view=view_lens,
    keep_names=True,
    gives="answer",
    without=("dtype",),
    rules=Constraints(
        exclusive=[("top", "direct")], requires=[("minus", "direct"), ("by", "direct")], one_of=[("model",)]
    ),
)
def lens(
    record: Record,
    *,
    model_: options.Model = None,
    top: Annotated[int | None, typer.Option(min=1, help=f"words of each layer [default: {TOP}]")] = None,
    position: Annotated[
        int | None,
        typer.Option(
            help="only the token at this position, -1 the last of each text [default: all; with --direct the last]"
        ),
    ] = None,
    direct: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="attribute the logit of this next word, a single token, to the parts of the model"
        ),
    ] = None,
    minus: Annotated[str | None, typer.Option(metavar="WORD", help="to that logit less the logit of this word")] = None,
    by: Annotated[
        Literal["layer", "head"] | None,
        typer.Option(help="parts: each layer's attention, or each of its heads [default: layer]"),
    ] = None,
) -> Record:
    """Apply the logit lens: the likeliest words in the state after each layer.

    The input is a trace of the model, or a text of several words, which the model reads now. The state of each layer is
    normalized by the norm after the last layer, where the model has one (a post-norm model has normalized it already),
    and the head applied: the row of the last layer is what the model predicts, bit for bit (with --position, to
    rounding). An encoder needs a head of words, as a masked language model has, or of the labels of the frames of a
    sound.

    --direct says how much each part adds to the logit of a word at a position: the embedding, positions, each layer's
    attention (or its heads and bias) and feed-forward network, the shift of norms, the bias of the head. Norms scale
    the parts as they scaled the whole state in the run, as TransformerLens does. The parts add up to the logit. The
    row `rest` is the share that no part explains. Of a post-norm model each part goes through all later norms.

    \b
    Examples:
      attnkit encode --model DIR "The capital of France is" --trace run.npz -o states.npz
      attnkit lens run.npz --model DIR --position -1
      attnkit lens --model DIR "The capital of France is" --position -1
      attnkit lens run.npz --model DIR --direct " Paris" --minus " Rome" --by head
    """
    if direct is None:
        return apply_lens(record, model_, top or TOP, position)
    words = [direct] if minus is None else [direct, minus]
    return attribute_logit(record, model_, words, position, by or "layer")
