"""Slips of computations on paper: another formula for a step.

The exercises try every slip of the steps that they ask for. A slip whose formula does not fit the shapes of an exercise
does not occur in it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit.model.exercises.worked_steps import (
    EPS,
    Formula,
    Steps,
    attend_to,
    cells_of,
    concatenate_heads,
    first_one_hot,
    keep_largest,
    normalize,
    patches_of,
    recurrent_steps,
    sigmoid_of,
    sinusoids,
    softmax_of,
    split_heads,
    sum_paths,
    transposed,
    windows_of,
    work,
    write_pairs,
)
from attnkit.model.slips import (
    BLOCKED_ZERO,
    HALVES,
    HEADS_LAST,
    INVERTED_PADDING,
    MULTIPLIED_SCALE,
    N_MINUS_1,
    NO_ACTIVATION,
    NO_CAUSAL,
    NO_MEAN,
    NO_PADDING,
    NO_RESIDUAL,
    NO_SCALE,
    OPPOSITE_CAUSAL,
    OVER_QUERIES,
    PRE_NORM,
    RESIDUAL_AFTER,
    RESIDUAL_ALONE,
    RESIDUAL_TWICE,
    SCALE_OF_WIDTH,
    SCALED_TWICE,
    SHIFTED_CAUSAL,
    SHIFTED_POSITIONS,
    STRICT_CAUSAL,
    Slip,
)


def _divide_by_sum(x: Any, axis: int = -1) -> Any:
    return x / x.sum(axis, keepdims=True)


def _causal_softmax(scores: Any, diagonal: int = 0, fill: float = -math.inf, axis: int = -1) -> Any:
    return softmax_of(np.where(np.tri(len(scores), k=diagonal) > 0, scores, fill), axis)


def _two_heads(x: Any, scale: float) -> Any:
    q = split_heads(x)
    return softmax_of(q @ transposed(q) * scale) @ q


def _cross_entropy(logits: Any, target: Any, logarithm: Formula) -> Any:
    return -(target * logarithm(softmax_of(logits))).sum()


def _smoothed(first: float, others: float, width: int) -> Any:
    return np.array([first, *[others] * (width - 1)])


SCALES = (
    Slip(NO_SCALE, {"scaled": lambda scores: scores}, "divide them by √d_k"),
    Slip(SCALED_TWICE, {"scaled": lambda scores, q: scores / q.shape[-1]}, "divide by √d_k, not by d_k"),
    Slip(
        "the scores are divided by the root of the number of keys",
        {"scaled": lambda scores, k: scores / math.sqrt(k.shape[-2])},
        "d_k is the width of a key",
    ),
    Slip(MULTIPLIED_SCALE, {"scaled": lambda scores, q: scores * math.sqrt(q.shape[-1])}, "divide them by √d_k"),
    Slip(
        "√4 is 2: some notes write √2 and divide by it",
        {"scaled": lambda scores, q: scores / math.sqrt(math.sqrt(q.shape[-1]))},
    ),
    Slip(
        "queries and keys are exchanged (K Qᵀ, not Q Kᵀ)",
        {"scores": lambda q, k: k @ transposed(q)},
        "rows should be queries",
    ),
)

SOFTMAXES = (
    Slip(
        OVER_QUERIES, {"weights": lambda exponents: softmax_of(exponents, axis=-2)}, "each row of weights adds up to 1"
    ),
    Slip(
        "softmax is over all numbers, not over each row",
        {"weights": lambda exponents: np.exp(exponents) / np.exp(exponents).sum()},
        "each row of weights adds up to 1",
    ),
    Slip(
        "the scores are divided by their sum, without the exponential",
        {"weights": lambda exponents: _divide_by_sum(exponents)},
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "the base is 2 instead of e",
        {"weights": lambda exponents: softmax_of(exponents, base=2)},
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "the base is 10 instead of e",
        {"weights": lambda exponents: softmax_of(exponents, base=10)},
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "the exponents have the wrong sign",
        {"weights": lambda exponents: softmax_of(-exponents)},
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "that is 1 for the largest score and 0 for the others",
        {"weights": lambda exponents: keep_largest(exponents, 1)},
        "softmax gives each score a share",
    ),
    Slip("softmax is applied twice", {"weights": lambda exponents: softmax_of(softmax_of(exponents))}),
)

BASES = (
    Slip(
        "the base is 3 instead of e",
        {"weights": lambda exponents: softmax_of(exponents, base=3)},
        "e is 2.718 (some notes print .75 and .25 for softmax([3, 2]))",
    ),
)

OUTPUTS = (
    Slip(
        "the weights are transposed (Wᵀ V, not W V)",
        {"output": lambda weights, v: transposed(weights) @ v},
        "each row of weights makes one output",
    ),
    Slip(
        "the last value is counted twice",
        {"output": lambda weights, v: weights @ v + weights[..., -1:] * v[..., -1:, :]},
        "some notes do so and print [1.2669, .9999, …]",
    ),
    Slip(
        "that is the mean of the values",
        {"output": lambda weights, v: (weights * 0 + 1 / v.shape[-2]) @ v},
        "each value counts by its weight",
    ),
    Slip("the scores are not weights", {"output": lambda exponents, v: exponents @ v}, "apply softmax to them first"),
    Slip(
        "the exponentials are not divided by their sum",
        {"output": lambda exponentials, v: exponentials @ v},
        "each row of weights adds up to 1",
    ),
)

CROSS = (
    Slip(
        "the memory asks and the decoder answers",
        {"output": lambda q, k: attend_to(k, q, q)},
        "queries are those of the decoder, keys and values those of the memory",
    ),
    Slip(
        "that is self-attention",
        {"output": lambda q: attend_to(q, q, q)},
        "the keys and values are those of the memory",
    ),
    Slip(
        "that is self-attention of the memory",
        {"output": lambda k: attend_to(k, k, k)},
        "the queries are those of the decoder",
    ),
)

CACHES = (
    Slip(
        "the word attends to itself alone",
        {"output": lambda x: attend_to(x, x, x)},
        "it attends to the words of the cache too",
    ),
    Slip(
        "the word attends to the cache alone",
        {"output": lambda x, past: attend_to(x, past[0], past[0])},
        "it attends to itself too",
    ),
)

REVERSED = (
    Slip(
        'those are the outputs of "dog bites man" in its own order',
        {"output": lambda x: attend_to(x, x, x)},
        "each word takes its output along",
    ),
    Slip(
        "the values are in their own order",
        {"output": lambda q, x: attend_to(q, q, x)},
        "queries, keys and values are turned around together",
    ),
)

CAUSAL = (
    Slip(NO_CAUSAL, {"masked": lambda scores: scores}, "what is above the diagonal gets 0"),
    Slip(
        STRICT_CAUSAL,
        {"masked": lambda scores: np.where(np.tri(len(scores), k=-1) > 0, scores, -np.inf)},
        "the diagonal stays",
    ),
    Slip(
        SHIFTED_CAUSAL,
        {"masked": lambda scores: np.where(np.tri(len(scores), k=1) > 0, scores, -np.inf)},
        "what is above the diagonal gets 0",
    ),
    Slip(
        OPPOSITE_CAUSAL,
        {"masked": lambda scores: np.where(np.tri(*scores.shape).T > 0, scores, -np.inf)},
        "a token may attend to itself and to the tokens before it",
    ),
    Slip(
        "only later tokens are allowed",
        {"masked": lambda scores: np.where(np.tri(*scores.shape) == 0, scores, -np.inf)},
        "a token may attend to itself and to the tokens before it",
    ),
    Slip(
        BLOCKED_ZERO,
        {"masked": lambda scores: np.where(np.tri(*scores.shape) > 0, scores, 0)},
        "e⁰ is 1, and takes a share",
    ),
    Slip(
        f"{BLOCKED_ZERO}, and their weights are left out",
        {"weights": lambda scores: _causal_softmax(scores, fill=0) * np.tri(*scores.shape)},
        "e⁰ is 1, and takes a share",
    ),
    Slip(
        "the mask is applied after the softmax",
        {"weights": lambda scores: softmax_of(scores) * np.tri(*scores.shape)},
        "mask first, so that each row still adds up to 1",
    ),
    Slip(
        "those are equal weights",
        {"weights": lambda scores: _divide_by_sum(np.tri(*scores.shape))},
        "the scores decide how large each weight is",
    ),
)

MASKS = (
    Slip(NO_PADDING, {"mask": lambda causal: causal}, "the column of a token with the id 0 is 0"),
    Slip(NO_CAUSAL, {"mask": lambda padding: padding}, "what is above the diagonal is 0"),
    Slip(STRICT_CAUSAL, {"mask": lambda padding: np.tri(len(padding), k=-1) * padding}, "the diagonal stays"),
    Slip(
        SHIFTED_CAUSAL, {"mask": lambda padding: np.tri(len(padding), k=1) * padding}, "what is above the diagonal is 0"
    ),
    Slip(
        OPPOSITE_CAUSAL,
        {"mask": lambda causal, padding: causal.T * padding},
        "a token may attend to itself and to the tokens before it",
    ),
    Slip(
        INVERTED_PADDING,
        {"mask": lambda causal, padding: causal * (1 - padding)},
        "the column of a token with the id 0 is 0",
    ),
    Slip(
        "some notes set the row of the padding to 0; here only its column is",
        {"mask": lambda causal, padding: causal * padding * padding.T},
    ),
    Slip(
        "some notes set the row of the padding to 0; here only its column is",
        {"mask": lambda causal, padding: causal * padding.T},
    ),
    Slip(
        "the row of the padding is 0, and the causal mask is missing",
        {"mask": lambda padding: padding.T},
        "the column of the padding is 0, and what is above the diagonal",
    ),
    Slip(
        "that is what one of the two rules allows",
        {"mask": lambda causal, padding: np.maximum(causal, padding)},
        "a key is allowed if both rules allow it",
    ),
    Slip("1 and 0 are exchanged", {"mask": lambda causal, padding: 1 - causal * padding}, '1 means "may attend"'),
    Slip(
        "that is the mask to add to the scores",
        {"mask": lambda causal, padding: np.where(causal * padding > 0, 0, -np.inf)},
        '1 means "may attend", 0 means "masked"',
    ),
    Slip(
        "a mask to add has 0, not 1, for what stays",
        {"mask": lambda causal, padding: np.where(causal * padding > 0, 1, -np.inf)},
        'and here 1 means "may attend", 0 means "masked"',
    ),
)

HEADS = (
    Slip("that is one head of four columns", {"output": lambda x: attend_to(x, x, x)}, "give each head two columns"),
    Slip(
        SCALE_OF_WIDTH, {"output": lambda x: _two_heads(x, x.shape[-1] ** -0.5)}, "√2 is the root of a head's own width"
    ),
    Slip(
        HEADS_LAST,
        {"output": lambda x: np.stack([attend_to(x[:, at::2], x[:, at::2], x[:, at::2]) for at in (0, 1)])},
        "the first head has the first two columns",
    ),
    Slip("the heads are added", {"joined": lambda output: output.sum(0)}, "put their outputs side by side"),
    Slip("that is the mean of the heads", {"joined": lambda output: output.mean(0)}, "put their outputs side by side"),
    Slip("the outputs of the heads stand below each other", {"joined": lambda output: output}, "put them side by side"),
    Slip("the second head comes first", {"joined": lambda output: concatenate_heads(output[::-1])}),
)

RESIDUALS = (
    Slip(NO_RESIDUAL, {"summed": lambda output: output}, "add the input x to the output of the sub-layer"),
    Slip(RESIDUAL_ALONE, {"summed": lambda x, output: x}, "normalize their sum"),
    Slip(RESIDUAL_TWICE, {"summed": lambda x, output: 2 * x + output}),
    Slip("the output is subtracted", {"summed": lambda x, output: x - output}, "normalize the sum"),
    Slip("the input is multiplied by the output", {"summed": lambda x, output: x * output}, "normalize the sum"),
    Slip(RESIDUAL_AFTER, {"normalized": lambda x, output: x + normalize(output)}, "normalize the sum"),
    Slip(
        "the norm is that of the input alone, and the output is added to it",
        {"normalized": lambda x, output: normalize(x) + output},
        "normalize the sum",
    ),
    Slip(
        "each is normalized by itself",
        {"normalized": lambda x, output: normalize(x) + normalize(output)},
        "normalize the sum",
    ),
    Slip(PRE_NORM, {"normalized": lambda x, q: x + attend_to(*[normalize(x)] * 3)}, "normalize the sum"),
)

NORMS = (
    Slip(
        N_MINUS_1,
        {"variance": lambda centered: (centered**2).sum(-1, keepdims=True) / (centered.shape[-1] - 1)},
        "the variance is the mean of the squares",
    ),
    Slip(
        "the norm divides by σ², not by σ",
        {"deviation": lambda variance: variance + EPS},
        "take the root of the variance",
    ),
    Slip(NO_MEAN, {"centered": lambda summed: summed}, "the norm is that of x − μ"),
    Slip(
        "the mean is not subtracted above the fraction line",
        {"normalized": lambda summed, deviation: summed / deviation},
        "divide x − μ by σ",
    ),
    Slip(
        "those are the columns normalized (batch normalization)",
        {"normalized": lambda summed: normalize(summed, axis=0)},
        "each row has its own mean",
    ),
    Slip(
        "the mean and the variance are those of all rows together",
        {"normalized": lambda summed: normalize(summed, axis=None)},
        "each row has its own mean",
    ),
    Slip(
        "σ is the mean of the distances",
        {"deviation": lambda centered: np.abs(centered).mean(-1, keepdims=True)},
        "take the root of the mean of their squares",
    ),
    Slip(
        "the squares are added, not averaged",
        {"variance": lambda centered: (centered**2).sum(-1, keepdims=True)},
        "the variance is their mean",
    ),
    Slip(
        "those are the numbers between 0 and 1 (min-max scaling)",
        {
            "normalized": lambda summed: (
                (summed - summed.min(-1, keepdims=True)) / np.ptp(summed, axis=-1, keepdims=True)
            )
        },
        "divide x − μ by σ",
    ),
    Slip(
        "the norm divides by √n",
        {"normalized": lambda centered: centered / math.sqrt(centered.shape[-1])},
        "divide by σ",
    ),
)

NETWORKS = (
    Slip(NO_ACTIVATION, {"activated": lambda hidden: hidden}, "negative numbers become 0 between the two linear maps"),
    Slip("the bias b₁ is missing", {"hidden": lambda x, w1: x @ w1}, "add it before max(0, ·)"),
    Slip("the bias b₂ is missing", {"network": lambda activated, w2: activated @ w2}),
    Slip("both biases are missing", {"network": lambda x, w1, w2: np.maximum(x @ w1, 0) @ w2}),
    Slip("b₁ is added after max(0, ·)", {"activated": lambda x, w1, b1: np.maximum(x @ w1, 0) + b1}, "add it before"),
    Slip(
        "max(0, ·) is applied to the output too",
        {"network": lambda activated, w2, b2: np.maximum(activated @ w2 + b2, 0)},
        "it stands between the two linear maps",
    ),
    Slip(
        "max(0, ·) is applied at the end",
        {"network": lambda hidden, w2, b2: np.maximum(hidden @ w2 + b2, 0)},
        "it stands between the two linear maps",
    ),
    Slip("negative numbers lose their sign", {"activated": lambda hidden: np.abs(hidden)}, "they become 0"),
    Slip("that is min(0, ·)", {"activated": lambda hidden: np.minimum(hidden, 0)}, "negative numbers become 0"),
    Slip("b₁ is subtracted", {"network": lambda x, w1, b1, w2, b2: np.maximum(x @ w1 - b1, 0) @ w2 + b2}, "add it"),
    Slip("the activation is sigmoid", {"activated": lambda hidden: sigmoid_of(hidden)}, "here it should be max(0, ·)"),
    Slip("the activation is tanh", {"activated": lambda hidden: np.tanh(hidden)}, "here it should be max(0, ·)"),
)

NEURONS = (
    Slip("the bias b is missing", {"sum": lambda x, w1: x @ w1}),
    Slip("the bias b is subtracted", {"sum": lambda x, w1, b1: x @ w1 - b1}, "add it"),
    Slip("the exponent has the wrong sign", {"neuron": lambda sum: sigmoid_of(-sum)}, "σ(z) = 1 / (1 + e^−z)"),
    Slip("b is added after σ", {"neuron": lambda x, w1, b1: sigmoid_of(x @ w1) + b1}, "add it before"),
    Slip("that is tanh of the sum", {"neuron": lambda sum: np.tanh(sum)}, "σ(z) = 1 / (1 + e^−z)"),
    Slip("that is max(0, ·) of the sum", {"neuron": lambda sum: np.maximum(sum, 0)}, "σ(z) = 1 / (1 + e^−z)"),
    Slip("that is e^z", {"neuron": lambda sum: np.exp(sum)}, "σ(z) = 1 / (1 + e^−z)"),
)

LINEARS = (
    Slip("the weight is transposed", {"product": lambda x, w: x @ w.T}, "a row of x meets the columns of W"),
    Slip("the product is in the wrong order (W x, not x W)", {"product": lambda x, w: w @ x}),
    Slip("the product is that of xᵀ", {"product": lambda x, w: x.T @ w}),
    Slip("the numbers are multiplied one by one", {"product": lambda x, w: x * w}, "a row of x meets the columns of W"),
    Slip("the bias b is missing", {"linear": lambda product: product}),
    Slip("the bias b is subtracted", {"linear": lambda product, b: product - b}, "add it"),
    Slip(
        "each word has the row after its own",
        {"product": lambda x, w: x @ np.roll(w, -1, axis=0)},
        "1 in the first place picks the first row",
    ),
    Slip(
        "each word has the row before its own",
        {"product": lambda x, w: x @ np.roll(w, 1, axis=0)},
        "1 in the first place picks the first row",
    ),
    Slip(
        "the columns are added without their weights",
        {"product": lambda x, w: np.tile(x.sum(-1, keepdims=True), w.shape[1])},
    ),
)

PROJECTIONS = (
    Slip("that is x xᵀ", {"scores": lambda x: x @ x.T}, "multiply x by W_Q and by W_K first"),
    Slip("queries and keys are exchanged (K Qᵀ, not Q Kᵀ)", {"scores": lambda q, k: k @ q.T}, "rows should be queries"),
    Slip("that is Q Qᵀ", {"scores": lambda q: q @ q.T}, "the keys are x W_K"),
    Slip("that is K Kᵀ", {"scores": lambda k: k @ k.T}, "the queries are x W_Q"),
    Slip("the keys are not transposed", {"scores": lambda q, k: q @ k}, "a score is the product of a query and a key"),
    Slip("the keys are not projected", {"scores": lambda q, x: q @ x.T}, "they should be x W_K"),
    Slip("the queries are not projected", {"scores": lambda k, x: x @ k.T}, "they should be x W_Q"),
    Slip(
        "the scores are divided by √d_k",
        {"scores": lambda q, k: q @ k.T / math.sqrt(q.shape[-1])},
        "here Q Kᵀ is asked for",
    ),
    Slip(
        "the weights are transposed",
        {"scores": lambda x, wq, wk: x @ wq.T @ wk @ x.T},
        "a row of x meets the columns of W",
    ),
)

POSITIONS = (
    Slip(
        HALVES,
        {"sinusoids": lambda p: sinusoids(p, (1, 1, 100, 100))[:, [0, 2, 1, 3]]},
        "the sines are in the even columns and the cosines in the odd ones",
    ),
    Slip(
        "sines and cosines are exchanged",
        {"sinusoids": lambda p: sinusoids(p, (1, 1, 100, 100))[:, [1, 0, 3, 2]]},
        "the sines are in the even columns",
    ),
    Slip(
        "the angles are in degrees",
        {"sinusoids": lambda p: sinusoids(np.radians(p), (1, 1, 100, 100))},
        "set the calculator to radians",
    ),
    Slip(
        "the exponent of the cosines is (2i+1)/d",
        {"sinusoids": lambda p: sinusoids(p, (1, 10, 100, 1000))},
        "a sine and its cosine share the exponent 2i/d",
    ),
    Slip("the exponent is i/d", {"sinusoids": lambda p: sinusoids(p, (1, 1, 10, 10))}, "it should be 2i/d"),
    Slip(
        "i is the number of the column",
        {"sinusoids": lambda p: sinusoids(p, (1, 1e2, 1e4, 1e6))},
        "it should be the number of the pair of columns: 0, 0, 1, 1",
    ),
    Slip(
        SHIFTED_POSITIONS,
        {"sinusoids": lambda p: sinusoids(p + 1, (1, 1, 100, 100))},
        "the numbers in p are the positions",
    ),
    Slip(
        "positions count from 0",
        {"sinusoids": lambda p: sinusoids(np.arange(len(p)), (1, 1, 100, 100))},
        "the numbers in p are the positions",
    ),
    Slip(
        "positions count from 1",
        {"sinusoids": lambda p: sinusoids(np.arange(len(p)) + 1, (1, 1, 100, 100))},
        "the numbers in p are the positions",
    ),
    Slip(
        "all columns are sines",
        {"sinusoids": lambda p: np.sin(p[:, None] / np.array((1, 1, 100, 100)))},
        "the cosines are in the odd columns",
    ),
    Slip(
        "all columns have the angle pos",
        {"sinusoids": lambda p: sinusoids(p, (1, 1, 1, 1))},
        "divide it by 10000^(2i/d)",
    ),
    Slip(
        "the angle is multiplied by 10000^(2i/d)",
        {"sinusoids": lambda p: sinusoids(p, (1, 1, 0.01, 0.01))},
        "divide it",
    ),
    Slip(
        "cos 1 is .54; some notes print .34",
        {
            "sinusoids": lambda p: np.where(
                np.isclose(sinusoids(p, (1, 1, 100, 100)), math.cos(1)), 0.34, sinusoids(p, (1, 1, 100, 100))
            )
        },
    ),
)

RECURRENCES = (
    Slip(
        "the sum is not yet the state",
        {
            "states": lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(
                x, weight_ih_l0, weight_hh_l0, lambda sum: sum
            )
        },
        "apply tanh to it",
    ),
    Slip(
        "that is max(0, ·) of the sum",
        {
            "states": lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(
                x, weight_ih_l0, weight_hh_l0, lambda sum: np.maximum(sum, 0)
            )
        },
        "apply tanh to it",
    ),
    Slip(
        "that is σ of the sum",
        {"states": lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x, weight_ih_l0, weight_hh_l0, sigmoid_of)},
        "apply tanh to it",
    ),
    Slip(
        "the last token is read first",
        {"states": lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x[::-1], weight_ih_l0, weight_hh_l0)[::-1]},
        "read the first token first",
    ),
    Slip(
        "the last token is read first",
        {"states": lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x[::-1], weight_ih_l0, weight_hh_l0)},
        "read the first token first",
    ),
    Slip(
        "the state before is not used", {"states": lambda x, weight_ih_l0: np.tanh(x @ weight_ih_l0.T)}, "add U h_(t-1)"
    ),
    Slip(
        "the state before is added without U",
        {"states": lambda x, weight_ih_l0: recurrent_steps(x, weight_ih_l0, np.ones((1, 1)))},
        "add U h_(t-1)",
    ),
    Slip(
        "U h_(t-1) is added after tanh",
        {
            "states": lambda x, weight_ih_l0, weight_hh_l0: np.array(
                [[h1 := np.tanh(x[0] @ weight_ih_l0[0])], [np.tanh(x[1] @ weight_ih_l0[0]) + weight_hh_l0[0, 0] * h1]]
            )
        },
        "apply tanh to the sum",
    ),
    Slip(
        "h_2 is computed with the sum before tanh, not with h_1",
        {
            "states": lambda x, weight_ih_l0, weight_hh_l0: np.tanh(
                recurrent_steps(x, weight_ih_l0, weight_hh_l0, lambda sum: sum)
            )
        },
    ),
)

CELLS = (
    Slip(
        "those are the candidates",
        {"cells": lambda g: g},
        "the input gate scales them, and the forget gate keeps part of the cell before",
    ),
    Slip(
        "the input gate is missing",
        {"cells": lambda f, g: cells_of(np.ones_like(f), f, g)},
        "the candidate is multiplied by i",
    ),
    Slip(
        "the forget gate is missing",
        {"cells": lambda i, g: cells_of(i, np.ones_like(i), g)},
        "the cell before is multiplied by f",
    ),
    Slip("the cell before is not kept", {"cells": lambda i, g: cells_of(i, np.zeros_like(i), g)}, "add f · c_(t-1)"),
    Slip(
        "the input gate and the forget gate are exchanged",
        {"cells": lambda i, f, g: cells_of(f, i, g)},
        "i scales the candidate, f the cell before",
    ),
    Slip("the gates are not yet σ of their numbers", {"cells": lambda x, g: cells_of(x[:, 0], x[:, 1], g)}),
    Slip("the candidate is c, not tanh(c)", {"cells": lambda i, f, x: cells_of(i, f, x[:, 2])}),
    Slip("the candidate is σ(c), not tanh(c)", {"cells": lambda i, f, x: cells_of(i, f, sigmoid_of(x[:, 2]))}),
    Slip("the forget gate is 1 − i", {"cells": lambda i, g: cells_of(i, 1 - i, g)}, "it should be σ(b)"),
    Slip(
        "the cell before is multiplied by 1 − f", {"cells": lambda i, f, g: cells_of(i, 1 - f, g)}, "f is what is kept"
    ),
    Slip(
        "those are tanh of the cell states",
        {"cells": lambda i, f, g: np.tanh(cells_of(i, f, g))},
        "the cell state is asked for",
    ),
)

ALIGNMENTS = (
    Slip(
        "those are the products s · h", {"additive": lambda s, h: h @ s[0]}, "the additive score is v · tanh(W s + U h)"
    ),
    Slip("tanh is missing", {"activated": lambda summed: summed}),
    Slip(
        "the product with v is missing",
        {"additive": lambda activated: activated.sum(-1)},
        "v weighs each number of tanh(W s + U h)",
    ),
    Slip(
        "tanh is applied to the product with v",
        {"additive": lambda summed, va: np.tanh(summed @ va)},
        "apply it before",
    ),
    Slip("the state s is missing", {"summed": lambda h: h}, "the sum is W s + U h"),
    Slip("the states are subtracted", {"summed": lambda s, h: s - h}, "the sum is W s + U h"),
    Slip("the states are multiplied", {"summed": lambda s, h: s * h}, "the sum is W s + U h"),
    Slip("tanh is applied to each state, not to their sum", {"activated": lambda s, h: np.tanh(s) + np.tanh(h)}),
    Slip("that is σ, not tanh", {"activated": lambda summed: sigmoid_of(summed)}),
    Slip(
        "the scores are divided by √d",
        {"exponents": lambda alignment, v: alignment / math.sqrt(v.shape[-1])},
        "do not scale these scores",
    ),
)

COSINES = (
    Slip(
        "those are the products q · e",
        {"sorted": lambda products: np.sort(products)[::-1]},
        "divide each by the lengths of both vectors",
    ),
    Slip(
        "those are the products q · e",
        {"sorted": lambda products: products},
        "divide each by the lengths of both vectors",
    ),
    Slip("they are in the order of the rows", {"sorted": lambda cosines: cosines}, "put the largest first"),
    Slip("the smallest comes first", {"sorted": lambda cosines: np.sort(cosines)}, "put the largest first"),
    Slip(
        "the products are not divided by the length of q",
        {"sorted": lambda products, e: np.sort(products / np.linalg.norm(e, axis=-1))[::-1]},
    ),
    Slip(
        "the products are not divided by the lengths of the rows of E",
        {"sorted": lambda products, q: np.sort(products / np.linalg.norm(q))[::-1]},
    ),
    Slip(
        "the lengths have no root",
        {"sorted": lambda products, lengths: np.sort(products / lengths**2)[::-1]},
        "|a| is the root of the sum of its squares",
    ),
    Slip(
        "those are the distances",
        {"sorted": lambda q, e: np.sort(np.linalg.norm(q - e, axis=-1))},
        "cosine similarity is a · b / (|a| |b|)",
    ),
    Slip("the signs are missing", {"sorted": lambda cosines: np.sort(np.abs(cosines))[::-1]}),
)

GRADIENTS = (
    Slip(
        "the one-hot row is missing",
        {"gradient": lambda weights: -weights[:, :1] * weights},
        "it should be p_0 · ([1, 0, 0] − p)",
    ),
    Slip("the factor p_0 is missing", {"gradient": lambda weights: first_one_hot(weights) - weights}),
    Slip(
        "that is p (1 − p), the derivative of each weight with respect to its own score",
        {"gradient": lambda weights: weights * (1 - weights)},
        "it should be p_0 · ([1, 0, 0] − p)",
    ),
    Slip(
        "the others have the wrong sign",
        {"gradient": lambda weights: weights[:, :1] * np.abs(first_one_hot(weights) - weights)},
        "they lower the first weight",
    ),
    Slip(
        "only the first score counts",
        {"gradient": lambda weights: weights[:, :1] * (1 - weights[:, :1]) * first_one_hot(weights)},
        "the others lower the first weight",
    ),
    Slip(
        "each is multiplied by its own weight",
        {"gradient": lambda weights: weights * (first_one_hot(weights) - weights)},
        "the factor is p_0",
    ),
)

TEMPERATURES = (
    Slip("those are the probabilities at temperature 1", {"tempered": lambda logits: logits}, "divide the logits by 2"),
    Slip("the logits are multiplied by the temperature", {"tempered": lambda logits: logits * 2}, "divide them by it"),
    Slip("the logits are divided by √2", {"tempered": lambda logits: logits / math.sqrt(2)}, "divide them by 2"),
    Slip("the logits are divided by 2²", {"tempered": lambda logits: logits / 4}, "divide them by 2"),
    Slip(
        "the probabilities are divided by the temperature",
        {"weights": lambda logits: softmax_of(logits) / 2},
        "divide the logits by it",
    ),
    Slip(
        "softmax is applied before and after the division",
        {"tempered": lambda logits: softmax_of(logits) / 2},
        "divide the logits, not the probabilities",
    ),
)

LOGITS = (
    Slip("the logits are divided by √d", {"logits": lambda x, e: x @ e.T / math.sqrt(x.shape[-1])}, "compute x Eᵀ"),
    Slip(
        "E is not transposed",
        {"logits": lambda x, e: x @ e},
        "a logit is the product of the state and the row of a word",
    ),
    Slip(
        "the logits are divided by the lengths of the rows",
        {"logits": lambda x, e: x @ e.T / np.linalg.norm(e, axis=-1)},
        "compute x Eᵀ",
    ),
    Slip(
        "the rows of E are added without the state",
        {"logits": lambda x, e: np.tile(e.sum(-1), (len(x), 1))},
        "compute x Eᵀ",
    ),
    Slip("rows are words", {"logits": lambda x, e: e @ x.T}, "rows should be layers"),
    Slip(
        "the states are added up layer by layer",
        {"logits": lambda x, e: np.cumsum(x, axis=0) @ e.T},
        "each row is a whole state",
    ),
)

LOSSES = (
    Slip("the logarithm has the base 2", {"losses": lambda probability: -np.log2(probability)}, "ln has the base e"),
    Slip("the logarithm has the base 10", {"losses": lambda probability: -np.log10(probability)}, "ln has the base e"),
    Slip("the minus sign is missing", {"losses": lambda probability: np.log(probability)}),
    Slip("that is the perplexity, e^loss", {"loss": lambda losses: np.exp(losses.mean())}, "the loss is its ln"),
    Slip("that is the sum", {"loss": lambda losses: losses.sum()}, "divide it by the number of tokens"),
    Slip(
        "that is −ln of the mean probability",
        {"loss": lambda probability: -np.log(probability.mean())},
        "the loss is the mean of −ln p",
    ),
    Slip("that is the probability", {"loss": lambda probability: probability.mean()}, "the loss is −ln of it"),
    Slip(
        "that is the probability of the whole text",
        {"loss": lambda probability: probability.prod()},
        "the loss is the mean of −ln p",
    ),
    Slip(
        "that is the logit with a minus sign",
        {"loss": lambda logits, targets: -logits[np.arange(len(logits)), targets.astype(int)].mean()},
        "the loss is −ln of the probability",
    ),
    Slip("that is 1 − p", {"loss": lambda probability: 1 - probability.mean()}, "the loss is −ln p"),
    Slip("that is −ln(1 − p)", {"loss": lambda probability: -np.log(1 - probability).mean()}, "the loss is −ln p"),
    Slip(
        "that is the entropy of the probabilities",
        {"loss": lambda weights: -(weights * np.log(weights)).sum(-1).mean()},
        "the target is one word",
    ),
    Slip(
        "that is −p ln p",
        {"loss": lambda probability: -(probability * np.log(probability)).mean()},
        "the target is 1 for the word",
    ),
    Slip(
        "the loss counts every word",
        {"loss": lambda weights: -np.log(weights).sum(-1).mean()},
        "count the next word alone",
    ),
    Slip(
        "the loss is the mean over all words",
        {"loss": lambda weights: -np.log(weights).mean()},
        "count the next word alone",
    ),
    Slip(
        "that is the loss of the last token alone", {"loss": lambda losses: losses[-1]}, "take the mean over all tokens"
    ),
    Slip(
        "the targets are shifted by one",
        {
            "loss": lambda weights, targets: (
                -np.log(weights[np.arange(len(weights)), (targets.astype(int) + 1) % weights.shape[-1]]).mean()
            )
        },
        "the words are counted from 0",
    ),
)

LOSS_GRADIENTS = (
    Slip("the one-hot target is not subtracted", {"difference": lambda weights: weights}),
    Slip(
        "the sign is reversed",
        {"difference": lambda weights: first_one_hot(weights) - weights},
        "it should be softmax(logits) − y",
    ),
    Slip(
        "that is the gradient of the probability, not of the loss",
        {"difference": lambda weights: weights[:, :1] * (first_one_hot(weights) - weights)},
    ),
    Slip(
        "the target is word 1, not word 0",
        {"difference": lambda weights: weights - np.roll(first_one_hot(weights), 1, -1)},
        "the words are counted from 0",
    ),
    Slip(
        "softmax is missing",
        {"difference": lambda logits: logits - first_one_hot(logits)},
        "it should be softmax(logits) − y",
    ),
    Slip(
        "only the first number counts",
        {"difference": lambda weights: (weights - 1) * first_one_hot(weights)},
        "the other words have a gradient too",
    ),
)

SMOOTHINGS = (
    Slip(
        "that is the loss without smoothing",
        {"smoothed": lambda logarithms: -logarithms[0]},
        "the target has a share for every word",
    ),
    Slip(
        "the target of word 0 is 1 − ε",
        {"smoothed": lambda logits: _cross_entropy(logits, _smoothed(0.7, 0.1, 3), np.log)},
        "it should be 1 − ε + ε/3",
    ),
    Slip(
        "ε is shared by the other words alone",
        {"smoothed": lambda logits: _cross_entropy(logits, _smoothed(0.7, 0.15, 3), np.log)},
        "share it among all three",
    ),
    Slip(
        "each other word has ε",
        {"smoothed": lambda logits: _cross_entropy(logits, _smoothed(0.7, 0.3, 3), np.log)},
        "each should have ε/3",
    ),
    Slip(
        "the other words have no share", {"smoothed": lambda logarithms: -0.8 * logarithms[0]}, "each should have ε/3"
    ),
    Slip(
        "the other words have no share", {"smoothed": lambda logarithms: -0.7 * logarithms[0]}, "each should have ε/3"
    ),
    Slip("the logarithm has the base 2", {"logarithms": lambda weights: np.log2(weights[0])}, "ln has the base e"),
    Slip("the logarithm has the base 10", {"logarithms": lambda weights: np.log10(weights[0])}, "ln has the base e"),
    Slip("the minus sign is missing", {"smoothed": lambda logarithms: 0.7 * logarithms[0] + 0.1 * logarithms.sum()}),
    Slip(
        "that is e^loss",
        {"smoothed": lambda logarithms: np.exp(-(0.7 * logarithms[0] + 0.1 * logarithms.sum()))},
        "the loss is its ln",
    ),
    Slip(
        "that is the probability of word 0", {"smoothed": lambda weights: weights[0, 0]}, "the loss is −Σ target · ln p"
    ),
    Slip(
        "that is −ln of the smoothed probability",
        {"smoothed": lambda weights: -np.log(0.7 * weights[0, 0] + 0.1 * weights.sum())},
        "the loss is −Σ target · ln p",
    ),
)

PATHS = (
    Slip(
        "that is the gradient of h_3 alone",
        {"paths": lambda weight_ih_l0, weight_hh_l0: weight_ih_l0 * weight_hh_l0 ** np.array([[2], [1], [0]])},
        "h_1 and h_2 are in the sum too",
    ),
    Slip(
        "the last token comes first",
        {"paths": lambda weight_ih_l0, weight_hh_l0: sum_paths(weight_ih_l0, weight_hh_l0, (0, 1, 2))},
        "x_1 has the longest way",
    ),
    Slip(
        "those are the states",
        {
            "paths": lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(
                x, weight_ih_l0, weight_hh_l0, lambda sum: sum
            )
        },
        "a gradient says how much x changes their sum",
    ),
    Slip(
        "each gradient is multiplied by its x",
        {"paths": lambda x, weight_ih_l0, weight_hh_l0: x * sum_paths(weight_ih_l0, weight_hh_l0, (2, 1, 0))},
        "the gradient is the factor of x",
    ),
    Slip(
        "x_1 is missing in h_3",
        {"paths": lambda weight_ih_l0, weight_hh_l0: sum_paths(weight_ih_l0, weight_hh_l0, (1, 1, 0))},
        "it is in all three states",
    ),
    Slip(
        "only its own state counts",
        {"paths": lambda x, weight_ih_l0: weight_ih_l0 * np.ones_like(x)},
        "x_1 is in h_2 and h_3 too",
    ),
    Slip(
        "those are the sums of the rows",
        {"sums of columns": lambda x, weights: np.tile(weights.sum(1)[:, None], x.shape[1])},
        "a value counts by the weights of its column",
    ),
    Slip(
        "those are the outputs",
        {"sums of columns": lambda x, weights: weights @ x},
        "the gradient says how much each number of x adds to their sum",
    ),
    Slip(
        "those are the weights of the columns times x",
        {"sums of columns": lambda x, weights: weights.T @ x},
        "the gradient of the sum is the sum of the weights alone",
    ),
    Slip(
        "each gradient is multiplied by its x",
        {"sums of columns": lambda x, weights: weights.sum(0)[:, None] * x},
        "the gradient is the factor of x",
    ),
    Slip(
        "those are the means of the columns",
        {"sums of columns": lambda x, weights: np.tile(weights.mean(0)[:, None], x.shape[1])},
        "the outputs are added, not averaged",
    ),
    Slip(
        "only the weight of a word for itself counts",
        {"sums of columns": lambda x, weights: np.tile(np.diag(weights)[:, None], x.shape[1])},
        "a value counts by the weights of its column",
    ),
)

CHOICES = (
    Slip("those are the probabilities of all four words", {"kept": lambda logits: logits}, "two of them stay"),
    Slip(
        "that is top-k 1",
        {"kept": lambda logits: np.where(keep_largest(logits, 1), logits, -np.inf)},
        "two of them stay",
    ),
    Slip(
        "that is top-k 3",
        {"kept": lambda logits: np.where(keep_largest(logits, 3), logits, -np.inf)},
        "two of them stay",
    ),
    Slip(
        "the probabilities of the two words are not divided again by their sum",
        {"weights": lambda logits: softmax_of(logits) * keep_largest(logits, 2)},
        "the others become −∞ before the softmax",
    ),
    Slip(
        BLOCKED_ZERO,
        {"kept": lambda logits: np.where(keep_largest(logits, 2), logits, 0)},
        "e⁰ is 1, and takes a share",
    ),
    Slip(
        "the two words have equal shares",
        {"weights": lambda logits: keep_largest(logits, 2) / 2},
        "their logits decide",
    ),
    Slip(
        "those are the two least probable words",
        {"kept": lambda logits: np.where(keep_largest(-logits, 2), logits, -np.inf)},
    ),
)

ROLLOUTS = (
    Slip("the product is in the wrong order (A₁ A₂, not A₂ A₁)", {"rollout": lambda first, second: first @ second}),
    Slip(
        "the numbers are multiplied one by one",
        {"rollout": lambda first, second: first * second},
        "a row of A₂ meets the columns of A₁",
    ),
    Slip(
        "that is the mean of the layers",
        {"rollout": lambda first, second: (first + second) / 2},
        "rollout multiplies them",
    ),
    Slip("that is the sum of the layers", {"rollout": lambda first, second: first + second}, "rollout multiplies them"),
    Slip(
        "that is with the residual connections",
        {"rollout": lambda first, second: (second + np.eye(2)) @ (first + np.eye(2)) / 4},
        "here they are left out",
    ),
    Slip(
        "A₁ is transposed", {"rollout": lambda first, second: second @ first.T}, "a row of A₂ meets the columns of A₁"
    ),
    Slip("that is the last layer alone", {"rollout": lambda second: second}, "rollout multiplies them"),
    Slip("that is the first layer alone", {"rollout": lambda first: first}, "rollout multiplies them"),
)

KERNELS = (
    Slip(
        "the kernel is turned by 180°",
        {"patches": lambda x, w: (patches_of(x[..., 0]) * w[0, 0, ::-1, ::-1]).sum((-2, -1))[:, None]},
        "networks multiply each pixel by the weight at its own place",
    ),
    Slip(
        "the kernel is transposed",
        {"patches": lambda x, w: (patches_of(x[..., 0]) * w[0, 0].T).sum((-2, -1))[:, None]},
        "each pixel meets the weight at its own place",
    ),
    Slip(
        "the patches overlap",
        {"patches": lambda x, w: (patches_of(x[..., 0], 1) * w[0, 0]).sum((-2, -1))[:, None]},
        "the stride of the kernel is its size",
    ),
    Slip(
        "that is the sum of the pixels without their weights",
        {"patches": lambda x: patches_of(x[..., 0]).sum((-2, -1))[:, None]},
        "each pixel meets the weight at its own place",
    ),
    Slip(
        "that is the mean",
        {"patches": lambda x, w: (patches_of(x[..., 0]) * w[0, 0]).mean((-2, -1))[:, None]},
        "take the sum",
    ),
    Slip(
        "a patch is a row of pixels",
        {"patches": lambda x, w: x[..., 0] @ w[0, 0].reshape(-1, 1)},
        "it should be 2 × 2 pixels",
    ),
    Slip(
        "the sum of the pixels is multiplied by the sum of the weights",
        {"patches": lambda x, w: patches_of(x[..., 0]).sum((-2, -1))[:, None] * w.sum()},
        "each pixel meets the weight at its own place",
    ),
    Slip(
        "the kernel is turned",
        {"frames": lambda x, w: windows_of(x[:, 0], 3, 2, 1) @ w[0, 0, ::-1, None]},
        "networks multiply each frame by the weight at its own place",
    ),
    Slip(
        "the stride is 1",
        {"frames": lambda x, w: windows_of(x[:, 0], 3, 1, 1) @ w[0, 0][:, None]},
        "only every second window counts",
    ),
    Slip(
        "the windows do not overlap",
        {"frames": lambda x, w: windows_of(x[:, 0], 3, 3, 1) @ w[0, 0][:, None]},
        "the stride should be 2",
    ),
    Slip(
        "the frames of zeros are missing",
        {"frames": lambda x, w: windows_of(x[:, 0], 3, 2) @ w[0, 0][:, None]},
        "a frame of zeros comes before the first one, and the first window begins there",
    ),
    Slip(
        "the frames of zeros are missing",
        {"frames": lambda x, w: windows_of(x[:, 0], 3, 1) @ w[0, 0][:, None]},
        "a frame of zeros comes before the first one, and the first window begins there",
    ),
    Slip(
        "the windows are the second and the fourth",
        {"frames": lambda x, w: windows_of(x[:, 0], 3, 1, 1)[1::2] @ w[0, 0][:, None]},
        "the first one begins with the frame of zeros",
    ),
    Slip(
        "the frames at the ends are repeated",
        {"frames": lambda x, w: windows_of(np.pad(x[:, 0], 1, mode="edge"), 3, 2) @ w[0, 0][:, None]},
        "a frame of zeros is on each side",
    ),
    Slip(
        "that is the sum of the frames without their weights",
        {"frames": lambda x: windows_of(x[:, 0], 3, 2, 1).sum(-1, keepdims=True)},
        "each frame meets the weight at its own place",
    ),
)

STATES = (
    Slip(
        "later tokens are read",
        {"seen": lambda scores: scores},
        "a token reads the state as it is after its own token",
    ),
    Slip(
        "the token itself is not read",
        {"seen": lambda scores: np.tril(scores, -1)},
        "a token is written first, and then its query reads",
    ),
    Slip(
        "that is the value of each token alone",
        {"seen": lambda scores: np.diag(np.diag(scores))},
        "the state also holds the tokens before",
    ),
    Slip(
        "queries and keys are exchanged",
        {"scores": lambda q, k: k @ transposed(q)},
        "keys are written, and queries read",
    ),
)
DELTAS = (
    Slip(
        "the values are added without the correction",
        {"state": lambda k, v: write_pairs(k, v, lambda value, held: value)},
        "what the state holds at the key is subtracted from the value first",
    ),
    Slip(
        "what the state holds is added",
        {"state": lambda k, v: write_pairs(k, v, lambda value, held: value + held)},
        "it is subtracted from the value",
    ),
    Slip(
        "the error has the other sign",
        {"state": lambda k, v: write_pairs(k, v, lambda value, held: held - value)},
        "it is the value less what the state holds",
    ),
    Slip(
        "only the last token is written",
        {"state": lambda k, v: np.outer(k[-1], v[-1])},
        "each token changes the state that the token before has left",
    ),
    Slip(
        "the last token is not written",
        {"state": lambda k, v: write_pairs(k[:-1], v[:-1], lambda value, held: value - held)},
        "each token is asked for, and then written",
    ),
)

# computation -> the slips that are tried in it
SLIPS: dict[str, tuple[Slip[Formula], ...]] = {
    "recurrent": RECURRENCES,
    "cells": CELLS,
    "context": (*ALIGNMENTS, *SOFTMAXES, *OUTPUTS),
    "additive": ALIGNMENTS,
    "product": LINEARS,
    "linear": LINEARS,
    "cosines": COSINES,
    "sinusoids": POSITIONS,
    "reversed": (*SCALES, *SOFTMAXES, *OUTPUTS, *REVERSED),
    "attention": (*SCALES, *BASES, *SOFTMAXES, *OUTPUTS),
    "cross attention": (*SCALES, *SOFTMAXES, *OUTPUTS, *CROSS),
    "projected": PROJECTIONS,
    "softmax": SOFTMAXES,
    "first weight": (*GRADIENTS, *SOFTMAXES),
    "causal": (*CAUSAL, *SOFTMAXES),
    "masks": MASKS,
    "heads": (*HEADS, *SCALES, *SOFTMAXES, *OUTPUTS),
    "norm": NORMS,
    "residual norm": (*RESIDUALS, *NORMS),
    "attention norm": (*RESIDUALS, *NORMS, *SCALES, *SOFTMAXES, *OUTPUTS),
    "ffn": NETWORKS,
    "neuron": NEURONS,
    "probabilities": (*LOGITS, *SOFTMAXES),
    "lens": (*LOGITS, *SOFTMAXES),
    "temperature": (*TEMPERATURES, *SOFTMAXES),
    "loss": (*LOSSES, *SOFTMAXES),
    "loss gradient": (*LOSS_GRADIENTS, *SOFTMAXES),
    "smoothed loss": (*SMOOTHINGS, *SOFTMAXES),
    "recurrent gradient": PATHS,
    "attention gradient": PATHS,
    "top-k": (*CHOICES, *SOFTMAXES),
    "cached attention": (*CACHES, *SCALES, *SOFTMAXES, *OUTPUTS),
    "linear attention": STATES,
    "delta rule": DELTAS,
    "rollout": ROLLOUTS,
    "patches": KERNELS,
    "frames": KERNELS,
}

# step, or computation.step -> what its numbers are called
WORDS = {
    "states": "the states",
    "linear attention.scores": "the products of queries and keys",
    "seen": "the products with keys up to the own token",
    "read": "the numbers that are read",
    "state": "the state",
    "i": "the input gates",
    "f": "the forget gates",
    "g": "the candidates",
    "cells": "the cell states",
    "additive.summed": "the sums W s + U h",
    "additive.activated": "the numbers after tanh",
    "additive": "the scores",
    "product": "the products",
    "linear": "the sums with the bias",
    "products": "the products q · e",
    "lengths": "the products of the lengths",
    "sorted": "the similarities",
    "sinusoids": "the positions",
    "q": "the queries",
    "k": "the keys",
    "scores": "the scores Q Kᵀ",
    "scaled": "the scaled scores",
    "masked": "the masked scores",
    "kept": "the logits that stay",
    "exponentials": "the exponentials, not yet divided by their sum",
    "sums": "the sums of the exponentials",
    "weights": "the weights",
    "output": "the outputs",
    "heads.output": "the outputs of each head",
    "joined": "the outputs of both heads",
    "attention norm.output": "the outputs of attention",
    "residual norm.summed": "the sums x + y",
    "attention norm.summed": "the sums with the input, not yet normalized",
    "mean": "the means",
    "centered": "the distances from the mean, not yet divided",
    "variance": "the variances",
    "deviation": "the standard deviations",
    "normalized": "the normalized numbers",
    "hidden": "the sums before max(0, ·)",
    "activated": "the numbers after max(0, ·)",
    "network": "the outputs",
    "sum": "the sums x w + b",
    "neuron": "the values after σ",
    "gradient": "the gradients",
    "causal": "the causal mask",
    "padding": "the padding mask",
    "mask": "the mask of both rules",
    "logits": "the logits",
    "tempered": "the logits, divided by the temperature",
    "losses": "the losses of each token",
    "loss": "the mean loss",
    "logarithms": "the logarithms",
    "smoothed": "the loss",
    "difference": "the gradients",
    **{f"{name}.weights": "the probabilities" for name in ("probabilities", "lens", "temperature", "loss", "top-k")},
    **{f"{name}.weights": "the probabilities" for name in ("loss gradient", "smoothed loss")},
}


def call_step(computation: str, step: str) -> str:
    """What the numbers of a step are called; "" for a step that has no name.

    >>> call_step("attention", "weights"), call_step("loss", "weights"), call_step("loss", "exponents")
    ('the weights', 'the probabilities', '')
    """
    return WORDS.get(f"{computation}.{step}", WORDS.get(step, ""))


def work_with_slip(steps: Steps, given: Mapping[str, Any], slip: Slip[Formula]) -> dict[str, Any] | None:
    """Compute every step with a slip; None where it does not fit the tensors.

    >>> steps, given = {"mean": lambda x: x.mean(), "half": lambda mean: mean / 2}, {"x": np.array([1.0, 3.0])}
    >>> float(work_with_slip(steps, given, Slip("that is the sum", {"mean": lambda x: x.sum()}))["half"])
    2.0
    """
    try:
        with np.errstate(all="ignore"):
            return work({**steps, **slip.changes}, given) if slip.changes.keys() <= steps.keys() else None
    except (KeyError, ValueError, IndexError):
        return None
