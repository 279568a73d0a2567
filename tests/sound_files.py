"""WAV files of any header, for the tests of formats, faults and the tool mel."""

import struct


def pack_wav(data, *, code=1, channels=1, rate=16000, bits=16, frame=None, size=None, more=b"", before=b"", extra=b""):
    """A WAV file; `frame` and `size` are stated as they are, `more` ends its format, chunks stand before and after."""
    frame = channels * bits // 8 if frame is None else frame
    described = struct.pack("<HHIIHH", code, channels, rate, rate * frame & 0xFFFFFFFF, frame, bits) + more
    chunks = b"fmt " + struct.pack("<I", len(described)) + described + before
    chunks += b"data" + struct.pack("<I", len(data) if size is None else size) + data + extra
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
