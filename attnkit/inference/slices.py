"""Slices of tensors as text: numbers, ranges and labels, in the order of the axes."""

import re
from collections.abc import Callable, Sequence
from types import EllipsisType

from attnkit.errors import UsageError
from attnkit.record import Labels, find_label, shared_labels

Index = slice | int | str | EllipsisType
ALL = slice(None)


def parse_slice(text: str) -> tuple[Index, ...]:
    """Parse a slice as NumPy writes it; what is no number and no range is the label of an index.

    >>> parse_slice("0,:,2:5"), parse_slice("...,The")
    ((0, slice(None, None, None), slice(2, 5, None)), (Ellipsis, 'The'))
    """
    index: list[Index] = []
    for part in text.split(","):
        if re.fullmatch(r"\s*-?[0-9]+\s*", part, re.ASCII):
            index.append(int(part))
        elif re.fullmatch(r"\s*(-?[0-9]+)?\s*:\s*(-?[0-9]+)?\s*(:\s*(-?[1-9][0-9]*)?\s*)?", part, re.ASCII):
            index.append(slice(*(int(bound) if bound.strip() else None for bound in part.split(":"))))
        elif part.strip() == "..." and ... not in index:
            index.append(...)
        elif part.strip() != "..." and not re.fullmatch(r"[-0-9:\s]*", part):
            index.append(part.strip())
        else:
            raise ValueError("a slice such as 0,:,2:5")
    return tuple(index)


def fill_index(
    index: Sequence[Index],
    axes: Sequence[str],
    labels_of: Callable[[int], Labels | None],
    name: str,
    shape: Sequence[int],
) -> tuple[slice | int, ...]:
    """Return an index of all axes of a tensor: `...` filled up, labels replaced by the indices that have them.

    labels_of  the labels of a dimension by its number
    name       of the tensor, and its shape, for errors: UsageError for more indices than axes, and for a label that
               no index or several indices have

    >>> fill_index((..., "cat"), ("head", "query"), lambda at: ["The", "cat"], "weights", (4, 2))
    (slice(None, None, None), 1)
    """
    if len(index) - (... in index) > len(axes):
        raise UsageError(f"{len(index)} indices for {name} of shape {tuple(shape)}")
    at = index.index(...) if ... in index else len(index)
    filled = (*index[:at], *[ALL] * (len(axes) - len(index) + (... in index)), *index[at + 1 :])
    placed: list[slice | int] = []
    for dimension, part in enumerate(filled):
        if isinstance(part, str):
            part = find_label(shared_labels(labels_of(dimension)), part, f"axis {axes[dimension]} of {name}")
        placed.append(part)  # type: ignore[arg-type]
    return tuple(placed)


def check_bound(part: slice | int, axis: str, size: int) -> None:
    """Raise UsageError for an index outside an axis of that size."""
    if isinstance(part, int) and not -size <= part < size:
        raise UsageError(f"index {part} is outside axis {axis} of size {size}")
