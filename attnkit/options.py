"""Options as tools declare them: types, parsers, and those that tools share.

An option is `Annotated[int, typer.Option(min=1, metavar="H", help="…")]`. A class of options is a NamedTuple whose
fields are declared so, with their defaults; a tool with a parameter of this class has each field as an option, and
receives one instance; a field whose type is such a class stands for the options of that class. For a class without
options, `Annotated[Sampling, OptionsOf(seed=typer.Option(min=0))]` declares them by the names of its fields.
"""

import functools
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import typer

from attnkit.errors import AttnkitError
from attnkit.records import Array, Record

typer_main: Any = typer.main
Load = Literal[
    "tensor", "tensors", "attended", "memory", "index", "words", "tokenizer", "model", "image", "audio",
    "patches", "means", "ids", "targets", "lines", "messages", "template",
]  # fmt: skip
PLAIN = re.compile(r"[\w./-]+")  # names that a shell takes as they are: no other is offered
COMMA = re.compile(r",(?![^\[\]]*\])")  # outside brackets
MOST_DIGITS = 18  # of a whole number


class OptionsOf(dict[str, Any]):
    """The options of a class that declares none, by the names of its fields."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def list_fields(annotation: Any) -> dict[str, Any]:
    """List the options of a class with their annotations; {} for an option.

    A field whose type is a class stands for the options of that class.

    >>> [*list_fields(Translation)], list_fields(Pair)
    (['source_language', 'target_language'], {})
    """
    fields = field_hints(annotation).items() if class_of(annotation) else ()
    return {one: kind for name, hint in fields for one, kind in (list_fields(hint) or {name: hint}).items()}


def list_classes(named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """List the options of every class among annotations and their fields, by its name."""
    classes: dict[str, dict[str, Any]] = {}
    for name, hint in named.items():
        if class_of(hint):
            classes |= {**list_classes(field_hints(hint)), name: list_fields(hint)}
    return classes


def collect_options(annotation: Any, values: Mapping[str, Any]) -> Any:
    """Collect the values of the options of a class in an instance.

    >>> collect_options(Translation, {"source_language": "en", "target_language": "fr"})
    Translation(source_language='en', target_language='fr')
    """
    fields = field_hints(annotation).items()
    return class_of(annotation)(
        **{name: collect_options(hint, values) if class_of(hint) else values[name] for name, hint in fields}
    )


def spread_options(annotation: Any, options: Any) -> dict[str, Any]:
    """The values of the options of an instance of a class, each by its name.

    >>> spread_options(Translation, Translation("en"))
    {'source_language': 'en', 'target_language': None}
    """
    values: dict[str, Any] = {}
    for (name, hint), value in zip(field_hints(annotation).items(), options, strict=True):
        values |= spread_options(hint, value) if class_of(hint) else {name: value}
    return values


@functools.cache
def field_hints(annotation: Any) -> dict[str, Any]:
    """The annotations of the fields of a class of options."""
    kind = class_of(annotation)
    hints = get_type_hints(kind, include_extras=True)
    table = {} if kind is annotation else annotation.__metadata__[0]
    return {name: Annotated[hints[name], table[name]] if table else hints[name] for name in kind._fields}


def class_of(annotation: Any) -> Any:
    """Find the class of options of an annotation; None for an option.

    >>> class_of(Annotated[Translation, OptionsOf()]) is Translation, class_of(Pair)
    (True, None)
    """
    metadata = getattr(annotation, "__metadata__", ())
    kind = annotation.__origin__ if metadata and isinstance(metadata[0], OptionsOf) else annotation
    return kind if hasattr(kind, "_fields") else None


class UnknownName(ValueError):
    """A name that is no choice of an option: what was expected, and the name."""


def complete_operand(incomplete: str) -> list[str]:
    """Complete FILE:NAME, or DIR:NAME of a model, once FILE is typed up to its colon."""
    path, colon, _ = incomplete.partition(":")
    return [f"{path}:{name}" for name in tensor_names(path)] if colon and os.path.exists(path) else []


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
                raise UnknownName(f"comma-separated names{allowed}", part)
        return parts

    def complete(self, incomplete: str) -> list[str]:
        """Complete the last of the names."""
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in self.choices if name.startswith(last)]


def is_usual(number: float) -> bool:
    """Decide whether a number is finite, and of at most 18 digits where it is whole."""
    return abs(number) < 10**MOST_DIGITS if isinstance(number, int) else math.isfinite(number)


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
    """Parse same, same-lower, causal, or one, two or four numbers of at least 0.

    >>> parse_kernel_padding("same"), parse_kernel_padding("1,0")
    ('same', (1, 0))
    """
    if value in ("same", "same-lower", "causal"):
        return str(value)
    try:
        numbers = tuple(map(int, [value] if isinstance(value, int) else split_numbers(value)))
        if len(numbers) in (1, 2, 4) and min(numbers) >= 0 and is_usual(max(numbers)):
            return numbers
    except (TypeError, ValueError):
        pass
    raise ValueError("same, same-lower, causal, or one, two or four comma-separated whole numbers of at least 0")


def parse_cell(value: Any) -> tuple[int | str, ...]:
    """Parse comma-separated indices: whole numbers of at least 0, or words.

    >>> parse_cell("0,The")
    (0, 'The')
    """
    parts = [str(part).strip() for part in split_numbers(value)]
    if not all(parts) or any(re.fullmatch(r"[+-]\d+|\d{19,}", part) for part in parts):
        raise ValueError("comma-separated whole numbers of at least 0, or words")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


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
TraceOnly = Annotated[
    tuple[str, ...],
    names("write only intermediates whose names match a shell pattern: *.weights", metavar="PATTERNS"),
]
GradOnly = Annotated[
    tuple[str, ...],
    names("keep only the gradients whose names match a shell pattern: *.self.*", metavar="PATTERNS"),
]
Mean = Annotated[
    Mapping[str, Array] | None,
    file(
        "means",
        "set the heads of --ablate to their means over all tokens of FILE, not to 0: records of encode --keep "
        "'*.heads'",
    ),
]


class TraceOptions(NamedTuple):
    """The file of a trace, and which intermediates it has."""

    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="write all intermediates to FILE, each by its name")
    ] = None
    trace_only: TraceOnly = ()

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """The option that names the intermediates of the trace -> their patterns."""
        return {"--trace-only": self.trace_only or ("*",)} if self.trace else {}


class EditOptions(NamedTuple):
    """What replaces intermediates of a run: patches, zeros and means."""

    patch: Annotated[
        dict[str, Array] | None,
        file(
            "patches",
            "replace the intermediate NAME by the tensor of FILE (of several, by the one called NAME); "
            "NAME[2,:,5]=FILE some cells of it, NAME+=FILE*2 adds the tensor times 2",
            "NAME=FILE",
        ),
    ] = None
    ablate: Annotated[
        tuple[str, ...],
        typer.Option(
            parser=parse_targets,
            metavar="LAYER[:HEADS]",
            help="set attention heads to 0: encoder.3.self (all its heads), encoder.3.self:5, encoder.3.self:5,7, "
            "encoder.3.self:0:4 (heads 0 to 3), or encoder.3.self[5,2:4] (head 5 at positions 2 and 3)",
            autocompletion=complete_layer_with_heads,
        ),
    ] = ()
    mean: Mean = None

    @property
    def is_empty(self) -> bool:
        """Whether every intermediate keeps its value."""
        return not (self.patch or self.ablate)


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


class Translation(NamedTuple):
    """The languages of a model that translates between several; None: as it states."""

    source_language: SourceLanguage = None
    target_language: Annotated[
        str | None,
        typer.Option(
            parser=parse_language,
            metavar="L",
            help="language to translate into, of a model that translates between several",
        ),
    ] = None


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


class EngineOptions(NamedTuple):
    """The engine that computes a tool, and the processes that share its work."""

    engine: Annotated[
        Literal["numpy", "jax"] | None,
        typer.Option(help="compute by numpy, or by jax on CPU, GPU and TPU [default: numpy, or ATTNKIT_ENGINE]"),
    ] = None
    compute: (  # None stands outside: `typing` treats unions of equal words in another order as one
        Annotated[
            Literal["float32", "bfloat16", "float16"],
            typer.Option(help="let jax compute in this dtype [default: that of the model]"),
        ]
        | None
    ) = None
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="data=N,model=N,seq=N",
            help="let jax split the work over devices: texts (data), heads and weights (model), tokens (seq)",
        ),
    ] = None
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="address of process 0, where processes on many hosts join; auto: from SLURM, MPI or Kubernetes",
        ),
    ] = None
    process: Annotated[
        int | None,
        typer.Option(min=0, metavar="I", help="number of this process, from 0; process 0 writes the result"),
    ] = None
    processes: Annotated[int | None, typer.Option(min=1, help="number of processes that are joined")] = None


ENGINE_KEYWORDS = EngineOptions._fields[:3]  # the options that change a result, for histories and calls from Python
