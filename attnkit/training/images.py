"""A folder of labelled images, as of ImageFolder: a sub-folder for each label."""

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnkit import callbacks
from attnkit.errors import AttnkitNote, DataError, FileError, counted, shortened, system_reason
from attnkit.formats.memory import check_memory
from attnkit.formats.picture import read_pixels
from attnkit.formats.streams import open_source, regular_files_only
from attnkit.inputs.image_processor import ImageProcessor
from attnkit.model import Array
from attnkit.training.batches import Batch
from attnkit.training.corpus import Corpus, sampled_corpus
from attnkit.training.recipe import Recipe

SUFFIXES = (".png", ".jpg", ".jpeg")


class ImageFolder(NamedTuple):
    """The images of a folder, label by label, in the order of their names.

    name    of the folder
    files   (label, path below the folder) of each image
    """

    name: str
    files: list[tuple[str, str]]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, sorted."""
        return tuple(dict.fromkeys(label for label, _ in self.files))

    def encloses(self, folder: str) -> bool:
        """Whether another folder is this one, or in it."""
        own = os.path.realpath(self.name)
        return os.path.commonpath([own, os.path.realpath(folder)]) == own

    def digest(self) -> str:
        """The SHA-256 of the list of the files with theirs, as sha256sum prints it."""
        lines = hashlib.sha256()
        for _, path in self.files:
            with regular_files_only(), open_source(os.path.join(self.name, path), hash=True) as source:
                source.read_all()
                lines.update(os.fsencode(f"{source.digest()}  {path}\n"))
        return lines.hexdigest()


def find_images(folder: str) -> ImageFolder:
    """Find the images of a folder by suffix, at any depth below their label.

    Hidden files are left out, and others that are no PNG or JPEG, with a note. FileError for a folder that cannot be
    read; DataError for a label that is not UTF-8 or has no image, and for fewer than two labels.
    """
    labels, others = list_folder(folder)
    files = []
    for label in labels:
        place = os.path.join(folder, label)
        if label != os.fsencode(label).decode("utf-8", "replace"):
            raise DataError("the name of a label is not UTF-8", place)
        paths = [os.path.join(label, path) for path in walk_files(place)]
        own = [path for path in paths if path.lower().endswith(SUFFIXES)]
        if not own:
            raise DataError("no PNG or JPEG in it (expected the images of a label)", place)
        files += [(label, path) for path in own]
        others += [path for path in paths if not path.lower().endswith(SUFFIXES)]
    if not labels:
        raise DataError("no folders in it (expected a folder of images for each label)", folder)
    if len(labels) < 2:
        raise DataError(f"all images have the label {shortened(repr(*labels))} (expected two labels or more)", folder)
    if others:
        named = f"left out {counted(len(others), 'file')}, no PNG or JPEG of a label: {shortened(others[0])}"
        warnings.warn(f"{folder}: {named}{', …' if len(others) > 1 else ''}", AttnkitNote, stacklevel=2)
    return ImageFolder(folder, files)


def list_folder(folder: str) -> tuple[list[str], list[str]]:
    """The sorted folders and files of a folder, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            known = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except (OSError, ValueError) as error:
        raise FileError(system_reason(error), folder) from error
    return [name for name, is_folder in known if is_folder], [name for name, is_folder in known if not is_folder]


def walk_files(folder: str) -> Iterator[str]:
    """The files at any depth of a folder, folder by folder.

    Links to folders, which may lead back, are not followed.
    """
    waiting = [""]
    while waiting:
        below = waiting.pop()
        folders, files = list_folder(os.path.join(folder, below))
        yield from (os.path.join(below, name) for name in files)
        inner = [os.path.join(below, name) for name in reversed(folders)]
        waiting += [path for path in inner if not os.path.islink(os.path.join(folder, path))]


class LabelledImage(NamedTuple):
    """The pixels (height, width, 3) uint8 of an image, and the number of its label."""

    pixels: Array
    label: int


def read_images(images: ImageFolder, labels: Sequence[str], processor: ImageProcessor) -> list[LabelledImage]:
    """Read the images of a folder, resized and cropped.

    labels  of a model, in the order of their numbers

    DataError for a file that is no image, and where a processor leaves images of several sizes.
    """
    height, width = processor.usual
    check_memory(3 * height * width * len(images.files), counted(len(images.files), "image"), images.name)
    read: list[LabelledImage] = []
    for number, (label, path) in enumerate(images.files, start=1):
        name = os.path.join(images.name, path)
        with regular_files_only(), open_source(name) as source:
            pixels = processor.fit(read_pixels(source), name)
        if read and pixels.shape != read[0].pixels.shape:
            sizes = ["{1}x{0}".format(*one.shape) for one in (pixels, read[0].pixels)]
            raise DataError(f"{sizes[0]} pixels after resizing, and the first image {sizes[1]}", name)
        read.append(LabelledImage(pixels, labels.index(label)))
        callbacks.current().on_progress(f"image {number:,} of {len(images.files):,}")
    return read


def image_corpus(images: Sequence[LabelledImage], name: str, processor: ImageProcessor, recipe: Recipe) -> Corpus:
    """Batches of labelled images in random order, every image once an epoch."""

    def collate(own: Sequence[LabelledImage]) -> Batch:
        pixels = np.stack([processor.normalize(image.pixels) for image in own])
        return Batch(pixels, np.array([image.label for image in own]))

    return sampled_corpus([*images], lambda image: [1], collate, recipe, ("image", name))
