"""Figures as files: SVG and HTML that load nothing, PNG with its pixels, PDF with its words; whatever the words are."""

import io
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.display import TensorView
from attnkit.display.figures import (
    FigureOptions,
    Preformatted,
    Section,
    Table,
    curves_section,
    heatmap_section,
    render_figure,
    statistics_section,
    tensor_section,
)
from attnkit.display.figures.colors import color_map

CAT = TensorView("x", np.array([[0.0, 1.0], [0.5, 0.25]]), ("query", "key"), [["The", "cat"], ["The", "cat"]])
WORDS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x00\x1b\n<>&\"'\u202e\u200b\ufffe\udc80"), max_size=12)


def sections(view):
    options = FigureOptions()
    named = {view.title: view.array}
    return [
        heatmap_section(view, options),
        curves_section(view, options),
        tensor_section(view, options),
        statistics_section(named, options),
        Section(view.title, [Table([["a", view.title]]), Preformatted([view.title])], notes=[view.title]),
    ]


def parse_page(page):
    return ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", page))


@settings(max_examples=30)
@given(words=st.lists(WORDS, min_size=2, max_size=2), title=WORDS, axis=WORDS)
def test_whatever_the_words_are_a_figure_is_well_formed_and_has_nothing_but_text(words, title, axis):
    view = TensorView(title, CAT.array, (axis, "key"), [words, words], formula=title)
    options = FigureOptions(title=title)
    svg, page = (render_figure(sections(view), options, kind, title).decode() for kind in ("svg", "html"))
    for document, root in ((svg, ElementTree.fromstring(svg)), (page, parse_page(page))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", document)
        names = {node.tag.rpartition("}")[2] for node in root.iter()}
        assert names <= {
            "svg", "title", "defs", "pattern", "path", "g", "text", "tspan",
            "html", "head", "meta", "style", "body", "section", "h2", "p", "span", "div", "pre",
            "table", "caption", "thead", "tbody", "tr", "th", "td",
        }  # fmt: skip
        assert not [key for node in root.iter() for key in node.attrib if key.startswith("on") or "href" in key]


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_figure_loads_nothing(kind):
    document = render_figure(sections(CAT), FigureOptions(), kind, "t").decode()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\((?!#)|@import|src=|<script|href", document)
    assert render_figure(sections(CAT), FigureOptions(), kind, "t").decode() == document


def test_a_word_that_is_markup_stays_text():
    words = ["</text><script>alert(1)</script>", "&amp;"]
    view = TensorView("x", CAT.array, ("query", "key"), [words, words])
    svg = render_figure([tensor_section(view, FigureOptions())], FigureOptions(), "svg", "t").decode()
    texts = [node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "&amp;" in texts and any(text.startswith("</text><script>al") for text in texts)


def test_a_page_has_its_tables_as_tables_and_its_maps_inline():
    root = parse_page(render_figure(sections(CAT), FigureOptions(), "html", "attnkit show").decode())
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert ["query \\ key", "The", "cat"] in rows and ["cat", "0.5000", "0.2500"] in rows
    drawn = [node for node in root.iter("{http://www.w3.org/2000/svg}svg") if node.get("viewBox")]
    assert len(drawn) == 3 and all(float(node.get("width")) > 0 for node in drawn)
    assert root.find("head/title").text == "attnkit show"


def test_a_page_is_light_or_dark_as_the_browser_prefers_unless_a_theme_is_requested():
    pages = {
        theme: render_figure([], FigureOptions(theme=theme), "html", "t").decode()
        for theme in (None, "light", "dark", "transparent")
    }
    assert [theme for theme, page in pages.items() if "prefers-color-scheme: dark" in page] == [None]
    assert "--background: #16181c" in pages["dark"] and "--background: transparent" in pages["transparent"]


def pixels(data):
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(data))
    return image, np.asarray(image.convert("RGBA"))


@pytest.mark.parametrize("theme", ["light", "dark", "transparent"])
def test_the_pixels_of_a_png(read_picture, theme):
    pytest.importorskip("typst")
    options = FigureOptions(theme=theme, numbers=False)
    section = [heatmap_section(CAT, options)]
    image, array = pixels(render_figure(section, options, "png", "t"))
    picture = read_picture(render_figure(section, options, "svg", "t").decode())
    assert image.size == (2 * picture.width, 2 * picture.height)
    left, top, width, height = picture.corners[0]
    for (row, column), level in {(0, 0): 0, (0, 1): 64, (1, 0): 32, (1, 1): 16}.items():
        color = array[int(2 * (top + (row + 0.5) * height)), int(2 * (left + (column + 0.5) * width))]
        assert "#" + bytes(color[:3].tolist()).hex() == color_map("viridis")[level]
    corner = {"light": (255, 255, 255, 255), "dark": (22, 24, 28, 255), "transparent": (0, 0, 0, 0)}
    assert tuple(array[2, 2].tolist()) == corner[theme]
    assert len(np.unique(array[:60].reshape(-1, 4), axis=0)) > 4  # the title


def test_a_superscript_in_a_formula_does_not_change_the_font_of_the_title():
    pytest.importorskip("typst")
    ends = []  # of the title, in pixels
    for formula in ("Q K", "Q Kᵀ", "x W₁ᵀ & b₁"):
        section = Section("scores", [], formula)
        _, array = pixels(render_figure([section], FigureOptions(), "png", "t"))
        ends.append(np.flatnonzero((array[:70, :140, 0] < 128).any(axis=0)).max())
    assert ends[0] > 100 and max(ends) - min(ends) <= 1


def test_a_pdf_has_its_size_and_its_title():
    pytest.importorskip("typst")
    data = render_figure([heatmap_section(CAT, FigureOptions())], FigureOptions(title="Cat"), "pdf", "t")
    assert data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF") and b"/Title" in data
    assert render_figure([heatmap_section(CAT, FigureOptions())], FigureOptions(title="Cat"), "pdf", "t") == data


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_without_the_library_the_extra_is_named(kind):
    code = (
        "import sys; sys.modules['typst'] = None\n"
        "from attnkit.display.figures import *\n"
        f"render_figure([], FigureOptions(), '{kind}', 't')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"--format {kind}: needs the typst library: pip install 'attnkit[figures]'" in done.stderr


def test_sections_are_below_one_another_and_panels_beside_one_another(read_picture):
    tables = [Table([["n", "value"], ["a", "1.0"]], title=f"table {at}") for at in range(12)]
    document = render_figure([Section("first", tables), Section("second", tables[:1])], FigureOptions(), "svg", "t")
    picture = read_picture(document.decode())
    places = [(word.x, word.y) for word in picture.words if word.text.startswith("table")]
    assert len({y for _, y in places[:12]}) < 12 and len(set(places)) == 13
    assert picture.find("first").y < places[0][1] < picture.find("second").y < places[-1][1]
    assert all(x < picture.width and y < picture.height for x, y in places)


def test_a_title_above_several_sections(read_picture):
    figure = [tensor_section(CAT, FigureOptions()), heatmap_section(CAT, FigureOptions())]
    picture = read_picture(render_figure(figure, FigureOptions(title="Both"), "svg", "t").decode())
    assert picture.texts[0] == "Both" and picture.texts.count("x") == 2
