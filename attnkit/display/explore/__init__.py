"""A page that explores traces: one HTML file with data, style and scripts.

page        the file; payload: its data, packed as JSON
"""

from attnkit.display.explore.page import explore_page
from attnkit.display.explore.payload import Attention, Difference, ExploredTrace, Lens, Picture, pack_traces
