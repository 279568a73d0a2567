"""Which layers of a model a tool computes."""

import pytest

from attnkit import model
from attnkit.errors import UsageError
from attnkit.inputs.layers import find_layer
from tests.registry import open_model


def test_a_layer_is_for_the_tool_of_its_name_if_the_plan_computes_it_by_that(monkeypatch):
    checkpoint, plan = open_model("gpt2"), model.Config.plan
    assert find_layer(checkpoint, "decoder.0.self", "attend") == "decoder.0.self"
    with pytest.raises(UsageError, match=r"decoder\.0\.self is not a layer for ffn"):
        find_layer(checkpoint, "decoder.0.self", "ffn")

    def other_plan(config, stack):
        return [step._replace(op="mix") if step.layer == "decoder.0.self" else step for step in plan(config, stack)]

    monkeypatch.setattr(model.Config, "plan", other_plan)
    with pytest.raises(UsageError, match=r"decoder\.0\.self is not a layer for attend"):
        find_layer(checkpoint, "decoder.0.self", "attend")
    assert find_layer(checkpoint, "decoder.1.self", "attend") == "decoder.1.self"
