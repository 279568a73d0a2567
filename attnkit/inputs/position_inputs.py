"""The inputs of positional encodings: positions of tokens, tables, rotary angles."""

from typing import Annotated, NamedTuple

import numpy as np
import typer

from attnkit import model, options
from attnkit.errors import DataError, UsageError, counted
from attnkit.formats.dtypes import byte_count
from attnkit.formats.streams import name_errors
from attnkit.records import Array, Record

BIASES = ("alibi", "t5")  # the kinds of positions that are a bias on the scores


class Placement(NamedTuple):
    """The positions of tokens: one for each, or all from the offset on."""

    offset: Annotated[int, typer.Option(min=0, help="position of the first token")] = 0
    positions: Annotated[Record | None, options.file("tensor", "position of each token, (T) or (B, T)")] = None


class Rotation(NamedTuple):
    """The rotation of the queries and keys of a head by their positions (RoPE)."""

    rotary_dim: Annotated[
        int | None, typer.Option(min=2, metavar="R", help="rotate only the first R columns of each head [default: all]")
    ] = None
    interleaved: Annotated[
        bool, typer.Option(help="rotary: rotate columns in pairs (0,1), (2,3), …, instead of two halves")
    ] = False
    cos: Annotated[
        Record | None, options.file("tensor", "rotary: cosines, (P, R/2) looked up by position, or (B, T, R/2)")
    ] = None
    sin: Annotated[Record | None, options.file("tensor", "rotary: sines, shaped like the cosines")] = None


class PositionOperands(NamedTuple):
    """What the positions of the tokens of x are encoded with.

    positions  (T) or (B, T); is_alone: whether the encoding itself is the result
    table      the rows of learned positions, or the biases of buckets
    keys       (S), of a bias
    angles     cosines and sines
    """

    x: Array
    positions: Array
    is_alone: bool
    table: Array | None = None
    keys: Array | None = None
    angles: tuple[Array, Array] | None = None


def empty_record(kind: str, size: tuple[int, ...], dim: int | None, table: Record | None) -> Record:
    if len(size) > 2 or (len(size) == 2 and kind not in BIASES):
        raise UsageError("T, or T,S with alibi and t5", "--size")
    if dim is None and (kind in ("sinusoidal", "rotary") or (kind == "learned" and table is None)):
        raise UsageError("needs --dim D, the width of the encoding", "--size")
    dim = check_table(table).shape[1] if dim is None and kind == "learned" else dim
    with name_errors("--size"):
        byte_count((size[0], dim or size[-1]), np.dtype(float).itemsize)
    return Record({"x": np.zeros((size[0], dim or 0))})


def number_tokens(x: Array, placement: Placement) -> Array:
    """The positions of the tokens of x, (T) or (B, T): given, or from the offset on."""
    if x.ndim < 2:
        raise DataError(f"x of shape {x.shape} has no token axis (expected (T, D), (B, T, D) or (B, H, T, D))")
    if placement.positions is None:
        return placement.offset + np.arange(x.shape[-2])
    numbers = model.check_ids(placement.positions["x"], 2**53, "position")
    if numbers.ndim == 0 or numbers.shape[-1] != x.shape[-2]:
        count = counted(numbers.shape[-1] if numbers.ndim else 1, "position")
        raise DataError(f"{count} for {counted(x.shape[-2], 'token')}", "--positions")
    return numbers


def find_rows(x: Array, positions: Array, table: Record | None, seed: int | None) -> Array:
    """The table of learned positions, given or drawn.

    A drawn table has a row for each position up to the last: more positions add rows, and change none.
    """
    if seed is None:
        return check_table(table)
    shape = int(positions.max(initial=-1)) + 1, x.shape[-1]
    with name_errors("--positions"):
        byte_count(shape, np.dtype(float).itemsize)
    return np.random.default_rng(seed).standard_normal(shape).astype(model.output_dtype(x))


def check_table(table: Record | None) -> Array:
    if table is None:
        raise UsageError("needs --table FILE", "--kind")
    if table["x"].ndim != 2:
        raise DataError(f"shape {table['x'].shape} (expected rank 2)", "--table")
    return table["x"]


def token_angles(x: Array, positions: Array, heads: int, base: float, rotation: Rotation) -> tuple[Array, Array]:
    """The cosines and sines of the tokens of x: given, or of the width of a head.

    Given ones are (P, R/2), a row for each position, or (B, T, R/2), one for each token.
    """
    width = x.shape[-1] if x.ndim == 4 else model.split_heads(x, heads).shape[-1]
    cos, sin = rotation.cos, rotation.sin
    if cos is None or sin is None:
        return model.rotary_angles(positions, rotation.rotary_dim or width, base)
    if cos["x"].shape != sin["x"].shape:
        raise DataError.about("cos", f"{cos['x'].shape} and sin {sin['x'].shape} differ in shape")
    if cos["x"].ndim != 2:
        return cos["x"], sin["x"]  # (B, T, R/2)
    return model.learned_positions(positions, cos["x"]), model.learned_positions(positions, sin["x"])
