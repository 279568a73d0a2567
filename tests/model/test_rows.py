"""Formulas with leading axes: every row of a batch has the numbers, the shape and the dtype that it has alone."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest

from attnkit.model.attention import normalize_heads
from attnkit.model.backward.attention_backward import (
    merge_partial_attention_backward,
    normalize_heads_vjp,
)
from attnkit.model.formulas import experts, head_views, loss, norms, pooling, rotary, sampling, scores, softmax
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward
from attnkit.model.formulas.convolution import Convolution, convolve, convolve_backward
from attnkit.model.formulas.feedforward import feed_forward, feed_forward_vjp
from attnkit.model.formulas.head_scores import roll_out
from attnkit.model.formulas.linear import linear_backward
from attnkit.model.formulas.patch_embedding import extract_patches
from attnkit.model.formulas.recurrent_cells import CELLS, State
from attnkit.model.formulas.relative import RelativePositions, relative_scores, relative_scores_backward
from attnkit.model.kernels.tiled_attention import merge_partial_attention

LEAD = (2, 3)
CONVOLUTION = Convolution((2,), (1,))
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

MERGED = ((2, 4, 3), (2, 4, 3), (2, 4), (2, 4))  # outputs and log-sum-exps of two parts
NORM = norms.QueryKeyNorm("layer", 1e-5, "head")
NETWORK = {"w1": SQUARE, "b1": BETA, "w2": SQUARE.T, "b2": GAMMA, "w3": SQUARE + 1}
KERNEL = np.stack([SQUARE, SQUARE.T, SQUARE + 1])
HIDDEN = {name: RNG.normal(size=(cell.blocks * 2, 2)).astype(np.float32) for name, cell in CELLS.items()}


def state_of(name, *parts):
    return State(*(parts if CELLS[name].has_cell_state else parts[:1]))


def advance(name, inputs, hidden, cell):
    """The next state of a cell, with all its gates."""
    state, gates = CELLS[name].advance(inputs, state_of(name, hidden, cell), {"hidden": HIDDEN[name]})
    return np.concatenate([state.hidden, *(state[1:] if state.cell is not None else ()), *gates.values()], axis=-1)


def undo(name, inputs, hidden, cell, grad, grad_cell):
    """The gradients of the sums of a cell, and of its state."""
    before, parameters = state_of(name, hidden, cell), {"hidden": HIDDEN[name]}
    after, gates = CELLS[name].advance(inputs, before, parameters)
    sums = CELLS[name].undo(state_of(name, grad, grad_cell), gates, before, after, parameters)
    return np.concatenate([sums.inputs, sums.products, sums.state.hidden], axis=-1)


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
    "norm_steps_backward": (lambda dy, x: norms.norm_steps_backward(dy, x, (GAMMA, BETA)).x, (3,), (3,)),
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
    **{f"{name}_cell": (partial(advance, name), (cell.blocks * 2,), (2,), (2,)) for name, cell in CELLS.items()},
    **{f"{name}_undo": (partial(undo, name), (one.blocks * 2,), *[(2,)] * 4) for name, one in CELLS.items()},
    "merge": (lambda a, b, la, lb: merge_partial_attention([a, b], [la, lb])[0].astype(a.dtype), *MERGED),
    "merge_backward": (
        lambda dy, dl, a, b, la, lb: merge_partial_attention_backward(dy, dl, [a, b], [la, lb])[0][0],
        *MERGED[1:3], *MERGED,
    ),
    "merge_sums_backward": (
        lambda dy, dl, a, b, la, lb: merge_partial_attention_backward(dy, dl, [a, b], [la, lb])[1][1].astype(a.dtype),
        *MERGED[1:3], *MERGED,
    ),
    "norm_of_heads": (lambda x: normalize_heads(x, GAMMA, BETA, 2, NORM), (4, 6)),
    "norm_of_heads_backward": (
        lambda dy, x: normalize_heads_vjp(x, GAMMA, BETA, 2, NORM)[1](dy)[0], (2, 4, 3), (4, 6),
    ),
    "general": (lambda q, k: scores.project_general(q, k, {"w": SQUARE})[0], (2, 4, 3), (2, 4, 3)),
    "general_backward": (
        lambda dq, dk, q, k: scores.project_general_backward(dq, dk, q, k, {"w": SQUARE})[0],
        (2, 4, 3), (2, 4, 3), (2, 4, 3), (2, 4, 3),
    ),
    "feed_forward": (lambda x: feed_forward(x, NETWORK, activation="silu")["output"], (4, 3)),
    "feed_forward_backward": (lambda dy, x: feed_forward_vjp(x, NETWORK, activation="silu")[1](dy)[0], (4, 3), (4, 3)),
    "linear_backward": (lambda dy, x: linear_backward(dy, x, SQUARE, BETA).x, (3,), (3,)),
    "convolve": (lambda x: convolve(x, KERNEL, BETA, CONVOLUTION)["output"], (5, 3)),
    "convolve_windows": (lambda x: convolve(x, KERNEL, BETA, CONVOLUTION, keep=("windows",))["windows"], (5, 3)),
    "convolve_backward": (lambda dy, x: convolve_backward(dy, x, KERNEL, CONVOLUTION)[0], (3, 3), (5, 3)),
    "patches": (lambda x: extract_patches(x, 2, 1), (3, 4, 2)),
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
