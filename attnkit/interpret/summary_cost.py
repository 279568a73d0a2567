"""The cost of a summary of attention weights: scores computed again by tiles."""

import math

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.formulas.dense_attention import AttentionOptions
from attnkit.model.graph.costs import Cost, Shape
from attnkit.model.hooks import parse_weight_summary
from attnkit.model.kernels.tiles import QueryTile, TiledInputs, make_query_tile, prepare_tiles, split_tasks
from attnkit.model.kernels.weight_stats import BLOCKS, query_indices

EACH = 4  # elementwise FLOPs of a score, as of softmax


def count_summary(summary: str, q: Shape, k: Shape, options: AttentionOptions) -> Cost:
    """The row of a summary: stats, topk:K or rows:I,J.

    q (B, H, T, K), k (B, G, S, K), of which S are all keys
    """
    kind, numbers = parse_weight_summary(summary)
    inputs = prepare_tiles(np.zeros(q, np.float32), np.zeros(k, np.float32), options)
    rows, keys = math.prod(q[:3]), math.prod(q[:2]) * k[2]
    size, written = BLOCKS[0], 5 * rows + keys
    if kind == "topk":
        written = 2 * rows * min(numbers[0], k[2])
    elif kind == "rows":
        inputs, written = inputs.select_queries(np.unique(query_indices(numbers, q[2]))), keys * len(numbers)
        size = min(max(1, BLOCKS[0] * BLOCKS[1] // max(k[2], 1)), BLOCKS[0])
    blocks = [make_query_tile(inputs, task) for task in split_tasks(inputs, inputs.q.shape[2], size)]
    tiles = [(block, keys) for block in blocks for keys in block.key_blocks(BLOCKS[1])]
    scores, distances = sum(count_cells(*tile) for tile in tiles), 0
    if kind == "stats":
        scores += count_received(inputs)
        distances = sum(count_cells(*tile) for tile in tiles if is_beside(*tile))
    flops, read = 2 * scores * q[3] + 2 * distances, math.prod(q) + math.prod(k)
    return Cost(f"weights.{kind}", (*q[1:3], k[2]), flops, EACH * scores, read, written)


def count_cells(block: QueryTile, keys: slice) -> int:
    """The scores of a tile."""
    return len(block.low) * int(keys.stop - keys.start)


def is_beside(block: QueryTile, keys: slice) -> bool:
    """Whether the queries of a tile are all before its keys, or all after.

    Then distances are a product with steps.
    """
    position: Array = block.position - keys.start
    return bool(position.min() >= keys.stop - keys.start - 1 or position.max() <= 0)


def count_received(inputs: TiledInputs) -> int:
    """Count the scores that are computed again for what each key receives.

    Each tile of keys is computed with all its queries.
    """
    step, total, count = BLOCKS[0], 0, inputs.q.shape[2]
    for batch, _, keys in split_tasks(inputs, inputs.k.shape[2], BLOCKS[1]):
        queries = np.flatnonzero((inputs.low[batch] < keys.stop) & (inputs.high[batch] > keys.start))
        if len(queries):
            first, end = queries[0] // step * step, min(count, queries[-1] // step * step + step)
            total += int(end - first) * (keys.stop - keys.start)
    return total
