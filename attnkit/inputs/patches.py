"""Tokens of an image: names by the places of patches, and maps over patches."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.model.config import PatchConfig
from attnkit.records import Array, Labels, Record, Tensor, join_names, row_labels

BOX, EDGES = "box", ("left", "top", "right", "bottom")  # the tensor of the part that the patches cover, its labels
WHOLE = np.array([0.0, 0.0, 1.0, 1.0])
CLASS, REGISTER = "cls", "reg"
PATCH = re.compile(r"r([0-9]{1,6})c([0-9]{1,6})", re.ASCII)
LABELLED = "encode --image names the patches r0c0, r0c1 …"


def name_patches(patches: PatchConfig, height: int, width: int) -> list[str]:
    """Name the tokens of an image: class token, registers, patches by place.

    Patches have a row and a column.

    >>> name_patches(PatchConfig(4, 6, 2, 3, registers=1), 4, 6)
    ['cls', 'reg0', 'r0c0', 'r0c1', 'r1c0', 'r1c1']
    """
    rows, columns = patches.grid(height, width)
    first = [CLASS] * patches.has_class + [f"{REGISTER}{at}" for at in range(patches.registers)]
    return first + [f"r{row}c{column}" for row in range(rows) for column in range(columns)]


def describe_image(patches: PatchConfig, shape: tuple[int, ...], box: Array | None) -> Record:
    """The record of an image (..., C, height, width): token names and patch box.

    box  left, top, right and bottom edge of the image, as shares of the picture; None: not known
    """
    names = name_patches(patches, *shape[-2:]) if len(shape) > 2 else []
    labels: dict[str, Labels] = {"token": names if len(shape) < 4 else [names] * shape[0]} if names else {}
    if box is not None:
        height, width = patches.covered(np.empty(shape[-2:], bool)).shape
        corner = box[:2]
        box = np.concatenate([corner, corner + (box[2:] - corner) * (width / shape[-1], height / shape[-2])])
    return Record({} if box is None else {BOX: Tensor(box, ("edge",), {"edge": [*EDGES]})}, labels)


def find_box(record: Record) -> Record:
    """The box of a record alone; an empty record if it has none.

    >>> [*find_box(Record({"x": np.zeros(2), "box": WHOLE}))]
    ['box']
    """
    return record.select([BOX]) if BOX in record else Record({})


def check_picture(pixels: Array, name: str) -> None:
    """Raise DataError for an array that is no picture (height, width, 3) uint8."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3 or not pixels.size:
        raise DataError(f"{pixels.dtype} {pixels.shape} is no picture (expected PNG or JPEG)", name)


def read_box(record: Record) -> Array:
    """The box of a record, or the whole picture with a note.

    DataError if it is no box.
    """
    box = record.get(BOX)
    if box is None:
        note = (
            f"no tensor {BOX}, which states what the model reads of the picture: the patches are drawn over all of it"
        )
        warnings.warn(note, AttnkitNote, stacklevel=2)
        return WHOLE
    sides = box.astype(np.float64) if box.dtype.kind == "f" and box.shape == (4,) else np.zeros(4)
    if not (np.isfinite(sides).all() and (np.abs(sides) <= 1 << 20).all() and (sides[2:] - sides[:2] > 1e-6).all()):
        raise DataError.about(BOX, f"{box.dtype} {box.shape} is no box (expected left, top, right and bottom edge)")
    return sides


def find_grid(names: Sequence[str]) -> tuple[list[int], tuple[int, int]]:
    """The indices of the patches among the tokens, and their rows and columns.

    No index if there are no patches, or if they are not a whole grid in its order.

    >>> find_grid(["cls", "r0c0", "r0c1"]), find_grid(["the", "cat"]), find_grid(["r0c1"])
    (([1, 2], (1, 2)), ([], (0, 0)), ([], (0, 0)))
    """
    places = {at: (int(match[1]), int(match[2])) for at, name in enumerate(names) if (match := PATCH.fullmatch(name))}
    rows, columns = (max((place[side] for place in places.values()), default=-1) + 1 for side in (0, 1))
    whole = len(places) == rows * columns and [*places.values()] == [*np.ndindex(rows, columns)]
    return ([*places], (rows, columns)) if whole else ([], (0, 0))


def count_patch_names(names: Sequence[str]) -> int:
    return sum(PATCH.fullmatch(name) is not None for name in names)


def find_patch_axes(record: Record, whole: Record, name: str) -> tuple[int, dict[int, int]]:
    """The axis of a tensor to map over patches.

    Of others with patches the index of the class token is taken.

    whole  the record of which this is a part, by whose patches a part of them is recognized

    The axis is the last one with all patches: of weights the keys. DataError if there is none; UsageError if there is
    a part of the patches alone, and if another axis of all patches has no class token.
    """
    axes = record.axes_of(name)
    names = [row_labels(record.labels.get(axis), 0) for axis in axes]
    kept = [count_patch_names(labels) for labels in names]
    known = [count_patch_names(row_labels(whole.labels.get(axis), 0)) for axis in axes]
    over = [at for at, labels in enumerate(names) if find_grid(labels)[0] and kept[at] == known[at]]
    if not over and any(kept):
        at = max(range(len(axes)), key=kept.__getitem__)
        raise UsageError(f"{kept[at]} of the {known[at]} patches of axis {axes[at]} (expected all)", "--slice")
    if not over:
        shape = record[name].shape
        raise DataError.about(name, f"{shape} has no axis of patches (it has {join_names(axes)}); {LABELLED}")
    for at in over[:-1]:
        if CLASS not in names[at]:
            places = ",".join("r0c0" if one == at else ":" for one in range(len(axes)))
            raise UsageError(f"{name} has patches on axis {axes[at]} too; choose one: --slice {places}", "--over")
    return over[-1], {at: names[at].index(CLASS) for at in over[:-1]}


def arrange_patches(record: Record, whole: Record, name: str) -> tuple[Tensor, str]:
    """Maps of a tensor over the patches of an image, and their place: "query cls".

    (..., token, ...) -> (..., row, column). Tokens that are no patches are left out. For errors see `find_patch_axes`.

    >>> record = Record({"x": Tensor(np.array([9, 5, 7]), ("token",), {"token": ["cls", "r0c0", "r1c0"]})})
    >>> tensor, _ = arrange_patches(record, record, "x")
    >>> tensor.array.tolist(), tensor.axes
    ([[5], [7]], ('row', 'column'))
    """
    one, axes = record.tensors[name], record.axes_of(name)
    over, classes = find_patch_axes(record, whole, name)
    patches, grid = find_grid(row_labels(record.labels.get(axes[over]), 0))
    cells = one.array[tuple(classes.get(at, slice(None)) for at in range(over + 1))]
    cells = np.moveaxis(cells, over - len(classes), -1)[..., patches]
    rest = [axis for at, axis in enumerate(axes) if at != over and at not in classes]
    maps = replace(one, array=cells.reshape(*cells.shape[:-1], *grid), axes=(*rest, "row", "column"))
    return maps, ", ".join(f"{axes[at]} {CLASS}" for at in classes)
