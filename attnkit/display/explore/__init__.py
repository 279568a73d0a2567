"""One page that explores traces: a self-contained HTML file with its data, its style and its scripts."""

from attnkit.display.explore.page import explore_page
from attnkit.display.explore.payload import Attention, Difference, ExploredTrace, Lens, pack_traces

__all__ = ["Attention", "Difference", "ExploredTrace", "Lens", "explore_page", "pack_traces"]
