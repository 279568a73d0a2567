"""Read, resize and normalize images for a model."""

import re
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.checkpoints.config_reader import PREPROCESSOR, ConfigReader, read_preprocessor
from attnkit.errors import DataError
from attnkit.libraries import call_library, import_library
from attnkit.records import Array

BILINEAR, BICUBIC, LAST_FILTER = 2, 3, 5  # by Pillow's numbers
SMALLEST = 1e-6  # deviation of a channel
DEFAULT_SIZE = 224
MOST_PIXELS = 1 << 26  # of an image that keeps its proportion, before it is cropped
LARGER = 4  # times the usual size of its images that a model is given


class Defaults(NamedTuple):
    """What a processor of images does where its file does not say.

    resample          a filter of Pillow
    mean, std         of the channels
    crops             whether it cuts the center out
    keeps_proportion  whether a size that is one number is that of the shorter edge, not of both
    in_floats         whether pixels are resized as numbers that are not rounded
    """

    resample: int = BILINEAR
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crops: bool = False
    keeps_proportion: bool = False
    in_floats: bool = False


CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CLIP = Defaults(BICUBIC, CLIP_MEAN, CLIP_STD, crops=True, keeps_proportion=True)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DINOV3 = Defaults(BILINEAR, IMAGENET_MEAN, IMAGENET_STD, in_floats=True)
# others do as the one of ViT
PROCESSORS = {"CLIP": CLIP, "Bit": CLIP, "Siglip": Defaults(BICUBIC), "DINOv3ViT": DINOV3}
KIND = re.compile(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$")


class ImageProcessor(NamedTuple):
    """What becomes of an image before a model reads it.

    raw    the values of preprocessor_config.json, {} if there is none
    usual  height and width of the images that the model was made for
    """

    raw: ConfigReader
    usual: tuple[int, int]

    @property
    def known(self) -> Defaults:
        """What its kind does where the file does not say."""
        kind = self.raw.get_str("image_processor_type", self.raw.get_str("feature_extractor_type", "ViT"))
        return PROCESSORS.get(KIND.sub("", kind), Defaults())

    def fit(self, image: Array, name: str) -> Array:
        """Resize and crop pixels (height, width, 3) uint8.

        name: that of the image in errors
        """
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3 or 0 in image.shape:
            expected = "uint8 (height, width, 3), or floats (C, height, width)"
            raise DataError(f"{image.dtype} {image.shape} is no image (expected {expected})", name)
        raw, known = self.raw, self.known
        size, crop = self.sizes(image.shape[:2], name)
        if raw.get_bool("do_resize", True):
            image = image.astype(np.float32) if known.in_floats else image
            image = resize_pixels(image, size, raw.get_int("resample", known.resample, least=0, most=LAST_FILTER), name)
        return crop_center(image, crop)

    def sizes(self, given: tuple[int, int], name: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """The sizes that an image is resized to, and that are cut from its center.

        Each is a height and a width.
        """
        raw, known = self.raw, self.known
        resizes, crops = raw.get_bool("do_resize", True), raw.get_bool("do_center_crop", known.crops)
        size = find_size(raw, given, known, self.usual, name) if resizes else given
        return size, read_sides(raw, "crop_size", self.usual) if crops else size

    def box(self, given: tuple[int, int], name: str) -> Array:
        """The edges of the part that `fit` cuts out, as shares of the image.

        Left, top, right and bottom.

        An edge is outside of 0 and 1 if there are zeros around the image.
        """
        (height, width), (rows, columns) = self.sizes(given, name)
        left, top = (width - columns) // 2, (height - rows) // 2
        return np.array([left / width, top / height, (left + columns) / width, (top + rows) / height])

    def normalize(self, image: Array) -> Array:
        """Normalize pixels: times rescale_factor, less image_mean, by image_std.

        (height, width, 3) uint8

        -> (3, height, width) float32
        """
        raw, known = self.raw, self.known
        normalizes, rescales = raw.get_bool("do_normalize", True), raw.get_bool("do_rescale", True)
        mean = raw.get_floats("image_mean", known.mean) if normalizes else [0.0] * 3
        std = raw.get_floats("image_std", known.std, least=SMALLEST) if normalizes else [1.0] * 3
        return model.normalize_pixels(image, mean, std, raw.get_float("rescale_factor", 1 / 255) if rescales else 1.0)


def read_processor(folder: str, usual: tuple[int, int]) -> ImageProcessor:
    """The processor of the images of a model in a folder."""
    return ImageProcessor(read_preprocessor(folder), usual)


def new_processor(height: int, width: int) -> ImageProcessor:
    """The processor of a new model: pixels between -1 and 1, as ViT's."""
    defaults = Defaults()
    raw = {
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [*defaults.mean],
        "image_std": [*defaults.std],
        "resample": defaults.resample,
        "rescale_factor": 1 / 255,
        "size": {"height": height, "width": width},
    }
    return ImageProcessor(ConfigReader(raw, PREPROCESSOR), (height, width))


def prepare_image(image: Array, folder: str, usual: tuple[int, int]) -> tuple[Array, Array | None]:
    """Prepare an image as preprocessor_config.json specifies; floats stay unchanged.

    image (C, height, width) float, or (height, width, 3) uint8 -> (C, height, width) float, and the edges of what it
    shows of the image, None for floats
    usual  height and width of the images that the model was made for

    Pixels are resized, cropped, then normalized.
    """
    if image.dtype.kind == "f":
        return image, None
    processor = read_processor(folder, usual)
    pixels = processor.normalize(processor.fit(image, "--image"))
    return pixels, processor.box(image.shape[:2], "--image")


def find_size(
    raw: ConfigReader, given: tuple[int, int], known: Defaults, usual: tuple[int, int], name: str
) -> tuple[int, int]:
    """The height and width to which an image of a given size is resized.

    name: that of the image in errors
    """
    sizes = raw.values.get("size")
    edge = sizes.get("shortest_edge") if isinstance(sizes, dict) else sizes if known.keeps_proportion else None
    if edge is None and not (known.keeps_proportion and sizes is None):
        return read_sides(raw, "size", usual)
    if isinstance(sizes, dict) and sizes.get("longest_edge") is not None:
        raise raw.error("size with longest_edge is not supported")
    shortest = ConfigReader({"shortest_edge": edge}, raw.name).get_int("shortest_edge", DEFAULT_SIZE)
    check_sides(raw, (shortest, shortest), usual, "size")
    short, long = min(given), max(given)
    longer = int(shortest * long / short)
    if shortest * longer > MOST_PIXELS:
        raise DataError(f"{given[1]}x{given[0]} pixels are too narrow to resize to an edge of {shortest}", name)
    return (longer, shortest) if given[1] <= given[0] else (shortest, longer)


def read_sides(raw: ConfigReader, key: str, usual: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a key, from an object or from one number for both."""
    sizes = raw.values.get(key)
    inner = ConfigReader(sizes, raw.name) if isinstance(sizes, dict) else None
    sides = (inner.get_int("height"), inner.get_int("width")) if inner else 2 * (raw.get_int(key, DEFAULT_SIZE),)
    check_sides(raw, sides, usual, key)
    return sides


def check_sides(raw: ConfigReader, sides: tuple[int, int], usual: tuple[int, int], key: str) -> None:
    """Raise DataError for an image much larger than those that a model was made for."""
    if sides[0] > LARGER * usual[0] or sides[1] > LARGER * usual[1]:
        expected = f"expected at most {LARGER} times the {usual[0]}x{usual[1]} of the model"
        raise raw.error(f"{key} {sides[0]}x{sides[1]} ({expected})")


def resize_pixels(image: Array, size: tuple[int, int], resample: int, name: str) -> Array:
    """Resize an image (height, width, 3) by a filter of Pillow.

    The filter widens for a smaller image.

    Numbers of uint8 are rounded, floats are not.
    """
    if image.shape[:2] == size:
        return image
    with call_library("cannot be resized", name):
        pillow = import_library("PIL.Image", "image", name)
        if image.dtype == np.uint8:
            return np.asarray(pillow.fromarray(image).resize(size[::-1], resample))
        channels = [pillow.fromarray(one).resize(size[::-1], resample) for one in np.moveaxis(image, -1, 0)]
        return np.stack([np.asarray(one) for one in channels], axis=-1)


def crop_center(image: Array, size: tuple[int, int]) -> Array:
    """Cut the center out of an image; zeros are around a smaller one.

    image (H, W, C), size (height, width) -> (height, width, C)

    >>> crop_center(np.array([[[1], [2], [3], [4]]]), (1, 2)).ravel().tolist()
    [2, 3]
    >>> crop_center(np.array([[[1], [2], [3], [4]]]), (2, 2))[..., 0].tolist()
    [[0, 0], [2, 3]]
    """
    places, sources = [], []
    for old, new in zip(image.shape, size, strict=False):
        first, at = max((old - new) // 2, 0), max(-((old - new) // 2), 0)
        sources.append(slice(first, first + new))
        places.append(slice(at, at + min(old, new)))
    cropped = np.zeros((*size, image.shape[-1]), image.dtype)
    cropped[places[0], places[1]] = image[sources[0], sources[1]]
    return cropped
