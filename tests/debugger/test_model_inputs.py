"""What the model reads, as a dump has it: token ids, masks, lengths, segments, images and sounds."""

import numpy as np
import pytest

from attnkit.debugger.compare import make_sound
from attnkit.debugger.dumps import Dump, array_entry
from attnkit.debugger.model_inputs import read_model_inputs
from attnkit.debugger.names import locate_sites
from attnkit.errors import AttnkitError, DataError
from attnkit.records import Record
from tests.registry import load_core, open_model

IDS = np.array([[5, 6, 7], [8, 9, 0]])
REAL = [[True, True, True], [True, True, False]]


def read(name, ids=None, **arrays):
    """The inputs of a model from a dump of these arrays, and how its ids differ from others."""
    dump = Dump("mine.npz", {key: array_entry(np.array(one)) for key, one in arrays.items()}, True)
    return read_model_inputs(load_core(name), dump, locate_sites([*dump], open_model(name)), ids)


@pytest.mark.parametrize(
    ("arrays", "mask"),
    [
        ({}, None),
        ({"attention_mask": np.array(REAL)}, REAL),
        ({"mask": np.array(REAL).astype(np.int64)}, REAL),
        ({"attention_mask": np.array(REAL).astype(float)}, REAL),
        ({"lengths": [3, 2]}, REAL),
        ({"attention_mask": np.ones((2, 3)), "lengths": [3, 2]}, [[True] * 3] * 2),
        ({"attention_mask": np.ones((3, 3))}, None),  # of queries and keys
        ({"encoder.attention_mask": np.ones((2, 1, 3, 3))}, None),
    ],
)
def test_padding_is_stated_by_a_mask_or_lengths(arrays, mask):
    inputs, difference = read("bert", input_ids=IDS, **arrays)
    assert inputs.ids.tolist() == IDS.tolist() and difference == ""
    assert (inputs.mask if inputs.mask is None else inputs.mask.tolist()) == mask


def test_a_square_mask_of_as_many_texts_as_tokens_is_of_padding():
    inputs, _ = read("bert", input_ids=[[5, 6], [7, 0]], attention_mask=[[1, 1], [1, 0]])
    assert inputs.mask.tolist() == [[True, True], [True, False]]


def test_one_text_is_a_row():
    inputs, _ = read("bert", input_ids=[5, 6, 7], attention_mask=[1, 1, 0], token_type_ids=[0, 0, 1])
    assert inputs.ids.tolist() == [[5, 6, 7]] and inputs.mask.tolist() == [[True, True, False]]
    assert inputs.types.tolist() == [[0, 0, 1]]
    assert read("bert", input_ids=[5])[0].types is None
    assert read("distilbert", input_ids=[5], token_type_ids=[0])[0].types is None, "which it has not"


def test_ids_that_are_given_are_compared_or_read():
    assert read("bert", np.array([5, 6, 7]), input_ids=[[5, 6, 7]])[1] == ""
    assert read("bert", np.array([5, 6, 8]), input_ids=[[5, 6, 7]])[1] != ""
    assert read("bert", np.array([5, 6]), x=[0.5])[0].ids.tolist() == [[5, 6]]


def test_a_decoder_has_ids_and_a_mask_of_its_own():
    target = {"decoder_input_ids": [[0, 5], [0, 6]]}
    inputs, _ = read("t5", input_ids=IDS, attention_mask=REAL, **target, decoder_attention_mask=[[1, 1], [1, 0]])
    assert inputs.target.tolist() == target["decoder_input_ids"]
    assert inputs.mask.tolist() == REAL and inputs.target_mask.tolist() == [[True, True], [True, False]]
    inputs, _ = read("t5", input_ids=IDS, **target, target_lengths=[1, 2])
    assert inputs.mask is None and inputs.target_mask.tolist() == [[True, False], [True, True]]
    inputs, _ = read("t5", input_ids=IDS, lengths=[3, 2])
    assert inputs.target is inputs.target_mask is None and inputs.mask.tolist() == REAL


@pytest.mark.parametrize(
    ("name", "arrays", "problem"),
    [
        ("bert", {"input_ids": IDS, "mask": 2 * np.ones((2, 3))}, "tensor 'mask': numbers other than 1"),
        ("bert", {"input_ids": IDS, "mask": np.ones((1, 3))}, r"tensor 'mask': shape \(1, 3\) \(expected .*\(2, 3\)\)"),
        ("bert", {"input_ids": IDS, "mask": [[1, 1, 1], [0, 0, 0]]}, "tensor 'mask': a text of padding alone"),
        ("bert", {"input_ids": IDS, "lengths": [3]}, r"tensor 'lengths': shape \(1,\) \(expected .* each of 2 texts\)"),
        ("bert", {"input_ids": IDS, "lengths": [3, 0]}, "tensor 'lengths': a text of padding alone"),
        ("bert", {"input_ids": IDS, "lengths": [3, 4]}, "tensor 'lengths': .*4"),
        ("bert", {"input_ids": IDS, "token_type_ids": [0, 1]}, r"tensor 'token_type_ids': shape \(2,\)"),
        ("bert", {"input_ids": IDS, "token_type_ids": 9 * np.ones((2, 3), int)}, "tensor 'token_type_ids': .*9"),
        ("bert", {"input_ids": np.zeros((1, 0), int)}, r"tensor 'input_ids': no token ids in shape \(1, 0\)"),
        ("bert", {"input_ids": [[10**6]]}, "tensor 'input_ids': "),
        ("bert", {"input_ids": np.zeros((1, 10**4), int)}, "tensor 'input_ids': "),
        ("t5", {"input_ids": IDS, "decoder_input_ids": [[0, 5]]}, r"1 texts of the decoder \(expected 2"),
        ("gpt2", {"input_ids": [[5]], "position_ids": [[3]]}, "a pass over new tokens with a KV cache"),
        ("gpt2", {"input_ids": [[5]], "attention_mask": [[1, 1]]}, "a pass over new tokens with a KV cache"),
        ("gpt2", {"x": [0.5]}, "mine.npz has no token ids"),
        ("vit", {"x": [0.5]}, "no pixel_values in it"),
        ("vit", {"pixel_values": np.zeros((1, 4, 8, 8))}, r"tensor 'pixel_values': shape \(1, 4, 8, 8\) \(expected"),
        ("vit", {"pixel_values": np.zeros((1, 3, 1, 8))}, r"tensor 'pixel_values': shape \(1, 3, 1, 8\) \(expected"),
        ("vit", {"pixel_values": np.zeros((0, 3, 8, 8))}, r"tensor 'pixel_values': shape \(0, 3, 8, 8\) \(expected"),
        ("inputs/whisper", {"x": [0.5]}, "no input_features in it"),
        ("inputs/wav2vec2", {"x": [0.5]}, "no input_values in it"),
        ("inputs/whisper", {"input_features": np.zeros((1, 3, 6))}, r"\(expected \(sounds, 16, frames\), at most"),
        ("inputs/wav2vec2", {"input_values": np.zeros((1, 2))}, r"\(expected \(sounds, samples\), \d+ or more\)"),
        ("inputs/wav2vec2", {"input_values": np.zeros((1, 2, 3))}, r"\(expected \(sounds, samples\), \d+ or more\)"),
    ],
)  # fmt: skip
def test_inputs_that_no_model_reads_are_one_error(name, arrays, problem):
    with pytest.raises(AttnkitError, match=problem):
        read(name, **arrays)


def test_a_first_token_may_be_at_a_place_after_the_padding():
    """RoBERTa counts from 2; and many tokens at once are no step of generation."""
    assert read("gpt2", input_ids=[[5]], position_ids=[[2]])[0].ids.tolist() == [[5]]
    assert read("gpt2", input_ids=[[5, 6]], position_ids=[[3, 4]])[0].ids.tolist() == [[5, 6]]
    assert read("gpt2", input_ids=[[5, 6]], attention_mask=[[1, 1]])[0].mask.tolist() == [[True, True]]


def test_images_and_spectrograms_have_their_channels_in_either_place():
    cut, heard = load_core("vit").config.patches, load_core("inputs/whisper").config.sound
    image = np.arange(2.0 * 3 * cut.height * cut.width).reshape(2, 3, cut.height, cut.width)
    for given in (image, np.moveaxis(image, 1, -1)):
        np.testing.assert_array_equal(read("vit", pixel_values=given)[0].image, image)
    mels = heard.spectrogram.mels
    features = np.arange(2.0 * 6 * mels).reshape(2, 6, mels)
    for given in (features, features.swapaxes(1, 2)):
        inputs, _ = read("inputs/whisper", input_features=given, decoder_input_ids=[[5, 6], [7, 8]],
                         decoder_attention_mask=[[1, 1], [1, 0]])  # fmt: skip
        np.testing.assert_array_equal(inputs.features, features)
        assert inputs.target_mask.tolist() == [[True, True], [True, False]] and inputs.mask is None
    with pytest.raises(DataError, match=r"1 texts of the decoder \(expected one for each sound"):
        read("inputs/whisper", input_features=features, decoder_input_ids=[[5, 6]])


def test_a_mask_of_samples_is_that_of_the_states_that_are_made_of_them():
    heard = load_core("inputs/wav2vec2").config.sound
    size = heard.frames_before("", 5)
    mask = np.arange(size) < np.array([[size], [heard.frames_before("", 2)]])
    inputs, _ = read("inputs/wav2vec2", input_values=np.zeros((2, size)), attention_mask=mask)
    assert inputs.mask.sum(axis=-1).tolist() == [5, 2] and inputs.mask[1].tolist() == [True] * 2 + [False] * 3
    assert read("inputs/wav2vec2", input_values=np.zeros((2, size)))[0].mask is None
    short = np.arange(size) < np.array([[size], [heard.frames_before("", 1) - 1]])
    with pytest.raises(DataError, match=r"a sound of .* without its padding"):
        read("inputs/wav2vec2", input_values=np.zeros((2, size)), attention_mask=short)


@pytest.mark.parametrize("name", ["inputs/whisper", "inputs/wav2vec2"])
def test_a_sound_has_at_least_one_frame(name):
    checkpoint = open_model(name)
    heard = checkpoint.config.sound
    least = heard.spectrogram.hop if heard.spectrogram else heard.frames_before("", 1)
    assert make_sound(checkpoint, heard, Record({"x": np.ones(least)})).samples.tolist() == [1.0] * least
    for wrong in (np.ones(least - 1), np.ones((2, least))):
        with pytest.raises(DataError, match=f"the samples of a sound, {least} or more"):
            make_sound(checkpoint, heard, Record({"x": wrong}))
