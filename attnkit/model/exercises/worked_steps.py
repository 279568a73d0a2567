"""The Transformer as steps on paper: small functions of the steps before.

A computation maps the names of its steps, in their order, to formulas. The parameters of a formula are the names of
given tensors and of earlier steps, so that a slip is one step with another formula, and rounding can be tried at each
step. `model/exercises/worked_slips.py` lists what is often computed instead of a step.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Formula = Callable[..., Any]
Steps = Mapping[str, Formula]

EPS = 1e-5  # of the norms on paper
PLACES = 2  # decimals of a step on paper


def work(steps: Steps, given: Mapping[str, Any], change: Formula = lambda value: value) -> dict[str, Any]:
    """Compute every step of a computation from given tensors.

    change  what is made of the result of each step, before others read it

    >>> work({"double": lambda x: 2 * x, "more": lambda double, x: double + x}, {"x": np.array([1, 2])})["more"]
    array([3., 6.])
    """
    values = dict(given)
    for name, formula in steps.items():
        values[name] = change(_compute(formula, values))
    return values


def _compute(formula: Formula, values: Mapping[str, Any]) -> Any:
    return np.asarray(formula(*[values[name] for name in _inputs(formula)]), float)


@functools.cache
def _inputs(formula: Formula) -> list[str]:
    return [*inspect.signature(formula).parameters]


def rounding_slack(steps: Steps, given: Mapping[str, Any], answer: str) -> Any:
    """How far rounding earlier steps to two places moves each number.

    The most that any choice of the steps moves it, each rounded before the next one is computed.

    >>> steps = {"third": lambda x: x / 3, "result": lambda third: 6 * third}
    >>> float(np.round(rounding_slack(steps, {"x": np.array(1.0)}, "result"), 6))
    0.02
    """
    ways = [dict(given)]
    with np.errstate(all="ignore"):  # of a divisor that is rounded to 0
        for name in [*steps][: [*steps].index(answer)]:
            ways = [way | {name: value} for way in ways for value in _as_on_paper(_compute(steps[name], way), way)]
        exact, *others = (_compute(steps[answer], way) for way in ways)
    moves = [np.abs(one - exact) for one in others if np.isfinite(one).all()]
    return np.max([np.zeros_like(exact), *moves], axis=0)


def _as_on_paper(value: Any, earlier: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a value, and its two-place rounding where that is another one.

    Not again of an earlier step.
    """
    yield value
    rounded = np.round(value, PLACES)
    if not np.array_equal(value, rounded) and not any(value is one for one in earlier.values()):
        yield rounded


def transposed(matrix: Any) -> Any:
    return np.swapaxes(matrix, -1, -2)


def softmax_of(scores: Any, axis: int = -1, base: float = math.e) -> Any:
    """Softmax along an axis; where all scores are −∞, zeros."""
    exponentials = base ** np.asarray(scores, float)
    sums = exponentials.sum(axis=axis, keepdims=True)
    return np.divide(exponentials, sums, out=np.zeros_like(exponentials), where=sums > 0)


def attend_to(q: Any, k: Any, v: Any) -> Any:
    return softmax_of(q @ transposed(k) / math.sqrt(q.shape[-1])) @ v


def normalize(x: Any, axis: int | None = -1) -> Any:
    centered = x - x.mean(axis=axis, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=axis, keepdims=True) + EPS)


def sigmoid_of(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def first_one_hot(p: Any) -> Any:
    """One-hot rows at the first place, in the shape of p."""
    return np.broadcast_to(np.arange(p.shape[-1]) == 0, p.shape).astype(float)


def sinusoids(p: Any, divisors: Any) -> Any:
    """Sines in the even columns, cosines in the odd ones; a divisor each."""
    angles = p[:, None] / np.asarray(divisors)
    return np.where(np.arange(len(divisors)) % 2 == 0, np.sin(angles), np.cos(angles))


def split_heads(x: Any, heads: int = 2) -> Any:
    """Columns side by side to heads: (T, D) -> (H, T, D / H)."""
    return np.stack(np.split(x, heads, axis=-1))


def concatenate_heads(output: Any) -> Any:
    return np.concatenate([*output], axis=-1)


def recurrent_steps(x: Any, w: Any, u: Any, activation: Formula = np.tanh) -> Any:
    """The states of a recurrent layer from the state 0.

    (T, D), (H, D), (H, H) -> (T, H)
    """
    states = [np.zeros(len(w))]
    for token in x:
        states.append(activation(w @ token + u @ states[-1]))
    return np.array(states[1:])


def cells_of(i: Any, f: Any, g: Any) -> Any:
    """c_t = f_t c_(t-1) + i_t g_t from c_0 = 0."""
    cells = [0.0]
    for kept, added in zip(f, i * g, strict=True):
        cells.append(kept * cells[-1] + added)
    return np.array(cells[1:])[:, None]


def write_pairs(keys: Any, values: Any, written: Formula) -> Any:
    """The state after every key and value is written: (T, K), (T, V) -> (K, V).

    written  (the value, what the state holds at the key) -> what is written at the key
    """
    state = np.zeros((keys.shape[1], values.shape[1]))
    for key, value in zip(keys, values, strict=True):
        state = state + np.outer(key, written(value, key @ state))
    return state


def sum_paths(w: Any, u: Any, steps: Sequence[int]) -> Any:
    """The gradient w (1 + u + u² + …) by the number of later states.

    (1, 1), (1, 1) -> (T, 1)
    """
    return np.array([[w[0, 0] * sum(u[0, 0] ** one for one in range(later + 1))] for later in steps])


def windows_of(x: Any, size: int, stride: int, padding: int = 0) -> Any:
    """The windows of a row of frames: (T,) -> (N, size)."""
    framed = np.pad(x, padding)
    return np.array([framed[at : at + size] for at in range(0, len(framed) - size + 1, stride)])


def patches_of(x: Any, stride: int = 2) -> Any:
    """The windows of 2 × 2 pixels of an image of two rows: (2, W) -> (N, 2, 2)."""
    return np.array([x[:, at : at + 2] for at in range(0, x.shape[1] - 1, stride)])


SOFTMAX: Steps = {
    "exponentials": lambda exponents: np.exp(exponents),
    "sums": lambda exponentials: exponentials.sum(-1, keepdims=True),
    "weights": lambda exponentials, sums: np.divide(
        exponentials, sums, out=np.zeros_like(exponentials), where=sums > 0
    ),
}
ATTENTION: Steps = {
    "scores": lambda q, k: q @ transposed(k),
    "scaled": lambda scores, q: scores / math.sqrt(q.shape[-1]),
    "exponents": lambda scaled: scaled,
    **SOFTMAX,
    "output": lambda weights, v: weights @ v,
}
NORM: Steps = {
    "mean": lambda summed: summed.mean(-1, keepdims=True),
    "centered": lambda summed, mean: summed - mean,
    "variance": lambda centered: (centered**2).mean(-1, keepdims=True),
    "deviation": lambda variance: np.sqrt(variance + EPS),
    "normalized": lambda centered, deviation: centered / deviation,
}
LOGITS: Steps = {"logits": lambda x, e: x @ e.T, "exponents": lambda logits: logits, **SOFTMAX}

# a computation by name, as exercises name it
COMPUTATIONS: dict[str, Steps] = {
    "recurrent": {
        "first": lambda x, weight_ih_l0: np.tanh(weight_ih_l0 @ x[0]),
        "sum": lambda x, weight_ih_l0, weight_hh_l0, first: weight_ih_l0 @ x[1] + weight_hh_l0 @ first,
        "states": lambda first, sum: np.array([first, np.tanh(sum)]),
    },
    "cells": {
        "i": lambda x: sigmoid_of(x[:, 0]),
        "f": lambda x: sigmoid_of(x[:, 1]),
        "g": lambda x: np.tanh(x[:, 2]),
        "added": lambda i, g: i * g,
        "second": lambda added, f: f[1] * added[0] + added[1],
        "cells": lambda added, f, second: np.array([added[0], second, f[2] * second + added[2]])[:, None],
    },
    "context": {"exponents": lambda alignment: alignment, **SOFTMAX, "output": lambda weights, v: weights @ v},
    "additive": {
        "summed": lambda s, h: s + h,
        "activated": lambda summed: np.tanh(summed),
        "additive": lambda activated, va: activated @ va,
    },
    "product": {"product": lambda x, w: x @ w},
    "linear": {"product": lambda x, w: x @ w, "linear": lambda product, b: product + b},
    "cosines": {
        "products": lambda q, e: e @ q[0],
        "length": lambda q: np.linalg.norm(q),
        "row_lengths": lambda e: np.linalg.norm(e, axis=-1),
        "lengths": lambda length, row_lengths: length * row_lengths,
        "cosines": lambda products, lengths: products / lengths,
        "sorted": lambda cosines: np.sort(cosines)[::-1],
    },
    "sinusoids": {"sinusoids": lambda p: sinusoids(p, (1, 1, 100, 100))},
    "reversed": {"q": lambda x: x[::-1], "k": lambda q: q, "v": lambda q: q, **ATTENTION},
    "attention": ATTENTION,
    "cross attention": ATTENTION,
    "projected": {
        "q": lambda x, wq: x @ wq,
        "k": lambda x, wk: x @ wk,
        "scores": lambda q, k: q @ transposed(k),
    },
    "softmax": {"exponents": lambda scores: scores, **SOFTMAX},
    "first weight": {
        "exponents": lambda scores: scores,
        **SOFTMAX,
        "gradient": lambda weights: weights[:, :1] * (first_one_hot(weights) - weights),
    },
    "causal": {
        "masked": lambda scores: np.where(np.tri(*scores.shape) > 0, scores, -np.inf),
        "exponents": lambda masked: masked,
        **SOFTMAX,
    },
    "masks": {
        "causal": lambda ids: np.tri(len(ids)),
        "padding": lambda ids: np.tile(ids != 0, (len(ids), 1)),
        "mask": lambda causal, padding: causal * padding,
    },
    "heads": {
        "q": lambda x: split_heads(x),
        "k": lambda q: q,
        "v": lambda q: q,
        **ATTENTION,
        "joined": lambda output: concatenate_heads(output),
    },
    "norm": {"summed": lambda x: x, **NORM},
    "residual norm": {"summed": lambda x, output: x + output, **NORM},
    "attention norm": {
        "q": lambda x: x,
        "k": lambda x: x,
        "v": lambda x: x,
        **ATTENTION,
        "summed": lambda x, output: x + output,
        **NORM,
    },
    "ffn": {
        "hidden": lambda x, w1, b1: x @ w1 + b1,
        "activated": lambda hidden: np.maximum(hidden, 0),
        "network": lambda activated, w2, b2: activated @ w2 + b2,
    },
    "neuron": {"sum": lambda x, w1, b1: x @ w1 + b1, "neuron": lambda sum: sigmoid_of(sum)},
    "probabilities": LOGITS,
    "lens": LOGITS,
    "temperature": {"tempered": lambda logits: logits / 2, "exponents": lambda tempered: tempered, **SOFTMAX},
    "loss": {
        "exponents": lambda logits: logits,
        **SOFTMAX,
        "probability": lambda weights, targets: weights[np.arange(len(weights)), targets.astype(int)],
        "losses": lambda probability: -np.log(probability),
        "loss": lambda losses: losses.mean(),
    },
    "loss gradient": {
        "exponents": lambda logits: logits,
        **SOFTMAX,
        "difference": lambda weights: weights - first_one_hot(weights),
    },
    "smoothed loss": {
        "exponents": lambda logits: logits,
        **SOFTMAX,
        "logarithms": lambda weights: np.log(weights[0]),
        "smoothed": lambda logarithms: -(0.7 * logarithms[0] + 0.1 * logarithms.sum()),
    },
    "recurrent gradient": {
        "paths": lambda weight_ih_l0, weight_hh_l0: sum_paths(weight_ih_l0, weight_hh_l0, (2, 1, 0))
    },
    "attention gradient": {"sums of columns": lambda x, weights: np.tile(weights.sum(0)[:, None], x.shape[1])},
    "top-k": {
        "kept": lambda logits: np.where(keep_largest(logits, 2), logits, -np.inf),
        "exponents": lambda kept: kept,
        **SOFTMAX,
    },
    "cached attention": {
        "k": lambda past, x: np.concatenate([past[0], x]),
        "v": lambda past, x: np.concatenate([past[0], x]),
        **ATTENTION,
    },
    "linear attention": {
        "scores": lambda q, k: q @ transposed(k),
        "seen": lambda scores: np.tril(scores),
        "read": lambda seen, v: seen @ v,
    },
    "delta rule": {"state": lambda k, v: write_pairs(k, v, lambda value, held: value - held)},
    "rollout": {"rollout": lambda first, second: second @ first},
    "patches": {"patches": lambda x, w: (patches_of(x[..., 0]) * w[0, 0]).sum((-2, -1))[:, None]},
    "frames": {"frames": lambda x, w: windows_of(x[:, 0], 3, 2, 1) @ w[0, 0][:, None]},
}


def keep_largest(logits: Any, count: int) -> Any:
    """Which logits of each row are its largest; of equal ones the first."""
    order = np.argsort(-logits, axis=-1, kind="stable")
    return np.argsort(order, axis=-1) < count
