"""The fast way through one token gives what the plain way gives."""

from dataclasses import replace

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from tests.places import MODELS

NAMES = ("gpt2", "gpt2-scaled", "openai-gpt", "llama", "llama3", "llama-yarn", "mistral", "qwen2", "t5", "t5-gated",
         "marian", "marian-native")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_one_token_of_several_texts_is_the_run_of_one_token(name):
    rows = 3
    core = layers.core_model(open_checkpoint(str(MODELS / name)))
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 40, (rows, 12))
    memory = rng.standard_normal((rows, 5, core.config.width)).astype(np.float32) if core.config.encoder else None
    lean, calls = model.CachedDecoder(core, memory=memory), []
    plain = model.CachedDecoder(core, memory=memory, hook=lambda name: calls.append(name))
    for start, end in [(0, 3), *((at, at + 1) for at in range(3, 12))]:
        a, b = lean(ids[:, start:end]), plain(ids[:, start:end])
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, np.abs(b[np.isfinite(b)]).max()))
    assert lean._layers is not None and plain._layers is None and calls
    for (layer, ours), (other, theirs) in zip(lean.cache, plain.cache, strict=True):
        assert layer == other
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * max(1, np.abs(y).max()))


def test_a_token_passes_operations_that_have_no_compiled_step():
    """The factors of LayerScale, which decoders do not publish, are computed by the kernel of their group."""
    core, rng = layers.core_model(open_checkpoint(str(MODELS / "gpt2"))), np.random.default_rng(0)
    config = replace(core.config, layer_scale=True)
    scales = {step.layer: {"w": rng.standard_normal(config.width).astype(np.float32)}
              for step in config.plan("decoder") if step.op == "linear"}  # fmt: skip
    assert len(scales) == 2 * config.decoder.layers
    core = core._replace(config=config, params={**core.params, **scales})
    lean, ids = model.CachedDecoder(core), rng.integers(1, 40, (2, 6))
    found = [lean(ids[:, :3]), *(lean(ids[:, at : at + 1]) for at in range(3, 6))]
    assert lean._layers is not None
    expected = model.head_logits(core, model.run(core, config.plan("decoder"), ids, model.Context()))
    np.testing.assert_allclose(found, expected[:, 2:].swapaxes(0, 1), rtol=0, atol=1e-5 * np.abs(expected).max())


def test_weights_laid_anew_for_long_texts_say_the_same():
    plain, long = open_checkpoint(str(MODELS / "gpt2")), open_checkpoint(str(MODELS / "gpt2"))
    layers.prepare_decoding(long, layers.LONG - 1)
    assert long.params["decoder.0.ffn"]["w2"].flags.c_contiguous
    layers.prepare_decoding(long, layers.LONG)
    laid = long.params["decoder.0.ffn"]["w2"]
    assert laid.flags.f_contiguous and not laid.flags.c_contiguous
    assert np.array_equal(laid, plain.params["decoder.0.ffn"]["w2"])
    layers.prepare_decoding(long, layers.LONG)
    assert long.params["decoder.0.ffn"]["w2"] is laid  # once for all texts
    texts = [
        model.generate(model.CachedDecoder(layers.core_model(one)), np.arange(1, 4), model.SamplingConfig(limit=20)).ids
        for one in (plain, long)
    ]
    assert texts[0] == texts[1]


def test_weights_that_lie_by_columns_stay_where_they_are():
    checkpoint = open_checkpoint(str(MODELS / "llama"))
    before = checkpoint.params["decoder.0.ffn"]["w2"]
    layers.prepare_decoding(checkpoint, layers.LONG)
    assert checkpoint.params["decoder.0.ffn"]["w2"] is before


def test_a_cache_has_the_tokens_that_every_layer_of_self_attention_has():
    cache = model.KVCache()
    assert cache.length == 0
    for layer, tokens in (("decoder.0.self", 3), ("decoder.0.cross", 1), ("decoder.1.self", 2)):
        cache.append(layer, np.ones((1, tokens, 4)), np.zeros((1, tokens, 5)))
    assert cache.length == 2
    keys, values, past = cache.append("decoder.0.self", np.full((1, 80, 4), 2.0), np.ones((1, 80, 5)))
    assert (keys.shape, values.shape, past) == ((1, 83, 4), (1, 83, 5), 3)
    assert keys[0, :, 0].tolist() == [1.0] * 3 + [2.0] * 80 and values[0, :, 0].tolist() == [0.0] * 3 + [1.0] * 80
