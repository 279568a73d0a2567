"""What runs in the process of an implementation in Python: load, construct, call.

This file and `drivers.py` alone are sent to that process, which needs Python and NumPy. Requests and replies are a
header in JSON and arrays as NPY, each behind its length.
"""

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

LIBRARIES = ("torch", "jax", "numpy")
KINDS = {0: "place", 1: "place", 2: "rest", 3: "name", 4: "names"}  # of inspect.Slot
PR_SET_PDEATHSIG = 1  # of prctl(2)
MOST_TEXT = 4000  # characters of an error that are sent
FLOATS = "fV"  # kinds of dtypes that have another precision in a library, bfloat16 among them


class Fault(Exception):
    """What is wrong with an implementation, in words."""


class Interpreter:
    """Holds an implementation: a function, a class, or an instance that is called.

    drivers  how implementations are used that are no function of arrays, by name
    library  "torch", "jax" or "numpy": whose arrays it takes
    """

    def __init__(self, drivers: Mapping[str, Callable[..., list[Any]]]) -> None:
        self.drivers = drivers
        self.module: Any = None
        self.target: Any = None
        self.instance: Any = None
        self.library = "numpy"

    def load(self, path: str, module: str, folders: Sequence[str]) -> dict[str, Any]:
        """Import a file or a module; list the functions and classes that it defines.

        folders  from which the file may import others
        """
        sys.path += folders
        if path.endswith(".onnx"):
            self.module = OnnxModel(path)
        elif path:
            spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
            if spec is None or spec.loader is None:
                raise Fault(f"{path} is no file of Python")
            self.module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = self.module
            spec.loader.exec_module(self.module)
        else:
            self.module = importlib.import_module(module)
        return {"names": [] if path.endswith(".onnx") else list_public(self.module)}

    def take(self, name: str, expected: Sequence[str], library: str) -> dict[str, Any]:
        """Take a function or a class of the module as the implementation.

        name     dotted; "" for the one that has an expected name, or the only one
        library  whose arrays it takes, "" for what the module imports
        """
        if isinstance(self.module, OnnxModel):
            return self.hold(self.module, "numpy")
        return self.hold(find_target(self.module, name, expected), library or find_library(self.module))

    def hold(self, target: Any, library: str = "") -> dict[str, Any]:
        """Hold an object as the implementation; describe it.

        Of a function without parameters it is what this returns, such as a class.
        """
        if not callable(target):
            raise Fault(f"it is {type(target).__name__}, neither a function nor a class")
        library = library or find_library(sys.modules.get(getattr(target, "__module__", ""), target))
        name = getattr(target, "__name__", type(target).__name__)
        if inspect.isfunction(target) and not list_slots(target):
            with contextlib.suppress(NotImplementedError):
                target = target()
        self.target, self.library = target, library
        self.instance = None if inspect.isclass(target) else target
        return {
            "name": name,
            "is_class": inspect.isclass(target),
            "library": self.library,
            "parameters": list_slots(
                target if inspect.isclass(target) or inspect.isroutine(target) else find_call(target)
            ),
        }

    def construct(self, values: Mapping[str, Any], dtype: str) -> dict[str, Any]:
        """Make an instance of a class; list its parameters and those of its call."""
        torch = sys.modules.get("torch") if self.library == "torch" else None
        if torch is not None:
            torch.manual_seed(0)
        self.instance = self.target(**values)
        if torch is not None and isinstance(self.instance, torch.nn.Module):
            self.instance.to(getattr(torch, dtype)).eval()
        shapes = {name: list(array.shape) for name, array in self._tensors().items()}
        return {"parameters": list_slots(find_call(self.instance)), "tensors": shapes}

    def _tensors(self) -> dict[str, Any]:
        """The parameters of a module, otherwise the attributes that are arrays."""
        if hasattr(self.instance, "named_parameters"):
            return {**dict(self.instance.named_parameters()), **dict(self.instance.named_buffers())}
        return {name: one for name, one in vars(self.instance).items() if hasattr(one, "shape")}

    def set(self, name: str, value: Any, dtype: str) -> None:
        """Set a parameter of the instance."""
        converted = to_library(value, self.library, dtype)
        if self.library == "torch" and name in self._tensors():
            self._tensors()[name].data = converted
        else:
            setattr(self.instance, name, converted)

    def call(
        self, places: Sequence[Any], names: Mapping[str, Any], dtype: str, most: int
    ) -> tuple[list[Any], dict[str, Any]]:
        """Call it; return its arrays, their dtype, and which arguments it changed.

        most  the bytes that its arrays may have
        """
        places = [to_library(value, self.library, dtype) for value in places]
        names = {name: to_library(value, self.library, dtype) for name, value in names.items()}
        before = [np.array(from_library(value)[0]) for value in (*places, *names.values())]
        result = self.instance(*places, **names)
        after = [from_library(value)[0] for value in (*places, *names.values())]
        changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if not has_same_numbers(*pair)]
        results = list_arrays(result)
        if not results:
            raise Fault(f"it returned {type(result).__name__}, not an array")
        size = sum(getattr(one, "nbytes", 0) for one in results)
        if size > most:
            raise Fault(f"its answer has {size} bytes where at most {most} were expected")
        arrays = [from_library(one) for one in results]
        if any(array.dtype.kind not in "fiubc" for array, _ in arrays):
            raise Fault(f"its answer has the dtype {arrays[0][1]}")
        return [array for array, _ in arrays], {"dtype": arrays[0][1], "changed": changed}

    def drive(
        self, driver: str, bound: Mapping[str, str], given: Mapping[str, Any], dtype: str
    ) -> tuple[list[Any], dict[str, Any]]:
        """Use it by a driver; return its arrays."""
        if inspect.isfunction(self.target) and not list_slots(self.target):
            self.target()  # of which nothing but an error is known
        arrays = self.drivers[driver](self, bound, given, dtype)
        return arrays, {"dtype": dtype, "changed": []}

    def from_numpy(self, value: Any, dtype: str) -> Any:
        """An array as the implementation takes it."""
        return to_library(value, self.library, dtype)

    def to_numpy(self, value: Any) -> Any:
        """An array that the implementation returned."""
        return from_library(value)[0]


class OnnxModel:
    """A graph of ONNX as a function of its inputs by their names."""

    def __init__(self, path: str) -> None:
        onnxruntime: Any = importlib.import_module("onnxruntime")

        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.__name__ = os.path.basename(path)
        names = [one.name for one in self.session.get_inputs()]
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names if name.isidentifier()]
        )

    def __call__(self, *places: Any, **names: Any) -> Any:
        bound = self.__signature__.bind(*places, **names)
        return self.session.run(None, dict(bound.arguments))[0]


def list_arrays(result: Any) -> list[Any]:
    """The arrays that an implementation returned, alone, in a tuple or in a dict."""
    if isinstance(result, dict):
        result = [*result.values()]
    if isinstance(result, (tuple, list)) and any(hasattr(one, "shape") for one in result):
        return [one for one in result if hasattr(one, "shape")]
    return [result] if hasattr(result, "shape") or (isinstance(result, (int, float, list)) and result != []) else []


def has_same_numbers(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def find_target(module: Any, name: str, expected: Sequence[str]) -> Any:
    """Find the function or class of that name, or the one that a file defines."""
    if name:
        found = module
        for part in name.split("."):
            if not hasattr(found, part):
                raise Fault(f"there is no {name!r} in it; it has {', '.join(list_public(module)) or 'no function'}")
            found = getattr(found, part)
        return found
    public = list_public(module)
    simple = {one.replace("_", "").lower(): one for one in reversed(public)}
    named = [simple[one] for one in (word.replace("_", "").lower() for word in expected) if one in simple]
    if named or len(public) == 1:
        return getattr(module, (named or public)[0])
    raise Fault(f"which one of {', '.join(public)}? FILE:NAME says it" if public else "it defines no function or class")


def list_public(module: Any) -> list[str]:
    """The functions and classes that a file defines, and does not import."""
    return [
        name
        for name, one in vars(module).items()
        if not name.startswith("_") and callable(one) and getattr(one, "__module__", "") == module.__name__
    ]


def find_library(module: Any) -> str:
    """Whose arrays a module uses, by what it imports itself."""
    own = {getattr(one, "__name__", "").partition(".")[0] for one in vars(module).values() if inspect.ismodule(one)}
    own |= {str(getattr(one, "__module__", "")).partition(".")[0] for one in vars(module).values()}
    if own & {"jaxlib", "flax"}:
        own.add("jax")
    return next((name for name in LIBRARIES if name in own), "torch" if "torch" in sys.modules else "numpy")


def find_call(instance: Any) -> Any:
    """The function that a call of an instance runs: `forward` of a module."""
    return instance.forward if hasattr(instance, "forward") else instance.__call__


def list_slots(function: Any) -> list[list[Any]]:
    """Name and kind of each parameter, and whether it has a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [["args", "rest", False]]
    return [[one.name, KINDS[one.kind], one.default is not one.empty] for one in parameters]


def to_library(value: Any, library: str, dtype: str) -> Any:
    """An array of a library, floats in a dtype, from one of NumPy; a number stays one."""
    if isinstance(value, dict):
        return {name: to_library(one, library, dtype) for name, one in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    is_float = value.dtype.kind == "f"
    if library == "torch":
        import torch

        tensor = torch.from_numpy(np.array(value, order="C"))
        return tensor.to(getattr(torch, dtype)) if is_float else tensor
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(value, dtype=dtype if is_float else None)
    if is_float and dtype == "bfloat16":
        raise Fault("NumPy has no bfloat16: --dtype float16, float32 or float64")
    return np.array(value, dtype=dtype if is_float else value.dtype)


def from_library(value: Any) -> tuple[Any, str]:
    """An array of NumPy, and the name of the dtype of what it was made from."""
    if hasattr(value, "detach"):
        name = str(value.dtype).rpartition(".")[2]
        value = value.detach().cpu()
        return (value.float() if name == "bfloat16" else value).numpy(), name
    if isinstance(value, dict):
        return np.zeros(0), "float32"
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32), "bfloat16"
    return array, array.dtype.name


def describe_exception(error: BaseException) -> str:
    """The error and its line in the user's file: "ValueError: … (mine.py, line 3)"."""
    if isinstance(error, Fault):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    room = os.path.dirname(describe_exception.__code__.co_filename)
    own = [frame for frame in frames if os.path.dirname(frame.filename) != room and not frame.filename.startswith("<")]
    user = [frame for frame in own if "site-packages" not in frame.filename] or own
    where = f" ({os.path.basename(user[-1].filename)}, line {user[-1].lineno})" if user else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}{where}"[:MOST_TEXT]


def answer(
    interpreter: Interpreter, request: dict[str, Any], arrays: Sequence[Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Carry out a request; an error becomes a reply."""
    do, results = request.pop("do"), []
    try:
        values = {name: place(value, arrays) for name, value in request.items()}
        reply = getattr(interpreter, do)(**values) or {}
        if do in ("call", "drive"):
            results, reply = reply
        return {"ok": True, **reply}, results
    except MemoryError:
        return {"ok": False, "problem": "it needs more memory than it may have"}, []
    except BaseException as error:  # whatever the code of a user raises
        return {"ok": False, "problem": describe_exception(error)}, []


def place(value: Any, arrays: Sequence[Any]) -> Any:
    """Put arrays where a request has their numbers: {"array": 0}."""
    if isinstance(value, dict):
        if "namespace" in value:
            return types.SimpleNamespace(**value["namespace"])
        return arrays[value["array"]] if "array" in value else {name: place(one, arrays) for name, one in value.items()}
    return [place(one, arrays) for one in value] if isinstance(value, list) else value


def write_message(stream: BinaryIO, header: Mapping[str, Any], arrays: Sequence[Any]) -> None:
    """Write a header and arrays, each behind its length."""
    parts = [json.dumps({**header, "arrays": len(arrays)}).encode()]
    for array in arrays:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        parts.append(buffer.getvalue())
    for part in parts:
        stream.write(len(part).to_bytes(8, "little") + part)
    stream.flush()


def read_message(read: Callable[[int], bytes], most: int) -> tuple[dict[str, Any], list[Any]]:
    """Read a header and arrays.

    read  reads that many bytes, or raises EOFError
    most  the bytes that a part may have; ValueError for more
    """

    def read_part() -> bytes:
        length = int.from_bytes(read(8), "little")
        if length > most:
            raise ValueError(f"{length} bytes where at most {most} were expected")
        return read(length)

    header = json.loads(read_part())
    arrays = [np.load(io.BytesIO(read_part()), allow_pickle=False) for _ in range(header.pop("arrays"))]
    return header, arrays


def limit(**limits: int) -> None:
    """Limit what this process may use, by the names of the module `resource`."""
    with contextlib.suppress(ImportError):
        import resource

        for name, most in limits.items():
            with contextlib.suppress(ValueError, OSError, AttributeError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def end_with_parent(watches: bool = True) -> None:
    """End this process when the one that started it ends, however that ends.

    watches  whether a thread looks for it, where the system does not
    """
    parent = os.getppid()
    with contextlib.suppress(Exception):  # where Linux does it by itself
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    if watches:
        threading.Thread(target=watch, daemon=True).start()


def serve(read_from: int, write_to: int, drivers: Mapping[str, Callable[..., list[Any]]]) -> None:
    """Answer requests until they end; a forked process answers none."""
    end_with_parent()
    interpreter, own = Interpreter(drivers), os.getpid()
    with os.fdopen(read_from, "rb") as requests, os.fdopen(write_to, "wb") as replies:

        def read(length: int) -> bytes:
            data = requests.read(length)
            if len(data) < length:
                raise EOFError
            return data

        with contextlib.suppress(EOFError):
            while True:
                header, arrays = read_message(read, 1 << 40)
                if header.get("do") == "limit":
                    header.pop("do")
                    limit(**header)
                    continue
                answered = answer(interpreter, header, arrays)
                if os.getpid() != own:
                    os._exit(0)
                write_message(replies, *answered)
