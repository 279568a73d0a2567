"""Every tool on a terminal with colours: no escape is shown as text, and no control character but colours is sent."""

import os
import re

import pytest

from attnkit.cli import TOOLS
from tests import process
from tests.test_transcripts import CASES
from tests.transcripts import LINKS, stages

COLOR = re.compile(r"\x1b\[[\d;]*m")
COLORS = {"TERM": "xterm-256color", "COLUMNS": "100"}
PROGRESS = "\r\x1b[K"  # a line of progress replaces the one before
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def commands_of(tool):
    """The commands of the tool's transcripts that are that tool alone and end with 0, and the files that they read."""
    found = []
    for command, shown in (pair for case in CASES if case.page.stem == tool for pair in case.commands()):
        parts, source, target = stages(command)
        if parts[0][:2] == ["attnkit", tool] and len(parts) == 1 and not target and "[exit" not in shown:
            found.append((parts[0][1:], source))
    return found


def on_a_terminal(arguments, source, folder, **settings):
    """The exit code of a command line, and what it writes to a terminal as its standard output and standard error."""
    environment = process.environment(**settings)
    with open(folder / source if source else os.devnull, "rb") as given:
        return process.shown(lambda screen: process.call(arguments, folder, environment, given, screen, screen))


@pytest.mark.parametrize("tool", TOOLS)
def test_colours_are_no_text(tool, tmp_path):
    for name, target in LINKS.items():
        (tmp_path / name).symlink_to(target)
    found = (on_a_terminal(*command, tmp_path, **COLORS) for command in commands_of(tool))
    shown = next(shown for code, shown in found if code == 0 and shown)  # some need files of the commands before them
    assert "\\x1b" not in shown
    assert not CONTROL.search(COLOR.sub("", shown.replace(PROGRESS, "")))


@pytest.mark.parametrize("tool", ["engines", "exercise", "sample"])
def test_lists_have_colours(tool, tmp_path):
    assert COLOR.search(on_a_terminal([tool], None, tmp_path, **COLORS)[1])
