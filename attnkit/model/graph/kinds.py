"""All kinds of nodes: those of every group, and of the head.

The module that builds the nodes of a group has the table of their kinds.
"""

from collections.abc import Mapping
from importlib import import_module

from attnkit.model.graph import head
from attnkit.model.graph.nodes import Kind
from attnkit.model.groups import GROUPS

MODULES = dict.fromkeys(group.nodes.module for group in GROUPS.values())
KINDS: Mapping[str, Kind] = head.KINDS | {
    name: kind for module in MODULES for name, kind in import_module(f"attnkit.model.{module}").KINDS.items()
}
