"""The graph of a model for the debugger: with the kinds that only slips have.

A picture that the pixels are made of is its first node.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from attnkit.debugger import pictures, state_slips
from attnkit.debugger.pictures import PictureInput, pixel_node
from attnkit.model.config import ConvolutionLayer
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.exercises.worked_steps import Formula, work
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.formulas.causal_convolution import causal_convolution
from attnkit.model.formulas.convolution import convolve, scale_places
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.spectrogram import (
    LEAST,
    RANGE,
    Spectrogram,
    hann_window,
    hertz_to_mels,
    make_triangles,
    mels_to_hertz,
    pad_sound,
)
from attnkit.model.graph.attention import cut_fused
from attnkit.model.graph.convolutions import as_frames
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.networks import CUTS
from attnkit.model.graph.nodes import Inputs, Kind, Scope
from attnkit.model.passes.model_graph import model_graph


def debugged_graph(core: Model, inputs: Inputs, picture: PictureInput | None = None) -> Graph:
    """The graph of a model, in which every slip has a value.

    picture  that the pixels of the inputs are made of; None: they are given
    """
    graph = model_graph(core, inputs)
    before = {} if picture is None else {"pixels": pixel_node(picture)}
    kinds = {**graph.kinds, **pictures.KINDS, **state_slips.KINDS, **KINDS}
    return replace(graph, nodes={**before, **graph.nodes}, kinds=kinds)


def _split_wrong(scope: Scope, x: Array) -> Array:
    """One of q, k and v, cut out of their fused projection in another layout."""
    return cut_fused(scope, [scope.linear(x, f"w{letter}", f"b{letter}") for letter in "qkv"])


def _cut_latent(scope: Scope, latent: Array) -> Array:
    """The keys or values of all heads, cut out of their expansion another way."""
    keys, values = (view_heads(scope.linear(latent, name, ""), scope.option("heads")) for name in ("wk", "wv"))
    fused, content = merge_heads(np.concatenate([keys, values], axis=-1)), keys.shape[-1]
    if scope.option("cut") == "flat":
        count = content * scope.option("heads")
        return fused[..., :count] if scope.option("place") == "k" else fused[..., count:]
    heads, value = view_heads(fused, scope.option("heads")), values.shape[-1]
    return merge_heads(heads[..., value:] if scope.option("place") == "k" else heads[..., :value])


def _cut_gate(scope: Scope, *arrays: Array) -> Array:
    """One of gate and up, cut out of their fused projection in another way.

    The arrays are what both are projected from, or both, after a factor of the result if there is one.
    """
    if len(arrays) == 1:
        arrays = tuple(scope.linear(arrays[0], f"w{digit}", f"b{digit}") for digit in "13")
    *factors, gate, up = arrays
    part = ACTIVATIONS[scope.option("activation", "identity")](
        CUTS[scope.option("cut")](gate, up)[scope.option("place")]
    )
    return part * factors[0] if factors else part


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


@cache
def spectrogram_steps(
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
) -> dict[str, Formula]:
    """The steps of the log-mel spectrogram of a sound x (T,), with a choice of each.

    They read besides `rate`, and `size`, `hop` and `mels` of its windows; the last one, `output`, is (F, M).

    mode       how the sound continues beyond its ends: a mode of np.pad; "": frames begin at its first sample
    drops      the frame that is left out: last, first or none
    transform  samples that the Fourier transform reads, with zeros after each frame; 0: those of the frame
    clamp      whose largest logarithm bounds the others: the sound's, each frame's, or none
    """

    def cut(x: Any, size: Any, hop: Any) -> Any:
        size, hop = int(size), int(hop)
        padded = np.pad(x, size // 2, mode=mode) if mode else np.pad(x, (0, size))
        frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
        count = len(x) // hop
        return {"last": frames[:count], "first": frames[1 : count + 1], "none": frames[: count + 1]}[drops]

    def bound(logs: Any) -> Any:
        largest = {"sound": logs.max(), "frame": logs.max(-1, keepdims=True), "none": np.inf}[clamp]
        return logs if clamp == "none" else np.maximum(logs, largest - RANGE)

    return {
        "frames": cut,
        "windowed": lambda frames: frames * WINDOWS[window](frames.shape[-1]),
        "spectrum": lambda windowed: np.abs(np.fft.rfft(windowed, transform or windowed.shape[-1])),
        "power": lambda spectrum: spectrum**power,
        "filters": lambda rate, size, hop, mels: make_filters(
            Spectrogram(int(rate), int(size), int(hop), int(mels)), transform or int(size), scale, has_equal_areas
        ),
        "mel": lambda power, filters: power @ filters,
        "logs": lambda mel: LOGARITHMS[logarithm](np.maximum(mel, LEAST)),
        "clamped": bound,
        "output": lambda clamped: (clamped + 4) / 4 if rescales else clamped,
    }


def make_spectrogram(samples: Array, options: Spectrogram, *, gain: float = 1.0, **choices: Any) -> Array:
    """The log-mel spectrogram of a sound with a choice of every step: (T,) -> (F, M).

    gain  factor of the samples; choices: of `spectrogram_steps`
    """
    given = {"x": samples.astype(np.float64) * gain, "rate": options.rate, "size": options.window}
    given |= {"hop": options.hop, "mels": options.mels}
    output: Array = work(spectrogram_steps(**choices), given)["output"]
    return output


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


def _mistaken_window(scope: Scope, x: Array) -> Array:
    """A causal convolution with other windows, turned taps, or an activation."""
    taps, bias = map(scope.parameter, scope.option("names"))
    assert taps is not None
    real, ahead, tokens = scope.option("real"), scope.option("ahead", 0), x.shape[1]
    biases = [scope.parameter(name) for name in scope.option("padding", ())]
    blank = np.prod([one for one in biases if one is not None], axis=0) if biases else np.zeros((), x.dtype)
    x = x if real is None else np.where(real[..., None], x, blank)
    around = np.pad(x, ((0, 0), (max(-ahead, 0), max(ahead, 0)), (0, 0)))
    y = causal_convolution(around, taps[::-1] if scope.option("turned") else taps, bias)
    return ACTIVATIONS[scope.option("activation", "identity")](y[:, max(ahead, 0) :][:, :tokens])


# kinds of nodes that no model has
KINDS = {
    "split wrong": Kind(value=_split_wrong),
    "cut latent": Kind(value=_cut_latent),
    "cut gate": Kind(value=_cut_gate),
    "mistaken spectrogram": Kind(value=_mistaken_spectrogram),
    "mistaken kernel": Kind(value=_mistaken_kernel),
    "mistaken window": Kind(value=_mistaken_window),
}
