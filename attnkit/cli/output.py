"""Where results go: a pipe, a file, a terminal, or standard error."""

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnkit import formats
from attnkit.callbacks import SILENT, use_callbacks
from attnkit.cli.output_format import (
    CELL_FORMATS,
    DISPLAY_FORMATS,
    FIGURE_FORMATS,
    STDOUT,
    TEXT,
    WORKBOOK,
    check_figure_flags,
    page_format,
    requested_format,
    text_format,
)
from attnkit.cli.stage import Stage, replace_together, running_stage, stored_by
from attnkit.errors import AttnkitNote, DataError, FileError, UsageError, escaped, shortened
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.display import Style, TextTable  # loaded only by stages that show something
    from attnkit.display.cells import Cells

STDERR = 2
FIRST_HEADS = 2  # whose tables --steps shows without --show-head
RED, YELLOW = "31", "33"
BINARY = ("npy", "npz", "safetensors", "png", "pdf")
PROGRESS_DELAY, PROGRESS_INTERVAL = 1.0, 0.1  # seconds before the first report of long work, and between two
TERMINAL = (None, "-", "/dev/stdout", "/dev/tty", "/dev/fd/1")


def write(stage: Stage) -> int:
    """Write each result of a stage at once. Returns the highest exit code."""
    with replace_together() as opened:
        flow, path, status = stage.open_stream(None), stage.common.get("output"), 0
        note_intermediate(stage, path)
        chosen = format_for(stage, flow.format)
        to_terminal = path in TERMINAL and os.isatty(STDOUT)
        stage.on_text = streamed = None
        if to_terminal and chosen in ("table", TEXT):
            stage.on_text = streamed = StreamedText(output_style(stage, STDOUT))
        last = stage.extra.get("last", stage)  # of `run` the last stage
        check_figure_flags(last.common | last.extra, is_drawn(stage, chosen), last.tool.name)
        if to_terminal and chosen in BINARY:
            raise UsageError(f"{chosen} is binary, but standard output is a terminal; use -o FILE or a pipe")
        if chosen == WORKBOOK and path and WORKBOOK not in stage.extra:
            hint = f"attnkit run '… | {stage.tool.name} …' -o {path}"
            raise UsageError(f"a workbook has the stages of a pipeline: {hint}", path)
        sink = opened(path)
        chosen, items = stage.format.settle(chosen, flow.items)
        last.note_idle_options(chosen)
        stream = items if chosen in (*formats.STREAMS, "table", TEXT) else single_record(items, chosen)
        for count, result in enumerate(stream):
            if streamed and streamed.end_line():
                continue
            data = captured_input(stage, chosen)
            if data is None:
                data = encode_result(stage, result, chosen, first=not count)
            if chosen not in DISPLAY_FORMATS:
                show_aside(stage, result)
            PROGRESS.clear()
            is_readable = chosen in ("json", TEXT, *CELL_FORMATS) and not isinstance(result, DrawnText)
            sink.write(harmless(data, chosen) if is_readable and sink.is_terminal() else data)
            if isinstance(result, Record):
                status = max(status, stage.tool.status(result, stage))
            status = max(status, getattr(result, "status", 0))
        return status


def note_intermediate(stage: Stage, path: str | None) -> None:
    """Note that --output names a file where --emit was probably meant."""
    emit = stage.tool.options.get("emit")
    if emit and path in emit.choices:
        note = f"-o {path} writes a file of that name; --emit {path} makes the intermediate x"
        warnings.warn(note, AttnkitNote, stacklevel=2)


def captured_input(stage: Stage, chosen: str) -> list[Any] | None:
    """The bytes of the record just read if the stage passes them on, or None."""
    is_kept = chosen == stage.input_format and (chosen == stage.input_source or not stage.format.requested())
    is_untouched = stage.tool.passthrough and is_kept and not {"only", "dtype", "indent"} & set(stage.common)
    return stage.files.source.take_captured() if is_untouched and stage.files.source else None


def format_for(stage: Stage, arriving: str | None) -> str:
    """The format that a stage writes: that of text, or one of records."""
    if stage.gives == "page":
        return page_format(stage.common)
    if stage.returns_text:
        stage.format.keeps_history = False
        return text_format(stage.common, stage.gives)
    return stage.format.choose(arriving)


def single_record(items: Iterator[Record | str], chosen: str) -> Iterator[Record | str]:
    """Yield the one result of a stream. DataError if there are more."""
    for result in items:
        if next(items, None) is not None:
            remedy = "-f npz or json holds a stream" if isinstance(result, Record) else "-f table prints all texts"
            kind = "record" if isinstance(result, Record) else "text"
            raise DataError(f"{chosen} holds one {kind}, but the stream has more; {remedy}")
        yield result


def is_drawn(stage: Stage, chosen: str) -> bool:
    """Decide whether a format is a figure, or Markdown of `run --steps`."""
    return chosen in FIGURE_FORMATS or "sheet" in stage.extra


def encode_result(stage: Stage, result: Record | str, chosen: str, first: bool) -> list[Any]:
    """The bytes of one result in a format; a text is written as it is, or as a figure."""
    result = stage.format.convert(result, chosen)
    if chosen == WORKBOOK:
        return [stage.extra[WORKBOOK].encode()]
    if is_drawn(stage, chosen) and stage.extra.get("last", stage).gives != "page":
        from attnkit.cli import figures

        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(cache, "matplotlib"))  # its list of fonts, and no settings
        return [figures.encode_figure(stage, result, chosen)]
    if chosen in CELL_FORMATS and isinstance(result, Record):
        from attnkit.cli import views

        return [views.encode_cells(stage, result, chosen)]
    if isinstance(result, str):
        return [(result + "\n").encode("utf-8", "surrogateescape")]
    if chosen == "table":
        text, is_text = render(stage, result, output_style(stage, STDOUT))
        separator = "" if first or not text or is_text else "\n"
        return [f"{separator}{text}".encode(encoding(), "replace")]
    layout = {"indent": True} if chosen == "json" and stage.common.get("indent") else {}
    return formats.encode(result, chosen, **layout)


def harmless(data: list[Any], chosen: str) -> list[bytes]:
    """Escape control characters for a terminal, which would obey them.

    >>> harmless([b"a\\x1b[2J\\tb\\n"], "text"), harmless(['["\\u202e"]'.encode()], "json")
    ([b'a\\\\x1b[2J   b\\n'], [b'["\\\\u202e"]'])
    """
    text = b"".join(data).decode("utf-8", "surrogateescape")
    if chosen == "tsv":
        return [escaped(text, "\n\t").encode(encoding(), "replace")]
    text = text.expandtabs()
    if chosen != "json":
        return [escaped(text, "\n").encode(encoding(), "replace")]
    import json

    escapes = (c if c.isprintable() or c == "\n" else " " if c == "\r" else json.dumps(c)[1:-1] for c in text)
    return ["".join(escapes).encode()]


def show_aside(stage: Stage, result: Record | str, with_command: bool = False) -> None:
    """Show the tables of a result on standard error, if its tool does so."""
    if stage.common.get("quiet") or not isinstance(result, Record):
        return
    if with_command or stage.tool.tables_aside(stage):
        heading = (
            f"{shortened(escaped(result.history[-1]['command']))}\n"
            if result.history and not stage.tool.passthrough
            else ""
        )
        style = output_style(stage, STDERR)
        if "show_head" in stage.tool.extra:
            style = style._replace(heads=stage.extra.get("show_head") or range(FIRST_HEADS))
        write_stderr(heading + render(stage, result, style)[0] + "\n")


def render(stage: Stage, record: Record, style: "Style") -> tuple[str, bool]:
    """Render a result for a terminal, ending in a newline; "" for nothing to show.

    Also whether it is one text.
    """
    from attnkit import display
    from attnkit.cli import views

    view = views.view_of(record, stage, style)
    text = display.draw_blocks(view.blocks, style).rstrip("\n")
    return f"{text}\n" if text else "", view.is_text


def output_style(stage: Stage, fd: int | None) -> "Style":
    """The style of tables for a file descriptor: a terminal has colour and a width."""
    from attnkit import display

    precision = stage.common.get("precision")
    to_file = fd == STDOUT and stage.common.get("output") not in (None, "-")
    terminal = fd is not None and os.isatty(fd) and not to_file
    style = display.detect_style(terminal, os.environ, encoding(), precision)
    return style._replace(plain_tokens=stage.common.get("tokens") == "plain")


def encoding() -> str:
    """The encoding of standard output, which the locale sets."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


class StreamedText:
    """Text that is written to a terminal while it is generated."""

    def __init__(self, style: "Style") -> None:
        self._style, self._is_open = style, False

    def __call__(self, text: str, dim: bool) -> None:
        """Write more of the text."""
        from attnkit import display

        self._is_open = True
        PROGRESS.clear()
        styled = display.dim_then_bold(text if dim else "", "" if dim else text, self._style)
        formats.write_all(STDOUT, [styled.encode(encoding(), "replace")], "<stdout>")

    def end_line(self) -> bool:
        """End the last line of a written text; return whether there was one."""
        if not self._is_open:
            return False
        formats.write_all(STDOUT, [b"\n"], "<stdout>")
        self._is_open = False
        return True


def show_report(values: Mapping[str, Any], line: "Callable[[Style], str]") -> None:
    """Write a report of long work to standard output at once, as `report_text` has it."""
    PROGRESS.clear()
    formats.write_all(STDOUT, [(report_text(values, line) + "\n").encode(encoding(), "replace")], "<stdout>")


class DrawnText(str):
    """Text for a terminal, whose own control characters set its colours.

    Those of the data are escaped.
    """


class Graded(str):
    """The text of a report, with the exit code of the check."""

    status = 0

    @classmethod
    def of(cls, text: str, status: int) -> "Graded":
        """A text with an exit code."""
        graded = cls(text)
        graded.status = status
        return graded


def report_text(values: Mapping[str, Any], line: "Callable[[Style], str]") -> str:
    """Values as JSON, or as a line if another format is requested."""
    return _requested_text(line) or _as_json(values)


def list_text(name: str, rows: Sequence[Mapping[str, str]], table: "TextTable") -> str:
    """Write rows as a table on a terminal, as tab-separated lines on a pipe.

    If JSON is requested, as JSON.

    name  the key of the rows in JSON
    """
    from attnkit import display

    stage = running_stage()
    if stage is not None and requested_format(stage.common, False) == "json":
        return _as_json({name: rows})
    lines = "\n".join("\t".join(row.values()) for row in rows)
    return _requested_text(lambda style: display.format_table(table, style)) or lines


def rows_text(values: Mapping[str, Any], cells: "Cells", tables: "Sequence[TextTable]", has_aside: bool = False) -> str:
    """Write rows as tables on a terminal, otherwise as CSV, TSV or JSON.

    has_aside  whether the tables are shown on standard error beside a file of the rows
    """
    from attnkit import display
    from attnkit.display.cells import format_cells

    def draw(style: "Style") -> str:
        return "\n\n".join(display.format_table(table, style) for table in tables)

    stage = running_stage()
    chosen = "json" if stage is None else requested_format(stage.common, False) or "csv"
    if chosen not in ("json", *CELL_FORMATS):
        return _requested_text(draw)
    if has_aside and stage and stage.common.get("output") not in TERMINAL and not stage.common.get("quiet"):
        write_stderr(draw(output_style(stage, STDERR)) + "\n")
    return _as_json(values) if chosen == "json" else format_cells(cells, chosen).removesuffix("\n")


def _requested_text(draw: "Callable[[Style], str]") -> str:
    """A text as drawn for the format that is requested; "" if none is, or JSON."""
    stage = running_stage()
    if stage is None or requested_format(stage.common, False) in (None, "json"):
        return ""
    return DrawnText(draw(output_style(stage, STDOUT)))


def _as_json(values: Mapping[str, Any]) -> str:
    import orjson

    return orjson.dumps(values).decode()


def show_check(line: str, error: float) -> None:
    """Write the result of a gradient check, and keep its error for the exit code."""
    stage = running_stage()
    if stage is None:
        return
    stage.extra.setdefault("errors", []).append(error)
    if not stage.common.get("quiet"):
        write_stderr(f"{line}\n")


def show_remark(make_table: "Callable[[Style], TextTable]") -> None:
    """Show a table beside the result, in its figure or on standard error."""
    stage = running_stage()
    if stage is None:
        return
    if stage.format.requested() in FIGURE_FORMATS:
        from attnkit.cli import figures

        stage.beside.append(make_table(figures.figure_style(stage, figures.figure_options(stage))))
    elif not stage.common.get("quiet"):
        from attnkit import display

        style = output_style(stage, STDERR)
        PROGRESS.clear()
        write_stderr(display.format_table(make_table(style), style) + "\n\n")


class Progress:
    """The progress of long work as a line on a terminal."""

    def __init__(self) -> None:
        self._started = self._reported = time.monotonic()
        self._open = False

    def report(self, task: str) -> None:
        """Show the current task, once work is long and at most ten times a second."""
        now = time.monotonic()
        if now - self._started > PROGRESS_DELAY and now - self._reported > PROGRESS_INTERVAL:
            self._reported, self._open = now, True
            stage = running_stage()
            place = f"attnkit {stage.tool.name}" if stage else "attnkit"
            line = f"{place}: {escaped(task)} ({now - self._started:.0f} s)"
            if stage:  # a line that wraps could not be removed
                line = line[: output_style(stage, STDERR).width - 1]
            with contextlib.suppress(FileError):
                formats.write_all(STDERR, [f"\r\x1b[K{line}".encode(encoding(), "backslashreplace")], "<stderr>")

    def clear(self) -> None:
        """Remove the line."""
        if self._open:
            self._open = False
            with contextlib.suppress(FileError):
                formats.write_all(STDERR, [b"\r\x1b[K"], "<stderr>")


PROGRESS = Progress()


def colored(text: str, code: str) -> str:
    """A text in an ANSI colour, if standard error is a terminal with colour."""
    if not os.isatty(STDERR):
        return text
    from attnkit import display

    return f"\x1b[{code}m{text}\x1b[0m" if display.detect_style(True, os.environ, encoding()).color else text


def write_stderr(text: str) -> None:
    """Write lines for the user to standard error; a closed one is ignored."""
    PROGRESS.clear()
    with contextlib.suppress(FileError):
        formats.write_all(STDERR, [text.encode(encoding(), "backslashreplace")], "<stderr>")


def write_joined(stage: Stage) -> int:
    """Join the processes of a stage, and write its results in process 0 alone."""
    from attnkit.backends.choice import join_processes

    with join_processes(stage.engine_options()) as is_first, warnings.catch_warnings():
        if is_first:
            return write(stage)
        warnings.simplefilter("ignore")
        stage.extra.pop("save", None)  # of `run`
        with use_callbacks(SILENT), stored_by(lambda path, record: None):
            for _ in stage.open_stream(None).items:
                pass
        return 0
