"""attnkit encode: a whole encoder, or the trunk of a decoder-only model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from attnkit import model
from attnkit.cli import options, text_input
from attnkit.cli.tool import tool
from attnkit.errors import DataError, UsageError
from attnkit.inference import callbacks, intermediates, layers, text_inputs
from attnkit.inference.hooks import Tracer, head_counts
from attnkit.record import Array, Record
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

HEAD = ("head.dense", "head.norm", "logits")
POOLS = ("none", "cls", "mean", "pooler")


@tool(
    one_of=[("model",)],
    exclusive=[("lines", "batch")],
    requires=[("trace_only", "trace"), ("weights", "trace"), ("normalize", "pool=cls|mean|pooler")],
    operand="[TEXT]...",
    feed=text_input.read_model_input,
    alone=lambda given: given["ids"] is not None or given["image"] is not None,
    extra={"lines": options.switch("a stream: one record for each line")},
    adds=lambda given: False,
)
def encode(
    given: Sequence[str] | str | Record | None,
    *,
    model_: Annotated[Any, options.MODEL] = None,
    ids: Annotated[Record | None, options.ids("token ids, (T) or (B, T), in place of text")] = None,
    pair: Annotated[str | None, options.text("a second text after TEXT, for models of pairs")] = None,
    image: Annotated[Array | None, options.IMAGE] = None,
    tokenizer: Annotated[
        Tokenizer | None,
        options.Flag(
            "in place of the model's own: words, chars, or a tokenizer.json", "words|chars|FILE", str, "tokenizer"
        ),
    ] = None,
    batch: Annotated[bool, options.switch("one padded batch of the texts, or of the lines of standard input")] = False,
    layers_: Annotated[
        str, options.span("just layers A to B - 1; where A is not 0, x of the record is what layer A gets")
    ] = "",
    pool: Annotated[
        str,
        options.choice("one vector a text: of the first token, the mean over the tokens, or the pooler's", POOLS),
    ] = "none",
    normalize: Annotated[bool, options.switch("pooled vectors to length 1")] = False,
    trace: Annotated[str | None, options.TRACE] = None,
    trace_only: Annotated[tuple[str, ...], options.TRACE_ONLY] = (),
    weights: Annotated[str | None, options.WEIGHTS] = None,
    patch: Annotated[dict[str, Array] | None, options.PATCH] = None,
    ablate: Annotated[tuple[str, ...], options.ABLATE] = (),
    dtype: Annotated[
        str | None, options.choice("compute in this dtype [default: float32]", ("float32", "float64"))
    ] = None,
) -> Record:
    """A whole model in one go: text to the hidden states of its last layer.

    The encoder of a model, or the layers of a decoder-only one. Input is TEXT, lines on standard input, --ids,
    --image, or a record with ids (and for BERT with `types` or `token_type_ids`, the segment of each token), or
    with x where the model has no embeddings or --layers begins later. The result is x; for an encoder-decoder
    model also `memory`, which decode --model looks at. Every intermediate has a name: --trace writes them,
    --patch replaces one, `attnkit show DIR --pipeline encoder` (or decoder) prints the same computation stage
    by stage.

    \b
    Example:
      attnkit encode --model DIR "The cat sat" --trace run.npz
    """
    if trace is not None and callbacks.current().is_output_file(trace):
        raise UsageError(f"{trace} is the file of --output too", "--trace")
    how = "full" if weights is None else weights
    config, core = model_.config, layers.complete_model(model_)
    stack = config.stacks[0]
    first, last = layers_between(layers_, config.stack(stack).layers)
    inputs, base = beginning(model_, stack, first, given, tokenizer, ids, pair, image, batch)
    if not inputs.ndim:
        raise DataError("ids (): a single number (expected (T) or (B, T))")
    steps = part_of(config, stack, first, last)
    tracer = Tracer(trace_only or ("*",) if trace else (), patch, ablate, how, head_counts(config, steps))
    layers.warn_empty_mask_rows(base.tensors.get("mask"))
    context = layers.context_from(
        base,
        hook=tracer.visit,
        weights=how,
        dtype=dtype,
    )
    x = model.run(core, steps, inputs, context)
    whole = last == config.stack(stack).layers
    if trace and whole and config.head and len(config.stacks) == 1 and any(map(tracer.wants, HEAD)):
        model.head_logits(core, x, tracer.visit)
    if pool == "none":
        made = result(config, base, x, stack, whole)
    else:
        made = pooled(core, base, x, pool, normalize, tracer)
        if "batch" in made.axes_of("x") and given and not isinstance(given, Record):
            made = made.put({}, labels={"batch": text_inputs.require_unicode(given)})
    tracer.check()
    if trace:
        tokens = base.labels.get("token")
        rows = intermediates.row_labels(how, tokens, x.shape[-2])
        callbacks.current().write_side_output(trace, tracer.record(tokens).put({}, labels=rows))
    return made


def layers_between(text: str, count: int) -> tuple[int, int]:
    """The first layer of A:B and the one after its last.

    >>> layers_between("", 6), layers_between("2:", 6), layers_between(":3", 6)
    ((0, 6), (2, 6), (0, 3))
    """
    start, _, end = text.partition(":")
    first, last = int(start or 0), int(end) if end else count
    if not first <= last <= count:
        raise UsageError(f"{text}: the model has layers 0:{count}", "--layers")
    return first, last


def part_of(config: model.Config, stack: str, first: int, last: int) -> list[model.Step]:
    """The steps of some layers: with the embeddings where they begin with the first, the last norm where they end."""
    chosen = []
    for step in model.layer_plan(config, stack):
        number = model.parse_layer_name(step.layer)[1]
        at = (-1 if step.layer != f"{stack}.norm" else config.stack(stack).layers) if number is None else number
        if first <= at < last or (at < 0 and first == 0) or (at == last == config.stack(stack).layers):
            chosen.append(step)
    return chosen


def beginning(
    checkpoint: "Checkpoint",
    stack: str,
    first: int,
    given: Sequence[str] | str | Record | None,
    tokenizer: Tokenizer | None,
    ids: Record | None,
    pair: str | None,
    image: Array | None,
    batch: bool,
) -> tuple[Array, Record]:
    """What the first step takes, ids, an image or x, and the record it belongs to."""
    config = checkpoint.config
    embeds = bool(config.stack(stack).vocab or config.patches)
    layers.check_pair(config, pair, given)
    if not isinstance(given, Record):
        if first or not embeds:
            raise UsageError(f"{'--layers from A > 0' if embeds else f'a {config.family} model'} takes x from a record")
        return text_inputs.model_inputs(checkpoint, stack, given, tokenizer, ids, pair, image, batch)
    from_ids = first == 0 and embeds and not config.patches
    given = layers.normalize_mask(layers.ids_from_x(given) if from_ids else given)
    if from_ids:
        if "ids" not in given:
            raise DataError("the record has no ids (layers from A > 0 take its x: --layers A:B)")
        text_inputs.check_vocabulary(given, checkpoint, "source", tokenizer)
        text_inputs.warn_ignored_input(given, checkpoint, "ids", "--layers A:B goes on from x")
        return model.check_ids(given["ids"], config.stack(stack).vocab), given
    x = given["x"]
    begins_with_image = config.patches and not first
    if x.ndim < 2 or not (begins_with_image or (x.ndim < 4 and x.shape[-1] == config.width)):
        raise DataError(f"x {x.shape}: expected (T, {config.width}) or (B, T, {config.width})")
    return x.astype(model.output_dtype(x), copy=False), given


def result(config: model.Config, base: Record, x: Array, stack: str, whole: bool) -> Record:
    """The record with the hidden states as x, and as the memory of a decoder where the model has one."""
    axes = ("batch", "token", "model")[3 - x.ndim :]
    record = Record({"x": x}, {"x": axes}, formulas={"x": f"hidden states of the {stack}"}).joined(
        base.put({"x": x}, {"x": axes}) if "x" in base else base
    )
    if not (whole and config.encoder and config.decoder):
        return record
    tokens = base.labels.get("token")
    made, named = {"memory": x}, {"memory": tuple("source" if axis == "token" else axis for axis in axes)}
    if "mask" in base and base["mask"].ndim == 3 and base["mask"].shape[-2] == 1:
        made, named = made | {"memory_mask": base["mask"]}, named | {"memory_mask": ("batch", "all queries", "source")}
    return record.put(made, named, {"source": tokens} if tokens else {})


def pooled(core: model.Model, base: Record, x: Array, pool: str, normalize: bool, tracer: Tracer) -> Record:
    """The record with one vector a text as x, and without the mask of the tokens, which x has no more."""
    mask = base.tensors.get("mask")
    padded = mask is not None and mask.shape == (*x.shape[:-2], 1, x.shape[-2])
    real = mask[:, 0] if mask is not None and padded else np.ones(x.shape[:-1], bool)
    if x.ndim == 3:  # the first token of a row that is padded on the left is not its first vector
        x = np.take_along_axis(x, first_to_last(real)[..., None], axis=-2)
        real = np.take_along_axis(real, first_to_last(real), axis=-1)
    if pool == "mean":
        made, said = model.mean_pool(x, real), "mean of the tokens"
    elif pool == "pooler":
        if not core.config.pooler:
            raise UsageError("the model has no pooler", "--pool")
        made, said = model.pool_first(core, x, tracer.visit), "tanh(first token W + b)"
    else:
        made, said = model.first_token(x), "first token"
    if normalize:
        made, said = model.l2_normalize(made), f"{said}, to length 1"
    axes = ("batch", "model")[2 - made.ndim :]
    rest = base.only([name for name in base if name not in ("x", "mask")])
    return Record({"x": made}, {"x": axes}, formulas={"x": said}).joined(rest)


def first_to_last(real: Array) -> Array:
    """For each row the order that puts its tokens before its padding.

    >>> first_to_last(np.array([[False, True, True]]))
    array([[1, 2, 0]])
    """
    return np.argsort(~real, axis=-1, kind="stable")
