"""A graph of nodes: the sites that others are computed from, and their values.

The same functions compute a model as it is and as an implementation may have got it wrong: a slip is a node with
another option or input.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.backward.tape import ModelGradients, Reverse
from attnkit.model.config import layer_steps
from attnkit.model.context import Model
from attnkit.model.dtypes import Array, quiet, rounded
from attnkit.model.graph.convolutions import sound_site
from attnkit.model.graph.functions import NUMPY, Functions
from attnkit.model.graph.kinds import KINDS
from attnkit.model.graph.nodes import NARROW, Apply, Inputs, Kind, Node, Scope, UndoNodes, as_wide
from attnkit.model.hooks import Hook, apply_hook, no_hook


def round_site(node: Node, array: Array, form: str) -> Array:
    """Round the array of a node; what a mask excludes stays minus infinity.

    Where a dtype has no infinity, a mask is applied to sums in float32.
    """
    narrow = rounded(array, form)
    return np.where(np.isneginf(array), array, narrow) if node.kind == "mask" else narrow


class Arrays(Protocol):
    """Arrays by site."""

    def __contains__(self, site: object, /) -> bool: ...

    def __getitem__(self, site: str, /) -> Array: ...

    def __iter__(self) -> Iterator[str]: ...


class Known(Mapping[str, Array]):
    """Sites whose arrays are given by the first of some mappings; some are hidden."""

    def __init__(self, *mappings: "Arrays", hidden: Collection[str] = ()) -> None:
        self.mappings, self.hidden = mappings, hidden

    def __contains__(self, site: object) -> bool:
        return site not in self.hidden and any(site in one for one in self.mappings)

    def __getitem__(self, site: str) -> Array:
        if site in self:
            return next(one[site] for one in self.mappings if site in one)
        raise KeyError(site)

    def __iter__(self) -> Iterator[str]:
        return (site for site in dict.fromkeys(itertools.chain(*self.mappings)) if site not in self.hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SubLayer(NamedTuple):
    """A sub-layer of a block: the sites of its norm, result and residual sum."""

    norm: str
    output: str
    residual: str


class LayerBlock(NamedTuple):
    """A layer of a stack: the site that it reads, and its sub-layers in order."""

    start: str
    parts: tuple[SubLayer, ...]


class GraphGradients(NamedTuple):
    """Gradients of sites, and of parameters by layer and name."""

    sites: dict[str, Array]
    params: ModelGradients


class CycleError(Exception):
    """A changed node reads a site that is computed from its own."""


@dataclass
class Graph:
    """Nodes by site in the order of computation, with parameters and inputs.

    functions  of the library that computes
    """

    core: Model
    inputs: Inputs
    nodes: Mapping[str, Node]
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)
    functions: Functions = NUMPY

    @functools.cached_property
    def blocks(self) -> dict[str, LayerBlock]:
        """The blocks by STACK.NUMBER whose sub-layers all have a norm and a residual."""
        found: dict[str, LayerBlock] = {}
        config = self.core.config
        for stack in () if config.norm_output else config.stacks:
            for number in range(config.stack(stack).layers):
                name = f"{stack}.{number}"
                steps = [step.layer for step in layer_steps(config, stack, number)]
                works = [layer for layer in steps if f"{layer}.residual" in self.nodes]
                norms = [layer for layer in steps if layer in self.nodes and layer not in works]
                if len(works) != len(norms) or not works:  # none: a decoder without targets
                    continue
                parts = tuple(
                    SubLayer(norm, f"{work}.output", f"{work}.residual")
                    for norm, work in zip(norms, works, strict=True)
                )
                first = parts[0].norm if config.norm_first else parts[0].residual
                found[name] = LayerBlock(self.nodes[first].inputs[0 if config.norm_first else 1], parts)
        return found

    @property
    def roots(self) -> dict[str, Array]:
        """The arrays that no node computes by site: token ids, pixels, or a sound.

        What a node computes is none of them, unless it is given in another shape than the node makes it.
        """
        inputs = self.inputs
        named = {"ids": inputs.ids, "decoder.ids": inputs.target, "pixels": inputs.image, "sound": inputs.sound}
        named[sound_site(self.core.config)] = inputs.features
        made = {site: node.shape for site, node in self.nodes.items() if site in named}
        return {site: one for site, one in named.items() if one is not None and one.shape != made.get(site)}

    def cone(self, site: str, known: Mapping[str, Array]) -> list[Node]:
        """The nodes between a site and the known sites that it is computed from."""
        found, waiting = set(), [site]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [one for one in self.nodes[name].inputs if one not in known]
        return [node for name, node in self.nodes.items() if name in found]

    @quiet
    def evaluate(
        self,
        site: str,
        known: Mapping[str, Array],
        changes: Mapping[str, Node] | None = None,
        precision: str = "float64",
        memo: dict[str, Array] | None = None,
    ) -> Array:
        """Compute a site from the nearest known sites that it depends on.

        changes    nodes in place of those of the graph
        precision  the dtype to compute in; a 16-bit one rounds the result of every node
        memo       sites that are already computed, which is added to
        """
        memo = {} if memo is None else memo
        self._compute(site, known, changes or {}, precision, memo, ())
        return memo[site]

    def _compute(
        self,
        site: str,
        known: Mapping[str, Array],
        changes: Mapping[str, Node],
        precision: str,
        memo: dict[str, Array],
        path: tuple[str, ...],
    ) -> Array:
        if site not in memo:
            if site in path:
                raise CycleError(site)
            node, way = changes.get(site, self.nodes[site]), (*path, site)
            arrays = [
                as_wide(known[one], precision)
                if one in known
                else self._compute(one, known, changes, precision, memo, way)
                for one in node.inputs
            ]
            memo[site] = self.apply(node, arrays, precision)
        return memo[site]

    @quiet
    def apply(self, node: Node, arrays: Sequence[Array], precision: str = "float64") -> Array:
        """Compute one node from the arrays of the sites it reads."""
        scope = self._scope(node, precision)
        if form := node.options.get("rounds_inputs"):
            arrays = [rounded(array, form).astype(array.dtype) for array in arrays]
        result = self.kinds[node.kind].value(scope, *arrays)
        form = node.options.get("rounds", precision if precision in NARROW else "")
        if form and result.dtype.kind == "f":
            result = round_site(node, result, form).astype(np.float64 if precision == "float64" else np.float32)
        return result

    @quiet
    def backward(
        self,
        gradients: Mapping[str, Array],
        known: Mapping[str, Array],
        memo: Mapping[str, Array],
        precision: str = "float64",
        hook: Hook = no_hook,
    ) -> GraphGradients:
        """Gradients of the sites and parameters that some sites depend on.

        The gradients of those sites are given.

        known, memo  as of `evaluate`: known sites have gradients, but what they are computed from has none
        hook         receives the gradient of any site, and may replace it

        A tied parameter has a gradient under each of its names. UsageError where a gradient reaches a kind that has no
        derivative.

        The option `inner` of a node names intermediates that its kind computes inside, as a kernel does that fuses
        several nodes: other sites may read them, and their gradients reach its pullback through the hook of its scope.
        """
        found, reverse = dict(gradients), Reverse()

        def add_found(site: str) -> Callable[[Array], Array] | None:
            if (more := found.get(site)) is None:
                return hook(site)
            return lambda gradient: apply_hook(
                hook, site, gradient + more.reshape(gradient.shape).astype(gradient.dtype)
            )

        for site, node in reversed([*self.nodes.items()]):
            if site not in found:
                if not any(one in found for one in node.options.get("inner", ())):
                    continue
                found[site] = np.zeros_like(memo[site])
            found[site] = apply_hook(hook, site, found[site])
            if site in known:
                continue
            pullback = self.kinds[node.kind].pullback
            if pullback is None:
                raise UsageError(f"{site} is {node.kind!r}, which has no derivative")
            arrays = [as_wide(known[one], precision) if one in known else memo[one] for one in node.inputs]
            scope = self._scope(node, precision)._replace(add=reverse.add, hook=add_found)
            for one, part in zip(node.inputs, pullback(scope, found[site], memo[site], *arrays), strict=True):
                if part is not None:
                    found[one] = found[one] + part if one in found else part
        return GraphGradients(found, reverse.gradients)

    def _scope(self, node: Node, precision: str) -> Scope:
        def within(core: Model) -> Apply:
            inner = replace(self, core=core)
            return lambda node, arrays: inner.apply(node, arrays, precision)

        def undo_within(core: Model, nodes: Sequence[Node]) -> UndoNodes:
            inner = replace(self, core=core, nodes={node.site: node for node in nodes})
            return lambda gradients, known, memo: inner.backward(gradients, known, memo, precision)

        parts = self.core, self.inputs, node, precision, within
        return Scope(*parts, undo_within=undo_within, functions=self.functions)
