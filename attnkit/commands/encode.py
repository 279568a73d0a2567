"""attnkit encode: run a whole encoder, or the layers of a decoder-only model."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from attnkit import callbacks, formats, model
from attnkit.cli import options, text_input
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage, running
from attnkit.cli.tool import TEXT, PythonForm
from attnkit.errors import AttnkitError, UsageError
from attnkit.inputs import encoding, intermediates, layers, patches, source_states, text_inputs
from attnkit.inputs.packed_texts import compute_pack, is_packable, pool_separately, split_packs
from attnkit.interpret.edits import make_edits
from attnkit.interpret.tracer import Tracer, axis_labels, head_counts
from attnkit.records import Record
from attnkit.tokenizers import Tokenizer

LINES, CHARACTERS = 1 << 10, 1 << 16  # at most so many lines, and about so many characters, are held at a time
HOOKED = (
    "keep",
    "trace",
    "patch",
    "ablate",
    "image",
    "audio",
    "ids",
)  # parameters of encode that make a text a run of its own

# the parameters of encode that prepare_encoding takes
ENCODING = ("model_", "layers_", "pool", "prompt", "pair", "ids", "image", "audio", "tokenizer", "batch",
            "source_language")  # fmt: skip
Finish = Callable[[encoding.Encoding, Any], Record]


class Line(tuple[str]):
    """One line of text as a tuple, with its number and perhaps its result."""

    number: int
    result: Record | None = None

    @classmethod
    def of(cls, text: str, number: int) -> "Line":
        """The line of a text.

        >>> line = Line.of("the cat", 3)
        >>> line, line.number
        (('the cat',), 3)
        """
        line = cls((text,))
        line.number = number
        return line


@contextlib.contextmanager
def name_line(number: int) -> Iterator[None]:
    """Name the line in errors of a `with` block that name no file or option.

    >>> with name_line(3):
    ...     raise AttnkitError("too long")
    Traceback (most recent call last):
        ...
    attnkit.errors.AttnkitError: line 3: too long
    """
    try:
        yield
    except AttnkitError as error:
        if error.name not in ("", "<stdin>", "TEXT"):
            raise
        raise type(error)(f"line {number}: {error.problem}", error.name) from None


def read_lines(blocks: Iterator[Iterator[str]]) -> Iterator[list[Line]]:
    """Yield the lines that arrive together, some at a time; then an error, if any.

    >>> [*read_lines(iter([iter(["a", "b"]), iter(["c"])]))]
    [[('a',), ('b',)], [('c',)]]
    """
    numbers = itertools.count(1)
    for block in blocks:
        lines: list[Line] = []
        size = 0
        for number in numbers:
            try:
                with name_line(number):
                    text = next(block, None)
            except AttnkitError:
                yield lines
                raise
            if text is None:
                numbers = itertools.count(number)
                break
            lines.append(Line.of(text, number))
            size += len(text)
            if len(lines) == LINES or size >= CHARACTERS:
                yield lines
                lines, size = [], 0
        yield lines


def encode_lines(blocks: Iterator[Iterator[str]], values: Mapping[str, Any], finish: Finish) -> Iterator[Line]:
    """Yield the lines of blocks in order, with results as far as computed together.

    values  the parameters of encode, by name
    finish  makes the result of an encoding and its hidden states
    """
    for lines in read_lines(blocks):
        if len(lines) > 1:
            callbacks.current().on_progress(f"line {lines[0].number}")
            compute_together(lines, values, finish)
        yield from lines


def compute_together(lines: Sequence[Line], values: Mapping[str, Any], finish: Finish) -> None:
    """Set the results of lines; a line with an error is left to be computed alone."""
    from attnkit.model.kernels.threads import run_parallel

    chosen: dict[str, Any] = {name: values[name] for name in ENCODING}
    ready: list[tuple[Line, encoding.Encoding]] = []
    with contextlib.suppress(AttnkitError):
        plan = encoding.plan_encoding(values["model_"], values["layers_"])
        if not model.can_pack(plan.core, plan.steps):
            return
        for line in lines:
            with contextlib.suppress(AttnkitError):
                ready.append((line, encoding.prepare_encoding(line, plan, **chosen)))

    packable = [(line, one) for line, one in ready if is_packable(one)]

    def work(packs: Iterator[list[int]]) -> None:
        for pack in packs:
            with contextlib.suppress(AttnkitError):
                for at, x in zip(pack, compute_pack([packable[at][1] for at in pack], values["dtype"]), strict=False):
                    line, one = packable[at]
                    line.result = finish(one, x)

    run_parallel(work, split_packs([one for _, one in packable]))


POOLS = ("none", "cls", "mean", "max", "mean-sqrt", "weighted-mean", "last", "pooler", "folder")


def encode_together(stage: Stage, blocks: Iterator[Iterator[str]]) -> Iterator[Line]:
    """Yield the lines of --lines, those that arrive together with their results."""
    if any(stage.parameters[name] for name in HOOKED):
        yield from (line for lines in read_lines(blocks) for line in lines)
        return
    values = stage.files.load_values(None, bfloat16=False)
    engine = stage.load_engine()
    lines = encode_lines(blocks, values, lambda one, x: encoding.make_result(one, x, values["normalize"]))
    while True:
        with running(stage), callbacks.use_callbacks(callbacks.current()._replace(engine=engine)):
            line = next(lines, None)
        if line is None:
            return
        yield line


@tool(
    sections={
        "Model and input": "model_ ids pair image audio source_language tokenizer batch lines",
        "Layers and vectors": "layers_ pool prompt normalize",
        "Inspection": "keep trace trace_only weights patch ablate mean",
        "Results": "dtype",
        "Engine": options.ENGINE_SECTION,
    },
    rules=Constraints(
        exclusive=[("lines", "batch")],
        requires=[
            ("trace_only", "trace"),
            ("weights", "trace|keep"),
            ("mean", "ablate"),
            ("normalize", "pool=" + "|".join(POOLS[1:])),
        ],
        one_of=[("model",)],
    ),
    operand=TEXT,
    reader=functools.partial(text_input.read_model_input, together=encode_together),
    needs_no_input=text_input.replaces_text,
    extra={"lines": options.Lines, **options.ENGINE},
    python=PythonForm(options=options.ENGINE_KEYWORDS),
    adds=lambda stage: bool(stage.parameters["keep"]),
)
def encode(
    source: Sequence[str] | str | Record | None,
    *,
    model_: options.Model = None,
    ids: options.Ids = None,
    pair: options.Pair = None,
    image: options.Image = None,
    audio: options.Audio = None,
    source_language: options.SourceLanguage = None,
    tokenizer: Annotated[
        Tokenizer | None,
        options.file(
            "tokenizer", "tokenizer, instead of the model's own: words, chars, or a tokenizer.json", "words|chars|FILE"
        ),
    ] = None,
    batch: options.Batch = False,
    layers_: Annotated[
        str,
        typer.Option(
            parser=options.parse_span,
            metavar="A:B",
            help="run only layers A to B - 1; if A is not 0, the record's x is the input of layer A",
        ),
    ] = "",
    pool: Annotated[
        str | None,
        options.choice(
            POOLS,
            "one vector for each text: cls (first token), mean, max, mean-sqrt or weighted-mean (of all tokens), last "
            "(token), pooler (of the model), or folder: as its modules.json states, or a vector of CLIP or SigLIP "
            "[default: folder where there is one]",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="put this prompt of the folder before each text [default: the folder's]"),
    ] = None,
    normalize: Annotated[bool, typer.Option(help="scale the pooled vectors to length 1 (L2 norm)")] = False,
    keep: Annotated[
        tuple[str, ...],
        options.names("add these intermediates to the record, by name or shell pattern: decoder.*.self.weights"),
    ] = (),
    trace: options.Trace = None,
    trace_only: options.TraceOnly = (),
    weights: options.Weights = None,
    patch: options.Patch = None,
    ablate: options.Ablate = (),
    mean: options.Mean = None,
    dtype: Annotated[
        Literal["float32", "float64"] | None, typer.Option(help="compute in this dtype [default: float32]")
    ] = None,
) -> Record:
    """Run a whole model: text to the hidden states of its last layer.

    encode runs the encoder of a model, or all layers of a decoder-only model. The input is TEXT, lines of standard
    input, --ids, --image, --audio, or a record with ids (for BERT also `types` or `token_type_ids`, the segment of each
    token). The record needs x instead of ids if the model has no embeddings, or if --layers starts after layer 0.
    The result is x, and for an encoder-decoder model also `memory`, which decode --model attends to. A folder of
    sentence-transformers gives the vector of each text, as its modules.json states; --pool none, its states. Lines
    that have arrived are computed together, and each has the bits that it has alone (`attnkit help performance`).
    Every intermediate has a name: --trace writes them and --patch replaces one. `attnkit show DIR --pipeline encoder`
    (or decoder) prints the same computation as a pipeline of tools.

    \b
    Example:
      attnkit encode --model DIR "The cat sat" --trace run.npz
    """
    if trace is not None:
        formats.file_format(trace)  # an error for an unknown suffix
        if callbacks.current().is_output_file(trace):
            raise UsageError(f"{trace}: --output writes the same file", "--trace")
    model_ = model_.reading(image is not None)
    note = callbacks.current().on_operands
    if isinstance(source, Line) and source.result is not None and note is callbacks.ignore:
        result = source.result
    else:
        with name_line(source.number) if isinstance(source, Line) else contextlib.nullcontext():
            encoded = encoding.prepare_encoding(
                source, model_=model_, layers_=layers_, pool=pool, prompt=prompt,
                pair=pair, ids=ids, image=image, audio=audio, tokenizer=tokenizer, batch=batch,
                source_language=source_language,
            )  # fmt: skip
            note(encoded)
            is_plain = not (keep or trace or patch or ablate)
            if is_plain and (pooled := pool_separately(encoded, normalize, dtype)) is not None:
                return label_vectors(pooled, source, encoded)
            edits = make_edits(patch, ablate, mean, head_counts(encoded.core.config, encoded.steps))
            patterns = {"--keep": keep} | ({"--trace-only": trace_only or ("*",)} if trace else {})
            tracer = Tracer(patterns, edits, weights or "full")
            result = run_encoder(encoded, tracer, normalize, dtype, weights or "full", keep, trace)
    if isinstance(source, Line):
        return result if "token" in result.axes_of("x") else result.with_tensors({}, {"batch": [*source]})
    return label_vectors(result, source, encoded)


def label_vectors(result: Record, source: Any, encoded: encoding.Encoding) -> Record:
    """Label the vectors of texts with the texts."""
    if source and not isinstance(source, Record) and encoded.pool != "none" and "batch" in result.axes_of("x"):
        return result.with_tensors({}, {"batch": text_inputs.require_unicode(source)})
    return result


def run_encoder(
    encoded: encoding.Encoding,
    tracer: Tracer,
    normalize: bool,
    dtype: str | None,
    weights: str,
    keep: tuple[str, ...],
    trace: str | None,
) -> Record:
    core, steps, base = encoded.core, encoded.steps, encoded.base
    tokens = base.labels.get("token")
    tracer.begin(axis_labels(tokens), texts=encoding.text_spans(base))
    layers.warn_empty_mask_rows(base.get("mask"))
    context = encoding.make_context(encoded, hook=tracer.visit, weights=weights, dtype=dtype)
    x = model.run(core, steps, encoded.inputs, context)
    encoded = encoded._replace(base=source_states.add_last_states(base, core.config, context, x.ndim == 3))
    has_head_alone = encoded.is_whole and core.config.head and len(core.config.stacks) == 1
    if has_head_alone and any(map(tracer.wants, encoding.HEAD_STEPS)):
        encoding.compute_logits(core, encoded.base, x, tracer.visit)
    result = encoding.make_result(encoded, x, normalize, tracer.visit)
    tracer.check()
    rows = intermediates.selected_row_labels(weights, tokens, x.shape[-2])
    if trace:
        traced = tracer.record(tokens, flag="--trace-only").with_tensors({}, rows).merge(patches.find_box(base))
        callbacks.current().write_side_output(trace, traced)
    return result.merge(tracer.record(tokens, flag="--keep").with_tensors({}, rows)) if keep else result
