"""Log-mel spectrograms: WhisperFeatureExtractor's numbers frozen, each step from the one before, a tone's band."""

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model.formulas import spectrogram
from attnkit.model.formulas.spectrogram import (
    STEPS,
    Spectrogram,
    find_loudest,
    hann_window,
    log_mel,
    mel_filters,
    pad_sound,
)
from tests.places import REFERENCES

# name -> options, and the seconds that a sound is padded or cut to
CASES = {
    "tones": (Spectrogram(), None),
    "padded": (Spectrogram(), 2),
    "cut": (Spectrogram(), 1),
    "mels": (Spectrogram(mels=128), None),
    "silence": (Spectrogram(), None),
    "sizes": (Spectrogram(16000, 512, 100, 40), None),
}


@pytest.fixture(scope="module")
def frozen():
    with np.load(REFERENCES / "spectrograms.npz") as file:
        return dict(file)


def near(ours, theirs, tolerance=1e-6):
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("most", [1000, spectrogram.MOST], ids=["in blocks", "at once"])
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_transformers(frozen, name, most, monkeypatch):
    monkeypatch.setattr(spectrogram, "MOST", most)
    options, seconds = CASES[name]
    samples = frozen[f"{name}.samples"]
    samples = samples if seconds is None else pad_sound(samples, seconds * options.rate)
    ours = log_mel(samples, options)["output"]
    assert ours.dtype == np.float32 and ours.shape == tuple(frozen[f"{name}.shape"])
    near(ours[:12], frozen[f"{name}.first"])
    near(ours[-12:], frozen[f"{name}.last"])
    near(ours.mean(axis=0, dtype=np.float64), frozen[f"{name}.mean"])


def test_the_filters_of_transformers(frozen):
    near(mel_filters(), frozen["mel_filters"], 1e-12)


def test_every_step_follows_from_the_one_before():
    rng, options = np.random.default_rng(0), Spectrogram(1000, 8, 3, 4)
    samples = rng.standard_normal(20)
    steps = log_mel(samples, options, STEPS)
    padded = np.concatenate([samples[4:0:-1], samples, samples[-2:-6:-1]])
    np.testing.assert_array_equal(steps["frames"], [padded[at : at + 8] for at in range(0, 18, 3)])
    np.testing.assert_array_equal(steps["windowed"], steps["frames"] * hann_window(8))
    turns = np.exp(-2j * np.pi * np.outer(np.arange(8), np.arange(5)) / 8)
    np.testing.assert_allclose(steps["power"], np.abs(steps["windowed"] @ turns) ** 2, atol=1e-12)
    np.testing.assert_allclose(steps["mel"], steps["power"] @ steps["filters"], atol=1e-12)
    np.testing.assert_array_equal(steps["log"], np.log10(np.maximum(steps["mel"], 1e-10)))
    np.testing.assert_array_equal(steps["clamped"], np.maximum(steps["log"], steps["log"].max() - 8))
    np.testing.assert_array_equal(steps["output"], (steps["clamped"] + 4) / 4)


@pytest.mark.parametrize(("window", "hop"), [(8, 3), (9, 2), (64, 5)])
def test_some_frames_are_those_of_the_whole_sound(window, hop):
    samples, options = np.random.default_rng(1).standard_normal(70), Spectrogram(1000, window, hop, 4)
    whole, loudest = log_mel(samples, options)["output"], find_loudest(samples, options)
    for first in range(len(whole)):
        for last in (first + 1, first + 4, len(whole)):
            part = log_mel(samples, options, frames=slice(first, last), loudest=loudest)["output"]
            np.testing.assert_allclose(part, whole[first:last], rtol=1e-12)


@pytest.mark.parametrize("hertz", [300, 1000, 5000])
def test_a_tone_is_loudest_in_the_band_that_holds_it(hertz):
    tone = np.sin(2 * np.pi * hertz * np.arange(8000) / 16000)
    loudest = log_mel(tone)["output"][10:-10].argmax(axis=1)
    filters = mel_filters()
    band = filters[:, loudest[0]].nonzero()[0] * 40  # of 16000 / 400 hertz each
    assert len({*loudest}) == 1 and band.min() <= hertz <= band.max()


@pytest.mark.parametrize(
    ("samples", "options", "kind", "problem"),
    [
        (np.zeros((2, 400)), Spectrogram(), DataError, "rank 2, expected 1, the samples of a sound"),
        (np.zeros(159), Spectrogram(), DataError, "159 samples, too few for a frame"),
        (np.zeros(1), Spectrogram(hop=1), DataError, "x of 1 samples, too few"),
        (np.zeros(800), Spectrogram(mels=0), UsageError, "mels 0 of a spectrogram"),
        (np.zeros(800), Spectrogram(window=1), UsageError, "a window of 1 sample"),
    ],
)
def test_what_has_no_spectrogram(samples, options, kind, problem):
    with pytest.raises(kind, match=problem):
        log_mel(samples, options)


@pytest.mark.parametrize(
    ("count", "hop", "is_enough"), [(2, 1, True), (1, 1, False), (160, 160, True), (159, 160, False)]
)
def test_a_sound_has_two_samples_or_a_hop(count, hop, is_enough):
    options = Spectrogram(rate=16000, window=2, hop=hop, mels=1)
    if is_enough:
        assert log_mel(np.zeros(count), options)["output"].shape[-1] == 1
        return
    with pytest.raises(DataError, match=rf"x of {count} samples, too few for a frame \(expected {max(hop, 2)}\)"):
        log_mel(np.zeros(count), options)
