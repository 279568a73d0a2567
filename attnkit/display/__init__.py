"""Tables, heat maps and pictures of tensors: arrays in, text for a terminal out; nothing here prints."""

from attnkit.display.heatmaps import heads, heatmap
from attnkit.display.pictures import picture
from attnkit.display.summaries import candidates, listing, statistics
from attnkit.display.tables import tensor
from attnkit.display.terminal import Look, look

__all__ = ["Look", "candidates", "heads", "heatmap", "listing", "look", "picture", "statistics", "tensor"]
