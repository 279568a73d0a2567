"""Pages of documentation in Markdown, shown by `attnkit help TOPIC`."""

import re
import textwrap
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

PAGES = Path(__file__).parent
TOOL_WIDTH = 80  # of the terminals that the pages of tools are laid out for
BOLD, END = "\x1b[1m", "\x1b[0m"
FENCED = re.compile(r"^```\w*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def list_topics() -> dict[str, str]:
    """Every topic with the title of its page.

    >>> list_topics()["faults"]
    'bad input, and what happens to it'
    """
    pages = sorted(PAGES.glob("*.md"))
    return {page.stem: _first_line(page).partition(": ")[2] for page in pages}


def _first_line(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next(lines).strip()


def read_page(topic: str) -> str:
    """The page of a topic in Markdown; the lecture's with its chapters.

    >>> read_page("faults").splitlines()[0]
    '# faults: bad input, and what happens to it'
    """
    page = (PAGES / f"{topic}.md").read_text(encoding="utf-8")
    return page + _list_contents() if topic == "lecture" else page


def read_tool(name: str) -> str:
    """The page of a tool: the text of `TOOL --help`, which `python -m attnkit.cli.parser` writes.

    >>> read_tool("layernorm").splitlines()[0]
    'Usage: attnkit layernorm [OPTIONS] [INPUT]'
    """
    return (PAGES / "tools" / f"{name}.txt").read_text(encoding="utf-8")


class Chapter(NamedTuple):
    """A chapter of the lecture, in a file `lecture/NUMBER-NAME.md`.

    words  the ideas that it explains, which the second paragraph of the file lists
    """

    number: int
    name: str
    title: str
    words: tuple[str, ...]
    path: Path

    def read(self) -> str:
        """The chapter in Markdown."""
        return self.path.read_text(encoding="utf-8")


def list_chapters() -> list[Chapter]:
    """The chapters of the lecture in their order.

    >>> list_chapters()[0].name, "lstm" in list_chapters()[0].words
    ('recurrence', True)
    """
    chapters = []
    for path in sorted((PAGES / "lecture").glob("*.md")):
        number, _, name = path.stem.partition("-")
        head, words, *_ = path.read_text(encoding="utf-8").split("\n\n")
        listed = " ".join(words.removeprefix("Words: ").rstrip(".").split()).split(", ")
        chapters.append(Chapter(int(number), name, head.partition(": ")[2], tuple(listed), path))
    return chapters


def find_chapter(word: str) -> Chapter | None:
    """Find the chapter of a number, a name, or a word for an idea, or None.

    Capitals, hyphens, underscores and blanks do not count, nor does the ending of a plural; "&" is
    "and".

    >>> find_chapter("Self_Attention") == find_chapter("self attentions") == find_chapter("5")
    True
    """
    for chapter in list_chapters():
        if word == str(chapter.number):
            return chapter
        if _fold(word) in {_fold(one) for one in (chapter.name, *chapter.words)}:
            return chapter
    return None


def _fold(word: str) -> str:
    return re.sub(r"[\s_-]", "", word.casefold().replace("&", "and")).removesuffix("s")


def _list_contents() -> str:
    """The table of the chapters, in Markdown."""
    rows = "".join(f"| {one.number} | `{one.name}` | {one.title} |\n" for one in list_chapters())
    return f"\n| | chapter | about |\n|---|---|---|\n{rows}"


def render_page(markdown: str, width: int = 80, bold: bool = False) -> str:
    """Lay out a page for a terminal: paragraphs, lists, tables and examples.

    >>> print(render_page("# Title\\n\\nSome *text* and\\n`code`.\\n\\n```console\\n$ ls\\n```\\n", 40), end="")
    Title
    <BLANKLINE>
    Some *text* and code.
    <BLANKLINE>
        $ ls
    """
    blocks: list[str] = []
    for number, part in enumerate(FENCED.split(markdown)):
        if number % 2:
            blocks.append(textwrap.indent(part.rstrip("\n"), "    "))
        else:
            blocks += [_render_block(one, width, bold) for one in re.split(r"\n\s*\n", part.strip("\n")) if one]
    return "\n\n".join(blocks) + "\n"


def _render_block(block: str, width: int, bold: bool) -> str:
    """Lay out a heading, a table, a list or a paragraph."""
    if block.startswith("#"):
        title = _plain(block.lstrip("# "))
        return f"{BOLD}{title}{END}" if bold else title
    if block.startswith("|"):
        return _render_table(block, width)
    if block.startswith("- "):
        items = _plain(block)[2:].split("\n- ")
        return "\n".join(_fill(f"- {item}", width, "  ") for item in items)
    return _fill(_plain(block), width, "")


def _plain(text: str) -> str:
    """Remove the backticks of code and the targets of links.

    >>> _plain("`attend` ([samples](samples/))")
    'attend (samples)'
    """
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.replace("`", ""))


def _fill(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _column_widths(columns: list[tuple[str, ...]], width: int) -> list[int]:
    """The widths of columns of cells: the longest cells, less if a row is too wide.

    >>> _column_widths([("a", "x"), ("b", "one two")], 8)
    [1, 5]
    """
    widths = [max(map(len, column)) for column in columns]
    words = [max(map(len, " ".join(column).split()), default=0) for column in columns]
    while sum(widths) + 2 * (len(widths) - 1) > width and widths != words:
        spare = [size - word for size, word in zip(widths, words, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths


def _render_table(block: str, width: int) -> str:
    r"""Align the columns of a table; the widest are wrapped until a row fits the width.

    >>> print(_render_table("| a | b |\n|---|---|\n| x | one two |", 8))
    a  b
    x  one
       two
    """
    rows = [[_plain(cell).strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
    rows = [[cell.replace(r"\|", "|") for cell in row] for row in rows if set("".join(row)) - set("-: ")]
    widths = _column_widths(list(zip(*rows, strict=True)), width)
    lines = []
    for row in rows:
        cells = [_fill(cell, size, "").splitlines() for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)
