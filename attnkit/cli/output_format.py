"""The format of a result: by flag, by the suffix of a file, or by default."""

import itertools
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnkit import formats
from attnkit.cli import options
from attnkit.errors import AttnkitNote, UsageError, flag_name
from attnkit.records import Array, Record, join_names

FIGURE_FORMATS, CELL_FORMATS, DISPLAY_FORMATS = options.FIGURE_FORMATS, options.CELL_FORMATS, options.DISPLAY_FORMATS
WORKBOOK = "xlsx"  # which `run` alone writes
SHEET_FORMATS = (*FIGURE_FORMATS, "markdown")
DISPLAYED = "table, svg, png, pdf or html"
HELD = {"report": ("json",), "rows": ("json", "csv", "tsv")}  # what a text may be written as beside DISPLAYED
TEXT = "text"  # the format of a tool that returns text, whatever the suffix of its file
NO_TEXT = {".tex", ".jpg", ".jpeg", ".gif", ".zip", ".gz", ".pt", ".bin"}
SUFFIXES = {
    ".txt": "table",
    ".md": "markdown",
    ".xlsx": WORKBOOK,
    **{f".{name}": name for name in (*FIGURE_FORMATS, "csv", "tsv")},
}
ONLY_IN_FIGURES = ("theme", "title", "curves", "numbers", "no_numbers", "range", "cmap")
STDOUT = 1
Result = Record | str


@dataclass(eq=False, repr=False)
class OutputFormat:
    """The format of a stage's results, from flags, input and first result.

    common         the values of the options that all tools share
    shows_table    whether the tool writes a table unless another format is requested
    is_piped       whether another stage of this process reads the results
    follows_input  whether it is npy only because the input is npy
    keeps_history  whether the format holds the history of a result
    is_noted       whether the note of what npy leaves out is written
    """

    common: dict[str, Any]
    shows_table: bool = False
    is_piped: bool = False
    follows_input: bool = False
    keeps_history: bool = True
    is_noted: bool = False

    def requested(self) -> str | None:
        """The format that flags, suffix or terminal request, or None."""
        return self.common.get("format") if self.is_piped else requested_format(self.common, self.shows_table)

    def choose(self, arriving: str | None) -> str:
        """The format before the first result is known. npy may become npz."""
        requested = self.requested()
        chosen = requested or arriving or default_format()
        self.follows_input = chosen == "npy" and requested is None and arriving == "npy"
        self.keeps_history = chosen not in ("npy", *DISPLAY_FORMATS)
        return chosen

    def settle(self, format: str, items: Iterator[Result]) -> tuple[str, Iterator[Result]]:
        """The format of a whole stream: npz if npy would lose tensors."""
        if not self.follows_input:
            return format, items
        first = next(items, None)
        wide = isinstance(first, Record) and len(first) > 1
        return "npz" if wide else format, itertools.chain([] if first is None else [first], items)

    def set_hashing(self, source: formats.Source) -> None:
        """Hash an input of format npy only if the history of the result may name it."""
        requested = self.requested()
        if requested in ("npy", *DISPLAY_FORMATS):
            source.stop_hash()  # neither carries a history
        elif requested is None:
            source.defer_hash()  # until it is known whether npy holds the result

    def convert(self, result: Result, format: str) -> Result:
        """A result as a format holds it. npy keeps x alone, with a note."""
        if format != "npy" or not isinstance(result, Record):
            return result
        from attnkit.formats import npy

        x = npy.only_tensor(result)
        if not self.is_noted and (notes := self._notes(result, x)):
            self.is_noted = True
            warnings.warn("; ".join(notes), AttnkitNote, stacklevel=2)
        return Record({"x": x})

    def _notes(self, record: Record, x: Array) -> list[str]:
        """The notes of a record written as npy."""
        omitted = [name for name in record if name != "x" and len(record) > 1]
        omitted += ["labels"] * bool(record.labels) + ["history"] * (len(record.history) > 1)
        notes = [f"npy holds only x; left out: {join_names(omitted)} (-f npz keeps all)"]
        if not omitted or self.common.get("only"):
            notes = []
        if x.dtype.name == "bfloat16":
            notes.append("npy has no name for bfloat16; reading it takes --dtype bfloat16")
        return notes


def requested_format(common: Mapping[str, Any], shows_table: bool) -> str | None:
    """The format that a flag, a suffix or a terminal requests, or None.

    common       the flags all tools share
    shows_table  whether the tool writes a table unless another format is requested

    >>> requested_format({"format": "npz", "output": "a.json"}, False), requested_format({"output": "a.json"}, False)
    ('npz', 'json')
    """
    path = common.get("output") or "-"
    suffix = os.path.splitext(path)[1]
    if common.get("format"):
        return str(common["format"])
    if path == "-":
        if shows_table or os.isatty(STDOUT):
            return "table"
    elif by_suffix := formats.suffix_format(path) or SUFFIXES.get(suffix):
        return by_suffix
    elif suffix and not path.startswith("/dev/"):
        from attnkit.cli.synonyms import look_up

        hint = next((f"did you mean .{one}?" for one in look_up("values", suffix[1:])), "-f FORMAT chooses one")
        raise UsageError(f"no format has the suffix {suffix!r}; {hint}", path)
    return None


def text_format(common: Mapping[str, Any], gives: str = "text") -> str:
    """The format of a text: itself, or a picture of it.

    A file of text may have any suffix but one of another format.

    gives  the word of Tool for the results: a report may be JSON too, and rows JSON and cells

    >>> text_format({"output": "a.sh"}), text_format({"format": "svg"}), text_format({"format": "table"})
    ('text', 'svg', 'text')
    """
    path = common.get("output") or "-"
    suffix = os.path.splitext(path)[1]
    chosen = common.get("format") or formats.suffix_format(path) or SUFFIXES.get(suffix)
    if not chosen and suffix in NO_TEXT:
        raise UsageError(
            f"the result is text, for which no format has the suffix {suffix!r}; -f FORMAT chooses one", path
        )
    chosen = chosen or "table"
    held = HELD.get(gives, ())
    if chosen in held:
        return str(chosen)
    if chosen not in ("table", "markdown", *FIGURE_FORMATS):
        name = "--format" if common.get("format") else path
        raise UsageError(
            f"the result is text, which {chosen} cannot hold (expected {', '.join([*held, DISPLAYED])})", name
        )
    return TEXT if chosen in ("table", "markdown") else str(chosen)


def page_format(common: Mapping[str, Any]) -> str:
    """The format of a page; UsageError for another one, and on a terminal.

    A file of a page may have any suffix but one of another format.

    >>> page_format({"output": "page.html"}), page_format({"output": "page"})
    ('html', 'html')
    """
    path = common.get("output") or "-"
    chosen = common.get("format") or formats.suffix_format(path) or SUFFIXES.get(os.path.splitext(path)[1], "html")
    if chosen != "html":
        name = "--format" if common.get("format") else path
        raise UsageError(f"the result is a page, which {chosen} cannot hold (expected html)", name)
    if path == "-" and os.isatty(STDOUT):
        raise UsageError("the page is HTML, but standard output is a terminal; use -o page.html or a pipe")
    return "html"


def requests_workbook(common: Mapping[str, Any]) -> bool:
    """Whether the suffix of the file of the result is that of a workbook.

    >>> requests_workbook({"output": "sheet.xlsx"}), requests_workbook({"output": "sheet.xlsx", "format": "json"})
    (True, False)
    """
    path = common.get("output") or "-"
    return not common.get("format") and SUFFIXES.get(os.path.splitext(path)[1]) == WORKBOOK


def check_figure_flags(flags: Mapping[str, Any], is_figure: bool, tool: str) -> None:
    """Raise UsageError for a figure flag if the result is no figure."""
    for name in () if is_figure else ONLY_IN_FIGURES:
        if flags.get(name):
            error = UsageError("needs a figure: -o FILE.svg, .png, .pdf or .html", flag_name(name))
            error.place = f"attnkit {tool}"
            raise error


def default_format() -> str:
    """The format where nothing else chooses one: ATTNKIT_FORMAT, else JSON."""
    name = os.environ.get("ATTNKIT_FORMAT") or "json"
    if name not in options.FORMATS:
        raise UsageError(f"no format {name!r} (expected {' '.join(options.FORMATS)})", "ATTNKIT_FORMAT")
    return name
