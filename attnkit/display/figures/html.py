"""Write sections as a page of HTML: drawings inline, tables as tables; it loads no other file and runs no script."""

from collections.abc import Sequence

from attnkit.display.figures.colors import DARK, LIGHT, PALETTES, Palette
from attnkit.display.figures.fonts import MONO, SANS
from attnkit.display.figures.options import FigureOptions
from attnkit.display.figures.shapes import Drawing, Panel, Section, Table, short
from attnkit.display.figures.stack import titled
from attnkit.display.figures.svg import escape_text, hatch, svg_head, svg_shapes

VARIABLES = Palette(*(f"var(--{name})" for name in Palette._fields))
MIN_WIDTH = 720  # pixels: a wider drawing shrinks to this width on a narrow page, and is scrolled beyond it
STYLE = f"""\
body {{ margin: 2em; font: 14px/1.45 {SANS}; color: var(--ink); background: var(--background) }}
h2 {{ font-size: 17px; margin: 0 }}
h2 span {{ font-weight: normal; font-size: 14px }}
section {{ margin: 0 0 2em }}
p {{ margin: .2em 0; color: var(--muted); font-size: 13px }}
.panels {{ display: flex; flex-wrap: wrap; gap: 1em 2em; margin: .7em 0; overflow-x: auto }}
svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }}
caption {{ text-align: left; font-weight: bold }}
th {{ font-weight: normal; color: var(--muted); border-bottom: 1px solid var(--grid) }}
th, td {{ padding: .1em .7em .1em 0; text-align: right; white-space: nowrap }}
.left {{ text-align: left }}
pre {{ margin: 0; font: 13px/1.4 {MONO}; white-space: pre-wrap }}
"""


def html_page(sections: Sequence[Section], options: FigureOptions, name: str) -> str:
    """Return sections as a page; without a theme it is light or dark as the browser prefers.

    >>> page = html_page([Section("x", [Table([["a < b"], ["1"]])])], FigureOptions(), "attnkit")
    >>> [line for line in page.splitlines() if "<th " in line]
    ['<tr><th class="left">a &lt; b</th></tr>']
    """
    title = escape_text(options.title or name)
    body = "\n".join(map(_section, titled(sections, options)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="viewport" content="width=device-width"/>\n<title>{title}</title>\n'
        f"<style>\n{_theme(options)}{STYLE}</style>\n</head>\n<body>\n"
        f'<svg width="0" height="0" style="position: absolute"><defs>{hatch(VARIABLES)}</defs></svg>\n'
        f"{body}\n</body>\n</html>\n"
    )


def _theme(options: FigureOptions) -> str:
    """Return the rules that set the colours of a theme."""
    if options.theme:
        return f":root {{ {_variables(PALETTES[options.theme])} }}\n"
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
    return f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n{dark}"


def _variables(palette: Palette) -> str:
    return "; ".join(f"--{name}: {color or 'transparent'}" for name, color in palette._asdict().items())


def _section(section: Section) -> str:
    formula = f" <span>= {escape_text(section.formula)}</span>" if section.formula else ""
    lines = [f"<h2>{escape_text(section.title)}{formula}</h2>"] if section.title else []
    lines += [f"<p>{escape_text(section.description)}</p>"] if section.description else []
    if section.panels:
        lines += ['<div class="panels">', *map(_panel, section.panels), "</div>"]
    lines += [f"<p>{escape_text(note)}</p>" for note in section.notes]
    return "\n".join(["<section>", *lines, "</section>"])


def _panel(panel: Panel) -> str:
    if isinstance(panel, Table):
        return _table(panel)
    if isinstance(panel, Drawing):
        least = f'<svg style="min-width: {short(min(panel.width, MIN_WIDTH))}px"'
        return f"{svg_head(panel, VARIABLES).replace('<svg', least, 1)}\n{svg_shapes(panel, VARIABLES)}\n</svg>"
    return f"<pre>{chr(10).join(map(escape_text, panel.lines))}</pre>"


def _table(table: Table) -> str:
    """Return a table as HTML."""

    def row(texts: Sequence[str], tag: str) -> str:
        cells = [
            f"<{tag}{' class=' + chr(34) + 'left' + chr(34) if at in table.left else ''}>{escape_text(text)}</{tag}>"
            for at, text in enumerate(texts)
        ]
        return f"<tr>{''.join(cells)}</tr>"

    caption = f"<caption>{escape_text(table.title)}</caption>\n" if table.title else ""
    head, *rows = table.rows
    body = "\n".join(row(texts, "td") for texts in rows)
    return f"<table>\n{caption}<thead>\n{row(head, 'th')}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
