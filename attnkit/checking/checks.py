"""What a check is asked: an implementation of one stage, or all of a file."""

import contextlib
import hashlib
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import typer

from attnkit import options
from attnkit.checking.binding import simplify
from attnkit.checking.callees import Callee, PythonFile, open_object
from attnkit.checking.courses import COURSES, Adapter
from attnkit.checking.definition import Case, Definition
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.grading import VISIBILITIES
from attnkit.checking.programs import SENT, ProgramCallee
from attnkit.checking.report import Checked
from attnkit.checking.verdict import Examiner, StatedTolerance
from attnkit.errors import AttnkitError, FileError, UsageError, suggest

LIBRARIES = ("torch", "numpy", "jax")
GIB = 2**30


@dataclass(frozen=True)
class Assignment:
    """The name of a stage or a course, "" for a file's own, and an implementation."""

    stage: str
    target: tuple[Any, ...]


class Conventions(NamedTuple):
    """What an implementation expects, where it is not to be found."""

    bind: Annotated[
        tuple[str, ...],
        options.names("the argument that a parameter takes: --bind hidden=x,theta=eps", metavar="PARAMETER=ARGUMENT"),
    ] = ()
    convention: Annotated[
        tuple[str, ...],
        options.names("the way of a convention: --convention mask=block, weights=in-out", metavar="NAME=WAY"),
    ] = ()
    as_: Annotated[str | None, options.choice(LIBRARIES, "whose arrays it takes [default: what its file imports]")] = (
        None
    )


class Limits(NamedTuple):
    """How an implementation runs, and what it may use."""

    send: Annotated[
        str,
        options.choice(
            SENT,
            "what a program reads: a record of its inputs by name as NPZ or JSON, tensors as NPY one after another, or "
            "their bare float32 numbers",
        ),
    ] = "npz"
    python: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="interpreter that runs a file: .venv/bin/python [default: that of attnkit]"),
    ] = None
    timeout: Annotated[
        float, typer.Option(click_type=options.ABOVE_0, metavar="SECONDS", help="seconds that each case may take")
    ] = 10.0
    memory: Annotated[
        float | None,
        typer.Option(click_type=options.ABOVE_0, metavar="GIB", help="address space of its process, in GiB"),
    ] = None

    @property
    def memory_bytes(self) -> int:
        """The address space of a process in bytes; 0 for any."""
        return int((self.memory or 0) * GIB)


class Grading(NamedTuple):
    """A report for a grader."""

    report: Annotated[
        str | None, options.choice(("junit", "gradescope"), "write JUnit's XML, or the results.json of Gradescope")
    ] = None
    points: Annotated[
        tuple[str, ...],
        options.names("what each stage counts, in proportion to its right properties [1]", metavar="STAGE=POINTS"),
    ] = ()
    visibility: Annotated[str, options.choice(VISIBILITIES, "who sees the results, and when, for Gradescope")] = (
        "visible"
    )
    hidden_seed: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="draw the inputs from the content of FILE, and show neither them nor slips"),
    ] = None


@dataclass(frozen=True)
class CheckRun:
    """What is checked, and how.

    hides_prints  whether what the implementation prints is not shown: it may print hidden inputs
    """

    request: Assignment
    seed: int
    dtype: str
    case: int | None
    tolerance: StatedTolerance
    conventions: Conventions
    limits: Limits
    hides_prints: bool = False

    def check(self) -> list[Checked]:
        """Check one implementation, or all that a file has."""
        stage, (first, *_) = self.request.stage, self.request.target
        if stage in DEFINITIONS:
            return [self.check_one(stage)]
        if stage and stage not in COURSES:
            find_definition(stage)
        with contextlib.closing(self.load(first)) as file:
            found = find_functions(file.names, stage)
            if not found:
                raise UsageError(
                    f"{first}: none of its functions is a stage; attnkit check STAGE {first}:NAME says which"
                )
            return [self.check_adapter(file, name, adapter) for name, adapter in found.items()]

    def load(self, path: str) -> PythonFile:
        limits = self.limits
        file = PythonFile.load(path, limits.python or sys.executable, limits.timeout, limits.memory_bytes)
        file.host.shows_prints = not self.hides_prints
        return file

    def check_one(self, stage: str) -> Checked:
        definition = DEFINITIONS[stage]
        fixed = read_conventions(definition, self.conventions.convention)
        with contextlib.closing(self.open(definition)) as callee:
            again = self.command_again(stage, self.request.target)
            return self.examine(stage, definition, callee, fixed, again)

    def open(self, definition: Definition) -> Callee:
        """Open the implementation that words of a command line name, or an object."""
        stated, library = split_pairs(self.conventions.bind, "--bind"), self.conventions.as_ or ""
        first, *more = self.request.target
        if not isinstance(first, str):
            return open_object(definition, first, library, stated)
        is_program = more or not is_python(first)
        if definition.drive and (is_program or first.endswith(".onnx")):
            raise UsageError(f"{first}: this stage is checked in Python (FILE.py:NAME): {definition.expects}")
        if is_program:
            limits = self.limits
            return ProgramCallee(definition, self.request.target, limits.send, limits.timeout, limits.memory_bytes)
        path, _, name = first.partition(":")
        return self.load(path).take(definition, name, library, stated)

    def check_adapter(self, file: PythonFile, name: str, adapter: Adapter) -> Checked:
        """Check a function of a file, by the conventions of a course."""
        definition = DEFINITIONS[adapter.stage]
        again = self.command_again(adapter.stage, (f"{self.request.target[0]}:{name}",))
        try:
            callee = file.take(definition, name, self.conventions.as_ or "", {})
            return self.examine(adapter.stage, definition, callee, adapter.convention, again)
        except AttnkitError as error:
            return Checked(adapter.stage, name, problem=str(error), again=again)

    def command_again(self, stage: str, target: Sequence[Any]) -> str:
        """The command line that writes the inputs of a case, {} for its number."""
        if not all(isinstance(one, str) for one in target):
            return ""
        defaults = {"--seed": (self.seed, 0), "--dtype": (self.dtype, "float32"), "--send": (self.limits.send, SENT[0])}
        stated = [word for flag, (value, usual) in defaults.items() if value != usual for word in (flag, str(value))]
        for flag, values in (("--bind", self.conventions.bind), ("--convention", self.conventions.convention)):
            stated += [flag, ",".join(values)] if values else []
        is_program = len(target) > 1 or not is_python(target[0])
        words = [word.replace("{", "{{").replace("}", "}}") for word in (*["--"] * is_program, *target)]
        return shlex.join(["attnkit", "check", stage, *stated]) + " --case {} -o case.npz " + shlex.join(words)

    def examine(
        self, stage: str, definition: Definition, callee: Callee, fixed: Mapping[str, str], again: str
    ) -> Checked:
        examiner = Examiner(definition, callee, self.seed, self.dtype, fixed, self.tolerance)
        findings = examiner.judge(choose_cases(definition, self.case))
        return Checked(stage, callee.title, findings, "", callee.library, self.dtype, again)


def find_functions(names: Sequence[str], course: str) -> dict[str, Adapter]:
    """Find the functions of a file that stand for stages, by their names."""
    if course:
        return {name: adapter for name, adapter in COURSES[course].items() if name in names}
    found: dict[str, Adapter] = {}
    for stage, definition in DEFINITIONS.items():
        spelled = [*map(simplify, definition.functions.split())]
        fitting = sorted(
            (name for name in names if simplify(name) in spelled), key=lambda one: spelled.index(simplify(one))
        )
        found |= {name: Adapter(stage) for name in fitting[:1] if name not in found}
    return found


def find_definition(name: str) -> Definition:
    if name not in DEFINITIONS:
        raise UsageError(f"no stage {name!r}{suggest(name, DEFINITIONS) or '; attnkit check lists them'}")
    return DEFINITIONS[name]


def read_points(stated: Sequence[str]) -> dict[str, float]:
    """The points of each stage."""
    points = {}
    for name, text in split_pairs(stated, "--points").items():
        try:
            points[name] = float(text)
        except ValueError:
            points[name] = math.nan
        if not 0 <= points[name] < math.inf:
            raise UsageError(f"expected a number of at least 0 for {name}, got {text!r}", "--points")
    return points


def read_seed(path: str) -> int:
    """The seed of a file: its bytes, hashed."""
    try:
        with open(path, "rb") as file:
            return int.from_bytes(hashlib.sha256(file.read()).digest()[:7], "big")
    except OSError as error:
        raise FileError(error.strerror or "cannot be read", path) from None


def choose_cases(definition: Definition, number: int | None) -> Sequence[Case]:
    if number is None:
        return definition.cases
    if number > len(definition.cases):
        raise UsageError(f"it has {len(definition.cases)} cases, no case {number}", "--case")
    return definition.cases[number - 1 : number]


def read_conventions(definition: Definition, stated: Sequence[str]) -> dict[str, str]:
    """The way of each convention that is stated."""
    fixed = split_pairs(stated, "--convention")
    for name, way in fixed.items():
        if name not in definition.conventions:
            known = ", ".join(definition.conventions) or "none"
            raise UsageError(f"no convention {name!r}; this stage has {known}", "--convention")
        if way not in definition.conventions[name]:
            raise UsageError(f"expected {'|'.join(definition.conventions[name])}, got {way!r}", "--convention")
    return fixed


def split_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Split texts at their equals sign; UsageError where one has none.

    >>> split_pairs(["a=b"], "--bind")
    {'a': 'b'}
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"expected NAME=VALUE, got {text!r}", flag)
        pairs[name] = value
    return pairs


def is_python(target: str) -> bool:
    """Whether a word names Python: FILE.py, FILE.py:NAME or MODULE:NAME.

    >>> is_python("mine.py"), is_python("mine.py:f"), is_python("package.module:f"), is_python("./mine")
    (True, True, True, False)
    """
    path, colon, _ = target.partition(":")
    return path.endswith((".py", ".onnx")) or (bool(colon) and "/" not in path)
