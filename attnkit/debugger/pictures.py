"""The first node of the graph of an image, which makes a model's input."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.inputs.image_processor import ImageProcessor, crop_center
from attnkit.model.dtypes import Array
from attnkit.model.graph.embeddings import FILTERS, Filter
from attnkit.model.graph.nodes import Kind, Node, Scope

ROUNDED = 1.01  # grey levels by which a pixel that two programs resized may differ


class PictureInput(NamedTuple):
    """A picture: its pixels (height, width, 3) uint8, and how a model reads them.

    Floats (C, height, width) are what the model reads.
    """

    pixels: Array
    processor: ImageProcessor


def _pixels(scope: Scope) -> Array:
    """What an image processor makes of the picture: (1, C, height, width)."""
    return prepare_pixels(scope.option("picture"), **scope.option("preparation", {}))


def prepare_pixels(
    picture: PictureInput,
    values: Mapping[str, Any] | None = None,
    resampling: str = "",
    rounds: bool = True,
    channels: int = 1,
    planes: int = 1,
    transposes: bool = False,
) -> Array:
    """What becomes of a picture before a model reads it: (1, C, height, width).

    values      of preprocessor_config.json instead
    resampling  one of FILTERS that resizes the picture; "": that of the processor
    rounds      whether it rounds the pixels
    channels    the step at which channels are taken before pixels are normalized, -1 to reverse them; planes: after it
    transposes  whether rows and columns are exchanged
    """
    pixels, processor = picture
    if pixels.dtype.kind == "f":
        return pixels.reshape(1, *pixels.shape[-3:])
    processor = processor._replace(raw=processor.raw.replaced({**processor.raw.values.plain, **(values or {})}))
    weigh = FILTERS.get(resampling)
    fitted = _resample(pixels, processor, weigh, rounds) if weigh else processor.fit(pixels, "--image")
    image = processor.normalize(fitted[..., ::channels])[None, ::planes]
    return image.swapaxes(-1, -2) if transposes else image


def pixel_noise(picture: PictureInput, resampling: str = "", rounds: bool = True, **others: Any) -> float:
    """How far the pixels of two correct programs may differ, beside last digits.

    A resized pixel may be rounded to the next grey level. The arguments are those of `prepare_pixels`.
    """
    pixels, processor = picture
    is_rounded = rounds and (resampling or not processor.known.in_floats)
    if (
        pixels.dtype.kind == "f"
        or not is_rounded
        or processor.sizes(pixels.shape[:2], "--image")[0] == pixels.shape[:2]
    ):
        return 0.0
    dark, light = (processor.normalize(np.full((1, 1, pixels.shape[-1]), level, np.uint8)) for level in (0, 1))
    return float(np.abs(light - dark).max()) * ROUNDED


def _resample(pixels: Array, processor: ImageProcessor, weigh: Filter, rounds: bool) -> Array:
    """Resize and crop a picture by a filter that does not widen for a smaller one."""
    size, crop = processor.sizes(pixels.shape[:2], "--image")
    down, across = (weigh(old, new) for old, new in zip(pixels.shape[:2], size, strict=True))
    resized = np.einsum("ir,jc,rcd->ijd", down, across, pixels.astype(np.float64), optimize=True)
    return crop_center(np.clip(np.round(resized), 0, 255) if rounds else resized, crop)


KINDS = {
    "pixels": Kind(value=_pixels),
}


def pixel_node(picture: PictureInput) -> Node:
    """The node that makes the pixels of a picture."""
    return Node("pixels", "pixels", (), prepare_pixels(picture).shape, options={"picture": picture})
