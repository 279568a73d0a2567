"""The position-wise feed-forward network and its activations, with their adjoints."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, check_gradient
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.erf import erf
from attnkit.model.hooks import Hook, apply_hook, is_requested, no_hook
from attnkit.model.linear import linear, linear_backward

PART = 1 << 18  # elements: a megabyte of float32
BLOCK = 1 << 15  # elements of which a core's cache also holds the slope and what it is computed from


@quiet
def relu(x: Array) -> Array:
    """Return x where it is positive, else 0.

    x (...) -> (...)

    >>> relu(np.array([-2.0, 3.0]))
    array([0., 3.])
    """
    positive: Array = np.maximum(x, 0)
    return positive


@quiet
def gelu(x: Array) -> Array:
    """Return x times the standard normal CDF of x, by the error function (Hendrycks and Gimpel 2016).

    x (...) -> (...)

    >>> gelu(np.array([-1.0, 1.0])).round(4)
    array([-0.1587,  0.8413])
    """
    if x.dtype == np.float32:
        from attnkit.model.kernels.gelu import gelu_float32

        return gelu_float32(x)
    y: Array = 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    return y


@quiet
def gelu_with_slope(x: Array) -> tuple[Array, Array]:
    """GELU and its derivative Φ(x) + x φ(x), with the CDF Φ and density φ of the standard normal distribution.

    x (...) -> (...), (...)

    >>> gelu_with_slope(np.array([-1.0, 0.0, 1.0]))[1].round(4)
    array([-0.0833,  0.5   ,  1.0833])
    """
    cdf: Array = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    slope = np.exp(-0.5 * x * x)
    slope *= math.sqrt(0.5 / math.pi)
    slope *= x
    slope += cdf
    return x * cdf, slope


@quiet
def gelu_tanh(x: Array) -> Array:
    """Return GELU by its tanh approximation, as in GPT-2.

    x (...) -> (...)

    >>> gelu_tanh(np.array([-1.0, 1.0])).round(4)
    array([-0.1588,  0.8412])
    """
    y: Array = 0.044715 * x * x
    y += 1
    y *= x
    y *= math.sqrt(2 / math.pi)
    y = np.tanh(y)
    y += 1
    y *= x
    y *= 0.5
    return y


@quiet
def gelu_tanh_with_slope(x: Array) -> tuple[Array, Array]:
    """GELU by its tanh approximation, and its derivative (1 + t + x (1 − t²) u′) / 2.

    x (...) -> (...), (...)

    t = tanh u, u = √(2/π) (x + 0.044715 x³). Far from 0, where squares of x may be infinite, 1 − t² is 0 and multiplied
    first.

    >>> gelu_tanh_with_slope(np.array([-1.0, 0.0, 1.0]))[1].round(4)
    array([-0.083,  0.5  ,  1.083])
    """
    y: Array = 0.044715 * x * x
    y += 1
    y *= x
    y *= math.sqrt(2 / math.pi)
    t = np.tanh(y, out=y)
    slope = t * t
    np.subtract(1, slope, out=slope)
    slope *= x  # x (1 − t²)
    cubic = slope * x
    cubic *= x
    cubic *= 3 * 0.044715
    slope += cubic
    slope *= math.sqrt(2 / math.pi)  # x (1 − t²) u′
    t += 1
    slope += t
    slope *= 0.5
    y *= x
    y *= 0.5
    return y, slope


@quiet
def sigmoid(x: Array) -> Array:
    """Return the logistic sigmoid 1 / (1 + exp(−x)).

    x (...) -> (...)

    >>> sigmoid(np.array([-np.inf, 0.0, np.inf])).tolist()
    [0.0, 0.5, 1.0]
    """
    y: Array = 1 / (1 + np.exp(-x))
    return y


@quiet
def silu(x: Array) -> Array:
    """Return x times its logistic sigmoid, also called swish.

    x (...) -> (...)

    >>> silu(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.7311])
    """
    y: Array = x / (1 + np.exp(-x))
    return y


@quiet
def silu_with_slope(x: Array) -> tuple[Array, Array]:
    """SiLU and its derivative σ (1 + x (1 − σ)), with σ the logistic sigmoid of x.

    x (...) -> (...), (...)

    >>> silu_with_slope(np.array([-1000.0, 0.0, 1.0]))[1].round(4)
    array([-0.    ,  0.5   ,  0.9277])
    """
    logistic = sigmoid(x)
    slope = 1 - logistic
    slope *= x
    slope += 1
    slope *= logistic
    return x * logistic, slope


@quiet
def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent of x.

    x (...) -> (...)

    >>> tanh(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.7616])
    """
    y: Array = np.tanh(x)
    return y


def identity(x: Array) -> Array:
    """Return x: without an activation the two linear maps of a network are one linear map.

    x (...) -> (...)

    >>> identity(np.array([-2.0, 3.0]))
    array([-2.,  3.])
    """
    return x


def value_and_slope(
    function: Callable[[Array], Array], slope_of: Callable[[Array], Array]
) -> Callable[[Array], tuple[Array, Array]]:
    """Pair an activation with its derivative, where that follows from the value.

    >>> value_and_slope(tanh, lambda y: 1 - y * y)(np.array([0.0]))
    (array([0.]), array([1.]))
    """

    @quiet
    def with_slope(x: Array) -> tuple[Array, Array]:
        y = function(x)
        return y, slope_of(y)

    return with_slope


class Activation(NamedTuple):
    """An activation: its function, and the function that also returns the derivative at each element."""

    function: Callable[[Array], Array]
    with_slope: Callable[[Array], tuple[Array, Array]]

    def __call__(self, x: Array) -> Array:
        """Apply the function to x."""
        return self.function(x)


ACTIVATIONS = {
    "relu": Activation(relu, value_and_slope(relu, lambda y: (y > 0).astype(y.dtype))),  # at 0 the slope is 0
    "gelu": Activation(gelu, gelu_with_slope),
    "gelu-tanh": Activation(gelu_tanh, gelu_tanh_with_slope),
    "silu": Activation(silu, silu_with_slope),
    "tanh": Activation(tanh, value_and_slope(tanh, lambda y: 1 - y * y)),
    "sigmoid": Activation(sigmoid, value_and_slope(sigmoid, lambda y: y * (1 - y))),
    "identity": Activation(identity, value_and_slope(identity, np.ones_like)),
}


def apply_activation(activation: str, x: Array, *, in_place: bool = False) -> Array:
    """Apply an activation to each element; to a part of a large array at a time, which stays in a core's cache.

    x (...) -> (...)

    With `in_place` a large x is overwritten by the result, which is faster than new memory.

    >>> apply_activation("relu", np.array([-2.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    function = ACTIVATIONS[activation]
    if x.size <= PART:
        return function(x)
    from attnkit.model.kernels.threads import run_parallel, split_range

    flat = x.reshape(-1)
    y = flat if in_place else np.empty(x.size, x.dtype)

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            y[part] = function(flat[part])

    run_parallel(work, split_range(0, x.size, PART))
    return y.reshape(x.shape)


def activation_with_slope(activation: str, x: Array) -> tuple[Array, Array]:
    """Apply an activation to each element, and compute its derivative there; large arrays on every core.

    x (...) -> (...), (...)

    >>> y, slope = activation_with_slope("relu", np.array([-2.0, 3.0]))
    >>> y.tolist(), slope.tolist()
    ([0.0, 3.0], [0.0, 1.0])
    """
    from attnkit.model.kernels.threads import run_parallel, split_range

    function, flat = ACTIVATIONS[activation].with_slope, cast(x, working(x)).reshape(-1)
    y, slope = np.empty((2, *flat.shape), flat.dtype)

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            y[part], slope[part] = function(flat[part])

    if x.size <= PART:
        work(split_range(0, x.size, BLOCK))
    else:
        run_parallel(work, split_range(0, x.size, BLOCK))
    return y.reshape(x.shape), slope.reshape(x.shape)


@quiet
def activation_backward(activation: str, grad_output: Array, x: Array) -> Array:
    """Gradient of x: dy times the derivative of the activation at x.

    grad_output (...), x (...) -> (...)

    DataError if the shapes differ.

    >>> activation_backward("relu", np.array([5.0, 7.0]), np.array([-2.0, 3.0])).tolist()
    [0.0, 7.0]
    """
    check_gradient(grad_output, x.shape, "the activation")
    gradient: Array = cast(grad_output, working(grad_output, x)) * activation_with_slope(activation, x)[1]
    return gradient


@quiet
def feed_forward(
    x: Array,
    params: Mapping[str, Array],
    *,
    activation: str = "relu",
    keep: Collection[str] | None = None,
    hook: Hook = no_hook,
) -> dict[str, Array]:
    """Return activation(x W1 + b1) W2 + b2 at every position, gated by x W3 + b3 if `params` has w3.

    x (..., D), w1 (D, F), b1 (F,), w2 (F, D), b2 (D,), w3 (D, F), b3 (F,) -> {"output": (..., D), ...}

    The result holds hidden and activated, then linear (x W3 + b3) and gated (activated times linear) if gated, then
    output. `keep` are the intermediates to return beside the output [all]; `hook` may read and replace any of them;
    others are not held in memory. Without w2 the output is what W2 would be applied to. Source: Attention Is All You
    Need, section 3.3; Shazeer 2020 for the gate. DataError where shapes do not match, UsageError for an unknown
    activation.

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
    steps = {"hidden": apply_hook(hook, "hidden", linear(x, w1, b1, names=("x", "w1", "b1")))}
    in_place = not is_requested(keep, hook, "hidden")
    inner = apply_hook(hook, "activated", apply_activation(activation, steps["hidden"], in_place=in_place))
    steps["activated"] = inner
    if w3 is not None:
        steps["linear"] = apply_hook(hook, "linear", linear(x, w3, b3, names=("x", "w3", "b3")))
        gated = np.multiply(inner, steps["linear"], out=None if is_requested(keep, hook, "activated") else inner)
        inner = steps["gated"] = apply_hook(hook, "gated", gated)
    steps["output"] = apply_hook(hook, "output", linear(inner, w2, b2, names=("hidden", "w2", "b2")))
    returned = [name for name in steps if name == "output" or keep is None or name in keep]
    return {name: steps[name].astype(result, copy=False) for name in returned}


FeedForwardPullback = Callable[..., tuple[Array, dict[str, Array]]]


def feed_forward_vjp(
    x: Array, params: Mapping[str, Array], *, activation: str = "relu", hook: Hook = no_hook
) -> tuple[Array, FeedForwardPullback]:
    """Position-wise feed-forward network, and the function from the gradient of its output to the others.

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
    activated, slope = activation_with_slope(activation, apply_hook(hook, "hidden", hidden))
    inner = activated = apply_hook(hook, "activated", activated)
    if "w3" in params:
        side = apply_hook(hook, "linear", linear(wide, params["w3"], params.get("b3"), names=("x", "w3", "b3")))
        inner = apply_hook(hook, "gated", activated * side)
    output = apply_hook(hook, "output", linear(inner, params.get("w2"), params.get("b2"), names=("hidden", "w2", "b2")))

    def pullback(grad_output: Array, hook: Hook = no_hook) -> tuple[Array, dict[str, Array]]:
        gradients: dict[str, Array] = {}

        def undo_linear(gradient: Array, inputs: Array, number: int) -> Array:
            weight, bias = f"w{number}", f"b{number}"
            dx, *parts = linear_backward(gradient, inputs, params[weight], params.get(bias))
            gradients.update({name: one for name, one in zip((weight, bias), parts, strict=True) if one is not None})
            return dx

        dy, dx = apply_hook(hook, "output", grad_output), None
        dy = undo_linear(dy, inner, 2) if "w2" in params else dy
        if side is not None:
            dy = apply_hook(hook, "gated", dy)
            dx = undo_linear(apply_hook(hook, "linear", dy * activated), x, 3)
            dy = dy * side
        dhidden = undo_linear(apply_hook(hook, "hidden", apply_hook(hook, "activated", dy) * slope), x, 1)
        return dhidden if dx is None else dhidden + dx, gradients

    return output.astype(output_dtype(x), copy=False), pullback


def check_gate(params: Mapping[str, Array]) -> None:
    """Raise DataError if there is a gate w3 that does not have the shape of w1, or a bias b2 without w2.

    >>> check_gate({"w1": np.ones((2, 3))})
    """
    w1, w3 = params["w1"], params.get("w3")
    if w3 is not None and w3.shape != w1.shape:
        raise DataError(f"w3 {as_text(w3.shape)} and w1 {as_text(w1.shape)}: shapes differ")
    if "b2" in params and "w2" not in params:
        raise DataError("b2 needs w2")
