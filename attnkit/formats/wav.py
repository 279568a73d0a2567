"""WAV files, read only: x has samples from -1 to 1, sample_rate their rate."""

import struct
from collections.abc import Iterator

import numpy as np

from attnkit.errors import DataError
from attnkit.formats import INSTEAD
from attnkit.formats.streams import CHUNK, Source
from attnkit.records import Array, Record, Tensor

ENDLESS = b"\xff\xff\xff\xff"  # the sizes of a file and its samples that were written to a pipe, as by ffmpeg
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CODECS = {2: "ADPCM", 6: "A-law", 7: "µ-law", 0x11: "IMA ADPCM", 0x55: "MP3"}
FORMAT_SIZES = range(16, 1 << 12)
LARGEST_RATE = 1 << 24  # samples a second, more than any recorder has


def read(source: Source) -> Iterator[Record]:
    """The one record of a file.

    DataError where the file is cut, or its sizes contradict each other.
    """
    head = source.read(12)
    if head[8:] == b"WEBP":
        raise DataError(f"not a tensor file (looks like WebP, {INSTEAD})", source.name)
    if len(head) < 12 or head[8:] != b"WAVE":
        raise DataError("not a WAV file: no WAVE after RIFF", source.name)
    described, is_endless = None, head[4:8] == ENDLESS
    while True:
        head = source.read(8)
        if len(head) < 8:
            missing = "data" if described else "fmt"
            raise DataError(f"truncated WAV file: it has no {missing} chunk", source.name)
        kind, size = head[:4], int.from_bytes(head[4:], "little")
        if kind == b"data":
            break
        if kind == b"fmt " and described is None:
            described = read_format(source, size)
        else:
            skip_bytes(source, size)
        skip_bytes(source, size % 2)
    if described is None:
        raise DataError("a WAV file whose samples come before their format", source.name)
    dtype, channels, rate = described
    is_endless = is_endless and size == int.from_bytes(ENDLESS, "little")
    yield describe_sound(read_samples(source, None if is_endless else size, dtype, channels), rate)
    while source.read_available():  # other chunks
        pass


def read_format(source: Source, size: int) -> tuple[str, int, int]:
    """The type of the samples, the number of channels and the samples a second."""
    if size not in FORMAT_SIZES:
        raise DataError(f"a WAV file whose format has {size} bytes (expected 16 or more)", source.name)
    data = source.read(size)
    if len(data) < size:
        raise DataError("truncated WAV file: it has no data chunk", source.name)
    code, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", data)
    if code == EXTENSIBLE and size >= 26:
        code = int.from_bytes(data[24:26], "little")
    if channels < 1:
        raise DataError("a WAV file of 0 channels (expected 1 or more)", source.name)
    if not 1 <= rate <= LARGEST_RATE:
        raise DataError(f"a WAV file of {rate} samples a second", source.name)
    kinds = {
        (PCM, 8): "u1",
        (PCM, 16): "<i2",
        (PCM, 24): "<i3",
        (PCM, 32): "<i4",
        (FLOAT, 32): "<f4",
        (FLOAT, 64): "<f8",
    }
    if (code, bits) not in kinds:
        name = {PCM: "whole numbers", FLOAT: "floats"}.get(code, CODECS.get(code, f"codec {code}"))
        expected = "expected whole numbers of 8, 16, 24 or 32 bits, or floats of 32 or 64"
        raise DataError(f"a WAV file of {name} of {bits} bits ({expected})", source.name)
    if frame != channels * bits // 8:
        raise DataError(f"a WAV file of {channels} channels of {bits} bits, but {frame} bytes for both", source.name)
    return kinds[code, bits], channels, rate


def read_samples(source: Source, size: int | None, dtype: str, channels: int) -> Array:
    """Read the samples (T,), or of several channels (C, T), in a number of bytes.

    None: all that follow.
    """
    data = np.frombuffer(source.read_all(), np.uint8) if size is None else source.read_uint8(size)
    size = len(data) if size is None else size
    if len(data) < size:
        raise DataError(f"truncated WAV file: its data chunk has {len(data)} of {size} bytes", source.name)
    width = int(dtype[-1]) * channels
    if size % width or not size:
        problem = f"no multiple of {width}, the size of one sample of each channel" if size else "no sample"
        raise DataError(f"a WAV file with {size} bytes of samples, {problem}", source.name)
    samples = to_floats(data, dtype)
    return samples if channels == 1 else np.ascontiguousarray(samples.reshape(-1, channels).T)


def to_floats(data: Array, dtype: str) -> Array:
    """Samples as floats: whole numbers are divided by the largest.

    data (bytes,) uint8 -> (T,) float32, or float64 of such samples

    >>> to_floats(np.array([0, 128, 255], np.uint8), "u1").tolist()
    [-1.0, 0.0, 0.9921875]
    >>> to_floats(np.array([0, 0, 128, 0, 0, 64], np.uint8), "<i3").tolist()
    [-1.0, 0.5]
    """
    if dtype == "u1":
        return (data.astype(np.float32) - 128) / 128
    if dtype == "<i3":
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = data.reshape(-1, 3)  # the upper bytes of 32 bits
        data, dtype = wide.ravel(), "<i4"
    samples = data.view(dtype)
    if dtype[1] == "f":
        return samples.astype(dtype[1:], copy=False)
    floats = samples.astype(np.float32)
    floats /= np.float32(1 << (8 * samples.itemsize - 1))  # a power of 2, which rounds nothing
    return floats


def describe_sound(samples: Array, rate: int) -> Record:
    """A record of samples, (T,) or (C, T)."""
    axes = ("channel", "sample")[2 - samples.ndim :]
    return Record({"x": Tensor(samples, axes), "sample_rate": Tensor(np.array(rate, np.int64), ())})


def skip_bytes(source: Source, count: int) -> None:
    """Consume bytes; fewer where the source ends."""
    while count > 0 and (part := source.read(min(count, CHUNK))):
        count -= len(part)
