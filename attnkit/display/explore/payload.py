"""The data of a page, as JSON; architecture of the page: help/exploring.md.

{
  "traces":     [TRACE, ...]          records side by side: a batch, a stream, two files, steps of training
  "difference": DIFFERENCE or null    of the first two traces
  "curve":      [{"step", "loss", "held_out_loss", "gradient_norm", …}, ...] or null    of a training run
}
TRACE = {
  "name":      the file, and the number of the record in it where there are several
  "labels":    {axis: [word, ...]}    spelled plain, unprintable characters escaped
  "attention": [LAYER, ...]           in the order of the record
  "stages":    [STAGE, ...]           every tensor, in the order of the record
  "history":   [command, ...]
  "step":      the step of training that it is of, or null
  "lens":      LENS or null
  "picture":   PICTURE or null        null where its tokens are no patches of an image
}
LAYER = {
  "name": "encoder.0.self",  "queries": axis,  "keys": axis,  "shape": [heads, queries, keys],
  "causal": bool,  "signed": bool: whether the map is int8, else uint8,
  "kinds": [{"kind": "previous", "measure": 0.93 or null}, ...] one a head, "" where it is not known; [] of A - B
  "map": MAP,  "largest": LARGEST, or null where the map has all weights as they are
  "parts": PARTS                      intermediates of attention, what the page has room for
}
LARGEST = {"count": K, "keys": BLOB uint16 or uint32 (H, T, K), "values": BLOB float32 (H, T, K)}    no key: none
MAP is one of
  {"form": "exact", "dtype": "float32" or "float64", "values": BLOB of it (H, T, S)}
  {"form": "bytes",   "scale": BLOB float32 (H, T), "values": BLOB (H, T, S)}    a number is its level times its scale
  {"form": "pooled",  "block": [rows, columns], "shape": [H, rows, columns], "scale": BLOB float32 (H,),
   "values": BLOB (H, rows, columns)}    no number of a block is larger in magnitude; "kept": true: no kept number is
PARTS = {"q", "k", "v", "scores", "scaled", "capped", "masked", "heads": PART, ...}
PART is {"shape", "dtype": "float32" or "float64", "values": BLOB of it}, or of what comes of another part
  {"of": "scores", "times": number}    that part times the number, rounded to its dtype; 1: it is the same
  {"of": "capped", "hidden": BLOB}     that part, and -inf where the bytes are 1
LENS = {"layers": [name, ...], "first": position, "shape": [L, T, K], "words": [word, ...],
        "ids": BLOB uint32 (L, T, K) of indices of words, "probabilities": BLOB float32 (L, T, K)}
PICTURE = {"tokens": T, "patches": [index of a token, ...], "grid": [rows, columns],    in the order of the rows
           "box": [left, top, right, bottom] of the patches, as shares of the picture,
           "size": [width, height], "source": data URL}    "source" is "" where the page has no picture
A BLOB is the bytes of an array, little-endian, C order, compressed (RFC 1950) and in base64. Numbers in 8 bits are
levels times a scale: uint8 0 to 254, and 255 for what is not finite; of matrices with both signs int8 -127 to 127, and
-128.
STAGE = {"name", "axes", "shape", "dtype", "min", "max", "mean", "std", "norm", "zeros", "nan", "inf"}
DIFFERENCE = {"heads": [...], "rows": [[...]], "lines": [...], "attention": [LAYER without kinds, map of A - B, ...]}
"""

import base64
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.libraries import import_library
from attnkit.model.intermediates import SQUARE, STEPS
from attnkit.records import Array

EXACT = 250_000  # most weights of a page that are kept as they are
NUMBERS = 330_000  # most weights and numbers of other intermediates together that are kept as they are
WHOLE = 6_000_000  # most weights of a page that are kept in 8 bits
CHAIN = SQUARE[:-1]  # scores to masked, each computed from the one before it
COSTLY = {*STEPS} - {*SQUARE[1:]}  # the other parts cost little
LARGEST = 8  # of a row that are kept as they are, where the others are not
PICTURE_SIDE = 768  # most pixels of a side of a picture
SIDE = 128  # most blocks of a pooled map on each side
FAST = 1  # level of compression
ROWS = 600_000  # most of these in a page, but one a row


class Attention(NamedTuple):
    """Weights (H, T, S) of a layer, or A - B, with the kind of each head.

    queries, keys  the axes whose labels are the words
    indices        of weights (H, T, K) the keys, -1 for none; None: these are the weights on all keys
    size           how many keys there are, where some are kept
    parts          other intermediates of the layer by name, in the order of PARTS
    """

    name: str
    weights: Array
    queries: str
    keys: str
    kinds: Sequence[str] = ()
    measures: Sequence[float] = ()
    indices: Array | None = None
    size: int = 0
    parts: Mapping[str, Array] = {}


class Lens(NamedTuple):
    """The likeliest words in each layer: ids and probabilities (L, T, K), words.

    first  the position of the first token
    """

    layers: Sequence[str]
    ids: Array
    probabilities: Array
    words: Mapping[int, str]
    first: int = 0


class Picture(NamedTuple):
    """The patches of an image among `tokens` tokens, and the picture that they are of.

    patches  the indices of their tokens, row by row
    grid     rows and columns
    box      left, top, right and bottom edge of the patches, as shares of the picture
    pixels   (height, width, 3) uint8, None where it is not known
    """

    tokens: int
    patches: Sequence[int]
    grid: tuple[int, int]
    box: Array
    pixels: Array | None


class ExploredTrace(NamedTuple):
    """A record to explore: words by axis, layers, tensors and commands.

    step  the step of training that it is of
    lens  what the head of its model reads in the states of its layers
    picture  its tokens as the patches of an image
    """

    name: str
    labels: Mapping[str, Sequence[str]]
    attention: Sequence[Attention]
    stages: Sequence[Mapping[str, Any]]
    history: Sequence[str]
    step: int | None = None
    lens: Lens | None = None
    picture: Picture | None = None


class Difference(NamedTuple):
    """How two traces differ: a table of stages, lines on it, A - B of weights."""

    rows: Sequence[Sequence[str]]
    lines: Sequence[str]
    attention: Sequence[Attention]


def pack_traces(
    traces: Sequence[ExploredTrace],
    difference: Difference | None = None,
    is_exact: bool = False,
    apply: Callable[..., Iterable[dict[str, Any]]] = map,
) -> dict[str, Any]:
    """The data of a page of traces.

    is_exact  keep all weights and other intermediates of attention as they are, however many there are
    apply     (function, items) -> the values of the function, in order: `map`, or one that uses every core
    """
    layers = [layer for trace in traces for layer in trace.attention]
    layers += difference.attention if difference else []
    cells, rows = (sum(int(np.prod(one.weights.shape[:end])) for one in layers) for end in (3, 2))
    form = "exact" if is_exact or cells <= EXACT else "bytes" if cells <= WHOLE else "pooled"
    count = max(1, min(LARGEST, ROWS // max(rows, 1)))
    detailed = set(map(id, layers if is_exact else _select_detailed(layers, NUMBERS - cells if form == "exact" else 0)))

    def pack_layers(attention: Sequence[Attention]) -> list[dict[str, Any]]:
        return [*apply(lambda layer: _pack_layer(layer, form, count, id(layer) in detailed), attention)]

    packed = [
        trace._asdict()
        | {"attention": pack_layers(trace.attention), "lens": trace.lens and pack_lens(trace.lens)}
        | {"picture": trace.picture and pack_picture(trace.picture)}
        for trace in traces
    ]
    page: dict[str, Any] = {"traces": packed, "difference": None, "curve": None}
    if difference:
        heads, *body = difference.rows or [[]]
        compared = [layer | {"kinds": []} for layer in pack_layers(difference.attention)]
        page["difference"] = {"heads": heads, "rows": body, "lines": difference.lines, "attention": compared}
    return page


def _select_detailed(layers: Sequence[Attention], room: int) -> Iterator[Attention]:
    for layer in layers:
        room -= sum(layer.parts[name].size for name in layer.parts.keys() & COSTLY)
        if room >= 0:
            yield layer


def _pack_layer(layer: Attention, form: str, count: int, has_parts: bool) -> dict[str, Any]:
    weights = layer.weights if form == "exact" else layer.weights.astype(np.float32, copy=False)
    is_square = layer.indices is None and weights.shape[1] == weights.shape[2] > 1
    pairs = zip(layer.kinds, layer.measures, strict=True)
    if layer.indices is not None:
        packed = _pack_top(weights, layer.indices, layer.size, count)
    elif form == "exact":
        packed = {"map": {"form": "exact", **pack_numbers(weights)}, "largest": None}
    else:
        pack = pack_bytes if form == "bytes" else pack_pooled
        packed = {"map": pack(weights), "largest": pack_largest(weights, count)}
    return {
        "parts": pack_parts(layer.parts if has_parts else {}),
        "name": layer.name,
        "queries": layer.queries,
        "keys": layer.keys,
        "shape": [*weights.shape[:2], weights.shape[2] if layer.indices is None else layer.size],
        "causal": is_square and not np.triu(weights, 1).any(),
        "signed": has_signs(weights),
        "kinds": [{"kind": kind, "measure": measure if np.isfinite(measure) else None} for kind, measure in pairs],
        **packed,
    }


def pack_parts(parts: Mapping[str, Array]) -> dict[str, Any]:
    """Pack intermediates of attention, those of the chain by the one before.

    >>> scores = np.array([[1, 2]], np.float32)
    >>> packed = pack_parts({"scores": scores, "scaled": scores / 2, "capped": scores / 2})
    >>> packed["scaled"], packed["capped"]
    ({'of': 'scores', 'times': 0.5}, {'of': 'scaled', 'times': 1.0})
    """
    packed: dict[str, Any] = {}
    before = ""
    for name, array in parts.items():
        numbers = as_packed(array)
        derived = _derive(before, as_packed(parts[before]), numbers) if before and name in CHAIN else None
        packed[name] = derived or {"shape": numbers.shape, **pack_numbers(numbers)}
        before = name if name in CHAIN else before
    return packed


def _derive(name: str, before: Array, numbers: Array) -> dict[str, Any] | None:
    """How a part comes from the one before: a factor, or hidden cells, or None."""
    if numbers.shape != before.shape or numbers.dtype != before.dtype:
        return None
    number = numbers.dtype.type
    at = np.unravel_index(np.argmax(np.abs(before)), before.shape) if before.size else ()
    with np.errstate(all="ignore"):
        ratio = number(numbers[at] / before[at]) if before.size else number(1)
        for times in {number(1), ratio, np.nextafter(ratio, number(0)), np.nextafter(ratio, number(np.inf))}:
            if np.array_equal(before * times, numbers):
                return {"of": name, "times": float(times)}
    hidden = np.isneginf(numbers)
    if hidden.any() and np.array_equal(np.where(hidden, 0, before), np.where(hidden, 0, numbers)):
        return {"of": name, "hidden": blob(hidden.astype(np.uint8))}
    return None


def pack_lens(lens: Lens) -> dict[str, Any]:
    known, places = np.unique(lens.ids, return_inverse=True)
    return {
        "layers": lens.layers,
        "first": lens.first,
        "shape": lens.ids.shape,
        "words": [lens.words.get(int(id), str(id)) for id in known],
        "ids": blob(places.reshape(-1).astype(np.uint32)),
        "probabilities": blob(lens.probabilities.astype(np.float32)),
    }


def pack_picture(picture: Picture) -> dict[str, Any]:
    """Pack the patches of an image and its pixels, shrunk to PICTURE_SIDE."""
    height, width = (0, 0) if picture.pixels is None else picture.pixels.shape[:2]
    return {
        "tokens": picture.tokens,
        "patches": [*picture.patches],
        "grid": [*picture.grid],
        "box": picture.box.tolist(),
        "size": [width, height],
        "source": "" if picture.pixels is None else picture_url(picture.pixels),
    }


def picture_url(pixels: Array) -> str:
    """A picture as a data URL: PNG or JPEG, whichever is smaller."""
    image = import_library("PIL.Image", "image", "a picture").fromarray(pixels)
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    files = {}
    for kind in ("png", "jpeg"):
        data = io.BytesIO()
        image.save(data, kind, quality=90)
        files[kind] = base64.b64encode(data.getvalue()).decode()
    kind = min(files, key=lambda one: len(files[one]))
    return f"data:image/{kind};base64,{files[kind]}"


def _pack_top(weights: Array, keys: Array, size: int, count: int) -> dict[str, Any]:
    """Pack the weights that a record keeps: a map of blocks and the largest."""
    blocks = scatter_blocks(keys, weights, size)
    block = [-(-weights.shape[1] // blocks.shape[1]), -(-size // blocks.shape[2])]
    packed = pack_pooled(blocks) | {"block": block, "kept": True}
    return {"map": packed, "largest": pack_top(keys[..., :count], weights[..., :count], size)}


def blob(array: Array) -> str:
    """An array as a blob.

    >>> zlib.decompress(base64.b64decode(blob(np.array([1.0], np.float32))))
    b'\\x00\\x00\\x80?'
    """
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.data.cast("B") if little.size else b"", FAST)).decode()


def has_signs(weights: Array) -> bool:
    """Whether a finite number is below 0."""
    return bool(np.isfinite(weights[weights < 0]).any())


def pack_numbers(array: Array) -> dict[str, Any]:
    """Pack numbers in float64 or float32: {dtype, values}."""
    numbers = as_packed(array)
    return {"dtype": numbers.dtype.name, "values": blob(numbers)}


def as_packed(array: Array) -> Array:
    """Numbers in the dtype of a page: float64 as it is, others as float32.

    >>> as_packed(np.ones(1)).dtype.name, as_packed(np.ones(1, np.float16)).dtype.name
    ('float64', 'float32')
    """
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def pack_bytes(weights: Array) -> dict[str, Any]:
    """Pack matrices (H, T, S) in 8 bits with a scale a row: {form, scale, values}.

    >>> packed = pack_bytes(np.array([[[0.0, 0.5, 1.0]]], np.float32))
    >>> zlib.decompress(base64.b64decode(packed["values"])), packed["form"]
    (b'\\x00\\x7f\\xfe', 'bytes')
    """
    scale, levels = _quantize(weights, (-1,), has_signs(weights), np.rint)
    return {"form": "bytes", "scale": blob(scale), "values": blob(levels)}


def pack_pooled(weights: Array) -> dict[str, Any]:
    """Pack the largest of each block: {form, block, shape, scale, values}.

    No number of a block is larger in magnitude than its level times the scale of its matrix.
    """
    is_signed = has_signs(weights)
    queries, keys = weights.shape[1:]
    block = [-(-queries // SIDE), -(-keys // SIDE)]
    pooled = _pool(weights, block, np.maximum)
    if is_signed:
        low = _pool(weights, block, np.minimum)
        pooled = np.where(-low > pooled, low, pooled)
    scale, levels = _quantize(pooled, (-2, -1), is_signed, lambda values: np.copysign(np.ceil(np.abs(values)), values))
    return {"form": "pooled", "block": block, "shape": list(pooled.shape), "scale": blob(scale), "values": blob(levels)}


def _pool(weights: Array, block: list[int], reduce: np.ufunc) -> Array:
    """The largest or the smallest of each block: (H, T, S) -> (H, rows, columns)."""
    queries, keys = weights.shape[1:]
    rows = reduce.reduceat(weights, np.arange(0, queries, block[0]), axis=1)
    pooled: Array = reduce.reduceat(rows, np.arange(0, keys, block[1]), axis=2)
    return pooled


def _quantize(
    weights: Array, axes: tuple[int, ...], is_signed: bool, rounded: Callable[[Array], Array]
) -> tuple[Array, Array]:
    most = 127 if is_signed else 254
    finite = np.isfinite(weights)
    values = weights if finite.all() else np.where(finite, weights, 0)
    peak = (np.abs(values) if is_signed else values).max(axis=axes, keepdims=True, initial=0)
    scale = np.nextafter((peak / most).astype(np.float32), np.float32(np.inf))
    levels = rounded(values / scale).clip(-most if is_signed else 0, most)
    kind, hole = (np.int8, -128) if is_signed else (np.uint8, 255)
    return scale.squeeze(axes), np.where(finite, levels, hole).astype(kind)


def pack_largest(weights: Array, count: int) -> dict[str, Any]:
    """Pack the largest numbers of each row, unrounded: {count, keys, values}.

    >>> packed = pack_largest(np.array([[[0.25, 0.75]]], np.float32), 1)
    >>> zlib.decompress(base64.b64decode(packed["keys"])), packed["count"]
    (b'\\x01\\x00', 1)
    """
    count = min(count, weights.shape[-1])
    size = np.abs(weights) if has_signs(weights) else weights
    keys = np.argpartition(size, -count, axis=-1)[..., -count:]
    order = np.argsort(-np.take_along_axis(size, keys, axis=-1), axis=-1, kind="stable")
    keys = np.take_along_axis(keys, order, axis=-1)
    return pack_top(keys, np.take_along_axis(weights, keys, axis=-1), weights.shape[-1])


def pack_top(keys: Array, values: Array, size: int) -> dict[str, Any]:
    """Pack numbers (H, T, K) by their keys, -1 for none: {count, keys, values}."""
    kind = np.uint16 if size < 1 << 16 else np.uint32
    return {"count": keys.shape[-1], "keys": blob(keys.astype(kind)), "values": blob(values.astype(np.float32))}


def scatter_blocks(keys: Array, values: Array, size: int) -> Array:
    """The largest of (H, T, K) in each block of a map: (H, rows, columns).

    >>> scatter_blocks(np.array([[[1, -1], [0, 1]]]), np.array([[[0.5, 0.0], [0.25, 0.75]]]), 2)
    array([[[0.  , 0.5 ],
            [0.25, 0.75]]])
    """
    heads, queries, _ = keys.shape
    high, wide = -(-queries // SIDE), -(-size // SIDE)
    blocks = np.zeros((heads, -(-queries // high), -(-size // wide)), values.dtype)
    head, query = np.arange(heads)[:, None, None], np.arange(queries)[:, None]
    is_key = keys >= 0
    place = np.broadcast_arrays(head, query // high, keys // wide)
    np.maximum.at(blocks, tuple(one[is_key] for one in place), values[is_key])
    return blocks
