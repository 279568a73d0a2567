"""Read operands as records: one tensor with its padding mask, or the tensors of a checkpoint folder."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnkit import formats
from attnkit.errors import DataError
from attnkit.record import Record, find_name, join_names

if TYPE_CHECKING:
    from attnkit.inputs.masking import AttendedTensor


@dataclass(frozen=True, eq=False, repr=False)
class CheckpointRecord(Record):
    """Tensors of a checkpoint folder, with the checkpoint.

    whole  whether they are all of its tensors, under their published names
    """

    checkpoint: Any = field(kw_only=True)
    whole: bool = field(kw_only=True)


def load_attended(record: Record, name: str = "", source: str = "", own: bool = False) -> "AttendedTensor":
    """Return the tensor of that name as x, with the mask of its record that applies to it as keys.

    own  whether the record is the input of the tool, and not a file
    """
    from attnkit.inputs import masking

    tensor = select_tensor(record, name, source)
    alone = next(iter(record)) if len(record) == 1 else "x"
    return masking.make_attended(tensor, record, name or alone, source, own)


def select_tensor(record: Record, name: str = "", source: str = "") -> Record:
    """Return a record with only the tensor of that name, called x; without a name, x itself or the only tensor.

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


def decode_text(data: bytes, name: str) -> str:
    """Return UTF-8 bytes as text; DataError names the first byte that is invalid.

    >>> decode_text(b"caf\\xc3\\xa9", "a.txt")
    'café'
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start})", name) from None


def cast_x(record: Record, dtype: str) -> Record:
    """Return the record with x in another dtype."""
    x = record.tensors["x"]
    return record.with_tensors({"x": replace(x, array=formats.cast_array(x.array, dtype), axes=x.axis_names())})
