"""Read, resize and normalize images for a model."""

import io
import os

import numpy as np

from attnkit import model
from attnkit.checkpoints.config_reader import ConfigReader, read_json_object
from attnkit.errors import DataError
from attnkit.formats import Source, read
from attnkit.formats.streams import exists
from attnkit.libraries import call_library, import_library
from attnkit.records import Array

SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff")
SETTINGS = "preprocessor_config.json"
HALF = (0.5, 0.5, 0.5)
BILINEAR, LAST_FILTER = 2, 5  # by Pillow's numbers
SMALLEST = 1e-6  # deviation of a channel
LARGER = 4  # times the usual size of its images that a model is given


def decode_image(source: Source) -> Array:
    """Decode PNG or JPEG to pixels (height, width, 3), or read the tensor of a file."""
    if not source.peek(4).startswith(SIGNATURES):
        records = list(read(source))
        if len(records) != 1:
            raise DataError(f"{len(records)} records (expected 1)", source.name)
        return records[0]["x"]
    image, content = import_library("PIL.Image", "image", source.name), io.BytesIO(source.read_all())
    with (
        call_library("not a PNG or JPEG that can be read", source.name),
        image.open(content, formats=("PNG", "JPEG")) as opened,
    ):
        if opened.width * opened.height > image.MAX_IMAGE_PIXELS:
            size, most = f"{opened.width}x{opened.height} pixels", image.MAX_IMAGE_PIXELS
            raise DataError(f"{size} (expected at most {most})", source.name)
        return np.asarray(opened.convert("RGB"))


def prepare_image(image: Array, folder: str, usual: tuple[int, int]) -> Array:
    """Prepare an image as preprocessor_config.json specifies; floats stay unchanged.

    image (C, height, width) float, or (height, width, 3) uint8 -> (C, height, width) float
    usual  height and width of the images that the model was made for

    Pixels are resized, then multiplied by rescale_factor, less image_mean, divided by image_std.
    """
    if image.dtype.kind == "f":
        return image
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
        expected = "uint8 (height, width, 3), or floats (C, height, width)"
        raise DataError(f"{image.dtype} {image.shape} is no image (expected {expected})", "--image")
    path = os.path.join(folder, SETTINGS)
    raw = ConfigReader(read_json_object(path) if exists(path) else {}, path)
    normalizes, rescales = raw.get_bool("do_normalize", True), raw.get_bool("do_rescale", True)
    mean = raw.get_floats("image_mean", HALF) if normalizes else [0.0] * 3
    std = raw.get_floats("image_std", HALF, least=SMALLEST) if normalizes else [1.0] * 3
    scale = raw.get_float("rescale_factor", 1 / 255) if rescales else 1.0
    if raw.get_bool("do_resize", True):
        given = raw.values.get("size")
        sizes = ConfigReader(given, raw.name) if isinstance(given, dict) else None
        size = (sizes.get_int("height"), sizes.get_int("width")) if sizes else 2 * (raw.get_int("size", 224),)
        if size[0] > LARGER * usual[0] or size[1] > LARGER * usual[1]:
            expected = f"expected at most {LARGER} times the {usual[0]}x{usual[1]} of the model"
            raise raw.error(f"size {size[0]}x{size[1]} ({expected})")
        resample = raw.get_int("resample", BILINEAR, least=0, most=LAST_FILTER)
        if image.shape[:2] != size:
            with call_library("cannot be resized", "--image"):
                pillow = import_library("PIL.Image", "image", "--image")
                image = np.asarray(pillow.fromarray(image).resize(size[::-1], resample))
    return model.normalize_pixels(image, mean, std, scale)
