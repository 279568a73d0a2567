"""Pages of documentation in Markdown, shown by `attnkit help TOPIC`."""

import functools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

PAGES = Path(__file__).parent
TOOL_WIDTH = 80  # of the terminals that the pages of tools are laid out for
BOLD, END = "\x1b[1m", "\x1b[0m"
FILLERS = "a an and are at by do does for from how in is it of on or that the this to what why with"  # no ideas
FENCED = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


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
    """The page of a tool: the text of `TOOL --help`.

    `python -m attnkit.cli.parser` writes it.

    >>> read_tool("layernorm").splitlines()[0]
    'Usage: attnkit layernorm [OPTIONS] [INPUT]'
    """
    return (PAGES / "tools" / f"{name}.txt").read_text(encoding="utf-8")


def read_skill() -> str:
    """The SKILL.md of attnkit, for a coding agent."""
    return (PAGES / "skill" / "SKILL.md").read_text(encoding="utf-8")


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


@functools.cache
def _fold(word: str) -> str:
    return "".join(fold_words(word))


class PageSection(NamedTuple):
    """A section of a page or of a chapter of the lecture.

    page   what `attnkit help` calls the page: "generation", "lecture heads"
    words  of notes and textbooks for its idea
    """

    page: str
    title: str
    heading: str
    text: str
    words: tuple[str, ...] = ()


@functools.cache
def list_sections() -> tuple[PageSection, ...]:
    """The sections of the lecture in their order, then those of the other pages.

    >>> [one.heading for one in list_sections() if one.page == "lecture heads"][1]
    'Two heads point at two words'
    """
    import tomllib

    index = tomllib.loads((PAGES / "index.toml").read_text(encoding="utf-8"))
    pages = [(f"lecture {one.name}", one.read(), index[f"lecture {one.name}"]) for one in list_chapters()]
    pages += [(topic, read_page(topic), index.get(topic, {})) for topic in list_topics() if topic != "lecture"]
    found = []
    for page, markdown, words in pages:
        head, *sections = re.split(r"^## ", markdown, flags=re.MULTILINE)
        title = head.partition("\n")[0].removeprefix("# ")
        for one in sections:
            heading, _, text = one.partition("\n")
            found.append(PageSection(page, title, heading, text.strip("\n"), tuple(words.get(heading, ()))))
    return tuple(found)


def find_indexed(word: str) -> PageSection | None:
    """Find the section of a word of the index, or None.

    >>> find_indexed("Attention Head").heading, find_indexed("attention heads of a model")
    ('Two heads point at two words', None)
    """
    folded = _fold(word)
    return next((one for one in list_sections() if one.words and folded in map(_fold, one.words)), None)


def find_section(phrase: str) -> PageSection | None:
    """Find the section of the longest word of the index that is in a phrase, or None.

    Words of sections come first. A word of a whole chapter must be half of the phrase, and stands for the section with
    most words of it.

    >>> find_section("masked multi-head attention").heading, find_section("contextual embeddings").heading
    ('The look-ahead mask', 'One word, two contexts')
    """
    sections = list_sections()
    of_sections = [(word, [one]) for one in sections for word in (*one.words, one.heading) if one.words]
    of_chapters = [
        (word, [one for one in sections if one.page == f"lecture {chapter.name}"])
        for chapter in list_chapters()
        for word in (chapter.name, *chapter.words)
    ]
    parts = fold_words(phrase)
    spans = {  # the words in a row, joined -> how many they are
        "".join(parts[start:end]): end - start
        for start in range(len(parts))
        for end in range(start + 1, len(parts) + 1)
    }
    least = len({*parts} - {*fold_words(FILLERS)}) / 2
    for entries, count in ((of_sections, 0), (of_chapters, least)):
        found = [(folded, own) for word, own in entries if spans.get(folded := _fold(word), -1) >= count]
        if found:
            candidates = max(found, key=lambda pair: len(pair[0]))[1]
            return candidates[0] if len(candidates) == 1 else max(candidates, key=lambda one: _weigh(parts, one))
    return None


def rank_sections(phrase: str, count: int = 3) -> list[PageSection]:
    """The sections with most words of a phrase, which have more than half of them.

    >>> rank_sections("a causal mask that is explained")[0].page, rank_sections("zzz")
    ('lecture masks', [])
    """
    parts = {*fold_words(phrase)} - {*fold_words(FILLERS)}
    sections = [one for one in list_sections() if 2 * len(parts & {*_count_words(one)}) > len(parts)]
    return sorted(sections, key=lambda one: -_weigh(parts, one))[:count]


def fold_words(text: str) -> list[str]:
    """The words of a text without capitals, endings of plurals and British spelling.

    >>> fold_words("Multi-Head Attentions & normalisation")
    ['multi', 'head', 'attention', 'and', 'normalization']
    """
    words = re.findall(r"\w+", text.casefold().replace("&", " and ").replace("_", " "))
    return [word.replace("isation", "ization").removesuffix("s") for word in words]


@functools.cache
def _count_words(section: PageSection) -> Counter[str]:
    """How often a section has each word.

    A word of its heading or of the index counts as five.
    """
    return Counter(fold_words(section.text) + 5 * fold_words(f"{section.heading} {' '.join(section.words)}"))


def _weigh(parts: Collection[str], section: PageSection) -> float:
    """Weigh a section for words: rare ones, and frequent ones in it, count more."""
    own = _count_words(section)
    return sum(_rarity(part) * (1 + math.log(own[part])) for part in parts if own[part])


@functools.cache
def _rarity(word: str) -> float:
    sections = list_sections()
    return math.log(len(sections) / (1 + sum(word in _count_words(one) for one in sections)))


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
    return "\n\n".join(_render_block(block, width, bold) for block in split_page(markdown)) + "\n"


class PageBlock(NamedTuple):
    """A block of a page.

    kind  heading, table, list or paragraph; of a fenced block its language: console, python, text
    """

    kind: str
    text: str


def split_page(markdown: str) -> list[PageBlock]:
    """Split a page into its blocks.

    >>> [block.kind for block in split_page("# Title\\n\\nA text.\\n\\n```console\\n$ ls\\n```\\n")]
    ['heading', 'paragraph', 'console']
    """
    first, *fenced = FENCED.split(markdown)
    blocks = _split_prose(first)
    for language, text, prose in zip(fenced[::3], fenced[1::3], fenced[2::3], strict=True):
        blocks += [PageBlock(language or "text", text.removesuffix("\n")), *_split_prose(prose)]
    return blocks


def _split_prose(text: str) -> list[PageBlock]:
    kinds = {"#": "heading", "|": "table", "- ": "list"}
    parts = [one for one in re.split(r"\n\s*\n", text.strip("\n")) if one]
    return [
        PageBlock(next((kind for sign, kind in kinds.items() if one.startswith(sign)), "paragraph"), one)
        for one in parts
    ]


def _render_block(block: PageBlock, width: int, bold: bool) -> str:
    """Lay out a heading, a table, a list, a paragraph or an example."""
    if block.kind == "heading":
        title = _plain(block.text.lstrip("# "))
        return f"{BOLD}{title}{END}" if bold else title
    if block.kind == "table":
        return _render_table(block.text, width)
    if block.kind == "list":
        items = _plain(block.text)[2:].split("\n- ")
        return "\n".join(_fill(f"- {item}", width, "  ") for item in items)
    if block.kind == "paragraph":
        return _fill(_plain(block.text), width, "")
    return textwrap.indent(block.text.rstrip("\n"), "    ")


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


def split_table(block: str) -> list[list[str]]:
    r"""Split the rows of a table into cells, without the line below its head.

    >>> split_table("| a | b |\n|---|---|\n| x | one\\|two |")
    [['a', 'b'], ['x', 'one|two']]
    """
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
    return [[cell.replace(r"\|", "|") for cell in row] for row in rows if set("".join(row)) - set("-: ")]


def _render_table(block: str, width: int) -> str:
    r"""Align the columns of a table; the widest are wrapped until a row fits the width.

    >>> print(_render_table("| a | b |\n|---|---|\n| x | one two |", 8))
    a  b
    x  one
       two
    """
    rows = [[_plain(cell) for cell in row] for row in split_table(block)]
    widths = _column_widths(list(zip(*rows, strict=True)), width)
    lines = []
    for row in rows:
        cells = [_fill(cell, size, "").splitlines() for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)
