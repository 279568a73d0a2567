"""Formulas with leading axes: every row of a batch has the numbers, the shape and the dtype that it has alone."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest

from attnkit.model.formulas import experts, head_views, loss, norms, pooling, rotary, sampling, scores, softmax
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward
from attnkit.model.formulas.head_scores import roll_out
from attnkit.model.formulas.relative import RelativePositions, relative_scores, relative_scores_backward

LEAD = (2, 3)
REAL = np.array([[[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 0]], [[1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]]], bool)
PLACES = np.array([[1, 0, 3, 2], [2, 2, 1, 0]])
RNG = np.random.default_rng(7)
SQUARE, ROWS, WK, WQ, GAMMA, BETA = (
    RNG.normal(size=shape).astype(np.float32) for shape in ((3, 3), (4, 6), (6, 6), (6, 6), 3, 3)
)
RELATIVE = RelativePositions(PLACES, ROWS, wk=WK, wq=WQ)
ROUTER = experts.ExpertConfig(count=3, chosen=2, hidden=3)
EXPERTS = experts.Experts({"router": SQUARE}, lambda number: {"w1": SQUARE + number, "w2": SQUARE - number})
OPTIONS = loss.LossOptions(reduction="none", label_smoothing=0.25, weight=np.array([1.0, 2, 4, 8]))

# name -> function, and the shape of each argument without leading axes; "real" and "ids" are (4,) and ()
FORMULAS = {
    **{f"{name}_pool": (one.pool, (4, 3), "real") for name, one in pooling.POOLINGS.items()},
    **{f"{name}_pool_backward": (one.backward, (3,), (4, 3), "real") for name, one in pooling.POOLINGS.items()},
    "head_first": (lambda x, real: pooling.HEAD_POOLINGS["first"].pool(x, real, 1), (4, 3), "real"),
    "head_patches": (lambda x, real: pooling.HEAD_POOLINGS["patches"].pool(x, real, 2), (4, 3), "real"),
    "head_concat": (lambda x, real: pooling.HEAD_POOLINGS["concat"].pool(x, real, 1), (4, 3), "real"),
    "first_backward": (lambda dy: pooling.first_token_backward(dy, (*dy.shape[:-1], 4, 3)), (3,)),
    "patches_backward": (lambda dy: pooling.patch_pool_backward(dy, (*dy.shape[:-1], 4, 3), 2), (6,)),
    "concat_backward": (pooling.concat_pool_backward, (9,), (4, 3), "real"),
    "last_tokens": (pooling.last_tokens, "real"),
    "l2_normalize": (pooling.l2_normalize, (3,)),
    "l2_normalize_backward": (pooling.l2_normalize_backward, (3,), (3,)),
    "dense": (lambda x: pooling.dense(x, SQUARE, BETA, "tanh"), (3,)),
    "dense_backward": (lambda dy, x: pooling.dense_backward(dy, x, SQUARE, BETA, "tanh").x, (3,), (3,)),
    "temperature": (lambda x: sampling.apply_temperature(x, 0.5), (4,)),
    "probabilities": (lambda x: sampling.probabilities(x, 2.0), (4,)),
    "log_probabilities": (sampling.log_probabilities, (4,)),
    "repetition_penalty": (lambda x, ids: sampling.repetition_penalty(x, ids[..., None], 3.0), (4,), "ids"),
    "top_k": (lambda x: sampling.top_k(x, 2), (4,)),
    "top_p": (lambda x: sampling.top_p(x, 0.6), (4,)),
    "min_p": (lambda x: sampling.min_p(x, 0.3), (4,)),
    "largest": (lambda x: sampling.largest(x, 2), (4,)),
    "greedy": (sampling.greedy, (4,)),
    "sample_word": (lambda x: sampling.sample_word(1e4 * x, np.random.default_rng(0)), (4,)),
    "candidates": (lambda x: sampling.candidates(x, 3)[1], (4,)),
    "cross_entropy": (lambda x, ids: loss.cross_entropy(x, ids, OPTIONS), (4,), "ids"),
    "cross_entropy_backward": (lambda x, ids: loss.cross_entropy_backward(x, ids, OPTIONS), (4,), "ids"),
    "negative_log_likelihood": (
        lambda x, ids: loss.negative_log_likelihood(x, ids, loss.LossOptions(reduction="none")), (4,), "ids",
    ),
    "target_probabilities": (loss.target_probabilities, (4,), "ids"),
    "layer_norm": (lambda x: norms.layer_norm(x, GAMMA, BETA).y, (3,)),
    "layer_norm_backward": (lambda dy, x: norms.layer_norm_vjp(x, GAMMA, BETA)[1](dy).x, (3,), (3,)),
    "rms_norm": (lambda x: norms.rms_norm(x, GAMMA).y, (3,)),
    "rms_norm_backward": (lambda dy, x: norms.rms_norm_vjp(x, GAMMA)[1](dy).x, (3,), (3,)),
    "channel_norm": (lambda x: norms.channel_norm(x, GAMMA, BETA), (4, 3)),
    "channel_norm_backward": (lambda dy, x: norms.channel_norm_vjp(x, GAMMA, BETA)[1](dy).x, (4, 3), (4, 3)),
    "square_mean": (norms.square_mean, (3,)),
    "softmax": (softmax.softmax, (4,)),
    "softmax_backward": (lambda dy, x: softmax.softmax_backward(dy, softmax.softmax(x)), (4,), (4,)),
    "log_sum_exp": (lambda x: softmax.log_sum_exp(x).astype(x.dtype), (4,)),
    "rotate": (lambda x, angles: rotary.rotate(x, np.cos(angles), np.sin(angles)), (4, 5), (4, 2)),
    "rotate_interleaved": (
        lambda x, angles: rotary.rotate(x, np.cos(angles), np.sin(angles), interleaved=True), (4, 5), (4, 2),
    ),
    "split_heads": (lambda x: head_views.split_heads(x, 2), (4, 6)),
    "merge_heads": (head_views.merge_heads, (2, 4, 3)),
    "dot": (scores.dot, (4, 2, 3), (2, 4, 3)),
    "dot_backward": (lambda ds, q, k: scores.dot_backward(ds, q, k, {})[1], (4, 2, 4), (4, 2, 3), (2, 4, 3)),
    "additive": (lambda q, k: scores.additive_scores(q, k, {"va": BETA}), (4, 2, 3), (2, 4, 3)),
    "additive_backward": (
        lambda ds, q, k: scores.additive_scores_backward(ds, q, k, {"va": BETA})[1],
        (4, 2, 4), (4, 2, 3), (2, 4, 3),
    ),
    "relative": (lambda q, k: relative_scores(q, k, RELATIVE), (2, 2, 3), (2, 4, 3)),
    "relative_backward": (
        lambda ds, q, k: relative_scores_backward(ds, q, k, RELATIVE)["k"], (2, 2, 4), (2, 2, 3), (2, 4, 3),
    ),
    "mix_experts": (lambda x: experts.mix_experts(x, EXPERTS, ROUTER)["output"], (3,)),
    "mix_experts_gates": (lambda x: experts.mix_experts(x, EXPERTS, ROUTER)["gates"], (3,)),
    "mix_experts_backward": (lambda dy, x: experts.mix_experts_vjp(x, EXPERTS, ROUTER)[1](dy).x, (3,), (3,)),
    "roll_out": (lambda x: roll_out([softmax.softmax(x), softmax.softmax(2 * x)]), (2, 4, 4)),
    **{f"{name}_activation": (one, (4,)) for name, one in ACTIVATIONS.items()},
    **{f"{name}_slope": (partial(activation_backward, name), (4,), (4,)) for name in ACTIVATIONS},
}  # fmt: skip


def draw(shape):
    """Numbers of a shape after the leading axes, which tokens are real, or the ids of a token each."""
    if shape == "real":
        return REAL
    return np.arange(math.prod(LEAD)).reshape(LEAD) % 4 if shape == "ids" else RNG.normal(size=LEAD + shape)


def narrow(array):
    return array.astype(np.float32) if array.dtype == float else array


@pytest.mark.parametrize("name", FORMULAS)
def test_a_row_of_a_batch_is_computed_as_it_is_alone(name):
    function, *shapes = FORMULAS[name]
    arrays = [draw(shape) for shape in shapes]
    batch = np.asarray(function(*arrays))
    for at in product(*map(range, LEAD)):
        alone = function(*(array[at] for array in arrays))
        np.testing.assert_allclose(batch[at], alone, rtol=1e-12, atol=1e-12)
        assert batch[at].shape == np.shape(alone)
    single = np.asarray(function(*map(narrow, arrays)))
    assert single.dtype == narrow(batch).dtype
    np.testing.assert_allclose(single, batch, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_vector_of_zeros_is_unchanged():
    """Beside a vector of length 1 and one of length 5: dx = (dy - y (y · dy)) / |x|."""
    x, dy = np.array([[0.0, 0], [0, 1], [3, 4]]), np.array([[2.0, 3], [2, 3], [1, 0]])
    gradient = pooling.l2_normalize_backward(dy, x)
    np.testing.assert_allclose(gradient, [[2, 3], [2, 0], [0.128, -0.096]], rtol=1e-12)
    np.testing.assert_allclose(pooling.l2_normalize(x), [[0, 0], [0, 1], [0.6, 0.8]], rtol=1e-12)
