"""Convolution over one or two dimensions, with its adjoint.

Each output is a product of a window with the kernel.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text, check_gradient
from attnkit.model.dtypes import Array, DType, cast, output_dtype, quiet, working
from attnkit.model.formulas.linear import as_rows, sum_rows

MOST = 1 << 22  # numbers of windows that are copied at a time


class Convolution(NamedTuple):
    """How a kernel moves over its input; one number holds for every dimension.

    stride    the distance of two windows
    padding   zeros around the input: one number for all sides, one a dimension, or all first sides and then all last
              ones, as ONNX has them; same: so many that stride s makes ⌈size / s⌉ windows, an odd one of them at the
              end; same-lower: at the beginning; causal: all before the input, so that a window ends at its own token
    dilation  the distance of two numbers of a window
    groups    parts of the channels, each with outputs of its own
    """

    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] | str = (0,)
    dilation: tuple[int, ...] = (1,)
    groups: int = 1


class Windows(NamedTuple):
    """The windows of an input: kernel, stride, dilation and zeros around it.

    Stride and dilation are those of each dimension.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    groups: int

    def spans(self) -> tuple[int, ...]:
        """What a window covers of each dimension."""
        return tuple((size - 1) * step + 1 for size, step in zip(self.kernel, self.dilation, strict=True))

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many windows each dimension of an input has."""
        sides = zip(sizes, self.before, self.after, self.spans(), self.stride, strict=True)
        return tuple((size + first + last - span) // stride + 1 for size, first, last, span, stride in sides)

    def counts_of_padded(self, padded: Array) -> tuple[int, ...]:
        """How many windows each dimension of a padded input (N, L, C) has."""
        sides = zip(padded.shape[1:-1], self.spans(), self.stride, strict=True)
        return tuple((size - span) // stride + 1 for size, span, stride in sides)


@quiet
def convolve(
    x: Array, weight: Array, bias: Array | None = None, options: Convolution | None = None, keep: Sequence[str] = ()
) -> dict[str, Array]:
    """Convolution, as PyTorch and ONNX define it: no kernel is turned around.

    x (..., L, C), weight (E, C / groups, K) -> output (..., L', E), or over two dimensions
    x (..., L, M, C), weight (E, C / groups, K, J) -> output (..., L', M', E); bias (E,)

    keep  steps to return too: padded, the input with its zeros, and windows (..., L', C * K), each in the order of the
          kernel

    DataError if the shapes do not match, or if a window is larger than the padded input. Source: ONNX Conv-22.

    >>> convolve(np.array([[1.0], [2.0], [4.0]]), np.array([[[1.0, 10.0]]]))["output"].tolist()
    [[21.0], [42.0]]
    """
    windows = find_windows(x, weight, options or Convolution())
    if bias is not None and bias.shape != weight.shape[:1]:
        raise DataError.about("b", f"{as_text(bias.shape)}: expected {as_text(weight.shape[:1])}, one for each output")
    dtype = working(*(array for array in (x, weight, bias) if array is not None))
    lead, sizes, _ = split_shape(x, windows)
    shape = (*lead, *windows.counts(sizes))
    padded = pad_input(cast(x, dtype), windows)
    matrices = group_kernels(weight, windows, dtype)
    output = np.empty((math.prod(shape), len(weight)), dtype)
    copies = np.empty((len(output), matrices[..., 0].size), dtype) if "windows" in keep else None
    for block in split_windows(padded, windows):
        parts = gather(padded, windows, block)
        output[block.rows] = join_groups(parts @ matrices)
        if copies is not None:
            copies[block.rows] = join_groups(parts)
    if bias is not None:
        output += cast(bias, dtype)
    steps = {"output": output.reshape(*shape, len(weight))}
    if "padded" in keep:
        steps["padded"] = padded.reshape(*lead, *padded.shape[1:])
    if copies is not None:
        steps["windows"] = copies.reshape(*shape, copies.shape[-1])
    return {name: array.astype(output_dtype(x), copy=False) for name, array in steps.items()}


@quiet
def convolve_backward(
    grad_output: Array, x: Array, weight: Array, options: Convolution | None = None
) -> tuple[Array, Array, Array]:
    """Gradients of a convolution, of x, weight and bias.

    grad_output (..., L', E) -> (..., L, C), (E, C / groups, K), (E,)

    DataError if the shapes do not match.

    >>> x, weight = np.array([[1.0], [2.0], [4.0]]), np.array([[[1.0, 10.0]]])
    >>> [gradient.ravel().tolist() for gradient in convolve_backward(np.array([[1.0], [0.5]]), x, weight)]
    [[1.0, 10.5, 5.0], [2.0, 4.0], [1.5]]
    """
    windows = find_windows(x, weight, options or Convolution())
    dtype = working(grad_output, x, weight)
    lead, sizes, _ = split_shape(x, windows)
    check_gradient(grad_output, (*lead, *windows.counts(sizes), len(weight)), "the convolution")
    padded, matrices = pad_input(cast(x, dtype), windows), group_kernels(weight, windows, dtype)
    dpadded, dmatrices = np.zeros_like(padded), np.zeros_like(matrices)
    rows = as_rows(cast(grad_output, dtype))
    for block in split_windows(padded, windows):
        dy = np.swapaxes(rows[block.rows].reshape(-1, windows.groups, matrices.shape[-1]), 0, 1)
        dmatrices += np.swapaxes(gather(padded, windows, block), -1, -2) @ dy
        scatter(join_groups(dy @ np.swapaxes(matrices, -1, -2)), dpadded, windows, block)
    inner = tuple(slice(first, first + size) for first, size in zip(windows.before, sizes, strict=True))
    dweight = np.swapaxes(dmatrices, -1, -2).reshape(weight.shape)
    return dpadded[(slice(None), *inner)].reshape(x.shape), dweight, sum_rows(rows)


def scale_places(kernel: Array, lengths: Array) -> Array:
    """Scale a kernel by a length at each place of a window.

    (E, C, K), (K,) -> (E, C, K)

    Source: weight normalization (Salimans and Kingma 2016), over all axes but the last as wav2vec 2.0 has it.

    >>> scale_places(np.array([[[3.0, 1.0]], [[4.0, 0.0]]]), np.array([10.0, 2.0])).tolist()
    [[[6.0, 2.0]], [[8.0, 0.0]]]
    """
    scaled: Array = kernel * (lengths / np.sqrt((kernel * kernel).sum(axis=(0, 1))))
    return scaled


def scale_places_backward(grad_output: Array, kernel: Array, lengths: Array) -> tuple[Array, Array]:
    """Gradients of a kernel and of its lengths from that of the scaled kernel.

    grad_output (E, C, K), kernel (E, C, K), lengths (K,) -> (E, C, K), (K,)

    >>> dy, kernel = np.array([[[1.0]], [[0.0]]]), np.array([[[3.0]], [[4.0]]])
    >>> [part.round(4).ravel().tolist() for part in scale_places_backward(dy, kernel, np.array([10.0]))]
    [[1.28, -0.96], [0.6]]
    """
    size = np.sqrt((kernel * kernel).sum(axis=(0, 1)))
    unit = kernel / size
    along = (unit * grad_output).sum(axis=(0, 1))
    return (grad_output - unit * along) * (lengths / size), along


def find_windows(x: Array, weight: Array, options: Convolution) -> Windows:
    """The windows of an input; DataError where x and the weight do not match."""
    over = weight.ndim - 2
    pair = f"{as_text(weight.shape)} for x {as_text(x.shape)}"
    if over not in (1, 2):
        raise DataError.about("w", f"{pair}: rank {weight.ndim}, expected 3 (E, C, K) or 4 (E, C, K, J)")
    if x.ndim <= over:
        raise DataError.about("w", f"{pair}: expected {over + 1} axes of x or more, {over} and channels")
    outputs, each, *kernel = weight.shape
    if min(weight.shape) < 1:
        raise DataError.about("w", f"{as_text(weight.shape)}: an empty kernel")
    if each * options.groups != x.shape[-1]:
        parts = f" in each of {options.groups} groups" if options.groups > 1 else ""
        raise DataError.about("w", f"{pair}: a kernel of {each} channels{parts}, but x has {x.shape[-1]}")
    if outputs % options.groups:
        raise DataError.about("w", f"{as_text(weight.shape)}: {outputs} outputs are no multiple of {options.groups}")
    sizes = x.shape[-1 - over : -1]
    stride, dilation = repeat_number(options.stride, over, "stride"), repeat_number(options.dilation, over, "dilation")
    plain = Windows(tuple(kernel), stride, dilation, (0,) * over, (0,) * over, options.groups)
    before, after = find_zeros(options.padding, plain, sizes)
    windows = plain._replace(before=before, after=after)
    if min(windows.counts(sizes)) < 1:
        padded = tuple(sum(sides) for sides in zip(sizes, before, after, strict=True))
        raise DataError.about("w", f"{pair}: a window of {by(windows.spans())} in an input of {by(padded)}")
    return windows


def count_windows(frames: int, size: int, options: Convolution) -> int:
    """How many windows of some frames an input of one dimension has.

    >>> count_windows(10, 3, Convolution((2,), (1,))), count_windows(10, 3, Convolution((2,)))
    (5, 4)
    """
    windows = Windows((size,), options.stride, options.dilation, (0,), (0,), options.groups)
    before, after = find_zeros(options.padding, windows, (frames,))
    return windows._replace(before=before, after=after).counts((frames,))[0]


def by(sizes: Sequence[int]) -> str:
    """Sizes as text.

    >>> by((3, 5))
    '3 x 5'
    """
    return " x ".join(map(str, sizes))


def find_zeros(
    padding: tuple[int, ...] | str, windows: Windows, sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The zeros before and after each dimension."""
    over = len(sizes)
    if isinstance(padding, tuple):
        both = padding if len(padding) == 2 * over else 2 * repeat_number(padding, over, "padding", 2 * over)
        return both[:over], both[over:]
    if padding == "causal":
        if over > 1:
            raise UsageError("causal for a kernel of two dimensions (expected one)", "--padding")
        return (windows.spans()[0] - 1,), (0,)
    each = zip(sizes, windows.spans(), windows.stride, strict=True)
    totals = [max((math.ceil(size / stride) - 1) * stride + span - size, 0) for size, span, stride in each]
    less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (less, more) if padding == "same" else (more, less)


def repeat_number(numbers: tuple[int, ...], over: int, name: str, most: int = 0) -> tuple[int, ...]:
    """One number for each dimension; UsageError for another number of them."""
    if len(numbers) == 1:
        return numbers * over
    if len(numbers) != over:
        counts = " or ".join(str(count) for count in dict.fromkeys((1, over, most)) if count)
        dimensions = "one dimension" if over == 1 else "two dimensions"
        raise UsageError(f"{len(numbers)} numbers of {name} for a kernel of {dimensions} (expected {counts})")
    return numbers


def split_shape(x: Array, windows: Windows) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The shape of x: that of the batch, the dimensions, and the channels."""
    over = len(windows.kernel)
    return x.shape[: -1 - over], x.shape[-1 - over : -1], x.shape[-1]


def pad_input(x: Array, windows: Windows) -> Array:
    """The input with zeros around it, as one batch: (N, L, C)."""
    lead, sizes, channels = split_shape(x, windows)
    sides = [(0, 0), *zip(windows.before, windows.after, strict=True), (0, 0)]
    return np.pad(x.reshape(math.prod(lead), *sizes, channels), sides)


def group_kernels(weight: Array, windows: Windows, dtype: DType) -> Array:
    """The kernels as one matrix for each group: (groups, C / groups * K, E / groups)."""
    return np.swapaxes(cast(weight, dtype).reshape(windows.groups, len(weight) // windows.groups, -1), -1, -2)


class WindowBlock(NamedTuple):
    """Some windows of an input: the text or image, its rows, and their numbers."""

    item: int
    first: slice
    rows: slice


def split_windows(padded: Array, windows: Windows) -> Iterator[WindowBlock]:
    """Split all windows into blocks that are small enough to copy."""
    count, *others = windows.counts_of_padded(padded)
    each = math.prod(others)
    step = max(1, MOST // max(1, each * padded.shape[-1] * math.prod(windows.kernel)))
    for item in range(len(padded)):
        for begin in range(0, count, step):
            end = min(begin + step, count)
            yield WindowBlock(
                item, slice(begin, end), slice((item * count + begin) * each, (item * count + end) * each)
            )


def gather(padded: Array, windows: Windows, block: WindowBlock) -> Array:
    """Copy a block of windows, each in the order of the kernel.

    (groups, windows, C / groups * K)
    """
    over = len(windows.kernel)
    axes = tuple(range(over))
    view = np.lib.stride_tricks.sliding_window_view(padded[block.item], windows.spans(), axis=axes)
    places = tuple(slice(None, None, step) for step in windows.stride)
    inside = tuple(slice(None, None, step) for step in windows.dilation)
    chosen = view[(*places, slice(None), *inside)][block.first]  # (L', C, K)
    parts = chosen.reshape(block.rows.stop - block.rows.start, windows.groups, -1)
    return np.swapaxes(parts, 0, 1)


def scatter(gradients: Array, dpadded: Array, windows: Windows, block: WindowBlock) -> None:
    """Add gradients of a block of windows (windows, C * K) to the padded input's."""
    counts = (block.first.stop - block.first.start, *windows.counts_of_padded(dpadded)[1:])
    parts = gradients.reshape(*counts, dpadded.shape[-1], *windows.kernel)
    starts = (block.first.start * windows.stride[0], *(0 for _ in counts[1:]))
    for place in np.ndindex(*windows.kernel):
        spots = zip(starts, place, windows.dilation, windows.stride, counts, strict=True)
        at = tuple(
            slice(start + number * step, start + number * step + (count - 1) * stride + 1, stride)
            for start, number, step, stride, count in spots
        )
        dpadded[block.item][at] += parts[(..., *place)]


def join_groups(parts: Array) -> Array:
    """Put the groups of each row side by side.

    (groups, rows, D) -> (rows, groups * D)
    """
    return np.swapaxes(parts, 0, 1).reshape(parts.shape[1], -1)
