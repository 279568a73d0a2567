"""A stage: one tool with its parameters; read a record, call the tool, post-process, hand on the result."""

import contextlib
import contextvars
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit import formats
from attnkit.cli import operands, options
from attnkit.cli.history import add_history, to_flags
from attnkit.cli.output_format import DISPLAY_FORMATS, asked_format, default_format
from attnkit.errors import AttnkitError, AttnkitNote, AttnkitWarning, DataError, NotFiniteError, UsageError
from attnkit.inference import callbacks
from attnkit.inference.operands import load_attended, select_tensor
from attnkit.record import Array, Record, join_names

if TYPE_CHECKING:
    from attnkit.cli.tool import Tool
    from attnkit.display import Style

Item = Any  # what a tool's function is called with: a record, None (it makes its own), or the texts of one
Result = Record | str


class Records(NamedTuple):
    """A stream between two stages: its items, and the format it has on a pipe (None: not yet chosen)."""

    format: str | None
    items: Iterator[Any]


def save_now(path: str, record: Record) -> None:
    """Write a side output that belongs to no transaction."""
    formats.save(record, path)


_STORE: "contextvars.ContextVar[Callable[[str, Record], None]]" = contextvars.ContextVar("store", default=save_now)
_RUNNING: "contextvars.ContextVar[Stage | None]" = contextvars.ContextVar("stage", default=None)


@contextlib.contextmanager
def stored_by(store: Callable[[str, Record], None]) -> Iterator[None]:
    """Pass the side outputs of a `with` block to this function of their path and record."""
    token = _STORE.set(store)
    try:
        yield
    finally:
        _STORE.reset(token)


@contextlib.contextmanager
def replace_together() -> Iterator[Callable[[str | None], formats.Sink]]:
    """Open sinks for a `with` block that replaces files only at its end, those of side outputs among them."""
    with formats.write_together() as opened:

        def store(path: str, record: Record) -> None:
            opened(path).write(formats.encode(record, formats.suffix_format(path) or "json"))

        with stored_by(store):
            yield opened


def running_stage() -> "Stage | None":
    """Return the stage at work in this thread: warnings and progress are its own."""
    return _RUNNING.get()


@contextlib.contextmanager
def running(stage: "Stage") -> Iterator[None]:
    """Make a stage the one at work in a `with` block."""
    token = _RUNNING.set(stage)
    try:
        yield
    finally:
        _RUNNING.reset(token)


@dataclass
class Stage:
    """One tool with its parameters: a stage of a pipeline."""

    tool: "Tool"
    parameters: dict[str, Any]
    common: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    operands: tuple[str, ...] = ()
    source: formats.Source | None = None
    arrived: str | None = None  # the format of the source
    upstream: Records | None = None
    loaded: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    inner: bool = False  # whether another stage of this process reads what it makes
    follows: bool = False  # whether it writes npy for no other reason than that its input is npy
    noted: bool = False  # whether it is said what npy does not hold
    dated: bool = True  # whether what it makes goes where its history is kept
    broken: str = ""  # the layer that first gave what is not finite
    written: list[str] = field(default_factory=list)  # files written beside the result
    on_text: Callable[[str, bool], None] | None = None  # streams a text as it is generated

    @property
    def dtype(self) -> str | None:
        """What --dtype says, whether it is the tool's own or that of all tools."""
        found: str | None = self.parameters.get("dtype", self.common.get("dtype"))
        return found

    def flow(self, upstream: Records | None) -> Records:
        """This stage behind another one; behind None it reads its operand or standard input."""
        with error_context(self):
            self._check_stdin()
            self.upstream = upstream
            fed = self.tool.feed(self, upstream)
        return Records(self.common.get("format") or fed.format, self._results(fed.items))

    def _results(self, items: Iterator[Item]) -> Iterator[Result]:
        with error_context(self):
            for item in items:
                yield self.apply(item)

    def result(self) -> Result:
        """The one result of the files it names; DataError where they hold more than one record."""
        with replace_together():
            results: list[Result] = list(self.flow(None).items)
        if len(results) != 1:
            raise DataError(f"{len(results)} records (expected 1); tensors.read gives a stream", *self.operands[:1])
        return results[0]

    def apply(self, item: Item) -> Result:
        """The tool's result for one item, converted, narrowed and stamped as the flags say."""
        with running(self), callbacks.use_callbacks(self._callbacks(item)):
            return self._apply(item)

    def _callbacks(self, item: Item) -> callbacks.Callbacks:
        """Return what a run of the tool calls for one item: those of the process, and this stage's own."""
        return replace(
            callbacks.current(),
            on_text=self.on_text,
            on_non_finite=self._note_non_finite,
            write_side_output=partial(self._write_side_output, item),
            is_output_file=self._is_output_file,
            candidates=self.extra.get("top") or callbacks.CANDIDATES,
        )

    def _apply(self, item: Item) -> Result:
        dtype, only = self.common.get("dtype"), self.common.get("only")
        if isinstance(item, Record) and dtype and "x" in item:
            item = cast_x(item, dtype)
        self.broken = ""
        try:
            result = self.tool.function(item, **self._given(item))
        except NotFiniteError as error:
            raise DataError(f"{error.problem}{self._why()}", error.name) from None
        if not isinstance(result, Record):
            return result
        if dtype and not isinstance(item, Record):
            result = cast_x(result, dtype)
        if self.tool.numeric(self.parameters):
            self._check_range(item, result)
        if only:
            result = result.only(only)
        if make := self.tool.derived(self):
            derived = make(result)
            if not isinstance(derived, Record):
                return derived
            result = derived
        if self.follows and len(result) > 1:
            self.dated = True  # it goes on as npz
        made = result if result is item and not dtype else add_history(self, item, self._owning(item, result))
        if self.source is not None and not self.dated:
            self.source.stop_hash()  # npy carries no history
        return made

    def asked(self) -> str | None:
        """The format that is asked for, whatever the input is."""
        return self.common.get("format") if self.inner else asked_format(self.common, self.tool.eyes)

    def choose(self, arriving: str | None) -> str:
        """The format of what it makes, as far as that is known before it makes any: npy may become npz."""
        chosen = self.asked() or arriving or default_format()
        self.follows = chosen == "npy" and arriving == "npy" and self.asked() is None
        self.dated = chosen not in ("npy", *DISPLAY_FORMATS)
        return chosen

    def settled(self, format: str, items: Iterator[Result]) -> tuple[str, Iterator[Result]]:
        """The format of all of a stream, which is npz where npy was not asked for and its first record holds more."""
        if not self.follows:
            return format, items
        first = next(items, None)
        wide = isinstance(first, Record) and len(first) > 1
        return "npz" if wide else format, itertools.chain([] if first is None else [first], items)

    def departing(self, items: Iterator[Result], format: str) -> Iterator[Result]:
        """The results as they are written in a format; errors of it are this stage's, not those of the next one."""
        for result in items:
            try:
                with running(self):
                    leaving = self.leaving(result, format)
            except AttnkitError as error:
                error.place = f"attnkit {self.tool.name}"
                raise
            yield leaving

    def leaving(self, record: Result, format: str) -> Result:
        """The result as it is written: as npy x alone, with a note, once a stream, of what is left out."""
        if format != "npy" or not isinstance(record, Record):
            return record
        from attnkit.formats import npy

        kept = npy.only_tensor(record)
        if not self.noted and (notes := self._notes(record, kept)):
            self.noted = True
            warnings.warn("; ".join(notes), AttnkitNote, stacklevel=2)
        return Record({"x": kept})

    def _notes(self, record: Record, kept: Array) -> list[str]:
        """What there is to know of a record that is written as npy."""
        left = [name for name in record if name != "x" and len(record) > 1]
        left += ["labels"] * bool(record.labels) + ["history"] * (len(record.history) > 1)
        notes = [f"npy holds x alone; left out: {join_names(left)} (-f npz keeps all)"]
        if not left or self.common.get("only"):
            notes = []
        if kept.dtype.name == "bfloat16":
            notes.append("npy has no name for bfloat16; reading it takes --dtype bfloat16")
        return notes

    def _owning(self, item: Item, result: Record) -> Record:
        """The result, and which tensors beside x are its own: made by this tool, or named by a flag."""
        first = item[0] if isinstance(item, list) and item else item
        before = first.tensors if isinstance(first, Record) else {}
        named = self.common.get("only") or self.parameters.get("name")
        made = [name for name in result if name != "x" and result[name] is not before.get(name)]
        own = [name for name in result if name != "x"] if named else made if self.tool.adds(self.parameters) else []
        return replace(result, asked=tuple(own))

    def read(self, path: str) -> Records:
        """The stream of records in a file, and its format; `-` behind another stage is what that one gives."""
        if path == "-" and self.upstream is not None:
            return Records(self.upstream.format, map(require_record, self.upstream.items))
        source, name = operands.open_operand(path, hash=path != "-")
        if self.tool.verbatim:
            source.capture()
        bfloat16 = self.dtype == "bfloat16"
        stream = formats.read(source, bfloat16, lone_is_x=not (name or self.tool.names))
        return self.reading(source, stream, path, name)

    def reading(self, source: formats.Source, stream: formats.Stream, path: str, name: str) -> Records:
        """The flow of a stream that has been opened."""
        if stream.format == "npy":
            asked = self.asked()
            if asked in ("npy", *DISPLAY_FORMATS):
                source.stop_hash()  # neither carries a history
            elif asked is None:
                source.defer_hash()  # until it is known whether npy holds the result
        self.source, self.arrived = source, stream.format
        return Records(stream.format, (self._named(record, name, path) for record in stream))

    def file_of_error(self, error: DataError) -> str:
        """Return the file of the flag or weight that an error begins with, else the only one read, else ""."""
        first = error.problem.split(" ")[0]
        for flag, content in self.loaded.items():
            is_named = first == flag or flag in ERROR_OPERANDS.get(first, ())
            if is_named or (isinstance(content, dict) and first in content):
                return operand_name(self.parameters[flag])
        if str(self.parameters.get(first, "")).startswith(":"):
            return str(self.parameters[first])
        files = [*self.files] if self.source is None else [self.source.name, *self.files]
        files += [operand_name(self.parameters[flag]) for flag in self.loaded if is_stdin(self.parameters.get(flag))]
        return files[0] if len(files) == 1 else ""

    def _note_non_finite(self, layer: str) -> None:
        """Keep the name of the first layer whose result is not finite."""
        self.broken = self.broken or layer

    def _is_output_file(self, path: str) -> bool:
        """Return whether the stage writes its result to this file."""
        output = self.common.get("output")
        return output is not None and os.path.realpath(output) == os.path.realpath(path)

    def _write_side_output(self, item: Item, path: str, record: Record) -> None:
        """Write a second result of one item to a file, with the same history."""
        if path == "-":
            callbacks.refuse_side_output(path, record)
        if self._is_output_file(path):
            raise UsageError(f"{path}: two results for one file: it is that of --output too")
        if path in self.written and path != os.devnull:
            raise DataError("it holds one record, and the stream has more", path)
        self.written.append(path)
        self.dated = True
        _STORE.get()(path, add_history(self, item, record, path))

    def content(self, name: str) -> Any:
        """What the file behind a flag holds, before the first item is there."""
        return self._operand(name, self.parameters[name], None)

    def _named(self, record: Record, name: str, path: str) -> Record:
        """The record of FILE, or of FILE:NAME."""
        if not name:
            return record
        return record.only([name]) if self.tool.names else select_tensor(record, name, path)

    def _given(self, item: Item) -> dict[str, Any]:
        given = {}
        for name, value in self.parameters.items():
            load = self.tool.flags[name].load
            given[name] = self._operand(name, value, item) if load and value is not None else value
        return given

    def _operand(self, name: str, value: Any, item: Item) -> Any:
        load = self.tool.flags[name].load or "tensor"
        if not isinstance(value, str):
            value = operands.check_content(value, load, options.flag_name(name))
            attended = isinstance(value, Record) and load in ("attended", "memory")
            return load_attended(value, operands.memory_in(value, load)) if attended else value
        if value.startswith(":"):
            if not isinstance(item, Record):
                raise UsageError(f"there is no record here to take {value[1:]!r} from", to_flags(name, value)[0])
            if load in ("attended", "memory"):
                return load_attended(item, value[1:], value, own=True)
            return select_tensor(item, value[1:], value)
        if name not in self.loaded:
            piped = None if self.upstream is None or not is_stdin(value) else list(self.upstream.items)
            content, digests = operands.load_operand(value, load, piped, self.dtype == "bfloat16")
            self.loaded[name] = content
            self.files |= digests
        return self.loaded[name]

    def stdin_readers(self) -> int:
        """How many of its operands are standard input, the one among them that is not given."""
        files = [value for name, value in self.parameters.items() if self.tool.flags[name].load]
        implied = not self.operands and self.tool.operand.startswith("[") and not self.tool.alone(self.parameters)
        return sum(map(is_stdin, (*files, *self.operands))) + implied

    def _check_stdin(self) -> None:
        if self.stdin_readers() > 1:
            raise UsageError("only one operand can be '-' (standard input)")

    def _why(self, usual: str = "") -> str:
        """Which layer first gave what is not finite, and which parameter was it before; else the usual reason."""
        first, flaw = self.broken, ""
        for name, content in (self.parameters | self.loaded).items():  # Python gives contents, not files
            if hasattr(content, "find_non_finite"):  # a model
                flaw = flaw or content.find_non_finite(first)
            elif isinstance(content, dict) and not flaw:
                found = {key: formats.first_non_finite(array) for key, array in content.items()}
                flaw = next((f"{key} of {options.flag_name(name)} is {at}" for key, at in found.items() if at), "")
            elif isinstance(content, Record) and not flaw and "x" in content:
                at = formats.first_non_finite(content["x"])
                flaw = f"{options.flag_name(name)} is {at}" if at and not at.startswith("-inf") else ""  # as in a mask
        where = f", first in {first}" if first else ""
        reason = flaw or usual
        return where + (f": {reason}" if reason else "")

    def _check_range(self, item: Item, result: Record) -> None:
        before = formats.first_non_finite(item["x"]) if isinstance(item, Record) and "x" in item else ""
        after = "" if before or "x" not in result else formats.first_non_finite(result["x"])
        if before:
            problem = f"x is {before}"
        elif after:
            usual = f"outside the range of {result['x'].dtype}"
            problem = f"the result is {after}{self._why(usual)}"
        else:
            return
        if self.common.get("check_finite"):
            raise DataError(problem)
        warnings.warn(problem, AttnkitWarning, stacklevel=2)


# how an error of the arithmetic begins -> the flags whose file it may be
ERROR_OPERANDS = {
    "length": ("lengths",),
    "parameter": ("params",),
    "Q": ("query",),
    "K": ("key", "memory"),
    "V": ("value", "key", "memory"),
    "token": ("ids", "vocab"),
    "position": ("positions", "table"),
}


@contextlib.contextmanager
def error_context(call: Stage) -> Iterator[None]:
    """Errors from within are the call's tool's, unless a stage before it has claimed them.

    Bad data without a name are those of the file whose tensor they begin with, or of the only file at work.
    """
    try:
        yield
    except AttnkitError as error:
        if error.place:
            raise
        name = error.name or (call.file_of_error(error) if isinstance(error, DataError) else "")
        flag = name[2:].replace("-", "_")
        if name.startswith("--") and flag in call.loaded and call.tool.flags[flag].load != "patches":
            name = operand_name(call.parameters[flag])
        found = type(error)(error.problem, name)
        found.place = f"attnkit {call.tool.name}"
        raise found from error


Feed = Callable[[Stage, Records | None], Records]
View = Callable[[Record, Stage, "Style"], str]


def read_records(call: Stage, upstream: Records | None, alone: bool | None = None) -> Records:
    """Feed of a tool that transforms records: those of its operand, of the stage before, of standard input.

    A tool that stands alone is called once, without a record.

    alone  whether it does, where its own parameters do not say it all
    """
    if call.tool.alone(call.parameters) if alone is None else alone:
        if call.operands:
            raise UsageError(f"{call.operands[0]}: nothing is read with these flags")
        return Records(upstream.format if upstream else None, iter([None]))
    if not call.operands:
        return call.read("-" if upstream is not None else operands.stdin_or_error())
    return call.read(call.operands[0])


def require_record(item: Result) -> Record:
    """A record, as a stage that reads tensors needs it."""
    if not isinstance(item, Record):
        raise DataError("not a tensor file (looks like text)", "<stdin>")
    return item


def is_stdin(operand: Any) -> bool:
    """Whether an operand is standard input, or a tensor of the record there."""
    return isinstance(operand, str) and (operand == "-" or operand.startswith("-:"))


def operand_name(operand: Any) -> str:
    """Return an operand as an error names it.

    >>> operand_name("a.npz:mask"), operand_name("-"), operand_name("-:mask")
    ('a.npz:mask', '<stdin>', '<stdin>:mask')
    """
    return f"<stdin>{operand[1:]}" if is_stdin(operand) else str(operand)


def cast_x(record: Record, dtype: str) -> Record:
    """The record with x in another dtype."""
    return record.put({"x": formats.cast(record["x"], dtype)}, axes={"x": record.axes_of("x")})
