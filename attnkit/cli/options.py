"""Options of the command line: built by Typer, converted, and those of all tools.

The Typer type of an option converts and checks a value, text of a command line or an object of Python.
"""

import copy
import itertools
import numbers
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin

import typer

from attnkit import formats
from attnkit.errors import UsageError, flag_name, suggest
from attnkit.options import DTYPES, MOST_DIGITS, Load, NameList, UnknownName, choice, is_usual, tensor_names

typer_main: Any = typer.main
METAVARS = {int: "N", float: "X", str: "TEXT"}


class Option(Protocol):
    """An option as Typer has built it, with what attnkit adds.

    load     the kind of file that its value names; the tool receives the content
    choices  all words that it takes, or ()
    """

    name: str
    help: str
    metavar: str
    opts: list[str]
    default: Any
    is_flag: bool
    multiple: bool
    type: Any
    load: Load | None
    choices: Sequence[str]


def complete_tensor_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete comma-separated names of tensors of the first operand that is a file."""
    files = [one for one in (*(context.params.get("operands") or ()), *context.args) if os.path.isfile(one)]
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in tensor_names(files[0])] if files else []


def declare(name: str, annotation: Any, default: Any = None) -> Any:
    """Build Typer's option of a parameter declared with Annotated.

    A parameter of type tuple[str, ...] may be repeated.

    >>> option = declare("kv_heads", Annotated[int | None, typer.Option(min=1, help="key/value heads")])
    >>> option.opts, option.metavar, option.multiple
    (['--kv-heads'], 'N', False)
    """
    kind = plain_type(annotation)
    infos = (one.__metadata__[0] for one in (annotation, *get_args(annotation)) if hasattr(one, "__metadata__"))
    info = copy.copy(next(infos))
    is_list = kind == tuple[str, ...]
    load = getattr(info.parser, "load", None)
    spellings = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    info.param_decls, info.default = spellings or [flag_name(name)], None if is_list else default
    words = get_args(kind) if get_origin(kind) is Literal else ()
    info.metavar = info.metavar or "|".join(words) or METAVARS.get(kind, "")
    if not words and (info.parser or info.click_type or kind not in METAVARS) and kind is not bool:
        kind = str
    if isinstance(info.parser, NameList) and info.parser.choices:
        info.autocompletion = info.parser.complete
    meta = typer.models.ParamMeta(
        name=name, default=info, annotation=list[str] if is_list or load == "patches" else kind
    )
    option, _ = typer_main.get_click_param(meta)
    option.load = load
    option.choices = getattr(info.parser or option.type, "choices", ())
    return option


def plain_type(annotation: Any) -> Any:
    """Find the type of an annotation without None and what Annotated adds.

    >>> plain_type(tuple[int, int] | None), plain_type(Annotated[int | None, typer.Option()])
    (tuple[int, int], <class 'int'>)
    """
    kind = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
    kinds = [one for one in get_args(kind) if one is not type(None)] if type(None) in get_args(kind) else []
    return plain_type(kinds[0]) if kinds else kind


def convert(option: Option, value: Any) -> Any:
    """Convert a value of an option, text or an object of Python, by its Typer type.

    UsageError names the option and states what was expected, which a parser says by a ValueError.

    >>> convert(declare("heads", Annotated[int, typer.Option(min=1)]), "2")
    2
    >>> convert(declare("norm", Annotated[str, choice(("rms", "layer"), "norm")]), "rms")
    'rms'
    """
    if value is None:
        return None
    try:
        return convert_value(option, os.fspath(value) if isinstance(value, os.PathLike) else value)
    except ValueError as error:
        expected, *hint = error.args
        hint = [hint_at_word(hint[0], option.choices)] if isinstance(error, UnknownName) else hint
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        raise UsageError(f"expected {expected}, got {text!r}{''.join(hint)}", flag_name(option.name)) from None


def convert_value(option: Option, value: Any) -> Any:
    """Convert a value of an option; ValueError states what was expected."""
    if option.load:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) and option.multiple else value
    if option.is_flag:
        if getattr(value, "shape", ()) != () or value not in (0, 1):
            raise ValueError("True or False")
        return bool(value)
    parse = getattr(option.type, "func", None)
    if option.multiple:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(itertools.chain.from_iterable(map(parse, map(str, values))) if parse else map(str, values))
    if parse:
        try:
            return parse(value if isinstance(value, list | tuple) else str(value))
        except (TypeError, AttributeError):  # a list for text
            raise ValueError(option.metavar) from None
    try:
        result = option.type.convert(value, option, None)
    except (typer.BadParameter, TypeError, ValueError, OverflowError):
        raise ValueError(describe_type(option), hint_at_word(str(value), option.choices)) from None
    if not isinstance(result, int | float):
        return result
    is_number = isinstance(value, numbers.Integral if isinstance(result, int) else numbers.Real)
    is_same = isinstance(value, str) or (is_number and not isinstance(value, bool) and result == value)
    if is_same and is_usual(result):
        return result
    is_long = isinstance(result, int) and not is_usual(result)
    raise ValueError(describe_type(option) + f", of at most {MOST_DIGITS} digits" * is_long)


def is_list_of_texts(option: Option) -> bool:
    """Decide whether each text of an option is one value, which may have commas."""
    return option.multiple and not hasattr(option.type, "func")


def describe_type(option: Option) -> str:
    """Describe the values of an option: words, or numbers within bounds."""
    if option.choices:
        return f"one of: {', '.join(option.choices)}"
    kind = option.type
    least = "above" if getattr(kind, "min_open", False) else "of at least"
    bounds = [(least, getattr(kind, "min", None)), ("of at most", getattr(kind, "max", None))]
    stated = [f"{words} {bound:g}" for words, bound in bounds if bound is not None]
    return f"a {'whole' if kind.name.startswith('int') else 'finite'} number {' and '.join(stated)}".rstrip()


def hint_at_word(value: str, words: Sequence[str]) -> str:
    """Suggest the word that was probably meant.

    >>> hint_at_word("gelu_new", ["relu", "gelu-tanh"]), hint_at_word("GELU", ["gelu", "relu"])
    ('; did you mean gelu-tanh?', '; did you mean gelu?')
    """
    from attnkit.cli.synonyms import look_up, squash

    known = [one for one in words if squash(one) == squash(value)] + look_up("values", value)
    return next((f"; did you mean {one}?" for one in known if one.split()[0] in words), "") or suggest(value, words)


FIGURE_FORMATS = ("svg", "png", "pdf", "html")
CELL_FORMATS = ("csv", "tsv", "markdown")
DISPLAY_FORMATS = ("table", *CELL_FORMATS, *FIGURE_FORMATS)
FORMATS = (*formats.FORMATS, *DISPLAY_FORMATS)

OF_TENSORS = ("only", "dtype", "precision", "tokens", "indent", "check_finite")  # what a tool of texts alone lacks
COMMON: dict[str, Any] = {
    "output": Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="write the result to FILE; the suffix chooses the format"),
    ],
    "format": Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            click_type=typer_main.TyperChoice(FORMATS),
            metavar="FORMAT",
            help=f"output format: {', '.join(FORMATS)}; npy holds only x [default: a table on a terminal, otherwise "
            "the format of the input (npz if npy cannot hold the result), without input and for an answer json]",
        ),
    ],
    "only": Annotated[
        tuple[str, ...],
        typer.Option(
            parser=NameList(),
            metavar="NAMES",
            help="keep only these tensors: comma-separated names or shell patterns",
            autocompletion=complete_tensor_names,
        ),
    ],
    "dtype": Annotated[str, choice(DTYPES, f"convert the input x to this dtype: {', '.join(DTYPES)}", "DTYPE")],
    "precision": Annotated[
        int,
        typer.Option(min=0, max=100, help="decimal places in tables [default: 4] and in heat-map cells [default: 2]"),
    ],
    "theme": Annotated[
        Literal["light", "dark", "transparent"],
        typer.Option(help="colours of a figure [default: light; in HTML the setting of the browser]"),
    ],
    "title": Annotated[str, typer.Option(help="title of a figure [default: name and formula of the tensor]")],
    "tokens": Annotated[
        Literal["raw", "plain"],
        typer.Option(
            help="show tokens as they are in the vocabulary (raw: Ġfox, ▁fox), or with · for a space (plain) [default: "
            "raw; in figures plain]"
        ),
    ],
    "indent": Annotated[bool, typer.Option(help="write JSON with one matrix row per line")],
    "check_finite": Annotated[bool, typer.Option(help="stop with an error at NaN or infinity, instead of a warning")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="print no warnings and no tables on standard error")],
}
