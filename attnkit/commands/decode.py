"""attnkit decode: hidden states to logits, probabilities and words."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from attnkit import display, model, options, tokenizers, views
from attnkit.errors import DataError, UsageError
from attnkit.tensors.record import Array, Labels, Record, flat, in_row
from attnkit.tool import Call, tool

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


def best(record: Record, call: Call, look: display.Look) -> str:
    """The most probable words at every position, one table a batch row."""
    if call.parameters["emit"]:
        return views.drawn(record, "x", look)
    x = record["x"]
    probs = x.reshape(-1, *x.shape[-2:]) if x.ndim > 1 else x[None, None]
    ids, shares = model.candidates(probs, call.extra.get("top") or 5)
    words = flat(record.labels.get("vocab")) or None
    tokens = record.labels_of("x", x.ndim - 2) if x.ndim > 1 else None
    drawn = []
    for row in range(len(probs)):
        here = in_row(tokens, row) or [str(at) for at in range(probs.shape[1])]
        real = [at for at, token in enumerate(here) if token not in tokenizers.PADDING]
        drawn.append(
            display.candidates(
                [here[at] for at in real], ids[row][real], shares[row][real], words, look,
                title=f"batch {row}" if len(probs) > 1 else "next word", formula=record.formulas["x"],
            )
        )  # fmt: skip
    return "\n\n".join(drawn)


@tool(
    view=best,
    extra={"top": options.integer("candidates in the table [default: 5]", 1)},
    explicit=lambda given: {"seed": given["seed"] or 0} if sampling(given) else {},
    prints=lambda given: given["emit"] == "text",
)
def decode(
    record: Record,
    *,
    table: Annotated[
        Record | None, options.tensor("tied embedding, vocab × model [default: the record's table]")
    ] = None,
    params: Annotated[Mapping[str, Array] | None, options.tensors("output matrix of its own: w (D, N), b")] = None,
    vocab: Annotated[
        list[str] | None, options.Flag("the words, one a line, or JSON {word: id}", "FILE", str, "words")
    ] = None,
    temperature: Annotated[
        float | None, options.number("τ: probabilities are softmax(logits / τ)", above=0, metavar="T")
    ] = None,
    top_k: Annotated[int | None, options.integer("choose among the K most probable", 1, "K")] = None,
    top_p: Annotated[
        float | None,
        options.number("choose among the fewest that reach probability P", above=0, most=1, metavar="P"),
    ] = None,
    min_p: Annotated[
        float | None,
        options.number("choose among those at least P times as probable as the best", least=0, most=1, metavar="P"),
    ] = None,
    seed: Annotated[int | None, options.integer("seed of the choice [default: 0]", 0)] = None,
    emit: Annotated[
        str | None,
        options.choice(
            "text: just the chosen words; ids, logits, probs: make that x", ("text", "ids", "logits", "probs")
        ),
    ] = None,
) -> Record | str:
    """Hidden states to logits, probabilities and words.

    logits = x Wᵀ with the embedding table as W, unless --params brings its own matrix; probabilities =
    softmax(logits / τ). The record gets `logits`, `next` (the id chosen at each position), and the
    probabilities as x. The most probable word is chosen, the first of equals; any of --temperature, --top-k,
    --top-p, --min-p and --seed draws one instead.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend | attnkit decode --top 3
    """
    if params is not None and table is not None:
        raise UsageError("--params and --table: one or the other")
    weight, bias, words, formula = output_matrix(record, table, params)
    words = vocab or words
    logits = model.logits(record["x"], weight, bias)
    if words and len(words) != logits.shape[-1]:
        raise DataError(
            f"{len(words)} words for {logits.shape[-1]} logits",
            "--vocab" if vocab else "labels of axis 'vocab'",
        )
    tau = temperature or 1.0
    scaled = logits if tau == 1 else (logits / tau).astype(logits.dtype)
    if top_k is not None:
        scaled = model.top_k(scaled, top_k)
    if top_p is not None:
        scaled = model.top_p(scaled, top_p)
    if min_p is not None:
        scaled = model.min_p(scaled, min_p)
    probs = model.probabilities(scaled)
    drawn = sampling({"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed})
    made = {"logits": logits, "probs": probs}
    if emit not in made:  # nothing is chosen where only the numbers are asked for, finite or not
        made["ids"] = model.sample(scaled, np.random.default_rng(seed or 0)) if drawn else model.greedy(scaled)
    if emit == "text":
        return spoken(made["ids"], words, record.labels.get("token"))
    axes = record.axes_of("x")[: logits.ndim - 1]
    named = {"logits": (*axes, "vocab"), "probs": (*axes, "vocab"), "ids": axes}
    said = {
        "logits": formula,
        "probs": "softmax(logits" + (f" / {tau:g})" if tau != 1 else ")") + kept_words(top_k, top_p, min_p),
        "ids": "drawn" if drawn else "argmax(logits)",
    }
    labels: dict[str, Labels] = {"vocab": words} if words else {}
    main = emit or "probs"
    rest = {} if emit else {"logits": "logits", "next": "ids"}
    return record.put(
        {"x": made[main]} | {name: made[kind] for name, kind in rest.items()},
        {"x": named[main]} | {name: named[kind] for name, kind in rest.items()},
        labels,
        {"x": said[main] + (f", logits = {formula}" if main == "probs" else "")},
    )


def kept_words(top_k: int | None, top_p: float | None, min_p: float | None) -> str:
    """How the probabilities say which words the filters have kept.

    >>> kept_words(2, None, 0.1)
    ' over the words of top-k 2, min-p 0.1'
    """
    filters = [f"{name} {value:g}" for name, value in (("top-k", top_k), ("top-p", top_p), ("min-p", min_p)) if value]
    return f" over the words of {', '.join(filters)}" if filters else ""


def sampling(given: Mapping[str, Any]) -> bool:
    """Whether a word is drawn, not the most probable one taken."""
    return any(given[name] is not None for name in SAMPLING)


def output_matrix(
    record: Record, table: Record | None, params: Mapping[str, Array] | None
) -> tuple[Array, Array | None, list[str], str]:
    """The output matrix (D, N), its bias, the words of its columns, and its formula."""
    words = flat(record.labels.get("vocab"))
    if params is not None:
        if "w" not in params or set(params) - {"w", "b"}:
            raise DataError(
                f"it has {', '.join(params) or 'nothing'} (expected w, and b if there is a bias)", "--params"
            )
        return params["w"], params.get("b"), words, "x W + b" if "b" in params else "x W"
    if table is not None:
        words = (flat(table.labels_of("x", 0)) if table["x"].ndim == 2 else []) or words
        matrix = table["x"]
    elif "table" in record:
        matrix = record["table"]
    else:
        raise UsageError("which output matrix? the record carries no table: --table FILE or --params FILE")
    if matrix.ndim != 2:
        raise DataError(f"shape {matrix.shape} is not vocab × model", "--table")
    return matrix.T, None, words if len(words) == len(matrix) else [], "x tableᵀ"


def spoken(ids: Array, words: list[str], tokens: Labels | None) -> str:
    """The chosen words of each row as a line of text; nothing is chosen after padding."""
    if not words:
        raise UsageError("--emit text needs words: --vocab FILE")
    rows = ids.reshape(-1, ids.shape[-1]) if ids.ndim else ids.reshape(1, 1)
    lines = []
    for at, row in enumerate(rows):
        here = [""] * len(row) if not tokens or flat(tokens) else in_row(tokens, at)
        lines.append(
            " ".join(words[one] for one, token in zip(row, here, strict=False) if token not in tokenizers.PADDING)
        )
    return "\n".join(lines)
