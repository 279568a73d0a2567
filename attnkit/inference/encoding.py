"""What encode computes from: the input of a model's layers, its steps, and how their result becomes one vector."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.inference import layers, text_inputs
from attnkit.model.hooks import Hook, no_hook
from attnkit.record import Array, Record, Tensor
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


class Encoding(NamedTuple):
    """What encode computes.

    stack     the encoder, or the decoder of a decoder-only model
    steps     of its layers, of which `is_whole` says whether they include the last one
    inputs    of the first step: ids (..., T), x (..., T, D), or an image
    base      the record of the ids with their labels and mask, or the one that was read
    """

    core: model.Model
    stack: str
    steps: list[model.Step]
    is_whole: bool
    inputs: Array
    base: Record


def prepare_encoding(source: Any, values: Mapping[str, Any]) -> Encoding:
    """Return what encode computes from its input, texts or a record, and the values of its flags.

    Errors are those of encode: UsageError for an input that the model or its first layer does not take.
    """
    checkpoint, tokenizer = values["model_"], values["tokenizer"]
    config, core = checkpoint.config, layers.complete_model(checkpoint)
    stack = config.stacks[0]
    count = config.stack(stack).layers
    first, last = parse_layers(values["layers_"], count)
    layers.check_pair(config, values["pair"], source)
    if isinstance(source, Record):
        inputs, base = read_inputs(checkpoint, stack, first, source, tokenizer)
    else:
        check_takes_text(config, stack, first)
        names = ("pair", "ids", "image", "tokenizer", "batch")
        read = text_inputs.ModelInput(source, *(values[name] for name in names))
        inputs, base = text_inputs.model_inputs(checkpoint, stack, read)
    if not inputs.ndim:
        raise DataError("ids (): a single number (expected (T) or (B, T))")
    return Encoding(core, stack, select_steps(config, stack, first, last), last == count, inputs, base)


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
        return read_layer_input(config, stack, first, record), record
    record = layers.normalize_mask(layers.ids_from_x(record))
    if "ids" not in record:
        raise DataError("the record has no ids (--layers A:B with A > 0 takes its x)")
    text_inputs.check_vocabulary(record, checkpoint, "source", tokenizer)
    text_inputs.warn_ignored_input(record, checkpoint, "ids", "--layers A:B continues from x")
    return model.check_ids(record["ids"], config.stack(stack).vocab), record


def read_layer_input(config: model.Config, stack: str, first: int, record: Record) -> Array:
    """Read x of a record: an image, or hidden states (T, D) or (B, T, D); DataError for other shapes."""
    x, width = record["x"], config.input_width(stack, first)
    is_image = config.patches and not first
    if x.ndim < 2 or not (is_image or (x.ndim < 4 and x.shape[-1] == width)):
        raise DataError(f"x {x.shape}: expected (T, {width}) or (B, T, {width})")
    return x.astype(model.output_dtype(x), copy=False)


def pooled_tokens(base: Record, x: Array) -> tuple[Array, Array | None]:
    """Return which tokens are no padding, and the order that puts these first, None for x without a batch.

    x (B, T, D) -> (B, T), (B, T); a row that is padded on the left begins with a vector of padding
    """
    mask = base.get("mask")
    is_padding = mask is not None and mask.shape == (*x.shape[:-2], 1, x.shape[-2])
    real = mask[:, 0] if mask is not None and is_padding else np.ones(x.shape[:-1], bool)
    if x.ndim < 3:
        return real, None
    order = order_tokens_first(real)
    return np.take_along_axis(real, order, axis=-1), order


def pool_states(core: model.Model, x: Array, real: Array, pool: str, hook: Hook = no_hook) -> tuple[Array, str]:
    """Return one vector of each text, x (..., T, D), real (..., T) -> (..., D), and its formula.

    UsageError for the pooler of a model that has none.
    """
    if pool == "mean":
        return model.mean_pool(x, real), "mean of the tokens"
    if pool == "cls":
        return model.first_token(x), "first token"
    if not core.config.pooler:
        raise UsageError("the model has no pooler", "--pool")
    return model.pool_first(core, x, hook), "tanh(first token W + b)"


def make_pooled(core: model.Model, base: Record, x: Array, pool: str, normalize: bool, hook: Hook) -> Record:
    """Pool hidden states to one vector for each text, x (B, T, D) -> (B, D), without the mask of the tokens."""
    real, order = pooled_tokens(base, x)
    states = x if order is None else np.take_along_axis(x, order[..., None], axis=-2)
    vectors, formula = pool_states(core, states, real, pool, hook)
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
