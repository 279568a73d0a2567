"""The forward pass of a model: the steps of its plan, with its parameters.

`run` applies them to one text or a padded batch, `run_packed` to many texts whose tokens are the rows of one matrix,
without padding; `encoder_layer` and `decoder_layer` are single layers with their parameters by sub-layer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnkit.errors import DataError, counted
from attnkit.model.activations import apply_activation
from attnkit.model.attention import attention, multi_head_attention, project_heads, with_relative_scores
from attnkit.model.checks import as_text
from attnkit.model.config import (
    AttentionRules,
    Config,
    ConvolutionLayer,
    PatchConfig,
    StackConfig,
    Step,
    layer_steps,
    parse_layer_name,
)
from attnkit.model.context import Context, Model, Params
from attnkit.model.convolution import convolve, convolve_backward, scale_places, scale_places_backward
from attnkit.model.dense_attention import MULTI_HEAD_DEFAULT, MultiHeadOptions
from attnkit.model.dtypes import Array, DType, output_dtype, quiet, rounded, working
from attnkit.model.embedding import embed, embed_backward
from attnkit.model.experts import Experts, mix_experts
from attnkit.model.feedforward import feed_forward
from attnkit.model.groups import GROUPS
from attnkit.model.head_views import merge_heads
from attnkit.model.hooks import apply_hook, scoped
from attnkit.model.kernels.products import ARRANGED, PLAIN, Products, row_places
from attnkit.model.linear import add, linear, scaled
from attnkit.model.norms import Normalized, channel_norm, layer_norm, rms_norm
from attnkit.model.patch_embedding import (
    add_register_rows,
    extract_patches,
    extract_patches_backward,
    interpolate_positions,
    interpolate_positions_backward,
)
from attnkit.model.positions import (
    add_positions,
    alibi_slopes,
    learned_positions,
    sinusoidal_positions,
    t5_bias,
    t5_buckets,
)
from attnkit.model.relative import RelativePositions, distance_rows
from attnkit.model.rotary import batch_frequencies, grid_angles, grid_places, rotary_angles, rotate

Groups = list[tuple[int, int]]
TOGETHER = 1 << 18  # scores of all heads that one call of attention computes, except for a longer text


def apply_step(model: Model, step: Step, x: Array, context: Context) -> Array:
    """Apply the operation of one step to x, without its residual -> (..., T, D)."""
    return GROUPS[step.op].kernel(model, step.layer, x, context)


def layer_products(model: Model, layer: str, context: Context) -> Products:
    """How a layer multiplies; with fixed shapes other texts change no bits."""
    return context.products if model.config.fixes_shapes(layer) else PLAIN


def run(
    model: Model,
    steps: Iterable[Step],
    x: Array,
    context: Context,
    apply: Callable[[Model, Step, Array, Context], Array] = apply_step,
    saved: Array | None = None,
) -> Array:
    """Apply the steps to x, one after another, each by `apply`.

    x (..., T, D), or what the first step reads: ids (..., T), an image (..., C, height, width) -> (..., T, D)

    saved  what a step before these saved for the residual of one of them [x]

    Errors come from the steps.
    """
    if model.engine and apply is apply_step:
        return model.engine.run(model, [*steps], x, context)
    saved, finite = x if saved is None else saved, bool(np.isfinite(x).all())
    for step in steps:  # as `walk_steps` does, without its calls for each step
        context.on_step(step)
        if step.reads_saved:
            x, saved = saved, x
        before, saved = x, x if step.saves_residual else saved
        x = scaled(apply(model, step, x, context), step.scale)
        if step.adds_residual == "concat":
            x = apply_hook(context.hook, f"{step.layer}.concat", np.concatenate([x, before], axis=-1))
        elif step.adds_residual:
            x = add(x, saved if step.adds_residual == "saved" else before)
            x = apply_hook(context.hook, f"{step.layer}.residual", x)
        if finite and not np.isfinite(x).all():
            finite = False
            context.on_non_finite(step.layer)
    return x


def embed_tokens(model: Model, layer: str, ids: Array, context: Context) -> Array:
    """Scaled embeddings of ids and segments, or of the patches of an image.

    ids (..., T), or an image (..., C, height, width) -> (..., T, D)
    """
    config = model.config
    if config.patches:
        image = ids.astype(context.dtype or ids.dtype, copy=False)
        x, context.grid = embed_patches(config, model.params[layer], image)
    else:
        x = embed(ids, model.part(layer, "table"))
        x = x.astype(context.dtype or x.dtype, copy=False)
        x = scaled(x, config.embed_scale)
        types = model.part(layer, "types")
        if types is not None:
            x = add(x, embed(segments(ids, context), types))
    return apply_hook(context.hook, layer, x)


def segments(ids: Array, context: Context) -> Array:
    """Segment of every token, 0 by default; DataError for another number of them.

    ids (..., T) -> (..., T) or (T,)

    >>> segments(np.array([[5, 6]]), Context())
    array([[0, 0]])
    """
    kinds = np.zeros(np.shape(ids), np.int64) if context.segment_ids is None else context.segment_ids
    if kinds.shape not in (np.shape(ids), np.shape(ids)[-1:]):
        raise DataError.about("segments", f"{kinds.shape} for tokens {np.shape(ids)}: expected one for each token")
    return kinds


def embed_patches(config: Config, params: Mapping[str, Array], image: Array) -> tuple[Array, tuple[int, int]]:
    """Class token, registers and vectors of the patches of an image, and their grid."""
    if config.patches is None or image.ndim < 3 or image.shape[-3] != config.patches.channels:
        channels = config.patches.channels if config.patches else 0
        raise DataError.about("image", f"{as_text(image.shape)}: expected ({channels}, height, width)")
    cut = config.patches
    grid = cut.grid(*image.shape[-2:])
    if 0 in grid:
        raise DataError.about("image", f"{as_text(image.shape)} has no patch of {cut.patch_height} x {cut.patch_width}")
    rows = linear(extract_patches(cut.covered(image), cut.patch_height, cut.patch_width), params["w"], params.get("b"))
    lead = [np.atleast_2d(params[name]) for name in ("cls", "registers") if name in params]
    first = [np.broadcast_to(one, (*rows.shape[:-2], *one.shape)) for one in lead]
    return np.concatenate([*first, rows], axis=-2), grid


def cut_patches_backward(dpatches: Array, shape: tuple[int, ...], cut: PatchConfig) -> Array:
    """Gradient of an image from that of its patches; 0 where it has none.

    dpatches (..., P, C * patch_height * patch_width) -> shape (..., C, height, width)
    """
    gradient = np.zeros(shape, dpatches.dtype)
    covered = cut.covered(gradient)
    covered[...] = extract_patches_backward(dpatches, covered.shape, cut.patch_height, cut.patch_width)
    return gradient


def apply_positions(model: Model, layer: str, x: Array, context: Context) -> Array:
    """Add absolute positions to x, if the model has any.

    x (..., T, D) -> (..., T, D)

    Rotary and T5 positions are applied inside attention. DataError for more tokens than the model has positions.
    """
    config = model.config
    kind = config.positions.kind
    if kind not in ("learned", "sinusoidal"):
        return x
    where = absolute_positions(x, context)
    encoding = position_encoding(model, layer, x, where, context.grid)
    return apply_hook(context.hook, layer, add_positions(x, where, encoding))


def absolute_positions(x: Array, context: Context) -> Array:
    """Position of every token: of the context, or after its cache.

    x (..., T, D) -> (T,) or (B, T)

    >>> absolute_positions(np.zeros((1, 3, 8)), Context())
    array([0, 1, 2])
    """
    return context.positions if context.positions is not None else context.past + np.arange(x.shape[-2])


def position_encoding(
    model: Model, layer: str, x: Array, where: Array, grid: tuple[int, int] | None
) -> Callable[[Array], Array]:
    """Function from positions (..., T) to the vectors (..., T, D) added to x."""
    positions = model.config.positions
    if positions.kind == "sinusoidal":
        check_size(model.config, where, layer)
        return lambda part: sinusoidal_positions(
            part + positions.first, x.shape[-1], layout=positions.layout, base=positions.base
        )
    table, grids = model.params[layer]["table"], changed_grid(model.config, grid)
    cut = model.config.patches
    if cut and grids:
        table = interpolate_positions(table.astype(x.dtype, copy=False), *grids, antialias=cut.antialias)
    elif not cut:
        check_size(model.config, where, layer)
    table = add_register_rows(table, cut.registers) if cut else table
    return lambda part: learned_positions(part + positions.first, table)


def position_encoding_backward(
    model: Model, layer: str, gradient: Array, where: Array, grid: tuple[int, int] | None
) -> Array:
    """Gradient of the table of learned positions from that of `position_encoding`.

    gradient (T, D) or (B, T, D) at positions where (T,) or (B, T) -> (P, D)
    """
    positions, cut, grids = model.config.positions, model.config.patches, changed_grid(model.config, grid)
    size = gradient.shape[-2] if cut else len(model.params[layer]["table"])
    table = embed_backward(gradient, where + positions.first, size, "position")
    table = np.delete(table, np.s_[1 : 1 + cut.registers], axis=0) if cut else table
    return interpolate_positions_backward(table, *grids, antialias=cut.antialias) if cut and grids else table


def changed_grid(config: Config, grid: tuple[int, int] | None) -> tuple[int, int, int, int] | None:
    """Grid of patches of the model and of the image; None if they are the same."""
    cut = config.patches
    if cut is None or grid is None:
        return None
    usual = cut.grid(cut.height, cut.width)
    return None if grid == usual else (*usual, *grid)


def check_size(config: Config, where: Array, layer: str) -> None:
    """Raise DataError for positions (..., T) that a model does not have."""
    size, most = config.position_count(parse_layer_name(layer)[0]), int(where.max(initial=-1)) + 1
    if size and most > size:
        raise DataError(f"{counted(most, 'token')}, and this {config.family} model has {counted(size, 'position')}")


def token_positions(mask: Array) -> Array:
    """Position of every token of a padded batch: its index among the real ones.

    mask (B, 1, T), (B, T), or (T,) of a single text, True = real -> (B, T) or (T,)

    >>> token_positions(np.array([[False, True, True]]))
    array([[0, 0, 1]])
    """
    real = mask.reshape(len(mask), mask.shape[-1]) if mask.ndim > 2 else mask
    positions: Array = np.maximum(np.cumsum(real, axis=-1) - 1, 0)
    return positions


def normalize(model: Model, layer: str, x: Array) -> Normalized:
    """Apply the model's norm to x, and return its statistics with the result.

    x (..., T, D) -> y (..., T, D)
    """
    params: Mapping[str, Any] = model.params.get(layer, {})
    norm: Callable[..., Normalized] = rms_norm if model.config.norm == "rms" else layer_norm
    return norm(x, **params, eps=model.config.eps)


def apply_norm(model: Model, layer: str, x: Array, context: Context) -> Array:
    return apply_hook(context.hook, layer, normalize(model, layer, x).y)


def attend_to_source(model: Model, layer: str, x: Array, context: Context) -> Array:
    cache, source = context.cache, attention_source(layer, x, context)
    params, options = attention_arguments(model, layer, x.shape[-2], context)
    if cache is not None and layer.endswith(".cross"):
        options["kv_store"] = lambda make: cache.get_or_compute(layer, make)
    elif cache is not None:
        options["kv_store"] = lambda make: cache.append(layer, *make())
    hook = scoped(context.hook, layer)
    options |= {"summary": context.weights, "keep": (), "hook": hook}
    return multi_head_attention(x, source, source, params, **options)["output"]


def attention_arguments(
    model: Model, layer: str, queries: int, context: Context
) -> tuple[Mapping[str, Array], dict[str, Any]]:
    """Parameters and options of `multi_head_attention` for one layer."""
    params, options = model.params.get(layer, {}), read_attention_options(model, layer, queries, context)
    if model.config.score == "scaled-dot":
        return params, options
    return {}, options | {"score": model.config.score, "score_params": params}


def attention_source(layer: str, x: Array, context: Context) -> Array:
    """What a layer attends to: x or the memory; DataError without a memory."""
    if not layer.endswith(".cross"):
        return x
    if context.memory is None:
        raise DataError.about(layer, "needs a memory to attend to, but none is given")
    return context.memory


def read_attention_options(model: Model, layer: str, queries: int, context: Context) -> dict[str, Any]:
    """Heads, scale, masks and positions of one layer of attention."""
    rules = model.config.attention_rules[layer]
    options = head_options(rules) | {"products": layer_products(model, layer, context)}
    if rules.is_cross:
        return options | {"mask": _over_heads(context.memory_mask)}
    options |= {"causal": rules.causal, "window": rules.window, "mask": _over_heads(context.mask)}
    if rules.shared_key not in context.shared:
        context.shared[rules.shared_key] = relative_positions(model, rules, queries, context)
    options |= context.shared[rules.shared_key]
    if rules.relative == "disentangled":
        options["relative"] = disentangled_positions(model, layer, queries, context)
    return options


def head_options(rules: AttentionRules) -> dict[str, Any]:
    """The options of a layer of attention that do not depend on its tokens."""
    names = ("heads", "kv_heads", "scale", "softcap", "norm", "latent", "clip", "interleaved")
    return {name: getattr(rules, name) for name in names}


def relative_positions(model: Model, rules: AttentionRules, queries: int, context: Context) -> dict[str, Any]:
    """Rotary angles and bias on the scores of the layers with these rules."""
    options: dict[str, Any] = {}
    if rules.rotation:
        options["rotary"] = rotation(model.config, rules, queries, context)
    if rules.relative == "alibi":
        options["bias"] = alibi(model.config, rules, context.past + queries, context.mask)
    if rules.relative == "t5":
        buckets = position_buckets(model.config, rules.stack, context.past, queries)
        options["bias"] = t5_bias(buckets, model.params[f"{rules.stack}.bias"]["table"])
    return options


def rotation(config: Config, rules: AttentionRules, queries: int, context: Context) -> tuple[Array, Array]:
    """Cosines and sines (T, R/2) or (B, 1, T, R/2) that queries are rotated by."""
    if rules.rotation == "grid_rotary":
        return grid_angles(patch_places(config, context.grid, queries), rules.rotary_dim, rules.rope)
    where = context.positions if context.positions is not None else context.past + np.arange(queries)
    frequencies, factor = batch_frequencies(rules.rotary_dim, rules.rope, where)
    cos, sin = rotary_angles(where, rules.rotary_dim, frequencies=frequencies)
    if where.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    return cos * factor, sin * factor


def patch_places(config: Config, grid: tuple[int, int] | None, tokens: int) -> Array:
    """Places (T, 2) of the tokens of an image.

    DataError for another number of tokens than its grid has.

    grid  rows and columns of its patches [those of an image of the model's size]
    """
    cut = config.patches
    assert cut is not None
    rows, columns = grid or cut.grid(cut.height, cut.width)
    if cut.before + rows * columns != tokens:
        expected = f"{cut.before} and {rows} x {columns} patches"
        raise DataError(f"{counted(tokens, 'token')} of an image (expected {expected})")
    return grid_places(rows, columns, cut.before)


def alibi(config: Config, rules: AttentionRules, keys: int, mask: Array | None, slopes: Array | None = None) -> Array:
    """The slope of each head times the position of each key, a bias on the scores.

    It differs from the bias by distance by a number for each query, which changes no weight.

    mask (B, 1, S), True = real, or None; slopes (H,), or None for those of ALiBi -> (B, H, 1, S) or (H, 1, S)
    """
    is_padding = mask is not None and mask.ndim == 3 and mask.shape[1:] == (1, keys)
    where = token_positions(mask)[:, None, None] if mask is not None and is_padding else np.arange(keys)
    slopes = (alibi_slopes(rules.heads) if slopes is None else slopes)[:, None, None]
    if config.positions.rounds_bias:
        return rules.factor * rounded(rounded(slopes, "bfloat16") * where, "bfloat16").astype(np.float64)
    bias: Array = slopes * where
    return bias


def disentangled_positions(model: Model, layer: str, queries: int, context: Context) -> RelativePositions:
    """Distances between the tokens of a stack, and projections of one layer."""
    positions, params = model.config.positions, model.params
    keys = np.arange(context.past + queries)
    index = distance_rows(keys[context.past :], keys, positions.buckets, positions.max_distance)
    table, own = (params[relative_layer(model.config, layer, name)] for name in ("table", "wk"))
    used = [f"{kind}{'k' if term == 'c2p' else 'q'}" for term in positions.terms for kind in "wb"]
    projections = {key: own[key] for key in used if key in own}
    return RelativePositions(index, **table, eps=model.config.eps, **projections)


def relative_layer(config: Config, layer: str, name: str) -> str:
    """The layer that holds a parameter of disentangled positions of attention.

    >>> [relative_layer(Config("", 2), "encoder.1.self", name) for name in ("table", "wk")]
    ['encoder.relative', 'encoder.1.relative']
    """
    stack, number, _ = parse_layer_name(layer)
    if name in ("table", "gamma", "beta"):
        return f"{stack}.relative"
    return layer if config.positions.shares_projections else f"{stack}.{number}.relative"


def position_buckets(config: Config, name: str, past: int, queries: int) -> Array:
    """T5 bucket of every query and key: queries T, past P -> (T, P + T)."""
    options = {"buckets": config.positions.buckets, "max_distance": config.positions.max_distance}
    bidirectional = not config.stack(name).causal
    return t5_buckets(past + np.arange(queries), np.arange(past + queries), bidirectional=bidirectional, **options)


def _over_heads(mask: Array | None) -> Array | None:
    return mask[:, None] if mask is not None and mask.ndim == 3 else mask


def apply_convolution(model: Model, layer: str, x: Array, context: Context) -> Array:
    cut, inner = model.config.convolution(layer), convolve_frames(model, layer, x, context)
    if cut.norm:
        inner = apply_hook(context.hook, f"{layer}.normalized", normalize_channels(inner, model.params[layer], cut))
    return apply_hook(context.hook, layer, apply_activation(cut.activation, inner))


def convolve_frames(model: Model, layer: str, x: Array, context: Context) -> Array:
    """The convolution of a layer before its norm: (..., F, C) -> (..., F', D).

    Samples are (..., F).
    """
    cut, params = model.config.convolution(layer), model.params[layer]
    frames = x.astype(context.dtype or x.dtype, copy=False)
    frames = frames[..., None] if cut.reads_samples else frames
    return apply_hook(context.hook, f"{layer}.convolved", multiply_windows(frames, params, cut))


def multiply_windows(frames: Array, params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    """The windows of frames by the kernel of a layer: (..., F, C) -> (..., F', D)."""
    return convolve(frames, find_kernel(params, cut, working(frames)), params.get("b"), cut.options)["output"]


def multiply_windows_backward(
    grad_output: Array, frames: Array, params: Mapping[str, Array], cut: ConvolutionLayer
) -> tuple[Array, dict[str, Array]]:
    """The gradients of the frames, and of the parameters by name.

    grad_output (..., F', D), frames (..., F, C) -> (..., F, C)
    """
    dx, dkernel, db = convolve_backward(grad_output, frames, find_kernel(params, cut, working(frames)), cut.options)
    lengths = {}
    if cut.is_scaled:
        kernel = params["w"].T.reshape(cut.filters, -1, cut.size)
        dkernel, lengths["g"] = scale_places_backward(dkernel, kernel, params["g"])
    return dx, {"w": dkernel.reshape(len(dkernel), -1).T, **lengths} | ({"b": db} if "b" in params else {})


def find_kernel(params: Mapping[str, Array], cut: ConvolutionLayer, dtype: DType) -> Array:
    """The kernel (D, C, K) of a convolution, from a matrix and perhaps lengths.

    w (C * K, D), g (K,)

    Lengths apply in float64, before the kernel is rounded to the dtype of the computation.
    """
    kernel: Array = params["w"].T.reshape(cut.filters, -1, cut.size)
    return scale_places(kernel.astype(np.float64), params["g"]).astype(dtype) if cut.is_scaled else kernel


def normalize_channels(x: Array, params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    """The norm after a convolution, of each frame or of each channel.

    (..., F, D) -> (..., F, D)
    """
    gamma, beta = params.get("gamma"), params.get("beta")
    return channel_norm(x, gamma, beta) if cut.norm == "channel" else layer_norm(x, gamma, beta).y


def project_states(model: Model, layer: str, x: Array, context: Context) -> Array:
    params = model.params[layer]
    y = linear(x, params["w"], params.get("b"), products=layer_products(model, layer, context), can_scale=True)
    return apply_hook(context.hook, layer, y)


def apply_network(model: Model, layer: str, x: Array, context: Context) -> Array:
    params: Mapping[str, Any] = model.params[layer]
    hook = scoped(context.hook, layer)
    products = layer_products(model, layer, context)
    options: dict[str, Any] = {"keep": (), "hook": hook, "products": products, **model.config.network_options}
    if mixture := model.config.mixture(layer):
        return mix_experts(x, layer_experts(model, layer), mixture, **options)["output"]
    return feed_forward(x, params, **options)["output"]


def layer_experts(model: Model, layer: str) -> Experts:
    """The router and the networks of a layer that is a mixture of experts."""
    name, params = layer.removesuffix(".ffn"), model.params
    return Experts(params[layer], lambda number: params[expert_layer(layer, number)], params.get(f"{name}.shared"))


def expert_layer(layer: str, number: int) -> str:
    """The layer that holds the parameters of an expert.

    >>> expert_layer("decoder.0.ffn", 3)
    'decoder.0.expert.3'
    """
    return f"{layer.removesuffix('.ffn')}.expert.{number}"


def apply_recurrence(model: Model, layer: str, x: Array, context: Context) -> Array:
    from attnkit.model import recurrent_decoder, recurrent_model

    is_attentive = parse_layer_name(layer)[1] is None
    return (recurrent_decoder.attend_and_recur if is_attentive else recurrent_model.recur)(model, layer, x, context)


def can_pack(model: Model, steps: Sequence[Step]) -> bool:
    """Whether `run_packed` accepts these steps: a text encoder, from its ids on.

    Every other model computes its texts one by one: decoders, recurrent layers, and images.
    """
    starts = bool(steps) and steps[0].op == "embed"
    return starts and all(GROUPS[step.op].is_packed for step in steps) and model.config.fixes_shapes(steps[0].layer)


def run_packed(
    model: Model, steps: Sequence[Step], ids: Sequence[Array], segments: Sequence[Array] | None, dtype: str | None
) -> list[Array] | None:
    """Apply the steps to several texts, none empty; None if not all is finite.

    ids and segments (T,) of each text -> (T, D) of each, with the same bits as `run` computes for it alone

    Texts of one length should come one after another: attention computes them together. Errors come from the steps.
    """
    if model.engine:
        return model.engine.run_packed(model, steps, ids, segments, dtype)
    lengths = [len(one) for one in ids]
    places, size = row_places(lengths)
    rows, positions, kinds = (np.zeros(size, np.int64) for _ in range(3))
    for at, place in enumerate(places):
        rows[place], positions[place] = ids[at], np.arange(lengths[at])
        kinds[place] = 0 if segments is None else segments[at]
    flaws: list[str] = []
    context = Context(
        positions=positions, segment_ids=kinds, dtype=dtype, on_non_finite=flaws.append, products=ARRANGED
    )
    groups = group_lengths(lengths, model.config.stack(model.config.stacks[0]).heads)
    contexts = {length: Context(dtype=dtype) for length in lengths}  # what layers share is by length
    order = np.concatenate(places)
    apply = partial(apply_packed, order=order, groups=groups, contexts=contexts)
    x = run(model, steps, rows, context, apply)
    return None if flaws else [x[place] for place in places]


def group_lengths(lengths: Sequence[int], heads: int) -> Groups:
    """How many consecutive texts of each length attention computes together.

    >>> group_lengths([3, 3, 3, 5], 12), group_lengths([300, 300], 12)
    ([(3, 3), (1, 5)], [(1, 300), (1, 300)])
    """
    groups: Groups = []
    for length in lengths:
        count, last = groups[-1] if groups else (0, 0)
        if length == last and (count + 1) * heads * length * length <= TOGETHER:
            groups[-1] = (count + 1, length)
        else:
            groups.append((1, length))
    return groups


def apply_packed(
    model: Model, step: Step, x: Array, context: Context, *, order: Array, groups: Groups, contexts: dict[int, Context]
) -> Array:
    """Apply the operator of one step to the rows of all texts, (R, D) -> (R, D).

    Attention stays within each text.

    order     the rows of one text after another
    groups    how many texts of which length attention takes together
    contexts  of a text alone, by its length
    """
    if step.op != "attend":
        return apply_step(model, step, x, context)
    params = model.params.get(step.layer, {})
    rules = model.config.attention_rules[step.layer]
    plain = MULTI_HEAD_DEFAULT.replace(**head_options(rules), products=ARRANGED)
    q, k, v, _ = project_heads(x, x, x, params, plain, working(x, *params.values()))  # (H, R, K), (G, R, K), …
    merged = np.zeros((len(x), q.shape[0] * v.shape[-1]), v.dtype)
    start = 0
    for count, length in groups:
        options = MULTI_HEAD_DEFAULT.replace(**read_attention_options(model, step.layer, length, contexts[length]))
        stop = start + count * length
        texts = [stack_texts(one[:, order[start:stop]], count) for one in (q, k, v)]
        merged[order[start:stop]] = merge_heads(attend_texts(texts, options)).reshape(stop - start, -1)
        start = stop
    output = linear(merged, params.get("wo"), params.get("bo"), names=("heads", "wo", "bo"), products=ARRANGED)
    return output.astype(output_dtype(x), copy=False)


@quiet
def attend_texts(texts: Sequence[Array], options: MultiHeadOptions) -> Array:
    """Heads of attention within texts of one length: (..., H, T, K) -> (..., H, T, V)."""
    q, k, v = texts
    if options.rotary is not None:
        q, k = (rotate(x, *options.rotary, interleaved=options.interleaved) for x in (q, k))
    return attention(q, k, v, with_relative_scores(options, q, k), keep=())["heads"]


def stack_texts(x: Array, count: int) -> Array:
    """Split the rows of several texts of one length, (H, B*T, K) -> (B, H, T, K).

    A single text has no batch axis.

    >>> stack_texts(np.zeros((2, 6, 4)), 3).shape, stack_texts(np.zeros((2, 6, 4)), 1).shape
    ((3, 2, 2, 4), (2, 6, 4))
    """
    if count == 1:
        return x
    return np.swapaxes(x.reshape(x.shape[0], count, x.shape[1] // count, x.shape[2]), 0, 1)


def encoder_layer(
    x: Array, params: Params, *, heads: int, mask: Array | None = None, causal: bool = False, **config: Any
) -> Array:
    """Apply self-attention and the feed-forward network, with residuals and norms.

    x (..., T, D) -> (..., T, D)

    `params` holds "self" (wq wk wv wo bq bk bv bo), "ffn" (w1 b1 w2 b2, w3 when gated), "norm1" and "norm2"
    (gamma, beta). The norm follows each residual (Attention Is All You Need, section 3.1), or comes before each
    sub-layer with `norm_first`. `config` are fields of Config: norm_first, activation, eps. Errors come from the
    sub-layers.

    >>> import numpy as np
    >>> zero = {"w1": np.zeros((2, 3)), "w2": np.zeros((3, 2))}
    >>> encoder_layer(np.array([[3.0, 5.0]]), {"ffn": zero}, heads=1, norm_first=True).round(4)
    array([[2., 6.]])
    """
    return _run_layer("encoder", x, params, Context(mask=mask), heads=heads, causal=causal, **config)


def decoder_layer(
    x: Array,
    memory: Array,
    params: Params,
    *,
    heads: int,
    mask: Array | None = None,
    memory_mask: Array | None = None,
    causal: bool = True,
    **config: Any,
) -> Array:
    """Apply causal self-attention, attention to the memory, and the feed-forward.

    x (..., T, D), memory (..., S, D) -> (..., T, D)

    `params` is like that of encoder_layer, with "cross" and "norm3" besides: norm1 belongs to self, norm2 to cross,
    norm3 to ffn. `config` and errors: see encoder_layer.

    >>> import numpy as np
    >>> zero = {"w1": np.zeros((2, 3)), "w2": np.zeros((3, 2))}
    >>> x = np.array([[3.0, 5.0]])
    >>> decoder_layer(x, 2 * x, {"ffn": zero}, heads=1, norm_first=True).round(4)
    array([[ 8., 16.]])
    """
    context = Context(mask=mask, memory=memory, memory_mask=memory_mask)
    return _run_layer("decoder", x, params, context, heads=heads, causal=causal, **config)


def _run_layer(
    name: str, x: Array, params: Params, context: Context, *, heads: int, causal: bool, **config: Any
) -> Array:
    """Run the only layer of a stack whose parameters are named by sub-layer."""
    cross = name == "decoder"
    stack = StackConfig(layers=1, heads=heads, hidden=0, kv_heads=heads, head_dim=0, causal=causal, cross=cross)
    stacks: dict[str, Any] = {name: stack}
    layer_config = Config("", x.shape[-1], **stacks, **config)
    by_layer = {f"{name}.0.{part}": weights for part, weights in params.items()}
    return run(Model(layer_config, by_layer), layer_steps(layer_config, name, 0), x, context)
