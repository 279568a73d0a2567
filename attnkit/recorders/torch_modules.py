"""What the modules of a torch model read and return, in the order of their calls."""

import contextlib
import inspect
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from attnkit.errors import UsageError, counted
from attnkit.model.arrays import is_torch_tensor


class ModuleCall(NamedTuple):
    """A call in progress.

    paths        the places of its module in the model: several for a shared one if its caller does not tell
    names        how the call is named: the paths, after which `#1` is the second call
    is_recorded  whether it is within an outer call of the number that is recorded
    """

    paths: list[str]
    names: list[str]
    is_recorded: bool


class ModuleCalls:
    """The calls of a module and of all modules inside it.

    A call that no other one contains is an outer call. Those of each module are numbered; everything within the outer
    calls of one number is recorded.

    write   (name, tensor) writes a tensor
    number  the number of the outer calls to record
    """

    def __init__(self, module: Any, number: int, write: Callable[[str, Any], None]) -> None:
        self._write, self._number = write, number
        self._paths: dict[Any, list[str]] = defaultdict(list)
        for path, inner in module.named_modules(remove_duplicate=False):
            if not (is_script(inner) or "_orig_mod" in inner._modules):  # what torch.compile wraps a module in
                self._paths[inner].append(".".join(part for part in path.split(".") if part != "_orig_mod"))
        self._outer: Counter[Any] = Counter()
        self._named: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._threads = threading.local()

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow the calls made in a `with` block."""
        begin, end = self._begin, self._end
        if "torch._dynamo" in sys.modules:  # which compiles hooks too
            begin, end = map(sys.modules["torch"].compiler.disable, (begin, end))
        with contextlib.ExitStack() as hooks:
            for module in self._paths:
                hooks.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(end, with_kwargs=True, always_call=True).remove)
            yield

    def is_recorded(self) -> bool:
        """Whether this thread is in a call that is recorded, or in none."""
        calls = self._calls()
        return not calls or calls[0].is_recorded

    def describe_outer(self) -> str:
        """How often the module was called, for an error message."""
        times = counted(max(self._outer.values(), default=0), "time")
        return f"the module was called {times}, and call {self._number} is to be recorded (the first is 0)"

    def _calls(self) -> list[ModuleCall]:
        """The calls in progress in this thread, the outermost first."""
        if not hasattr(self._threads, "calls"):
            self._threads.calls = []
        calls: list[ModuleCall] = self._threads.calls
        return calls

    def _begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = self._calls()
        paths = self._paths[module]
        for call in reversed(calls) if len(paths) > 1 else ():
            if inside := [path for path in paths if any(_is_within(path, outer) for outer in call.paths)]:
                paths = inside
                break
        names = []
        with self._lock:
            is_recorded = calls[0].is_recorded if calls else self._outer[module] == self._number
            self._outer[module] += not calls
            for path in paths if is_recorded else ():
                names.append(f"{path}#{self._named[path]}" if self._named[path] else path)
                self._named[path] += 1
        calls.append(ModuleCall(paths, names, is_recorded))
        for name in names:
            given = name_arguments(module, args) if not name and len(args) > 1 else args
            self._write_parts(f"{name}.input" if name else "input", given[0] if len(args) == 1 else given)
            self._write_parts(f"{name}.input" if name else "input", kwargs)

    def _end(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls = self._calls()
        if calls:  # none if the block began within a call
            for name in calls.pop().names:
                self._write_parts(f"{name}.output" if name else "output", output)

    def _write_parts(self, name: str, value: Any) -> None:
        """Write the tensors in a value: one, or those in nested lists and dicts."""
        if is_torch_tensor(value):
            self._write(name, value)
        elif isinstance(value, Mapping):
            for key, part in value.items():
                self._write_parts(f"{name}.{key}", part)
        elif isinstance(value, list | tuple):
            for number, part in enumerate(value):
                self._write_parts(f"{name}.{number}", part)


def _is_within(path: str, outer: str) -> bool:
    return not outer or path.startswith(f"{outer}.")


def name_arguments(module: Any, args: tuple[Any, ...]) -> Any:
    """The positional arguments of a module by the names of its parameters.

    A mask that a model reads is known by its name. Arguments of `*args` keep their numbers.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    if len(parameters) < len(args) or any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return args
    return dict(zip((one.name for one in parameters), args, strict=False))


def check_module(module: Any) -> None:
    """Raise UsageError for what is no module of torch, or one of TorchScript.

    >>> check_module("gpt2")
    Traceback (most recent call last):
    attnkit.errors.UsageError: record: expected a torch.nn.Module, got str; tap records arrays of other libraries
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        problem = f"expected a torch.nn.Module, got {type(module).__name__}; tap records arrays of other libraries"
        raise UsageError(problem, "record")
    if is_script(module):
        raise UsageError("the module is compiled by torch.jit; record the module that it was made from", "record")


def is_script(module: Any) -> bool:
    """Whether a module of torch is compiled by torch.jit, which ignores hooks."""
    return isinstance(module, sys.modules["torch"].jit.ScriptModule)
