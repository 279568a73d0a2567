"""The formulas of model/ on arrays of JAX, if the same text cannot serve both.

Statistics of norms, softmax and logits are computed in float32 at least, whatever the rest is computed in.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnkit.model.config import ConvolutionLayer
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.convolution import find_windows
from attnkit.model.formulas.experts import ExpertConfig
from attnkit.model.formulas.head_views import view_heads
from attnkit.model.formulas.patch_embedding import RESAMPLINGS
from attnkit.model.formulas.pooling import last_tokens, mean_pool
from attnkit.model.formulas.recall import Memory
from attnkit.model.formulas.relative import RelativePositions
from attnkit.model.graph.functions import Expert, Functions
from attnkit.model.layers import embeddings

JaxArray = Any
Params = Mapping[str, JaxArray]
See = Callable[[str, JaxArray], JaxArray]  # the name of an intermediate and its value -> its value

Convert = Callable[[JaxArray], JaxArray]  # a part of a weight -> the same in the dtype of a computation

ACTIVATIONS: dict[str, Callable[[JaxArray], JaxArray]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu-tanh": jax.nn.gelu,
    "quick-gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}


def see_nothing(name: str, x: JaxArray) -> JaxArray:
    """Leave an intermediate that no hook reads as it is."""
    return x


def wide(x: JaxArray) -> JaxArray:
    """Widen x to float32 at least."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def linear(x: JaxArray, weight: JaxArray | None = None, bias: JaxArray | None = None) -> JaxArray:
    """x W + b; W is the identity and b zero if missing: see model/formulas/linear.py."""
    y = x if weight is None else x * weight if weight.ndim == 1 else x @ weight
    return y if bias is None else y + bias


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def standardize(x: JaxArray, is_centered: bool, eps: float) -> JaxArray:
    """Center x if asked, and divide by the root of mean square + eps: (..., D).

    Its gradient is written as in model/formulas/norms.py: what JAX derives takes one more pass over x.
    """
    return _standardize(x, is_centered, eps)[0]


def _standardize(x: JaxArray, is_centered: bool, eps: float) -> tuple[JaxArray, tuple[JaxArray, JaxArray]]:
    """The result with what its gradient needs: the result and the scale of x."""
    y = x - x.mean(axis=-1, keepdims=True) if is_centered else x
    scale = 1 / jnp.sqrt(jnp.square(y).mean(axis=-1, keepdims=True) + eps)
    return y * scale, (y * scale, scale)


def _standardize_backward(
    is_centered: bool, eps: float, saved: tuple[JaxArray, JaxArray], grad: JaxArray
) -> tuple[JaxArray]:
    y, scale = saved
    centered = grad - grad.mean(axis=-1, keepdims=True) if is_centered else grad
    return (scale * (centered - y * (grad * y).mean(axis=-1, keepdims=True)),)


standardize.defvjp(_standardize, _standardize_backward)


def rotate(x: JaxArray, cos: JaxArray, sin: JaxArray, interleaved: bool = False) -> JaxArray:
    """Rotate pairs of the first R features: see model/formulas/rotary.py.

    x (..., T, D), cos (..., T, R/2), sin (..., T, R/2) -> (..., T, D)
    """
    half = cos.shape[-1]
    if interleaved:
        first, second, rest = wide(x[..., : 2 * half : 2]), wide(x[..., 1 : 2 * half : 2]), x[..., 2 * half :]
        pairs = jnp.stack([cos * first - sin * second, sin * first + cos * second], axis=-1)
        return jnp.concatenate([pairs.reshape(*x.shape[:-1], 2 * half).astype(x.dtype), rest], axis=-1)
    left, right, rest = wide(x[..., :half]), wide(x[..., half : 2 * half]), x[..., 2 * half :]
    turned = [cos * left - sin * right, sin * left + cos * right]
    return jnp.concatenate([*(part.astype(x.dtype) for part in turned), rest], axis=-1)


def interpolate_positions(
    table: JaxArray, rows: int, columns: int, new_rows: int, new_columns: int, resampling: str = "bicubic"
) -> JaxArray:
    """Resize learned positions of patches: see model/formulas/patch_embedding.py.

    table (1 + rows * columns, D) -> (1 + new_rows * new_columns, D)
    """
    first = len(table) - rows * columns
    grid = table[first:].reshape(rows, columns, -1)
    weigh = RESAMPLINGS[resampling]
    down, across = weigh(rows, new_rows), weigh(columns, new_columns)
    points = jnp.einsum("yr,xc,rcd->yxd", down.astype(table.dtype), across.astype(table.dtype), grid)
    return jnp.concatenate([table[:first], points.reshape(new_rows * new_columns, -1)])


def softmax(scores: JaxArray) -> tuple[JaxArray, JaxArray]:
    """Softmax and log-sum-exp of rows (..., S); zeros for a row of only -inf."""
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True, initial=-jnp.inf))
    top = jnp.where(jnp.isneginf(top), 0, top)
    exponentials = jnp.exp(scores - top)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / jnp.where(total == 0, 1, total)
    logs = jnp.where(total == 0, -jnp.inf, top + jnp.log(jnp.where(total == 0, 1, total)))  # with a derivative at 0
    return weights, logs[..., 0]


def choose_experts(logits: JaxArray, config: ExpertConfig, correction: JaxArray | None) -> JaxArray:
    """Chosen experts of every token: see model/formulas/experts.py. (T, E) -> (T, k)"""
    scores = JAX.expert_scores(wide(logits), config.score)
    choice = scores if correction is None else scores + correction
    if config.groups > 1:
        groups = choice.reshape(len(choice), config.groups, -1)
        best = jax.lax.top_k(groups, config.group_best)[0].sum(axis=-1)
        kept = jax.nn.one_hot(jax.lax.top_k(best, config.chosen_groups)[1], config.groups).sum(axis=1)
        choice = jnp.where(kept[..., None] > 0, groups, -jnp.inf).reshape(choice.shape)
    return jax.lax.top_k(choice, config.chosen)[1]


def sum_experts(expert: Expert, x: JaxArray, gates: JaxArray, chosen: JaxArray, count: int) -> JaxArray:
    """The sum of the experts of each token by their gates.

    Every expert computes all tokens; the gate of a token that did not choose it is 0.
    """
    y = jnp.zeros_like(x)
    for number in range(count):
        gate = jnp.where(chosen == number, gates, 0).sum(axis=-1, keepdims=True)
        y = y + jnp.where((chosen == number).any(axis=-1, keepdims=True), expert(number, x, gate), 0)
    return y


def relative_scores(q: JaxArray, k: JaxArray, relative: RelativePositions) -> JaxArray:
    """Scores of queries and keys with a table of distances.

    See model/formulas/relative.py.

    q (..., H, T, K), k (..., H, S, K) -> (..., H, T, S)
    """
    rows = relative.table
    if relative.gamma is not None:
        rows = standardize(wide(rows), True, relative.eps) * relative.gamma
        rows = (rows if relative.beta is None else rows + relative.beta).astype(relative.table.dtype)
    total = jnp.zeros((), wide(q).dtype)
    sides = ((q, relative.wk, relative.bk, relative.places), (k, relative.wq, relative.bq, relative.places.T))
    for number, (x, weight, bias, index) in enumerate(sides):
        if weight is not None:
            table = view_heads(linear(rows, weight, bias), x.shape[-3])  # (H, R, K)
            scores = wide(x @ jnp.swapaxes(table, -1, -2))  # (..., H, T, R)
            part = jnp.take_along_axis(scores, index.reshape((1,) * (scores.ndim - 2) + index.shape), axis=-1)
            total = total + (jnp.swapaxes(part, -1, -2) if number else part)
    return total


def pool(kind: str, x: JaxArray, real: JaxArray, before: int) -> JaxArray:
    """Pool the tokens of each text into one vector: (..., T, D) -> (..., P).

    HEAD_POOLINGS in model/formulas/pooling.py lists the kinds.
    """
    if kind in ("first", "patches"):
        parts = [x[..., 0, :], *[x[..., before:, :].mean(axis=-2)] * (kind == "patches")]
        return jnp.concatenate(parts, axis=-1)
    mean, last = mean_pool(x, real), jnp.take_along_axis(x, last_tokens(real)[..., None, None], axis=-2)[..., 0, :]
    if kind in ("mean", "late", "last"):
        return last if kind == "last" else mean
    return jnp.concatenate([last, jnp.where(real[..., None], x, -jnp.inf).max(axis=-2), mean], axis=-1)


def position_encoding(
    model: Model, layer: str, x: JaxArray, where: Array | None, grid: tuple[int, int] | None
) -> Callable[[JaxArray], JaxArray]:
    """A function from positions (..., T) to the vectors (..., T, D) added to x.

    See model/layers/embeddings.py.
    """
    positions, cut = model.config.positions, model.config.patches
    if positions.kind == "sinusoidal":
        return embeddings.position_encoding(model, layer, x, np.asarray(where), grid)
    table, grids = jnp.asarray(model.params[layer]["table"]), embeddings.changed_grid(model.config, grid)
    if cut and grids:
        table = interpolate_positions(table.astype(x.dtype), *grids, resampling=cut.resampling)
    if cut and cut.registers:
        table = jnp.insert(table, 1, jnp.zeros((cut.registers, 1), table.dtype), axis=0)
    return lambda part: table[part + positions.first]


def convolve(frames: JaxArray, params: Params, cut: ConvolutionLayer) -> JaxArray:
    """Convolve frames with the kernel of a layer: (..., F, C) -> (..., F', D).

    See model/formulas/convolution.py.
    """
    kernel = params["w"].T.reshape(cut.filters, -1, cut.size)
    if cut.is_scaled:
        kernel = kernel * (params["g"] / jnp.sqrt(jnp.square(kernel).sum(axis=(0, 1))))
    windows = find_windows(frames, kernel, cut.options)
    y = jax.lax.conv_general_dilated(
        frames.reshape(-1, *frames.shape[-2:]),
        kernel,
        windows.stride,
        [*zip(windows.before, windows.after, strict=True)],
        rhs_dilation=windows.dilation,
        dimension_numbers=("NWC", "OIW", "NWC"),
        feature_group_count=windows.groups,
    )
    y = y.reshape(*frames.shape[:-2], *y.shape[-2:])
    return y + params["b"] if "b" in params else y


def read_memory(
    memory: Memory, chunk: int | None = None, state: JaxArray | None = None, keep: Collection[str] = ()
) -> dict[str, JaxArray]:
    """Read a state after each token, one by one: see model/formulas/recall.py."""
    by_token = [None if one is None else jnp.moveaxis(one, 2, 0) for one in memory[:5]]

    def read_token(now: JaxArray, token: Any) -> tuple[JaxArray, JaxArray]:
        q, k, v, decay, beta = token
        now = now if decay is None else now * decay[..., None]
        written = v - (k[..., None, :] @ now)[..., 0, :] if memory.corrects else v
        written = written if beta is None else written * beta[..., None]
        now = now + k[..., None] * written[..., None, :]
        return now, (q[..., None, :] @ now)[..., 0, :]

    first = jnp.zeros(memory.state_shape, memory.v.dtype) if state is None else state.astype(memory.v.dtype)
    last, output = jax.lax.scan(read_token, first, by_token)
    return {"output": jnp.moveaxis(output, 0, 2), "state": last}


def multiply_rows(x: JaxArray, weight: JaxArray, convert: Convert) -> JaxArray:
    """x W with all tokens as rows of one matrix: its gradients need fewer copies."""
    return (x.reshape(-1, x.shape[-1]) @ convert(weight)).reshape(*x.shape[:-1], weight.shape[-1])


def multiply_wide(x: JaxArray, weight: JaxArray, convert: Convert) -> JaxArray:
    """x W in float32 at least."""
    is_single = x.dtype == jnp.float16 and jax.default_backend() == "cpu"  # whose products have no wider result
    return jnp.matmul(wide(x) if is_single else x, convert(weight), preferred_element_type=wide(x).dtype)


JAX = Functions(
    xp=jnp,
    activations=ACTIVATIONS,
    multiply=lambda x, weight, convert: x @ convert(weight),
    contiguous=lambda x: x,
    softmax=lambda scores: softmax(scores)[0],
    log_sum_exp=lambda scores: softmax(scores)[1],
    rotate=rotate,
    relative_scores=relative_scores,
    t5_bias=lambda buckets, table: jnp.moveaxis(table[buckets], -1, 0),
    position_encoding=position_encoding,
    choose=choose_experts,
    sum_experts=sum_experts,
    pool=pool,
    convolve=convolve,
    read_memory=read_memory,
    standardize=standardize,
)
JAX_ROWS = JAX._replace(multiply=multiply_rows)
