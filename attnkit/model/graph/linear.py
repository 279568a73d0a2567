"""Nodes of linear layers, norms and activations, and those that add and multiply."""

import numpy as np

from attnkit.model.activations import ACTIVATIONS
from attnkit.model.config import Config
from attnkit.model.dtypes import Array, rounded
from attnkit.model.graph.nodes import Built, Kind, Node, Place, Scope


def _scale(scope: Scope, x: Array, *others: Array) -> Array:
    """The first input by a factor, plus the others."""
    return sum(others, x * np.asarray(scope.option("factor", 1.0), x.dtype))


def apply_linear(scope: Scope, x: Array) -> Array:
    weight, bias = scope.option("names")
    return scope.linear(x, weight, bias)


def _norm(scope: Scope, x: Array, *others: Array) -> Array:
    """Layer or RMS norm of the sum of the inputs."""
    x = sum(others, x)
    if scope.option("skips"):
        return x
    y = standardize(scope, x, scope.option("kind"), scope.option("eps"))
    return scale_and_shift(scope, y, *map(scope.parameter, scope.option("names")))


def standardize(scope: Scope, x: Array, kind: str, eps: float) -> Array:
    """Each row by its standard deviation, or its root mean square."""
    centred: Array = x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x
    count = x.shape[-1] - scope.option("ddof", 0)
    square = np.square(centred)
    if form := scope.option("rounds_squares"):
        square = rounded(square, form).astype(x.dtype)
    square = square.sum(axis=-1, keepdims=True) / count
    y: Array = centred / (np.sqrt(square) + eps) if scope.option("eps_outside") else centred / np.sqrt(square + eps)
    return y


def scale_and_shift(scope: Scope, y: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        y = y * (scope.option("offset", 0.0) + gamma)
    return y if beta is None else y + beta


def _activate(scope: Scope, x: Array) -> Array:
    return ACTIVATIONS[scope.option("activation")](x)


def _multiply(scope: Scope, x: Array, y: Array) -> Array:
    return x * y


KINDS = {
    "scale": Kind(
        value=_scale,
    ),
    "add": Kind(
        value=_scale,
    ),
    "linear": Kind(
        value=apply_linear,
    ),
    "norm": Kind(
        value=_norm,
    ),
    "activate": Kind(
        value=_activate,
    ),
    "multiply": Kind(
        value=_multiply,
    ),
}


def build_norm(place: Place) -> Built:
    yield norm_node(place.core.config, place.step.layer, place.x, place.states(place.width()))


def norm_node(config: Config, layer: str, x: str, shape: tuple[int, ...]) -> Node:
    options = {"kind": config.norm, "eps": config.eps, "names": ("gamma", "beta")}
    return Node(layer, "norm", (x,), shape, layer, options)


def build_linear(place: Place) -> Built:
    layer = place.step.layer
    yield Node(layer, "linear", (place.x,), place.states(place.width()), layer, {"names": ("w", "b")})
