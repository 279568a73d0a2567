"""Tables, heat maps and pictures of tensors: arrays in, text for a terminal out; nothing here prints."""

from attnkit.display.heatmaps import heads, heatmap
from attnkit.display.pictures import picture
from attnkit.display.sheets import facts, table
from attnkit.display.steps import beams, choice, said, scores
from attnkit.display.summaries import candidates, listing, measured, sized, statistics
from attnkit.display.tables import tensor
from attnkit.display.terminal import Look, look

__all__ = [
    "Look",
    "beams",
    "candidates",
    "choice",
    "facts",
    "heads",
    "heatmap",
    "listing",
    "look",
    "measured",
    "picture",
    "said",
    "scores",
    "sized",
    "statistics",
    "table",
    "tensor",
]
