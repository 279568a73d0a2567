"""A model as hardware of a narrow dtype would compute it: every node rounded.

The values of nodes are computed in float32 from rounded inputs and rounded parameters, and rounded: a product is added
up in float32, a norm or softmax computed in float32, as kernels of float16 and bfloat16 do. With narrow accumulation
each partial sum of a matrix product is rounded too, one term after another.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnkit.display import Block, Note, Style, TextTable
from attnkit.errors import UsageError, counted, with_article
from attnkit.formats.dtypes import dtype_of
from attnkit.inputs.encoding import Encoding
from attnkit.inputs.padding import find_real_tokens
from attnkit.model.config import Config
from attnkit.model.context import Model
from attnkit.model.dtypes import LARGEST, Array, quiet, rounded
from attnkit.model.graph.functions import NUMPY
from attnkit.model.graph.graph import round_site
from attnkit.model.graph.nodes import Inputs, Node, is_traced
from attnkit.model.hooks import Hook, apply_hook
from attnkit.model.passes.model_graph import model_graph
from attnkit.records import Labels, Record, Tensor, join_names, shared_labels

ACCUMULATE = "accumulate"
STORED = {"fp8-e4m3": "float16", "fp8-e4m3:nan": "float16"}  # the dtype that stores the numbers of another exactly
FIGURES = ("largest", "overflow", "zeros", "ties", "numbers")
ROWS = 20  # of a table
OWN_SUMS = {"convolve", "causal convolution", "recall", "loop", "state"}  # kinds of nodes with sums beside products
AFTER = ("connector.", "vector")  # sites after the hidden states that `make_result` computes too


class StageRounding(NamedTuple):
    """What rounding does to a site.

    largest   its largest finite absolute value before rounding
    overflow  numbers beyond the range: infinite, saturated or NaN afterwards
    zeros     numbers that become 0
    ties      numbers that become equal to the largest of their row, so that a choice by it is another
    """

    site: str
    largest: float
    overflow: int
    zeros: int
    ties: int
    size: int


def form_of(simulation: str) -> str:
    """The dtype of a simulation, a name that `rounded` knows.

    >>> form_of("float16:accumulate"), form_of("fp8-e4m3:nan")
    ('float16', 'fp8-e4m3:nan')
    """
    return simulation.removesuffix(f":{ACCUMULATE}")


def accumulate_product(form: str) -> Callable[[Array, Array], Array]:
    """A matrix product that rounds every partial sum, in the order of the terms.

    Each term is multiplied and added in one operation (FMA), and rounded once.

    >>> product = accumulate_product("float16")
    >>> product(np.ones((1, 4096), np.float32), np.ones((4096, 1), np.float32)).item()
    2048.0
    """

    def product(x: Array, y: Array) -> Array:
        shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        total = np.zeros((*shape, x.shape[-2], y.shape[-1]), np.float32)
        for at in range(x.shape[-1]):
            term = x[..., at, None].astype(np.float64) * y[..., at, None, :]
            total = rounded(total + term, form).astype(np.float32)
        return total

    return product


@quiet
def simulate(core: Model, inputs: Inputs, simulation: str, kept: str, hook: Hook) -> tuple[Array, list[StageRounding]]:
    """Compute the nodes of a model with rounding; the site `kept`, and rows of all.

    hook  reads and replaces the sites that traces have, (B, …)
    """
    form, graph = form_of(simulation), model_graph(core, inputs)
    if simulation.endswith(ACCUMULATE):
        if own := sorted({node.kind for node in graph.nodes.values()} & OWN_SUMS):
            problem = f"the sums of its nodes {join_names(own)} are not simulated; {form} rounds the stages"
            raise UsageError(f"{simulation}: {problem}", "--simulate")
        product = accumulate_product(form)
        narrow = NUMPY._replace(product=product, multiply=lambda x, weight, convert: product(x, convert(weight)))
        graph = replace(graph, functions=narrow)
    readers = Counter(one for node in graph.nodes.values() for one in node.inputs)
    readers[kept] += 1
    known, rows = {site: _rounded_root(array, form) for site, array in graph.roots.items()}, list[StageRounding]()
    for site, node in graph.nodes.items():
        if site in known:
            continue
        arrays = [known[one] for one in node.inputs]
        wide = graph.apply(node.change(rounds="float32"), arrays, form)
        array = wide
        if wide.dtype.kind == "f":
            array = round_site(node, wide, form).astype(np.float32)
            rows.append(_measure(node, wide, array, form, arrays))
        known[site] = apply_hook(hook, site, array) if is_traced(site) and not site.startswith(AFTER) else array
        for one in node.inputs:
            readers[one] -= 1
            if not readers[one]:
                known.pop(one)
    return known[kept], rows


def _rounded_root(array: Array, form: str) -> Array:
    return rounded(array, form).astype(np.float32) if array.dtype.kind == "f" else array


def _measure(node: Node, wide: Array, array: Array, form: str, arrays: Sequence[Array]) -> StageRounding:
    """The row of a site. What is not finite because an input is not, is no overflow."""
    finite = np.isfinite(wide)
    over: Array = finite & (~np.isfinite(array) | (np.abs(wide) > LARGEST[form]))
    if all(np.isfinite(one).all() for one in arrays if one.dtype.kind == "f") and node.kind != "mask":
        over |= ~finite  # inside a product
    largest = np.abs(wide).max(initial=0.0, where=finite)
    zeros, ties = (array == 0) & (wide != 0), is_largest(array) & ~is_largest(wide)
    return StageRounding(node.site, float(largest), int(over.sum()), int(zeros.sum()), int(ties.sum()), wide.size)


def is_largest(array: Array) -> Array:
    """Whether a number is the largest of its row, or equal to it.

    >>> is_largest(np.array([[1.0, 2.0, 2.0], [3.0, 0.0, 0.0]])).tolist()
    [[False, True, True], [True, False, False]]
    """
    return np.asarray(array == array.max(axis=-1, keepdims=True, initial=-np.inf))


class Simulated(NamedTuple):
    """The result of a simulation: hidden states (..., T, D), and a row of each site."""

    simulation: str
    states: Array
    rows: list[StageRounding]

    def store(self, record: Record) -> Record:
        """A record whose float tensors have the dtype of the simulation."""
        form = form_of(self.simulation)
        dtype = dtype_of(STORED.get(form, form))
        tensors = {
            name: replace(one, array=np.where(np.isinf(one.array), one.array, rounded(one.array, form)).astype(dtype))
            for name, one in record.tensors.items()
            if one.array.dtype.kind == "f"
        }
        return record.with_tensors(tensors)

    def counts(self) -> Record:
        """The tensor `rounding` (stage, figure)."""
        rows = np.array([row[1:] for row in self.rows], np.float64)
        labels: dict[str, Labels] = {"stage": [row.site for row in self.rows], "figure": [*FIGURES]}
        return Record({}).with_tensors({"rounding": Tensor(rows, ("stage", "figure"))}, labels)

    def sentences(self) -> list[str]:
        """A sentence on the first stage that overflows; [] without any.

        >>> row = StageRounding("logits", 70000.0, 2, 0, 0, 9)
        >>> Simulated("float16", np.zeros(1), [row]).sentences()
        ['logits is the first stage that overflows float16: 2 of 9 numbers; the largest is 70000, and 65504 the limit']
        """
        found, form = [row for row in self.rows if row.overflow], form_of(self.simulation)
        if not found:
            return []
        row = found[0]
        first = f"{row.site} is the first stage that overflows {form}: {row.overflow} of {counted(row.size, 'number')}"
        limit = LARGEST[form]
        if row.largest <= limit:
            return [f"{first}; a parameter or a partial sum is beyond the limit, {limit:g}"]
        return [f"{first}; the largest is {row.largest:.6g}, and {limit:g} the limit"]


def simulate_encoding(encoded: Encoding, simulation: str, hook: Hook) -> Simulated:
    """Simulate what encode computes; UsageError for a model that has no graph."""
    config, base, is_batch = encoded.core.config, encoded.base, encoded.inputs.ndim > input_rank(encoded)
    given = encoded.inputs if is_batch else encoded.inputs[None]
    inputs = make_inputs(config, given, base)

    def visit(site: str) -> Callable[[Array], Array] | None:
        function = hook(site)
        if function is None or is_batch:
            return function
        return lambda array: function(array[0])[None]

    layers = [step.layer for step in encoded.steps]
    states, rows = simulate(encoded.core, inputs, simulation, last_site(encoded.core, inputs, layers), visit)
    return Simulated(simulation, states if is_batch else states[0], rows)


def input_rank(encoded: Encoding) -> int:
    """The rank of one text, image or sound."""
    config = encoded.core.config
    if config.patches:
        return 3
    return 2 if config.sound is not None and config.sound.spectrogram else 1


def make_inputs(config: Config, given: Array, base: Record) -> Inputs:
    """What the graph of a model reads, of a batch of inputs."""
    if config.patches:
        return Inputs(image=given)
    if config.sound is not None:
        return Inputs(features=given)
    if given.dtype.kind == "f":
        raise UsageError(f"{with_article(config.family)} model needs ids, and this record has x", "--simulate")
    mask, types = find_real_tokens(base, given.shape if base["ids"].ndim > 1 else given.shape[1:]), base.get("types")
    return Inputs(
        ids=given,
        mask=None if mask is None else np.broadcast_to(mask, given.shape),
        types=None if types is None else np.broadcast_to(types, given.shape),
    )


def last_site(core: Model, inputs: Inputs, layers: Sequence[str]) -> str:
    """The site of the hidden states after the last of some layers."""
    nodes = model_graph(core, inputs).nodes
    names = (f"{layer}{part}" for layer in reversed(layers) for part in (".residual", "", ".state", ".output"))
    return next(name for name in names if name in nodes)


def overflow_table(record: Record, style: Style) -> Block:
    """The stages that overflow in the order of computation, or a note that none does."""
    found = [
        (name, row)
        for name, row in zip(shared_labels(record.labels_of("rounding", 0)), record["rounding"], strict=True)
        if row[1]
    ]
    if not found:
        return Note("no stage overflows")
    rows = [
        [name, f"{row[0]:.{style.precision + 2}g}", f"{row[1]:.0f} of {row[4]:.0f}", f"{row[2]:.0f}"]
        for name, row in found[:ROWS]
    ]
    return TextTable(["stage that overflows", "largest", "overflow", "become 0"], rows, [1, 2, 3])
