"""Draw pictures of shapes, a folder of PNG files for each label: python shapes.py FOLDER COUNT [SEED].

Each label gets COUNT pictures of 16 x 16 pixels: a circle, a square or a triangle of a bright colour, of any size and
at any place, on a dark ground, in noise. The same seed draws the same pictures.
"""

import random
import struct
import sys
import zlib
from pathlib import Path

SIZE, NOISE, DARK, BRIGHT = 16, 25, (0, 100), (120, 255)
INSIDE = {
    "circle": lambda x, y: x * x + y * y <= 1.05,
    "square": lambda x, y: max(abs(x), abs(y)) <= 0.9,
    "triangle": lambda x, y: abs(x) <= (y + 1) / 2 + 0.1 and y <= 1,
}


def draw(shape, rng):
    """The pixels of a picture, row by row: (red, green, blue)."""
    radius = rng.uniform(3.5, 6)
    left, top = (rng.uniform(radius - 0.5, SIZE - 0.5 - radius) for _ in range(2))
    ground, colour = ([rng.uniform(*levels) for _ in range(3)] for levels in (DARK, BRIGHT))
    rows = []
    for y in range(SIZE):
        places = [((x - left) / radius, (y - top) / radius) for x in range(SIZE)]
        own = [colour if INSIDE[shape](*place) else ground for place in places]
        rows.append([[min(max(round(rng.gauss(level, NOISE)), 0), 255) for level in pixel] for pixel in own])
    return rows


def encode_png(rows):
    """A PNG file of pixels (red, green, blue), row by row."""
    pixels = b"".join(b"\0" + bytes(level for pixel in row for level in pixel) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(pixels, 0), b"IEND": b""}
    chunks = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
              for kind, data in parts.items())  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def draw_folder(folder, count, seed):
    """Write so many pictures of each shape."""
    rng = random.Random(seed)
    for shape in INSIDE:
        (folder / shape).mkdir(parents=True, exist_ok=True)
        for number in range(1, 1 + count):
            (folder / shape / f"{number:04}.png").write_bytes(encode_png(draw(shape, rng)))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or not all(number.isdecimal() for number in sys.argv[2:]):
        sys.exit(__doc__.split("\n")[0])
    draw_folder(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0)
