"""Activations: one row each with its function, derivative and published names.

NumPy lacks the error function. The four rational approximations of `erf` and their coefficients are those of fdlibm's
s_erf.c, whose notice reads:
Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved. Developed at SunPro, a Sun Microsystems,
Inc. business. Permission to use, copy, modify, and distribute this software is freely granted, provided that
this notice is preserved.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.lib.introspect import opt_func_info

from attnkit.model.checks import check_gradient
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working

PART = 1 << 18  # elements: a megabyte of float32
BLOCK = 1 << 15  # elements of which a core's cache also holds the slope and what it is computed from

# fmt: off
# |x| < 0.84375: erf(x) = x + x P(x^2) / Q(x^2)
NEAR = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)
# |x| < 1.25: erf(x) = ERF_ONE + P(s) / Q(s), s = |x| - 1
ERF_ONE = 8.45062911510467529297e-01
MIDDLE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
     3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
     -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)
# |x| < 1/0.35, then |x| < 6: erf(x) = 1 - exp(-x^2 - 0.5625 + P(s) / Q(s)) / |x|, s = 1/x^2
FAR = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
     -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
     -8.12874355063065934246e+01, -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
     6.57024977031928170135e+00, -6.04244152148580987438e-02),
)
FARTHER = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
     -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
     -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
     -2.24409524465858183362e+01),
)
# fmt: on

# the log-odds of the normal CDF of x, divided by x, for t = x^2 <= LOW^2: CONSTANT + SLOPE t + c1 / (t + d1 + c2 / (t +
# d2 + c3 / (t + d3))), a least-squares fit to math.erfc, with weights renewed until the largest error was least
CONSTANT, SLOPE = 4.799772335717261, 0.01746940454884671
FRACTION = (
    (-198.86561866955049, 65.85153785624507),
    (-37.752638466308554, -3.9308356600364522),
    (236.7997775272148, 17.025475042618382),
)
LOW, HIGH = -5, 12  # below LOW the fit ends; above HIGH float32 has no room for the odds
LEAST = -64  # a logarithm of odds that add nothing to 1


@cache
def fastest_exp() -> tuple[np.ufunc, float]:
    """exp2 if NumPy vectorizes it, else exp, and the factor on its argument.

    >>> exp, unit = fastest_exp()
    >>> float(exp(unit).round(4))
    2.7183
    """
    target = opt_func_info(func_name="^exp2$").get("exp2", {}).get("ff", {}).get("current", "baseline")
    return (np.exp, 1.0) if target.startswith("baseline") else (np.exp2, math.log2(math.e))


@quiet
def erf(x: Array) -> Array:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    x (...) -> (...)

    >>> erf(np.array([0.0, 1.0, -np.inf])).round(6)
    array([ 0.      ,  0.842701, -1.      ])
    """
    flat = cast(x, working(x)).ravel()
    size = np.abs(flat)
    y = np.where(np.isnan(flat), flat, np.copysign(1, flat)).astype(flat.dtype)
    near = np.flatnonzero(size < 0.84375)
    y[near] = flat[near] + flat[near] * _ratio(NEAR, np.square(flat[near]))
    middle = np.flatnonzero((size >= 0.84375) & (size < 1.25))
    y[middle] *= ERF_ONE + _ratio(MIDDLE, size[middle] - 1)
    for table, low, high in ((FAR, 1.25, 1 / 0.35), (FARTHER, 1 / 0.35, 6)):
        tail = np.flatnonzero((size >= low) & (size < high))
        square = np.square(size[tail])
        y[tail] *= 1 - np.exp(_ratio(table, 1 / square) - 0.5625 - square) / size[tail]
    return y.reshape(x.shape).astype(output_dtype(x), copy=False)


def _ratio(table: tuple[Sequence[float], Sequence[float]], z: Array) -> Array:
    above, below = table
    return _polynomial(above, z) / _polynomial(below, z)


def _polynomial(coefficients: Sequence[float], z: Array) -> Array:
    y = np.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        y *= z
        y += coefficient
    return y


@quiet
def gelu_float32(x: Array) -> Array:
    """GELU of float32 from the log-odds of the normal CDF, x / (1 + exp(-log-odds)).

    x (...) float32 -> (...) float32

    The error is at most 2e-7 times the larger of |x| and 1/2, and at most 4e-6 times the result.

    >>> gelu_float32(np.array([-1.0, 1.0, 9.0], np.float32)).round(4).tolist()
    [-0.15870000422000885, 0.8413000106811523, 9.0]
    """
    exp, unit = fastest_exp()
    constant, slope = (np.float32(-unit * number) for number in (CONSTANT, SLOPE))
    (c1, d1), (c2, d2), (c3, d3) = ((np.float32(c), np.float32(d)) for c, d in FRACTION)
    c1 *= np.float32(-unit)
    flat = x.reshape(-1)
    y = np.empty_like(flat)
    room = np.empty((2, min(BLOCK, flat.size)), np.float32)
    for start in range(0, flat.size, BLOCK):
        part, out = flat[start : start + BLOCK], y[start : start + BLOCK]
        square, odds = room[:, : part.size]
        np.multiply(part, part, out=square)
        np.add(square, d3, out=odds)
        for above, below in ((c3, d2), (c2, d1)):
            np.divide(above, odds, out=odds)
            odds += square
            odds += below
        np.divide(c1, odds, out=odds)
        square *= slope
        odds += square
        odds += constant
        odds *= part
        if not part.max() <= HIGH:  # so for NaN
            np.maximum(odds, LEAST, out=odds)
        exp(odds, out=odds)
        odds += 1
        np.divide(part, odds, out=out)
        if not part.min() >= LOW:
            far = np.flatnonzero(part < LOW)
            out[far] = _gelu_below(part[far].astype(np.float64))
    return y.reshape(x.shape)


def _gelu_below(x: Array) -> Array:
    """GELU of x < LOW by the complement of the error function.

    >>> _gelu_below(np.array([-6.0, -np.inf])).round(18).tolist()
    [-5.91952587e-09, -0.0]
    """
    square = np.square(x)
    y: Array = -math.sqrt(0.5) * np.exp(_ratio(FARTHER, 2 / square) - 0.5625 - square / 2)
    return y


@quiet
def relu(x: Array) -> Array:
    """Rectified linear unit: x if it is positive, else 0.

    x (...) -> (...)

    >>> relu(np.array([-2.0, 3.0]))
    array([0., 3.])
    """
    positive: Array = np.maximum(x, 0)
    return positive


@quiet
def gelu(x: Array) -> Array:
    """x times the standard normal CDF of x (Hendrycks and Gimpel 2016).

    x (...) -> (...)

    >>> gelu(np.array([-1.0, 1.0])).round(4)
    array([-0.1587,  0.8413])
    """
    if x.dtype == np.float32:
        return gelu_float32(x)
    y: Array = 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    return y


@quiet
def gelu_with_slope(x: Array) -> tuple[Array, Array]:
    """GELU and its derivative Φ(x) + x φ(x).

    Φ and φ are the CDF and the density of the standard normal distribution.

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
    """GELU by its tanh approximation, as in GPT-2.

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
    """The logistic sigmoid 1 / (1 + exp(−x)).

    x (...) -> (...)

    >>> sigmoid(np.array([-np.inf, 0.0, np.inf])).tolist()
    [0.0, 0.5, 1.0]
    """
    y: Array = 1 / (1 + np.exp(-x))
    return y


@quiet
def silu(x: Array) -> Array:
    """x times its logistic sigmoid, also called swish.

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
    """The hyperbolic tangent of x.

    x (...) -> (...)

    >>> tanh(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.7616])
    """
    y: Array = np.tanh(x)
    return y


@quiet
def quick_gelu(x: Array) -> Array:
    """x · σ(1.702 x), which is near GELU (Hendrycks and Gimpel 2016, section 2).

    x (...) -> (...)

    >>> quick_gelu(np.array([0.0, 1.0])).round(4).tolist()
    [0.0, 0.8458]
    """
    y: Array = x / (1 + np.exp(x * np.asarray(-1.702, x.dtype)))
    return y


@quiet
def quick_gelu_with_slope(x: Array) -> tuple[Array, Array]:
    """x · σ(1.702 x) and its derivative.

    >>> [part.tolist() for part in quick_gelu_with_slope(np.array([0.0]))]
    [[0.0], [0.5]]
    """
    share = sigmoid(x * np.asarray(1.702, x.dtype))
    y = x * share
    return y, share + y * (1 - share) * np.asarray(1.702, x.dtype)


def identity(x: Array) -> Array:
    """x itself, with which the two linear maps of a network are one linear map.

    x (...) -> (...)

    >>> identity(np.array([-2.0, 3.0]))
    array([-2.,  3.])
    """
    return x


def value_and_slope(
    function: Callable[[Array], Array], slope_of: Callable[[Array], Array]
) -> Callable[[Array], tuple[Array, Array]]:
    """Pair an activation with a derivative that follows from its value.

    >>> value_and_slope(tanh, lambda y: 1 - y * y)(np.array([0.0]))
    (array([0.]), array([1.]))
    """

    @quiet
    def with_slope(x: Array) -> tuple[Array, Array]:
        y = function(x)
        return y, slope_of(y)

    return with_slope


class Activation(NamedTuple):
    """An activation, which is called as its function.

    function    x (...) -> (...)
    with_slope  the function that also returns its derivative at each element
    published   its names in configurations of published models
    torch       its class in torch.nn
    """

    function: Callable[[Array], Array]
    with_slope: Callable[[Array], tuple[Array, Array]]
    published: tuple[str, ...] = ()
    torch: str = ""

    def __call__(self, x: Array) -> Array:
        return self.function(x)


ACTIVATIONS = {
    "relu": Activation(relu, value_and_slope(relu, lambda y: (y > 0).astype(y.dtype)), ("relu",), "ReLU"),  # 0 at 0
    "gelu": Activation(gelu, gelu_with_slope, ("gelu", "gelu_python"), "GELU"),
    "gelu-tanh": Activation(
        gelu_tanh, gelu_tanh_with_slope, ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh")
    ),
    "quick-gelu": Activation(quick_gelu, quick_gelu_with_slope, ("quick_gelu",)),
    "silu": Activation(silu, silu_with_slope, ("silu", "swish"), "SiLU"),
    "tanh": Activation(tanh, value_and_slope(tanh, lambda y: 1 - y * y), ("tanh",), "Tanh"),
    "sigmoid": Activation(sigmoid, value_and_slope(sigmoid, lambda y: y * (1 - y)), torch="Sigmoid"),
    "identity": Activation(identity, value_and_slope(identity, np.ones_like), torch="Identity"),
}
PUBLISHED = {published: name for name, activation in ACTIVATIONS.items() for published in activation.published}
TORCH = {activation.torch: name for name, activation in ACTIVATIONS.items() if activation.torch}


def apply_activation(activation: str, x: Array, *, in_place: bool = False) -> Array:
    """Apply an activation to each element, by parts that stay in a core's cache.

    x (...) -> (...)

    With `in_place` a large x is overwritten by the result, which is faster than new memory.

    >>> apply_activation("relu", np.array([-2.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    function = ACTIVATIONS[activation]
    if x.size <= PART:
        return function(x)
    from attnkit.model.processor.threads import run_parallel, split_range

    flat = x.reshape(-1)
    y = flat if in_place else np.empty(x.size, x.dtype)

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            y[part] = function(flat[part])

    run_parallel(work, split_range(0, x.size, BLOCK))
    return y.reshape(x.shape)


def activation_with_slope(activation: str, x: Array) -> tuple[Array, Array]:
    """Apply an activation and its derivative; large arrays on every core.

    x (...) -> (...), (...)

    >>> y, slope = activation_with_slope("relu", np.array([-2.0, 3.0]))
    >>> y.tolist(), slope.tolist()
    ([0.0, 3.0], [0.0, 1.0])
    """
    from attnkit.model.processor.threads import run_parallel, split_range

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
