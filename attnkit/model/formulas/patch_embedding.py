"""Patch embedding: normalize pixels, cut patches, interpolate positions."""

from collections.abc import Callable, Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text, check_gradient
from attnkit.model.dtypes import Array, cast, output_dtype, working


def normalize_pixels(pixels: Array, mean: Sequence[float], std: Sequence[float], scale: float = 1 / 255) -> Array:
    """Normalize the channels of an image, each (scale x - mean) / std.

    Products with the scale are computed in float64 and rounded to float32, as transformers does.

    pixels (height, width, C), mean (C,), std (C,) -> (C, height, width) float32

    DataError if there is not one mean and one deviation for each channel, or where a deviation is 0.

    >>> normalize_pixels(np.array([[[0, 255]]], np.uint8), [0.5, 0.5], [0.5, 0.5]).ravel()
    array([-1.,  1.], dtype=float32)
    """
    if pixels.ndim != 3:
        raise DataError.about(
            "image", f"{as_text(pixels.shape)}: rank {pixels.ndim}, expected 3 (height, width, channel)"
        )
    for name, values in (("means", mean), ("deviations", std)):
        if len(values) != pixels.shape[-1]:
            raise DataError(f"{len(values)} {name} for image {as_text(pixels.shape)}: expected {pixels.shape[-1]}")
    if 0 in std:
        raise DataError("a deviation of 0 (expected positive numbers)")
    center, spread = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    scaled = ((pixels * np.float64(scale)).astype(np.float32) - center) / spread
    return np.ascontiguousarray(np.moveaxis(scaled, -1, 0))


def extract_patches(image: Array, patch_height: int, patch_width: int) -> Array:
    """Split an image into patches, row by row, each flattened channel by channel.

    image (..., C, height, width) -> (..., rows * columns, C * patch_height * patch_width)

    Source: ViT (Dosovitskiy et al. 2021), section 3.1. DataError if the patch does not divide the image.

    >>> extract_patches(np.arange(8).reshape(1, 2, 4), 2, 2)
    array([[0, 1, 4, 5],
           [2, 3, 6, 7]])
    """
    if image.ndim < 3:
        raise DataError.about(
            "image", f"{as_text(image.shape)}: rank {image.ndim}, expected 3 or more (channel, height, width)"
        )
    *lead, channels, height, width = image.shape
    if min(patch_height, patch_width) < 1 or height % patch_height or width % patch_width:
        size = f"{patch_height} x {patch_width}"
        raise DataError.about(
            "image", f"{as_text(image.shape)}: {height} x {width} is not divisible by patches of {size}"
        )
    rows, columns = height // patch_height, width // patch_width
    cut = image.reshape(*lead, channels, rows, patch_height, columns, patch_width)
    ordered = np.moveaxis(cut, (-4, -2), (-5, -4))  # (..., rows, columns, C, patch_height, patch_width)
    return ordered.reshape(*lead, rows * columns, channels * patch_height * patch_width)


def extract_patches_backward(
    grad_output: Array, image_shape: tuple[int, ...], patch_height: int, patch_width: int
) -> Array:
    """Gradient of an image from the gradient of its patches.

    grad_output (..., rows * columns, C * patch_height * patch_width) -> image_shape (..., C, height, width)

    DataError if the shapes do not match.

    >>> extract_patches_backward(np.array([[0, 1, 4, 5], [2, 3, 6, 7]]), (1, 2, 4), 2, 2).tolist()
    [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    """
    *lead, channels, height, width = image_shape
    rows, columns = height // patch_height, width // patch_width
    shape = (*lead, rows * columns, channels * patch_height * patch_width)
    check_gradient(grad_output, shape, "the patches")
    ordered = grad_output.reshape(*lead, rows, columns, channels, patch_height, patch_width)
    cut = np.moveaxis(ordered, (-5, -4), (-4, -2))  # (..., C, rows, patch_height, columns, patch_width)
    return cut.reshape(image_shape)


def interpolate_positions(
    table: Array, rows: int, columns: int, new_rows: int, new_columns: int, resampling: str = "bicubic"
) -> Array:
    """Interpolate learned positions of a grid of patches to another size.

    table (1 + rows * columns, D), or without a class token (rows * columns, D) -> (1 + new_rows * new_columns, D)

    The row of the class token is unchanged. Bicubic: a new point is at scale (i + 1/2) - 1/2 of the old grid and uses
    its four neighbours on each axis, the nearest of the edge if there are none, by Keys' cubic kernel (1981, equation
    4) with a = -3/4. `resampling` is a row of RESAMPLINGS. DataError if the table does not hold the grid.

    >>> interpolate_positions(np.array([[9.0], [0.0], [4.0]]), 1, 2, 1, 4).ravel().round(4)
    array([ 9.    , -0.4219,  0.9062,  3.0938,  4.4219])
    """
    first = len(table) - rows * columns
    if table.ndim != 2 or first not in (0, 1) or min(rows, columns) < 1:
        expected = f"expected {rows} x {columns} rows, as the grid has, and 1 or none before"
        raise DataError.about("position", f"table {as_text(table.shape)}: {expected}")
    if min(new_rows, new_columns) < 1:
        raise DataError(f"grid of {new_rows} x {new_columns} patches (expected 1 or more)")
    if (rows, columns) == (new_rows, new_columns):
        return table
    dtype = working(table)
    grid = cast(table[first:], dtype).reshape(rows, columns, table.shape[1])
    weigh = RESAMPLINGS[resampling]
    down, across = weigh(rows, new_rows).astype(dtype), weigh(columns, new_columns).astype(dtype)
    tall = np.tensordot(down, grid, 1)  # (new_rows, columns, D)
    points = (across @ tall).reshape(new_rows * new_columns, table.shape[1])
    return np.concatenate([table[:first], points]).astype(output_dtype(table), copy=False)


def interpolate_positions_backward(
    grad_output: Array, rows: int, columns: int, new_rows: int, new_columns: int, resampling: str = "bicubic"
) -> Array:
    """Gradient of a position table that was interpolated to another grid.

    grad_output (1 + new_rows * new_columns, D) -> (1 + rows * columns, D); without a class token 1 less of both

    DataError if the gradient does not have the shape of the new grid.

    >>> interpolate_positions_backward(np.array([[9.0], [1.0], [0.0], [0.0], [0.0]]), 1, 2, 1, 4).ravel().round(4)
    array([ 9.    ,  1.1055, -0.1055])
    """
    width, dtype = grad_output.shape[-1], working(grad_output)
    first = int(len(grad_output) > new_rows * new_columns)
    check_gradient(grad_output, (first + new_rows * new_columns, width), "the interpolated positions")
    if (rows, columns) == (new_rows, new_columns):
        return grad_output
    gradient = cast(grad_output, dtype)
    points = gradient[first:].reshape(new_rows, new_columns, width)
    weigh = RESAMPLINGS[resampling]
    down, across = weigh(rows, new_rows).astype(dtype), weigh(columns, new_columns).astype(dtype)
    tall = across.T @ points  # (new_rows, columns, D)
    grid = np.tensordot(down.T, tall, 1).reshape(rows * columns, width)
    return np.concatenate([gradient[:first], grid])


def add_register_rows(table: Array, registers: int) -> Array:
    """Insert zeros for registers after the class token; they have no positions.

    table (1 + P, D) -> (1 + registers + P, D)
    """
    return np.insert(table, 1, np.zeros((registers, 1), table.dtype), axis=0) if registers else table


def bicubic_weights(old: int, new: int, where: Array | None = None) -> Array:
    """Weight of each old point in each new one along an axis: (new, old).

    where (new,) places of the new points among the old [their middles at the same scale]

    >>> bicubic_weights(2, 2, np.array([0.0, 1.0])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    where = old / new * (np.arange(new) + 0.5) - 0.5 if where is None else where
    first = np.floor(where)
    weights = np.zeros((new, old))
    for step in (-1, 0, 1, 2):
        source = np.clip(first.astype(np.int64) + step, 0, old - 1)
        weights[np.arange(new), source] += _kernel(np.abs(where - first - step))
    return weights


def antialiased_weights(old: int, new: int) -> Array:
    """`bicubic_weights` with a = -1/2, widened by old/new for fewer points.

    (new, old)

    Points beyond an edge have no weight, and the weights of each new point add up to 1, as PyTorch and Pillow do.
    """
    scale = old / new
    where = scale * (np.arange(new)[:, None] + 0.5) - 0.5
    weights = _kernel(np.abs(np.arange(old) - where) / max(scale, 1.0), a=-0.5)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def nearest_weights(old: int, new: int) -> Array:
    """Weights of the old point that the beginning of each new one lies in.

    (new, old)

    >>> nearest_weights(2, 3).argmax(axis=1).tolist()
    [0, 0, 1]
    """
    return np.eye(old)[np.arange(new) * old // new]


# how a grid of positions is fitted to another: (old, new) points of an axis -> weights (new, old)
RESAMPLINGS: dict[str, Callable[[int, int], Array]] = {
    "bicubic": bicubic_weights,
    "antialiased": antialiased_weights,
    "nearest": nearest_weights,
}


def _kernel(distance: Array, a: float = -0.75) -> Array:
    """Keys' bicubic kernel: one cubic up to a distance of 1, another up to 2."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
