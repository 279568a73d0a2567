"""Collect the inputs of attention from flags, a record or a model's layer."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
import typer

from attnkit import model, options
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


class Projection(NamedTuple):
    """The heads of attention, and the weights that project x into them."""

    heads: Annotated[int, typer.Option(min=1, metavar="H", help="number of heads")] = 1
    kv_heads: Annotated[
        int | None,
        typer.Option(min=1, metavar="G", help="number of key/value heads (grouped-query attention) [default: H]"),
    ] = None
    params: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors",
            "weights wq wk wv wo (in, out), biases bq bk bv bo, or the state dict of nn.MultiheadAttention; for "
            "--score: wa ua va, or w",
        ),
    ] = None
    model_: options.Model = None
    layer: options.Layer = None
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="seed of random weights; for --score additive and general, of its weights alone [default: no "
            "weights, W = I]",
        ),
    ] = None


class Sources(NamedTuple):
    """The tensors that provide queries, keys and values; None: x of the record."""

    memory: Annotated[
        AttendedTensor | None,
        options.file(
            "attended", "tensor that provides keys and values (cross-attention); :memory is the record's memory"
        ),
    ] = None
    query: Annotated[AttendedTensor | None, options.file("attended", "queries, instead of x")] = None
    key: Annotated[AttendedTensor | None, options.file("attended", "keys, instead of x or the memory")] = None
    value: Annotated[AttendedTensor | None, options.file("attended", "values, instead of the tensor of the keys")] = (
        None
    )

    @property
    def of_keys(self) -> AttendedTensor | None:
        return self.key or self.memory


class Masking(NamedTuple):
    """The keys that each query may attend to."""

    mask: Annotated[
        Record | None,
        options.file(
            "tensor",
            "bool or 0/1: 1 = may attend; float: added to the scores [default: the record's mask; for a memory "
            "its memory_mask, otherwise the padding in its mask]",
        ),
    ] = None
    causal: Annotated[bool, typer.Option(help="let a query attend only to keys up to its own position")] = False
    align: Annotated[
        Literal["top-left", "bottom-right"] | None,
        typer.Option(
            help="corner where the causal diagonal starts [default: top-left; with --lengths, bottom-right of the "
            "valid keys]"
        ),
    ] = None
    window: options.Window = (-1, -1)
    lengths: Annotated[Record | None, options.file("tensor", "number of valid keys in each batch row, (B)")] = None


class Scoring(NamedTuple):
    """The score of a query and a key: how it is computed, and what is added to it."""

    scale: Annotated[float | None, typer.Option(help="multiply the scores by X [default: 1/√d_k]")] = None
    softcap: Annotated[
        float, typer.Option(min=0, metavar="C", help="replace each score by C · tanh(score / C); 0: off")
    ] = 0.0
    score: Annotated[str, options.choice(model.SCORES, "score function of a query and a key")] = "scaled-dot"
    bias: Annotated[
        Record | None, options.file("tensor", "bias to add to the scores [default: the record's bias, from posenc]")
    ] = None
    qk_norm: Annotated[
        Literal["rms", "layer"] | None,
        typer.Option(
            help="normalize the queries and keys of each head before their scores (ε 1e-6); gamma_q, gamma_k, "
            "beta_q and beta_k of --params, (K), scale and shift them"
        ),
    ] = None
    sinks: Annotated[
        Record | None,
        options.file("tensor", "a score of each head, (H), that the softmax includes beside those of the keys"),
    ] = None


class Rotation(NamedTuple):
    """Rotary positions (RoPE): queries and keys of each head are rotated."""

    rotary: Annotated[
        Literal["halves", "interleaved"] | None,
        typer.Option(
            help="rotate the queries and keys of each head by their positions (RoPE); a pair is features i and i + K/2 "
            "of K (halves), or 2i and 2i + 1 (interleaved)"
        ),
    ] = None
    base: Annotated[
        float | None,
        typer.Option(click_type=options.ABOVE_0, help="base of the wavelengths of --rotary [default: 10000]"),
    ] = None

    def rotate(
        self, options: model.MultiHeadOptions, x: Array, projections: Mapping[str, Array], past: int
    ) -> model.MultiHeadOptions:
        """The options of attention with the angles of tokens after those of the past."""
        if x.ndim == 4:
            raise UsageError(f"x {as_text(x.shape)} is already split into heads: posenc rotates it", "--rotary")
        width = projections.get("wq", x).shape[-1] // options.heads
        if width % 2:
            raise DataError(f"heads of width {width} cannot be rotated (expected an even width)", "--rotary")
        angles = model.rotary_angles(past + np.arange(sum(x.shape[-2:-1])), width, base=self.base or 10000.0)
        return options.replace(rotary=angles, interleaved=self.rotary == "interleaved")


class Past(NamedTuple):
    """Keys and values before those of x, and the position of the first query."""

    past_key: Annotated[Record | None, options.file("tensor", "keys of earlier tokens (KV cache), (B, G, P, K)")] = None
    past_value: Annotated[
        Record | None, options.file("tensor", "values of earlier tokens (KV cache), (B, G, P, V)")
    ] = None
    offset: Annotated[
        int | None, typer.Option(help="position of the first query among the keys [default: from --align]")
    ] = None

    @property
    def keys(self) -> int:
        """Number of earlier keys."""
        return 0 if self.past_key is None else sum(self.past_key["x"].shape[-2:-1])


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
    projection: Projection,
    sources: Sources,
    masking: Masking,
    scoring: Scoring,
    past: Past,
    softmax_dtype: str | None,
    rotation: Rotation,
) -> PreparedAttention:
    """Collect what attention computes with from the options of attend and the record.

    DataError if shapes do not match, UsageError for options that contradict the model.
    """
    record, model_, layer = rename_model_inputs(record), projection.model_, ""
    if model_ is not None:
        layer = layers.find_layer(model_, projection.layer, "attend")
        if layer.endswith(".cross") and sources.of_keys is None:
            sources = sources._replace(memory=load_attended(record, "memory", own=True))
    queries, keys = sources.query or select_tensor(record), sources.of_keys or select_tensor(record)
    values = sources.value or keys
    if masking.mask is None:
        mask = find_mask(record, sources, past.keys, is_by_hand=model_ is None)
    else:
        batch = max(len(x) if x.ndim > 2 else 0 for x in (queries["x"], keys["x"]))
        sizes = sum(queries["x"].shape[-2:-1]), past.keys + sum(keys["x"].shape[-2:-1])
        mask = Record({"x": add_query_axis(masking.mask.tensors["x"], batch, *sizes)})
    bias = scoring.bias or find_bias(record, sources, is_by_hand=model_ is None)
    if mask is not None and mask["x"].dtype.kind == "f" and np.isin(mask["x"], (0, 1)).all() and mask["x"].any():
        problem = "the mask is float, so its 0 and 1 are added to the scores; with --dtype bool, 1 = may attend: "
        warnings.warn(problem + "attnkit show FILE --dtype bool -o MASK.npy", AttnkitWarning, stacklevel=2)
    own = {one.name for one in sources if one is not None and one.is_given}
    rest = record.without(set(intermediates.intermediates_in(record)) - own)
    key_axis = "source" if sources.of_keys else "key"
    inputs = AttentionInputs(record, rest, queries, keys, values, mask, bias, key_axis, layer)
    heads = projection.heads if model_ is None else find_heads(model_, layer)
    options = model.MultiHeadOptions(
        heads=projection.heads,
        kv_heads=projection.kv_heads,
        mask=broadcast_over_heads(mask, inputs.batch),
        bias=broadcast_over_heads(bias, inputs.batch, heads),
        causal=masking.causal,
        align="top-left" if past.offset is not None else masking.align,
        past=past.offset or 0,
        window=masking.window,
        lengths=array_of(masking.lengths),
        scale=scoring.scale,
        softcap=scoring.softcap,
        score=scoring.score if model_ is None else model_.config.score,
        norm=None if scoring.qk_norm is None else QueryKeyNorm(scoring.qk_norm, QK_EPS, "head"),
        sinks=array_of(scoring.sinks),
        softmax_dtype=softmax_dtype,
        past_key=array_of(past.past_key),
        past_value=array_of(past.past_value),
    )
    if model_ is not None:
        options = merge_layer_options(options, inputs, model_, past)
    q = inputs.query["x"]
    check_ranks(inputs, options)
    score_params, projections = select_weights(inputs, options, projection)
    if rotation.rotary is not None:
        options = rotation.rotate(options, q, projections, past.keys)
    return PreparedAttention(inputs, options.replace(score_params=score_params), projections)


def check_ranks(inputs: AttentionInputs, options: model.MultiHeadOptions) -> None:
    """Check the ranks of the operands, and that the options state the same heads."""
    q, k, _ = inputs.arrays()
    if options.norm is not None and q.ndim == 4:
        raise UsageError(f"x {as_text(q.shape)} is already split into heads: nothing is projected", "--qk-norm")
    for name, x in zip("QKV", inputs.arrays(), strict=True):
        if x.ndim > 4:
            raise DataError.about(name, f"{as_text(x.shape)}: rank {x.ndim} (expected 2 or 3 or 4)")
    count = None if options.heads == 1 else options.heads
    for name, x, given, flag in (("x", q, count, "--heads"), ("K", k, options.kv_heads, "--kv-heads")):
        if x.ndim == 4 and given not in (None, x.shape[1]):
            raise DataError.about(name, f"{x.shape} has {x.shape[1]} heads, {flag} says {given}")


def find_mask(record: Record, sources: Sources, past: int, is_by_hand: bool) -> Record | None:
    """The mask of attention if no option names one; warn if it is not used.

    past        number of keys before the record
    is_by_hand  whether flags, not a model, say what is attended to
    """
    queries, keys = sources.query, sources.of_keys
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


def find_bias(record: Record, sources: Sources, is_by_hand: bool) -> Record | None:
    """The record's `bias` for self-attention of its tokens; warn if it is not used."""
    if "bias" not in record:
        return None
    if not (is_own(sources.query, record) and is_own(sources.of_keys, record)):
        if is_by_hand and has_columns_for(record, "bias", sources.of_keys):
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
    options: model.MultiHeadOptions, inputs: AttentionInputs, checkpoint: "Checkpoint", past: Past
) -> model.MultiHeadOptions:
    """Complete the options by the rules of a model's layer; biases are added.

    UsageError if a flag moves queries that the model places.
    """
    q = inputs.query["x"]
    if q.ndim not in (2, 3):
        raise DataError(f"x {q.shape}: --model takes (T, D) or (B, T, D)")
    context = layers.context_from(inputs.record)
    context.past = past.keys
    if past.keys and context.positions is not None:
        context.positions = layers.positions_after(context.positions, array_of(inputs.mask), past.keys, q.shape[-2])
    layer = model.read_attention_options(layers.core_model(checkpoint), inputs.layer, q.shape[-2], context)
    relative = layer.get("bias")
    if past.offset is not None and (layer.get("rotary") or layer.get("relative") or relative is not None):
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
        key_scale=layer["key_scale"],
        rotary=layer.get("rotary"),
        interleaved=layer["interleaved"],
        relative=layer.get("relative"),
    )


def select_weights(
    inputs: AttentionInputs, options: model.MultiHeadOptions, given: Projection
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The parameters of the score and the projections: of a file, a model, or drawn."""
    names = model.SCORES[options.score].parameters
    if given.params is not None:
        return split_parameters(given.params, options.score)
    if given.model_ is not None:
        projections = dict(given.model_.params.get(inputs.layer, {}))
        return {name: projections.pop(name) for name in names if name in projections}, projections
    q, k, v = inputs.arrays()
    groups = options.kv_heads or options.heads
    if names:
        return score_parameters(q, k, options.score, (options.heads, groups), given.seed), {}
    if given.seed is None:
        return {}, {}
    return {}, random_attention_weights(q, k, v, options.heads, groups, given.seed)


def split_parameters(params: Mapping[str, Array], score: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Split the parameters of a file into parameters of the score and projections.

    They may have PyTorch's names. DataError names the missing parameters, or one that is not of a layer.

    >>> [sorted(part) for part in split_parameters({"wq": np.eye(2), "w1": np.eye(2)}, "scaled-dot")]
    [[], ['wq']]
    """
    needs, own = model.SCORES[score].parameters, f"it has {join_names([*params])}"
    if params.keys().isdisjoint({*PROJECTIONS, *OTHERS}):
        from attnkit.inputs.torch_parameters import read_torch_parameters

        params = read_torch_parameters(params, "attend")
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


def weigh_values(record: Record, projection: Projection, sources: Sources, given: Record) -> WeightedValues:
    """Sum the values of --value, --memory or x by the weights of --weights-from.

    Weights are (T, S) for all heads, (H, T, S), or (B, T, S) and (B, H, T, S) for a batch of values. DataError if
    their shape does not fit the values.
    """
    x, weights, heads = (sources.value or sources.memory or record)["x"], given["x"], projection.heads
    if x.ndim not in (2, 3) or weights.ndim < 2:
        expected = "values (S, D) or (B, S, D) and weights (T, S), (H, T, S) or (B, H, T, S)"
        raise DataError(f"values {as_text(x.shape)} and weights {as_text(weights.shape)}: expected {expected}")
    params = {} if projection.params is None else split_parameters(projection.params, "scaled-dot")[1]
    if "wg" in params:
        raise UsageError("the gate wg reads queries, and given weights have none", "--weights-from")
    projections = {name: one for name, one in params.items() if name in ("wv", "bv", "wo", "bo")}
    v = model.split_heads(model.linear(x, projections.get("wv"), projections.get("bv")), heads)
    lead = (*x.shape[:-2], heads)
    shape = (*lead, *weights.shape[-2:])
    if weights.ndim == 3 and x.ndim == 3:
        weights = weights[:, None]
    if weights.ndim > len(shape) or weights.shape[-1] != x.shape[-2] or not broadcasts(weights.shape, shape):
        expected = f"({','.join(map(str, lead))},T,{x.shape[-2]})"
        stated = f"weights {as_text(given['x'].shape)} for values {as_text(x.shape)}"
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
