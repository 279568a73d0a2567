"""Traits of models: what their steps and nodes compute; and few models that have the traits of all.

A model with a new kind of node, rule of attention or recurrent cell has a trait that no other has, and is chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from attnkit.model import Model, RecurrentConfig
from attnkit.model.graph.head import build_head
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.passes.model_graph import build_steps
from tests.registry import COPIES, REGISTRY, kind_of, load_core

SITES = ("body", "carried", "whole", "where", "stack")  # options that are sites and places, not what is computed


@cache
def telling_models() -> tuple[str, ...]:
    """Few models of the registry that have the traits of all: first the one that has most, then that which adds most.

    Models of the same kinds from other files are left out.
    """
    rows = {name: graph_traits(load_core(name)) for name in REGISTRY if not name.startswith(COPIES)}
    left, chosen = frozenset().union(*rows.values()), list[str]()
    while left:
        chosen.append(max(rows, key=lambda name: len(rows[name] & left)))
        left -= rows[chosen[-1]]
    return tuple(chosen)


def graph_traits(core: Model) -> frozenset[Any]:
    """The kinds of the nodes of a model with their options, its steps with the names of their parameters, its rules."""
    config, inputs = core.config, example_inputs(core)
    found = {("kind", kind_of(config)), *list_traits(config.positions, "positions")}
    if isinstance(config, RecurrentConfig):
        found.update(list_traits(config.decoding, "decoding"))
    for stack in config.stacks:
        steps = config.plan(stack)
        tokens = config.patches.tokens(config.patches.height, config.patches.width) if config.patches else 1
        found.update(node_traits(build_steps(core, inputs, steps, "x", "memory", (1, tokens))))
        for step in steps:
            found.add((step.op, step.adds_residual, step.saves_residual, step.reads_saved, step.scale != 1))
            found.update((step.op, name) for name in core.params.get(step.layer, ()))
    if config.head:
        found.update(node_traits(build_head(core, inputs, "x")))
    return frozenset(found)


def example_inputs(core: Model) -> Inputs:
    """Inputs of the right shapes, without memory."""
    tokens, cut = np.broadcast_to(0, (1, 1)), core.config.patches
    image = None if cut is None else np.broadcast_to(0, (1, cut.channels, cut.height, cut.width))
    features = np.broadcast_to(0, (1, 1 << 20, 1)) if core.config.sound else None
    return Inputs(ids=tokens, target=tokens, image=image, features=features)


def node_traits(nodes: Sequence[Node]) -> Iterator[tuple[Any, ...]]:
    """The kind of each node, and with it each of its options."""
    for node in nodes:
        yield (node.kind,)
        yield from node_traits(node.options.get("body", ()))
        for name, value in node.options.items():
            for trait in list_traits(value, name):
                yield node.kind, *trait


def list_traits(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The parts of an option by name: words and booleans, and whether a number is neither 0 nor 1."""
    if name.rpartition(".")[2] in SITES or isinstance(value, np.ndarray):
        return
    if is_dataclass(value) or hasattr(value, "_fields"):
        names = [field.name for field in fields(value)] if is_dataclass(value) else value._fields
        for part in names:
            yield from list_traits(getattr(value, part), f"{name}.{part}")
    elif isinstance(value, Mapping):
        yield name, bool(value)
    elif isinstance(value, tuple):
        for part in value:
            yield from list_traits(part, name)
    elif isinstance(value, str | bool | None):
        yield name, value
    else:
        yield name, value not in (0, 1)
