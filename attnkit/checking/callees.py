"""Implementations: a function of this process, Python in a process of its own.

A callee is loaded once, and called for every case with the arguments of a definition.
"""

import contextlib
import inspect
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from attnkit.checking import drivers, interpreter
from attnkit.checking.binding import Binding, BoundNames, Slot, bind, plan_call, simplify
from attnkit.checking.cases import Drawn, find_optional
from attnkit.checking.definition import Definition, find_shape
from attnkit.errors import AttnkitError, DataError, UsageError, escaped
from attnkit.model.dtypes import Array

LEAST_BYTES = 1 << 20  # that an answer may always have
TIMES_BYTES = 64  # and how many times those of the inputs
STDERR_BYTES = 4096
PRINTED_BYTES = 4096  # of what an implementation prints, that are shown
FILE_BYTES = 64 << 20  # that an implementation may write to a file
CALLS = 60  # times the seconds of a case that its process may compute
LOADING = 6  # times the seconds of a case that loading may take
ROLES = ("input", "parameter", "number")
DROPOUT = "dropout dropout_p dropout_rate drop drop_rate attn_dropout dropout_prob p attn_pdrop resid_pdrop"
CONFIG = "config cfg args hparams configuration"  # one object with all settings as its attributes
TIMEOUT = "no answer within {:g} s"


class CalleeError(AttnkitError):
    """An implementation that cannot be loaded."""

    exit_code = 3


class Outcome(NamedTuple):
    """What an implementation made of a case.

    array    its answer, None where it has none
    dtype    the dtype of its answer
    problem  why it has none
    lacks    the argument that it does not take
    is_end   whether its process did not answer in time, or ended
    unbuilt  whether it could not be constructed, so that nothing was called
    changed  the arguments that it changed in place
    """

    array: Array | None
    dtype: str = "float32"
    problem: str = ""
    lacks: str = ""
    is_end: bool = False
    unbuilt: bool = False
    changed: tuple[str, ...] = ()


class Callee(Protocol):
    """An implementation of a definition."""

    @property
    def title(self) -> str:
        """What it is, with its parameters: "mine.attention(q, k, v)"."""

    @property
    def library(self) -> str:
        """Whose arrays it takes; "" for a program."""

    @property
    def by_place(self) -> tuple[str, ...]:
        """The arguments whose order is not told by names."""

    def takes(self, argument: str) -> bool:
        """Whether it takes an argument of the definition."""

    def call(self, case: Drawn, given: Mapping[str, Any], dtype: str) -> Outcome:
        """Call it with the arguments of a case."""

    def close(self) -> None:
        """End what it runs in."""


class Host(Protocol):
    """What runs an implementation in Python: this process or another."""

    def ask(self, request: dict[str, Any], arrays: Sequence[Array], most: int) -> tuple[dict[str, Any], list[Array]]:
        """Carry out a request."""

    def close(self) -> None:
        """End it."""


class ThisProcess:
    """Runs an object of this process."""

    def __init__(self) -> None:
        self.interpreter = interpreter.Interpreter(drivers.DRIVERS)

    def ask(self, request: dict[str, Any], arrays: Sequence[Array], most: int) -> tuple[dict[str, Any], list[Array]]:
        return interpreter.answer(self.interpreter, request, arrays)

    def close(self) -> None:
        pass


class OwnProcess:
    """Runs a file in a process of the user's interpreter, which sees the inputs alone.

    What it prints is shown on standard error at its end. It is started anew after it was killed.
    """

    def __init__(self, python: str, timeout: float, memory: int) -> None:
        self.python, self.timeout, self.memory = python, timeout, memory
        self.process: subprocess.Popen[bytes] | None = None
        self.shows_prints = True
        self.setup: dict[str, dict[str, Any]] = {}  # the requests that a new process carries out first

    def start(self) -> None:
        """Start the process, and have it load and take what the last one had."""
        ours, theirs = os.pipe(), os.pipe()
        sources = [inspect.getsource(one) for one in (interpreter, drivers)]
        code = "\n".join([*sources, f"serve({ours[0]}, {theirs[1]}, DRIVERS)"])
        self.printed, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - read at its end
        try:
            self.process = subprocess.Popen(
                [self.python, "-I", "-B", "-u", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self.printed,
                stderr=self.errors,
                pass_fds=(ours[0], theirs[1]),
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{self.python}: {error.strerror}", "--python") from None
        finally:
            os.close(ours[0])
            os.close(theirs[1])
        self.requests, self.replies = os.fdopen(ours[1], "wb"), theirs[0]
        limits = {"CPU": int(CALLS * self.timeout), "FSIZE": FILE_BYTES, "CORE": 0}
        self._send({"do": "limit", **limits, **({"AS": self.memory} if self.memory else {})})
        for request in self.setup.values():
            self._exchange(request, (), LEAST_BYTES, LOADING * self.timeout)

    def ask(self, request: dict[str, Any], arrays: Sequence[Array], most: int) -> tuple[dict[str, Any], list[Array]]:
        if self.process is None:
            self.start()
        is_setup = request["do"] in ("load", "take")
        reply = self._exchange(request, arrays, most, self.timeout * (LOADING if is_setup else 1))
        self.setup |= {request["do"]: request} if is_setup else {}
        return reply

    def show_printed(self) -> None:
        """Show the first lines that it has printed."""
        self.printed.seek(0)
        text = self.printed.read(PRINTED_BYTES).decode("utf-8", "replace")
        if text and self.shows_prints:
            sys.stderr.write(escaped(text.rstrip("\n"), "\n\t") + "\n")

    def _send(self, request: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        interpreter.write_message(self.requests, request, arrays)

    def _exchange(
        self, request: dict[str, Any], arrays: Sequence[Array], most: int, seconds: float
    ) -> tuple[dict[str, Any], list[Array]]:
        deadline = time.monotonic() + seconds

        def read(length: int) -> bytes:
            data = b""
            while len(data) < length:
                if not can_read(self.replies, deadline - time.monotonic()):
                    raise TimeoutError
                part = os.read(self.replies, min(length - len(data), 1 << 20))
                if not part:
                    raise EOFError
                data += part
            return data

        try:
            with ignoring_closed_pipes():
                self._send(request, arrays)
            return interpreter.read_message(read, most)
        except TimeoutError:
            problem = TIMEOUT.format(seconds)
        except ValueError as error:
            problem = f"its answer cannot be read: {error}"
        except (EOFError, BrokenPipeError):
            problem = self._describe_end()
        self.close()
        return {"ok": False, "problem": problem, "is_end": True}, []

    def _describe_end(self) -> str:
        assert self.process is not None
        return f"its process ended with {describe_code(self.process.wait())}{last_line(self.errors)}"

    def close(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            self.requests.close()
        os.close(self.replies)
        self.show_printed()
        self.errors.close()
        self.printed.close()
        self.process = None


def can_read(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor of any number can be read, or has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(max(seconds, 0) * 1000))


def describe_code(code: int) -> str:
    """An exit code, or the signal that ended a process."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def last_line(errors: Any) -> str:
    """The last line that a process wrote to standard error, behind a colon."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(errors.tell() - STDERR_BYTES, 0))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


@contextlib.contextmanager
def ignoring_closed_pipes() -> Iterator[None]:
    """Have a pipe without a reader raise BrokenPipeError, and not end this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


@dataclass
class PythonCallee:
    """A function, a class, or an instance in Python.

    facts    what the interpreter found
    binding  of the parameters of the function, or of those that construct a class
    stated   argument by parameter, as the user says
    """

    definition: Definition
    host: Host
    facts: dict[str, Any]
    stated: Mapping[str, str]
    binding: Binding = field(init=False)

    def __post_init__(self) -> None:
        self.literals = {text: float(text) for text in self.stated.values() if is_finite_number(text)}
        if not self.is_class or self.definition.drive:
            parameters = self.facts["parameters"]
            self._refuse_unknown(parameters)
            self.binding = self._bind(parameters, self._names(ROLES, self._required(parameters)))

    @property
    def is_class(self) -> bool:
        return bool(self.facts["is_class"])

    @property
    def title(self) -> str:
        names = [one for one, *_ in self.facts["parameters"]]
        return f"{self.facts['name']}({', '.join(names)})"

    @property
    def library(self) -> str:
        return str(self.facts["library"])

    @property
    def by_place(self) -> tuple[str, ...]:
        return () if self.is_class or self.definition.drive else self.binding.by_place

    def _required(self, parameters: Sequence[Sequence[Any]]) -> list[str]:
        """The arguments that an implementation with these parameters cannot do without."""
        if self.definition.drive:
            return []
        optional = find_optional(self.definition)
        spelled = {simplify(one) for one, *_ in parameters}
        arguments = self.definition.arguments
        whole = [one for one in arguments.values() if one.parts and spelled & {*map(simplify, one.names.split())}]
        optional |= {part for one in whole for part in one.parts}
        return [name for name, one in arguments.items() if one.axes and not one.parts and name not in optional]

    def _bind(self, parameters: Sequence[Sequence[Any]], names: BoundNames) -> Binding:
        slots = [Slot(*one) for one in parameters]
        own = {slot.name for slot in slots}
        stated = {parameter: argument for parameter, argument in self.stated.items() if parameter in own}
        for argument in stated.values():
            if argument not in names.synonyms and argument not in self.literals:
                choices = ", ".join(names.synonyms)
                raise UsageError(f"no argument {argument!r} (expected a number or one of {choices})", "--bind")
        return bind(slots, names, stated, self.facts["name"])

    def _refuse_unknown(self, *parameters: Sequence[Sequence[Any]]) -> None:
        """Raise UsageError for a stated parameter that is not among these."""
        known = {name for one in parameters for name, *_ in one}
        if unknown := [name for name in self.stated if name not in known]:
            raise UsageError(f"{self.facts['name']} has no parameter {unknown[0]!r}", "--bind")

    def _names(self, roles: Sequence[str], required: Sequence[str]) -> BoundNames:
        """The arguments that a call may take, of some roles."""
        arguments = {name: one for name, one in self.definition.arguments.items() if one.role in roles}
        is_whole = "parameter" in roles  # a function, and not the call of an instance that has its sizes
        construct = self.definition.construct if is_whole else {}
        sizes = {name: words for name, words in construct.items() if name not in arguments}
        places = [
            name
            for name, one in arguments.items()
            if not one.parts and name not in self.definition.defaults and not self.definition.drive
        ]
        shared = [*sizes, *(name for name, one in arguments.items() if one.is_shared)]
        own = not self.definition.drive  # whose arguments have names of their own, which parameters do not mean
        synonyms = {name: f"{name} {one.names}" if own else one.names for name, one in arguments.items()}
        return BoundNames(synonyms | sizes, required, places, shared)

    def takes(self, argument: str) -> bool:
        if self.is_class and not self.definition.drive:
            return True
        kinds = {kind for _, kind, _ in self.facts["parameters"]}
        is_open = bool(kinds & {"rest", "names"}) and not self.definition.drive
        wholes = [name for name, one in self.definition.arguments.items() if argument in (name, *one.parts)]
        return bool({*wholes} & {*self.binding.arguments.values()}) or is_open

    def call(self, case: Drawn, given: Mapping[str, Any], dtype: str) -> Outcome:
        if self.definition.drive:
            return self._drive(given, dtype)
        if self.is_class:
            failed, binding, parameters = self._construct(case, given, dtype)
            if failed:
                return failed
            inputs = [one for one in case.case.needs if self.definition.arguments[one].role != "parameter"]
            lacking = [
                one for one in inputs if one not in (*binding.arguments.values(), *self.binding.arguments.values())
            ]
            if lacking:
                return Outcome(None, lacks=lacking[0])
        else:
            binding, parameters = self.binding, self.facts["parameters"]
            absent = self._make_absent(case, given)
            given = {**self.definition.defaults, **absent, **case.sizes, **self.literals, **given}
        return self._call(case, binding, parameters, given, dtype)

    def _make_absent(self, case: Drawn, given: Mapping[str, Any]) -> dict[str, Array]:
        """Zeros for what a case lacks and a parameter requires, such as a bias."""
        arguments = self.definition.arguments
        lacking = [
            self.binding.arguments[name]
            for name, _, has_default in self.facts["parameters"]
            if name in self.binding.arguments and not has_default and self.binding.arguments[name] not in given
        ]
        absent = {}
        for name in lacking:
            if name in arguments and arguments[name].axes and arguments[name].draw == "normal":
                parts = arguments[name].joins.split() or [name]
                shapes = [find_shape(arguments[part].axes, case.sizes, case.lead) for part in parts]
                absent[name] = np.zeros((*shapes[0][:-1], sum(shape[-1] for shape in shapes)))
        return absent

    def _construct(
        self, case: Drawn, given: Mapping[str, Any], dtype: str
    ) -> tuple[Outcome | None, Binding, Sequence[Sequence[Any]]]:
        """Construct an instance for a case and set its parameters.

        The outcome where that fails, else the binding and the parameters of its call.
        """
        nothing = Binding({})
        numbers = {name: value for name, value in given.items() if not isinstance(value, np.ndarray)}
        sizes = {**case.sizes, **numbers, **self.literals, "dropout": 0.0}
        synonyms = {**self.definition.construct, **{name: self.definition.arguments[name].names for name in numbers}}
        synonyms |= {"dropout": DROPOUT, "config": CONFIG}
        places = [name for name in self.definition.construct if name not in numbers]
        self.binding = self._bind(self.facts["parameters"], BoundNames(synonyms, (), places, [*synonyms]))
        settings = {word: sizes[name] for name, words in synonyms.items() if name in sizes for word in words.split()}
        sizes["config"] = {"namespace": {"bias": False, **settings}}
        values = {one: sizes[argument] for one, argument in self.binding.arguments.items() if argument in sizes}
        reply, _ = self.host.ask({"do": "construct", "values": values, "dtype": dtype}, (), LEAST_BYTES)
        if not reply["ok"]:
            return unbuilt(reply), nothing, []
        failed = self._set_parameters(reply["tensors"], given, dtype)
        if failed:
            return failed, nothing, []
        self._refuse_unknown(self.facts["parameters"], reply["parameters"])
        inputs = self._names(("input", "number"), ())
        required = [name for name in self._required(reply["parameters"]) if name in inputs.synonyms]
        return None, self._bind(reply["parameters"], inputs._replace(required=required)), reply["parameters"]

    def _set_parameters(
        self, tensors: Mapping[str, Sequence[int]], given: Mapping[str, Any], dtype: str
    ) -> Outcome | None:
        """Set the parameters of an instance; the outcome where it lacks one.

        Parameters that a case does not give, such as biases, are set to 0.
        """
        free = {one: tuple(shape) for one, shape in tensors.items()}
        arguments = self.definition.arguments
        pending = [name for name in given if arguments[name].role == "parameter"]
        pending.sort(key=self._is_part)
        for by_name in (True, False):
            for name in [*pending]:
                argument = arguments[name]
                found = find_parameter(free, argument.names, given[name].shape, by_name or bool(argument.joins))
                if found is None or name not in pending:
                    continue
                shape = free.pop(found)
                if shape != given[name].shape and name in self._laid_out:
                    return Outcome(None, problem=f"{found} is {shape}, and {name} {given[name].shape}")
                value = given[name] if shape == given[name].shape else given[name].T
                if failed := self._set(found, value, dtype):
                    return failed
                pending = [one for one in pending if one not in (name, *argument.joins.split())]
        if lacking := [name for name in pending if not arguments[name].joins]:
            listed = ", ".join(f"{one} {shape}" for one, shape in free.items())
            problem = f"no parameter of it is {lacking[0]} {given[lacking[0]].shape}; it has {listed or 'none'}"
            return Outcome(None, problem=problem, lacks=lacking[0], unbuilt=True)
        for found, shape in free.items():
            if "bias" in simplify(found) and (failed := self._set(found, np.zeros(shape), dtype)):
                return failed
        return None

    @property
    def _laid_out(self) -> set[str]:
        """The parameters whose layout is a convention."""
        return {name for way in self.definition.conventions.get("weights", {}).values() for name in way.send}

    def _set(self, name: str, value: Array, dtype: str) -> Outcome | None:
        request = {"do": "set", "name": name, "value": {"array": 0}, "dtype": dtype}
        reply, _ = self.host.ask(request, [value], LEAST_BYTES)
        return None if reply["ok"] else unbuilt(reply)

    def _is_part(self, name: str) -> bool:
        """Whether an argument joins no others, and so may be part of one that does."""
        return not self.definition.arguments[name].joins

    def _call(
        self,
        case: Drawn,
        binding: Binding,
        parameters: Sequence[Sequence[Any]],
        given: Mapping[str, Any],
        dtype: str,
    ) -> Outcome:
        """Call it; of several arrays the first of the expected shape is the answer."""
        arrays: list[Array] = []

        def refer(value: Any) -> Any:
            return refer_to(value, arrays)

        def hand_over(argument: str | None) -> Any:
            if argument in collections:
                published = collections[argument].collects
                return {name: refer(given[part]) for part, name in published.items() if part in given}
            return None if argument is None else refer(given[argument])

        collections = {name: one for name, one in self.definition.arguments.items() if one.collects}
        bound = binding.arguments.values()
        joined = {one for one in self.definition.arguments if self.definition.arguments[one].joins and one not in bound}
        joined |= {one for one in given if one not in self.definition.arguments and one not in bound}
        in_place, by_name = plan_call(
            [Slot(*one) for one in parameters], binding, [name for name in given if name not in joined] + [*collections]
        )
        places = [hand_over(argument) for argument in in_place]
        names = {name: hand_over(argument) for name, argument in by_name.items()}
        order = [*in_place, *by_name.values()]
        request = {"do": "call", "places": places, "names": names, "dtype": dtype, "most": most_bytes(arrays)}
        outcome, results = self._ask(request, arrays, order)
        sizes, axes = {**case.sizes, **given}, self.definition.answer
        is_known = all(axis in sizes or axis == "..." for axis in axes.split())
        shape = find_shape(axes, sizes, case.lead) if is_known else ()
        fitting = [one for one in results if one.shape == shape]
        return outcome._replace(array=fitting[0]) if fitting else outcome

    def _drive(self, given: Mapping[str, Any], dtype: str) -> Outcome:
        """Use it as the driver of the definition does.

        The answer is what the definition compares of the arrays.
        """
        arrays: list[Array] = []
        values = {name: refer_to(one, arrays) for name, one in given.items()}
        request = {"do": "drive", "driver": self.definition.drive, "bound": self.binding.arguments, "given": values}
        outcome, results = self._ask({**request, "dtype": dtype}, arrays, ())
        if self.definition.measure and results:
            return outcome._replace(array=self.definition.measure(given, results))
        return outcome

    def _ask(
        self, request: dict[str, Any], arrays: Sequence[Array], order: Sequence[str | None]
    ) -> tuple[Outcome, list[Array]]:
        """The outcome of a request, and all its arrays.

        order  the arguments that it may change
        """
        reply, results = self.host.ask(request, arrays, most_bytes(arrays) + LEAST_BYTES)
        if not reply["ok"]:
            return Outcome(None, problem=reply["problem"], is_end=reply.get("is_end", False)), []
        changed = tuple(str(order[at]) for at in reply["changed"])
        return Outcome(results[0], reply["dtype"], changed=changed), results

    def close(self) -> None:
        self.host.close()


def most_bytes(arrays: Sequence[Array]) -> int:
    """How many bytes an answer to these inputs may have."""
    return max(LEAST_BYTES, TIMES_BYTES * sum(one.nbytes for one in arrays))


def is_finite_number(text: str) -> bool:
    """Whether a text is a finite number.

    >>> is_finite_number("1.7"), is_finite_number("K"), is_finite_number("nan")
    (True, False, False)
    """
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def refer_to(value: Any, arrays: list[Array]) -> Any:
    """Replace an array by its number in a list; other values stay."""
    if not isinstance(value, np.ndarray):
        return value
    arrays.append(value)
    return {"array": len(arrays) - 1}


def unbuilt(reply: Mapping[str, Any]) -> Outcome:
    """The outcome of an instance that could not be constructed."""
    return Outcome(None, problem=reply["problem"], is_end=reply.get("is_end", False), unbuilt=True)


def find_parameter(
    tensors: Mapping[str, tuple[int, ...]], names: str, shape: tuple[int, ...], by_name: bool = False
) -> str | None:
    """Find the parameter of an instance by its name or, if none has it, by its shape.

    by_name  whether the shape alone is not enough

    >>> find_parameter({"linear.weight": (3, 2), "linear.bias": (3,)}, "w weight", (2, 3))
    'linear.weight'
    """
    spelled = [simplify(one) for one in names.split()]
    fitting = [one for one, other in tensors.items() if other in (shape, shape[::-1])]
    named = [one for one in fitting if any(simplify(end) in spelled for end in endings(one))]
    return next(iter(named or [] if by_name else named or fitting), None)


def endings(name: str) -> list[str]:
    """The ends of a dotted name.

    >>> endings("attn.q_proj.weight")
    ['attn.q_proj.weight', 'q_proj.weight', 'weight']
    """
    parts = name.split(".")
    return [".".join(parts[at:]) for at in range(len(parts))]


@dataclass
class PythonFile:
    """A file or a module of Python, or a graph of ONNX, in a process of its own.

    names  the functions and classes that it defines
    """

    host: OwnProcess
    names: Sequence[str] = ()

    @classmethod
    def load(cls, path: str, python: str, timeout: float, memory: int) -> "PythonFile":
        """Load FILE.py, FILE.onnx or MODULE. CalleeError if that fails."""
        is_file = path.endswith((".py", ".onnx")) or os.path.exists(path)
        if os.path.isdir(path):
            raise DataError("is a folder", path)
        if is_file and not os.path.isfile(path):
            raise DataError("no such file", path)
        folder = [os.path.dirname(os.path.abspath(path))] * is_file
        file = cls(OwnProcess(python, timeout, memory))
        request = {"path": os.path.abspath(path) if is_file else "", "module": "" if is_file else path}
        file.names = ask_for(file.host, {"do": "load", **request, "folders": [*folder, os.getcwd()]})["names"]
        return file

    def take(self, definition: Definition, name: str, library: str, stated: Mapping[str, str]) -> PythonCallee:
        """Take one of its functions or classes as the implementation of a definition."""
        request = {"do": "take", "name": name, "expected": definition.functions.split(), "library": library}
        return PythonCallee(definition, self.host, ask_for(self.host, request), stated)

    def close(self) -> None:
        """End its process."""
        self.host.close()


def ask_for(host: Host, request: dict[str, Any]) -> dict[str, Any]:
    """What a host replies. CalleeError if it cannot carry out the request."""
    reply, _ = host.ask(request, (), LEAST_BYTES)
    if not reply.pop("ok"):
        host.close()
        raise CalleeError(reply["problem"])
    return reply


def open_object(definition: Definition, target: Any, library: str, stated: Mapping[str, str]) -> PythonCallee:
    """Open a function, a class or an instance of this process."""
    host = ThisProcess()
    return PythonCallee(definition, host, ask_for(host, {"do": "hold", "target": target, "library": library}), stated)
