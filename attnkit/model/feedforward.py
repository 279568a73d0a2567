"""The position-wise feed-forward network and its activations."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working
from attnkit.model.erf import erf
from attnkit.model.hooks import Hook, apply_hook, is_requested, no_hook
from attnkit.model.linear import linear

PART = 1 << 18  # elements: a megabyte of float32


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


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": silu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "identity": identity,
}


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


def check_gate(params: Mapping[str, Array]) -> None:
    """Raise DataError if there is a gate w3 that does not have the shape of w1, or a bias b2 without w2.

    >>> check_gate({"w1": np.ones((2, 3))})
    """
    w1, w3 = params["w1"], params.get("w3")
    if w3 is not None and w3.shape != w1.shape:
        raise DataError(f"w3 {as_text(w3.shape)} and w1 {as_text(w1.shape)}: shapes differ")
    if "b2" in params and "w2" not in params:
        raise DataError("b2 needs w2")
