"""Write a drawing as SVG: rectangles, paths and escaped texts; nothing is loaded from elsewhere."""

import re
from xml.sax.saxutils import escape as escape_xml

import numpy as np

from attnkit.display.figures.colors import Palette
from attnkit.display.figures.fonts import MONO, SANS
from attnkit.display.figures.shapes import TAIL_GAP, TEXT_SIZE, Array, Cells, Drawing, Path, Placed, Shape, Text, short
from attnkit.errors import escaped

NAMESPACE = "http://www.w3.org/2000/svg"
HATCH = (  # the fill of masked cells
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path d="M0 0h6v6h-6z" fill="{background}"/>'
    '<path d="M-1 1l2-2M0 6L6 0M5 7l2-2" stroke="{masked}" stroke-width="1.5"/></pattern>'
)

SCRIPTS = {"ᵀ": "T"} | dict(zip("₀₁₂₃₄₅₆₇₈₉ₐₖ", "0123456789ak", strict=True))
SCRIPT = re.compile(f"([{''.join(SCRIPTS)}]+)(&[^;]*;|[^<])?")  # with the character after it


def svg_document(drawing: Drawing, palette: Palette, title: str) -> str:
    """Return a drawing as an SVG document, with its size in pixels and the colours of a palette.

    >>> svg_document(Drawing(30, 20, [Text(1, 15, "a < b")]), Palette("#000", "", "", "", ""), "t").splitlines()[-2]
    '<text x="1" y="15">a &lt; b</text>'
    """
    ground = f'<path d="M0 0h{short(drawing.width)}v{short(drawing.height)}H0z" fill="{palette.background}"/>\n'
    return (
        f"{svg_head(drawing, palette)}<title>{escape_text(title)}</title>\n<defs>{hatch(palette)}</defs>\n"
        f"{ground if palette.background else ''}{svg_shapes(drawing, palette)}\n</svg>\n"
    )


def svg_head(drawing: Drawing, palette: Palette) -> str:
    """Return the first tag of a drawing."""
    width, height = short(drawing.width), short(drawing.height)
    return (
        f'<svg xmlns="{NAMESPACE}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="{SANS}" font-size="{TEXT_SIZE}" fill="{palette.ink}">'
    )


def hatch(palette: Palette) -> str:
    """Return the pattern of masked cells."""
    return HATCH.format(background=palette.background or "none", masked=palette.masked)


def svg_shapes(drawing: Drawing, palette: Palette) -> str:
    """Return the shapes of a drawing, one or more lines each."""
    return "\n".join(_svg_shape(shape, palette) for shape in drawing.shapes)


def escape_text(text: str) -> str:
    """Return a text for the content of an element: control characters spelled out, markup escaped."""
    return escape_xml(escaped(text))


def set_scripts(svg: str) -> str:
    """Set superscripts and subscripts in the texts of a document as small letters, raised or lowered.

    Few fonts have them, and a renderer that replaces the font for one character replaces that of the whole text.

    >>> set_scripts("<text>Kᵀ / 2</text>")
    '<text>K<tspan font-size=".7em" dy="-.4em">T</tspan><tspan dy=".28em"> </tspan>/ 2</text>'
    """
    return re.sub(r"<text\b.*?</text>", lambda match: SCRIPT.sub(_set_script, match[0]), svg)


def _set_script(match: re.Match[str]) -> str:
    """Return superscripts and subscripts, and the character after them on the line of the others."""
    texts, height = [], 0.0  # above that line
    for one in match[1]:
        raised = 0.28 if one == "ᵀ" else -0.14
        texts.append(f'<tspan font-size=".7em" dy="{short((height - raised) / 0.7)}em">{SCRIPTS[one]}</tspan>')
        height = raised
    return "".join(texts) + (f'<tspan dy="{short(height)}em">{match[2]}</tspan>' if match[2] else "")


def _svg_shape(shape: Shape, palette: Palette) -> str:
    if isinstance(shape, Text):
        return _svg_text(shape, palette)
    if isinstance(shape, Cells):
        return _svg_cells(shape)
    if isinstance(shape, Path):
        return _svg_path(shape, palette)
    placed: Placed = shape
    at = f"{short(placed.x)} {short(placed.y)}"
    return f'<g transform="translate({at})">\n{svg_shapes(placed.drawing, palette)}\n</g>'


def _paint(color: str, palette: Palette) -> str:
    """Return a colour as it is written; a name is that of the palette."""
    return "url(#hatch)" if color == "hatch" else color if color.startswith("#") else str(getattr(palette, color))


def _svg_text(shape: Text, palette: Palette) -> str:
    x, y = short(shape.x), short(shape.y)
    place = f'transform="translate({x} {y}) rotate({short(shape.angle)})"' if shape.angle else f'x="{x}" y="{y}"'
    looks = [
        f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else "",
        f' font-size="{short(shape.size)}"' if shape.size != TEXT_SIZE else "",
        ' font-weight="bold"' if shape.is_bold else "",
        f' font-family="{MONO}" xml:space="preserve"' if shape.is_mono else "",
        f' fill="{_paint(shape.color, palette)}"' if shape.color != "ink" else "",
    ]
    tail = f'<tspan dx="{TAIL_GAP}" font-size="{TEXT_SIZE}" font-weight="normal">{escape_text(shape.tail)}</tspan>'
    return f"<text {place}{''.join(looks)}>{escape_text(shape.text)}{tail if shape.tail else ''}</text>"


def _svg_path(shape: Path, palette: Palette) -> str:
    fill = f'fill="{_paint(shape.fill, palette)}"' if shape.fill else 'fill="none"'
    stroke = f' stroke="{_paint(shape.stroke, palette)}" stroke-width="{short(shape.width)}"' if shape.stroke else ""
    cap = ' stroke-linecap="round"' if "h0" in shape.data and stroke else ""  # a point has no other extent
    return f'<path d="{shape.data}" {fill}{stroke}{cap}/>'


def _svg_cells(cells: Cells) -> str:
    """Return a path for each colour: a stroke as high as a row, drawn through each run of its cells."""
    by_level: dict[int, list[str]] = {}
    for row, start, length, level in _runs(cells.levels):
        by_level.setdefault(level, []).append(f"M{start} {row}h{length}")
    paths = [f'<path stroke="{cells.colors[level]}" d="{"".join(by_level[level])}"/>' for level in sorted(by_level)]
    x, y = short(cells.x), short(cells.y + cells.cell_height / 2)
    scale = f"{short(cells.cell_width)} {short(cells.cell_height)}"
    return "\n".join(
        [f'<g transform="translate({x} {y}) scale({scale})" shape-rendering="crispEdges" fill="none">', *paths, "</g>"]
    )


def _runs(levels: Array) -> list[tuple[int, int, int, int]]:
    """Return (row, first column, length, level) of every run of equal levels in a row, but of those below 0.

    >>> _runs(np.array([[5, 5, 7], [-1, 7, 7]]))
    [(0, 0, 2, 5), (0, 2, 1, 7), (1, 1, 2, 7)]
    """
    runs = []
    for row, line in enumerate(levels):
        starts = np.flatnonzero(np.diff(line, prepend=line[:1] - 1)) if line.size else np.zeros(0, int)
        lengths = np.diff(starts, append=line.size)
        spans = zip(starts.tolist(), lengths.tolist(), line[starts].tolist(), strict=True)
        runs += [(row, start, length, level) for start, length, level in spans if level >= 0]
    return runs
