"""Attention that keeps its weights for the backward pass, and its adjoint.

The adjoint is FlashAttention's, block by block.

Blocks of scores have their queries first, (b, g, m, n), as the adjoint multiplies them from both sides. A block is of
several rows of the batch and several heads at once, as each NumPy call has a fixed cost.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnkit.model.dtypes import Array, DType, quiet
from attnkit.model.formulas.dense_attention import AttentionOptions
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.kernels.tiles import SAFE_RANGE, ScoreInputs, Workspace, batched, prepare_inputs, run_tasks
from attnkit.model.processor.threads import split_range

ROWS = (64, 128)  # queries of a block of short and of long texts: fewer have fewer keys that are blocked when causal
LONG = 512  # number of queries from which on a text is long
KEYS = 512  # maximum number of its keys, where scores are not kept
CELLS = 1 << 17  # its scores, approximately
FEW = 1 << 16  # number of scores up to which one thread is faster than two
PARTS = 2  # minimum number of parts of batch and heads
SHARES = 8  # number of tasks that the keys of few heads are split into


class BatchPart(NamedTuple):
    """Rows of the batch and key heads that are computed at once."""

    batch: slice
    groups: slice


class ScoreBlock(NamedTuple):
    """Some queries of one head of each group, and the keys that any may attend to."""

    batch: slice
    heads: slice
    groups: slice
    rows: slice
    keys: slice

    @property
    def queries(self) -> tuple[slice, slice, slice]:
        """The index of these queries in an array (B, H, T, ...)."""
        return self.batch, self.heads, self.rows

    @property
    def sources(self) -> tuple[slice, slice, slice]:
        """The index of these keys in an array (B, G, S, ...)."""
        return self.batch, self.groups, self.keys

    @property
    def cells(self) -> tuple[slice, slice, slice, slice]:
        """The index of these scores in an array (B, H, T, S)."""
        return self.batch, self.heads, self.rows, self.keys


def split_parts(inputs: ScoreInputs, keys: int, by_heads: bool = False) -> list[list[BatchPart]]:
    """Split batch and heads into tasks whose blocks have about CELLS scores.

    A task is a single part or, `by_heads`, every row of the batch of some heads.
    """
    batch, groups = inputs.k.shape[:2]
    pairs = max(1, CELLS // max(1, row_blocks(inputs)[0].stop * keys))
    pairs = min(pairs, math.ceil((groups if by_heads else batch * groups) / PARTS))
    heads = min(pairs, groups)
    is_alike = not (inputs.low.strides[0] or inputs.high.strides[0])  # in every row of the batch
    rows = max(1, pairs // groups) if is_alike and not by_heads else 1
    across = [[BatchPart(b, g) for b in split_range(0, batch, rows)] for g in split_range(0, groups, heads)]
    return across if by_heads else [[part] for parts in across for part in parts]


def row_blocks(inputs: ScoreInputs) -> list[slice]:
    """The number of queries of each block of a head, at least one."""
    queries = inputs.q.shape[2]
    return list(split_range(0, queries, ROWS[queries >= LONG]))


def visible_block(inputs: ScoreInputs, part: BatchPart, shared: int, rows: slice, keys: slice) -> ScoreBlock:
    """Block of some queries with the keys that any of them may attend to.

    The heads are the `shared`-th of each group.
    """
    row, sharing = part.batch.start, inputs.sharing
    start = max(keys.start, int(inputs.low[row, rows.start]))
    stop = max(start, min(keys.stop, int(inputs.high[row, rows.stop - 1])))
    heads = slice(part.groups.start * sharing + shared, part.groups.stop * sharing, sharing)
    return ScoreBlock(part.batch, heads, part.groups, rows, slice(start, stop))


def score_unit(inputs: ScoreInputs) -> float:
    """The factor on the products of queries and keys: the scale, divided by the cap."""
    return inputs.scale / inputs.softcap if inputs.softcap else inputs.scale


def block_scores(inputs: ScoreInputs, block: ScoreBlock, dtype: DType, workspace: Workspace) -> Array:
    """Products of queries and keys of a block, times the unit: (b, g, m, n)."""
    q = np.multiply(inputs.q[block.queries], score_unit(inputs), dtype=dtype)
    k = inputs.k[block.sources].astype(dtype, copy=False)
    scores = workspace.array("scores", dtype, (*q.shape[:-1], k.shape[-2]))
    return np.matmul(q, np.swapaxes(k, -1, -2), out=scores)


def add_to_scores(inputs: ScoreInputs, block: ScoreBlock, scores: Array) -> Array:
    """Cap the scores of a block and add bias and float mask, in place."""
    if inputs.softcap:
        np.multiply(np.tanh(scores, out=scores), inputs.softcap, out=scores)
    if inputs.bias is not None:
        scores += inputs.bias[block.cells]
    if inputs.mask is not None and inputs.mask.dtype != bool:
        scores += inputs.mask[block.cells]
    return scores


def exact_scores(inputs: ScoreInputs, block: ScoreBlock, workspace: Workspace) -> tuple[Array, bool]:
    """Scores of a block, and whether they are small; large ones are -inf if blocked.

    -> (b, g, m, n), in float64 if the largest of a row is far from 0

    Exponentials of small scores neither overflow nor underflow, so blocked ones can be set to 0 after it.
    """
    dtype = inputs.q.dtype
    scores = add_to_scores(inputs, block, block_scores(inputs, block, dtype, workspace))
    limit = SAFE_RANGE[dtype]
    if not scores.size or (scores.max() <= limit and scores.min() >= -limit):
        return scores, True
    fill_blocked(inputs, block, scores, -np.inf)
    top = np.abs(scores.max(axis=-1))
    if dtype != np.float64 and not ((top <= limit) | (top == np.inf)).all():
        scores = add_to_scores(inputs, block, block_scores(inputs, block, np.dtype(np.float64), workspace))
        fill_blocked(inputs, block, scores, -np.inf)
    return scores, False


def fill_blocked(inputs: ScoreInputs, block: ScoreBlock, x: Array, fill: float) -> None:
    """Set blocked scores to -inf, or functions of them to 0, in place."""
    mask = inputs.mask
    if mask is not None:
        blocked = ~mask[block.cells] if mask.dtype == bool else mask[block.cells] == -np.inf
        np.copyto(x, fill, where=blocked)
    row, start = block.batch.start, block.keys.start
    low, high = inputs.low[row, block.rows] - start, inputs.high[row, block.rows] - start
    if len(low) and (low[-1] > 0 or high[0] < x.shape[-1]):
        allowed = allowed_cells(low.tobytes(), high.tobytes(), x.shape[-1], x.dtype)
        if fill == 0:  # the values are finite, so a product is the same and several times as fast
            x *= allowed
        else:
            np.copyto(x, fill, where=allowed == 0)


@lru_cache(maxsize=16)
def allowed_cells(low: bytes, high: bytes, count: int, dtype: DType) -> Array:
    """1 from the first to before the last key of each query, else 0: (m, count).

    Cached, as diagonals repeat.

    >>> allowed_cells(np.array([0, 1]).tobytes(), np.array([1, 3]).tobytes(), 3, np.dtype(float))
    array([[1., 0., 0.],
           [0., 1., 1.]])
    """
    first, last = (np.frombuffer(ends, np.int64)[:, None] for ends in (low, high))
    keys = np.arange(count)
    return ((first <= keys) & (keys < last)).astype(dtype)


@quiet
def fused_attention(
    q: Array, k: Array, v: Array, options: AttentionOptions, *, threads: int | None = None
) -> tuple[Array, Array]:
    """Heads and weights of dot-product attention, whose values must be finite.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> (..., H, T, V), (..., H, T, S)

    The scores are computed by blocks that stay in a core's own cache; keys that no query of a block may attend to are
    skipped. The result is the same on any number of threads.

    >>> x = np.eye(2)[None]
    >>> heads, weights = fused_attention(x, x, x, AttentionOptions(causal=True))
    >>> heads.round(4).tolist(), weights.round(4).tolist()
    ([[[1.0, 0.0], [0.3302, 0.6698]]], [[[1.0, 0.0], [0.3302, 0.6698]]])
    """
    inputs, values, keys = prepare_inputs(q, k, options), batched(v), k.shape[-2]
    batch, heads, queries = inputs.q.shape[:3]
    output = np.empty((batch, queries, heads, v.shape[-1]), q.dtype).swapaxes(1, 2)  # in the order of merged heads
    weights = np.empty((batch, heads, queries, keys), q.dtype)

    def work(parts: list[BatchPart], workspace: Workspace) -> None:
        (part,) = parts
        for shared in range(inputs.sharing):
            for rows in row_blocks(inputs):
                block = visible_block(inputs, part, shared, rows, slice(0, keys))
                write_weights(inputs, block, weights, workspace)
                np.matmul(weights[block.cells], values[block.sources], out=output[block.queries])

    run_tasks(work, inputs, split_parts(inputs, keys), threads, FEW)
    return output if q.ndim == 4 else output[0], weights if q.ndim == 4 else weights[0]


def write_weights(inputs: ScoreInputs, block: ScoreBlock, weights: Array, workspace: Workspace) -> None:
    """Write the softmax of a block of queries with all keys to weights (B, H, T, S)."""
    scores, is_safe = exact_scores(inputs, block, workspace)
    if not is_safe:
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        scores -= np.where(top == -np.inf, 0, top)
    np.exp(scores, out=scores)
    if is_safe:
        fill_blocked(inputs, block, scores, 0)
    total = scores @ np.ones(scores.shape[-1], scores.dtype)
    np.multiply(scores, 1 / np.where(total == 0, 1, total)[..., None], out=weights[block.cells], casting="same_kind")
    for rest in (slice(0, block.keys.start), slice(block.keys.stop, weights.shape[-1])):
        weights[block.batch, block.heads, block.rows, rest] = 0


class Operands(NamedTuple):
    """Inputs (B, H, T, ...) or (B, G, S, ...) of the adjoint, and its gradients."""

    inputs: ScoreInputs
    v: Array
    grad: Array  # (B, H, T, V), of the heads
    products: Array  # (B, H, T), rowsum(dO * O)
    lse: Array  # (B, H, T), without weights
    weights: Array | None  # (B, H, T, S), if the forward pass has kept them
    dq: Array  # (shares, B, H, T, K)
    dk: Array
    dv: Array
    added: dict[str, Array]  # of bias and float mask, (B or 1, H, T or 1, S or 1)


@quiet
def fused_attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions,
    saved: Mapping[str, Array],
    *,
    threads: int | None = None,
) -> dict[str, Array]:
    """Gradients of queries, keys, values, bias and float mask.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V), saved {"heads": (..., H, T, V)}
    with "weights" (..., H, T, S) or "lse" (..., H, T)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), "bias", "mask" if it is a float}

    The weights of a block are those of the forward pass, or computed again as exp(scores - lse). With
    D = rowsum(dO * O), which is the sum of P dP over the keys, no step needs more than one block:

        dM = P (dO_i V_j^T - D_i)    dS = scale (1 - tanh^2) dM
        dV_j += P^T dO_i             dK_j += dS^T Q_i             dQ_i += dS K_j

    All numbers are finite. The same on any number of threads. Source: Dao et al. 2022, algorithm 4; Dao 2023,
    section 3.1.

    >>> q, x = np.array([[[0.0]]]), np.array([[[1.0], [0.0]]])
    >>> saved = {"heads": np.array([[[0.5]]]), "lse": np.log([[2.0]])}
    >>> grads = fused_attention_backward(np.array([[[4.0]]]), q, x, x, AttentionOptions(), saved)
    >>> {name: grad.round(4).ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0], 'k': [0.0, 0.0], 'v': [2.0, 2.0]}
    """
    inputs = prepare_inputs(q, k, options)
    width = k.shape[-2] if "weights" in saved else min(KEYS, k.shape[-2])
    added = _zeros_added(inputs, options)
    bands, parts = list(split_range(0, k.shape[-2], width)), split_parts(inputs, width, by_heads=bool(added))
    shares = 1 if added else min(len(bands), max(1, SHARES // len(parts)))  # no two tasks add to one number
    operands = _make_operands(grad_output, v, inputs, saved, shares, added)

    def work(task: tuple[list[BatchPart], int], workspace: Workspace) -> None:
        for part in task[0]:
            for i, keys in enumerate(bands[task[1] :: shares]):
                _add_keys(operands, part, keys, (task[1], i == 0), workspace)

    tasks = [(part, share) for part in parts for share in range(shares)]
    run_tasks(work, inputs, tasks, threads, FEW)
    dq = operands.dq[0] if shares == 1 else operands.dq.sum(axis=0)
    gradients = {"q": dq, "k": operands.dk, "v": operands.dv}
    if q.ndim == 3:
        gradients = {name: x[0] for name, x in gradients.items()}
    shapes = {name: x.shape for name, x in (("bias", options.bias), ("mask", options.mask)) if x is not None}
    return gradients | {name: sum_to_shape(total, shapes[name]) for name, total in added.items()}


def _zeros_added(inputs: ScoreInputs, options: AttentionOptions) -> dict[str, Array]:
    """Zeros for the gradients of bias and float mask, over all heads."""
    totals = {}
    for name, x, whole in (("bias", options.bias, inputs.bias), ("mask", options.mask, inputs.mask)):
        if x is not None and whole is not None and whole.dtype != bool:
            batch, _, queries, keys = ((1,) * 4 + x.shape)[-4:]
            totals[name] = np.zeros((batch, whole.shape[1], queries, keys), inputs.q.dtype)
    return totals


def _make_operands(
    grad_output: Array, v: Array, inputs: ScoreInputs, saved: Mapping[str, Array], shares: int, added: dict[str, Array]
) -> Operands:
    """Operands with uninitialized gradients, in the order of merged heads."""
    grad, heads, v = batched(grad_output), batched(saved["heads"]), batched(v)
    weights = batched(saved["weights"]) if "weights" in saved else None
    lse = np.zeros(0) if weights is not None else saved["lse"].reshape(grad.shape[:3])
    lse = np.where(lse == -np.inf, 0, lse)  # of a query without keys, whose weights are set to 0
    batch, count, queries, width = inputs.q.shape
    dq = np.empty((shares, batch, queries, count, width), grad.dtype).swapaxes(2, 3)
    dk, dv = (np.empty_like(x.swapaxes(1, 2), grad.dtype, order="C").swapaxes(1, 2) for x in (inputs.k, v))
    products = np.einsum("...v,...v->...", grad, heads)
    return Operands(inputs, v, grad, products, lse, weights, dq, dk, dv, added)


def _add_keys(operands: Operands, part: BatchPart, keys: slice, share: tuple[int, bool], workspace: Workspace) -> None:
    inputs, is_first = operands.inputs, True
    band = part.batch, part.groups, keys
    for shared in range(inputs.sharing):
        for rows in row_blocks(inputs)[::-1]:  # the last have most keys when causal
            block = visible_block(inputs, part, shared, rows, keys)
            if block.keys.start == block.keys.stop:
                if share[1]:
                    operands.dq[share[0]][block.queries] = 0
                continue
            if is_first and block.keys != keys:
                operands.dk[band] = operands.dv[band] = 0
                is_first = False
            _add_block(operands, block, share, is_first, workspace)
            is_first = False
    if is_first:
        operands.dk[band] = operands.dv[band] = 0


def _add_block(
    operands: Operands, block: ScoreBlock, share: tuple[int, bool], is_first: bool, workspace: Workspace
) -> None:
    """Add what a block contributes to the gradients; the first one is assigned."""
    inputs, grad = operands.inputs, operands.grad[block.queries]
    weights, slope = _block_weights(operands, block, workspace)
    dscores = workspace.array("gradients", grad.dtype, weights.shape)
    np.matmul(grad, np.swapaxes(operands.v[block.sources], -1, -2), out=dscores)
    dscores -= operands.products[block.queries][..., None]
    dscores *= weights
    for total in operands.added.values():
        _add_to_total(total, block, dscores)
    if slope is not None:
        dscores *= slope
    q = np.multiply(inputs.q[block.queries], score_unit(inputs), dtype=grad.dtype)
    _accumulate(np.swapaxes(weights, -1, -2), grad, operands.dv[block.sources], is_first, workspace)
    _accumulate(np.swapaxes(dscores, -1, -2), q, operands.dk[block.sources], is_first, workspace)
    dscores *= grad.dtype.type(score_unit(inputs))
    _accumulate(dscores, inputs.k[block.sources], operands.dq[share[0]][block.queries], share[1], workspace)


def _add_to_total(total: Array, block: ScoreBlock, dmasked: Array) -> None:
    """Add the gradient of masked scores to one of a bias, (B or 1, H, T or 1, S or 1)."""
    where = tuple(at if size > 1 else slice(0, 1) for at, size in zip(block.cells, total.shape, strict=True))
    axes = tuple(axis for axis in (0, 2, 3) if total.shape[axis] == 1)
    total[where[0], block.heads, where[2], where[3]] += dmasked.sum(axis=axes, keepdims=True) if axes else dmasked


def _accumulate(x: Array, y: Array, total: Array, is_first: bool, workspace: Workspace) -> None:
    """Add a matrix product to a total, or assign it."""
    if is_first:
        np.matmul(x, y, out=total)
    else:
        total += np.matmul(x, y, out=workspace.array("product", total.dtype, total.shape))


def _block_weights(operands: Operands, block: ScoreBlock, workspace: Workspace) -> tuple[Array, Array | None]:
    """Weights of a block, and with a cap the slope of its capped scores."""
    inputs, dtype = operands.inputs, operands.grad.dtype
    slope = None
    if inputs.softcap:
        tanh = np.tanh(block_scores(inputs, block, dtype, workspace))
        slope = inputs.softcap * (1 - np.square(tanh))
    if operands.weights is not None:
        return operands.weights[block.cells], slope
    scores, is_safe = exact_scores(inputs, block, workspace)
    lse = operands.lse[block.queries][..., None].astype(scores.dtype)
    scores -= lse
    np.exp(scores, out=scores)
    if is_safe:
        fill_blocked(inputs, block, scores, 0)
    return scores.astype(dtype, copy=False), slope
