"""A step of a convolution: its kernel, norm and activation."""

from collections.abc import Mapping

import numpy as np

from attnkit.model.config import ConvolutionLayer
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, DType, working
from attnkit.model.formulas.activations import apply_activation
from attnkit.model.formulas.convolution import convolve, convolve_backward, scale_places, scale_places_backward
from attnkit.model.formulas.norms import channel_norm, group_norm, layer_norm
from attnkit.model.hooks import apply_hook


def apply_convolution(model: Model, layer: str, x: Array, context: Context) -> Array:
    cut, inner = model.config.convolution(layer), convolve_frames(model, layer, x, context)
    if cut.norm_last:
        activated = apply_hook(context.hook, f"{layer}.activated", apply_activation(cut.activation, inner))
        return apply_hook(context.hook, layer, normalize_channels(activated, model.params[layer], cut))
    if cut.norm:
        inner = apply_hook(context.hook, f"{layer}.normalized", normalize_channels(inner, model.params[layer], cut))
    return apply_hook(context.hook, layer, apply_activation(cut.activation, inner))


def convolve_frames(model: Model, layer: str, x: Array, context: Context) -> Array:
    """The convolution of a layer before its norm: (..., F, C) -> (..., F', D).

    Samples are (..., F).
    """
    cut, params = model.config.convolution(layer), model.params[layer]
    frames = x.astype(context.dtype or x.dtype, copy=False)
    frames = frames[..., None] if cut.reads_samples else frames
    return apply_hook(context.hook, f"{layer}.convolved", multiply_windows(frames, params, cut))


def multiply_windows(frames: Array, params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    """The windows of frames by the kernel of a layer: (..., F, C) -> (..., F', D)."""
    return convolve(frames, find_kernel(params, cut, working(frames)), params.get("b"), cut.options)["output"]


def multiply_windows_backward(
    grad_output: Array, frames: Array, params: Mapping[str, Array], cut: ConvolutionLayer
) -> tuple[Array, dict[str, Array]]:
    """The gradients of the frames, and of the parameters by name.

    grad_output (..., F', D), frames (..., F, C) -> (..., F, C)
    """
    dx, dkernel, db = convolve_backward(grad_output, frames, find_kernel(params, cut, working(frames)), cut.options)
    lengths = {}
    if cut.is_scaled:
        kernel = params["w"].T.reshape(cut.filters, -1, cut.size)
        dkernel, lengths["g"] = scale_places_backward(dkernel, kernel, params["g"])
    return dx, {"w": dkernel.reshape(len(dkernel), -1).T, **lengths} | ({"b": db} if "b" in params else {})


def find_kernel(params: Mapping[str, Array], cut: ConvolutionLayer, dtype: DType) -> Array:
    """The kernel (D, C, K) of a convolution, from a matrix and perhaps lengths.

    w (C * K, D), g (K,)

    Lengths apply in float64, before the kernel is rounded to the dtype of the computation.
    """
    kernel: Array = params["w"].T.reshape(cut.filters, -1, cut.size)
    return scale_places(kernel.astype(np.float64), params["g"]).astype(dtype) if cut.is_scaled else kernel


def normalize_channels(x: Array, params: Mapping[str, Array], cut: ConvolutionLayer) -> Array:
    """The norm after a convolution, of each frame, of each channel, or of all.

    (..., F, D) -> (..., F, D)
    """
    gamma, beta = params.get("gamma"), params.get("beta")
    if cut.norm == "layer":
        return layer_norm(x, gamma, beta).y
    return (channel_norm if cut.norm == "channel" else group_norm)(x, gamma, beta)
