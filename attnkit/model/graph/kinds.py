"""All kinds of nodes: those of every group, and of the head.

The module that builds the nodes of a group has the table of their kinds.
"""

from collections.abc import Mapping

from attnkit.model.graph import (
    attention,
    connector,
    convolutions,
    embeddings,
    head,
    linear,
    networks,
    recall,
    recurrence,
    short_convolution,
)
from attnkit.model.graph.nodes import Kind

MODULES = (
    head,
    embeddings,
    linear,
    attention,
    networks,
    convolutions,
    recurrence,
    recall,
    short_convolution,
    connector,
)
KINDS: Mapping[str, Kind] = {name: kind for module in MODULES for name, kind in module.KINDS.items()}
