"""Options: how a tool declares them with Typer, and those that tools share.

A parameter of a tool is `Annotated[int, typer.Option(min=1, metavar="H", help="…")]`. Its Typer type converts
and checks a value, text of a command line or an object of Python.
"""

import copy
import itertools
import math
import numbers
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin

import typer

from attnkit import formats
from attnkit.errors import AttnkitError, UsageError, flag_name, suggest
from attnkit.records import Array, Record

typer_main: Any = typer.main
Load = Literal[
    "tensor", "tensors", "attended", "memory", "index", "words", "tokenizer", "model", "image", "audio",
    "patches", "means", "ids", "targets", "lines", "messages", "template",
]  # fmt: skip
PLAIN = re.compile(r"[\w./-]+")  # names that a shell takes as they are: no other is offered
COMMA = re.compile(r",(?![^\[\]]*\])")  # outside brackets
MOST_DIGITS = 18  # of a whole number
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


def complete_operand(incomplete: str) -> list[str]:
    """Complete FILE:NAME, or DIR:NAME of a model, once FILE is typed up to its colon."""
    path, colon, _ = incomplete.partition(":")
    return [f"{path}:{name}" for name in tensor_names(path)] if colon and os.path.exists(path) else []


def complete_tensor_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete comma-separated names of tensors of the first operand that is a file."""
    files = [one for one in (*(context.params.get("operands") or ()), *context.args) if os.path.isfile(one)]
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in tensor_names(files[0])] if files else []


def complete_layer(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a layer of the model of --model."""
    from attnkit.checkpoints import open_checkpoint

    folder = context.params.get("model_")
    try:
        return [*open_checkpoint(folder).layers()] if folder else []
    except AttnkitError:
        return []


def complete_layer_with_heads(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a layer with attention heads of the model of --model."""
    return [name for name in complete_layer(context, incomplete) if name.rpartition(".")[2] in ("self", "cross")]


def tensor_names(path: str) -> list[str]:
    """The tensors of a file, or the layers of a model's folder, or []."""
    try:
        if os.path.isdir(path):
            from attnkit.checkpoints import open_checkpoint

            specs: Mapping[str, Mapping[str, object]] = open_checkpoint(path).params.specs  # names of attnkit alone
            return [*specs, *(f"{layer}.{key}" for layer, keys in specs.items() for key in keys)]
        from attnkit import formats

        return [name for name in formats.load(path) if PLAIN.fullmatch(name)]
    except AttnkitError:
        return []


class File:
    """The parser of an option that names a file, which is read when the tool runs."""

    __name__ = "FILE"

    def __init__(self, load: Load) -> None:
        self.load = load

    def __call__(self, value: Any) -> Any:
        return value


class NameList:
    """The parser of comma-separated names: of all words, or of these choices."""

    __name__ = "NAMES"

    def __init__(self, choices: Iterable[str] = ()) -> None:
        self.choices = tuple(choices)

    def __call__(self, value: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in value.split(","))
        for part in parts:
            if not part or (self.choices and part not in self.choices):
                allowed = f", each one of: {', '.join(self.choices)}" if self.choices else ""
                raise ValueError(f"comma-separated names{allowed}", hint_at_word(part, self.choices))
        return parts

    def complete(self, incomplete: str) -> list[str]:
        """Complete the last of the names."""
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in self.choices if name.startswith(last)]


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

    >>> plain_type(Window | None), plain_type(Annotated[int | None, typer.Option()])
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
    >>> convert(declare("window", Window), (1, 0))
    (1, 0)
    """
    if value is None:
        return None
    try:
        return convert_value(option, os.fspath(value) if isinstance(value, os.PathLike) else value)
    except ValueError as error:
        expected, *hint = error.args
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        raise UsageError(f"expected {expected}, got {text!r}{''.join(hint)}", flag_name(option.name)) from None


def convert_value(option: Option, value: Any) -> Any:
    """Convert a value of an option; ValueError states what was expected."""
    if option.load:
        return ",".join(value) if isinstance(value, list | tuple) and option.load == "patches" else value
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
        except TypeError:  # a list for text
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


def is_usual(number: float) -> bool:
    """Decide whether a number is finite, and of at most 18 digits where it is whole."""
    return abs(number) < 10**MOST_DIGITS if isinstance(number, int) else math.isfinite(number)


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


def split_numbers(value: Any) -> list[Any]:
    """Split comma-separated text; a list of Python is already split."""
    return value.split(",") if isinstance(value, str) else [*value]


def parse_window(value: Any) -> tuple[int, int]:
    """Parse the two numbers of a window.

    >>> parse_window("3,0")
    (3, 0)
    """
    try:
        left, right = map(int, split_numbers(value))
        if min(left, right) >= -1 and is_usual(max(left, right)):
            return left, right
    except (TypeError, ValueError):
        pass
    hint = f"; {value},0 is the {value} before the query and itself, {value},{value} also the {value} after it"
    is_one = isinstance(value, str) and value.isdigit()
    raise ValueError("L,R, two whole numbers of at least -1", hint * is_one)


def parse_whole_numbers(value: Any) -> tuple[int, ...]:
    """Parse comma-separated whole numbers of at least 0."""
    try:
        numbers = tuple(map(int, split_numbers(value)))
        if min(numbers) >= 0 and is_usual(max(numbers)):
            return numbers
    except (TypeError, ValueError):
        pass
    raise ValueError("comma-separated whole numbers of at least 0")


def parse_kernel_numbers(value: Any) -> tuple[int, ...]:
    """Parse kernel numbers: one for all dimensions, or one each, of at least 1.

    >>> parse_kernel_numbers("3"), parse_kernel_numbers((3, 5))
    ((3,), (3, 5))
    """
    try:
        numbers = tuple(map(int, [value] if isinstance(value, int) else split_numbers(value)))
        if len(numbers) in (1, 2) and min(numbers) >= 1 and is_usual(max(numbers)):
            return numbers
    except (TypeError, ValueError):
        pass
    raise ValueError("one or two comma-separated whole numbers of at least 1")


def parse_kernel_padding(value: Any) -> tuple[int, ...] | str:
    """Parse same, same-lower, or one, two or four numbers of at least 0.

    >>> parse_kernel_padding("same"), parse_kernel_padding("1,0")
    ('same', (1, 0))
    """
    if value in ("same", "same-lower"):
        return str(value)
    try:
        numbers = tuple(map(int, [value] if isinstance(value, int) else split_numbers(value)))
        if len(numbers) in (1, 2, 4) and min(numbers) >= 0 and is_usual(max(numbers)):
            return numbers
    except (TypeError, ValueError):
        pass
    raise ValueError("same, same-lower, or one, two or four comma-separated whole numbers of at least 0")


def parse_cell(value: Any) -> tuple[int | str, ...]:
    """Parse comma-separated indices: whole numbers of at least 0, or words.

    >>> parse_cell("0,The")
    (0, 'The')
    """
    parts = [str(part).strip() for part in split_numbers(value)]
    if not all(parts) or any(re.fullmatch(r"[+-]\d+|\d{19,}", part) for part in parts):
        raise ValueError("comma-separated whole numbers of at least 0, or words")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def parse_element(value: str) -> tuple[str, tuple[Any, ...]]:
    """Parse a tensor or cells of it, NAME or NAME[SLICE]: (name, index)."""
    from attnkit.interpret.slices import parse_slice  # which few tools need

    match = re.fullmatch(r"(?P<name>[^\[\]]+)(\[(?P<slice>.+)\])?", value)
    if match is None:
        raise ValueError("NAME[INDEX]")
    return match["name"], parse_slice(match["slice"]) if match["slice"] else ()


def parse_span(value: str) -> str:
    """Check A:B, where either number may be left out."""
    if not re.fullmatch(r"\d{0,9}:\d{0,9}", value):
        raise ValueError("A:B, whole numbers", f"; :{value} is the first {value}" if value.isdigit() else "")
    return value


def parse_targets(value: str) -> tuple[str, ...]:
    """Split comma-separated names, each with or without a slice in brackets.

    >>> parse_targets("a[2,3],b:1")
    ('a[2,3]', 'b:1')
    """
    parts = tuple(part.strip() for part in COMMA.split(value))
    if not all(parts):
        raise ValueError("comma-separated names")
    return parts


def parse_heads(value: Any) -> range:
    """Parse the heads whose tables --steps shows: one, or `all`.

    >>> parse_heads("2"), 99 in parse_heads("all")
    (range(2, 3), True)
    """
    if value == "all":
        return range(1 << 62)
    if not (str(value).isdigit() and is_usual(int(value))):
        raise ValueError("a whole number of at least 0, or all")
    return range(int(value), int(value) + 1)


METHODS = "input-x-gradient|integrated:N"


def parse_method(value: str) -> str:
    """Check a method of attribution.

    >>> parse_method("integrated:32")
    'integrated:32'
    """
    if not re.fullmatch(r"input-x-gradient|integrated:0*[1-9]\d{0,5}", value):
        raise ValueError(f"{METHODS}, N from 1 on")
    return value


def choice(words: Iterable[str], help: str, metavar: str = "") -> Any:
    """Declare an option with one word of a table as its value."""
    return typer.Option(click_type=typer_main.TyperChoice(words), metavar=metavar or "|".join(words), help=help)


def names(help: str, words: Iterable[str] = (), metavar: str = "NAMES") -> Any:
    """Declare an option with comma-separated names as its value."""
    return typer.Option(parser=NameList(words), metavar=metavar, help=help)


def file(load: Load, help: str, metavar: str = "FILE") -> Any:
    """Declare an option that names a file: FILE, FILE:NAME, or :NAME."""
    return typer.Option(parser=File(load), metavar=metavar, help=help, autocompletion=complete_operand)


def attribution(of: str) -> Any:
    """Declare an option that names a method of attribution."""
    help = f"how much the embedding of each token contributes to {of}: its product with the gradient, or with the mean "
    help += "of the gradients at N points from zeros to it (integrated gradients)"
    return typer.Option(parser=parse_method, metavar=METHODS, help=help)


DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
          "uint64", "uint32", "uint16", "uint8", "bool")  # fmt: skip


def range_above_0(most: float | None = None) -> Any:
    """Declare a type of numbers above 0, up to `most`."""
    return typer_main.types.FloatRange(min=0, min_open=True, max=most)


ABOVE_0, SHARE = range_above_0(), range_above_0(1)

Model = Annotated[
    Any, file("model", "folder of a published model (config.json, weights, tokenizer), or its GGUF file", "DIR")
]
Layer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="layer of the model; `attnkit show DIR` lists the names",
        autocompletion=complete_layer,
    ),
]
Trace = Annotated[str | None, typer.Option(metavar="FILE", help="write all intermediates to FILE, each by its name")]
TraceOnly = Annotated[
    tuple[str, ...],
    names("write only intermediates whose names match a shell pattern: *.weights", metavar="PATTERNS"),
]
Grad = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="write the gradients of the mean of −log p over the tokens of --score to FILE: those of every "
        "intermediate, under the names of a trace, and of every parameter",
    ),
]
GradOnly = Annotated[
    tuple[str, ...],
    names("keep only the gradients whose names match a shell pattern: *.self.*", metavar="PATTERNS"),
]
CheckGrad = Annotated[
    bool,
    typer.Option(
        help="compare --grad with a finite difference in float64, along a random direction over all parameters; the "
        "exit code is 1 for a relative error above 1e-6"
    ),
]
Patch = Annotated[
    dict[str, Array] | None,
    file(
        "patches",
        "replace the intermediate NAME by the tensor of FILE (of several, by the one called NAME); NAME[2,:,5]=FILE "
        "some cells of it, NAME+=FILE*2 adds the tensor times 2",
        "NAME=FILE",
    ),
]
Ablate = Annotated[
    tuple[str, ...],
    typer.Option(
        parser=parse_targets,
        metavar="LAYER[:HEADS]",
        help="set attention heads to 0: encoder.3.self (all its heads), encoder.3.self:5, encoder.3.self:5,7, "
        "encoder.3.self:0:4 (heads 0 to 3), or encoder.3.self[5,2:4] (head 5 at positions 2 and 3)",
        autocompletion=complete_layer_with_heads,
    ),
]
Mean = Annotated[
    Mapping[str, Array] | None,
    file(
        "means",
        "set the heads of --ablate to their means over all tokens of FILE, not to 0: records of encode --keep "
        "'*.heads'",
    ),
]
Image = Annotated[Array | None, file("image", "image: PNG, JPEG, or a tensor (C, height, width)")]
Over = Annotated[
    Array | None,
    file("image", "picture, PNG or JPEG, over whose patches attention or another tensor is drawn"),
]
Audio = Annotated[
    Record | None,
    file("audio", "sound: WAV, or FLAC, Ogg and MP3 with the extra audio, or a tensor of samples (T)"),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="stats|topk:K|rows:I,J|full",
        help="add attention weights, for texts of any length: stats (lse, entropy, max, argmax and span of each query; "
        "the sum of weights that each key received), the K largest, the rows of queries I, J, …, or the full matrix",
    ),
]
Ids = Annotated[Record | None, file("ids", "token ids (T) or (B, T), instead of text")]


def parse_language(text: str) -> str:
    """The name of a language as written; ValueError if it is empty."""
    if not text:
        raise ValueError("the name of a language")
    return text


SourceLanguage = Annotated[
    str | None,
    typer.Option(
        parser=parse_language,
        metavar="L",
        help="language of TEXT, of a model that translates between several, as en_XX or fra_Latn",
    ),
]
TargetLanguage = Annotated[
    str | None,
    typer.Option(
        parser=parse_language,
        metavar="L",
        help="language to translate into, of a model that translates between several",
    ),
]
Pair = Annotated[str | None, typer.Option(help="second text of a pair, for models such as BERT")]
Batch = Annotated[bool, typer.Option(help="make one padded batch of all texts, or of all lines of standard input")]
Residual = Annotated[bool, typer.Option(help="add the input to the result (residual connection)")]
Add = Annotated[Record | None, file("tensor", "tensor to add to the result; in the pre-norm order :residual")]
ShowHead = Annotated[
    Any,
    typer.Option(
        parser=parse_heads,
        metavar="N|all",
        help="head whose tables --steps shows [default: the first two]",
    ),
]
Steps = Annotated[bool, typer.Option(help="add every intermediate to the record and show a table of each")]
Window = Annotated[
    tuple[int, int],
    typer.Option(
        parser=parse_window,
        metavar="L,R",
        show_default=False,
        help="allow keys from L before the query to R after it; -1: no limit [default: -1,-1]",
    ),
]
Lines = Annotated[bool, typer.Option(help="write a stream: one record for each line")]

# the options of the tools that an engine computes, and how sections of a help name them
ENGINE: dict[str, Any] = {
    "engine": Annotated[
        Literal["numpy", "jax"],
        typer.Option(help="compute by numpy, or by jax on CPU, GPU and TPU [default: numpy, or ATTNKIT_ENGINE]"),
    ],
    "compute": Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="let jax compute in this dtype [default: that of the model]"),
    ],
    "mesh": Annotated[
        str,
        typer.Option(
            metavar="data=N,model=N,seq=N",
            help="let jax split the work over devices: texts (data), heads and weights (model), tokens (seq)",
        ),
    ],
    "coordinator": Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="address of process 0, where processes on many hosts join; auto: from SLURM, MPI or Kubernetes",
        ),
    ],
    "process": Annotated[
        int,
        typer.Option(min=0, metavar="I", help="number of this process, from 0; process 0 writes the result"),
    ],
    "processes": Annotated[int, typer.Option(min=1, help="number of processes that are joined")],
}
ENGINE_SECTION = " ".join(ENGINE)
ENGINE_KEYWORDS = ("engine", "compute", "mesh")

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
