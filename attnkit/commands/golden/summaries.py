"""A tensor in a few numbers: its hash, signed sums of its numbers, and samples.

Every number counts in one of the sums, with a sign that is drawn by its place. Rounding nearly cancels in them, so
that a sum moves by the root of how many numbers it has; what changes a number by more is seen.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import Array, is_float, quiet
from attnkit.model.rounding import (
    DIFFERENT,
    IDENTICAL,
    ROUNDING,
    Judgement,
    derived_floor,
    held_dtype,
    judge_arrays,
    rows_of,
)

SUMS, SAMPLES = 64, 16  # of a tensor, fewer of a small one
CHANGED, NEW_NAN, MISSING, NEW = "changed", "new NaN", "missing", "new"
VERDICTS = (IDENTICAL, ROUNDING, NEW, MISSING, CHANGED, NEW_NAN)  # the last one of several counts
SIGNIFICANT = {"float64": 17}  # digits of a sum, by dtype; 10 of others


@dataclass(frozen=True)
class Summary:
    """What is stored of a tensor.

    special  how many numbers are NaN, infinite and minus infinite
    largest  the largest finite number
    noise    the largest difference that rounding explains, and of a row relative to its largest number
    sums     signed sums of finite numbers, and what rounding explains of each; of few numbers none
    samples  places, the numbers there, and what rounding explains of each
    ties     hashes of the whole numbers that rounding gave
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str
    special: tuple[int, int, int] = (0, 0, 0)
    largest: float = 0.0
    noise: float = 0.0
    relative: float = 0.0
    sums: tuple[float, ...] = ()
    sums_noise: tuple[float, ...] = ()
    places: tuple[int, ...] = ()
    samples: tuple[float, ...] = ()
    samples_noise: tuple[float, ...] = ()
    ties: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorOutcome:
    """What came of a tensor.

    verdict    identical, rounding, changed, new NaN, missing or new
    judgement  the figures, where there are some
    words      what differs, in words
    """

    verdict: str
    judgement: Judgement | None = None
    words: str = ""


def digest_of(array: Array) -> str:
    """The SHA-256 of the numbers of an array in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@quiet
def summarize_tensor(
    array: Array, floor: Array | None = None, ties: Sequence[Array] = (), places: Sequence[int] = ()
) -> Summary:
    """Summarize a tensor.

    floor  (rows, 1), what rounding explains of each row; None: derived
    ties   whole numbers that rounding gave in its place
    places  of the samples; () for some that are spread over it

    >>> summary = summarize_tensor(np.float32([[1, 2], [4, 8]]))
    >>> summary.samples, summary.sums
    ((1.0, 2.0, 4.0, 8.0), ())
    """
    start = Summary(array.dtype.name, tuple(array.shape), digest_of(array), ties=tuple(map(digest_of, ties)))
    if not is_float(array.dtype) or not array.size:
        return start
    rows = rows_of(array)
    if floor is None:
        floor = derived_floor(rows, held_dtype(array), max(array.shape, default=1))
    floors = np.broadcast_to(floor, rows.shape).ravel()
    flat, finite = rows.ravel(), np.isfinite(rows).ravel()
    values = np.where(finite, flat, 0.0)
    sums = sums_of(signs_of(flat.size) * values)
    sums_noise = np.sqrt(sums_of(floors**2)) + 2.0**-52 * sums_of(np.abs(values))
    chosen = np.array(places, np.int64) if places else choose_samples(values)
    largest = np.abs(rows, where=np.isfinite(rows), out=np.zeros(rows.shape)).max(axis=-1)
    scale = np.maximum(largest, np.median(largest[largest > 0]) if largest.any() else 1.0)
    digits = SIGNIFICANT.get(held_dtype(array), 10)
    return Summary(
        start.dtype,
        start.shape,
        start.digest,
        (int(np.isnan(flat).sum()), int(np.isposinf(flat).sum()), int(np.isneginf(flat).sum())),
        float(largest.max()),
        two_digits(float(floors.max())),
        two_digits(float((np.asarray(floor)[:, 0] / scale).max())),
        tuple(float(f"{one:.{digits}g}") for one in np.clip(sums, -1e308, 1e308)),
        tuple(map(two_digits, sums_noise)),
        tuple(map(int, chosen)),
        tuple(map(float, values[chosen])),
        tuple(two_digits(float(floors[at])) for at in chosen),
    )


def two_digits(number: float) -> float:
    """A number in two digits, rounded up a little, as noise is stored.

    >>> two_digits(1.234e-7), two_digits(0.0)
    (1.3e-07, 0.0)
    """
    return float(f"{min(number * 1.05, 1e308):.1e}")


def signs_of(count: int) -> Array:
    """A sign for each place, the same in every run: a bit of SplitMix64.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

    >>> signs_of(8).tolist()
    [-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0]
    """
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return 1.0 - 2.0 * (bits >> np.uint64(63)).astype(np.float64)


def places_of_sums(count: int) -> Array:
    """The sum in which each place counts: runs of places next to each other.

    >>> places_of_sums(128).tolist()[:4], int(places_of_sums(1000)[-1])
    ([0, 0, 1, 1], 63)
    """
    return np.arange(count, dtype=np.int64) * SUMS // count


def sums_of(values: Array) -> Array:
    """The sums of a vector; of few numbers none, since each is a sample.

    >>> sums_of(np.ones(128)).tolist()[:2], sums_of(np.ones(64)).size
    ([2.0, 2.0], 0)
    """
    count = SUMS if values.size > SUMS else 0
    sums: Array = np.bincount(places_of_sums(values.size), values)[:count]
    return sums


def choose_samples(values: Array) -> Array:
    """Places spread over a vector, that of the largest number among them; of few all."""
    count = values.size if values.size <= SUMS else SAMPLES
    spread = np.linspace(0, values.size - 1, count).astype(np.int64)
    return np.unique(np.append(spread, np.argmax(np.abs(values))))


def compare_stored(
    stored: Summary, array: Array, rtol: float | None = None, atol: float | None = None
) -> TensorOutcome:
    """The outcome of a tensor by what is stored of it.

    rtol, atol  the tolerance of the user in place of noise

    >>> x = np.float32([[1, 2], [4, 8]])
    >>> [compare_stored(summarize_tensor(x), y).verdict for y in (x, x * np.float32(1 + 2**-23), 1.5 * x)]
    ['identical', 'rounding', 'changed']
    """
    if (stored.dtype, stored.shape) != (array.dtype.name, array.shape):
        words = f"{array.dtype.name} {array.shape}, was {stored.dtype} {stored.shape}"
        return TensorOutcome(CHANGED, words=words)
    then, now = stored, summarize_tensor(array, places=stored.places)
    if then.digest == now.digest:
        return TensorOutcome(IDENTICAL)
    if not then.samples:
        is_tie = now.digest in then.ties
        return TensorOutcome(ROUNDING, words="a tie that rounding decides") if is_tie else TensorOutcome(CHANGED)
    if problem := compare_special(then, now):
        return problem
    is_stated = rtol is not None or atol is not None
    floors = (
        stated_floors(then, array, rtol or 0.0, atol or 0.0) if is_stated else (then.samples_noise, then.sums_noise)
    )
    samples = judge_numbers(then.samples, now.samples, floors[0], is_stated)
    sums = judge_numbers(then.sums, now.sums, floors[1], is_stated)
    words = explain_line(samples, then.largest) if samples.verdict == DIFFERENT else ""
    if samples.verdict == DIFFERENT:
        at = np.unravel_index(then.places[samples.at[0]], then.shape)
        index = "".join(f"[{one}]" for one in at)
        place = f"first sample beyond {'the tolerance' if is_stated else 'rounding'}: {index}"
        return TensorOutcome(CHANGED, relative_to(samples, then.largest), words or place)
    if sums.verdict == DIFFERENT:
        beyond = "the tolerance" if is_stated else "rounding"
        return TensorOutcome(
            CHANGED, relative_to(samples, then.largest), f"sum {sums.at[0] + 1} of {len(then.sums)} is beyond {beyond}"
        )
    return TensorOutcome(ROUNDING, relative_to(samples, then.largest))


def compare_special(then: Summary, now: Summary) -> TensorOutcome | None:
    """The outcome of a tensor with other numbers of NaN and infinities, or None."""
    if now.special[0] > then.special[0]:
        return TensorOutcome(
            NEW_NAN, words=f"{now.special[0]} of {math.prod(now.shape)} numbers, were {then.special[0]}"
        )
    if now.special != then.special:
        return TensorOutcome(CHANGED, words=f"NaN, ∞, −∞: {now.special}, were {then.special}")
    return None


@quiet
def stated_floors(then: Summary, now: Array, rtol: float, atol: float) -> tuple[Array, Array]:
    """What a tolerance of the user allows of each sample, and of each sum.

    A sum may move by all that its numbers may, which are known from this run: |then| ≤ (|now| + atol) / (1 − rtol).
    Sums are stored in ten digits.
    """
    values = np.nan_to_num(rows_of(now).ravel(), posinf=0.0, neginf=0.0)
    most = sums_of(atol + rtol * np.abs(values)) / (1 - rtol) if rtol < 1 else np.full(len(then.sums), np.inf)
    return atol + rtol * np.abs(then.samples), most + 1e-9 * np.abs(then.sums)


def judge_numbers(
    then: Sequence[float], now: Sequence[float], floor: Sequence[float] | Array, is_stated: bool = False
) -> Judgement:
    """Judge stored numbers by what may explain a difference of each.

    is_stated  whether the user states it: a factor or an offset within it is no change
    """
    a, b = (np.asarray(one, np.float64)[:, None] for one in (then, now))
    if a.shape != b.shape:
        return Judgement(DIFFERENT, at=(0,))
    judged = judge_arrays(a, b, np.asarray(floor, np.float64)[:, None] + 1e-300)
    return judged._replace(verdict=ROUNDING) if is_stated and judged.is_systematic else judged


def relative_to(judgement: Judgement, largest: float) -> Judgement:
    """The figures of samples, relative to the largest number of the whole tensor."""
    return judgement._replace(relative=judgement.largest / largest if largest else math.inf)


def explain_line(judgement: Judgement, largest: float) -> str:
    """The factor and offset that explain a change of samples, in words, or ""."""
    line, size = judgement.line, judgement.largest
    if not size < math.inf or line.rest > max(0.01 * size, judgement.noise):
        return ""
    factor = (
        f"{line.scale:.4g} × the stored numbers" if abs(line.scale - 1) * largest > 0.1 * size else "the stored numbers"
    )
    sign = "+" if line.offset > 0 else "−"
    return factor + (f" {sign} {abs(line.offset):.3g}" if abs(line.offset) > 0.1 * size else "")


def compare_full(
    then: Array, now: Array, summary: Summary, rtol: float | None = None, atol: float | None = None
) -> TensorOutcome:
    """The outcome of a tensor that is kept whole, by the stored noise or a tolerance."""
    if not is_float(then.dtype) or (then.dtype, then.shape) != (now.dtype, now.shape):
        return compare_stored(summary, now)
    is_stated = rtol is not None or atol is not None
    rows = rows_of(then)
    largest = np.abs(rows, where=np.isfinite(rows), out=np.zeros(rows.shape)).max(axis=-1, initial=0)
    scale = np.maximum(largest, np.median(largest[largest > 0]) if largest.any() else 1.0)
    floor = (atol or 0.0) + (rtol or 0.0) * np.abs(rows) if is_stated else (summary.relative * scale)[:, None]
    judged = judge_arrays(then, now, floor + 1e-300)
    if judged.verdict != DIFFERENT or (is_stated and judged.is_systematic):
        return TensorOutcome(ROUNDING if judged.largest else judged.verdict, judged if judged.largest else None)
    special = compare_special(summary, summarize_tensor(now))
    index = "".join(f"[{one}]" for one in judged.at)
    share = f"{100 * judged.beyond:.3g} % beyond {'the tolerance' if is_stated else 'rounding'}"
    return special or TensorOutcome(
        CHANGED, judged, explain_line(judged, summary.largest) or f"first at {index}; {share}"
    )


def write_summary(summary: Summary) -> dict[str, Any]:
    """A summary as JSON values, without what is empty."""
    values = {"dtype": summary.dtype, "shape": list(summary.shape), "sha256": summary.digest}
    if summary.ties:
        values["ties"] = list(summary.ties)
    if not summary.samples:
        return values
    if any(summary.special):
        values["special"] = list(summary.special)
    samples = zip(summary.places, summary.samples, summary.samples_noise, strict=True)
    return values | {
        "largest": summary.largest,
        "noise": [summary.noise, summary.relative],
        "sums": [list(pair) for pair in zip(summary.sums, summary.sums_noise, strict=True)],
        "samples": [list(one) for one in samples],
    }


def read_summary(values: Mapping[str, Any], path: str) -> Summary:
    """A summary from JSON values; DataError if they are none."""
    try:
        samples = [(int(at), float(number), float(noise)) for at, number, noise in values.get("samples", [])]
        sums = [(float(number), float(noise)) for number, noise in values.get("sums", [])]
        noise, relative = map(float, values.get("noise", (0, 0)))
        nan, above, below = map(int, values.get("special", (0, 0, 0)))
        shape = tuple(int(one) for one in values["shape"])
        if any(not 0 <= at < math.prod(shape) for at, _, _ in samples):
            raise ValueError
        return Summary(
            str(values["dtype"]),
            shape,
            str(values["sha256"]),
            (nan, above, below),
            float(values.get("largest", 0)),
            noise,
            relative,
            tuple(number for number, _ in sums),
            tuple(noise for _, noise in sums),
            tuple(at for at, _, _ in samples),
            tuple(number for _, number, _ in samples),
            tuple(noise for _, _, noise in samples),
            tuple(map(str, values.get("ties", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise DataError("not a file of golden numbers; attnkit golden FILE --bless writes one", path) from None
