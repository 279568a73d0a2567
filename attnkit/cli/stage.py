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
from attnkit.cli import operands, side_outputs
from attnkit.cli.error_context import error_context, explain_non_finite, is_stdin
from attnkit.cli.history import add_history, to_flags
from attnkit.cli.output_format import DISPLAY_FORMATS, default_format, requested_format
from attnkit.errors import AttnkitError, AttnkitNote, AttnkitWarning, DataError, NotFiniteError, UsageError, flag_name
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


_RUNNING: "contextvars.ContextVar[Stage | None]" = contextvars.ContextVar("stage", default=None)


def running_stage() -> "Stage | None":
    """Return the running stage of this thread, which warnings and progress belong to."""
    return _RUNNING.get()


@contextlib.contextmanager
def running(stage: "Stage") -> Iterator[None]:
    """Make a stage the running one of a `with` block."""
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
    input_format: str | None = None  # the format of the source
    upstream: Records | None = None
    loaded: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    is_piped: bool = False  # whether another stage of this process reads its results
    follows_input: bool = False  # whether it writes npy only because its input is npy
    is_noted: bool = False  # whether the note of what npy leaves out is written
    keeps_history: bool = True  # whether the format of its results holds their history
    non_finite_layer: str = ""  # the first layer whose result is not finite
    side_files: list[str] = field(default_factory=list)  # the side outputs written so far
    on_text: Callable[[str, bool], None] | None = None  # streams a text as it is generated

    @property
    def dtype(self) -> str | None:
        """The value of --dtype, whether it is the tool's own flag or that of all tools."""
        name: str | None = self.parameters.get("dtype", self.common.get("dtype"))
        return name

    def open_stream(self, upstream: Records | None) -> Records:
        """Return the stream of results for another stage's; for None the input is the operand or standard input."""
        with error_context(self):
            self._check_stdin()
            self.upstream = upstream
            items = self.tool.reader(self, upstream)
        return Records(self.common.get("format") or items.format, self._results(items.items))

    def _results(self, items: Iterator[Item]) -> Iterator[Result]:
        with error_context(self):
            for item in items:
                yield self.apply(item)

    def run_files(self) -> Result:
        """Return the one result of the files it names; DataError where they hold more than one record."""
        with side_outputs.replace_together():
            results: list[Result] = list(self.open_stream(None).items)
        if len(results) != 1:
            raise DataError(f"{len(results)} records (expected 1); tensors.read gives a stream", *self.operands[:1])
        return results[0]

    def apply(self, item: Item) -> Result:
        """Run the tool on one item; --dtype and --only apply to the result, and its history is added."""
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
        result = self._call_tool(item)
        if not isinstance(result, Record):
            return result
        if dtype and not isinstance(item, Record):
            result = cast_x(result, dtype)
        if self.tool.check_finite(self.parameters):
            self._check_range(item, result)
        if only:
            result = result.select(only)
        if derive := self.tool.derived(self):
            derived = derive(result)
            if not isinstance(derived, Record):
                return derived
            result = derived
        return self._add_history(item, result, is_unchanged=result is item and not dtype)

    def _call_tool(self, item: Item) -> Result:
        """Call the function of the tool on one item; a result that cannot be finite becomes a DataError."""
        self.non_finite_layer = ""
        try:
            return self.tool.function(item, **self._values(item))
        except NotFiniteError as error:
            raise DataError(f"{error.problem}{explain_non_finite(self)}", error.name) from None

    def _add_history(self, item: Item, result: Record, is_unchanged: bool) -> Record:
        """Return the result with its history entry, unless the tool passed its item through."""
        if self.follows_input and len(result) > 1:
            self.keeps_history = True  # it is written as npz
        recorded = result if is_unchanged else add_history(self, item, self._mark_own(item, result))
        if self.source is not None and not self.keeps_history:
            self.source.stop_hash()  # npy carries no history
        return recorded

    def requested_format(self) -> str | None:
        """Return the format that the flags, the file's suffix or a terminal request, None where none of them does."""
        return self.common.get("format") if self.is_piped else requested_format(self.common, self.tool.shows_table)

    def choose_format(self, arriving: str | None) -> str:
        """Return the format of the results, as far as it is known before the first one: npy may become npz."""
        chosen = self.requested_format() or arriving or default_format()
        self.follows_input = chosen == "npy" and arriving == "npy" and self.requested_format() is None
        self.keeps_history = chosen not in ("npy", *DISPLAY_FORMATS)
        return chosen

    def settle_format(self, format: str, items: Iterator[Result]) -> tuple[str, Iterator[Result]]:
        """Return the format of a whole stream and its results: npz for npy that was not requested and lacks tensors."""
        if not self.follows_input:
            return format, items
        first = next(items, None)
        wide = isinstance(first, Record) and len(first) > 1
        return "npz" if wide else format, itertools.chain([] if first is None else [first], items)

    def convert_all(self, items: Iterator[Result], format: str) -> Iterator[Result]:
        """Yield the results as a format holds them; its errors are attributed to this stage, not to the next one."""
        for result in items:
            try:
                with running(self):
                    converted = self.convert(result, format)
            except AttnkitError as error:
                error.place = f"attnkit {self.tool.name}"
                raise
            yield converted

    def convert(self, record: Result, format: str) -> Result:
        """Return a result as a format holds it: npy only x, with one note a stream that lists what is left out."""
        if format != "npy" or not isinstance(record, Record):
            return record
        from attnkit.formats import npy

        x = npy.only_tensor(record)
        if not self.is_noted and (notes := self._notes(record, x)):
            self.is_noted = True
            warnings.warn("; ".join(notes), AttnkitNote, stacklevel=2)
        return Record({"x": x})

    def _notes(self, record: Record, x: Array) -> list[str]:
        """Return the notes of a record that is written as npy: what is left out, and how bfloat16 is read."""
        omitted = [name for name in record if name != "x" and len(record) > 1]
        omitted += ["labels"] * bool(record.labels) + ["history"] * (len(record.history) > 1)
        notes = [f"npy holds x alone; left out: {join_names(omitted)} (-f npz keeps all)"]
        if not omitted or self.common.get("only"):
            notes = []
        if x.dtype.name == "bfloat16":
            notes.append("npy has no name for bfloat16; reading it takes --dtype bfloat16")
        return notes

    def _mark_own(self, item: Item, result: Record) -> Record:
        """Return the result with the names of its own tensors beside x: made by this tool, or named by a flag."""
        first = item[0] if isinstance(item, list) and item else item
        before = first.arrays() if isinstance(first, Record) else {}
        own = [name for name in result if name != "x"]
        if not (self.common.get("only") or self.parameters.get("name")):
            adds = self.tool.adds(self.parameters)
            own = [name for name in own if adds and result[name] is not before.get(name)]
        return replace(result, required=tuple(own))

    def read(self, path: str) -> Records:
        """Return the stream of records in a file and its format; `-` after another stage is the stream of that one."""
        if path == "-" and self.upstream is not None:
            return Records(self.upstream.format, map(require_record, self.upstream.items))
        source, name = operands.open_operand(path, hash=path != "-")
        if self.tool.passthrough:
            source.capture()
        bfloat16 = self.dtype == "bfloat16"
        stream = formats.read(source, bfloat16, lone_is_x=not (name or self.tool.keep_names))
        return self.read_stream(source, stream, path, name)

    def read_stream(self, source: formats.Source, stream: formats.Stream, path: str, name: str) -> Records:
        """Return the records of an opened stream and its format; the input is hashed where the history needs it."""
        if stream.format == "npy":
            requested = self.requested_format()
            if requested in ("npy", *DISPLAY_FORMATS):
                source.stop_hash()  # neither carries a history
            elif requested is None:
                source.defer_hash()  # until it is known whether npy holds the result
        self.source, self.input_format = source, stream.format
        return Records(stream.format, (self._named(record, name, path) for record in stream))

    def _note_non_finite(self, layer: str) -> None:
        """Keep the name of the first layer whose result is not finite."""
        self.non_finite_layer = self.non_finite_layer or layer

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
        if path in self.side_files and path != os.devnull:
            raise DataError("it holds one record, and the stream has more", path)
        self.side_files.append(path)
        self.keeps_history = True
        side_outputs.write_side_output(path, add_history(self, item, record, path))

    def load_content(self, name: str) -> Any:
        """Return the content of the file that a flag names, before the first item arrives."""
        return self._operand(name, self.parameters[name], None)

    def _named(self, record: Record, name: str, path: str) -> Record:
        """Return the record of FILE, or of FILE:NAME."""
        if not name:
            return record
        return record.select([name]) if self.tool.keep_names else select_tensor(record, name, path)

    def _values(self, item: Item) -> dict[str, Any]:
        """Return the values that the function is called with: contents in place of the names of files."""
        values = {}
        for name, value in self.parameters.items():
            load = self.tool.flags[name].load
            values[name] = self._operand(name, value, item) if load and value is not None else value
        return values

    def _operand(self, name: str, value: Any, item: Item) -> Any:
        load = self.tool.flags[name].load or "tensor"
        if not isinstance(value, str):
            value = operands.check_operand(value, load, flag_name(name))
            attended = isinstance(value, Record) and load in ("attended", "memory")
            return load_attended(value, operands.find_memory_name(value, load)) if attended else value
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

    def count_stdin(self) -> int:
        """Count the operands that are standard input, an absent INPUT among them."""
        files = [value for name, value in self.parameters.items() if self.tool.flags[name].load]
        implied = (
            not self.operands and self.tool.operand.startswith("[") and not self.tool.needs_no_input(self.parameters)
        )
        return sum(map(is_stdin, (*files, *self.operands))) + implied

    def _check_stdin(self) -> None:
        if self.count_stdin() > 1:
            raise UsageError("only one operand can be '-' (standard input)")

    def _check_range(self, item: Item, result: Record) -> None:
        before = formats.first_non_finite(item["x"]) if isinstance(item, Record) and "x" in item else ""
        after = "" if before or "x" not in result else formats.first_non_finite(result["x"])
        if before:
            problem = f"x is {before}"
        elif after:
            usual = f"outside the range of {result['x'].dtype}"
            problem = f"the result is {after}{explain_non_finite(self, usual)}"
        else:
            return
        if self.common.get("check_finite"):
            raise DataError(problem)
        warnings.warn(problem, AttnkitWarning, stacklevel=2)


Reader = Callable[[Stage, Records | None], Records]
View = Callable[[Record, Stage, "Style"], str]


def read_records(call: Stage, upstream: Records | None, needs_no_input: bool | None = None) -> Records:
    """Read the records that a tool transforms: those of its operand, of the previous stage or of standard input.

    A tool that needs no input is called once, without a record.

    needs_no_input  whether it needs none, where its parameters alone do not decide it
    """
    if call.tool.needs_no_input(call.parameters) if needs_no_input is None else needs_no_input:
        if call.operands:
            raise UsageError(f"{call.operands[0]}: nothing is read with these flags")
        return Records(upstream.format if upstream else None, iter([None]))
    if not call.operands:
        return call.read("-" if upstream is not None else operands.stdin_or_error())
    return call.read(call.operands[0])


def require_record(item: Result) -> Record:
    """Return the item of a stream, which a stage that reads tensors needs to be a record; DataError for text."""
    if not isinstance(item, Record):
        raise DataError("not a tensor file (looks like text)", "<stdin>")
    return item


def cast_x(record: Record, dtype: str) -> Record:
    """Return the record with x in another dtype."""
    x = record.tensors["x"]
    return record.with_tensors({"x": replace(x, array=formats.cast_array(x.array, dtype), axes=x.axis_names())})
