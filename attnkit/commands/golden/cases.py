"""The file of golden numbers: named pipelines and programs, read from TOML."""

import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnkit.errors import DataError, FileError, suggest

TIMEOUT = 60.0  # seconds of a command, unless a file states others
LONGEST = 1 << 20  # characters of a file
WAYS = ("pipeline", "command", "shell")  # the keys of what a case runs, of which it has one
KEYS = (*WAYS, "output", "timeout", "only", "rtol", "atol")
SHELL = ("/bin/sh", "-c")
NAME = re.compile(r"[\w .+-]{1,80}")


@dataclass(frozen=True)
class GoldenCase:
    """A named computation.

    way      how it runs: a pipeline in this process, a command without a shell, or a line of a shell
    text     what is run, as the file has it
    words    the words of a command, () of a pipeline
    output   the file that it writes; "" for standard output
    timeout  seconds that it may take
    only     names or patterns of the tensors that count; () for all
    rtol, atol  the tolerance of the user in place of noise; None for noise
    line     the line of the file where it begins, from 1
    """

    name: str
    way: str
    text: str
    words: tuple[str, ...] = ()
    output: str = ""
    timeout: float = TIMEOUT
    only: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    line: int = 1


@dataclass(frozen=True)
class GoldenFile:
    """A file of cases: its path, its folder, in which they run, and the cases."""

    path: str
    folder: str
    cases: tuple[GoldenCase, ...]

    @property
    def stored(self) -> str:
        """The file of the stored numbers, beside this one."""
        return os.path.splitext(self.path)[0] + ".golden.json"

    @property
    def tensors(self) -> str:
        """The file of whole tensors, which --full keeps."""
        return os.path.splitext(self.path)[0] + ".golden.npz"


def read_cases(path: str) -> GoldenFile:
    """Read a file of cases; DataError names the case that is wrong."""
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise FileError(error.strerror or "cannot be read", path) from None
    if len(data) > LONGEST:
        raise DataError(f"longer than {LONGEST} bytes: a file of cases names commands", path)
    try:
        text = data.decode("utf-8")
        values = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"not TOML: {error}", path) from None
    timeout = check_number(values.pop("timeout", TIMEOUT), "timeout", path, least=0)
    if not values:
        raise DataError('no cases; one is a table: [name] and pipeline = "embed …"', path)
    cases = tuple(read_case(path, name, value, timeout, find_line(text, name)) for name, value in values.items())
    return GoldenFile(path, os.path.dirname(path) or ".", cases)


def read_case(path: str, name: str, value: Any, timeout: float, line: int) -> GoldenCase:
    """The case of a table; DataError for a key or a value that it cannot have."""
    if not isinstance(value, dict):
        raise DataError(f'key "{name[:40]}" is no case (expected a table: [{name[:40]}])', path)
    place = f"[{name[:80]}]"
    if not NAME.fullmatch(name):
        raise DataError(f"{place}: a name has up to 80 letters, digits, blanks and . _ + -", path)
    for key in value:
        if key not in KEYS:
            known = f"expected {', '.join(KEYS)}"
            raise DataError(f'{place}: unknown key "{key[:40]}" ({known}){suggest(key, KEYS)}', path)
    ways = [way for way in WAYS if way in value]
    if len(ways) != 1:
        raise DataError(f"{place}: expected one of {', '.join(WAYS)}, got {' and '.join(ways) or 'none'}", path)
    way, stated = ways[0], value[ways[0]]
    words = words_of_command(stated) if way == "command" else (*SHELL, stated) if way == "shell" else ()
    if problem := problem_of_text(way, stated, words):
        raise DataError(f"{place}: {way} {problem}", path)
    output = value.get("output", "")
    if not isinstance(output, str) or (output and way == "pipeline"):
        raise DataError(f"{place}: output is the name of a file that a command writes", path)
    limits = {
        one: check_number(value[one], f"{place}: {one}", path, least=0) for one in ("rtol", "atol") if one in value
    }
    return GoldenCase(
        name,
        way,
        stated if isinstance(stated, str) else shlex.join(words),
        tuple(words),
        output,
        check_number(value.get("timeout", timeout), f"{place}: timeout", path, least=0),
        read_names(value.get("only", ()), f"{place}: only", path),
        line=line,
        **limits,
    )


def problem_of_text(way: str, stated: object, words: Sequence[str]) -> str:
    """Why what a case runs cannot run, in words, or "".

    >>> [problem_of_text("command", stated, words_of_command(stated)) for stated in ("ls", " ", "it's")]
    ['', 'is empty', 'has a quotation mark that is not closed']
    """
    is_command = way == "command"
    is_text = isinstance(stated, str) or (is_command and bool(words))
    if not is_text or any("\0" in word for word in words):
        return "is not text or a list of words" if is_command else "is not text"
    if isinstance(stated, str) and not stated.strip():
        return "is empty"
    return "has a quotation mark that is not closed" if is_command and not words else ""


def words_of_command(stated: object) -> tuple[str, ...]:
    """The words of a command; () if it has none.

    >>> [words_of_command(stated) for stated in ("python3 'a b.py'", ["a", "b c"], "'", [1])]
    [('python3', 'a b.py'), ('a', 'b c'), (), ()]
    """
    if isinstance(stated, str):
        try:
            return tuple(shlex.split(stated))
        except ValueError:
            return ()
    is_list = isinstance(stated, list) and all(isinstance(word, str) for word in stated)
    return tuple(stated) if is_list and isinstance(stated, list) else ()


def check_number(value: object, name: str, path: str, least: float) -> float:
    """A finite number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e9:
        raise DataError(f"{name}: expected a number of at least {least:g}, got {str(value)[:40]}", path)
    return float(value)


def read_names(value: object, name: str, path: str) -> tuple[str, ...]:
    """A list of names, or one."""
    names: Sequence[Any] = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else [None]
    if not all(isinstance(one, str) and one for one in names):
        raise DataError(f"{name}: expected names of tensors", path)
    return tuple(names)


def find_line(text: str, name: str) -> int:
    """The line on which the table of a case begins; 1 if it is written otherwise.

    >>> find_line("a = 1\\n['b c']\\n", "b c")
    2
    """
    heads = {f"[{name}]", f'["{name}"]', f"['{name}']"}
    lines = text.splitlines()
    return next((at for at, line in enumerate(lines, start=1) if line.partition("#")[0].strip() in heads), 1)


def stored_command(case: GoldenCase) -> Mapping[str, str]:
    """What a case runs, as it is stored."""
    return {case.way: case.text}
