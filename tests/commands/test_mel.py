"""The tool mel: a file to a spectrogram, its steps, rates and channels."""

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitWarning, DataError
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


def test_a_sound_of_another_rate_is_refused(wav):
    with pytest.raises(DataError, match=r"a sound of 16000 samples a second \(expected 8000\); ffmpeg -i IN -ar 8000"):
        attnkit.mel(wav, sample_rate=8000)
    with pytest.raises(DataError, match="several sample_rates"):
        attnkit.mel(of(TONE, sample_rate=[8000, 16000]))
    with pytest.raises(DataError, match="rank 2, expected 1"):
        attnkit.mel(np.zeros((2, 400)))
