"""Cases drawn by a seed, the law that each must obey, and the limits of time and memory.

A door is a place where input comes in: a reader of files, or the command line. Each module of this package has a
function `doors(scratch)`, which returns its doors by name; `scratch` is a folder for their files. The law:

- the result is what the door promises, or an error of one short line with its exit code; no other exception ever;
- no more than SECONDS of processor time and EXTRA_MEMORY bytes of memory for a case of a few kB.

The same seed draws the same cases.
"""

import collections
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnkit.errors import AttnkitError, escaped
from tests.process import run as run_command

SECONDS = 2.0
EXTRA_MEMORY = 200 << 20
LONGEST_MESSAGE = 600
CODES = range(5)  # exit codes that are no bug
LINE = re.compile(r"attnkit( [a-z]+)*: ")  # how each line on standard error begins
REMARK = re.compile(r"attnkit( [a-z]+)*: (note|warning): ")

INTEGERS = [0, 1, -1, 2, 7, 8, 63, 64, 65, 127, 128, 255, 256, 1 << 15, 1 << 16, (1 << 24) + 1, (1 << 31) - 1, 1 << 31]
INTEGERS += [1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, -(1 << 63), -(1 << 64)]


class Door(NamedTuple):
    """A place where input comes in.

    draw    draws a case: bytes, or whatever `check` reads
    check   says whether the case was accepted, and raises Escape if it breaks the law
    share   the number of cases for each one of a door of share 1
    memory  the bytes that a case may take, where its size explains more than EXTRA_MEMORY
    """

    draw: Callable[[random.Random], Any]
    check: Callable[[Any], bool]
    share: int = 1
    memory: int = EXTRA_MEMORY


class Escape(Exception):
    """A case that breaks the law."""


class TooSlow(BaseException):
    """A case has used up its processor time."""


def check_error(error: AttnkitError) -> bool:
    """False, for an error that obeys the law; else Escape."""
    line = escaped(str(error))
    if error.exit_code not in (3, 4) or len(line) > LONGEST_MESSAGE or not error.name:
        raise Escape(f"error {error.exit_code} of {len(line)} characters: {line[:200]}") from error
    return False


def check_command(*arguments: str, stdin: bytes = b"", folder: str | None = None) -> bool:
    """Whether a command line of attnkit succeeds, in this process; Escape for a bug or an error that is no line."""
    done = run_command(*arguments, stdin=stdin, cwd=folder, env={"COLUMNS": "80"})
    lines = done.err.splitlines()  # with tables of --steps
    errors = [line for line in lines if LINE.match(line) and not REMARK.match(line)]
    if done.code not in CODES:
        raise Escape(f"exit code {done.code}: {done.err[-300:]}")
    if done.code > 1 and (len(errors) != 1 or errors[0] != lines[-1] or len(errors[0]) > LONGEST_MESSAGE):
        raise Escape(f"exit code {done.code} with {len(errors)} errors: {done.err[-300:]!r}")
    return done.code < 2


def draw_case(door: Door, name: str, seed: int, number: int) -> Any:
    """The case of a number."""
    return door.draw(random.Random(f"{seed} {name} {number}"))


def judge(door: Door, case: Any) -> tuple[str, str]:
    """ "accepted", "refused" or "escaped", and for the last why."""
    before, start = reset_peak(), time.process_time()
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        outcome = "accepted" if door.check(case) else "refused"
    except Escape as error:
        return "escaped", str(error)
    except BaseException as error:  # a panic of a library in Rust is one too
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return "escaped", f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    spent, grown = time.process_time() - start, peak() - before
    if spent > SECONDS or grown > door.memory:
        return "escaped", f"{spent:.1f} s, {grown >> 20} MB more memory"
    return outcome, ""


def stop(*_: object) -> None:
    raise TooSlow(f"more than {SECONDS} s")


def reset_peak() -> int:
    """The largest memory of this process from now on: what it has now, where the system can forget the peak."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return peak()


def peak() -> int:
    """The largest memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(doors: Mapping[str, Door], cases: int, seed: int) -> tuple[dict[str, collections.Counter[str]], list[str]]:
    """Cases of every door in turn: the outcomes of each, and the escapes."""
    escapes = []
    turns = [name for name, door in doors.items() for _ in range(door.share)]
    outcomes: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in doors}
    for number in range(cases):
        name = turns[number % len(turns)]
        outcome, why = judge(doors[name], draw_case(doors[name], name, seed, number))
        outcomes[name][outcome] += 1
        if why:
            escapes.append(escaped(f"--seed {seed} --only {name!r} --case {number}: {why[:300]}"))
            print(escapes[-1], file=sys.stderr, flush=True)
    return outcomes, escapes
