"""The rules of training/optimizers.py on arrays of JAX: new arrays, which take the memory of the old ones.

What depends on the number of the update is computed by the host, in float64, so that the rules are a few products.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnkit.backends.jax.formulas import JaxArray

PARAMETER = "parameter"
State = Mapping[str, JaxArray]  # what an optimizer has of one parameter


class Factors(NamedTuple):
    """The numbers of one update: the parameter times `keep`, less `scale` times what the rule has of its gradient.

    decay  times the parameter, is added to the gradient
    other  of adam what is added to the root; of sgd the factor on the gradient that is added to the momentum
    """

    keep: Any
    decay: Any
    scale: Any
    other: Any


def adam_factors(options: Any, rate: float, weight_decay: float, step: int) -> Factors:
    """Return the numbers of an update of adam: OptimizerOptions, and what `Update` has."""
    beta1, beta2 = options.betas
    root = float((1 - beta2**step) ** 0.5)
    return Factors(1.0, weight_decay, rate * root / (1 - beta1**step), options.eps * root)


def adamw_factors(options: Any, rate: float, weight_decay: float, step: int) -> Factors:
    """Return those of adamw, whose parameters decay by themselves."""
    return adam_factors(options, rate, 0.0, step)._replace(keep=1 - rate * weight_decay)


def sgd_factors(options: Any, rate: float, weight_decay: float, step: int) -> Factors:
    """Return those of sgd, whose first update is not dampened."""
    return Factors(1.0, weight_decay, rate, 1 - options.dampening if step > 1 else 1.0)


def adam_direction(
    gradient: JaxArray, state: State, options: Any, factors: Factors, choose: Any
) -> tuple[JaxArray, dict[str, JaxArray]]:
    """Return the direction of an update, m/(sqrt(v) + eps), and the state after it.

    options  OptimizerOptions; choose: gives the state after it, or that before where nothing is to change

    >>> from types import SimpleNamespace
    >>> options, zero = SimpleNamespace(betas=(0.9, 0.999), eps=0.0), jnp.zeros(1)
    >>> factors, before = adam_factors(options, 0.1, 0.0, 1), {"exp_avg": zero, "exp_avg_sq": zero}
    >>> x, after = adam_direction(zero + 5, before, options, factors, lambda new, old: new)
    >>> (1 - factors.scale * x).round(4).tolist(), after["exp_avg"].round(4).tolist()
    ([0.8999999761581421], [0.5])
    """
    beta1, beta2 = options.betas
    mean = beta1 * state["exp_avg"] + (1 - beta1) * gradient
    square = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient * gradient
    after = choose({"exp_avg": mean, "exp_avg_sq": square}, dict(state))
    return after["exp_avg"] / (jnp.sqrt(after["exp_avg_sq"]) + factors.other), after


def sgd_direction(
    gradient: JaxArray, state: State, options: Any, factors: Factors, choose: Any
) -> tuple[JaxArray, dict[str, JaxArray]]:
    """Return the direction of a step of gradient descent, with momentum if there is any, and the state after it."""
    if not options.momentum:
        return gradient, {}
    velocity = options.momentum * state["momentum_buffer"] + factors.other * gradient
    after = choose({"momentum_buffer": velocity}, dict(state))
    return after["momentum_buffer"], after


class UpdateRule(NamedTuple):
    """The numbers of an update, and its direction."""

    factors: Callable[[Any, float, float, int], Factors]
    direction: Callable[[JaxArray, State, Any, Factors, Any], tuple[JaxArray, dict[str, JaxArray]]]


RULES = {
    "adamw": UpdateRule(adamw_factors, adam_direction),
    "adam": UpdateRule(adam_factors, adam_direction),
    "sgd": UpdateRule(sgd_factors, sgd_direction),
}


def update_parameter(
    arrays: State, gradient: JaxArray, options: Any, factors: Factors, is_skipped: JaxArray
) -> dict[str, JaxArray]:
    """Return a parameter, and what an optimizer has of it, after an update, or as they were where it is skipped.

    arrays  PARAMETER and the names of the state -> their arrays
    """
    parameter, state = arrays[PARAMETER], {name: array for name, array in arrays.items() if name != PARAMETER}

    def choose(new: Any, old: Any) -> Any:
        chosen = jax.tree.map(lambda x, y: jnp.where(is_skipped, y, x), new, old)
        return jax.lax.optimization_barrier(chosen)  # written over the old one before it is read again

    find_direction = RULES[options.name].direction
    direction, state = find_direction(gradient + factors.decay * parameter, state, options, factors, choose)
    changed = factors.keep * parameter - factors.scale * direction
    return {PARAMETER: jnp.where(is_skipped, parameter, changed), **state}
