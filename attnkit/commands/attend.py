"""attnkit attend: scaled dot-product and multi-head attention."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from attnkit import model
from attnkit.cli import options
from attnkit.cli.tool import tool
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.inference import intermediates, layers, masking
from attnkit.inference.masking import AttendedTensor
from attnkit.inference.operands import load_attended, select_tensor
from attnkit.record import Array, Labels, Record, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

STEPS = ("q", "k", "v", "scores", "scaled", "capped", "masked", "weights", "heads")
PROJECTIONS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
OTHERS = {"w1", "b1", "w2", "b2", "w3", "b3"}  # of ffn: one file may hold the weights of a whole layer
OTHERS |= {name for score in model.SCORES.values() for name in score.parameters}
KEEP = (*STEPS, "present")
EMIT = (*STEPS, "present_key", "present_value")
ALWAYS = ("q", "k", "v", "present_key", "present_value")  # what costs nothing to hand back


def stands_alone(given: Mapping[str, Any]) -> bool:
    """Whether query, key and value all come from files, so that no record is read."""
    operands = [given[name] for name in ("query", "key", "value")]
    return all(operand is not None and not str(operand).startswith(":") for operand in operands)


@tool(
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
    score: Annotated[str, options.choice("how a query and a key are compared", tuple(model.SCORES))] = "scaled-dot",
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
    if (params is not None) + (seed is not None) + (model_ is not None) > 1:
        raise UsageError("--params FILE, --model DIR and --seed N: one or another")
    if layer is not None and model_ is None:
        raise UsageError("goes with --model DIR", "--layer")
    if record is None and residual:
        raise UsageError("--residual adds the input, and with these flags none is read")
    if partial and (emit or residual or strict or add is not None):
        raise UsageError("--partial gives the heads: --emit, --residual, --add and --strict come after attnkit merge")
    if offset is not None and (align is not None or past_key is not None):
        raise UsageError("--offset says where the queries stand, and so do --align and --past-key: one or the other")
    if weights not in (None, "full") and (steps or "weights" in (*keep, emit)):
        raise UsageError(f"--weights {weights} is in place of all the weights, which --steps, --keep or --emit ask for")
    inputs = record or Record({})
    if model_ is not None:
        layer = layers.find_layer(model_, layer, "attend")
        if layer.endswith(".cross") and memory is None and key is None:
            memory = load_attended(inputs, "memory", own=True)
    asking = query or select_tensor(inputs)
    keys = key or memory or select_tensor(inputs)
    q, k, v = asking["x"], keys["x"], (value or keys)["x"]
    over = "source" if key or memory else "key"
    past = 0 if past_key is None else sum(past_key["x"].shape[-2:-1])
    by_hand = model_ is None
    mask = mask or masking.find_mask(inputs, query, key or memory, past, by_hand)
    bias = bias or masking.find_bias(inputs, query, key or memory, by_hand)
    warn_of_floats(mask)
    said_by_model: dict[str, Any] = {}
    if model_ is not None and layer is not None:
        said_by_model = options_of(model_, layer, q, inputs, array(mask), past)
        if offset is not None and (said_by_model.get("rotary") or said_by_model.get("bias") is not None):
            raise UsageError("the model itself says where its queries stand", "--offset")
        heads, kv_heads, scale, causal, window, bias = merged(
            said_by_model, heads, kv_heads, scale, causal, window, bias
        )
    check_heads(q, k, heads, kv_heads)
    compared, projections = sorted_parameters(params, score) if params is not None else ({}, {})
    if model_ is not None and layer is not None:
        projections = dict(model_.params.get(layer, {}))
    if seed is not None:
        projections = random_weights(q, k, v, heads, kv_heads or heads, seed)
    if offset is not None:
        align = "top-left"
    how = "full" if weights is None else weights
    asked = (*keep, *(STEPS if steps else ()), *(["weights"] if weights is not None else ()))
    found = model.multi_head_attention(
        q, k, v, projections, heads=heads, kv_heads=kv_heads, past=offset or 0,
        mask=aligned(mask), bias=aligned(bias), causal=causal, align=align, window=window, lengths=array(lengths),
        scale=scale, softcap=softcap, score=score, score_params=compared,
        past_key=array(past_key), past_value=array(past_value), softmax_dtype=softmax_dtype,
        rotary=said_by_model.get("rotary"), summary=how,
        keep=(*asked, *([emit] if emit else []), *ALWAYS, *(["lse"] if partial or v.shape[-1:] != (0,) else [])),
    )  # fmt: skip
    if not partial and "lse" in found:
        intermediates.warn_fully_masked_rows(np.isneginf(found["lse"]), strict)

    restricted = mask is not None or causal or window != (-1, -1) or lengths is not None
    said = intermediates.attention_formulas(found, projections, score, scale, softcap, bias is not None, restricted)
    output, formula = found.pop("output"), said["output"] if steps or keep else said["attention"]
    if residual:
        output, formula = model.add(output, inputs["x"]), formula + " + input"
    if add is not None:
        output, formula = model.add(output, add["x"]), formula + " + residual"
    seen = "present" if past_key is not None else over
    lead = ("batch",)[: found["q"].ndim - 3]
    axes = {name: (*lead, *intermediates.attention_axes(name, seen if name not in "kv" else over)) for name in found}
    idle = {name for name in ("capped", "masked") if said[name] == "as before" and name not in keep}
    kept = {name: x for name, x in found.items() if name in asked or name.startswith("weights.")}
    if "present" in keep:
        kept |= {name: found[name] for name in ("present_key", "present_value")}
    if partial:  # with what makes the output of the merged heads
        kept |= {"lse": found["lse"]} | {
            name: projections[name] for name in intermediates.OUTPUT_PARAMETERS if name in projections
        }
        axes |= intermediates.OUTPUT_PARAMETERS
    if emit or partial:
        name = emit or "heads"
        output, formula, axes["x"] = found[name], said[name], axes[name]
    else:
        axes["x"] = asking.fitting("x", output.shape)
    if query is not None:  # its tokens are not those of the record
        axes["x"] = tuple("query" if axis == "token" else axis for axis in axes["x"])
    used = {operand.name for operand in (query, key, value, memory) if operand is not None and operand.is_given}
    rest = inputs.without([name for name in intermediates.intermediates_in(inputs) if name not in used])
    labels: dict[str, Labels] = {}
    if kept or emit or query:
        labels = intermediates.attention_labels(asking, keys, over, how, found["q"].shape[-2])
        sizes = ({"query": q.shape[-2]} if query else {}) | ({"source": k.shape[-2]} if key or memory else {})
        rest, labels = intermediates.clear_labels(rest, labels, sizes, (*kept, "x"))
    return rest.put(
        kept | {"x": output},
        {name: axes[name] for name in (*kept, "x")},
        labels,
        {name: said[name] for name in kept if name in said and name not in idle} | {"x": formula},
    )


def options_of(
    checkpoint: "Checkpoint", layer: str, q: Array, inputs: Record, mask: Array | None, past: int
) -> dict[str, Any]:
    """What a model says of attention in one of its layers, for the tokens of a record."""
    if q.ndim not in (2, 3):
        raise DataError(f"x {q.shape}: --model takes (T, D) or (B, T, D)")
    context = layers.context_from(inputs)
    context.past = past
    if past and context.positions is not None:
        context.positions = layers.positions_after(context.positions, mask, past, q.shape[-2])
    return model.attention_options(layers.core_model(checkpoint), layer, q.shape[-2], context)


def merged(
    said: Mapping[str, Any],
    heads: int,
    kv_heads: int | None,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    bias: Record | None,
) -> tuple[int, int, float | None, bool, tuple[int, int], Record | None]:
    """The options of a model where the flags leave them open; what both say must agree, and biases add up."""
    for flag, given, own in (("--heads", heads if heads > 1 else None, "heads"), ("--kv-heads", kv_heads, "kv_heads")):
        if given not in (None, said[own]):
            raise UsageError(f"the model has {said[own]}, not {given}", flag)
    relative = said.get("bias")
    if relative is not None:
        bias = Record({"x": relative if bias is None else relative + bias["x"]})
    return (
        said["heads"],
        said["kv_heads"],
        said["scale"] if scale is None else scale,
        causal or said.get("causal", False),
        said.get("window", window) if window == (-1, -1) else window,
        bias,
    )


def sorted_parameters(params: Mapping[str, Array], score: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """The parameters that the score takes, and the projections, of a file that may hold those of a whole layer.

    DataError names what is missing, or is no name of a layer's weights.

    >>> [sorted(part) for part in sorted_parameters({"wq": np.eye(2), "w1": np.eye(2)}, "scaled-dot")]
    [[], ['wq']]
    """
    needs = model.SCORES[score].parameters
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
        model.split_heads(np.empty((1, q.shape[-1] if q.ndim else 1)), heads)
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
    return {name: model.random_weight(rng, *shape).astype(model.output_dtype(q)) for name, shape in shapes.items()}


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
