"""Pictures, read only, by the Pillow library: PNG and JPEG."""

import io
from collections.abc import Iterator

import numpy as np

from attnkit.errors import DataError
from attnkit.formats import PICTURES
from attnkit.formats.streams import Source
from attnkit.libraries import call_library, import_library
from attnkit.records import Array, Record, Tensor

END = b"IEND\xaeB`\x82"  # the last chunk of a PNG, with its checksum


def read(source: Source) -> Iterator[Record]:
    """The one record of a file: x, the pixels (row, column, channel), uint8."""
    yield Record({"x": Tensor(read_pixels(source), ("row", "column", "channel"))})


def read_pixels(source: Source) -> Array:
    """Read pixels (height, width, 3) uint8: greys as three equal channels, transparency left out.

    A picture that its camera has marked as lying on a side is turned upright, as transformers does.

    DataError for what is no PNG or JPEG, for a second picture after a PNG, for more pixels than Pillow takes for
    harmless, and for greys of 16 bits.
    """
    if not source.peek(4).startswith(PICTURES):
        raise DataError("neither a PNG nor a JPEG, by its first bytes", source.name)
    image, content = import_library("PIL.Image", "image", source.name), bytes(source.read_all())
    if content.partition(END)[2].startswith(PICTURES):
        raise DataError("a second picture follows the first (expected one)", source.name)
    with (
        call_library("not a PNG or JPEG that can be read", source.name),
        image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as opened,
    ):
        if opened.width * opened.height > image.MAX_IMAGE_PIXELS:
            size, most = f"{opened.width}x{opened.height} pixels", image.MAX_IMAGE_PIXELS
            raise DataError(f"{size} (expected at most {most})", source.name)
        if opened.mode.startswith("I"):  # Pillow would make white of all but the darkest
            raise DataError("greys of 16 bits (expected at most 8 bits a channel)", source.name)
        upright = import_library("PIL.ImageOps", "image", source.name).exif_transpose(opened)
        return np.asarray(upright.convert("RGB"))
