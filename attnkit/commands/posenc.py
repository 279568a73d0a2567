"""attnkit posenc: positional encodings: sinusoidal, learned, rotary (RoPE), or a bias (ALiBi, T5)."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from attnkit import model
from attnkit.cli import options
from attnkit.cli.tool import tool
from attnkit.errors import DataError, UsageError
from attnkit.formats.dtypes import check_empty
from attnkit.formats.streams import name_errors
from attnkit.inference import layers
from attnkit.record import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

BIASES = ("alibi", "t5")
KINDS = ("sinusoidal", "learned", "rotary", *BIASES)
SINUSOIDS = {
    "paper": "PE, PE(pos, 2i) = sin(pos / {base}^(2i/D)), PE(pos, 2i+1) = cos(same)",
    "halves": "PE, PE(pos, i) = sin(pos / {base}^(2i/D)), PE(pos, i + D/2) = cos(same)",
}
ROTATION = {
    False: "[x₁ cos − x₂ sin | x₁ sin + x₂ cos], x₁ and x₂ the halves of a head",
    True: "(x₁ cos − x₂ sin, x₁ sin + x₂ cos), x₁ and x₂ the even and odd columns of a head",
}
EXCLUSIVE = [
    *(("model", flag) for flag in ("kind", "alone", "size", "layout", "base")),
    *((flag, "cos") for flag in ("base", "rotary_dim")),
]
REQUIRES = [
    ("layer", "model"),
    ("dim", "size"),
    ("layout", "kind=sinusoidal"),
    ("base", "kind=sinusoidal|rotary"),
    ("table", "kind=learned|t5"),
    ("kind=learned", "table"),
    ("kind=t5", "table"),
    ("heads", "kind=rotary|alibi|t5"),
    *((flag, "kind=rotary") for flag in ("rotary_dim", "interleaved", "cos", "sin")),
    ("cos", "sin"),
    ("sin", "cos"),
    ("max_distance", "kind=t5"),
    ("one_way", "kind=t5"),
]


@tool(
    sections={
        "Positions": "kind model_ layer size dim offset positions alone",
        "Sinusoidal and learned": "layout base table",
        "Rotary": "heads rotary_dim interleaved cos sin",
        "ALiBi and T5": "max_distance one_way",
    },
    exclusive=EXCLUSIVE,
    requires=REQUIRES,
    needs_no_input=lambda flags: flags["size"] is not None,
)
def posenc(
    record: Record | None,
    *,
    kind: Annotated[str, options.choice("which positions", KINDS)] = "sinusoidal",
    model_: Annotated[Any, options.MODEL] = None,
    layer: Annotated[str | None, options.LAYER] = None,
    alone: Annotated[bool, options.switch("x is the encoding itself, not x with it")] = False,
    size: Annotated[
        tuple[int, ...] | None,
        options.integers("no input: the encoding of T positions, or of T queries and S keys", "T[,S]", least=0),
    ] = None,
    dim: Annotated[int | None, options.integer("width of the encoding, with --size", 1, "D")] = None,
    layout: Annotated[
        Literal["paper", "halves"],
        options.choice("sine and cosine in turn, or all sines before all cosines", ("paper", "halves")),
    ] = "paper",
    base: Annotated[float, options.number("base of the wavelengths", above=0)] = 10000.0,
    offset: Annotated[int, options.integer("position of the first token", 0)] = 0,
    positions: Annotated[Record | None, options.tensor("the positions themselves, (T) or (B, T)")] = None,
    table: Annotated[Record | None, options.tensor("learned: positions × model; t5: buckets × heads")] = None,
    heads: Annotated[
        int, options.integer("rotary: x is this many heads side by side; alibi: heads of the bias", 1, "H")
    ] = 1,
    rotary_dim: Annotated[
        int | None, options.integer("rotate only the first R of a head [default: all]", 2, "R")
    ] = None,
    interleaved: Annotated[bool, options.switch("rotary: rotate pairs (0,1), (2,3) …, not the two halves")] = False,
    cos: Annotated[
        Record | None, options.tensor("rotary: cosines, (P, R/2) looked up by position, or (B, T, R/2)")
    ] = None,
    sin: Annotated[Record | None, options.tensor("rotary: sines, shaped like the cosines")] = None,
    max_distance: Annotated[int, options.integer("t5: distance from which all keys share a bucket", 1)] = 128,
    one_way: Annotated[bool, options.switch("t5: buckets of a decoder, for keys before the query alone")] = False,
) -> Record:
    """Encode positions: sinusoidal and learned ones are added to x, rotary ones rotate it.

    PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i+1) = cos(pos / base^(2i/D)).
    ALiBi and T5 positions are a bias on the scores: it goes into the record as `bias`, which
    attend adds to the scores; --alone makes it x. With --model the positions are the model's; where those act
    inside attention, x stays as it is, and `attend --model` sees to them.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit attend --heads 2
    """
    if model_ is not None:
        return add_model_positions(record or Record({}), model_, layer, positions, offset)
    if record is None:
        record, alone = empty_record(kind, size or (0,), dim), True
    x = record["x"]
    token_positions = number_tokens(x, offset, positions)
    if kind in BIASES:
        if token_positions.ndim != 1:
            raise DataError(f"shape {token_positions.shape}: {kind} takes positions of one row (T)", "--positions")
        keys = np.arange(size[-1] if size else offset + x.shape[-2]) if positions is None else token_positions
        if kind == "alibi":
            bias = Tensor(model.alibi_bias(token_positions, keys, heads), formula="−slope(head) · |key − query|")
        else:
            bias = relative_bias(token_positions, keys, check_table(table), heads, max_distance, not one_way)
        return add_bias(record, bias, alone)
    if kind == "rotary":
        angles = token_angles(x, token_positions, heads, rotary_dim, base, cos, sin)
        return replace_by_angles(record, *angles) if alone else rotate_heads(record, *angles, heads, interleaved)
    if kind == "learned":
        rows = check_table(table)
        if rows.shape[1] != x.shape[-1]:
            raise DataError(f"x {x.shape} and table {rows.shape}: width {x.shape[-1]} != {rows.shape[1]}")
        formula, encoding = "table[pos]", partial(model.learned_positions, table=rows)
    else:
        formula = SINUSOIDS[layout].format(base=f"{base:g}")
        encoding = partial(model.sinusoidal_positions, dim=x.shape[-1], layout=layout, base=base)
    if alone:
        return replace_by_encoding(record, Tensor(encoding(token_positions), formula=formula))
    added = model.add_positions(x, token_positions, encoding)
    return record.with_tensors({"x": Tensor(added, record.axes_of("x"), formula="x + " + formula)})


def add_model_positions(
    record: Record, checkpoint: "Checkpoint", layer: str | None, positions: Record | None, offset: int
) -> Record:
    """Add the positions of a model to x; where they act inside attention, return x unchanged."""
    layer, x = layers.find_layer(checkpoint, layer, "posenc"), record["x"]
    width = checkpoint.config.width
    if x.ndim < 2 or x.shape[-1] != width:
        family = checkpoint.config.family
        raise DataError(f"x {x.shape}: the positions of this {family} model are for (T, {width}) or (B, T, {width})")
    context = layers.context_from(record)
    if positions is not None:
        context.positions = model.check_ids(positions["x"], 2**53, "position")
    elif offset:
        usual = np.arange(x.shape[-2]) if context.positions is None else context.positions
        context.positions = layers.positions_after(usual, context.mask, offset, x.shape[-2])
    is_inside = checkpoint.config.positions.kind in ("rotary", "t5")
    formula = "x: these positions act inside attention" if is_inside else "x + positions of the model"
    added = model.apply_positions(layers.core_model(checkpoint), layer, x, context)
    return record.with_tensors({"x": Tensor(added, record.axes_of("x"), formula=formula)})


def empty_record(kind: str, size: tuple[int, ...], dim: int | None) -> Record:
    """Return the record of --size T[,S]: its x has the rows and the width of the encoding."""
    if len(size) > 2 or (len(size) == 2 and kind not in BIASES):
        raise UsageError("T, or T,S with alibi and t5", "--size")
    if dim is None and kind in ("sinusoidal", "rotary"):
        raise UsageError("requires --dim D, the width of the encoding", "--size")
    with name_errors("--size"):
        check_empty((size[0], dim or 1))
    return Record({"x": np.zeros((size[0], dim or 0))})


def number_tokens(x: Array, offset: int, positions: Record | None) -> Array:
    """Return the positions of the tokens of x, (T) or (B, T): those of --positions, else counted from the offset."""
    if x.ndim < 2:
        raise DataError(f"x of shape {x.shape} has no axis of tokens (expected (T, D), (B, T, D) or (B, H, T, D))")
    if positions is None:
        return offset + np.arange(x.shape[-2])
    numbers = model.check_ids(positions["x"], 2**53, "position")
    if numbers.ndim == 0 or numbers.shape[-1] != x.shape[-2]:
        count = numbers.shape[-1] if numbers.ndim else "one"
        raise DataError(f"{count} of them for {x.shape[-2]} tokens", "--positions")
    return numbers


def check_table(table: Record | None) -> Array:
    """Return the table of learned positions or of T5 biases; DataError if it is not a matrix."""
    if table is None:
        raise UsageError("requires --table FILE", "--kind")
    if table["x"].ndim != 2:
        raise DataError(f"shape {table['x'].shape} (expected rank 2)", "--table")
    return table["x"]


def relative_bias(
    queries: Array, keys: Array, table: Array, heads: int, max_distance: int, is_bidirectional: bool
) -> Tensor:
    """Return the T5 bias of queries at positions (T) and keys at positions (S), table (buckets, H) -> (H, T, S)."""
    if heads not in (1, table.shape[1]):
        raise UsageError(f"--table has biases of {table.shape[1]} heads, not of {heads}", "--heads")
    buckets = model.t5_buckets(
        queries, keys, buckets=table.shape[0], max_distance=max_distance, bidirectional=is_bidirectional
    )
    return Tensor(model.t5_bias(buckets, table), formula="table[bucket(key − query), head]")


def add_bias(record: Record, bias: Tensor, alone: bool) -> Record:
    """Add a bias on the scores, (H, T, S), to the record as `bias`; alone: return it as x."""
    array = bias.array.astype(model.output_dtype(record["x"]), copy=False)
    bias = Tensor(array, ("head", "query", "key"), formula=bias.formula)
    if alone:
        return Record({}, history=record.history).with_tensors({"x": bias})
    tokens = record.labels_of("x", record["x"].ndim - 2)
    labels = {"query": tokens, "key": tokens} if tokens and array.shape[-1] == array.shape[-2] else {}
    return record.with_tensors({"bias": bias}, labels)


def token_angles(
    x: Array, positions: Array, heads: int, rotary_dim: int | None, base: float, cos: Record | None, sin: Record | None
) -> tuple[Array, Array]:
    """Return the cosines and sines of the tokens of x: those of files, else of the width of a head."""
    width = x.shape[-1] if x.ndim == 4 else model.split_heads(x, heads).shape[-1]
    if cos is None or sin is None:
        return model.rotary_angles(positions, rotary_dim or width, base)
    return select_angles(cos["x"], sin["x"], positions)


def select_angles(cos: Array, sin: Array, positions: Array) -> tuple[Array, Array]:
    """Return the cosines and sines of the tokens: rows of (P, R/2) by position, or (B, T, R/2) as they are."""
    if cos.shape != sin.shape:
        raise DataError(f"cos {cos.shape} and sin {sin.shape} differ in shape")
    if cos.ndim == 2:
        return model.learned_positions(positions, cos), model.learned_positions(positions, sin)
    return cos, sin


def replace_by_angles(record: Record, cos: Array, sin: Array) -> Record:
    """Return the record with the cosines as x and the sines as `sin`."""
    return record.with_tensors(
        {
            "x": Tensor(cos, formula="cos(pos / base^(2i/R))"),
            "sin": Tensor(sin, formula="sin(pos / base^(2i/R))"),
        }
    )


def rotate_heads(record: Record, cos: Array, sin: Array, heads: int, interleaved: bool) -> Record:
    """Rotate every head of x by the angles of its tokens; (T, D), (B, T, D) or (B, H, T, D)."""
    x = record["x"]
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    split = x if x.ndim == 4 else model.split_heads(x, heads)
    rotated = model.rotate(split, cos, sin, interleaved=interleaved)
    rotated = rotated if x.ndim == 4 else model.merge_heads(rotated)
    return record.with_tensors({"x": Tensor(rotated, record.axes_of("x"), formula=ROTATION[interleaved])})


def replace_by_encoding(record: Record, encoding: Tensor) -> Record:
    """Return the record with the encoding of its tokens, (T, D) or (B, T, D), as x in the dtype of x."""
    axes = record.axes_of("x")[-2:]
    array = encoding.array.astype(model.output_dtype(record["x"]))
    axes = axes if array.ndim == 2 else ("batch", *axes)
    return record.with_tensors({"x": Tensor(array, axes, formula=encoding.formula)})
