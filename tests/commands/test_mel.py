"""The tool mel: a file to a spectrogram, its steps, rates and channels."""

import math

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError
from attnkit.model.formulas.resampling import resample
from attnkit.model.formulas.spectrogram import STEPS, log_mel
from attnkit.records import Record, Tensor
from tests import process
from tests.commands.records import of, read_back
from tests.sound_files import pack_wav

TONE = (np.sin(np.arange(4000) / 5) * 20000).astype("<i2")


@pytest.fixture
def wav(tmp_path):
    (tmp_path / "tone.wav").write_bytes(pack_wav(TONE.tobytes()))
    return attnkit.formats.load(str(tmp_path / "tone.wav"))


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--mels", "1000000000000"], 2, "--mels: expected a whole number of at least 1 and of at most 1024"),
        (["--window", "1000000000"], 2, "--window: expected a whole number of at least 2 and of at most 16384"),
        (["--seconds", "1e308"], 2, "--seconds: expected a finite number above 0 and of at most 86400"),
        (["--seconds", "86400", "--hop", "1", "--mels", "1024"], 3, "--seconds: the spectrogram of 1382400000 samples"),
        (
            ["--seconds", "9", "--sample-rate", "999999999999999"],
            3,
            "--seconds: the spectrogram of 89999",
        ),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(options, code, problem):
    done = process.run("mel", *options, stdin=b"[1,2]")
    assert (done.code, done.out) == (code, b"") and problem in done.err


def test_a_file_and_its_samples_have_the_same_spectrogram(wav):
    record = read_back(attnkit.mel(wav))
    samples = TONE.astype(np.float32) / 32768
    np.testing.assert_array_equal(record["x"], log_mel(samples)["output"])
    np.testing.assert_array_equal(record["x"], attnkit.mel(samples)["x"])
    assert [*record] == ["x"] and record.axes_of("x") == ("frame", "mel") and record["x"].shape == (25, 80)


def test_steps_have_axes_and_formulas(wav):
    record = attnkit.mel(wav, steps=True, mels=8)
    assert {*record} == {*STEPS, "x"} and record.axes_of("filters") == ("frequency", "mel")
    assert record["frames"].shape == (25, 400) and all(record.tensors[name].formula for name in STEPS)
    np.testing.assert_allclose(record["x"], (record["clamped"] + 4) / 4, atol=1e-6)  # steps are rounded to float32
    assert [*attnkit.mel(wav, keep=("power",))] == ["x", "power"]


def test_seconds_cut_a_sound_or_add_silence(wav):
    assert attnkit.mel(wav, seconds=0.1)["x"].shape == (10, 80)
    longer = attnkit.mel(wav, seconds=0.5)["x"]
    assert longer.shape == (50, 80) and (longer[-1] == longer.min()).all()


def test_channels_are_averaged_with_a_warning():
    sound = Tensor(np.stack([TONE, -TONE]) / 32768, ("channel", "sample"))
    with pytest.warns(AttnkitWarning, match="the 2 channels of the sound are averaged"):
        record = attnkit.mel(Record({"x": sound}))
    assert (record["x"] == -1.5).all()  # silence


def test_a_sound_of_another_rate_is_resampled_with_a_note():
    """A tone of 440 Hz keeps its pitch: its mel bands are those of the tone at the model's rate."""
    seconds = {rate: np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate) for rate in (16000, 44100)}
    with pytest.warns(AttnkitNote, match="the sound of 44100 samples a second is resampled to 16000"):
        resampled = attnkit.mel(of(seconds[44100], sample_rate=44100))["x"]
    own = attnkit.mel(of(seconds[16000], sample_rate=16000))["x"]
    assert resampled.shape == own.shape and (resampled.argmax(axis=1) == own.argmax(axis=1)).all()
    assert np.abs(resampled[5:-5, own[9].argmax()] - own[5:-5, own[9].argmax()]).max() < 1e-3


def test_resampled_sounds_are_those_of_scipy():
    signal = pytest.importorskip("scipy.signal")
    x = np.random.default_rng(0).standard_normal(999)
    for rate, target in ((44100, 16000), (8000, 16000), (16000, 44100), (3, 2)):
        common = math.gcd(rate, target)
        expected = signal.resample_poly(x, target // common, rate // common)
        assert np.allclose(resample(x, rate, target), expected, rtol=0, atol=1e-13)


def test_a_resampled_sound_keeps_low_frequencies_and_drops_high_ones():
    at = np.arange(4800) / 48000
    low, high = (resample(np.sin(2 * np.pi * hertz * at), 48000, 16000)[100:-100] for hertz in (1000, 12000))
    assert np.abs(low - np.sin(2 * np.pi * 1000 * np.arange(1600)[100:-100] / 16000)).max() < 1e-3
    assert np.abs(high).max() < 1e-3


def test_what_no_sound_can_be_resampled_from():
    for rate in (0, -1, 0.5, np.nan):
        with pytest.raises(DataError, match="expected a whole number of at least 1"):
            attnkit.mel(of(TONE, sample_rate=rate))
    with pytest.raises(DataError, match="their ratio is not simple enough"):
        attnkit.mel(of(TONE, sample_rate=1_000_003))
    with pytest.raises(DataError, match="several sample_rates"):
        attnkit.mel(of(TONE, sample_rate=[8000, 16000]))
    with pytest.raises(DataError, match="rank 2, expected 1"):
        attnkit.mel(np.zeros((2, 400)))
