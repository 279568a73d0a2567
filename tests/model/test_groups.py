"""The table of the operations of a plan."""

from importlib import import_module

import pytest

from attnkit.model.config import Step, walk_steps
from attnkit.model.graph.kinds import KINDS, MODULES
from attnkit.model.groups import GROUPS
from tests.registry import REGISTRY, load_core

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")


@pytest.mark.parametrize("name", GROUPS)
def test_every_function_of_a_group_is_there(name):
    for field in ("kernel", "vjp", "nodes"):
        later = getattr(GROUPS[name], field)
        assert callable(getattr(import_module(f"attnkit.model.{later.module}"), later.name))


def stacks(config):
    return (*config.stacks, *["connector"] * (getattr(config, "connector", None) is not None))


def test_the_models_have_steps_of_every_group_and_no_other():
    models = (load_core(name).config for name in REGISTRY if not name.startswith("gguf/"))
    assert {step.op for config in models for stack in stacks(config) for step in config.plan(stack)} == {*GROUPS}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("norm_first", "((x + a(n(x))) + f(m((x + a(n(x))))))"),
        ("norm_last", "m((n((x + a(x))) + f(n((x + a(x))))))"),
        ("parallel", "((x + a(n(x))) + f(m(x)))"),
    ],
)
def test_residuals_of_a_layer_by_hand(steps, expected):
    """A layer of attention a and a network f with norms n and m: before them, after them, and side by side."""
    plans = {
        "norm_first": [
            Step("", "n", saves_residual=True), Step("", "a", "saved"),
            Step("", "m", saves_residual=True), Step("", "f", "saved"),
        ],
        "norm_last": [Step("", "a", "input"), Step("", "n"), Step("", "f", "input"), Step("", "m")],
        "parallel": [
            Step("", "n", saves_residual=True), Step("", "a", "saved"),
            Step("", "m", reads_saved=True), Step("", "f", "saved"),
        ],
    }  # fmt: skip
    found = walk_steps(
        plans[steps], "x", lambda step, x: f"{step.layer}({x})", lambda step, y, residual: f"({residual} + {y})"
    )
    assert found == expected


def test_no_two_modules_have_a_kind_of_one_name():
    names = [name for module in MODULES for name in module.KINDS]
    assert sorted(names) == sorted(KINDS)
