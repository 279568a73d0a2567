"""The nodes of convolutions, and the samples or spectrograms that they read."""

import math
from typing import Any

import numpy as np

from attnkit.model.config import POSITION_CONVOLUTION, Config
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.norms import channel_norm_vjp, group_norm_vjp, layer_norm_vjp
from attnkit.model.formulas.spectrogram import log_mel, pad_sound
from attnkit.model.graph.costs import Cost, Costs, Sizes
from attnkit.model.graph.linear import count_norm, scale_and_shift, standardize
from attnkit.model.graph.nodes import Built, Inputs, Kind, Node, Place, Scope
from attnkit.model.layers.convolutions import multiply_windows_backward

VARIANCE = 1e-7  # added to the variance of the samples of a sound


def _spectrogram(scope: Scope, sound: Array) -> Array:
    """The spectrograms of sounds, cut or padded: (B, T) -> (B, F, M).

    The padding is silence, to the length that a model reads.
    """
    heard = scope.config.sound
    assert heard is not None and heard.spectrogram is not None
    each = [log_mel(pad_sound(one, heard.samples), heard.spectrogram)["output"] for one in sound]
    return np.stack(each)


def _count_spectrogram(sizes: Sizes) -> Costs:
    """Fourier transforms, and the product of their power with the filters.

    A transform of W samples counts as 5/2 W log2 W elementwise FLOPs.
    """
    window, [sound] = sizes.option("window"), sizes.shapes
    frames, mels, bins = math.prod(sizes.node.shape[:-1]), sizes.node.shape[-1], window // 2 + 1
    each = frames * (window + round(2.5 * window * math.log2(window)) + 3 * bins) + 4 * frames * mels
    read = math.prod(sound) + bins * mels
    return [Cost(flops=2 * frames * mels * bins, elementwise=each, read=read, written=frames * mels)]


def _samples(scope: Scope, sound: Array) -> Array:
    """Samples, normalized in each sound or as they are: (B, T) -> (B, T).

    Normalized samples have mean 0 and variance 1.
    """
    return standardize(scope, sound, "layer", scope.option("eps")) if scope.option("standardizes") else sound


def _undo_samples(scope: Scope, dy: Array, y: Array, sound: Array) -> list[Array]:
    return [layer_norm_vjp(sound, eps=scope.option("eps"))[1](dy).x if scope.option("standardizes") else dy]


def _convolve(scope: Scope, x: Array) -> Array:
    """Windows of frames (B, F, C) or samples (B, T) times a kernel: (B, F', D)."""
    return scope.functions.convolve(as_frames(scope, x), _kernel_parameters(scope), scope.option("cut"))


def _kernel_parameters(scope: Scope) -> dict[str, Array]:
    return {name: one for name in "wgb" if (one := scope.parameter(name)) is not None}


def _undo_convolve(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    cut, params, real = scope.option("cut"), _kernel_parameters(scope), scope.option("real")
    dx, gradients = multiply_windows_backward(dy, as_frames(scope, x), params, cut)
    scope.add(scope.node.layer, gradients)
    return [(dx if real is None else np.where(real[..., None], dx, 0)).reshape(x.shape)]


def _count_convolution(sizes: Sizes) -> Costs:
    """The product of the windows; a kernel that is normalized has a length of its own."""
    cost = sizes.product(sizes.option("names"))
    return [cost._replace(parameters=cost.parameters + sizes.own("g"))]


def as_frames(scope: Scope, x: Array) -> Array:
    """The input of a convolution with channels, zeros for padding: (B, F, C)."""
    real = scope.option("real")
    frames = x[..., None] if scope.option("cut").reads_samples else x
    return frames if real is None else scope.xp.where(real[..., None], frames, np.zeros((), frames.dtype))


def _norm_channels(scope: Scope, x: Array) -> Array:
    """Normalize each channel over all frames: (..., F, D) -> (..., F, D).

    The mean becomes 0 and the variance 1.
    """
    if scope.option("skips"):
        return x
    rows = np.swapaxes(x, -1, -2)
    apart = rows.reshape(*x.shape[:-2], -1) if scope.option("together") else rows
    y = standardize(scope, apart, "layer", scope.option("eps")).reshape(rows.shape)
    return scale_and_shift(scope, np.swapaxes(y, -1, -2), *map(scope.parameter, scope.option("names")))


def _undo_norm_channels(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    gamma, beta = map(scope.parameter, scope.option("names"))
    vjp = group_norm_vjp if scope.option("together") else channel_norm_vjp
    dx, *parts = vjp(x, gamma, beta, eps=scope.option("eps"))[1](dy)
    scope.add(scope.node.layer, dict(zip(scope.option("names"), parts, strict=True)))
    return [dx]


KINDS = {
    "spectrogram": Kind(value=_spectrogram, cost=_count_spectrogram),
    "samples": Kind(value=_samples, pullback=_undo_samples),
    "convolve": Kind(value=_convolve, pullback=_undo_convolve, cost=_count_convolution),
    "norm of channels": Kind(value=_norm_channels, pullback=_undo_norm_channels, cost=count_norm),
}


def sound_site(config: Config) -> str:
    """The site that the first convolution of a model reads."""
    return "spectrogram" if config.sound and config.sound.spectrogram else "samples"


def build_sound(core: Model, inputs: Inputs) -> Built:
    """What a model reads of a sound, if the sound is given."""
    config = core.config
    if inputs.sound is not None and config.sound:
        mel, samples = config.sound.spectrogram, {"standardizes": inputs.standardizes, "eps": VARIANCE}
        options = {"window": mel.window} if mel else samples
        site = sound_site(config)
        yield Node(site, site, ("sound",), inputs.made_shape(config.sound), options=options)


def build_convolution(place: Place) -> Built:
    layer, config, inputs = place.step.layer, place.core.config, place.inputs
    sound, cut = config.sound, config.convolution(layer)
    assert sound is not None
    part, is_of_positions = layer.rpartition(".")[2], layer.endswith(f".{POSITION_CONVOLUTION}")
    frames = place.tokens if is_of_positions else sound.frames_after(part, inputs.heard_shape(sound)[1])
    shape = (place.batch, frames, cut.filters)
    options: dict[str, Any] = {"cut": cut, "names": ("w", "b")}
    if is_of_positions and inputs.mask is not None and not inputs.mask.all():
        options["real"] = inputs.mask
    convolved = f"{layer}.convolved"
    yield Node(convolved, "convolve", (place.x,), shape, layer, options)
    kind = "norm" if cut.norm == "layer" else "norm of channels"
    norm = {"kind": "layer", "eps": 1e-5, "names": ("gamma", "beta")} | (
        {"together": True} if cut.norm == "group" else {}
    )
    if cut.norm_last:
        yield Node(f"{layer}.activated", "activate", (convolved,), shape, options={"activation": cut.activation})
        yield Node(layer, kind, (f"{layer}.activated",), shape, layer, norm)
        return
    if cut.norm:
        yield Node(f"{layer}.normalized", kind, (convolved,), shape, layer, norm)
        convolved = f"{layer}.normalized"
    yield Node(layer, "activate", (convolved,), shape, options={"activation": cut.activation})
