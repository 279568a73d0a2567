"""The adjoints of patch embedding: patches back to the image, interpolated positions back to their grid."""

import numpy as np

from attnkit.model.backward.linear import check_gradient
from attnkit.model.dtypes import Array, cast, working
from attnkit.model.patch_embedding import bicubic_weights


def extract_patches_backward(
    grad_output: Array, image_shape: tuple[int, ...], patch_height: int, patch_width: int
) -> Array:
    """Return the gradient of an image from that of its patches: every pixel is in one patch.

    grad_output (..., rows * columns, C * patch_height * patch_width) -> image_shape (..., C, height, width)

    DataError where the shapes do not match.

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


def interpolate_positions_backward(
    grad_output: Array, rows: int, columns: int, new_rows: int, new_columns: int
) -> Array:
    """Return the gradient of a position table that was interpolated to another grid, by the transposed weights.

    grad_output (1 + new_rows * new_columns, D) -> (1 + rows * columns, D)

    DataError where the gradient does not have the shape of the new grid.

    >>> interpolate_positions_backward(np.array([[9.0], [1.0], [0.0], [0.0], [0.0]]), 1, 2, 1, 4).ravel().round(4)
    array([ 9.    ,  1.1055, -0.1055])
    """
    width = grad_output.shape[-1]
    check_gradient(grad_output, (1 + new_rows * new_columns, width), "the interpolated positions")
    if (rows, columns) == (new_rows, new_columns):
        return grad_output
    dtype = working(grad_output)
    gradient = cast(grad_output, dtype)
    points = gradient[1:].reshape(new_rows, new_columns, width)
    down, across = bicubic_weights(rows, new_rows).astype(dtype), bicubic_weights(columns, new_columns).astype(dtype)
    tall = across.T @ points  # (new_rows, columns, D)
    grid = np.tensordot(down.T, tall, 1).reshape(rows * columns, width)
    return np.concatenate([gradient[:1], grid])
