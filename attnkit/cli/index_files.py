"""The vectors that near searches: a file mapped into memory, or the records of a pipe, one vector in each row."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnkit.errors import DataError
from attnkit.formats import Source, read
from attnkit.formats.mapped import map_file
from attnkit.inference.operands import select_tensor
from attnkit.record import Record, Tensor, shared_labels


@dataclass(frozen=True, eq=False, repr=False)
class IndexRecord(Record):
    """Vectors of a file, x (N, D), which is hashed only where a history names it."""

    file: str = field(kw_only=True)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the file, by its path."""
        from attnkit.checkpoints.checkpoint import file_digest, file_stamp

        return {self.file: file_digest(self.file, *file_stamp(self.file))}


def load_index(source: Source, name: str, bfloat16: bool) -> tuple[Record, dict[str, str]]:
    """Read the vectors of a source; return them as x (N, D), and {file: SHA-256} where it cannot be read again.

    name      of the tensor; "": x, or the only one
    bfloat16  read 2-byte void elements of NPY as bfloat16
    """
    file = source.name
    if os.path.isfile(file):
        source.close()
        mapped = Source.of(memoryview(map_file(file)), file)
        index = stack_tensors(read(mapped, bfloat16, lone_is_x=False), name, file)
        return IndexRecord(index.tensors, index.labels, file=file), {}
    with source:
        index = stack_tensors(read(source, bfloat16, lone_is_x=False), name, file)
        return index, {file: source.digest()} if file != "<stdin>" else {}


def stack_tensors(records: Iterable[Record], name: str, file: str) -> Record:
    """Return the tensor of that name of each record as the rows of one x (N, D)."""
    return stack_vectors([select_tensor(record, name, file) for record in records], file)


def stack_vectors(records: Sequence[Record], file: str) -> Record:
    """Return the vectors of records, each x (N, D), or (D) in a stream, as one x (N, D) with the labels of its rows.

    >>> stack_vectors([Record({"x": np.ones(2)}), Record({"x": np.zeros((3, 2))})], "a.npy")["x"].shape
    (4, 2)
    """
    arrays = [record["x"] for record in records]
    rows = [array[None] if array.ndim == 1 and len(arrays) > 1 else array for array in arrays]
    bad = next((array for array in rows if array.ndim != 2 or array.shape[1] != rows[0].shape[-1]), None)
    if bad is not None:
        width = f"{rows[0].shape[1]}" if rows[0].ndim == 2 else "D"
        raise DataError(f"x {bad.shape}: expected (N, {width}), a vector in each row", file)
    labels = [label for record in records for label in row_names(record)]
    stacked = rows[0] if len(rows) == 1 else np.concatenate(rows)
    if not stacked.size:
        raise DataError(f"x {stacked.shape}: there are no vectors in it", file)
    return Record({"x": Tensor(stacked, ("row", "model"))}, {"row": labels} if len(labels) == len(stacked) else {})


def row_names(record: Record) -> list[str]:
    """Return the labels of the rows of x; [] where it has none, or is one vector."""
    return shared_labels(record.labels_of("x", 0)) if record["x"].ndim == 2 else []
