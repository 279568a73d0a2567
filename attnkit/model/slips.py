"""Common slips: the step that each changes, its formula, and its name.

The exercises try every slip of the steps that they ask for; `attnkit diff --why` names the same slips by the same
words. A slip whose formula does not fit the shapes of an exercise does not occur in it.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.worked_steps import (
    EPS,
    Formula,
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
)


class Slip(NamedTuple):
    """A common slip.

    step     the step of a computation that it changes
    name     a short name; one slip may change several steps
    says     what it is, in words
    formula  how the step is computed with the slip
    hint     what to do instead
    """

    step: str
    name: str
    says: str
    formula: Formula
    hint: str = ""

    @property
    def note(self) -> str:
        return f"{self.says}; {self.hint}" if self.hint else self.says


# what slips of whole models and of exercises are called
NO_SCALE = "the scale of the scores is missing"
SCALED_TWICE = "the scale of the scores is applied twice"
SCALE_OF_WIDTH = "the scale of the scores is 1/√D of the whole width"
MULTIPLIED_SCALE = "the scores are multiplied by √K"
OVER_QUERIES = "softmax is over the queries, not the keys"
NO_CAUSAL = "the causal mask is missing"
STRICT_CAUSAL = "the causal mask excludes the token itself"
SHIFTED_CAUSAL = "the causal mask is shifted by one: the next token is visible"
OPPOSITE_CAUSAL = "the causal mask is the wrong way round"
BLOCKED_ZERO = "blocked scores are 0 instead of −∞"
NO_PADDING = "the padding mask is missing"
INVERTED_PADDING = "the padding mask is inverted"
NO_RESIDUAL = "the residual is missing"
RESIDUAL_ALONE = "the output of the sub-layer is not added"
RESIDUAL_TWICE = "the residual is added twice"
RESIDUAL_AFTER = "the residual is added after the norm, not before it"
PRE_NORM = "the norms precede the sub-layers (pre-norm, not post-norm)"
N_MINUS_1 = "the norm divides by n − 1, not by n"
NO_MEAN = "the norm does not subtract the mean (RMS norm)"
NO_ACTIVATION = "the activation is missing"
HALVES = "sinusoidal positions have all sines before all cosines"
SHIFTED_POSITIONS = "positions are shifted by +1"
HEADS_LAST = "the head is the last part of a column's index, not the first"


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
    Slip("scaled", "no scale", NO_SCALE, lambda scores: scores, "divide them by √d_k"),
    Slip("scaled", "scale twice", SCALED_TWICE, lambda scores, q: scores / q.shape[-1], "divide by √d_k, not by d_k"),
    Slip(
        "scaled",
        "scale of the rows",
        "the scores are divided by the root of the number of keys",
        lambda scores, k: scores / math.sqrt(k.shape[-2]),
        "d_k is the width of a key",
    ),
    Slip(
        "scaled",
        "scale multiplied",
        MULTIPLIED_SCALE,
        lambda scores, q: scores * math.sqrt(q.shape[-1]),
        "divide them by √d_k",
    ),
    Slip(
        "scaled",
        "root not taken",
        "√4 is 2: some notes write √2 and divide by it",
        lambda scores, q: scores / math.sqrt(math.sqrt(q.shape[-1])),
    ),
    Slip(
        "scores",
        "exchanged q and k",
        "queries and keys are exchanged (K Qᵀ, not Q Kᵀ)",
        lambda q, k: k @ transposed(q),
        "rows should be queries",
    ),
)

SOFTMAXES = (
    Slip(
        "weights",
        "softmax over queries",
        OVER_QUERIES,
        lambda exponents: softmax_of(exponents, axis=-2),
        "each row of weights adds up to 1",
    ),
    Slip(
        "weights",
        "softmax over all",
        "softmax is over all numbers, not over each row",
        lambda exponents: np.exp(exponents) / np.exp(exponents).sum(),
        "each row of weights adds up to 1",
    ),
    Slip(
        "weights",
        "shares of the scores",
        "the scores are divided by their sum, without the exponential",
        lambda exponents: _divide_by_sum(exponents),
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "weights",
        "base 2",
        "the base is 2 instead of e",
        lambda exponents: softmax_of(exponents, base=2),
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "weights",
        "base 10",
        "the base is 10 instead of e",
        lambda exponents: softmax_of(exponents, base=10),
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "weights",
        "negative exponent",
        "the exponents have the wrong sign",
        lambda exponents: softmax_of(-exponents),
        "softmax is e^score / Σ e^score",
    ),
    Slip(
        "weights",
        "hard maximum",
        "that is 1 for the largest score and 0 for the others",
        lambda exponents: keep_largest(exponents, 1),
        "softmax gives each score a share",
    ),
    Slip("weights", "softmax twice", "softmax is applied twice", lambda exponents: softmax_of(softmax_of(exponents))),
)

BASES = (
    Slip(
        "weights",
        "base 3",
        "the base is 3 instead of e",
        lambda exponents: softmax_of(exponents, base=3),
        "e is 2.718 (some notes print .75 and .25 for softmax([3, 2]))",
    ),
)

OUTPUTS = (
    Slip(
        "output",
        "transposed weights",
        "the weights are transposed (Wᵀ V, not W V)",
        lambda weights, v: transposed(weights) @ v,
        "each row of weights makes one output",
    ),
    Slip(
        "output",
        "last value twice",
        "the last value is counted twice",
        lambda weights, v: weights @ v + weights[..., -1:] * v[..., -1:, :],
        "some notes do so and print [1.2669, .9999, …]",
    ),
    Slip(
        "output",
        "mean of the values",
        "that is the mean of the values",
        lambda weights, v: (weights * 0 + 1 / v.shape[-2]) @ v,
        "each value counts by its weight",
    ),
    Slip(
        "output",
        "scores for weights",
        "the scores are not weights",
        lambda exponents, v: exponents @ v,
        "apply softmax to them first",
    ),
    Slip(
        "output",
        "sum not divided",
        "the exponentials are not divided by their sum",
        lambda exponentials, v: exponentials @ v,
        "each row of weights adds up to 1",
    ),
)

CROSS = (
    Slip(
        "output",
        "attention of the memory",
        "the memory asks and the decoder answers",
        lambda q, k: attend_to(k, q, q),
        "queries are those of the decoder, keys and values those of the memory",
    ),
    Slip(
        "output",
        "self-attention of the queries",
        "that is self-attention",
        lambda q: attend_to(q, q, q),
        "the keys and values are those of the memory",
    ),
    Slip(
        "output",
        "self-attention of the memory",
        "that is self-attention of the memory",
        lambda k: attend_to(k, k, k),
        "the queries are those of the decoder",
    ),
)

CACHES = (
    Slip(
        "output",
        "no cache",
        "the word attends to itself alone",
        lambda x: attend_to(x, x, x),
        "it attends to the words of the cache too",
    ),
    Slip(
        "output",
        "cache alone",
        "the word attends to the cache alone",
        lambda x, past: attend_to(x, past[0], past[0]),
        "it attends to itself too",
    ),
)

REVERSED = (
    Slip(
        "output",
        "own order",
        'those are the outputs of "dog bites man" in its own order',
        lambda x: attend_to(x, x, x),
        "each word takes its output along",
    ),
    Slip(
        "output",
        "values in their order",
        "the values are in their own order",
        lambda q, x: attend_to(q, q, x),
        "queries, keys and values are turned around together",
    ),
)

CAUSAL = (
    Slip("masked", "no causal mask", NO_CAUSAL, lambda scores: scores, "what is above the diagonal gets 0"),
    Slip(
        "masked",
        "strict causal mask",
        STRICT_CAUSAL,
        lambda scores: np.where(np.tri(len(scores), k=-1) > 0, scores, -np.inf),
        "the diagonal stays",
    ),
    Slip(
        "masked",
        "shifted causal mask",
        SHIFTED_CAUSAL,
        lambda scores: np.where(np.tri(len(scores), k=1) > 0, scores, -np.inf),
        "what is above the diagonal gets 0",
    ),
    Slip(
        "masked",
        "opposite causal mask",
        OPPOSITE_CAUSAL,
        lambda scores: np.where(np.tri(*scores.shape).T > 0, scores, -np.inf),
        "a token may attend to itself and to the tokens before it",
    ),
    Slip(
        "masked",
        "later tokens alone",
        "only later tokens are allowed",
        lambda scores: np.where(np.tri(*scores.shape) == 0, scores, -np.inf),
        "a token may attend to itself and to the tokens before it",
    ),
    Slip(
        "masked",
        "blocked are 0",
        BLOCKED_ZERO,
        lambda scores: np.where(np.tri(*scores.shape) > 0, scores, 0),
        "e⁰ is 1, and takes a share",
    ),
    Slip(
        "weights",
        "blocked are 0, then 0",
        f"{BLOCKED_ZERO}, and their weights are left out",
        lambda scores: _causal_softmax(scores, fill=0) * np.tri(*scores.shape),
        "e⁰ is 1, and takes a share",
    ),
    Slip(
        "weights",
        "mask after softmax",
        "the mask is applied after the softmax",
        lambda scores: softmax_of(scores) * np.tri(*scores.shape),
        "mask first, so that each row still adds up to 1",
    ),
    Slip(
        "weights",
        "uniform causal",
        "those are equal weights",
        lambda scores: _divide_by_sum(np.tri(*scores.shape)),
        "the scores decide how large each weight is",
    ),
)

MASKS = (
    Slip("mask", "no padding mask", NO_PADDING, lambda causal: causal, "the column of a token with the id 0 is 0"),
    Slip("mask", "no causal mask", NO_CAUSAL, lambda padding: padding, "what is above the diagonal is 0"),
    Slip(
        "mask",
        "strict causal mask",
        STRICT_CAUSAL,
        lambda padding: np.tri(len(padding), k=-1) * padding,
        "the diagonal stays",
    ),
    Slip(
        "mask",
        "shifted causal mask",
        SHIFTED_CAUSAL,
        lambda padding: np.tri(len(padding), k=1) * padding,
        "what is above the diagonal is 0",
    ),
    Slip(
        "mask",
        "opposite causal mask",
        OPPOSITE_CAUSAL,
        lambda causal, padding: causal.T * padding,
        "a token may attend to itself and to the tokens before it",
    ),
    Slip(
        "mask",
        "inverted padding mask",
        INVERTED_PADDING,
        lambda causal, padding: causal * (1 - padding),
        "the column of a token with the id 0 is 0",
    ),
    Slip(
        "mask",
        "rows of padding",
        "some notes set the row of the padding to 0; here only its column is",
        lambda causal, padding: causal * padding * padding.T,
    ),
    Slip(
        "mask",
        "rows of padding alone",
        "some notes set the row of the padding to 0; here only its column is",
        lambda causal, padding: causal * padding.T,
    ),
    Slip(
        "mask",
        "rows of padding, no causal mask",
        "the row of the padding is 0, and the causal mask is missing",
        lambda padding: padding.T,
        "the column of the padding is 0, and what is above the diagonal",
    ),
    Slip(
        "mask",
        "union",
        "that is what one of the two rules allows",
        lambda causal, padding: np.maximum(causal, padding),
        "a key is allowed if both rules allow it",
    ),
    Slip(
        "mask",
        "inverted",
        "1 and 0 are exchanged",
        lambda causal, padding: 1 - causal * padding,
        '1 means "may attend"',
    ),
    Slip(
        "mask",
        "additive",
        "that is the mask to add to the scores",
        lambda causal, padding: np.where(causal * padding > 0, 0, -np.inf),
        '1 means "may attend", 0 means "masked"',
    ),
    Slip(
        "mask",
        "additive of ones",
        "a mask to add has 0, not 1, for what stays",
        lambda causal, padding: np.where(causal * padding > 0, 1, -np.inf),
        'and here 1 means "may attend", 0 means "masked"',
    ),
)

HEADS = (
    Slip(
        "output",
        "one head",
        "that is one head of four columns",
        lambda x: attend_to(x, x, x),
        "give each head two columns",
    ),
    Slip(
        "output",
        "scale of the width",
        SCALE_OF_WIDTH,
        lambda x: _two_heads(x, x.shape[-1] ** -0.5),
        "√2 is the root of a head's own width",
    ),
    Slip(
        "output",
        "heads last",
        HEADS_LAST,
        lambda x: np.stack([attend_to(x[:, at::2], x[:, at::2], x[:, at::2]) for at in (0, 1)]),
        "the first head has the first two columns",
    ),
    Slip(
        "joined",
        "sum of heads",
        "the heads are added",
        lambda output: output.sum(0),
        "put their outputs side by side",
    ),
    Slip(
        "joined",
        "mean of heads",
        "that is the mean of the heads",
        lambda output: output.mean(0),
        "put their outputs side by side",
    ),
    Slip(
        "joined",
        "heads below each other",
        "the outputs of the heads stand below each other",
        lambda output: output,
        "put them side by side",
    ),
    Slip("joined", "heads exchanged", "the second head comes first", lambda output: concatenate_heads(output[::-1])),
)

RESIDUALS = (
    Slip("summed", "no residual", NO_RESIDUAL, lambda output: output, "add the input x to the output of the sub-layer"),
    Slip("summed", "residual alone", RESIDUAL_ALONE, lambda x, output: x, "normalize their sum"),
    Slip("summed", "residual twice", RESIDUAL_TWICE, lambda x, output: 2 * x + output),
    Slip(
        "summed",
        "residual subtracted",
        "the output is subtracted",
        lambda x, output: x - output,
        "normalize the sum",
    ),
    Slip(
        "summed",
        "residual multiplied",
        "the input is multiplied by the output",
        lambda x, output: x * output,
        "normalize the sum",
    ),
    Slip(
        "normalized",
        "residual after the norm",
        RESIDUAL_AFTER,
        lambda x, output: x + normalize(output),
        "normalize the sum",
    ),
    Slip(
        "normalized",
        "normalized input",
        "the norm is that of the input alone, and the output is added to it",
        lambda x, output: normalize(x) + output,
        "normalize the sum",
    ),
    Slip(
        "normalized",
        "sum of norms",
        "each is normalized by itself",
        lambda x, output: normalize(x) + normalize(output),
        "normalize the sum",
    ),
    Slip("normalized", "pre-norm", PRE_NORM, lambda x, q: x + attend_to(*[normalize(x)] * 3), "normalize the sum"),
)

NORMS = (
    Slip(
        "variance",
        "n minus 1",
        N_MINUS_1,
        lambda centered: (centered**2).sum(-1, keepdims=True) / (centered.shape[-1] - 1),
        "the variance is the mean of the squares",
    ),
    Slip(
        "deviation",
        "by the variance",
        "the norm divides by σ², not by σ",
        lambda variance: variance + EPS,
        "take the root of the variance",
    ),
    Slip("centered", "no mean", NO_MEAN, lambda summed: summed, "the norm is that of x − μ"),
    Slip(
        "normalized",
        "mean not subtracted",
        "the mean is not subtracted above the fraction line",
        lambda summed, deviation: summed / deviation,
        "divide x − μ by σ",
    ),
    Slip(
        "normalized",
        "columns",
        "those are the columns normalized (batch normalization)",
        lambda summed: normalize(summed, axis=0),
        "each row has its own mean",
    ),
    Slip(
        "normalized",
        "all rows",
        "the mean and the variance are those of all rows together",
        lambda summed: normalize(summed, axis=None),
        "each row has its own mean",
    ),
    Slip(
        "deviation",
        "absolute distances",
        "σ is the mean of the distances",
        lambda centered: np.abs(centered).mean(-1, keepdims=True),
        "take the root of the mean of their squares",
    ),
    Slip(
        "variance",
        "squares not averaged",
        "the squares are added, not averaged",
        lambda centered: (centered**2).sum(-1, keepdims=True),
        "the variance is their mean",
    ),
    Slip(
        "normalized",
        "between 0 and 1",
        "those are the numbers between 0 and 1 (min-max scaling)",
        lambda summed: (summed - summed.min(-1, keepdims=True)) / np.ptp(summed, axis=-1, keepdims=True),
        "divide x − μ by σ",
    ),
    Slip(
        "normalized",
        "by the root of n",
        "the norm divides by √n",
        lambda centered: centered / math.sqrt(centered.shape[-1]),
        "divide by σ",
    ),
)

NETWORKS = (
    Slip(
        "activated",
        "no activation",
        NO_ACTIVATION,
        lambda hidden: hidden,
        "negative numbers become 0 between the two linear maps",
    ),
    Slip("hidden", "no b1", "the bias b₁ is missing", lambda x, w1: x @ w1, "add it before max(0, ·)"),
    Slip("network", "no b2", "the bias b₂ is missing", lambda activated, w2: activated @ w2),
    Slip("network", "no biases", "both biases are missing", lambda x, w1, w2: np.maximum(x @ w1, 0) @ w2),
    Slip(
        "activated",
        "bias after the activation",
        "b₁ is added after max(0, ·)",
        lambda x, w1, b1: np.maximum(x @ w1, 0) + b1,
        "add it before",
    ),
    Slip(
        "network",
        "activation of the output",
        "max(0, ·) is applied to the output too",
        lambda activated, w2, b2: np.maximum(activated @ w2 + b2, 0),
        "it stands between the two linear maps",
    ),
    Slip(
        "network",
        "activation at the end",
        "max(0, ·) is applied at the end",
        lambda hidden, w2, b2: np.maximum(hidden @ w2 + b2, 0),
        "it stands between the two linear maps",
    ),
    Slip(
        "activated",
        "absolute values",
        "negative numbers lose their sign",
        lambda hidden: np.abs(hidden),
        "they become 0",
    ),
    Slip(
        "activated",
        "negative part",
        "that is min(0, ·)",
        lambda hidden: np.minimum(hidden, 0),
        "negative numbers become 0",
    ),
    Slip(
        "network",
        "biases exchanged",
        "b₁ is subtracted",
        lambda x, w1, b1, w2, b2: np.maximum(x @ w1 - b1, 0) @ w2 + b2,
        "add it",
    ),
    Slip(
        "activated",
        "sigmoid for ReLU",
        "the activation is sigmoid",
        lambda hidden: sigmoid_of(hidden),
        "here it should be max(0, ·)",
    ),
    Slip(
        "activated",
        "tanh for ReLU",
        "the activation is tanh",
        lambda hidden: np.tanh(hidden),
        "here it should be max(0, ·)",
    ),
)

NEURONS = (
    Slip("sum", "no bias", "the bias b is missing", lambda x, w1: x @ w1),
    Slip("sum", "bias subtracted", "the bias b is subtracted", lambda x, w1, b1: x @ w1 - b1, "add it"),
    Slip(
        "neuron",
        "sigmoid of the opposite",
        "the exponent has the wrong sign",
        lambda sum: sigmoid_of(-sum),
        "σ(z) = 1 / (1 + e^−z)",
    ),
    Slip(
        "neuron",
        "bias after the sigmoid",
        "b is added after σ",
        lambda x, w1, b1: sigmoid_of(x @ w1) + b1,
        "add it before",
    ),
    Slip("neuron", "tanh", "that is tanh of the sum", lambda sum: np.tanh(sum), "σ(z) = 1 / (1 + e^−z)"),
    Slip("neuron", "ReLU", "that is max(0, ·) of the sum", lambda sum: np.maximum(sum, 0), "σ(z) = 1 / (1 + e^−z)"),
    Slip("neuron", "exponential", "that is e^z", lambda sum: np.exp(sum), "σ(z) = 1 / (1 + e^−z)"),
)

LINEARS = (
    Slip(
        "product",
        "transposed weight",
        "the weight is transposed",
        lambda x, w: x @ w.T,
        "a row of x meets the columns of W",
    ),
    Slip("product", "weight first", "the product is in the wrong order (W x, not x W)", lambda x, w: w @ x),
    Slip("product", "weight and input transposed", "the product is that of xᵀ", lambda x, w: x.T @ w),
    Slip(
        "product",
        "element by element",
        "the numbers are multiplied one by one",
        lambda x, w: x * w,
        "a row of x meets the columns of W",
    ),
    Slip("linear", "no bias", "the bias b is missing", lambda product: product),
    Slip("linear", "bias subtracted", "the bias b is subtracted", lambda product, b: product - b, "add it"),
    Slip(
        "product",
        "next row",
        "each word has the row after its own",
        lambda x, w: x @ np.roll(w, -1, axis=0),
        "1 in the first place picks the first row",
    ),
    Slip(
        "product",
        "row before",
        "each word has the row before its own",
        lambda x, w: x @ np.roll(w, 1, axis=0),
        "1 in the first place picks the first row",
    ),
    Slip(
        "product",
        "columns only added",
        "the columns are added without their weights",
        lambda x, w: np.tile(x.sum(-1, keepdims=True), w.shape[1]),
    ),
)

PROJECTIONS = (
    Slip("scores", "no projections", "that is x xᵀ", lambda x: x @ x.T, "multiply x by W_Q and by W_K first"),
    Slip(
        "scores",
        "exchanged q and k",
        "queries and keys are exchanged (K Qᵀ, not Q Kᵀ)",
        lambda q, k: k @ q.T,
        "rows should be queries",
    ),
    Slip("scores", "queries alone", "that is Q Qᵀ", lambda q: q @ q.T, "the keys are x W_K"),
    Slip("scores", "keys alone", "that is K Kᵀ", lambda k: k @ k.T, "the queries are x W_Q"),
    Slip(
        "scores",
        "no transpose",
        "the keys are not transposed",
        lambda q, k: q @ k,
        "a score is the product of a query and a key",
    ),
    Slip("scores", "keys not projected", "the keys are not projected", lambda q, x: q @ x.T, "they should be x W_K"),
    Slip(
        "scores", "queries not projected", "the queries are not projected", lambda k, x: x @ k.T, "they should be x W_Q"
    ),
    Slip(
        "scores",
        "scale",
        "the scores are divided by √d_k",
        lambda q, k: q @ k.T / math.sqrt(q.shape[-1]),
        "here Q Kᵀ is asked for",
    ),
    Slip(
        "scores",
        "transposed weights",
        "the weights are transposed",
        lambda x, wq, wk: x @ wq.T @ wk @ x.T,
        "a row of x meets the columns of W",
    ),
)

POSITIONS = (
    Slip(
        "sinusoids",
        "halves",
        HALVES,
        lambda p: sinusoids(p, (1, 1, 100, 100))[:, [0, 2, 1, 3]],
        "the sines are in the even columns and the cosines in the odd ones",
    ),
    Slip(
        "sinusoids",
        "sine and cosine exchanged",
        "sines and cosines are exchanged",
        lambda p: sinusoids(p, (1, 1, 100, 100))[:, [1, 0, 3, 2]],
        "the sines are in the even columns",
    ),
    Slip(
        "sinusoids",
        "degrees",
        "the angles are in degrees",
        lambda p: sinusoids(np.radians(p), (1, 1, 100, 100)),
        "set the calculator to radians",
    ),
    Slip(
        "sinusoids",
        "exponent of the cosine",
        "the exponent of the cosines is (2i+1)/d",
        lambda p: sinusoids(p, (1, 10, 100, 1000)),
        "a sine and its cosine share the exponent 2i/d",
    ),
    Slip(
        "sinusoids", "exponent i/d", "the exponent is i/d", lambda p: sinusoids(p, (1, 1, 10, 10)), "it should be 2i/d"
    ),
    Slip(
        "sinusoids",
        "exponent of the column",
        "i is the number of the column",
        lambda p: sinusoids(p, (1, 1e2, 1e4, 1e6)),
        "it should be the number of the pair of columns: 0, 0, 1, 1",
    ),
    Slip(
        "sinusoids",
        "positions from 1",
        SHIFTED_POSITIONS,
        lambda p: sinusoids(p + 1, (1, 1, 100, 100)),
        "the numbers in p are the positions",
    ),
    Slip(
        "sinusoids",
        "positions from 0",
        "positions count from 0",
        lambda p: sinusoids(np.arange(len(p)), (1, 1, 100, 100)),
        "the numbers in p are the positions",
    ),
    Slip(
        "sinusoids",
        "positions counted from 1",
        "positions count from 1",
        lambda p: sinusoids(np.arange(len(p)) + 1, (1, 1, 100, 100)),
        "the numbers in p are the positions",
    ),
    Slip(
        "sinusoids",
        "sines alone",
        "all columns are sines",
        lambda p: np.sin(p[:, None] / np.array((1, 1, 100, 100))),
        "the cosines are in the odd columns",
    ),
    Slip(
        "sinusoids",
        "one frequency",
        "all columns have the angle pos",
        lambda p: sinusoids(p, (1, 1, 1, 1)),
        "divide it by 10000^(2i/d)",
    ),
    Slip(
        "sinusoids",
        "multiplied angle",
        "the angle is multiplied by 10000^(2i/d)",
        lambda p: sinusoids(p, (1, 1, 0.01, 0.01)),
        "divide it",
    ),
    Slip(
        "sinusoids",
        ".34 for .54",
        "cos 1 is .54; some notes print .34",
        lambda p: np.where(
            np.isclose(sinusoids(p, (1, 1, 100, 100)), math.cos(1)), 0.34, sinusoids(p, (1, 1, 100, 100))
        ),
    ),
)

RECURRENCES = (
    Slip(
        "states",
        "no tanh",
        "the sum is not yet the state",
        lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x, weight_ih_l0, weight_hh_l0, lambda sum: sum),
        "apply tanh to it",
    ),
    Slip(
        "states",
        "ReLU",
        "that is max(0, ·) of the sum",
        lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(
            x, weight_ih_l0, weight_hh_l0, lambda sum: np.maximum(sum, 0)
        ),
        "apply tanh to it",
    ),
    Slip(
        "states",
        "sigmoid",
        "that is σ of the sum",
        lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x, weight_ih_l0, weight_hh_l0, sigmoid_of),
        "apply tanh to it",
    ),
    Slip(
        "states",
        "last token first",
        "the last token is read first",
        lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x[::-1], weight_ih_l0, weight_hh_l0)[::-1],
        "read the first token first",
    ),
    Slip(
        "states",
        "last token first, in its order",
        "the last token is read first",
        lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x[::-1], weight_ih_l0, weight_hh_l0),
        "read the first token first",
    ),
    Slip(
        "states",
        "no state before",
        "the state before is not used",
        lambda x, weight_ih_l0: np.tanh(x @ weight_ih_l0.T),
        "add U h_(t-1)",
    ),
    Slip(
        "states",
        "U without its number",
        "the state before is added without U",
        lambda x, weight_ih_l0: recurrent_steps(x, weight_ih_l0, np.ones((1, 1))),
        "add U h_(t-1)",
    ),
    Slip(
        "states",
        "tanh before the state",
        "U h_(t-1) is added after tanh",
        lambda x, weight_ih_l0, weight_hh_l0: np.array(
            [[h1 := np.tanh(x[0] @ weight_ih_l0[0])], [np.tanh(x[1] @ weight_ih_l0[0]) + weight_hh_l0[0, 0] * h1]]
        ),
        "apply tanh to the sum",
    ),
    Slip(
        "states",
        "sum before",
        "h_2 is computed with the sum before tanh, not with h_1",
        lambda x, weight_ih_l0, weight_hh_l0: np.tanh(recurrent_steps(x, weight_ih_l0, weight_hh_l0, lambda sum: sum)),
    ),
)

CELLS = (
    Slip(
        "cells",
        "candidates",
        "those are the candidates",
        lambda g: g,
        "the input gate scales them, and the forget gate keeps part of the cell before",
    ),
    Slip(
        "cells",
        "no input gate",
        "the input gate is missing",
        lambda f, g: cells_of(np.ones_like(f), f, g),
        "the candidate is multiplied by i",
    ),
    Slip(
        "cells",
        "no forget gate",
        "the forget gate is missing",
        lambda i, g: cells_of(i, np.ones_like(i), g),
        "the cell before is multiplied by f",
    ),
    Slip(
        "cells",
        "nothing kept",
        "the cell before is not kept",
        lambda i, g: cells_of(i, np.zeros_like(i), g),
        "add f · c_(t-1)",
    ),
    Slip(
        "cells",
        "gates exchanged",
        "the input gate and the forget gate are exchanged",
        lambda i, f, g: cells_of(f, i, g),
        "i scales the candidate, f the cell before",
    ),
    Slip(
        "cells",
        "gates without sigmoid",
        "the gates are not yet σ of their numbers",
        lambda x, g: cells_of(x[:, 0], x[:, 1], g),
    ),
    Slip("cells", "candidate without tanh", "the candidate is c, not tanh(c)", lambda i, f, x: cells_of(i, f, x[:, 2])),
    Slip(
        "cells",
        "candidate by sigmoid",
        "the candidate is σ(c), not tanh(c)",
        lambda i, f, x: cells_of(i, f, sigmoid_of(x[:, 2])),
    ),
    Slip("cells", "coupled gates", "the forget gate is 1 − i", lambda i, g: cells_of(i, 1 - i, g), "it should be σ(b)"),
    Slip(
        "cells",
        "opposite forget gate",
        "the cell before is multiplied by 1 − f",
        lambda i, f, g: cells_of(i, 1 - f, g),
        "f is what is kept",
    ),
    Slip(
        "cells",
        "hidden states",
        "those are tanh of the cell states",
        lambda i, f, g: np.tanh(cells_of(i, f, g)),
        "the cell state is asked for",
    ),
)

ALIGNMENTS = (
    Slip(
        "additive",
        "dot scores",
        "those are the products s · h",
        lambda s, h: h @ s[0],
        "the additive score is v · tanh(W s + U h)",
    ),
    Slip("activated", "no tanh", "tanh is missing", lambda summed: summed),
    Slip(
        "additive",
        "no v",
        "the product with v is missing",
        lambda activated: activated.sum(-1),
        "v weighs each number of tanh(W s + U h)",
    ),
    Slip(
        "additive",
        "tanh outside",
        "tanh is applied to the product with v",
        lambda summed, va: np.tanh(summed @ va),
        "apply it before",
    ),
    Slip("summed", "no state", "the state s is missing", lambda h: h, "the sum is W s + U h"),
    Slip("summed", "states subtracted", "the states are subtracted", lambda s, h: s - h, "the sum is W s + U h"),
    Slip("summed", "states multiplied", "the states are multiplied", lambda s, h: s * h, "the sum is W s + U h"),
    Slip(
        "activated", "two tanh", "tanh is applied to each state, not to their sum", lambda s, h: np.tanh(s) + np.tanh(h)
    ),
    Slip("activated", "sigmoid", "that is σ, not tanh", lambda summed: sigmoid_of(summed)),
    Slip(
        "exponents",
        "scale",
        "the scores are divided by √d",
        lambda alignment, v: alignment / math.sqrt(v.shape[-1]),
        "do not scale these scores",
    ),
)

COSINES = (
    Slip(
        "sorted",
        "products",
        "those are the products q · e",
        lambda products: np.sort(products)[::-1],
        "divide each by the lengths of both vectors",
    ),
    Slip(
        "sorted",
        "products in the order of the rows",
        "those are the products q · e",
        lambda products: products,
        "divide each by the lengths of both vectors",
    ),
    Slip(
        "sorted",
        "order of the rows",
        "they are in the order of the rows",
        lambda cosines: cosines,
        "put the largest first",
    ),
    Slip(
        "sorted",
        "smallest first",
        "the smallest comes first",
        lambda cosines: np.sort(cosines),
        "put the largest first",
    ),
    Slip(
        "sorted",
        "length of q missing",
        "the products are not divided by the length of q",
        lambda products, e: np.sort(products / np.linalg.norm(e, axis=-1))[::-1],
    ),
    Slip(
        "sorted",
        "lengths of E missing",
        "the products are not divided by the lengths of the rows of E",
        lambda products, q: np.sort(products / np.linalg.norm(q))[::-1],
    ),
    Slip(
        "sorted",
        "squared lengths",
        "the lengths have no root",
        lambda products, lengths: np.sort(products / lengths**2)[::-1],
        "|a| is the root of the sum of its squares",
    ),
    Slip(
        "sorted",
        "distances",
        "those are the distances",
        lambda q, e: np.sort(np.linalg.norm(q - e, axis=-1)),
        "cosine similarity is a · b / (|a| |b|)",
    ),
    Slip("sorted", "magnitudes", "the signs are missing", lambda cosines: np.sort(np.abs(cosines))[::-1]),
)

GRADIENTS = (
    Slip(
        "gradient",
        "product of weights",
        "the one-hot row is missing",
        lambda weights: -weights[:, :1] * weights,
        "it should be p_0 · ([1, 0, 0] − p)",
    ),
    Slip("gradient", "no first weight", "the factor p_0 is missing", lambda weights: first_one_hot(weights) - weights),
    Slip(
        "gradient",
        "own derivatives",
        "that is p (1 − p), the derivative of each weight with respect to its own score",
        lambda weights: weights * (1 - weights),
        "it should be p_0 · ([1, 0, 0] − p)",
    ),
    Slip(
        "gradient",
        "positive",
        "the others have the wrong sign",
        lambda weights: weights[:, :1] * np.abs(first_one_hot(weights) - weights),
        "they lower the first weight",
    ),
    Slip(
        "gradient",
        "first weight alone",
        "only the first score counts",
        lambda weights: weights[:, :1] * (1 - weights[:, :1]) * first_one_hot(weights),
        "the others lower the first weight",
    ),
    Slip(
        "gradient",
        "factor of each weight",
        "each is multiplied by its own weight",
        lambda weights: weights * (first_one_hot(weights) - weights),
        "the factor is p_0",
    ),
)

TEMPERATURES = (
    Slip(
        "tempered",
        "no temperature",
        "those are the probabilities at temperature 1",
        lambda logits: logits,
        "divide the logits by 2",
    ),
    Slip(
        "tempered",
        "multiplied",
        "the logits are multiplied by the temperature",
        lambda logits: logits * 2,
        "divide them by it",
    ),
    Slip(
        "tempered",
        "root of the temperature",
        "the logits are divided by √2",
        lambda logits: logits / math.sqrt(2),
        "divide them by 2",
    ),
    Slip(
        "tempered", "squared temperature", "the logits are divided by 2²", lambda logits: logits / 4, "divide them by 2"
    ),
    Slip(
        "weights",
        "divided probabilities",
        "the probabilities are divided by the temperature",
        lambda logits: softmax_of(logits) / 2,
        "divide the logits by it",
    ),
    Slip(
        "tempered",
        "temperature subtracted",
        "softmax is applied before and after the division",
        lambda logits: softmax_of(logits) / 2,
        "divide the logits, not the probabilities",
    ),
)

LOGITS = (
    Slip(
        "logits",
        "scale",
        "the logits are divided by √d",
        lambda x, e: x @ e.T / math.sqrt(x.shape[-1]),
        "compute x Eᵀ",
    ),
    Slip(
        "logits",
        "no transpose",
        "E is not transposed",
        lambda x, e: x @ e,
        "a logit is the product of the state and the row of a word",
    ),
    Slip(
        "logits",
        "cosines",
        "the logits are divided by the lengths of the rows",
        lambda x, e: x @ e.T / np.linalg.norm(e, axis=-1),
        "compute x Eᵀ",
    ),
    Slip(
        "logits",
        "sums of rows",
        "the rows of E are added without the state",
        lambda x, e: np.tile(e.sum(-1), (len(x), 1)),
        "compute x Eᵀ",
    ),
    Slip("logits", "rows of words", "rows are words", lambda x, e: e @ x.T, "rows should be layers"),
    Slip(
        "logits",
        "states added up",
        "the states are added up layer by layer",
        lambda x, e: np.cumsum(x, axis=0) @ e.T,
        "each row is a whole state",
    ),
)

LOSSES = (
    Slip(
        "losses", "log2", "the logarithm has the base 2", lambda probability: -np.log2(probability), "ln has the base e"
    ),
    Slip(
        "losses",
        "log10",
        "the logarithm has the base 10",
        lambda probability: -np.log10(probability),
        "ln has the base e",
    ),
    Slip("losses", "no minus", "the minus sign is missing", lambda probability: np.log(probability)),
    Slip(
        "loss",
        "perplexity",
        "that is the perplexity, e^loss",
        lambda losses: np.exp(losses.mean()),
        "the loss is its ln",
    ),
    Slip("loss", "sum", "that is the sum", lambda losses: losses.sum(), "divide it by the number of tokens"),
    Slip(
        "loss",
        "mean probability",
        "that is −ln of the mean probability",
        lambda probability: -np.log(probability.mean()),
        "the loss is the mean of −ln p",
    ),
    Slip(
        "loss",
        "probability",
        "that is the probability",
        lambda probability: probability.mean(),
        "the loss is −ln of it",
    ),
    Slip(
        "loss",
        "product of probabilities",
        "that is the probability of the whole text",
        lambda probability: probability.prod(),
        "the loss is the mean of −ln p",
    ),
    Slip(
        "loss",
        "negative logit",
        "that is the logit with a minus sign",
        lambda logits, targets: -logits[np.arange(len(logits)), targets.astype(int)].mean(),
        "the loss is −ln of the probability",
    ),
    Slip(
        "loss", "opposite probability", "that is 1 − p", lambda probability: 1 - probability.mean(), "the loss is −ln p"
    ),
    Slip(
        "loss",
        "logarithm of the opposite",
        "that is −ln(1 − p)",
        lambda probability: -np.log(1 - probability).mean(),
        "the loss is −ln p",
    ),
    Slip(
        "loss",
        "entropy",
        "that is the entropy of the probabilities",
        lambda weights: -(weights * np.log(weights)).sum(-1).mean(),
        "the target is one word",
    ),
    Slip(
        "loss",
        "term of the entropy",
        "that is −p ln p",
        lambda probability: -(probability * np.log(probability)).mean(),
        "the target is 1 for the word",
    ),
    Slip(
        "loss",
        "all words",
        "the loss counts every word",
        lambda weights: -np.log(weights).sum(-1).mean(),
        "count the next word alone",
    ),
    Slip(
        "loss",
        "all words, averaged",
        "the loss is the mean over all words",
        lambda weights: -np.log(weights).mean(),
        "count the next word alone",
    ),
    Slip(
        "loss",
        "last word",
        "that is the loss of the last token alone",
        lambda losses: losses[-1],
        "take the mean over all tokens",
    ),
    Slip(
        "loss",
        "next target",
        "the targets are shifted by one",
        lambda weights, targets: (
            -np.log(weights[np.arange(len(weights)), (targets.astype(int) + 1) % weights.shape[-1]]).mean()
        ),
        "the words are counted from 0",
    ),
)

LOSS_GRADIENTS = (
    Slip("difference", "no target", "the one-hot target is not subtracted", lambda weights: weights),
    Slip(
        "difference",
        "target minus softmax",
        "the sign is reversed",
        lambda weights: first_one_hot(weights) - weights,
        "it should be softmax(logits) − y",
    ),
    Slip(
        "difference",
        "factor of the first weight",
        "that is the gradient of the probability, not of the loss",
        lambda weights: weights[:, :1] * (first_one_hot(weights) - weights),
    ),
    Slip(
        "difference",
        "target from 1",
        "the target is word 1, not word 0",
        lambda weights: weights - np.roll(first_one_hot(weights), 1, -1),
        "the words are counted from 0",
    ),
    Slip(
        "difference",
        "logits minus target",
        "softmax is missing",
        lambda logits: logits - first_one_hot(logits),
        "it should be softmax(logits) − y",
    ),
    Slip(
        "difference",
        "target alone",
        "only the first number counts",
        lambda weights: (weights - 1) * first_one_hot(weights),
        "the other words have a gradient too",
    ),
)

SMOOTHINGS = (
    Slip(
        "smoothed",
        "no smoothing",
        "that is the loss without smoothing",
        lambda logarithms: -logarithms[0],
        "the target has a share for every word",
    ),
    Slip(
        "smoothed",
        "first share missing",
        "the target of word 0 is 1 − ε",
        lambda logits: _cross_entropy(logits, _smoothed(0.7, 0.1, 3), np.log),
        "it should be 1 − ε + ε/3",
    ),
    Slip(
        "smoothed",
        "shared by the others",
        "ε is shared by the other words alone",
        lambda logits: _cross_entropy(logits, _smoothed(0.7, 0.15, 3), np.log),
        "share it among all three",
    ),
    Slip(
        "smoothed",
        "ε for each",
        "each other word has ε",
        lambda logits: _cross_entropy(logits, _smoothed(0.7, 0.3, 3), np.log),
        "each should have ε/3",
    ),
    Slip(
        "smoothed",
        "others forgotten",
        "the other words have no share",
        lambda logarithms: -0.8 * logarithms[0],
        "each should have ε/3",
    ),
    Slip(
        "smoothed",
        "target of 1 − ε alone",
        "the other words have no share",
        lambda logarithms: -0.7 * logarithms[0],
        "each should have ε/3",
    ),
    Slip(
        "logarithms", "log2", "the logarithm has the base 2", lambda weights: np.log2(weights[0]), "ln has the base e"
    ),
    Slip(
        "logarithms",
        "log10",
        "the logarithm has the base 10",
        lambda weights: np.log10(weights[0]),
        "ln has the base e",
    ),
    Slip(
        "smoothed",
        "no minus",
        "the minus sign is missing",
        lambda logarithms: 0.7 * logarithms[0] + 0.1 * logarithms.sum(),
    ),
    Slip(
        "smoothed",
        "perplexity",
        "that is e^loss",
        lambda logarithms: np.exp(-(0.7 * logarithms[0] + 0.1 * logarithms.sum())),
        "the loss is its ln",
    ),
    Slip(
        "smoothed",
        "probability",
        "that is the probability of word 0",
        lambda weights: weights[0, 0],
        "the loss is −Σ target · ln p",
    ),
    Slip(
        "smoothed",
        "smoothed probability",
        "that is −ln of the smoothed probability",
        lambda weights: -np.log(0.7 * weights[0, 0] + 0.1 * weights.sum()),
        "the loss is −Σ target · ln p",
    ),
)

PATHS = (
    Slip(
        "paths",
        "last state alone",
        "that is the gradient of h_3 alone",
        lambda weight_ih_l0, weight_hh_l0: weight_ih_l0 * weight_hh_l0 ** np.array([[2], [1], [0]]),
        "h_1 and h_2 are in the sum too",
    ),
    Slip(
        "paths",
        "last token first",
        "the last token comes first",
        lambda weight_ih_l0, weight_hh_l0: sum_paths(weight_ih_l0, weight_hh_l0, (0, 1, 2)),
        "x_1 has the longest way",
    ),
    Slip(
        "paths",
        "states",
        "those are the states",
        lambda x, weight_ih_l0, weight_hh_l0: recurrent_steps(x, weight_ih_l0, weight_hh_l0, lambda sum: sum),
        "a gradient says how much x changes their sum",
    ),
    Slip(
        "paths",
        "multiplied by x",
        "each gradient is multiplied by its x",
        lambda x, weight_ih_l0, weight_hh_l0: x * sum_paths(weight_ih_l0, weight_hh_l0, (2, 1, 0)),
        "the gradient is the factor of x",
    ),
    Slip(
        "paths",
        "one step alone",
        "x_1 is missing in h_3",
        lambda weight_ih_l0, weight_hh_l0: sum_paths(weight_ih_l0, weight_hh_l0, (1, 1, 0)),
        "it is in all three states",
    ),
    Slip(
        "paths",
        "no way through time",
        "only its own state counts",
        lambda x, weight_ih_l0: weight_ih_l0 * np.ones_like(x),
        "x_1 is in h_2 and h_3 too",
    ),
    Slip(
        "sums of columns",
        "sums of rows",
        "those are the sums of the rows",
        lambda x, weights: np.tile(weights.sum(1)[:, None], x.shape[1]),
        "a value counts by the weights of its column",
    ),
    Slip(
        "sums of columns",
        "outputs",
        "those are the outputs",
        lambda x, weights: weights @ x,
        "the gradient says how much each number of x adds to their sum",
    ),
    Slip(
        "sums of columns",
        "transposed outputs",
        "those are the weights of the columns times x",
        lambda x, weights: weights.T @ x,
        "the gradient of the sum is the sum of the weights alone",
    ),
    Slip(
        "sums of columns",
        "multiplied by x",
        "each gradient is multiplied by its x",
        lambda x, weights: weights.sum(0)[:, None] * x,
        "the gradient is the factor of x",
    ),
    Slip(
        "sums of columns",
        "mean of columns",
        "those are the means of the columns",
        lambda x, weights: np.tile(weights.mean(0)[:, None], x.shape[1]),
        "the outputs are added, not averaged",
    ),
    Slip(
        "sums of columns",
        "own weights",
        "only the weight of a word for itself counts",
        lambda x, weights: np.tile(np.diag(weights)[:, None], x.shape[1]),
        "a value counts by the weights of its column",
    ),
)

CHOICES = (
    Slip(
        "kept", "all words", "those are the probabilities of all four words", lambda logits: logits, "two of them stay"
    ),
    Slip(
        "kept",
        "one word",
        "that is top-k 1",
        lambda logits: np.where(keep_largest(logits, 1), logits, -np.inf),
        "two of them stay",
    ),
    Slip(
        "kept",
        "three words",
        "that is top-k 3",
        lambda logits: np.where(keep_largest(logits, 3), logits, -np.inf),
        "two of them stay",
    ),
    Slip(
        "weights",
        "not divided again",
        "the probabilities of the two words are not divided again by their sum",
        lambda logits: softmax_of(logits) * keep_largest(logits, 2),
        "the others become −∞ before the softmax",
    ),
    Slip(
        "kept",
        "blocked are 0",
        BLOCKED_ZERO,
        lambda logits: np.where(keep_largest(logits, 2), logits, 0),
        "e⁰ is 1, and takes a share",
    ),
    Slip(
        "weights",
        "equal shares",
        "the two words have equal shares",
        lambda logits: keep_largest(logits, 2) / 2,
        "their logits decide",
    ),
    Slip(
        "kept",
        "smallest words",
        "those are the two least probable words",
        lambda logits: np.where(keep_largest(-logits, 2), logits, -np.inf),
    ),
)

ROLLOUTS = (
    Slip(
        "rollout",
        "wrong order",
        "the product is in the wrong order (A₁ A₂, not A₂ A₁)",
        lambda first, second: first @ second,
    ),
    Slip(
        "rollout",
        "element by element",
        "the numbers are multiplied one by one",
        lambda first, second: first * second,
        "a row of A₂ meets the columns of A₁",
    ),
    Slip(
        "rollout",
        "mean of the layers",
        "that is the mean of the layers",
        lambda first, second: (first + second) / 2,
        "rollout multiplies them",
    ),
    Slip(
        "rollout",
        "sum of the layers",
        "that is the sum of the layers",
        lambda first, second: first + second,
        "rollout multiplies them",
    ),
    Slip(
        "rollout",
        "with residuals",
        "that is with the residual connections",
        lambda first, second: (second + np.eye(2)) @ (first + np.eye(2)) / 4,
        "here they are left out",
    ),
    Slip(
        "rollout",
        "transposed",
        "A₁ is transposed",
        lambda first, second: second @ first.T,
        "a row of A₂ meets the columns of A₁",
    ),
    Slip(
        "rollout", "last layer alone", "that is the last layer alone", lambda second: second, "rollout multiplies them"
    ),
    Slip(
        "rollout", "first layer alone", "that is the first layer alone", lambda first: first, "rollout multiplies them"
    ),
)

KERNELS = (
    Slip(
        "patches",
        "kernel turned",
        "the kernel is turned by 180°",
        lambda x, w: (patches_of(x[..., 0]) * w[0, 0, ::-1, ::-1]).sum((-2, -1))[:, None],
        "networks multiply each pixel by the weight at its own place",
    ),
    Slip(
        "patches",
        "kernel transposed",
        "the kernel is transposed",
        lambda x, w: (patches_of(x[..., 0]) * w[0, 0].T).sum((-2, -1))[:, None],
        "each pixel meets the weight at its own place",
    ),
    Slip(
        "patches",
        "stride 1",
        "the patches overlap",
        lambda x, w: (patches_of(x[..., 0], 1) * w[0, 0]).sum((-2, -1))[:, None],
        "the stride of the kernel is its size",
    ),
    Slip(
        "patches",
        "no weights",
        "that is the sum of the pixels without their weights",
        lambda x: patches_of(x[..., 0]).sum((-2, -1))[:, None],
        "each pixel meets the weight at its own place",
    ),
    Slip(
        "patches",
        "mean",
        "that is the mean",
        lambda x, w: (patches_of(x[..., 0]) * w[0, 0]).mean((-2, -1))[:, None],
        "take the sum",
    ),
    Slip(
        "patches",
        "rows for patches",
        "a patch is a row of pixels",
        lambda x, w: x[..., 0] @ w[0, 0].reshape(-1, 1),
        "it should be 2 × 2 pixels",
    ),
    Slip(
        "patches",
        "sum times sum",
        "the sum of the pixels is multiplied by the sum of the weights",
        lambda x, w: patches_of(x[..., 0]).sum((-2, -1))[:, None] * w.sum(),
        "each pixel meets the weight at its own place",
    ),
    Slip(
        "frames",
        "kernel turned",
        "the kernel is turned",
        lambda x, w: windows_of(x[:, 0], 3, 2, 1) @ w[0, 0, ::-1, None],
        "networks multiply each frame by the weight at its own place",
    ),
    Slip(
        "frames",
        "stride 1",
        "the stride is 1",
        lambda x, w: windows_of(x[:, 0], 3, 1, 1) @ w[0, 0][:, None],
        "only every second window counts",
    ),
    Slip(
        "frames",
        "stride 3",
        "the windows do not overlap",
        lambda x, w: windows_of(x[:, 0], 3, 3, 1) @ w[0, 0][:, None],
        "the stride should be 2",
    ),
    Slip(
        "frames",
        "no padding",
        "the frames of zeros are missing",
        lambda x, w: windows_of(x[:, 0], 3, 2) @ w[0, 0][:, None],
        "a frame of zeros comes before the first one, and the first window begins there",
    ),
    Slip(
        "frames",
        "no padding, stride 1",
        "the frames of zeros are missing",
        lambda x, w: windows_of(x[:, 0], 3, 1) @ w[0, 0][:, None],
        "a frame of zeros comes before the first one, and the first window begins there",
    ),
    Slip(
        "frames",
        "second windows",
        "the windows are the second and the fourth",
        lambda x, w: windows_of(x[:, 0], 3, 1, 1)[1::2] @ w[0, 0][:, None],
        "the first one begins with the frame of zeros",
    ),
    Slip(
        "frames",
        "edges repeated",
        "the frames at the ends are repeated",
        lambda x, w: windows_of(np.pad(x[:, 0], 1, mode="edge"), 3, 2) @ w[0, 0][:, None],
        "a frame of zeros is on each side",
    ),
    Slip(
        "frames",
        "no weights",
        "that is the sum of the frames without their weights",
        lambda x: windows_of(x[:, 0], 3, 2, 1).sum(-1, keepdims=True),
        "each frame meets the weight at its own place",
    ),
)

# computation -> the slips that are tried in it
SLIPS: dict[str, tuple[Slip, ...]] = {
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
    "rollout": ROLLOUTS,
    "patches": KERNELS,
    "frames": KERNELS,
}

# step, or computation.step -> what its numbers are called
WORDS = {
    "states": "the states",
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


def work_with_slip(steps: Mapping[str, Formula], given: Mapping[str, Any], slip: Slip) -> dict[str, Any] | None:
    """Compute every step with a slip; None where it does not fit the tensors.

    >>> steps, given = {"mean": lambda x: x.mean(), "half": lambda mean: mean / 2}, {"x": np.array([1.0, 3.0])}
    >>> float(work_with_slip(steps, given, Slip("mean", "sum", "that is the sum", lambda x: x.sum()))["half"])
    2.0
    """
    try:
        with np.errstate(all="ignore"):
            return work({**steps, slip.step: slip.formula}, given) if slip.step in steps else None
    except (KeyError, ValueError, IndexError):
        return None
