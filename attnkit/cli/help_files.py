"""Pages of help written to a file: one HTML page, a notebook, or Markdown."""

import os
from collections.abc import Callable, Mapping, Sequence

from attnkit import help as pages
from attnkit.cli import TOOLS
from attnkit.display.documents import Page, html_document, notebook_document
from attnkit.errors import UsageError
from attnkit.formats import Sink
from attnkit.help.practice import list_practice

WRITERS: Mapping[str, Callable[[Sequence[Page], str], str]] = {
    ".html": html_document,
    ".ipynb": lambda written, title: notebook_document(written),
    ".md": lambda written, title: "\n".join(page.markdown for page in written),
}


def write_help_file(names: Sequence[str], path: str) -> int:
    """Write a page, a chapter or the whole lecture to a file.

    Returns the exit code 0. UsageError if the words name none of them, or no document has the suffix of the file.
    """
    suffix = os.path.splitext(path)[1]
    if suffix not in WRITERS:
        *most, last = WRITERS
        raise UsageError(f"no page has the suffix {suffix!r} (expected {', '.join(most)} or {last})", path)
    written = find_pages(" ".join(names))
    title = f"attnkit: {written[0].markdown.partition(chr(10))[0].removeprefix('# ')}"
    with Sink(path) as sink:
        sink.write([WRITERS[suffix](written, title).encode()])
    return 0


def find_pages(name: str) -> list[Page]:
    """Find the page of a topic or a chapter, or all pages of the lecture."""
    if name == "lecture":
        return [Page(name, pages.read_page(name)), *(chapter_page(one) for one in pages.list_chapters())]
    if name in pages.list_topics():
        return [Page(name, pages.read_page(name))]
    if name not in TOOLS and (chapter := pages.find_chapter(name.removeprefix("lecture "))):
        return [chapter_page(chapter)]
    stated = f"{name!r} is no page" if name else "no page is named"
    raise UsageError(f"{stated} (expected lecture, a chapter or a topic; attnkit help lists them)", "-o")


def chapter_page(chapter: pages.Chapter) -> Page:
    return Page(f"lecture {chapter.name}", chapter.read() + list_practice(chapter.name), is_chapter=True)
