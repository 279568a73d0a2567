"""The inputs of a pass: checked and padded in NumPy.

A program is compiled for every size of its inputs. So texts are padded to one of a few sizes, of which there are four
between a power of two and the next.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.config import STATES, Config, Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, is_float
from attnkit.model.formulas.convolution import find_windows
from attnkit.model.formulas.dense_attention import broadcast_mask
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.masks import real_tokens, to_boolean
from attnkit.model.formulas.positions import sinusoidal_positions, t5_buckets
from attnkit.model.formulas.relative import distance_rows
from attnkit.model.layers.attention import alibi, attention_source, rotation
from attnkit.model.layers.embeddings import absolute_positions, check_size, segments

LEAST = 16  # tokens that a text is padded to at least


class Prepared(NamedTuple):
    """The inputs of a program, padded to its shapes.

    Inputs of convolutions are not padded, because their windows would read the padding.

    x       padded ids (..., T), hidden states (..., T, D), an image or a sound
    arrays  what `Pass.inputs` holds
    grid    rows and columns of the patches of an image
    rows    texts, and tokens of each, without padding
    """

    x: Array
    arrays: dict[str, Any]
    grid: tuple[int, int] | None
    rows: int
    tokens: int


class Sizes(NamedTuple):
    """What sizes are padded to: multiples of `rows` texts and `tokens` tokens, if any.

    capacity  places of the cache, None without one; memory: places of the memory, whose keys are in the cache
    """

    is_padded: bool = True
    rows: int = 1
    tokens: int = 1
    capacity: int | None = None
    memory: int = 0

    def padded(self, count: int) -> int:
        """The padded length of a text."""
        is_single = self.capacity is not None and count == 1
        return round_up(bucket(count), self.tokens) if self.is_padded and not is_single else count


def bucket(count: int) -> int:
    """The least size of 16, 20, 24, 28, 32, 40, 48 … that is large enough.

    >>> [bucket(count) for count in (1, 17, 33, 1025)]
    [16, 20, 40, 1280]
    """
    step = 1 << max(count - 1, LEAST).bit_length() - 3
    return max(round_up(count, step), LEAST)


def round_up(count: int, step: int) -> int:
    """The least multiple of a step that is not below a number.

    >>> round_up(5, 4)
    8
    """
    return -(-count // step) * step


def fill(x: Array, axis: int, size: int) -> Array:
    """Pad an axis to a size with zeros, also if it has one entry."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = 0, size - x.shape[axis]
    return np.pad(x, widths) if x.shape[axis] < size else x


def prepare_inputs(model: Model, steps: Sequence[Step], x: Array, context: Context, sizes: Sizes) -> Prepared:
    """Prepare the inputs of the steps of a model for ids, hidden states or images.

    Errors are those of `transformer.run`.
    """
    config, name = model.config, parse_layer_name(steps[0].layer)[0]
    x, lead, tokens = check_first_input(config, steps, x, context)
    sizes = sizes._replace(is_padded=False) if any(step.op == "conv" for step in steps) else sizes
    is_whole = steps[0].op == "conv" or (steps[0].op == "embed" and config.patches is not None)
    width = tokens if is_whole else sizes.padded(tokens)
    shape = (*lead, config.stack(name).heads, tokens, context.past + tokens)
    arrays = token_arrays(config, steps, x, (tokens, width), context)
    arrays |= attention_arrays(config, steps, shape, width, context, sizes)
    arrays |= recurrent_arrays(steps, (*lead, tokens), width, context)
    if not is_whole:
        x = fill(x, -1 if steps[0].op == "embed" else -2, width)
    rows = lead[0] if lead else 1
    if lead and sizes.rows > 1:  # copies of the first text
        arrays["x"], count = x, round_up(rows, sizes.rows) - rows
        for key in set(arrays) & set(BATCHED):
            arrays[key] = repeat_first(arrays[key], BATCHED[key], rows, count)
        x = arrays.pop("x")
    for name, one in arrays.items():
        if isinstance(one, np.ndarray) and one.dtype.kind in "iu":
            arrays[name] = one.astype(np.int32)
    return Prepared(x, arrays, context.grid if config.patches else None, rows, tokens)


def token_arrays(
    config: Config, steps: Sequence[Step], x: Array, widths: tuple[int, int], context: Context
) -> dict[str, Array]:
    """The segments of tokens, and their absolute positions or sinusoidal encodings.

    widths  without and with padding

    DataError for positions beyond the model's.
    """
    (tokens, width), positions, arrays = widths, config.positions, dict[str, Array]()
    if steps[0].op == "embed" and config.types:
        arrays["types"] = fill(check_ids(segments(x, context), config.types), -1, width)
    if not any(step.op == "posenc" for step in steps):
        return arrays
    where = absolute_positions(np.empty((tokens, 0)), context)
    if not config.patches:
        check_size(config, where, steps[0].layer)
    if positions.kind != "sinusoidal":
        return arrays | {"positions": fill(where, -1, width)}
    size = config.result_width(f"{parse_layer_name(steps[0].layer)[0]}.positions")
    table = sinusoidal_positions(where + positions.first, size, layout=positions.layout, base=positions.base)
    return arrays | {"sinusoids": fill(table, -2, width)}


def attention_arrays(
    config: Config, steps: Sequence[Step], shape: tuple[int, ...], width: int, context: Context, sizes: Sizes
) -> dict[str, Any]:
    """What attention reads: masks, relative positions, memory, number of past tokens.

    shape  of the scores, (..., H, T, S); width: T with padding
    """
    name, arrays = parse_layer_name(steps[0].layer)[0], dict[str, Any]()
    layers = [step.layer for step in steps if step.attends]
    keys = width if sizes.capacity is None else sizes.capacity
    if any(layer.endswith(".self") for layer in layers):
        is_masked = not config.stack(name).causal and sizes.is_padded
        arrays |= mask_arrays("", context.mask, shape, (width, keys), is_masked)
        arrays |= relative_arrays(config, name, shape[-2], width, keys, context)
    inside = ["decoder.cross"] if any(step.layer == "decoder.rnn" for step in steps) else []
    if crossing := [layer for layer in layers if layer.endswith(".cross")] + inside:
        arrays |= memory_arrays(crossing[0], context, shape, sizes)
    return arrays if sizes.capacity is None else arrays | {"past": np.asarray(context.past, np.int32)}


def recurrent_arrays(steps: Sequence[Step], shape: tuple[int, ...], width: int, context: Context) -> dict[str, Any]:
    """What layers with states read: real tokens, and states unless these are cached.

    shape (..., T) of the tokens; width: T with padding

    DataError for a mask that does not mark the padding of a batch.
    """
    if not any(step.op in ("rnn", *STATES) for step in steps):
        return {}
    arrays, batch = dict[str, Any](), shape if len(shape) == 2 else (1, *shape)
    real = real_tokens(context.mask, *batch)
    if real is not None or width > shape[-1]:
        arrays["real"] = fill(np.ones(batch, bool) if real is None else real, -1, width)
    if context.source_states is not None and not context.past:
        parts = [[part for part in parts if part is not None] for parts in zip(*context.source_states, strict=True)]
        arrays |= {name: tuple(own) for name, own in zip(("source", "source_cell"), parts, strict=True) if own}
    return arrays


def check_first_input(
    config: Config, steps: Sequence[Step], x: Array, context: Context
) -> tuple[Array, tuple[int, ...], int]:
    """Check the first input; return it, the batch shape () or (B,), and its tokens."""
    step = steps[0]
    if step.op == "conv":
        cuts = [config.convolution(one.layer) for one in steps if one.op == "conv"]
        axis = -1 if cuts[0].reads_samples else -2
        kernel = np.broadcast_to(0, (cuts[0].filters, cuts[0].inputs // cuts[0].options.groups, cuts[0].size))
        find_windows(x[..., None] if cuts[0].reads_samples else x, kernel, cuts[0].options)  # its errors
        tokens = reduce(lambda frames, cut: cut.frames(frames), cuts, x.shape[axis])
        return x.astype(context.dtype or x.dtype, copy=False), x.shape[:axis], tokens
    if step.op != "embed":
        return x.astype(context.dtype or x.dtype, copy=False), x.shape[:-2], x.shape[-2]
    if config.patches:
        cut = config.patches
        if x.ndim < 3 or x.shape[-3] != cut.channels:
            from attnkit.model.layers.embeddings import embed_patches

            embed_patches(config, {}, x)  # its error
        context.grid = cut.grid(*x.shape[-2:])
        return x, x.shape[:-3], cut.tokens(*x.shape[-2:])
    ids = check_ids(x, config.stack(parse_layer_name(step.layer)[0]).vocab)
    return ids, ids.shape[:-1], ids.shape[-1]


def mask_arrays(
    prefix: str, mask: Array | None, shape: tuple[int, ...], padded: tuple[int, int], is_masked: bool
) -> dict[str, Array]:
    """The padded mask of scores, True = may attend, and a mask of floats as bias.

    shape      of the scores (..., H, T, S); padded: T and S with padding
    is_masked  whether padded keys are masked, and not left to causality
    """
    queries, keys = padded
    if mask is None:
        if not is_masked:
            return {}
        return {f"{prefix}mask": np.broadcast_to(np.arange(keys) < shape[-1], (*shape[:-3], 1, 1, keys))}
    mask = mask[:, None] if mask.ndim == 3 else mask
    broadcast_mask(mask, None, shape, np.dtype(np.float32))
    if mask.shape[-1:] == (1,):
        mask = np.broadcast_to(mask, (*mask.shape[:-1], shape[-1]))
    allowed = ~np.isneginf(mask) if is_float(mask.dtype) else to_boolean(mask)
    arrays = {f"{prefix}mask": allowed}
    if is_float(mask.dtype):
        arrays[f"{prefix}bias"] = np.where(allowed, mask, 0).astype(np.float32)
    arrays = {name: fill(one, -1, keys) for name, one in arrays.items()}
    has_rows = mask.ndim > 1 and mask.shape[-2] > 1  # not one to broadcast
    return {name: fill(one, -2, queries) for name, one in arrays.items()} if has_rows else arrays


def relative_arrays(
    config: Config, name: str, tokens: int, width: int, keys: int, context: Context
) -> dict[str, Array | tuple[Array, Array]]:
    """Angles of rotary positions, T5 buckets, and rows of a table of distances."""
    positions, arrays = config.positions, dict[str, Any]()
    if positions.kind == "rotary":
        for rules in config.attention_rules.values():
            key = rules.rotation
            if key and rules.stack == name and key not in arrays:
                arrays[key] = tuple(fill(x, -2, width) for x in rotation(config, rules, tokens, context))
    if positions.relative == "alibi":
        rules = config.attention_rules[f"{name}.0.self"]
        arrays["alibi"] = fill(alibi(config, rules, context.past + tokens, context.mask), -1, keys)
    if positions.relative == "t5":
        options = {"buckets": positions.buckets, "max_distance": positions.max_distance}
        distances = np.arange(1 - keys, keys)
        is_bidirectional = not config.stack(name).causal
        arrays["buckets"] = t5_buckets(np.zeros(1, np.int64), distances, bidirectional=is_bidirectional, **options)[0]
    if positions.relative == "disentangled":
        places = np.arange(keys)
        arrays["places"] = distance_rows(places, places, positions.buckets, positions.max_distance)
    return arrays


def memory_arrays(layer: str, context: Context, shape: tuple[int, ...], sizes: Sizes) -> dict[str, Array]:
    """The memory of cross-attention and its mask; DataError if there is none."""
    memory = np.empty((sizes.memory, 0)) if sizes.memory else attention_source(layer, np.empty(0), context)
    count = memory.shape[-2]
    width = sizes.padded(count)
    mask = mask_arrays(
        "memory_", context.memory_mask, (*shape[:-1], count), (shape[-2], width), is_masked=sizes.is_padded
    )
    return mask if sizes.memory else {"memory": fill(memory, -2, width)} | mask


# the inputs that may have an entry for each text, and how many axes they then have
BATCHED = {"x": 1, "types": 2, "positions": 2, "sinusoids": 3, "rotary": 4, "local_rotary": 4, "grid_rotary": 4}
BATCHED |= dict.fromkeys(("real", "source", "source_cell"), 2)
BATCHED |= dict.fromkeys(("mask", "bias", "memory", "memory_mask", "memory_bias"), 3)


def repeat_first(x: Any, axes: int, rows: int, count: int) -> Any:
    """Append copies of the first text to an input with an entry for each text."""
    if isinstance(x, tuple):
        return tuple(repeat_first(part, axes, rows, count) for part in x)
    if x.ndim < axes or len(x) != rows:
        return x
    return np.concatenate([x, np.broadcast_to(x[:1], (count, *x.shape[1:]))])
