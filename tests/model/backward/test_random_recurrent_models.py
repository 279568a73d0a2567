"""Gradients of recurrent models of random configurations are the slopes of their loss."""

import copy

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attnkit.checkpoints.publishing import assemble_checkpoint, published_tensors
from attnkit.errors import DataError
from attnkit.model import Model
from attnkit.model.backward.tape import Dropout
from attnkit.model.context import Context
from attnkit.model.hooks import no_hook
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from attnkit.model.passes.output_head import head_logits
from attnkit.model.passes.transformer import run
from tests.model.backward.parameter_slopes import check_parameter_slopes

CELLS = ("tanh", "gru", "gru-reset-before", "lstm")  # relu has no slope at 0
CASES = settings(max_examples=25, phases=[Phase.generate])


def draw_config(draw):
    """config.json of a seq2seq, a language model, or a classifier; options may be mutually exclusive."""
    common = {"vocab_size": 7, "embedding_size": 4, "hidden_size": draw(st.integers(3, 4))}
    if draw(st.sampled_from([False, False, True])):
        labels = {"id2label": {"0": "a", "1": "b", "2": "c"}} if draw(st.booleans()) else {}
        return {"model_type": "lstm", **common, "num_layers": draw(st.integers(1, 3)), **labels}
    return {
        "model_type": "seq2seq",
        **common,
        "cell": draw(st.sampled_from(CELLS)),
        "encoder_layers": (layers := draw(st.integers(1, 2))),
        "decoder_layers": layers,
        "bidirectional": draw(st.booleans()),
        "attention": draw(st.sampled_from(["none", "dot", "general", "additive"])),
        "attention_query": draw(st.sampled_from(["previous", "current"])),
        "input_feeding": draw(st.booleans()),
        "readout": draw(st.sampled_from(["none", "tanh"])),
        "readout_size": 4,
        "bridge": draw(st.sampled_from(["none", "identity", "tanh"])),
        "decoder_hidden_size": draw(st.integers(3, 4)),
        "share_encoder_decoder_embeddings": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
    }


def draw_model(draw, rng):
    """A model that there can be."""
    while True:
        raw = draw_config(draw)
        try:
            shapes = published_tensors(raw).shapes
        except DataError:
            continue
        tensors = {name: 0.7 * rng.standard_normal(shape) for name, shape in shapes.items()}
        checkpoint = assemble_checkpoint(raw, tensors)
        params = {layer: dict(checkpoint.params[layer]) for layer in checkpoint.params}
        return Model(checkpoint.config, params)


def draw_inputs(draw, config, rng):
    batch, inputs = draw(st.sampled_from([(), (3,)])), {}
    for stack in config.stacks:
        length, mask = draw(st.integers(1, 5)), None
        if batch and draw(st.booleans()):
            mask = np.arange(length) < rng.integers(1, length + 1, 3)[:, None, None]
            is_ordered = stack == "decoder" and config.decoding.is_sequential
            mask = mask if is_ordered or draw(st.booleans()) else mask[..., ::-1]
        inputs[stack] = StackInputs(rng.integers(0, 7, (*batch, length)), mask)
    return inputs


def draw_case(data, seed):
    rng, draw = np.random.default_rng(seed), data.draw
    model = draw_model(draw, rng)
    options = {"output": draw(st.sampled_from(["logits", "hidden"]))}
    options["dropout"] = draw(st.sampled_from([None, Dropout(0.3, 1, 2)]))
    return model, draw_inputs(draw, model.config, rng), options, rng


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

    def run(moved):
        return run_model(moved, inputs, **options)[0]

    check_parameter_slopes(directions, model, gradients.params, run, dy, rng)


def reading(kept):
    """A hook that keeps every intermediate by its name."""
    return lambda name: lambda array: kept.setdefault(name, array)


# inside a layer, where no hook may replace them
GATES = ("reset_gate", "update_gate", "candidate", "input_gate", "forget_gate", "output_gate", "cell")


def forward(model, inputs, hook):
    """The logits of a forward pass whose intermediates a hook may replace."""
    memory = memory_mask = states = None
    for stack, one in inputs.items():
        context = Context(one.mask, memory, memory_mask, source_states=states, hook=hook)
        memory = run(model, model.config.plan(stack), one.x, context)
        memory_mask, states = one.mask, context.last_states()
    return head_logits(model, memory, hook, one.mask)


@CASES
@pytest.mark.slow
@given(st.data(), st.integers(0, 2**32 - 1))
def test_gradients_of_intermediates_are_slopes(directions, data, seed):
    model, inputs, _, rng = draw_case(data, seed)
    kept, gradients = {}, {}
    logits, recorded = run_model(model, inputs, hook=reading(kept))
    np.testing.assert_allclose(forward(model, inputs, no_hook), logits, rtol=0, atol=1e-12)
    dy = rng.standard_normal(logits.shape)
    model_backward(model, recorded, dy, hook=reading(gradients))
    missing = {name for name in set(kept) - set(gradients) if name.rpartition(".")[2] not in GATES}
    assert set(gradients) <= set(kept)
    is_apart = model.config.encoder and {model.config.decoding.score, model.config.decoding.bridge} == {"none"}
    assert not missing or (is_apart and all(name.startswith("encoder.") for name in missing))

    starts = {name: np.where(np.isfinite(array), array, 0) for name, array in kept.items()}

    def loss(arrays):
        changes = {name: np.where(np.isfinite(kept[name]), array - starts[name], 0) for name, array in arrays.items()}
        hook = {name: lambda x, change=change: x + change for name, change in changes.items()}.get
        return float(np.vdot(dy, forward(model, inputs, hook)))

    directions(loss, starts, gradients, rng, together=8)
