"""A tool, and a stage: one tool with its parameters, which reads a record, calls the tool and hands on the result."""

import contextlib
import contextvars
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from attnkit import callbacks, formats
from attnkit.cli import history, operands, options, side_outputs
from attnkit.cli.constraints import Constraints, Repeats
from attnkit.cli.error_context import check_range, error_context, explain_non_finite
from attnkit.cli.operands import OperandFiles, is_stdin
from attnkit.cli.options import Option
from attnkit.cli.output_format import OutputFormat, Result
from attnkit.errors import AttnkitNote, DataError, NotFiniteError, UsageError, flag_name
from attnkit.inputs.operands import cast_x, select_tensor
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.display import Style
    from attnkit.display.cells import Cells
    from attnkit.display.figures import FigureOptions, Section

ONLY_IN_TABLES = ("precision", "tokens")  # options of all tools that tables, cells and figures alone have
INPUT, PARTS, PAIR = "[INPUT]", "[PART]...", "A B"  # the input of a tool: one file or pipe, several, or two,
TEXT = "[TEXT]..."  # or texts, of which none is a file: "-" is a text of one character
Item = Any  # what a tool's function is called with: a record, None (it makes its own), or the texts of one
Parameters = Mapping[str, Any]  # the values of a tool's parameters, by name


class Records(NamedTuple):
    """A stream between two stages: its items, and the format it has on a pipe (None: not yet chosen).

    tensor  the NAME of FILE:NAME, where its records are that tensor alone
    """

    format: str | None
    items: Iterator[Any]
    tensor: str = ""


class PythonForm(NamedTuple):
    """What a tool is as a function of Python, where that is more than a function of a record and its parameters.

    inputs   the positional parameters with their types; those after the first may be left out where the type has None
    reader   (stage, inputs) -> the stream of items that the tool is called with; None: one record
    options  the options of `extra` and of all tools that are parameters too
    result   the type of the result
    present  (result, stage) -> what the function returns
    """

    inputs: Mapping[str, str] = {}
    reader: "Callable[[Stage, Sequence[Any]], Records] | None" = None
    options: tuple[str, ...] = ()
    result: str = ""
    present: "Callable[[Any, Stage], Any]" = lambda result, stage: result


@dataclass(frozen=True, eq=False, repr=False)
class Tool:
    """A function of a record, and what the command line and the pipe need to know of it.

    operand         the name of the arguments in the help
    exclusive       rows of terms (those of cli/constraints.py) of which at most one may be met
    requires        pairs of a term and the term it needs
    one_of          rows of terms of which one must be met
    repeats         source -> {option: what the source says of it}, as in cli/constraints.py
    sections        title -> the names of its options, as the help groups them; without a table, one list
    reader          (stage, upstream) -> the stream of items that the function is called with; None: read_records
    read_together   (stage, blocks of lines) -> the items for --lines; None: one for each line
    view            (record, stage, style) -> text for a terminal; None: tables of its tensors
    figure          (record, stage, options) -> sections of a figure; None: tables of its tensors, or its view as text
    cells           (record, stage) -> the table of CSV, TSV and Markdown; None: the tensor that it computed
    status          (record, stage) -> exit code
    extra           flags that only reader and view use, no parameters; without: those of all tools that it lacks
    needs_no_input  (parameters) -> whether it reads no input
    record_defaults (parameters) -> the defaults that the history must show: the seed in use
    returns_text    (parameters) -> whether its result is text, not a record; is_page: whether it is a page, in HTML
    returns_json    (stage) -> whether that text is a report, which is JSON unless another format is requested
    is_answer       whether it answers a question about its input, so that the format of the input is not that of output
    check_finite    (parameters) -> whether NaN and infinity in x are reported, because it computes with x
    table_on_stderr (parameters) -> whether a table goes to standard error where its output is not one
    shows_table     (parameters) -> whether its output is a table or text unless a format is requested
    status_is_result whether its exit code is its result, so that --quiet leaves out its table
    only_in_tables  (stage) -> its options that change only what tables and figures show of its results
    passthrough     whether it passes its input through byte for byte
    keep_names      whether the only tensor of an input keeps its own name, and is not called x
    derived         (stage) -> the function that makes another result of its result, by flags of `extra`
    plain_text      (record, stage) -> whether its view is text, without an empty line before the next record
    computes_x_last whether the tensors that it adds are steps before x, and are shown before it
    adds            (call) -> whether the tensors it adds beside x were requested, so that no format may lose them
    python          what it is as a function of Python
    """

    function: Callable[..., Result]
    operand: str = INPUT
    exclusive: Sequence[tuple[str, ...]] = ()
    requires: Sequence[tuple[str, str]] = ()
    one_of: Sequence[tuple[str, ...]] = ()
    repeats: Repeats = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    reader: "Reader | None" = None
    read_together: "Callable[[Stage, Iterator[Iterator[str]]], Iterator[Item]] | None" = None
    view: "View | None" = None
    figure: "Figure | None" = None
    cells: "Callable[[Record, Stage], Cells] | None" = None
    status: "Callable[[Record, Stage], int]" = lambda record, stage: 0
    extra: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    needs_no_input: Callable[[Parameters], bool] = lambda parameters: False
    record_defaults: Callable[[Parameters], dict[str, Any]] = lambda parameters: {}
    returns_text: Callable[[Parameters], bool] = lambda parameters: False
    check_finite: Callable[[Parameters], bool] = lambda parameters: True
    table_on_stderr: Callable[[Parameters], bool] = lambda parameters: False
    shows_table: Callable[[Parameters], bool] = lambda parameters: False
    returns_json: "Callable[[Stage], bool]" = lambda stage: False
    is_page: bool = False
    is_answer: bool = False
    status_is_result: bool = False
    only_in_tables: "Callable[[Stage], tuple[str, ...]]" = lambda stage: ()
    passthrough: bool = False
    keep_names: bool = False
    derived: "Callable[[Stage], Callable[[Record], Result] | None]" = lambda stage: None
    plain_text: "Callable[[Record, Stage], bool]" = lambda record, stage: False
    computes_x_last: bool = False
    adds: Callable[["Stage"], bool] = lambda call: True
    python: PythonForm = field(default_factory=PythonForm)

    @functools.cached_property
    def name(self) -> str:
        """The name of the function, the command and its file."""
        return self.function.__name__

    @functools.cached_property
    def input_name(self) -> str:
        """The name of the first parameter of the function, the input."""
        return next(iter(inspect.signature(self.function).parameters))

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The default of every parameter."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations of the function."""
        return get_type_hints(self.function, include_extras=True)

    @functools.cached_property
    def annotations(self) -> dict[str, Any]:
        """The annotation of every option: those of its parameters, then `extra` and the options of all tools."""
        shared = {name: hint for name, hint in options.COMMON.items() if name not in self.without}
        return shared | self.extra | {name: self.hints[name] for name in self.defaults}

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """Every option by its name, as Typer has built it: its parameters, `extra`, and those of all tools."""
        names = dict.fromkeys([*self.defaults, *self.extra, *self.annotations])
        return {name: options.declare(name, self.annotations[name], self.defaults.get(name)) for name in names}

    @functools.cached_property
    def flags(self) -> dict[str, Option]:
        """The option of every parameter."""
        return {name: self.options[name] for name in self.defaults}

    @functools.cached_property
    def shared(self) -> dict[str, Option]:
        """The options of all tools that it takes."""
        return {
            name: self.options[name] for name in options.COMMON if name in self.options and name not in self.without
        }

    @functools.cached_property
    def constraints(self) -> Constraints:
        """The tables of its options."""
        return Constraints(self.options, self.exclusive, self.requires, self.one_of, self.repeats)

    @functools.cached_property
    def python_options(self) -> list[str]:
        """The names of the options that are parameters in Python too."""
        shared = [name for name in ("only", "dtype", "check_finite") if name in self.options]
        return [*dict.fromkeys([*self.defaults, *self.python.options, *shared])]

    def convert(self, name: str, value: Any) -> Any:
        """Convert the value of an option, from a command line or from Python; UsageError for another value."""
        try:
            return options.convert(self.options[name], value)
        except UsageError as error:
            from attnkit.cli import hints

            raise UsageError(f"{error.problem}{hints.hint_at_value(self.name, name, str(value))}", error.name) from None


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


@dataclass(eq=False, repr=False)
class Stage:
    """One tool with its parameters: a stage of a pipeline.

    common            the values of the options that all tools share; extra: of those that only reader and view use
    operands          the positional arguments
    passed            the names of the options that the caller passed; repeated: those that only say what the input says
    has_table_aside   whether a pipeline shows its result on standard error too
    upstream          the stage before in this process
    non_finite_layer  the first layer whose result is not finite
    side_files        the side outputs written so far
    on_text           streams a text as it is generated
    sections          of its figure, beside its result: its steps
    """

    tool: Tool
    parameters: dict[str, Any]
    common: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    operands: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    repeated: set[str] = field(default_factory=set)
    has_table_aside: bool = False
    input_format: str | None = None  # that results of the file or pipe that is the input are written in
    input_source: str | None = None  # that of the file or pipe itself
    upstream: Records | None = None
    non_finite_layer: str = ""
    side_files: list[str] = field(default_factory=list)
    on_text: Callable[[str, bool], None] | None = None
    sections: "list[Section]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = OperandFiles(self.tool.flags, self.parameters)
        self.format = OutputFormat(self.common, self.tool.shows_table(self.parameters))

    @property
    def dtype(self) -> str | None:
        """The value of --dtype, whether it is the tool's own flag or that of all tools."""
        name: str | None = self.parameters.get("dtype", self.common.get("dtype"))
        return name

    def open_stream(self, upstream: Records | None) -> Records:
        """Return the stream of results for another stage's; for None the input is the operand or standard input."""
        with error_context(self):
            if self.count_stdin() > 1:
                raise UsageError("only one operand can be '-' (standard input)")
            self.upstream, self.files.piped = upstream, upstream.items if upstream else None
            items = (self.tool.reader or read_records)(self, upstream)
        arriving = None if self.tool.is_answer else items.format
        return Records(self.common.get("format") or arriving, self._results(items.items))

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

    def read(self, path: str) -> Records:
        """Return the stream of records in a file and its format; `-` after another stage is the stream of that one."""
        if path == "-" and self.upstream is not None:
            return Records(self.upstream.format, map(require_record, self.upstream.items))
        source, name = operands.open_operand(path, hash=path != "-")
        if self.tool.passthrough:
            source.capture()
        is_lone_x = not (name or self.tool.keep_names)
        records = self.read_stream(source, formats.read(source, self.dtype == "bfloat16", lone_is_x=is_lone_x))
        if not name:
            return records
        if self.tool.keep_names:
            return records._replace(items=(record.select([name]) for record in records.items))
        return records._replace(items=(select_tensor(record, name, path) for record in records.items), tensor=name)

    def read_stream(self, source: formats.Source, stream: formats.Stream) -> Records:
        """Return the records of an opened stream and its format; the input is hashed where the history needs it."""
        if stream.format == "npy":
            self.format.set_hashing(source)
        self.files.source, self.input_source, self.input_format = source, stream.source, stream.format
        return Records(stream.format, iter(stream))

    def count_stdin(self) -> int:
        """Count the operands that are standard input, an absent INPUT among them."""
        takes_input = self.tool.operand.startswith("[") and not self.tool.needs_no_input(self.parameters)
        named = () if self.tool.operand == TEXT else self.operands
        return self.files.count_stdin() + sum(map(is_stdin, named)) + (takes_input and not self.operands)

    def apply(self, item: Item) -> Result:
        """Run the tool on one item; --dtype and --only apply to the result, and its history is added."""
        with running(self), callbacks.use_callbacks(self._callbacks(item)):
            if isinstance(item, Record) and self.common.get("dtype") and "x" in item:
                item = cast_x(item, self.common["dtype"])
            result = self._call_tool(item)
            return self._post_process(item, result) if isinstance(result, Record) else result

    def _callbacks(self, item: Item) -> callbacks.Callbacks:
        """Return what a run of the tool calls for one item: those of the process, and this stage's own."""
        return callbacks.current()._replace(
            on_text=self.on_text,
            on_non_finite=self._note_non_finite,
            write_side_output=functools.partial(self._write_side_output, item),
            is_output_file=self._is_output_file,
            engine=self.load_engine(),
        )

    def _call_tool(self, item: Item) -> Result:
        """Call the function of the tool on one item; a result that cannot be finite becomes a DataError."""
        self.non_finite_layer = ""
        try:
            return self.tool.function(item, **self._load_values(item))
        except NotFiniteError as error:
            reason = explain_non_finite(self.files, self.non_finite_layer)
            raise DataError(f"{error.problem}{reason}", error.name) from None

    def _load_values(self, item: Item) -> dict[str, Any]:
        """Return the values for one item; UsageError for an option that contradicts what the input says."""
        values = self.files.load_values(item, self.dtype == "bfloat16")
        self.repeated = self.tool.constraints.find_repeated(self.passed, values, item)
        return values | self._defaults_of_repeated()

    def _defaults_of_repeated(self) -> dict[str, Any]:
        """Return the defaults of the options that only say what the input says."""
        return {name: self.tool.defaults[name] for name in self.repeated}

    def _post_process(self, item: Item, result: Record) -> Result:
        """Return the result as --dtype, --only and flags of the tool change it, with its history."""
        dtype, only = self.common.get("dtype"), self.common.get("only")
        if dtype and not isinstance(item, Record) and "x" in result:
            result = cast_x(result, dtype)
        if "check_finite" in self.tool.shared and self.tool.check_finite(self.parameters):
            check_range(item, result, self.files, self.non_finite_layer, bool(self.common.get("check_finite")))
        if only:
            result = result.select(only)
        if derive := self.tool.derived(self):
            derived = derive(result)
            if not isinstance(derived, Record):
                return derived
            result = derived
        if self.format.follows_input and len(result) > 1:
            self.format.keeps_history = True  # it is written as npz
        is_unchanged = result is item and not dtype
        recorded = result if is_unchanged else self._add_history(item, self._mark_own(item, result))
        if self.files.source is not None and not self.format.keeps_history:
            self.files.source.stop_hash()  # npy has no history
        return recorded

    def _mark_own(self, item: Item, result: Record) -> Record:
        """Return the result with the names of its own tensors beside x: made by this tool, or named by a flag."""
        first = item[0] if isinstance(item, list) and item else item
        before = first.arrays() if isinstance(first, Record) else {}
        own = [name for name in result if name != "x"]
        if not (self.common.get("only") or self.parameters.get("name")):
            adds = self.tool.adds(self)
            own = [name for name in own if adds and result[name] is not before.get(name)]
        return replace(result, required=tuple(own))

    def _add_history(self, item: Item, result: Record, beside: str = "") -> Record:
        """Return the result with its history entry; DataError where its axes or labels don't fit its shapes.

        beside  the file that the result is written to, where it is not the output of the stage
        """
        before = getattr(item, "history", [])
        files = self.files.compute_digests(not before) if self.format.keeps_history else self.files.digests
        return replace(result, history=[*before, history.history_entry(self.command_line(item), files, beside)]).check()

    def command_line(self, item: Item = None, operands: Sequence[str] | None = None) -> str:
        """Return the command line that does this again: the texts, or the files of an input without a history.

        operands  those to write; None: those of the stage
        """
        arguments = [*(self.operands if operands is None else operands)]
        if arguments == ["-"] and self.tool.operand != TEXT:  # standard input is read without it too
            arguments = []
        if isinstance(item, tuple):
            arguments = [*item]
        elif isinstance(item, Record) and item.history:
            arguments = []
        return history.command_line(self.tool.name, arguments, self._recorded_values())

    def _recorded_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the values that differ from their default, or that the tool always records, by name."""
        parameters = self.parameters | self._defaults_of_repeated()
        always = self.tool.record_defaults(parameters)
        common = {name: self.common.get(name) for name in ("only", "dtype") if name not in self.tool.flags}
        extra = self.extra | {"format": "json"} if self.tool.derived(self) else self.recorded_engine()
        for name, value in (parameters | always | common | extra).items():
            default = self.tool.defaults.get(name)
            is_default = value is default or (type(value) is type(default) and bool(value == default))
            if name in always or not is_default:
                is_repeated = name == "stop"
                yield from ((name, one) for one in (value if is_repeated else [value]))

    def engine_values(self) -> dict[str, Any]:
        """The options of an engine that the stage has, by ATTNKIT_ENGINE too; {} where NumPy is the default."""
        if "engine" not in self.tool.extra:
            return {}
        named = os.environ.get("ATTNKIT_ENGINE")
        stated = {name: self.extra[name] for name in options.ENGINE if self.extra.get(name) is not None}
        return ({"engine": named} if named else {}) | stated

    def recorded_engine(self) -> dict[str, Any]:
        """The options of an engine that a history has: not where its processes were, nor that it is NumPy."""
        values = {name: value for name, value in self.engine_values().items() if name in options.ENGINE_KEYWORDS}
        return {} if values.get("engine") == "numpy" else values

    def load_engine(self) -> Any:
        """Load the engine that computes a stage, None for NumPy; UsageError if it is not installed."""
        if not (values := self.engine_values()):
            return None
        from attnkit.backends.choice import choose_engine

        return choose_engine(values)

    def note_idle_options(self, chosen: str) -> None:
        """Write a note of the options that have no effect on results in a format: those of tables, and of JSON."""
        has_aside = self.has_table_aside or self.parameters.get("steps") or self.tool.table_on_stderr(self.parameters)
        has_tables = chosen in options.DISPLAY_FORMATS or has_aside
        own = self.parameters | self.extra
        idle = [] if has_tables else [name for name in ONLY_IN_TABLES if name in self.common]
        idle += [] if has_tables else [name for name in self.tool.only_in_tables(self) if own.get(name)]
        idle += [name for name in ("indent",) if name in self.common and chosen != "json"]
        if idle:
            flags = " and ".join(map(flag_name, idle))
            problem = f"{flags} {'have' if idle[1:] else 'has'} no effect on {chosen}"
            with running(self):
                warnings.warn(problem, AttnkitNote, stacklevel=2)

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
            raise UsageError(f"{path}: --output writes the same file")
        if path in self.side_files and path != os.devnull:
            raise DataError("it holds one record, but the stream has more", path)
        self.side_files.append(path)
        self.format.keeps_history = True
        side_outputs.write_side_output(path, self._add_history(item, record, path))


Reader = Callable[[Stage, Records | None], Records]
View = Callable[[Record, Stage, "Style"], str]
Figure = Callable[[Record, Stage, "FigureOptions"], "list[Section]"]


def read_records(call: Stage, upstream: Records | None, needs_no_input: bool | None = None) -> Records:
    """Read the records that a tool transforms: those of its operand, of the previous stage or of standard input.

    A tool that needs no input is called once, without a record.

    needs_no_input  whether it needs none, where its parameters alone do not decide it
    """
    if call.tool.needs_no_input(call.parameters) if needs_no_input is None else needs_no_input:
        if call.operands:
            raise UsageError(f"{call.operands[0]}: these options read no input")
        return Records(upstream.format if upstream else None, iter([None]))
    if not call.operands:
        return call.read("-" if upstream is not None else operands.stdin_or_error())
    return call.read(call.operands[0])


def require_record(item: Result) -> Record:
    """Return the item of a stream, which a stage that reads tensors needs to be a record; DataError for text."""
    if not isinstance(item, Record):
        raise DataError("not a tensor file (looks like text)", "<stdin>")
    return item
