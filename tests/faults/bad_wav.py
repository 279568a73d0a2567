"""A table of bad sounds: {name: (content, parts of the message)}, read by tests/formats and by the tools."""

import struct

from tests.sound_files import pack_wav

WHOLE = pack_wav(struct.pack("<4h", 1, 2, 3, 4))
LARGEST = (1 << 32) - 1

BAD = {
    # W1
    "four bytes": (b"RIFF", "not a WAV file: no WAVE after RIFF"),
    "an AVI file": (b"RIFF\x10\0\0\0AVI LIST", "not a WAV file: no WAVE after RIFF"),
    "a WebP picture": (b"RIFF\x10\0\0\0WEBPVP8 ", "looks like WebP, and pictures are read from PNG and JPEG"),
    "no chunks": (WHOLE[:12], "truncated WAV file: it has no fmt chunk"),
    "cut in its format": (WHOLE[:30], "truncated WAV file: it has no data chunk"),
    "cut after its format": (WHOLE[:36], "truncated WAV file: it has no data chunk"),
    "cut in its samples": (WHOLE[:-3], "truncated WAV file: its data chunk has 5 of 8 bytes"),
    "a chunk beyond the end": (WHOLE[:12] + b"LIST\xff\xff\xff\xff", "truncated WAV file: it has no fmt chunk"),
    "samples before their format": (WHOLE[:12] + WHOLE[36:] + WHOLE[12:36], "samples come before their format"),
    # W2
    "0 channels": (pack_wav(bytes(4), channels=0), "a WAV file of 0 channels (expected 1 or more)"),
    "65535 channels": (pack_wav(bytes(4), channels=65535, frame=65534), "65535 channels of 16 bits, but 65534 bytes"),
    "a rate of 0": (pack_wav(bytes(4), rate=0), "a WAV file of 0 samples a second"),
    "a rate of 2^32 - 1": (pack_wav(bytes(4), rate=LARGEST), "a WAV file of 4294967295 samples a second"),
    "12 bits": (pack_wav(bytes(4), bits=12), "whole numbers of 12 bits (expected whole numbers of 8, 16, 24 or 32"),
    "0 bits": (pack_wav(bytes(4), bits=0), "whole numbers of 0 bits"),
    "ADPCM": (pack_wav(bytes(4), code=2, bits=4), "a WAV file of ADPCM of 4 bits"),
    "an unknown codec": (pack_wav(bytes(4), code=999), "a WAV file of codec 999 of 16 bits"),
    "an unknown codec of the longer header": (
        pack_wav(bytes(4), code=0xFFFE, more=struct.pack("<HHIH14x", 22, 16, 4, 7)),
        "a WAV file of µ-law",
    ),
    "a format of 3 bytes": (b"RIFF\0\0\0\0WAVEfmt \3\0\0\0abc", "whose format has 3 bytes"),
    "a format of 2^32 - 1 bytes": (b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", "whose format has 4294967295 bytes"),
    # W3
    "no samples": (pack_wav(b""), "0 bytes of samples, no sample"),
    "half a sample": (pack_wav(bytes(3)), "3 bytes of samples, no multiple of 2"),
    "a channel too few": (pack_wav(bytes(6), channels=2), "6 bytes of samples, no multiple of 4"),
    "2^32 - 1 bytes of samples": (pack_wav(bytes(8), size=LARGEST), "its data chunk has 8 of 4294967295 bytes"),
}
