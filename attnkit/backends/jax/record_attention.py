"""Attention of a record by JAX, with the names and errors of model.attention."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from attnkit.backends.jax.attention_kernels import (
    MANY,
    Rules,
    block_attention,
    dense_with_lse,
    ring_attention,
    score_function,
)
from attnkit.backends.jax.formulas import JaxArray, linear, relative_scores, rotate, wide
from attnkit.backends.jax.inputs import fill, mask_arrays, round_up
from attnkit.backends.jax.mesh import put
from attnkit.backends.jax.passes import Pass, precision
from attnkit.backends.jax.processes import to_numpy
from attnkit.backends.jax.program import Nodes
from attnkit.errors import DataError, UsageError
from attnkit.model.attention import cast_intermediates, check_parameters, find_score, prepend_past, with_sinks
from attnkit.model.checks import as_text, check_shapes
from attnkit.model.config import Config
from attnkit.model.dtypes import Array, output_dtype, working
from attnkit.model.formulas.dense_attention import AttentionOptions, MultiHeadOptions, broadcast_mask, query_positions
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.linear import check_inner
from attnkit.model.formulas.masks import padding_mask
from attnkit.model.formulas.norms import QueryKeyNorm
from attnkit.model.formulas.scores import dot
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.hooks import summary_names
from attnkit.model.intermediates import ORDER, SQUARE
from attnkit.model.kernels.weight_stats import summarize_dense_weights

PAIRS = (("query", "q"), ("key", "k"), ("value", "v"))
GATE_AND_OUTPUT = ("wg", "bg", "wo", "bo")  # what heads are multiplied by


def attend_record(
    engine: Any,
    inputs: tuple[Array, Array, Array],
    params: Mapping[str, Array],
    options: MultiHeadOptions,
    summary: str,
    keep: Collection[str],
) -> dict[str, Array]:
    """Compute attention: the kept intermediates, and the output.

    inputs  query (..., T, D), key (..., S, D), value (..., S, D), or already split into heads (B, H, T, K)
    """
    check_parameters(inputs[0], params)
    own = working(*inputs, *params.values())
    dtype, result = engine.compute or own.name, output_dtype(inputs[0])
    with precision(dtype):
        query, *_ = arrays = [jnp.asarray(np.asarray(x, own), dtype) for x in inputs]
        is_split, normed = inputs[0].ndim == 4, dict[str, JaxArray]()
        if not is_split:
            arrays = project(arrays, params, options, inputs, normed)
            options = with_sinks(options, params)
        steps = attend_heads(engine, arrays, options, own, summary, keep)
        steps = {name: x for name, x in normed.items() if name in keep} | steps
        output = steps["heads"]
        if not is_split:
            weights = {name: jnp.asarray(params[name], dtype) for name in GATE_AND_OUTPUT if name in params}
            if "wg" in params:
                check_linear(inputs[0], params, ("x", "wg", "bg"))
                gate = view_heads(linear(query, weights["wg"], weights.get("bg")), options.heads)
                gates = {"gate": gate, "gated_heads": output * jax.nn.sigmoid(gate)}
                output = gates["gated_heads"]
                steps |= {name: x for name, x in gates.items() if name in keep}
            check_linear(merge_heads(output), params, ("heads", "wo", "bo"))
            output = linear(merge_heads(output), weights.get("wo"), weights.get("bo"))
        steps["output"] = output
        numbers = {name: to_numpy(x, np.float64 if name == "lse" else None) for name, x in steps.items()}
    exact = [name for name, x in numbers.items() if x.dtype.kind in "iub" or name in ("lse", "weights.lse")]
    numbers |= {name: x.astype(own) for name, x in numbers.items() if name not in exact}
    return cast_intermediates(result, numbers)


def project(
    arrays: list[JaxArray],
    params: Mapping[str, Array],
    options: MultiHeadOptions,
    inputs: tuple[Array, ...],
    normed: dict[str, JaxArray],
) -> list[JaxArray]:
    """Project, normalize, split into heads and rotate.

    Errors are those of `project_heads`.

    normed  receives queries and keys after their norm
    """
    heads, rotary = options.heads, options.rotary
    groups = heads if options.kv_heads is None else options.kv_heads
    if heads < 1 or groups < 1 or heads % groups:
        raise UsageError(f"heads {heads}, kv_heads {groups} (expected kv_heads to divide heads)")
    parts = []
    for (name, letter), x, source in zip(PAIRS, arrays, inputs, strict=True):
        names = ("x" if source is inputs[0] else name, f"w{letter}", f"b{letter}")
        check_linear(source, params, names)
        weights = [None if params.get(one) is None else jnp.asarray(params[one], x.dtype) for one in names[1:]]
        y = linear(x, *weights)
        if options.norm and letter != "v":
            own = {one: jnp.asarray(array, x.dtype) for one, array in params.items() if one.endswith(f"_{letter}")}
            count = heads if letter == "q" else groups
            split = normalize_heads(y, own, letter, count, options.norm)
            normed[f"{letter}_normed"], y = split, merge_heads(split)
        parts.append(jnp.clip(y, -options.clip, options.clip) if options.clip else y)
    has_dots = options.score in ("scaled-dot", "dot")
    check_shapes(*parts, trailing=2, same_width=heads == groups and has_dots)
    split = [view_heads(x, count) for x, count in zip(parts, (heads, groups, groups), strict=True)]
    if rotary is None:
        return split
    cos, sin = (jnp.asarray(x, wide(split[0]).dtype) for x in rotary)
    return [*(rotate(x, cos, sin, options.interleaved) for x in split[:2]), split[2]]


def normalize_heads(
    x: JaxArray, params: Mapping[str, JaxArray], letter: str, heads: int, norm: QueryKeyNorm
) -> JaxArray:
    """Normalize projected queries or keys: (..., T, H*K) -> (..., H, T, K)."""
    run = Pass(Config("", heads), {"": params}, {})
    options = {"names": (f"gamma_{letter}", f"beta_{letter}"), "heads": heads, "norm": norm}
    return Nodes(run, Inputs(), {}).apply(Node("", "norm of heads", (), (), options=options), [x])


def check_linear(x: Any, params: Mapping[str, Array], names: tuple[str, str, str]) -> None:
    """Raise the errors of `linear` for a weight and a bias among parameters."""
    weight, bias = params.get(names[1]), params.get(names[2])
    if weight is not None:
        check_inner(x, weight, names)
    width = x.shape[-1:] if weight is None else weight.shape[1:]
    if bias is not None and bias.shape != width:
        raise DataError(f"{names[2]} {as_text(bias.shape)}: expected {as_text(width)}")


def attend_heads(
    engine: Any, arrays: list[JaxArray], options: MultiHeadOptions, own: Any, summary: str, keep: Collection[str]
) -> dict[str, Any]:
    """The intermediates of attention of queries, keys and values split into heads."""
    score, params = find_score(options, own)
    check_shapes(*arrays, trailing=3, same_width=not score.parameters)
    q, k, v = arrays
    steps = {"q": q, "k": k, "v": v}
    if options.relative is not None:
        options = options.replace(bias=distance_bias(options, q, k))
    keys, values, plain = prepend_past(np.asarray(q), np.asarray(k), np.asarray(v), options, params)
    k, v = jnp.asarray(keys), jnp.asarray(values)
    steps |= {"present_key": k, "present_value": v}
    rules = make_rules(plain, q, k, has_infinite=not np.isfinite(values).all())
    names = summary_names(summary)
    scorer = score_function(options.score, {name: jnp.asarray(x, q.dtype) for name, x in params.items()})
    is_simple = scorer is dot and rules.bias is None and not (rules.softcap or rules.rounding or rules.has_infinite)
    is_split = engine.mesh is not None and engine.mesh.shape["seq"] > 1 and q.size and k.size
    if any(name in keep for name in SQUARE) or names or not is_simple:
        steps["lse"] = dense_with_lse(q, k, v, rules, steps.setdefault, scorer)[1]
    elif is_split:
        steps["heads"], steps["lse"] = split_attention(engine, q, k, v, rules)
    else:
        is_large = q.shape[-3] * q.shape[-2] * k.shape[-2] >= MANY
        heads, steps["lse"] = run_kernel(block_attention if is_large else dense_with_lse, q, k, v, rules)
        steps["heads"] = heads.astype(q.dtype)
    if "weights" in keep and names:
        position = query_positions(slice(0, q.shape[-2]), plain.offset(q.shape[-2], k.shape[-2]))
        weights, lse = to_numpy(steps.pop("weights"), own), to_numpy(steps["lse"], np.float64)
        steps |= summarize_dense_weights(summary, weights, lse, position)
    returned = {"heads", *keep, *names}
    return {name: steps[name] for name in (*ORDER, *names) if name in steps and name in returned}


def run_kernel(kernel: Callable[..., Any], q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules) -> Any:
    """Run a kernel of attention, compiled once for its rules and sizes."""
    arrays = {name: jnp.asarray(x) for name, x in rules._asdict().items() if hasattr(x, "shape")}
    fixed: dict[str, Any] = dict.fromkeys(arrays)
    return compile_kernel(kernel, rules._replace(**fixed))(q, k, v, arrays)


@lru_cache(maxsize=64)
def compile_kernel(kernel: Callable[..., Any], rules: Rules) -> Any:
    """Compile a kernel of queries, keys, values and the arrays taken out of `rules`."""
    return jax.jit(lambda q, k, v, arrays: kernel(q, k, v, rules=rules._replace(**arrays)))


@lru_cache(maxsize=16)
def ring_kernel(mesh: Any) -> Callable[..., Any]:  # one function for each mesh, compiled once
    return partial(ring_attention, mesh)


def split_attention(engine: Any, q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules) -> tuple[JaxArray, JaxArray]:
    """Heads and log-sum-exps of queries and keys split over a mesh."""
    mesh: Any = engine.mesh
    if q.shape[-3] % mesh.shape["model"]:
        raise UsageError(f"{q.shape[-3]} heads are not divisible by model={mesh.shape['model']}", "--mesh")
    lead, queries, keys = (1,) * (4 - q.ndim), q.shape[-2], k.shape[-2]
    rows, size = (q.shape[0] if q.ndim == 4 else 1), mesh.shape["seq"]
    texts = round_up(rows, mesh.shape["data"])

    def place(x: JaxArray) -> JaxArray:
        whole = np.asarray(x).reshape(*lead, *x.shape)
        whole = fill(np.asarray(fill(whole, -2, round_up(x.shape[-2], size))), 0, texts)
        groups = "model" if x.shape[-3] % mesh.shape["model"] == 0 else None
        return put(whole, x.dtype, mesh, PartitionSpec("data", groups, "seq", None))

    real = np.arange(round_up(keys, size)) < keys
    mask = None if real.all() else real[None, None, None]
    if rules.mask is not None:
        own = np.asarray(rules.mask)
        own = own.reshape((1,) * (4 - own.ndim) + own.shape)
        padded = fill(own, -1, len(real)) if own.shape[-1] > 1 else own
        mask = fill(padded, -2, round_up(queries, size)) if own.shape[-2] > 1 else padded
        mask = mask & real
    if mask is not None:
        if mask.shape[1] > 1:
            raise UsageError("a mask of each head needs all keys at once", "--mesh seq")
        mask = put(np.broadcast_to(mask, (texts, *mask.shape[1:])), bool, mesh, PartitionSpec("data"))
    parts = run_kernel(ring_kernel(mesh), place(q), place(k), place(v), rules._replace(mask=mask))
    heads, lse = map(to_numpy, parts)
    cut = slice(rows) if q.ndim == 4 else 0
    return jnp.asarray(heads[cut][..., :queries, :], q.dtype), lse[cut][..., :queries]


def make_rules(options: AttentionOptions, q: JaxArray, k: JaxArray, *, has_infinite: bool) -> Rules:
    """The rules of attention; DataError if mask or bias does not broadcast."""
    queries, keys = q.shape[-2], k.shape[-2]
    shape = (*q.shape[:-1], keys)
    broadcast_mask(None, options.bias, shape, np.dtype(np.float32))
    arrays = {} if options.mask is None else mask_arrays("", options.mask, shape, (queries, keys), False)
    if options.lengths is not None:
        valid = padding_mask(options.lengths, keys)[..., None, :, :]
        arrays["mask"] = arrays["mask"] & valid if "mask" in arrays else valid
    biases = [np.asarray(one, np.float64) for one in (options.bias, arrays.get("bias")) if one is not None]
    return Rules(
        options.scale_for(q.shape[-1]),
        causal=options.causal,
        window=options.window,
        offset=options.offset(queries, keys),
        mask=jnp.asarray(arrays["mask"]) if "mask" in arrays else None,
        bias=jnp.asarray(sum(biases), wide(q).dtype) if biases else None,
        softcap=options.softcap,
        sinks=None if options.sinks is None else jnp.asarray(options.sinks, wide(q).dtype),
        rounding=options.softmax_dtype or "",
        has_infinite=has_infinite,
    )


def distance_bias(options: MultiHeadOptions, q: JaxArray, k: JaxArray) -> Array:
    """The scaled scores of relative positions, plus the bias of the options."""
    relative: Any = options.relative
    parts = {name: jnp.asarray(x, q.dtype) for name, x in relative._asdict().items()
             if x is not None and name not in ("places", "eps")}  # fmt: skip
    scores = relative_scores(q, k, relative._replace(**parts, places=jnp.asarray(relative.places, jnp.int32)))
    bias = np.asarray(scores * options.scale_for(q.shape[-1]))
    return bias if options.bias is None else bias + options.bias
