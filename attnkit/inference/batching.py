"""Records of texts that were computed one by one, as one batch."""

from collections.abc import Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.inference.options import GenerationOptions
from attnkit.inference.prompts import Prompt
from attnkit.record import Array, Labels, Record, shared_labels

TOKENS = ("token", "query", "key")


class PadLayout:
    """Where the tokens of each text stand in a batch: one behind another from the first column on, unless said.

    given  of each text the columns of its tokens, in a batch of `width` columns
    """

    def __init__(self, given: Sequence[Array] | None = None, width: int = 0) -> None:
        self._given, self._width = given, width

    @property
    def padded(self) -> bool:
        """Whether the texts came in a padded batch, whose columns these are."""
        return self._given is not None

    def along(self, axis: str, sizes: Sequence[int]) -> tuple[list[Array], int]:
        """Where along an axis the last entries of each text stand, and how many places there are.

        sizes  the entries of each text

        Where the first token of a text has none (nothing comes before it that would predict it), the first column
        is left out.

        >>> PadLayout([np.array([1, 2]), np.array([0, 1, 2])], 3).along("token", [1, 2])
        ([array([1]), array([0, 1])], 2)
        """
        if self._given is None or axis not in TOKENS:
            return [np.arange(size) for size in sizes], max(sizes)
        first = max(0, *(len(at) - size for at, size in zip(self._given, sizes, strict=True)))
        return [at[first:] - first for at in self._given], self._width - first


def pad_layout(begun: Sequence[Prompt], asked: GenerationOptions) -> PadLayout:
    """Those of the padded batch that the texts came in, where it is its own tokens that are scored."""
    given = [start.columns for start in begun if start.columns is not None]
    if not given or asked.score is not None or asked.cache_in is not None or len(given) < len(begun):
        return PadLayout()
    return PadLayout(given, begun[0].width)


def pad_records(made: Sequence[Record], padding: str, columns: PadLayout | None) -> Record:
    """The records of several texts as one batch, zeros where a text has no token; the one record without columns."""
    if not made:
        raise DataError("a batch without rows (expected one or more)")
    if columns is None:
        return made[0]
    arrays, axes = {}, {}
    places: dict[str, tuple[list[Array], int]] = {}
    for name in made[0]:
        own = made[0].axes_of(name)
        axes[name] = own[own[:1] == ("batch",) :]
        rows = [one[name].reshape(one[name].shape[len(own) - len(axes[name]) :]) for one in made]
        along = [columns.along(axis, [row.shape[at] for row in rows]) for at, axis in enumerate(axes[name])]
        places |= dict(zip(axes[name], along, strict=True))
        arrays[name] = np.zeros((len(rows), *(size for _, size in along)), rows[0].dtype)
        for text, row in enumerate(rows):
            found = [places_of[text] for places_of, _ in along]
            last = tuple(slice(size - len(at), None) for at, size in zip(found, row.shape, strict=True))
            arrays[name][text][np.ix_(*found)] = row[last]
    labels: dict[str, Labels] = {}
    for axis in made[0].labels:
        every = [shared_labels(one.labels.get(axis)) for one in made]
        if axis == "text":
            labels[axis] = [word for row in every for word in row]
        elif axis in (*TOKENS, "source"):
            where, size = places[axis]
            labels[axis] = [pad_labels(row, at, size, padding) for row, at in zip(every, where, strict=True)]
        else:
            labels[axis] = every[0]
    return Record({}).put(arrays, {name: ("batch", *axes[name]) for name in axes}, labels, made[0].formulas)


def add_padding_mask(record: Record, lead: tuple[str, ...], sizes: Sequence[int], columns: PadLayout) -> Record:
    """The record of a batch that is padded, or came so, with the mask of its tokens.

    lead   the axis of the texts; sizes: how many tokens each has
    """
    if not columns.padded and len({*sizes}) < 2:
        return record
    where, size = columns.along("token", sizes)
    mask = np.zeros((len(where), 1, size), bool)
    for row, at in zip(mask, where, strict=True):
        row[0, at] = True
    labels = {"key": record.labels["token"]} if "token" in record.labels else {}
    return record.put({"mask": mask}, {"mask": (*lead, "all queries", "key")}, labels, {"mask": "token ≠ padding"})


def pad_labels(names: Sequence[str], places: Array, size: int, padding: str) -> list[str]:
    """The last of some names at their places, padding at the others.

    >>> pad_labels(["the", "cat"], np.array([1, 2]), 3, "[PAD]")
    ['[PAD]', 'the', 'cat']
    """
    row = [padding] * size
    for at, name in zip(places, names[len(names) - len(places) :], strict=True):
        row[at] = name
    return row
