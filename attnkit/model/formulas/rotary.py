"""Rotary positions (RoPE): frequencies, scaled or not, angles and rotation."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, output_dtype, quiet, working

Rope = Mapping[str, Any]
Scaled = tuple[Array, float]


def angles(positions: ArrayLike, dim: int, base: float, kind: str) -> Array:
    """Angle of each position and pair: p / base^(2i/D).

    positions (..., T) -> (..., T, D/2) float64

    DataError for an odd width, UsageError for a base that is not positive; `kind` is what they call the width.

    >>> angles([0, 1], 4, 10000.0, "rotary").tolist()
    [[0.0, 0.0], [1.0, 0.01]]
    """
    phases: Array = np.asarray(positions, dtype=np.float64)[..., None] / _periods(dim, base, kind)
    return phases


def _periods(dim: int, base: float, kind: str) -> Array:
    if dim < 0 or dim % 2:
        raise DataError.about(kind, f"width {dim} is not even (sines and cosines come in pairs)")
    if not 0 < base < math.inf:
        raise UsageError(f"base {base} (expected a positive number)")
    periods: Array = base ** (np.arange(0, dim, 2) / dim)
    return periods


def rotary_angles(
    positions: ArrayLike,
    rotary_dim: int,
    base: float = 10000.0,
    frequencies: Array | None = None,
    factor: float = 1.0,
) -> tuple[Array, Array]:
    """Cosine and sine of the rotation of each pair at each position.

    positions (..., T), frequencies (R/2,) or (..., 1, R/2) -> cos (..., T, R/2), sin (..., T, R/2), float64

    The angle is p / base^(2i/R), or p * frequency. Both are multiplied by `factor`, the second result of
    `rope_frequencies`. DataError for an odd rotary width, or for frequencies of another one. Source: RoFormer (Su et
    al. 2021), section 3.2.

    >>> [part.round(4).tolist() for part in rotary_angles([1], 4)]
    [[[0.5403, 1.0]], [[0.8415, 0.01]]]
    """
    if frequencies is None:
        phases = angles(positions, rotary_dim, base, "rotary")
    elif 2 * frequencies.shape[-1] != rotary_dim:
        raise DataError(
            f"frequencies {as_text(frequencies.shape)} for rotary width {rotary_dim}: expected half as many"
        )
    else:
        phases = np.asarray(positions, dtype=np.float64)[..., None] * frequencies
    return factor * np.cos(phases), factor * np.sin(phases)


def grid_places(rows: int, columns: int, before: int = 0) -> Array:
    """Places of patches on the height and width of an image, from -2π to 2π.

    Tokens before them are at 0.

    -> (before + rows * columns, 2)

    Source: DINOv3 (Siméoni et al. 2025), section 3.2.

    >>> (grid_places(1, 2, before=1) / np.pi).tolist()
    [[0.0, 0.0], [0.0, -1.0], [0.0, 1.0]]
    """
    height, width = (2 * np.pi * (2 * (np.arange(count) + 0.5) / count - 1) for count in (rows, columns))
    patches = np.stack(np.meshgrid(height, width, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([np.zeros((before, 2)), patches])


def grid_angles(places: Array, rotary_dim: int, rope: Rope) -> tuple[Array, Array]:
    """Cosine and sine of each pair by the height or the width of a patch.

    The first half of the pairs rotates by the height.

    places (T, 2) -> cos (T, R/2), sin (T, R/2), float64

    DataError unless 4 divides the rotary width.

    >>> cos, sin = grid_angles(np.array([[0.0, np.pi / 2]]), 4, {"rope_theta": 100.0})
    >>> cos.round(4).tolist(), sin.round(4).tolist()
    ([[1.0, 0.0]], [[0.0, 1.0]])
    """
    if rotary_dim % 4:
        raise DataError.about("rotary", f"width {rotary_dim} is not a multiple of 4 (half of it for each direction)")
    phases = angles(places, rotary_dim // 2, _number(rope, "rope_theta", 10000.0), "rotary")  # (T, 2, R/4)
    phases = phases.reshape(len(places), rotary_dim // 2)
    return np.cos(phases), np.sin(phases)


def rope_frequencies(dim: int, rope: Rope, length: int) -> Scaled:
    """Frequency of each pair, and the factor of cosines and sines.

    dim R, length of the text -> (R/2,) float64, one number

    `rope` holds `rope_type` and what that type needs, under the names they are published with; `rope_theta` is
    10000 unless given. UsageError for a type that is not in ROPE_TYPES; DataError names a missing field.

    >>> rope_frequencies(4, {"rope_type": "linear", "factor": 4.0}, 100)
    (array([0.25  , 0.0025]), 1.0)
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise UsageError(f"rope_type {kind!r} (expected {', '.join(ROPE_TYPES)})")
    return ROPE_TYPES[kind](dim, rope, length)


def batch_frequencies(dim: int, rope: Rope, positions: Array) -> Scaled:
    """Frequencies as of `rope_frequencies`, by the length of each text of a batch.

    positions (T,) -> (R/2,); positions (B, T) -> (B, 1, R/2), or (R/2,) if all texts have one length

    The length of a text is one more than its last position, so that padding and longer texts of its batch do not
    change its rotation. transformers takes the length of the longest text for all.

    >>> rope = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 2}
    >>> batch_frequencies(4, rope, np.array([[0, 1, 1], [0, 1, 2]]))[0].tolist()
    [[[1.0, 0.01]], [[1.0, 0.005]]]
    """
    lengths = positions.max(axis=-1, initial=0) + 1
    distinct, which = np.unique(lengths, return_inverse=True)
    if len(distinct) < 2:
        return rope_frequencies(dim, rope, int(lengths.max(initial=1)))
    scaled = [rope_frequencies(dim, rope, length) for length in distinct.tolist()]
    return np.stack([frequencies for frequencies, _ in scaled])[which][:, None], scaled[0][1]


def _number(rope: Rope, name: str, default: float | None = None) -> float:
    value = rope.get(name)
    if value is None:
        value = default
    if value is None:
        raise DataError(f"rope_type {rope.get('rope_type', rope.get('type'))!r} needs {name!r}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise DataError.about(name, f"{repr(value)[:40]} (expected a positive number)")
    return float(value)


def _published(dim: int, rope: Rope, stretch: float = 1.0) -> Array:
    frequencies: Array = 1 / _periods(dim, stretch * _number(rope, "rope_theta", 10000.0), "rotary")
    return frequencies


def _original(rope: Rope) -> float:
    return _number(rope, "original_max_position_embeddings", rope.get("max_position_embeddings"))


def _blend(frequencies: Array, factor: float, unscaled: Array) -> Array:
    """Divide frequencies by the factor, except for an unscaled share of each."""
    return frequencies * (unscaled + (1 - unscaled) / factor)


def _default(dim: int, rope: Rope, length: int) -> Scaled:
    return _published(dim, rope), 1.0


def _linear(dim: int, rope: Rope, length: int) -> Scaled:
    """Linearly interpolated frequencies: divided by the factor (Chen et al. 2023)."""
    return _published(dim, rope) / _number(rope, "factor"), 1.0


def _dynamic(dim: int, rope: Rope, length: int) -> Scaled:
    """Frequencies of a base that grows with long texts (dynamic NTK scaling)."""
    if dim < 4:
        raise DataError(f"rotary width {dim} (dynamic scaling needs 4 or more)")
    factor, limit = _number(rope, "factor"), _number(rope, "max_position_embeddings")
    grown = factor * max(length, limit) / limit - (factor - 1)
    return _published(dim, rope, grown ** (dim / (dim - 2))), 1.0


def _llama3(dim: int, rope: Rope, length: int) -> Scaled:
    """Scale low frequencies only, with a ramp by wavelength (Llama 3.1)."""
    frequencies, factor = _published(dim, rope), _number(rope, "factor")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    if high <= low:
        raise DataError(f"high_freq_factor {high} (expected more than low_freq_factor {low})")
    turns = _original(rope) * frequencies / (2 * math.pi)
    return _blend(frequencies, factor, np.clip((turns - low) / (high - low), 0, 1)), 1.0


def _yarn(dim: int, rope: Rope, length: int) -> Scaled:
    """Scale low frequencies only, with a ramp by index (YaRN, Peng et al. 2023)."""
    original = _original(rope)
    longest = rope.get("max_position_embeddings")
    factor = _number(rope, "factor", longest and longest / original)
    start = _pair_that_turns(_number(rope, "beta_fast", 32.0), dim, rope, original)
    end = _pair_that_turns(_number(rope, "beta_slow", 1.0), dim, rope, original)
    if rope.get("truncate", True):
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, dim - 1)
    width = end - start or 0.001  # a step if the ramp is empty
    ramp = np.clip((np.arange(dim // 2) - start) / width, 0, 1)
    return _blend(_published(dim, rope), factor, 1 - ramp), _yarn_factor(rope, factor)


def _pair_that_turns(times: float, dim: int, rope: Rope, length: float) -> float:
    """Fractional index of the pair that turns so often within a length."""
    theta = _number(rope, "rope_theta", 10000.0)
    if theta == 1:
        raise DataError("rope_theta 1 (yarn needs wavelengths that differ)")
    return dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))


def _yarn_factor(rope: Rope, factor: float) -> float:
    """Factor on cosines and sines by yarn.

    As configured, whatever mscale says; else 0.1 m ln(factor) + 1, or 1.
    """
    has_scales = bool(rope.get("mscale")) & bool(rope.get("mscale_all_dim"))  # both are read in any case
    if rope.get("attention_factor") is not None:
        return _number(rope, "attention_factor")
    growth = 0.1 * math.log(max(factor, 1.0))
    if has_scales:
        return (growth * _number(rope, "mscale") + 1) / (growth * _number(rope, "mscale_all_dim") + 1)
    return growth + 1


def _longrope(dim: int, rope: Rope, length: int) -> Scaled:
    """Divide the frequency of each pair by a factor (LongRoPE).

    Others apply beyond the original length. Ding et al. 2024.
    """
    original = _original(rope)
    name = "long_factor" if length > original else "short_factor"
    factors = rope.get(name)
    if factors is None:
        raise DataError(f"rope_type 'longrope' needs {name!r}")
    is_list = isinstance(factors, list) and all(type(one) in (int, float) and 0 < one < math.inf for one in factors)
    if not is_list or len(factors or ()) != dim // 2:
        raise DataError.about(name, f"{repr(factors)[:40]} (expected {dim // 2} positive numbers)")
    longest = rope.get("max_position_embeddings")
    growth = _number(rope, "factor", longest and longest / original)
    if original < 2 and growth > 1:
        raise DataError.about("original_max_position_embeddings", f"{original} (expected 2 or more)")
    factor = 1.0 if growth <= 1 else math.sqrt(1 + math.log(growth) / math.log(original))
    return _published(dim, rope) / np.asarray(factors, np.float64), _number(rope, "attention_factor", factor)


def has_same_rotation(rope: Rope, before: int, after: int) -> bool:
    """Whether texts of two lengths rotate the same, so that cached keys stay valid.

    >>> rope = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8}
    >>> has_same_rotation(rope, 3, 8), has_same_rotation(rope, 8, 9)
    (True, False)
    """
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "dynamic":
        return after <= int(rope.get("max_position_embeddings", 0))
    if kind == "longrope":
        return (before > _original(rope)) == (after > _original(rope))
    return True


ROPE_TYPES: dict[str, Callable[[int, Rope, int], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}


@quiet
def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """Rotate each pair of the first R features by its angle.

    x (..., T, D), cos (..., T, R/2), sin (..., T, R/2) -> (..., T, D)

    The other features are unchanged. Pair i is (i, i + R/2), or (2i, 2i + 1) when interleaved (ONNX
    RotaryEmbedding-23). cos and sin broadcast over the leading axes of x; DataError if they do not, or if R > D. The
    adjoint is the rotation by cos and -sin.

    >>> rotate(np.array([[1.0, 2.0, 7.0]]), np.array([[0.0]]), np.array([[1.0]]))
    array([[-2.,  1.,  7.]])
    """
    _check_rotation(x, cos, sin)
    width = 2 * cos.shape[-1]
    first = slice(0, width, 2) if interleaved else slice(0, width // 2)
    second = slice(1, width, 2) if interleaved else slice(width // 2, width)
    turned = np.array(x, dtype=working(x), order="C")
    cos, sin = cast(cos, turned.dtype), cast(sin, turned.dtype)
    left, right = turned[..., first].copy(), turned[..., second].copy()
    turned[..., first] = cos * left - sin * right
    turned[..., second] = sin * left + cos * right
    return turned.astype(output_dtype(x), copy=False)


def _check_rotation(x: Array, cos: Array, sin: Array) -> None:
    if cos.shape != sin.shape:
        raise DataError.about("cos", f"{as_text(cos.shape)} and sin {as_text(sin.shape)}: shapes differ")
    if x.ndim == 0 or cos.ndim == 0:
        raise DataError.about(
            "cos", f"{as_text(cos.shape)} for x {as_text(x.shape)}: a single number cannot be rotated"
        )
    if 2 * cos.shape[-1] > x.shape[-1]:
        width = 2 * cos.shape[-1]
        raise DataError.about(
            "cos", f"{as_text(cos.shape)} for x {as_text(x.shape)}: rotary width {width} is too large"
        )
    lead, rows = x.shape[:-1], cos.shape[:-1]
    same = all(size in (1, full) for size, full in zip(reversed(rows), reversed(lead), strict=False))
    if len(rows) > len(lead) or not same:
        raise DataError.about("cos", f"{as_text(cos.shape)} for x {as_text(x.shape)}: leading axes do not broadcast")
