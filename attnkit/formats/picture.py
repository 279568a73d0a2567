"""Pictures, read only, by the Pillow library: PNG and JPEG."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.formats import PICTURES
from attnkit.formats.memory import check_memory
from attnkit.formats.streams import Source
from attnkit.libraries import call_library, import_library
from attnkit.records import Array, Record, Tensor

END = b"IEND\xaeB`\x82"  # the last chunk of a PNG, with its checksum
MOST_PIXELS = 1 << 26
BYTES = 8  # of a pixel while a picture is read: four in Pillow, three in the array, and those of a band
BAND = 1 << 20  # pixels that are converted at a time
WHITE = (255, 255, 255, 255)
TEXT_CHUNKS = (
    b"tEXt",
    b"zTXt",
    b"iTXt",
    b"iCCP",
)  # chunks of PNG that change no pixel, of any size once they are inflated
ORIENTATIONS = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")  # but for texts in which a camera marks a side


def read(source: Source) -> Iterator[Record]:
    """The one record of a file: x, the pixels (row, column, channel), uint8."""
    yield Record({"x": Tensor(read_pixels(source), ("row", "column", "channel"))})


def read_pixels(source: Source) -> Array:
    """Read pixels (height, width, 3) uint8, what is transparent over white.

    Greys are three equal channels.

    A picture that its camera has marked as lying on a side is turned upright. Both are as in transformers.

    DataError for what is no PNG or JPEG, for a second picture after a PNG, for more than MOST_PIXELS pixels, and for
    greys of 16 bits.
    """
    if not source.peek(4).startswith(PICTURES):
        raise DataError("neither a PNG nor a JPEG, by its first bytes", source.name)
    image, content = import_library("PIL.Image", "image", source.name), bytes(source.read_all())
    if content.partition(END)[2].startswith(PICTURES):
        raise DataError("a second picture follows the first (expected one)", source.name)
    with (
        call_library("not a PNG or JPEG that can be read", source.name),
        image.open(io.BytesIO(without_texts(content)), formats=("PNG", "JPEG")) as opened,
    ):
        size = f"{opened.width}x{opened.height} pixels"
        if opened.width * opened.height > MOST_PIXELS:
            raise DataError(f"{size} (expected at most {MOST_PIXELS} pixels)", source.name)
        check_memory(BYTES * opened.width * opened.height, f"a picture of {size}", source.name)
        if opened.mode.startswith("I"):  # Pillow would make white of all but the darkest
            raise DataError("greys of 16 bits (expected at most 8 bits a channel)", source.name)
        import_library("PIL.ImageOps", "image", source.name).exif_transpose(opened, in_place=True)
        pixels = np.empty((opened.height, opened.width, 3), np.uint8)
        rows = max(BAND // opened.width, 1)
        for top in range(0, opened.height, rows):
            band = opened.crop((0, top, opened.width, min(top + rows, opened.height)))
            pixels[top : top + rows] = np.asarray(to_rgb(image, band))
        return pixels


def to_rgb(image: Any, picture: Any) -> Any:
    """Convert a picture of Pillow to RGB, what is transparent over white.

    `image` is Pillow's module.
    """
    if "A" in picture.getbands() or picture.info.get("transparency") is not None:
        picture = image.alpha_composite(image.new("RGBA", picture.size, WHITE), picture.convert("RGBA"))
    return picture.convert("RGB")


def without_texts(content: bytes) -> bytes:
    """A PNG without texts and colour profile; other files as they are.

    Pillow would inflate them.

    >>> without_texts(b"\\x89PNG\\r\\n\\x1a\\n" + b"\\0\\0\\0\\2tEXta\\0....IEND")
    b'\\x89PNG\\r\\n\\x1a\\nIEND'
    """
    if not content.startswith(PICTURES[0]):
        return content
    kept, at = [content[:8]], 8
    while at + 8 <= len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        is_text = content[at + 4 : at + 8] in TEXT_CHUNKS and not content.startswith(ORIENTATIONS, at + 8)
        kept += [] if is_text else [content[at:end]]
        at = end
    return b"".join([*kept, content[at:]])
