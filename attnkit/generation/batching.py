"""Pad and stack the records of several texts, computed one by one, into one batch."""

from collections.abc import Mapping, Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.generation.options import GenerationOptions
from attnkit.generation.prompts import Prompt
from attnkit.record import Array, Labels, Record, Tensor, shared_labels

TOKENS = ("token", "query", "key")


class PadLayout:
    """The columns of the tokens of each text in a batch: by default from the first column on.

    columns  of each text the columns of its tokens, in a batch of `width` columns
    """

    def __init__(self, columns: Sequence[Array] | None = None, width: int = 0) -> None:
        self._columns, self._width = columns, width

    @property
    def is_padded(self) -> bool:
        """Whether the texts came in a padded batch, whose columns these are."""
        return self._columns is not None

    def along(self, axis: str, sizes: Sequence[int]) -> tuple[list[Array], int]:
        """Return the places of the last entries of each text along an axis, and how many places there are.

        sizes  the entries of each text

        The first column is dropped where the first token of a text has no entry, as no token predicts it.

        >>> PadLayout([np.array([1, 2]), np.array([0, 1, 2])], 3).along("token", [1, 2])
        ([array([1]), array([0, 1])], 2)
        """
        if self._columns is None or axis not in TOKENS:
            return [np.arange(size) for size in sizes], max(sizes)
        first = max(0, *(len(at) - size for at, size in zip(self._columns, sizes, strict=True)))
        return [at[first:] - first for at in self._columns], self._width - first


def pad_layout(prompts: Sequence[Prompt], options: GenerationOptions) -> PadLayout:
    """Return the columns of the padded batch that prompts came in, where their own tokens are scored."""
    columns = [prompt.columns for prompt in prompts if prompt.columns is not None]
    if not columns or options.score is not None or options.cache_in is not None or len(columns) < len(prompts):
        return PadLayout()
    return PadLayout(columns, prompts[0].width)


def pad_records(records: Sequence[Record], padding: str, layout: PadLayout | None) -> Record:
    """Return the records of several texts as one batch, zeros at padding; the only record without a layout."""
    if not records:
        raise DataError("a batch without rows (expected one or more)")
    if layout is None:
        return records[0]
    tensors: dict[str, Tensor] = {}
    places: dict[str, tuple[list[Array], int]] = {}
    for name in records[0]:
        own = records[0].axes_of(name)
        axes = own[own[:1] == ("batch",) :]
        rows = [record[name].reshape(record[name].shape[len(own) - len(axes) :]) for record in records]
        along = [layout.along(axis, [row.shape[at] for row in rows]) for at, axis in enumerate(axes)]
        places |= dict(zip(axes, along, strict=True))
        formula = records[0].tensors[name].formula
        tensors[name] = Tensor(pad_arrays(rows, along), ("batch", *axes), formula=formula)
    return Record({}).with_tensors(tensors, batch_labels(records, places, padding))


def pad_arrays(rows: Sequence[Array], along: Sequence[tuple[list[Array], int]]) -> Array:
    """Return arrays of different shapes as one batch, zeros elsewhere.

    along  of each axis the places of the last entries of each row, and its size

    >>> pad_arrays([np.array([1, 2]), np.array([3])], [([np.array([0, 1]), np.array([1])], 2)]).tolist()
    [[1, 2], [0, 3]]
    """
    batch = np.zeros((len(rows), *(size for _, size in along)), rows[0].dtype)
    for text, row in enumerate(rows):
        places = [places_of[text] for places_of, _ in along]
        last = tuple(slice(size - len(at), None) for at, size in zip(places, row.shape, strict=True))
        batch[text, ...][np.ix_(*places)] = row[last]
    return batch


def batch_labels(
    records: Sequence[Record], places: Mapping[str, tuple[list[Array], int]], padding: str
) -> dict[str, Labels]:
    """Return the labels of a batch: texts one after another, tokens a row each, others those of the first record."""
    labels: dict[str, Labels] = {}
    for axis in records[0].labels:
        rows = [shared_labels(record.labels.get(axis)) for record in records]
        if axis == "text":
            labels[axis] = [text for row in rows for text in row]
        elif axis in (*TOKENS, "source"):
            columns, size = places[axis]
            labels[axis] = [pad_labels(row, at, size, padding) for row, at in zip(rows, columns, strict=True)]
        else:
            labels[axis] = rows[0]
    return labels


def add_padding_mask(record: Record, lead: tuple[str, ...], sizes: Sequence[int], layout: PadLayout) -> Record:
    """Return the record of a batch with the mask of its tokens, if it has padding or came padded.

    lead   the axis of the texts
    sizes  how many tokens each text has
    """
    if not layout.is_padded and len({*sizes}) < 2:
        return record
    where, size = layout.along("token", sizes)
    mask = np.zeros((len(where), 1, size), bool)
    for row, at in zip(mask, where, strict=True):
        row[0, at] = True
    labels: dict[str, Labels] = {"key": record.labels["token"]} if "token" in record.labels else {}
    return record.with_tensors({"mask": Tensor(mask, (*lead, "all queries", "key"), labels, "token ≠ padding")})


def pad_labels(names: Sequence[str], places: Array, size: int, padding: str) -> list[str]:
    """Return the last of some labels at their places, padding at the others.

    >>> pad_labels(["the", "cat"], np.array([1, 2]), 3, "[PAD]")
    ['[PAD]', 'the', 'cat']
    """
    row = [padding] * size
    for at, name in zip(places, names[len(names) - len(places) :], strict=True):
        row[at] = name
    return row
