"""The forward pass of a model: the steps of its plan, with its parameters.

`run` applies them to one text or a padded batch, `run_packed` to many texts whose tokens are the rows of one matrix,
without padding; `encoder_layer` and `decoder_layer` are single layers with their parameters by sub-layer.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.attention import attention, project_heads, with_relative_scores
from attnkit.model.config import Config, StackConfig, Step, layer_steps
from attnkit.model.context import Context, Model, Params
from attnkit.model.dtypes import Array, output_dtype, quiet, working
from attnkit.model.formulas.activations import sigmoid
from attnkit.model.formulas.dense_attention import MULTI_HEAD_DEFAULT, MultiHeadOptions
from attnkit.model.formulas.head_views import merge_heads
from attnkit.model.formulas.linear import add, linear, scaled
from attnkit.model.formulas.rotary import rotate
from attnkit.model.groups import GROUPS
from attnkit.model.hooks import apply_hook
from attnkit.model.layers.attention import head_options, read_attention_options
from attnkit.model.processor.products import ARRANGED, row_places

Groups = list[tuple[int, int]]
TOGETHER = 1 << 18  # scores of all heads that one call of attention computes, except for a longer text


def apply_step(model: Model, step: Step, x: Array, context: Context) -> Array:
    """Apply the operation of one step to x, without its residual -> (..., T, D)."""
    return GROUPS[step.op].kernel(model, step.layer, x, context)


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
        steps, x = _embed_pictures(model, [*steps], x, context)
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


def _embed_pictures(model: Model, steps: list[Step], x: Array, context: Context) -> tuple[list[Step], Array]:
    """What an engine computes of a text with pictures: the steps after its embeddings.

    UsageError for pictures whose tokens attend to each other in both directions.
    """
    pictures = context.pictures
    if pictures is None or not steps or steps[0].op != "embed":
        return steps, x
    if pictures.groups is not None:
        raise UsageError("computes no pictures whose tokens attend to each other in both directions", "--engine")
    context.on_step(steps[0])
    return steps[1:], apply_step(model, steps[0], x, context)


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
    if "wg" in params:
        merged = merged * sigmoid(linear(x, params["wg"], params.get("bg"), products=ARRANGED))
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
