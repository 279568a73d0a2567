"""A step of a plan that is computed and undone by its nodes, with states.

A node that begins with a state names its part in the option `part`, and has the options `state`, the arrays of that
part before the first token (None: zeros), and `real` (B, T), the tokens that are no padding (None: all). The site of
that part after the last token is LAYER.last_PART. The result of the step is LAYER.output.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from attnkit.model.backward.tape import Reverse, Undo
from attnkit.model.config import Config, Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, output_dtype, working
from attnkit.model.formulas.masks import real_tokens
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.nodes import LAST, Built, Inputs, Node, Place, is_traced
from attnkit.model.hooks import Hook, apply_hook, no_hook

Builder = Callable[[Place], Built]


def run_nodes(build: Builder, model: Model, layer: str, x: Array, context: Context) -> Array:
    """Compute a step by its nodes: (..., T, D) -> (..., T, D).

    It begins with the state of the layer in the cache, which receives the state after the last token. DataError for a
    mask of anything but a padded batch.
    """
    run = _run(build, model, Step("", layer), x, context)
    if context.cache is not None:
        parts = [f"{layer}.{LAST}{part}" for part in model.config.states[layer]]
        context.cache.advance(layer, tuple(run.arrays[part] for part in parts), x.shape[-2])
    return run.result(x, f"{layer}.output")


def nodes_vjp(build: Builder, model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    run, output = _run(build, model, step, x, context), f"{step.layer}.output"

    def undo(dy: Array, reverse: Reverse) -> Array:
        gradient = dy.reshape(run.arrays[output].shape)
        hook = _by_text(reverse.hook, x.shape[:-2])
        found = run.graph.backward({output: gradient}, {"x": run.arrays["x"]}, run.arrays, run.precision, hook)
        for layer, parameters in found.params.items():
            reverse.add(layer, parameters)
        return found.sites["x"].reshape(x.shape).astype(dy.dtype, copy=False)

    return run.result(x, output), undo


def begin_with(nodes: Iterable[Node], states: Mapping[str, Any], real: Any) -> dict[str, Node]:
    """Nodes by site, those with states beginning with given ones.

    Such nodes have the option `shared` besides, where one may leave what another one returns.

    states  by part, those of the layer; real (B, T): see above
    """
    shared: dict[str, Any] = {}
    return {
        node.site: node.change(state=states.get(node.options["part"]), real=real, shared=shared)
        if "part" in node.options
        else node
        for node in nodes
    }


def name_parts(config: Config, layer: str, state: Iterable[Any] | None) -> dict[str, Any]:
    """The parts of the state of a layer by name; none without a state."""
    return {} if state is None else dict(zip(config.states[layer], state, strict=True))


class _NodesRun(NamedTuple):
    """The nodes of a step, and the arrays (B, T, ...) of their sites."""

    graph: Graph
    arrays: dict[str, Array]
    precision: str

    def result(self, x: Array, site: str) -> Array:
        y = self.arrays[site]
        return y.reshape(*x.shape[:-1], y.shape[-1]).astype(output_dtype(x), copy=False)


def _run(build: Builder, model: Model, step: Step, x: Array, context: Context) -> _NodesRun:
    layer, batch = step.layer, x.reshape(-1, *x.shape[-2:])
    dtype = working(x, *model.params[layer].values())
    real = real_tokens(context.mask, *batch.shape[:2])
    inputs = Inputs(ids=batch[..., 0], target=batch[..., 0])
    state = None if context.cache is None else context.cache.states.get(layer)
    nodes = begin_with(
        build(Place(model, inputs, step, "x", "memory", *batch.shape[:2])), name_parts(model.config, layer, state), real
    )
    graph, arrays = Graph(model, inputs, nodes), {"x": cast(batch, dtype)}
    hook = _by_text(context.hook, x.shape[:-2])
    for site, node in nodes.items():
        if context.cache is None and f".{LAST}" in site:
            continue
        array = graph.apply(node, [arrays[one] for one in node.inputs], dtype.name)
        arrays[site] = apply_hook(hook, site, array)
    return _NodesRun(graph, arrays, dtype.name)


def _by_text(hook: Hook, lead: tuple[int, ...]) -> Hook:
    """A hook of the sites of traces, with the batch axes of the input of the step."""

    def visit(site: str) -> Callable[[Array], Array] | None:
        function = hook(site) if is_traced(site) and site != "x" else None
        if function is None:
            return None
        return lambda array: function(array.reshape(*lead, *array.shape[1:])).reshape(array.shape)

    return hook if hook is no_hook else visit
