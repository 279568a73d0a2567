"""The adjoints of the activations and of the position-wise feed-forward network."""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attnkit.model.backward.linear import check_gradient, linear_backward
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.erf import erf
from attnkit.model.feedforward import PART, check_gate, feed_forward, relu, sigmoid
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.kernels.threads import run_parallel, split_range
from attnkit.model.linear import linear

BLOCK = 1 << 15  # elements in a block, which stays in a core's cache with all that is computed of it


@quiet
def relu_with_slope(x: Array) -> tuple[Array, Array]:
    """Return ReLU and its derivative: 1 where x is positive, else 0, at 0 too.

    x (...) -> (...), (...)

    >>> relu_with_slope(np.array([-2.0, 0.0, 3.0]))[1]
    array([0., 0., 1.])
    """
    return relu(x), (x > 0).astype(x.dtype)


@quiet
def gelu_with_slope(x: Array) -> tuple[Array, Array]:
    """Return GELU and its derivative Φ(x) + x φ(x), with the CDF Φ and density φ of the standard normal distribution.

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
def gelu_tanh_with_slope(x: Array) -> tuple[Array, Array]:
    """Return GELU by its tanh approximation, and its derivative (1 + t + x (1 − t²) u′) / 2.

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
def silu_with_slope(x: Array) -> tuple[Array, Array]:
    """Return SiLU and its derivative σ (1 + x (1 − σ)), with σ the logistic sigmoid of x.

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
def tanh_with_slope(x: Array) -> tuple[Array, Array]:
    """Return the hyperbolic tangent t and its derivative 1 − t².

    x (...) -> (...), (...)

    >>> tanh_with_slope(np.array([0.0, 1.0]))[1].round(4)
    array([1.  , 0.42])
    """
    y: Array = np.tanh(x)
    return y, 1 - y * y


@quiet
def sigmoid_with_slope(x: Array) -> tuple[Array, Array]:
    """Return the logistic sigmoid σ and its derivative σ (1 − σ).

    x (...) -> (...), (...)

    >>> sigmoid_with_slope(np.array([0.0, 1.0]))[1].round(4)
    array([0.25  , 0.1966])
    """
    y = sigmoid(x)
    return y, y * (1 - y)


def identity_with_slope(x: Array) -> tuple[Array, Array]:
    """Return x and its derivative, 1.

    x (...) -> (...), (...)

    >>> identity_with_slope(np.array([-2.0, 3.0]))[1]
    array([1., 1.])
    """
    return x, np.ones_like(x)


# every activation of feedforward.ACTIVATIONS with its derivative
WITH_SLOPE: dict[str, Callable[[Array], tuple[Array, Array]]] = {
    "relu": relu_with_slope,
    "gelu": gelu_with_slope,
    "gelu-tanh": gelu_tanh_with_slope,
    "silu": silu_with_slope,
    "tanh": tanh_with_slope,
    "sigmoid": sigmoid_with_slope,
    "identity": identity_with_slope,
}


def activation_forward(activation: str, x: Array) -> tuple[Array, Array]:
    """Return the activation of each element and its derivative there; large arrays on every core.

    x (...) -> (...), (...)

    >>> y, slope = activation_forward("relu", np.array([-2.0, 3.0]))
    >>> y.tolist(), slope.tolist()
    ([0.0, 3.0], [0.0, 1.0])
    """
    function, flat = WITH_SLOPE[activation], cast(x, working(x)).reshape(-1)
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
    """Return the gradient of x: dy times the derivative of the activation at x.

    grad_output (...), x (...) -> (...)

    DataError where the shapes differ.

    >>> activation_backward("relu", np.array([5.0, 7.0]), np.array([-2.0, 3.0])).tolist()
    [0.0, 7.0]
    """
    check_gradient(grad_output, x.shape, "the activation")
    slope = activation_forward(activation, x)[1]
    gradient: Array = cast(grad_output, working(grad_output, x)) * slope
    return gradient


def feed_forward_forward(
    x: Array, params: Mapping[str, Array], *, activation: str = "relu", hook: Hook = no_hook
) -> tuple[Array, dict[str, Array]]:
    """Return the output of `feed_forward`, and what its adjoint needs.

    x (..., D), params as in `feed_forward` -> (..., D), {"activated", "slope": (..., F), if gated "linear", "gated"}

    `slope` is the derivative of the activation. Errors, and `hook`, are those of `feed_forward`.

    >>> one = np.array([[1.0]])
    >>> y, saved = feed_forward_forward(np.array([[-2.0], [3.0]]), {"w1": one, "w2": 2 * one})
    >>> y.tolist(), saved["slope"].tolist()
    ([[0.0], [6.0]], [[0.0], [1.0]])
    """
    if hook is not no_hook or activation not in WITH_SLOPE:
        saved = feed_forward(x, params, activation=activation, hook=hook)
        return saved.pop("output"), saved
    check_gate(params)
    hidden = linear(cast(x, working(x, *params.values())), params["w1"], params.get("b1"), names=("x", "w1", "b1"))
    saved = dict(zip(("activated", "slope"), activation_forward(activation, hidden), strict=True))
    inner = saved["activated"]
    if "w3" in params:
        saved["linear"] = linear(cast(x, inner.dtype), params["w3"], params.get("b3"), names=("x", "w3", "b3"))
        inner = saved["gated"] = inner * saved["linear"]
    output = linear(inner, params.get("w2"), params.get("b2"), names=("hidden", "w2", "b2"))
    return output.astype(output_dtype(x), copy=False), saved


def feed_forward_backward(
    grad_output: Array,
    x: Array,
    params: Mapping[str, Array],
    *,
    activation: str = "relu",
    saved: Mapping[str, Array] | None = None,
    hook: Hook = no_hook,
) -> tuple[Array, dict[str, Array]]:
    """Return the gradients of x and of every parameter of `feed_forward`.

    grad_output (..., D), x (..., D), params as in `feed_forward` -> (..., D), {parameter: its shape}

    `saved` is what `feed_forward_forward` returned [computed again]. With inner = activated, or activated · linear:
    d inner = dy W2ᵀ, d hidden = d activated · activation′(hidden), and dx = d hidden W1ᵀ + d linear W3ᵀ. `hook`
    receives the gradients of these intermediates and of output, and may replace them. DataError where shapes do not
    match.

    >>> one = np.array([[1.0]])
    >>> x, params = np.array([[-2.0], [3.0]]), {"w1": one, "w2": 2 * one, "b2": np.array([1.0])}
    >>> dx, gradients = feed_forward_backward(np.ones((2, 1)), x, params)
    >>> dx.tolist(), {name: gradient.tolist() for name, gradient in gradients.items()}
    ([[0.0], [2.0]], {'w2': [[3.0]], 'b2': [2.0], 'w1': [[6.0]]})
    """
    steps = saved or feed_forward_forward(x, params, activation=activation)[1]
    dy, gradients = apply_hook(hook, "output", grad_output), {}
    is_gated = "w3" in params

    def undo_linear(gradient: Array, inputs: Array, number: int) -> Array:
        weight, bias = f"w{number}", f"b{number}"
        one = linear_backward(gradient, inputs, params[weight], params.get(bias))
        gradients.update({name: part for name, part in ((weight, one.weight), (bias, one.bias)) if part is not None})
        return one.x

    inner = undo_linear(dy, steps["gated" if is_gated else "activated"], 2) if "w2" in params else dy
    if is_gated:
        inner = apply_hook(hook, "gated", inner)
        side = undo_linear(apply_hook(hook, "linear", inner * steps["activated"]), x, 3)
        inner = inner * steps["linear"]
    slope = steps["slope"] if "slope" in steps else activation_forward(activation, steps["hidden"])[1]
    dx = undo_linear(apply_hook(hook, "hidden", apply_hook(hook, "activated", inner) * slope), x, 1)
    return (dx + side if is_gated else dx), gradients
