"""What attention makes on its way: axes, formulas and labels of the intermediates."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, DataError
from attnkit.record import Array, Labels, Record, shared_labels

QUERIES, KEYS = ("head", "query"), ("head", "key")
ATTENTION_AXES: dict[str, tuple[str, ...]] = dict.fromkeys(("q", "heads"), (*QUERIES, "head_dim"))
ATTENTION_AXES |= dict.fromkeys(("k", "v", "present_key", "present_value"), (*KEYS, "head_dim"))
ATTENTION_AXES |= dict.fromkeys(("scores", "scaled", "capped", "masked", "weights"), (*QUERIES, "key"))
ATTENTION_AXES |= dict.fromkeys(
    ("lse", *(f"weights.{name}" for name in ("lse", "entropy", "max", "argmax", "span"))), QUERIES
)
ATTENTION_AXES |= dict.fromkeys(("weights.top", "weights.keys"), (*QUERIES, "rank"))
ATTENTION_AXES |= {"weights.received": KEYS, "weights.rows": ("head", "row", "key")}
OUTPUT_PARAMETERS: dict[str, tuple[str, ...]] = {
    "wo": ("heads", "model"),
    "bo": ("model",),
}  # the projection of merged heads

ATTENTION_FORMULAS = {
    "lse": "log Σ exp(masked)",
    "weights.lse": "log Σ exp(masked)",
    "weights.entropy": "−Σ weights · log weights",
    "weights.max": "the largest weight of a query",
    "weights.argmax": "the key of the largest weight; −1: none",
    "weights.span": "Σ weights · |position of the query − position of the key|",
    "weights.received": "Σ weights over the queries",
    "weights.top": "the largest weights of a query, in their order",
    "weights.keys": "the keys of the largest weights; −1: none",
    "weights.rows": "softmax over the keys, for some queries",
}


def attention_axes(name: str, keys: str) -> tuple[str, ...]:
    """The axes of an intermediate of one row of a batch, whose keys are called so.

    >>> attention_axes("weights", "source"), attention_axes("weights.received", "key")
    (('head', 'query', 'source'), ('head', 'key'))
    """
    return tuple(keys if axis == "key" else axis for axis in ATTENTION_AXES[name])


def intermediates_in(record: Record) -> list[str]:
    """The tensors of a record that an earlier attend has left there: by their names and their axes.

    >>> kept = {"weights": ("head", "query", "key"), "q": ("token", "model")}
    >>> intermediates_in(Record({"weights": np.zeros((1, 2, 2)), "q": np.zeros((2, 4))}, kept))
    ['weights']
    """
    called = {name: {attention_axes(name, keys) for keys in ("key", "source", "present")} for name in ATTENTION_AXES}
    found = {name: record.axes.get(name, ()) for name in record if name in ATTENTION_AXES}
    return [name for name, axes in found.items() if axes[axes[:1] == ("batch",) :] in called[name]]


def attention_formulas(
    found: Mapping[str, Array],
    weights: Mapping[str, Array],
    score: str,
    scale: float | None,
    softcap: float,
    biased: bool,
    restricted: bool,
) -> dict[str, str]:
    """The formula of every intermediate, of the output, and of attention as a whole."""
    said = {}
    for name in "qkv":
        weight, bias = (
            f" W_{name.upper()}" * (f"w{name}" in weights),
            f" + b_{name.upper()}" * (f"b{name}" in weights),
        )
        said[name] = f"input{weight}{bias}"
    said["scores"] = {"additive": "vₐ · tanh(Q Wₐ + K Uₐ)", "general": "Q W Kᵀ"}.get(score, "Q Kᵀ")
    by = f" · {scale:g}" if scale is not None else f" / √{found['q'].shape[-1]}" if score == "scaled-dot" else ""
    said["scaled"] = f"scores{by}"
    said["capped"] = f"{softcap:g} tanh(scaled / {softcap:g})" if softcap else "as before"
    changes = " + bias" * biased + ", −∞ where the query may not attend, or the float mask added" * restricted
    said["masked"] = ("capped" if softcap else "scaled") + changes if changes else "as before"
    said["weights"] = "softmax over the keys"
    said["heads"] = "weights V"
    said |= ATTENTION_FORMULAS
    said |= {"present_key": "past and new keys", "present_value": "past and new values"}
    projection = " W_O" * ("wo" in weights) + " + b_O" * ("bo" in weights)
    said["output"] = ("heads" if projection or found["output"].ndim == 4 else "heads side by side") + projection
    logits = said["scores"] + by.replace(f"√{found['q'].shape[-1]}", "√d_k")
    logits = f"{softcap:g} tanh({logits} / {softcap:g})" if softcap else logits
    said["attention"] = f"softmax({logits}{' + bias' * biased}{', masked' * restricted}) V{projection}"
    return said


def attention_labels(asking: Record, keys: Record, over: str, weights: str, count: int) -> dict[str, Labels]:
    """Labels of queries and keys, the tokens they were made of, and of the rows that --weights chooses."""
    found: dict[str, Labels] = {}
    tokens = asking.labels_of("x", -2)
    if tokens:
        found["query"] = tokens
    if seen := keys.labels_of("x", -2):
        found[over] = seen
    return found | row_labels(weights, tokens, count)


def clear_labels(
    record: Record, labels: dict[str, Labels], sizes: dict[str, int], new: Collection[str]
) -> tuple[Record, dict[str, Labels]]:
    """Leave an axis unlabelled where a tensor that stays has it with another size, or where its new tensor has none.

    labels  those of the new tensors
    sizes   axis -> its size in the new tensors, of what does not come from the record
    new     names of the new tensors: those of the record are replaced

    >>> record = Record({"mask": np.ones((2, 2))}, {"mask": ("query", "key")}, {"query": ["a", "b"]})
    >>> cleared, labels = clear_labels(record, {"query": ["c"]}, {"query": 1}, ["x"])
    >>> cleared.labels, labels
    ({}, {})
    """
    held = [name for name in record if name not in new]
    stay = {(axis, size) for name in held for axis, size in zip(record.axes_of(name), record[name].shape, strict=True)}
    gone = {axis for axis, size in sizes.items() if axis not in labels or any(a == axis and n != size for a, n in stay)}
    left = {axis: names for axis, names in record.labels.items() if axis not in gone}
    return replace(record, labels=left), {axis: names for axis, names in labels.items() if axis not in gone}


def row_labels(weights: str, tokens: Labels | None, count: int) -> dict[str, Labels]:
    """What the rows are called that --weights chooses of so many queries: numbers, and tokens that hold for all texts.

    >>> row_labels("rows:0,-1", ["The", "cat"], 2), row_labels("rows:-1", None, 9), row_labels("stats", None, 9)
    ({'row': ['0 The', '1 cat']}, {'row': ['8']}, {})
    """
    kind, numbers = model.parse_weight_summary(weights)
    if kind != "rows":
        return {}
    words = shared_labels(tokens)
    rows = [number % count for number in numbers]
    return {"row": [f"{row} {words[row]}" if words else str(row) for row in rows]}


FULLY_MASKED = ("1 row of weights is zeros: its query", "{} rows of weights are zeros: queries")


def warn_fully_masked_rows(blind: Array, strict: bool = False, said: tuple[str, str] = FULLY_MASKED) -> None:
    """Say how many queries may attend to nothing, and which is the first; DataError where that is not allowed.

    blind  True where a query is one of them; `said` begins the sentence for one of them, and for more
    """
    empty = np.argwhere(blind)
    if not len(empty):
        return
    first = "".join(f"[{at}]" for at in empty[0])
    problem = f"{said[len(empty) > 1].format(len(empty))} may attend to nothing (first {first})"
    if strict:
        raise DataError(problem)
    warnings.warn(problem, AttnkitWarning, stacklevel=2)
