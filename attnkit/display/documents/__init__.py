"""Pages of help as documents: what a block of a page is in HTML and in a notebook.

inline      the text of a paragraph, and formulas, as HTML
shades      heat maps of a terminal as SVG
html        pages as one HTML page, which loads nothing and has no script
notebook    pages as a notebook of Jupyter
"""

from attnkit.display.documents.html import html_document
from attnkit.display.documents.inline import Page
from attnkit.display.documents.notebook import notebook_document
