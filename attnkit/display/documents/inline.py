"""The text of a page of help as HTML: code, links, emphasis and formulas."""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from attnkit.help import PageBlock, split_page

INLINE = re.compile(r"`([^`]+)`|\[([^]]+)\]\(([^)]+)\)|\*\*(.+?)\*\*")
# what follows _ or ^ in a formula: a group in brackets, or letters and digits
INDEX = re.compile(r"([_^])(\((?:[^()]|\([^()]*\))*\)|\w+)")
TAGS = {"_": "sub", "^": "sup"}


class Page(NamedTuple):
    """A page of help, or a chapter of the lecture.

    name        how `attnkit help` calls it: "lecture heads"
    is_chapter  whether its commands run in an empty folder, and its formulas are paragraphs of their own
    """

    name: str
    markdown: str
    is_chapter: bool = False

    def blocks(self) -> Iterator[PageBlock]:
        """The blocks of the page; a formula of a chapter is a block of its own kind."""
        blocks = split_page(self.markdown)
        for block, after in zip(blocks, [*blocks[1:], PageBlock("", "")], strict=True):
            is_formula = self.is_chapter and after.kind == "console" and is_formula_text(block)
            yield block._replace(kind="formula") if is_formula else block


def is_formula_text(block: PageBlock) -> bool:
    """Whether a block is one line that is no sentence.

    >>> [is_formula_text(PageBlock("paragraph", text)) for text in ("x + PE", "Equal numbers differ.")]
    [True, False]
    """
    return block.kind == "paragraph" and "\n" not in block.text and not block.text.endswith((".", "`", "?"))


def inline_html(text: str) -> str:
    """A paragraph as HTML.

    Links to other pages, which a document lacks, are their text.

    >>> inline_html("`a < b` and **c** ([docs](https://docs.org), [samples](samples/))")
    '<code>a &lt; b</code> and <strong>c</strong> (<a href="https://docs.org">docs</a>, samples)'
    """
    parts, end = [], 0
    for match in INLINE.finditer(text):
        code, label, target, strong = match.groups()
        parts.append(escape(text[end : match.start()]))
        if code is not None:
            parts.append(f"<code>{escape(code)}</code>")
        elif strong is not None:
            parts.append(f"<strong>{inline_html(strong)}</strong>")
        else:
            is_address = target.startswith("https://")
            inside = inline_html(label)
            parts.append(f"<a href={quoteattr(target)}>{inside}</a>" if is_address else inside)
        end = match.end()
    return "".join([*parts, escape(text[end:])])


def formula_html(formula: str) -> str:
    """A formula as HTML, with indices below and exponents above the line.

    The outer brackets of an index are left out.

    >>> formula_html("h_(t−1) = 10000^(2i/d) x_t, a < b")
    'h<sub>t−1</sub> = 10000<sup>2i/d</sup> x<sub>t</sub>, a &lt; b'
    """

    def set_index(match: re.Match[str]) -> str:
        tag, inside = TAGS[match[1]], match[2]
        inside = inside[1:-1] if inside.startswith("(") else inside
        head, sign, rest = inside.partition("_") if "(" not in inside else (inside, "", "")
        inside = formula_html(head) + (formula_html("_" + rest) if sign else "")
        return f"<{tag}>{inside}</{tag}>"

    parts, end = [], 0
    for match in INDEX.finditer(formula):
        parts += [escape(formula[end : match.start()]), set_index(match)]
        end = match.end()
    return "".join([*parts, escape(formula[end:])])
