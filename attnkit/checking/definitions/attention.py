"""Softmax and scaled dot-product attention."""

import math
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.model.exercises.worked_steps import Formula, Steps, softmax_of, transposed
from attnkit.model.slips import (
    BLOCKED_ZERO,
    MULTIPLIED_SCALE,
    NO_SCALE,
    OVER_QUERIES,
    SCALED_TWICE,
    Slip,
)

LARGE, OFFSET = 100.0, 1e4
FINITE = -1e30  # of code that has no −∞


def stable_softmax(scores: Any, axis: int = -1) -> Any:
    """Softmax with the largest score subtracted; zeros where all scores are −∞."""
    return softmax_of(subtract_largest(scores, axis), axis)


def subtract_largest(scores: Any, axis: int = -1) -> Any:
    """Scores less the largest along an axis; −∞ where all are −∞."""
    largest = scores.max(axis=axis, keepdims=True)
    return scores - np.where(np.isfinite(largest), largest, 0)


def divide_by_sum(exponentials: Any, axis: int = -1) -> Any:
    """Exponentials divided by their sum; zeros where it is 0."""
    sums = exponentials.sum(axis=axis, keepdims=True)
    return np.where(sums == 0, 0, exponentials / sums)


# softmax over the keys, from the step "masked"
WEIGHTS: Steps = {
    "shifted": lambda masked: subtract_largest(masked),
    "exponentials": lambda shifted: np.exp(shifted),
    "weights": lambda exponentials: divide_by_sum(exponentials),
}


def softmax_as_written(scores: Any, axis: int = -1, fill: float = -np.inf) -> Any:
    """Softmax as code has it: without an allowed score NaN, or equal weights.

    fill  what stands for −∞ in the code
    """
    scores = np.where(np.isneginf(scores), fill, scores)
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def written_softmax(fill: float, axis: int = -1) -> Formula:
    """The formula of `softmax_as_written`."""
    return lambda masked: softmax_as_written(masked, axis, fill)


def with_number(fill: float) -> Formula:
    """The formula of masked scores with another number for −∞."""
    return lambda masked: np.where(np.isneginf(masked), fill, masked)


def over_axis(name: str, axis: int, hint: str = "") -> list[Slip[Any]]:
    """The slips of a softmax along another axis, by what blocks a key."""
    return [Slip(name, {"weights": written_softmax(fill, axis)}, hint) for fill in (-np.inf, FINITE)]


def draw_causal(given: Any, generator: Any) -> Any:
    """(..., T, S): a query may attend to the keys up to its own place."""
    lead, (t, s) = given["q"].shape[:-2], (given["q"].shape[-2], given["k"].shape[-2])
    return np.broadcast_to(np.tri(t, s, dtype=bool), (*lead, t, s)).copy()


def draw_padding(given: Any, generator: Any) -> Any:
    """(..., T, S): every text has padding of another length, at its end."""
    lead, (t, s) = given["q"].shape[:-2], (given["q"].shape[-2], given["k"].shape[-2])
    lengths = s - 1 - np.arange(math.prod(lead)).reshape(*lead, 1, 1) % max(s - 1, 1)
    return np.broadcast_to(np.arange(s) < lengths, (*lead, t, s)).copy()


def draw_dead_row(given: Any, generator: Any) -> Any:
    """(..., T, S): the first query has no allowed key."""
    mask = draw_causal(given, generator)
    mask[..., 0, :] = False
    return mask


def with_mask(scores: Any, mask: Any) -> Any:
    return scores if mask is None else np.where(mask, scores, -np.inf)


def mask_causally(scores: Any) -> Any:
    """Scores with a causal mask of their last two axes."""
    return np.where(np.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, -np.inf)


# how a mask is handed over; True means "may attend" in a case
POLARITIES = {
    "keep": Way(),
    "block": Way("mask: True = blocked", {"mask": lambda mask: ~mask}),
    "add": Way("mask: added to the scores, −∞ where blocked", {"mask": lambda mask: np.where(mask, 0.0, -np.inf)}),
    "keep-number": Way("mask: the number 1 = may attend", {"mask": lambda mask: mask.astype(float)}),
    "block-number": Way("mask: the number 1 = blocked", {"mask": lambda mask: 1.0 - mask}),
}

SOFTMAX = Definition(
    "scores to weights that add up to 1 along an axis",
    {
        "x": Argument("... N", "x scores logits in_features input inputs z values"),
        "dim": Argument("", "dim axis", role="number"),
    },
    {
        "x0": lambda x: x,
        "shifted": lambda x0, dim: subtract_largest(x0, dim),
        "exponentials": lambda shifted: np.exp(shifted),
        "weights": lambda exponentials, dim: divide_by_sum(exponentials, dim),
        "answer": lambda weights: weights,
    },
    {"N": 7},
    (
        Case("plain", lead=(2, 5), given={"dim": -1}),
        Case("another axis", lead=(2, 5), given={"dim": 1}, needs=("dim",)),
        Case("the first axis", lead=(3, 5), given={"dim": 0}, needs=("dim",)),
        Case("one axis", lead=(), given={"dim": -1}),
        Case("large", lead=(2, 5), given={"dim": -1, "x": lambda g, r: LARGE * r.standard_normal((2, 5, 7)) + OFFSET}),
        Case("−∞", lead=(2, 5), given={"dim": -1, "x": lambda g, r: block_first(r.standard_normal((2, 5, 7)))}),
    ),
    "... N",
    (
        Slip("softmax is over the last axis, whatever the axis asked for", {"weights": lambda x0: stable_softmax(x0)}),
        Slip("softmax is over the first axis", {"weights": lambda x0: softmax_as_written(x0, 0)}),
        Slip("softmax is over the axis before the last", {"weights": lambda x0: softmax_as_written(x0, -2)}),
        Slip(
            "softmax is over all numbers", {"weights": lambda x0: np.exp(x0 - x0.max()) / np.exp(x0 - x0.max()).sum()}
        ),
        Slip(
            "the largest score is not subtracted, so that e^score overflows",
            {"shifted": lambda x0: x0},
        ),
        Slip("it is the logarithm of softmax", {"answer": lambda weights: np.log(weights)}),
        Slip("it is the logarithm of softmax", {"answer": lambda shifted, dim: shifted - log_sum(shifted, dim)}),
        Slip(
            "the exponents have the wrong sign",
            {"weights": lambda x0, dim: softmax_of(-x0 - (-x0).max(dim, keepdims=True), dim)},
        ),
        Slip("the exponents have the wrong sign", {"weights": lambda x0, dim: softmax_as_written(-x0, dim)}),
        Slip("the exponentials are not divided by their sum", {"weights": lambda exponentials: exponentials}),
        Slip("the base is 2 instead of e", {"weights": lambda x0, dim: stable_softmax(x0 * math.log(2), dim)}),
        Slip("softmax is applied twice", {"weights": lambda x0, dim: stable_softmax(stable_softmax(x0, dim), dim)}),
    ),
    functions="softmax stable_softmax run_softmax",
)


def log_sum(shifted: Any, axis: int) -> Any:
    return np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def block_first(x: Any) -> Any:
    x[..., 0] = -np.inf
    return x


ATTEND = Definition(
    "scaled dot-product attention: softmax(Q Kᵀ / √K) V",
    {
        "q": Argument("... T K", "q query queries Q xq"),
        "k": Argument("... S K", "k key keys"),
        "v": Argument("... S V", "v value values"),
        "mask": Argument("... T S", "mask attn_mask attention_mask m padding_mask src_mask", draw="mask"),
    },
    {
        "scores": lambda q, k: q @ transposed(k),
        "scaled": lambda scores, q: scores / math.sqrt(q.shape[-1]),
        "masked": lambda scaled, mask: with_mask(scaled, mask),
        **WEIGHTS,
        "output": lambda weights, v: weights @ v,
    },
    {"T": 5, "S": 7, "K": 3, "V": 6},
    (
        Case("plain"),
        Case("causal", needs=("mask",), given={"mask": draw_causal}),
        Case("padding", lead=(2, 4), needs=("mask",), given={"mask": draw_padding}),
        Case("any mask", needs=("mask",)),
        Case("leading axes", lead=(2, 4)),
        Case("no leading axis", lead=()),
        Case("large scores", given={"q": lambda g, r: 10 * LARGE * r.standard_normal((2, 5, 3))}),
        Case("no allowed key", needs=("mask",), given={"mask": draw_dead_row}, note="attnkit: zeros; PyTorch: NaN"),
    ),
    "... T V",
    (
        Slip(NO_SCALE, {"scaled": lambda scores: scores}, "divide them by √K"),
        Slip(SCALED_TWICE, {"scaled": lambda scores, q: scores / q.shape[-1]}, "divide by √K, not by K"),
        Slip(MULTIPLIED_SCALE, {"scaled": lambda scores, q: scores * math.sqrt(q.shape[-1])}, "divide them by √K"),
        Slip(
            "the scores are divided by the root of the number of keys",
            {"scaled": lambda scores, k: scores / math.sqrt(k.shape[-2])},
            "K is the width of a key",
        ),
        Slip(
            "the scores are divided by the root of the width of the values",
            {"scaled": lambda scores, v: scores / math.sqrt(v.shape[-1])},
            "K is the width of a key",
        ),
        Slip(
            "the scores are divided by √(H·K), the whole width",
            {"scaled": lambda scores, q: scores / math.sqrt(q.shape[-1] * (q.shape[-3] if q.ndim > 3 else 1))},
            "K is the width of one head",
        ),
        *over_axis(OVER_QUERIES, -2, "each row of weights adds up to 1"),
        *over_axis("softmax is over the batch, not the keys", 0),
        Slip(
            "the largest score is not subtracted, so that e^score overflows",
            {"shifted": lambda masked: masked},
        ),
        *(Slip("softmax is missing", {"weights": with_number(fill)}) for fill in (-np.inf, -1e9)),
        Slip("the mask is ignored", {"masked": lambda scaled: scaled}),
        Slip(
            BLOCKED_ZERO,
            {"masked": lambda scaled, mask: scaled if mask is None else np.where(mask, scaled, 0)},
            "e⁰ is 1, and takes a share",
        ),
        Slip(
            "the mask is added as 1 and 0",
            {"masked": lambda scaled, mask: scaled if mask is None else scaled + mask},
            "add 0 where a query may attend, and −∞ where it may not",
        ),
        Slip(
            "1 is added to the scores of blocked keys",
            {"masked": lambda scaled, mask: scaled if mask is None else scaled + 1 - mask},
            "add −∞",
        ),
        Slip(
            "the scores are multiplied by the mask",
            {"masked": lambda scaled, mask: scaled if mask is None else scaled * mask},
            "e⁰ is 1, and takes a share",
        ),
        Slip(
            "the mask is applied after the softmax",
            {
                "masked": lambda scaled: scaled,
                "weights": lambda scaled, mask: stable_softmax(scaled) * (1 if mask is None else mask),
            },
            "mask first, so that each row still adds up to 1",
        ),
        Slip(
            "the mask is applied before the scale, with a finite number",
            {
                "masked": lambda scores, q, mask: (
                    (scores if mask is None else np.where(mask, scores, -10)) / math.sqrt(q.shape[-1])
                )
            },
        ),
        Slip(
            "the keys are reshaped, not transposed",
            {"scores": lambda q, k: q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])},
        ),
        Slip(
            "the weights are scaled, not the scores",
            {
                "scaled": lambda scores: scores,
                "weights": lambda masked, q: stable_softmax(masked) / math.sqrt(q.shape[-1]),
            },
        ),
        Slip(
            "softmax is over the first axis, or over the heads",
            {"weights": lambda masked: stable_softmax(masked, 0 if masked.ndim == 3 else 1)},
        ),
        Slip("the values are those of the keys", {"output": lambda weights, k: weights @ k}),
    ),
    {
        "mask": POLARITIES,
        "causal": {
            "none": Way(),
            "causal": Way(
                "it is causal by itself",
                steps={"masked": lambda scaled, mask: with_mask(mask_causally(scaled), mask)},
            ),
        },
    },
    "scaled_dot_product_attention attention attend sdpa dot_product_attention self_attention "
    "run_scaled_dot_product_attention ScaledDotProductAttention Attention",
    construct={"K": "d_k dim_k head_dim head_size dk d_head", "V": "d_v dim_v", "T": "seq_len"},
)

DEFINITIONS = {"softmax": SOFTMAX, "attend": ATTEND}
