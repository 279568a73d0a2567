"""Gradients by the engine JAX are those of NumPy: of parameters, intermediates, memories and inputs."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from attnkit import model
from attnkit.backends.jax.engine import JaxEngine
from attnkit.model.backward.tape import Reverse
from attnkit.model.backward.tied import cast_parameters, sum_tied
from attnkit.model.passes.model_gradients import head_backward, memory_gradient, pool_first_backward
from attnkit.model.passes.recorded_pass import run_backward, run_recorded
from tests.registry import load_core, make_batch, shallow

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")
NAMES = ["bert-sequence", "deberta-v2", "t5", "vit", "gpt_oss", "deepseek_v3", "lfm2-biases", "lstm", "recurrent/luong"]


def gradients(core, batch, outer=None):
    """Gradients of a random sum of the logits, or of the last states, by name; of a padded batch."""
    collected, config, reverse, fields, tapes = {}, core.config, Reverse(), {}, []

    def hook(name):
        def visit(gradient):
            collected[name] = gradient + outer[name] if outer and name in outer else gradient
            return collected[name]

        return visit

    reverse.hook = hook
    for stack in config.stacks:
        mask = batch.padding(stack, config)
        padding = None if mask is None or mask.all() else mask[:, None]
        positions = None if padding is None else model.token_positions(mask)
        context = model.Context(dtype="float64", mask=padding, positions=positions, segment_ids=batch.types, **fields)
        first = batch.first(stack, config)
        first = first.astype(np.float64) if first.dtype.kind == "f" else first
        x, tape = run_recorded(core, config.plan(stack), first, context)
        tapes.append(tape)
        fields = {"memory": x, "memory_mask": padding, "source_states": context.last_states()}
    if config.head:
        logits = model.head_logits(core, x, mask=padding)
        slope = np.random.default_rng(1).standard_normal(logits.shape)
        dx = head_backward(core, x, slope, reverse, padding)
    else:
        dx = np.random.default_rng(1).standard_normal(x.shape)
    if config.pooler and not config.is_head_pooled:
        dx = dx + pool_first_backward(core, x, np.ones((len(x), config.width)), reverse)
    for tape in reversed(tapes):
        if dx is not None:
            reverse.memory = None
            collected[f"input {len(tapes)}"] = run_backward(core, tape, dx, reverse)
            dx = memory_gradient(tape.context, reverse)
    sums = sum_tied(reverse.gradients, core.params)
    return collected, {f"{layer}.{name}": one for layer, parts in sums.items() for name, one in parts.items()}


def wide_core(name):
    core = shallow(load_core(name))
    return core._replace(params=cast_parameters({layer: core.params[layer] for layer in core.params}, np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_numpy(name):
    known = wide_core(name)
    batch = make_batch(known.config)
    theirs, ours = gradients(known, batch), gradients(known._replace(engine=JaxEngine()), batch)
    for found, expected in zip(ours, theirs, strict=True):
        assert {*expected} == {*found}, name
        for key, array in expected.items():
            limit = 1e-10 * max(np.abs(array).max(initial=0), 1e-3)
            np.testing.assert_allclose(found[key], array, rtol=0, atol=limit, err_msg=key)
