"""Operands as records: one tensor as x, with the mask that applies to it as keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from attnkit import formats
from attnkit.errors import DataError
from attnkit.inputs.padding import ONE_ROW, rename_model_inputs, with_padding_mask
from attnkit.model.checks import as_text
from attnkit.model.dtypes import is_float
from attnkit.records import Array, Record, Tensor, default_axes, find_name, join_names

LAST_STATES = ("memory_state", "memory_cell")  # what a recurrent encoder leaves beside its memory


@dataclass(frozen=True, eq=False, repr=False)
class AttendedTensor(Record):
    """One tensor of a record as `x`, with the mask that applies to it as keys.

    name             of the tensor in its record
    mask             the mask as `x`; None if the record has none that applies to queries from elsewhere
    has_square_mask  whether the record has a mask with a row for each of its own tokens, which does not apply to them
    is_given         whether the record is the input of the tool, and not a file
    source           the file, for messages
    companions       what a recurrent encoder leaves beside its memory: its last states
    """

    name: str = "x"
    mask: Record | None = None
    has_square_mask: bool = False
    is_given: bool = False
    source: str = ""
    companions: Record = field(default_factory=lambda: Record({}))


def load_attended(record: Record, name: str = "", source: str = "", own: bool = False) -> AttendedTensor:
    """Read a tensor of a record as x, with the mask that applies to it as keys.

    own  whether the record is the input of the tool, and not a file

    >>> memory = Record({"x": np.zeros((1, 2, 4)), "mask": np.array([[[True, False]]])})
    >>> load_attended(memory).mask["x"].tolist()
    [[[True, False]]]
    """
    record = rename_model_inputs(record)
    record = with_padding_mask(record) if "lengths" in record else record
    tensor = select_tensor(record, name, source)
    name = name or (next(iter(record)) if len(record) == 1 else "x")
    is_memory = "memory" in record and (name == "memory" or is_equal(record[name], record["memory"]))
    mask = None  # as keys: `memory_mask`, or the only row of `mask`
    if "memory_mask" in record and (is_memory or "memory" not in record):
        mask = select_mask(record, "memory_mask", record[name])
    elif has_mask_for(record, name):
        mask = reduce_to_one_row(record, record[name])
    return AttendedTensor(
        tensor.tensors,
        tensor.labels,
        tensor.history,
        name=name,
        mask=mask,
        has_square_mask=mask is None and has_mask_for(record, name),
        is_given=own,
        source=source,
        companions=record.select([name for name in LAST_STATES if name in record]),
    )


def select_tensor(record: Record, name: str = "", source: str = "") -> Record:
    """Select one tensor of a record, as x; by default x itself or the only tensor.

    name  of a tensor, or a shell pattern that fits one

    >>> import numpy as np
    >>> list(select_tensor(Record({"x": np.zeros(2), "mask": np.ones(2)}), "mask"))
    ['x']
    """
    name = name and find_name(name, record.tensors, source)
    if not name and len(record) == 1:
        name = next(iter(record))
    if not name and "x" not in record:
        raise DataError(f"no x; it has {join_names(record.tensors)}; choose one with FILE:NAME", source)
    return replace(record, tensors={"x": replace(record.tensors[name or "x"], formula="")})


def cast_x(record: Record, dtype: str) -> Record:
    x = record.tensors["x"]
    return record.with_tensors({"x": replace(x, array=formats.cast_array(x.array, dtype), axes=x.axis_names())})


def has_mask_for(record: Record, name: str) -> bool:
    """Whether the record's `mask` has a column for each row of this tensor."""
    keys, mask = record[name], record.get("mask")
    if mask is None or not mask.ndim or keys.ndim < 2:
        return False
    if name == "memory" and "x" in record and not is_equal(keys, record["x"]):
        return False  # the mask is of x
    return name == "x" or mask.shape[-1] == keys.shape[-2]


def reduce_to_one_row(record: Record, keys: Array) -> Record | None:
    """Reduce `mask` to a row for all queries, (B, 1, S) or (1, S), if its rows agree.

    >>> reduce_to_one_row(Record({"mask": np.array([[True, False], [True, False]])}), np.zeros((2, 4)))["x"].tolist()
    [[True, False]]
    """
    mask_record = select_mask(record, "mask", keys)
    mask = mask_record["x"]
    if mask.ndim < 2:
        return Record({"x": np.atleast_2d(mask)})
    if not mask.shape[-2] or not (mask == mask[..., :1, :]).all():
        return None
    return mask_record.with_tensors({"x": replace(mask_record.tensors["x"], array=mask[..., :1, :])})


def select_mask(record: Record, name: str, tensor: Array) -> Record:
    """Select a mask over the rows of a tensor as `x`, with names of its axes.

    (B, S) and (B, 1, S) without names belong to a padded batch of B rows, as encode and decode read them.
    """
    batch, keys = len(tensor) if tensor.ndim > 2 else -1, sum(tensor.shape[-2:-1])
    mask = add_query_axis(Tensor(record[name], record.tensors[name].axes or None), batch, keys, keys)
    if not mask.axes and mask.array.ndim == 3 and len(mask.array) == batch:
        mask = replace(mask, axes=ONE_ROW)
    return Record({"x": mask})


def add_query_axis(mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
    """A padding mask (B, S) as a row (B, 1, S) for all queries; others unchanged.

    Without names of its axes, one of as many texts as queries is (T, S), queries and keys.

    >>> padding = Tensor(np.array([[True, True, False], [True, False, False]]))
    >>> [add_query_axis(padding, batch=2, queries=queries, keys=3).shape for queries in (3, 2)]
    [(2, 1, 3), (2, 3)]
    """
    is_of_texts = mask.axes[:1] == ("batch",) if mask.axes else batch != queries
    return Tensor(mask.array[:, None], ONE_ROW) if mask.shape == (batch, keys) and is_of_texts else mask


def broadcast_over_heads(operand: Record | None, batch: int, heads: int = 0) -> Array | None:
    """Give a mask or bias (batch, query, key) an axis of heads.

    The names of its axes say whether the first of three is the batch or the heads. Without names it is the batch if
    its size is `batch` but not `heads`, so that a mask is for texts, and a bias for heads if both fit.

    >>> cells = Record({"x": np.ones((2, 3, 3))})
    >>> broadcast_over_heads(cells, batch=2).shape, broadcast_over_heads(cells, batch=2, heads=2).shape
    ((2, 1, 3, 3), (1, 2, 3, 3))
    """
    if operand is None:
        return None
    tensor, axes = operand["x"], operand.tensors["x"].axes
    if tensor.ndim != 3:
        return tensor
    is_named = axes is not None and axes != default_axes(3)
    is_of_texts = axes[0] == "batch" if axes is not None and is_named else len(tensor) == batch != heads
    return tensor[:, None] if is_of_texts else tensor[None] if batch else tensor


def is_equal(one: Array, other: Array) -> bool:
    """Whether two arrays hold the same numbers, NaN included."""
    return one is other or np.array_equal(one, other, equal_nan=True)


def read_state_parts(tensors: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The parts of the state in a file, by name, with `position` perhaps beside them.

    DataError unless they have these shapes.
    """
    for name, shape in shapes.items():
        if name not in tensors:
            raise DataError(f"no {name} (it has {join_names([*tensors])})", "--state-in")
        if tensors[name].shape != shape:
            raise DataError(f"{name} {as_text(tensors[name].shape)}: expected {as_text(shape)}", "--state-in")
        if not is_float(tensors[name].dtype):
            raise DataError(f"{name} is {tensors[name].dtype}: expected floats", "--state-in")
    if unknown := sorted(set(tensors) - {*shapes, "position"}):
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(shapes)}, position", "--state-in")
    return {name: tensors[name] for name in shapes}


def read_position(tensors: Mapping[str, Array]) -> int:
    """The number of tokens before a state in a file; DataError for no whole number."""
    position = tensors.get("position", np.array(0))
    if position.shape or position.dtype.kind not in "iu" or position < 0:
        raise DataError("position: expected one whole number of at least 0", "--state-in")
    return int(position)
