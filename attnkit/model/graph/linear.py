"""Nodes of linear layers, norms and activations, and those that add and multiply."""

import numpy as np

from attnkit.model.config import Config
from attnkit.model.dtypes import Array, rounded
from attnkit.model.formulas.activations import activation_backward
from attnkit.model.formulas.linear import sum_to_shape
from attnkit.model.formulas.norms import layer_norm_vjp, rms_norm_vjp
from attnkit.model.graph.costs import Costs, Sizes, count_product, per_number
from attnkit.model.graph.nodes import Built, Kind, Node, Place, Scope


def _scale(scope: Scope, x: Array, *others: Array) -> Array:
    """The first input by a factor, plus the others."""
    return sum(others, x * np.asarray(scope.option("factor", 1.0), x.dtype))


def _undo_scale(scope: Scope, dy: Array, y: Array, x: Array, *others: Array) -> list[Array]:
    first = sum_to_shape(dy, x.shape) * np.asarray(scope.option("factor", 1.0), dy.dtype)
    return [first, *(sum_to_shape(dy, one.shape) for one in others)]


def _count_scale(sizes: Sizes) -> Costs:
    return [sizes.elementwise((sizes.option("factor", 1) != 1) + len(sizes.node.inputs) - 1)]


def apply_linear(scope: Scope, x: Array) -> Array:
    weight, bias = scope.option("names")
    return scope.linear(x, weight, bias)


def apply_linear_backward(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [scope.linear_backward(dy, x, *scope.option("names"))]


def _norm(scope: Scope, x: Array, *others: Array) -> Array:
    """Layer or RMS norm of the sum of the inputs."""
    x = sum(others, x)
    if scope.option("skips"):
        return x
    y = standardize(scope, x, scope.option("kind"), scope.option("eps"))
    return scale_and_shift(scope, y, *map(scope.parameter, scope.option("names")))


def _undo_norm(scope: Scope, dy: Array, y: Array, x: Array, *others: Array) -> list[Array]:
    names, kind = scope.option("names"), scope.option("kind")
    gamma, beta = map(scope.parameter, names)
    given = (gamma, beta) if kind == "layer" else (gamma,)
    vjp = layer_norm_vjp if kind == "layer" else rms_norm_vjp
    dx, *parts = vjp(sum(others, x), *given, eps=scope.option("eps"))[1](dy)
    scope.add(scope.node.layer, dict(zip(names, parts, strict=True)))
    return [sum_to_shape(dx, one.shape) for one in (x, *others)]


def count_norm(sizes: Sizes) -> Costs:
    """Squares, sum and division; the mean subtracted; gamma and beta."""
    names = sizes.found(*sizes.option("names"))
    return [sizes.elementwise(3 + 2 * (sizes.option("kind") == "layer") + len(names), *names)]


def standardize(scope: Scope, x: Array, kind: str, eps: float) -> Array:
    """Each row by its standard deviation, or its root mean square."""
    if (kernel := scope.functions.standardize) is not None:
        return kernel(x, kind == "layer", eps)
    centred: Array = x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x
    count = x.shape[-1] - scope.option("ddof", 0)
    square = scope.xp.square(centred)
    if form := scope.option("rounds_squares"):
        square = rounded(square, form).astype(x.dtype)
    square = square.sum(axis=-1, keepdims=True) / count
    root = scope.xp.sqrt
    y: Array = centred / (root(square) + eps) if scope.option("eps_outside") else centred / root(square + eps)
    return y


def scale_and_shift(scope: Scope, y: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        y = y * (scope.option("offset", 0.0) + gamma)
    return y if beta is None else y + beta


def _activate(scope: Scope, x: Array) -> Array:
    y: Array = scope.functions.activations[scope.option("activation")](_multiplied(scope, x))
    return y


def _undo_activate(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    return [_multiplied(scope, activation_backward(scope.option("activation"), dy, _multiplied(scope, x)))]


def _multiplied(scope: Scope, x: Array) -> Array:
    """x times the factor of an activation's input."""
    factor = scope.option("factor", 1.0)
    return x if factor == 1 else x * np.asarray(factor, x.dtype)


def _undo_multiply(scope: Scope, dz: Array, z: Array, x: Array, y: Array) -> list[Array]:
    return [sum_to_shape(dz * y, x.shape), sum_to_shape(dz * x, y.shape)]


def _gate(scope: Scope, x: Array, gate: Array) -> Array:
    """x times the activation of a gate."""
    y: Array = x * scope.functions.activations[scope.option("activation")](gate)
    return y


def _undo_gate(scope: Scope, dz: Array, z: Array, x: Array, gate: Array) -> list[Array]:
    activation = scope.option("activation")
    return [dz * scope.functions.activations[activation](gate), activation_backward(activation, dz * x, gate)]


KINDS = {
    "scale": Kind(value=_scale, pullback=_undo_scale, cost=_count_scale),
    "add": Kind(value=_scale, pullback=_undo_scale, cost=_count_scale),
    "linear": Kind(value=apply_linear, pullback=apply_linear_backward, cost=count_product),
    "norm": Kind(value=_norm, pullback=_undo_norm, cost=count_norm),
    "activate": Kind(
        value=_activate,
        pullback=_undo_activate,
        cost=lambda sizes: [sizes.elementwise(1 + (sizes.option("factor", 1.0) != 1))],
    ),
    "gated": Kind(value=_gate, pullback=_undo_gate, cost=per_number(2)),
    "multiply": Kind(value=lambda scope, x, y: x * y, pullback=_undo_multiply, cost=per_number(1)),
}


def build_norm(place: Place) -> Built:
    yield norm_node(place.core.config, place.step.layer, place.x, place.states(place.width()))


def norm_node(config: Config, layer: str, x: str, shape: tuple[int, ...]) -> Node:
    options = {"kind": config.norm, "eps": config.eps, "names": ("gamma", "beta")}
    return Node(layer, "norm", (x,), shape, layer, options)


def build_linear(place: Place) -> Built:
    layer = place.step.layer
    yield Node(layer, "linear", (place.x,), place.states(place.width()), layer, {"names": ("w", "b")})
