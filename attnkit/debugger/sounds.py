"""The computation of a sound before a model reads it, and its mistaken forms.

Convolutions that a program may get wrong are here too.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.config import ConvolutionLayer
from attnkit.model.convolution import convolve, scale_places
from attnkit.model.dtypes import Array
from attnkit.model.graph.convolutions import as_frames
from attnkit.model.graph.nodes import Kind, Scope
from attnkit.model.spectrogram import (
    LEAST,
    RANGE,
    Spectrogram,
    hann_window,
    hertz_to_mels,
    make_triangles,
    mels_to_hertz,
    pad_sound,
)


class SoundInput(NamedTuple):
    """The samples (T,) of a sound, and whether a model reads them normalized.

    Normalized samples have mean 0 and variance 1.
    """

    samples: Array
    standardizes: bool = True


def _htk_mels(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def _htk_hertz(mels: Array) -> Array:
    hertz: Array = 700 * (10 ** (mels / 2595) - 1)
    return hertz


# scale of mels -> the mels of a frequency, and the frequencies of mels
SCALES: dict[str, tuple[Callable[[float], float], Callable[[Array], Array]]] = {
    "Slaney": (hertz_to_mels, mels_to_hertz),
    "HTK": (_htk_mels, _htk_hertz),
}
# window -> its values by their number
WINDOWS: dict[str, Callable[[int], Array]] = {
    "Hann": hann_window,
    "symmetric Hann": np.hanning,
    "Hamming": lambda size: 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(size) / size),
    "none": np.ones,
}
# logarithm of a band -> its function
LOGARITHMS: dict[str, Callable[[Array], Array]] = {
    "log10": np.log10,
    "ln": np.log,
    "log2": np.log2,
    "decibels": lambda x: 10 * np.log10(x),
}


def make_spectrogram(
    samples: Array,
    options: Spectrogram,
    scale: str = "Slaney",
    has_equal_areas: bool = True,
    window: str = "Hann",
    power: int = 2,
    logarithm: str = "log10",
    clamp: str = "sound",
    rescales: bool = True,
    mode: Any = "reflect",
    drops: str = "last",
    transform: int = 0,
    gain: float = 1.0,
) -> Array:
    """The log-mel spectrogram of a sound with a choice of every step: (T,) -> (F, M).

    mode       how the sound continues beyond its ends: a mode of np.pad; "": frames begin at its first sample
    drops      the frame that is left out: last or first
    transform  samples that the Fourier transform reads, with zeros after each frame; 0: those of the frame
    clamp      whose largest logarithm bounds the others: the sound's, each frame's, or none
    gain       factor of the samples
    """
    wide, half = samples.astype(np.float64) * gain, options.window // 2
    padded = np.pad(wide, half, mode=mode) if mode else np.pad(wide, (0, options.window))
    frames = np.lib.stride_tricks.sliding_window_view(padded, options.window)[:: options.hop]
    count = len(samples) // options.hop
    frames = frames[1 : count + 1] if drops == "first" else frames[:count]
    size = transform or options.window
    spectrum = np.abs(np.fft.rfft(frames * WINDOWS[window](options.window), size)) ** power
    mel = spectrum @ make_filters(options, size, scale, has_equal_areas)
    logs = LOGARITHMS[logarithm](np.maximum(mel, LEAST))
    largest = {"sound": logs.max(), "frame": logs.max(axis=-1, keepdims=True), "none": np.inf}[clamp]
    logs = logs if clamp == "none" else np.maximum(logs, largest - RANGE)
    return (logs + 4) / 4 if rescales else logs


def make_filters(options: Spectrogram, size: int, scale: str, has_equal_areas: bool) -> Array:
    """Triangles whose corners are equally spaced in mels, of equal area or height."""
    to_mels, to_hertz = SCALES[scale]
    corners = to_hertz(np.linspace(0, to_mels(options.rate / 2), options.mels + 2))
    triangles = make_triangles(corners, options.rate, size)
    return triangles * (2 / (corners[2:] - corners[:-2])) if has_equal_areas else triangles


def _mistaken_spectrogram(scope: Scope, sound: Array) -> Array:
    """Spectrograms with another choice of some steps: (B, T) -> (B, F, M)."""
    heard, mistake = scope.config.sound, dict(scope.option("mistake"))
    assert heard is not None and heard.spectrogram is not None
    options = heard.spectrogram._replace(**mistake.pop("numbers", {}))
    if mistake.pop("pads_features", False):
        short = [make_spectrogram(one[: heard.samples], options) for one in sound]
        return np.stack([np.pad(one, ((0, heard.samples // options.hop - len(one)), (0, 0))) for one in short])
    return np.stack([make_spectrogram(pad_sound(one, heard.samples), options, **mistake) for one in sound])


# sentence -> what is different in `make_spectrogram`, or its numbers
SPECTROGRAMS: dict[str, Mapping[str, Any]] = {
    "the mel filters are spaced by the HTK scale, not by Slaney's": {"scale": "HTK"},
    "the mel filters have equal heights, not equal areas (Slaney's normalization)": {"has_equal_areas": False},
    "the mel filters are spaced by the HTK scale and have equal heights": {"scale": "HTK", "has_equal_areas": False},
    "the window of the frames is missing": {"window": "none"},
    "the window of the frames is a Hamming window, not a Hann window": {"window": "Hamming"},
    "the Hann window of the frames is symmetric, not periodic": {"window": "symmetric Hann"},
    "the spectrum is the magnitude, not its square": {"power": 1},
    "the logarithm of the spectrogram is natural, not to base 10": {"logarithm": "ln"},
    "the logarithm of the spectrogram is to base 2, not to base 10": {"logarithm": "log2"},
    "the logarithm of the spectrogram is in decibels (10 log10)": {"logarithm": "decibels"},
    "the spectrogram is not clamped to its largest logarithm − 8": {"clamp": "none"},
    "each frame is clamped to its own largest logarithm − 8, not to that of the sound": {"clamp": "frame"},
    "the spectrogram is not rescaled by (x + 4)/4": {"rescales": False},
    "the sound continues with zeros at both ends, not reflected": {"mode": "constant"},
    "the frames begin at the first sample, they are not centered": {"mode": ""},
    "the first frame is left out, not the last": {"drops": "first"},
    "the Fourier transform is of 512 samples, with zeros after each frame": {"transform": 512},
    "the samples are not divided by 32768": {"gain": 32768.0},
    "silence is added to the spectrogram as zeros, not to the sound": {"pads_features": True},
}


def _mistaken_kernel(scope: Scope, x: Array) -> Array:
    """A convolution whose kernel is read in another way."""
    cut: ConvolutionLayer = scope.option("cut")
    params = {name: one for name in "wgb" if (one := scope.parameter(name)) is not None}
    kernel = KERNELS[scope.option("kernel")](params, cut)
    return convolve(as_frames(scope, x), kernel, params.get("b"), cut.options)["output"]


def _stored(params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    """The kernel as it is stored: (D, C, K)."""
    kernel: Array = params["w"].T.reshape(cut.filters, -1, cut.size)
    return kernel


def _whole(params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    """The kernel that is right."""
    kernel = _stored(params, cut)
    return scale_places(kernel, params["g"]) if cut.is_scaled else kernel


def _by_filter(params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    kernel = _stored(params, cut)
    divided: Array = params["g"] * kernel / np.sqrt(np.square(kernel).sum(axis=(1, 2), keepdims=True))
    return divided


def _by_frames(params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    kernel = _whole(params, cut)
    return np.ascontiguousarray(kernel.reshape(len(kernel), cut.size, -1).swapaxes(1, 2))


# what is mistaken -> the kernel (D, C, K) from parameters
KERNELS: dict[str, Callable[[Mapping[str, Array], ConvolutionLayer], Array]] = {
    "turned": lambda params, cut: np.ascontiguousarray(_whole(params, cut)[..., ::-1]),
    "by frames": _by_frames,
    "lengths of filters": _by_filter,
    "not divided": lambda params, cut: _stored(params, cut) * params["g"],
    "not multiplied": lambda params, cut: _whole({**params, "g": np.ones_like(params["g"])}, cut),
}

KINDS = {
    "mistaken spectrogram": Kind(value=_mistaken_spectrogram),
    "mistaken kernel": Kind(value=_mistaken_kernel),
}
