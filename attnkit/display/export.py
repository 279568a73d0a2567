"""Export terminal output as an SVG or HTML document."""

import io
import re
from typing import Literal

from attnkit.display.text import display_width
from attnkit.errors import escaped

FONTS = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# Rich's own templates fetch a font from the network.
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px FONTS }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""
HTML = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>TITLE</title>
<style>
body {{ color: {foreground}; background: {background}; margin: 2em }}
pre {{ font: 16px/1.22 FONTS }}
</style>
</head>
<body>
<pre>{code}</pre>
</body>
</html>
"""


def export_picture(ansi_text: str, title: str, kind: Literal["svg", "html"]) -> str:
    """Convert a text with ANSI colours to an SVG or HTML document that loads no other file.

    >>> export_picture("\\x1b[1mx\\x1b[0m", "a & b", "html").splitlines()[4]
    '<title>a &amp; b</title>'
    """
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    text = Text.from_ansi(ansi_text)
    width = max((line.cell_len for line in text.split()), default=1)
    console = Console(
        file=io.StringIO(),
        record=True,
        width=max(width, 1),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        _environ={},
    )
    console.print(text, no_wrap=True, overflow="ignore", crop=False)
    title = escaped(title)
    if kind == "svg":
        code_format = SVG.replace("FONTS", FONTS)
        svg = console.export_svg(title=title, theme=SVG_EXPORT_THEME, code_format=code_format)
        return re.sub(r'textLength="([^"]*)"([^>]*)>([^<]*)', _fix_text_length, svg)
    import html

    escaped_title = html.escape(title).replace("{", "{{").replace("}", "}}")
    code_format = HTML.replace("FONTS", FONTS).replace("TITLE", escaped_title)
    return console.export_html(theme=SVG_EXPORT_THEME, code_format=code_format, inline_styles=True)


def _fix_text_length(match: re.Match[str]) -> str:
    """Return an SVG text with its length in columns; rich counts characters, and squeezes wide ones."""
    import html

    content = html.unescape(match[3])
    length = float(match[1]) * display_width(content) / len(content)
    return f'textLength="{length:g}"{match[2]}>{match[3]}'
