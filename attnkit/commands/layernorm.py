"""attnkit layernorm: layer norm, RMS norm and batch norm."""

from typing import Annotated, Any

from attnkit import model
from attnkit.cli import options
from attnkit.cli.tool import tool
from attnkit.errors import DataError, UsageError
from attnkit.inference import layers
from attnkit.record import Array, Record, Tensor

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
    """Normalize every token's vector to mean 0 and variance 1, times γ, plus β.

    y = (x − mean) / √(var + ε) · γ + β with the population variance. --kind rms leaves out the mean,
    --kind batch takes both down the columns, over all other axes. `--keep residual` keeps what was normalized:
    the pre-norm order adds it again with `attend --add :residual`. With --model and --layer the kind, ε, γ and β
    are the model's.

    \b
    Example:
      echo '[[2, 4, 6, 8]]' | attnkit layernorm --keep mean,inverse_std
    """
    x = record["x"] if residual is None else model.add(record["x"], residual["x"])
    scale, shift = (None if parameter is None else parameter["x"] for parameter in (gamma, beta))
    if model_ is not None:
        params = model_.params[layers.find_layer(model_, layer, "layernorm")]
        scale, shift, eps, kind = params.get("gamma"), params.get("beta"), model_.config.eps, model_.config.norm
    statistics = running_statistics(mean, variance) if kind == "batch" else {}
    for name, parameter in {"gamma": scale, "beta": shift, **statistics}.items():
        check_parameter(name, parameter, x, axis)
    if kind == "rms":
        normalized = model.rms_norm(x, scale, eps=eps, axis=axis)
    elif kind == "batch":
        normalized = model.batch_norm(
            x, scale, shift, eps=eps, mean=statistics.get("mean"), variance=statistics.get("variance")
        )
    else:
        normalized = model.layer_norm(x, scale, shift, eps=eps, axis=axis)
    source = "x" if residual is None else "x + FILE"
    formula = FORMULAS[kind] + ("" if residual is None else f", of {source}")
    axes = record.axes_of("x") if x.ndim == record["x"].ndim else None
    tensors = {"x": Tensor(normalized.y, axes, formula=formula)}
    intermediates = describe_intermediates(normalized, x, axes, source, kind)
    for name in keep:
        if name not in intermediates:
            raise UsageError(f"--kind {kind} computes no {name}", "--keep")
        tensors[name] = intermediates[name]
    return record.with_tensors(tensors)


def running_statistics(mean: Record | None, variance: Record | None) -> dict[str, Array]:
    """Return the running mean and variance of batch normalization, as far as there are any."""
    records = {"mean": mean, "variance": variance}
    return {name: record["x"] for name, record in records.items() if record is not None}


def check_parameter(name: str, parameter: Array | None, x: Array, axis: int) -> None:
    """Raise DataError for a parameter that is not shaped like the normalized axes of x."""
    if parameter is None or not -x.ndim <= axis < x.ndim:
        return
    expected = x.shape[axis % x.ndim :]
    if parameter.shape != expected:
        raise DataError(f"{name} {parameter.shape}: expected {expected}, the normalized axes of x {x.shape}")


def describe_intermediates(
    normalized: model.Normalized, x: Array, axes: tuple[str, ...] | None, source: str, kind: str
) -> dict[str, Tensor]:
    """Return what --keep can add to the record, with axes and formulas; rms has no mean.

    x, source  what was normalized, and its name in formulas
    """
    over = None if axes is None else statistic_axes(axes, normalized.inverse_std.shape, x.shape)
    inverse = "1/√(mean(x²) + ε)" if kind == "rms" else "1/√(var + ε)"
    tensors = {
        "inverse_std": Tensor(normalized.inverse_std, over, formula=inverse),
        "residual": Tensor(x, axes, formula=source),
    }
    if normalized.mean is not None:
        tensors["mean"] = Tensor(normalized.mean, over, formula=f"mean({source})")
    return tensors


def statistic_axes(axes: tuple[str, ...], shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[str, ...]:
    """Return the axis names of a statistic: a normalized axis, now of size 1, is renamed and so has no labels.

    >>> statistic_axes(("token", "model"), (3, 1), (3, 4))
    ('token', 'over model')
    """
    sizes = zip(axes, shape, whole, strict=True)
    return tuple(axis if size == before else f"over {axis}" for axis, size, before in sizes)
