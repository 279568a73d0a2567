"""attnkit posenc: positions."""

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
from attnkit.record import Array, Record

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

BIASES = ("alibi", "t5")
KINDS = ("sinusoidal", "learned", "rotary", *BIASES)
KINDS_OF_FLAG = {
    "layout": ("sinusoidal",),
    "base": ("sinusoidal", "rotary"),
    "table": ("learned", "t5"),
    "heads": ("rotary", *BIASES),
    "rotary_dim": ("rotary",),
    "interleaved": ("rotary",),
    "cos": ("rotary",),
    "sin": ("rotary",),
    "max_distance": ("t5",),
    "one_way": ("t5",),
}
DEFAULTS = {"layout": "paper", "base": 10000.0, "heads": 1, "max_distance": 128}  # else None or False


EXCLUSIVE = [("model", flag) for flag in ("kind", "alone", "size", "layout", "base")]
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


@tool(exclusive=EXCLUSIVE, requires=REQUIRES, alone=lambda given: given["size"] is not None)
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
    """Positions: sinusoidal and learned ones are added to x, rotary ones rotate it.

    PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i+1) = cos(pos / base^(2i/D)).
    ALiBi and T5 positions are a bias on the scores: it goes into the record as `bias`, which
    attend adds to the scores; --alone makes it x. With --model the positions are the model's; where those act
    inside attention, x stays as it is, and `attend --model` sees to them.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit attend --heads 2
    """
    given = {
        "layout": layout, "base": base, "table": table, "heads": heads, "rotary_dim": rotary_dim,
        "interleaved": interleaved, "cos": cos, "sin": sin, "max_distance": max_distance, "one_way": one_way,
    }  # fmt: skip
    check_flags(given, kind, model_ is not None, alone)
    if model_ is not None:
        return of_model(record, model_, layer, positions, offset)
    if record is None:
        record, alone = made(kind, size or (0,), dim), True
    x = record["x"]
    if x.ndim < 2:
        raise DataError(f"x of shape {x.shape} has no axis of tokens (expected (T, D), (B, T, D) or (B, H, T, D))")
    where = offset + np.arange(x.shape[-2]) if positions is None else model.check_ids(positions["x"], 2**53, "position")
    if where.ndim == 0 or where.shape[-1] != x.shape[-2]:
        raise DataError(f"{where.shape[-1] if where.ndim else 'one'} of them for {x.shape[-2]} tokens", "--positions")
    if kind in BIASES:
        keys = np.arange(size[-1] if size else offset + x.shape[-2]) if positions is None else where
        if where.ndim != 1:
            raise DataError(f"shape {where.shape}: {kind} takes positions of one row (T)", "--positions")
        if kind == "alibi":
            return biased(record, model.alibi_bias(where, keys, heads), "−slope(head) · |key − query|", alone)
        if heads not in (1, needed(table, kind).shape[1]):
            raise UsageError(f"--table has biases of {needed(table, kind).shape[1]} heads, not of {heads}", "--heads")
        buckets = model.t5_buckets(
            where,
            keys,
            buckets=needed(table, kind).shape[0],
            max_distance=max_distance,
            bidirectional=not one_way,
        )
        return biased(record, model.t5_bias(buckets, needed(table, kind)), "table[bucket(key − query), head]", alone)
    if kind == "rotary":
        width = x.shape[-1] if x.ndim == 4 else model.split_heads(x, heads).shape[-1]
        angles = (
            model.rotary_angles(where, rotary_dim or width, base)
            if cos is None and sin is None
            else looked_up(cos, sin, where)
        )
        if alone:
            return record.put(
                {"x": angles[0], "sin": angles[1]},
                formulas={"x": "cos(pos / base^(2i/R))", "sin": "sin(pos / base^(2i/R))"},
            )
        return record.put(
            {"x": rotated(x, *angles, heads, interleaved)},
            {"x": record.axes_of("x")},
            formulas={"x": ROTATION[interleaved]},
        )
    if kind == "learned":
        formula, width = "table[pos]", needed(table, kind).shape[1]
        encoding = partial(model.learned_positions, table=needed(table, kind))
    else:
        formula, width = SINUSOIDS[layout].format(base=f"{base:g}"), x.shape[-1]
        encoding = partial(model.sinusoidal_positions, dim=width, layout=layout, base=base)
    if width != x.shape[-1]:
        raise DataError(f"x {x.shape} and table {needed(table, kind).shape}: width {x.shape[-1]} != {width}")
    if alone:
        axes = record.axes_of("x")
        axes = (axes[-2], axes[-1]) if where.ndim == 1 else ("batch", axes[-2], axes[-1])
        return record.put({"x": encoding(where).astype(model.output_dtype(x))}, {"x": axes}, formulas={"x": formula})
    added = model.add_positions(x, where, encoding)
    return record.put({"x": added}, {"x": record.axes_of("x")}, formulas={"x": "x + " + formula})


def check_flags(given: dict[str, Any], kind: str, by_model: bool, alone: bool) -> None:
    """Refuse a flag that positions of this kind, or those of a model, do not use; UsageError names the flag."""
    for name, kinds in KINDS_OF_FLAG.items():
        value, flag = given[name], "--" + name.replace("_", "-")
        if value is None or value is False or (name in DEFAULTS and value == DEFAULTS[name]):
            continue
        if by_model:
            raise UsageError(f"--model DIR and {flag}: one or the other")
        if kind not in kinds:
            raise UsageError(f"goes with --kind {' or '.join(kinds)}, not with {kind}", flag)
    if by_model and (alone or kind != "sinusoidal"):
        raise UsageError(f"--model DIR and --{'alone' if alone else 'kind'}: one or the other")


def of_model(
    record: Record | None, checkpoint: "Checkpoint", layer: str | None, given: Record | None, offset: int
) -> Record:
    """x with the positions of a model: added, or, where they act inside attention, x as it is."""
    if record is None:
        raise UsageError("--model needs an input")
    layer, x = layers.find_layer(checkpoint, layer, "posenc"), record["x"]
    width = checkpoint.config.width
    if x.ndim < 2 or x.shape[-1] != width:
        family = checkpoint.config.family
        raise DataError(f"x {x.shape}: the positions of this {family} model are for (T, {width}) or (B, T, {width})")
    context = layers.context_from(record)
    if given is not None:
        context.positions = model.check_ids(given["x"], 2**53, "position")
    elif offset:
        usual = np.arange(x.shape[-2]) if context.positions is None else context.positions
        context.positions = layers.positions_after(usual, context.mask, offset, x.shape[-2])
    inner = checkpoint.config.positions.kind in ("rotary", "t5")
    formula = "x: these positions act inside attention" if inner else "x + positions of the model"
    added = model.apply_positions(layers.core_model(checkpoint), layer, x, context)
    return record.put({"x": added}, {"x": record.axes_of("x")}, formulas={"x": formula})


SINUSOIDS = {
    "paper": "PE, PE(pos, 2i) = sin(pos / {base}^(2i/D)), PE(pos, 2i+1) = cos(same)",
    "halves": "PE, PE(pos, i) = sin(pos / {base}^(2i/D)), PE(pos, i + D/2) = cos(same)",
}
ROTATION = {
    False: "[x₁ cos − x₂ sin | x₁ sin + x₂ cos], x₁ and x₂ the halves of a head",
    True: "(x₁ cos − x₂ sin, x₁ sin + x₂ cos), x₁ and x₂ the even and odd columns of a head",
}


def made(kind: str, size: tuple[int, ...], dim: int | None) -> Record:
    """The empty record of --size T[,S]: its x has the rows and the width of the encoding."""
    if len(size) > 2 or (len(size) == 2 and kind not in BIASES):
        raise UsageError("T, or T,S with alibi and t5", "--size")
    if dim is None and kind in ("sinusoidal", "rotary"):
        raise UsageError("--dim D says how wide the encoding is", "--size")
    with name_errors("--size"):
        check_empty((size[0], dim or 1))
    return Record({"x": np.zeros((size[0], dim or 0))})


def needed(table: Record | None, kind: str) -> Array:
    """The table of learned positions or of T5 biases."""
    if table is None:
        raise UsageError(f"--kind {kind} needs --table FILE")
    if table["x"].ndim != 2:
        raise DataError(f"shape {table['x'].shape} (expected rank 2)", "--table")
    return table["x"]


def looked_up(cos: Record | None, sin: Record | None, positions: Array) -> tuple[Array, Array]:
    """Cosines and sines from files: rows (P, R/2) looked up by position, or given for each token (B, T, R/2)."""
    if cos is None or sin is None:
        raise UsageError("--cos FILE and --sin FILE go together")
    if cos["x"].shape != sin["x"].shape:
        raise DataError(f"cos {cos['x'].shape} and sin {sin['x'].shape} differ in shape")
    if cos["x"].ndim == 2:
        return model.learned_positions(positions, cos["x"]), model.learned_positions(positions, sin["x"])
    return cos["x"], sin["x"]


def rotated(x: Array, cos: Array, sin: Array, heads: int, interleaved: bool) -> Array:
    """Every head of x rotated by the angles of its tokens; (T, D), (B, T, D) or (B, H, T, D)."""
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    if x.ndim == 4:
        return model.rotate(x, cos, sin, interleaved=interleaved)
    return model.merge_heads(model.rotate(model.split_heads(x, heads), cos, sin, interleaved=interleaved))


def biased(record: Record, bias: Array, formula: str, alone: bool) -> Record:
    """The record with a bias on the scores, (H, T, S): as `bias`, or as x."""
    bias = bias.astype(model.output_dtype(record["x"]), copy=False)
    axes = ("head", "query", "key")
    if alone:
        return Record({"x": bias}, {"x": axes}, history=record.history, formulas={"x": formula})
    tokens = record.labels_of("x", record["x"].ndim - 2)
    labels = {"query": tokens, "key": tokens} if tokens and bias.shape[-1] == bias.shape[-2] else {}
    return record.put({"bias": bias}, {"bias": axes}, labels, {"bias": formula})
