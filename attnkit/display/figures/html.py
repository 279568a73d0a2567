"""Sections as a page of HTML, which loads nothing and has no script, or Markdown."""

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape as escape_xml
from xml.sax.saxutils import quoteattr

from attnkit.display.colors import DARK, LIGHT, PALETTES, Palette
from attnkit.display.figures.canvas import Drawing, save_drawing
from attnkit.display.figures.sections import FigureOptions, Panel, Section, Table
from attnkit.errors import escaped

SANS = "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
MONO = "Menlo, Consolas, DejaVu Sans Mono, monospace"
MIN_WIDTH = 720  # pixels: a wider drawing shrinks to this width on a narrow page, and is scrolled beyond it
STYLE = f"""\
body {{ margin: 2em; font: 14px/1.45 {SANS}; color: var(--ink); background: var(--background) }}
body {{ overflow-wrap: anywhere }}
h2 {{ font-size: 17px; margin: 0 }}
h2 span {{ font-weight: normal; font-size: 14px }}
section {{ margin: 0 0 2em }}
p {{ margin: .2em 0; color: var(--muted); font-size: 13px }}
.panels {{ display: flex; flex-wrap: wrap; gap: 1em 2em; margin: .7em 0 }}
.panels > * {{ max-width: 100%; overflow-x: auto }}
svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block }}
caption {{ text-align: left; font-weight: bold }}
th {{ font-weight: normal; color: var(--muted); border-bottom: 1px solid var(--grid) }}
th, td {{ padding: .1em .7em .1em 0; text-align: right; white-space: nowrap }}
.left {{ text-align: left }}
pre {{ margin: 0; font: 13px/1.4 {MONO}; white-space: pre-wrap }}
"""


def escape_text(text: str) -> str:
    """Escape the markup and the control characters of a text."""
    return escape_xml(escaped(text))


def html_page(sections: Sequence[Section], options: FigureOptions, title: str) -> str:
    """Write sections as a page of HTML, in the theme of the browser by default.

    >>> page = html_page([Section("x", [Table([["a < b"], ["1"]])])], FigureOptions(), "attnkit")
    >>> [line for line in page.splitlines() if "<th " in line]
    ['<tr><th class="left">a &lt; b</th></tr>']
    """
    if options.theme:
        theme = f":root {{ {palette_variables(PALETTES[options.theme])} }}\n"
    else:
        dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {palette_variables(DARK)} }} }}\n"
        theme = f":root {{ color-scheme: light dark; {palette_variables(LIGHT)} }}\n{dark}"
    body = "\n".join(_section(one, at) for at, one in enumerate(sections))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="viewport" content="width=device-width"/>\n<title>{escape_text(title)}</title>\n'
        f"<style>\n{theme}{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def palette_variables(palette: Palette) -> str:
    return "; ".join(f"--{name}: {color or 'transparent'}" for name, color in palette._asdict().items())


def _section(section: Section, number: int) -> str:
    formula = f" <span>= {escape_text(section.formula)}</span>" if section.formula else ""
    lines = [f"<h2>{escape_text(section.title)}{formula}</h2>"] if section.title else []
    lines += [f"<p>{escape_text(section.description)}</p>"] if section.description else []
    if section.panels:
        panels = (_panel(panel, f"{number}-{at}", section.title) for at, panel in enumerate(section.panels))
        lines += ['<div class="panels">', *panels, "</div>"]
    lines += [f"<p>{escape_text(note)}</p>" for note in section.notes]
    return "\n".join(["<section>", *lines, "</section>"])


def _panel(panel: Panel, place: str, title: str) -> str:
    if isinstance(panel, Table):
        return _html_table(panel)
    if isinstance(panel, Drawing):
        svg = save_drawing(panel, PALETTES["transparent"], "svg", salt=place).decode()
        for name in ("ink", "muted", "grid", "masked"):
            svg = svg.replace(f": {getattr(LIGHT, name)}", f": var(--{name})")
        name = quoteattr(escaped(title or "figure"))
        looks = f'role="img" aria-label={name} style="min-width: {min(round(panel.width), MIN_WIDTH)}px"'
        return f"<div>{svg.replace('<svg', f'<svg {looks}', 1)}</div>"
    return f"<pre>{chr(10).join(map(escape_text, panel.split(chr(10))))}</pre>"


def _html_table(table: Table) -> str:
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


def markdown_page(sections: Sequence[Section], title: str) -> str:
    r"""Write sections as Markdown below a title.

    A section without panels is a heading of the sections after it.

    >>> page = markdown_page([Section("1. embed", []), Section("x", [Table([["a|b"], ["1"]])], "a + b")], "Sum")
    >>> print(page, end="")
    # Sum
    <BLANKLINE>
    ## 1. embed
    <BLANKLINE>
    ### x = a + b
    <BLANKLINE>
    | a\|b |
    | --- |
    | 1 |
    """
    blocks = [f"# {title}", *(block for section in sections for block in _blocks(section))]
    return "\n\n".join(blocks) + "\n"


def _blocks(section: Section) -> Iterator[str]:
    formula = f" = {section.formula}" if section.formula else ""
    if section.title:
        yield f"{'###' if section.panels else '##'} {section.title}{formula}"
    if section.description:
        yield section.description
    for panel in section.panels:
        if isinstance(panel, Table):
            head, *rows = [[text.replace("|", r"\|") for text in row] for row in panel.rows]
            rules = ["---" if at in panel.left else "---:" for at in range(len(head))]
            lines = [f"| {' | '.join(row)} |" for row in (head, rules, *rows)]
            yield "\n".join([*([f"**{panel.title}**", ""] if panel.title else []), *lines])
        elif isinstance(panel, Drawing):
            yield "(a drawing, in the HTML and PDF of this sheet)"
        else:
            yield "\n".join(["```text", panel, "```"])
    yield from section.notes
