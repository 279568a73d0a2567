"""The data of a page, as JSON; architecture of the page: help/exploring.md.

{
  "traces":     [TRACE, ...]          records side by side: a batch, a stream, two files, steps of training
  "difference": DIFFERENCE or null    of the first two traces
}
TRACE = {
  "name":      the file, and the number of the record in it where there are several
  "labels":    {axis: [word, ...]}    spelled plain, unprintable characters escaped
  "attention": [LAYER, ...]           in the order of the record
  "stages":    [STAGE, ...]           every tensor, in the order of the record
  "history":   [command, ...]
}
LAYER = {
  "name": "encoder.0.self",  "queries": axis,  "keys": axis,  "shape": [heads, queries, keys],  "causal": bool,
  "kinds": [{"kind": "previous", "measure": 0.93}, ...] one a head,
  "map": MAP,  "largest": {"count": K, "keys": BLOB uint16 or uint32 (H, T, K), "values": BLOB float32 (H, T, K)}
}
MAP is one of
  {"form": "float32", "values": BLOB (H, T, S)}
  {"form": "bytes",   "scale": BLOB float32 (H, T), "values": BLOB uint8 (H, T, S)}    255: not finite
  {"form": "signed",  "scale": BLOB float32 (H, T), "values": BLOB int8 (H, T, S)}     -128: not finite
  {"form": "pooled",  "block": [rows, columns], "shape": [H, rows, columns], "scale": BLOB float32 (H,),
   "values": BLOB uint8 (H, rows, columns)}    at most; 255: not finite
BLOB: the bytes of an array, little-endian, compressed (RFC 1950), in base64.
STAGE = {"name", "axes", "shape", "dtype", "min", "max", "mean", "std", "norm", "zeros", "nan", "inf"}
DIFFERENCE = {"heads": [...], "rows": [[...]], "lines": [...], "attention": [LAYER without kinds, map of A - B, ...]}
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.display.explore.matrices import Array, pack_bytes, pack_exact, pack_largest, pack_pooled

EXACT = 250_000  # most weights of a page that are kept as they are
WHOLE = 6_000_000  # most weights of a page that are kept in 8 bits
LARGEST = 8  # of a row that are kept as they are, where the others are not
ROWS = 600_000  # most of these in a page, but one a row


class Attention(NamedTuple):
    """The attention of a layer: weights (H, T, S), or A - B of two traces, with the kind of each head and its measure.

    queries, keys  the axes whose labels are the words
    """

    name: str
    weights: Array
    queries: str
    keys: str
    kinds: Sequence[str] = ()
    measures: Sequence[float] = ()


class ExploredTrace(NamedTuple):
    """A record to explore: its words by axis, its layers of attention, facts of its tensors, and its commands."""

    name: str
    labels: Mapping[str, Sequence[str]]
    attention: Sequence[Attention]
    stages: Sequence[Mapping[str, Any]]
    history: Sequence[str]


class Difference(NamedTuple):
    """How two traces differ: a table of stages, its first row the headings, lines on it, and A - B of the weights."""

    rows: Sequence[Sequence[str]]
    lines: Sequence[str]
    attention: Sequence[Attention]


def pack_traces(
    traces: Sequence[ExploredTrace], difference: Difference | None = None, is_exact: bool = False
) -> dict[str, Any]:
    """Return the data of a page of traces.

    is_exact  keep all weights as they are, however many there are
    """
    layers = [layer for trace in traces for layer in trace.attention]
    cells, rows = (sum(int(np.prod(one.weights.shape[:end])) for one in layers) for end in (3, 2))
    form = "exact" if is_exact or cells <= EXACT else "bytes" if cells <= WHOLE else "pooled"
    count = max(1, min(LARGEST, ROWS // max(rows, 1)))
    return {
        "traces": [_pack_trace(trace, form, count) for trace in traces],
        "difference": difference and _pack_difference(difference, form, count),
    }


def _pack_trace(trace: ExploredTrace, form: str, count: int) -> dict[str, Any]:
    return trace._asdict() | {"attention": [_pack_layer(layer, form, count) for layer in trace.attention]}


def _pack_layer(layer: Attention, form: str, count: int) -> dict[str, Any]:
    """Return a layer; a weight below 0, which no softmax gives, is kept as it is."""
    weights = layer.weights
    is_causal = weights.shape[1] == weights.shape[2] > 1 and not np.triu(weights, 1).any()
    pairs = zip(layer.kinds, layer.measures, strict=True)
    return {
        "name": layer.name,
        "queries": layer.queries,
        "keys": layer.keys,
        "shape": list(weights.shape),
        "causal": bool(is_causal),
        "kinds": [{"kind": kind, "measure": measure if np.isfinite(measure) else None} for kind, measure in pairs],
        "map": _pack_map(weights, form),
        "largest": None if form == "exact" else pack_largest(weights, count),
    }


def _pack_map(weights: Array, form: str) -> dict[str, Any]:
    if form == "exact":
        return pack_exact(weights)
    return pack_bytes(weights) if form == "bytes" else pack_pooled(weights)


def _pack_difference(difference: Difference, form: str, count: int) -> dict[str, Any]:
    heads, *rows = difference.rows or [[]]
    layers = [
        _pack_layer(layer, "exact", count)
        | {"map": pack_exact(layer.weights) if form == "exact" else pack_bytes(layer.weights, is_signed=True)}
        for layer in difference.attention
    ]
    return {"heads": heads, "rows": rows, "lines": difference.lines, "attention": layers}
