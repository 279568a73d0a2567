"""Colour maps, on terminals as in figures, and the themes of figures."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from attnkit.errors import UsageError, suggest
from attnkit.records import Array

Theme = Literal["light", "dark", "transparent"]

LEVELS = 65  # odd: zero of a range that is even about it has a level of its own

# Anchors, low to high: viridis and magma of matplotlib (CC0), Blues and RdBu of ColorBrewer (Apache 2.0), grey.
COLOR_MAPS: Mapping[str, tuple[str, ...]] = {
    "viridis": ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"),
    "magma": ("000004", "1c1044", "4f127b", "812581", "b5367a", "e55064", "fb8761", "fec287", "fcfdbf"),
    "blues": ("f7fbff", "deebf7", "c6dbef", "9ecae1", "6baed6", "4292c6", "2171b5", "08519c", "08306b"),
    "gray": ("000000", "ffffff"),
    "bwr": ("2166ac", "92c5de", "f7f7f7", "f4a582", "b2182b"),
}
SIGNED, UNSIGNED = "bwr", "viridis"
NOT_FINITE_COLOR = "#ff00aa"  # in no colour map
SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#ee8866")  # Paul Tol, bright


class Palette(NamedTuple):
    """The colours of a theme as #rrggbb; a transparent background is ""."""

    ink: str
    muted: str
    grid: str
    masked: str
    background: str


LIGHT = Palette("#1a1c20", "#5c636e", "#c9ced6", "#d5d9df", "#ffffff")
DARK = Palette("#e8eaee", "#a2a9b4", "#4a505a", "#3a3f48", "#16181c")
PALETTES: Mapping[Theme, Palette] = {"light": LIGHT, "dark": DARK, "transparent": LIGHT._replace(background="")}


def color_map(name: str) -> list[str]:
    """The LEVELS colours of a map, from low to high. UsageError for an unknown name.

    >>> colors = color_map("gray")
    >>> colors[0], colors[32], colors[-1]
    ('#000000', '#808080', '#ffffff')
    """
    if name not in COLOR_MAPS:
        raise UsageError(f"no colour map {name!r} (expected {', '.join(COLOR_MAPS)}){suggest(name, COLOR_MAPS)}")
    anchors = np.array([[int(color[at : at + 2], 16) for at in (0, 2, 4)] for color in COLOR_MAPS[name]])
    at = np.linspace(0, len(anchors) - 1, LEVELS)
    channels = [np.floor(np.interp(at, range(len(anchors)), channel) + 0.5).astype(int) for channel in anchors.T]
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in zip(*channels, strict=True)]


def contrasting_ink(color: str) -> str:
    """Choose black or white, whichever has more contrast with a colour: 4.5 at least.

    By the relative luminance of WCAG 2.2: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance

    >>> contrasting_ink("#fde725"), contrasting_ink("#440154"), contrasting_ink("#21918c")
    ('#000000', '#ffffff', '#000000')
    """
    luminance = 0.0
    for byte, weight in zip(bytes.fromhex(color[1:]), (0.2126, 0.7152, 0.0722), strict=True):
        share = byte / 255
        luminance += weight * (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return "#000000" if luminance > 0.179 else "#ffffff"


def color_levels(values: Array, low: float, high: float, count: int = LEVELS) -> Array:
    """Find the level of each value in a range; values outside are at its ends.

    >>> color_levels(np.array([0.0, 0.5, 1.0, 7.0]), 0, 1)
    array([ 0, 32, 64, 64])
    """
    peak = max(abs(low), abs(high)) or 1.0
    low, high = low / peak, high / peak  # of the order of 1: no overflow in high - low
    if not high > low:
        return np.full(values.shape, (count - 1) // 2)
    with np.errstate(over="ignore"):
        share = np.clip(values.astype(np.float64) / peak, low, high)
    levels: Array = np.rint((share - low) / (high - low) * (count - 1)).astype(int)
    return levels
