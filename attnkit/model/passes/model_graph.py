"""The graph of a whole model: from token ids, pixels or sounds to logits.

Its nodes are in the order of its plan.

The names of sites are those of traces, and some that traces lack: `embed.words`, `embed.types`, `positions.rows`,
`q_projected`, `k_projected`, `v_projected`, `gate_projected`, `joined`, `embed.patches`, `q_latent_projected`,
`kv_latent_projected`, `ffn.experts`, `ffn.shared_gate`, `shared.hidden` to `shared.output`, `norm1.multiplied` (by the
factor of a step), `head.pooled`, `head.hidden`, `vector.probe`, `vector.state`, `vector`, and those at the head of
recurrence.py. The batch is the first axis of every array.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.config import Config, Step, walk_steps
from attnkit.model.context import Model
from attnkit.model.graph.convolutions import build_sound, sound_site
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.head import build_head, vector_places
from attnkit.model.graph.nodes import Built, Inputs, Node, Place, stack_sizes
from attnkit.model.groups import GROUPS
from attnkit.model.layers.connector import connector_model


def model_graph(core: Model, inputs: Inputs) -> Graph:
    """The graph of a model; UsageError for one that has none."""
    config = core.config
    if not (config.patches or config.sound or any(config.stack(stack).vocab for stack in config.stacks)):
        raise UsageError(f"this {config.family} model has no embeddings, and takes no text")
    return Graph(core, inputs, {node.site: node for node in _build(core, inputs)})


def _build(core: Model, inputs: Inputs) -> Built:
    config, memory = core.config, ""
    yield from build_sound(core, inputs)
    for stack in config.stacks:
        if not inputs.has(stack, config):
            return  # the decoder of an encoder-decoder model without targets
        sizes = stack_sizes(core, inputs, stack)
        memory = yield from build_steps(core, inputs, config.plan(stack), root_site(config, stack), memory, sizes)
    if config.connector:
        yield from build_connector(core, inputs, memory)
    if config.vector_width:
        yield from build_vector(core, inputs, memory)
    yield from build_head(core, inputs, memory)


def root_site(config: Config, stack: str) -> str:
    """The site that the first step of a stack reads."""
    if stack == "decoder" and config.encoder:
        return "decoder.ids"
    return "pixels" if config.patches else sound_site(config) if config.sound else "ids"


def build_steps(
    core: Model, inputs: Inputs, steps: Sequence[Step], x: str, memory: str, sizes: tuple[int, int]
) -> Generator[Node, None, str]:
    """The nodes of some steps, and the site of the last."""
    nodes: list[Node] = []

    def build(step: Step, x: str) -> str:
        nodes.extend(GROUPS[step.op].nodes(Place(core, inputs, step, x, memory, *sizes)))
        if step.scale != 1 and not step.adds_residual:
            last = nodes[-1]
            options = {"factor": step.scale}
            nodes.append(Node(f"{step.layer}.multiplied", "scale", (last.site,), last.shape, options=options))
        return step.result or nodes[-1].site

    def add_residual(step: Step, y: str, residual: str) -> str:
        if step.adds_residual == "concat":
            widths = {node.site: node.shape[-1] for node in nodes}
            nodes.append(Node(f"{step.layer}.concat", "concat", (y, residual), (*sizes, widths[y] + widths[residual])))
            return nodes[-1].site
        options = {} if step.scale == 1 else {"factor": step.scale}
        shape = (*sizes, core.config.width)
        nodes.append(Node(f"{step.layer}.residual", "add", (y, residual), shape, options=options))
        return nodes[-1].site

    site = walk_steps(steps, x, build, add_residual)
    yield from nodes
    return site


def build_connector(core: Model, inputs: Inputs, states: str) -> Built:
    """The nodes from the last states of a tower of pictures to rows of a text."""
    connector, cut, image = core.config.connector, core.config.patches, inputs.image
    assert connector is not None
    assert cut is not None
    batch, _ = stack_sizes(core, inputs, "encoder")
    grid = cut.grid(*(cut.height, cut.width) if image is None else image.shape[-2:])
    sizes = batch, connector.rows(cut, grid)
    yield from build_steps(connector_model(core), inputs, core.config.plan("connector"), states, "", sizes)


def build_vector(core: Model, inputs: Inputs, states: str) -> Built:
    """The nodes of the vector of a whole text or image."""
    config = core.config
    batch, _ = stack_sizes(core, inputs, config.stacks[-1])
    shape = (batch, config.width)
    if config.has_probe:
        yield Node("vector.probe", "probe", (states,), (batch, 1, config.width), "vector")
        steps = config.plan("vector")
        states = yield from build_steps(core, inputs, steps, "vector.probe", states, (batch, 1))
        yield Node("vector", "state", (states,), shape, options={"at": np.zeros(batch, np.int64)})
        return
    at = vector_places(config, inputs, config.vector_pooling, batch)
    yield Node("vector.state", "state", (states,), shape, options={"at": at})
    options = {"names": ("w", "b")}
    yield Node("vector", "linear", ("vector.state",), (batch, config.vector_width), "vector", options)


def with_positions(config: Config, **changes: Any) -> Config:
    """A configuration with fields of its positions changed."""
    return replace(config, positions=replace(config.positions, **changes))
