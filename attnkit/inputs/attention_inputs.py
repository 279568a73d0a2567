"""Collect the inputs of attention from flags, a record or a model's layer."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.inputs import intermediates, layers
from attnkit.inputs.operands import (
    AttendedTensor,
    add_query_axis,
    broadcast_over_heads,
    load_attended,
    reduce_to_one_row,
    select_mask,
    select_tensor,
)
from attnkit.inputs.padding import rename_model_inputs, with_padding_mask
from attnkit.model.checks import as_text
from attnkit.model.formulas.norms import QueryKeyNorm
from attnkit.model.formulas.scores import product
from attnkit.model.parameters import ATTENTION as PROJECTIONS
from attnkit.model.parameters import FFN, SCORE
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


QK_EPS = 1e-6  # of --qk-norm
OTHERS = {*FFN, *SCORE, "w"}  # one file may hold the weights of a whole layer


class AttentionInputs(NamedTuple):
    """The operands of attention, from flags or from the record.

    record    the record at hand; rest: the same without the intermediates of an earlier attend
    key_axis  the name of the axis of keys: `key`, or `source` if they come from elsewhere
    layer     the layer of the model, "" without one
    """

    record: Record
    rest: Record
    query: Record
    key: Record
    value: Record
    mask: Record | None
    bias: Record | None
    key_axis: str
    layer: str

    def arrays(self) -> tuple[Array, Array, Array]:
        return self.query["x"], self.key["x"], self.value["x"]

    @property
    def batch(self) -> int:
        """Number of texts of (B, T, D); 0 if heads are split already, or without a batch."""
        return max(len(x) if x.ndim == 3 else 0 for x in self.arrays())


class PreparedAttention(NamedTuple):
    """What attention computes with: operands, options and projections."""

    inputs: AttentionInputs
    options: model.MultiHeadOptions
    projections: dict[str, Array]

    def parameters(self) -> dict[str, Array]:
        return {**(self.options.score_params or {}), **self.projections}


def prepare_attention(
    record: Record,
    *,
    query: AttendedTensor | None,
    key: AttendedTensor | None,
    value: AttendedTensor | None,
    memory: AttendedTensor | None,
    past_key: Record | None,
    past_value: Record | None,
    heads: int,
    kv_heads: int | None,
    params: Mapping[str, Array] | None,
    model_: "Checkpoint | None",
    layer: str | None,
    seed: int | None,
    mask: Record | None,
    causal: bool,
    align: str | None,
    window: tuple[int, int],
    lengths: Record | None,
    offset: int | None,
    score: str,
    scale: float | None,
    softcap: float,
    bias: Record | None,
    qk_norm: str | None,
    sinks: Record | None,
    softmax_dtype: str | None,
) -> PreparedAttention:
    """Collect what attention computes with from the options of attend and the record.

    DataError if shapes do not match, UsageError for options that contradict the model.
    """
    record = rename_model_inputs(record)
    if model_ is not None:
        layer = layers.find_layer(model_, layer, "attend")
        if layer.endswith(".cross") and memory is None and key is None:
            memory = load_attended(record, "memory", own=True)
    past, source = 0 if past_key is None else sum(past_key["x"].shape[-2:-1]), key or memory
    queries, keys = query or select_tensor(record), source or select_tensor(record)
    values = value or keys
    if mask is None:
        mask = find_mask(record, query, source, past, is_by_hand=model_ is None)
    else:
        batch = max(len(x) if x.ndim > 2 else 0 for x in (queries["x"], keys["x"]))
        sizes = sum(queries["x"].shape[-2:-1]), past + sum(keys["x"].shape[-2:-1])
        mask = Record({"x": add_query_axis(mask.tensors["x"], batch, *sizes)})
    bias = bias or find_bias(record, query, source, is_by_hand=model_ is None)
    if mask is not None and mask["x"].dtype.kind == "f" and np.isin(mask["x"], (0, 1)).all() and mask["x"].any():
        problem = "the mask is float, so its 0 and 1 are added to the scores; with --dtype bool, 1 = may attend: "
        warnings.warn(problem + "attnkit show FILE --dtype bool -o MASK.npy", AttnkitWarning, stacklevel=2)
    own = {one.name for one in (query, key, value, memory) if one is not None and one.is_given}
    rest = record.without(set(intermediates.intermediates_in(record)) - own)
    key_axis = "source" if source else "key"
    inputs = AttentionInputs(record, rest, queries, keys, values, mask, bias, key_axis, layer or "")
    options = model.MultiHeadOptions(
        heads=heads,
        kv_heads=kv_heads,
        mask=broadcast_over_heads(mask, inputs.batch),
        bias=broadcast_over_heads(bias, inputs.batch, heads if model_ is None else find_heads(model_, inputs.layer)),
        causal=causal,
        align="top-left" if offset is not None else align,
        past=offset or 0,
        window=window,
        lengths=array_of(lengths),
        scale=scale,
        softcap=softcap,
        score=score if model_ is None else model_.config.score,
        norm=None if qk_norm is None else QueryKeyNorm(qk_norm, QK_EPS, "head"),
        sinks=array_of(sinks),
        softmax_dtype=softmax_dtype,
        past_key=array_of(past_key),
        past_value=array_of(past_value),
    )
    if model_ is not None:
        options = merge_layer_options(options, inputs, model_, past, offset)
    q, k, _ = inputs.arrays()
    if qk_norm is not None and q.ndim == 4:
        raise UsageError(f"x {as_text(q.shape)} is already split into heads: nothing is projected", "--qk-norm")
    count, groups = None if options.heads == 1 else options.heads, options.kv_heads
    for name, x, given, flag in (("x", q, count, "--heads"), ("K", k, groups, "--kv-heads")):
        if x.ndim == 4 and given not in (None, x.shape[1]):
            raise DataError.about(name, f"{x.shape} has {x.shape[1]} heads, {flag} says {given}")
    score_params, projections = select_weights(inputs, options, params, model_, seed)
    return PreparedAttention(inputs, options.replace(score_params=score_params), projections)


def find_mask(
    record: Record, queries: AttendedTensor | None, keys: AttendedTensor | None, past: int, is_by_hand: bool
) -> Record | None:
    """The mask of attention if no option names one; warn if it is not used.

    queries, keys  what they come from; None: x of the record
    past           number of keys before the record
    is_by_hand     whether flags, not a model, say what is attended to
    """
    record = with_padding_mask(record) if "lengths" in record else record
    if not is_own(keys, record):
        if keys is not None and keys.has_square_mask:
            is_file = not keys.is_given and keys.source not in ("", "<stdin>")
            which = f"{keys.source}: its mask" if is_file else "the mask of the keys"
            file = "" if keys.is_given else keys.source if is_file else "FILE"
            problem = f"{which} is not used: its rows are its own tokens, not these queries"
            warn_unused(problem, f"--mask {file}:mask")
        elif is_by_hand and has_columns_for(record, "mask", keys):
            warn_unused("the record's mask is not used: its keys are the tokens of the record", "--mask :mask")
        return keys.mask if keys is not None else None
    if "mask" not in record:
        return None
    x = record["x"] if keys is None else keys["x"]
    if is_own(queries, record):
        return prepend_past_columns(select_mask(record, "mask", x), past, x)
    row = reduce_to_one_row(record, x)
    if row is None:
        problem = "the record's mask is not used: its rows are the tokens of the record, not these queries"
        warn_unused(problem, "--mask :mask")
    return row if row is None else prepend_past_columns(row, past, x)


def find_bias(
    record: Record, queries: AttendedTensor | None, keys: AttendedTensor | None, is_by_hand: bool
) -> Record | None:
    """The record's `bias` for self-attention of its tokens; warn if it is not used."""
    if "bias" not in record:
        return None
    if not (is_own(queries, record) and is_own(keys, record)):
        if is_by_hand and has_columns_for(record, "bias", keys):
            warn_unused("the record's bias is not added: its keys are the tokens of the record", "--bias :bias")
        return None
    if not is_by_hand:
        warn_unused("the record's bias is not added: the model sets the positions", "--bias :bias")
        return None
    return Record({"x": record.tensors["bias"]})


def is_own(operand: AttendedTensor | None, record: Record) -> bool:
    """Whether the rows of an operand are the tokens of the record."""
    if operand is None or (operand.is_given and operand.name == "x"):
        return True
    rows = (record if "x" in record else operand)["x"].shape[-2:-1]
    return operand.is_given and operand.name != "memory" and operand["x"].shape[-2:-1] == rows


def has_columns_for(record: Record, name: str, keys: AttendedTensor | None) -> bool:
    """Whether a mask or bias of the record has a column for each of the keys."""
    keys_shape = record["x"].shape if keys is None else keys["x"].shape
    return name in record and record[name].shape[-1:] == keys_shape[-2:-1]


def prepend_past_columns(mask: Record, past: int, x: Array) -> Record:
    """A mask of the tokens of x with columns for the keys before them, all visible.

    >>> prepend_past_columns(Record({"x": np.array([[True, False]])}), 1, np.zeros((2, 4)))["x"].tolist()
    [[True, True, False]]
    """
    cells = mask["x"]
    if not past or not cells.ndim or cells.shape[-1:] != x.shape[-2:-1]:
        return mask
    past_cells = np.full((*cells.shape[:-1], past), 0 if cells.dtype.kind == "f" else 1, cells.dtype)
    return mask.with_tensors({"x": replace(mask.tensors["x"], array=np.concatenate([past_cells, cells], axis=-1))})


def warn_unused(problem: str, hint: str) -> None:
    warnings.warn(f"{problem} ({hint} uses it)", AttnkitWarning, stacklevel=4)


def merge_layer_options(
    options: model.MultiHeadOptions, inputs: AttentionInputs, checkpoint: "Checkpoint", past: int, offset: int | None
) -> model.MultiHeadOptions:
    """Complete the options by the rules of a model's layer; biases are added.

    UsageError if a flag moves queries that the model places.
    """
    q = inputs.query["x"]
    if q.ndim not in (2, 3):
        raise DataError(f"x {q.shape}: --model takes (T, D) or (B, T, D)")
    context = layers.context_from(inputs.record)
    context.past = past
    if past and context.positions is not None:
        context.positions = layers.positions_after(context.positions, array_of(inputs.mask), past, q.shape[-2])
    layer = model.read_attention_options(layers.core_model(checkpoint), inputs.layer, q.shape[-2], context)
    relative = layer.get("bias")
    if offset is not None and (layer.get("rotary") or layer.get("relative") or relative is not None):
        raise UsageError("the model has positions of its own", "--offset")
    if relative is not None:
        options = options.replace(bias=relative if options.bias is None else relative + options.bias)
    return options.replace(
        heads=layer["heads"],
        kv_heads=layer["kv_heads"],
        scale=layer["scale"] if options.scale is None else options.scale,
        causal=options.causal or layer.get("causal", False),
        window=layer.get("window", options.window) if options.window == (-1, -1) else options.window,
        softcap=options.softcap or layer["softcap"],
        norm=layer["norm"],
        latent=layer["latent"],
        clip=layer["clip"],
        rotary=layer.get("rotary"),
        interleaved=layer["interleaved"],
        relative=layer.get("relative"),
    )


def select_weights(
    inputs: AttentionInputs,
    options: model.MultiHeadOptions,
    params: Mapping[str, Array] | None,
    checkpoint: "Checkpoint | None",
    seed: int | None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The parameters of the score and the projections: of a file, a model, or drawn."""
    names = model.SCORES[options.score].parameters
    if params is not None:
        return split_parameters(params, options.score)
    if checkpoint is not None:
        projections = dict(checkpoint.params.get(inputs.layer, {}))
        return {name: projections.pop(name) for name in names if name in projections}, projections
    q, k, v = inputs.arrays()
    groups = options.kv_heads or options.heads
    if names:
        return score_parameters(q, k, options.score, (options.heads, groups), seed), {}
    if seed is None:
        return {}, {}
    return {}, random_attention_weights(q, k, v, options.heads, groups, seed)


def split_parameters(params: Mapping[str, Array], score: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Split the parameters of a file into parameters of the score and projections.

    DataError names the missing parameters, or one that is not of a layer.

    >>> [sorted(part) for part in split_parameters({"wq": np.eye(2), "w1": np.eye(2)}, "scaled-dot")]
    [[], ['wq']]
    """
    needs, own = model.SCORES[score].parameters, f"it has {join_names([*params])}"
    if unknown := [name for name in params if name not in (*PROJECTIONS, *OTHERS)]:
        raise DataError(f"parameter {unknown[0]!r} is not one of {join_names([*PROJECTIONS])} ({own})", "--params")
    if missing := [name for name in needs if name not in params]:
        raise DataError(f"no {join_names(missing)}, which --score {score} needs ({own})", "--params")
    if not needs and not set(params) & set(PROJECTIONS):
        raise DataError(f"no {join_names([*PROJECTIONS])} ({own})", "--params")
    projections = {name: array for name, array in params.items() if name in PROJECTIONS}
    return {name: params[name] for name in needs}, projections


def array_of(operand: Record | None) -> Array | None:
    return None if operand is None else operand["x"]


def find_heads(checkpoint: "Checkpoint", layer: str) -> int:
    """Number of query heads of a layer of attention."""
    return int(checkpoint.config.attention_rules[layer].heads)


def random_attention_weights(q: Array, k: Array, v: Array, heads: int, groups: int, seed: int) -> dict[str, Array]:
    """Draw wq, wk, wv, wo in this order from N(0, 1/rows)."""
    if q.ndim == 4 or q.ndim < 2 or q.shape[-1] % heads:
        model.split_heads(np.empty((1, q.shape[-1] if q.ndim else 1)), heads)
        raise DataError(f"x {q.shape}: --seed makes weights for (T, D) or (B, T, D)")
    if not (k.ndim and v.ndim):
        raise DataError.about("K", f"{k.shape} and V {v.shape}: a single number (expected (S, D) or (B, S, D))")
    rng, width = np.random.default_rng(seed), q.shape[-1] // heads
    shapes = {
        "wq": (q.shape[-1], heads * width),
        "wk": (k.shape[-1], groups * width),
        "wv": (v.shape[-1], groups * width),
        "wo": (heads * width, q.shape[-1]),
    }
    return {name: model.random_weight(rng, *shape).astype(model.output_dtype(q)) for name, shape in shapes.items()}


def score_parameters(q: Array, k: Array, score: str, heads: tuple[int, int], seed: int | None) -> dict[str, Array]:
    """Draw wa, ua and va, or w, in this order from N(0, 1/rows).

    heads  of queries and of keys: the parameters are for the width of one

    UsageError without a seed.
    """
    rows, columns = (sum(x.shape[-1:]) // (1 if x.ndim == 4 else count) for x, count in zip((q, k), heads, strict=True))
    shapes = {"wa": (rows, rows), "ua": (columns, rows), "va": (rows, 1), "w": (rows, columns)}
    names = model.SCORES[score].parameters
    if seed is None:
        known = {"wa": f"({rows}, A)", "ua": f"({columns}, A)", "va": "(A)", "w": f"({rows}, {columns})"}
        needed = ", ".join(f"{name} {known[name]}" for name in names)
        raise UsageError(f"{score} needs {needed}; --params FILE holds them, --seed N draws them", "--score")
    rng = np.random.default_rng(seed)
    drawn = {name: model.random_weight(rng, *shapes[name]).astype(model.output_dtype(q)) for name in names}
    return {name: array[:, 0] if name == "va" else array for name, array in drawn.items()}


WEIGHTED = ("v", "weights", "heads")  # the steps from given weights to the output


class WeightedValues(NamedTuple):
    """Values, split into heads, and their sums by given weights.

    value    the tensor that the values come from; projections: of wv, bv, wo, bo what there is
    weights  (..., H, T, S), v (..., H, S, K), heads (..., H, T, K), output (..., T, D)
    """

    value: Array
    projections: Mapping[str, Array]
    weights: Array
    v: Array
    heads: Array
    output: Array

    def describe(self, record: Record) -> dict[str, Tensor]:
        """Describe v, weights, heads and the output x, with their axes and formulas."""
        lead = ("batch", "head")[4 - self.v.ndim :]
        has_value, has_output = "wv" in self.projections, "wo" in self.projections
        is_self = self.output.shape == self.value.shape
        own = record.tensor("x").axes_like(self.output.shape) if is_self and "x" in record else None
        axes = own or ("batch", "query", "model")[3 - self.output.ndim :]
        formula = "heads side by side W_O" if has_output else "heads side by side"
        return {
            "v": Tensor(self.v, (*lead, "key", "head_dim"), formula="x W_V" if has_value else "x"),
            "weights": Tensor(self.weights, (*lead, "query", "key"), formula="as given"),
            "heads": Tensor(self.heads, (*lead, "query", "head_dim"), formula="weights V"),
            "x": Tensor(self.output, axes, formula=formula),
        }


def weigh_values(
    record: Record,
    *,
    heads: int,
    params: Mapping[str, Array] | None,
    memory: AttendedTensor | None,
    value: AttendedTensor | None,
    weights_from: Record,
) -> WeightedValues:
    """Sum the values of --value, --memory or x by the weights of --weights-from.

    Weights are (T, S) for all heads, (H, T, S), or (B, T, S) and (B, H, T, S) for a batch of values. DataError if
    their shape does not fit the values.
    """
    x, weights = (value or memory or record)["x"], weights_from["x"]
    if x.ndim not in (2, 3) or weights.ndim < 2:
        expected = "values (S, D) or (B, S, D) and weights (T, S), (H, T, S) or (B, H, T, S)"
        raise DataError(f"values {as_text(x.shape)} and weights {as_text(weights.shape)}: expected {expected}")
    given = {} if params is None else split_parameters(params, "scaled-dot")[1]
    projections = {name: one for name, one in given.items() if name in ("wv", "bv", "wo", "bo")}
    v = model.split_heads(model.linear(x, projections.get("wv"), projections.get("bv")), heads)
    lead = (*x.shape[:-2], heads)
    shape = (*lead, *weights.shape[-2:])
    if weights.ndim == 3 and x.ndim == 3:
        weights = weights[:, None]
    if weights.ndim > len(shape) or weights.shape[-1] != x.shape[-2] or not broadcasts(weights.shape, shape):
        expected = f"({','.join(map(str, lead))},T,{x.shape[-2]})"
        stated = f"weights {as_text(weights_from['x'].shape)} for values {as_text(x.shape)}"
        raise DataError.about(stated, f"and --heads {heads}: expected (T,{x.shape[-2]}) or {expected}")
    weights = np.broadcast_to(weights.astype(model.working(v, weights), copy=False), shape)
    summed = product(weights, v)
    output = model.linear(model.merge_heads(summed), projections.get("wo"), projections.get("bo"))
    dtype = model.output_dtype(x)
    return WeightedValues(x, projections, *(one.astype(dtype, copy=False) for one in (weights, v, summed, output)))


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array broadcasts to a target of at least as many axes.

    >>> broadcasts((1, 3), (2, 4, 3)), broadcasts((5, 3), (2, 4, 3))
    (True, False)
    """
    return all(size in (1, other) for size, other in zip(shape[::-1], target[::-1], strict=False))
