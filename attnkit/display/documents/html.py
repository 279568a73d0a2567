"""Pages of help as one HTML page, which loads nothing and has no script."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from attnkit.display.colors import DARK, LIGHT
from attnkit.display.documents.inline import Page, formula_html, inline_html
from attnkit.display.documents.shades import cut_heat_maps, draw_heat_map
from attnkit.display.figures.html import MONO, SANS, palette_variables
from attnkit.help import PageBlock, split_table

STYLE = f"""\
* {{ box-sizing: border-box }}
html {{ scroll-padding-top: 1em }}
body {{ margin: 0 auto; padding: 1em; max-width: 60em; font: 16px/1.55 {SANS} }}
body {{ color: var(--ink); background: var(--background); overflow-wrap: anywhere }}
a {{ color: inherit; text-decoration-color: var(--muted) }}
:focus-visible {{ outline: 2px solid #4477aa; outline-offset: 1px }}
h1 {{ font-size: 26px; line-height: 1.25; margin: 2em 0 .5em; border-top: 1px solid var(--grid); padding-top: 1em }}
h1:first-of-type {{ margin-top: 0; border-top: 0; padding-top: 0 }}
h2 {{ font-size: 19px; margin: 1.8em 0 .4em }}
h3 {{ font-size: 16px; margin: 1.4em 0 .3em }}
p, ul, table {{ margin: .6em 0 }}
li {{ margin: .2em 0 }}
code, pre, svg {{ font-family: {MONO} }}
code {{ font-size: .9em }}
pre, .map {{ font-size: 13px; line-height: 1.4; margin: .8em 0; padding: .7em .9em; overflow-x: auto }}
pre, .map {{ border: 1px solid var(--grid); border-radius: 4px; overflow-wrap: normal; scrollbar-width: thin }}
pre + .map, .map + pre, .map + .map {{ border-top: 0; margin-top: -.8em; padding-top: 0 }}
pre b {{ font-weight: 600; white-space: pre-wrap; overflow-wrap: anywhere }}
.formula {{ font: italic 19px/1.6 Georgia, "Times New Roman", "DejaVu Serif", serif; margin: .8em 0 .8em 1.5em }}
.formula sub, .formula sup {{ font-size: .72em; line-height: 0 }}
.words {{ color: var(--muted); font-size: 14px }}
.table {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 15px; overflow-wrap: normal }}
th {{ text-align: left; font-weight: normal; color: var(--muted); border-bottom: 1px solid var(--grid) }}
th, td {{ padding: .2em 1em .2em 0; vertical-align: top }}
nav a {{ display: inline-block }}
nav ol {{ padding-left: 1.4em }}
nav ul {{ list-style: none; padding-left: .8em; font-size: 14px }}
@media (max-width: 700px) {{ .formula {{ margin-left: 0; font-size: 17px }} h1 {{ font-size: 22px }} }}
@media print {{ nav {{ break-after: page }} pre {{ white-space: pre-wrap }} }}
"""


class Anchor(NamedTuple):
    """A heading, and where links find it."""

    level: int
    name: str
    title: str


def html_document(pages: Sequence[Page], title: str) -> str:
    """Write pages as one page of HTML, with a table of contents.

    The theme is that of the browser.

    >>> page = html_document([Page("masks", "# masks: who sees whom\\n\\nFew `x`.\\n")], "masks")
    >>> [line for line in page.splitlines() if "<h1" in line or "<p>" in line]
    ['<h1 id="masks">masks: who sees whom</h1>', '<p>Few <code>x</code>.</p>']
    """
    anchors, body = list[Anchor](), list[str]()
    for page in pages:
        for block in page.blocks():
            if block.kind == "heading":
                anchors.append(anchor_of(block, page.name))
                level, name, text = anchors[-1]
                body.append(f'<h{level} id="{name}">{inline_html(text)}</h{level}>')
            else:
                body += block_html(block)
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {palette_variables(DARK)} }} }}\n"
    theme = f":root {{ color-scheme: light dark; {palette_variables(LIGHT)} }}\n{dark}"
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width"/>',
        f"<title>{escape(title)}</title>",
        f"<style>\n{theme}{STYLE}</style>",
        "</head>",
        "<body>",
        contents_html(anchors),
        "<main>",
        *body,
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def anchor_of(block: PageBlock, page: str) -> Anchor:
    """The place of a heading: its page, then the words of a lower heading.

    >>> anchor_of(PageBlock("heading", "## Two heads: W_Q"), "lecture heads")
    Anchor(level=2, name='lecture-heads-two-heads-w_q', title='Two heads: W_Q')
    """
    signs, _, title = block.text.partition(" ")
    words = [page, *([title] if len(signs) > 1 else [])]
    return Anchor(len(signs), "-".join(re.findall(r"\w+", " ".join(words).casefold())), title)


def contents_html(anchors: Sequence[Anchor]) -> str:
    """The table of contents: the pages, and the sections of each."""
    items = list[str]()
    for level, name, title in anchors:
        link = f'<a href="#{name}">{inline_html(title)}</a>'
        if level == 1:
            items.append(f"</ul></li>\n<li>{link}\n<ul>")
        elif level == 2:
            items.append(f"<li>{link}</li>")
    inside = "\n".join(items).removeprefix("</ul></li>\n")
    return f'<nav aria-label="Contents">\n<ol>\n{inside}\n</ul></li>\n</ol>\n</nav>'.replace("<ul>\n</ul>", "")


def block_html(block: PageBlock) -> Iterator[str]:
    """Yield the elements of a block."""
    if block.kind == "formula":
        yield f'<p class="formula">{formula_html(block.text)}</p>'
    elif block.kind == "paragraph":
        looks = ' class="words"' if block.text.startswith("Words: ") else ""
        yield f"<p{looks}>{inline_html(block.text)}</p>"
    elif block.kind == "list":
        items = block.text.removeprefix("- ").split("\n- ")
        yield "\n".join(["<ul>", *(f"<li>{inline_html(item)}</li>" for item in items), "</ul>"])
    elif block.kind == "table":
        yield table_html(block.text)
    elif block.kind == "console":
        for is_map, lines in cut_heat_maps(block.text.rstrip()):
            yield f'<div class="map" tabindex="0">{draw_heat_map(lines)}</div>' if is_map else console_html(lines)
    else:
        yield f'<pre tabindex="0">{escape(block.text)}</pre>'


def console_html(lines: Sequence[str]) -> str:
    """Commands and what they print; the commands are bold."""
    shown = (f"<b>{escape(line)}</b>" if line.startswith("$ ") else escape(line) for line in lines)
    return f'<pre tabindex="0">{chr(10).join(shown)}</pre>'


def table_html(block: str) -> str:
    head, *rows = (
        "".join(f"<{tag}>{inline_html(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * len(block)], split_table(block), strict=False)
    )
    lines = ["<table>", f"<tr>{head}</tr>", *(f"<tr>{row}</tr>" for row in rows), "</table>"]
    return "\n".join(['<div class="table" tabindex="0">', *lines, "</div>"])
