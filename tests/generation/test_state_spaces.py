"""Models with state spaces: texts of any length, padding, and continuations as transformers computes them.

What the numbers are, and how they were made: tests/references/make_state_spaces.py.
"""

import functools

import numpy as np
import pytest

from attnkit import model
from tests.drawing import drawn_models
from tests.generation.frozen_states import LENGTHS, Frozen
from tests.registry import load_core

TABLE = drawn_models("state_spaces")
frozen = Frozen("state_spaces")
CUTS = ((1, 7, 8, 9, 41), (3, 4, 20, 41), (40, 41))  # of a text, beside the ends of chunks of 8


@functools.cache
def core(name):
    return load_core(name)


def logits(name, ids, mask=None, cache=None):
    """Logits of ids (B, T) in float64, of which a mask (B, T) says what is no padding."""
    mask = None if mask is None else mask[:, None].astype(bool)
    positions = None if mask is None else model.token_positions(mask)
    context = model.Context(mask=mask, positions=positions, dtype="float64", cache=cache)
    x = model.run(core(name), core(name).config.plan("decoder"), ids, context)
    return model.head_logits(core(name), x)


def assert_near(found, expected, tolerance=1e-10):
    assert np.abs(found - expected).max() <= tolerance * max(1, np.abs(expected).max())


@pytest.mark.parametrize("name", TABLE)
def test_texts_of_one_token_to_several_chunks(name):
    ids, expected = frozen(name, "texts"), frozen(name, "texts.logits.f64")
    for length, row in zip(LENGTHS, expected, strict=True):
        assert_near(logits(name, ids[:, :length])[0, -1], row)


@pytest.mark.parametrize("name", TABLE)
def test_padding_on_either_side_changes_no_token(name):
    """The bias of the convolution makes padding other than zero, so that it is masked after that once more."""
    for side in ("batch", "right"):
        ids, mask = frozen(name, f"{side}.ids"), frozen(name, f"{side}.mask").astype(bool)
        found = logits(name, ids, mask)
        for row, real in enumerate(mask):
            assert_near(found[row][real], logits(name, ids[row][real][None])[0])
    assert_near(found[np.arange(3), mask.sum(axis=1) - 1], frozen(name, "right.logits.f64"))


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("cuts", CUTS)
def test_a_text_in_several_passes_is_that_of_one_pass(name, cuts):
    ids = frozen(name, "long.ids")
    cache, start, parts = model.KVCache(), 0, []
    for end in cuts:
        parts.append(logits(name, ids[:, start:end], cache=cache))
        start = end
    assert_near(np.concatenate(parts, axis=1), logits(name, ids))


@pytest.mark.parametrize("name", TABLE)
def test_greedy_and_beams_write_the_same_tokens(name):
    prompt = frozen(name, "ids")[0].tolist()
    for kind, beams in (("greedy", 1), ("beam", 3)):
        text, expected = generate(name, prompt, beams), frozen(name, kind)[0].tolist()
        assert prompt + text == expected[: len(prompt) + len(text)]
        assert len(prompt) + len(text) == len(expected) or text[-1] in core(name).config.special.eos


# in transformers padding enters the convolution of these, whose projection has a bias
LEAKING = ("mamba2-limit", "granitemoehybrid-dense", "falcon_h1-norm")


@pytest.mark.parametrize("name", [name for name in TABLE if name not in LEAKING])
def test_texts_of_a_padded_batch_are_continued_as_alone(name):
    ids, mask = frozen(name, "batch.ids"), frozen(name, "batch.mask").astype(bool)
    for row, real, expected in zip(ids, mask, frozen(name, "batch.greedy"), strict=True):
        text = generate(name, row[real].tolist())
        assert text == expected[len(row) : len(row) + len(text)].tolist()


def generate(name, prompt, beams=1):
    decoder = model.CachedDecoder(core(name), dtype="float64")
    settings = model.SamplingConfig(limit=12, eos=core(name).config.special.eos)
    if beams == 1:
        return [int(token) for token in model.generate(decoder, prompt, settings).ids]
    return [int(token) for token in model.beam_search(decoder, prompt, settings, beams)[0].ids]
