"""The record: the ordered set of named tensors that flows through a pipe."""

import fnmatch
import functools
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit.errors import DataError, UsageError, suggest
from attnkit.model.arrays import SupportsArray, is_foreign, numpy_array

Array = np.ndarray[Any, np.dtype[Any]]
Labels = list[str] | list[list[str]]

# tensors that are no intermediates, by name or by shell pattern -> what makes them
MADE_BY = {
    "mask": "attnkit mask makes it",
    "memory": "encode --model DIR makes it, of a model with a decoder",
    "bias": "posenc --kind alibi or t5 makes it",
    "encoder.*": "encode --keep {0} keeps it, encode --trace FILE all intermediates",
    "decoder.*": "encode --keep {0} keeps it, encode or decode --trace FILE all intermediates",
}
# tensors whose values are indices of an axis, by the end of their name -> the names that this axis may have
INDEX_AXES = dict.fromkeys(("weights.keys", "weights.argmax"), ("key", "source", "present"))
DEFAULT_AXES = {
    0: (),
    1: ("model",),
    2: ("token", "model"),
    3: ("batch", "token", "model"),
    4: ("batch", "head", "token", "model"),
}
# the names that tools give to axes
AXES = (
    *("batch", "beam", "channel", "column", "dimension", "edge", "head", "head_dim", "hidden", "key", "layer", "model"),
    *("block", "patch", "patch key", "patch query", "tile"),
    *("pair", "position", "present", "query", "rank", "row", "source", "step", "tensor", "token", "vocab"),
)


def is_axis_name(name: str) -> bool:
    """Whether a name is one that tools give to axes, reduced axes included.

    >>> is_axis_name("query"), is_axis_name("over model"), is_axis_name("axis0"), is_axis_name("price")
    (True, True, True, False)
    """
    base = name.removeprefix("over ").removeprefix("all ")
    return base in AXES or name == "all queries" or (base.startswith("axis") and base[4:].isdigit())


def default_axes(rank: int) -> tuple[str, ...]:
    """The axis names of a tensor of this rank that has none.

    >>> default_axes(2), default_axes(5)
    (('token', 'model'), ('axis0', 'axis1', 'axis2', 'axis3', 'axis4'))
    """
    return DEFAULT_AXES.get(rank) or tuple(f"axis{i}" for i in range(rank))


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array with names and labels of its axes, and the formula that made it.

    array    the numbers; a tensor of another library becomes an array of NumPy
    axes     one name per dimension; None where it has none
    labels   axis name -> one string an index, or one such list a batch row
    formula  how it was computed, for tables; never written to a file

    >>> Tensor(np.zeros((3, 2)), ("token", "model"), {"token": ["The", "cat", "sat"]}).shape
    (3, 2)
    """

    array: Array
    axes: tuple[str, ...] | None = None
    labels: Mapping[str, Labels] = field(default_factory=dict)
    formula: str = ""

    def __post_init__(self) -> None:
        if is_foreign(self.array):
            object.__setattr__(self, "array", numpy_array(self.array))
        if self.axes is not None and not isinstance(self.axes, tuple):
            object.__setattr__(self, "axes", tuple(self.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(self.array.shape)

    def axis_names(self) -> tuple[str, ...]:
        """The names of its axes; the default ones of its rank where it has none."""
        return self.axes or default_axes(self.array.ndim)

    def axes_like(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The axis names of a result. An axis of another size is `model`, unlabelled."""
        if len(shape) != self.array.ndim:
            return default_axes(len(shape))
        sizes = zip(self.axis_names(), shape, self.array.shape, strict=True)
        return tuple(axis if now == before else "model" for axis, now, before in sizes)


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """Named tensors, labels of their shared axes, and the commands that made them.

    tensors   name -> Tensor, in order; `x` is the main one. An array becomes a tensor without axis names, and the
              labels of a tensor become those of the record
    labels    axis name -> one string an index, or one such list a batch row
    history   one entry a command line, oldest first: {"command", "version", "files"}, and {"beside"}, the file
              that the last one wrote the record to, where it is not its result; {"modules"}, what the modules of a
              folder did, in their order
    required  tensors beside x that the user requested of the last tool: no format may lose them; never written

    >>> r = Record({"x": Tensor(np.zeros((3, 2)), labels={"token": ["The", "cat", "sat"]})})
    >>> r.axes_of("x"), r.labels_of("x", 0), r["x"].shape
    (('token', 'model'), ['The', 'cat', 'sat'], (3, 2))
    """

    tensors: Mapping[str, Tensor]
    labels: dict[str, Labels] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    required: tuple[str, ...] = field(default=(), kw_only=True)

    if TYPE_CHECKING:

        def __init__(
            self,
            tensors: Mapping[str, Tensor | SupportsArray],
            labels: dict[str, Labels] = ...,
            history: list[dict[str, Any]] = ...,
            *,
            required: tuple[str, ...] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        if labels := collect_labels(self.tensors):
            object.__setattr__(self, "labels", {**self.labels, **labels, **self.labels})
        object.__setattr__(self, "tensors", {name: _unlabelled(one) for name, one in self.tensors.items()})

    def __getitem__(self, name: str) -> Array:
        """The array of that name; DataError lists the names of the record."""
        return self._find(name).array

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name} {one.shape} {one.array.dtype}" for name, one in self.tensors.items())
        return f"<Record: {tensors}>"

    def _repr_html_(self) -> str | None:
        """The record in a notebook, or None if `to_html` is not set up."""
        return to_html(self)

    def arrays(self) -> dict[str, Array]:
        return {name: one.array for name, one in self.tensors.items()}

    def get(self, name: str) -> Array | None:
        """The array of that name, or None."""
        return self.tensors[name].array if name in self.tensors else None

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name with its labels. DataError lists the names."""
        one = self._find(name)
        return replace(one, labels={axis: self.labels[axis] for axis in one.axis_names() if axis in self.labels})

    def axes_of(self, name: str) -> tuple[str, ...]:
        """The axis names of a tensor; the default ones of its rank if it has none."""
        return self._find(name).axis_names()

    def labels_of(self, name: str, dimension: int) -> Labels | None:
        """The labels along one dimension of a tensor, or None if it has none."""
        return self.labels.get(self.axes_of(name)[dimension])

    def words_of(self, name: str) -> Labels | None:
        """The labels that a tensor's values are indices of, or None if it is not clear.

        >>> keys = Tensor(np.array([[1]]), ("query", "rank"))
        >>> Record({"weights.keys": keys}, {"key": ["The", "cat"]}).words_of("weights.keys")
        ['The', 'cat']
        """
        labels = [self.labels[axis] for axis in index_axes(name) if axis in self.labels]
        return labels[0] if len(labels) == 1 else None

    def with_tensors(
        self, tensors: Mapping[str, Tensor | Array], labels: Mapping[str, Labels] | None = None
    ) -> "Record":
        """A new record with these tensors and labels added or replaced.

        >>> ids = Tensor(np.arange(2), ("token",), {"token": ["a", "b"]})
        >>> r = Record({"x": np.zeros(2)}).with_tensors({"ids": ids})
        >>> list(r), r.labels
        (['x', 'ids'], {'token': ['a', 'b']})
        """
        unlabelled = {name: _unlabelled(one) for name, one in tensors.items()}
        every_label = {**self.labels, **collect_labels(tensors), **(labels or {})}
        return replace(self, tensors={**self.tensors, **unlabelled}, labels=every_label)

    def merge(self, other: "Record") -> "Record":
        """This record with the tensors and labels of another one after its own."""
        return self.with_tensors(other.tensors, other.labels)

    def select(self, names: Sequence[str]) -> "Record":
        """A new record of just these tensors, in this order, with their labels.

        names  of tensors, or shell patterns that fit some: *.weights
        """
        tensors = {name: self.tensors[name] for name in find_names(names, self.tensors)}
        used = {axis for name, one in tensors.items() for axis in (name, *one.axis_names(), *index_axes(name))}
        labels = {axis: names for axis, names in self.labels.items() if axis in used}
        return replace(self, tensors=tensors, labels=labels, required=())

    def without(self, names: Collection[str]) -> "Record":
        """A new record without these tensors and the labels that only they use."""
        gone = [one for name, one in self.tensors.items() if name in names]
        if not gone:
            return self
        remaining = {name: one for name, one in self.tensors.items() if name not in names}
        used = {axis for one in remaining.values() for axis in one.axis_names()}
        idle = {axis for one in gone for axis in one.axis_names()} - used
        labels = {axis: names for axis, names in self.labels.items() if axis not in idle}
        return replace(self, tensors=remaining, labels=labels)

    def without_formulas(self) -> "Record":
        """The record without the formulas of its tensors, as it is read from a file."""
        return replace(self, tensors={name: replace(one, formula="") for name, one in self.tensors.items()})

    def check(self) -> "Record":
        """Check that axis names and labels fit the shapes, and return the record."""
        for name, one in self.tensors.items():
            if one.axes is not None:
                _check_axes(name, one.shape, one.axes)
        for name, one in self.tensors.items():
            if one.axes is not None or name == "x":
                for axis, size in zip(one.axis_names(), one.shape, strict=True):
                    _check_labels(name, axis, size, self.labels.get(axis))
        return self

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise missing_tensor(name, self.tensors)
        return self.tensors[name]


@functools.singledispatch
def to_html(value: object) -> str | None:
    """A value as HTML by the function registered for its class, or None.

    The package registers the one for records, which belongs to display, when it is imported by a user of Python.
    """
    return None


def index_axes(name: str) -> tuple[str, ...]:
    """The axes that a tensor's values may be indices of, by its name and layer.

    >>> index_axes("weights.argmax"), index_axes("decoder.0.cross.weights.keys"), index_axes("weights")
    (('key', 'source', 'present'), ('source',), ())
    """
    axes: tuple[str, ...] = next((axes for end, axes in INDEX_AXES.items() if f".{name}".endswith(f".{end}")), ())
    if name in INDEX_AXES or not axes:
        return axes
    return ("source",) if ".cross." in name else ("key",)


def collect_labels(tensors: Mapping[str, Tensor | Array]) -> dict[str, Labels]:
    """The labels that tensors carry themselves, by the names of their axes.

    >>> collect_labels({"x": Tensor(np.zeros(2), ("token",), {"token": ["a", "b"]}), "y": np.zeros(3)})
    {'token': ['a', 'b']}
    """
    labels: dict[str, Labels] = {}
    for one in tensors.values():
        if isinstance(one, Tensor) and one.labels:
            labels |= one.labels
    return labels


def _unlabelled(one: Tensor | Array) -> Tensor:
    """A tensor without its labels; an array as a tensor."""
    if not isinstance(one, Tensor):
        return Tensor(one)
    return replace(one, labels={}) if one.labels else one


def _check_axes(name: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> None:
    if len(axes) != len(shape):
        raise DataError(f"tensor {name[:100]!r}: {len(axes)} axis names for shape {shape} (expected {len(shape)})")
    if len(set(axes)) != len(axes):
        raise DataError(f"tensor {name[:100]!r}: axis names {join_names(axes)} are not all different")


def _check_labels(name: str, axis: str, size: int, labels: Labels | None) -> None:
    for row in labels if labels and isinstance(labels[0], list) else [labels]:
        if row is not None and len(row) != size:
            counts = f"{len(row)} for the {size} indices of tensor {name[:100]!r}"
            raise DataError(f"labels of axis {axis[:100]!r}: {counts}")


def shared_labels(labels: Labels | None) -> list[str]:
    """The labels that all rows of a batch share, or [] if each row has its own.

    >>> shared_labels(["a", "b"]), shared_labels([["a"], ["b"]])
    (['a', 'b'], [])
    """
    return [label for label in labels or [] if isinstance(label, str)]


def row_labels(labels: Labels | None, row: int) -> list[str]:
    """The labels of one row of a batch, its own or the shared ones, or [].

    >>> row_labels([["a"], ["b"]], 1), row_labels(["a", "b"], 1), row_labels([["a"]], 7)
    (['b'], ['a', 'b'], [])
    """
    if not labels or isinstance(labels[0], str):
        return shared_labels(labels)
    return list(labels[row]) if row < len(labels) else []


def find_label(labels: Sequence[str], label: str, place: str) -> int:
    """The index of a label, or of its nth occurrence as cat#2.

    place  what has the labels, for the error

    >>> find_label(["The", "cat"], "cat", "axis token"), find_label(["a", "b", "a"], "a#2", "axis token")
    (1, 2)
    """
    indices = [at for at, one in enumerate(labels) if one == label]
    if len(indices) > 1:
        numbers = f"{', '.join(map(str, indices[:10]))}{' …' * (len(indices) > 10)}"
        counts = f"{label[:60]}#1 {'or' if len(indices) == 2 else 'to'} {label[:60]}#{len(indices)}"
        raise UsageError(f"{place} has the label {label[:60]!r} at {numbers}; write one of these numbers, or {counts}")
    word, _, count = label.rpartition("#")
    if not indices and word in labels and count.isdecimal():
        indices = [at for at, one in enumerate(labels) if one == word][int(count) - 1 :] if int(count) else []
    if not indices:
        known = f"it has {join_names(labels)}" if labels else "it has no labels"
        raise UsageError(f"{place} has no label {label[:60]!r} ({known}){suggest(label, labels)}")
    return indices[0]


def find_names(patterns: Iterable[str], names: Collection[str]) -> list[str]:
    """The names that match patterns, each once, in the order of the patterns.

    patterns  names, or shell patterns, where no tensor has that very name; DataError for one that fits none

    >>> find_names(["x", "*.weights"], ["a.weights", "b.weights", "x"])
    ['x', 'a.weights', 'b.weights']
    """
    chosen: dict[str, None] = {}
    for pattern in patterns:
        fitting = [pattern] if pattern in names else fnmatch.filter(names, pattern) if is_pattern(pattern) else []
        if not fitting:
            raise missing_tensor(pattern, names)
        chosen |= dict.fromkeys(fitting)
    return [*chosen]


def find_name(pattern: str, names: Collection[str], source: str = "") -> str:
    """The one name that a name or a shell pattern fits; DataError lists several.

    >>> find_name("*.weights", ["x", "a.weights"])
    'a.weights'
    """
    try:
        fitting = find_names([pattern], names)
    except DataError as error:
        raise DataError(error.problem, source) from None
    if len(fitting) > 1:
        raise DataError(f"{pattern!r} fits {len(fitting)} tensors: {join_names(fitting)}; name one", source)
    return fitting[0]


def find_machine(history: Sequence[Mapping[str, Any]]) -> str:
    """The machine that made a record, as its history states it; "" if it does not.

    >>> find_machine([{"command": "a", "machine": "OpenBLAS Zen, NumPy 2.4"}, {"command": "b"}])
    'OpenBLAS Zen, NumPy 2.4'
    """
    return next((entry["machine"] for entry in reversed(history) if "machine" in entry), "")


def is_pattern(name: str) -> bool:
    return not {"*", "?", "["}.isdisjoint(name)


def missing_tensor(name: str, names: Collection[str]) -> DataError:
    """The error for a missing tensor, with the option that keeps it or a near name.

    >>> print(missing_tensor("weights", ["x", "ids"]))
    no tensor 'weights' (it has x, ids); attend --keep weights keeps it
    >>> print(missing_tensor("weigths", ["x", "weights"]))
    no tensor 'weigths' (it has x, weights); did you mean weights?
    """
    from attnkit.model.intermediates import made_by

    flag = made_by(name) or next((flag for pattern, flag in MADE_BY.items() if fnmatch.fnmatchcase(name, pattern)), "")
    near = suggest(name, names, least=0.9 if "." in name else 0.6)  # names of a trace resemble each other
    is_made = bool(flag) and (name in MADE_BY or bool(made_by(name)) or not near)
    hint = f"; {flag.format(shlex.quote(name[:100]))}" if is_made else near
    problem = f"no tensor matches {name[:100]!r}" if is_pattern(name) else f"no tensor {name[:100]!r}"
    return DataError(f"{problem} (it has {join_names([*names])}){hint}")


def join_names(names: Mapping[str, Any] | Sequence[str], most: int = 10, length: int = 60) -> str:
    """Join the first ten names for an error message, cut at 60 characters each.

    >>> join_names(["x", "mask"])
    'x, mask'
    """
    text = ", ".join(str(name)[:length] for name in list(names)[:most])
    return text + (f" and {len(names) - most} more" if len(names) > most else "") if names else "none"
