"""A stage, one call of a tool: its input, its results and their history.

Its errors name the file or the option that they are about.
"""

import contextlib
import contextvars
import functools
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from attnkit import __version__, callbacks, formats
from attnkit.cli import operands, options
from attnkit.cli.causes import check_range, error_context, explain_non_finite
from attnkit.cli.operands import OperandFiles, is_stdin
from attnkit.cli.output_format import OutputFormat, Result
from attnkit.cli.tool import TEXT, Item, Records, Tool
from attnkit.errors import AttnkitError, AttnkitNote, DataError, NotFiniteError, UsageError, flag_name
from attnkit.inputs.operands import cast_x, select_tensor
from attnkit.model.processor.machine import describe_machine
from attnkit.options import ENGINE_KEYWORDS, EngineOptions
from attnkit.records import Record, Tensor, find_machine, join_names

if TYPE_CHECKING:
    from attnkit.display import Block

ONLY_IN_TABLES = ("precision", "tokens")  # options of all tools that tables, cells and figures alone have
OptionsT = TypeVar("OptionsT")  # a class of options
_RUNNING: "contextvars.ContextVar[Stage | None]" = contextvars.ContextVar("stage", default=None)


def running_stage() -> "Stage | None":
    """The running stage of this thread, which warnings and progress belong to."""
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
    defaults          of options, as the run chose them for the item at hand
    on_text           streams a text as it is generated
    compute           (item, values of its options) -> the result: the call of the tool, which a pipeline may record
    beside            blocks of its figure, beside its result: its steps
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
    defaults: dict[str, Any] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    on_text: Callable[[str, bool], None] | None = None
    beside: "list[Block]" = field(default_factory=list)
    compute: Callable[..., Result] = field(init=False)

    def __post_init__(self) -> None:
        self.compute = self.tool.call
        self.files = OperandFiles(self.tool.flags, self.parameters)
        is_table = self.tool.shows_table or self.parameters.get("explain") not in (None, False)
        self.format = OutputFormat(self.common, is_table)

    @functools.cached_property
    def task(self) -> Any:
        """The task of the tool, chosen once by its options."""
        return self.tool.task(self)

    @property
    def gives(self) -> str:
        """What the results are: one of the words of Tool."""
        return self.tool.gives if isinstance(self.tool.gives, str) else self.tool.gives(self)

    @property
    def returns_text(self) -> bool:
        """Whether the results are text, and no records."""
        return self.gives in ("text", "report", "rows", "page")

    @property
    def dtype(self) -> str | None:
        """The value of --dtype, whether it is the tool's own flag or that of all tools."""
        name: str | None = self.parameters.get("dtype", self.common.get("dtype"))
        return name

    def open_stream(self, upstream: Records | None) -> Records:
        """The stream of results of another stage's; for None, of the operand."""
        with error_context(self):
            if self.count_stdin() > 1:
                raise UsageError("only one operand can be '-' (standard input)")
            self.upstream, self.files.piped = upstream, upstream.items if upstream else None
            items = (self.tool.reader or read_records)(self, upstream)
        arriving = None if self.gives == "answer" else items.format
        return Records(self.common.get("format") or arriving, map(self.apply, self._attribute_errors(items.items)))

    def _attribute_errors(self, items: Iterator[Item]) -> Iterator[Item]:
        with error_context(self):
            yield from items

    def run_files(self) -> Result:
        """The one result of the files it names; DataError for more than one record."""
        with replace_together():
            results: list[Result] = list(self.open_stream(None).items)
        if len(results) != 1:
            raise DataError(f"{len(results)} records (expected 1); tensors.read gives a stream", *self.operands[:1])
        return results[0]

    def read(self, path: str) -> Records:
        """The stream of records in a file, with its format; `-` may be another stage."""
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
        """The records of an opened stream, which is hashed if the history needs it."""
        if stream.format == "npy":
            self.format.set_hashing(source)
        self.files.source, self.input_source, self.input_format = source, stream.source, stream.format
        return Records(stream.format, iter(stream))

    def count_stdin(self) -> int:
        """Count the operands that are standard input, an absent INPUT among them."""
        takes_input = self.tool.operand.startswith("[") and not self.tool.needs_no_input(self.parameters)
        named = () if self.tool.operand == TEXT else self.operands
        return self.files.count_stdin() + sum(map(is_stdin, named)) + (takes_input and not self.operands)

    def name_replacing_options(self) -> str:
        """Name the options that replace the input."""
        without = {name: self.parameters | {name: self.tool.defaults[name]} for name in self.passed}
        *flags, last = (flag_name(name) for name in self.passed if not self.tool.needs_no_input(without[name]))
        return f"{', '.join(flags)}{' and ' * bool(flags)}{last}"

    def apply(self, item: Item) -> Result:
        """Run the tool on one item; add --dtype, --only and its history to the result.

        A result that cannot be finite becomes a DataError.
        """
        self.non_finite_layer, self.defaults, self.modules = "", {}, list[str]()
        with error_context(self), running(self), callbacks.use_callbacks(self._callbacks(item)):
            if isinstance(item, Record) and self.common.get("dtype") and "x" in item:
                item = cast_x(item, self.common["dtype"])
            values = self.files.load_values(item, self.dtype == "bfloat16")
            self.repeated = self.tool.constraints.find_repeated(self.passed, values, item)
            try:
                result = self.compute(item, **(values | self._defaults_of_repeated()))
            except NotFiniteError as error:
                reason = explain_non_finite(self.files, self.non_finite_layer)
                raise DataError(f"{error.problem}{reason}", error.name) from None
            except AttnkitError as error:
                if self.input_source == "json" and isinstance(item, Record) and "x" in item and not item["x"].ndim:
                    error.problem += "; if each line has a number, paste -sd, makes one row of them"
                raise
            return self._post_process(item, result) if isinstance(result, Record) else result

    def _callbacks(self, item: Item) -> callbacks.Callbacks:
        """What a run of the tool calls for one item: the process's and its own."""
        return callbacks.current()._replace(
            on_text=self.on_text,
            on_non_finite=self._note_non_finite,
            on_default=self.defaults.__setitem__,
            on_modules=self.modules.extend,
            write_side_output=functools.partial(self._write_side_output, item),
            is_output_file=self._is_output_file,
            engine=self.load_engine(),
        )

    def _defaults_of_repeated(self) -> dict[str, Any]:
        """The defaults of the options that only say what the input says."""
        return {name: self.tool.defaults[name] for name in self.repeated}

    def _post_process(self, item: Item, result: Record) -> Result:
        """The result as --dtype, --only and flags of the tool change it, with its history."""
        dtype, only = self.common.get("dtype"), self.common.get("only")
        result = self.convert_dtype(item, result)
        if "check_finite" in self.tool.options and self.tool.check_finite(self.parameters):
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

    def convert_dtype(self, item: Item, result: Record) -> Record:
        """The result with x in the dtype of --dtype; a record was converted before."""
        dtype = self.common.get("dtype")
        return cast_x(result, dtype) if dtype and not isinstance(item, Record) and "x" in result else result

    def _mark_own(self, item: Item, result: Record) -> Record:
        """The result with the names of its own tensors beside x."""
        first = item[0] if isinstance(item, list) and item else item
        before: Mapping[str, Tensor] = first.tensors if isinstance(first, Record) else {}
        own = [name for name in result if name != "x"]
        if not (self.common.get("only") or self.parameters.get("name")):
            adds = self.tool.adds(self) and result.tensors is not before
            own = [name for name in own if adds and (name not in before or result[name] is not before[name].array)]
        return replace(result, required=tuple(own))

    def _add_history(self, item: Item, result: Record, beside: str = "") -> Record:
        """The result with its history; DataError if labels don't fit its shapes.

        beside  the file that the result is written to, where it is not the output of the stage
        """
        before = getattr(item, "history", [])
        files = self.files.compute_digests(not before) if self.format.keeps_history else self.files.digests
        command = self.command_line(item)
        return replace(result, history=extend_history(before, command, files, beside, self.modules)).check()

    def command_line(self, item: Item = None, operands: Sequence[str] | None = None) -> str:
        """The command line that does this again.

        It has the texts, or the files of an input without a history.

        operands  those to write; None: those of the stage
        """
        arguments = [*(self.operands if operands is None else operands)]
        if arguments == ["-"] and self.tool.operand != TEXT:  # standard input is read without it too
            arguments = []
        if isinstance(item, tuple):
            arguments = [*item]
        elif isinstance(item, Record) and item.history:
            arguments = []
        return command_line(self.tool.name, arguments, self._recorded_values())

    def _recorded_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the values that differ from their default, or are always recorded."""
        parameters = self.parameters | self._defaults_of_repeated()
        always = self.tool.record_defaults(parameters) | self.defaults
        common = {name: self.common.get(name) for name in ("only", "dtype") if name not in self.tool.flags}
        extra = self.extra | {"format": "json"} if self.tool.derived(self) else self.recorded_engine()
        for name, value in (parameters | always | common | extra).items():
            default = self.tool.defaults.get(name)
            is_default = value is default or (type(value) is type(default) and bool(value == default))
            if name in always or not is_default:
                is_repeated = name in self.tool.flags and options.is_list_of_texts(self.tool.flags[name])
                yield from ((name, one) for one in (value if is_repeated else [value]))

    def collect(self, kind: type[OptionsT]) -> OptionsT:
        """Collect the options of a class; those not passed have their defaults."""
        fields: tuple[str, ...] = getattr(kind, "_fields", ())
        values = self.parameters | self.extra
        return kind(**{name: values[name] for name in fields if values.get(name) is not None})

    def engine_options(self) -> EngineOptions:
        """The options of an engine of the stage, by ATTNKIT_ENGINE too."""
        if "engine" not in self.tool.extra_names:
            return EngineOptions()
        named: Any = os.environ.get("ATTNKIT_ENGINE")
        stated = self.collect(EngineOptions)
        return stated._replace(engine=stated.engine or named or None)

    def recorded_engine(self) -> dict[str, Any]:
        """The options of an engine that a history has: not where its processes were."""
        values = {name: value for name, value in self.engine_options()._asdict().items() if name in ENGINE_KEYWORDS}
        return {} if values["engine"] == "numpy" else {name: one for name, one in values.items() if one is not None}

    def load_engine(self) -> Any:
        """Load the engine of a stage, None for NumPy; UsageError if it is missing."""
        if (chosen := self.engine_options()) == EngineOptions():
            return None
        from attnkit.backends.choice import choose_engine

        return choose_engine(chosen)

    def note_idle_options(self, chosen: str) -> None:
        """Write a note of the options that have no effect on results in a format."""
        has_aside = self.has_table_aside or self.parameters.get("steps") or self.tool.tables_aside(self)
        has_tables = chosen in options.DISPLAY_FORMATS or has_aside
        own = self.parameters | self.extra
        idle = [] if has_tables else [name for name in ONLY_IN_TABLES if name in self.common]
        idle += [] if has_tables else [name for name in self.tool.view_options(self) if own.get(name)]
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
        """Decide whether the stage writes its result to this file."""
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
        write_side_output(path, self._add_history(item, record, path))


def read_records(stage: Stage, upstream: Records | None, needs_no_input: bool | None = None) -> Records:
    """Read the records that a tool transforms: an operand's, or a stage's.

    A tool that needs no input is called once, without a record; its result has the format of the files of its options.

    needs_no_input  whether it needs none, where its parameters alone do not decide it
    """
    if stage.tool.needs_no_input(stage.parameters) if needs_no_input is None else needs_no_input:
        if stage.operands:
            flags = stage.name_replacing_options()
            raise UsageError(f"{stage.operands[0]}: with {flags} {stage.tool.name} reads no input")
        stage.files.load_values(None, stage.dtype == "bfloat16")
        return Records(upstream.format if upstream else stage.files.common_format(), iter([None]))
    if not stage.operands:
        return stage.read("-" if upstream is not None else operands.stdin_or_error())
    return stage.read(stage.operands[0])


def require_record(item: Result) -> Record:
    """The item of a stream, which has to be a record; DataError for text."""
    if not isinstance(item, Record):
        raise DataError("not a tensor file (looks like text)", "<stdin>")
    return item


def save_now(path: str, record: Record) -> None:
    """Write a side output that belongs to no transaction."""
    formats.save(record, path)


_STORE: contextvars.ContextVar[Callable[[str, Record], None]] = contextvars.ContextVar("store", default=save_now)


def write_side_output(path: str, record: Record) -> None:
    """Write a side output as the innermost `with` block does.

    DataError for several tensors in a format of one.
    """
    if formats.file_format(path) == "npy" and len(record) > 1 and "x" not in record:
        raise DataError(f"npy holds one tensor, but the record has {join_names(record.tensors)}; name it .npz", path)
    _STORE.get()(path, record)


@contextlib.contextmanager
def stored_by(store: Callable[[str, Record], None]) -> Iterator[None]:
    """Pass the side outputs of a `with` block to a function of path and record."""
    token = _STORE.set(store)
    try:
        yield
    finally:
        _STORE.reset(token)


@contextlib.contextmanager
def replace_together() -> Iterator[Callable[[str | None], formats.Sink]]:
    """Open sinks for a `with` block that replaces all files only at its end."""
    sinks: dict[str, formats.Sink] = {}
    with formats.write_together() as opened:

        def store(path: str, record: Record) -> None:
            format = formats.file_format(path)
            if path in sinks and format not in formats.STREAMS and path != os.devnull:
                raise DataError(f"{format} holds one record, but the stream has more", path)
            sinks[path] = sinks.get(path) or opened(path)
            sinks[path].write(formats.encode(record, format))

        with stored_by(store):
            yield opened


def command_line(tool: str, arguments: Sequence[str], values: Iterable[tuple[str, Any]]) -> str:
    """The command line of a tool with these arguments and parameters.

    >>> command_line("attend", ["x.json"], [("heads", 2), ("causal", True)]), command_line("embed", ["-a b"], [])
    ('attnkit attend x.json --heads 2 --causal', "attnkit embed -- '-a b'")
    """
    words = [word for name, value in values for word in to_flags(name, value)]
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join(["attnkit", tool, *words, "--", *arguments])
    return shlex.join(["attnkit", tool, *arguments, *words])


def extend_history(
    before: Sequence[Mapping[str, Any]],
    command: str,
    files: Mapping[str, str],
    beside: str = "",
    modules: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A history with a further entry: its command, version, and digests of files.

    It names the machine only where that is another one than before.

    beside   the file that the result is written to, where it is not the output of the stage
    modules  what the modules of a folder did
    """
    entry: dict[str, Any] = {"command": to_unicode(command), "version": __version__}
    if find_machine(before) != (machine := describe_machine()):
        entry["machine"] = machine
    if files:
        entry["files"] = {to_unicode(name): digest for name, digest in files.items()}
    if beside:
        entry["beside"] = to_unicode(beside)
    if modules:
        entry["modules"] = [*modules]
    return [*map(dict, before), entry]


def to_unicode(text: str) -> str:
    r"""Text of the command line as Unicode, with undecodable bytes escaped.

    >>> to_unicode("caf\udce9")
    'caf\\xe9'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def to_flags(name: str, value: Any) -> list[str]:
    """The words of a parameter on a command line.

    >>> to_flags("kv_heads", 2), to_flags("causal", True), to_flags("window", (-1, 0))
    (['--kv-heads', '2'], ['--causal'], ['--window', '-1,0'])
    """
    flag = flag_name(name)
    if value is True:
        return [flag]
    if isinstance(value, tuple):
        return [flag, ",".join(map(str, value))]
    return [flag, str(value) if isinstance(value, str | int | float) else f"<{type(value).__name__}>"]
