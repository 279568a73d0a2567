"""Heat maps as figures: every cell in its colour and place, no peak lost, every word legible."""

import re

import numpy as np
import pytest

from attnkit.display import TensorView
from attnkit.display.figures import FigureOptions, heatmap_section, render_figure
from attnkit.display.figures.colors import color_map
from attnkit.errors import DataError, UsageError

WORDS = ["The", "cat", "sat"]
VIRIDIS, SIGNED = color_map("viridis"), color_map("bwr")
MASKED = "url(#hatch)"


def draw(view, **options):
    options = FigureOptions(**options)
    return render_figure([heatmap_section(view, options)], options, "svg", "attnkit show").decode()


def weights(heads, size, labels=None, seed=0):
    array = np.random.default_rng(seed).random((heads, size, size))
    names = labels or [f"w{i}" for i in range(size)]
    return TensorView("weights", array, ("head", "query", "key"), [None, names, names])


def test_every_element_has_a_cell_of_its_colour_below_and_beside_its_words(read_picture):
    x = np.array([[0.0, 0.25, 0.5], [1.0, 0.75, 0.0]])
    picture = read_picture(draw(TensorView("x", x, ("query", "key"), [["a", "b"], WORDS])))
    expected = [[VIRIDIS[round(value * 64)] for value in row] for row in x.tolist()]
    assert picture.grids[0].tolist() == expected
    left, top, width, height = picture.corners[0]
    for column, word in enumerate(WORDS):
        found = picture.find(word)
        assert (found.x, found.angle, found.anchor) == (left + (column + 0.5) * width, 0, "middle")
        assert found.y > top + 2 * height
    for row, word in enumerate("ab"):
        found = picture.find(word)
        assert found.anchor == "end" and found.x < left and top + row * height < found.y < top + (row + 1) * height
    assert picture.find("query").angle == -90 and picture.find("key").y > picture.find("cat").y


def test_the_colour_bar_has_all_colours_and_the_ends_of_the_range(read_picture):
    picture = read_picture(draw(TensorView("x", np.array([[0.5, 2.0]]), ("token", "model"), [["a"], None])))
    assert picture.grids[-1][:, 0].tolist() == VIRIDIS[::-1]
    assert (picture.find("2").y, picture.find("0.5").y) < (picture.find("0.5").y, 1e9)


def test_a_tensor_of_both_signs_is_even_about_white(read_picture):
    picture = read_picture(draw(TensorView("x", np.array([[-1.0, 0.0, 4.0]]), ("token", "model"), [["a"], None])))
    assert picture.grids[0].tolist() == [[SIGNED[24], SIGNED[32], SIGNED[64]]] and SIGNED[32] == "#f7f7f7"
    assert {"4", "0", "-4"} <= set(picture.texts)


def test_a_requested_range_and_colour_map(read_picture):
    view = TensorView("x", np.array([[-1.0, 0.5, 4.0]]), ("token", "model"), [["a"], None])
    picture = read_picture(draw(view, range=(0.0, 1.0), colors="gray"))
    assert picture.grids[0].tolist() == [["#000000", "#808080", "#ffffff"]]
    assert "2 numbers outside of the range, drawn at its end" in picture.texts
    with pytest.raises(UsageError, match=r"no colour map 'virid' \(expected viridis, .*\); did you mean viridis\?"):
        draw(view, colors="virid")


def test_masked_cells_and_cells_that_are_not_finite_are_no_colours(read_picture):
    x = np.array([[0.5, -np.inf, 0.25], [np.nan, np.inf, 1.0]])
    mask = np.array([[True, True, False], [True, True, True]])
    picture = read_picture(draw(TensorView("weights", x, ("query", "key"), [None, None], mask=mask)))
    assert (picture.grids[0] == "").tolist() == [[False, True, True], [True, True, False]]
    left, top, width, height = picture.corners[0]
    data, x, y = next(rest for fill, *rest in picture.fills if fill == MASKED)
    assert data == f"M{left - x + width:g} {top - y:g}h{2 * width:g}v{height:g}h-{2 * width:g}z"
    assert {"masked", "not finite", "0.50", "0.25", "1.00"} & set(picture.texts) == {
        "masked", "not finite", "0.50", "1.00",
    }  # fmt: skip
    assert color_map("viridis").count("#ff00aa") == 0


@pytest.mark.parametrize("size", [241, 600, 1000])
def test_a_large_matrix_is_pooled_and_keeps_every_peak(read_picture, size):
    x = np.zeros((size, size))
    peaks = [(0, 0), (size - 1, size - 1), (7, size // 2), (size // 3, 1)]
    for row, column in peaks:
        x[row, column] = 1.0
    x[5, 5] = -1.0
    section = heatmap_section(TensorView("x", x, ("query", "key"), [None, None]), FigureOptions())
    factor = -(-size // 316)
    note = f"each cell shows the number of largest magnitude among {factor} × {factor}"
    assert section.notes[:1] == ([note] if factor > 1 else [])
    picture = read_picture(render_figure([section], FigureOptions(), "svg", "t").decode())
    cells = picture.grids[0]
    assert cells.shape == (-(-size // factor),) * 2
    expected = {(row // factor, column // factor) for row, column in peaks}
    assert set(zip(*np.nonzero(cells == SIGNED[64]), strict=True)) == expected
    assert (cells == SIGNED[0]).sum() == 1


def test_a_block_is_masked_where_all_of_it_is_and_not_finite_where_one_is(read_picture):
    x = np.full((700, 700), 0.5)
    x[:3, :3] = -np.inf
    x[4, 4] = np.nan
    x[0, 0] = 0.75
    picture = read_picture(draw(TensorView("x", x, ("query", "key"), [None, None])))
    cells = picture.grids[0]
    assert cells.shape == (234, 234) and cells[0, 0] == VIRIDIS[64] and cells[1, 1] == ""
    x[0, 0] = -np.inf
    assert read_picture(draw(TensorView("x", x, ("query", "key"), [None, None]))).grids[0][0, 0] == ""


@pytest.mark.parametrize(
    "heads, grid", [(1, (1, 1)), (2, (2, 1)), (4, (2, 2)), (6, (3, 2)), (8, (4, 2)), (12, (4, 3)), (16, (4, 4))]
)
def test_heads_are_in_a_balanced_grid_without_holes(read_picture, heads, grid):
    view = weights(heads, 5)
    picture = read_picture(draw(view))
    maps = picture.corners[:heads]
    assert (len({x for x, *_ in maps}), len({y for _, y, *_ in maps})) == grid
    assert [word for word in picture.texts if word.startswith("head ")] == [f"head {at}" for at in range(heads)]
    for at, cells in enumerate(picture.grids[:heads]):
        low, high = view.array.min(), view.array.max()
        assert (cells == np.array(VIRIDIS)[np.rint((view.array[at] - low) / (high - low) * 64).astype(int)]).all()


def test_seven_heads_have_their_words_below_the_last_of_each_column(read_picture):
    picture = read_picture(draw(weights(7, 5)))
    maps = picture.corners[:7]
    assert len({x for x, *_ in maps}) < 7
    for x, width in {(x, width) for x, _, width, _ in maps}:
        bottom = max(y + 5 * height for other, y, _, height in maps if other == x)
        below = [word for word in picture.words if word.text == "w0" and x < word.x < x + width]
        assert [bottom < word.y < bottom + 24 for word in below] == [True]


def test_the_range_is_shared_or_of_each_map(read_picture):
    view = weights(2, 3)
    view.array[1] *= 0.1
    shared, own = read_picture(draw(view)), read_picture(draw(view, range="each"))
    assert "2 heads, one range of colours" in shared.texts
    assert "2 heads, each with its own range of colours" in own.texts and {"min", "max"} <= set(own.texts)
    assert VIRIDIS[64] in shared.grids[0] and VIRIDIS[64] not in shared.grids[1]
    assert VIRIDIS[64] in own.grids[0] and VIRIDIS[64] in own.grids[1]


@pytest.mark.parametrize("size, angle, every", [(6, 0, 1), (30, -45, 1), (50, -90, 1), (64, -90, 2), (300, -90, 6)])
def test_words_are_turned_and_thinned_so_that_none_overlap(read_picture, size, angle, every):
    names = [f"word{i}" for i in range(size)]
    picture = read_picture(draw(TensorView("w", np.eye(size), ("query", "key"), [names, names])))
    turned = [word for word in picture.words if word.text.startswith("word") and word.y > picture.height / 2]
    columns = [word for word in turned if word.angle == angle and (angle or word.anchor == "middle")]
    assert [word.text for word in columns] == names[::every]
    distances = np.diff([word.x for word in columns])
    assert (distances * abs(np.sin(np.radians(angle or 90))) >= 11).all()  # the size of the text
    assert (f"labels: every {every}th query and key" in picture.texts) == (every > 3)


def test_indices_are_thinned_to_round_numbers(read_picture):
    picture = read_picture(draw(TensorView("x", np.zeros((3, 300)), ("token", "model"), [WORDS, None])))
    shown = [int(word.text) for word in picture.words if word.text.isdigit() and word.y > picture.corners[0][1] + 40]
    assert shown[:3] == [0, 20, 40] and not [text for text in picture.texts if text.startswith("labels")]


def test_numbers_in_cells_where_they_fit_or_on_request(read_picture):
    small, large = TensorView("x", np.eye(3) / 3, ("query", "key"), [WORDS, WORDS]), weights(1, 40)
    assert draw(small).count(">0.33<") == 3 and draw(small, numbers=False).count(">0.33<") == 0
    assert draw(small, precision=3).count(">0.333<") == 4  # and the colour bar
    assert len(read_picture(draw(large)).words) < 150 < 1600 < len(read_picture(draw(large, numbers=True)).words)
    whole = TensorView("mask", np.eye(3), ("query", "key"), [WORDS, WORDS])
    assert draw(whole).count(">1<") >= 3 and ">1.00<" not in draw(whole)


def test_numbers_are_legible_on_their_colour(read_picture):
    document = draw(TensorView("x", np.array([[0.0, 1.0]]), ("token", "model"), [["a"], None]))
    assert re.search(r'fill="#ffffff">0</text>', document) and re.search(r'fill="#000000">1</text>', document)


def test_a_map_of_50_by_64_is_below_60_kB_with_width_height_and_viewbox():
    noise = np.random.default_rng(0).normal(size=(50, 64))
    document = draw(TensorView("x", noise, ("token", "model"), [None, None]))
    assert len(document) < 60_000 and "clipPath" not in document
    width, height = re.search(r'width="(\d+)" height="(\d+)" viewBox="0 0 (?:\1) (?:\2)"', document).groups()
    assert 600 < int(width) < 1000 and 500 < int(height) < 900
    assert len(draw(weights(12, 600))) < 1_000_000


def test_the_title_is_name_and_formula_or_the_requested_one(read_picture):
    view = TensorView("weights", np.eye(2), ("query", "key"), [None, None], formula="softmax(QKᵀ)")
    assert read_picture(draw(view)).texts[:2] == ["weights= softmax(QKᵀ)", "(query 2, key 2) float64"]
    titled = read_picture(draw(view, title="Attention < 1"))
    assert titled.texts[0] == "Attention < 1" and "softmax(QKᵀ)" not in " ".join(titled.texts)


@pytest.mark.parametrize("theme, ground", [("light", "#ffffff"), ("dark", "#16181c"), ("transparent", None)])
def test_themes(theme, ground):
    document = draw(TensorView("x", np.eye(2), ("query", "key"), [None, None]), theme=theme)
    found = re.search(r'<path d="M0 0h\d+v\d+H0z" fill="(#\w+)"/>', document)
    assert (found and found[1]) == ground
    assert f'fill="{"#e8eaee" if theme == "dark" else "#1a1c20"}"' in document.splitlines()[0]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3), (2, 2, 2, 3), (1, 1)])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "bool"])
def test_every_rank_and_dtype_is_drawn(read_picture, shape, dtype):
    array = np.ones(shape, dtype)
    axes = ("batch", "head", "query", "key")[4 - len(shape) :]
    picture = read_picture(draw(TensorView("x", array, axes, [None] * len(shape))))
    assert sum(cells.size for cells in picture.grids[:-1]) == array.size


@pytest.mark.parametrize("peak", [1.7e308, 5e-324])
def test_the_extremes_of_float64(read_picture, peak):
    picture = read_picture(draw(TensorView("x", np.array([[-peak, 0.0, peak]]), ("token", "model"), [["a"], None])))
    assert picture.grids[0].tolist() == [[SIGNED[0], SIGNED[32], SIGNED[64]]]


def test_a_mask_that_does_not_broadcast_is_an_error():
    with pytest.raises(DataError, match="does not broadcast"):
        draw(TensorView("x", np.eye(2), ("query", "key"), [None, None], mask=np.ones(3, bool)))
