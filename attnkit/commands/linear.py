"""attnkit linear: a linear layer, x W + b, and an activation function."""

from collections.abc import Mapping
from typing import Annotated

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.inputs import layers
from attnkit.model.dtypes import cast
from attnkit.model.formulas.activations import apply_activation
from attnkit.records import Array, Record, Tensor


@tool(
    rules=Constraints(
        exclusive=[("params", "model")], requires=[("layer", "model")], one_of=[("params", "model", "activation")]
    )
)
def linear(
    record: Record,
    *,
    params: Annotated[
        Mapping[str, Array] | None,
        options.file("tensors", "weights: w (in, out), and b (out), or the state dict of nn.Linear"),
    ] = None,
    model_: options.Model = None,
    layer: options.Layer = None,
    activation: Annotated[
        str, options.choice(model.ACTIVATIONS, "function of the result; without weights, of x alone")
    ] = "identity",
    add: options.Add = None,
) -> Record:
    """Apply a linear layer to the vector of each token: x W + b.

    The weights w (in, out) and b (out) come from a file (--params) or from a model (--model and --layer), such as the
    projection of ALBERT's and ELECTRA's narrow embeddings to the width of the layers. A weight w (D) is a diagonal
    matrix, a factor for each feature, such as the layer scale of DINOv2. --activation applies a function to the result;
    without weights, to x alone.

    \b
    Example:
      attnkit embed "The cat sat" --dim 4 | attnkit linear --params projection.npz
    """
    x, has_weights = record["x"], params is not None or model_ is not None
    weights = layers.linear_weights(params, model_, layer) if has_weights else {}
    callbacks.current().on_parameters(weights)
    callbacks.current().on_operands(weights)
    products = layers.products_of(model_, layer)
    y, formula = x, "x"
    if has_weights:
        y = model.linear(x, weights["w"], weights.get("b"), products=products, can_scale=True)
        formula = ("x W" if weights["w"].ndim > 1 else "x · w") + " + b" * ("b" in weights)
    if activation != "identity":
        activated = apply_activation(activation, cast(y, model.working(y)))
        y, formula = activated.astype(model.output_dtype(x), copy=False), f"{activation}({formula})"
    if add is not None:
        y, formula = model.add(y, add["x"]), f"{formula} + residual"
    return record.with_tensors({"x": Tensor(y, record.tensor("x").axes_like(y.shape), formula=formula)})
