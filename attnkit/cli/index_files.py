"""The vectors that near searches: a mapped file, the records of a pipe, one vector in each row, or a model's words."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.formats import Source, read
from attnkit.formats.mapped import map_file
from attnkit.inference.operands import select_tensor
from attnkit.record import Record, Tensor, shared_labels

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


@dataclass(frozen=True, eq=False, repr=False)
class IndexRecord(Record):
    """Vectors of a file, x (N, D), which is hashed only where a history names it."""

    file: str = field(kw_only=True)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the file, by its path."""
        from attnkit.checkpoints.checkpoint import file_digest, file_stamp

        return {self.file: file_digest(self.file, *file_stamp(self.file))}


@dataclass(frozen=True, eq=False, repr=False)
class WordIndex(Record):
    """The vectors of the words of a model, x (N, D), whose files are hashed only where a history names them."""

    checkpoint: "Checkpoint" = field(kw_only=True)

    @property
    def file(self) -> str:
        """The folder of the model."""
        return self.checkpoint.folder

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the files of the model, by their paths."""
        return self.checkpoint.digests()


def find_model(path: str) -> tuple[str, str | None]:
    """Return the folder of a model and the layer that DIR or DIR:LAYER names; ("", None) for anything else."""
    if os.path.isdir(path):
        return path, None
    folder, _, layer = path.rpartition(":")
    return (folder, layer or None) if os.path.isdir(folder) and not os.path.exists(path) else ("", None)


def load_words(folder: str, layer: str | None) -> WordIndex:
    """Return the vectors of the words of a model, as its embedding layer makes them."""
    from attnkit.checkpoints import open_checkpoint
    from attnkit.inference.word_vectors import word_vectors

    checkpoint = open_checkpoint(folder)
    try:
        words = word_vectors(checkpoint, layer)
    except UsageError as error:
        raise UsageError(error.problem, "--index") from None
    return WordIndex(words.tensors, words.labels, checkpoint=checkpoint)


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
    """Return the vectors of records, each x (N, D) or (D), as one x (N, D) with the labels of its rows.

    >>> stack_vectors([Record({"x": np.ones(2)}), Record({"x": np.zeros((3, 2))})], "a.npy")["x"].shape
    (4, 2)
    """
    arrays = [record["x"] for record in records]
    rows = [array[None] if array.ndim == 1 else array for array in arrays]
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
    """Return the labels of the rows of x, or the text of its one vector; [] where it has none."""
    return shared_labels(record.labels_of("x", 0) if record["x"].ndim == 2 else record.labels.get("batch"))
