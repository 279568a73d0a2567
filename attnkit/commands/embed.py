"""attnkit embed: text or token ids to vectors."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from attnkit import model, options, tokenizers
from attnkit.errors import DataError, UsageError
from attnkit.operands import decoded, piped
from attnkit.tensors import open_source
from attnkit.tensors.record import Array, Labels, Record, flat
from attnkit.tokenizers import Tokenizer
from attnkit.tool import Call, Flow, tool


def texts_of(call: Call, upstream: Flow | None) -> Flow:
    """Feed: the TEXT arguments, else standard input: one text, or one a line with --lines and --batch."""
    lines, batch = call.extra.get("lines"), call.parameters["batch"]
    if call.tool.alone(call.parameters):
        if call.operands or lines or batch:
            raise UsageError("--ids FILE stands in place of text: no TEXT, --lines or --batch with it")
        return Flow(None, iter([()]))
    if lines and batch:
        raise UsageError("--lines makes a record of each line, --batch one record of all: one or the other")
    if call.operands:
        return Flow(None, iter([(text,) for text in call.operands] if lines else [call.operands]))
    arriving = standard_input() if upstream is None else spoken(upstream)
    if lines:
        return Flow(None, ((line,) for line in arriving))
    return Flow(None, (tuple(all_lines) if batch else ("\n".join(all_lines),) for all_lines in [list(arriving)]))


def standard_input() -> Iterator[str]:
    """The lines of standard input, each as soon as it is there."""
    source, rest, empty = open_source(piped()), b"", True
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
            raise UsageError("embed reads text, and the stage before it writes tensors")
        yield from item.split("\n")


@tool(
    operand="[TEXT]...",
    feed=texts_of,
    alone=lambda given: given["ids"] is not None,
    extra={"lines": options.switch("a stream: one record for each line")},
    explicit=lambda given: {"seed": given["seed"]} if given["dim"] is not None else {},
)
def embed(
    texts: Sequence[str] | str | None,
    *,
    dim: Annotated[int | None, options.integer("width of random vectors, one for each word", 1, "D")] = None,
    seed: Annotated[int, options.integer("seed of the random vectors", 0)] = 0,
    one_hot: Annotated[bool, options.switch("x is 1 at the token's id and 0 elsewhere")] = False,
    table: Annotated[Record | None, options.tensor("embedding matrix, vocab × model")] = None,
    tokenizer: Annotated[
        Tokenizer,
        options.Flag("how text is cut: words, chars, or by a tokenizer.json", "words|chars|FILE", str, "tokenizer"),
    ] = "words",  # type: ignore[assignment]
    vocab: Annotated[
        list[str] | None,
        options.Flag("vocabulary: one word a line, or JSON {word: id}", "FILE", str, "words"),
    ] = None,
    ids: Annotated[Record | None, options.tensor("token ids, (T) or (B, T), in place of text")] = None,
    batch: Annotated[bool, options.switch("one padded batch of the texts, or of the lines of standard input")] = False,
    scale: Annotated[bool, options.switch("multiply by √D, as the 2017 paper does")] = False,
) -> Record:
    """Text or token ids to vectors: x is the rows of a table at the ids.

    One of --dim, --one-hot and --table says what the vectors are. TEXT comes from the command line or from
    standard input. Words are runs of letters and digits, and single punctuation marks, after Unicode NFC;
    without --vocab the vocabulary is the words of the text in the order they appear. A random vector depends
    on the seed and the word alone, so that a word has the same vector in every text; that of the padding
    token is zero. The record carries the table along, and decode ties its output to it. Several texts make
    one padded batch with its mask.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit attend --heads 2
    """
    if (dim is not None) + one_hot + (table is not None) != 1:
        raise UsageError("which vectors? one of --dim D, --one-hot and --table FILE")
    matrix = None if table is None else table["x"]
    if matrix is not None and matrix.ndim != 2:
        raise DataError(f"shape {matrix.shape} is not vocab × model", "--table")
    known = vocab or known_words(table)
    if ids is not None:
        found = spelled(ids["x"], known, 0 if matrix is None else len(matrix))
    else:
        found = read(texts, tokenizer, known, own=matrix is None, batch=batch)
    if dim is not None:
        matrix = random_vectors(found.vocabulary, dim, seed)
    x = model.one_hot(found.ids, found.size) if matrix is None else model.embed(found.ids, matrix)
    axes = ("batch", "token")[2 - found.ids.ndim :]
    record = Record({}).put(
        {"x": model.scale_embedding(x) if scale else x, "ids": found.ids},
        axes={"x": (*axes, "vocab" if one_hot else "model"), "ids": axes},
        labels=({"token": found.tokens} if found.tokens else {})
        | ({"vocab": found.vocabulary} if found.vocabulary else {}),
        formulas={"x": ("√D · " if scale else "") + ("one-hot(ids)" if one_hot else "table[ids]")},
    )
    if found.mask is not None:
        axes, labels = ("batch", "all queries", "key"), {"key": found.tokens} if found.tokens else {}
        record = record.put({"mask": found.mask}, {"mask": axes}, labels, {"mask": "token ≠ padding"})
    return record if matrix is None else record.put({"table": matrix}, {"table": ("vocab", "model")})


class Found(NamedTuple):
    """Token ids (T) or (B, T), their spellings, the vocabulary they index and its size, the mask (B, 1, T)."""

    ids: Array
    tokens: Labels | None
    vocabulary: list[str]
    size: int
    mask: Array | None = None


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
    given = [texts] if isinstance(texts, str) else texts or []
    several = [decoded(text.encode("utf-8", "surrogateescape"), "TEXT") for text in given]
    cut = [tokenizer.encode(text, known) for text in several]
    tokens = [one.spellings for one in cut]
    vocabulary = tokenizer.vocabulary or known or (tokenizers.distinct(tokens) if own else [])
    if not vocabulary and not own:
        raise UsageError("the rows of the table carry no words: --vocab FILE names them, or --ids FILE")
    lengths = [len(one) for one in tokens]
    if len(set(lengths)) > 1:
        pad = tokenizers.padding(vocabulary)
        if pad is None and (known or tokenizer.vocabulary):
            raise DataError(f"texts of different lengths, and the vocabulary has no {' '.join(tokenizers.PADDING)}")
        if pad is None:
            pad, vocabulary = "[pad]", [*vocabulary, "[pad]"]
        tokens = [one + [pad] * (max(lengths) - len(one)) for one in tokens]
    numbers = {word: at for at, word in enumerate(vocabulary)}
    ids = [
        (one.ids or []) + [numbers[word] for word in row[len(one.ids or []) :]]
        if tokenizer.vocabulary
        else tokenizers.numbered(row, numbers)
        for one, row in zip(cut, tokens, strict=True)
    ]
    if len(several) == 1 and not batch:
        return Found(np.array(ids[0], dtype=np.int64), tokens[0], vocabulary, len(vocabulary))
    mask = model.padding(np.array(lengths), max(lengths, default=0))
    matrix = np.array(ids, dtype=np.int64).reshape(len(ids), max(lengths, default=0))
    return Found(matrix, tokens, vocabulary, len(vocabulary), mask)


def random_vectors(vocabulary: list[str], dim: int, seed: int) -> Array:
    """A random table of the vocabulary; its padding token is zero."""
    table = model.random_table(vocabulary, dim, seed)
    pad = tokenizers.padding(vocabulary)
    if pad is not None:
        table[vocabulary.index(pad)] = 0
    return table
