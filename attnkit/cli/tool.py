"""What a tool is: a function of a record, and how it is called and shown."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from attnkit.cli import options
from attnkit.cli.constraints import Constraints
from attnkit.cli.options import Option
from attnkit.cli.output_format import Result
from attnkit.options import class_of, collect_options, list_classes, spread_options
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.display import ResultView, Style

INPUT, PARTS, PAIR = "[INPUT]", "[PART]...", "A [B]"  # the input of a tool: one file or pipe, several, or two,
TEXT = "[TEXT]..."  # or texts, of which none is a file: "-" is a text of one character
Item = Any  # what a tool's function is called with: a record, None (it makes its own), or the texts of one
Parameters = Mapping[str, Any]  # the values of a tool's parameters, by name
_Stage = Any  # one call of the tool: the Stage of attnkit.cli.stage, which imports this file


class Records(NamedTuple):
    """A stream between two stages: its items, and its format on a pipe or None.

    tensor  the NAME of FILE:NAME, where its records are that tensor alone
    """

    format: str | None
    items: Iterator[Any]
    tensor: str = ""


class PythonForm(NamedTuple):
    """A tool as a function of Python, if it takes more than a record and parameters.

    inputs   the positional parameters with their types; those after the first may be left out where the type has None
    reader   (stage, inputs) -> the stream of items that the tool is called with; None: one record
    options  the options of `extra` and of all tools that are parameters too
    result   the type of the result
    present  (result, stage) -> what the function returns
    """

    inputs: Mapping[str, str] = {}
    reader: "Callable[[_Stage, Sequence[Any]], Records] | None" = None
    options: tuple[str, ...] = ()
    result: str = ""
    present: "Callable[[Any, _Stage], Any]" = lambda result, stage: result


@dataclass(frozen=True, eq=False, repr=False)
class Tool:
    """A function of a record, with what command line and pipe need to know of it.

    function        (item, options) -> its result; an option is a parameter, or a field of a parameter whose type is a
                    class of options (`attnkit.options`)
    operand         the name of the arguments in the help
    gives           what its results are: records, an `answer` about its input, whose format is not that of the input,
                    `text`, a `report`, which is text in JSON unless another format is requested, `rows`, which are
                    CSV or TSV too, or an HTML `page`
    rules           the options that exclude, require or repeat each other
    sections        title -> the names of its options, as the help groups them, the name of a class for all its fields;
                    without a table, one list
    reader          (stage, upstream) -> the stream of items that the function is called with; None: read_records
    task            (stage) -> what it was asked to do, chosen once: `stage.task` for the traits below
    view            (record, stage, style) -> what is shown of a result; None: the tensors that it computed
    view_options    (stage) -> the options that change only what is shown
    status          (record, stage) -> exit code
    extra           options and classes of options that only reader and views use, no parameters of the function
    without         the options of all tools that it lacks
    takes_pair      (operands) -> whether it reads these too, where there is more than one INPUT
    needs_no_input  (parameters) -> whether it reads no input
    record_defaults (parameters) -> the defaults that the history must show: the seed in use
    check_finite    (parameters) -> whether NaN and infinity in x are reported, because it computes with x
    tables_aside    (stage) -> whether a table goes to standard error where its output is not one
    shows_table     whether its output is a table or text unless a format is requested
    passthrough     whether it passes its input through byte for byte
    keep_names      whether the only tensor of an input keeps its own name, and is not called x
    derived         (stage) -> the function that makes another result of its result, by options of `extra`
    adds            (stage) -> whether the tensors it adds beside x were requested, so that no format may lose them
    python          what it is as a function of Python
    """

    function: Callable[..., Result]
    operand: str = INPUT
    gives: "str | Callable[[_Stage], str]" = "record"
    rules: Constraints = field(default_factory=Constraints)
    sections: Mapping[str, str] = field(default_factory=dict)
    reader: "Callable[[_Stage, Records | None], Records] | None" = None
    task: "Callable[[_Stage], Any]" = lambda stage: None
    view: "Callable[[Record, _Stage, Style], ResultView] | None" = None
    view_options: "Callable[[_Stage], tuple[str, ...]]" = lambda stage: ()
    status: "Callable[[Record, _Stage], int]" = lambda record, stage: 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    takes_pair: Callable[[Sequence[str]], bool] = lambda operands: False
    needs_no_input: Callable[[Parameters], bool] = lambda parameters: False
    record_defaults: Callable[[Parameters], dict[str, Any]] = lambda parameters: {}
    check_finite: Callable[[Parameters], bool] = lambda parameters: True
    tables_aside: "Callable[[_Stage], bool]" = lambda stage: bool(stage.parameters.get("steps"))
    shows_table: bool = False
    passthrough: bool = False
    keep_names: bool = False
    derived: "Callable[[_Stage], Callable[[Record], Result] | None]" = lambda stage: None
    adds: "Callable[[_Stage], bool]" = lambda stage: True
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
    def parameters(self) -> dict[str, Any]:
        """The default of every parameter but the input; a class of options has none."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}

    @functools.cached_property
    def fields(self) -> dict[str, dict[str, Any]]:
        """The options of every class, by the name of the parameter or the field."""
        named = {name: self.hints[name] for name in self.parameters} | dict(self.extra)
        return list_classes(named)

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The default of every option of the function."""
        flat: dict[str, Any] = {}
        for name, default in self.parameters.items():
            kind = class_of(hint := self.hints[name])
            flat |= spread_options(hint, kind()) if kind else {name: default}
        return flat

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations of the function."""
        return get_type_hints(self.function, include_extras=True)

    @functools.cached_property
    def annotations(self) -> dict[str, Any]:
        """The annotation of every option: the tool's own, `extra`, and the shared ones."""
        shared = {name: hint for name, hint in options.COMMON.items() if name not in self.without}
        return {**shared, **self.flatten(self.extra), **self.flatten({one: self.hints[one] for one in self.parameters})}

    def flatten(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The annotations of options by name, a class replaced by its fields."""
        return {one: kind for name, hint in named.items() for one, kind in self.fields.get(name, {name: hint}).items()}

    @functools.cached_property
    def extra_names(self) -> tuple[str, ...]:
        """The names of the options of `extra`."""
        return (*self.flatten(self.extra),)

    @functools.cached_property
    def titles(self) -> dict[str, str]:
        """The title of the section of the help of every option that has one."""
        listed = {title: dict.fromkeys(names.split()) for title, names in self.sections.items()}
        return {option: title for title, names in listed.items() for option in self.flatten(names)}

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """Every option by its name, as Typer has built it: own, `extra`, and shared."""
        names = dict.fromkeys([*self.defaults, *self.extra_names, *self.annotations])
        return {name: options.declare(name, self.annotations[name], self.defaults.get(name)) for name in names}

    @functools.cached_property
    def flags(self) -> dict[str, Option]:
        """The option of every parameter."""
        return {name: self.options[name] for name in self.defaults}

    @functools.cached_property
    def constraints(self) -> Constraints:
        """The tables of its options."""
        return self.rules._replace(options=self.options)

    @functools.cached_property
    def python_options(self) -> list[str]:
        """The names of the options that are parameters in Python too."""
        shared = [name for name in ("only", "dtype", "check_finite") if name in self.options]
        return [*dict.fromkeys([*self.defaults, *self.python.options, *shared])]

    def call(self, item: Item, **values: Any) -> Result:
        """Call the function with the values of its options, those of a class as one."""
        arguments = {
            name: collect_options(hint, values) if class_of(hint := self.hints[name]) else values[name]
            for name in self.parameters
        }
        return self.function(item, **arguments)
