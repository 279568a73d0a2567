"""Attention that keeps its weights for the backward pass: scores, softmax and weighted sum block by block."""

import numpy as np

from attnkit.model.dtypes import Array, quiet
from attnkit.model.kernels.score_blocks import (
    BatchPart,
    BlockInputs,
    ScoreBlock,
    exact_scores,
    fill_blocked,
    prepare_blocks,
    row_blocks,
    run_blocks,
    split_parts,
    visible_block,
)
from attnkit.model.kernels.tiles import Workspace, batched
from attnkit.model.options import AttentionOptions


@quiet
def fused_attention(
    q: Array, k: Array, v: Array, options: AttentionOptions, *, threads: int | None = None
) -> tuple[Array, Array]:
    """Return the heads and the weights of dot-product attention, whose values must be finite.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V) -> (..., H, T, V), (..., H, T, S)

    The scores are computed by blocks that stay in a core's own cache; keys that no query of a block may attend to are
    skipped. The result is the same on any number of threads.

    >>> x = np.eye(2)[None]
    >>> heads, weights = fused_attention(x, x, x, AttentionOptions(causal=True))
    >>> heads.round(4).tolist(), weights.round(4).tolist()
    ([[[1.0, 0.0], [0.3302, 0.6698]]], [[[1.0, 0.0], [0.3302, 0.6698]]])
    """
    inputs, values, keys = prepare_blocks(q, k, options), batched(v), k.shape[-2]
    batch, heads, queries = inputs.q.shape[:3]
    output = np.empty((batch, queries, heads, v.shape[-1]), q.dtype).swapaxes(1, 2)  # in the order of merged heads
    weights = np.empty((batch, heads, queries, keys), q.dtype)

    def work(parts: list[BatchPart], workspace: Workspace) -> None:
        (part,) = parts
        for shared in range(heads // inputs.k.shape[1]):
            for rows in row_blocks(inputs):
                block = visible_block(inputs, part, shared, rows, slice(0, keys))
                write_weights(inputs, block, weights, workspace)
                np.matmul(weights[block.cells], values[block.sources], out=output[block.queries])

    run_blocks(work, split_parts(inputs, keys), weights.size, threads)
    return output if q.ndim == 4 else output[0], weights if q.ndim == 4 else weights[0]


def write_weights(inputs: BlockInputs, block: ScoreBlock, weights: Array, workspace: Workspace) -> None:
    """Write the softmax of the scores of a block of queries, with all of their keys, to weights (B, H, T, S)."""
    scores, is_safe = exact_scores(inputs, block, workspace)
    if is_safe:
        np.exp(scores, out=scores)
        fill_blocked(inputs, block, scores, 0)
    else:
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        scores -= np.where(top == -np.inf, 0, top)
        np.exp(scores, out=scores)
    total = scores @ np.ones(scores.shape[-1], scores.dtype)
    np.multiply(scores, 1 / np.where(total == 0, 1, total)[..., None], out=weights[block.cells], casting="same_kind")
    for rest in (slice(0, block.keys.start), slice(block.keys.stop, weights.shape[-1])):
        weights[block.batch, block.heads, block.rows, rest] = 0
