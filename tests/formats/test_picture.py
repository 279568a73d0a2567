"""Pictures: pixels of every kind of PNG and of JPEG, as Pillow has them; files that are cut or too large."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from attnkit.errors import DataError
from attnkit.formats import Source, memory, picture, read
from tests.places import arrays

TRANSPARENT = arrays("transparency")
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 4), np.uint8)


def file_of(pixels, format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


def pixels_of(data):
    [record] = read(Source.of(data, "in.png"))
    assert record.axes_of("x") == ("row", "column", "channel") and record["x"].dtype == np.uint8
    return record["x"]


def pack_png(width, height, bits, kind, data):
    """A PNG file by hand."""
    parts = {b"IHDR": struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0), b"IDAT": zlib.compress(data)}
    chunks = (struct.pack(">I", len(one)) + name + one + struct.pack(">I", zlib.crc32(name + one))
              for name, one in (parts | {b"IEND": b""}).items())  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_pixels_by_hand():
    colour = pack_png(2, 1, 8, 2, b"\0" + bytes([1, 2, 3, 250, 251, 252]))
    assert pixels_of(colour).tolist() == [[[1, 2, 3], [250, 251, 252]]]
    grey = pack_png(2, 1, 8, 0, b"\0" + bytes([7, 9]))
    assert pixels_of(grey).tolist() == [[[7] * 3, [9] * 3]]
    wide = pack_png(1, 1, 16, 2, b"\0" + bytes([200, 1, 100, 2, 50, 3]))  # of 16 bits the first 8 are kept
    assert pixels_of(wide).tolist() == [[[200, 100, 50]]]


def test_what_is_transparent_is_over_white():
    clear = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 100, 250, 102]]], np.uint8)  # 102 is two fifths
    assert pixels_of(file_of(clear)).tolist() == [[[255] * 3, [10, 20, 30], [153, 193, 253]]]


@pytest.mark.parametrize("name", [name for name in TRANSPARENT if "." not in name])
def test_transparency_is_that_of_the_processors_of_transformers(name, monkeypatch):
    for band in (picture.BAND, 1):  # as a whole, and row by row
        monkeypatch.setattr(picture, "BAND", band)
        np.testing.assert_array_equal(pixels_of(TRANSPARENT[name].tobytes()), TRANSPARENT[f"{name}.pixels"])


def test_palettes_and_jpeg_are_read():
    palette = io.BytesIO()
    Image.fromarray(PIXELS[..., :3]).quantize(4).save(palette, "PNG")
    assert len(np.unique(pixels_of(palette.getvalue()).reshape(-1, 3), axis=0)) <= 4
    plain = np.full((8, 8, 3), 120, np.uint8)
    assert np.abs(pixels_of(file_of(plain, "JPEG")).astype(int) - 120).max() <= 1


def test_a_picture_on_its_side_is_turned_upright():
    marks = Image.Exif()
    marks[0x0112] = 6  # the first row is on the right
    turned = pixels_of(file_of(PIXELS[..., :3], exif=marks))
    np.testing.assert_array_equal(turned, np.rot90(PIXELS[..., :3], -1))


def test_texts_of_a_png_are_not_inflated():
    """Neither texts nor a colour profile, but for the text that marks the side on which a picture lies."""
    whole = file_of(PIXELS[..., :3])
    packed = zlib.compress(bytes(1 << 23))  # more than Pillow inflates

    def with_chunk(chunk):  # after the header
        return (
            whole[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + whole[33:]
        )

    for start in (b"zTXtk\0\0", b"iTXtk\0\1\0\0\0", b"iCCPk\0\0", b"tEXtk\0"):
        np.testing.assert_array_equal(pixels_of(with_chunk(start + packed)), PIXELS[..., :3])
    side = b'iTXtXML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>'
    np.testing.assert_array_equal(pixels_of(with_chunk(side)), np.rot90(PIXELS[..., :3], -1))


def test_files_that_are_refused():
    # R1
    whole = pack_png(4, 3, 8, 2, (b"\0" + bytes(12)) * 3)
    for data in (whole[:8], whole[:40], whole[:45], whole[:20] + b"\xff" + whole[21:], b"\xff\xd8\xff"):
        with pytest.raises(DataError, match=r"^in\.png: not a PNG or JPEG that can be read") as caught:
            pixels_of(data)
        assert "0x" not in str(caught.value)  # no address of a Python object
    with pytest.raises(DataError, match=r"^in\.png: a second picture follows the first \(expected one\)"):
        pixels_of(whole + whole)
    # R2
    with pytest.raises(DataError, match=r"^in\.png: 9500x9400 pixels \(expected at most 67108864 pixels\)"):
        pixels_of(pack_png(9500, 9400, 8, 2, b""))
    with pytest.raises(DataError, match=r"^in\.png: greys of 16 bits"):
        pixels_of(pack_png(1, 1, 16, 0, b"\0\1\2"))


def test_the_most_pixels_and_what_memory_they_take(monkeypatch):
    whole = file_of(PIXELS[:2, :, :3])
    monkeypatch.setattr(memory, "physical_memory", lambda: 64)  # 8 bytes a pixel
    monkeypatch.setattr(picture, "MOST_PIXELS", 8)
    assert pixels_of(whole).shape == (2, 4, 3)
    monkeypatch.setattr(memory, "physical_memory", lambda: 63)
    with pytest.raises(DataError, match=r"a picture of 4x2 pixels needs 64 B"):
        pixels_of(whole)
    monkeypatch.setattr(picture, "MOST_PIXELS", 7)
    with pytest.raises(DataError, match=r"4x2 pixels \(expected at most 7 pixels\)"):
        pixels_of(whole)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_bands_of_rows_are_the_whole(rows, monkeypatch):
    monkeypatch.setattr(picture, "BAND", rows * 4)
    np.testing.assert_array_equal(pixels_of(file_of(PIXELS[..., :3])), PIXELS[..., :3])
