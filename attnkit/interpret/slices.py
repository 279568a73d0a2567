"""Slices of tensors as text: numbers, ranges and labels, in the order of the axes."""

import re
from collections.abc import Callable, Sequence
from types import EllipsisType

from attnkit.errors import UsageError
from attnkit.records import Labels, find_label, shared_labels

Index = slice | int | str | EllipsisType | list[int | str]
Place = slice | int | list[int]
ALL = slice(None)
RANGE = re.compile(r"\s*(-?[0-9]{1,18})?\s*:\s*(-?[0-9]{1,18})?\s*(:\s*(-?[1-9][0-9]{0,17})?\s*)?", re.ASCII)
# of several, or one number: [CLS] is a label
LIST = re.compile(r"\s*\[(-?[0-9]{1,18}|[^\[\]]*,[^\[\]]*)\]\s*", re.ASCII)


def parse_slice(text: str) -> tuple[Index, ...]:
    """Parse a slice as NumPy writes it, with labels in place of numbers.

    >>> parse_slice("0,:,2:5"), parse_slice("...,The"), parse_slice("[1,cat#2],:")
    ((0, slice(None, None, None), slice(2, 5, None)), (Ellipsis, 'The'), ([1, 'cat#2'], slice(None, None, None)))
    >>> parse_slice("9" * 5000)
    Traceback (most recent call last):
    ValueError: a slice such as 0,:,2:5
    """
    index: list[Index] = []
    for part in re.split(r",(?![^\[]*\])", text):  # at commas outside brackets
        if LIST.fullmatch(part):
            items = [item.strip() for item in part.strip()[1:-1].split(",")]
            if not all(items) or any(re.fullmatch("-?[0-9]{19,}", item, re.ASCII) for item in items):
                raise ValueError("a slice such as 0,:,2:5")
            index.append([int(item) if re.fullmatch("-?[0-9]+", item, re.ASCII) else item for item in items])
        elif re.fullmatch(r"\s*-?[0-9]{1,18}\s*", part, re.ASCII):
            index.append(int(part))
        elif RANGE.fullmatch(part):
            index.append(slice(*(int(bound) if bound.strip() else None for bound in part.split(":"))))
        elif part.strip() == "..." and ... not in index:
            index.append(...)
        elif part.strip() != "..." and not re.fullmatch(r"[-0-9:\s]*", part):
            index.append(part.strip())
        else:
            raise ValueError("a slice such as 0,:,2:5")
    return tuple(index)


def parse_element(text: str) -> tuple[str, tuple[Index, ...]]:
    """Parse a tensor or cells of it, NAME or NAME[SLICE]: (name, index).

    >>> parse_element("x"), parse_element("probs[1,cat]")
    (('x', ()), ('probs', (1, 'cat')))
    """
    match = re.fullmatch(r"(?P<name>[^\[\]]+)(\[(?P<slice>.+)\])?", text)
    if match is None:
        raise ValueError("NAME[INDEX]")
    return match["name"], parse_slice(match["slice"]) if match["slice"] else ()


def fill_index(
    index: Sequence[Index],
    axes: Sequence[str],
    labels_of: Callable[[int], Labels | None],
    name: str,
    shape: Sequence[int],
) -> tuple[Place, ...]:
    """Complete an index of a tensor: `...` filled up, labels replaced by indices.

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
    placed: list[Place] = []
    for dimension, part in enumerate(filled):
        labels, place = shared_labels(labels_of(dimension)), f"axis {axes[dimension]} of {name}"
        if isinstance(part, list):
            placed.append([find_label(labels, one, place) if isinstance(one, str) else one for one in part])
        else:
            placed.append(find_label(labels, part, place) if isinstance(part, str) else part)  # type: ignore[arg-type]
    return tuple(placed)


def check_bound(part: Place, axis: str, size: int) -> None:
    for at in part if isinstance(part, list) else [part]:
        if isinstance(at, int) and not -size <= at < size:
            raise UsageError(f"index {at} is outside axis {axis} of size {size}")
