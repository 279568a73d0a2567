"""attnkit layernorm: normalization."""

from typing import Annotated, Any

from attnkit import model
from attnkit.cli import options
from attnkit.cli.tool import tool
from attnkit.errors import DataError, UsageError
from attnkit.inference import layers
from attnkit.record import Array, Record

FORMULAS = {
    "layer": "(x − mean) · 1/√(var + ε) · γ + β, over the last axes",
    "rms": "x · 1/√(mean(x²) + ε) · γ, over the last axes",
    "batch": "(x − mean) · 1/√(var + ε) · γ + β, down each column",
}


@tool(
    exclusive=[
        *(("model", flag) for flag in ("kind", "gamma", "beta", "axis")),
        ("kind=rms", "beta"),
        ("kind=batch", "axis"),
    ],
    requires=[("layer", "model"), ("mean", "kind=batch"), ("variance", "kind=batch")],
)
def layernorm(
    record: Record,
    *,
    kind: Annotated[str, options.choice("what is normalized by what", tuple(FORMULAS))] = "layer",
    gamma: Annotated[Record | None, options.tensor("scale γ, shaped like the normalized axes [default: 1]")] = None,
    beta: Annotated[Record | None, options.tensor("shift β, shaped like γ [default: 0]")] = None,
    eps: Annotated[float, options.number("ε, added to the variance", above=0)] = 1e-5,
    axis: Annotated[int, options.integer("first normalized axis; it and all after it")] = -1,
    mean: Annotated[Record | None, options.tensor("batch: a running mean, in place of the batch's")] = None,
    variance: Annotated[Record | None, options.tensor("batch: a running variance, in place of the batch's")] = None,
    model_: Annotated[Any, options.MODEL] = None,
    layer: Annotated[str | None, options.LAYER] = None,
    residual: Annotated[Record | None, options.tensor("x + FILE is normalized")] = None,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "add to the record: mean, inverse_std, residual (what was normalized)",
            ("mean", "inverse_std", "residual"),
        ),
    ] = (),
) -> Record:
    """Layer normalization: every token's vector to mean 0 and variance 1, times γ, plus β.

    y = (x − mean) / √(var + ε) · γ + β with the population variance. --kind rms leaves out the mean,
    --kind batch takes both down the columns, over all other axes. `--keep residual` keeps what was normalized:
    the pre-norm order adds it again with `attend --add :residual`. With --model and --layer the kind, ε, γ and β
    are the model's.

    \b
    Example:
      echo '[[2, 4, 6, 8]]' | attnkit layernorm --keep mean,inverse_std
    """
    x = record["x"]
    if residual is not None:
        x = model.add(x, residual["x"])
    scale, shift = (None if one is None else one["x"] for one in (gamma, beta))
    if model_ is not None:
        params = model_.params[layers.find_layer(model_, layer, "layernorm")]
        scale, shift, eps, kind = params.get("gamma"), params.get("beta"), model_.config.eps, model_.config.norm
    for name, parameter in (("gamma", scale), ("beta", shift)):
        check_shape(name, parameter, x, axis)
    if kind == "rms":
        found = model.rms_norm(x, scale, eps=eps, axis=axis)
    elif kind == "batch":
        given = [None if one is None else one["x"] for one in (mean, variance)]
        for name, parameter in zip(("mean", "variance"), given, strict=True):
            check_shape(name, parameter, x, axis)
        found = model.batch_norm(x, scale, shift, eps=eps, mean=given[0], variance=given[1])
    else:
        found = model.layer_norm(x, scale, shift, eps=eps, axis=axis)
    what = "x + FILE" if residual is not None else "x"
    tensors: dict[str, Array] = {"x": found.y}
    formulas = {"x": FORMULAS[kind] + (", of x + FILE" if residual is not None else "")}
    kept: dict[str, tuple[Array | None, str]] = {
        "mean": (found.mean, f"mean({what})"),
        "inverse_std": (found.inverse_std, "1/√(mean(x²) + ε)" if kind == "rms" else "1/√(var + ε)"),
        "residual": (x, what),
    }
    for name in keep:
        tensor, formula = kept[name]
        if tensor is None:
            raise UsageError(f"--kind {kind} computes no {name}", "--keep")
        tensors[name], formulas[name] = tensor, formula
    axes = {name: record.axes_of("x") for name in tensors if tensors[name].ndim == record["x"].ndim}
    if set(axes) & {"mean", "inverse_std"}:
        axes |= statistic_axes(
            axes["x"], found.inverse_std.shape, x.shape, [n for n in ("mean", "inverse_std") if n in axes]
        )
    return record.put(tensors, axes, formulas=formulas)


def check_shape(name: str, parameter: Array | None, x: Array, axis: int) -> None:
    """DataError for a parameter that is not shaped like the normalized axes of x."""
    if parameter is None or not -x.ndim <= axis < x.ndim:
        return
    wanted = x.shape[axis % x.ndim :]
    if parameter.shape != wanted:
        raise DataError(f"{name} {parameter.shape}: expected {wanted}, the normalized axes of x {x.shape}")


def statistic_axes(
    axes: tuple[str, ...], shape: tuple[int, ...], whole: tuple[int, ...], names: list[str]
) -> dict[str, tuple[str, ...]]:
    """Axis names of a statistic: a normalized axis, now of size 1, has a name of its own and so no labels.

    >>> statistic_axes(("token", "model"), (3, 1), (3, 4), ["mean"])
    {'mean': ('token', 'over model')}
    """
    kept = tuple(axis if now == then else f"over {axis}" for axis, now, then in zip(axes, shape, whole, strict=True))
    return dict.fromkeys(names, kept)
