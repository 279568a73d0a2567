"""Intermediates of attention by name (q, scores …): axes, formulas and labels."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, DataError
from attnkit.model.intermediates import ATTENTION
from attnkit.records import Array, Labels, Record, Tensor, shared_labels

KEY_AXES = ("key", "source", "present")  # names of the key axis: of x, of a memory, with a KV cache


def attention_axes(name: str, keys: str) -> tuple[str, ...]:
    """Axes of an intermediate of one row of the batch.

    keys  the name of its key axis

    >>> attention_axes("weights", "source"), attention_axes("weights.received", "key")
    (('head', 'query', 'source'), ('head', 'key'))
    """
    return tuple(keys if axis == "key" else axis for axis in ATTENTION[name].axes or ())


def intermediates_in(record: Record) -> list[str]:
    """Names of the intermediates of an earlier attend that a record contains.

    >>> from attnkit.records import Tensor
    >>> weights = Tensor(np.zeros((1, 2, 2)), ("head", "query", "key"))
    >>> intermediates_in(Record({"weights": weights, "q": np.zeros((2, 4))}))
    ['weights']
    """
    names = [name for name in record if name in ATTENTION]
    axes_of = {name: record.tensors[name].axes or () for name in names}
    unbatched = {name: axes[axes[:1] == ("batch",) :] for name, axes in axes_of.items()}
    return [name for name in names if unbatched[name] in [attention_axes(name, keys) for keys in KEY_AXES]]


def attention_formulas(
    arrays: Mapping[str, Array], weights: Mapping[str, Array], settings: model.MultiHeadOptions
) -> dict[str, str]:
    """Formulas of every intermediate, of the output, and of attention as a whole."""
    score, scale, softcap = settings.score, settings.scale, settings.softcap
    biased, restricted = settings.bias is not None, restriction_of(settings)
    formulas = {name: row.formula for name, row in ATTENTION.items() if row.formula}
    for name in "qkv":
        weight, bias = (
            f" W_{name.upper()}" * (f"w{name}" in weights),
            f" + b_{name.upper()}" * (f"b{name}" in weights),
        )
        formulas[name] = f"input{weight}{bias}"
    formulas["scores"] = {"additive": "vₐ · tanh(Q Wₐ + K Uₐ)", "general": "Q W Kᵀ"}.get(score, "Q Kᵀ")
    by = f" · {scale:g}" if scale is not None else f" / √{arrays['q'].shape[-1]}" if score == "scaled-dot" else ""
    formulas["scaled"] = f"scores{by}"
    formulas["capped"] = f"{softcap:g} tanh(scaled / {softcap:g})" if softcap else "as before"
    changes = " + bias" * biased + restricted
    formulas["masked"] = ("capped" if softcap else "scaled") + changes if changes else "as before"
    projection = " W_O" * ("wo" in weights) + " + b_O" * ("bo" in weights)
    if "wg" in weights:
        formulas["gate"] += " + b_G" * ("bg" in weights)
    gated = "gated_heads" if "wg" in weights else "heads"
    formulas["output"] = (gated if projection or arrays["output"].ndim == 4 else "heads side by side") + projection
    logits = formulas["scores"] + by.replace(f"√{arrays['q'].shape[-1]}", "√d_k")
    logits = f"{softcap:g} tanh({logits} / {softcap:g})" if softcap else logits
    formulas["attention"] = f"softmax({logits}{' + bias' * biased}{', masked' * bool(restricted)}) V{projection}"
    if settings.norm is not None:
        name = "RMS" if settings.norm.kind == "rms" else "layer"
        formulas |= {f"{letter}_normed": f"{name} norm of {formulas[letter]}" for letter in "qk"}
        formulas |= {letter: f"{letter}_normed" for letter in "qk"}
    if settings.sinks is not None:
        formulas["weights"] = "softmax over the keys and the sink, without its weight"
    return formulas


def restriction_of(settings: model.MultiHeadOptions) -> str:
    """What the mask does to the scores, as a term after them; "" for nothing."""
    is_added = settings.mask is not None and settings.mask.dtype.kind not in "iub"
    has_limits = settings.causal or settings.window != (-1, -1) or settings.lengths is not None
    has_limits |= settings.mask is not None and not is_added
    return " + mask" * is_added + ", −∞ where the query may not attend" * has_limits


def describe_attention(
    result: Mapping[str, Array], formulas: Mapping[str, str], key_axis: str, has_past: bool
) -> dict[str, Tensor]:
    """Name the axes and formulas of intermediates; cached keys are on `present`."""
    lead = ("batch",)[: result["q"].ndim - 3]
    present = "present" if has_past else key_axis
    axes = {name: attention_axes(name, key_axis if name in "kv" else present) for name in result}
    return {name: Tensor(x, (*lead, *axes[name]), formula=formulas.get(name, "")) for name, x in result.items()}


def added_intermediates(
    tensors: Mapping[str, Tensor], requested: tuple[str, ...], keep: tuple[str, ...]
) -> dict[str, Tensor]:
    """Select the intermediates that are added to the record.

    Unless `keep` requests them by name, scores that are not capped are left out, and masked scores if nothing is
    masked have no formula, and so no table.
    """
    names = {name for name in tensors if name in requested or name.startswith("weights.")}
    if tensors.get("capped") and tensors["capped"].formula == "as before" and "capped" not in keep:
        names.discard("capped")
    selected = {name: tensor for name, tensor in tensors.items() if name in names}
    if "masked" in selected and selected["masked"].formula == "as before" and "masked" not in keep:
        selected["masked"] = replace(selected["masked"], formula="")
    return selected


def attention_labels(queries: Record, keys: Record, over: str, weights: str, count: int) -> dict[str, Labels]:
    """Labels of queries, keys and the rows of --weights, from the tokens of x.

    over  the name of the key axis
    """
    labels: dict[str, Labels] = {}
    tokens = queries.labels_of("x", -2)
    if tokens:
        labels["query"] = tokens
    if key_tokens := keys.labels_of("x", -2):
        labels[over] = key_tokens
    return labels | selected_row_labels(weights, tokens, count)


def clear_labels(
    record: Record, labels: dict[str, Labels], sizes: dict[str, int], new: Collection[str]
) -> tuple[Record, dict[str, Labels]]:
    """Drop the labels of axes whose sizes or new tensors they no longer fit.

    sizes  axis -> its size in the new tensors, of what does not come from the record

    >>> from attnkit.records import Tensor
    >>> record = Record({"mask": Tensor(np.ones((2, 2)), ("query", "key"))}, {"query": ["a", "b"]})
    >>> cleared, labels = clear_labels(record, {"query": ["c"]}, {"query": 1}, ["x"])
    >>> cleared.labels, labels
    ({}, {})
    """
    held = [name for name in record if name not in new]
    stay = {(axis, size) for name in held for axis, size in zip(record.axes_of(name), record[name].shape, strict=True)}
    gone = {axis for axis, size in sizes.items() if axis not in labels or any(a == axis and n != size for a, n in stay)}
    left = {axis: names for axis, names in record.labels.items() if axis not in gone}
    return replace(record, labels=left), {axis: names for axis, names in labels.items() if axis not in gone}


def selected_row_labels(weights: str, tokens: Labels | None, count: int) -> dict[str, Labels]:
    """Labels of the rows that --weights chooses among `count` queries.

    >>> rows = selected_row_labels("rows:0,-1", ["The", "cat"], 2), selected_row_labels("rows:-1", None, 9)
    >>> rows, selected_row_labels("stats", None, 9)
    (({'row': ['0 The', '1 cat']}, {'row': ['8']}), {})
    """
    kind, numbers = model.parse_weight_summary(weights)
    if kind != "rows":
        return {}
    words = shared_labels(tokens)
    rows = [number % count for number in numbers]
    return {"row": [f"{row} {words[row]}" if words else str(row) for row in rows]}


FULLY_MASKED = ("1 row of the weights is all zeros: its query", "{} rows of the weights are all zeros: their queries")


def warn_fully_masked_rows(
    is_fully_masked: Array, strict: bool = False, opening: tuple[str, str] = FULLY_MASKED
) -> None:
    """Warn about queries that may not attend to any key; with strict, DataError.

    opening  the start of the sentence for one of them, and for more
    """
    empty = np.argwhere(is_fully_masked)
    if not len(empty):
        return
    first = "".join(f"[{at}]" for at in empty[0])
    place = f" (first {first})" if first else ""
    problem = f"{opening[len(empty) > 1].format(len(empty))} may not attend to any key{place}"
    if strict:
        raise DataError(problem)
    warnings.warn(problem, AttnkitWarning, stacklevel=2)


def statistic_axes(axes: tuple[str, ...], shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[str, ...]:
    """Axis names of a statistic: a normalized axis, now of size 1, is renamed.

    >>> statistic_axes(("token", "model"), (3, 1), (3, 4))
    ('token', 'over model')
    """
    sizes = zip(axes, shape, whole, strict=True)
    return tuple(axis if size == before else f"over {axis}" for axis, size, before in sizes)
