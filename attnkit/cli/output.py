"""Where results go: bytes on a pipe or in a file, tables on a terminal, lines on standard error."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from attnkit import formats
from attnkit.cli.output_format import DISPLAY_FORMATS, STDOUT, TEXT, text_format
from attnkit.cli.side_outputs import replace_together
from attnkit.cli.stage import Records, Stage, running_stage
from attnkit.errors import DataError, FileError, UsageError, escaped
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.display import Style  # loaded where something is shown: most stages of a pipe show nothing

STDERR = 2
BINARY = ("npy", "npz", "safetensors")
PROGRESS_DELAY, PROGRESS_INTERVAL = 1.0, 0.1  # seconds before work is long, and between two reports of it
TERMINAL = (None, "-", "/dev/stdout", "/dev/tty", "/dev/fd/1")


def write(call: Stage) -> int:
    """Write every result of a call as soon as it is there; the exit code is the worst of theirs."""
    with replace_together() as opened:
        return write_flow(call, call.flow(None), opened)


def write_flow(call: Stage, flow: Records, opened: Callable[[str | None], formats.Sink]) -> int:
    """Write every result of a flow to the place that is opened for them."""
    chosen, path, status, count = format_for(call, flow.format), call.common.get("output"), 0, 0
    along = chosen in ("table", TEXT) and path in TERMINAL and os.isatty(STDOUT)
    call.on_text = typed = StreamedText(output_style(call, STDOUT)) if along else None
    if chosen in BINARY and path in TERMINAL and os.isatty(STDOUT):
        raise UsageError(f"{chosen} is binary and standard output is a terminal; -o FILE, or a pipe")
    sink = opened(path)
    chosen, items = call.settled(chosen, flow.items)
    for result in items if chosen in (*formats.STREAMS, "table", TEXT) else single_record(items, chosen):
        count += 1
        untouched = call.tool.verbatim and chosen == call.arrived and not {"only", "dtype"} & set(call.common)
        if typed and typed.ended():
            continue
        if untouched and call.source:
            data = call.source.take_captured()
        else:
            data = encode_result(call, result, chosen, count == 1)
        if chosen not in DISPLAY_FORMATS:
            show_aside(call, result)
        PROGRESS.clear()
        sink.write(harmless(data, chosen) if chosen in ("json", TEXT) and sink.is_terminal() else data)
        if isinstance(result, Record):
            status = max(status, call.tool.status(result, call))
    return status


def format_for(call: Stage, arriving: str | None) -> str:
    """The format of what a call writes."""
    if call.tool.prints(call.parameters):
        call.dated = False
        return text_format(call.common)
    return call.choose(arriving)


def single_record(items: Iterator[Record | str], chosen: str) -> Iterator[Record | str]:
    """The one result of a flow; DataError, before it is written, where there are more."""
    for result in items:
        if next(items, None) is not None:
            raise DataError(f"{chosen} holds one record and the stream has more; -f npz or json holds a stream")
        yield result


def encode_result(call: Stage, result: Record | str, chosen: str, first: bool) -> list[Any]:
    """The bytes of one result in a format; a text is itself but in a picture."""
    result = call.leaving(result, chosen)
    title = f"attnkit {call.extra.get('last', call).tool.name}"  # of `run` the last stage is what made it
    if isinstance(result, str) and chosen in ("svg", "html"):
        from attnkit import display

        drawn = display.dim_then_bold("", result, output_style(call, None))
        return [display.export_picture(drawn, title, "svg" if chosen == "svg" else "html").encode()]
    if isinstance(result, str):
        return [(result + "\n").encode("utf-8", "surrogateescape")]
    if chosen == "table":
        return [
            ("" if first or call.tool.plain(result, call) else "\n").encode(),
            render(call, result, output_style(call, STDOUT)).encode(encoding(), "replace"),
        ]
    if chosen in DISPLAY_FORMATS:
        from attnkit import display

        drawn = render(call, result, output_style(call, None)._replace(color=True, unicode=True))
        return [display.export_picture(drawn, title, "svg" if chosen == "svg" else "html").encode()]
    return formats.encode(result, chosen, indent=bool(call.common.get("indent")))


def harmless(data: list[Any], chosen: str) -> list[bytes]:
    """Text or JSON for a terminal, which would obey some of its characters: spelled out, in JSON as JSON does.

    >>> harmless([b"a\\x1b[2J\\tb\\n"], "text"), harmless(['["\\u202e"]'.encode()], "json")
    ([b'a\\\\x1b[2J   b\\n'], [b'["\\\\u202e"]'])
    """
    text = b"".join(data).decode("utf-8", "surrogateescape").expandtabs()
    if chosen != "json":
        return [escaped(text, "\n").encode(encoding(), "replace")]
    import json

    shown = (c if c.isprintable() or c == "\n" else " " if c == "\r" else json.dumps(c)[1:-1] for c in text)
    return ["".join(shown).encode()]


def show_aside(call: Stage, result: Record | str, asked: bool = False) -> None:
    """Show on standard error what the flags ask to see of a result that goes elsewhere."""
    if isinstance(result, Record) and (asked or call.tool.aside(call.parameters)) and not call.common.get("quiet"):
        heading = f"{escaped(result.history[-1]['command'])}\n" if asked and result.history else ""
        write_stderr(heading + render(call, result, output_style(call, STDERR)) + "\n")


def render(call: Stage, record: Record, how: "Style") -> str:
    """What a terminal shows of a result, ending in a newline."""
    from attnkit.cli import views

    return (call.tool.view or views.render_tables)(record, call, how).rstrip("\n") + "\n"


def output_style(call: Stage, fd: int | None) -> "Style":
    """How tables look where they go: a terminal has colour and a width."""
    from attnkit import display

    precision = call.common.get("precision")
    to_file = fd == STDOUT and call.common.get("output") not in (None, "-")
    terminal = fd is not None and os.isatty(fd) and not to_file
    return display.detect_style(terminal, os.environ, encoding(), 4 if precision is None else precision)


def encoding() -> str:
    """The encoding of standard output, as the locale has it."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


class StreamedText:
    """Standard output where somebody reads along: text appears there as it is made."""

    def __init__(self, how: "Style") -> None:
        self._how, self._begun = how, False

    def __call__(self, text: str, dim: bool) -> None:
        """Write more of the text."""
        from attnkit import display

        self._begun = True
        PROGRESS.clear()
        shown = display.dim_then_bold(text if dim else "", "" if dim else text, self._how)
        formats.write_all(STDOUT, [shown.encode(encoding(), "replace")], "<stdout>")

    def ended(self) -> bool:
        """Whether a text has been written, which ends its last line."""
        if self._begun:
            formats.write_all(STDOUT, [b"\n"], "<stdout>")
        begun, self._begun = self._begun, False
        return begun


def show_remark(shown: "Callable[[Style], str]") -> None:
    """Show on standard error what the stage at work has to say beside its result."""
    call = running_stage()
    if call is not None and not call.common.get("quiet"):
        PROGRESS.clear()
        write_stderr(shown(output_style(call, STDERR)) + "\n\n")


class Progress:
    """A line on a terminal that says how far long work has come, and is gone once there is something else to say."""

    def __init__(self) -> None:
        self._started = self._told = time.monotonic()
        self._open = False

    def report(self, what: str) -> None:
        """Say what is being done, not before a while, and not too often."""
        now = time.monotonic()
        if now - self._started > PROGRESS_DELAY and now - self._told > PROGRESS_INTERVAL:
            self._told, self._open = now, True
            stage = running_stage()
            place = f"attnkit {stage.tool.name}" if stage else "attnkit"
            line = f"\r\x1b[K{place}: {escaped(what)} ({now - self._started:.0f} s)"
            with contextlib.suppress(FileError):
                formats.write_all(STDERR, [line.encode(encoding(), "backslashreplace")], "<stderr>")

    def clear(self) -> None:
        """Take the line away."""
        if self._open:
            self._open = False
            with contextlib.suppress(FileError):
                formats.write_all(STDERR, [b"\r\x1b[K"], "<stderr>")


PROGRESS = Progress()


def write_stderr(text: str) -> None:
    """Write lines for the user to standard error; a closed one is no reason to fail."""
    PROGRESS.clear()
    with contextlib.suppress(FileError):
        formats.write_all(STDERR, [text.encode(encoding(), "backslashreplace")], "<stderr>")
