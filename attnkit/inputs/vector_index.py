"""The vectors that near searches: a file, records of a pipe, or words."""

import mmap
import os
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import IO, TYPE_CHECKING

import numpy as np

from attnkit import model
from attnkit.errors import DataError, FileError, UsageError, system_reason, with_article
from attnkit.formats import Source, read
from attnkit.formats.gguf import is_gguf
from attnkit.formats.mapped import map_file, release_pages
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.operands import select_tensor
from attnkit.inputs.padding import find_real_tokens
from attnkit.records import Array, Labels, Record, Tensor, row_labels, shared_labels

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def word_vectors(checkpoint: "Checkpoint", layer: str | None = None) -> Record:
    """The embedding of each token of the vocabulary, x (V, D), labelled.

    layer  an embedding layer of the model; None: that of the first stack

    They are the stored table itself, which may be mapped, where the model neither scales it nor adds segments.
    DataError for a model of images or sounds; UsageError for another layer.
    """
    config = checkpoint.config
    if config.patches or (config.sound and layer is None):
        what, hint = "images" if config.patches else "sounds", ""
        if config.sound and config.decoder:
            hint = f"; {checkpoint.folder}:decoder.embed has those of its texts"
        raise DataError(
            f"{with_article(config.family)} model embeds {what}, and has no vectors of words{hint}", checkpoint.folder
        )
    layer = layers.find_layer(checkpoint, layer, "embed")
    params = checkpoint.params[layer]
    x = params["table"]
    if config.embed_scale != 1 or "types" in params:
        x = model.embed_tokens(layers.core_model(checkpoint), layer, np.arange(len(x)), model.Context())
    side = "source" if model.parse_layer_name(layer)[0] == config.stacks[0] else "target"
    words = text_inputs.vocabulary_of(checkpoint, side, None, len(x))
    return Record({"x": Tensor(x, ("row", "model"))}, {"row": words} if words else {})


BLOCK = 256  # records of a stream between two releases of the pages of their file


@dataclass(frozen=True, eq=False, repr=False)
class IndexRecord(Record):
    """Vectors of a file, x (N, D), which is hashed only where a history names it."""

    file: str = field(kw_only=True)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of the file, by its path."""
        from attnkit.checkpoints.checkpoint import file_digest, file_stamp

        return {self.file: file_digest(self.file, *file_stamp(self.file))}


@dataclass(frozen=True, eq=False, repr=False)
class WordIndex(Record):
    """The vectors of a model's words, x (N, D), hashed only for a history."""

    checkpoint: "Checkpoint" = field(kw_only=True)

    @property
    def file(self) -> str:
        """The folder of the model."""
        return self.checkpoint.folder

    def digests(self) -> dict[str, str]:
        """The SHA-256 of the files of the model, by their paths."""
        return self.checkpoint.digests()


def find_model(path: str) -> tuple[str, str | None]:
    """The model and the layer of DIR or DIR:LAYER, or ("", None).

    DIR is a folder, a GGUF file or a tower.
    """
    if os.path.isdir(path) or is_gguf(path):
        return path, None
    model, _, part = path.rpartition(":")
    if os.path.exists(path) or not (os.path.isdir(model) or is_gguf(model)):
        return "", None
    from attnkit.checkpoints.checkpoint import is_tower

    return (path, None) if is_tower(path) else (model, part or None)


def load_words(folder: str, layer: str | None) -> WordIndex:
    """The vectors of the words of a model, as its embedding layer makes them."""
    from attnkit.checkpoints import open_checkpoint

    checkpoint = open_checkpoint(folder)
    try:
        words = word_vectors(checkpoint, layer)
    except UsageError as error:
        raise UsageError(error.problem, "--index") from None
    return WordIndex(words.tensors, words.labels, checkpoint=checkpoint)


def read_vectors(source: Source, name: str, bfloat16: bool) -> tuple[Record, dict[str, str]]:
    """Read the vectors of a source as x (N, D), and its digest if needed.

    name      of the tensor; "": x, or the only one
    bfloat16  read 2-byte void elements of NPY as bfloat16
    """
    file = source.name
    if os.path.isfile(file):
        source.close()
        mapped = np.frombuffer(map_file(file), np.uint8)
        index = stack_tensors(read(Source.of(mapped.data, file), bfloat16, lone_is_x=False), name, file, mapped)
        return IndexRecord(index.tensors, index.labels, file=file), {}
    with source:
        index = stack_tensors(read(source, bfloat16, lone_is_x=False), name, file)
        return index, {file: source.digest()} if file != "<stdin>" else {}


def stack_tensors(records: Iterable[Record], name: str, file: str, mapped: Array | None = None) -> Record:
    """The tensor of that name of each record as the rows of one x (N, D).

    The vectors of one record stay where they are; those of several are copied to a temporary file, which is mapped, so
    that a long stream takes little memory. `mapped` are the bytes of a mapped file that the records are read from.
    """
    stream = (flatten_texts(record, name, file) for record in records)
    first = [*islice(stream, 2)]
    if len(first) < 2:
        return stack_vectors(first, file)
    return spool_vectors(chain(first, stream), file, mapped)


def flatten_texts(record: Record, name: str, file: str) -> Record:
    """The vectors of a record as x (N, D), with the lengths of texts.

    -> x (N, D), text_lengths (M)

    Texts are those of x (B, T, D), without their padding; x (T, D) is one text, and x (B, D) a vector of each. The
    label `text` names them, if the record does.
    """
    chosen = select_tensor(record, name, file)
    x, axes = chosen["x"], chosen.axes_of("x")
    texts = shared_labels(record.labels.get("batch"))
    if x.ndim == 3 and x.shape[-1]:
        real = find_real_tokens(record, x.shape[:-1])
        real = np.ones(x.shape[:-1], bool) if real is None else real
        lengths = real.sum(axis=1)
        words = [row_labels(chosen.labels_of("x", 1), row) for row in range(len(x))]
        names = [
            name for row, one in enumerate(words) for name, is_real in zip(one, real[row], strict=False) if is_real
        ]
        x = x[real]
        chosen = Record({"x": Tensor(x, ("row", "model"))}, {"row": names} if len(names) == len(x) else {})
    elif x.ndim == 2 and axes[0] != "batch":
        lengths = np.array([len(x)])
    else:
        lengths, texts = np.ones(x.shape[0] if x.ndim == 2 else 1, np.int64), texts or row_names(chosen)
    labels = {"text": [*texts]} if len(texts) == len(lengths) else {}
    return chosen.with_tensors({"text_lengths": Tensor(lengths, ("text",), labels)})


def spool_vectors(records: Iterable[Record], file: str, mapped: Array | None) -> Record:
    """The vectors of many records as one x (N, D) in a temporary file.

    The pages of `mapped` are released after every BLOCK records. DataError for vectors of another width or a larger
    dtype, FileError if there is no room for the file.
    """
    labels, count, dtype, width = list[str](), 0, np.dtype(np.float32), 0
    lengths, texts = array("q"), list[str]()
    with tempfile.TemporaryFile(buffering=0) as spool:
        for number, record in enumerate(records):
            if record["x"].ndim == 2 and not len(record["x"]):
                continue
            one = stack_vectors([record], file)
            x = one["x"]
            if not count:
                dtype, width = x.dtype, x.shape[1]
            if x.shape[1] != width or not np.can_cast(x.dtype, dtype, "safe"):
                problem = f"x {record['x'].shape} of record {number}, {x.dtype}: expected (N, {width}), {dtype}"
                raise DataError(problem, file)
            _write(spool, x.astype(dtype, copy=False).tobytes())
            labels += row_names(one)
            lengths.extend(one["text_lengths"].tolist())
            texts += shared_labels(one.labels.get("text"))
            count += len(x)
            if mapped is not None and number % BLOCK == BLOCK - 1:
                release_pages(mapped)
        _write(spool, b"")
        if not count:
            raise DataError("there are no vectors in its records", file)
        vectors = np.frombuffer(mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ), dtype).reshape(count, width)
    return make_index(vectors, labels, np.array(lengths, np.int64), texts)


def make_index(x: Array, words: Sequence[str], lengths: Array, texts: Sequence[str]) -> Record:
    """The record of vectors x (N, D) and the lengths of their texts, with labels."""
    labels: dict[str, Labels] = {"row": [*words]} if len(words) == len(x) else {}
    labels |= {"text": [*texts]} if len(texts) == len(lengths) else {}
    return Record({"x": Tensor(x, ("row", "model")), "text_lengths": Tensor(lengths, ("text",))}, labels)


def _write(spool: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[spool.write(view) :]
    except OSError as error:
        raise FileError(f"no room for vectors in {tempfile.gettempdir()}: {system_reason(error)}", "--index") from None


def stack_vectors(records: Sequence[Record], file: str) -> Record:
    """The vectors of records as one x (N, D) with the labels of its rows.

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
    lengths = [
        record["text_lengths"] if "text_lengths" in record else np.array([len(row)])
        for record, row in zip(records, rows, strict=True)
    ]
    texts = [label for record in records for label in shared_labels(record.labels.get("text"))]
    return make_index(stacked, labels, np.concatenate(lengths), texts)


def row_names(record: Record) -> list[str]:
    """The labels of the rows of x, or the text of its one vector; [] if it has none."""
    return shared_labels(record.labels_of("x", 0) if record["x"].ndim == 2 else record.labels.get("batch"))
