"""The graph of one stage: its nodes, its inputs and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnkit.inputs import layers
from attnkit.model import Array, Config, working
from attnkit.model.backward.tape import ModelGradients
from attnkit.model.context import Model
from attnkit.model.dtypes import is_float
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.nodes import Inputs, Kind, Node, Scope
from attnkit.model.hooks import Hook, apply_hook
from attnkit.records import Record, Tensor

MANY = 1 << 22  # scores from which on the gradients of scores and weights are not kept
Undo = Callable[[Scope, Array], "list[Array | None]"]
Vjp = Callable[..., tuple[Array, Undo]]


class ArrayOrigin(NamedTuple):
    """An array that a stage reads, and where it comes from.

    name   of the tensor of the record; "" for another array
    flag   the option that names a file or a tensor of the record
    part   the number of the record among several that the stage merges, from 1
    """

    array: Array
    name: str = ""
    flag: str = ""
    part: int = 0


class StageReverse(NamedTuple):
    """Gradients of inputs, of parameters by layer, and of intermediates of a stage.

    The order is from the last to the first.
    """

    origins: dict[str, Array]
    params: ModelGradients
    inner: dict[str, Array]


@dataclass
class StageGraph:
    """What one stage computes.

    core       the configuration and the parameters that the nodes read; those that options give are of layer ""
    precision  the dtype of the arithmetic
    origins    site -> an array that the stage reads
    late       sites whose gradients follow those of the intermediates
    results    tensor that the stage computed -> its site, "" for a constant
    inside     the node whose kernel computes the other tensors inside
    is_kept    (intermediate, whether a later stage uses it) -> whether its gradient is wanted
    describe   (intermediate, its gradient) -> the gradient with its axes and labels
    weights    gradients by layer -> those of the parameters that options gave; axes: name of one -> its axes, if they
               are not the usual ones
    names      site of an intermediate -> its name in the tool, if that is another
    has_trace  whether the intermediates are those of a whole model, under the names of its trace
    """

    core: Model
    precision: str = "float64"
    nodes: dict[str, Node] = field(default_factory=dict)
    origins: dict[str, ArrayOrigin] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    results: dict[str, str] = field(default_factory=dict)
    inside: str = ""
    is_kept: Callable[[str, bool], bool] = lambda name, is_used: False
    describe: Callable[[str, Array], Tensor] | None = None
    weights: Callable[[ModelGradients], Mapping[str, Array]] = lambda params: params.get("", {})
    axes: Callable[[str], tuple[str, ...] | None] = lambda name: None
    names: dict[str, str] = field(default_factory=dict)
    has_trace: bool = False

    def read(self, site: str, array: Array, **where: Any) -> str:
        """Name an array that the stage reads; one that it reads twice has one site."""
        origin = ArrayOrigin(array, **where)
        place = (origin.name, origin.flag, origin.part)
        same = (known for known, one in self.origins.items() if any(place) and (one.name, one.flag, one.part) == place)
        site = next(same, site)
        self.origins.setdefault(site, origin)
        return site

    def add(self, site: str, kind: str, *inputs: str, layer: str = "", **options: Any) -> str:
        """Add a node, and return its site."""
        self.nodes[site] = Node(site, kind, inputs, (), layer, options)
        return site

    def fuse(self, site: str, kind: str, *inputs: str, layer: str = "", **options: Any) -> str:
        """Add a node that a kernel computes, which keeps what its pullback reads."""
        return self.add(site, kind, *inputs, layer=layer, recorded={}, **options)

    def backward(self, outer: dict[str, Array], kinds: Mapping[str, Kind]) -> StageReverse:
        """The gradients by those of the stage's tensors, which leave `outer`.

        A gradient stays there if nothing computes its tensor.
        """
        found = self._take_gradients(outer)
        inner = [site for site in found if site not in self.nodes and site not in self.origins]
        if inner:
            self.nodes[self.inside] = self.nodes[self.inside].change(inner=inner)
        collected, visited = dict[str, Array](), set[str]()

        def hook(name: str) -> Callable[[Array], Array] | None:
            is_named = name in self.names or name not in self.nodes
            is_kept = is_named and self.is_kept(name, name in inner)

            def visit(gradient: Array) -> Array:
                visited.add(name)
                if is_kept:
                    collected[self.names.get(name, name)] = gradient
                return gradient

            return visit if is_kept or name in inner else None

        graph, known, memo = self.evaluate(kinds)
        sites, params = graph.backward(found, known, memo, self.precision, hook)
        outer |= {site: found[site] for site in inner if site not in visited}
        zeros = {site: np.zeros(one.shape, self.precision) for site, one in known.items() if is_float(one.dtype)}
        params = {layer: self._in_order(layer, parts) for layer, parts in params.items()}
        return StageReverse({site: sites.get(site, zero) for site, zero in zeros.items()}, params, collected)

    def evaluate(self, kinds: Mapping[str, Kind]) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
        """The graph of the nodes, the arrays that they read, and all their arrays."""
        graph = Graph(self.core, Inputs(), self.nodes, kinds)
        known, memo = {site: one.array for site, one in self.origins.items()}, dict[str, Array]()
        for site in self.nodes:
            graph.evaluate(site, known, precision=self.precision, memo=memo)
        return graph, known, memo

    def _take_gradients(self, outer: dict[str, Array]) -> dict[str, Array]:
        """Take the gradients of tensors that the graph computes, by their sites.

        Gradients of constants are dropped.
        """
        found: dict[str, Array] = {}
        for name in [*outer]:
            site = self.results.get(name, name if self.inside else None)
            gradient = outer[name] if site is None else outer.pop(name)
            if site:
                found[site] = found[site] + gradient if site in found else gradient
        return found

    def _in_order(self, layer: str, parts: Mapping[str, Array]) -> dict[str, Array]:
        """Gradients of parameters in the order of the layer.

        Gradients from a kernel of a model keep the order of the kernel.
        """
        is_of_kernel = self.has_trace or any(node.kind == "layer" for node in self.nodes.values())
        return {name: parts[name] for name in (parts if is_of_kernel else self.core.params[layer]) if name in parts}


def new_graph(
    *arrays: Array | None, weights: Mapping[str, Array] | None = None, core: Model | None = None
) -> StageGraph:
    """A graph without nodes that computes in the dtype of some arrays and weights.

    core  the model whose layers the nodes read; None: the weights are the parameters
    """
    given = weights or {}
    floats = [one for one in (*arrays, *given.values()) if one is not None]
    return StageGraph(core or Model(Config("", 0), {"": given}), working(*floats).name if floats else "float64")


def fused(vjp: Vjp) -> Kind:
    """The kind of a node that a kernel computes, forward and back.

    The pass forward keeps what the pullback reads.

    vjp  (scope, arrays) -> the array of the site, and (scope, its gradient) -> gradients of the arrays
    """

    def value(scope: Scope, *arrays: Array) -> Array:
        result, scope.option("recorded")[""] = vjp(scope, *arrays)
        return result

    def pullback(scope: Scope, dy: Array, y: Array, *arrays: Array) -> "list[Array | None]":
        undone: list[Array | None] = scope.option("recorded").pop("")(scope, dy)
        return undone

    return Kind(value, pullback)


def add_layers(scope: Scope, params: ModelGradients) -> None:
    """Add the gradients of parameters of layers, which a kernel has found."""
    for layer, parts in params.items():
        scope.add(layer, parts)


def add_to(hook: Hook, more: Mapping[str, Array]) -> Hook:
    """A hook that adds to some gradients before another hook receives them."""

    def add(name: str) -> Callable[[Array], Array] | None:
        if name not in more:
            return hook(name)
        return lambda gradient: apply_hook(hook, name, gradient + more[name].astype(gradient.dtype, copy=False))

    return add


def read_addends(graph: StageGraph, record: Record, values: Mapping[str, Any]) -> list[str]:
    """The sites of what --residual and --add add to the result of a stage."""
    sites = [read_x(graph, record)] if values.get("residual") else []
    if values.get("add") is not None:
        sites.append(graph.read("add", values["add"]["x"], flag="add"))
    return sites


def add_up(graph: StageGraph, output: str, sites: Sequence[str], values: Mapping[str, Any]) -> str:
    """The site of a result and its addends; a model may scale the result before."""
    factor = layers.result_scale(values.get("model_"), values.get("layer"), bool(sites))
    return graph.add("sum", "scale", output, *sites, factor=factor) if sites or factor != 1 else output


def read_x(graph: StageGraph, record: Record) -> str:
    """The site of x of the record that the stage read."""
    return graph.read("x", as_number(record["x"]), name="x")


def as_number(x: Array) -> Array:
    """Whole numbers as arithmetic computes with them: floats."""
    return x if is_float(x.dtype) else x.astype(working(x))


def _parameter(scope: Scope) -> Array:
    value = scope.parameter(scope.option("name"))
    assert value is not None
    return value


def _undo_parameter(scope: Scope, dy: Array, y: Array) -> list[Array]:
    scope.add(scope.node.layer, {scope.option("name"): dy})
    return []


KINDS = {
    "parameter": Kind(value=_parameter, pullback=_undo_parameter),
}
