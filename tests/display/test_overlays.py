"""Maps over a picture: every cell in its colour where its patch is, over the picture in grey."""

import io

import numpy as np
import pytest

from attnkit.display import TensorView
from attnkit.display.colors import color_map
from attnkit.display.figures import FigureOptions, overlay_section, render_figure
from tests.pictures import Picture

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

VIRIDIS = color_map("viridis")
HALVES = np.zeros((40, 80, 3), np.uint8)
HALVES[:, 40:] = 255  # black at the left, white at the right
WHOLE = np.array([0.0, 0.0, 1.0, 1.0])
HEADS = np.array([[[0.0, 0.25], [0.5, 1.0]], [[1.0, 0.0], [0.0, 0.0]]])


def section(array, box=WHOLE, picture=HALVES, axes=("head", "row", "column"), chosen="", **options):
    view = TensorView("weights", array, axes[-array.ndim :], [None] * array.ndim)
    return overlay_section(view, picture, np.asarray(box), FigureOptions(**options), chosen)


def draw(*args, **how):
    return Picture(render_figure([section(*args, **how)], FigureOptions(), "svg", "t").decode())


def edges(picture, at):
    """Left, top, right and bottom of a grid of cells."""
    left, top, width, height = picture.box(at)
    rows, columns = picture.grids[at].shape
    return np.array([left, top, left + columns * width, top + rows * height])


@pytest.mark.parametrize("box", [(0, 0, 1, 1), (0.25, 0, 0.75, 1), (0.125, 0.5, 0.25, 0.75), (-0.5, -1, 1.5, 1.25)])
def test_cells_are_where_their_patches_are_in_the_picture(box):
    picture = draw(HEADS, box)
    assert [grid.shape for grid in picture.grids[:5]] == [(40, 80), (40, 80), (2, 2), (40, 80), (2, 2)]
    for at, head in ((1, 0), (3, 1)):
        left, top, right, bottom = edges(picture, at)
        wide, high = right - left, bottom - top
        assert wide / high == pytest.approx(2, rel=1e-4)
        expected = [left + box[0] * wide, top + box[1] * high, left + box[2] * wide, top + box[3] * high]
        np.testing.assert_allclose(edges(picture, at + 1), expected, atol=1e-2)
        assert picture.grids[at + 1].tolist() == [[VIRIDIS[round(64 * one)] for one in row] for row in HEADS[head]]
    assert ("part of the picture that the model reads" in " ".join(picture.texts)) is (box != (0, 0, 1, 1))


def test_the_picture_comes_first_in_its_colours_and_is_grey_below_a_map():
    red = np.full((4, 4, 3), (255, 0, 0), np.uint8)
    picture = draw(HEADS[0], picture=red)
    assert picture.grids[0][0, 0] == "#ff0000"
    assert picture.grids[1][0, 0] == "#767676"  # 60 + 0.299 · 195 = 118
    assert picture.texts.count("picture") == 1 and picture.find("picture").x == pytest.approx(edges(picture, 0)[0])


def test_pixels_are_the_colour_of_the_cell_over_the_grey():
    """A cell at its largest over white: 0.6 of the colour and 0.4 of white; outside of the box the grey alone."""
    one = section(np.array([[1.0]]), box=(0.5, 0, 1, 1), range=(0.0, 1.0))
    data = render_figure([one], FigureOptions(), "png", "t")
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    yellow = np.array(list(bytes.fromhex(VIRIDIS[-1][1:])))
    expected = np.rint(0.6 * yellow + 0.4 * 255)
    drawn = (np.abs(pixels - expected).max(axis=-1) <= 2).sum()
    black = (np.abs(pixels - 60).max(axis=-1) == 0).sum()
    assert 0.9 < drawn / black < 1.1 and drawn > 50_000


def test_heads_share_a_range_or_have_their_own():
    small = HEADS * [[[1.0]], [[0.1]]]
    assert draw(small).grids[4][0, 0] == VIRIDIS[6]
    picture = draw(small, range="each")
    assert picture.grids[4][0, 0] == VIRIDIS[64] and "2 heads, each with its own range of colours" in picture.texts
    assert "head 1 (0 … 0.1)" in picture.texts


def test_masked_and_not_finite_patches_are_told_apart():
    picture = draw(np.array([[-np.inf, np.nan], [0.5, 1.0]]))
    assert picture.grids[2].tolist() == [["", "#ff00aa"], [VIRIDIS[0], VIRIDIS[64]]]
    assert {"masked", "not finite"} <= set(picture.texts)


def test_the_description_says_what_was_chosen():
    assert section(HEADS, chosen="query cls").description == "(head 2, row 2, column 2) float64, query cls"
    assert section(np.zeros((0, 2, 2))).description == "(head 0, row 2, column 2) float64, empty"


@pytest.mark.parametrize(("shape", "count"), [((1, 1), 1), ((1, 3000), 1), ((3000, 1), 1), ((2000, 1500), 100)])
def test_any_picture_is_drawn_and_a_figure_stays_small(shape, count):
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    one = section(np.random.default_rng(1).random((count, 3, 2)), picture=noise)
    data = render_figure([one], FigureOptions(), "svg", "t")
    assert len(data) < 8_000_000
    assert ("… 36 more heads" in one.notes) is (count == 100)
