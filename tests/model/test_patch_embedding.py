"""Patches by hand and as the convolution they stand for, and grids of positions that change their size."""

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.model import extract_patches, interpolate_positions, normalize_pixels
from attnkit.model.formulas.patch_embedding import antialiased_weights


def test_patches_by_hand():
    image = np.arange(24).reshape(2, 2, 6)  # two channels of two rows
    rows = extract_patches(image, 1, 3)
    assert rows.tolist() == [
        [0, 1, 2, 12, 13, 14], [3, 4, 5, 15, 16, 17], [6, 7, 8, 18, 19, 20], [9, 10, 11, 21, 22, 23],
    ]  # fmt: skip
    np.testing.assert_array_equal(extract_patches(np.stack([image, image + 1]), 1, 3), [rows, rows + 1])


def test_patches_are_the_windows_of_a_strided_convolution():
    rng = np.random.default_rng(0)
    image, kernel = rng.standard_normal((3, 4, 6)), rng.standard_normal((5, 3, 2, 3))
    seen = extract_patches(image, 2, 3) @ kernel.reshape(5, -1).T
    expected = [np.tensordot(kernel, image[:, y : y + 2, x : x + 3], 3) for y in (0, 2) for x in (0, 3)]
    np.testing.assert_allclose(seen, expected)


def test_images_of_a_wrong_shape_are_refused():
    with pytest.raises(DataError, match=r"image \(3,5,6\): 5 x 6 is not divisible by patches of 2 x 3"):
        extract_patches(np.zeros((3, 5, 6)), 2, 3)
    with pytest.raises(DataError, match="not divisible by patches of 0 x 3"):
        extract_patches(np.zeros((3, 6, 6)), 0, 3)
    with pytest.raises(DataError, match=r"image \(4,4\): rank 2"):
        extract_patches(np.zeros((4, 4)), 2, 2)


def test_an_image_becomes_numbers_channel_by_channel():
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[..., 1], pixels[1, 2, 2] = 255, 51
    x = normalize_pixels(pixels, [0.5, 0.5, 0.2], [0.5, 0.25, 0.1])
    assert x.dtype == np.float32 and x.shape == (3, 2, 3) and x.flags.c_contiguous
    np.testing.assert_array_equal(x[:2], np.broadcast_to(np.float32([-1, 2])[:, None, None], (2, 2, 3)))
    np.testing.assert_allclose([x[2, 0, 0], x[2, 1, 2]], [-2, 0], atol=1e-6)
    with pytest.raises(DataError, match=r"2 means for image \(2,3,3\): expected 3"):
        normalize_pixels(pixels, [0.5, 0.5], [1, 1, 1])
    with pytest.raises(DataError, match="1 deviations"):
        normalize_pixels(pixels, [0, 0, 0], [1])
    with pytest.raises(DataError, match="a deviation of 0"):
        normalize_pixels(pixels, [0, 0, 0], [1, 0, 1])
    with pytest.raises(DataError, match="rank 2"):
        normalize_pixels(pixels[0], [0, 0, 0], [1, 1, 1])


# torch 2.13, torch.nn.functional.interpolate(grid, size=(3, 4), mode="bicubic", align_corners=False) in float64, of the
# 2 x 2 grid of the numbers 0 to 7 squared, two features a point
SQUARES = [
    [-1.66427951, -1.78059896], [-0.79730903, 0.41449653], [0.63064236, 4.02994792], [1.49761285, 6.2250434],
    [6.734375, 11.3125], [10.71875, 16.625], [17.28125, 25.375], [21.265625, 30.6875],
    [15.13302951, 24.40559896], [22.23480903, 32.83550347], [33.93185764, 46.72005208], [41.03363715, 55.1499566],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_positions_of_a_larger_grid_as_published(dtype):
    table = np.concatenate([[[9, 8]], np.arange(8).reshape(4, 2) ** 2]).astype(dtype)
    larger = interpolate_positions(table, 2, 2, 3, 4)
    assert larger.dtype == dtype
    np.testing.assert_array_equal(larger[0], [9, 8])
    np.testing.assert_allclose(larger[1:], SQUARES, rtol=1e-3 if dtype == np.float16 else 1e-6)


def test_a_grid_of_the_same_size_is_the_same():
    table = np.random.default_rng(0).standard_normal((7, 4))
    np.testing.assert_array_equal(interpolate_positions(table, 2, 3, 2, 3), table)


def test_interpolation_preserves_constants_and_interior_linear_ramps():
    np.testing.assert_allclose(interpolate_positions(np.full((13, 2), 5.0), 3, 4, 7, 2), 5.0)
    ramp = np.concatenate([[[0.0]], np.arange(8.0)[:, None]])
    np.testing.assert_allclose(interpolate_positions(ramp, 8, 1, 4, 1)[2:4, 0], [2.5, 4.5])


def test_rows_and_columns_are_not_mistaken_for_each_other():
    table = np.random.default_rng(1).standard_normal((7, 2))
    turned = np.concatenate([table[:1], table[1:].reshape(2, 3, 2).swapaxes(0, 1).reshape(6, 2)])
    there = interpolate_positions(table, 2, 3, 5, 4)[1:].reshape(5, 4, 2)
    np.testing.assert_allclose(interpolate_positions(turned, 3, 2, 4, 5)[1:].reshape(4, 5, 2), there.swapaxes(0, 1))


def test_a_smooth_kernel_widens_for_fewer_points_and_is_keys_of_one_half_for_more():
    # of 4 points 2: each new one reads a kernel twice as wide, cut at the edge
    kernel = np.array([0.8671875, 0.8671875, 0.2265625, -0.0703125])  # at 1/4, 1/4, 3/4, 5/4
    row = kernel / kernel.sum()
    np.testing.assert_allclose(antialiased_weights(4, 2), [row, row[::-1]], rtol=1e-15)
    np.testing.assert_allclose(antialiased_weights(2, 4)[1], np.array([0.8671875, 0.2265625]) / 1.09375, rtol=1e-15)


def test_a_grid_without_a_class_token_is_interpolated_alike():
    table = np.random.default_rng(2).standard_normal((7, 2))
    np.testing.assert_array_equal(
        interpolate_positions(table[1:], 2, 3, 4, 5), interpolate_positions(table, 2, 3, 4, 5)[1:]
    )


def test_a_table_that_is_no_such_grid():
    with pytest.raises(DataError, match=r"position table \(5,2\): expected 2 x 3 rows"):
        interpolate_positions(np.zeros((5, 2)), 2, 3, 4, 4)
    with pytest.raises(DataError, match="grid of 0 x 4 patches"):
        interpolate_positions(np.zeros((7, 2)), 2, 3, 0, 4)
