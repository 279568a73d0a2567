"""Sounds at another rate."""

import math

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, output_dtype, working

ZEROS = 10  # zeros of the sinc on each side, in periods of the lower rate
KAISER = 5.0  # shape of the window
WIDEST = 1 << 18  # limit of both rates without their common factor
PART = 1 << 14  # samples of the result that are computed at once


def resample(samples: Array, rate: int, target: int) -> Array:
    """Resample a sound to another rate, without frequencies above half of either.

    samples (T,) -> (ceil(T · target / rate),)

    Each sample of the result is a sum of the samples around it, weighted by a sinc with a Kaiser window, so that a
    constant sound stays constant but at its ends; before and after the sound is silence. It is what
    scipy.signal.resample_poly computes. DataError for a rank other than 1, and for rates whose ratio has too large a
    numerator or denominator.

    >>> resample(np.ones(400), 2, 1)[50:53].round(3), resample(np.ones(400), 3, 2).shape
    (array([1., 1., 1.]), (267,))
    """
    if samples.ndim != 1:
        raise DataError.about("x", f"{as_text(samples.shape)}: rank {samples.ndim}, expected 1, the samples of a sound")
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    if max(up, down) > WIDEST:
        raise DataError(f"a rate of {rate} to {target} samples a second: their ratio is not simple enough")
    taps = phases(up, down)  # (up, J)
    x, each = cast(samples, working(samples)), taps.shape[1]
    count, half = -(-len(x) * up // down), ZEROS * max(up, down)
    padded = np.concatenate([np.zeros(each, x.dtype), x, np.zeros(each + half // up + 1, x.dtype)])
    y, taps = np.empty(count, x.dtype), taps.astype(x.dtype)
    for start in range(0, count, PART):
        last, phase = np.divmod(np.arange(start, min(start + PART, count)) * down + half, up)
        around = padded[last[:, None] - np.arange(each) + each]
        y[start : start + PART] = np.einsum("nj,nj->n", around, taps[phase])
    return y.astype(output_dtype(samples), copy=False)


def phases(up: int, down: int) -> Array:
    """The taps of the low-pass filter for each phase, (up, J).

    >>> phases(1, 2).sum().round(12).tolist(), phases(3, 1).shape
    (1.0, (3, 21))
    """
    widest = max(up, down)
    half = ZEROS * widest
    filter_ = np.sinc(np.arange(-half, half + 1) / widest) * np.kaiser(2 * half + 1, KAISER)
    filter_ *= up / filter_.sum()
    each = -(-len(filter_) // up)
    return np.pad(filter_, (0, each * up - len(filter_))).reshape(each, up).T
