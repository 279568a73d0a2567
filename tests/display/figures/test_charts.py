"""Curves, statistics and typeset tables: their points, bars and cells."""

import re

import numpy as np
import pytest

from attnkit.display import TensorView
from attnkit.display.figures import FigureOptions, curves_section, render_figure, statistics_section, tensor_section
from attnkit.display.figures.colors import SERIES
from attnkit.display.figures.scales import linear_ticks


def strokes(section):
    svg = render_figure([section], FigureOptions(), "svg", "t").decode()
    found = re.findall(r'<path d="([^"]*)" fill="none" stroke="(#\w+)"', svg)
    return {color: data for data, color in reversed(found)}  # the legend is last


def test_a_curve_goes_through_its_points():
    x = np.array([[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]])
    section = curves_section(TensorView("x", x, ("token", "model"), [None, None]), FigureOptions())
    found = strokes(section)
    points = [[float(n) for n in re.findall(r"-?\d*\.?\d+", data)] for data in (found[SERIES[0]], found[SERIES[1]])]
    heights = [points[0][1::2], points[1][1::2]]
    top, bottom = min(heights[0]), max(heights[0])
    assert heights == [[bottom, top, (top + bottom) / 2], [top, top, bottom]]
    assert len({round(b - a, 1) for row in points for a, b in zip(row[::2], row[2::2], strict=False)}) == 1


def test_a_curve_outside_of_the_requested_range_is_drawn_at_its_end():
    x = np.array([[0.5], [7.0], [-7.0]])
    view = TensorView("x", x, ("token", "model"), [None, None])
    section = curves_section(view, FigureOptions(range=(0.0, 1.0)))
    heights = [float(n) for n in re.findall(r"-?\d*\.?\d+", strokes(section)[SERIES[0]])][1::2]
    assert heights[0] == (heights[1] + heights[2]) / 2 and heights[2] - heights[1] == 300
    assert section.notes == ["2 numbers outside of the range, drawn at its end"]


def test_what_is_not_finite_interrupts_a_curve():
    x = np.array([[0.0], [1.0], [np.nan], [1.0], [np.inf], [0.0], [1.0]])
    data = strokes(curves_section(TensorView("x", x, ("token", "model"), [None, None]), FigureOptions()))[SERIES[0]]
    assert re.sub(r"[\d. ]", "", data) == "MLMhML" and "nan" not in data


def test_of_many_columns_eight_are_drawn_and_the_note_says_so():
    view = TensorView("x", np.ones((3, 64)), ("token", "model"), [None, None])
    section = curves_section(view, FigureOptions())
    assert section.notes == ["curves of 8 of the 64 indices of model"]
    svg = render_figure([section], FigureOptions(), "svg", "t").decode()
    assert all(f">{column}</text>" in svg for column in range(0, 64, 8))


@pytest.mark.parametrize(("shape", "axes", "curves"), [((2, 5), ("head", "query"), 2), ((1, 5), ("row", "key"), 1)])
def test_a_head_or_a_single_row_is_a_curve_over_its_columns(shape, axes, curves):
    words = ["The", "cat", "sat", "on", "it"]
    view = TensorView("x", np.arange(float(np.prod(shape))).reshape(shape), axes, [None, words])
    section = curves_section(view, FigureOptions())
    found = [data for data in strokes(section).values() if data.count("L") == 4]
    assert len(found) == curves and section.notes == [] and section.description == view.description()
    svg = render_figure([section], FigureOptions(), "svg", "t").decode()
    assert all(f">{word}</text>" in svg for word in words) and f">{axes[0]}</text>" in svg


def test_a_single_point_is_visible():
    view = TensorView("x", np.array([[0.0], [np.nan]]), ("token", "model"), [None, None])
    svg = render_figure([curves_section(view, FigureOptions())], FigureOptions(), "svg", "t").decode()
    assert re.search(r'<path d="M[\d. ]+h0" [^>]*stroke-linecap="round"', svg)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3)])
def test_curves_of_every_rank(shape):
    view = TensorView("x", np.ones(shape), ("head", "token", "model")[3 - len(shape) :], [None] * len(shape))
    section = curves_section(view, FigureOptions())
    assert len(section.panels) == {(): 0, (0, 3): 0, (5,): 1, (2, 3, 4): 2}[shape]
    assert render_figure([section], FigureOptions(), "svg", "t")


@pytest.mark.parametrize(
    "low, high", [(0.0, 1.0), (-3.0, 7.0), (1e-9, 2e-9), (-1.7e308, 1.7e308), (5.0, 5.0), (0.0, 5e-324), (1e6, 1e6 + 1)]
)
def test_ticks_are_few_and_between_the_ends(low, high):
    ticks = linear_ticks(low, high)
    assert 1 <= len(ticks) <= 8 and all(np.isfinite(ticks)) and ticks == sorted(ticks)
    assert all(low - (high - low) * 1e-6 <= tick / 1 <= high + (high / 2 - low / 2) * 1e-6 for tick in ticks)


def test_statistics_have_a_bar_from_mean_minus_to_mean_plus_the_deviation(read_picture):
    section = statistics_section({"x": np.array([0.0, 2.0, 4.0]), "none": np.array([np.nan])}, FigureOptions())
    head, first, second = section.panels[0].rows
    assert dict(zip(head, first, strict=True)) | {"min": "0", "max": "4", "mean": "2", "std": "1.633"} == dict(
        zip(head, first, strict=True)
    )
    assert second[3:] == ["-", "-", "-", "-", "0", "1", "0"]
    picture = read_picture(render_figure([section], FigureOptions(), "svg", "t").decode())
    start, length = next(
        (float(found[1]), float(found[2]))
        for fill, data, *_ in picture.fills
        if fill == SERIES[0] and (found := re.match(r"M([\d.]+) [\d.]+h([\d.]+)", data))
    )
    zero, four = picture.find("0").x, picture.find("4").x
    assert length == pytest.approx(480 * 2 * 1.633 / 4, abs=0.2) and start > 0 and four > zero


def test_a_table_has_every_number_under_its_label(read_picture):
    x = np.array([[0.5, -1.25], [3.0, np.nan]])
    view = TensorView("x", x, ("token", "model"), [["The", "cat"], None], mask=np.array([[True, True], [False, True]]))
    section = tensor_section(view, FigureOptions(precision=2))
    assert section.panels[0].rows == [
        ["token \\ model", "0", "1"],
        ["The", "0.50", "-1.25"],
        ["cat", "·", "nan"],
    ]
    assert section.notes == ["· masked"]
    picture = read_picture(render_figure([section], FigureOptions(), "svg", "t").decode())
    assert picture.find("0.50").x == picture.find("0").x and picture.find("The").x == picture.find("cat").x
    assert picture.find("0.50").y == picture.find("-1.25").y < picture.find("nan").y


def test_the_rows_and_columns_of_a_large_table_are_counted():
    view = TensorView("x", np.zeros((200, 100)), ("token", "model"), [None, None])
    rows = tensor_section(view, FigureOptions()).panels[0].rows
    assert len(rows) == 62 and len(rows[0]) == 18
    assert "… 140 more" in [row[0] for row in rows] and "… 84 more" in rows[0]


def test_a_number_and_an_empty_tensor():
    number = tensor_section(TensorView("x", np.array(0.5), (), []), FigureOptions())
    assert number.panels[0].lines == ["0.5000"]
    empty = tensor_section(TensorView("x", np.zeros((0, 2)), ("token", "model"), [None, None]), FigureOptions())
    assert empty.description == "(token 0, model 2) float64, empty"
