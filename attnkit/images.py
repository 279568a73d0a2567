"""Images to the numbers that a model takes: read, resized, normalized."""

import io
import os
from typing import Any

import numpy as np

from attnkit import model
from attnkit.checkpoints.documents import document
from attnkit.errors import DataError, UsageError
from attnkit.tensors import Source, read
from attnkit.tensors.files import exists
from attnkit.tensors.record import Array

SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff")
SETTINGS = "preprocessor_config.json"
HALF = [0.5, 0.5, 0.5]


def decoded(source: Source) -> Array:
    """The pixels of a PNG or JPEG, (height, width, 3) uint8, or the one tensor of a file of tensors."""
    if not source.peek(4).startswith(SIGNATURES):
        records = list(read(source))
        if len(records) != 1:
            raise DataError(f"{len(records)} records (expected 1)", source.name)
        return records[0]["x"]
    image = library(source.name)
    try:
        with image.open(io.BytesIO(source.read_all()), formats=("PNG", "JPEG")) as opened:
            return np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:  # what Pillow raises
        raise DataError(f"not a PNG or JPEG that can be read: {error}", source.name) from None


def library(name: str) -> Any:
    """Pillow's Image module; UsageError says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("needs the Pillow library: pip install 'attnkit[image]'", name) from None
    return Image


def prepared(image: Array, folder: str) -> Array:
    """An image as a model takes it: float tensors as they are, pixels as its preprocessor_config.json says.

    image (C, height, width) float, or (height, width, 3) uint8 -> (C, height, width) float

    Pixels are resized, then multiplied by rescale_factor, less image_mean, divided by image_std.
    """
    if image.dtype.kind == "f":
        return image
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
        expected = "uint8 (height, width, 3), or floats (C, height, width)"
        raise DataError(f"{image.dtype} {image.shape} is no image (expected {expected})", "--image")
    path = os.path.join(folder, SETTINGS)
    settings = document(path) if exists(path) else {}
    if settings.get("do_resize", True):
        image = resized(image, settings.get("size", 224), int(settings.get("resample", 2)))
    mean, std = settings.get("image_mean", HALF), settings.get("image_std", HALF)
    if not settings.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    scale = float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0
    return model.normalised(image, mean, std, scale)


def resized(image: Array, size: Any, filter: int) -> Array:
    """Pixels resized to {height, width}, or to a square of one number, by a filter of Pillow's numbering."""
    height, width = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        raise DataError(f"size {size} (expected height and width)", SETTINGS)
    if image.shape[:2] == (height, width):
        return image
    made: Array = np.asarray(library("--image").fromarray(image).resize((width, height), filter))
    return made
