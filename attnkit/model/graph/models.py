"""The graph of a whole model: its nodes from token ids or pixels to logits, in the order of its plan.

The names of sites are those of traces, and some that traces lack: `embed.words`, `embed.types`, `positions.rows`,
`q_projected`, `k_projected`, `v_projected`, `joined`, `embed.patches`, `q_latent_projected`, `kv_latent_projected`,
`ffn.experts`, `ffn.shared_gate`, `shared.hidden` to `shared.output`, `head.pooled` and `head.hidden`. The batch is the
first axis of every array.
"""

from dataclasses import replace
from typing import Any

from attnkit.errors import UsageError
from attnkit.model.config import Config
from attnkit.model.context import Model
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.head import build_head
from attnkit.model.graph.kinds import BUILDERS
from attnkit.model.graph.nodes import Built, Inputs, Node, Place, stack_sizes
from attnkit.model.recurrent_config import RecurrentConfig


def model_graph(core: Model, inputs: Inputs) -> Graph:
    """The graph of a model; UsageError for one that has none."""
    config = core.config
    if isinstance(config, RecurrentConfig):
        raise UsageError(f"{config.family} models are recurrent; stages are those of Transformers")
    if config.sound:
        raise UsageError(f"a {config.family} model of sounds has no list of stages", "--model")
    if not (config.patches or any(config.stack(stack).vocab for stack in config.stacks)):
        raise UsageError(f"this {config.family} model has no embeddings, and takes no text")
    return Graph(core, inputs, {node.site: node for node in _build(core, inputs)})


def _build(core: Model, inputs: Inputs) -> Built:
    config, memory = core.config, ""
    for stack in config.stacks:
        if inputs.of(stack, config)[0] is None and inputs.image is None:
            return  # the decoder of an encoder-decoder model without targets
        batch, tokens = stack_sizes(core, inputs, stack)
        x = saved = f"{stack}.ids" if stack == "decoder" and config.encoder else ("pixels" if config.patches else "ids")
        for step in config.plan(stack):
            if step.reads_saved:
                x, saved = saved, x
            before = x
            saved = x if step.saves_residual else saved
            place = Place(core, inputs, step, x, memory, batch, tokens)
            nodes = list(BUILDERS[step.op](place))
            yield from nodes
            x = nodes[-1].site
            if step.adds_residual:
                added = saved if step.adds_residual == "saved" else before
                options = {} if step.scale == 1 else {"factor": step.scale}
                yield Node(f"{step.layer}.residual", "add", (x, added), place.states(config.width), options=options)
                x = f"{step.layer}.residual"
        memory = x
    yield from build_head(core, inputs, memory)


def with_positions(config: Config, **changes: Any) -> Config:
    """A configuration with fields of its positions changed."""
    return replace(config, positions=replace(config.positions, **changes))
