"""Options: the kinds of values, how each is parsed, and the options that several tools share.

An Option has the fields of Typer's own, and Typer reads the command line by them. Values are parsed here and not by
Typer's types, because a call from Python checks them too and imports no Typer, because numbers are ASCII digits alone,
and because an option that is given twice is an error.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from attnkit import formats
from attnkit.errors import UsageError, suggest

Load = Literal[
    "tensor", "tensors", "attended", "memory", "words", "tokenizer", "model", "image", "patches", "ids", "targets"
]


class Option(NamedTuple):
    """A parameter of a tool, as the command line takes it.

    parser    text -> value; ValueError states the expected text; None: a switch
    load      the kind of file that the value names; the tool receives its content
    short     a second spelling, of one letter
    multiple  whether it may be repeated; its value is a tuple
    choices   all words that it takes, or ()
    is_list   whether it takes several of them, comma-separated
    """

    help: str
    metavar: str = ""
    parser: Callable[[str], Any] | None = None
    load: Load | None = None
    short: str = ""
    multiple: bool = False
    choices: tuple[str, ...] = ()
    is_list: bool = False


def switch(help: str) -> Option:
    """Declare an option without a value."""
    return Option(help)


def text(help: str, metavar: str = "TEXT") -> Option:
    """Declare an option with any text as its value."""
    return Option(help, metavar, str)


def integer(help: str, least: int | None = None, metavar: str = "N") -> Option:
    """Declare an option with a whole number in ASCII digits as its value."""

    expected = "a whole number" + ("" if least is None else f" of at least {least}")

    def parse(value: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{19,}", value, re.ASCII):
            raise ValueError(f"{expected}, of at most 18 digits")
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII) or (least is not None and int(value) < least):
            raise ValueError(expected)
        return int(value)

    return Option(help, metavar, parse)


def number(
    help: str,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    metavar: str = "X",
) -> Option:
    """Declare an option with a finite decimal number within bounds as its value."""
    bounds = {"above": above, "of at least": least, "of at most": most}
    stated = [f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None]
    expected = " ".join(["a finite number", *stated])

    def parse(value: str) -> float:
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value, re.ASCII):
            raise ValueError(expected)
        result = float(value)
        is_above = (above is None or result > above) and (least is None or result >= least)
        if not (math.isfinite(result) and is_above and (most is None or result <= most)):
            raise ValueError(expected)
        return result

    return Option(help, metavar, parse)


def integers(help: str, metavar: str, count: int | None = None, least: int | None = None) -> Option:
    """Declare an option with comma-separated whole numbers as its value."""
    parse_integer = integer(help, least).parser

    def parse(value: str) -> tuple[int, ...]:
        parts = value.split(",")
        if parse_integer is None or (count and len(parts) != count):
            raise ValueError(f"{count} whole numbers, comma-separated" if count else "whole numbers, comma-separated")
        return tuple(parse_integer(part) for part in parts)

    return Option(help, metavar, parse)


def cell(help: str, metavar: str) -> Option:
    """Declare an option with comma-separated indices as its value: whole numbers of at least 0, or words."""

    def parse(value: str) -> tuple[int | str, ...]:
        parts = [part.strip() for part in value.split(",")]
        if not all(parts) or any(re.fullmatch(r"[+-][0-9]+|[0-9]{19,}", part, re.ASCII) for part in parts):
            raise ValueError("whole numbers of at least 0 or words, comma-separated")
        return tuple(int(part) if re.fullmatch("[0-9]+", part, re.ASCII) else part for part in parts)

    return Option(help, metavar, parse)


def choice(help: str, values: Sequence[str]) -> Option:
    """Declare an option with one of a few words as its value."""

    def parse(value: str) -> str:
        if value not in values:
            raise ValueError(" or ".join(values), suggest(value, values))
        return value

    return Option(help, "|".join(values), parse, choices=tuple(values))


def span(help: str) -> Option:
    """Declare an option with A:B as its value, a text, where either number may be left out."""

    def parse(value: str) -> str:
        if not re.fullmatch(r"[0-9]{0,9}:[0-9]{0,9}", value, re.ASCII):
            raise ValueError("A:B, whole numbers")
        return value

    return Option(help, "A:B", parse)


def names(help: str, values: Sequence[str] = (), metavar: str = "NAMES") -> Option:
    """Declare an option with comma-separated names as its value."""

    def parse(value: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in value.split(","))
        for part in parts:
            if not part or (values and part not in values):
                allowed = f" of {' '.join(values)}" if values else ""
                raise ValueError(f"names{allowed}, comma-separated", suggest(part, values))
        return parts

    return Option(help, metavar, parse, choices=tuple(values), is_list=True)


def tensor(help: str) -> Option:
    """Declare an option that names a tensor: FILE, FILE:NAME, or :NAME for one of the input record."""
    return Option(help, "FILE", str, "tensor")


def attended(help: str) -> Option:
    """Declare an option that names an operand of attention; its record may have a mask that belongs to it."""
    return Option(help, "FILE", str, "attended")


def ids(help: str) -> Option:
    """Declare an option that names a tensor of token ids; the mask and the labels of its record belong to it."""
    return Option(help, "FILE", str, "ids")


def tensors(help: str) -> Option:
    """Declare an option that names a file of several tensors: npz, safetensors, a JSON record or a plain map."""
    return Option(help, "FILE", str, "tensors")


MODEL = Option("folder of a published model: config.json, its weights, its tokenizer", "DIR", str, "model")
TRACE = text("write every intermediate, under its name, to FILE", "FILE")
TRACE_ONLY = names("keep only the names of the trace that match a shell pattern: *.weights", metavar="PATTERNS")
PATCH = Option(
    "replace an intermediate by a tensor of FILE: its only one, else the one of the same name",
    "NAME=FILE",
    str,
    "patches",
)
ABLATE = names(
    "switch heads off: encoder.3.self sets all heads there to 0, encoder.3.self:5 head 5, encoder.3.self:5,7 two, "
    "encoder.3.self:0:4 heads 0 to 3",
    metavar="LAYER[:HEADS]",
)
IMAGE = Option("an image: PNG, JPEG, or a tensor (C, height, width)", "FILE", str, "image")
WEIGHTS = text(
    "add attention weights, at any length: stats (each query's lse, entropy, max, argmax and span, and the weight "
    "each key received), the K largest, the rows of queries I, J, …, or all of them",
    "stats|topk:K|rows:I,J|full",
)
IDS = ids("token ids, (T) or (B, T), in place of text")
PAIR = text("a second text after TEXT, for models of pairs")
BATCH = switch("one padded batch of the texts, or of the lines of standard input")
RESIDUAL = switch("add the input to the result")
ADD = tensor("add FILE to the result: :residual in the pre-norm order")
STEPS = switch("add every intermediate to the record and show a table of each")
WINDOW = integers("keys from L before the query to R after it; -1: no bound", "L,R", 2, -1)
LINES = switch("a stream: one record for each line")
LAYER = text("the layer of the model; attnkit show DIR lists them", "NAME")


def parse_value(name: str, option: Option, value: Any) -> Any:
    """Parse the value of an option, from text or from Python; UsageError states the expected value.

    >>> parse_value("--heads", integer("number of heads", least=1), "2")
    2
    >>> parse_value("--window", integers("left and right", "L,R", 2), (1, 0))
    (1, 0)
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if option.load or value is None:
        return value
    if option.parser is None:
        if getattr(value, "shape", ()) != () or value not in (0, 1):
            raise UsageError(f"expected True or False, got {value!r}", name)
        return bool(value)
    if option.multiple:
        values = value if isinstance(value, tuple | list) else (value,)
        return tuple(parse_value(name, option._replace(multiple=False), one) for one in values)
    if not isinstance(value, str):
        value = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    try:
        return option.parser(value)
    except ValueError as error:
        expected, *hint = error.args
        raise UsageError(f"expected {expected}, got {value!r}{''.join(hint)}", name) from None


FIGURE_FORMATS = ("svg", "png", "pdf", "html")
CELL_FORMATS = ("csv", "tsv", "markdown")
DISPLAY_FORMATS = ("table", *CELL_FORMATS, *FIGURE_FORMATS)
FORMATS = (*formats.FORMATS, *DISPLAY_FORMATS)
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
          "uint64", "uint32", "uint16", "uint8", "bool")  # fmt: skip

COMMON: dict[str, Option] = {
    "output": Option("write to FILE, replaced in one step; its suffix chooses the format", "FILE", str, short="-o"),
    "format": choice(
        f"format of the output: {', '.join(FORMATS)}; npy holds x alone [default: a table on a terminal, else as "
        "the input, but npz where the result is more than an npy input; without input json]",
        FORMATS,
    )._replace(metavar="FORMAT", short="-f"),
    "only": names("keep only these tensors, comma-separated names or shell patterns"),
    "dtype": choice(f"convert x to this dtype first: {', '.join(DTYPES)}", DTYPES)._replace(metavar="DTYPE"),
    "precision": integer("decimals in tables [default: 4], in the cells of heat maps [default: 2]", least=0),
    "theme": choice(
        "colours of a figure [default: light; of a page in HTML as the browser prefers]",
        ("light", "dark", "transparent"),
    ),
    "title": text("title of a figure [default: name and formula of the tensor]"),
    "tokens": choice(
        "tokens as the vocabulary spells them (Ġfox, ▁fox), or with · for a space [default: raw; in figures plain]",
        ("raw", "plain"),
    ),
    "indent": switch("JSON with one matrix row a line"),
    "check_finite": switch("refuse NaN and infinity instead of warning"),
    "quiet": switch("no warnings, no tables on standard error")._replace(short="-q"),
}
