"""Convolution over one and two dimensions, channels first as in PyTorch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.linear import with_bias
from attnkit.debugger.slips import BY_FRAMES, TURNED
from attnkit.model.exercises.worked_steps import Formula, transposed
from attnkit.model.slips import Slip

(BY_PLACES,) = BY_FRAMES
(TURNED_KERNEL,) = TURNED


def pad_sides(x: Any, padding: Any, over: int, before: bool = True, after: bool = True, mode: str = "constant") -> Any:
    """Zeros around the last dimensions."""
    sides = (int(padding) * before, int(padding) * after)
    return np.pad(x, [(0, 0)] * (x.ndim - over) + [sides] * over, mode=mode)  # type: ignore[call-overload]


def windows_of_kernel(x: Any, kernel: Any, stride: Any, over: int) -> Any:
    """The windows of a kernel: (..., C, L) -> (..., L', C, K).

    Of two dimensions (..., C, L, M) -> (..., L', M', C, K, J).
    """
    axes = tuple(range(x.ndim - over, x.ndim))
    found: Any = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[-over:], axes)  # (..., C, L', M', K, J)
    steps = np.broadcast_to(np.asarray(stride, int), over)
    found = found[(Ellipsis, *(slice(None, None, step) for step in steps), *[slice(None)] * over)]
    return np.moveaxis(found, -2 * over - 1, -over - 1)


def multiply(windows: Any, kernel: Any, over: int) -> Any:
    """Products of windows and kernels (E, C, K, J): (..., E, L', M')."""
    products = np.tensordot(windows, kernel, (range(-over - 1, 0), range(1, over + 2)))
    return np.moveaxis(products, -1, -over - 1)


def turn_kernel(kernel: Any, over: int) -> Any:
    return np.flip(kernel, tuple(range(-over, 0)))


def read_by_places(kernel: Any, over: int) -> Any:
    """The numbers of (E, C, K, J) read as (E, K, J, C)."""
    return np.moveaxis(kernel.reshape(len(kernel), *kernel.shape[2:], kernel.shape[1]), -1, 1)


def keep_first(kernel: Any, over: int) -> Any:
    """A kernel with zeros for all channels but the first."""
    return kernel * (np.arange(kernel.shape[1]) == 0).reshape(-1, *[1] * over)


def make_steps(over: int) -> dict[str, Formula]:
    """The steps of a convolution over some dimensions."""
    return {
        "padded": lambda x, padding: pad_sides(x, padding, over),
        "kernel": lambda w: w,
        "windows": lambda padded, kernel, stride: windows_of_kernel(padded, kernel, stride, over),
        "products": lambda windows, kernel: multiply(windows, kernel, over),
        "output": lambda products, b: with_bias(products, None if b is None else b.reshape(-1, *[1] * over)),
    }


def make_slips(over: int) -> list[Slip[Formula]]:
    """The slips of a convolution over some dimensions."""
    steps = make_steps(over)

    def padded(words: str, times: int = 1, **sides: Any) -> Slip[Formula]:
        return Slip(words, {"padded": lambda x, padding: pad_sides(x, times * padding, over, **sides)})

    def kernel(words: str, read: Formula, hint: str = "") -> Slip[Formula]:
        return Slip(words, {"kernel": lambda w: read(w)}, hint)

    slips: list[Slip[Formula]] = [
        kernel(TURNED_KERNEL, lambda w: turn_kernel(w, over), "in networks it is a correlation"),
        Slip("the bias is missing", {"output": lambda products: products}),
        Slip(
            "the stride is ignored: it is always 1",
            {"windows": lambda padded, kernel: windows_of_kernel(padded, kernel, 1, over)},
        ),
        Slip("the padding is ignored", {"padded": lambda x: x}),
        padded("the zeros are all before the input (causal)", 2, after=False),
        padded("there are zeros before the input alone", after=False),
        padded("there are zeros after the input alone", before=False),
        padded("the zeros are twice as many", 2),
        padded("the input is continued by its ends, not by zeros", mode="edge"),
        padded("the input is reflected at its ends, not continued by zeros", mode="reflect"),
        kernel(BY_PLACES, lambda w: read_by_places(w, over)),
        kernel("the first channel alone is read", lambda w: keep_first(w, over)),
        Slip(
            "the products are divided by the number of channels",
            {"products": lambda windows, kernel: multiply(windows, kernel, over) / kernel.shape[1]},
        ),
        Slip(
            "an activation follows (max(0, ·))",
            {"output": lambda products, b: np.maximum(steps["output"](products, b), 0)},
        ),
    ]
    if over == 2:
        slips += [
            kernel("the kernel is transposed: its dimensions are exchanged", transposed),
            Slip(
                "the stride moves along the first dimension alone",
                {"windows": lambda padded, kernel, stride: windows_of_kernel(padded, kernel, (int(stride), 1), 2)},
            ),
            kernel("the kernel is turned around in its last dimension alone", lambda w: np.flip(w, -1)),
        ]
    return slips


def channels_last(over: int) -> dict[str, Way]:
    """Where the channels of inputs and answers are, and the axes of the kernel."""

    def send(x: Any) -> Any:
        return np.moveaxis(x, -over - 1, -1)

    return {
        "first": Way(),
        "last": Way("channels: last", {"x": send}, {"output": lambda products, b: with_bias(send(products), b)}),
    }


X = "x input inputs image images in_features signal input_matrix input_image a_prev"
W = "w weight weights kernel kernels filters filter"


def convolution(over: int, axes: str, kernel: str, sizes: Mapping[str, int], functions: str) -> Definition:
    """The definition of a convolution over some dimensions."""
    dimensions = "one dimension" if over == 1 else "two dimensions"
    return Definition(
        f"convolution over {dimensions}, with stride and zeros around the input",
        {
            "x": Argument(f"... C {axes}", X),
            "w": Argument(f"E C {kernel}", W, role="parameter"),
            "b": Argument("E", "b bias", role="parameter"),
            "stride": Argument("", "stride strides s", role="number"),
            "padding": Argument("", "padding pad p", role="number"),
            "params": Argument(
                "", "conv_param hparameters params", role="number", collects={"stride": "stride", "padding": "pad"}
            ),
        },
        make_steps(over),
        sizes,
        (
            Case("plain"),
            Case("bias", needs=("b",)),
            Case("stride", given={"stride": 2}, needs=("stride",)),
            Case("padding", given={"padding": 2}, needs=("padding",)),
            Case("stride, padding and bias", given={"stride": 3, "padding": 1}, needs=("b", "stride", "padding")),
            Case("one text" if over == 1 else "one image", lead=(1,)),
            Case("no leading axis", lead=(), note="attnkit and PyTorch read it as a batch of one"),
        ),
        f"... E {axes}",
        make_slips(over),
        {
            "channels": channels_last(over),
            "weights": {
                "out,in": Way(),
                "in,out": Way(
                    f"weights: ({kernel.replace(' ', ', ')}, in, out)",
                    {"w": lambda w: np.moveaxis(w, (0, 1), (-1, -2))},
                ),
            },
        },
        functions,
        {"stride": 1, "padding": 0},
        {
            "C": "in_channels c_in channels_in in_ch",
            "E": "out_channels c_out channels_out out_ch num_filters",
            "K": "kernel_size k ksize size",
        },
    )


CONV1D = convolution(1, "L", "K", {"C": 3, "E": 5, "L": 11, "K": 4}, "conv1d Conv1d conv run_conv1d convolve1d Conv1D")
CONV2D = convolution(
    2,
    "L M",
    "K K",
    {"C": 3, "E": 5, "L": 11, "M": 9, "K": 4},
    "conv2d Conv2d conv_forward_naive conv_forward simple_conv2d run_conv2d Conv2D",
)

DEFINITIONS = {"conv1d": CONV1D, "conv2d": CONV2D}
