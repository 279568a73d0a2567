"""Cross-entropy of logits and target ids, its gradient, or both in one pass."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, DType, cast, output_dtype, quiet, working
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.softmax import shifted

BLOCK = 1 << 17  # elements of the logits that are worked on at a time, which stay in a core's cache
IGNORE_INDEX = -100  # the target of a token that does not count, as in PyTorch
REDUCTIONS = ("none", "sum", "mean")


class LossOptions(NamedTuple):
    """The options of a cross-entropy, with the names of torch.nn.CrossEntropyLoss.

    weight           (N,) factor on the loss of each target [1]
    ignore_index     targets of this id have loss 0 and do not count in the mean
    label_smoothing  e: the target distribution is (1 - e) one-hot + e/N (Attention Is All You Need, section 5.4)
    reduction        none, sum, or mean: the sum over the sum of the weights of the targets
    """

    weight: Array | None = None
    ignore_index: int = IGNORE_INDEX
    label_smoothing: float = 0.0
    reduction: str = "mean"


DEFAULTS = LossOptions()


class _Terms(NamedTuple):
    """Terms of a token's loss: hard (-log p of its target) + soft sum(w (-log p)).

    The loss is 0 for a token that does not count.
    """

    ids: Array  # (T,) 0 if the token does not count
    counts: Array  # (T,) boolean
    hard: Array  # (T,) (1 - e) times the weight of the target
    soft: Any  # e / N
    weight: Array | None  # (N,)
    total_weight: Any  # sum of the weights of all classes
    scale: np.float64  # factor on the sum of the losses


@quiet
def cross_entropy(logits: Array, targets: ArrayLike, options: LossOptions = DEFAULTS) -> Array:
    """Cross-entropy of logits and target ids, per token or reduced.

    logits (..., N), targets (...) -> (...) or ()

    float16 and bfloat16 are computed, and returned, in float32. The mean of no tokens is NaN, as in PyTorch.
    DataError for a target outside 0..N-1, or for shapes that do not match; UsageError for options out of range.

    >>> logits = np.log([[0.25, 0.75], [0.5, 0.5]])
    >>> cross_entropy(logits, [1, 0], LossOptions(reduction="none")).round(4).tolist() == [0.2877, 0.6931]
    True
    >>> float(cross_entropy(logits, [1, -100]).round(4))
    0.2877
    """
    rows, terms = _prepare(logits, targets, options)
    losses = np.empty(len(rows), rows.dtype)

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            shift = shifted(rows[part])
            linear_terms = _linear_terms(shift, terms, part)
            log_sum = np.log(np.exp(shift, out=shift).sum(-1))
            losses[part] = _losses(log_sum, *linear_terms, terms, part)

    _run_blocks(work, rows)
    return _reduce(losses, np.shape(targets), terms, options)


def cross_entropy_backward(
    logits: Array, targets: ArrayLike, options: LossOptions = DEFAULTS, gradient: ArrayLike = 1.0
) -> Array:
    """Gradient of the cross-entropy with respect to the logits, in their dtype.

    logits (..., N), targets (...), gradient (...) or () of the loss -> (..., N)

    With probabilities p and targets y it is p - one_hot(y) for each token, times the gradient; the mean divides it
    by the sum of the weights.

    >>> logits = np.log([[0.25, 0.75]])
    >>> cross_entropy_backward(logits, [1]).round(4).tolist()
    [[0.25, -0.25]]
    >>> cross_entropy_backward(logits, [1], LossOptions(label_smoothing=0.25)).round(4).tolist()
    [[0.125, -0.125]]
    """
    return loss_and_gradient(logits, targets, options, gradient)[1]


@quiet
def loss_and_gradient(
    logits: Array,
    targets: ArrayLike,
    options: LossOptions = DEFAULTS,
    gradient: ArrayLike = 1.0,
    *,
    in_place: bool = False,
) -> tuple[Array, Array]:
    """Cross-entropy and its gradient, from one pass over the logits.

    logits (..., N), targets (...), gradient (...) or () of the loss -> (...) or (), (..., N)

    With `in_place` the gradient overwrites float32 or float64 logits in C order, and no other (T, N) array is made.

    >>> logits = np.log([[0.25, 0.75]])
    >>> loss, slope = loss_and_gradient(logits, [1], in_place=True)
    >>> float(loss.round(4)), slope is logits, logits.round(4).tolist()
    (0.2877, True, [[0.25, -0.25]])
    """
    rows, terms = _prepare(logits, targets, options)
    out = rows if in_place and np.may_share_memory(rows, logits) else np.empty_like(rows)
    losses = np.empty(len(rows), rows.dtype)
    slopes = (terms.scale * np.broadcast_to(gradient, np.shape(targets)).reshape(-1)).astype(rows.dtype)

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            losses[part] = _write_gradient(rows[part], terms, slopes[part], part, out[part])

    _run_blocks(work, rows)
    slope = logits if out is rows else out.reshape(logits.shape).astype(output_dtype(logits), copy=False)
    return _reduce(losses, np.shape(targets), terms, options), slope


@quiet
def target_probabilities(logits: Array, targets: ArrayLike, ignore_index: int = IGNORE_INDEX) -> Array:
    """Probability of each target; NaN if the target is `ignore_index`.

    logits (..., N), targets (...) -> (...)

    >>> target_probabilities(np.log([[0.25, 0.75], [0.5, 0.5]]), [1, -100]).round(4).tolist()
    [0.75, nan]
    """
    options = LossOptions(ignore_index=ignore_index, reduction="none")
    probabilities = np.asarray(np.exp(-cross_entropy(logits, targets, options)))
    probabilities[np.asarray(targets) == ignore_index] = np.nan
    return probabilities


@quiet
def negative_log_likelihood(log_probabilities: Array, targets: ArrayLike, options: LossOptions = DEFAULTS) -> Array:
    """Negative log-likelihood of target ids, as torch.nn.NLLLoss.

    log_probabilities (..., N), targets (...) -> (...) or ()

    UsageError for label smoothing, which NLLLoss does not have.

    >>> float(negative_log_likelihood(np.array([[-1.0, -0.5]]), [1]))
    0.5
    """
    if options.label_smoothing:
        raise UsageError(f"label smoothing {options.label_smoothing:g} of log-probabilities; use the logits")
    rows, terms = _prepare(log_probabilities, targets, options)
    picked = rows[np.arange(len(rows)), terms.ids]
    losses = np.where(terms.counts, -terms.hard * picked, 0)
    return _reduce(losses, np.shape(targets), terms, options)


def _prepare(logits: Array, targets: ArrayLike, options: LossOptions) -> tuple[Array, _Terms]:
    """Logits as rows (T, N) of the dtype to compute in, and the terms of each row."""
    if logits.ndim == 0 or np.shape(targets) != logits.shape[:-1]:
        expected = as_text(logits.shape[:-1])
        raise DataError(f"targets {as_text(np.shape(targets))} for logits {as_text(logits.shape)}: expected {expected}")
    _check_options(options, logits.shape[-1])
    rows = cast(logits, working(logits)).reshape(-1, logits.shape[-1])
    flat = np.asarray(targets).reshape(-1)
    counts = flat != options.ignore_index
    ids = check_ids(np.where(counts, flat, np.zeros((), flat.dtype)), rows.shape[-1], "target")
    return rows, _terms(ids, counts, options, rows.shape[-1], rows.dtype)


def _terms(ids: Array, counts: Array, options: LossOptions, size: int, dtype: DType) -> _Terms:
    weight = None if options.weight is None else cast(options.weight, dtype)
    of_targets = np.where(counts, 1 if weight is None else weight[ids], 0).astype(dtype)
    total = of_targets.sum(dtype=np.float64) if options.reduction == "mean" else np.float64(1)
    return _Terms(
        ids=ids,
        counts=counts,
        hard=of_targets * dtype.type(1 - options.label_smoothing),
        soft=dtype.type(options.label_smoothing / max(size, 1)),
        weight=weight,
        total_weight=dtype.type(size) if weight is None else weight.sum(),
        scale=1 / total if total else np.float64(np.nan),
    )


def _check_options(options: LossOptions, size: int) -> None:
    if not 0 <= options.label_smoothing <= 1:
        raise UsageError(f"label smoothing {options.label_smoothing:g} (expected 0 to 1)")
    if options.reduction not in REDUCTIONS:
        raise UsageError(f"reduction {options.reduction!r} (expected one of {', '.join(REDUCTIONS)})")
    if options.weight is not None and options.weight.shape != (size,):
        raise DataError.about(
            "weights", f"{as_text(options.weight.shape)}: expected {as_text((size,))}, one for each class"
        )


def _run_blocks(work: Callable[[Iterator[slice]], None], rows: Array) -> None:
    """Call `work` with blocks of rows, in several threads if there are several."""
    size = max(BLOCK // max(rows.shape[-1], 1), 1)
    if len(rows) <= size:
        work(iter([slice(0, len(rows))] * bool(len(rows))))
        return
    from attnkit.model.processor.threads import run_parallel, split_range

    run_parallel(work, split_range(0, len(rows), size))


def _linear_terms(shift: Array, terms: _Terms, part: slice) -> tuple[Array, Any]:
    """Shifted logit of each target, and their weighted sum: (R, N) -> (R,), (R,)."""
    picked: Array = shift[np.arange(len(shift)), terms.ids[part]]
    if not terms.soft:
        return picked, 0
    return picked, shift.sum(-1) if terms.weight is None else shift @ terms.weight


def _losses(log_sum: Array, picked: Array, weighted: Any, terms: _Terms, part: slice) -> Array:
    """Losses of rows from the log of their sums and their linear terms: (R,)."""
    losses: Array = terms.hard[part] * (log_sum - picked)
    if terms.soft:
        losses += terms.soft * (terms.total_weight * log_sum - weighted)
    losses[~terms.counts[part]] = 0
    return losses


def _write_gradient(logits: Array, terms: _Terms, slopes: Array, part: slice, out: Array) -> Array:
    """Write the gradient of some rows to `out`; return their losses: (R,).

    `out` may be the logits themselves.

    With probabilities p it is (hard + soft sum(w)) p - soft w - hard one_hot(target), times the slope of the loss.
    """
    np.subtract(logits, logits.max(axis=1, keepdims=True), out=out)
    linear_terms = _linear_terms(out, terms, part)
    total = np.exp(out, out=out).sum(-1)
    hard = terms.hard[part]
    out *= (slopes * (hard + terms.soft * terms.total_weight) / total)[:, None]
    if terms.soft:
        out -= (slopes * terms.soft)[:, None] * (1 if terms.weight is None else terms.weight)
    out[np.arange(len(out)), terms.ids[part]] -= slopes * hard
    out[~terms.counts[part]] = 0
    return _losses(np.log(total), *linear_terms, terms, part)


def _reduce(losses: Array, shape: tuple[int, ...], terms: _Terms, options: LossOptions) -> Array:
    if options.reduction == "none":
        return losses.reshape(shape)
    return np.asarray(losses.sum(dtype=np.float64) * terms.scale, losses.dtype)
