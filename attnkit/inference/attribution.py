"""Direct logit attribution: how much each part of a model adds to the logit of a word, by a trace.

Every part, an embedding, a head, a feed-forward network or a bias, is a vector that is added to the state of a token.
The norms on its way to the head are taken with the scale that they had in the run, so that all is linear: the parts
add up to the logit. Source: the decompositions of ActivationCache of TransformerLens, with `apply_ln_to_stack`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.inference import layers
from attnkit.inference.lens import (
    compare_logits,
    find_stack,
    find_word,
    last_position,
    read_states,
    result_name,
    state_logits,
    state_names,
    take_position,
)
from attnkit.model.attribution import normalize_parts, split_output
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

    `logit` is the logit as the model computes it, and the last part the rest of it, which is rounding; `digits`, to how
    many the parts add up to it without the rest. UsageError for a model whose head is not linear, or a word of several
    tokens; DataError where the trace lacks what is needed.
    """
    core, stack = layers.core_model(checkpoint), find_stack(checkpoint)
    if core.config.transform:
        problem = f"the head of this {core.config.family} model is not linear: parts do not add up to its logits"
        raise UsageError(problem, "--direct")
    ids = [find_word(checkpoint, word, flag) for word, flag in zip(words, ("--direct", "--minus"), strict=False)]
    last = read_states(record, [*state_names(core.config, stack).values()][-1], checkpoint)
    take_position(last, position)
    logits = state_logits(core, stack, last)
    compare_logits(record, logits, None)
    rows = [()] if last.ndim == 2 else [(row,) for row in range(len(last))]
    columns, totals, digits, labels, names = [], [], [], [], [""]
    for row in rows:
        at = last_position(record, sum(row), last.shape[-2]) if position is None else position % last.shape[-2]
        parts = project_parts(core, decompose_state(core, stack, record, (*row, at), by), ids)
        total = float(logits[(*row, at, ids[0])]) - (float(logits[(*row, at, ids[1])]) if len(ids) > 1 else 0.0)
        names = [*parts, REST]
        columns.append([*parts.values(), total - sum(parts.values())])
        totals.append(total)
        digits.append(count_digits(columns[-1][-1], total, logits.dtype))
        labels.append(" ".join([str(at), *row_labels(record.labels.get("token"), sum(row))[at : at + 1]]))
    lead = ("batch",)[: last.ndim - 2]
    formula = "part · norm · head, at the scale of the run"
    arrays = {"x": (np.array(columns), formula), "logit": (np.array(totals), ""), "digits": (np.array(digits), "")}
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
    state = ""  # the name of the state that the parts add up to
    for step in model.layer_plan(core.config, stack):
        params = core.params.get(step.layer, {})
        if step.op in ("attend", "ffn"):
            parts |= split_step(core, step, record, at, by)
        elif step.op == "layernorm" and not step.saves_residual:
            parts = pass_norm(core, step.layer, parts, vector(record, state, at))
        elif step.op == "linear":
            parts = {name: part @ params["w"] for name, part in parts.items()}
            parts |= {f"{step.layer}.b": params["b"].astype(np.float64)} if "b" in params else {}
        elif step.op in ("embed", "posenc"):
            parts[step.layer] = vector(record, step.layer, at) - (vector(record, state, at) if state else 0)
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
        return {step.layer: vector(record, f"{step.layer}.output", at)}
    *row, token = at
    heads = find_tensor(record, f"{step.layer}.heads")[tuple(row)][..., token, :].astype(np.float64)
    if heads.ndim != 2 or heads.size != len(params["wo"]):
        raise DataError(f"{step.layer}.heads: {heads.shape} at a token, for weights {params['wo'].shape} of the model")
    parts = {f"{step.layer}:{head}": part for head, part in enumerate(split_output(heads, params["wo"]))}
    return parts | ({f"{step.layer}.bo": params["bo"].astype(np.float64)} if "bo" in params else {})


def vector(record: Record, name: str, at: tuple[int, ...]) -> Array:
    """Return one vector of a trace in float64; DataError where the trace does not hold it."""
    array = find_tensor(record, name)
    if array.ndim != len(at) + 1 or any(index >= size for index, size in zip(at, array.shape, strict=False)):
        raise DataError(f"{name} {array.shape}: expected a vector for each token, as the other states have")
    return np.asarray(array[at].astype(np.float64))


def find_tensor(record: Record, name: str) -> Array:
    """Return a tensor of a trace; DataError names the option that keeps it."""
    if name not in record:
        raise DataError(f"no {name} in the trace; encode or decode --trace FILE keeps all that a run computes")
    return record[name]


def project_parts(core: "model.Model", parts: Parts, ids: Sequence[int]) -> dict[str, float]:
    """Return what each part adds to the logit of a word, or to that of one word less that of another."""
    head = core.params["head"]
    direction, *less = [head["w"][:, id].astype(np.float64) for id in ids]
    direction = direction - sum(less)
    added = {name: float(part @ direction) * core.config.logit_scale for name, part in parts.items()}
    if "b" in head:
        bias, *others = [float(head["b"][id]) for id in ids]
        added["head.b"] = bias - sum(others)
    return added


def count_digits(rest: float, logit: float, dtype: np.dtype[Any]) -> int:
    """Return to how many digits the parts without the rest are the logit, at most those that its dtype holds.

    >>> count_digits(1e-4, 2.0, np.dtype("float32")), count_digits(0.0, 2.0, np.dtype("float32"))
    (4, 6)
    """
    most = np.finfo(dtype).precision
    return most if rest == 0 else min(max(int(np.floor(np.log10(max(abs(logit), 1e-300) / abs(rest)))), 0), most)
