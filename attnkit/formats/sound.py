"""Sounds of other formats than WAV, by soundfile: FLAC, Ogg, MP3, AIFF."""

import io
from collections.abc import Iterator

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.memory import check_memory
from attnkit.formats.streams import Source
from attnkit.formats.wav import describe_sound
from attnkit.libraries import call_library, import_library
from attnkit.records import Record

MOST_SAMPLES = 1 << 28  # of all channels, however small the file is: 1 GB


class Contents(io.BytesIO):
    """The bytes of a file, in which a place before the first is the first.

    libsndfile seeks to such places in a file that is cut, and an exception would be written to standard error.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, as of a file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: len(self.getbuffer())}[whence]
        return super().seek(max(0, start + offset))


def read(source: Source) -> Iterator[Record]:
    """The one record of a file: x, float32 samples (T,) or (C, T), and sample_rate."""
    soundfile = import_library("soundfile", "audio", source.name)
    data = Contents(source.read_all())
    with call_library("not a sound that can be read", source.name), soundfile.SoundFile(data) as opened:
        count = opened.frames * opened.channels
        if count > MOST_SAMPLES:
            raise DataError(f"a sound of {count} samples (expected at most {MOST_SAMPLES})", source.name)
        check_memory(4 * count, f"a sound of {count} samples", source.name)
        samples = opened.read(dtype="float32", always_2d=True)
        rate = opened.samplerate
    if not samples.size:
        raise DataError("a sound without samples", source.name)
    yield describe_sound(np.ascontiguousarray(samples.T) if samples.shape[1] > 1 else samples[:, 0], rate)
