"""Strings measured in terminal columns: labels made harmless, cut to a width, set side by side."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from attnkit.display.style import Style
from attnkit.errors import escaped

LONGEST_LABEL = 16
GUTTER = 3  # columns between two panels that stand side by side


class Glyphs(NamedTuple):
    """The characters of our own that depend on the encoding; no shade may look like `masked` or `odd`."""

    ellipsis: str
    masked: str
    odd: str
    join: str
    times: str
    shades: str


UNICODE = Glyphs("…", "·", "?", " · ", " × ", " ░▒▓█")
ASCII = Glyphs("..", "x", "?", ", ", " x ", " .:-=+*#%@")

# The signs of the formulas, for terminals that have only ASCII.
SPELLED = str.maketrans(
    {
        "ᵀ": "^T", "²": "^2", "₁": "1", "₂": "2", "₃": "3", "₄": "4", "ₖ": "_k",
        "√": "sqrt ", "·": "*", "×": "x", "⊙": "*", "−": "-", "–": "-", "…": "...", "∞": "inf", "Σ": "sum ",
        "α": "alpha", "β": "beta", "γ": "gamma", "ε": "eps", "θ": "theta", "μ": "mu", "σ": "sigma",
        "τ": "tau", "≤": "<=", "≥": ">=", "≠": "!=", "∈": "in", "→": "->", "←": "<-",
    }
)  # fmt: skip


def glyphs(look: Style) -> Glyphs:
    """The characters that this look may use."""
    return UNICODE if look.unicode else ASCII


def display_width(text: str) -> int:
    """How many terminal columns a text takes: 2 for a wide character, 0 for a combining one.

    >>> display_width("cat"), display_width("日本"), display_width("e\\u0301")
    (3, 4, 1)
    """
    from rich.cells import cell_len

    return cell_len(text)


def escape(text: str, look: Style) -> str:
    """The text with every character visible: control characters escaped, blanks quoted.

    >>> escape("a\\nb", Style()), escape(" ", Style()), escape("[pad]", Style())
    ('a\\\\nb', "' '", '[pad]')
    """
    shown = escaped(text)
    if not look.unicode:
        shown = shown.encode("ascii", "backslashreplace").decode()
    elif display_width(shown) == 0:  # combining characters alone would sit on the column before them
        shown = text.encode("ascii", "backslashreplace").decode()
    return shown if shown.strip() else repr(shown)


def clip(text: str, width: int, look: Style) -> str:
    """The text, its end replaced by an ellipsis where it is wider than `width`.

    >>> clip("attention", 6, Style()), clip("attention", 6, Style(unicode=False)), clip("日本語", 4, Style())
    ('atten…', 'atte..', '日…')
    """
    from rich.cells import set_cell_size

    if display_width(text) <= width:
        return text
    ellipsis = glyphs(look).ellipsis[:width]
    return set_cell_size(text, width - len(ellipsis)).rstrip() + ellipsis


def pad(text: str, width: int) -> str:
    """The text filled with spaces to `width` columns."""
    return text + " " * (width - display_width(text))


def label_text(text: str, look: Style, longest: int = LONGEST_LABEL) -> str:
    """A label fit for a table: harmless, and at most `longest` columns and a quarter of the width."""
    return clip(escape(text, look), min(longest, max(look.width // 4, 6)), look)


def ansi(text: str, code: str, look: Style) -> str:
    """The text in an ANSI style such as "1" (bold) or "2" (dim), where the look has colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if look.color and text else text


class Block(NamedTuple):
    """Lines of one width, styled or not; the width is kept because escape codes hide it."""

    lines: list[str]
    width: int


def block(lines: Sequence[str], width: int, title: str, look: Style) -> Block:
    """A block of these lines, each `width` columns, under a title ("" for none)."""
    wide = max(width, min(display_width(title), look.width))
    filled = [line + " " * (wide - width) for line in lines]
    heading = [ansi(pad(clip(title, wide, look), wide), "1", look)] if title else []
    return Block(heading + filled, wide)


def side_by_side(blocks: Sequence[Block], look: Style, grid: bool = True) -> list[str]:
    """The blocks left to right, as many in a band as fit the width; one a band without `grid`."""
    bands: list[list[Block]] = []
    for one in blocks:
        if grid and bands and sum(b.width + GUTTER for b in bands[-1]) + one.width <= look.width:
            bands[-1].append(one)
        else:
            bands.append([one])
    lines: list[str] = []
    for band in bands:
        if lines:
            lines.append("")
        for i in range(max(len(b.lines) for b in band)):
            cells = (b.lines[i] if i < len(b.lines) else " " * b.width for b in band)
            lines.append((" " * GUTTER).join(cells))
    return lines


def join_lines(lines: Sequence[str]) -> str:
    """The lines as one text, without spaces at their ends and without a last newline."""
    return "\n".join(line.rstrip() for line in lines)


def heading(name: str, about: str, formula: str, look: Style) -> list[str]:
    """The first lines of a display: name in bold, what it is, and its formula beside or below it."""
    name = escape(name, look) if name else ""
    first, *more = wrapped(f"{name} {about}".strip(), look)
    bold = len(name) if first.startswith(name) else len(first)
    lines = [ansi(first[:bold], "1", look) + ansi(first[bold:], "2", look)]
    lines += [ansi(line, "2", look) for line in more]
    if not formula:
        return lines
    formula = "= " + escape(formula if look.unicode else formula.translate(SPELLED), look)
    if not more and display_width(first) + 3 + display_width(formula) <= look.width:
        return [f"{lines[0]}   {formula}"]
    return lines + wrapped("  " + formula, look)


def wrapped(text: str, look: Style) -> list[str]:
    """The text in lines that fit the width, broken at spaces."""
    lines = textwrap.wrap(text, look.width, subsequent_indent="    ", break_on_hyphens=False)
    return [clip(line, look.width, look) for line in lines]  # textwrap takes wide characters for narrow ones
