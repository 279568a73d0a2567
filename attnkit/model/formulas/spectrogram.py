"""Log-mel spectrograms: frames, power spectrum, mel filters, logarithm, clamp.

The filters are Slaney's.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, output_dtype, quiet

SLOW = 200 / 3  # hertz of a mel up to LINEAR
LINEAR, LOGARITHMIC = 1000.0, 27 / np.log(6.4)  # hertz from which on mels are logarithmic, and mels of a factor of e
LEAST = 1e-10  # of a mel, before the logarithm
RANGE = 8.0  # between the largest logarithm and the smallest that is kept
MOST = 1 << 19  # numbers of frames that are computed at a time
ALL = slice(None)
STEPS = ("frames", "windowed", "power", "filters", "mel", "log", "clamped")


class Spectrogram(NamedTuple):
    """How a sound becomes a log-mel spectrogram.

    The numbers of Whisper unless others are given.

    rate    samples a second
    window  samples of a frame
    hop     samples from one frame to the next
    mels    number of mel filters, from 0 hertz to half the rate
    """

    rate: int = 16000
    window: int = 400
    hop: int = 160
    mels: int = 80


WHISPER = Spectrogram()


@quiet
def log_mel(
    samples: Array,
    options: Spectrogram = WHISPER,
    keep: Sequence[str] = (),
    frames: slice = ALL,
    loudest: float | None = None,
) -> dict[str, Array]:
    """Log-mel spectrogram of a sound, as Whisper reads it.

    samples (T,) -> output (F, M), and those in `keep` of the steps frames and windowed (F, W), power (F, W / 2 + 1),
    filters (W / 2 + 1, M), mel, log and clamped (F, M), where F is T / hop

    frames   which of them are computed; loudest: the largest logarithm of the sound, if that is not among these

    Frames are centered at every `hop` samples, and beyond both ends the sound is reflected. Computed in float64.
    Source: Whisper (Radford et al. 2022), section 2.2. DataError for samples that are not one sound, or too few.

    >>> log_mel(np.zeros(480), Spectrogram(mels=2))["output"].tolist()
    [[-1.5, -1.5], [-1.5, -1.5], [-1.5, -1.5]]
    """
    check_sound(samples, options)
    parts: dict[str, list[Array]] = {name: [] for name in ("mel", *keep) if name in STEPS[:5] and name != "filters"}
    for steps in compute_bands(samples, options, frames):
        for name, some in parts.items():
            some.append(steps[name])
    steps = {name: np.concatenate(parts.pop(name)) for name in [*parts]} | {"filters": mel_filters(options)}

    def place(name: str) -> Array | None:  # for what follows from a step: its own array, unless it is kept
        return None if name in keep else steps[name]

    steps["log"] = np.maximum(steps["mel"], LEAST, out=place("mel"))
    np.log10(steps["log"], out=steps["log"])
    least = (steps["log"].max() if loudest is None else loudest) - RANGE
    steps["clamped"] = np.maximum(steps["log"], least, out=place("log"))
    steps["output"] = np.add(steps["clamped"], 4, out=place("clamped"))
    steps["output"] /= 4
    dtype = output_dtype(samples)
    return {name: steps[name].astype(dtype, copy=False) for name in (*STEPS, "output") if name in (*keep, "output")}


@quiet
def find_loudest(samples: Array, options: Spectrogram = WHISPER) -> float:
    """The largest logarithm of a sound, some frames at a time: samples (T,).

    >>> find_loudest(np.zeros(480))
    -10.0
    """
    check_sound(samples, options)
    largest = max(steps["mel"].max() for steps in compute_bands(samples, options))
    return float(np.log10(max(largest, LEAST)))


def compute_bands(samples: Array, options: Spectrogram, frames: slice = ALL) -> Iterator[dict[str, Array]]:
    """The steps frames, windowed, power and mel of some frames at a time."""
    filters, window = mel_filters(options), hann_window(options.window)
    for some in split_frames(samples, options, frames):
        windowed = some * window
        power = np.abs(np.fft.rfft(windowed)) ** 2
        yield {"frames": some, "windowed": windowed, "power": power, "mel": power @ filters}


def check_sound(samples: Array, options: Spectrogram) -> None:
    """Raise an error for samples that are not one sound, or too few for a frame."""
    check_spectrogram(options)
    if samples.ndim != 1:
        raise DataError.about("x", f"{as_text(samples.shape)}: rank {samples.ndim}, expected 1, the samples of a sound")
    if len(samples) < max(options.hop, 2):
        raise DataError(f"x of {len(samples)} samples, too few for a frame (expected {max(options.hop, 2)})")


def check_spectrogram(options: Spectrogram) -> None:
    """Raise UsageError for sizes that make no spectrogram."""
    for name, number in options._asdict().items():
        if number < 1:
            raise UsageError(f"{name} {number} of a spectrogram (expected 1 or more)")
    if options.window < 2:
        raise UsageError(f"a window of {options.window} sample (expected 2 or more)")


def split_frames(samples: Array, options: Spectrogram, frames: slice = ALL) -> Iterator[Array]:
    """Some frames at a time, each (F, W), centered at multiples of hop.

    From 0 on, before the end.

    >>> [frames.tolist() for frames in split_frames(np.arange(6.0), Spectrogram(window=2, hop=2), slice(1, 3))]
    [[[1.0, 2.0], [3.0, 4.0]]]
    """
    first, last, _ = frames.indices(len(samples) // options.hop)  # the last frame is left out
    step = max(1, MOST // options.window)
    for start in range(first, last, step):
        stop = min(start + step, last)
        part = cut_reflected(samples, start * options.hop, (stop - 1) * options.hop, options.window)
        yield np.lib.stride_tricks.sliding_window_view(part, options.window)[:: options.hop].copy()


def cut_reflected(samples: Array, first: int, last: int, window: int) -> Array:
    """The samples in float64 of the windows centered from `first` to `last`.

    The sound is reflected at both ends.

    >>> cut_reflected(np.arange(9.0), 0, 1, 4).tolist(), cut_reflected(np.arange(9.0), 8, 8, 4).tolist()
    ([2.0, 1.0, 0.0, 1.0, 2.0], [6.0, 7.0, 8.0, 7.0])
    """
    half, count = window // 2, len(samples)
    begin, end = first - half, last - half + window
    low, high = max(0, min(begin, count - window)), min(count, max(end, window))  # enough samples to reflect
    sides = (max(0, -begin), max(0, end - count))
    padded = np.pad(samples[low:high].astype(np.float64), sides, mode="reflect")
    start = begin - low + sides[0]
    return padded[start : start + end - begin]


def hann_window(size: int) -> Array:
    """Periodic Hann window: sin²(π n / size) for n from 0 to size - 1.

    >>> hann_window(4).round(4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    window: Array = np.sin(np.pi * np.arange(size) / size) ** 2
    return window


def mel_filters(options: Spectrogram = WHISPER) -> Array:
    """Triangles of equal area with corners equally spaced in mels.

    (window / 2 + 1, mels)

    Source: Slaney's Auditory Toolbox (1998), as librosa.filters.mel has it.

    >>> mel_filters(Spectrogram(rate=8000, window=8, mels=1)).ravel().round(6).tolist()
    [0.0, 0.000419, 0.000356, 0.000178, 0.0]
    """
    corners = mels_to_hertz(np.linspace(0, hertz_to_mels(options.rate / 2), options.mels + 2))
    return make_triangles(corners, options.rate, options.window) * (2 / (corners[2:] - corners[:-2]))


def make_triangles(corners: Array, rate: int, size: int) -> Array:
    """Triangles of height 1 between corners in hertz.

    corners (mels + 2,) -> (size / 2 + 1, mels)
    """
    at = np.linspace(0, rate / 2, size // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    triangles: Array = np.maximum(0, np.minimum((at - left) / (middle - left), (right - at) / (right - middle)))
    return triangles


def hertz_to_mels(hertz: float) -> float:
    """The mels of a frequency: linear up to 1000 hertz, and logarithmic above.

    >>> hertz_to_mels(200), round(hertz_to_mels(6400), 6)
    (3.0, 42.0)
    """
    return hertz / SLOW if hertz < LINEAR else float(LINEAR / SLOW + LOGARITHMIC * np.log(hertz / LINEAR))


def mels_to_hertz(mels: Array) -> Array:
    """The frequencies of mels; the inverse of `hertz_to_mels`.

    >>> mels_to_hertz(np.array([3.0, 42.0])).round(6).tolist()
    [200.0, 6400.0]
    """
    first = LINEAR / SLOW
    return np.where(mels < first, mels * SLOW, LINEAR * np.exp((np.maximum(mels, first) - first) / LOGARITHMIC))


def pad_sound(samples: Array, count: int) -> Array:
    """A sound of a given number of samples: cut, or with silence after it.

    >>> pad_sound(np.array([1.0, 2.0]), 3).tolist(), pad_sound(np.array([1.0, 2.0]), 1).tolist()
    ([1.0, 2.0, 0.0], [1.0])
    """
    return np.pad(samples[:count], (0, max(0, count - len(samples))))
