"""Operands: the files that options and arguments name, or values instead."""

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnkit.cli.options import Option
from attnkit.errors import DataError, FileError, UsageError, flag_name, suggest
from attnkit.formats import Source, open_source, read
from attnkit.formats.json_text import parse_json
from attnkit.formats.streams import decode_text, exists, is_missing, name_errors
from attnkit.inputs.operands import load_attended, select_tensor
from attnkit.inputs.padding import BESIDE_IDS, LIBRARY_NAMES, rename_model_inputs
from attnkit.options import COMMA, Load
from attnkit.records import Array, Record, Tensor, join_names

FACTOR = re.compile(r"\*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)$", re.ASCII)  # of FILE*2.0
FILE_SUFFIX = re.compile(r"\.(json|npy|npz|safetensors)(:\w+)?$")


@dataclass(eq=False, repr=False)
class OperandFiles:
    """The input of a stage and the files of its options, each read when needed.

    options  the options of the tool by parameter; values: the values of the stage
    source   the input, where it is a file or a pipe; piped: the results of the stage before
    loaded   parameter -> the content of its file; digests: file -> its SHA-256
    """

    options: Mapping[str, Option]
    values: dict[str, Any]
    source: Source | None = None
    piped: Iterator[Any] | None = None
    loaded: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def load_values(self, item: Any, bfloat16: bool) -> dict[str, Any]:
        """The values of a tool's parameters for one item, with contents of files."""
        return {
            name: value if value is None or not self.options[name].load else self.load(name, item, bfloat16)
            for name, value in self.values.items()
        }

    def load(self, name: str, item: Any = None, bfloat16: bool = False) -> Any:
        """The content of the file of an option, or the item's tensor for :NAME."""
        value, load = self.values[name], self.options[name].load or "tensor"
        if not isinstance(value, str):
            value = check_operand(value, load, flag_name(name))
            attended = isinstance(value, Record) and load in ("attended", "memory")
            return load_attended(value, find_memory_name(value, load)) if attended else value
        if value.startswith(":"):
            if not isinstance(item, Record):
                raise UsageError(f"there is no input record with a tensor {value[1:]!r}", flag_name(name))
            if load in ("attended", "memory"):
                return load_attended(item, value[1:], value, own=True)
            if load not in SINGLE:
                expected = self.options[name].metavar
                raise UsageError(f"expected {expected}, got {value!r}, a tensor of the input", flag_name(name))
            own = select_tensor(item, value[1:], value)
            return own["x"] if load == "image" else item.merge(own) if load == "audio" else own
        if name not in self.loaded:
            piped = list(self.piped) if self.piped is not None and stdin_uses(value, load) else None
            self.loaded[name], digests = load_operand(value, load, piped, bfloat16)
            self.digests |= digests
        return self.loaded[name]

    def count_stdin(self) -> int:
        """Count the options whose file is standard input."""
        return sum(stdin_uses(value, load) for name, value in self.values.items() if (load := self.options[name].load))

    def add_digest(self, source: Source | None) -> None:
        """Add the SHA-256 of a file that has been hashed."""
        if source is not None and (digest := source.digest()):
            self.digests[source.name] = digest

    def compute_digests(self, with_input: bool) -> dict[str, str]:
        """The SHA-256 of every file read, those of models among them, which are large."""
        digests = dict(self.digests)
        if with_input and self.source is not None and (digest := self.source.digest()):
            digests[self.source.name] = digest
        for content in self.loaded.values():
            if hasattr(content, "digests"):
                digests |= content.digests()
        return digests


def is_stdin(operand: Any) -> bool:
    """Decide whether an operand is standard input, or a tensor of the record there."""
    return isinstance(operand, str) and (operand == "-" or operand.startswith("-:"))


def stdin_uses(value: Any, load: Load | None) -> int:
    """Count how often the value of an option names standard input.

    >>> stdin_uses("-", "tensor"), stdin_uses("a.txt,-,-", "lines"), stdin_uses(["a"], "lines")
    (1, 2, 0)
    """
    values = value.split(",") if load == "lines" and isinstance(value, str) else [value]
    return sum(map(is_stdin, values))


def open_operand(path: str, hash: bool = False) -> tuple[Source, str]:
    """Open FILE or FILE:NAME; return its byte source, and NAME ("" if there is none).

    A file whose own name contains the colon takes precedence.
    """
    try:
        return open_source(path, hash), ""
    except FileError as error:
        file, colon, name = path.rpartition(":")
        if not (colon and file and name and is_missing(error)):
            raise
        if os.path.isdir(file):
            hint = f"attnkit show {shlex.quote(path)} -o FILE.npy writes a tensor of a model"
            raise FileError(f"Is a directory; {hint}", file) from None
        try:
            return open_source(file, hash), name
        except FileError as other:
            if not is_missing(other):
                raise
        raise


def stdin_or_error(remedy: str = "name a file, or pipe into it ('-' reads it)") -> str:
    """`-`, standard input, or UsageError with the remedy on a terminal."""
    if os.isatty(0):
        raise UsageError(f"no input, and standard input is a terminal: {remedy}")
    return "-"


def is_model_path(path: str) -> bool:
    """Whether a path is a folder, a GGUF file or a tower: DIR:text or DIR:vision."""
    from attnkit.checkpoints.checkpoint import is_tower

    if os.path.isdir(path) or is_tower(path):
        return True
    from attnkit.formats.gguf import is_gguf

    return is_gguf(path)


def load_operand(
    path: str, load: Load, piped: list[Record | str] | None = None, bfloat16: bool = False
) -> tuple[Any, dict[str, str]]:
    """Read a file to its end: its content, and its SHA-256 for the history.

    piped     the results of the stage before, where they are the operand
    bfloat16  read 2-byte void elements of NPY as bfloat16
    load      kind of content: tensor -> a record with only x; tensors -> the dict of its tensors;
              ids -> a record with x the ids, and their mask;
              attended -> a record with only x, and the mask that belongs to it;
              memory -> the same of the record's `memory`, unless NAME is another one;
              words -> a list of words; tokenizer -> a Tokenizer, the built-in ones by their name;
              messages -> a list of {role, content}; template -> a text;
              audio -> a record with x the samples of a sound;
              image -> the array of an image file or of a tensor; patches -> {NAME: array} of NAME=FILE,…;
              means -> {LAYER.heads: (H, K)}, the means over all tokens of a stream
              targets -> words or ids as they are written, or a record with x the ids of a file
              lines -> the lines of a text, or of several comma-separated ones, a list for each
              index -> a record with x (N, D), in a file that is mapped, and hashed when its history is written;
              of the folder of a model the vectors of its words
              model -> a Checkpoint, whose files are hashed when their history is written
    """
    if load in LOADERS:
        return LOADERS[load](path, piped, bfloat16)
    if load == "tokenizer":
        from attnkit.tokenizers import BUILTIN_TOKENIZERS

        if path in BUILTIN_TOKENIZERS:
            return BUILTIN_TOKENIZERS[path], {}
    if load == "targets" and not names_a_file(path):
        return path, {}
    if piped is not None:
        return load_piped(piped, path, load), {}
    source, name = open_operand(path, hash=True)
    with source:
        content: Any
        if load == "image" and not name:
            from attnkit.inputs import image_processor

            content = image_processor.decode_image(source)
        elif load in OF_TEXT:
            content = parse_text(read_text(source), source.name, load)
        else:
            content = select_content(
                list(read(source, bfloat16, lone_is_x=False, maps=load == "tensors")), name, source.name, load
            )
        is_file = source.name != "<stdin>"  # a pipe cannot be read again
        return content, {source.name: source.digest()} if is_file else {}


def load_model(path: str) -> tuple[Any, dict[str, str]]:
    """Open a model, whose files are mapped into memory."""
    from attnkit.checkpoints import open_checkpoint

    return open_checkpoint(path), {}


def load_index(path: str, piped: list[Record | str] | None, bfloat16: bool) -> tuple[Record, dict[str, str]]:
    """Open the vectors of a file, which is mapped into memory, of a pipe or a model."""
    from attnkit.inputs import vector_index

    folder, layer = vector_index.find_model(path)
    if folder:
        return vector_index.load_words(folder, layer), {}
    if piped is not None:
        records = [item for item in piped if isinstance(item, Record)]
        return vector_index.stack_tensors(records, path.partition(":")[2], "<stdin>"), {}
    source, name = open_operand(path, hash=True)
    return vector_index.read_vectors(source, name, bfloat16)


def names_a_file(text: str) -> bool:
    """Whether a value that may be words is the name of a file.

    >>> names_a_file("am I"), names_a_file("ids.json"), names_a_file("./am"), names_a_file("out.npz:ids")
    (False, True, True, True)
    """
    return text == "-" or bool(re.match(r"(\.\.?)?/[^/\s]", text) or FILE_SUFFIX.search(text))


def load_patches(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the arrays of NAME=FILE or NAME[SLICE]+=FILE*FACTOR.

    The digests of the files come with them. Of a file with several tensors the one of that name is read, unless
    FILE:NAME names another.
    """
    from attnkit.interpret.edits import parse_target

    arrays: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for part in COMMA.split(text):
        target, equals, path = part.partition("=")
        if not (target and equals and path):
            raise UsageError(f"{part!r} is not NAME=FILE", "--patch")
        if target in arrays:
            raise UsageError(f"{target} occurs twice", "--patch")
        name, *_ = parse_target(target)
        times = FACTOR.search(path)
        check_factor(path, float(times[1]) if times else None)
        source, inner = open_operand(path[: times.start()] if times else path, hash=True)
        with source:
            records = list(read(source, lone_is_x=False))
            inner = inner or find_patch(records, name, source.name)
            array = select_content(records, inner, source.name, "tensor")["x"]
            arrays[target] = array * float(times[1]) if times else array
            digests |= {source.name: source.digest()} if source.name != "<stdin>" else {}
    return arrays, digests


def check_factor(path: str, factor: float | None) -> None:
    """Raise UsageError for a factor of FILE*FACTOR that is no finite number.

    >>> check_factor("run.npz*nan", None)
    Traceback (most recent call last):
    attnkit.errors.UsageError: --patch: run.npz*nan: 'nan' is not a finite number, as the factor of FILE*2.0 is
    """
    file, star, text = path.rpartition("*")
    is_wrong = bool(star) and not exists(path) and exists(file) if factor is None else not math.isfinite(factor)
    if is_wrong or (text.lower().lstrip("+-") in ("nan", "inf", "infinity") and not exists(path)):
        raise UsageError(f"{path}: {text!r} is not a finite number, as the factor of FILE*2.0 is", "--patch")


def load_means(path: str, piped: list[Record | str] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a file record by record: the means of its heads, and its digest."""
    from attnkit.interpret.edits import mean_heads

    if piped is not None:
        return mean_heads((item for item in piped if isinstance(item, Record)), "<stdin>"), {}
    with open_source(path, hash=True) as source:
        means = mean_heads(read(source, lone_is_x=False), source.name)
        return means, {source.name: source.digest()} if source.name != "<stdin>" else {}


def load_lines(paths: str, piped: list[Record | str] | None) -> tuple[list[list[str]], dict[str, str]]:
    """Read the lines of comma-separated texts, with the digests of the files."""
    texts: list[list[str]] = []
    digests: dict[str, str] = {}
    for path in paths.split(","):
        if not path:
            raise UsageError(f"expected names of files, comma-separated, got {paths!r}")
        if piped is not None and is_stdin(path):
            if not all(isinstance(item, str) for item in piped):
                raise UsageError("expected text, but the previous stage writes tensors", path)
            texts.append("\n".join(map(str, piped)).split("\n"))
            continue
        with open_source(path, hash=path != "-") as source:
            texts.append(split_lines(read_text(source), source.name))
            digests |= {source.name: source.digest()} if path != "-" else {}
    return texts, digests


# kinds of content that are not in one record of one file -> content and digests of a path, what is piped, bfloat16
LOADERS: dict[str, Callable[[str, list[Record | str] | None, bool], tuple[Any, dict[str, str]]]] = {
    "patches": lambda path, piped, bfloat16: load_patches(path),
    "lines": lambda path, piped, bfloat16: load_lines(path, piped),
    "means": lambda path, piped, bfloat16: load_means(path, piped),
    "model": lambda path, piped, bfloat16: load_model(path),
    "index": load_index,
}


def split_lines(text: str, name: str) -> list[str]:
    r"""Split a text into lines, as a file of them is written; DataError if it is empty.

    >>> split_lines("a\n\nb\r\n", "refs.txt"), split_lines("a", "refs.txt")
    (['a', '', 'b'], ['a'])
    """
    if not text:
        raise DataError("empty input (expected lines of text)", name)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def find_patch(records: Sequence[Record], name: str, file: str) -> str:
    """Find the tensor that --patch takes of a file; "" for its only tensor, or x."""
    record = records[0] if len(records) == 1 else Record({})
    if name in record or "x" in record or len(record) < 2:
        return name if name in record else ""
    alternatives = (
        f" (it has {join_names([*record], 4)}); NAME is an intermediate of the run, NAME=FILE:TENSOR takes any tensor"
    )
    raise UsageError(f"{file} has no tensor {name!r}{suggest(name, [*record]) or alternatives}", "--patch")


def select_content(records: Sequence[Record], name: str, file: str, load: Load) -> Any:
    """Select the content of an operand from its one record: a tensor, or all of them."""
    if len(records) != 1:
        raise DataError(f"{len(records)} records (expected 1)", file)
    if name and load == "tensors":
        raise UsageError(f"needs the whole file, not only its tensor {name!r}", file)
    if load == "tensors":
        return records[0].arrays()
    if load in ("attended", "memory"):
        return load_attended(records[0], name or find_memory_name(records[0], load), file)
    if load in ("ids", "targets"):
        return select_ids(records[0], name, file)
    tensor = select_tensor(records[0], name, file)
    if load == "audio":
        return records[0].merge(tensor)
    return tensor if load == "tensor" else tensor["x"]


def select_ids(record: Record, name: str, file: str) -> Record:
    """Select the ids of a record as x, with the mask, lengths and segments of tokens.

    >>> import numpy as np
    >>> record = Record({"x": np.zeros((2, 3, 8)), "ids": np.zeros((2, 3)), "mask": np.ones((2, 1, 3), bool)})
    >>> select_ids(record, "", "a.npz")
    <Record: x (2, 3) float64, mask (2, 1, 3) bool>
    """
    given = rename_model_inputs(record)
    ids = select_tensor(record, name, file) if name else select_tensor(given, "ids" * ("ids" in given), file)
    beside = [one for one in BESIDE_IDS if one in given and one != LIBRARY_NAMES.get(name, name)]
    return ids.with_tensors({one: Tensor(given[one], given.axes_of(one)) for one in beside})


def load_piped(piped: list[Record | str], path: str, load: Load) -> Any:
    """The content of an operand that is the result of the stage before."""
    if load in OF_TEXT:
        text = "".join(f"{item}\n" for item in piped if isinstance(item, str))
        return parse_text(text, "<stdin>", load)
    return select_content([item for item in piped if isinstance(item, Record)], path.partition(":")[2], "<stdin>", load)


def find_memory_name(record: Record, load: str) -> str:
    """The memory of a record: `memory`, x, or its first tensor, or ""."""
    candidates = ("memory", "x", *record) if load == "memory" else ()
    return next((name for name in candidates if name in record), "")


def read_text(source: Source) -> str:
    """Read a source to its end as UTF-8 text."""
    return decode_text(bytes(source.read_all()), source.name)


OF_TEXT = ("words", "tokenizer", "messages", "template")  # kinds of content of a file of text


def parse_text(text: str, name: str, load: Load) -> Any:
    """Parse the text of a file of words, of a tokenizer, or of a chat."""
    if load == "words":
        return parse_words(text, name)
    if load == "messages":
        return parse_messages(text, name)
    if load == "template":
        return text
    from attnkit.tokenizers.huggingface import parse_tokenizer_json

    return parse_tokenizer_json(text, name)


def parse_words(text: str, name: str) -> list[str]:
    """Parse a vocabulary: one word per line, or a JSON object of word: id.

    >>> parse_words("a\\nam\\n", "vocab.txt"), parse_words('{"am": 1, "a": 0}', "vocab.json")
    (['a', 'am'], ['a', 'am'])
    """
    text = text.removeprefix("\ufeff")
    if re.match(r'\s*\{\s*"[^"\n]*"\s*:', text):
        import orjson

        try:
            ids = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DataError(f"not a vocabulary: {error}", name) from None
        are_integers = all(type(number) is int for number in ids.values())
        if not are_integers or sorted(ids.values()) != list(range(len(ids))):
            raise DataError(f"not a vocabulary: its ids are not 0 to {len(ids) - 1}, each once", name)
        return sorted(ids, key=ids.__getitem__)
    words = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    if not any(words):
        raise DataError("no words", name)
    if "" in words:
        raise DataError(f"line {words.index('') + 1} is empty (expected a word on every line)", name)
    before: set[str] = set()
    for word in words:
        if word in before:
            raise DataError(f"word {word!r} occurs twice", name)
        before.add(word)
    return words


def parse_messages(text: str, name: str) -> list[dict[str, Any]]:
    """Parse the messages of a chat: a JSON object on each line, or a JSON list.

    >>> parse_messages('{"role": "user", "content": "Hi"}\\n', "chat.jsonl")
    [{'role': 'user', 'content': 'Hi'}]
    """
    messages: list[dict[str, Any]]
    with name_errors(name):
        if text.lstrip()[:1] == "[":
            messages = parse_json(text.encode())
        else:
            lines = enumerate(text.split("\n"), 1)
            messages = [parse_json(line.encode(), (number, 1)) for number, line in lines if line.strip()]
        if not messages:
            raise DataError("no messages")
        for number, message in enumerate(messages, 1):
            if not is_message(message):
                expected = 'expected {"role": …, "content": …}, each a text'
                raise DataError(f"message {number} is not one of a chat ({expected})")
    return messages


def is_message(value: Any) -> bool:
    """Whether a value is a message of a chat: a role, and a text or parts.

    >>> is_message({"role": "user", "content": "Hi"}), is_message({"role": "user", "content": 1}), is_message("Hi")
    (True, False, False)
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str) or not value["role"]:
        return False
    return value.get("content") is None or isinstance(value["content"], str | list)


def array_to_record(value: Any, name: str) -> Record:
    """Convert an array, a tensor, a number or a list to a record with x."""
    if isinstance(value, Tensor):
        return check_numbers(Record({"x": value}), name)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unlike lengths
        raise UsageError("expected an array of numbers, got lists of unequal lengths", name) from None
    return check_numbers(Record({"x": array}), name)


def check_numbers(record: Record, name: str = "") -> Record:
    """Check that the tensors of a record are arrays of numbers."""
    for tensor, array in record.arrays().items():
        if not isinstance(array, np.ndarray | np.generic):
            raise UsageError(f"expected an array, got {type(array).__name__}", name or tensor)
        if array.dtype.kind not in "fiubV":
            raise UsageError(f"expected an array of numbers, got dtype {array.dtype}", name or tensor)
    return record


SINGLE = ("tensor", "index", "ids", "targets", "image", "audio")  # kinds of content that are a record with x

# kind of content -> whether a value of Python is of that kind, and the name of the kind
CONTENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tensors": (lambda value: isinstance(value, Mapping), "a dict of arrays"),
    "memory": (lambda value: isinstance(value, Mapping | Record), "an array, a record or a dict of arrays"),
    "attended": (lambda value: isinstance(value, Record), "an array or a record"),
    "words": (lambda value: isinstance(value, list | tuple), "a list of words"),
    "tokenizer": (lambda value: hasattr(value, "encode"), "a tokenizer"),
    "model": (lambda value: hasattr(value, "params"), "a folder or a model"),
    "patches": (lambda value: isinstance(value, Mapping), "a dict of arrays"),
    "messages": (lambda value: is_chat(value), "a list of dicts with role and content"),
    "lines": (lambda value: bool(value) and all(map(is_text_list, value)), "a list of lines, or of lists of lines"),
}


def is_chat(value: Any) -> bool:
    """Decide whether a value is a list of messages."""
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def is_text_list(value: Any) -> bool:
    """Decide whether a value is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def check_operand(value: Any, load: str, flag: str) -> Any:
    """Check a Python value in place of a file, and return its content."""
    if load == "patches" and isinstance(value, Mapping):
        return check_patches(value, flag)
    if isinstance(value, dict) and any(isinstance(one, Tensor) for one in value.values()):
        value = Record(value).arrays()
    if load in (*SINGLE, "memory", "attended") and not isinstance(value, Mapping | Record):
        value = array_to_record(value, flag)
    if load in ("ids", "targets") and isinstance(value, Record) and not {"ids", "input_ids"}.isdisjoint(value):
        value = select_ids(value, "", flag)
    if load in SINGLE:
        return check_single(value, load, flag)
    if load == "means":
        return check_means(value, flag)
    if load == "tensors" and isinstance(value, Record):
        return value.arrays()
    return check_kind([value] if load == "lines" and is_text_list(value) else value, load, flag)


def check_single(value: Any, load: str, flag: str) -> Any:
    """A record with x, of an image its array; UsageError for another value."""
    if not isinstance(value, Record) or "x" not in value:
        raise UsageError(f"expected an array or a record with x, got {type(value).__name__}", flag)
    return value["x"] if load == "image" else check_numbers(value, flag)


def check_kind(value: Any, load: str, flag: str) -> Any:
    """A value of the kind that files of an option hold; UsageError for another one."""
    fits, expected = CONTENTS[load]
    if not fits(value):
        raise UsageError(f"expected {expected}, got {type(value).__name__}", flag)
    return value


def check_patches(patches: Mapping[str, Any], flag: str) -> dict[str, Array]:
    """The array of each NAME or NAME[SLICE]; a record gives its NAME, or its x.

    >>> check_patches({"decoder.0.ffn[2]": Record({"decoder.0.ffn": np.ones((3, 1))})}, "--patch")
    {'decoder.0.ffn[2]': array([[1.],
           [1.],
           [1.]])}
    """
    from attnkit.interpret.edits import parse_target

    arrays: dict[str, Array] = {}
    for target, value in patches.items():
        name, *_ = parse_target(target)
        if isinstance(value, Record):
            value = value["x" if name not in value and "x" in value else name]
        arrays[target] = array_to_record(value, flag)["x"]
    return arrays


def check_means(value: Any, flag: str) -> dict[str, Array]:
    """The means of the heads of a record, or of a dict of arrays."""
    from attnkit.interpret.edits import mean_heads

    if not isinstance(value, Mapping | Record):
        raise UsageError(f"expected a dict of arrays or a record, got {type(value).__name__}", flag)
    return mean_heads([value if isinstance(value, Record) else Record(value)], flag)
