"""Layers are the calls they are made of; test_frozen_references.py compares them with PyTorch."""

from dataclasses import replace

import numpy as np
import pytest

from attnkit import model
from attnkit.model import decoder_layer, encoder_layer, feed_forward, l2_normalize, layer_norm, multi_head_attention

RNG = np.random.default_rng(0)
X, MEMORY = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 5, 4))
ATTEND = {name: RNG.standard_normal((4, 4)) for name in ("wq", "wk", "wv", "wo")}
FFN = {"w1": RNG.standard_normal((4, 6)), "w2": RNG.standard_normal((6, 4))}
PARAMS = {"self": ATTEND, "cross": ATTEND, "ffn": FFN, "norm1": {"gamma": np.full(4, 2.0)}}


def test_an_encoder_layer_is_its_calls():
    y = layer_norm(X + multi_head_attention(X, X, X, ATTEND, heads=2)["output"], np.full(4, 2.0)).y
    y = layer_norm(y + feed_forward(y, FFN)["output"]).y
    np.testing.assert_array_equal(encoder_layer(X, PARAMS, heads=2), y)


def test_masks_reach_their_attention():
    first = np.array([[True, True, False]])
    y = encoder_layer(X, PARAMS, heads=2, mask=first)[:, :2]
    np.testing.assert_allclose(y, encoder_layer(X[:, :2], PARAMS, heads=2))
    some = np.array([True, True, True, False, False])
    y = decoder_layer(X, MEMORY, PARAMS, heads=2, memory_mask=some)
    np.testing.assert_allclose(y, decoder_layer(X, MEMORY[:, :3], PARAMS, heads=2))


def test_a_decoder_layer_does_not_look_ahead():
    y = decoder_layer(X, MEMORY, PARAMS, heads=2)
    changed = X.copy()
    changed[:, 2] += 1
    np.testing.assert_array_equal(decoder_layer(changed, MEMORY, PARAMS, heads=2)[:, :2], y[:, :2])
    assert not np.allclose(decoder_layer(changed, MEMORY, PARAMS, heads=2, causal=False)[:, :2], y[:, :2])


def test_causal_encoder_layer_is_a_decoder_only_block():
    y = encoder_layer(X, PARAMS, heads=2, causal=True, norm_first=True)
    np.testing.assert_allclose(y[:, :2], encoder_layer(X[:, :2], PARAMS, heads=2, causal=True, norm_first=True))


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_vectors_of_any_length_become_units(factor):
    np.testing.assert_allclose(l2_normalize(np.array([[3.0, 4.0], [0.0, 0.0]]) * factor), [[0.6, 0.8], [0, 0]])
    x = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    plain = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    np.testing.assert_array_equal(l2_normalize(x), plain)


@pytest.mark.parametrize("lead", [(2,), (2, 3), (2, 1, 2)])
def test_layers_read_any_number_of_batch_axes(lead):
    """Also two, with which x has the rank of heads that are split."""
    rng = np.random.default_rng(0)
    x, square = rng.normal(size=(*lead, 3, 4)), rng.normal(size=(2, 4, 4, 4))
    attend = [dict(zip(("wq", "wk", "wv", "wo"), weights, strict=True)) for weights in square]
    params = {"self": attend[0], "cross": attend[1], "ffn": {"w1": square[0, 0], "w2": square[0, 1]}}
    mask = rng.random((*lead, 1, 3)) < 0.8
    texts = [(x[at], mask[at]) for at in np.ndindex(*lead)]
    encoded = [encoder_layer(text, params, heads=2, mask=own) for text, own in texts]
    assert np.allclose(encoder_layer(x, params, heads=2, mask=mask).reshape(-1, 3, 4), encoded)
    decoded = [decoder_layer(text, text, params, heads=2, memory_mask=own) for text, own in texts]
    assert np.allclose(decoder_layer(x, x, params, heads=2, memory_mask=mask).reshape(-1, 3, 4), decoded)


def test_factors_of_a_sublayer_are_those_of_what_it_reads_and_of_its_result():
    """relu has them outside too: with a on what it reads and b on its result, the branch is a b times as large."""
    rng = np.random.default_rng(0)
    x, w1, w2 = rng.standard_normal((3, 4)), rng.standard_normal((4, 6)), rng.standard_normal((6, 4))
    stack = model.StackConfig(layers=1, heads=1, hidden=6, kv_heads=1, head_dim=4)
    params = {"encoder.0.ffn": {"w1": w1, "w2": w2}}
    config = model.Config("", 4, encoder=stack, norm_first=True, residual_scale=0.5)
    steps, scaled = (
        model.layer_steps(one, "encoder", 0)[2:] for one in (config, replace(config, factors={"ffn": (3.0, 2.0)}))
    )
    plain, changed = (model.run(model.Model(config, params), one, x, model.Context()) for one in (steps, scaled))
    np.testing.assert_allclose(changed - x, 6 * (plain - x))


def test_a_layer_without_a_network_has_a_norm_and_attention_alone():
    stack = model.StackConfig(layers=1, heads=1, hidden=0, kv_heads=1, head_dim=4, networks=False)
    steps = model.layer_steps(model.Config("", 4, decoder=stack, norm_first=True), "decoder", 0)
    assert [step.layer for step in steps] == ["decoder.0.norm1", "decoder.0.self"]
