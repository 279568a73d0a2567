"""Pictures are documents of their own: well-formed, complete, nothing fetched."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from attnkit.display import Style, TensorView, export_picture, heatmap, tensor_table

LABELS = ["<a&b>", "日本", "{x}", "[/s]"]
STYLE = Style(width=60, color=True)
TITLE = "attend <x> & {y}\x1b\n"


@pytest.fixture
def text() -> str:
    labels = (LABELS, LABELS)
    parts = [draw(TensorView("w", np.eye(4), ("query", "key"), labels, STYLE)) for draw in (tensor_table, heatmap)]
    return "\n\n".join(parts)


def test_svg(text: str) -> None:
    svg = export_picture(text, TITLE, "svg")
    root = ElementTree.fromstring(svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "attend\xa0<x>\xa0&\xa0{y}\\x1b\\n"
    for label in LABELS:
        assert any(label in text for text in texts)
    fills = {node.get("fill") for node in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert {"#fde725", "#440154"} <= fills


def test_svg_gives_wide_characters_their_two_columns() -> None:
    one = re.findall(r'textLength="([\d.]+)"', export_picture("日本", "", "svg"))
    assert one == re.findall(r'textLength="([\d.]+)"', export_picture("abcd", "", "svg"))


def test_html(text: str) -> None:
    page = export_picture(text, TITLE, "html")
    texts: list[str] = []
    parser = HTMLParser()
    parser.handle_data = texts.append  # type: ignore[method-assign]
    parser.feed(page)
    whole = "".join(texts)
    assert "attend <x> & {y}\\x1b\\n" in whole
    assert all(label in whole for label in LABELS)
    assert "#fde725" in page


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_nothing_is_fetched(text: str, kind: str) -> None:
    page = export_picture(text, TITLE, kind)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\((?!#)|@import|src=|<script|href", page)


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_the_same_text_gives_the_same_bytes(text: str, kind: str) -> None:
    assert export_picture(text, TITLE, kind) == export_picture(text, TITLE, kind)
    assert export_picture("", "", kind)
