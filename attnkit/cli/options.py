"""The flags: what may stand behind each, how it is read, and the ones that several tools share."""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from attnkit.errors import UsageError
from attnkit.errors import flag_name as flag_name
from attnkit.errors import suggest as suggest

Parse = Callable[[str], Any]
Load = Literal["tensor", "tensors", "attended", "memory", "words", "tokenizer", "model", "image", "patches", "ids"]


@dataclass(frozen=True)
class Flag:
    """What the command line needs to know of one parameter of a tool.

    parse     the text behind the flag -> its value; ValueError says what was expected; None: a switch
    load      what kind of file the value names; the tool is handed its content
    short     a second spelling, of one letter
    several   it may come several times; its value is a tuple
    choices   the words it takes, where these are all
    """

    help: str
    metavar: str = ""
    parse: Parse | None = None
    load: Load | None = None
    short: str = ""
    several: bool = False
    choices: tuple[str, ...] = ()


def switch(help: str) -> Flag:
    """A flag without a value."""
    return Flag(help)


def text(help: str, metavar: str = "TEXT") -> Flag:
    """A flag with any text behind it."""
    return Flag(help, metavar, str)


def integer(help: str, least: int | None = None, metavar: str = "N") -> Flag:
    """A flag with a whole number behind it, in ASCII digits alone."""

    def parse(value: str) -> int:
        limit = "" if least is None else f" of at least {least}"
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII):
            raise ValueError(f"a whole number{limit}")
        if least is not None and int(value) < least:
            raise ValueError(f"a whole number{limit}")
        return int(value)

    return Flag(help, metavar, parse)


def number(
    help: str,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    metavar: str = "X",
) -> Flag:
    """A flag with a finite decimal number behind it, within the bounds given."""
    bounds = [
        f"above {above:g}" if above is not None else "",
        f"of at least {least:g}" if least is not None else "",
    ]
    bounds.append(f"of at most {most:g}" if most is not None else "")
    expected = " ".join(["a finite number", *filter(None, bounds)])

    def parse(value: str) -> float:
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value, re.ASCII):
            raise ValueError(expected)
        found = float(value)
        low = (above is None or found > above) and (least is None or found >= least)
        if not (math.isfinite(found) and low and (most is None or found <= most)):
            raise ValueError(expected)
        return found

    return Flag(help, metavar, parse)


def integers(help: str, metavar: str, count: int | None = None, least: int | None = None) -> Flag:
    """A flag with whole numbers behind it, parted by commas."""
    one = integer(help, least).parse

    def parse(value: str) -> tuple[int, ...]:
        parts = value.split(",")
        wanted = f"{count} whole numbers" if count else "whole numbers"
        if one is None or (count and len(parts) != count):
            raise ValueError(f"{wanted} parted by commas")
        return tuple(one(part) for part in parts)

    return Flag(help, metavar, parse)


def choice(help: str, values: Sequence[str]) -> Flag:
    """A flag with one of a few words behind it."""

    def parse(value: str) -> str:
        if value not in values:
            raise ValueError(" or ".join(values), suggest(value, values))
        return value

    return Flag(help, "|".join(values), parse, choices=tuple(values))


def span(help: str) -> Flag:
    """A flag with A:B behind it, either of which may be left out; its value stays text."""

    def parse(value: str) -> str:
        if not re.fullmatch(r"[0-9]{0,9}:[0-9]{0,9}", value, re.ASCII):
            raise ValueError("A:B, whole numbers")
        return value

    return Flag(help, "A:B", parse)


def names(help: str, values: Sequence[str] = (), metavar: str = "NAMES") -> Flag:
    """A flag with names behind it, parted by commas."""

    def parse(value: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in value.split(","))
        for part in parts:
            if not part or (values and part not in values):
                allowed = f" of {' '.join(values)}" if values else ""
                raise ValueError(f"names{allowed}, parted by commas", suggest(part, values))
        return parts

    return Flag(help, metavar, parse)


def tensor(help: str) -> Flag:
    """A flag naming a tensor: FILE, FILE:NAME, or :NAME for one of the record at hand."""
    return Flag(help, "FILE", str, "tensor")


def attended(help: str) -> Flag:
    """A flag naming a tensor that attention takes part in, whose record may have a mask that belongs to it."""
    return Flag(help, "FILE", str, "attended")


def ids(help: str) -> Flag:
    """A flag naming a tensor of token ids; the mask and the labels of its record belong to it."""
    return Flag(help, "FILE", str, "ids")


def tensors(help: str) -> Flag:
    """A flag naming a file of several tensors (npz or safetensors)."""
    return Flag(help, "FILE", str, "tensors")


MODEL = Flag("folder of a published model: config.json, its weights, its tokenizer", "DIR", str, "model")
TRACE = text("write every intermediate, under its name, to FILE", "FILE")
TRACE_ONLY = names("of the trace just the names that fit, as in a shell: *.weights", metavar="PATTERNS")
PATCH = Flag(
    "replace the intermediate of that name by a tensor: of several, the one of that name",
    "NAME=FILE",
    str,
    "patches",
)
ABLATE = names(
    "switch heads off: encoder.3.self sets all heads there to 0, encoder.3.self:5 head 5, encoder.3.self:5,7 two, "
    "encoder.3.self:0:4 heads 0 to 3",
    metavar="LAYER[:HEADS]",
)
IMAGE = Flag("an image: PNG, JPEG, or a tensor (C, height, width)", "FILE", str, "image")
WEIGHTS = text(
    "add what attention weighs, at any length: stats (each query's lse, entropy, max, argmax and span, and what each "
    "key received), the K largest, the rows of queries I, J, …, or all of it",
    "stats|topk:K|rows:I,J|full",
)
LAYER = text("the layer of the model; attnkit show DIR lists them", "NAME")


def parse_value(name: str, flag: Flag, value: Any) -> Any:
    """The value of a flag as the tool takes it, from text or from Python; UsageError says what was expected.

    >>> parse_value("--heads", integer("number of heads", least=1), "2")
    2
    >>> parse_value("--window", integers("left and right", "L,R", 2), (1, 0))
    (1, 0)
    """
    if flag.load or value is None:
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if flag.parse is None:
        if getattr(value, "shape", ()) != () or value not in (0, 1):
            raise UsageError(f"expected True or False, got {value!r}", name)
        return bool(value)
    if flag.several:
        given = value if isinstance(value, tuple | list) else (value,)
        return tuple(parse_value(name, replace(flag, several=False), one) for one in given)
    if not isinstance(value, str):
        value = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    try:
        return flag.parse(value)
    except ValueError as error:
        expected, *hint = error.args
        raise UsageError(f"expected {expected}, got {value!r}{''.join(hint)}", name) from None


FORMATS = ("json", "npy", "npz", "safetensors", "table", "svg", "html")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
          "uint64", "uint32", "uint16", "uint8", "bool")  # fmt: skip

COMMON: dict[str, Flag] = {
    "output": Flag("write to FILE, replaced in one step; its suffix chooses the format", "FILE", str, short="-o"),
    "format": replace(
        choice(
            "format of the output; npy holds x alone [default: a table on a terminal, else as the input, but npz "
            "where the result is more than an npy input; without input json]",
            FORMATS,
        ),
        short="-f",
    ),
    "only": names("keep just these tensors, parted by commas"),
    "dtype": choice("convert x to this dtype first", DTYPES),
    "precision": integer("decimals in tables [default: 4]", least=0),
    "indent": switch("JSON with one matrix row a line"),
    "check_finite": switch("refuse NaN and infinity instead of warning"),
    "quiet": replace(switch("no warnings, no tables on standard error"), short="-q"),
}
