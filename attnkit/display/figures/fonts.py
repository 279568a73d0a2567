"""The width of a text, as far as it is known before a font is chosen: that of a wide sans-serif font."""

import unicodedata

from attnkit.errors import escaped

SANS = "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
MONO = "Menlo, Consolas, DejaVu Sans Mono, monospace"
MONO_WIDTH = 0.61  # of a character, in its size
WIDEST = 1.15  # the widest of these fonts, relative to Helvetica

# The widths of ASCII from the space on, in thousandths of the size, from the metrics of Helvetica.
HELVETICA = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
)  # fmt: skip


def text_width(text: str, size: float, is_mono: bool = False) -> float:
    """Return the width of a text in pixels, at most a few percent too small.

    >>> round(text_width("00", 10), 2), text_width("日本", 10), text_width("ab", 10, is_mono=True)
    (12.79, 23.0, 12.2)
    """
    if is_mono:
        return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text) * MONO_WIDTH * size
    return sum(map(_character_width, text)) * size * WIDEST / 1000


def _character_width(character: str) -> int:
    """Return the width of a character in thousandths of the size."""
    at = ord(character) - 32
    if 0 <= at < len(HELVETICA):
        return HELVETICA[at]
    if unicodedata.combining(character):
        return 0
    return 1000 if unicodedata.east_asian_width(character) in "WF" else 600


def clip_text(text: str, width: float, size: float) -> str:
    """Cut a text to a width in pixels, with an ellipsis at its end where it is longer.

    >>> clip_text("attention", 1000, 12), clip_text("attention", 40, 12)
    ('attention', 'atten…')
    """
    if text_width(text, size) <= width:
        return text
    room, length = width - text_width("…", size), 0
    while length < len(text) and (room := room - text_width(text[length], size)) >= 0:
        length += 1
    return text[: max(length, 1)] + "…"


def wrap_text(text: str, width: float, size: float) -> list[str]:
    """Break a text at spaces into lines of at most this width; a longer word has a line of its own.

    >>> wrap_text("one two three", 50, 12)
    ['one two', 'three']
    """
    lines: list[str] = []
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(joined, size) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def visible(text: str) -> str:
    r"""Return a text with every character visible: control characters spelled out, blanks quoted.

    >>> print(visible("a\nb"), visible("  "), visible("[pad]"))
    a\nb '  ' [pad]
    """
    printable = escaped(text)
    return printable if printable.strip() else repr(printable)
