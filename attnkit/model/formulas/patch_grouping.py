"""Rows of a text made of the patches of a picture: blocks of patches, or each."""

from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array


class Grouping(NamedTuple):
    """How the tokens of a picture become rows.

    kind     shuffle: the patches of a block side by side; mean: their mean; patches: each patch; all: every token
    grid     rows and columns of the patches
    block    rows and columns of a block
    before   tokens before the patches, which only `all` keeps
    """

    kind: str
    grid: tuple[int, int]
    block: int = 1
    before: int = 0


def group_patches(x: Array, how: Grouping) -> Array:
    """Make rows of the tokens of a picture, block by block in reading order.

    x (..., T, D) -> (..., T', D'), with D' = D block² for shuffle

    The features of a shuffled block are ordered by row in the block, column in the block, and feature (pixel shuffle,
    Shi et al. 2016). DataError if the blocks do not divide the grid.

    >>> x = np.arange(8.0).reshape(8, 1)  # two rows of four patches
    >>> group_patches(x, Grouping("shuffle", (2, 4), 2)).tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]
    >>> group_patches(x, Grouping("mean", (2, 4), 2)).ravel().tolist()
    [2.5, 4.5]
    """
    if how.kind == "all":
        return x
    patches = x[..., how.before :, :]
    if how.kind == "patches":
        return patches
    blocks = split_blocks(patches, how)
    if how.kind == "mean":
        mean: Array = blocks.mean(axis=-2)
        return mean
    return blocks.reshape(*blocks.shape[:-2], -1)


def split_blocks(patches: Array, how: Grouping) -> Array:
    """The patches of each block: (..., P, D) -> (..., blocks, block², D)."""
    (rows, columns), block, (*lead, tokens, width) = how.grid, how.block, patches.shape
    if tokens != rows * columns or rows % block or columns % block:
        expected = f"expected {rows} x {columns} patches in blocks of {block} x {block}"
        raise DataError.about("x", f"{as_text(patches.shape)}: {expected}")
    cut = patches.reshape(*lead, rows // block, block, columns // block, block, width)
    at = len(lead)
    turned = cut.transpose(*range(at), at, at + 2, at + 1, at + 3, at + 4)
    return turned.reshape(*lead, -1, block * block, width)


def group_patches_backward(grad_output: Array, shape: tuple[int, ...], how: Grouping) -> Array:
    """Gradient of the tokens of a picture from that of its rows.

    grad_output (..., T', D') -> shape (..., T, D)

    >>> group_patches_backward(np.array([[4.0], [8.0]]), (8, 1), Grouping("mean", (2, 4), 2)).ravel().tolist()
    [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]
    """
    if how.kind == "all":
        return grad_output
    gradient, (rows, columns), block, width = np.zeros(shape, grad_output.dtype), how.grid, how.block, shape[-1]
    if how.kind == "patches":
        gradient[..., how.before :, :] = grad_output
        return gradient
    lead = shape[:-2]
    parts = grad_output[..., None, :] / block**2 if how.kind == "mean" else grad_output
    cut = (*lead, rows // block, columns // block, block, block, width)
    if how.kind == "mean":
        parts = np.broadcast_to(parts, (*parts.shape[:-2], block * block, width))
    at = len(lead)
    turned = parts.reshape(cut).transpose(*range(at), at, at + 2, at + 1, at + 3, at + 4)
    gradient[..., how.before :, :] = turned.reshape(*lead, rows * columns, width)
    return gradient
