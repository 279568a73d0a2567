"""Softmax and log-sum-exp of dense scores.

kernels/tiled_attention.py has the online softmax, tile by tile.
"""

import numpy as np

from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working


def shifted(scores: Array, axis: int = -1) -> Array:
    """Subtract the largest score of each row; a row of -inf is unchanged.

    scores (..., S) -> (..., S)

    >>> shifted(np.array([1.0, 3.0]))
    array([-2.,  0.])
    """
    top = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    top[top == -np.inf] = 0
    less: Array = scores - top
    return less


@quiet
def softmax(scores: Array, axis: int = -1) -> Array:
    """Softmax of each row; a row of only -inf has weights of zero.

    scores (..., S) -> (..., S)

    A row with NaN or +inf is NaN; other rows are not affected.

    >>> softmax(np.array([[0.0, 1.0, 1.0], [-np.inf, -np.inf, -np.inf]])).round(4)
    array([[0.1554, 0.4223, 0.4223],
           [0.    , 0.    , 0.    ]])
    """
    exponentials = shifted(cast(scores, working(scores)), axis)
    np.exp(exponentials, out=exponentials)
    total = exponentials.sum(axis=axis, keepdims=True)
    total[total == 0] = 1
    exponentials /= total
    return exponentials.astype(output_dtype(scores), copy=False)


@quiet
def log_softmax(scores: Array, axis: int = -1) -> Array:
    """Logarithm of the softmax of each row, finite even if a weight underflows.

    scores (..., S) -> (..., S)

    >>> log_softmax(np.array([[0.0, 2000.0], [-np.inf, -np.inf]]))
    array([[-2000.,     0.],
           [  -inf,   -inf]])
    """
    less = shifted(cast(scores, working(scores)), axis)
    total = np.exp(less).sum(axis=axis, keepdims=True)
    total[total == 0] = 1
    logs: Array = less - np.log(total)
    return logs.astype(output_dtype(scores), copy=False)


def log_softmax_backward(grad_output: Array, logs: Array, axis: int = -1) -> Array:
    """Gradient of the scores of a log-softmax: dS = dy - P times the sum of dy.

    grad_output (..., S), logs (..., S), the result of the log-softmax -> (..., S)

    The gradient is 0 for a weight of zero, as of a masked score.

    >>> log_softmax_backward(np.array([1.0, 0.0, 5.0]), np.array([-0.6931, -0.6931, -np.inf])).round(2)
    array([ 0.5, -0.5,  0. ])
    """
    weights = np.exp(logs)
    grad_output = np.where(weights == 0, 0, grad_output)
    scores: Array = grad_output - weights * grad_output.sum(axis=axis, keepdims=True)
    return scores


def softmax_backward(grad_output: Array, weights: Array) -> Array:
    """Gradient of the scores of a softmax: dS = P (dP - sum of P dP over the row).

    grad_output (..., S), weights (..., S), the result of the softmax -> (..., S)

    The Jacobian of a row is diag(P) - P Pᵀ. The gradient is 0 for a row of zero weights, and for a weight of zero
    even if its own gradient is not finite.

    >>> softmax_backward(np.array([1.0, 0.0, np.inf]), np.array([0.5, 0.5, 0.0])).round(2) + 0.0
    array([ 0.25, -0.25,  0.  ])
    """
    if not np.isfinite(grad_output.sum()):
        grad_output = np.where(weights == 0, 0, grad_output)
    scores: Array = weights * (grad_output - (weights * grad_output).sum(axis=-1, keepdims=True))
    return scores


@quiet
def log_sum_exp(scores: Array) -> Array:
    """Log-sum-exp of each row in float64; -inf for a row of only -inf.

    scores (..., S) -> (...)

    >>> log_sum_exp(np.log([[1.0, 3.0], [1.0, 1.0]])).round(4)
    array([1.3863, 0.6931])
    >>> log_sum_exp(np.array([[-np.inf, -np.inf]])).tolist()
    [-inf]
    """
    scores = cast(scores, working(scores))
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    top[top == -np.inf] = 0
    logs: Array = top[..., 0] + np.log(np.exp(scores - top).sum(axis=-1, dtype=np.float64))
    return logs
