"""Whole models give the numbers of their reference implementations, frozen by tests/references/make_models.py."""

from functools import cache

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from tests.places import MODELS, frozen
from tests.registry import CAUSAL, TRANSLATORS

DTYPES = {"f32": "float32", "f64": "float64"}
LONG = ("llama3", "llama-linear", "llama-dynamic", "llama-yarn", "mistral", "qwen2")  # with a reference of a long text
# families whose reference computes parts in float32 always
INSIDE_FLOAT32 = ("t5", "mt5", "llama", "mistral", "qwen2", "vit", "modernbert", "deberta")


@cache
def core(name):
    return layers.core_model(open_checkpoint(str(MODELS / name)))


def close(ours, given, key, name, dtype, real=...):
    """Ours is what the reference computes in float64: to 1e-10 of its largest number in float64, in float32 to 1e-6.

    Random weights amplify rounding: where the reference's own float32 is further from its float64 than half of
    that, ours may be twice as far as it.
    """
    theirs = given[f"{key}.f64"]
    assert ours.dtype == DTYPES[dtype] and ours.shape == theirs.shape
    scale = max(1, np.abs(theirs[real]).max())
    limit = 1e-5 if name.startswith(INSIDE_FLOAT32) else {"f32": 1e-6, "f64": 1e-10}[dtype]
    if dtype == "f32":
        limit = max(limit, 2 * np.abs(given[f"{key}.f32"] - theirs)[real].max() / scale)
    np.testing.assert_allclose(ours[real], theirs[real], rtol=0, atol=limit * scale)


def hidden(stack, count):
    """The names of hidden states: the embeddings, and what leaves each layer."""

    def name_of(config, number):
        if number < 0:
            steps = [step.layer for step in config.plan(stack) if model.parse_layer_name(step.layer)[1] is None]
            return [name for name in steps if name != f"{stack}.norm"][-1]
        last = model.layer_steps(config, stack, number)[-1]
        return f"{last.layer}.residual" if config.norm_first else last.layer

    return lambda config: [name_of(config, number) for number in range(-1, count)]


def ran(name, stack, inputs, dtype, **known):
    """The last hidden states of a stack, and every intermediate by name."""
    kept = {}

    def visit(name):
        return lambda array: kept.setdefault(name, array)

    context = model.Context(hook=visit, dtype=DTYPES[dtype], **known)
    return model.run(core(name), core(name).config.plan(stack), inputs, context), kept


def states(name, stack, kept, last):
    """The hidden states as the reference lists them: its last is after the final norm, where there is one."""
    config = core(name).config
    names = hidden(stack, config.stack(stack).layers)(config)
    found = [kept[one] for one in names]
    return [*found[:-1], last] if config.stack(stack).final_norm and not config.patches else found


def words(name, x):
    """The logits of words; the start of a native Marian model, which has a row of its own, is not one."""
    config, logits = core(name).config, model.head_logits(core(name), x)
    return logits[..., :-1] if config.special.start == logits.shape[-1] - 1 and name == "marian-native" else logits


def padding(mask):
    return mask[:, None].astype(bool), model.token_positions(mask.astype(bool))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CAUSAL)
def test_decoder_only_models(name, dtype):
    given = frozen(name)
    x, kept = ran(name, "decoder", given["ids"], dtype)
    for number, state in enumerate(states(name, "decoder", kept, x)):
        close(state, given, f"hidden.{number}", name, dtype)
    close(model.head_logits(core(name), x), given, "logits", name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LONG)
def test_texts_as_long_as_scaled_rotations_and_windows_matter(name, dtype):
    given = frozen(name)
    x, _ = ran(name, "decoder", given["long_ids"], dtype)
    close(model.head_logits(core(name), x), given, "long.logits", name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_beyond_the_exact_buckets_of_t5(dtype):
    given = frozen("t5")
    memory, _ = ran("t5", "encoder", given["long_ids"], dtype)
    close(memory, given, "long.memory", "t5", dtype)
    x, _ = ran("t5", "decoder", given["long_ids"], dtype, memory=memory)
    close(words("t5", x), given, "long.logits", "t5", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["batch", "left"])
@pytest.mark.parametrize("name", CAUSAL)
def test_padded_batches_of_decoder_only_models(name, side, dtype):
    given = frozen(name)
    mask, positions = padding(given[f"{side}_mask"])
    x, _ = ran(name, "decoder", given[f"{side}_ids"], dtype, mask=mask, positions=positions)
    close(model.head_logits(core(name), x), given, f"{side}.logits", name, dtype, mask[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["bert-mlm", "bert-old"])
def test_masked_word_prediction(name, dtype):
    given = frozen("bert-mlm")
    x, kept = ran(name, "encoder", given["ids"], dtype)
    for number, state in enumerate(states(name, "encoder", kept, x)):
        close(state, given, f"hidden.{number}", name, dtype)
    close(model.head_logits(core(name), x), given, "logits", name, dtype)
    mask, positions = padding(given["batch_mask"])
    x, _ = ran(name, "encoder", given["batch_ids"], dtype, mask=mask, positions=positions)
    close(model.head_logits(core(name), x), given, "batch.logits", name, dtype, mask[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bert_with_segments_and_pooler(dtype):
    given = frozen("bert")
    x, kept = ran("bert", "encoder", given["ids"], dtype, segment_ids=given["types"])
    for number, state in enumerate(states("bert", "encoder", kept, x)):
        close(state, given, f"hidden.{number}", "bert", dtype)
    for number in range(2):
        close(kept[f"encoder.{number}.self.weights"], given, f"attentions.{number}", "bert", dtype)
    close(model.pool_first(core("bert"), x), given, "pooled", "bert", dtype)
    mask, positions = padding(given["batch_mask"])
    x, _ = ran("bert", "encoder", given["batch_ids"], dtype, mask=mask, positions=positions)
    close(x, given, "batch.hidden.2", "bert", dtype, mask[:, 0])
    close(model.pool_first(core("bert"), x), given, "batch.pooled", "bert", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRANSLATORS)
def test_encoder_decoder_models(name, dtype):
    given = frozen(name)
    config = core(name).config
    memory, kept = ran(name, "encoder", given["ids"], dtype)
    for number, state in enumerate(states(name, "encoder", kept, memory)):
        close(state, given, f"encoder.hidden.{number}", name, dtype)
    ids = given["start.decoder_ids" if name == "marian-native" else "decoder_ids"]
    x, kept = ran(name, "decoder", np.where(ids < 0, config.special.start, ids), dtype, memory=memory)
    for number, state in enumerate(states(name, "decoder", kept, x)):
        close(state, given, f"decoder.hidden.{number}", name, dtype)
    close(words(name, x), given, "logits", name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRANSLATORS)
def test_padded_batches_of_encoder_decoder_models(name, dtype):
    given = frozen(name)
    mask, positions = padding(given["batch_mask"])
    memory, _ = ran(name, "encoder", given["batch_ids"], dtype, mask=mask, positions=positions)
    close(memory, given, "batch.memory", name, dtype, mask[:, 0])
    ids = np.where(given["batch_decoder_ids"] < 0, core(name).config.special.start, given["batch_decoder_ids"])
    x, _ = ran(name, "decoder", ids, dtype, memory=memory, memory_mask=mask)
    close(words(name, x), given, "batch.logits", name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vit(dtype):
    given = frozen("vit")
    for image, place, count in (("pixels", "", 3), ("wide.pixels", "wide.", 1)):
        x, kept = ran("vit", "encoder", given[image], dtype)
        for number, state in enumerate(states("vit", "encoder", kept, x)[:count]):
            close(state, given, f"{place}hidden.{number}", "vit", dtype)
        close(model.head_logits(core("vit"), x), given, f"{place}logits", "vit", dtype)
        if not place:
            close(x, given, "normed", "vit", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["transformer", "transformer-prenorm"])
def test_the_original_transformer(name, dtype):
    given = frozen(name)
    real = given["padding"][:, None].astype(bool)
    x, tgt = given["x"].astype(DTYPES[dtype]), given["tgt"].astype(DTYPES[dtype])
    for place, known, cross in (("", {}, {}), ("padded.", {"mask": real}, {"memory_mask": real})):
        memory, _ = ran(name, "encoder", x, dtype, **known)
        close(memory, given, f"{place}memory", name, dtype, real[:, 0] if place else ...)
        y, _ = ran(name, "decoder", tgt, dtype, memory=memory, **cross)
        close(y, given, f"{place}y", name, dtype)
