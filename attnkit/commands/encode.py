"""attnkit encode: run a whole encoder, or the layers of a decoder-only model."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import typer

from attnkit import callbacks, formats, model, options
from attnkit.cli import text_input
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage, running
from attnkit.cli.tool import TEXT, PythonForm
from attnkit.errors import UsageError
from attnkit.inputs import encoding, intermediates, layers, patches, source_states, text_inputs
from attnkit.inputs.packed_texts import Line, encode_lines, name_line, pool_separately, read_lines
from attnkit.interpret.edits import make_edits
from attnkit.interpret.tracer import Tracer, axis_labels, head_counts
from attnkit.records import Record
from attnkit.tokenizers import Tokenizer

# parameters of encode that make a text a run of its own
HOOKED = ("keep", "trace", "patch", "ablate", "image", "audio", "ids")
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
        "Engine": "engine",
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
    extra={"lines": options.Lines, "engine": options.EngineOptions},
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
