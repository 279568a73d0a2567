"""Moonshine: states, logits and texts of a sound as transformers computes them.

What the numbers are, and how they were made: tests/references/make_moonshine.py.
"""

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError, UsageError
from attnkit.model.formulas.norms import group_norm
from attnkit.records import Record
from tests.drawing import assert_near, drawn_models, keep_folders, write_model
from tests.places import arrays
from tests.registry import load_core, open_model

ROW = drawn_models("moonshine")["moonshine"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "moonshine")("moonshine")


def sound():
    return Record({"x": arrays("moonshine")["moonshine/values"]})


@pytest.mark.parametrize("text", ROW["texts"])
def test_the_text_of_a_sound_is_that_of_transformers_token_for_token(place, text):
    asked = text["options"]
    options = {"beam": asked["num_beams"]} if "num_beams" in asked else {"no_repeat_ngram": 2}
    limits = {"max_tokens": len(text["ids"]), "min_tokens": len(text["ids"])}
    found = attnkit.decode(model=place, audio=sound(), emit="ids", dtype="float64", **options, **limits)
    assert found["x"].tolist() == text["ids"]


def test_the_states_of_a_sound_are_those_of_transformers(place):
    found = attnkit.encode(model=place, audio=sound(), dtype="float64")
    assert_near(found["x"], arrays("moonshine")["moonshine/memory.f64"][0], 1e-10)


def test_a_group_norm_is_over_all_frames_so_that_silence_changes_it():
    """Four numbers 1 1 5 5 have mean 3 and deviation 2; four zeros after them change both."""
    x = np.array([[1.0, 1.0], [5.0, 5.0]])
    np.testing.assert_allclose(group_norm(x, eps=1e-12), [[-1, -1], [1, 1]])
    longer = group_norm(np.concatenate([x, np.zeros((2, 2))]), eps=1e-12)
    assert not np.allclose(longer[:2], [[-1, -1], [1, 1]])
    np.testing.assert_allclose(longer.mean(), 0, atol=1e-12)


def test_the_gate_of_the_decoder_is_the_second_half_and_silu_and_the_encoder_has_none():
    config = load_core("moonshine").config
    assert config.activation_of("decoder.0.ffn") == "silu" and config.activation_of("encoder.0.ffn") == "gelu"
    opened = open_model("moonshine")
    stored = opened.tensors()["model.decoder.layers.0.mlp.fc1.weight"]
    assert stored[1] == (52, 24)
    fused = opened.tensor("model.decoder.layers.0.mlp.fc1.weight")
    np.testing.assert_array_equal(opened.params["decoder.0.ffn"]["w1"], fused[26:].T)
    np.testing.assert_array_equal(opened.params["decoder.0.ffn"]["w3"], fused[:26].T)
    assert "w3" not in opened.params["encoder.0.ffn"]


def test_nine_tenths_of_a_head_rotate_in_pairs():
    """Of 12 features ⌊10.8⌋ = 10; of 36, as Moonshine tiny has, 32, not 32.4."""
    rules = load_core("moonshine").config.attention_rules
    assert rules["encoder.0.self"].rotary_dim == 10 and rules["decoder.0.self"].interleaved
    assert rules["decoder.0.cross"].rotation == ""


def test_a_first_convolution_is_tanh_then_its_norm():
    core = load_core("moonshine")
    kept, x = {}, np.linspace(-1, 1, 127 + 64 * 40)
    hook = lambda name: lambda array: kept.setdefault(name, array)  # noqa: E731
    model.run(core, core.config.plan("encoder")[:1], x, model.Context(hook=hook))
    np.testing.assert_allclose(kept["encoder.conv1.activated"], np.tanh(kept["encoder.conv1.convolved"]), rtol=1e-6)
    assert core.config.sound.frames_after("conv1", len(x)) == 41
    # 64 · 3 · 2 samples a state, as 24.0 milliseconds at 16,000 a second
    assert core.config.sound.frames_after("", 16000) == 40


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"encoder_num_key_value_heads": 1}, "encoder_num_key_value_heads 1 is not supported .use 2."),
        ({"rope_parameters": {"partial_rotary_factor": 0.8}}, "partial_rotary_factor rotates 9 features of a head"),
        (
            {"encoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4},
            "heads of other widths in encoder and decoder",
        ),
    ],
)
def test_what_is_not_built_is_refused(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(write_model("moonshine", tmp_path, kind="moonshine", **changes)))


def test_it_has_no_times_and_no_languages(place):
    with pytest.raises(UsageError, match="the model has no tokens of times"):
        attnkit.decode(model=place, audio=sound(), timestamps=True)
    with pytest.raises(UsageError, match="the model has no language 'de'"):
        attnkit.decode(model=place, audio=sound(), language="de")


def test_sounds_at_once_have_the_text_of_each_alone(place):
    samples = sound()["x"]
    batch = np.stack([samples, np.zeros_like(samples)])
    batch[1, : len(samples) // 2] = samples[: len(samples) // 2]
    mask = np.ones(batch.shape, bool)
    mask[1, len(samples) // 2 :] = False
    options = {"model": place, "dtype": "float64", "max_tokens": 6, "min_tokens": 6, "emit": "logits"}
    both = attnkit.decode(audio=Record({"x": batch, "mask": mask}), **options)
    for row, one in zip(both["x"], (samples, samples[: len(samples) // 2]), strict=True):
        np.testing.assert_array_equal(row, attnkit.decode(audio=one, **options)["x"])
    with pytest.raises(DataError, match="x of rank 2, expected 1, the samples of a sound"):
        attnkit.encode(audio=batch, model=place)
