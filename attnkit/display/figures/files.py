"""Sections as files: SVG, PNG and PDF, a page of HTML that loads nothing and runs no script, or Markdown."""

import io
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape as escape_xml

from attnkit.display.figures.canvas import INCH, SMALL_SIZE, Canvas, Drawing, draw_svg, drawing_style, make_figure
from attnkit.display.figures.colors import DARK, LIGHT, PALETTES, Palette
from attnkit.display.figures.layout import A4, A4_MARGIN, paginate, stack_sections
from attnkit.display.figures.sections import FigureOptions, Panel, Section, Table
from attnkit.errors import escaped
from attnkit.libraries import call_library

PNG_SCALE = 2  # pixels of a PNG for each pixel of the page
NO_DATES = {"Creator": None, "Producer": None, "CreationDate": None}  # of a PDF

SANS = "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
MONO = "Menlo, Consolas, DejaVu Sans Mono, monospace"
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


def render_figure(sections: Sequence[Section], options: FigureOptions, kind: str, name: str) -> bytes:
    """Write sections as a file of SVG, PNG, PDF or HTML; `name` is its title unless the options have one.

    Raises UsageError if matplotlib is missing. A page of HTML without a drawing needs no library.

    >>> render_figure([Section("x", [])], FigureOptions(), "svg", "attnkit show")[:4]
    b'<svg'
    """
    title, palette, sections = options.title or name, PALETTES[options.theme or "light"], titled(sections, options)
    if kind == "html":
        return html_page(sections, options, title).encode()
    drawing, data = stack_sections(sections), io.BytesIO()
    if kind == "svg":
        return draw_svg(drawing, palette).replace(">", f">\n <title>{escape_text(title)}</title>", 1).encode()
    with drawing_style(palette), call_library(f"cannot draw {kind}", "matplotlib"):
        figure = make_figure(drawing.width, drawing.height, palette)
        drawing.draw(Canvas(figure, palette))
        about = NO_DATES | {"Title": escaped(title)} if kind == "pdf" else {"Software": None}
        figure.savefig(data, format=kind, dpi=INCH * PNG_SCALE, metadata=about)
    return data.getvalue()


def render_sheet(sections: Sequence[Section], options: FigureOptions, kind: str, name: str) -> bytes:
    """Write sections as a sheet to print: Markdown, pages of A4 for PDF, else as `render_figure`.

    >>> render_sheet([Section("x", [])], FigureOptions(), "markdown", "attnkit ffn")
    b'# attnkit ffn\\n\\n## x\\n'
    """
    title, palette, data = options.title or name, PALETTES[options.theme or "light"], io.BytesIO()
    if kind == "markdown":
        return markdown_page(sections, title).encode()
    if kind != "pdf":
        return render_figure(sections, options, kind, name)
    pages = paginate(titled(sections, options))
    from matplotlib.backends.backend_pdf import PdfPages

    with drawing_style(palette), PdfPages(data, metadata=NO_DATES | {"Title": escaped(title)}) as file:
        for number, page in enumerate(pages, start=1):
            figure = make_figure(*A4, palette)
            for y, scale, drawing in page:
                with drawing_style(palette, scale):
                    drawing.draw(Canvas(figure, palette, A4_MARGIN, y, scale))
            foot = (A4[0] / 2, A4[1] - A4_MARGIN / 2, f"{number} / {len(pages)}")
            Canvas(figure, palette).text(*foot, SMALL_SIZE, "muted", ha="center")
            file.savefig(figure)
    return data.getvalue()


def titled(sections: Sequence[Section], options: FigureOptions) -> list[Section]:
    """Put the requested title in place of the title of a single section, or above several.

    >>> titled([Section("x", [], "a + b")], FigureOptions(title="Sum"))
    [Section(title='Sum', panels=[], formula='', description='', notes=())]
    """
    if not options.title:
        return list(sections)
    if len(sections) == 1:
        return [sections[0]._replace(title=options.title, formula="", description="")]
    return [Section(options.title, []), *sections]


def escape_text(text: str) -> str:
    """Spell out the control characters of a text, and escape its markup."""
    return escape_xml(escaped(text))


def html_page(sections: Sequence[Section], options: FigureOptions, title: str) -> str:
    """Write sections as a page of HTML; without a theme it is light or dark as the browser prefers.

    >>> page = html_page([Section("x", [Table([["a < b"], ["1"]])])], FigureOptions(), "attnkit")
    >>> [line for line in page.splitlines() if "<th " in line]
    ['<tr><th class="left">a &lt; b</th></tr>']
    """
    if options.theme:
        theme = f":root {{ {_variables(PALETTES[options.theme])} }}\n"
    else:
        dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
        theme = f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n{dark}"
    body = "\n".join(_section(one, at) for at, one in enumerate(sections))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="viewport" content="width=device-width"/>\n<title>{escape_text(title)}</title>\n'
        f"<style>\n{theme}{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _variables(palette: Palette) -> str:
    return "; ".join(f"--{name}: {color or 'transparent'}" for name, color in palette._asdict().items())


def _section(section: Section, number: int) -> str:
    formula = f" <span>= {escape_text(section.formula)}</span>" if section.formula else ""
    lines = [f"<h2>{escape_text(section.title)}{formula}</h2>"] if section.title else []
    lines += [f"<p>{escape_text(section.description)}</p>"] if section.description else []
    if section.panels:
        panels = (_panel(panel, f"{number}-{at}") for at, panel in enumerate(section.panels))
        lines += ['<div class="panels">', *panels, "</div>"]
    lines += [f"<p>{escape_text(note)}</p>" for note in section.notes]
    return "\n".join(["<section>", *lines, "</section>"])


def _panel(panel: Panel, place: str) -> str:
    if isinstance(panel, Table):
        return _html_table(panel)
    if isinstance(panel, Drawing):
        svg = draw_svg(panel, PALETTES["transparent"], place)
        for name in ("ink", "muted", "grid", "masked"):
            svg = svg.replace(f": {getattr(LIGHT, name)}", f": var(--{name})")
        return svg.replace("<svg", f'<svg role="img" style="min-width: {min(round(panel.width), MIN_WIDTH)}px"', 1)
    return f"<pre>{chr(10).join(map(escape_text, panel.lines))}</pre>"


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
    r"""Write sections as Markdown below a title; a section without panels is the heading of the next ones.

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
            yield _markdown_table(panel)
        elif isinstance(panel, Drawing):
            yield "(a drawing, in the HTML and PDF of this sheet)"
        else:
            yield "\n".join(["```text", *panel.lines, "```"])
    yield from section.notes


def _markdown_table(table: Table) -> str:
    head, *rows = [[text.replace("|", r"\|") for text in row] for row in table.rows]
    rules = ["---" if at in table.left else "---:" for at in range(len(head))]
    lines = [f"| {' | '.join(row)} |" for row in (head, rules, *rows)]
    return "\n".join([*([f"**{table.title}**", ""] if table.title else []), *lines])
