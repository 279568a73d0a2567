"""Pictures and sounds: damaged files, headers that state other sizes, chunks that unpack to more than they hold."""

import functools
import io
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from attnkit.errors import AttnkitError
from attnkit.formats import Source, read
from tests.fuzz.files import BYTES, wav_seeds
from tests.fuzz.runner import Door, check_error

SIZES = [0, 1, 2, 3, 7, 255, 256, 1000, 4000, 8192, 8193, 30000, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31]
LARGEST_PICTURE = 560 << 20  # bytes that one of 2^26 pixels takes
PACKED = zlib.compress(bytes(1 << 23))


def encoded(mode: str, format: str, **options: Any) -> bytes:
    """A small picture of a mode of Pillow."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert("RGB").quantize(8) if mode == "P" else image.convert(mode)).save(file, format, **options)
    return file.getvalue()


PICTURES = [encoded(mode, "PNG") for mode in ("RGB", "RGBA", "L", "LA", "1", "P", "I;16")]
PICTURES += [encoded("P", "PNG", transparency=bytes([0, 99])), encoded("RGB", "PNG", transparency=(1, 2, 3))]
PICTURES += [
    encoded("RGB", "JPEG"),
    encoded("L", "JPEG"),
    encoded("CMYK", "JPEG"),
    encoded("RGB", "JPEG", progressive=True),
]


def sounds() -> list[bytes]:
    """Sounds of a few samples in each format."""
    samples = np.random.default_rng(0).normal(size=(200, 2)) / 8
    files = wav_seeds()
    for format in ("FLAC", "OGG", "AIFF", "MP3", "AU"):
        for part in (samples, samples[:, 0]):
            file = io.BytesIO()
            soundfile.write(file, part, 16000, format=format)
            files.append(file.getvalue())
    return files


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """The names and contents of the chunks of a PNG; those of a damaged one as far as they go."""
    found, at = [], 8
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def pack_chunks(parts: list[tuple[bytes, bytes]]) -> bytes:
    body = (struct.pack(">I", len(one)) + name + one + struct.pack(">I", zlib.crc32(name + one)) for name, one in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def edit_png(rng: random.Random, data: bytes) -> bytes:
    """Another size, depth or kind, a chunk more, twice or elsewhere, with checksums made to fit."""
    parts = chunks(data)
    if not data.startswith(b"\x89PNG") or not parts:
        return rng.choice(BYTES)(rng, data)
    at = rng.randrange(len(parts))
    match rng.randrange(6):
        case 0 | 1 if len(parts[0][1]) == 13:
            sizes = struct.pack(">II", rng.choice(SIZES), rng.choice(SIZES))
            kind = rng.choice([parts[0][1][8:], bytes([rng.choice([1, 2, 4, 8, 16, 3]), rng.randrange(8), 0, 0, 0])])
            parts[0] = (parts[0][0], sizes + kind)
        case 2:
            name = rng.choice(
                [b"zTXt", b"iTXt", b"tEXt", b"iCCP", b"tRNS", b"eXIf", b"acTL", b"PLTE", b"gAMA", b"fdAT"]
            )
            starts = [b"k\0\0", b"k\0\1\0\0\0", b"XML:com.adobe.xmp\0\0\0\0\0", b"Raw profile type exif\0\0", b""]
            parts.insert(
                at + 1, (name, rng.choice(starts) + rng.choice([PACKED, b"", rng.randbytes(20), bytes(70000)]))
            )
        case 3:
            parts.insert(rng.randrange(len(parts)), parts[at])
        case 4:
            del parts[at]
        case _:
            rows = zlib.compress(rng.choice([b"", bytes(200), bytes(1 << 22), rng.randbytes(500)]))
            parts[at] = (parts[at][0], rng.choice([rows, rng.choice(BYTES)(rng, parts[at][1])]))
    return pack_chunks(parts)


def edit_jpeg(rng: random.Random, data: bytes) -> bytes:
    """Another size in the header of the frame, or damaged bytes."""
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    if at < 0 or rng.random() < 0.6:
        return rng.choice(BYTES)(rng, data)
    return data[: at + 5] + struct.pack(">HH", *(rng.choice(SIZES[:13]) for _ in range(2))) + data[at + 9 :]


def draw(files: list[bytes], edits: tuple[Callable[[random.Random, bytes], bytes], ...], rng: random.Random) -> bytes:
    data = rng.choice(files)
    for _ in range(rng.choice([1, 1, 2, 3])):
        data = rng.choice(edits)(rng, data)
    return data


def edit_bytes(rng: random.Random, data: bytes) -> bytes:
    return rng.choice(BYTES)(rng, data)


def check(data: bytes) -> bool:
    """Whether a file is read."""
    try:
        list(read(Source.of(data, "file")))
    except AttnkitError as error:
        return check_error(error)
    return True


def doors(scratch: str) -> dict[str, Door]:
    pictures = functools.partial(draw, PICTURES, (edit_png, edit_png, edit_jpeg, edit_bytes))
    return {
        "pictures": Door(pictures, check, 4, LARGEST_PICTURE),
        "sounds": Door(functools.partial(draw, sounds(), (edit_bytes,)), check, 4),
    }
