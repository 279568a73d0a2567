"""The style that the environment decides."""

import subprocess
import sys

import pytest

from attnkit.display import Style, detect_style


@pytest.mark.parametrize(
    ("terminal", "environ", "color"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {}, False),
        (True, {"TERM": ""}, False),
        (True, {"FORCE_COLOR": "1"}, True),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": ""}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, False),
    ],
)
def test_color(terminal: bool, environ: dict[str, str], color: bool) -> None:
    assert detect_style(terminal, environ, "utf-8").color is color


@pytest.mark.parametrize(("columns", "width"), [("120", 120), ("20", 20), ("1", 20), ("0099", 99), ("99999", 99999)])
def test_width_from_columns(columns: str, width: int) -> None:
    assert detect_style(False, {"COLUMNS": columns}, "utf-8").width == width


@pytest.mark.parametrize("columns", ["", "0", "-5", "abc", "1e3", "٣٣", "9" * 5000, " 80"])
def test_width_without_usable_columns(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(descriptor: int) -> None:
        raise OSError

    monkeypatch.setattr("os.get_terminal_size", closed)
    assert detect_style(False, {"COLUMNS": columns}, "utf-8").width == 80


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "utf8", "utf-16"])
def test_unicode_in_unicode_encodings(encoding: str) -> None:
    assert detect_style(True, {}, encoding).unicode


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "ISO-8859-1", "", None])
def test_ascii_in_all_others(encoding: str | None) -> None:
    assert not detect_style(True, {}, encoding).unicode


def test_precision_is_passed_on() -> None:
    assert detect_style(False, {"COLUMNS": "80"}, "utf-8", precision=2) == Style(80, False, True, 2)


def test_rich_is_not_imported_until_something_is_drawn() -> None:
    code = "import sys, attnkit.display; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
