"""Sampling: temperature, top-k, top-p, min-p, and the next token.

The random generator's type is quoted in annotations: importing numpy.random costs ten milliseconds.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, NotFiniteError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, DType, cast, output_dtype, quiet, working
from attnkit.model.formulas.activations import sigmoid
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.linear import linear
from attnkit.model.formulas.masks import mask_block
from attnkit.model.formulas.softmax import log_softmax, shifted, softmax
from attnkit.model.processor.products import PLAIN, Products


def logits(x: Array, weight: Array, bias: Array | None = None, products: Products = PLAIN) -> Array:
    """A score for every word; tied embeddings are the transposed weight.

    x (..., D), weight (D, N), bias (N,) -> (..., N)

    They are at least float32: in 16 bits large logits become equal, or infinite. DataError if shapes do not match.

    >>> logits(np.array([1.0, 2.0]), np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))
    array([1., 2., 3.])
    """
    arrays = [array for array in (x, weight, bias) if array is not None]
    names = "x", "output weight", "output bias"
    return linear(cast(x, working(*arrays)), weight, bias, names=names, products=products)


@quiet
def apply_temperature(logits: Array, temperature: float) -> Array:
    """Subtract each row's largest logit and divide by the temperature.

    logits (..., N) -> (..., N)

    Below 1 is sharper, above 1 flatter. UsageError unless the temperature is positive.

    >>> apply_temperature(np.array([1.0, 3.0]), 2.0)
    array([-1.,  0.])
    """
    if not 0 < temperature < math.inf:
        raise UsageError(f"temperature {temperature} (expected a positive number)")
    # shifted first, so that a tiny temperature cannot make the largest score infinite
    scores: Array = shifted(_rows(logits, working(logits))) / float(temperature)
    return scores


@quiet
def probabilities(logits: Array, temperature: float = 1.0) -> Array:
    """softmax(logits / temperature).

    logits (..., N) -> (..., N)

    UsageError unless the temperature is positive.

    >>> probabilities(np.array([0.0, np.log(4)]), temperature=2.0).round(4)
    array([0.3333, 0.6667])
    """
    return softmax(apply_temperature(logits, temperature)).astype(output_dtype(logits), copy=False)


@quiet
def log_probabilities(logits: Array) -> Array:
    """log softmax(logits), finite even if a probability underflows.

    logits (..., N) -> (..., N)

    >>> log_probabilities(np.array([0.0, 2000.0]))
    array([-2000.,     0.])
    """
    return log_softmax(_rows(logits, working(logits))).astype(output_dtype(logits), copy=False)


@quiet
def repetition_penalty(logits: Array, ids: Array, penalty: float) -> Array:
    """Make earlier tokens less likely.

    logits (..., N), ids (..., T) -> (..., N)

    Their logits are divided by the penalty if positive, else multiplied. A repeated token is penalized once. Source:
    CTRL (Keskar et al. 2019), section 4.1, and Hugging Face's multiplication of negative logits. UsageError unless the
    penalty is positive; DataError for an id outside 0..N-1.

    >>> repetition_penalty(np.array([3.0, -3.0, 3.0]), np.array([0, 1, 1]), 1.5)
    array([ 2. , -4.5,  3. ])
    """
    if not 0 < penalty < math.inf:
        raise UsageError(f"repetition penalty {penalty} (expected a positive number)")
    scores = _rows(logits, working(logits)).astype(output_dtype(logits))
    tokens = np.broadcast_to(check_ids(ids, logits.shape[-1]), (*logits.shape[:-1], np.shape(ids)[-1]))
    earlier = np.take_along_axis(scores, tokens, axis=-1)
    np.put_along_axis(scores, tokens, np.where(earlier < 0, earlier * penalty, earlier / penalty), axis=-1)
    return scores


def exclude_repeats(logits: Array, ids: Array, size: int) -> Array:
    """Exclude the tokens whose last `size` tokens would occur a second time.

    logits (B, N), ids (B, T) -> (B, N)

    Source: Paulus et al. 2017, section 2.5. UsageError for a size below 1, DataError for an id outside 0..N-1.

    >>> exclude_repeats(np.zeros((1, 3)), np.array([[0, 2, 1, 0]]), 2)
    array([[  0.,   0., -inf]])
    """
    if size < 1:
        raise UsageError(f"n-grams of {size} tokens (expected 1 or more)")
    scores, tokens = logits.copy(), check_ids(ids, logits.shape[-1])
    if tokens.shape[1] < size:
        return scores
    ngrams = np.lib.stride_tricks.sliding_window_view(tokens, size, axis=1)  # (B, T - size + 1, size)
    last = tokens[:, tokens.shape[1] - size + 1 :]
    rows, places = np.nonzero((ngrams[..., :-1] == last[:, None]).all(axis=-1))
    scores[rows, ngrams[rows, places, -1]] = -np.inf
    return scores


def _rows(scores: Array, dtype: DType) -> Array:
    if scores.ndim == 0:
        raise DataError("x (): a single number, expected one for each word of the vocabulary")
    return cast(scores, dtype)


def _filter(logits: Array, keep: Callable[[Array], Array]) -> Array:
    """Logits if `keep` is True, else -inf; NaN stays for sampling to report."""
    scores = logits.astype(output_dtype(logits), copy=False)
    wide = _rows(logits, np.dtype(np.float64))
    return mask_block(scores, keep(wide) | np.isnan(wide))


def _order(scores: Array) -> Array:
    """Indices by falling score, ties by the lower index, NaN last."""
    return np.argsort(-scores, axis=-1, kind="stable")


def largest(scores: Array, count: int) -> Array:
    """Indices of the `count` largest scores, or of all, best first.

    scores (..., N) -> (..., M) int64, where M is the lesser of `count` and N

    Ties by the lower index, NaN last. Only these are sorted, not the whole row.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0]), 2)
    array([1, 3])
    """
    if count >= scores.shape[-1] or np.isnan(scores).any():
        return _order(scores)[..., :count]
    chosen = np.nonzero(_among_largest(scores, count))[-1].reshape(*scores.shape[:-1], count)
    return np.take_along_axis(chosen, _order(np.take_along_axis(scores, chosen, axis=-1)), axis=-1)


def _among_largest(scores: Array, count: int) -> Array:
    """Whether a score is among the `count` < N largest of its row, without NaN."""
    last = scores.shape[-1] - count
    least = np.partition(scores, last, axis=-1)[..., last : last + 1]
    among: Array = scores >= least
    if (among.sum(axis=-1) == count).all():
        return among
    above, equal = scores > least, scores == least
    ties = count - above.sum(axis=-1, keepdims=True)
    among = above | (equal & (np.cumsum(equal, axis=-1) <= ties))
    return among


@quiet
def top_k(logits: Array, k: int) -> Array:
    """Keep only the k largest logits, -inf for the rest; ties go to the lower index.

    logits (..., N) -> (..., N)

    UsageError for k < 1.

    >>> top_k(np.array([1.0, 3.0, 3.0, 2.0]), 1)
    array([-inf,   3., -inf, -inf])
    """
    if k < 1:
        raise UsageError(f"top-k {k} (expected 1 or more)")

    def keep(scores: Array) -> Array:
        if k >= scores.shape[-1]:
            return np.ones(scores.shape, dtype=bool)
        return _among_largest(np.where(np.isnan(scores), -np.inf, scores), k)

    return _filter(logits, keep)


@quiet
def top_p(logits: Array, p: float) -> Array:
    """Keep the most probable words up to a sum of p, -inf for the rest (nucleus).

    logits (..., N) -> (..., N)

    At least one is kept, and p = 1 keeps all. Source: Holtzman et al. 2020, section 3.1. UsageError unless
    0 < p <= 1.

    >>> top_p(np.log(np.array([0.125, 0.5, 0.375])), 0.75).round(4)
    array([   -inf, -0.6931, -0.9808])
    """
    if not 0 < p <= 1:
        raise UsageError(f"top-p {p} (expected more than 0, at most 1)")

    def keep(scores: Array) -> Array:
        if p == 1:
            return np.ones(scores.shape, dtype=bool)
        order, sums = _sorted_until(scores, p)
        before = np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], axis=-1)
        in_nucleus = np.zeros(scores.shape, dtype=bool)
        np.put_along_axis(in_nucleus, order, before < p, axis=-1)
        return in_nucleus

    return _filter(logits, keep)


def _sorted_until(scores: Array, p: float) -> tuple[Array, Array]:
    """Indices by falling score until probabilities reach p, and cumulative sums."""
    shares, count = softmax(scores), 64
    while True:
        order = largest(scores, count)
        sums = np.cumsum(np.take_along_axis(shares, order, axis=-1), axis=-1)
        if count >= scores.shape[-1] or (sums[..., -1] >= p).all():
            return order, sums
        count *= 8


@quiet
def min_p(logits: Array, p: float) -> Array:
    """Keep words at least p times as probable as the best, -inf for the rest.

    logits (..., N) -> (..., N)

    UsageError unless 0 <= p <= 1.

    >>> min_p(np.log(np.array([0.125, 0.5, 0.375])), 0.5).round(4)
    array([   -inf, -0.6931, -0.9808])
    """
    if not 0 <= p <= 1:
        raise UsageError(f"min-p {p} (expected 0 to 1)")
    return _filter(logits, lambda scores: np.exp(shifted(scores)) >= p)


@quiet
def check_finite(logits: Array, start: int = 0) -> Array:
    """Convert logits to float64; NotFiniteError for a row that cannot be used.

    logits (..., N) -> (..., N)

    Rows are steps, counted from `start`.

    >>> check_finite(np.array([0.0, -np.inf]))
    array([  0., -inf])
    """
    scores = _rows(logits, np.dtype(np.float64))
    rows = scores.reshape(math.prod(scores.shape[:-1]), scores.shape[-1])
    if scores.shape[-1] == 0 and len(rows):
        raise DataError(f"logits {as_text(scores.shape)}: the vocabulary is empty")
    for step in np.flatnonzero(~np.isfinite(rows).any(axis=-1)):
        raise NotFiniteError(f"no finite logit at step {start + step}")
    for step, word in np.argwhere(np.isnan(rows) | np.isposinf(rows)):
        raise NotFiniteError(f"logit {rows[step, word]} at step {start + step}")
    return scores


@quiet
def sample_word(logits: Array, rng: "np.random.Generator", temperature: float = 1.0) -> Array:
    """Draw a word from softmax(logits / temperature), with one random number per row.

    logits (..., N) -> (...) int64

    DataError for a row without a finite logit, or with NaN; UsageError unless the temperature is positive.

    >>> sample_word(np.array([[0.0, 9.0], [9.0, 0.0]]), np.random.default_rng(0))
    array([1, 0])
    """
    shares = probabilities(check_finite(logits), temperature)
    sums = np.cumsum(shares, axis=-1)
    draws = rng.random(logits.shape[:-1])[..., None]
    # the last sum is divided to exactly 1, which no draw reaches
    return np.asarray((sums / sums[..., -1:] <= draws).sum(axis=-1), dtype=np.int64)


def greedy(logits: Array) -> Array:
    """Word of the largest logit; ties by the lower index.

    logits (..., N) -> (...) int64

    DataError for a row without a finite logit, or with NaN.

    >>> greedy(np.array([[1.0, 3.0, 3.0]]))
    array([1])
    """
    scores = check_finite(logits)
    return np.asarray(np.argmax(scores, axis=-1) if scores.size else np.zeros(scores.shape[:-1]), dtype=np.int64)


@quiet
def candidates(probabilities: Array, top: int) -> tuple[Array, Array]:
    """Most probable words and their probabilities, best first.

    probabilities (..., N) -> ids (..., M) int64, probabilities (..., M), where M is the lesser of `top` and N

    Ties by the lower index, NaN last. UsageError for top < 1.

    >>> candidates(np.array([0.25, 0.5, 0.25]), 2)
    (array([1, 0]), array([0.5 , 0.25]))
    """
    if top < 1:
        raise UsageError(f"top {top} (expected 1 or more)")
    ids = largest(_rows(probabilities, working(probabilities)), top)
    return ids, np.take_along_axis(probabilities, ids, axis=-1)


def label_probabilities(logits: Array, function: str) -> Array:
    """Probabilities of labels by softmax, sigmoid, or "none": the logits themselves.

    logits (..., C) -> (..., C)

    >>> label_probabilities(np.array([0.0, 0.0]), "softmax"), label_probabilities(np.array([0.0, 0.0]), "sigmoid")
    (array([0.5, 0.5]), array([0.5, 0.5]))
    """
    if function == "none":
        return logits
    if function == "softmax":
        return probabilities(logits)
    return sigmoid(logits)


SYMBOLS = {"softmax": "softmax", "sigmoid": "σ"}  # of the functions from logits to probabilities, in formulas
SAMPLERS: dict[str, Callable[..., Array]] = {
    "temperature": apply_temperature,
    "top-k": top_k,
    "top-p": top_p,
    "min-p": min_p,
}
ORDERS = {
    "transformers": ("temperature", "top-k", "top-p", "min-p"),
    "vllm": ("temperature", "min-p", "top-k", "top-p"),
    "llama.cpp": ("top-k", "top-p", "min-p", "temperature"),
}
PENALIZED = {"llama.cpp": 64}  # the last tokens that the repetition penalty counts, if not all


def _apply_sampler(name: str, value: float, logits: Array) -> Array:
    return SAMPLERS[name](logits, value)


class Sampling(NamedTuple):
    """How a word is chosen among logits; None if an option is not set.

    sampling_order  one of ORDERS, or comma-separated SAMPLERS
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    sampling_order: str | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether words are drawn at random, not the most probable ones chosen."""
        return self._replace(sampling_order=None) != GREEDY

    @property
    def penalized(self) -> int | None:
        """The number of last tokens that the repetition penalty counts; None: all."""
        return PENALIZED.get(self.sampling_order or "")

    def samplers(self) -> list[tuple[str, float]]:
        """The samplers that are set with their values, in the order they apply.

        UsageError for an order that lacks one of them.

        >>> Sampling(0.5, top_k=3, sampling_order="llama.cpp").samplers()
        [('top-k', 3), ('temperature', 0.5)]
        """
        order = self.sampling_order or "transformers"
        names = ORDERS.get(order) or tuple(order.split(","))
        values = {name: getattr(self, name.replace("-", "_")) for name in SAMPLERS}
        values = {name: value for name, value in values.items() if value is not None}
        for name in values:
            if name not in names:
                raise UsageError(f"{order}: needs {name}, because --{name} is set", "--sampling-order")
        return [(name, values[name]) for name in names if name in values]

    @property
    def tau(self) -> float:
        """The temperature, 1 if it is not set."""
        return self.temperature or 1.0

    def filters(self) -> Iterator[tuple[str, Callable[[Array], Array]]]:
        """Yield the filters that are set, by name, in the order they apply.

        Each maps logits (..., N) -> (..., N). Errors are raised when they are applied.

        >>> [name for name, _ in Sampling(0.5, top_k=3).filters()]
        ['temperature', 'top-k']
        """
        for name, value in self.samplers():
            if (name, value) != ("temperature", 1):
                yield name, partial(_apply_sampler, name, value)

    def filter(self, logits: Array) -> Array:
        """Apply the samplers in their order: logits (..., V) -> (..., V)."""
        for _, apply in self.filters():
            logits = apply(logits)
        return logits

    def choose(self, filtered: Array) -> Array:
        """Choose one id at each position of filtered logits: (..., V) -> (...)."""
        if self.is_sampled:
            return sample_word(filtered, np.random.default_rng(self.seed or 0))
        return greedy(filtered)

    @property
    def limits(self) -> str:
        """The samplers that leave words out, as text, in their order; "" for none.

        >>> Sampling(2, top_k=2, min_p=0.1, sampling_order="top-k,temperature,min-p").limits
        'top-k 2 before the temperature, min-p 0.1'
        """
        limits = ""
        for at, (name, value) in enumerate(self.samplers()):
            if name != "temperature" and value:
                limits += f"{', ' * bool(limits)}{name} {value:g}"
            if name == "temperature" and at and self.tau != 1:
                limits += " before the temperature"
        return limits

    def formula(self, function: str = "softmax") -> str:
        """The formula of the probabilities.

        >>> Sampling(temperature=0.5, top_k=2, min_p=0.1).formula()
        'softmax(logits / 0.5) over the words of top-k 2, min-p 0.1'
        """
        probabilities = f"{SYMBOLS[function]}(logits" + (f" / {self.tau:g})" if self.tau != 1 else ")")
        return probabilities + (f" over the words of {self.limits}" if self.limits else "")

    def step_formulas(self, logits: str, function: str = "softmax") -> dict[str, str]:
        """Formulas of the steps from logits, computed as `logits`, to probabilities.

        >>> [*Sampling(temperature=2, top_k=1).step_formulas("x tableᵀ").items()][1:3]
        [('scaled', 'logits / 2'), ('filtered', 'scaled, −∞ but for the words of top-k 1')]
        """
        steps = {"logits": logits}
        if self.tau != 1:
            steps["scaled"] = f"logits / {self.tau:g}"
        if self.limits:
            steps["filtered"] = f"{[*steps][-1]}, −∞ but for the words of {self.limits}"
        return steps | {"probs": f"{SYMBOLS[function]}({[*steps][-1]})"}


GREEDY = Sampling()
