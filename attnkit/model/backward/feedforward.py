"""The adjoints of the activations and of the position-wise feed-forward network."""

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from attnkit.model.backward.linear import check_gradient, linear_backward
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.erf import erf
from attnkit.model.feedforward import PART, feed_forward
from attnkit.model.hooks import Hook, apply_hook, no_hook

LIMIT = 1e4  # beyond it every activation is linear, and squares and cubes would leave the range of float32


@quiet
def relu_derivative(x: Array) -> Array:
    """Return 1 where x is positive, else 0, at 0 too.

    x (...) -> (...)

    >>> relu_derivative(np.array([-2.0, 0.0, 3.0]))
    array([0., 0., 1.])
    """
    return (x > 0).astype(x.dtype)


@quiet
def gelu_derivative(x: Array) -> Array:
    """Return Φ(x) + x φ(x), with the CDF Φ and the density φ of the standard normal distribution.

    x (...) -> (...)

    >>> gelu_derivative(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.0833,  0.5   ,  1.0833])
    """
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    derivative: Array = 0.5 * (1 + erf(x * math.sqrt(0.5))) + np.clip(x, -LIMIT, LIMIT) * density
    return derivative


@quiet
def gelu_tanh_derivative(x: Array) -> Array:
    """Return (1 + t + x (1 − t²) u′) / 2, where t = tanh u, u = √(2/π) (x + 0.044715 x³).

    x (...) -> (...)

    >>> gelu_tanh_derivative(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.083,  0.5  ,  1.083])
    """
    x = np.clip(x, -LIMIT, LIMIT)
    slope: Array = 0.044715 * x * x
    t = slope + 1
    t *= x
    t *= math.sqrt(2 / math.pi)
    np.tanh(t, out=t)
    slope *= 3
    slope += 1
    slope *= x
    slope *= math.sqrt(2 / math.pi)  # x u′
    slope *= 1 - t * t
    slope += t
    slope += 1
    slope *= 0.5
    return slope


@quiet
def silu_derivative(x: Array) -> Array:
    """Return σ (1 + x (1 − σ)), with σ the logistic sigmoid of x.

    x (...) -> (...)

    >>> silu_derivative(np.array([-1000.0, 0.0, 1.0])).round(4)
    array([-0.    ,  0.5   ,  0.9277])
    """
    sigmoid: Array = 1 / (1 + np.exp(-x))
    derivative: Array = sigmoid * (1 + x * (1 - sigmoid))
    return derivative


# the derivative of every activation of feedforward.ACTIVATIONS
DERIVATIVES: dict[str, Callable[[Array], Array]] = {
    "relu": relu_derivative,
    "gelu": gelu_derivative,
    "gelu-tanh": gelu_tanh_derivative,
    "silu": silu_derivative,
}


@quiet
def activation_backward(activation: str, grad_output: Array, x: Array) -> Array:
    """Return the gradient of x, dy times the derivative of the activation; for parts that stay in a core's cache.

    grad_output (...), x (...) -> (...)

    DataError where the shapes differ.

    >>> activation_backward("relu", np.array([5.0, 7.0]), np.array([-2.0, 3.0])).tolist()
    [0.0, 7.0]
    """
    check_gradient(grad_output, x.shape, "the activation")
    derivative, dtype = DERIVATIVES[activation], working(grad_output, x)
    dy, flat = cast(grad_output, dtype).reshape(-1), cast(x, dtype).reshape(-1)
    dx = np.empty(flat.shape, dtype)

    @quiet
    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            np.multiply(dy[part], derivative(flat[part]), out=dx[part])

    if x.size <= PART:
        work(iter([slice(None)]))
    else:
        from attnkit.model.kernels.threads import run_parallel, split_range

        run_parallel(work, split_range(0, x.size, PART))
    return dx.reshape(x.shape)


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

    `saved` are hidden, activated and, if gated, linear and gated of the forward pass; None: they are computed again.
    With inner = activated, or activated · linear: d inner = dy W2ᵀ, d hidden = d activated · activation′(hidden), and
    dx = d hidden W1ᵀ + d linear W3ᵀ. `hook` receives the gradients of these intermediates and of output, and may
    replace them. DataError where shapes do not match.

    >>> one = np.array([[1.0]])
    >>> x, params = np.array([[-2.0], [3.0]]), {"w1": one, "w2": 2 * one, "b2": np.array([1.0])}
    >>> dx, gradients = feed_forward_backward(np.ones((2, 1)), x, params)
    >>> dx.tolist(), {name: gradient.tolist() for name, gradient in gradients.items()}
    ([[0.0], [2.0]], {'w2': [[3.0]], 'b2': [2.0], 'w1': [[6.0]]})
    """
    steps = saved if saved is not None else feed_forward(x, params, activation=activation)
    dy, gradients = apply_hook(hook, "output", grad_output), {}
    is_gated = "w3" in params

    def undo_linear(gradient: Array, inputs: Array, number: int) -> Array:
        weight, bias = f"w{number}", f"b{number}"
        one = linear_backward(gradient, inputs, params[weight], params.get(bias))
        gradients.update({name: part for name, part in ((weight, one.weight), (bias, one.bias)) if part is not None})
        return one.x

    inner = undo_linear(dy, steps["gated" if is_gated else "activated"], 2)
    if is_gated:
        inner = apply_hook(hook, "gated", inner)
        side = undo_linear(apply_hook(hook, "linear", inner * steps["activated"]), x, 3)
        inner = inner * steps["linear"]
    inner = activation_backward(activation, apply_hook(hook, "activated", inner), steps["hidden"])
    dx = undo_linear(apply_hook(hook, "hidden", inner), x, 1)
    return (dx + side if is_gated else dx), gradients
