"""Operands: the files that options and arguments name, or values instead."""

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit.cli.options import Option
from attnkit.errors import DataError, FileError, UsageError, flag_name, suggest
from attnkit.formats import Source, open_source, read
from attnkit.formats.json_text import parse_json
from attnkit.formats.streams import decode_text, exists, is_missing, name_errors
from attnkit.inputs.operands import load_attended, select_tensor
from attnkit.inputs.padding import BESIDE_IDS, LIBRARY_NAMES, rename_model_inputs
from attnkit.model.arrays import numpy_array
from attnkit.options import COMMA, Load
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

FACTOR = re.compile(r"\*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)$", re.ASCII)  # of FILE*2.0
FILE_SUFFIX = re.compile(r"\.(json|npy|npz|safetensors)(:\w+)?$")

Piped = Sequence[Record | str] | None  # the results of the stage before, where they are the operand
Converter = Callable[[Any, str], Any]


class Loaded(NamedTuple):
    """Content, the SHA-256 of its files for the history, and the format of records."""

    content: Any
    digests: dict[str, str]
    format: str | None = None


Loader = Callable[[str, Piped, bool], Loaded]


class Content(NamedTuple):
    """How one kind of content is read: from a file, a pipe, Python, or the input.

    python   its type as a value of Python
    load     (path, what is piped into it, whether 2-byte void elements of NPY are bfloat16) -> content, digests
    convert  (value of Python, flag) -> content; UsageError for a value of another kind
    own      (input, NAME, :NAME) -> content, where a tensor of the input can be one
    is_list  whether the path may be several paths, comma-separated
    """

    python: str
    load: Loader
    convert: Converter
    own: Callable[[Record, str, str], Any] | None = None
    is_list: bool = False


@dataclass(eq=False, repr=False)
class OperandFiles:
    """The input of a stage and the files of its options, each read when needed.

    options  the options of the tool by parameter; values: the values of the stage
    source   the input, where it is a file or a pipe; piped: the results of the stage before
    loaded   parameter -> the content of its file; digests: file -> its SHA-256
    formats  the formats of the files of records
    """

    options: Mapping[str, Option]
    values: dict[str, Any]
    source: Source | None = None
    piped: Iterator[Any] | None = None
    loaded: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    formats: set[str] = field(default_factory=set)

    def load_values(self, item: Any, bfloat16: bool) -> dict[str, Any]:
        """The values of a tool's parameters for one item, with contents of files."""
        return {
            name: value if value is None or not self.options[name].load else self.load(name, item, bfloat16)
            for name, value in self.values.items()
        }

    def load(self, name: str, item: Any = None, bfloat16: bool = False) -> Any:
        """The content of the file of an option, or the item's tensor for :NAME."""
        value, option = self.values[name], self.options[name]
        content = CONTENTS[option.load or "tensor"]
        if not isinstance(value, str):
            return content.convert(value, flag_name(name))
        if value.startswith(":"):
            if not isinstance(item, Record):
                raise UsageError(f"there is no input record with a tensor {value[1:]!r}", flag_name(name))
            if content.own is None:
                raise UsageError(f"expected {option.metavar}, got {value!r}, a tensor of the input", flag_name(name))
            return content.own(item, value[1:], value)
        if name not in self.loaded:
            piped = list(self.piped) if self.piped is not None and stdin_uses(value, option.load) else None
            self.loaded[name], digests, format = content.load(value, piped, bfloat16)
            self.digests |= digests
            self.formats |= {format} if format else set()
        return self.loaded[name]

    def common_format(self) -> str | None:
        """The format of the files of records that were read, if they have one."""
        return next(iter(self.formats)) if len(self.formats) == 1 else None

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
    values = value.split(",") if load and CONTENTS[load].is_list and isinstance(value, str) else [value]
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


def load_model(path: str) -> "Checkpoint":
    """Open a model, whose files are mapped into memory."""
    from attnkit.checkpoints import open_checkpoint

    return open_checkpoint(path)


def digests_of(source: Source) -> dict[str, str]:
    """The SHA-256 of a file that has been read; of a pipe none."""
    return {source.name: source.digest()} if source.name != "<stdin>" else {}


def only_record(records: Iterable[Any], file: str) -> Record:
    """The one record of a file or pipe; DataError for more or none."""
    found = [one for one in records if isinstance(one, Record)]
    if len(found) != 1:
        raise DataError(f"{len(found)} records (expected 1)", file)
    return found[0]


def from_record(select: Callable[[Record, str, str], Any], maps: bool = False) -> Loader:
    """Make the loader of what is in the one record of a file or pipe.

    select  (record, NAME or "", file) -> content
    maps    take a JSON object such as {"w": [[1, 0], [0, 1]]} as a record
    """

    def load(path: str, piped: Piped, bfloat16: bool) -> Loaded:
        if piped is not None:
            return Loaded(select(only_record(piped, "<stdin>"), path.partition(":")[2], "<stdin>"), {})
        source, name = open_operand(path, hash=True)
        with source:
            stream = read(source, bfloat16, lone_is_x=False, maps=maps)
            content = select(only_record(stream, source.name), name, source.name)
            return Loaded(content, digests_of(source), stream.format)

    return load


def from_text(parse: Callable[[str, str], Any]) -> Loader:
    """Make the loader of what is in a file or pipe of text.

    parse  (text, file) -> content
    """

    def load(path: str, piped: Piped, bfloat16: bool) -> Loaded:
        if piped is not None:
            return Loaded(parse("".join(f"{item}\n" for item in piped if isinstance(item, str)), "<stdin>"), {})
        source, _ = open_operand(path, hash=True)
        with source:
            return Loaded(parse(read_text(source), source.name), digests_of(source))

    return load


def load_index(path: str, piped: Piped, bfloat16: bool) -> Loaded:
    """Open the vectors of a file, which is mapped into memory, of a pipe or a model."""
    from attnkit.inputs import vector_index

    folder, layer = vector_index.find_model(path)
    if folder:
        return Loaded(vector_index.load_words(folder, layer), {})
    if piped is not None:
        records = [item for item in piped if isinstance(item, Record)]
        return Loaded(vector_index.stack_tensors(records, path.partition(":")[2], "<stdin>"), {})
    source, name = open_operand(path, hash=True)
    return Loaded(*vector_index.read_vectors(source, name, bfloat16))


def find_tokenizer(path: str, piped: Piped, bfloat16: bool) -> Loaded:
    """Read tokenizer.json, or find a tokenizer that is built in by its name."""
    from attnkit.tokenizers import BUILTIN_TOKENIZERS

    if path in BUILTIN_TOKENIZERS:
        return Loaded(BUILTIN_TOKENIZERS[path], {})
    from attnkit.tokenizers.huggingface import parse_tokenizer_json

    return from_text(parse_tokenizer_json)(path, piped, bfloat16)


def load_targets(path: str, piped: Piped, bfloat16: bool) -> Loaded:
    """Read the ids of a file; words or ids typed in its place stay as they are."""
    return from_record(select_ids)(path, piped, bfloat16) if names_a_file(path) else Loaded(path, {})


def names_a_file(text: str) -> bool:
    """Whether a value that may be words is the name of a file.

    >>> names_a_file("am I"), names_a_file("ids.json"), names_a_file("./am"), names_a_file("out.npz:ids")
    (False, True, True, True)
    """
    return text == "-" or bool(re.match(r"(\.\.?)?/[^/\s]", text) or FILE_SUFFIX.search(text))


def load_patches(text: str, piped: Piped, bfloat16: bool) -> Loaded:
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
            array = select_tensor(only_record(records, source.name), inner, source.name)["x"]
            arrays[target] = array * float(times[1]) if times else array
            digests |= digests_of(source)
    return Loaded(arrays, digests)


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


def load_means(path: str, piped: Piped, bfloat16: bool) -> Loaded:
    """Read a file record by record: the means of its heads, and its digest."""
    from attnkit.interpret.edits import mean_heads

    if piped is not None:
        return Loaded(mean_heads((item for item in piped if isinstance(item, Record)), "<stdin>"), {})
    with open_source(path, hash=True) as source:
        return Loaded(mean_heads(read(source, lone_is_x=False), source.name), digests_of(source))


def load_lines(paths: str, piped: Piped, bfloat16: bool) -> Loaded:
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
            digests |= digests_of(source)
    return Loaded(texts, digests)


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


def select_arrays(record: Record, name: str, file: str) -> dict[str, Array]:
    """All tensors of a record as arrays, or those of the module of a name.

    A part that torch.compile puts before the names of a module may be left out. UsageError for the name of a tensor.

    >>> import numpy as np
    >>> layer = Record({"norm1.weight": np.ones(2), "_orig_mod.norm2.weight": np.zeros(2)})
    >>> select_arrays(layer, "norm2", "layer.pt")
    {'weight': array([0., 0.])}
    """
    arrays = record.arrays()
    if not name:
        return arrays
    module, plain = without_compiled(f"{name}."), {without_compiled(one): array for one, array in arrays.items()}
    within = {one.removeprefix(module): array for one, array in plain.items() if one.startswith(module)}
    if not within and name in record:
        raise UsageError(f"needs the whole file, or a module of it, not only its tensor {name!r}", file)
    if not within:
        modules = dict.fromkeys(one.rpartition(".")[0] for one in plain if "." in one)
        hint = suggest(name, modules) or f" (it has {join_names([*modules], 4) or 'none'})"
        raise UsageError(f"has no module {name!r}{hint}", file)
    return within


def without_compiled(name: str) -> str:
    """The name of a parameter without the parts that torch.compile adds to it.

    >>> without_compiled("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def select_array(record: Record, name: str, file: str) -> Array:
    """The array of a tensor of a record."""
    return select_tensor(record, name, file)["x"]


def select_sound(record: Record, name: str, file: str) -> Record:
    """A tensor of a record as x, beside what describes the sound."""
    return record.merge(select_tensor(record, name, file))


def select_memory(record: Record, name: str = "", file: str = "") -> Record:
    """The memory of a record, with its mask: `memory`, x, or its first tensor."""
    usual = next((one for one in ("memory", "x", *record) if one in record), "")
    return load_attended(record, name or usual, file)


def read_text(source: Source) -> str:
    """Read a source to its end as UTF-8 text."""
    return decode_text(bytes(source.read_all()), source.name)


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
    with name_errors(name):
        try:
            array = numpy_array(value)
        except ValueError:  # lists of unlike lengths
            raise UsageError("expected an array of numbers, got lists of unequal lengths") from None
    return check_numbers(Record({"x": array}), name)


def check_numbers(record: Record, name: str = "") -> Record:
    """Check that the tensors of a record are arrays of numbers."""
    for tensor, array in record.arrays().items():
        if not isinstance(array, np.ndarray | np.generic):
            raise UsageError(f"expected an array, got {type(array).__name__}", name or tensor)
        if array.dtype.kind not in "fiubV":
            raise UsageError(f"expected an array of numbers, got dtype {array.dtype}", name or tensor)
    return record


def as_arrays(value: Any) -> Any:
    """A record, or a dict of what array_to_record takes, as a dict of arrays."""
    if isinstance(value, Record):
        return check_numbers(value).arrays()
    if isinstance(value, Mapping):
        return {name: array_to_record(one, name)["x"] for name, one in value.items()}
    return value


def is_list_of(fits: Callable[[Any], bool], value: Any, least: int = 1) -> bool:
    """Decide whether a value is a list of at least `least` values that fit."""
    return isinstance(value, list | tuple) and len(value) >= least and all(map(fits, value))


def is_text_list(value: Any) -> bool:
    """Decide whether a value is a list of texts, or empty."""
    return is_list_of(lambda one: isinstance(one, str), value, least=0)


def one_of_kind(fits: Callable[[Any], bool], expected: str) -> Converter:
    """Make the converter that returns a value if it fits; else UsageError."""

    def convert(value: Any, flag: str) -> Any:
        if not fits(value):
            raise UsageError(f"expected {expected}, got {type(value).__name__}", flag)
        return value

    return convert


convert_map = one_of_kind(lambda value: isinstance(value, Mapping), "a dict of arrays")
convert_texts = one_of_kind(partial(is_list_of, is_text_list), "a list of lines, or of lists of lines")


def convert_tensor(value: Any, flag: str) -> Record:
    """A record with x, of numbers; UsageError for what is neither one nor an array."""
    record = value if isinstance(value, Mapping | Record) else array_to_record(value, flag)
    if not isinstance(record, Record) or "x" not in record:
        raise UsageError(f"expected an array or a record with x, got {type(record).__name__}", flag)
    return check_numbers(record, flag)


def convert_ids(value: Any, flag: str) -> Record:
    """A record with x, the ids of one that has them under their name."""
    has_ids = isinstance(value, Record) and not {"ids", "input_ids"}.isdisjoint(value)
    return convert_tensor(select_ids(value, "", flag) if has_ids else value, flag)


def convert_attended(value: Any, flag: str) -> Record:
    """An array, or x of a record with the mask that applies to it."""
    value = value if isinstance(value, Mapping | Record) else array_to_record(value, flag)
    if not isinstance(value, Record):
        raise UsageError(f"expected an array or a record, got {type(value).__name__}", flag)
    return load_attended(value)


def convert_memory(value: Any, flag: str) -> Any:
    """An array, the memory of a record with its mask, or a dict of arrays."""
    if isinstance(value, Mapping):
        return as_arrays(value)
    return select_memory(value if isinstance(value, Record) else array_to_record(value, flag))


def convert_patches(patches: Any, flag: str) -> dict[str, Array]:
    """The array of each NAME or NAME[SLICE]; a record gives its NAME, or its x.

    >>> convert_patches({"decoder.0.ffn[2]": Record({"decoder.0.ffn": np.ones((3, 1))})}, "--patch")
    {'decoder.0.ffn[2]': array([[1.],
           [1.],
           [1.]])}
    """
    from attnkit.interpret.edits import parse_target

    arrays: dict[str, Array] = {}
    for target, value in convert_map(patches, flag).items():
        name, *_ = parse_target(target)
        if isinstance(value, Record):
            value = value["x" if name not in value and "x" in value else name]
        arrays[target] = array_to_record(value, flag)["x"]
    return arrays


def convert_means(value: Any, flag: str) -> dict[str, Array]:
    """The means of the heads of a record, or of a dict of arrays."""
    from attnkit.interpret.edits import mean_heads

    if not isinstance(value, Mapping | Record):
        raise UsageError(f"expected a dict of arrays or a record, got {type(value).__name__}", flag)
    return mean_heads([value if isinstance(value, Record) else Record(as_arrays(value))], flag)


TENSOR_TYPE = "TensorLike"
ARRAYS_TYPE = "Mapping[str, Tensor | SupportsArray] | Record | Path"
# kind of content -> how it is read; the comment above a row names the result
CONTENTS: dict[Load, Content] = {
    # a record with x alone
    "tensor": Content(TENSOR_TYPE, from_record(select_tensor), convert_tensor, select_tensor),
    # the dict of all arrays
    "tensors": Content(
        ARRAYS_TYPE,
        from_record(select_arrays, maps=True),
        lambda value, flag: convert_map(as_arrays(value), flag),
    ),
    # a record with x, and the mask that applies to it as keys
    "attended": Content(TENSOR_TYPE, from_record(load_attended), convert_attended, partial(load_attended, own=True)),
    # the same, of the record's `memory` unless NAME is another tensor
    "memory": Content(
        "TensorLike | Mapping[str, Tensor | SupportsArray]",
        from_record(select_memory),
        convert_memory,
        partial(load_attended, own=True),
    ),
    # a record with x (N, D) in a mapped file, hashed when its history is written; of a model the vectors of its words
    "index": Content(TENSOR_TYPE, load_index, convert_tensor, select_tensor),
    # a list of words
    "words": Content(
        "Sequence[str] | Path",
        from_text(parse_words),
        one_of_kind(is_text_list, "a list of words"),
    ),
    # a Tokenizer
    "tokenizer": Content(
        "Tokenizer | Path", find_tokenizer, one_of_kind(lambda value: hasattr(value, "encode"), "a tokenizer")
    ),
    # a Checkpoint, whose files are hashed when their history is written
    "model": Content(
        "Checkpoint | Path",
        lambda path, piped, bfloat16: Loaded(load_model(path), {}),
        one_of_kind(lambda value: hasattr(value, "params"), "a folder or a model"),
    ),
    # the array of a picture or of a tensor
    "image": Content(
        TENSOR_TYPE, from_record(select_array), lambda value, flag: convert_tensor(value, flag)["x"], select_array
    ),
    # a record with x, the samples of a sound
    "audio": Content(TENSOR_TYPE, from_record(select_sound), convert_tensor, select_sound),
    # {NAME: array} of NAME=FILE,…
    "patches": Content("Mapping[str, TensorLike] | str", load_patches, convert_patches),
    # {LAYER.heads: (H, K)}, the means over all tokens of a stream
    "means": Content(ARRAYS_TYPE, load_means, convert_means),
    # a record with x, the ids, and the mask, lengths and segments of tokens
    "ids": Content(TENSOR_TYPE, from_record(select_ids), convert_ids, select_tensor),
    # the same, or words and ids as they are written
    "targets": Content(TENSOR_TYPE, load_targets, convert_ids, select_tensor),
    # the lines of each of several texts
    "lines": Content(
        "Sequence[str] | Sequence[Sequence[str]] | Path",
        load_lines,
        lambda value, flag: convert_texts([value] if is_text_list(value) else value, flag),
        is_list=True,
    ),
    # a list of {role, content}
    "messages": Content(
        "Sequence[Mapping[str, Any]] | Path",
        from_text(parse_messages),
        one_of_kind(partial(is_list_of, is_message), "a list of dicts with role and content"),
    ),
    # a text
    "template": Content("Path", from_text(lambda text, name: text), one_of_kind(lambda value: False, "a file")),
}
