"""Sounds: samples of every width, as the module wave and soundfile have them; files that are cut anywhere."""

import io
import struct
import wave

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.formats import Source, memory, read, sound
from tests.faults.bad_wav import WHOLE
from tests.sound_files import pack_wav

HALVES = np.array([-1, -0.5, 0, 0.5])


def samples(data):
    """The one record of a file."""
    [record] = read(Source.of(data, "in.wav"))
    return record


@pytest.mark.parametrize(
    ("bits", "code", "data"),
    [
        (8, 1, bytes([0, 64, 128, 192])),
        (16, 1, struct.pack("<4h", -32768, -16384, 0, 16384)),
        (24, 1, b"\0\0\x80\0\0\xc0\0\0\0\0\0\x40"),
        (32, 1, struct.pack("<4i", -(1 << 31), -(1 << 30), 0, 1 << 30)),
        (32, 3, HALVES.astype("<f4").tobytes()),
        (64, 3, HALVES.tobytes()),
    ],
)
def test_samples_of_every_width(bits, code, data):
    record = samples(pack_wav(data, bits=bits, code=code, rate=8000))
    assert record["x"].tolist() == HALVES.tolist() and record.axes_of("x") == ("sample",)
    assert record["x"].dtype == (np.float64 if bits == 64 else np.float32)
    assert record["sample_rate"].tolist() == 8000
    guid = bytes.fromhex("0000 0000 1000 8000 00aa 0038 9b71")  # the end of each type of KSDATAFORMAT_SUBTYPE
    subtype = struct.pack("<HHIH", 22, bits, 4, code) + guid
    longer = samples(pack_wav(data, bits=bits, code=0xFFFE, more=subtype))
    assert longer["x"].tolist() == HALVES.tolist()


def test_channels_are_rows_and_other_chunks_are_skipped():
    odd = b"LIST\3\0\0\0abc\0"
    record = samples(pack_wav(struct.pack("<4h", 0, 1 << 14, -(1 << 14), 0), channels=2, before=odd, extra=odd))
    assert record["x"].tolist() == [[0, -0.5], [0.5, 0]] and record.axes_of("x") == ("channel", "sample")


def test_a_file_that_was_written_to_a_pipe_ends_where_it_ends():
    endless = {"size": 0xFFFFFFFF, "whole": 0xFFFFFFFF}
    record = samples(pack_wav(struct.pack("<3h", 0, 1 << 14, -(1 << 14)), before=b"LIST\4\0\0\0abcd", **endless))
    assert record["x"].tolist() == [0, 0.5, -0.5]
    with pytest.raises(DataError, match="3 bytes of samples, no multiple of 2"):
        samples(pack_wav(bytes(3), **endless))


def test_what_the_module_wave_writes():
    numbers, file = np.random.default_rng(0).integers(-32768, 32768, (300, 2)).astype("<i2"), io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(44100)
        writer.writeframes(numbers.tobytes())
    record = samples(file.getvalue())
    np.testing.assert_array_equal(record["x"], numbers.T / 32768)
    assert record["sample_rate"].tolist() == 44100


def test_a_small_file_of_too_many_samples(monkeypatch):
    # W4
    soundfile, file = pytest.importorskip("soundfile"), io.BytesIO()
    soundfile.write(file, np.zeros((600, 2)), 16000, format="FLAC")
    monkeypatch.setattr("attnkit.formats.sound.MOST_SAMPLES", 1200)
    assert samples(file.getvalue())["x"].shape == (2, 600)
    monkeypatch.setattr("attnkit.formats.sound.MOST_SAMPLES", 1199)
    with pytest.raises(DataError, match=r"^in\.wav: a sound of 1200 samples \(expected at most 1199\)"):
        samples(file.getvalue())


@pytest.mark.parametrize(("format", "subtype"), [("FLAC", "PCM_16"), ("AIFF", "PCM_24"), ("OGG", "VORBIS")])
@pytest.mark.parametrize("channels", [1, 2])
def test_other_formats_by_soundfile(format, subtype, channels):
    soundfile, file = pytest.importorskip("soundfile"), io.BytesIO()
    time = np.arange(4000)[:, None] / 16000
    sound = np.sin(2 * np.pi * 440 * time * np.arange(1, channels + 1)) / 2
    soundfile.write(file, sound, 16000, format=format, subtype=subtype)
    record = samples(file.getvalue())
    assert record["sample_rate"].tolist() == 16000 and record["x"].dtype == np.float32
    ours = record["x"] if channels == 2 else record["x"][None]
    np.testing.assert_allclose(ours, sound.T, atol=0.1 if format == "OGG" else 2e-4)
    with pytest.raises(DataError, match=r"^in.wav: (not a sound that can be read|a sound without samples)") as caught:
        samples(file.getvalue()[:30])
    assert "0x" not in str(caught.value)  # no address of a Python object


def test_every_cut_is_refused():
    for count in range(4, len(WHOLE)):
        with pytest.raises(DataError):
            samples(WHOLE[:count])


def test_the_memory_that_samples_take(monkeypatch, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "x.flac", np.zeros((10, 2)), 8000)
    data = (tmp_path / "x.flac").read_bytes()
    monkeypatch.setattr(memory, "physical_memory", lambda: 80)
    assert next(iter(sound.read(Source.of(data))))["x"].shape == (2, 10)
    monkeypatch.setattr(memory, "physical_memory", lambda: 79)
    with pytest.raises(DataError, match="a sound of 20 samples needs 80 B"):
        list(sound.read(Source.of(data)))


def test_the_format_of_samples_in_a_short_extension():
    """The code after 8 bytes of the extension is all that is read of it, as long as it is there."""
    data = np.array([0.5, -0.25], "<f4").tobytes()
    more = struct.pack("<HHIH", 22, 32, 0, 3)
    assert samples(pack_wav(data, code=0xFFFE, bits=32, more=more))["x"].tolist() == [0.5, -0.25]
    with pytest.raises(DataError, match="a WAV file of codec 65534 of 32 bits"):
        samples(pack_wav(data, code=0xFFFE, bits=32, more=more[:-1] + b""))
