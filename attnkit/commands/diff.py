"""attnkit diff: compare two tensors, records, traces or models."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnkit import display, options
from attnkit.cli import views
from attnkit.cli.calls import make_item, named_files, tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.operands import is_model_path, load_operand
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PAIR, PythonForm, Records
from attnkit.display.cells import Cells
from attnkit.errors import (
    AttnkitError,
    AttnkitWarning,
    DataError,
    DifferentError,
    UsageError,
    counted,
    flag_name,
    with_article,
)
from attnkit.formats import Source
from attnkit.inputs.operands import cast_x, select_tensor
from attnkit.interpret.comparison import DiffReport, Pair, are_traces, compare_records
from attnkit.records import Array, Record, join_names

if TYPE_CHECKING:  # what compares dumps takes long to import, and two records do not need it
    from attnkit.checkpoints import Checkpoint
    from attnkit.debugger.compare import Request
    from attnkit.debugger.dumps import Dump
    from attnkit.inputs.text_inputs import ModelInput
    from attnkit.interpret.text_agreement import TokenText


DUMPS = (".npz", ".safetensors", ".pt", ".pth", ".bin")  # files whose names are read without their tensors


@dataclass(frozen=True)
class Port:
    """The dump of an implementation, and what it is compared with beside a model.

    reference  another dump; text: what the token ids should be of
    """

    mine: "Dump"
    reference: "Dump | None" = None
    text: str | None = None


@dataclass(frozen=True)
class ModelPair:
    """Two models whose parameters are compared."""

    a: "Checkpoint"
    b: "Checkpoint"


def read_pairs(stage: Stage, upstream: Records | None) -> Records:
    if are_models(stage):
        return Records(None, iter([open_models(stage)]))
    if is_port(stage):
        return Records(None, iter([open_port(stage, stage.operands)]))
    if len(stage.operands) != 2:
        raise UsageError(f"two files to compare, not {len(stage.operands)}: attnkit diff A B")
    return Records(None, pair_records(stage))


def are_models(stage: Stage) -> bool:
    """Whether the operands are two models: folders, towers of folders, or GGUF files."""
    paths = stage.operands
    if stage.parameters["model_"] is not None or len(paths) != 2 or not all(map(is_model_path, paths)):
        return False
    from attnkit.checkpoints.checkpoint import is_model

    return all(is_model(path) for path in paths if os.path.isdir(path))


def open_models(stage: Stage) -> ModelPair:
    """Open the models of two folders. UsageError for options of records or dumps."""
    for name in ("heatmap", "all_", "map_", "only", "dtype"):
        if stage.extra.get(name) or stage.parameters.get(name) or stage.common.get(name):
            raise UsageError("cannot be combined with the folders of two models", flag_name(name.rstrip("_")))
    models = [load_operand(path, "model")[0] for path in stage.operands]
    stage.files.loaded |= dict(zip(("a", "b"), models, strict=True))
    return ModelPair(*models)


def find_sides(
    pair: ModelPair, lines: list[str], ids: Record | None, languages: Sequence[str | None]
) -> list[list["ModelInput"]]:
    """What the stacks read of each text, or of each pair of texts."""
    from attnkit.inputs.text_inputs import ModelInput

    stacks, text = pair.a.config.stacks, "\n".join(lines)
    if pair.a.config.sound:
        raise UsageError(
            f"{with_article(pair.a.config.family)} model reads a sound (expected models of texts)", "--text"
        )
    if len(stacks) == 1:
        return [[ModelInput(None, ids=ids) if ids is not None else ModelInput(text, language=languages[0])]]
    if ids is not None:
        raise UsageError("an encoder-decoder model reads the pairs of --text", "--ids")
    from attnkit.training.data import parse_pairs

    pairs = [sides for _, *sides in parse_pairs(text, "--text")]
    return [[ModelInput(side, language=one) for side, one in zip(sides, languages, strict=True)] for sides in pairs]


def read_compared(
    pair: ModelPair, inputs: Sequence[Sequence["ModelInput"]]
) -> tuple[list["TokenText"], list[str], bool]:
    """The ids of texts by the tokenizer of A, and the tokens that it reads last.

    Also whether B would read other ids, of which it warns.
    """
    from attnkit.debugger.model_inputs import compare_ids
    from attnkit.inputs.text_inputs import model_inputs
    from attnkit.interpret.text_agreement import TokenText

    stacks, texts, tokens, difference = pair.a.config.stacks, list[TokenText](), list[str](), ""
    for sides in inputs:
        read = []
        for stack, side in zip(stacks, sides, strict=True):
            ids, record = model_inputs(pair.a, stack, side)
            read.append(np.atleast_2d(ids))
            if len(read[-1]) > 1 or read[-1].shape[1] < 1:
                raise DataError(f"ids {read[-1].shape} (expected those of one text)")
            with warnings.catch_warnings(), contextlib.suppress(AttnkitError):
                warnings.simplefilter("ignore")  # A has warned of the same text
                other = np.atleast_2d(model_inputs(pair.b, stack, side)[0])
                difference = difference or compare_ids(other, read[-1], None)
        texts.append(TokenText(*reversed(read)))
        tokens += [str(token) for token in record.labels.get("token", [])][: -1 if len(stacks) > 1 else None]
    if difference:
        problem = (
            f"the tokenizers of the models give other ids for the text; both models read those of A. B: {difference}"
        )
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    return texts, tokens, bool(difference)


def is_port(stage: Stage) -> bool:
    """Whether dumps are compared stage by stage, not two records."""
    if any(stage.parameters[name] is not None for name in ("model_", "map_")):
        return True
    paths = [one for one in stage.operands if isinstance(one, str) and os.path.exists(one)]
    if any(map(os.path.isdir, paths)):
        return True
    return len(paths) == 2 and all(map(os.path.isfile, paths)) and differ_in_names(*paths)


def differ_in_names(a: str, b: str) -> bool:
    """Whether two files of many tensors name the same stages in different ways."""
    if not all(path.endswith(DUMPS) for path in (a, b)):
        return False
    from attnkit.debugger.dumps import open_dump

    try:
        left, right = ([*open_dump(path)] for path in (a, b))
    except AttnkitError:  # which the reader of records names
        return False
    shared = sum(name in right for name in left)
    if shared == min(len(left), len(right)):
        return False
    from attnkit.debugger.names import locate_sites

    return len(locate_sites(left).sources.keys() & locate_sites(right).sources.keys()) > shared


def open_port(stage: Stage, operands: Sequence[Any]) -> Port:
    """Open the dumps among the operands: [REFERENCE or TEXT] MINE, or both dumps."""
    has_model = stage.parameters["model_"] is not None
    if not 1 + (not has_model) <= len(operands) <= 2:
        expected = "[TEXT or REFERENCE] MINE with --model" if has_model else "REFERENCE MINE"
        raise UsageError(f"expected {expected}, got {counted(len(operands), 'operand')}")
    *before, mine = operands
    first = before[0] if before else None
    if has_model and isinstance(first, str) and not os.path.exists(first):
        return Port(open_value(stage, mine), text=first)
    return Port(open_value(stage, mine), None if first is None else open_value(stage, first))


def open_value(stage: Stage, value: Any) -> "Dump":
    """Open a file or folder, or take the tensors of a record."""
    from attnkit.debugger.dumps import Dump, array_entry, open_dump

    if isinstance(value, str | os.PathLike):
        return open_dump(os.fspath(value))
    item = make_item(stage.tool, value)
    if not isinstance(item, Record):
        raise UsageError(f"expected a record, an array or the name of a file, got {type(value).__name__}")
    return Dump("the record", {name: array_entry(array) for name, array in item.arrays().items()}, True)


def compare_port(
    port: Port,
    checkpoint: "Checkpoint | None",
    ids: Record | None,
    image: Array | None,
    audio: Record | None,
    request: "Request",
) -> Record:
    """Compare a dump with a model, with another dump, or with both."""
    from attnkit.debugger.compare import compare_dumps, compare_with_model
    from attnkit.inputs.text_inputs import ModelInput, model_inputs

    checkpoint = checkpoint.tower("vision") if checkpoint and image is not None else checkpoint
    if checkpoint is None:
        if port.reference is None:
            raise UsageError("needs --model DIR")
        return compare_dumps(port.reference, port.mine, request)
    expected = None
    if port.text is not None or ids is not None:
        source = ModelInput(port.text, ids=ids)
        stack = checkpoint.config.stacks[-1 if checkpoint.config.sound else 0]  # a sound has no tokens
        expected = model_inputs(checkpoint, stack, source)[0]
    return compare_with_model(checkpoint, port.mine, request, expected, port.reference, image, audio)


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Read records, arrays or names of files from a caller in Python."""
    inputs = [one for one in inputs if one is not None]
    stage.operands = tuple(one for one in inputs if isinstance(one, str))
    if are_models(stage):
        return Records(None, iter([open_models(stage)]))
    if is_port(stage):
        return Records(None, iter([open_port(stage, inputs)]))
    if len(inputs) != 2:
        raise UsageError(f"two to compare, not {len(inputs)}: attnkit.diff(a, b)")
    stage.operands = tuple(
        "".join(named_files(stage.tool, one)) or name for one, name in zip(inputs, "AB", strict=True)
    )
    (stream_a, first), (stream_b, _) = (read_value(stage, one) for one in inputs)
    return Records(None, pair_streams(stage, stream_a, stream_b, first))


def read_value(stage: Stage, value: Any) -> tuple[Records, Source | None]:
    """Read a record, an array or a file as a stream; an array is one tensor, as NPY."""
    if paths := named_files(stage.tool, value):
        return stage.read(paths[0]), stage.files.source
    item = make_item(stage.tool, value)
    if not isinstance(item, Record):
        raise UsageError(f"expected a record, an array or the name of a file, got {type(value).__name__}")
    return Records(None if isinstance(value, Record) else "npy", iter([item])), None


def pair_records(stage: Stage) -> Iterator[Pair]:
    stream_a, first = stage.read(stage.operands[0]), stage.files.source
    yield from pair_streams(stage, stream_a, stage.read(stage.operands[1]), first)


def pair_streams(stage: Stage, stream_a: Records, stream_b: Records, first: Source | None) -> Iterator[Pair]:
    """Pair the records of two streams; the shorter continues with empty records.

    first  the source of A, if it is a file
    """
    a_file, b_file = stage.operands
    only, dtype = (stage.common.pop(name, None) for name in ("only", "dtype"))  # of both records, not of the result
    while True:
        a, b = next(stream_a.items, None), next(stream_b.items, None)
        stage.files.add_digest(first)
        if a is None and b is None:
            return
        if a is not None and b is not None:
            b = match_tensor(b, stream_a, b_file)
            a = match_tensor(a, stream_b, a_file)
            check_comparable(a, b, a_file, b_file)
        yield make_pair(a or Record({}), b or Record({}), only, dtype)


def match_tensor(record: Record, other: Records, file: str) -> Record:
    """Select the tensor to compare if the other operand is one tensor: x, or its NAME."""
    if not (other.format == "npy" or other.tensor):
        return record
    has_name = other.tensor in record and "x" not in record
    return select_tensor(record, other.tensor if has_name else "", file)


def check_comparable(a: Record, b: Record, a_file: str, b_file: str) -> None:
    if a.tensors and b.tensors and not any(name in b for name in a):
        names = " and ".join(f"{file} has {join_names([*record], 3)}" for file, record in ((a_file, a), (b_file, b)))
        pair = " ".join(f"{file}:{next(iter(record))}" for file, record in ((a_file, a), (b_file, b)))
        raise DifferentError(f"no name in common: {names}; FILE:NAME compares one tensor of each: attnkit diff {pair}")


def make_pair(a: Record, b: Record, only: tuple[str, ...] | None, dtype: str | None) -> Pair:
    """Pair two records, or the tensors of --only in both, in the dtype of --dtype."""
    if dtype:
        a, b = (cast_x(record, dtype) if "x" in record else record for record in (a, b))
    if only:
        return Pair(a.select(only), b.select(only))
    return Pair(a, b, are_traces(a, b))


def view_differences(report: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View a report, with heat maps on request; nothing for --quiet."""
    is_quiet = stage.common.get("quiet") and stage.common.get("output") in (None, "-")
    if is_quiet and stage.format.requested() in (None, "table"):
        return display.ResultView([])  # the exit code is the result
    report = with_heatmap(as_report(report), stage)

    def cells() -> Cells:
        views.refuse_view(stage)
        return report.cells()

    return report.view(style)._replace(cells=cells)


def as_report(report: Record) -> display.ReportRecord:
    if not isinstance(report, display.ReportRecord):
        raise UsageError(f"takes a report, not {type(report).__name__}")
    return report


def with_heatmap(report: display.ReportRecord, stage: Stage) -> display.ReportRecord:
    """The report for a caller in Python, with heat maps on request."""
    if not isinstance(report, DiffReport):
        return report
    return replace(report, heatmap=bool(stage.extra.get("heatmap")))


def check_heatmap(stage: Stage) -> Callable[[Record], Record] | None:
    """Check that the format can show what --heatmap requests."""
    views.derived(stage)
    return None


@tool(
    operand=PAIR,
    reader=read_pairs,
    view=view_differences,
    status=lambda record, stage: int(not record["same"]),
    derived=check_heatmap,
    sections={
        "Comparison": "rtol atol all_ heatmap",
        "Two models on a text": "text scan source_language target_language",
        "An implementation and a model": "model_ ids image audio why map_ match",
        "Figures": "look",
    },
    rules=Constraints(
        exclusive=[("numbers", "no_numbers"), *(("model", name) for name in ("rtol", "atol", "heatmap", "text"))],
        requires=[
            *((name, "heatmap") for name in views.LookOptions._fields),
            ("why", "model"),
            ("match", "model"),
            ("image", "model"),
            ("audio", "model"),
            ("source_language", "text"),
            ("target_language", "text"),
        ],
    ),
    extra={
        "heatmap": Annotated[bool, typer.Option(help="draw a heat map of A − B for every tensor that differs")],
        "look": views.LookOptions,
    },
    without=("check_finite",),
    shows_table=True,
    python=PythonForm(
        inputs={"a": "TensorLike", "b": "TensorLike | None"},
        reader=read_values,
        options=("heatmap",),
        result="DiffReport | VerdictReport | WeightsReport | AgreementReport",
        present=with_heatmap,
    ),
)
def diff(
    pair: Pair | Port | ModelPair,
    *,
    rtol: Annotated[float, typer.Option(min=0, help="relative tolerance")] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help="absolute tolerance")] = 0.0,
    all_: Annotated[
        bool, typer.Option(help="compare all stages of two traces, not only up to the first that differs")
    ] = False,
    model_: options.Model = None,
    ids: Annotated[
        Record | None,
        options.file("ids", "token ids (T) of --text, or (T) or (B, T) that MINE should have, instead of a text"),
    ] = None,
    image: options.Image = None,
    audio: options.Audio = None,
    why: Annotated[bool, typer.Option(help="look for the cause of each difference that a stage adds")] = False,
    map_: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="names of MINE and their stages: two columns, as `attnkit help porting` shows"
        ),
    ] = None,
    match: Annotated[bool, typer.Option(help="pair tensors whose names say nothing by shape and value")] = False,
    text: Annotated[
        list[list[str]] | None,
        options.file(
            "lines",
            "run both models on the text in this file, or on its lines of source, tab, target: error of each stage, "
            "KL of the predictions",
        ),
    ] = None,
    scan: Annotated[
        bool, typer.Option(help="replace one tensor of A at a time by that of B: the KL that its rounding costs")
    ] = False,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
) -> Record:
    """Compare two tensors, records, traces or models; exit 1 if they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. The table has a line for each
    tensor: how many numbers differ, the largest |a − b| and its index, the largest |a − b| / |b| where b is not 0,
    and the cosine similarity. Dtypes, labels and histories are not compared. -q prints nothing. -f json writes the
    values of the table as a record: `same` is true or false; `at` and `first` are the indices of the largest and of
    the first difference.

    An NPY file or FILE:NAME is a single tensor, which is compared with x of the other file. Two traces (from encode
    --trace) are compared stage by stage, up to the first stage that differs, or, with --all, to the end. Of the folders
    of two models the parameters are compared, those of all layers in one line (decoder.#.ffn.w1): the norm of the
    change beside the norm, the layer with the largest relative change, and what only one of them has. With --text both
    run on a text: the error of each stage, KL(A‖B) of the predictions in nats, equal first choices, perplexities.
    Encoder-decoder models take lines of source, tab, target, as `score` does, and predict the targets. With --scan one
    tensor of A at a time is replaced by that of B, such as a quantized one: the KL that each costs.

    With --model DIR the reference is computed: `diff --model DIR "a text" MINE` compares MINE, the dump of another
    implementation, with the model in every stage that MINE has, each computed from MINE's own inputs, and --why names
    the slip that explains a difference. For a model of images, --image FILE is the picture that the pixels of MINE
    should be made of; without it they are taken as they are. For one of sounds, --audio FILE is the sound that its
    spectrogram or samples should be made of, and a text is the decoder's. MINE is a file or a folder with the names of
    Hugging Face's modules, of TransformerLens, of llama.cpp or of a trace (`attnkit help porting`).

    \b
    Example:
      attnkit embed "a b" --dim 4 -o a.npy --only x && attnkit layernorm a.npy -o b.npy && attnkit diff a.npy b.npy
    """
    if ids is not None and not isinstance(pair, Port | ModelPair):
        raise UsageError("needs --model DIR, or two models", "--ids")
    if scan and not (isinstance(pair, ModelPair) and (text is not None or ids is not None)):
        raise UsageError("needs two models and --text FILE: attnkit diff DIR m.gguf --text FILE --scan", "--scan")
    if isinstance(pair, ModelPair) and (text is not None or ids is not None):
        from attnkit.interpret.text_agreement import compare_on_text

        if text is not None and ids is not None:
            raise UsageError("cannot be combined with --ids", "--text")
        lines = [line for lines in text or [] for line in lines]
        inputs = find_sides(pair, lines, ids, (source_language, target_language))
        return compare_on_text(pair.a, pair.b, *read_compared(pair, inputs), rtol, atol, scan)
    if text is not None:
        raise UsageError("needs two models: attnkit diff DIR m.gguf --text FILE", "--text")
    if isinstance(pair, ModelPair):
        from attnkit.interpret.weights_comparison import compare_checkpoints

        return compare_checkpoints(pair.a, pair.b, rtol, atol)
    if isinstance(pair, Port):
        from attnkit.debugger.compare import Request

        return compare_port(pair, model_, ids, image, audio, Request(map_, match, why, all_))
    if not isinstance(pair, Pair):
        raise UsageError(f"takes a Pair of records, not {type(pair).__name__}")
    return compare_records(pair, rtol, atol, all_)
