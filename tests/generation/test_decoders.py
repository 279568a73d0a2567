"""Decoders of today: states, logits and generation as transformers computes them.

What the numbers are, and how they were made: tests/references/make_decoders.py.
"""

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from tests.drawing import drawn_models, write_model
from tests.places import arrays

TABLE = drawn_models()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens the model of a name in a dtype, once."""
    known = {}

    def open_one(name, dtype=np.float64):
        if (name, dtype) not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name, dtype] = open_checkpoint(str(write_model(name, folder, dtype)))
        return known[name, dtype]

    return open_one


def frozen(name, key):
    return arrays("decoders")[f"{name}/{key}"]


def core(checkpoint):
    return model.Model(checkpoint.config, checkpoint.params)


def logits(checkpoint, ids, mask=None):
    """Logits of ids (B, T) padded by a mask (B, T), in the dtype of the weights."""
    mask = None if mask is None else mask[:, None].astype(bool)
    positions = None if mask is None else model.token_positions(mask)
    dtype = str(checkpoint.params["decoder.embed"]["table"].dtype)
    context = model.Context(mask=mask, positions=positions, dtype=dtype)
    x = model.run(core(checkpoint), checkpoint.config.plan("decoder"), ids, context)
    return model.head_logits(core(checkpoint), x)


@pytest.mark.parametrize("name", TABLE)
def test_greedy_and_beams_write_the_same_tokens(opened, name):
    checkpoint, ids = opened(name), frozen(name, "ids")
    prompt = [int(token) for token in ids[0]]
    for kind, beams in (("greedy", 1), ("beam", 3)):
        text = generate(checkpoint, prompt, beams)
        expected = [int(token) for token in frozen(name, kind)[0]]
        assert prompt + text == expected[: len(prompt) + len(text)]
        assert len(prompt) + len(text) == len(expected) or text[-1] in checkpoint.config.special.eos


def generate(checkpoint, prompt, beams):
    decoder = model.CachedDecoder(core(checkpoint), dtype="float64")
    settings = model.SamplingConfig(limit=12, eos=checkpoint.config.special.eos)
    if beams == 1:
        return [int(token) for token in model.generate(decoder, prompt, settings).ids]
    return [int(token) for token in model.beam_search(decoder, prompt, settings, beams)[0].ids]
