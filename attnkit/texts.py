"""Text on its way to ids: from the command line, from standard input, or from the stage before; tokenized, padded."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit import model, tensors, tokenizers
from attnkit.errors import AttnkitError, DataError, FileError, UsageError
from attnkit.operands import decoded, piped
from attnkit.tensors import Source, open_source
from attnkit.tensors.record import Array, Labels, Record, flat
from attnkit.tokenizers import Tokenizer
from attnkit.tool import Call, Flow

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


DUE = "give TEXT, or pipe it in"


def texts_of(call: Call, upstream: Flow | None, alone: bool | None = None) -> Flow:
    """Feed: the TEXT arguments, else standard input: one text, or one a line with --lines and --batch.

    alone  whether nothing is read, where the tool's own parameters do not say it all
    """
    lines, batch = call.extra.get("lines"), call.parameters["batch"]
    if call.tool.alone(call.parameters) if alone is None else alone:
        if call.operands or lines or batch:
            raise UsageError("--ids and --image stand in place of text: no TEXT, --lines or --batch with them")
        return Flow(None, iter([()]))
    if lines and batch:
        raise UsageError("--lines makes a record of each line, --batch one record of all: one or the other")
    if call.operands:
        for text in filter(tensor_file, call.operands):
            reads = f"; attnkit {call.tool.name} … < {tensor_file(text)}" if call.tool.feed is not texts_of else ""
            what = "a pipe" if Path(text).is_fifo() else "a file of tensors"
            raise UsageError(f"{what}, and TEXT is due{reads}", text)
        return Flow(None, iter([(text,) for text in call.operands] if lines else [call.operands]))
    arriving = lines_of(open_source(piped(DUE))) if upstream is None else spoken(upstream)
    if lines:
        return Flow(None, ((line,) for line in arriving))
    return Flow(None, (tuple(all_lines) if batch else ("\n".join(all_lines),) for all_lines in [list(arriving)]))


def given_to_model(call: Call, upstream: Flow | None, alone: bool | None = None) -> Flow:
    """Feed of what runs a whole model: the TEXT arguments, or what arrives: records as they are, or text.

    Standard input is a record where it begins as one: a file of tensors, or JSON with the key "tensors".
    """
    alone = call.tool.alone(call.parameters) if alone is None else alone
    if call.operands or alone:
        return texts_of(call, upstream, alone)
    if upstream is None:
        source = open_source(piped(DUE))
        if is_record(source.glance(16)):
            return call.reading(source, tensors.read(source), "-", "")
        return texts_of(call, Flow(None, lines_of(source)), alone)
    first = next(upstream.items, None)
    items = itertools.chain([] if first is None else [first], upstream.items)
    return Flow(upstream.format, items) if isinstance(first, Record) else texts_of(call, Flow(None, items), alone)


def is_record(start: bytes) -> bool:
    """Whether bytes begin a file of tensors, and not a text.

    >>> is_record(b'{"tensors":{'), is_record(b"[CLS] is a token"), is_record(b"The cat")
    (True, False, False)
    """
    header = start[3:8] == bytes(5) and start[8:9] in (b"{", b"")  # that of safetensors
    return header or start.startswith((b"\x93NUMPY", b"PK\x03\x04", b'{"tensors"'))


def tensor_file(text: str) -> str:
    """The file of tensors, or the pipe, that a text names, as FILE or as FILE:NAME; "" where it names none."""
    for name in (text, text.rpartition(":")[0]):
        if Path(name).is_fifo():  # `<(another pipeline)`
            return name
        if os.path.isfile(name):
            with contextlib.suppress(FileError), open_source(name) as source:
                return name if is_record(source.peek(16)) else ""
    return ""


def lines_of(source: Source) -> Iterator[str]:
    """The lines of a source, each as soon as it is there."""
    rest, empty = b"", True
    while chunk := source.available():
        empty = False
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (decoded(line, source.name).removesuffix("\r") for line in whole)
    if empty:
        raise DataError("empty input (expected text)", source.name)
    if rest:
        yield decoded(rest, source.name)


def spoken(upstream: Flow) -> Iterator[str]:
    """The lines that the stage before this one prints."""
    for item in upstream.items:
        if isinstance(item, Record):
            raise UsageError("text is due, and the stage before writes tensors")
        yield from item.split("\n")


class Found(NamedTuple):
    """Token ids (T) or (B, T), their spellings, their vocabulary and its size, the mask (B, 1, T), segments."""

    ids: Array
    tokens: Labels | None
    vocabulary: list[str]
    size: int
    mask: Array | None = None
    types: Array | None = None

    def record(self) -> Record:
        """The record of ids, mask and segments, without x."""
        axes = ("batch", "token")[2 - self.ids.ndim :]
        labels = {"token": self.tokens} if self.tokens else {}
        found = Record({}).put({"ids": self.ids}, {"ids": axes}, labels)
        if self.types is not None:
            found = found.put({"types": self.types}, {"types": axes})
        if self.mask is None:
            return found
        seen = {"key": self.tokens} if self.tokens else {}
        return found.put(
            {"mask": self.mask}, {"mask": ("batch", "all queries", "key")}, seen, {"mask": "token ≠ padding"}
        )


def known_words(table: Record | None) -> list[str]:
    """The words a table's rows are labelled with, none where they are not."""
    return flat(table.labels_of("x", 0)) if table is not None and table["x"].ndim else []


def spelled(ids: Array, vocabulary: list[str], rows: int) -> Found:
    """Given ids, spelled by the vocabulary where there is one."""
    size = rows or len(vocabulary)
    if not size:
        raise UsageError("--ids needs the size of the vocabulary: --vocab FILE or --table FILE")
    checked = model.check_ids(ids, size)
    if checked.ndim not in (1, 2):
        raise DataError(f"shape {checked.shape} is not (T) or (B, T)", "--ids")
    tokens = np.array(vocabulary, dtype=object)[checked].tolist() if len(vocabulary) == size else None
    return Found(checked, tokens, vocabulary if tokens else [], size)


def read(texts: Sequence[str] | str | None, tokenizer: Tokenizer, known: list[str], own: bool, batch: bool) -> Found:
    """Texts cut into tokens and numbered; several of them padded to one length."""
    cut = [tokenizer.encode(text, known) for text in checked(texts)]
    tokens = [one.spellings for one in cut]
    vocabulary = tokenizer.vocabulary or known or (tokenizers.distinct(tokens) if own else [])
    if not vocabulary and not own:
        raise UsageError("the rows of the table carry no words: --vocab FILE names them, or --ids FILE")
    padding = tokenizers.padding(vocabulary)
    if padding is None and len(set(map(len, tokens))) > 1:
        if known or tokenizer.vocabulary:
            raise DataError(f"texts of different lengths, and the vocabulary has no {' '.join(tokenizers.PADDING)}")
        padding, vocabulary = "[pad]", [*vocabulary, "[pad]"]
    numbers = {word: at for at, word in enumerate(vocabulary)}
    ids = [one.ids if one.ids is not None else tokenizers.numbered(one.spellings, numbers) for one in cut]
    return padded(tokens, ids, numbers.get(padding or "", 0), padding or "", batch)._replace(
        vocabulary=vocabulary, size=len(vocabulary)
    )


def checked(texts: Sequence[str] | str | None) -> list[str]:
    """Texts known to be Unicode."""
    given = [texts] if isinstance(texts, str) else texts or []
    return [decoded(text.encode("utf-8", "surrogateescape"), "TEXT") for text in given]


def padded(tokens: list[list[str]], ids: list[list[int]], pad: int, padding: str, batch: bool) -> Found:
    """One text as it is, or several as one batch, padded to the right, with its mask."""
    lengths = [len(row) for row in ids]
    longest = max(lengths, default=0)
    labels = [row + [padding] * (longest - len(row)) for row in tokens]
    matrix = np.array([row + [pad] * (longest - len(row)) for row in ids], dtype=np.int64).reshape(len(ids), longest)
    if len(ids) == 1 and not batch:
        return Found(matrix[0], labels[0], [], 0)
    return Found(matrix, labels, [], 0, model.padding(np.array(lengths), longest))


def for_model(
    checkpoint: "Checkpoint",
    stack: str,
    texts: Sequence[str] | str | None,
    tokenizer: Tokenizer | None,
    ids: Record | None,
    pair: str | None = None,
    batch: bool = False,
) -> Found:
    """The ids that a stack of a model is given: those of texts by its own tokenizer, or given ones."""
    config = checkpoint.config
    size = config.stack(stack).vocab
    if not size:
        raise UsageError(f"a {config.family} model takes no text", "--model")
    side = "target" if config.encoder and stack == "decoder" else "source"
    if ids is not None:
        return spelled(ids["x"], spellings(checkpoint, side, tokenizer, size), size)
    tokenizer = tokenizer or tokenizer_of(checkpoint, side)
    second = {} if pair is None else {"pair": pair}
    cut = [tokenizer.encode(text, **second) for text in checked(texts)]
    if any(one.ids is None for one in cut):
        raise UsageError("a model takes a tokenizer that numbers its tokens: a tokenizer.json", "--tokenizer")
    special = config.special
    pad = next((one for one in (special.pad, *special.eos) if one is not None), 0)
    labels = [one.spellings for one in cut]
    pads = tokenizer.vocabulary[pad : pad + 1] if len(set(map(len, labels))) > 1 else []  # a vocabulary takes time
    padding = tokenizers.padding(pads) or tokenizers.PADDING[0]
    found = padded(labels, [one.ids or [] for one in cut], pad, padding, batch)
    model.check_ids(found.ids, size)
    if pair is None:
        return found
    kinds = padded(labels, [one.types or [0] * len(one.spellings) for one in cut], 0, "", batch)
    return found._replace(types=kinds.ids)


def tokenizer_of(checkpoint: "Checkpoint", side: str = "source") -> Tokenizer:
    """The tokenizer of a model, of one side of a translation; its files belong to the model's history."""
    found: Tokenizer = checkpoint.beside(side, tokenizers.from_folder)
    return found


def spellings(checkpoint: "Checkpoint", side: str, tokenizer: Tokenizer | None, size: int) -> list[str]:
    """The words of a model by their ids; none where its tokenizer cannot be read."""
    try:
        words = (tokenizer or tokenizer_of(checkpoint, side)).vocabulary
    except AttnkitError:
        return []
    return words[:size] + [""] * (size - len(words)) if words else []


def inputs_of(
    checkpoint: "Checkpoint",
    stack: str,
    given: Sequence[str] | str | None,
    tokenizer: Tokenizer | None,
    ids: Record | None,
    pair: str | None,
    image: Array | None,
    batch: bool,
) -> tuple[Array, Record]:
    """What a stack of a model begins with, ids or an image, and the record of what is known of it."""
    if checkpoint.config.patches:
        if image is None:
            raise UsageError(f"a {checkpoint.config.family} model takes --image FILE")
        from attnkit import images

        return images.prepared(image, checkpoint.folder), Record({})
    if image is not None:
        raise UsageError(f"a {checkpoint.config.family} model takes no image", "--image")
    found = for_model(checkpoint, stack, given, tokenizer, ids, pair, batch)
    return found.ids, found.record()
