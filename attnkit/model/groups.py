"""The groups of a plan: each operation of a step, and how its readers compute it.

A group is what a kernel fuses of the nodes of a model. Every operation is told here once: a reader of the steps, as
`transformer.run`, `recorded_pass.run_recorded` or `model_graph.model_graph`, takes its field of the row. The table
stands above layers/, backward/ and graph/, whose functions it names, and below passes/, which read it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.model.config import Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array

if TYPE_CHECKING:
    from attnkit.model.backward.tape import Undo


@dataclass(frozen=True)
class Later:
    """A function of a module of attnkit.model, imported by its first call.

    A stage imports only what it computes.

    >>> Later("config", "parse_layer_name")("decoder.3.ffn")
    ('decoder', 3, 'ffn')
    """

    module: str
    name: str

    def __call__(self, *args: Any) -> Any:
        return _import(self.module, self.name)(*args)


@dataclass(frozen=True)
class ByNodes(Later):
    """A step that a function of graph/steps.py computes by the nodes of a builder."""

    way: str

    def __call__(self, *args: Any) -> Any:
        return _import("graph.steps", self.way)(_import(self.module, self.name), *args)


@cache
def _import(module: str, name: str) -> Any:
    return getattr(import_module(f"attnkit.model.{module}"), name)


class Group(NamedTuple):
    """One operation of a step.

    kernel     (model, layer, x, context) -> its result
    vjp        (model, step, x, context) -> its result, and the function (gradient of it, Reverse) -> gradient of x
    nodes      (place of the graph) -> its nodes, the last of which is its result unless the step names another; the
               table KINDS of that module has their kinds
    is_packed  whether the kernel computes each row by itself, or attends, so that texts can be packed without padding
    """

    kernel: Callable[[Model, str, Array, Context], Array]
    vjp: Callable[[Model, Step, Array, Context], "tuple[Array, Undo]"]
    nodes: Later
    is_packed: bool = False


# Step.op -> its group
GROUPS: Mapping[str, Group] = {
    "embed": Group(
        kernel=Later("layers.embeddings", "embed_tokens"),
        vjp=Later("backward.layer_vjps", "embed_vjp"),
        nodes=Later("graph.embeddings", "build_embeddings"),
        is_packed=True,
    ),
    "posenc": Group(
        kernel=Later("layers.embeddings", "apply_positions"),
        vjp=Later("backward.layer_vjps", "positions_vjp"),
        nodes=Later("graph.embeddings", "build_positions"),
        is_packed=True,
    ),
    "layernorm": Group(
        kernel=Later("layers.networks", "apply_norm"),
        vjp=Later("backward.layer_vjps", "norm_vjp"),
        nodes=Later("graph.linear", "build_norm"),
        is_packed=True,
    ),
    "linear": Group(
        kernel=Later("layers.networks", "project_states"),
        vjp=Later("backward.layer_vjps", "projection_vjp"),
        nodes=Later("graph.linear", "build_linear"),
        is_packed=True,
    ),
    "attend": Group(
        kernel=Later("layers.attention", "attend_to_source"),
        vjp=Later("backward.layer_vjps", "attention_vjp"),
        nodes=Later("graph.attention", "build_attention"),
        is_packed=True,
    ),
    "recall": Group(
        kernel=ByNodes("graph.recall", "build_recall_layer", "run_nodes"),
        vjp=ByNodes("graph.recall", "build_recall_layer", "nodes_vjp"),
        nodes=Later("graph.recall", "build_recall_layer"),
    ),
    "shortconv": Group(
        kernel=ByNodes("graph.short_convolution", "build_short_convolution", "run_nodes"),
        vjp=ByNodes("graph.short_convolution", "build_short_convolution", "nodes_vjp"),
        nodes=Later("graph.short_convolution", "build_short_convolution"),
    ),
    "ffn": Group(
        kernel=Later("layers.networks", "apply_network"),
        vjp=Later("backward.layer_vjps", "network_vjp"),
        nodes=Later("graph.networks", "build_ffn"),
        is_packed=True,
    ),
    "conv": Group(
        kernel=Later("layers.convolutions", "apply_convolution"),
        vjp=Later("backward.layer_vjps", "convolution_vjp"),
        nodes=Later("graph.convolutions", "build_convolution"),
    ),
    "group": Group(
        kernel=Later("layers.connector", "group_patches"),
        vjp=Later("backward.layer_vjps", "group_vjp"),
        nodes=Later("graph.connector", "build_group"),
    ),
    "rnn": Group(
        kernel=Later("layers.recurrent_decoder", "apply_recurrence"),
        vjp=Later("backward.recurrent_decoder", "recurrent_vjp"),
        nodes=Later("graph.recurrence", "build_recurrence"),
    ),
}
