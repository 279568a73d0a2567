"""Sounds for the tests: WAV files of any header, and syllables of tones with pauses."""

import struct

import numpy as np


def pack_wav(
    data, *, code=1, channels=1, rate=16000, bits=16, frame=None, size=None, whole=None, more=b"", before=b"", extra=b""
):
    """A WAV file; `frame`, `size` and `whole` (its own size) are stated as they are.

    more  the end of its format; before, extra: chunks before and after its samples
    """
    frame = channels * bits // 8 if frame is None else frame
    described = struct.pack("<HHIIHH", code, channels, rate, rate * frame & 0xFFFFFFFF, frame, bits) + more
    chunks = b"fmt " + struct.pack("<I", len(described)) + described + before
    chunks += b"data" + struct.pack("<I", len(data) if size is None else size) + data + extra
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) if whole is None else whole) + b"WAVE" + chunks


def make_syllables(seconds: float, seed: int) -> np.ndarray:
    """Samples (T,) in float32, 16,000 a second: tones of a random pitch with pauses, and a little noise."""
    rng, time = np.random.default_rng(seed), np.arange(round(16000 * seconds)) / 16000
    pitch = rng.uniform(150, 2500, int(6 * seconds) + 1)[(6 * time).astype(int)]
    loudness = np.maximum(0, np.sin(2 * np.pi * 3 * time))
    return (loudness * np.sin(2 * np.pi * pitch * time) / 2 + rng.normal(0, 0.01, len(time))).astype(np.float32)
