"""Classes of texts by their length in words, and the record of their scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.records import Record, Tensor

BY_LENGTH = "_by_length"  # ends the names of the scores of classes


def classify_lengths(texts: Sequence[str], width: int) -> dict[str, list[int]]:
    """The indices of texts by classes of lengths in words, shortest first.

    >>> classify_lengths(["a", "a b c", "a b", ""], 2)
    {'0': [3], '1-2': [0, 2], '3-4': [1]}
    """
    groups: dict[int, list[int]] = {}
    for at, text in enumerate(texts):
        groups.setdefault(-(-len(text.split()) // width), []).append(at)
    return {class_name(one, width): groups[one] for one in sorted(groups)}


def class_name(number: int, width: int) -> str:
    """The name of a class of lengths: 0 for empty texts, 1 for the shortest.

    >>> class_name(2, 10), class_name(3, 1)
    ('11-20', '3')
    """
    first, last = (number - 1) * width + 1, number * width
    return str(last) if number == 0 or width == 1 else f"{first}-{last}"


def with_classes(
    whole: Mapping[str, Tensor], columns: Mapping[str, Sequence[Any]], groups: Mapping[str, Sequence[int]]
) -> Record:
    """Build the record of scores of all lines, and of vectors over classes of lengths."""
    counted = {"sentences": [len(lines) for lines in groups.values()]} | dict(columns)
    vectors = {f"{name}{BY_LENGTH}": Tensor(np.array(column), ("length",)) for name, column in counted.items()}
    return Record({}).with_tensors(dict(whole) | vectors, {"length": list(groups)})
