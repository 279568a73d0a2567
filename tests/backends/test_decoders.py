"""Decoders of today on the engine JAX: the states, logits and tokens of NumPy, whole and with a cache."""

from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from attnkit import model
from attnkit.backends.jax.engine import JaxEngine
from tests.generation.test_decoders import SINGLE, assert_near, frozen, logits, opened  # noqa: F401 (a fixture)

NAMES = ["qwen3-window", "gemma2", "gemma3", "olmo", "olmo3", "smollm3-window", "granite", "phi-norms", "phi3-long",
         "cohere-norms", "cohere2", "stablelm-parallel", "gpt_neo", "gptj", "falcon-rw", "opt-350m",
         "gpt_oss", "qwen2_moe", "deepseek_v3", "deepseek_v2-greedy"]  # fmt: skip
# the layers up to the first of each kind; of other models two, which compute what the rest do
DEPTHS = {"qwen3-window": 3, "gemma3": 3, "cohere2": 4, "olmo3": 4, "deepseek_v3": 3}


@pytest.fixture(scope="module")
def engine():
    return JaxEngine()


def both(checkpoint, name, engine):
    """The first layers of a model by NumPy, and by JAX."""
    stack, depth = checkpoint.config.decoder, DEPTHS.get(name, 2)
    config = replace(checkpoint.config, decoder=replace(stack, layers=depth, windows=stack.windows[:depth]))
    return model.Model(config, checkpoint.params), model.Model(config, checkpoint.params, engine)


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_computes_what_numpy_does(opened, engine, name):  # noqa: F811
    known, ours = both(opened(name, np.float32), name, engine)
    ids, batch, mask = frozen(name, "long.ids"), frozen(name, "batch.ids"), frozen(name, "batch.mask")
    steps, real = known.config.plan("decoder"), mask[:, None].astype(bool)
    x = model.run(ours, steps, ids, model.Context())
    assert_near(model.head_logits(ours, x), logits(known, ids), 2 * SINGLE)
    context = model.Context(mask=real, positions=model.token_positions(real))
    x = model.run(ours, steps, batch, context)
    assert_near(model.head_logits(ours, x[:, -3:]), logits(known, batch, mask)[:, -3:], 2 * SINGLE)
    decoder = engine.decoder(ours, None)
    rows = [decoder(ids[:, :14]), *(decoder(ids[:, at : at + 1]) for at in range(14, 20))]
    assert_near(rows[-1], logits(known, ids[:, :20])[:, -1], 2 * SINGLE)


@pytest.mark.parametrize("name", ["gemma3", "olmo", "granite", "stablelm-parallel", "gpt_oss", "deepseek_v3"])
def test_hooks_see_the_intermediates_of_numpy(opened, engine, name):  # noqa: F811
    seen = []
    for one in both(opened(name, np.float32), name, engine):
        found = {}

        def hook(where, found=found):
            return lambda x: found.setdefault(where, x)

        model.run(one, one.config.plan("decoder"), frozen(name, "ids"), model.Context(hook=hook))
        seen.append(found)
    names = [where for where in seen[0] if not where.endswith((".lse", ".present_key", ".present_value"))]
    assert names == [*seen[1]]
    for where in names:
        ours, theirs = (np.where(np.isfinite(one[where]), one[where], 0) for one in seen)
        assert_near(theirs, ours, 5 * SINGLE)
