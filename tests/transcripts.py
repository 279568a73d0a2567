"""Transcripts: Markdown whose `console` blocks show commands and what they write, as the tests run them now.

`replay` runs the commands of a text by one of two shells and returns the text with what they write now; `check`
compares both. Numbers are compared with a tolerance relative to the largest of their tensor or column, so that another
processor may round differently. The variable ATTNKIT_TRANSCRIPTS changes that, with one or both of these words:

record         writes each difference into its file, to be reviewed as a diff
exact          every byte is a difference, and the SHA-256 of output that is given in short

The pages of `tests/transcripts/` are run by `in_process`: after `$ command` there is its standard output, then its
standard error with `2> ` before each line, then `[exit 2]` unless the exit code is 0. The README and the pages of help
are run by `on_a_terminal`, and show what a terminal shows. Both run the tools in this process. What needs a shell gets
one.
"""

import codecs
import contextlib
import fcntl
import itertools
import os
import re
import shlex
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import process
from tests.brief import MACHINE, normalized, rendered
from tests.places import ROOT
from tests.rounding import difference

FOLDER = ROOT / "tests" / "transcripts"
LINKS = {
    "data": ROOT / "samples" / "data",
    "models": ROOT / "tests" / "references" / "models",
    "inputs": FOLDER / "inputs",
    "translations": ROOT / "tests" / "references" / "translations",
}  # of the folder of a case
MODES = {*filter(None, os.environ.get("ATTNKIT_TRANSCRIPTS", "").split(","))}
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (\S.*<<'END'\n(?:.*\n)*?END|\S.*)\n", re.MULTILINE)  # one line, or a here-document


class Case(NamedTuple):
    """A heading of a page with its text."""

    page: Path
    name: str
    text: str

    def commands(self):
        """Each command with what it writes."""
        _, *parts = COMMAND.split("".join(BLOCK.findall(self.text)))
        return list(zip(parts[::2], parts[1::2], strict=True))


def cases(page):
    """The cases of a page of tests/transcripts."""
    _, *sections = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [Case(page, section[3:].partition("\n")[0], section) for section in sections]


def replay(text, shell):
    """A text in which each command is followed by what shell(command) returns.

    >>> print(replay("```console\\n$ date\\nMonday\\n$ true\\n```", lambda command: f"{len(command)}\\n"))
    ```console
    $ date
    4
    $ true
    4
    ```
    """

    def run(block):
        shown = "".join(f"$ {command}\n{shell(command)}" for command in COMMAND.findall(block[1]))
        return f"```console\n{shown}```"

    return BLOCK.sub(run, text)


def check(path, expected, found):
    """Fail if a text of a file and what was found differ; with `record`, write what was found instead."""
    known, shown = (MACHINE.sub("<machine>", text) for text in (expected, found))  # pages name the one that wrote them
    problem = difference(known, shown, path.name, "exact" in MODES)
    if not problem:
        return
    if "record" not in MODES:
        pytest.fail(problem, pytrace=False)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other processes record other cases of this page
        file.seek(0)
        page = file.read()
        file.truncate(0)
        file.write(page.replace(expected, found, 1))


# Shells


def in_process(command, folder):
    """What a command writes in a folder: stages joined by |, with `< FILE` before the first and `> FILE` at the end.

    The stages are attnkit's tools, which run in this process, and echo, printf (escapes alone) and cat.
    """
    with contextlib.ExitStack() as files:
        out, errors = (files.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(2))
        code = run_stages(command, folder, process.environment(COLUMNS="100"), out, errors)
        out.seek(0)
        errors.seek(0)
        problems = normalized(errors.read().decode("utf-8", "backslashreplace"), folder)
        return transcript(rendered(out.read(), folder), problems, code)


def on_a_terminal(command, folder, **settings):
    """What a line of bash, which must succeed, shows on a terminal; in this process if `in_process` can run it."""
    if not is_plain(command):
        return process.on_a_terminal(command, folder, **settings)

    environment = process.environment(**settings)
    code, text = process.shown(lambda screen: run_stages(command, folder, environment, screen, screen))
    assert code == 0, text
    return text


def is_plain(command):
    """Whether a line of bash has no other signs than those of `in_process`.

    >>> [is_plain(f"echo {rest}") for rest in ("'[$]' | attnkit peek > a", "1; attnkit peek", "$a | attnkit peek")]
    [True, False, False]
    """
    unquoted = re.sub(r"""'[^']*'|"[^"$`\\!]*\"""", "", command)
    if re.search(r"""[^\w\s.,:/=|<>@%+-]|\|\||>>|\d[<>]|[<>]\S""", unquoted):
        return False
    runs = [(name, len(given)) for name, *given in stages(command)[0]]
    return all(name in ("attnkit", "echo", "cat") or (name, count) == ("printf", 1) for name, count in runs)


def run_stages(command, folder, environment, out, errors):
    """Run the stages of a command one after another; the exit code of the last that fails, or 0."""
    parts, source, target = stages(command)
    with contextlib.ExitStack() as files:
        stdin = files.enter_context((folder / source if source else Path(os.devnull)).open("rb"))
        last, code = files.enter_context((folder / target).open("wb", buffering=0)) if target else out, 0
        for at, stage in enumerate(parts):
            is_last = at == len(parts) - 1
            stdout = last if is_last else files.enter_context(tempfile.TemporaryFile(buffering=0))
            if stage[0] == "attnkit":
                code = process.call(stage[1:], folder, environment, stdin, stdout, errors) or code
            else:
                stdout.write(builtin(stage, folder, stdin))
            if not is_last:
                stdout.seek(0)
                stdin = stdout
        return code


def transcript(out, err, code):
    """Standard output, standard error and exit code as a page shows them.

    >>> print(transcript("", "attnkit: no tool 'x'\\n\\nhint\\n", 2), end="")
    2> attnkit: no tool 'x'
    2>
    2> hint
    [exit 2]
    """
    out += "" if out.endswith("\n") or not out else "[no newline at the end]\n"
    problems = "".join(f"2> {line}\n" if line else "2>\n" for line in err.splitlines())
    return f"{out}{problems}[exit {code}]\n" if code else out + problems


def stages(command):
    """The stages of a command, the file that its first reads and the file that its last writes, or None.

    >>> stages("attnkit embed '1|2' < a.txt | attnkit show > b.txt")
    ([['attnkit', 'embed', '1|2'], ['attnkit', 'show']], 'a.txt', 'b.txt')
    """
    words = [None if word == "|" else word for word in shlex.split(command)]
    parts = [list(part) for is_bar, part in itertools.groupby(words, lambda word: word is None) if not is_bar]
    files = {"<": None, ">": None}
    for part in parts:
        for sign in files:
            if sign in part:
                at = part.index(sign)
                files[sign] = part[at + 1]
                del part[at : at + 2]
    return parts, files["<"], files[">"]


def builtin(stage, folder, stdin):
    """What echo, printf or cat writes."""
    name, *given = stage
    if name == "echo":
        return (" ".join(given) + "\n").encode()
    if name == "printf":
        return codecs.escape_decode(given[0].encode())[0]
    assert name == "cat", f"no {name} in a transcript"
    return b"".join((folder / path).read_bytes() for path in given) if given else stdin.read()
