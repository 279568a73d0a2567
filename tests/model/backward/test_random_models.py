"""Gradients of models of random configurations are the slopes of their loss, for parameters and intermediates."""

import copy

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attnkit.model import Model
from attnkit.model.backward.tape import Dropout
from attnkit.model.config import Config, PositionConfig, StackConfig
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from tests.model.backward.parameter_slopes import check_parameter_slopes

WORDS = 7  # of every vocabulary
ATTENTION = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


def draw_stack(draw, width, cross):
    heads, causal = draw(st.sampled_from([1, 2])), draw(st.booleans())
    layers, windows = draw(st.integers(1, 2)), draw(st.sampled_from([(), (-1, 1), (1, -1)]))
    return StackConfig(
        layers=layers,
        heads=heads,
        hidden=draw(st.integers(2, 5)),
        kv_heads=draw(st.sampled_from([1, heads])),
        head_dim=2 * draw(st.integers(1, 2)),
        vocab=WORDS,
        causal=causal,
        cross=cross,
        final_norm=draw(st.booleans()),
        windows=windows[:layers],
        first_norm=draw(st.booleans()),
    )


def draw_config(draw):
    width, kind = 4, draw(st.sampled_from(["encoder", "decoder", "both"]))
    stacks = {name: draw_stack(draw, width, name == "decoder" and kind == "both") for name in ("encoder", "decoder")}
    if kind != "both":
        stacks = {kind: stacks[kind]}
    positions = draw(st.sampled_from(["none", "learned", "sinusoidal", "rotary"]))
    relative = draw(st.sampled_from(["", "t5"]))
    return Config(
        "random",
        width,
        **stacks,
        norm=draw(st.sampled_from(["layer", "rms"])),
        eps=0.1,  # norms of nearly equal numbers would have derivatives beyond any finite difference
        norm_first=draw(st.booleans()),
        activation=draw(st.sampled_from(["gelu", "gelu-tanh", "silu"])),
        positions=PositionConfig(
            positions, size=8, first=draw(st.sampled_from([0, 2])), relative=relative, buckets=8, max_distance=5
        ),
        scale=draw(st.sampled_from([None, 1.0])),
        scale_by_layer=draw(st.booleans()),
        embed_scale=draw(st.sampled_from([1.0, 2.0])),
        embed_norm=draw(st.booleans()),
        logit_scale=draw(st.sampled_from([1.0, 0.5])),
        types=draw(st.sampled_from([0, 2])),
        pooler=True,
        transform=draw(st.booleans()),
        head_norm=draw(st.booleans()),
        head_activation=draw(st.sampled_from(["", "silu"])),
        embed_width=draw(st.sampled_from([0, 6])),
        head_width=draw(st.sampled_from([0, 6])),
    )


def layer_parameters(config, draw):
    """The names of parameters by layer."""
    params = {}
    for stack in config.stacks:
        for step in config.plan(stack):
            if step.op == "embed":
                params[step.layer] = ["table", "types"] if config.types else ["table"]
            elif step.op == "posenc":
                params[step.layer] = ["table"] if config.positions.kind == "learned" else []
            elif step.op == "layernorm":
                params[step.layer] = ["gamma"] + ["beta"] * (config.norm == "layer")
            elif step.op == "attend":
                params[step.layer] = ATTENTION[: draw(st.sampled_from([4, 8]))]
            elif step.op == "linear":
                params[step.layer] = ["w", "b"]
            else:
                params[step.layer] = ["w1", "w2", *draw(st.sampled_from([[], ["b1", "b2"], ["w3", "b3"]]))]
        if config.positions.relative:
            params[f"{stack}.bias"] = ["table"]
    norm = ["gamma"] + ["beta"] * (config.norm == "layer")
    return params | {"pooler": ["w", "b"], "head.dense": ["w", "b"], "head.norm": norm, "head": ["w", "b"]}


def draw_model(draw, rng):
    config = draw_config(draw)
    params = {
        layer: {name: 0.7 * rng.standard_normal(config.parameter_shape(layer, name)) for name in names}
        for layer, names in layer_parameters(config, draw).items()
    }
    if draw(st.booleans()) and params["head"]["w"].T.shape == params[f"{config.stacks[-1]}.embed"]["table"].shape:
        params["head"]["w"] = params[f"{config.stacks[-1]}.embed"]["table"].T
    if len(config.stacks) == 2 and draw(st.booleans()) and not (config.embed_width or config.head_width):
        params["encoder.embed"]["table"] = params["decoder.embed"]["table"]
        params["head"]["w"] = params["decoder.embed"]["table"].T
    return Model(config, params)


def draw_inputs(draw, config, rng):
    batch, masked = draw(st.sampled_from([(), (2,)])), draw(st.booleans())
    inputs = {}
    for stack in config.stacks:
        length = draw(st.integers(1, 5))
        ids, mask = rng.integers(0, WORDS, (*batch, length)), None
        if batch and masked:
            mask = np.arange(length) < rng.integers(1, length + 1, 2)[:, None, None]
        kinds = rng.integers(0, 2, (*batch, length)) if config.types and draw(st.booleans()) else None
        positions = rng.integers(0, 6, length) if not config.positions.relative and draw(st.booleans()) else None
        inputs[stack] = StackInputs(ids, mask, positions=positions, segment_ids=kinds)
    return inputs


def draw_case(data, seed):
    rng, draw = np.random.default_rng(seed), data.draw
    model = draw_model(draw, rng)
    options = {"output": draw(st.sampled_from(["logits", "hidden", "pooled"]))}
    options["dropout"] = draw(st.sampled_from([None, Dropout(0.3, 1, 2)]))
    return model, draw_inputs(draw, model.config, rng), options, rng


CASES = settings(max_examples=12, phases=[Phase.generate])


@CASES
@pytest.mark.slow
@given(st.data(), st.integers(0, 2**32 - 1))
def test_gradients_of_parameters_are_slopes(directions, data, seed):
    model, inputs, options, rng = draw_case(data, seed)
    y, recorded = run_model(model, inputs, **options)
    dy = rng.standard_normal(y.shape)
    arrays = [dy, model.params, [step.x for tape in recorded.tapes.values() for step in tape.steps]]
    before = copy.deepcopy(arrays)
    gradients = model_backward(model, recorded, dy)
    np.testing.assert_equal(arrays, before, "inputs are modified")
    np.testing.assert_equal(
        model_backward(model, recorded, dy).params, gradients.params, "what is recorded is modified"
    )

    def run(moved):
        return run_model(moved, inputs, **options)[0]

    check_parameter_slopes(directions, model, gradients.params, run, dy, rng)


def reading(kept):
    """A hook that keeps every intermediate by its name."""
    return lambda name: lambda array: kept.setdefault(name, array)


@CASES
@pytest.mark.slow
@given(st.data(), st.integers(0, 2**32 - 1))
def test_gradients_of_intermediates_are_slopes(directions, data, seed):
    model, inputs, options, rng = draw_case(data, seed)
    kept, gradients = {}, {}
    y, recorded = run_model(model, inputs, **options, hook=reading(kept))
    dy = rng.standard_normal(y.shape)
    model_backward(model, recorded, dy, hook=reading(gradients))
    assert set(gradients) == set(kept)

    starts = {name: np.where(np.isfinite(array), array, 0) for name, array in kept.items()}

    def loss(arrays):
        changes = {name: np.where(np.isfinite(kept[name]), array - starts[name], 0) for name, array in arrays.items()}
        hook = {name: lambda x, change=change: x + change for name, change in changes.items()}.get
        return float(np.vdot(dy, run_model(model, inputs, **options, hook=hook)[0]))

    directions(loss, starts, gradients, rng, together=8)
