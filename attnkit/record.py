"""The record: the ordered set of named tensors that flows through a pipe."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnkit.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
Labels = list[str] | list[list[str]]

DEFAULT_AXES = {
    0: (),
    1: ("model",),
    2: ("token", "model"),
    3: ("batch", "token", "model"),
    4: ("batch", "head", "token", "model"),
}


def default_axes(rank: int) -> tuple[str, ...]:
    """Return the axis names of a tensor of this rank that carries none.

    >>> default_axes(2), default_axes(5)
    (('token', 'model'), ('axis0', 'axis1', 'axis2', 'axis3', 'axis4'))
    """
    return DEFAULT_AXES.get(rank) or tuple(f"axis{i}" for i in range(rank))


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array, the names of its axes, labels along them, and the formula that made it.

    array    the numbers
    axes     one name a dimension; None where it carries none
    labels   axis name -> one string an index, or one such list a batch row
    formula  how it was computed, for tables; never written to a file

    >>> Tensor(np.zeros((3, 2)), ("token", "model"), {"token": ["The", "cat", "sat"]}).shape
    (3, 2)
    """

    array: Array
    axes: tuple[str, ...] | None = None
    labels: Mapping[str, Labels] = field(default_factory=dict)
    formula: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(self.array.shape)

    def axis_names(self) -> tuple[str, ...]:
        """Return the names of its axes; the default ones of its rank where it carries none."""
        return self.axes or default_axes(self.array.ndim)

    def axes_like(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the axis names of a result of this shape; an axis whose size changed is `model`, unlabelled."""
        if len(shape) != self.array.ndim:
            return default_axes(len(shape))
        sizes = zip(self.axis_names(), shape, self.array.shape, strict=True)
        return tuple(axis if now == before else "model" for axis, now, before in sizes)


@dataclass(frozen=True, repr=False)
class Record:
    """Named tensors with axis names, labels per axis and the command lines that made them.

    tensors   name -> array, in order; `x` is the main one
    axes      tensor name -> one axis name a dimension; a tensor may have none
    labels    axis name -> one string an index, or one such list a batch row
    history   one entry a command line, oldest first: {"command", "version", "files"}, and {"beside"}, the file
              that the last one wrote the record to, where it is not its result
    formulas  tensor name -> the formula that made it, for tables; never written
    required  tensors beside x that the user requested of the last tool: no format may lose them; never written

    >>> r = Record({"x": np.zeros((3, 2))}, labels={"token": ["The", "cat", "sat"]})
    >>> r.axes_of("x"), r.labels_of("x", 0)
    (('token', 'model'), ['The', 'cat', 'sat'])
    """

    tensors: dict[str, Array]
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    formulas: dict[str, str] = field(default_factory=dict, compare=False)
    required: tuple[str, ...] = field(default=(), compare=False, kw_only=True)

    def __getitem__(self, name: str) -> Array:
        """Return the array of that name; DataError lists the names of the record."""
        if name not in self.tensors:
            raise DataError(f"no tensor {name[:100]!r} (there is {join_names(self.tensors)})")
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in self.tensors.items())
        return f"<Record: {tensors}>"

    def axes_of(self, name: str) -> tuple[str, ...]:
        """Return the axis names of a tensor; the default ones of its rank if it has none."""
        return self.axes.get(name) or default_axes(self[name].ndim)

    def labels_of(self, name: str, dimension: int) -> Labels | None:
        """Return the labels along one dimension of a tensor, None if it has none."""
        return self.labels.get(self.axes_of(name)[dimension])

    def get(self, name: str) -> Array | None:
        """Return the array of that name, or None."""
        return self.tensors.get(name)

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of that name with the labels of its axes; DataError lists the names there are."""
        used = {axis: self.labels[axis] for axis in self.axes_of(name) if axis in self.labels}
        return Tensor(self[name], self.axes.get(name), used, self.formulas.get(name, ""))

    def with_tensors(
        self, tensors: Mapping[str, Tensor | Array], labels: Mapping[str, Labels] | None = None
    ) -> "Record":
        """Return a new record with these tensors and labels added or replaced, and the rest untouched.

        >>> ids = Tensor(np.arange(2), ("token",), {"token": ["a", "b"]})
        >>> r = Record({"x": np.zeros(2)}).with_tensors({"ids": ids})
        >>> list(r), r.labels
        (['x', 'ids'], {'token': ['a', 'b']})
        """
        wrapped = {name: one if isinstance(one, Tensor) else Tensor(one) for name, one in tensors.items()}
        each = {axis: names for one in wrapped.values() for axis, names in one.labels.items()}
        return self.put(
            {name: one.array for name, one in wrapped.items()},
            {name: one.axes for name, one in wrapped.items() if one.axes is not None},
            each | dict(labels or {}),
            {name: one.formula for name, one in wrapped.items() if one.formula},
        )

    def put(
        self,
        tensors: Mapping[str, Array],
        axes: Mapping[str, Sequence[str]] | None = None,
        labels: Mapping[str, Labels] | None = None,
        formulas: Mapping[str, str] | None = None,
    ) -> "Record":
        """Return a new record with these arrays added or replaced, and the rest untouched."""
        remaining = {name: names for name, names in self.axes.items() if name not in tensors}
        return replace(
            self,
            tensors={**self.tensors, **tensors},
            axes=remaining | {name: tuple(names) for name, names in (axes or {}).items()},
            labels={**self.labels, **(labels or {})},
            formulas={**self.formulas, **(formulas or {})},
        )

    def joined(self, other: "Record") -> "Record":
        """Return this record with the tensors, labels and formulas of another one after its own."""
        return self.put(other.tensors, other.axes, other.labels, other.formulas)

    def only(self, names: Sequence[str]) -> "Record":
        """Return a new record of just these tensors, in this order, with the labels their axes use."""
        tensors = {name: self[name] for name in names}
        axes = {name: self.axes[name] for name in names if name in self.axes}
        used = {axis for name in names for axis in self.axes_of(name)}
        labels = {axis: names for axis, names in self.labels.items() if axis in used}
        return replace(self, tensors=tensors, axes=axes, labels=labels, required=())

    def without(self, names: Collection[str]) -> "Record":
        """Return a new record without these tensors, and without the labels that only their axes use."""
        gone = [name for name in names if name in self.tensors]
        if not gone:
            return self
        remaining = [name for name in self.tensors if name not in gone]
        used = {axis for name in remaining for axis in self.axes_of(name)}
        idle = {axis for name in gone for axis in self.axes_of(name)} - used
        return replace(
            self,
            tensors={name: self.tensors[name] for name in remaining},
            axes={name: axes for name, axes in self.axes.items() if name not in gone},
            labels={axis: labels for axis, labels in self.labels.items() if axis not in idle},
        )

    def checked(self) -> "Record":
        """Return this record; DataError if axis names or labels do not fit the shape of a tensor."""
        for name, names in self.axes.items():
            if len(names) != self[name].ndim:
                shape = self[name].shape
                raise DataError(
                    f"tensor {name[:100]!r}: {len(names)} axis names for shape {shape} (expected {len(shape)})"
                )
            if len(set(names)) != len(names):
                raise DataError(f"tensor {name[:100]!r}: axis names {join_names(names)} are not all different")
        for name in (name for name in self.tensors if name in self.axes or name == "x"):
            for dimension, size in enumerate(self[name].shape):
                self._check_labels(name, dimension, size)
        return self

    def _check_labels(self, name: str, dimension: int, size: int) -> None:
        axis, labels = self.axes_of(name)[dimension], self.labels_of(name, dimension)
        rows = labels if labels and isinstance(labels[0], list) else [labels] if labels is not None else []
        for row in rows:
            if row is not None and len(row) != size:
                counts = f"{len(row)} for the {size} indices of tensor {name[:100]!r}"
                raise DataError(f"labels of axis {axis[:100]!r}: {counts}")


def shared_labels(labels: Labels | None) -> list[str]:
    """Return the labels that all rows of a batch share; [] if there are none, or each row has its own.

    >>> shared_labels(["a", "b"]), shared_labels([["a"], ["b"]])
    (['a', 'b'], [])
    """
    return [label for label in labels or [] if isinstance(label, str)]


def row_labels(labels: Labels | None, row: int) -> list[str]:
    """Return the labels of one row of a batch, its own or the shared ones; [] if there are none.

    >>> row_labels([["a"], ["b"]], 1), row_labels(["a", "b"], 1), row_labels([["a"]], 7)
    (['b'], ['a', 'b'], [])
    """
    if not labels or isinstance(labels[0], str):
        return shared_labels(labels)
    return list(labels[row]) if row < len(labels) else []


def join_names(names: Mapping[str, Any] | Sequence[str], most: int = 10) -> str:
    """Join names for an error message: the first ten of them, the first 60 characters of each.

    >>> join_names(["x", "mask"])
    'x, mask'
    """
    text = ", ".join(str(name)[:60] for name in list(names)[:most])
    return text + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
