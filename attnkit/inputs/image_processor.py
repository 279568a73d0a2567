"""Read, resize and normalize images for a model."""

import re
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.checkpoints.config_reader import PREPROCESSOR, ConfigReader, read_preprocessor
from attnkit.errors import DataError
from attnkit.libraries import call_library, import_library
from attnkit.records import Array

LANCZOS, BILINEAR, BICUBIC, LAST_FILTER = 1, 2, 3, 5  # by Pillow's numbers
SMALLEST = 1e-6  # deviation of a channel
DEFAULT_SIZE = 224
MOST_PIXELS = 1 << 26  # of an image that keeps its proportion, before it is cropped
MOST_EDGE = 4096  # pixels of the longest edge of a picture that is cut into tiles
TILES, TILE = 4 * 364, 364  # pixels of that edge, and of a tile, where the file does not say
LARGER = 4  # times the usual size of its images that a model is given


class Defaults(NamedTuple):
    """What a processor of images does where its file does not say.

    resample          a filter of Pillow
    mean, std         of the channels
    crops             whether it cuts the center out
    keeps_proportion  whether a size that is one number is that of the shorter edge, not of both
    in_floats         whether pixels are resized as numbers that are not rounded
    cuts              whether it cuts a picture into tiles, which the whole follows, squeezed to a tile
    """

    resample: int = BILINEAR
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crops: bool = False
    keeps_proportion: bool = False
    in_floats: bool = False
    cuts: bool = False


CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CLIP = Defaults(BICUBIC, CLIP_MEAN, CLIP_STD, crops=True, keeps_proportion=True)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DINOV3 = Defaults(BILINEAR, IMAGENET_MEAN, IMAGENET_STD, in_floats=True)
# others do as the one of ViT
PROCESSORS = {
    **dict.fromkeys(("CLIP", "Bit", "Llava"), CLIP),
    "Siglip": Defaults(BICUBIC),
    "DINOv3ViT": DINOV3,
    **dict.fromkeys(("Idefics3", "SmolVLM"), Defaults(LANCZOS, cuts=True)),
}
REFUSED = {  # kind -> a key, and what it asks for
    "Gemma3": ("do_pan_and_scan", "crops beside the picture"),
    "Llava": ("do_pad", "a picture padded to a square"),
}
KIND = re.compile(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$")


class ImageProcessor(NamedTuple):
    """What becomes of an image before a model reads it.

    raw    the values of preprocessor_config.json, {} if there is none
    usual  height and width of the images that the model was made for
    """

    raw: ConfigReader
    usual: tuple[int, int]

    @property
    def kind(self) -> str:
        """Its class in transformers, without what all of these have in their names."""
        kind = self.raw.get_str("image_processor_type", self.raw.get_str("feature_extractor_type", "ViT"))
        return KIND.sub("", kind)

    @property
    def known(self) -> Defaults:
        """What its kind does where the file does not say."""
        return PROCESSORS.get(self.kind, Defaults())

    def fit(self, image: Array, name: str) -> Array:
        """Resize and crop pixels (height, width, 3) uint8.

        name: that of the image in errors
        """
        check_pixels(image, name)
        if self.known.cuts:
            return self.cut(image, name)[-1]
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
        if known.cuts:
            return 2 * (self.tile_edge(given),)
        key, what = REFUSED.get(self.kind, ("", ""))
        if key and raw.get_bool(key, False):
            raise raw.error(f"{key} true is not supported: {what}")
        resizes, crops = raw.get_bool("do_resize", True), raw.get_bool("do_center_crop", known.crops)
        size = find_size(raw, given, known, self.usual, name) if resizes else given
        return size, read_sides(raw, "crop_size", self.usual) if crops else size

    def tile_edge(self, given: tuple[int, int]) -> tuple[int, int]:
        """The height and width of each tile, or of a picture that is not cut."""
        if not self.known.cuts:
            size, crop = self.sizes(given, "--image")
            return crop if self.raw.get_bool("do_center_crop", self.known.crops) else size
        edge = self.raw.get_object("max_image_size").get_int("longest_edge", TILE)
        check_sides(self.raw, (edge, edge), self.usual, "max_image_size")
        return edge, edge

    def whole_size(self, given: tuple[int, int]) -> tuple[int, int]:
        """The size that a picture is resized to before it is cut: multiples of a tile."""
        edge, (height, width) = self.tile_edge(given)[0], self.first_size(given)
        share = width / height
        if width >= height:
            width = to_multiple(width, edge)
            return to_multiple(int(width / share), edge), width
        height = to_multiple(height, edge)
        return height, to_multiple(int(height * share), edge)

    def first_size(self, given: tuple[int, int]) -> tuple[int, int]:
        """The size that a picture is resized to before it is fitted to tiles."""
        size = self.raw.get_object("size")
        if not self.raw.get_bool("do_resize", True):
            return given
        if size.has("height"):
            return read_sides(self.raw, "size", self.usual)
        return fit_longest(given, size.get_int("longest_edge", TILES))

    def tile_grid(self, given: tuple[int, int]) -> tuple[int, int]:
        """The rows and columns of the tiles of a picture; 0 of one that is not cut."""
        if not self.known.cuts or not self.raw.get_bool("do_image_splitting", True):
            return 0, 0
        edge, (height, width) = self.tile_edge(given)[0], self.whole_size(given)
        return (height // edge, width // edge) if max(height, width) > edge else (0, 0)

    def cut(self, image: Array, name: str) -> list[Array]:
        """The tiles of a picture, row by row, and the whole after them.

        image (height, width, 3) uint8 -> of each the same
        """
        check_pixels(image, name)
        if not self.known.cuts:
            return [self.fit(image, name)]
        raw, given = self.raw, image.shape[:2]
        edge, (rows, columns) = self.tile_edge(given), self.tile_grid(given)
        resample = raw.get_int("resample", self.known.resample, least=0, most=LAST_FILTER)
        for size in (self.first_size(given), *[self.whole_size(given)] * bool(rows)):
            image = resize_pixels(image, size, resample, name)
        side = edge[0]
        tiles = [
            image[row * side : (row + 1) * side, column * side : (column + 1) * side]
            for row in range(rows)
            for column in range(columns)
        ]
        return [*tiles, resize_pixels(image, edge, resample, name)]

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


def check_pixels(image: Array, name: str) -> None:
    """Raise DataError for an array that is no picture, (height, width, 3) uint8."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3 or 0 in image.shape:
        expected = "uint8 (height, width, 3), or floats (C, height, width)"
        raise DataError(f"{image.dtype} {image.shape} is no image (expected {expected})", name)


def fit_longest(given: tuple[int, int], longest: int) -> tuple[int, int]:
    """The height and width of a picture whose longest edge gets a length.

    The other edge keeps the proportion, made even; none is longer than 4096.

    >>> fit_longest((386, 386), 2048), fit_longest((300, 1000), 512), fit_longest((10, 10000), 8192)
    ((2048, 2048), (154, 512), (4, 4096))
    """
    share = given[1] / given[0]
    if given[1] >= given[0]:
        height, width = int(longest / share), longest
        height += height % 2
    else:
        height, width = longest, int(longest * share)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    share = width / height
    if width >= height and width > MOST_EDGE:
        height, width = int(MOST_EDGE / share), MOST_EDGE
    elif height > width and height > MOST_EDGE:
        height, width = MOST_EDGE, int(MOST_EDGE * share)
    return max(height, 1), max(width, 1)


def to_multiple(length: int, step: int) -> int:
    """The least multiple of a step that is not below a length.

    >>> to_multiple(513, 512), to_multiple(512, 512)
    (1024, 512)
    """
    return -(-length // step) * step


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
