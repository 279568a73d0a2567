"""The adjoint of attention on a dense score matrix: of weighted sum, softmax, mask, cap and scale, in this order."""

import numpy as np

from attnkit.model import dense_attention
from attnkit.model.backward.linear import sum_to_shape
from attnkit.model.backward.scores import SCORE_ADJOINTS, Gradients, product_backward, softmax_backward
from attnkit.model.dtypes import Array, is_float
from attnkit.model.hooks import Hook, Requested, apply_hook, no_hook
from attnkit.model.options import AttentionOptions
from attnkit.model.scores import SCORES


def dense_attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    options: AttentionOptions,
    offset: int | Array,
    hook: Hook = no_hook,
) -> Gradients:
    """Return the gradients of projected queries and keys, of values, and of what is added to or scales the scores.

    grad_output (..., H, T, V), q (..., H, T, K), k (..., G, S, K), v (..., G, S, V), offset () or (B,)
    -> {"q": (..., H, T, K), "k": (..., G, S, K), "v": (..., G, S, V), "bias", "mask" if it is a float, "va"}

    With O = P V, P = softmax(M), M = cap(scale S) + bias + mask and S = scores(q, k):

        dV = P^T dO    dP = dO V^T    dM = P (dP - rowsum(P dP))    dS = scale (1 - tanh^2) dM

    The scores are computed again. `offset` is the position of the first query among the keys; `hook` receives the
    gradients of weights, masked, capped, scaled and scores, and may replace them.
    Source: Dao et al. 2022, appendix B.2.

    >>> x = np.array([[[1.0], [0.0]]])  # one query sees both keys, with weights of 1/2
    >>> options = AttentionOptions(scale=1.0)
    >>> grads = dense_attention_backward(np.array([[[4.0]]]), np.array([[[0.0]]]), x, x, options, 0)
    >>> {name: grad.ravel().tolist() for name, grad in grads.items()}
    {'q': [1.0], 'k': [0.0, 0.0], 'v': [2.0, 2.0]}
    """
    capped, weights = _recompute(q, k, v, options, offset)
    dweights, dv = product_backward(grad_output, weights, v)
    dmasked = apply_hook(hook, "masked", softmax_backward(apply_hook(hook, "weights", dweights), weights))
    gradients = added_backward(dmasked, options)
    dcapped = apply_hook(hook, "capped", dmasked)
    slope = 1 - np.square(capped / options.softcap) if options.softcap else 1
    dscaled = np.where(dcapped == 0, 0, dcapped * slope)  # zero where the score is blocked, even if it is NaN
    dscores = apply_hook(hook, "scores", options.scale_for(1) * apply_hook(hook, "scaled", dscaled))
    score = SCORE_ADJOINTS[options.score].score
    dq, dk, params = score(dscores, finite(q), finite(k), options.score_params or {})
    return {"q": dq, "k": dk, "v": dv} | gradients | params


def _recompute(q: Array, k: Array, v: Array, options: AttentionOptions, offset: int | Array) -> tuple[Array, Array]:
    """Return the capped scores and the weights of the forward pass, (..., H, T, S), not rounded to softmax_dtype."""
    scores = SCORES[options.score].score(q, k, options.score_params or {})
    allowed = dense_attention.allowed_cells(q.shape[-2], k.shape[-2], offset, options)
    requested, plain = Requested(keep=("capped", "weights")), options.replace(softmax_dtype=None)
    steps = dense_attention.dense_attention(scores, v[..., :0], allowed, plain, requested)
    return steps["capped"], steps["weights"]


def added_backward(dmasked: Array, options: AttentionOptions) -> Gradients:
    """Return the gradients of bias and float mask, which are added to the scores: summed over broadcast axes.

    dmasked (..., H, T, S) -> {"bias": like the bias, "mask": like a float mask}

    >>> added_backward(np.array([[[1.0, 2.0, 3.0]]]), AttentionOptions(bias=np.zeros(1), mask=np.zeros(2)))
    {'bias': array([6.]), 'mask': array([1., 2.])}
    """
    gradients = {}
    if options.bias is not None:
        gradients["bias"] = sum_to_shape(dmasked, options.bias.shape)
    mask = options.mask
    if mask is not None and is_float(mask.dtype):
        keys = dmasked.shape[-1] if mask.ndim == 0 or mask.shape[-1] == 1 else mask.shape[-1]
        gradients["mask"] = sum_to_shape(dmasked[..., :keys], mask.shape)
    return gradients


def finite(x: Array) -> Array:
    """Return x with zeros for NaN and infinity: a row of scores that depends on them has weights that are all NaN.

    >>> finite(np.array([1.0, np.inf])).tolist()
    [1.0, 0.0]
    """
    return x if np.isfinite(x).all() else np.where(np.isfinite(x), x, 0)
