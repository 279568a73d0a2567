"""Text in terminal columns: escaped, clipped, and in blocks side by side."""

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from attnkit.display.style import Style
from attnkit.errors import escaped

MAX_LABEL_WIDTH = 16
BLOCK_GAP = 3  # columns between two blocks side by side


class Glyphs(NamedTuple):
    """The characters that depend on the encoding."""

    ellipsis: str
    masked_mark: str
    non_finite_mark: str
    separator: str
    shades: str


UNICODE = Glyphs("…", "·", "?", " · ", " ░▒▓█")
ASCII = Glyphs("..", "x", "?", ", ", " .:-=+*#%@")

# The symbols of formulas, for terminals that have only ASCII.
ASCII_SPELLING = str.maketrans(
    {
        "ᵀ": "^T", "²": "^2", "₁": "1", "₂": "2", "₃": "3", "₄": "4", "ₖ": "_k",
        "√": "sqrt ", "·": "*", "×": "x", "⊙": "*", "−": "-", "–": "-", "…": "...", "∞": "inf", "Σ": "sum ",
        "α": "alpha", "β": "beta", "γ": "gamma", "ε": "eps", "θ": "theta", "μ": "mu", "σ": "sigma",
        "τ": "tau", "≤": "<=", "≥": ">=", "≠": "!=", "∈": "in", "→": "->", "←": "<-",
    }
)  # fmt: skip


def glyphs(style: Style) -> Glyphs:
    """The characters that the encoding of this style has."""
    return UNICODE if style.unicode else ASCII


def display_width(text: str) -> int:
    """The width of a text: 2 for a wide character, 0 for a combining one.

    >>> display_width("cat"), display_width("日本"), display_width("e\\u0301")
    (3, 4, 1)
    """
    from rich.cells import cell_len

    return cell_len(text)


def escape(text: str, style: Style) -> str:
    """Make every character of a text visible: escape control characters, quote blanks.

    >>> escape("a\\nb", Style()), escape(" ", Style()), escape("[pad]", Style())
    ('a\\\\nb', "' '", '[pad]')
    """
    visible = escaped(text)
    if not style.unicode:
        visible = visible.encode("ascii", "backslashreplace").decode()
    elif display_width(visible) == 0:  # combining characters alone would sit on the column before them
        visible = text.encode("ascii", "backslashreplace").decode()
    return visible if visible.strip() else repr(visible)


def clip(text: str, width: int, style: Style) -> str:
    """Cut a text to `width` columns, with an ellipsis at its end where it is wider.

    >>> clip("attention", 6, Style()), clip("attention", 6, Style(unicode=False)), clip("日本語", 4, Style())
    ('atten…', 'atte..', '日…')
    """
    from rich.cells import set_cell_size

    if display_width(text) <= width:
        return text
    ellipsis = glyphs(style).ellipsis[:width]
    return set_cell_size(text, width - len(ellipsis)).rstrip() + ellipsis


def pad(text: str, width: int, right: bool = False) -> str:
    """Pad a text with spaces to `width` columns, on its left if `right`.

    >>> pad("日", 4), pad("cat", 4, right=True)
    ('日  ', ' cat')
    """
    spaces = " " * (width - display_width(text))
    return spaces + text if right else text + spaces


def label_text(text: str, style: Style, longest: int = MAX_LABEL_WIDTH) -> str:
    """Escape a label and cut it to at most a quarter of the width."""
    return clip(escape(text, style), min(longest, label_room(style)), style)


def label_room(style: Style) -> int:
    """The width of the longest label: at most a quarter of the width."""
    return min(MAX_LABEL_WIDTH, max(style.width // 4, 6))


def numbered(label: str, index: int, style: Style) -> str:
    """A label with its index, which tells it from equal ones.

    >>> numbered("the", 4, Style()), numbered("incomprehensibilities", 12, Style())
    ('the 4', 'incomprehens… 12')
    """
    number = f" {index}"
    return label_text(label, style, label_room(style) - len(number)) + number


def ansi(text: str, code: str, style: Style) -> str:
    """Wrap a text in an ANSI code such as "1", if the style has colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if style.color and text and code else text


class Block(NamedTuple):
    """Lines of one width; the width is a field because escape codes hide it."""

    lines: list[str]
    width: int


def block(lines: Sequence[str], width: int, title: str, style: Style) -> Block:
    """Make a block of these lines, each `width` columns, under a title ("" for none)."""
    full_width = max(width, min(display_width(title), style.width))
    filled = [line + " " * (full_width - width) for line in lines]
    above = [ansi(pad(clip(title, full_width, style), full_width), "1", style)] if title else []
    return Block(above + filled, full_width)


def side_by_side(blocks: Sequence[Block], style: Style) -> list[str]:
    """Place the blocks left to right, as many in a band as fit the width.

    >>> side_by_side([Block(["a", "b"], 1), Block(["c"], 1)], Style()), side_by_side([Block(["a"], 30)] * 2, Style(40))
    (['a   c', 'b    '], ['a', '', 'a'])
    """
    bands: list[list[Block]] = []
    for item in blocks:
        if bands and sum(other.width + BLOCK_GAP for other in bands[-1]) + item.width <= style.width:
            bands[-1].append(item)
        else:
            bands.append([item])
    lines: list[str] = []
    for band in bands:
        lines += [""] if lines else []
        filled = [
            item.lines + [" " * item.width] * (max(len(b.lines) for b in band) - len(item.lines)) for item in band
        ]
        lines += [(" " * BLOCK_GAP).join(cells) for cells in zip(*filled, strict=True)]
    return lines


def join_lines(lines: Sequence[str]) -> str:
    """Join lines into one text, without spaces at their ends."""
    return "\n".join(line.rstrip() for line in lines)


def heading(name: str, description: str, formula: str, style: Style) -> list[str]:
    """The heading of a display: name in bold, description, formula."""
    name = escape(name, style) if name else ""
    first, *more = wrap(f"{name} {description}".strip(), style)
    bold = len(name) if first.startswith(name) else len(first)
    lines = [ansi(first[:bold], "1", style) + ansi(first[bold:], "2", style)]
    lines += [ansi(line, "2", style) for line in more]
    if not formula:
        return lines
    formula = "= " + escape(formula if style.unicode else formula.translate(ASCII_SPELLING), style)
    if not more and display_width(first) + 3 + display_width(formula) <= style.width:
        return [f"{lines[0]}   {formula}"]
    return lines + _wrap_formula("  " + formula, style)


def _wrap_formula(formula: str, style: Style) -> list[str]:
    """Break a formula after the commas between its parts.

    >>> _wrap_formula("= PE, PE(pos, 2i) = sin(x), PE(pos, 2i+1) = cos(same)", Style(width=40))
    ['= PE, PE(pos, 2i) = sin(x),', '    PE(pos, 2i+1) = cos(same)']
    """
    lines = [""]
    for clause in re.split(r", (?![^(]*\))", formula):
        longer = f"{lines[-1]}, {clause}" if lines[-1] else clause
        if lines[-1] and display_width(longer) + 1 > style.width:
            lines[-1] += ","
            lines.append("    " + clause)
        else:
            lines[-1] = longer
    return [piece for line in lines for piece in wrap(line, style)]


def wrap(text: str, style: Style) -> list[str]:
    """Break a text at spaces into lines that fit the width."""
    lines = textwrap.wrap(text, style.width, subsequent_indent="    ", break_on_hyphens=False)
    return [clip(line, style.width, style) for line in lines]  # textwrap counts a wide character as one column
