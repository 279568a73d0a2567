"""Figures: every cell in its colour and place, every word where it belongs, and files that are the same each time."""

import io
import os
import re
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import attnkit
from attnkit.display import Note, TensorView
from attnkit.display.colors import COLOR_MAPS, NOT_FINITE_COLOR, SERIES, color_map, contrasting_ink
from attnkit.display.figures import (
    FigureOptions,
    Section,
    Table,
    block_sections,
    curves_section,
    draw_bars,
    draw_words,
    heatmap_section,
    render_figure,
    statistics_section,
    tensor_section,
)
from attnkit.errors import DataError, UsageError
from attnkit.records import Record, Tensor
from tests.pictures import SVG, Picture, contrast

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

VIRIDIS, SIGNED = color_map("viridis"), color_map("bwr")
CAT = TensorView("x", np.array([[0.0, 1.0], [0.5, 0.25]]), ("query", "key"), [["The", "cat"], ["The", "cat"]])
HOSTILE = "\x00\x1b\n<>&\"'$\u202e\u200b\ufffe\udc80"
WORDS = st.text(st.characters(codec="utf-8") | st.sampled_from(HOSTILE), max_size=12)


def svg(section, **options):
    return render_figure([section], FigureOptions(**options), "svg", "attnkit show").decode()


def draw(view, **options):
    return Picture(svg(heatmap_section(view, FigureOptions(**options)), **options))


def view(array, rows=None, columns=None, axes=("token", "model"), **how):
    return TensorView("x", np.asarray(array), axes, [None] * (np.ndim(array) - 2) + [rows, columns], **how)


def heads(count, size, names=None):
    names = names or [f"w{i}" for i in range(size)]
    array = np.random.default_rng(0).random((count, size, size))
    return TensorView("weights", array, ("head", "query", "key"), [None, names, names])


def test_every_element_is_a_cell_of_its_colour_below_and_beside_its_words():
    x = np.array([[0.0, 0.25, 0.5], [1.0, 0.75, 0.0]])
    picture = draw(view(x, ["a", "b"], ["The", "cat", "sat"], ("query", "key")))
    assert picture.grids[0].tolist() == [[VIRIDIS[round(value * 64)] for value in row] for row in x.tolist()]
    left, top, width, height = picture.box()
    for column, word in enumerate(("The", "cat", "sat")):
        found = picture.find(word)
        assert found.x == pytest.approx(left + (column + 0.5) * width) and found.anchor == "middle"
        assert found.y > top + 2 * height
    for row, word in enumerate("ab"):
        found = picture.find(word)
        assert found.anchor == "end" and found.x < left and top + row * height < found.y < top + (row + 1) * height
    assert picture.find("query").angle == -90 and picture.find("key").y > picture.find("cat").y


def test_the_colour_bar_has_all_colours_and_the_ends_of_the_range():
    picture = draw(view([[0.5, 2.0]], ["a"]))
    assert picture.grids[-1][:, 0].tolist() == VIRIDIS[::-1]
    assert picture.find("2").y < picture.find("0.5").y


def test_a_tensor_of_both_signs_is_symmetric_about_white():
    picture = draw(view([[-1.0, 0.0, 4.0]], ["a"]))
    assert picture.grids[0].tolist() == [[SIGNED[24], SIGNED[32], SIGNED[64]]] and SIGNED[32] == "#f7f7f7"
    assert {"4", "0", "-4"} <= set(picture.texts)


def test_a_requested_range_and_colour_map():
    numbers = view([[-1.0, 0.5, 4.0]], ["a"])
    picture = draw(numbers, range=(0.0, 1.0), colors="gray")
    assert picture.grids[0].tolist() == [["#000000", "#808080", "#ffffff"]]
    assert "2 numbers outside of the range, drawn at its end" in picture.texts
    with pytest.raises(UsageError, match=r"no colour map 'virid' \(expected viridis, .*\); did you mean viridis\?"):
        draw(numbers, colors="virid")


def test_masked_cells_are_hatched_and_cells_that_are_not_finite_are_pink():
    x = np.array([[0.5, -np.inf, 0.25], [np.nan, np.inf, 1.0]])
    document = svg(heatmap_section(view(x, mask=np.array([[True, True, False], [True, True, True]])), FigureOptions()))
    picture = Picture(document)
    low, high = VIRIDIS[0], VIRIDIS[64]
    assert picture.grids[0].tolist() == [[low, "", ""], ["#ff00aa", "#ff00aa", high]] and "#ff00aa" not in VIRIDIS
    assert {"masked", "not finite", "0.50", "1.00"} <= set(picture.texts) and "0.25" not in picture.texts
    assert document.count("fill: url(#h") == 2  # the map, and the mark beside it
    assert "fill: url(#h" not in svg(heatmap_section(view(np.eye(2)), FigureOptions()))


@pytest.mark.parametrize("size", [241, 600, 1000])
def test_a_large_matrix_is_pooled_and_keeps_every_peak(size):
    x = np.zeros((size, size))
    peaks = [(0, 0), (size - 1, size - 1), (7, size // 2), (size // 3, 1)]
    for row, column in peaks:
        x[row, column] = 1.0
    x[5, 5] = -1.0
    picture, factor = draw(view(x)), -(-size // 320)
    cells = picture.grids[0]
    assert cells.shape == (-(-size // factor),) * 2
    expected = {(row // factor, column // factor) for row, column in peaks}
    assert set(zip(*np.nonzero(cells == SIGNED[64]), strict=True)) == expected and (cells == SIGNED[0]).sum() == 1
    note = f"each cell shows the number of largest magnitude among {factor} × {factor}"
    assert (note in picture.texts) == (factor > 1)


def test_a_block_is_masked_if_all_of_it_is_and_not_finite_if_one_number_is():
    x = np.full((700, 700), 0.5)
    x[:3, :3], x[4, 4], x[0, 0] = -np.inf, np.nan, 0.75
    cells = draw(view(x)).grids[0]
    assert cells.shape == (234, 234) and cells[0, 0] == VIRIDIS[64] and cells[1, 1] == "#ff00aa"
    x[0, 0] = -np.inf
    assert draw(view(x)).grids[0][0, 0] == ""


@pytest.mark.parametrize(("count", "grid"), [(1, (1, 1)), (2, (2, 1)), (6, (3, 2)), (7, (4, 2)), (12, (4, 3))])
def test_heads_are_in_a_balanced_grid_with_their_words_at_its_left_and_below(count, grid):
    weights = heads(count, 5)
    picture = draw(weights)
    lefts, tops = ({round(place[at]) for place in picture.places[:count]} for at in (4, 5))
    assert (len(lefts), len(tops)) == grid
    assert [word for word in picture.texts if word.startswith("head ")] == [f"head {at}" for at in range(count)]
    low, high = weights.array.min(), weights.array.max()
    for cells, values in zip(picture.grids, weights.array, strict=False):
        assert (cells == np.array(VIRIDIS)[np.rint((values - low) / (high - low) * 64).astype(int)]).all()
    assert picture.texts.count("w0") == sum(grid)


def test_the_range_is_shared_or_of_each_map():
    weights = heads(2, 3)
    weights.array[1] *= 0.1
    shared, own = draw(weights), draw(weights, range="each")
    assert "2 heads, one range of colours" in shared.texts
    assert "2 heads, each with its own range of colours" in own.texts and {"min", "max"} <= set(own.texts)
    assert VIRIDIS[64] in shared.grids[0] and VIRIDIS[64] not in shared.grids[1]
    assert VIRIDIS[64] in own.grids[0] and VIRIDIS[64] in own.grids[1]


def test_texts_of_a_batch_have_words_of_their_own():
    words = [["The", "cat"], ["A", "dog"]]
    batch = TensorView("x", np.zeros((2, 3, 2)), ("batch", "head", "key"), [None, None, words])
    assert {"The", "cat", "A", "dog", "batch 0", "batch 1"} <= set(draw(batch).texts)


@pytest.mark.parametrize("size, angle, every", [(6, 0, 1), (30, -45, 1), (50, -90, 1), (64, -90, 2), (300, -90, 6)])
def test_words_are_turned_and_thinned_so_that_none_overlap(size, angle, every):
    names = [f"word{i}" for i in range(size)]
    picture = draw(view(np.eye(size), names, names, ("query", "key")))
    bottom = picture.box()[1] + picture.box()[3] * size
    below = [word for word in picture.words if word.text.startswith("word") and word.y > bottom]
    assert [word.text for word in below] == names[::every] and {word.angle for word in below} == {angle}
    distances = np.diff([word.x for word in below])
    assert (distances * abs(np.sin(np.radians(angle or 90))) >= 8.25).all()  # points of the text
    assert (f"labels: every {every}th query, every {every}th key" in picture.texts) == (every > 3)


def test_indices_are_thinned_to_round_numbers():
    picture = draw(view(np.zeros((3, 300)), ["a", "b", "c"]))
    shown = [int(word.text) for word in picture.words if word.text.isdigit() and word.y > picture.box()[1] + 30]
    assert shown[:3] == [0, 20, 40] and not [text for text in picture.texts if text.startswith("labels")]


def test_numbers_are_in_cells_if_they_fit_or_on_request():
    small, large = view(np.eye(3) / 3), heads(1, 26)
    assert draw(small).texts.count("0.33") == 3 and draw(small, numbers=False).texts.count("0.33") == 0
    assert draw(small, precision=3).texts.count("0.333") == 4  # and the colour bar
    assert len(draw(large).words) < 150 < 26 * 26 < len(draw(large, numbers=True).words)
    assert "1" in draw(view(np.eye(3))).texts and "1.00" not in draw(view(np.eye(3))).texts


def test_numbers_are_legible_on_their_colour():
    picture = draw(view([[0.25, 0.75]], ["a"]))
    right = picture.box()[0] + 2 * picture.box()[2]
    colors = [word.color for word in picture.words if "." in word.text and word.x < right]
    assert colors == ["#ffffff", None]  # text is black unless SVG says otherwise
    cells = [NOT_FINITE_COLOR, *(color for name in COLOR_MAPS for color in color_map(name))]
    assert min(contrast(color, contrasting_ink(color)) for color in cells) >= 4.5


def test_a_figure_is_small():
    assert len(svg(heatmap_section(view(np.random.default_rng(0).normal(size=(50, 64))), FigureOptions()))) < 60_000
    assert len(svg(heatmap_section(heads(12, 600), FigureOptions()))) < 1_000_000


def test_the_title_is_the_name_and_the_formula_or_the_requested_one():
    weights = view(np.eye(2), axes=("query", "key"), formula="softmax(QKᵀ / √$d$)")
    assert draw(weights).texts[:3] == ["x", "= softmax(QKᵀ / √$d$)", "(query 2, key 2) float64"]
    titled = draw(weights, title="Attention < 1")
    assert titled.texts[0] == "Attention < 1" and "softmax" not in " ".join(titled.texts)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, "float64") for shape in ((), (3,), (2, 3), (0, 3), (2, 2, 2, 3), (1, 1))),
     *(((2, 3), dtype) for dtype in ("float16", "int64", "bool"))],
)  # fmt: skip
def test_every_rank_and_dtype_is_drawn(shape, dtype):
    axes = ("batch", "head", "query", "key")[4 - len(shape) :]
    picture = draw(TensorView("x", np.ones(shape, dtype), axes, [None] * len(shape)))
    assert sum(cells.size for cells in picture.grids[:-1]) == np.prod(shape)
    curves = curves_section(TensorView("x", np.ones(shape, dtype), axes, [None] * len(shape)), FigureOptions())
    assert len(curves.panels) == {(): 0, (0, 3): 0, (2, 2, 2, 3): 4}.get(shape, 1) and svg(curves)


@pytest.mark.parametrize("peak", [1.7e308, 5e-324])
def test_the_extremes_of_float64(peak):
    numbers = view([[-peak, 0.0, peak]], ["a"])
    assert draw(numbers).grids[0].tolist() == [[SIGNED[0], SIGNED[32], SIGNED[64]]]
    assert svg(curves_section(numbers, FigureOptions()))
    assert svg(statistics_section({"x": numbers.array}, FigureOptions()))


def test_a_mask_that_does_not_broadcast_is_an_error():
    for section in (heatmap_section, curves_section, tensor_section):
        with pytest.raises(DataError, match="does not broadcast"):
            section(view(np.eye(2), mask=np.ones(3, bool)), FigureOptions())


def test_a_curve_goes_through_its_points():
    x = np.array([[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]])
    picture = Picture(svg(curves_section(view(x), FigureOptions())))
    (xs, first), (_, second) = (zip(*picture.curve(color), strict=True) for color in SERIES[:2])
    top, bottom = min(first), max(first)
    assert first == pytest.approx([bottom, top, (top + bottom) / 2]) and second == pytest.approx([top, top, bottom])
    assert xs == pytest.approx([picture.find("0").x, picture.find("1").x, picture.find("2").x])
    assert {"0", "0.2", "1", "token", "model"} <= set(picture.texts)


def test_a_curve_outside_of_the_requested_range_is_drawn_at_its_end():
    section = curves_section(view([[0.5], [7.0], [-7.0]]), FigureOptions(range=(0.0, 1.0)))
    heights = [y for _, y in Picture(svg(section)).curve(SERIES[0])]
    assert heights[0] == pytest.approx((heights[1] + heights[2]) / 2) and heights[2] - heights[1] == pytest.approx(225)
    assert section.notes == ["2 numbers outside of the range, drawn at its end"]


def test_what_is_not_finite_interrupts_a_curve_and_a_single_point_is_a_dot():
    picture = Picture(
        svg(curves_section(view([[0.0], [1.0], [np.nan], [1.0], [np.inf], [0.0], [1.0]]), FigureOptions()))
    )
    curve = picture.line(SERIES[0])
    assert "".join(re.findall("[A-Z]", curve)).count("ML") == 2 and "nan" not in curve
    assert len([*picture.root.iter(f"{SVG}use")]) == 1


def test_eight_of_many_curves_are_drawn_and_the_note_says_so():
    section = curves_section(view(np.ones((3, 64))), FigureOptions())
    assert section.notes == ["curves of 8 of the 64 indices of model"]
    assert {str(column) for column in range(0, 64, 8)} <= set(Picture(svg(section)).texts)


@pytest.mark.parametrize(("shape", "axes", "curves"), [((2, 5), ("head", "query"), 2), ((1, 5), ("row", "key"), 1)])
def test_a_head_or_a_single_row_is_a_curve_over_its_columns(shape, axes, curves):
    words = ["The", "cat", "sat", "on", "it"]
    numbers = view(np.arange(float(np.prod(shape))).reshape(shape), None, words, axes)
    section = curves_section(numbers, FigureOptions())
    picture = Picture(svg(section))
    assert [len(picture.curve(color)) for color in SERIES[:curves]] == [5] * curves and section.notes == []
    assert section.description == numbers.description() and {*words, axes[0]} <= set(picture.texts)


def test_bars_are_as_high_as_their_numbers():
    picture = Picture(svg(Section("", [draw_bars("BLEU", "length", ["1-10", "11-20", "21-30"], [40.0, 10.0, np.nan])])))
    bars = [node.get("d") for node in picture.root.iter(f"{SVG}path") if SERIES[0] in (node.get("style") or "")]
    spans = [np.ptp([float(y) for y in re.findall(r"[ML] \S+ (\S+)", bar)]) for bar in bars]
    assert spans == pytest.approx([165, 165 / 4]) and {"40.00", "10.00", "1-10", "length", "BLEU"} <= set(picture.texts)


def test_statistics_have_a_bar_from_the_mean_minus_to_the_mean_plus_the_deviation():
    section = statistics_section({"x": np.array([0.0, 2.0, 4.0]), "none": np.array([np.nan])}, FigureOptions())
    assert section.panels[0].rows[1:] == [
        ["x", "(3)", "float64", "0", "4", "2", "1.633", "1", "0", "0"],
        ["none", "(1)", "float64", "-", "-", "-", "-", "0", "1", "0"],
    ]
    picture = Picture(svg(section))
    bar = next(node.get("d") for node in picture.root.iter(f"{SVG}path") if SERIES[0] in (node.get("style") or ""))
    ends = [float(x) for x in re.findall(r"[ML] (\S+)", bar)]
    zero, four = (max(word.x for word in picture.words if word.text == text) for text in "04")  # beside the table
    assert max(ends) - min(ends) == pytest.approx((four - zero) / 4 * 2 * 1.633, rel=1e-3)


def test_words_are_on_the_colours_of_their_numbers():
    document = svg(Section("", [draw_words(["The", "cat", "sat"], [1.0, -1.0, np.nan], 1.0)]))
    fills = [found for found in re.findall(r'style="fill: (#\w+)', document) if found in SIGNED]
    assert fills == [SIGNED[64], SIGNED[0]] and Picture(document).texts[-3:] == ["The", "cat", "sat"]
    many = Picture(svg(Section("", [draw_words(["word"] * 40, [0.5] * 40, 1.0)])))
    assert len({word.y for word in many.words}) == 3 and max(word.x for word in many.words) < many.width


def test_a_table_has_every_number_under_its_label():
    x = np.array([[0.5, -1.25], [3.0, np.nan]])
    section = tensor_section(view(x, ["The", "cat"], mask=np.array([[1, 1], [0, 1]])), FigureOptions(precision=2))
    assert section.panels[0].rows == [["token \\ model", "0", "1"], ["The", "0.50", "-1.25"], ["cat", "·", "nan"]]
    assert section.notes == ["· masked"]
    picture = Picture(svg(section))
    assert picture.find("0.50").x == picture.find("0").x and picture.find("The").x == picture.find("cat").x
    assert picture.find("0.50").y == picture.find("-1.25").y < picture.find("nan").y


def test_the_rows_and_columns_of_a_large_table_are_counted():
    rows = tensor_section(view(np.zeros((200, 100))), FigureOptions()).panels[0].rows
    assert len(rows) == 62 and len(rows[0]) == 18
    assert "… 140 more" in [row[0] for row in rows] and "… 84 more" in rows[0]


def test_a_number_and_an_empty_tensor():
    assert tensor_section(TensorView("x", np.array(0.5), (), []), FigureOptions()).panels == ["0.5000"]
    empty = tensor_section(view(np.zeros((0, 2))), FigureOptions())
    assert empty.description == "(token 0, model 2) float64, empty"


def test_sections_are_below_one_another_and_panels_beside_one_another():
    tables = [Table([["n", "value"], ["a", "1.0"]], title=f"table {at}") for at in range(12)]
    sections = [Section("first", tables), Section("second", tables[:1])]
    picture = Picture(render_figure(sections, FigureOptions(title="Both"), "svg", "t"))
    places = [(word.x, word.y) for word in picture.words if word.text.startswith("table")]
    assert len({y for _, y in places[:12]}) < 12 and len(set(places)) == 13 and picture.texts[0] == "Both"
    assert picture.find("first").y < places[0][1] < picture.find("second").y < places[-1][1]
    assert all(x < picture.width and y < picture.height for x, y in places)


def sections(one, options=None):
    options = options or FigureOptions()
    return [
        heatmap_section(one, options),
        curves_section(one, options),
        tensor_section(one, options),
        statistics_section({one.title: one.array}, options),
        Section(one.title, [Table([["a", one.title]]), f"  {one.title}"], notes=[one.title]),
    ]


def parse_page(page):
    return ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", page))


@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
@example(words=[HOSTILE, "</svg>&amp;"], title=HOSTILE[::-1], axis="日本" + HOSTILE)
@given(words=st.lists(WORDS, min_size=2, max_size=2), title=WORDS, axis=WORDS)
def test_whatever_the_words_are_a_figure_is_well_formed_and_has_nothing_but_text(words, title, axis):
    one = TensorView(title, CAT.array, (axis, "key"), [words, words], formula=title)
    options = FigureOptions(title=title)
    document, page = (render_figure(sections(one), options, kind, title).decode() for kind in ("svg", "html"))
    for text, root in ((document, ElementTree.fromstring(document)), (page, parse_page(page))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", text)
        names = {node.tag.rpartition("}")[2] for node in root.iter()}
        assert names <= {
            "svg", "title", "defs", "pattern", "path", "g", "text", "style", "rect", "clipPath", "image", "use",
            "html", "head", "meta", "body", "section", "h2", "p", "span", "div", "pre",
            "table", "caption", "thead", "tbody", "tr", "th", "td",
        }  # fmt: skip
        assert not [key for node in root.iter() for key in node.attrib if key.startswith("on")]
        links = [node.get(key) for node in root.iter() for key in node.attrib if "href" in key]
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_figure_loads_nothing(kind):
    document = render_figure(sections(CAT), FigureOptions(), kind, "t").decode()
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink))|url\((?!#)|@import|src=|<script", document)


def test_a_word_that_is_markup_stays_text():
    words = ["</text><script>alert(1)</script>", "&amp;"]
    texts = Picture(svg(tensor_section(view(CAT.array, words, words), FigureOptions()))).texts
    assert "&amp;" in texts and any(text.startswith("</text><script>al") for text in texts)


def test_a_page_has_its_tables_as_tables_and_its_drawings_inline_with_ids_of_their_own():
    page = render_figure(sections(CAT), FigureOptions(), "html", "attnkit show").decode()
    root = parse_page(page)
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert ["query \\ key", "The", "cat"] in rows and ["cat", "0.5000", "0.2500"] in rows
    assert len([*root.iter(f"{SVG}svg")]) == 3 and root.find("head/title").text == "attnkit show"
    counts = Counter(node.get("id") for node in root.iter() if node.get("id"))
    assert counts and set(counts.values()) == {1} and set(re.findall(r"url\(#([^)]*)\)", page)) <= set(counts)


def test_a_page_is_light_or_dark_as_the_browser_prefers_unless_a_theme_is_requested():
    themes = (None, "light", "dark", "transparent")
    pages = {one: render_figure(sections(CAT), FigureOptions(theme=one), "html", "t").decode() for one in themes}
    assert [theme for theme, page in pages.items() if "prefers-color-scheme: dark" in page] == [None]
    assert "--background: #16181c" in pages["dark"] and "--background: transparent" in pages["transparent"]
    for page in pages.values():
        drawn = page.partition("<svg")[2]
        assert "fill: var(--ink)" in drawn and "stroke: var(--grid)" in drawn and "#1a1c20" not in drawn


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


@pytest.mark.parametrize("theme", ["light", "dark", "transparent"])
def test_the_pixels_of_a_png(theme):
    options = FigureOptions(theme=theme, numbers=False)
    section = heatmap_section(CAT, options)
    array, picture = pixels(render_figure([section], options, "png", "t")), Picture(svg(section, theme=theme))
    scale = 2 / 0.75  # pixels in a point
    assert array.shape[:2] == (round(picture.height * scale), round(picture.width * scale))
    left, top, width, height = picture.box()
    for (row, column), level in {(0, 0): 0, (0, 1): 64, (1, 0): 32, (1, 1): 16}.items():
        color = array[int(scale * (top + (row + 0.5) * height)), int(scale * (left + (column + 0.5) * width))]
        assert "#" + bytes(color[:3].tolist()).hex() == VIRIDIS[level]
    corner = {"light": (255, 255, 255, 255), "dark": (22, 24, 28, 255), "transparent": (0, 0, 0, 0)}
    assert tuple(array[2, 2].tolist())[: 4 if array[2, 2, 3] else 0] == corner[theme][: 4 if corner[theme][3] else 0]
    assert array[2, 2, 3] == corner[theme][3]
    assert len(np.unique(array[:60].reshape(-1, 4), axis=0)) > 4  # the title
    assert picture.find("x").color == {"dark": "#e8eaee"}.get(theme, "#1a1c20")


def test_a_pdf_has_its_title_and_no_date():
    data = render_figure([heatmap_section(CAT, FigureOptions())], FigureOptions(title="Cat"), "pdf", "t")
    assert data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF")
    assert b"/Title (Cat)" in data and b"Date" not in data


RENDER = """
import sys, hashlib, numpy as np
from attnkit.display import TensorView
from attnkit.display.figures import *
view = TensorView("日本 $x$", np.array([[0.5, np.nan], [-np.inf, 1]]), ("query", "key"), [["日本", "🦊"]] * 2)
made = [make(view, FigureOptions()) for make in (heatmap_section, curves_section, tensor_section)]
print(*[hashlib.sha256(render_figure(made, FigureOptions(), kind, "t")).hexdigest() for kind in ("svg", "png", "pdf")])
print(*sys.modules.get("matplotlib.pyplot", ["no pyplot"]))
"""


def test_the_bytes_are_the_same_each_time_without_a_home_and_nothing_is_said(tmp_path, capfd):
    """In this process, and in one of another order of sets."""
    locked = tmp_path / "locked"
    locked.write_text("")  # no folder can be made below it
    changes = {"PYTHONHASHSEED": "2", "HOME": str(locked), "MPLBACKEND": "tkagg"}
    done = subprocess.run([sys.executable, "-c", RENDER], env=os.environ | changes, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.endswith("no pyplot\n")
    exec(RENDER, {})
    again = capfd.readouterr()
    assert again.err == "" and again.out.splitlines()[0] == done.stdout.splitlines()[0]


def test_without_the_library_the_extra_is_named():
    code = (
        "import sys, numpy; sys.modules['matplotlib'] = None\n"
        "from attnkit.display import TensorView\nfrom attnkit.display.figures import *\n"
        "view = TensorView('x', numpy.eye(2), ('a', 'b'), (None, None))\n"
        "for kind in ('svg', 'png', 'pdf', 'html'):\n"
        "    try: render_figure([heatmap_section(view, FigureOptions())], FigureOptions(), kind, 't')\n"
        "    except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = "UsageError a figure: needs the matplotlib library: pip install '.[figures]' in a clone"
    assert [one.startswith(line) for one in done.stdout.splitlines()] == [True] * 4


@pytest.fixture
def ax():
    return __import__("matplotlib.figure", fromlist=["Figure"]).Figure((6, 4)).add_subplot()


def test_plot_draws_a_matrix_into_the_axes_of_a_user(ax):
    x = Tensor(np.array([[0.0, 1.0], [0.5, 0.25]]), ("query", "key"), {"query": ["The", "$cat$"], "key": ["a", "b"]})
    assert attnkit.plot(Record({"w": x}), "w", ax) is ax
    [image] = ax.images
    assert image.get_array()[:, :, 0].shape == (2, 2) and tuple(image.norm.vmin + np.zeros(1)) == (0.0,)
    assert "#" + bytes(image.get_array()[0, 1, :3].tolist()).hex() == VIRIDIS[64]
    assert [one.get_text() for one in ax.get_xticklabels()] == ["a", "b"] and ax.get_xlabel() == "key"
    assert [one.get_text() for one in ax.get_yticklabels()] == ["The", "$cat$"] and ax.get_title() == "w"
    assert not any(one.get_parse_math() for one in ax.get_yticklabels())
    ax.figure.colorbar(image, ax=ax)
    ax.figure.savefig(io.BytesIO(), format="png")


def test_plot_draws_heads_in_a_grid(ax):
    record = attnkit.attend(attnkit.mask(attnkit.embed("The cat sat", dim=8), causal=True), heads=4, keep="weights")
    attnkit.plot(record, "weights", ax)
    assert [one.get_title(loc="left") or one.get_title() for one in ax.child_axes] == [f"head {at}" for at in range(4)]
    assert all(one.images[0].get_array().shape == (3, 3, 4) and one.patch.get_hatch() for one in ax.child_axes)
    ax.figure.savefig(io.BytesIO(), format="svg")


def test_plot_draws_curves_and_bars(ax):
    attnkit.plot(Record({"x": Tensor(np.array([1.0, 3.0, 2.0]), ("step",))}), ax=ax)
    assert ax.lines[0].get_ydata().tolist() == [1.0, 3.0, 2.0] and ax.get_xlabel() == "step"
    losses = Tensor(np.array([[3.0, 4.0], [1.0, 2.0]]), ("step", "curve"), {"curve": ["training", "held out"]})
    drawn = attnkit.plot(Record({"x": losses}))
    assert [one.get_text() for one in drawn.get_legend().get_texts()] == ["training", "held out"]
    bars = attnkit.plot(Record({"x": Tensor(np.array([40.0, -10.0]), ("length",), {"length": ["1-10", "11-20"]})}))
    assert [patch.get_height() for patch in bars.patches] == [40.0, -10.0]
    assert [one.get_text() for one in bars.get_xticklabels()] == ["1-10", "11-20"]


def test_plot_draws_a_part_of_a_tensor(ax):
    record = attnkit.attend(attnkit.mask(attnkit.embed("The cat sat", dim=8), causal=True), heads=2, keep="weights")
    [image] = attnkit.plot(record, "weights", ax, slice="1").images
    assert image.get_array()[:, :, 3].tolist() == [[255, 0, 0], [255, 255, 0], [255, 255, 255]]
    assert ax.get_title() == "weights[1]" and ax.get_ylabel() == "query" and ax.patch.get_hatch()


def test_plot_names_what_it_cannot_draw():
    with pytest.raises(DataError, match=r"^x: scalar float64 has no curve and no map$"):
        attnkit.plot(Record({"x": Tensor(np.array(1.0), ())}))
    with pytest.raises(DataError, match="y"):
        attnkit.plot(Record({"x": np.eye(2)}), "y")


def test_a_note_without_a_block_before_it_is_a_section():
    [section] = block_sections([Note("no tensors")], FigureOptions())
    assert (section.panels, section.notes) == ([], ["no tensors"])
