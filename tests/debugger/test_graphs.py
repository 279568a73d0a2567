"""What slips compute that no model does, by hand: spectrograms, kernels, cut projections, pixels and their noise."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.debugger.graphs import KERNELS, KINDS, LOGARITHMS, SCALES, WINDOWS, make_filters, make_spectrogram
from attnkit.debugger.pictures import PictureInput, pixel_noise, prepare_pixels
from attnkit.inputs.image_processor import ImageProcessor
from attnkit.model.config import ConvolutionLayer
from attnkit.model.formulas.convolution import Convolution
from attnkit.model.formulas.spectrogram import Spectrogram, log_mel
from attnkit.model.graph.nodes import Node, Scope

HEARD = Spectrogram(rate=800, window=8, hop=4, mels=3)
SOUND = np.sin(np.arange(24.0))


def test_a_spectrogram_without_a_slip_is_that_of_the_model():
    np.testing.assert_allclose(make_spectrogram(SOUND, HEARD), log_mel(SOUND, HEARD)["output"], rtol=1e-6, atol=1e-6)


def test_scales_windows_and_logarithms():
    to_mels, to_hertz = SCALES["HTK"]
    assert to_mels(700) == pytest.approx(2595 * np.log10(2)) and to_mels(0) == 0
    assert to_hertz(np.array([to_mels(700), to_mels(6300)])) == pytest.approx([700, 6300])
    assert WINDOWS["Hamming"](4) == pytest.approx([0.08, 0.54, 1, 0.54])
    assert WINDOWS["Hann"](4) == pytest.approx([0, 0.5, 1, 0.5])
    assert WINDOWS["symmetric Hann"](5) == pytest.approx([0, 0.5, 1, 0.5, 0]) and WINDOWS["none"](2).tolist() == [1, 1]
    assert [LOGARITHMS[name](100.0) for name in ("log10", "ln", "log2", "decibels")] == pytest.approx(
        [2, np.log(100), np.log2(100), 20]
    )


def test_filters_are_triangles_between_equal_steps_of_the_scale():
    corners = SCALES["HTK"][1](np.linspace(0, SCALES["HTK"][0](400), 5))
    at = np.linspace(0, 400, 5)[:, None]  # of a transform of 8 samples
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    heights = np.clip(np.minimum((at - left) / (middle - left), (right - at) / (right - middle)), 0, None)
    np.testing.assert_allclose(make_filters(HEARD, 8, "HTK", False), heights)
    np.testing.assert_allclose(make_filters(HEARD, 8, "HTK", True), heights * 2 / (right - left))


def test_choices_of_a_spectrogram():
    options = {"rescales": False, "clamp": "none"}
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(SOUND, 4, mode="reflect"), 8)[::4][:6]
    magnitudes, filters = np.abs(np.fft.rfft(frames * WINDOWS["Hann"](8))), make_filters(HEARD, 8, "Slaney", True)
    for change, logs in (
        ({}, np.log10(magnitudes**2 @ filters)),
        ({"power": 1}, np.log10(magnitudes @ filters)),
        ({"logarithm": "decibels"}, 10 * np.log10(magnitudes**2 @ filters)),
        ({"gain": 10.0}, 2 + np.log10(magnitudes**2 @ filters)),
        ({"has_equal_areas": False}, np.log10(magnitudes**2 @ make_filters(HEARD, 8, "Slaney", False))),
        ({"window": "none"}, np.log10(np.abs(np.fft.rfft(frames)) ** 2 @ filters)),
    ):
        np.testing.assert_allclose(make_spectrogram(SOUND, HEARD, **options, **change), logs, err_msg=str(change))
    longer = np.abs(np.fft.rfft(frames * WINDOWS["Hann"](8), 16)) ** 2 @ make_filters(HEARD, 16, "Slaney", True)
    np.testing.assert_allclose(make_spectrogram(SOUND, HEARD, transform=16, **options), np.log10(longer))


def test_frames_of_a_sound_that_is_not_reflected():
    options = {"rescales": False, "clamp": "none"}
    plain = make_spectrogram(SOUND, HEARD, **options)
    first = make_spectrogram(SOUND, HEARD, drops="first", **options)
    np.testing.assert_allclose(first[:-1], plain[1:])
    assert first.shape == plain.shape == (6, 3)
    later = make_spectrogram(SOUND, HEARD, mode="", **options)
    np.testing.assert_allclose(later[:4], plain[1:5])  # centered frames begin half a window, one hop, before
    zeros = make_spectrogram(SOUND, HEARD, mode="constant", **options)
    np.testing.assert_allclose(zeros[1:-1], plain[1:-1])
    assert not np.allclose(zeros[0], plain[0])


def test_the_largest_logarithm_bounds_the_others():
    quiet = np.concatenate([1e-6 * SOUND, SOUND])  # 12 orders of magnitude less in power
    logs = make_spectrogram(quiet, HEARD, rescales=False, clamp="none")
    assert logs.min() < logs.max() - 8
    whole = make_spectrogram(quiet, HEARD, rescales=False)
    np.testing.assert_allclose(whole, np.maximum(logs, logs.max() - 8))
    each = make_spectrogram(quiet, HEARD, rescales=False, clamp="frame")
    np.testing.assert_allclose(each, np.maximum(logs, logs.max(axis=-1, keepdims=True) - 8))
    np.testing.assert_allclose(make_spectrogram(quiet, HEARD), (whole + 4) / 4)


def test_silence_that_is_added_to_the_spectrogram_is_zeros():
    sound = SimpleNamespace(spectrogram=HEARD, samples=40)
    core = SimpleNamespace(config=SimpleNamespace(sound=sound))

    def compute(samples, **mistake):
        node = Node("spectrogram", "mistaken spectrogram", (), (), "", {"mistake": mistake})
        return KINDS["mistaken spectrogram"].value(Scope(core, None, node, "float64"), samples)

    padded = compute(SOUND[None], pads_features=True)
    assert padded.shape == (1, 10, 3) and not padded[0, 6:].any()
    np.testing.assert_allclose(padded[0, :6], make_spectrogram(SOUND, HEARD))
    silence = np.concatenate([SOUND, np.zeros(16)])
    np.testing.assert_allclose(compute(SOUND[None], power=1)[0], make_spectrogram(silence, HEARD, power=1))
    assert compute(SOUND[None], numbers={"mels": 5}).shape == (1, 10, 5)


def test_kernels_that_are_read_in_another_way():
    """One filter of two channels, 1 2 and 3 4, with lengths 10 and 20 at the two places."""
    params = {"w": np.array([[1.0], [2], [3], [4]]), "g": np.array([10.0, 20])}
    cut = ConvolutionLayer(2, 1, 2, Convolution(), is_scaled=True)
    a, b = 10 / 10**0.5, 20 / 20**0.5  # the lengths by those of 1 3 and of 2 4
    expected = {
        "turned": [[2 * b, a], [4 * b, 3 * a]],
        "by frames": [[a, 3 * a], [2 * b, 4 * b]],
        "lengths of filters": np.array([[10, 40], [30, 80]]) / 30**0.5,
        "not divided": [[10, 40], [30, 80]],
        "not multiplied": [[1 / 10**0.5, 2 / 20**0.5], [3 / 10**0.5, 4 / 20**0.5]],
    }
    assert {*expected} == {*KERNELS}
    for name, kernel in expected.items():
        np.testing.assert_allclose(KERNELS[name](params, cut)[0], kernel, err_msg=name)
    plain = KERNELS["turned"](params, cut._replace(is_scaled=False))
    assert plain.tolist() == [[[2, 1], [4, 3]]]


class Held(Scope):
    """A scope whose projections are columns of what they read."""

    def linear(self, x, weight, bias):
        return x[..., COLUMNS[weight]]


COLUMNS = {"w1": slice(0, 4), "w3": slice(4, 8), "wk": slice(0, 4), "wv": slice(4, 6)}
WHOLE = np.arange(8.0)[None, None]


def compute(kind, *arrays, **options):
    return KINDS[kind].value(Held(None, None, Node("x", kind, (), (), "", options), "float64"), *arrays)[0, 0].tolist()


def test_gate_and_up_are_cut_as_halves_or_alternate():
    """Gate 0 1 2 3 and up 4 5 6 7: halves that are read as columns that alternate, and the other way round."""
    cut = {
        (name, place): compute("cut gate", WHOLE, cut=name, place=place)
        for name in ("alternate", "halves")
        for place in (0, 1)
    }
    assert cut == {("alternate", 0): [0, 2, 4, 6], ("alternate", 1): [1, 3, 5, 7],
                   ("halves", 0): [0, 4, 1, 5], ("halves", 1): [2, 6, 3, 7]}  # fmt: skip
    gate, up = WHOLE[..., :4], WHOLE[..., 4:]
    assert compute("cut gate", gate, up, cut="alternate", place=1, activation="relu") == [1, 3, 5, 7]
    assert compute("cut gate", 10 * np.ones((1, 1, 4)), gate, up, cut="alternate", place=1) == [10, 30, 50, 70]


def test_keys_and_values_of_a_latent_are_cut_flat_or_values_first():
    """Two heads with keys 0 1, 2 3 and values 4, 5: stored 0 1 4 2 3 5."""
    cut = {(name, place): compute("cut latent", WHOLE, cut=name, place=place, heads=2)
           for name in ("flat", "values first") for place in "kv"}  # fmt: skip
    assert cut == {("flat", "k"): [0, 1, 4, 2], ("flat", "v"): [3, 5],
                   ("values first", "k"): [1, 4, 3, 5], ("values first", "v"): [0, 2]}  # fmt: skip


# Pixels


def picture(height, width, **settings):
    raw = ConfigReader(
        {"size": {"height": 2, "width": 2}, "do_normalize": False, **settings}, "preprocessor_config.json"
    )
    return PictureInput(
        np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3), ImageProcessor(raw, (2, 2))
    )


def test_a_pixel_that_is_resized_may_be_a_grey_level_off():
    level = 1.01 / 255
    assert pixel_noise(picture(2, 2)) == 0, "which nothing resizes"
    assert pixel_noise(picture(4, 4)) == pytest.approx(level)
    assert pixel_noise(picture(2, 4), do_normalize=False) == pytest.approx(level)
    assert pixel_noise(
        picture(4, 4, do_normalize=True, image_std=[0.5, 0.25, 1.0], image_mean=[0.5] * 3)
    ) == pytest.approx(4 * level)
    assert pixel_noise(picture(4, 4), rounds=False) == 0
    assert pixel_noise(picture(4, 4), resampling="nearest") == pytest.approx(level)
    assert pixel_noise(picture(4, 4)._replace(pixels=np.zeros((3, 4, 4)))) == 0, "floats are what the model reads"


def test_choices_of_the_pixels_of_a_picture():
    plain = prepare_pixels(picture(2, 2))
    np.testing.assert_allclose(plain[0], np.arange(12).reshape(2, 2, 3).transpose(2, 0, 1) / 255, rtol=1e-6)
    given = picture(2, 2)
    np.testing.assert_array_equal(prepare_pixels(given, channels=-1), plain[:, ::-1])
    np.testing.assert_array_equal(prepare_pixels(given, planes=-1), plain[:, ::-1])
    np.testing.assert_array_equal(prepare_pixels(given, transposes=True), plain.swapaxes(-1, -2))
    np.testing.assert_allclose(prepare_pixels(given, {"do_rescale": False}), 255 * plain, rtol=1e-6)
    own = {"do_normalize": True, "image_mean": [0.0, 0.0, 0.5], "image_std": [1.0] * 3}
    np.testing.assert_allclose(prepare_pixels(given, own, channels=-1)[0, 2], plain[0, 0] - 0.5, rtol=1e-5)
    np.testing.assert_allclose(prepare_pixels(given, own, planes=-1)[0, 0], plain[0, 2] - 0.5, rtol=1e-5)
    floats = np.zeros((3, 4, 5))
    assert prepare_pixels(given._replace(pixels=floats)).shape == (1, 3, 4, 5)
