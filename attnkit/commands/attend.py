"""attnkit attend: scaled dot-product and multi-head attention."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from attnkit import model as nn
from attnkit.cli import options
from attnkit.cli.tool import tool
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.inference import intermediates, layers, masking
from attnkit.inference.masking import AttendedTensor
from attnkit.inference.operands import load_attended, select_tensor
from attnkit.record import Array, Labels, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

STEPS = ("q", "k", "v", "scores", "scaled", "capped", "masked", "weights", "heads")
PROJECTIONS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
OTHERS = {"w1", "b1", "w2", "b2", "w3", "b3"}  # of ffn: one file may hold the weights of a whole layer
OTHERS |= {name for score in nn.SCORES.values() for name in score.parameters}
KEEP = (*STEPS, "present")
EMIT = (*STEPS, "present_key", "present_value")
EXCLUSIVE = [
    ("params", "model", "seed"),
    ("offset", "align"),
    ("offset", "past_key"),
    *(("partial", flag) for flag in ("emit", "residual", "add", "strict")),
]
ALWAYS = ("q", "k", "v", "present_key", "present_value")  # what costs nothing to hand back


def stands_alone(given: Mapping[str, Any]) -> bool:
    """Whether query, key and value all come from files, so that no record is read."""
    operands = [given[name] for name in ("query", "key", "value")]
    return all(operand is not None and not str(operand).startswith(":") for operand in operands)


@tool(
    exclusive=EXCLUSIVE,
    requires=[("layer", "model"), ("past_key", "past_value"), ("past_value", "past_key")],
    alone=stands_alone,
    aside=lambda given: bool(given["steps"]),
    numeric=lambda given: given["emit"] != "masked",  # where -inf is no accident
)
def attend(
    record: Record | None,
    *,
    heads: Annotated[int, options.integer("number of heads", 1, "H")] = 1,
    kv_heads: Annotated[
        int | None, options.integer("heads of keys and values, each for H/G query heads [default: H]", 1, "G")
    ] = None,
    params: Annotated[
        Mapping[str, Array] | None,
        options.tensors("weights: wq wk wv wo (in, out), bq bk bv bo; wa ua va; w"),
    ] = None,
    model_: Annotated[Any, options.MODEL] = None,
    layer: Annotated[str | None, options.LAYER] = None,
    seed: Annotated[int | None, options.integer("random weights from this seed", 0)] = None,
    memory: Annotated[
        AttendedTensor | None, options.attended("keys and values come from here, not from x; :memory is the record's")
    ] = None,
    query: Annotated[AttendedTensor | None, options.attended("queries in place of x")] = None,
    key: Annotated[AttendedTensor | None, options.attended("keys in place of x or the memory")] = None,
    value: Annotated[AttendedTensor | None, options.attended("values in place of the keys")] = None,
    mask: Annotated[
        Record | None,
        options.tensor(
            "bool or 0/1: 1 = may attend; float: added [default: the record's mask; of a memory its memory_mask, "
            "else the padding in its mask]"
        ),
    ] = None,
    causal: Annotated[bool, options.switch("a query sees keys up to its own position")] = False,
    align: Annotated[
        str | None,
        options.choice(
            "corner that --causal starts from [default: top-left; with --lengths, where the valid keys end]",
            ("top-left", "bottom-right"),
        ),
    ] = None,
    window: Annotated[
        tuple[int, int],
        options.integers("keys from L before the query to R after it; -1: no bound", "L,R", 2, -1),
    ] = (-1, -1),
    lengths: Annotated[Record | None, options.tensor("valid keys of each batch row, (B)")] = None,
    scale: Annotated[float | None, options.number("factor on the scores [default: 1/√d_k]")] = None,
    softcap: Annotated[
        float, options.number("c: scores become c · tanh(score / c); 0: off", least=0, metavar="C")
    ] = 0.0,
    score: Annotated[str, options.choice("how a query and a key are compared", tuple(nn.SCORES))] = "scaled-dot",
    bias: Annotated[
        Record | None,
        options.tensor("added to the scores, in place of the record's bias [default: that, as posenc makes it]"),
    ] = None,
    past_key: Annotated[Record | None, options.tensor("keys that come before, (B, G, P, K)")] = None,
    past_value: Annotated[Record | None, options.tensor("values that come before, (B, G, P, V)")] = None,
    offset: Annotated[
        int | None, options.integer("position of the first query among the keys [default: by --align]")
    ] = None,
    softmax_dtype: Annotated[
        str | None,
        options.choice("dtype to round scores and weights to", ("float16", "bfloat16", "float32", "float64")),
    ] = None,
    residual: Annotated[bool, options.switch("add the input to the result")] = False,
    add: Annotated[Record | None, options.tensor("add FILE to the result: :residual in the pre-norm order")] = None,
    emit: Annotated[str | None, options.choice("make this intermediate x", EMIT)] = None,
    keep: Annotated[tuple[str, ...], options.names("add these intermediates to the record", KEEP)] = (),
    weights: Annotated[str | None, options.WEIGHTS] = None,
    partial: Annotated[
        bool, options.switch("these are a part of the keys: x is the heads, with lse beside it, for attnkit merge")
    ] = False,
    steps: Annotated[bool, options.switch("add every intermediate to the record and show a table of each")] = False,
    strict: Annotated[bool, options.switch("refuse a query that may attend to nothing")] = False,
) -> Record:
    """Attention: every query's average of the values, weighted by how well its key fits.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V. Without weights Q = K = V = x. x is (T, D), (B, T, D) or,
    already split into heads, (B, H, T, D). Self-attention uses the record's mask and bias. Attention to a memory
    uses the mask of that memory: its memory_mask, else the padding in its own mask. A mask or bias that could be
    meant and is not used is named in a warning. A query that may attend to nothing gets zeros, and a warning.
    With --model and --layer the weights, heads, scale, positions and causality are the model's. Intermediates
    that an earlier attend left in the record are dropped.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit mask --causal | attnkit attend --heads 2 --steps
    """
    check_outputs(record, residual, weights, steps, (*keep, emit))
    past = count_positions(past_key)
    inputs = collect_inputs(record, query, key, value, memory, mask, bias, past, model_, layer)
    options = nn.MultiHeadOptions(
        heads=heads, kv_heads=kv_heads, mask=aligned(inputs.mask), bias=aligned(inputs.bias), causal=causal,
        align=align if offset is None else "top-left", past=offset or 0, window=window, lengths=array(lengths),
        scale=scale, softcap=softcap, score=score, past_key=array(past_key), past_value=array(past_value),
        softmax_dtype=softmax_dtype,
    )  # fmt: skip
    if model_ is not None:
        options = merge_layer_options(options, inputs, layer_options(model_, inputs, past), offset)
    q, k, v = (operand["x"] for operand in (inputs.query, inputs.key, inputs.value))
    check_heads(q, k, options.heads, options.kv_heads)
    score_params, projections = select_weights(inputs, options, params, model_, seed)
    requested = (*keep, *STEPS * steps, *("weights",) * (weights is not None))
    result = nn.multi_head_attention(
        q, k, v, projections, options.replace(score_params=score_params),
        summary="full" if weights is None else weights,
        keep=(*requested, *filter(None, [emit]), *ALWAYS, *("lse",) * (partial or v.shape[-1:] != (0,))),
    )  # fmt: skip
    if not partial and "lse" in result:
        intermediates.warn_fully_masked_rows(np.isneginf(result["lse"]), strict)

    formulas = attention_formulas(result, projections, options)
    output = Tensor(result.pop("output"), formula=formulas["output" if steps or keep else "attention"])
    output = add_residuals(output, inputs.record["x"] if residual else None, array(add))
    tensors = describe(result, formulas, inputs.key_axis, past_key is not None)
    output = choose_output(output, tensors, inputs.query, "heads" if partial else emit, query is not None)
    kept = select_intermediates(tensors, requested, keep)
    if partial:  # with what makes the output of the merged heads
        kept |= {"lse": tensors["lse"]} | output_parameters(projections)
    if not (kept or emit or query):
        return inputs.rest.with_tensors({"x": output})
    labels = label_tokens(inputs, weights, result["q"].shape[-2])
    sizes = ({"query": q.shape[-2]} if query else {}) | ({"source": k.shape[-2]} if inputs.key_axis == "source" else {})
    rest, labels = intermediates.clear_labels(inputs.rest, labels, sizes, (*kept, "x"))
    return rest.with_tensors(kept | {"x": output}, labels)


class Inputs(NamedTuple):
    """The operands of attention, from flags or from the record.

    record    the record at hand; rest: the same without the intermediates of an earlier attend
    key_axis  the name of the axis of keys: `key`, or `source` where they come from elsewhere
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


def check_outputs(
    record: Record | None, residual: bool, weights: str | None, steps: bool, intermediates: tuple[str | None, ...]
) -> None:
    """Raise UsageError where a result is requested that these inputs or this summary of the weights don't give."""
    if record is None and residual:
        raise UsageError("--residual adds the input, and with these flags none is read")
    if weights not in (None, "full") and (steps or "weights" in intermediates):
        raise UsageError(f"--weights {weights} replaces all the weights, which --steps, --keep or --emit request")


def collect_inputs(
    record: Record | None,
    query: AttendedTensor | None,
    key: AttendedTensor | None,
    value: AttendedTensor | None,
    memory: AttendedTensor | None,
    mask: Record | None,
    bias: Record | None,
    past: int,
    checkpoint: "Checkpoint | None",
    layer: str | None,
) -> Inputs:
    """Return the operands: those of flags, else x, the memory, the mask and the bias of the record."""
    inputs, is_by_hand = record or Record({}), checkpoint is None
    if checkpoint is not None:
        layer = layers.find_layer(checkpoint, layer, "attend")
        if layer.endswith(".cross") and memory is None and key is None:
            memory = load_attended(inputs, "memory", own=True)
    queries, keys = query or select_tensor(inputs), key or memory or select_tensor(inputs)
    values = value or keys
    for operand in (queries, keys, values):
        operand["x"]
    mask = mask or masking.find_mask(inputs, query, key or memory, past, is_by_hand)
    bias = bias or masking.find_bias(inputs, query, key or memory, is_by_hand)
    warn_of_floats(mask)
    used = {operand.name for operand in (query, key, value, memory) if operand is not None and operand.is_given}
    rest = inputs.without([name for name in intermediates.intermediates_in(inputs) if name not in used])
    key_axis = "source" if key or memory else "key"
    return Inputs(inputs, rest, queries, keys, values, mask, bias, key_axis, layer or "")


def layer_options(checkpoint: "Checkpoint", inputs: Inputs, past: int) -> dict[str, Any]:
    """Return the options of attention in one layer of a model, for the tokens of a record."""
    q = inputs.query["x"]
    if q.ndim not in (2, 3):
        raise DataError(f"x {q.shape}: --model takes (T, D) or (B, T, D)")
    context = layers.context_from(inputs.record)
    context.past = past
    if past and context.positions is not None:
        context.positions = layers.positions_after(context.positions, array(inputs.mask), past, q.shape[-2])
    return nn.attention_options(layers.core_model(checkpoint), inputs.layer, q.shape[-2], context)


def merge_layer_options(
    options: nn.MultiHeadOptions, inputs: Inputs, layer: Mapping[str, Any], offset: int | None
) -> nn.MultiHeadOptions:
    """Return the options of flags with those of a model's layer where the flags leave them open; biases add up.

    UsageError where a flag has another number of heads than the model, or moves queries that the model places.
    """
    relative = layer.get("bias")
    if offset is not None and (layer.get("rotary") or relative is not None):
        raise UsageError("the model has positions of its own", "--offset")
    heads = options.heads if options.heads > 1 else None
    for flag, number, own in (("--heads", heads, "heads"), ("--kv-heads", options.kv_heads, "kv_heads")):
        if number not in (None, layer[own]):
            raise UsageError(f"the model has {layer[own]}, not {number}", flag)
    if relative is not None:
        options = options.replace(bias=relative if inputs.bias is None else relative + inputs.bias["x"])
    return options.replace(
        heads=layer["heads"],
        kv_heads=layer["kv_heads"],
        scale=layer["scale"] if options.scale is None else options.scale,
        causal=options.causal or layer.get("causal", False),
        window=layer.get("window", options.window) if options.window == (-1, -1) else options.window,
        rotary=layer.get("rotary"),
    )


def select_weights(
    inputs: Inputs,
    options: nn.MultiHeadOptions,
    params: Mapping[str, Array] | None,
    checkpoint: "Checkpoint | None",
    seed: int | None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the parameters of the score and the projections: of a file, of a model's layer, or random ones."""
    if params is not None:
        return sorted_parameters(params, options.score)
    if checkpoint is not None:
        return {}, dict(checkpoint.params.get(inputs.layer, {}))
    if seed is None:
        return {}, {}
    q, k, v = (operand["x"] for operand in (inputs.query, inputs.key, inputs.value))
    return {}, random_weights(q, k, v, options.heads, options.kv_heads or options.heads, seed)


def attention_formulas(
    result: Mapping[str, Array], projections: Mapping[str, Array], options: nn.MultiHeadOptions
) -> dict[str, str]:
    """Return the formula of every intermediate and of the output."""
    has_limits = options.causal or options.window != (-1, -1) or options.lengths is not None
    return intermediates.attention_formulas(
        result, projections, options.score, options.scale, options.softcap,
        options.bias is not None, options.mask is not None or has_limits,
    )  # fmt: skip


def describe(
    result: Mapping[str, Array], formulas: Mapping[str, str], key_axis: str, has_past: bool
) -> dict[str, Tensor]:
    """Return the intermediates with their axes and formulas; keys and values of a cache have the axis `present`."""
    lead = ("batch",)[: result["q"].ndim - 3]
    present = "present" if has_past else key_axis
    axes = {name: intermediates.attention_axes(name, key_axis if name in "kv" else present) for name in result}
    return {name: Tensor(x, (*lead, *axes[name]), formula=formulas.get(name, "")) for name, x in result.items()}


def output_parameters(projections: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return W_O and b_O, as far as there are any."""
    axes = intermediates.OUTPUT_PARAMETERS
    return {name: Tensor(projections[name], axes[name]) for name in axes if name in projections}


def count_positions(past_key: Record | None) -> int:
    """Return how many positions the keys of a cache have."""
    return 0 if past_key is None else sum(past_key["x"].shape[-2:-1])


def add_residuals(output: Tensor, x: Array | None, residual: Array | None) -> Tensor:
    """Return the output plus the input, plus another residual, as far as they are requested."""
    for addend, name in ((x, "input"), (residual, "residual")):
        if addend is not None:
            output = Tensor(nn.add(output.array, addend), formula=f"{output.formula} + {name}")
    return output


def choose_output(
    output: Tensor, tensors: Mapping[str, Tensor], queries: Record, name: str | None, has_query: bool
) -> Tensor:
    """Return the tensor that becomes x: the intermediate of that name, else the output with the axes of the queries.

    has_query  whether the queries are not the tokens of the record: their axis is then called so
    """
    axes = queries.tensor("x").axes_like(output.shape)
    output = replace(output, axes=axes) if name is None else tensors[name]
    if not has_query:
        return output
    return replace(output, axes=tuple("query" if axis == "token" else axis for axis in output.axis_names()))


def label_tokens(inputs: Inputs, weights: str | None, queries: int) -> dict[str, Labels]:
    """Return the labels of queries and keys, and of the rows that --weights selects."""
    return intermediates.attention_labels(
        inputs.query, inputs.key, inputs.key_axis, "full" if weights is None else weights, queries
    )


def select_intermediates(
    tensors: Mapping[str, Tensor], requested: tuple[str, ...], keep: tuple[str, ...]
) -> dict[str, Tensor]:
    """Return the intermediates that are added to the record.

    A step that changes nothing has no formula, and so no table, unless `keep` requests it by name.
    """
    names = [name for name in tensors if name in requested or name.startswith("weights.")]
    names += ["present_key", "present_value"] if "present" in keep else []
    unchanged = {name for name in ("capped", "masked") if name not in keep}
    return {
        name: replace(tensors[name], formula="")
        if name in unchanged and tensors[name].formula == "as before"
        else tensors[name]
        for name in names
    }


def sorted_parameters(params: Mapping[str, Array], score: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """The parameters that the score takes, and the projections, of a file that may hold those of a whole layer.

    DataError names what is missing, or is no name of a layer's weights.

    >>> [sorted(part) for part in sorted_parameters({"wq": np.eye(2), "w1": np.eye(2)}, "scaled-dot")]
    [[], ['wq']]
    """
    needs = nn.SCORES[score].parameters
    known = (*PROJECTIONS, *OTHERS)
    if unknown := [name for name in params if name not in known]:
        problem = f"parameter {unknown[0]!r} is not one of {join_names(PROJECTIONS)} (it has {join_names([*params])})"
        raise DataError(problem, "--params")
    if missing := [name for name in needs if name not in params]:
        raise DataError(
            f"no {join_names(missing)}, which --score {score} needs (it has {join_names([*params])})", "--params"
        )
    if not needs and not set(params) & set(PROJECTIONS):
        raise DataError(f"no {join_names(PROJECTIONS)} (it has {join_names([*params])})", "--params")
    projections = {name: one for name, one in params.items() if name in PROJECTIONS}
    return {name: params[name] for name in needs}, projections


def array(operand: Record | None) -> Array | None:
    """The tensor of an operand that may be missing."""
    return None if operand is None else operand["x"]


def aligned(operand: Record | None) -> Array | None:
    """A mask or bias as attention broadcasts it: one over batch, query and key by name gets an axis of heads."""
    if operand is None:
        return None
    tensor, axes = operand["x"], operand.axes.get("x", ())
    return tensor[:, None] if tensor.ndim == 3 and axes[:1] == ("batch",) else tensor


def random_weights(q: Array, k: Array, v: Array, heads: int, groups: int, seed: int) -> dict[str, Array]:
    """wq, wk, wv, wo in this order from N(0, 1/rows), in the dtype of the queries."""
    if q.ndim == 4 or q.ndim < 2 or q.shape[-1] % heads:
        nn.split_heads(np.empty((1, q.shape[-1] if q.ndim else 1)), heads)
        raise DataError(f"x {q.shape}: --seed makes weights for (T, D) or (B, T, D)")
    if not (k.ndim and v.ndim):
        raise DataError(f"K {k.shape} and V {v.shape}: a single number (expected (S, D) or (B, S, D))")
    rng, width = np.random.default_rng(seed), q.shape[-1] // heads
    shapes = {
        "wq": (q.shape[-1], heads * width),
        "wk": (k.shape[-1], groups * width),
        "wv": (v.shape[-1], groups * width),
        "wo": (heads * width, q.shape[-1]),
    }
    return {name: nn.random_weight(rng, *shape).astype(nn.output_dtype(q)) for name, shape in shapes.items()}


def check_heads(q: Array, k: Array, heads: int, groups: int | None) -> None:
    """DataError where the flags speak against tensors that are split into heads already."""
    for name, x, count, flag in (("x", q, None if heads == 1 else heads, "--heads"), ("K", k, groups, "--kv-heads")):
        if x.ndim == 4 and count not in (None, x.shape[1]):
            raise DataError(f"{name} {x.shape} has {x.shape[1]} heads, {flag} says {count}")


def warn_of_floats(mask: Record | None) -> None:
    """Say that a float mask is added, where it looks like one of 0 and 1."""
    if mask is not None and mask["x"].dtype.kind == "f" and np.isin(mask["x"], (0, 1)).all() and mask["x"].any():
        problem = "the mask is float, so its 0 and 1 are added to the scores; with --dtype bool, 1 = may attend: "
        warnings.warn(problem + "attnkit show FILE --dtype bool -o MASK.npy", AttnkitWarning, stacklevel=2)
