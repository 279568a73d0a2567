"""The files behind flags and arguments: FILE, FILE:NAME, `-`, and :NAME for a tensor of the record at hand."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.cli.options import Load, suggest
from attnkit.errors import DataError, FileError, UsageError
from attnkit.formats import Source, open_source, read
from attnkit.formats.streams import is_missing
from attnkit.inference.operands import decode_text, load_attended, select_tensor
from attnkit.record import Record, join_names


def open_operand(path: str, hash: bool = False) -> tuple[Source, str]:
    """The byte source of FILE or FILE:NAME, and NAME ("" where there is none).

    A file whose own name has the colon in it comes first.
    """
    try:
        return open_source(path, hash), ""
    except FileError as error:
        file, colon, name = path.rpartition(":")
        if not (colon and file and name and is_missing(error)):
            raise
        try:
            return open_source(file, hash), name
        except FileError as other:
            if not is_missing(other):
                raise
        raise


def stdin_or_error(due: str = "name a file, or pipe into it ('-' reads it)") -> str:
    """Standard input where no operand is given; UsageError, what is due, rather than to wait for someone to type."""
    if os.isatty(0):
        raise UsageError(f"no input, and standard input is a terminal: {due}")
    return "-"


def load_operand(
    path: str, what: Load, piped: list[Record | str] | None = None, bfloat16: bool = False
) -> tuple[Any, dict[str, str]]:
    """The content of a file operand, read once to its end, and {file: SHA-256} for the history.

    piped     what the stage before gives, where that is the operand
    bfloat16  take 2-byte void elements of NPY for it
    what      tensor -> a record with only x; tensors -> the dict of its tensors;
              ids -> a record with x the ids, and their mask;
              attended -> a record with only x, and the mask that belongs to it;
              memory -> the same of the record's `memory`, where no NAME says another one;
              words -> a list of words; tokenizer -> a Tokenizer, the built-in ones by their name;
              image -> the array of an image file or of a tensor; patches -> {NAME: array} of NAME=FILE,…;
              model -> a Checkpoint, whose files are hashed when their history is written
    """
    if what == "patches":
        return load_patches(path)
    if what == "model":
        from attnkit.checkpoints import open_checkpoint

        return open_checkpoint(path), {}
    if what == "tokenizer":
        from attnkit.tokenizers import BUILTIN_TOKENIZERS

        if path in BUILTIN_TOKENIZERS:
            return BUILTIN_TOKENIZERS[path], {}
    if piped is not None:
        return from_upstream(piped, path, what), {}
    source, name = open_operand(path, hash=True)
    with source:
        content: Any
        if what == "image" and not name:
            from attnkit.inference import image_processor

            content = image_processor.decode_image(source)
        elif what in ("words", "tokenizer"):
            content = vocabulary(read_text(source), source.name, what)
        else:
            content = only_tensor(list(read(source, bfloat16, lone_is_x=False)), name, source.name, what)
        named = source.name != "<stdin>"  # what comes down a pipe is no file to read again
        return content, {source.name: source.digest()} if named else {}


def load_patches(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays of NAME=FILE, parted by commas, and the digests of their files.

    Of a file with several tensors the one of that very name, unless FILE:NAME names another.
    """
    arrays: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for part in text.split(","):
        name, equals, path = part.partition("=")
        if not (name and equals and path):
            raise UsageError(f"{part!r} is not NAME=FILE", "--patch")
        if name in arrays:
            raise UsageError(f"{name} comes twice", "--patch")
        source, inner = open_operand(path, hash=True)
        with source:
            records = list(read(source, lone_is_x=False))
            arrays[name] = only_tensor(records, inner or namesake(records, name, source.name), source.name, "tensor")[
                "x"
            ]
            digests |= {source.name: source.digest()} if source.name != "<stdin>" else {}
    return arrays, digests


def namesake(records: Sequence[Record], name: str, file: str) -> str:
    """The name of the tensor that --patch takes of a file without one: "" where there is one tensor, or an x."""
    found = records[0] if len(records) == 1 else Record({})
    if name in found or "x" in found or len(found) < 2:
        return name if name in found else ""
    other = (
        f" (it has {join_names([*found], 4)}); NAME is an intermediate of the run, NAME=FILE:TENSOR takes any tensor"
    )
    raise UsageError(f"{file} has no tensor {name!r}{suggest(name, [*found]) or other}", "--patch")


def only_tensor(records: Sequence[Record], name: str, file: str, what: Load) -> Any:
    """The tensor, or all the tensors, of the one record of an operand."""
    if len(records) != 1:
        raise DataError(f"{len(records)} records (expected 1)", file)
    if name and what == "tensors":
        raise UsageError(f"takes the whole file, not its tensor {name!r} alone", file)
    if what == "tensors":
        return records[0].tensors
    if what in ("attended", "memory"):
        return load_attended(records[0], name or memory_in(records[0], what), file)
    if what == "ids":
        return ids_of(records[0], name, file)
    found = select_tensor(records[0], name, file)
    return found if what == "tensor" else found["x"]


def ids_of(record: Record, name: str, file: str) -> Record:
    """The ids of a record as x, with the mask that belongs to them; without a name `ids`, else x.

    >>> import numpy as np
    >>> record = Record({"x": np.zeros((2, 3, 8)), "ids": np.zeros((2, 3)), "mask": np.ones((2, 1, 3), bool)})
    >>> ids_of(record, "", "a.npz")
    <Record: x (2, 3) float64, mask (2, 1, 3) bool>
    """
    found = select_tensor(record, name or "ids" * ("ids" in record), file)
    if "mask" not in record or name == "mask":
        return found
    return found.put({"mask": record["mask"]}, {"mask": record.axes_of("mask")})


def from_upstream(piped: list[Record | str], path: str, what: Load) -> Any:
    """The operand that the stage before gives: its record, or the text it prints."""
    if what in ("words", "tokenizer"):
        text = "".join(f"{item}\n" for item in piped if isinstance(item, str))
        return vocabulary(text, "<stdin>", what)
    return only_tensor([item for item in piped if isinstance(item, Record)], path.partition(":")[2], "<stdin>", what)


def memory_in(record: Record, what: Load) -> str:
    """The tensor that a memory is where nothing names it: `memory`, else x, else the first."""
    usual = ("memory", "x", *record) if what == "memory" else ()
    return next((name for name in usual if name in record), "")


def read_text(source: Source) -> str:
    """All of a source as UTF-8 text."""
    return decode_text(bytes(source.read_all()), source.name)


def vocabulary(text: str, name: str, what: Load) -> Any:
    """What a file of words or of a tokenizer holds."""
    if what == "words":
        return words(text, name)
    from attnkit.tokenizers import parse_tokenizer_json

    return parse_tokenizer_json(text, name)


def words(text: str, name: str) -> list[str]:
    """The vocabulary of a file: one word a line, or a JSON object of word: id.

    >>> words("a\\nam\\n", "vocab.txt"), words('{"am": 1, "a": 0}', "vocab.json")
    (['a', 'am'], ['a', 'am'])
    """
    text = text.removeprefix("\ufeff")
    if re.match(r'\s*\{\s*"[^"\n]*"\s*:', text):
        import orjson

        try:
            ids = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DataError(f"not a vocabulary: {error}", name) from None
        whole = all(type(number) is int for number in ids.values())
        if not whole or sorted(ids.values()) != list(range(len(ids))):
            raise DataError(f"not a vocabulary: its ids are not 0 to {len(ids) - 1}, each once", name)
        return sorted(ids, key=ids.__getitem__)
    found = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    if not any(found):
        raise DataError("no words", name)
    if "" in found:
        raise DataError(f"line {found.index('') + 1} is empty: every line is the word of an id", name)
    before: set[str] = set()
    for word in found:
        if word in before:
            raise DataError(f"word {word!r} stands twice", name)
        before.add(word)
    return found


def array_to_record(value: Any, name: str) -> Record:
    """A record of an array, a number or a list of numbers as x; UsageError for anything else."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unlike lengths
        raise UsageError("expected an array of numbers, got lists that make none", name) from None
    return check_numbers(Record({"x": array}), name)


def check_numbers(record: Record, name: str = "") -> Record:
    """The record, once its tensors are known to be of numbers; UsageError names the flag, else the tensor."""
    for tensor, array in record.tensors.items():
        if not isinstance(array, np.ndarray | np.generic):
            raise UsageError(f"expected an array, got {type(array).__name__}", name or tensor)
        if array.dtype.kind not in "fiubV":
            raise UsageError(f"expected an array of numbers, got one of {array.dtype}", name or tensor)
    return record


# what Python may give where the command line names a file -> the types of it, or what it must have, and its name
CONTENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tensors": (lambda value: isinstance(value, Mapping), "a dict of arrays"),
    "memory": (lambda value: isinstance(value, Mapping | Record), "an array, a record or a dict of arrays"),
    "attended": (lambda value: isinstance(value, Record), "an array or a record"),
    "words": (lambda value: isinstance(value, list | tuple), "a list of words"),
    "tokenizer": (lambda value: hasattr(value, "encode"), "a tokenizer"),
    "model": (lambda value: hasattr(value, "params"), "a folder or a model"),
    "patches": (lambda value: isinstance(value, Mapping), "a dict of arrays"),
}


def check_content(value: Any, load: str, flag: str) -> Any:
    """What Python gave in place of a file, as loading the file would give it; UsageError says what was expected."""
    if load in ("tensor", "ids", "image", "memory", "attended") and not isinstance(value, Mapping | Record):
        value = array_to_record(value, flag)
    if load in ("tensor", "ids", "image"):
        if not isinstance(value, Record) or "x" not in value:
            raise UsageError(f"expected an array or a record with x, got {type(value).__name__}", flag)
        return value["x"] if load == "image" else check_numbers(value, flag)
    fits, expected = CONTENTS[load]
    if load == "tensors" and isinstance(value, Record):
        return value.tensors
    if not fits(value):
        raise UsageError(f"expected {expected}, got {type(value).__name__}", flag)
    return value
