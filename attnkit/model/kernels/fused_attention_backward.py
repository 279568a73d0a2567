"""The adjoint of dot-product attention by blocks (FlashAttention's backward pass), on every core."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from attnkit.model.dtypes import Array, quiet
from attnkit.model.kernels import score_blocks
from attnkit.model.kernels.score_blocks import (
    BatchPart,
    BlockInputs,
    ScoreBlock,
    block_scores,
    exact_scores,
    fill_blocked,
    prepare_blocks,
    row_blocks,
    run_blocks,
    split_parts,
    visible_block,
)
from attnkit.model.kernels.threads import split_range
from attnkit.model.kernels.tiles import Workspace, batched
from attnkit.model.linear import sum_to_shape
from attnkit.model.options import AttentionOptions

SHARES = 8  # number of tasks that the keys of few heads are split into


class Operands(NamedTuple):
    """What the adjoint reads, (B, H, T, ...) or (B, G, S, ...), and the gradients that it writes."""

    inputs: BlockInputs
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
    """Return the gradients of queries, keys and values, and of bias and float mask, which are added to the scores.

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
    inputs = prepare_blocks(q, k, options)
    width = k.shape[-2] if "weights" in saved else min(score_blocks.KEYS, k.shape[-2])
    added = _zeros_added(inputs, options)
    bands, parts = list(split_range(0, k.shape[-2], width)), split_parts(inputs, width, by_heads=bool(added))
    shares = 1 if added else min(len(bands), max(1, SHARES // len(parts)))  # no two tasks add to one number
    operands = _make_operands(grad_output, v, inputs, saved, shares)._replace(added=added)

    def work(task: tuple[list[BatchPart], int], workspace: Workspace) -> None:
        for part in task[0]:
            for i, keys in enumerate(bands[task[1] :: shares]):
                _add_keys(operands, part, keys, (task[1], i == 0), workspace)

    tasks = [(part, share) for part in parts for share in range(shares)]
    run_blocks(work, tasks, operands.products.size * k.shape[-2], threads)
    dq = operands.dq[0] if shares == 1 else operands.dq.sum(axis=0)
    gradients = {"q": dq, "k": operands.dk, "v": operands.dv}
    if q.ndim == 3:
        gradients = {name: x[0] for name, x in gradients.items()}
    shapes = {name: x.shape for name, x in (("bias", options.bias), ("mask", options.mask)) if x is not None}
    return gradients | {name: sum_to_shape(total, shapes[name]) for name, total in added.items()}


def _zeros_added(inputs: BlockInputs, options: AttentionOptions) -> dict[str, Array]:
    """Return zeros for the gradients of bias and float mask, summed over all broadcast axes but that of the heads."""
    totals = {}
    for name, x, whole in (("bias", options.bias, inputs.bias), ("mask", options.mask, inputs.mask)):
        if x is not None and whole is not None and whole.dtype != bool:
            batch, _, queries, keys = ((1,) * 4 + x.shape)[-4:]
            totals[name] = np.zeros((batch, whole.shape[1], queries, keys), inputs.q.dtype)
    return totals


def _make_operands(
    grad_output: Array, v: Array, inputs: BlockInputs, saved: Mapping[str, Array], shares: int
) -> Operands:
    """Return the operands with uninitialized gradients, in the order of merged heads."""
    grad, heads, v = batched(grad_output), batched(saved["heads"]), batched(v)
    weights = batched(saved["weights"]) if "weights" in saved else None
    lse = np.zeros(0) if weights is not None else saved["lse"].reshape(grad.shape[:3])
    lse = np.where(lse == -np.inf, 0, lse)  # of a query without keys, whose weights are set to 0
    batch, count, queries, width = inputs.q.shape
    dq = np.empty((shares, batch, queries, count, width), grad.dtype).swapaxes(2, 3)
    dk, dv = (np.empty(_merged(x), grad.dtype).swapaxes(1, 2) for x in (inputs.k, v))
    products = np.einsum("...v,...v->...", grad, heads)
    return Operands(inputs, v, grad, products, lse, weights, dq, dk, dv, {})


def _merged(x: Array) -> tuple[int, ...]:
    """Return the shape of x (B, H, T, K) with its heads after its tokens."""
    batch, heads, tokens, width = x.shape
    return batch, tokens, heads, width


def _add_keys(operands: Operands, part: BatchPart, keys: slice, share: tuple[int, bool], workspace: Workspace) -> None:
    """Add the gradients of a band of keys: those of the keys themselves, and their part of that of the queries."""
    inputs, is_first = operands.inputs, True
    band = part.batch, part.groups, keys
    for shared in range(inputs.q.shape[1] // inputs.k.shape[1]):
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
    """Add what a block contributes to the gradients of its queries, keys and values; the first one is assigned."""
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
    q = np.multiply(inputs.q[block.queries], inputs.unit, dtype=grad.dtype)
    _accumulate(np.swapaxes(weights, -1, -2), grad, operands.dv[block.sources], is_first, workspace)
    _accumulate(np.swapaxes(dscores, -1, -2), q, operands.dk[block.sources], is_first, workspace)
    dscores *= grad.dtype.type(inputs.unit)
    _accumulate(dscores, inputs.k[block.sources], operands.dq[share[0]][block.queries], share[1], workspace)


def _add_to_total(total: Array, block: ScoreBlock, dmasked: Array) -> None:
    """Add the gradient of the masked scores of a block to that of a bias, (B or 1, H, T or 1, S or 1)."""
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
    """Return the weights of a block, and with a cap the derivative of its capped scores by those divided by the cap."""
    inputs, dtype = operands.inputs, operands.grad.dtype
    slope = None
    if inputs.softcap:
        tanh = np.tanh(block_scores(inputs, block, dtype, workspace))
        slope = inputs.softcap * (1 - np.square(tanh))
    if operands.weights is not None:
        return operands.weights[block.cells], slope
    scores, is_safe = exact_scores(inputs, block, workspace)
    lse = operands.lse[block.queries][..., None].astype(scores.dtype)
    if is_safe:
        scores -= lse
        np.exp(scores, out=scores)
        fill_blocked(inputs, block, scores, 0)
    else:
        scores -= lse
        np.exp(scores, out=scores)
    return scores.astype(dtype, copy=False), slope
