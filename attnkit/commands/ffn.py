"""attnkit ffn: the position-wise feed-forward network."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.errors import UsageError
from attnkit.inputs import layers
from attnkit.inputs.layers import NetworkOptions, find_experts, find_ffn_weights, read_ffn_parameters
from attnkit.model.intermediates import INTERMEDIATES as ALL
from attnkit.model.intermediates import kept_names, step_names
from attnkit.records import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

INTERMEDIATES = step_names("ffn")
MIXED = tuple(name for name in kept_names("ffn") if name not in INTERMEDIATES)  # of a mixture of experts


def _stated_by_params(weights: Mapping[str, Array], flags: Mapping[str, Any]) -> dict[str, Any]:
    weights = read_ffn_parameters(weights)
    width = weights["w1"].shape[-1] if "w1" in weights and weights["w1"].ndim else None
    return {"hidden": width, "gated": "w3" in weights}


def _stated_by_model(checkpoint: "Checkpoint", flags: Mapping[str, Any]) -> dict[str, Any]:
    layer = layers.find_layer(checkpoint, flags["layer"], "ffn")
    return _stated_by_params(checkpoint.params[layer], flags) | {"activation": checkpoint.config.activation_of(layer)}


@tool(
    rules=Constraints(
        exclusive=[("params", "model")],
        requires=[("layer", "model"), ("seed", "hidden"), ("experts", "params")],
        one_of=[("params", "model", "hidden")],
        repeats={"params": ("hidden", _stated_by_params), "model": ("hidden gated activation", _stated_by_model)},
    ),
    record_defaults=lambda flags: {"seed": flags["seed"]} if flags["hidden"] is not None else {},
)
def ffn(
    record: Record,
    *,
    network: NetworkOptions,
    residual: options.Residual = False,
    add: options.Add = None,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "add these intermediates to the record, or the input as `residual`; linear and gated: with --gated; "
            "router, chosen and gates: of a mixture of experts",
            (*kept_names("ffn"), "residual", "all"),
        ),
    ] = (),
    steps: options.Steps = False,
) -> Record:
    """Apply a feed-forward network: the same two linear maps at every position.

    FFN(x) = activation(x w1 + b1) w2 + b2. The weights come from a file (--params), from a model (--model and --layer),
    or from a seed: then w1, w2 (and w3) are drawn in this order from N(0, 1/rows), without biases. With --experts K
    the K experts of the largest router logits, x router, compute each token, and their results are added, weighted
    by the softmax of those logits. Intermediates of an earlier ffn are removed from the record.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit layernorm | attnkit ffn --hidden 32 --residual
    """
    x, mixture = record["x"], None
    model_, layer, activation = network.model_, network.layer, network.activation
    if network.experts is not None:
        weights = network.params or {}
        networks, mixture = find_experts(weights, network.experts, network.gated)
    else:
        weights, activation = find_ffn_weights(x, network)
        if model_ is not None and layer is not None and (mixture := model_.config.mixture(layer)):
            networks = model.layer_experts(layers.core_model(model_), layer)
    callbacks.current().on_parameters(weights)
    callbacks.current().on_operands(layers.NetworkOperands(weights, activation, mixture))
    absent = INTERMEDIATES if mixture else (*MIXED, *("linear", "gated") * ("w3" not in weights))
    if missing := sorted({*absent} & {*keep}):
        without = "experts" if {*MIXED} & {*missing} else "a gate"
        what = "mixture of experts" if mixture else f"network without {without}"
        raise UsageError(f"a {what} has no {' and no '.join(missing)}", "--keep")
    listener = callbacks.current().on_intermediates
    names = None if steps or listener or "all" in keep else [name for name in keep if name != "residual"]
    options_: dict[str, Any] = {} if model_ is None or layer is None else model_.config.network_options(layer)
    options_ |= {"activation": activation, "keep": names}
    options_["products"] = layers.products_of(model_, layer)
    if mixture:
        arrays = model.mix_experts(x, networks, mixture, **options_)
    else:
        arrays = model.feed_forward(x, weights, **options_)
    factors = options_.get("limit", 0.0), options_.get("scale", 1.0)
    formulas = mixture_formulas() if mixture else ffn_formulas(weights, activation, *factors)
    output = Tensor(arrays.pop("output"), formula=formulas["output"])
    output = layers.add_residuals(output, x if residual else None, add, layers.result_scale(model_, layer))
    lead = record.axes_of("x")[:-1]
    axes = {name: (*lead, (ALL["ffn"][name].axes or ("hidden",))[-1]) for name in arrays}
    tensors = {name: Tensor(array, axes[name], formula=formulas[name]) for name, array in arrays.items()}
    if listener:
        listener(record.with_tensors(tensors))
        if not steps and "all" not in keep:
            tensors = {name: one for name, one in tensors.items() if name in keep}
    if "residual" in keep:
        tensors["residual"] = replace(record.tensor("x"), formula="x")
    tensors["x"] = replace(output, axes=record.tensor("x").axes_like(output.shape))
    present = [name for name in INTERMEDIATES if name in record]
    earlier = [name for name in present if (record.tensors[name].axes or ())[-1:] == ("hidden",)]
    return record.without(earlier).with_tensors(tensors)


def mixture_formulas() -> dict[str, str]:
    return {name: ALL["ffn"][name].formula for name in MIXED} | {"output": "Σ gates · experts"}


def ffn_formulas(weights: Mapping[str, Array], activation: str, limit: float, scale: float) -> dict[str, str]:
    first, second = (f" + b{digit}" * (name in weights) for name, digit in (("b1", "₁"), ("b2", "₂")))
    factor = f"{scale:g} " * (scale != 1)
    return {
        "hidden": "x W₁" + first,
        "activated": f"{activation}({factor}min(hidden, {limit:g}))" if limit else f"{activation}({factor}hidden)",
        "linear": "x W₃" + " + b₃" * ("b3" in weights),
        "gated": f"activated · (1 + linear between −{limit:g} and {limit:g})" if limit else "activated · linear",
        "output": ("gated" if "w3" in weights else "activated") + " W₂" * ("w2" in weights) + second,
    }
