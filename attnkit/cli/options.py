"""Options: the kinds of values, how each is parsed, and the options that several tools share.

An Option has the fields of Typer's own, and Typer reads the command line by them. Values are parsed here and not by
Typer's types, because a call from Python checks them too and imports no Typer, and because numbers are ASCII digits
alone.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from attnkit import formats
from attnkit.errors import UsageError, suggest

Load = Literal[
    "tensor",
    "tensors",
    "attended",
    "memory",
    "index",
    "words",
    "tokenizer",
    "model",
    "image",
    "patches",
    "means",
    "ids",
    "targets",
    "lines",
]


COMMA = re.compile(r",(?![^\[\]]*\])")  # outside brackets


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
    expected = f"a finite number {' and '.join(stated)}".rstrip()

    def parse(value: str) -> float:
        if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value, re.ASCII):
            raise ValueError(expected)
        result = float(value)
        is_above = (above is None or result > above) and (least is None or result >= least)
        if not (math.isfinite(result) and is_above and (most is None or result <= most)):
            raise ValueError(expected)
        return result

    return Option(help, metavar, parse)


def integers(help: str, metavar: str, least: int | None = None) -> Option:
    """Declare an option with comma-separated whole numbers as its value."""
    parse_integer = integer(help, least).parser

    def parse(value: str) -> tuple[int, ...]:
        if parse_integer is None:
            raise ValueError("comma-separated whole numbers")
        return tuple(parse_integer(part) for part in value.split(","))

    return Option(help, metavar, parse)


def parse_window(text: str) -> tuple[int, ...]:
    """Return the two numbers of a window; ValueError for another text, of one number with both that may be meant.

    >>> parse_window("3,0")
    (3, 0)
    """
    parts = text.split(",")
    if len(parts) != 2 or not all(re.fullmatch(r"-1|\+?[0-9]{1,18}", part, re.ASCII) for part in parts):
        one = re.fullmatch("[0-9]{1,18}", text, re.ASCII)
        hint = (
            f"; {text},0 is the {text} before the query and itself, {text},{text} also the {text} after it"
            if one
            else ""
        )
        raise ValueError("L,R, two whole numbers of at least -1", hint)
    return int(parts[0]), int(parts[1])


def cell(help: str, metavar: str) -> Option:
    """Declare an option with comma-separated indices as its value: whole numbers of at least 0, or words."""

    def parse(value: str) -> tuple[int | str, ...]:
        parts = [part.strip() for part in value.split(",")]
        if not all(parts) or any(re.fullmatch(r"[+-][0-9]+|[0-9]{19,}", part, re.ASCII) for part in parts):
            raise ValueError("comma-separated whole numbers of at least 0, or words")
        return tuple(int(part) if re.fullmatch("[0-9]+", part, re.ASCII) else part for part in parts)

    return Option(help, metavar, parse)


def element(help: str, metavar: str) -> Option:
    """Declare an option with a tensor or cells of it as its value, NAME or NAME[SLICE]: (name, index)."""

    def parse(value: str) -> tuple[str, tuple[Any, ...]]:
        from attnkit.interpret.slices import parse_slice  # which few tools need

        match = re.fullmatch(r"(?P<name>[^\[\]]+)(\[(?P<slice>.+)\])?", value)
        if match is None:
            raise ValueError(metavar)
        return match["name"], parse_slice(match["slice"]) if match["slice"] else ()

    return Option(help, metavar, parse)


def choice(help: str, values: Sequence[str]) -> Option:
    """Declare an option with one of a few words as its value."""

    def parse(value: str) -> str:
        if value not in values:
            raise ValueError(f"one of: {', '.join(values)}", hint_at_value(value, values))
        return value

    return Option(help, "|".join(values), parse, choices=tuple(values))


def hint_at_value(value: str, values: Sequence[str]) -> str:
    """Return a hint at the word that was meant: one for the same elsewhere, or one of almost the same letters.

    >>> hint_at_value("gelu_new", ["relu", "gelu-tanh"]), hint_at_value("GELU", ["gelu", "relu"])
    ('; did you mean gelu-tanh?', '; did you mean gelu?')
    """
    from attnkit.cli.synonyms import look_up, squash

    known = [one for one in values if squash(one) == squash(value)] + look_up("values", value)
    return next((f"; did you mean {one}?" for one in known if one.split()[0] in values), "") or suggest(value, values)


def span(help: str) -> Option:
    """Declare an option with A:B as its value, a text, where either number may be left out."""

    def parse(value: str) -> str:
        if not re.fullmatch(r"[0-9]{0,9}:[0-9]{0,9}", value, re.ASCII):
            raise ValueError("A:B, whole numbers", f"; :{value} is the first {value}" if value.isdigit() else "")
        return value

    return Option(help, "A:B", parse)


def names(help: str, values: Sequence[str] = (), metavar: str = "NAMES") -> Option:
    """Declare an option with comma-separated names as its value."""

    def parse(value: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in value.split(","))
        for part in parts:
            if not part or (values and part not in values):
                allowed = f", each one of: {', '.join(values)}" if values else ""
                raise ValueError(f"comma-separated names{allowed}", hint_at_value(part, values))
        return parts

    return Option(help, metavar, parse, choices=tuple(values), is_list=True)


def split_targets(text: str) -> tuple[str, ...]:
    """Split comma-separated names, each with or without a slice in brackets; ValueError for an empty one.

    >>> split_targets("a[2,3],b:1")
    ('a[2,3]', 'b:1')
    """
    parts = tuple(part.strip() for part in COMMA.split(text))
    if not all(parts):
        raise ValueError("comma-separated names")
    return parts


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


def lines(help: str, metavar: str = "FILE") -> Option:
    """Declare an option that names a text, or several comma-separated ones, whose lines are read."""
    return Option(help, metavar, str, "lines")


def attribution(of: str) -> Option:
    """Declare an option that names a method of attribution; of: the number that tokens contribute to."""
    help = f"how much the embedding of each token contributes to {of}: its product with the gradient, or with the mean "
    return Option(f"{help}of the gradients at N points from zeros to it (integrated gradients)", METHODS, parse_method)


METHODS = "input-x-gradient|integrated:N"


def parse_method(text: str) -> str:
    """Return a method of attribution as written; ValueError names both where it is neither.

    >>> parse_method("integrated:32")
    'integrated:32'
    """
    if not re.fullmatch(r"input-x-gradient|integrated:0*[1-9][0-9]{0,5}", text, re.ASCII):
        raise ValueError(f"{METHODS}, N from 1 on")
    return text


MODEL = Option("folder of a published model (config.json, weights, tokenizer)", "DIR", str, "model")
TRACE = text("write all intermediates to FILE, each by its name", "FILE")
TRACE_ONLY = names("write only intermediates whose names match a shell pattern: *.weights", metavar="PATTERNS")
GRAD = text(
    "write the gradients of the mean of −log p over the tokens of --score to FILE: those of every intermediate, "
    "under the names of a trace, and of every parameter",
    "FILE",
)
GRAD_ONLY = names("keep only the gradients whose names match a shell pattern: *.self.*", metavar="PATTERNS")
CHECK_GRAD = switch(
    "compare --grad with a finite difference in float64, along a random direction over all parameters; the exit code "
    "is 1 for a relative error above 1e-6"
)
PATCH = Option(
    "replace the intermediate NAME by the tensor of FILE (of several, by the one called NAME); NAME[2,:,5]=FILE some "
    "cells of it, NAME+=FILE*2 adds the tensor times 2",
    "NAME=FILE",
    str,
    "patches",
)
ABLATE = Option(
    "set attention heads to 0: encoder.3.self (all its heads), encoder.3.self:5, encoder.3.self:5,7, "
    "encoder.3.self:0:4 (heads 0 to 3), or encoder.3.self[5,2:4] (head 5 at positions 2 and 3)",
    "LAYER[:HEADS]",
    split_targets,
    is_list=True,
)
MEAN = Option(
    "set the heads of --ablate to their means over all tokens of FILE, not to 0: records of encode --keep '*.heads'",
    "FILE",
    str,
    "means",
)
IMAGE = Option("an image: PNG, JPEG, or a tensor (C, height, width)", "FILE", str, "image")
WEIGHTS = text(
    "add attention weights, for texts of any length: stats (lse, entropy, max, argmax and span of each query; the"
    " sum of weights that each key received), the K largest, the rows of queries I, J, …, or the full matrix",
    "stats|topk:K|rows:I,J|full",
)
IDS = ids("token ids (T) or (B, T), instead of text")
PAIR = text("second text of a pair, for models such as BERT")
BATCH = switch("make one padded batch of all texts, or of all lines of standard input")
RESIDUAL = switch("add the input to the result (residual connection)")
ADD = tensor("add FILE to the result; in the pre-norm order :residual")


def parse_heads(text: str) -> range:
    """Parse the heads whose tables --steps shows: one, or `all`.

    >>> parse_heads("2"), 99 in parse_heads("all")
    (range(2, 3), True)
    """
    if text == "all":
        return range(1 << 62)
    parse_integer = integer("", 0).parser
    try:
        head = int(parse_integer(text)) if parse_integer else 0
    except ValueError:
        raise ValueError("a whole number of at least 0, or all") from None
    return range(head, head + 1)


SHOW_HEAD = Option("head whose tables --steps shows, or all [default: the first two]", "N|all", parse_heads)
STEPS = switch("add every intermediate to the record and show a table of each")
WINDOW = Option("keys from L before the query to R after it; -1: no limit", "L,R", parse_window)
LINES = switch("write a stream: one record for each line")
LAYER = text("layer of the model; `attnkit show DIR` lists the names", "NAME")


def parse_value(name: str, option: Option, value: Any) -> Any:
    """Parse the value of an option, from text or from Python; UsageError states the expected value.

    >>> parse_value("--heads", integer("number of heads", least=1), "2")
    2
    >>> parse_value("--window", WINDOW, (1, 0))
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


# the options of the tools that an engine computes, and how sections of a help name them
ENGINE: dict[str, Option] = {
    "engine": choice(
        "compute by numpy, or by jax on CPU, GPU and TPU [default: numpy, or ATTNKIT_ENGINE]", ("numpy", "jax")
    ),
    "compute": choice(
        "let jax compute in this dtype [default: that of the model]", ("float32", "bfloat16", "float16")
    ),
    "mesh": text("let jax split the work over devices: texts (data), heads and weights (model), tokens (seq)",
                 "data=N,model=N,seq=N"),
    "coordinator": text("join processes on many hosts at this address of process 0; auto: as SLURM, MPI or Kubernetes "
                        "say", "HOST:PORT"),
    "process": integer("the number of this process, from 0; process 0 writes the result", 0, "I"),
    "processes": integer("how many processes are joined", 1),
}  # fmt: skip
ENGINE_SECTION = " ".join(ENGINE)
ENGINE_KEYWORDS = ("engine", "compute", "mesh")


def engine_values(call: Any) -> dict[str, Any]:
    """Return the options of an engine that a stage has, by ATTNKIT_ENGINE too; {} where NumPy is the default."""
    if "engine" not in call.tool.extra:
        return {}
    named = os.environ.get("ATTNKIT_ENGINE")
    stated = {name: call.extra[name] for name in ENGINE if call.extra.get(name) is not None}
    return ({"engine": named} if named else {}) | stated


def recorded_values(call: Any) -> dict[str, Any]:
    """Return the options of an engine that a history has: not where its processes were, nor that it is NumPy."""
    values = {name: value for name, value in engine_values(call).items() if name in ENGINE_KEYWORDS}
    return {} if values.get("engine") == "numpy" else values


def load_engine(call: Any) -> Any:
    """Return the engine that computes a stage, None for NumPy; UsageError where it is not installed."""
    if not (values := engine_values(call)):
        return None
    from attnkit.backends.choice import choose_engine

    return choose_engine(values)


FIGURE_FORMATS = ("svg", "png", "pdf", "html")
CELL_FORMATS = ("csv", "tsv", "markdown")
DISPLAY_FORMATS = ("table", *CELL_FORMATS, *FIGURE_FORMATS)
FORMATS = (*formats.FORMATS, *DISPLAY_FORMATS)
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
          "uint64", "uint32", "uint16", "uint8", "bool")  # fmt: skip

OF_TENSORS = ("only", "dtype", "precision", "tokens", "indent", "check_finite")  # what a tool of texts alone lacks
COMMON: dict[str, Option] = {
    "output": Option("write the result to FILE; the suffix chooses the format", "FILE", str, short="-o"),
    "format": choice(
        f"output format: {', '.join(FORMATS)}; npy holds only x [default: a table on a terminal, otherwise the "
        "format of the input (npz if npy cannot hold the result), without input and for an answer json]",
        FORMATS,
    )._replace(metavar="FORMAT", short="-f"),
    "only": names("keep only these tensors: comma-separated names or shell patterns"),
    "dtype": choice(f"convert the input x to this dtype: {', '.join(DTYPES)}", DTYPES)._replace(metavar="DTYPE"),
    "precision": integer("decimal places in tables [default: 4] and in heat-map cells [default: 2]", least=0),
    "theme": choice(
        "colours of a figure [default: light; in HTML the setting of the browser]",
        ("light", "dark", "transparent"),
    ),
    "title": text("title of a figure [default: name and formula of the tensor]"),
    "tokens": choice(
        "show tokens as they are in the vocabulary (raw: Ġfox, ▁fox), or with · for a space (plain) [default: "
        "raw; in figures plain]",
        ("raw", "plain"),
    ),
    "indent": switch("write JSON with one matrix row per line"),
    "check_finite": switch("stop with an error at NaN or infinity, instead of a warning"),
    "quiet": switch("print no warnings and no tables on standard error")._replace(short="-q"),
}
