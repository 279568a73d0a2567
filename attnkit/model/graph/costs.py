"""The cost of the nodes of a graph, by their shapes and the passes of a run.

A FLOP is an addition or a multiplication: a product of (M, K) and (K, N) is 2 M K N of them. Counted is what runs.
Scores are those of every query and key, blocked ones among them, as long as they are computed as one matrix; where
there are so many that they are computed in tiles, those of the tiles that are not skipped. A generated token attends to
the keys in its window. Rows of zeros that kernels add, and a bias multiplied by one, are not counted.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.config import AttentionRules, Config
from attnkit.model.dtypes import Array
from attnkit.model.graph.nodes import Node

Shape = tuple[int, ...]
Shapes = Mapping[str, Mapping[str, Shape]]


class Cost(NamedTuple):
    """A row of a table of costs: a node, and those in place of its result.

    name         in a trace; "" for the row of the node that is counted
    shape        of the result for one text, and of a single pass; () for that of its rows and columns
    flops        of products; elementwise: of everything else, a function such as exp as one
    read         numbers that are read, parameters among them; written: numbers of the result
    cached       numbers that each token adds to the cache of keys and values
    parameters   numbers that it owns: those of a shared tensor count where it is used first
    window       keys before a query that it attends to; -1: all
    """

    name: str = ""
    shape: Shape = ()
    flops: int = 0
    elementwise: int = 0
    read: int = 0
    written: int = 0
    cached: int = 0
    parameters: int = 0
    window: int = -1

    @property
    def is_counted(self) -> bool:
        """Whether there is anything to count: FLOPs, numbers or parameters."""
        return any((self.flops, self.elementwise, self.read, self.written, self.cached, self.parameters))


Costs = Iterable[Cost]


class ModelShapes(NamedTuple):
    """What is counted: a configuration, and the parameters of its layers.

    shapes  layer -> {parameter: its shape}
    owned   layer -> {parameter}: those whose tensor no layer before it has
    """

    config: Config
    shapes: Shapes
    owned: Mapping[str, frozenset[str]]

    @property
    def parameters(self) -> int:
        """The number of different parameters."""
        return sum(math.prod(self.shapes[layer][name]) for layer, names in self.owned.items() for name in names)

    def size(self, layer: str, *names: str) -> int:
        """Numbers of some parameters of a layer [all]."""
        shapes = self.shapes.get(layer, {})
        return sum(math.prod(shapes[name]) for name in names or shapes if name in shapes)

    def own_size(self, layer: str, *names: str) -> int:
        """Numbers of those parameters that the layer owns."""
        own = self.owned.get(layer, frozenset())
        return sum(math.prod(self.shapes[layer][name]) for name in names or own if name in own)


@dataclass(frozen=True)
class Passes:
    """Forward passes of one stack.

    texts     the texts of a batch
    tokens    of each text, in all passes together
    count     the number of passes
    past      tokens of each text in the cache before the first of them
    source    tokens of the memory, whose keys and values are computed in the first pass unless `has_memory`
    is_incremental  whether each pass computes one token by the incremental decoder, with the keys of its window alone
    heads     rows that the output head reads of each text; 0: it is not computed
    lengths   tokens of each text of a batch that is padded at its end, whose texts are attended to one by one
    is_dense  whether all scores are kept, so that none are computed in tiles
    scores    scores of one head of all texts, where a mask decides; -1: as the rules of the layer say
    """

    texts: int
    tokens: int
    count: int = 1
    past: int = 0
    source: int = 0
    has_memory: bool = False
    is_incremental: bool = False
    heads: int = 0
    lengths: tuple[int, ...] = ()
    is_dense: bool = False
    scores: int = -1

    @property
    def rows(self) -> int:
        """The tokens of all texts."""
        return self.texts * self.tokens

    @property
    def shown_tokens(self) -> int:
        """The tokens of one pass."""
        return self.tokens // self.count

    def pairs(self, rules: AttentionRules) -> int:
        """Pairs of a query and a key of one head of all texts, whose scores are computed."""
        if self.scores >= 0:
            return self.scores
        if rules.is_cross:
            return self.texts * self.tokens * self.source
        if self.lengths:
            ends = ((length, self.tokens - length) for length in self.lengths)
            return sum(self.cells(rules, real, 0, real) + self.cells(rules, rest, real, real) for real, rest in ends)
        if not self.is_incremental and self.count == 1:
            return self.texts * self.cells(rules, self.tokens, self.past, self.past + self.tokens)
        first, last = self.past + 1, self.past + self.tokens
        if not self.is_incremental or rules.window[0] < 0:
            return self.texts * ((first + last) * self.tokens // 2)
        most = rules.window[0] + 1
        growing = max(0, min(last, most) - first + 1)
        return self.texts * ((first + first + growing - 1) * growing // 2 + (self.tokens - growing) * most)

    def cells(self, rules: AttentionRules, tokens: int, past: int, keys: int) -> int:
        """Count the pairs of a text's tokens and keys in the tiles that are not skipped.

        Without tiles these are all pairs.
        """
        if self.is_dense or not has_tiles(rules.heads, tokens, keys):
            return tokens * keys
        return tiled_pairs(tokens, past, keys, rules.window, rules.causal)


def has_tiles(heads: int, tokens: int, keys: int) -> bool:
    """Whether the scores of a text are computed in tiles."""
    from attnkit.model.attention import MANY

    return tokens > 1 and heads * tokens * keys >= MANY


@lru_cache(maxsize=64)
def tiled_pairs(tokens: int, past: int, keys: int, window: tuple[int, int], causal: bool) -> int:
    """Scores of a head that tiled attention computes for one text.

    >>> tiled_pairs(512, 0, 512, (-1, -1), True), tiled_pairs(512, 0, 512, (-1, -1), False)
    (196608, 262144)
    """
    from attnkit.model.formulas.dense_attention import AttentionOptions
    from attnkit.model.kernels.tiles import key_ranges

    options = AttentionOptions(causal=causal, window=window, past=past)
    return count_tiles(*key_ranges(1, tokens, keys, keys, options)[1:])


def count_tiles(low: Array, high: Array) -> int:
    """Scores of tiles of queries, each with all keys from its lowest to its highest.

    low, high  the keys of each query, (B, T)

    >>> count_tiles(np.zeros((1, 300), int), np.arange(1, 301)[None])
    78736
    """
    from attnkit.model.kernels.tiled_attention import BLOCKS

    starts = np.arange(0, low.shape[1], BLOCKS[0])
    ends = np.minimum(starts + BLOCKS[0], low.shape[1])
    return int((np.maximum(high[:, ends - 1] - low[:, starts], 0) * (ends - starts)).sum())


class Sizes(NamedTuple):
    """What a node is counted from.

    shapes  of the sites that it reads
    held    numbers of the result of its row so far, in whose place it is computed; 0 if the row begins with it
    """

    node: Node
    model: ModelShapes
    passes: Passes
    shapes: tuple[Shape, ...] = ()
    held: int = 0

    def option(self, name: str, default: Any = None) -> Any:
        return self.node.options.get(name, default)

    @property
    def numbers(self) -> int:
        """Numbers of the result."""
        return self.held or (self.scores if self.option("rules") else math.prod(self.node.shape))

    def found(self, *names: str) -> tuple[str, ...]:
        """Those of some parameters that the layer has."""
        return tuple(name for name in names if name in self.model.shapes.get(self.node.layer, {}))

    def read_parameters(self, *names: str) -> int:
        """Numbers of some parameters, which each pass reads."""
        return self.passes.count * self.model.size(self.node.layer, *names)

    def own(self, *names: str) -> int:
        """Numbers of some parameters that the layer owns."""
        return self.model.own_size(self.node.layer, *names)

    def elementwise(self, each: int, *names: str) -> Cost:
        """Some FLOPs for each number of the result, with some parameters.

        A node that begins a row reads its inputs, and the parameters in each pass.
        """
        names = self.found(*names)
        own = self.own(*names) if names else 0
        if self.held:
            return Cost(elementwise=each * self.numbers, parameters=own)
        read = len(self.node.inputs) * self.numbers + (self.read_parameters(*names) if names else 0)
        return Cost(elementwise=each * self.numbers, read=read, written=self.numbers, parameters=own)

    def product(self, names: tuple[str, str], after: int = 0) -> Cost:
        """Rows by a weight, and a bias; after: elementwise FLOPs of each number beside it."""
        shape = self.model.shapes.get(self.node.layer, {}).get(names[0], ())
        if len(shape) < 2:  # a factor of each feature, or the identity
            return self.elementwise(1, *names) if shape else Cost()
        (inner, columns), rows = shape, math.prod(self.node.shape[:-1])
        each, size = after + len(self.found(names[1])), self.read_parameters(*names)
        result = rows * columns
        return Cost("", (), 2 * result * inner, each * result, rows * inner + size, result, parameters=self.own(*names))

    @property
    def scores(self) -> int:
        """Scores of all heads and texts, by the rules that are an option."""
        rules: AttentionRules = self.option("rules")
        return rules.heads * self.passes.pairs(rules)

    def present_keys(self, keys: int) -> int:
        """The keys of a text, those of the cache among them."""
        return keys if self.option("rules").is_cross else keys + self.passes.past

    def read_keys(self, shape: Shape) -> int:
        """Numbers of keys or values that the passes read, of their shape (..., G, S, K)."""
        passes, rules, (groups, keys, width) = self.passes, self.option("rules"), shape[-3:]
        if rules.is_cross or (passes.count == 1 and not passes.is_incremental):
            return passes.texts * passes.count * self.present_keys(keys) * groups * width
        return passes.pairs(rules) * groups * width


def per_number(each: int) -> Callable[[Sizes], Costs]:
    """The cost of a kind that computes some FLOPs for each number of its result."""
    return lambda sizes: [sizes.elementwise(each)]


def count_product(sizes: Sizes) -> Costs:
    """The cost of a product with a weight; options name it and its bias."""
    return [sizes.product(sizes.option("names"))]
