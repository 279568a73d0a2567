"""attnkit diff: compare two tensors, records, traces or models."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import typer

from attnkit import display, options
from attnkit.cli import views
from attnkit.cli.calls import make_item, named_files, tool
from attnkit.cli.constraints import Constraints, differs_from_default
from attnkit.cli.operands import is_model_path, load_model
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PAIR, PythonForm, Records, Tool
from attnkit.errors import UsageError, flag_name
from attnkit.formats import Source
from attnkit.inputs.operands import cast_x, select_tensor
from attnkit.interpret.comparison import Pair, Tolerance, are_traces, check_comparable
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.interpret.rounding_report import RoundingPair

DUMPS = (".npz", ".safetensors", ".pt", ".pth", ".bin")  # files whose names are read without their tensors
# option of one comparison -> the error if another one is chosen
NEEDS = {
    "rounding": "compares two tensors, records or traces; diff --model and check measure noise without it",
    "ids": "needs --model DIR, or two models",
    "scan": "needs two models and --text FILE: attnkit diff DIR m.gguf --text FILE --scan",
    "text": "needs two models: attnkit diff DIR m.gguf --text FILE",
}
OF_RECORDS = ("heatmap", "all_", "map_", "only", "dtype")  # options that two models do not take
Operand = str | Records  # a file, a folder or a text; what a caller in Python passes


class Comparable(Protocol):
    """An opened comparison, and the options that it uses."""

    takes: ClassVar[tuple[str, ...]]

    def compare(self, *args: Any, **options: Any) -> display.ComparisonReport:
        """Compare both sides with these options."""


def read_files(stage: Stage, upstream: Records | None) -> Records:
    return open_comparison(stage, stage.operands, "two files to compare, not {}: attnkit diff A B")


def read_values(stage: Stage, inputs: Sequence[Any]) -> Records:
    """Read records, arrays or names of files from a caller in Python."""
    operands = [read_value(stage.tool, one) for one in inputs if one is not None]
    stage.operands = tuple(one for one in operands if isinstance(one, str))
    return open_comparison(stage, operands, "two to compare, not {}: attnkit.diff(a, b)")


def read_value(tool: Tool, value: Any) -> Operand:
    """The name of a file, or a stream of one record; an array is one tensor, as NPY."""
    paths = named_files(tool, value)
    if len(paths) == 1:
        return paths[0]
    item = make_item(tool, value)
    if not isinstance(item, Record):
        raise UsageError(f"expected a record, an array or the name of a file, got {type(value).__name__}")
    return Records(None if isinstance(value, Record) else "npy", iter([item]))


def open_comparison(stage: Stage, operands: Sequence[Operand], wrong_count: str) -> Records:
    """Open the comparison that operands and options ask for."""
    if stage.parameters["hash"]:
        from attnkit.debugger.hashes import HashPair

        return Records(None, iter([HashPair.open([one if isinstance(one, str) else Record({}) for one in operands])]))
    has_model = stage.parameters["model_"] is not None
    if not has_model and are_models(operands):
        return Records(None, iter([open_models(stage)]))
    if has_model or stage.parameters["map_"] is not None or are_dumps(operands):
        from attnkit.debugger.compare import DumpPair, Port

        opened = [one if isinstance(one, str) else next(one.items) for one in operands]
        return Records(None, iter([(Port if has_model else DumpPair).open(opened)]))
    if len(operands) != 2:
        raise UsageError(wrong_count.format(len(operands)))
    stage.operands = tuple(one if isinstance(one, str) else name for one, name in zip(operands, "AB", strict=True))
    return Records(None, pair_streams(stage, *operands))


def are_models(operands: Sequence[Operand]) -> bool:
    """Whether the operands are two models: folders, towers of folders, or GGUF files."""
    paths = [one for one in operands if isinstance(one, str)]
    if len(operands) != 2 or len(paths) != 2 or not all(map(is_model_path, paths)):
        return False
    from attnkit.checkpoints.checkpoint import is_model

    return all(is_model(path) for path in paths if os.path.isdir(path))


def open_models(stage: Stage) -> Comparable:
    """Open two models, to compare on a text or by their parameters."""
    for name in OF_RECORDS:
        if stage.extra.get(name) or stage.parameters.get(name) or stage.common.get(name):
            raise UsageError("cannot be combined with the folders of two models", flag_name(name.rstrip("_")))
    a, b = map(load_model, stage.operands)
    stage.files.loaded |= {"a": a, "b": b}
    if stage.parameters["text"] is not None or stage.parameters["ids"] is not None:
        from attnkit.interpret.text_agreement import ModelsOnText

        return ModelsOnText(a, b)
    from attnkit.interpret.weights_comparison import ModelPair

    return ModelPair(a, b)


def are_dumps(operands: Sequence[Operand]) -> bool:
    """Whether an operand is a folder, or two files name the same sites differently."""
    paths = [one for one in operands if isinstance(one, str) and os.path.exists(one)]
    if any(map(os.path.isdir, paths)):
        return True
    if len(paths) != 2 or not all(os.path.isfile(path) and path.endswith(DUMPS) for path in paths):
        return False
    from attnkit.debugger.dumps import differ_in_names

    return differ_in_names(*paths)


def pair_streams(stage: Stage, a_operand: Operand, b_operand: Operand) -> Iterator[Comparable]:
    """Pair the records of two operands; the shorter continues with empty records."""
    (stream_a, first), (stream_b, _) = (read_operand(stage, one) for one in (a_operand, b_operand))
    a_name, b_name = stage.operands
    only, dtype = (stage.common.pop(name, None) for name in ("only", "dtype"))  # of both records, not of the result
    while True:
        a, b = next(stream_a.items, None), next(stream_b.items, None)
        stage.files.add_digest(first)
        if a is None and b is None:
            return
        if a is not None and b is not None:
            b = match_tensor(b, stream_a, b_name)
            a = match_tensor(a, stream_b, a_name)
            check_comparable(a, b, a_name, b_name)
        a, b = (change_record(one or Record({}), only, dtype) for one in (a, b))
        pair = Pair(a, b, not only and are_traces(a, b), bool(stage.extra.get("heatmap")))
        yield judged_pair(pair) if stage.parameters["rounding"] else pair


def judged_pair(pair: Pair) -> "RoundingPair":
    """A pair that is judged by the noise of the record that has a history."""
    from attnkit.cli.replay import measure_noise
    from attnkit.interpret.rounding_report import RoundingPair

    return RoundingPair(pair, lambda: measure_noise(pair.a if pair.a.history else pair.b))


def read_operand(stage: Stage, operand: Operand) -> tuple[Records, Source | None]:
    """The stream of an operand, and its source if it is a file."""
    return (stage.read(operand), stage.files.source) if isinstance(operand, str) else (operand, None)


def match_tensor(record: Record, other: Records, file: str) -> Record:
    """Select the tensor to compare if the other operand is one tensor: x, or its NAME."""
    if not (other.format == "npy" or other.tensor):
        return record
    has_name = other.tensor in record and "x" not in record
    return select_tensor(record, other.tensor if has_name else "", file)


def change_record(record: Record, only: tuple[str, ...] | None, dtype: str | None) -> Record:
    """A record with its x in the dtype of --dtype, and the tensors of --only alone."""
    record = cast_x(record, dtype) if dtype and "x" in record else record
    return record.select(only) if only else record


@tool(
    operand=PAIR,
    reader=read_files,
    view=views.view_verdict,
    status=lambda record, stage: int(not record["same"]),
    derived=views.derived,
    sections={
        "Comparison": "tolerance rounding all_ heatmap hash",
        "Two models on a text": "text scan languages",
        "An implementation and a model": "model_ ids image audio why map_ match",
        "Figures": "look",
    },
    rules=Constraints(
        exclusive=[
            ("numbers", "no_numbers"),
            *(("rounding", name) for name in ("rtol", "atol", "heatmap", "model", "text")),
            *(("model", name) for name in (*Tolerance._fields, "heatmap", "text")),
            *(
                ("hash", name)
                for name in (*Tolerance._fields, "rounding", "all", "heatmap", "model", "text", "ids", "map", "scan")
            ),
        ],
        requires=[
            *((name, "heatmap") for name in views.LookOptions._fields),
            ("why", "model"),
            ("match", "model"),
            ("image", "model"),
            ("audio", "model"),
            *((name, "text") for name in options.Translation._fields),
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
        result="DiffReport | HashReport | RoundingReport | VerdictReport | WeightsReport | AgreementReport",
    ),
)
def diff(
    pair: Comparable,
    *,
    tolerance: Annotated[
        Tolerance,
        options.OptionsOf(
            rtol=typer.Option(min=0, help="relative tolerance"), atol=typer.Option(min=0, help="absolute tolerance")
        ),
    ],
    rounding: Annotated[
        bool,
        typer.Option(
            help="derive the tolerance: identical, the same to rounding, or different, by noise that is measured where "
            "a record has a history"
        ),
    ] = False,
    all_: Annotated[
        bool, typer.Option(help="compare all stages of two traces, not only up to the first that differs")
    ] = False,
    hash: Annotated[
        bool,
        typer.Option(
            help="compare two runs of one engine by the hash and a few numbers of each stage: two dumps, or the "
            "digests that attnkit.record writes to a .json file"
        ),
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
    languages: options.Translation,
) -> display.ComparisonReport:
    """Compare two tensors, records, traces or models; exit 1 if they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. The table has a line for each
    tensor: how many numbers differ, the largest |a − b| and its index, the largest |a − b| / |b| where b is not 0,
    and the cosine similarity. Dtypes, labels and histories are not compared. -q prints nothing. -f json writes the
    values of the table as a record: `same` is true or false; `at` and `first` are the indices of the largest and of
    the first difference.

    With --rounding no tolerance is needed. Each tensor is identical, the same to rounding, or different, with the
    largest |a − b| in units in the last place and relative to the largest number, the share of numbers beyond rounding,
    and the scale and offset of the nearest line B = scale · A + offset, with the rest that it leaves. Noise is
    measured by running the history of A, or of B if A has none, in float64, in its dtype and rounded at random; of
    tensors without a history it is derived from dtype, depth and size. Exit code 1 if a tensor is different.

    With --hash, A and B are two runs of one engine, of the same code on two machines or of two versions: dumps, or
    digests, for runs that are too large to keep. The first stage whose bits are others is named; a table has its norms
    and the largest difference of eight sampled numbers, relative to the largest number of the stage.

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
    given = locals()
    for name, problem in NEEDS.items():
        if differs_from_default(given[name]) and name not in pair.takes:
            raise UsageError(problem, flag_name(name))
    return pair.compare(**{name: given[name] for name in pair.takes})
