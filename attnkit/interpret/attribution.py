"""Direct logit attribution: how much each part of a model adds to the logit of a word, by a trace.

Every part, an embedding, a head, a feed-forward network or a bias, is a vector that is added to the state of a token.
The norms on its way to the head are taken with the scale that they had in the run, so that all is linear: the parts
add up to the logit. Source: the decompositions of ActivationCache of TransformerLens, with `apply_ln_to_stack`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.interpret.lens import (
    compare_logits,
    find_stack,
    find_word,
    result_name,
    state_logits,
    state_names,
    states_of_trace,
    text_positions,
)
from attnkit.model.dtypes import quiet
from attnkit.model.norms import layer_norm, rms_norm
from attnkit.record import Array, Record, Tensor, row_labels

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


REST = "rest"
Parts = dict[str, Array]  # name -> the vector (D,) that it adds


def attribute_logit(
    record: Record, checkpoint: "Checkpoint", words: Sequence[str], position: int | None, by: str
) -> Record:
    """Return what each part of a model adds to the logit of a word at a position: x (part), or (batch, part).

    words     the word, and the one whose logit is subtracted, if there is one
    position  of the token whose next word it is; None: the last one
    by        layer: attention with its bias is one part; head: each head is one, and the bias

    `logit` is the logit as the model computes it, and the last part the rest of it, 0 where that is rounding.
    UsageError for a model whose head is not linear, or a word of several tokens; DataError where the trace lacks what
    is needed.
    """
    core, stack = layers.core_model(checkpoint), find_stack(checkpoint)
    if core.config.transform:
        problem = f"the head of this {core.config.family} model is not linear: parts do not add up to its logits"
        raise UsageError(problem, "--direct")
    ids = [find_word(checkpoint, word, flag) for word, flag in zip(words, ("--direct", "--minus"), strict=False)]
    last = [*states_of_trace(record, state_names(core.config, stack), checkpoint).values()][-1]
    places = text_positions(record, last.shape, -1 if position is None else position)
    logits = state_logits(core, stack, last)
    compare_logits(record, logits, None)
    rows = [()] if last.ndim == 2 else [(row,) for row in range(len(last))]
    direction, bias = read_direction(core, ids)
    columns, totals, labels, names = [], [], [], [""]
    for row, at in zip(rows, places, strict=True):
        parts = decompose_state(core, stack, record, (*row, at), by)
        added = {name: float(part @ direction) for name, part in parts.items()} | bias
        chosen = require_finite(logits[(*row, at)][ids].astype(np.float64), "the logits", (*row, at))
        total = float(chosen[0] - sum(chosen[1:]))
        names = [*added, REST]
        columns.append([*added.values(), find_rest(total, added, parts, direction, logits.dtype)])
        totals.append(total)
        labels.append(" ".join([str(at), *row_labels(record.labels.get("token"), sum(row))[at : at + 1]]))
    lead = ("batch",)[: last.ndim - 2]
    formula = "part · norm · head, at the scale of the run"
    arrays = {"x": (np.array(columns), formula), "logit": (np.array(totals), "")}
    tensors = {
        name: Tensor(array if lead else array[0], (*lead, *("part",)[: array.ndim - 1]), formula=formula)
        for name, (array, formula) in arrays.items()
    }
    return Record(tensors, {"part": names, "word": [*words], "position": labels}, record.history)


def decompose_state(core: "model.Model", stack: str, record: Record, at: tuple[int, ...], by: str) -> Parts:
    """Return the parts that add up to what the head reads at one token, by name, float64.

    at  the index of the token: of its text in a batch, and of its position
    """
    parts: Parts = {}
    state, width = "", 0  # the name of the state that the parts add up to, and its width
    for step in model.layer_plan(core.config, stack):
        params = core.params.get(step.layer, {})
        if step.op in ("attend", "ffn"):
            parts |= split_step(core, step, record, at, by)
        elif step.op == "layernorm" and not step.saves_residual:
            parts = pass_norm(core, step.layer, parts, read_vector(record, state, at, width))
        elif step.op == "linear":
            width = params["w"].shape[1]
            parts = {name: part @ params["w"] for name, part in parts.items()}
            parts |= {f"{step.layer}.b": params["b"].astype(np.float64)} if "b" in params else {}
        elif step.op in ("embed", "posenc"):
            width = width or params["table"].shape[1]
            before = read_vector(record, state, at, width) if state else 0
            parts[step.layer] = read_vector(record, step.layer, at, width) - before
        if not step.saves_residual:
            state = result_name(step)
    return parts


def pass_norm(core: "model.Model", layer: str, parts: Parts, x: Array) -> Parts:
    """Return what parts of x are after a norm of x, and its shift as one more."""
    params = core.params.get(layer, {})
    passed = normalize_parts(np.stack([*parts.values()]), x, params, core.config.norm, core.config.eps)
    shift = {f"{layer}.beta": params["beta"].astype(np.float64)} if "beta" in params else {}
    return dict(zip(parts, passed, strict=True)) | shift


def split_step(core: "model.Model", step: "model.Step", record: Record, at: tuple[int, ...], by: str) -> Parts:
    """Return what attention or a feed-forward network adds at one token, of attention by heads where requested."""
    params = core.params.get(step.layer, {})
    if step.op == "ffn" or by == "layer":
        return {step.layer: read_vector(record, f"{step.layer}.output", at, core.config.width)}
    heads = read_heads(record, f"{step.layer}.heads", at, core.config.stack(model.parse_layer_name(step.layer)[0]))
    parts = {f"{step.layer}:{head}": part for head, part in enumerate(split_output(heads, params["wo"]))}
    return parts | ({f"{step.layer}.bo": params["bo"].astype(np.float64)} if "bo" in params else {})


def read_heads(record: Record, name: str, at: tuple[int, ...], stack: "model.StackConfig") -> Array:
    """Return the results of the heads (H, V) at one token in float64; DataError where the trace does not hold them."""
    array, (*row, token) = find_tensor(record, name), at
    is_there = array.ndim == len(row) + 3 and all(i < n for i, n in zip((*row, 0, token), array.shape, strict=False))
    if not is_there or array.shape[-3::2] != (stack.heads, stack.head_dim):
        raise DataError(f"{name} {array.shape}: expected ({stack.heads}, T, {stack.head_dim}) for each text")
    return require_finite(array[tuple(row)][:, token].astype(np.float64), name, at)


def read_vector(record: Record, name: str, at: tuple[int, ...], width: int) -> Array:
    """Return one vector of a trace in float64; DataError where the trace does not hold it."""
    array = find_tensor(record, name)
    is_there = array.ndim == len(at) + 1 and all(index < size for index, size in zip(at, array.shape, strict=False))
    if not is_there or array.shape[-1] != width:
        raise DataError(f"{name} {array.shape}: expected a vector of {width} for each token, as the model has")
    return require_finite(array[at].astype(np.float64), name, at)


def require_finite(numbers: Array, name: str, at: tuple[int, ...]) -> Array:
    """Return numbers of a token; DataError where one is NaN or infinite, so that parts cannot add up."""
    if not np.isfinite(numbers).all():
        raise DataError(f"{name}: not finite at position {at[-1]}, where parts cannot add up")
    return numbers


def find_tensor(record: Record, name: str) -> Array:
    """Return a tensor of a trace; DataError names the option that keeps it."""
    if name not in record:
        raise DataError(f"no {name} in the trace; encode or decode --trace FILE keeps all that a run computes")
    return record[name]


def read_direction(core: "model.Model", ids: Sequence[int]) -> tuple[Array, dict[str, float]]:
    """Return the vector (D,) that reads the logit of a word, or that less another word's, in a state, and the bias."""
    head = core.params["head"]
    direction, *less = [head["w"][:, id].astype(np.float64) for id in ids]
    bias, *others = [float(head["b"][id]) for id in ids] if "b" in head else [0.0]
    return (direction - sum(less)) * core.config.logit_scale, {"head.b": bias - sum(others)} if "b" in head else {}


def find_rest(total: float, added: dict[str, float], parts: Parts, direction: Array, dtype: np.dtype[Any]) -> float:
    """Return what the parts lack of the logit; 0 where that is no more than the rounding of their products.

    added  what each part adds to the logit; dtype that of the logit

    >>> parts, direction = {"a": np.array([2.0, -1.0])}, np.array([1.0, 1.0])
    >>> [find_rest(total, {"a": 1.0}, parts, direction, np.dtype("float32")) for total in (1.0000001, 1.5)]
    [0.0, 0.5]
    """
    rest = total - sum(added.values())
    products = sum(float(np.abs(part) @ np.abs(direction)) for part in parts.values())
    return rest if abs(rest) > float(np.finfo(dtype).eps) * products else 0.0


@quiet
def normalize_parts(parts: Array, x: Array, params: Mapping[str, Array], norm: str, eps: float) -> Array:
    """Return what parts of x become as a norm is applied to x, without its shift: they add up to norm(x) - beta.

    parts (P, D), x (D,) -> (P, D); each part is centered unless the norm is rms, and divided by the deviation of x

    >>> x = np.array([1.0, 3.0])
    >>> normalize_parts(np.array([[1.0, 0], [0, 3]]), x, {"gamma": np.full(2, 2.0)}, "layer", 1e-12).round(4)
    array([[ 1., -1.],
           [-3.,  3.]])
    """
    scale = (rms_norm if norm == "rms" else layer_norm)(x, eps=eps).inverse_std
    centered = parts if norm == "rms" else parts - parts.mean(axis=-1, keepdims=True)
    return np.asarray(centered * scale * params.get("gamma", 1.0))


def split_output(heads: Array, wo: Array) -> Array:
    """Return what each head adds to the output of attention, heads (H, V), wo (H*V, D) -> (H, D).

    >>> split_output(np.array([[1.0], [2.0]]), np.array([[3.0], [5.0]])).tolist()
    [[3.0], [10.0]]
    """
    return np.asarray(heads[:, None] @ wo.reshape(*heads.shape, -1))[:, 0]
