"""Maps over the patches of a picture, drawn on the picture."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnkit.display.colors import SIGNED, UNSIGNED, color_map
from attnkit.display.figures.canvas import TEXT_SIZE, clip_text, draw_axes
from attnkit.display.figures.maps import (
    DIGITS,
    MAP_GAP,
    MAX_SIDE,
    TITLE,
    WIDTH,
    HeatMaps,
    balanced_columns,
    find_ranges,
    outside_note,
    paint_legend,
    paint_map,
    pool_cells,
)
from attnkit.display.figures.sections import FigureOptions, Section
from attnkit.display.numbers import format_number
from attnkit.display.slicing import TensorView, pluralize, to_matrices
from attnkit.libraries import import_library
from attnkit.records import Array

MAX_OVERLAYS = 64
MAX_PIXELS = 1_000_000  # of all pictures of a figure together
WIDEST = 2.5  # width by height of a picture that one map is drawn beside, not below
OPACITY = 0.6  # of the colours over the picture
GREYS = 60, 255  # of what is black and white in the picture
LUMA = np.array([0.299, 0.587, 0.114])  # Rec. 601 luma


@dataclass(kw_only=True)
class Overlays(HeatMaps):
    """Heat maps over the patches of a picture, which is shown alone before them.

    picture  (height, width, 3) uint8
    box      left, top, right and bottom edge of the patches, as shares of the picture
    tile     width and height of a picture in pixels
    """

    picture: Array
    box: tuple[float, float, float, float]
    tile: tuple[float, float]

    @property
    def size(self) -> tuple[float, float]:
        return self.tile

    @property
    def grid(self) -> tuple[float, float]:
        (width, height), down = self.tile, -(-(len(self.cells) + 1) // self.across)
        return self.across * (width + MAP_GAP) - MAP_GAP, down * (height + TITLE) - TITLE

    @property
    def extents(self) -> tuple[float, float, float, float]:
        """The edges of the picture, left, right, bottom and top, in patches."""
        (rows, columns), (left, top, right, bottom) = self.cells[0].shape, self.box
        wide, high = columns / (right - left), rows / (bottom - top)
        return -0.5 - left * wide, -0.5 + (1 - left) * wide, -0.5 + (1 - top) * high, -0.5 - top * high


def overlay_section(view: TensorView, picture: Array, box: Array, options: FigureOptions, chosen: str = "") -> Section:
    """Maps (..., row, column) over the patches of a picture, drawn on it.

    The picture comes first, alone. Below the colours it is grey and lighter, so that they are told apart from its own.
    What the patches do not cover has no colours.

    picture  (height, width, 3) uint8
    box      left, top, right and bottom edge of the patches, as shares of the picture; beyond 0 and 1 outside of it
    chosen   what the tensor is a part of, to be stated: "query cls"
    """
    if view.array.size == 0:
        return Section(view.title, [], view.formula, f"{view.description()}, empty")
    parts, hidden, _ = to_matrices(view, MAX_OVERLAYS)
    ranges = find_ranges(parts, options)
    colors = color_map(options.colors or (SIGNED if any(low < 0 < high for low, high in ranges) else UNSIGNED))
    cells = [pool_cells(part, (1, 1)) for part in parts]
    has_own_ranges = options.range == "each" and len(parts) > 1
    left, top, right, bottom = (float(edge) for edge in box)
    # the picture, and where patches are outside of it, these
    shown = max(right, 1) - min(left, 0), max(bottom, 1) - min(top, 0)
    aspect = picture.shape[1] * shown[0] / (picture.shape[0] * shown[1])
    across = 2 if len(parts) == 1 and aspect < WIDEST else balanced_columns(len(parts) + 1, aspect)
    width = min(WIDTH // across, MAX_SIDE, MAX_SIDE * aspect)
    tile = max(width, 1.0), max(width / aspect, 1.0)
    small = shrink(picture, tile, MAX_PIXELS // (len(parts) + 1))
    maps = Overlays(
        parts, cells, ranges, (1, 1), colors, ("", ""), has_own_ranges, "", 0, across,
        picture=small, box=(left, top, right, bottom), tile=tile,
    )  # fmt: skip
    count, (rows, columns) = len(parts), cells[0].shape
    kind = pluralize(view.axes[0]) if view.array.ndim == 3 else "maps"
    frame = "" if (box == [0, 0, 1, 1]).all() else ", in the frame: the part of the picture that the model reads"
    notes = [
        hidden,
        f"{rows} × {columns} patches{frame}",
        f"{count} {kind}, {'each with its own range' if has_own_ranges else 'one range'} of colours" * (count > 1),
        outside_note(parts, options),
    ]
    drawing = draw_axes(*maps.grid, partial(paint_overlays, maps=maps))
    description = f"{view.description()}{chosen and ', '}{chosen}"
    return Section(view.title, [drawing], view.formula, description, [note for note in notes if note])


def shrink(picture: Array, tile: tuple[float, float], most: int) -> Array:
    """Shrink a picture to twice the pixels of its place, and to at most `most`."""
    height, width = picture.shape[:2]
    scale = min(1.0, 2 * max(tile) / max(height, width), math.sqrt(most / (height * width)))
    if scale == 1:
        return picture
    image = import_library("PIL.Image", "image", "a picture")
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    return np.asarray(image.fromarray(picture).resize(size, image.Resampling.BOX))


def paint_overlays(axes: Any, maps: Overlays) -> None:
    """Paint a picture, and again below each of the maps."""
    from matplotlib.patches import Rectangle

    axes.axis("off")
    (width, height), (map_width, map_height) = maps.grid, maps.tile
    rows, columns = maps.cells[0].shape
    left, right, bottom, top = maps.extents
    black, white = GREYS
    grey = np.rint(black + maps.picture @ LUMA * (white - black) / 255).astype(np.uint8)[..., None].repeat(3, axis=-1)
    for at in range(len(maps.cells) + 1):
        down, over = divmod(at, maps.across)
        x, y = over * (map_width + MAP_GAP), height - down * (map_height + TITLE) - map_height
        inner = axes.inset_axes((x / width, y / height, map_width / width, map_height / height))
        title = "picture"
        inner.imshow(grey if at else maps.picture, extent=maps.extents, aspect="auto", interpolation="none", zorder=0)
        if at:
            cells, (low, high) = maps.cells[at - 1], maps.ranges[at - 1]
            paint_map(inner, cells, (low, high), (1, 1), maps.colors, opacity=OPACITY)
            ends = f" ({format_number(low, DIGITS)} … {format_number(high, DIGITS)})" * maps.has_own_ranges
            title = maps.parts[at - 1].title + ends
        inner.set(xticks=[], yticks=[], frame_on=False)
        inner.set_xlim(min(left, -0.5), max(right, columns - 0.5))
        inner.set_ylim(max(bottom, rows - 0.5), min(top, -0.5))
        if maps.box != (0, 0, 1, 1):
            for color, dashes in (("#000000", "-"), ("#ffffff", (0, (4, 4)))):
                frame: dict[str, Any] = {
                    "fill": False,
                    "edgecolor": color,
                    "linewidth": 1,
                    "linestyle": dashes,
                    "clip_on": False,
                }
                inner.add_patch(Rectangle((-0.5, -0.5), columns, rows, **frame))
        inner.set_title(clip_text(title, map_width + MAP_GAP, TEXT_SIZE, "bold"), parse_math=False)
    paint_legend(axes, maps)
