"""attnkit posenc: positions, added to x, as a rotation (RoPE) or as a bias."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.errors import DataError
from attnkit.inputs import layers
from attnkit.inputs.position_inputs import (
    BIASES,
    Placement,
    PositionOperands,
    Rotation,
    check_table,
    empty_record,
    find_rows,
    number_tokens,
    token_angles,
)
from attnkit.records import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

KINDS = ("sinusoidal", "learned", "rotary", *BIASES)
SINUSOIDS = {
    "paper": "PE, PE(pos, 2i) = sin(pos / {base}^(2i/D)), PE(pos, 2i+1) = cos(same)",
    "halves": "PE, PE(pos, i) = sin(pos / {base}^(2i/D)), PE(pos, i + D/2) = cos(same)",
}
ROTATION = {
    False: "[x₁ cos − x₂ sin | x₁ sin + x₂ cos], x₁ and x₂ the halves of a head",
    True: "(x₁ cos − x₂ sin, x₁ sin + x₂ cos), x₁ and x₂ the even and odd columns of a head",
}
ROTARY_FORMULAS = ("cos(pos / base^(2i/R))", "sin(pos / base^(2i/R))")
FILE_FORMULAS = ("the cosines of --cos", "the sines of --sin")
EXCLUSIVE = [
    *(("model", flag) for flag in ("alone", "size", "table", "seed", "rotary_dim", "interleaved", "cos", "sin")),
    ("table", "seed"),
    ("base", "cos"),
    ("offset", "positions"),
]
REQUIRES = [
    ("layer", "model"),
    ("dim", "kind=sinusoidal|rotary|learned"),
    ("layout", "kind=sinusoidal"),
    ("base", "kind=sinusoidal|rotary"),
    ("table", "kind=learned|t5"),
    ("seed", "kind=learned"),
    ("kind=learned", "table|seed"),
    ("kind=t5", "table"),
    ("heads", "kind=rotary|alibi|t5"),
    *((flag, "kind=rotary") for flag in ("rotary_dim", "interleaved", "cos", "sin")),
    ("cos", "sin"),
    ("sin", "cos"),
    ("max_distance", "kind=t5"),
    ("one_way", "kind=t5"),
]


def _stated_by_model(checkpoint: "Checkpoint", flags: Mapping[str, Any]) -> dict[str, Any]:
    stack = checkpoint.config.stack(model.parse_layer_name(layers.find_layer(checkpoint, flags["layer"], "posenc"))[0])
    positions = checkpoint.config.positions
    described = {"kind": positions.relative or positions.kind, "heads": stack.heads}
    if described["kind"] == "t5":
        described |= {"max_distance": positions.max_distance, "one_way": stack.causal}
    if described["kind"] == "sinusoidal":
        described |= {"layout": positions.layout, "base": positions.base}
    return described | ({"base": positions.rope.get("rope_theta")} if described["kind"] == "rotary" else {})


def _width(record: Record) -> int:
    return sum(record["x"].shape[-1:])


def _stated_by_table(table: Record, flags: Mapping[str, Any]) -> dict[str, Any]:
    """What a table of T5 biases (buckets, heads) says of the options."""
    return {"heads": table["x"].shape[1]} if flags["kind"] == "t5" and table["x"].ndim == 2 else {}


@tool(
    sections={
        "Positions": "kind model_ layer size dim placement alone",
        "Sinusoidal and learned": "layout base table seed",
        "Rotary": "heads rotation",
        "ALiBi and T5": "max_distance one_way",
        "Results": "steps",
    },
    rules=Constraints(
        exclusive=EXCLUSIVE,
        requires=REQUIRES,
        repeats={
            "model": ("kind layout base heads max_distance one_way", _stated_by_model),
            "cos": ("rotary_dim", lambda cos, flags: {"rotary_dim": 2 * _width(cos)}),
            "table": ("heads", _stated_by_table),
            "x": ("dim", lambda record, flags: {"dim": _width(record)}),
        },
    ),
    needs_no_input=lambda flags: flags["size"] is not None,
)
def posenc(
    record: Record | None,
    *,
    kind: Annotated[str, options.choice(KINDS, "kind of positions")] = "sinusoidal",
    model_: options.Model = None,
    layer: options.Layer = None,
    alone: Annotated[bool, typer.Option(help="return the encoding alone, without adding x")] = False,
    size: Annotated[
        tuple[int, ...] | None,
        typer.Option(
            parser=options.parse_whole_numbers,
            metavar="T[,S]",
            help="read no input; encode T positions, or T queries and S keys",
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, metavar="D", help="width of the encoding, with --size")] = None,
    layout: Annotated[
        Literal["paper", "halves"],
        typer.Option(help="paper: sines and cosines alternate; halves: all sines, then all cosines"),
    ] = "paper",
    base: Annotated[float, typer.Option(click_type=options.ABOVE_0, help="base of the wavelengths")] = 10000.0,
    placement: Placement,
    table: Annotated[
        Record | None, options.file("tensor", "learned: table (positions, model); t5: table (buckets, heads)")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="learned: seed of a random table")] = None,
    heads: Annotated[
        int, typer.Option(min=1, metavar="H", help="rotary: number of heads in x; alibi: number of heads of the bias")
    ] = 1,
    rotation: Rotation,
    max_distance: Annotated[int, typer.Option(min=1, help="t5: all distances from N on share one bucket")] = 128,
    one_way: Annotated[bool, typer.Option(help="t5: buckets of a decoder, only for keys before the query")] = False,
    steps: options.Steps = False,
) -> Record:
    """Encode positions: add sinusoidal or learned ones to x, or rotate x.

    PE(pos, 2i) = sin(pos / base^(2i/D)), PE(pos, 2i+1) = cos(pos / base^(2i/D)). ALiBi and T5 positions are a bias on
    the attention scores: posenc adds it to the record as `bias`, and attend adds it to the scores; --alone returns
    it as x. With --model, the model sets the kind of positions. If the model applies them inside attention, x is
    unchanged, and `attend --model` applies them.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit attend --heads 2
    """
    if model_ is not None:
        return add_model_positions(record or Record({}), model_, layer, placement, steps)
    if record is None:
        record, alone = empty_record(kind, size or (0,), dim, table), True
    x = record["x"]
    token_positions, note = number_tokens(x, placement), callbacks.current().on_operands
    if kind in BIASES:
        if token_positions.ndim != 1:
            problem = f"shape {token_positions.shape}: {kind} takes positions of shape (T)"
            raise DataError(problem, "--positions")
        count = size[-1] if size else placement.offset + x.shape[-2]
        keys = np.arange(count) if placement.positions is None else token_positions
        if kind == "alibi":
            note(PositionOperands(x, token_positions, alone))
            return add_bias(record, *make_alibi_bias(token_positions, keys, heads), alone, steps)
        rows = check_table(table)
        note(PositionOperands(x, token_positions, alone, rows, keys))
        return add_bias(record, *relative_bias(token_positions, keys, rows, max_distance, not one_way), alone, steps)
    if kind == "rotary":
        angles = token_angles(x, token_positions, heads, base, rotation)
        note(PositionOperands(x, token_positions, alone, angles=angles))
        described = describe_angles(*angles, ROTARY_FORMULAS if rotation.cos is None else FILE_FORMULAS)
        if alone:
            return record.with_tensors({"x": described["cos"], "sin": described["sin"]})
        rotated = rotate_heads(record, *angles, heads, rotation.interleaved)
        return rotated.with_tensors(described) if steps else rotated
    if kind == "learned":
        rows = find_rows(x, token_positions, table, seed)
        note(PositionOperands(x, token_positions, alone, rows))
        encoding = learned_encoding(x, rows)
        return add_encoding(record, token_positions, encoding, "table[pos]", alone, steps)
    note(PositionOperands(x, token_positions, alone))
    formula = SINUSOIDS[layout].format(base=f"{base:g}")
    encoding = partial(model.sinusoidal_positions, dim=x.shape[-1], layout=layout, base=base)
    result = add_encoding(record, token_positions, encoding, formula, alone, steps)
    return add_sinusoid_steps(result, token_positions, x.shape[-1], base) if steps else result


def learned_encoding(x: Array, rows: Array) -> Callable[[Array], Array]:
    if rows.shape[1] != x.shape[-1]:
        raise DataError(f"x {x.shape} and table {rows.shape}: width {x.shape[-1]} != {rows.shape[1]}")
    return partial(model.learned_positions, table=rows)


def add_encoding(
    record: Record,
    positions: Array,
    encoding: Callable[[Array], Array],
    formula: str,
    alone: bool,
    steps: bool,
) -> Record:
    """Add the encoding of the positions of tokens to x, or return it alone as x.

    steps  whether the record gets the encoding itself too
    """
    if alone:
        return record.with_tensors({"x": as_encoding(record, Tensor(encoding(positions), formula=formula))})
    added = model.add_positions(record["x"], positions, encoding)
    if not steps:
        return record.with_tensors({"x": Tensor(added, record.axes_of("x"), formula="x + " + formula)})
    step = as_encoding(record, Tensor(encoding(positions), formula=formula))
    return record.with_tensors({"encoding": step, "x": Tensor(added, record.axes_of("x"), formula="x + encoding")})


def add_model_positions(
    record: Record, checkpoint: "Checkpoint", layer: str | None, placement: Placement, steps: bool
) -> Record:
    """Add the positions of a model to x, unless they act inside attention."""
    layer, x = layers.find_layer(checkpoint, layer, "posenc"), record["x"]
    width = checkpoint.config.result_width(layer)
    if x.ndim < 2 or x.shape[-1] != width:
        family = checkpoint.config.family
        raise DataError(f"x {x.shape}: the positions of this {family} model are for (T, {width}) or (B, T, {width})")
    context = layers.context_from(record)
    if placement.positions is not None:
        context.positions = model.check_ids(placement.positions["x"], 2**53, "position")
    elif placement.offset:
        usual = np.arange(x.shape[-2]) if context.positions is None else context.positions
        context.positions = layers.positions_after(usual, context.mask, placement.offset, x.shape[-2])
    kind, relative = checkpoint.config.positions.kind, checkpoint.config.positions.relative
    is_inside = kind == "rotary" or (kind == "none" and relative != "")
    formula = "x: these positions act inside attention" if is_inside else "x + positions of the model"
    core, axes, before = layers.core_model(checkpoint), record.axes_of("x"), dict[str, Tensor]()
    callbacks.current().on_operands(layers.LayerOperands(core, model.Step("posenc", layer), x, context))
    added = model.apply_positions(core, layer, x, context)
    if steps and not is_inside:
        encoding = model.apply_positions(core, layer, np.zeros_like(x), context)
        before, formula = {"encoding": Tensor(encoding, axes, formula="positions of the model")}, "x + encoding"
    return record.with_tensors(before | {"x": Tensor(added, axes, formula=formula)})


def make_alibi_bias(queries: Array, keys: Array, heads: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The ALiBi bias (H, T, S) of positions (T) and (S), and its steps."""
    distance = np.abs(queries[:, None] - keys)
    steps = {
        "slope": Tensor(model.alibi_slopes(heads), ("head",), formula="a geometric sequence, down to 2^−8"),
        "distance": Tensor(distance, ("query", "key"), formula="|key − query|"),
    }
    return Tensor(model.alibi_bias(queries, keys, heads), formula="−slope(head) · |key − query|"), steps


def relative_bias(
    queries: Array, keys: Array, table: Array, max_distance: int, is_bidirectional: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The T5 bias (H, T, S) of positions (T) and (S), and its steps.

    table (buckets, H)
    """
    buckets = model.t5_buckets(
        queries, keys, buckets=table.shape[0], max_distance=max_distance, bidirectional=is_bidirectional
    )
    steps = {"bucket": Tensor(buckets, ("query", "key"), formula="bucket(key − query)")}
    return Tensor(model.t5_bias(buckets, table), formula="table[bucket(key − query), head]"), steps


def add_bias(record: Record, bias: Tensor, before: Mapping[str, Tensor], alone: bool, steps: bool) -> Record:
    """Add a bias on the scores, (H, T, S), to the record as `bias`, or as x alone.

    before  the intermediates that it is computed from, added with `steps`
    """
    before = before if steps else {}
    array = bias.array.astype(model.output_dtype(record["x"]), copy=False)
    bias = Tensor(array, ("head", "query", "key"), formula=bias.formula)
    if alone:
        return Record({}, history=record.history).with_tensors({**before, "x": bias})
    tokens = record.labels_of("x", record["x"].ndim - 2)
    labels = {"query": tokens, "key": tokens} if tokens and array.shape[-1] == array.shape[-2] else {}
    return record.with_tensors({**before, "bias": bias}, labels)


def add_sinusoid_steps(record: Record, positions: Array, dim: int, base: float) -> Record:
    """Add the angle of each position and pair, with its sine and cosine."""
    cos, sin = model.rotary_angles(positions, dim, base)
    angle = model.angles(positions, dim, base, "sinusoidal")
    formulas = {"angle": f"pos / {base:g}^(2i/D)", "sine": "sin(angle)", "cosine": "cos(angle)"}
    axes = ("batch", "token", "pair")[3 - angle.ndim :]
    arrays = zip(formulas.items(), (angle, sin, cos), strict=True)
    steps = {name: Tensor(array, axes, formula=formula) for (name, formula), array in arrays}
    encoding = record.tensors.get("encoding")
    return record.without(["encoding"]).with_tensors(steps | ({"encoding": encoding} if encoding else {}))


def describe_angles(cos: Array, sin: Array, formulas: tuple[str, str]) -> dict[str, Tensor]:
    axes = ("batch", "token", "pair")[3 - cos.ndim :]
    return {"cos": Tensor(cos, axes, formula=formulas[0]), "sin": Tensor(sin, axes, formula=formulas[1])}


def rotate_heads(record: Record, cos: Array, sin: Array, heads: int, interleaved: bool) -> Record:
    """Rotate every head of x (T, D), (B, T, D) or (B, H, T, D) by angles."""
    x = record["x"]
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    split = x if x.ndim == 4 else model.split_heads(x, heads)
    rotated = model.rotate(split, cos, sin, interleaved=interleaved)
    rotated = rotated if x.ndim == 4 else model.merge_heads(rotated)
    return record.with_tensors({"x": Tensor(rotated, record.axes_of("x"), formula=ROTATION[interleaved])})


def as_encoding(record: Record, encoding: Tensor) -> Tensor:
    """An encoding of tokens with the axes and the dtype of x."""
    axes = record.axes_of("x")[-2:]
    array = encoding.array.astype(model.output_dtype(record["x"]))
    return Tensor(array, axes if array.ndim == 2 else ("batch", *axes), formula=encoding.formula)
