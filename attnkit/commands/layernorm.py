"""attnkit layernorm: layer norm, RMS norm and batch norm."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.errors import DataError, UsageError
from attnkit.inputs import intermediates, layers
from attnkit.model.intermediates import kept_names, step_names
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

FORMULAS = {
    "layer": "(x − mean) · 1/√(var + ε) · γ + β, over the last axes",
    "rms": "x · 1/√(mean(x²) + ε) · γ, over the last axes",
    "batch": "(x − mean) · 1/√(var + ε) · γ + β, down each column",
}

STEPS, KEPT = step_names("layernorm"), kept_names("layernorm")
STATISTICS = tuple(name for name in KEPT if name in STEPS)
Norm = Callable[[Array, Array | None, Array | None], model.Normalized]  # of x, γ and β


def _stated_by_model(checkpoint: "Checkpoint", flags: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": checkpoint.config.norm, "eps": checkpoint.config.eps}


@tool(
    rules=Constraints(
        exclusive=[
            *(("model", flag) for flag in ("params", "gamma", "beta", "axis")),
            *(("params", flag) for flag in ("gamma", "beta", "mean", "variance")),
            ("branch", "add"),
            ("branch", "add_after"),
            ("kind=rms", "beta"),
            ("kind=batch", "axis"),
        ],
        requires=[("layer", "model"), ("mean", "kind=batch"), ("variance", "kind=batch")],
        repeats={"model": ("kind eps", _stated_by_model)},
    )
)
def layernorm(
    record: Record,
    *,
    kind: Annotated[
        str,
        options.choice(
            FORMULAS, "layer: over the last axes; rms: without the mean; batch: each feature over all other axes"
        ),
    ] = "layer",
    gamma: Annotated[
        Record | None, options.file("tensor", "scale γ, with the shape of the normalized axes [default: 1]")
    ] = None,
    beta: Annotated[Record | None, options.file("tensor", "shift β, with the shape of γ [default: 0]")] = None,
    params: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors", "gamma and beta, and for batch mean and variance; or the state dict of nn.LayerNorm or RMSNorm"
        ),
    ] = None,
    eps: Annotated[float, typer.Option(click_type=options.ABOVE_0, help="ε, added to the variance")] = 1e-5,
    axis: Annotated[int, typer.Option(help="first axis to normalize; all axes after it are normalized too")] = -1,
    mean: Annotated[
        Record | None, options.file("tensor", "batch: running mean, instead of the mean of the batch")
    ] = None,
    variance: Annotated[
        Record | None, options.file("tensor", "batch: running variance, instead of the variance of the batch")
    ] = None,
    model_: options.Model = None,
    layer: options.Layer = None,
    add: Annotated[Record | None, options.file("tensor", "add FILE to x, then normalize the sum")] = None,
    add_after: Annotated[
        Record | None, options.file("tensor", "add FILE to the result; after a norm of a sub-layer's result :residual")
    ] = None,
    branch: Annotated[
        Record | None,
        options.file("tensor", "normalize FILE instead of x, and keep x as residual; in a parallel block :residual"),
    ] = None,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "add to the record: mean, variance (rms: mean_square), inverse_std, residual (the input of the "
            "normalization); all",
            (*KEPT, "all"),
        ),
    ] = (),
    steps: options.Steps = False,
) -> Record:
    """Normalize each vector to mean 0 and variance 1, then multiply by γ and add β.

    y = (x − mean) / √(var + ε) · γ + β with the population variance. --kind rms does not subtract the mean; --kind
    batch normalizes each feature over all other axes. `--keep residual` keeps the input of the normalization; in
    the pre-norm order, `attend --add :residual` adds it to the output of the sub-layer. Where the result of a
    sub-layer is normalized, --add-after adds what `attend --keep residual` kept. With --model and --layer, kind, ε, γ
    and β come from the model.

    \b
    Example:
      echo '[[2, 4, 6, 8]]' | attnkit layernorm --keep mean,inverse_std
    """
    before = record
    if branch is not None:
        record = record.with_tensors({"x": branch.tensors["x"]})
    x = record["x"] if add is None else model.add(record["x"], add["x"])
    files = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    given: Mapping[str, Array] = {name: one["x"] for name, one in files.items() if one is not None}
    if model_ is not None:
        given = model_.params[layers.find_layer(model_, layer, "layernorm")]
        eps, kind = model_.config.eps, model_.config.norm
    elif params is not None:
        given = {**read_norm_parameters(params, kind), **given}
    parameters = {name: given[name] for name in files if name in given}
    scale, shift = parameters.get("gamma"), parameters.get("beta")
    statistics = {name: one for name, one in parameters.items() if name in ("mean", "variance")}
    callbacks.current().on_parameters(parameters)
    callbacks.current().on_operands(layers.NormOperands(kind, eps, axis, scale, shift, **statistics))
    for name, parameter in parameters.items():
        check_parameter(name, parameter, x, axis)
    norm = choose_norm(kind, eps, axis, statistics)
    normalized = norm(x, scale, shift)
    source = "x" if add is None else "x + FILE"
    formula = FORMULAS[kind] + ("" if add is None else f", of {source}")
    axes = record.axes_of("x") if x.ndim == record["x"].ndim else None
    requested, listener = (*keep, *STEPS * steps), callbacks.current().on_intermediates
    has_variance = listener is not None or not {"variance", "mean_square", "all"}.isdisjoint(requested)
    spread = compute_variance(normalized, x, axis, kind, statistics.get("variance")) if has_variance else None
    computed = describe_statistics(normalized, spread, x.shape, axes, source)
    computed["residual"] = Tensor(x, axes, formula=source)
    if listener:
        listener(record.with_tensors(computed))
    if steps:
        scaling, formula = describe_scaling(x, axes, norm, scale, shift, centred(source, kind))
        computed |= scaling
    selection = select_intermediates(computed, requested, keep, kind)
    if branch is not None:
        selection["residual"] = before.tensors["x"]
    scale_after = layers.result_scale(model_, layer, add_after is not None)
    result = model.scaled(normalized.y, scale_after)
    formula = f"{scale_after:g} ({formula})" * (scale_after != 1) or formula
    if add_after is not None:
        result = model.add(result, add_after["x"])
        formula += " + FILE"
    return record.with_tensors({"x": Tensor(result, axes, formula=formula), **selection})


def read_norm_parameters(params: Mapping[str, Array], kind: str) -> Mapping[str, Array]:
    """The parameters of a file by their own names or PyTorch's; DataError for others."""
    if "gamma" not in params:
        from attnkit.inputs.torch_parameters import read_torch_parameters

        params = read_torch_parameters(params, "layernorm")
    known = ("gamma", *("beta",) * (kind != "rms"), *("mean", "variance") * (kind == "batch"))
    if "gamma" not in params:
        raise DataError(f"no gamma (it has {join_names([*params])})", "--params")
    if unknown := [name for name in params if name not in known]:
        raise DataError(f"{unknown[0]} is not a parameter of --kind {kind} ({', '.join(known)})", "--params")
    return params


def select_intermediates(
    computed: dict[str, Tensor], requested: tuple[str, ...], keep: tuple[str, ...], kind: str
) -> dict[str, Tensor]:
    if "all" in keep:
        return computed
    if missing := next((name for name in keep if name not in computed), None):
        raise UsageError(f"--kind {kind} computes no {missing}", "--keep")
    return {name: one for name, one in computed.items() if name in requested}


def choose_norm(kind: str, eps: float, axis: int, statistics: dict[str, Array]) -> Norm:
    if kind == "rms":
        return lambda x, scale, shift: model.rms_norm(x, scale, eps=eps, axis=axis)
    if kind == "batch":
        return lambda x, scale, shift: model.batch_norm(x, scale, shift, eps=eps, **statistics)
    return lambda x, scale, shift: model.layer_norm(x, scale, shift, eps=eps, axis=axis)


def check_parameter(name: str, parameter: Array, x: Array, axis: int) -> None:
    """Raise DataError unless a parameter has the shape of the normalized axes of x."""
    if -x.ndim <= axis < x.ndim and parameter.shape != (expected := x.shape[axis % x.ndim :]):
        raise DataError.about(name, f"{parameter.shape}: expected {expected}, the normalized axes of x {x.shape}")


def compute_variance(normalized: model.Normalized, x: Array, axis: int, kind: str, running: Array | None) -> Array:
    """The variance, or the mean square of RMS norm, that a norm divides by."""
    if running is not None:
        return running.reshape(normalized.inverse_std.shape)
    return model.square_mean(x, normalized.mean, axis=axis, by_column=kind == "batch")


def describe_statistics(
    normalized: model.Normalized,
    variance: Array | None,
    shape: tuple[int, ...],
    axes: tuple[str, ...] | None,
    source: str,
) -> dict[str, Tensor]:
    """The statistics of a norm with their axes and formulas.

    shape, source  of what was normalized: its shape, and its name in formulas
    """
    over = None if axes is None else intermediates.statistic_axes(axes, normalized.inverse_std.shape, shape)
    if normalized.mean is None:
        formulas = {"mean_square": f"mean({squared(source)})", "inverse_std": "1/√(mean_square + ε)"}
    else:
        formulas = {"mean": f"mean({source})", "variance": f"mean(({source} − mean)²)"}
        formulas["inverse_std"] = "1/√(variance + ε)"
    arrays = {
        "mean": normalized.mean,
        "variance": variance,
        "mean_square": variance,
        "inverse_std": normalized.inverse_std,
    }
    return {
        name: Tensor(array, over, formula=formulas[name])
        for name, array in arrays.items()
        if array is not None and name in formulas
    }


def squared(source: str) -> str:
    """The square of what was normalized, as a formula.

    >>> squared("x"), squared("x + FILE")
    ('x²', '(x + FILE)²')
    """
    return f"{source}²" if source.isalpha() else f"({source})²"


def centred(source: str, kind: str) -> str:
    """What a norm multiplies by the inverse deviation, as a formula.

    >>> centred("x", "layer"), centred("x", "rms"), centred("x + FILE", "rms")
    ('(x − mean)', 'x', '(x + FILE)')
    """
    if kind != "rms":
        return f"({source} − mean)"
    return source if source.isalpha() else f"({source})"


def describe_scaling(
    x: Array, axes: tuple[str, ...] | None, norm: Norm, scale: Array | None, shift: Array | None, dividend: str
) -> tuple[dict[str, Tensor], str]:
    """The steps from the statistics to the result, and the formula of the result.

    The steps are `normalized`, without γ and β, and `scaled`, with γ alone; one that equals the result is left out.
    """
    formula, tensors = f"{dividend} · inverse_std", {}
    if scale is not None:
        tensors["normalized"] = Tensor(norm(x, None, None).y, axes, formula=formula)
        formula = "normalized · γ"
    if shift is not None:
        name = "normalized" if scale is None else "scaled"
        tensors[name] = Tensor(norm(x, scale, None).y, axes, formula=formula)
        formula = f"{name} + β"
    return tensors, formula
