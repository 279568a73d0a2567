"""Heat maps of a terminal, in shades of characters, as SVG."""

import re
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75, "█": 1.0}  # -> opacity; a blank is 0
LEGEND = "░▒▓█"
WIDTH, HEIGHT, FONT = 8, 18, 13.3  # pixels of a character


def cut_heat_maps(text: str) -> list[tuple[bool, list[str]]]:
    """Cut the lines of a text into heat maps and other lines.

    A heat map is the rows above a line with its legend, their head, and that line.

    >>> [is_map for is_map, _ in cut_heat_maps("x (2, 1)\\n  0\\n0 ████\\n1     \\n-1  ░▒▓█ 1\\nend")]
    [False, True, False]
    """
    lines = text.split("\n")
    inside = [False] * len(lines)
    for at, line in enumerate(lines):
        if LEGEND in line:
            first = at
            while first > 0 and is_row(lines[first - 1]):
                first -= 1
            first -= first > 0  # the head
            inside[first : at + 1] = [True] * (at + 1 - first)
    return [(is_map, [line for line, _ in group]) for is_map, group in groupby_flag(lines, inside)]


def groupby_flag(lines: list[str], flags: list[bool]) -> list[tuple[bool, list[tuple[str, bool]]]]:
    return [(flag, [*group]) for flag, group in groupby(zip(lines, flags, strict=True), lambda pair: pair[1])]


def is_row(line: str) -> bool:
    """Whether a line is a row of a heat map: a label, and shades, dots and blanks."""
    return re.fullmatch(r"\S*[ ░▒▓█·]*", line) is not None and line.strip() != "" and LEGEND not in line


def draw_heat_map(lines: list[str]) -> str:
    """Draw the lines of a heat map as SVG, in the colour of the text around it."""
    width, height = WIDTH * max(map(len, lines)), HEIGHT * len(lines)
    name = quoteattr(f"heat map: {lines[-1].strip()}")
    parts = [
        f'<svg role="img" aria-label={name} width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'fill="currentColor" font-size="{FONT}">'
    ]
    for row, line in enumerate(lines):
        top = row * HEIGHT
        for match in re.finditer(r"([░▒▓█])\1*|[^\s░▒▓█]+", line):
            left, span = match.start() * WIDTH, len(match[0]) * WIDTH
            if match[1]:
                opacity = SHADES[match[1]]
                parts.append(
                    f'<rect x="{left}" y="{top}" width="{span}" height="{HEIGHT}" fill-opacity="{opacity:g}"/>'
                )
            else:
                parts.append(f'<text x="{left}" y="{top + 13}">{escape(match[0])}</text>')
    return "".join([*parts, "</svg>"])
