"""The position-wise feed-forward network, with its adjoint."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.formulas.activations import ACTIVATIONS, activation_with_slope, apply_activation
from attnkit.model.formulas.linear import linear, projection_backward, scaled
from attnkit.model.hooks import Hook, apply_hook, is_requested, no_hook
from attnkit.model.processor.products import PLAIN, Products


@quiet
def feed_forward(
    x: Array,
    params: Mapping[str, Array],
    *,
    activation: str = "relu",
    limit: float = 0.0,
    scale: float = 1.0,
    keep: Collection[str] | None = None,
    hook: Hook = no_hook,
    products: Products = PLAIN,
) -> dict[str, Array]:
    """activation(x W1 + b1) W2 + b2 at every position.

    x (..., D), w1 (D, F), b1 (F,), w2 (F, D), b2 (D,), w3 (D, F), b3 (F,) -> {"output": (..., D), ...}

    If `params` contains w3, the activation is multiplied by x W3 + b3. With a `limit` c, as in gpt-oss, the
    activation is that of min(hidden, c), and it is multiplied by 1 + (x W3 + b3) clipped to -c … c. The activation
    reads `scale` · hidden. The result holds hidden and activated, then linear (x W3 + b3) and gated (activated
    times linear) if gated, then output. `keep` are the intermediates to return beside the output [all]; `hook` may
    read and replace any of them; others are not held in memory. Without w2 the output is what W2 would be applied
    to. Source: Attention Is All You Need, section 3.3; Shazeer 2020 for the gate. DataError if shapes do not match,
    UsageError for an unknown activation.

    >>> one = np.array([[1.0]])
    >>> feed_forward(np.array([[-2.0], [3.0]]), {"w1": one, "w2": 2 * one, "b2": np.array([1.0])})["output"].tolist()
    [[1.0], [7.0]]
    """
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation {activation!r} (expected one of {', '.join(ACTIVATIONS)})")
    w1, w2, w3 = params["w1"], params.get("w2"), params.get("w3")
    b1, b2, b3 = (params.get(name) for name in ("b1", "b2", "b3"))
    check_gate(params)
    arrays = [array for array in (x, w1, w2, b1, b2, w3, b3) if array is not None]
    result, x = output_dtype(x), cast(x, working(*arrays))
    steps = {"hidden": apply_hook(hook, "hidden", linear(x, w1, b1, names=("x", "w1", "b1"), products=products))}
    in_place = not is_requested(keep, hook, "hidden")
    bounded = scaled(np.minimum(steps["hidden"], limit) if limit else steps["hidden"], scale)
    inner = apply_hook(hook, "activated", apply_activation(activation, bounded, in_place=in_place))
    steps["activated"] = inner
    if w3 is not None:
        steps["linear"] = apply_hook(hook, "linear", linear(x, w3, b3, names=("x", "w3", "b3"), products=products))
        side = 1 + np.clip(steps["linear"], -limit, limit) if limit else steps["linear"]
        gated = np.multiply(inner, side, out=None if is_requested(keep, hook, "activated") else inner)
        inner = steps["gated"] = apply_hook(hook, "gated", gated)
    steps["output"] = apply_hook(hook, "output", linear(inner, w2, b2, names=("hidden", "w2", "b2"), products=products))
    returned = [name for name in steps if name == "output" or keep is None or name in keep]
    return {name: steps[name].astype(result, copy=False) for name in returned}


FeedForwardPullback = Callable[..., tuple[Array, dict[str, Array]]]


def feed_forward_vjp(
    x: Array,
    params: Mapping[str, Array],
    *,
    activation: str = "relu",
    limit: float = 0.0,
    scale: float = 1.0,
    hook: Hook = no_hook,
) -> tuple[Array, FeedForwardPullback]:
    """Feed-forward network, and the function from its gradient to the others.

    x (..., D), params as in `feed_forward` -> (..., D), (..., D) -> ((..., D), {parameter: its shape})

    With inner = activated, or activated · linear: d inner = dy W2ᵀ, d hidden = d activated · activation′(hidden), and
    dx = d hidden W1ᵀ + d linear W3ᵀ. `hook` reads the intermediates of `feed_forward`; the hook that is passed to the
    second function receives their gradients, and may replace them. DataError if shapes do not match.

    >>> one = np.array([[1.0]])
    >>> x, params = np.array([[-2.0], [3.0]]), {"w1": one, "w2": 2 * one, "b2": np.array([1.0])}
    >>> y, pullback = feed_forward_vjp(x, params)
    >>> dx, gradients = pullback(np.ones((2, 1)))
    >>> y.tolist(), dx.tolist(), {name: gradient.tolist() for name, gradient in gradients.items()}
    ([[1.0], [7.0]], [[0.0], [2.0]], {'w2': [[3.0]], 'b2': [2.0], 'w1': [[6.0]]})
    """
    check_gate(params)
    wide, side = cast(x, working(x, *params.values())), None
    hidden = linear(wide, params["w1"], params.get("b1"), names=("x", "w1", "b1"))
    hidden = apply_hook(hook, "hidden", hidden)
    activated, slope = activation_with_slope(activation, scaled(np.minimum(hidden, limit) if limit else hidden, scale))
    slope = scaled(slope * (hidden <= limit) if limit else slope, scale)
    inner = activated = apply_hook(hook, "activated", activated)
    if "w3" in params:
        side = apply_hook(hook, "linear", linear(wide, params["w3"], params.get("b3"), names=("x", "w3", "b3")))
        is_inside = np.abs(side) <= limit if limit else np.asarray(True)
        side = 1 + np.clip(side, -limit, limit) if limit else side
        inner = apply_hook(hook, "gated", activated * side)
    output = apply_hook(hook, "output", linear(inner, params.get("w2"), params.get("b2"), names=("hidden", "w2", "b2")))

    def pullback(grad_output: Array, hook: Hook = no_hook) -> tuple[Array, dict[str, Array]]:
        dy, gradients = projection_backward(apply_hook(hook, "output", grad_output), inner, params, "2")
        if side is not None:
            dy = apply_hook(hook, "gated", dy)
            dlinear = apply_hook(hook, "linear", dy * activated * is_inside if limit else dy * activated)
            dside, of_gate = projection_backward(dlinear, x, params, "3")
            dy, gradients = dy * side, gradients | of_gate
        dhidden = apply_hook(hook, "hidden", apply_hook(hook, "activated", dy) * slope)
        dx, of_first = projection_backward(dhidden, x, params, "1")
        return dx if side is None else dx + dside, gradients | of_first

    return output.astype(output_dtype(x), copy=False), pullback


def check_gate(params: Mapping[str, Array]) -> None:
    """Raise DataError for a gate w3 of another shape than w1, or b2 without w2.

    >>> check_gate({"w1": np.ones((2, 3))})
    """
    w1, w3 = params["w1"], params.get("w3")
    if w3 is not None and w3.shape != w1.shape:
        raise DataError.about("w3", f"{as_text(w3.shape)} and w1 {as_text(w1.shape)}: shapes differ")
    if "b2" in params and "w2" not in params:
        raise DataError.about("b2", "needs w2")
