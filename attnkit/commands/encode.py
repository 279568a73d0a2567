"""attnkit encode: run a whole encoder, or the layers of a decoder-only model."""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from attnkit import callbacks, formats, model, options
from attnkit.cli import text_input
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage, running
from attnkit.cli.tool import TEXT, PythonForm
from attnkit.errors import AttnkitWarning, UsageError
from attnkit.inputs import encoding, intermediates, late_interaction, layers, patches, source_states, text_inputs
from attnkit.inputs.encoding import POOLS, EncodingInputs, VectorOptions
from attnkit.inputs.packed_texts import Line, encode_alone, encode_lines, name_line, pool_separately, read_lines
from attnkit.interpret.edits import make_edits
from attnkit.interpret.tracer import Tracer, axis_labels, head_counts
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.display import ResultView, Style

SIMULATIONS = ("float16", "float16:accumulate", "bfloat16", "bfloat16:accumulate", "fp8-e4m3", "fp8-e4m3:nan")
# options with which each line is run by itself
HOOKED = ("keep", "trace", "patch", "ablate", "image", "audio", "ids", "simulate")


class InspectionOptions(NamedTuple):
    """The intermediates of a run that are kept, written or changed."""

    keep: Annotated[
        tuple[str, ...],
        options.names("add these intermediates to the record, by name or shell pattern: decoder.*.self.weights"),
    ] = ()
    tracing: options.TraceOptions = options.TraceOptions()
    weights: options.Weights = None
    edits: options.EditOptions = options.EditOptions()

    @property
    def is_empty(self) -> bool:
        """Whether no intermediate is kept, traced or changed."""
        return not (self.keep or self.tracing.trace) and self.edits.is_empty

    def tracer(self, encoded: encoding.Encoding) -> Tracer:
        edits = make_edits(*self.edits, head_counts(encoded.core.config, encoded.steps))
        patterns = {"--keep": self.keep} | self.tracing.patterns
        return Tracer(patterns, edits, self.weights or "full")


def encode_together(stage: Stage, blocks: Iterator[Iterator[str]]) -> Iterator[Line]:
    """Yield the lines of --lines, those that arrive together with their results."""
    if any(stage.parameters[name] for name in HOOKED):
        yield from (line for lines in read_lines(blocks) for line in lines)
        return
    values = stage.files.load_values(None, bfloat16=False)
    engine = stage.load_engine()
    given = EncodingInputs(**{name: values[name] for name in EncodingInputs._fields})
    vectors = VectorOptions(**{name: values[name] for name in VectorOptions._fields})
    lines = encode_lines(blocks, given, vectors, values["dtype"])
    while True:
        with running(stage), callbacks.use_callbacks(callbacks.current()._replace(engine=engine)):
            line = next(lines, None)
        if line is None:
            return
        yield line


def view_encoded(record: Record, stage: Stage, style: "Style") -> "ResultView":
    """The result, after a table of the stages that overflow in a simulation."""
    from attnkit import display

    shown = display.computed_view(record, style)
    if "rounding" not in record:
        return shown
    from attnkit.interpret.simulation import overflow_table

    return shown._replace(blocks=[overflow_table(record, style), *shown.blocks])


@tool(
    sections={
        "Model and input": "given lines",
        "Layers and vectors": "vectors",
        "Inspection": "inspection",
        "Results": "dtype simulate",
        "Engine": "engine",
    },
    rules=Constraints(
        exclusive=[
            ("lines", "batch"),
            *(("simulate", name) for name in ("layers", "weights", "dtype", "engine", "compute")),
        ],
        requires=[
            ("trace_only", "trace"),
            ("weights", "trace|keep"),
            ("mean", "ablate"),
            ("normalize", "pool=" + "|".join(POOLS[1:])),
            ("force", "dim"),
        ],
        one_of=[("model",)],
    ),
    operand=TEXT,
    view=view_encoded,
    reader=functools.partial(text_input.read_model_input, together=encode_together),
    needs_no_input=text_input.replaces_text,
    extra={"lines": options.Lines, "engine": options.EngineOptions},
    python=PythonForm(options=options.ENGINE_KEYWORDS),
    adds=lambda stage: bool(stage.parameters["keep"]),
)
def encode(
    source: Sequence[str] | str | Record | None,
    *,
    given: EncodingInputs,
    vectors: VectorOptions,
    inspection: InspectionOptions,
    dtype: Annotated[
        Literal["float32", "float64"] | None, typer.Option(help="compute in this dtype [default: float32]")
    ] = None,
    simulate: Annotated[
        str | None,
        options.choice(
            SIMULATIONS,
            "round every stage as hardware of this dtype would, and count the numbers that overflow; accumulate: round "
            "partial sums of products too, which else are float32; nan: what overflows is NaN, not the largest number",
            "DTYPE",
        ),
    ] = None,
) -> Record:
    """Run a whole model: text to the hidden states of its last layer.

    encode runs the encoder of a model, or all layers of a decoder-only model. The input is TEXT, lines of standard
    input, --ids, --image, --audio, or a record with ids (for BERT also `types` or `token_type_ids`, the segment of each
    token). The record needs x instead of ids if the model has no embeddings, or if --layers starts after layer 0.
    The result is x, and for an encoder-decoder model also `memory`, which decode --model attends to. A folder of
    sentence-transformers gives the vector of each text, as its modules.json states; --pool none, its states. Lines
    that have arrived are computed together, and each has the bits that it has alone (`attnkit help performance`).
    With --simulate, parameters and every stage are rounded; the record gets `rounding` (stage, figure): the largest
    number of each stage before rounding, how many overflow, and how many become 0.
    Every intermediate has a name: --trace writes them and --patch replaces one. `attnkit show DIR --pipeline encoder`
    (or decoder) prints the same computation as a pipeline of tools.

    \b
    Example:
      attnkit encode --model DIR "The cat sat" --trace run.npz
    """
    if inspection.tracing.trace is not None:
        formats.file_format(inspection.tracing.trace)  # an error for an unknown suffix
        if callbacks.current().is_output_file(inspection.tracing.trace):
            raise UsageError(f"{inspection.tracing.trace}: --output writes the same file", "--trace")
    given = given._replace(model_=given.model_.reading(given.image is not None))
    note = callbacks.current().on_operands
    note_modules(given.model_, vectors)
    is_late = encoding.is_late(given.model_, vectors)
    if is_late and not isinstance(source, Line | Record | str) and source and (len(source) > 1 or given.batch):
        if simulate is not None:
            raise UsageError("reads one text of a late-interaction model; use --lines", "--simulate")
        return encode_late_batch(source, given, vectors, inspection, dtype)
    if isinstance(source, Line) and source.result is not None and note is callbacks.ignore:
        result = source.result
    else:
        with name_line(source.number) if isinstance(source, Line) else contextlib.nullcontext():
            encoded = encoding.prepare_encoding(source, given, vectors)
            note(encoded)
            if simulate is not None:
                result = run_simulated(encoded, inspection, vectors.normalize, simulate)
            elif inspection.is_empty and (pooled := pool_separately(encoded, vectors.normalize, dtype)) is not None:
                return label_vectors(pooled, source, encoded)
            else:
                result = run_encoder(encoded, inspection, vectors.normalize, dtype)
    if is_late and source is not None and not isinstance(source, Record):
        return result.with_tensors({}, {"batch": text_inputs.require_unicode(source)})
    if isinstance(source, Line):
        return result if "token" in result.axes_of("x") else result.with_tensors({}, {"batch": [*source]})
    return label_vectors(result, source, encoded)


def encode_late_batch(
    texts: Sequence[str],
    given: EncodingInputs,
    vectors: VectorOptions,
    inspection: InspectionOptions,
    dtype: str | None,
) -> Record:
    """The vectors of the tokens of several texts, padded, with their mask.

    -> x (B, R, E)
    """
    if not inspection.is_empty:
        raise UsageError("--keep, --trace, --patch and --ablate read one text of a late-interaction model; use --lines")
    found = encode_alone(text_inputs.require_unicode(texts), given, vectors, dtype)
    return late_interaction.pad_token_vectors(found).with_tensors({}, {"batch": text_inputs.require_unicode(texts)})


def note_modules(checkpoint: "Checkpoint", vectors: VectorOptions) -> None:
    """Let the history state which modules made the vectors of texts, in which order."""
    modules = encoding.sentence_modules(checkpoint)
    if vectors.pool in (None, "folder") and modules.is_pooled and not vectors.layers_:
        cut = [f"first {vectors.dim or modules.dim} numbers"] * bool(vectors.dim or modules.dim)
        callbacks.current().on_modules([*modules.summary, *cut])


def label_vectors(result: Record, source: Any, encoded: encoding.Encoding) -> Record:
    """Label the vectors of texts with the texts."""
    if source and not isinstance(source, Record) and encoded.pool != "none" and "batch" in result.axes_of("x"):
        return result.with_tensors({}, {"batch": text_inputs.require_unicode(source)})
    return result


def run_simulated(
    encoded: encoding.Encoding, inspection: InspectionOptions, normalize: bool, simulation: str
) -> Record:
    """Run a model with rounding; its stages and counts are of all sites."""
    tracer, tokens = inspection.tracer(encoded), encoded.base.labels.get("token")
    tracer.begin(axis_labels(tokens), texts=encoding.text_spans(encoded.base))
    from attnkit.interpret.simulation import simulate_encoding

    simulated = simulate_encoding(encoded, simulation, tracer.visit)
    result = encoding.make_result(encoded, simulated.states, normalize, tracer.visit)
    tracer.check()
    traced = simulated.store(tracer.record(tokens))
    if inspection.tracing.trace:
        names = [name for name in traced if tracer.wants(name, "--trace-only")]
        box = patches.find_box(encoded.base)
        callbacks.current().write_side_output(inspection.tracing.trace, traced.select(names).merge(box))
    for sentence in simulated.sentences():
        warnings.warn(sentence, AttnkitWarning, stacklevel=2)
    kept = traced.select([name for name in traced if tracer.wants(name, "--keep")])
    return simulated.store(result).merge(kept).merge(simulated.counts())


def run_encoder(
    encoded: encoding.Encoding, inspection: InspectionOptions, normalize: bool, dtype: str | None
) -> Record:
    core, steps, base = encoded.core, encoded.steps, encoded.base
    tracer, weights, tokens = inspection.tracer(encoded), inspection.weights or "full", base.labels.get("token")
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
    if inspection.tracing.trace:
        traced = tracer.record(tokens, flag="--trace-only").with_tensors({}, rows).merge(patches.find_box(base))
        callbacks.current().write_side_output(inspection.tracing.trace, traced)
    kept = tracer.record(tokens, flag="--keep").with_tensors({}, rows) if inspection.keep else None
    return result if kept is None else result.merge(kept)
