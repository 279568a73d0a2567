"""attnkit encode: run a whole encoder, or the layers of a decoder-only model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from attnkit import formats, model
from attnkit.cli import options, text_input
from attnkit.cli.tool import tool
from attnkit.errors import DataError, UsageError
from attnkit.inference import callbacks, intermediates, layers, text_inputs
from attnkit.inference.tracer import Tracer, head_counts
from attnkit.record import Array, Record, Tensor
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

HEAD = ("head.dense", "head.norm", "logits")
POOLS = ("none", "cls", "mean", "pooler")


@tool(
    sections={
        "Model and input": "model_ ids pair image tokenizer batch lines",
        "Layers and vectors": "layers_ pool normalize",
        "Inspection": "keep trace trace_only weights patch ablate",
        "Results": "dtype",
    },
    one_of=[("model",)],
    exclusive=[("lines", "batch")],
    requires=[("trace_only", "trace"), ("weights", "trace|keep"), ("normalize", "pool=cls|mean|pooler")],
    operand="[TEXT]...",
    reader=text_input.read_model_input,
    needs_no_input=text_input.replaces_text,
    extra={"lines": options.LINES},
    adds=lambda parameters: bool(parameters["keep"]),
)
def encode(
    source: Sequence[str] | str | Record | None,
    *,
    model_: Annotated[Any, options.MODEL] = None,
    ids: Annotated[Record | None, options.IDS] = None,
    pair: Annotated[str | None, options.PAIR] = None,
    image: Annotated[Array | None, options.IMAGE] = None,
    tokenizer: Annotated[
        Tokenizer | None,
        options.Option(
            "tokenizer, instead of the model's own: words, chars, or a tokenizer.json",
            "words|chars|FILE",
            str,
            "tokenizer",
        ),
    ] = None,
    batch: Annotated[bool, options.BATCH] = False,
    layers_: Annotated[
        str, options.span("run only layers A to B - 1; if A is not 0, the record's x is the input of layer A")
    ] = "",
    pool: Annotated[
        str,
        options.choice(
            "one vector for each text: cls (first token), mean (over the tokens), or pooler (of the model)", POOLS
        ),
    ] = "none",
    normalize: Annotated[bool, options.switch("scale the pooled vectors to length 1 (L2 norm)")] = False,
    keep: Annotated[
        tuple[str, ...],
        options.names("add these intermediates to the record, by name or shell pattern: decoder.*.self.weights"),
    ] = (),
    trace: Annotated[str | None, options.TRACE] = None,
    trace_only: Annotated[tuple[str, ...], options.TRACE_ONLY] = (),
    weights: Annotated[str | None, options.WEIGHTS] = None,
    patch: Annotated[dict[str, Array] | None, options.PATCH] = None,
    ablate: Annotated[tuple[str, ...], options.ABLATE] = (),
    dtype: Annotated[
        str | None, options.choice("compute in this dtype [default: float32]", ("float32", "float64"))
    ] = None,
) -> Record:
    """Run a whole model: text to the hidden states of its last layer.

    encode runs the encoder of a model, or all layers of a decoder-only model. The input is TEXT, lines of standard
    input, --ids, --image, or a record with ids (for BERT also `types` or `token_type_ids`, the segment of each
    token). The record needs x instead of ids if the model has no embeddings, or if --layers starts after layer 0.
    The result is x, and for an encoder-decoder model also `memory`, which decode --model attends to. Every
    intermediate has a name: --trace writes them and --patch replaces one. `attnkit show DIR --pipeline encoder` (or
    decoder) prints the same computation as a pipeline of tools.

    \b
    Example:
      attnkit encode --model DIR "The cat sat" --trace run.npz
    """
    check_trace_file(trace)
    config, core = model_.config, layers.complete_model(model_)
    stack = config.stacks[0]
    first, last = parse_layers(layers_, config.stack(stack).layers)
    layers.check_pair(config, pair, source)
    if isinstance(source, Record):
        inputs, base = read_inputs(model_, stack, first, source, tokenizer)
    else:
        check_takes_text(config, stack, first)
        read = text_inputs.ModelInput(source, pair, ids, image, tokenizer, batch)
        inputs, base = text_inputs.model_inputs(model_, stack, read)
    if not inputs.ndim:
        raise DataError("ids (): a single number (expected (T) or (B, T))")
    steps = select_steps(config, stack, first, last)
    detail = weights or "full"
    patterns = {"--keep": keep} | ({"--trace-only": trace_only or ("*",)} if trace else {})
    tracer = Tracer(patterns, patch, ablate, detail, head_counts(config, steps))
    layers.warn_empty_mask_rows(base.get("mask"))
    context = layers.context_from(base, hook=tracer.visit, weights=detail, dtype=dtype)
    x = model.run(core, steps, inputs, context)
    is_whole = last == config.stack(stack).layers
    if is_whole:
        trace_head(core, x, tracer)
    if pool == "none":
        result = make_states(config, base, x, stack, is_whole)
    else:
        result = make_pooled(core, base, x, pool, normalize, tracer)
        if "batch" in result.axes_of("x") and source and not isinstance(source, Record):
            result = result.with_tensors({}, {"batch": text_inputs.require_unicode(source)})
    tracer.check()
    if trace:
        callbacks.current().write_side_output(trace, traced(tracer, "--trace-only", detail, base, x.shape[-2]))
    return result.merge(traced(tracer, "--keep", detail, base, x.shape[-2])) if keep else result


def check_trace_file(path: str | None) -> None:
    """Raise UsageError where the file of --trace is that of --output too, or has an unknown suffix."""
    if path is not None:
        formats.file_format(path)
    if path is not None and callbacks.current().is_output_file(path):
        raise UsageError(f"{path}: --output writes the same file", "--trace")


def trace_head(core: model.Model, x: Array, tracer: Tracer) -> None:
    """Compute the logits of a model without a decoder, x (B, T, D), where the trace includes them."""
    if core.config.head and len(core.config.stacks) == 1 and any(map(tracer.wants, HEAD)):
        model.head_logits(core, x, tracer.visit)


def traced(tracer: Tracer, flag: str, detail: str, base: Record, length: int) -> Record:
    """Return the intermediates of a run that a flag keeps, with the tokens of the input as labels.

    detail  how much of the attention weights is kept: the value of --weights
    """
    tokens = base.labels.get("token")
    rows = intermediates.selected_row_labels(detail, tokens, length)
    return tracer.record(tokens, flag=flag).with_tensors({}, rows)


def parse_layers(text: str, count: int) -> tuple[int, int]:
    """Parse A:B to the first layer and the one after the last.

    >>> parse_layers("", 6), parse_layers("2:", 6), parse_layers(":3", 6)
    ((0, 6), (2, 6), (0, 3))
    """
    start, _, end = text.partition(":")
    first, last = int(start or 0), int(end) if end else count
    if not first <= last <= count:
        raise UsageError(f"{text}: the model has layers 0:{count}", "--layers")
    return first, last


def select_steps(config: model.Config, stack: str, first: int, last: int) -> list[model.Step]:
    """Return the steps of some layers: the embeddings before the first layer, the final norm after the last."""
    count, steps = config.stack(stack).layers, []
    for step in model.layer_plan(config, stack):
        number = model.parse_layer_name(step.layer)[1]
        at = (-1 if step.layer != f"{stack}.norm" else count) if number is None else number
        if first <= at < last or (at < 0 and first == 0) or (at == last == count):
            steps.append(step)
    return steps


def has_embeddings(config: model.Config, stack: str) -> bool:
    """Return whether a stack begins with the embedding of tokens or of image patches."""
    return bool(config.stack(stack).vocab or config.patches)


def check_takes_text(config: model.Config, stack: str, first: int) -> None:
    """Raise UsageError where the first step takes x, not ids or an image."""
    if first or not has_embeddings(config, stack):
        subject = "--layers from A > 0" if has_embeddings(config, stack) else f"a {config.family} model"
        raise UsageError(f"{subject} needs x from a record")


def read_inputs(
    checkpoint: "Checkpoint", stack: str, first: int, record: Record, tokenizer: Tokenizer | None
) -> tuple[Array, Record]:
    """Read the input of the first step from a record, ids or x; return it and the record with its mask as (B, T, S)."""
    config = checkpoint.config
    if first or config.patches or not has_embeddings(config, stack):
        record = layers.normalize_mask(record)
        return read_states(config, first, record), record
    record = layers.normalize_mask(layers.ids_from_x(record))
    if "ids" not in record:
        raise DataError("the record has no ids (--layers A:B with A > 0 takes its x)")
    text_inputs.check_vocabulary(record, checkpoint, "source", tokenizer)
    text_inputs.warn_ignored_input(record, checkpoint, "ids", "--layers A:B continues from x")
    return model.check_ids(record["ids"], config.stack(stack).vocab), record


def read_states(config: model.Config, first: int, record: Record) -> Array:
    """Read x of a record: an image, or hidden states (T, D) or (B, T, D); DataError for other shapes."""
    x = record["x"]
    is_image = config.patches and not first
    if x.ndim < 2 or not (is_image or (x.ndim < 4 and x.shape[-1] == config.width)):
        raise DataError(f"x {x.shape}: expected (T, {config.width}) or (B, T, {config.width})")
    return x.astype(model.output_dtype(x), copy=False)


def make_states(config: model.Config, base: Record, x: Array, stack: str, is_whole: bool) -> Record:
    """Return the record of hidden states x, (B, T, D), also as `memory` where the model has a decoder."""
    axes = ("batch", "token", "model")[3 - x.ndim :]
    states = Tensor(x, axes, formula=f"hidden states of the {stack}")
    record = Record({"x": states}).merge(base).with_tensors({"x": states})
    if not (is_whole and config.encoder and config.decoder):
        return record
    memory_axes = tuple("source" if axis == "token" else axis for axis in axes)
    tokens = base.labels.get("token")
    record = record.with_tensors({"memory": Tensor(x, memory_axes)}, {"source": tokens} if tokens else {})
    if "mask" in base and base["mask"].ndim == 3 and base["mask"].shape[-2] == 1:
        record = record.with_tensors({"memory_mask": Tensor(base["mask"], ("batch", "all queries", "source"))})
    return record


def make_pooled(core: model.Model, base: Record, x: Array, pool: str, normalize: bool, tracer: Tracer) -> Record:
    """Pool hidden states to one vector for each text, x (B, T, D) -> (B, D), without the mask of the tokens."""
    mask = base.get("mask")
    is_padding = mask is not None and mask.shape == (*x.shape[:-2], 1, x.shape[-2])
    real = mask[:, 0] if mask is not None and is_padding else np.ones(x.shape[:-1], bool)
    if x.ndim == 3:  # the first token of a row that is padded on the left is not its first vector
        x = np.take_along_axis(x, order_tokens_first(real)[..., None], axis=-2)
        real = np.take_along_axis(real, order_tokens_first(real), axis=-1)
    if pool == "mean":
        vectors, formula = model.mean_pool(x, real), "mean of the tokens"
    elif pool == "pooler":
        if not core.config.pooler:
            raise UsageError("the model has no pooler", "--pool")
        vectors, formula = model.pool_first(core, x, tracer.visit), "tanh(first token W + b)"
    else:
        vectors, formula = model.first_token(x), "first token"
    if normalize:
        vectors, formula = model.l2_normalize(vectors), f"{formula}, to length 1"
    pooled = Tensor(vectors, ("batch", "model")[2 - vectors.ndim :], formula=formula)
    rest = base.select([name for name in base if name not in ("x", "mask")])
    return Record({"x": pooled}).merge(rest)


def order_tokens_first(real: Array) -> Array:
    """Return the order of each row that puts its tokens before its padding.

    >>> order_tokens_first(np.array([[False, True, True]]))
    array([[1, 2, 0]])
    """
    return np.argsort(~real, axis=-1, kind="stable")
