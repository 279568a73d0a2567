"""What a tool is for Python: its signature, with the types that callers may pass, and the stub of the package.

`python -m attnkit.cli.signature > attnkit/__init__.pyi` writes the stub, which editors and type checkers read.
"""

import inspect
import json
import keyword
import sys
import textwrap
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, get_args, get_origin

from attnkit.cli import options
from attnkit.cli.options import Option
from attnkit.cli.stage import Tool
from attnkit.cli.tool import PYTHON_FLAGS

DOC_WIDTH = 110  # of the lines of a docstring

OPERAND_TYPES: Mapping[str | None, str] = {
    "tensor": "TensorLike",
    "index": "TensorLike",
    "ids": "TensorLike",
    "targets": "TensorLike",
    "attended": "TensorLike",
    "image": "TensorLike",
    "memory": "TensorLike | Mapping[str, Tensor | Array]",
    "tensors": "Mapping[str, Tensor | Array] | Record | Path",
    "patches": "Mapping[str, TensorLike] | str",
    "means": "Mapping[str, Tensor | Array] | Record | Path",
    "words": "Sequence[str] | Path",
    "lines": "Sequence[str] | Sequence[Sequence[str]] | Path",
    "tokenizer": "Tokenizer | Path",
    "model": "Checkpoint | Path",
}
INPUT_TYPES = {
    "[INPUT]": "TensorLike",
    "[PART]...": "Sequence[Record | Path] | Record | Path",
    "[TRACE]...": "Sequence[Record | Path] | Record | Path",
    "[TEXT]...": "str | Sequence[str] | Record",
    "[INPUT | TEXT...]": "str | Sequence[str] | TensorLike",
}
HEADER = '''"""The Transformer as Unix tools: the tools as typed functions. Made by python -m attnkit.cli.signature."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from attnkit import formats as formats
from attnkit import model as model
from attnkit.checkpoints import Checkpoint
from attnkit.display.figures import plot as plot
from attnkit.display.notebook import Rendering
from attnkit.interpret.comparison import DiffReport
from attnkit.record import Record as Record, Tensor as Tensor
from attnkit.tokenizers import Tokenizer

__version__: str
TOOLS: tuple[str, ...]

Array = np.ndarray[Any, Any]
Path = str | os.PathLike[str]
TensorLike = Record | Tensor | Array | np.generic | float | Sequence[Any] | Path
DType = Literal[
    %DTYPES%
]
'''


class TypeName(str):
    """A type of a signature by its name, shown without quotes."""

    __repr__ = str.__str__


def describe_tool(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function of a tool its signature for Python, and its parameters in its docstring, and return it."""
    if "__signature__" not in function.__dict__:
        tool = function.__dict__["tool"]
        signature = function.__dict__["__signature__"] = make_signature(tool)
        text, example, last = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:")
        function.__doc__ = f"{text}\n\n{parameter_list(tool, signature)}{example}{last}"
    return function


def parameter_list(tool: Tool, signature: inspect.Signature) -> str:
    """Return the keywords of a tool, each with the help of its flag."""
    known = tool.flags | tool.extra | tool.shared
    names = [name for name, one in signature.parameters.items() if one.kind == one.KEYWORD_ONLY]
    if not names:
        return ""
    width = max(map(len, names))
    lines = [
        textwrap.fill(
            f"  {name:<{width}}  {known[name if name in known else f'{name}_'].help}",
            DOC_WIDTH,
            subsequent_indent=" " * (width + 4),
            break_on_hyphens=False,
        )
        for name in names
    ]
    return "\n".join(["Parameters:", *lines])


def make_signature(tool: Tool) -> inspect.Signature:
    """Return the signature of a tool for Python: its input, its own parameters, and those of all tools."""
    _, *own = inspect.signature(tool.function).parameters.values()
    hints, shared = tool.hints, tool.extra | tool.shared
    parameters = input_parameters(tool)
    parameters += [keyword_parameter(one.name, tool.flags[one.name], one.default, hints[one.name]) for one in own]
    for name in tool.python.options:
        hint, default = (bool, False) if shared[name].parser is None else (optional_type(shared[name]), None)
        parameters.append(keyword_parameter(name, shared[name], default, hint))
    parameters += [
        keyword_parameter(name, tool.shared[name], default, hint)
        for name, (hint, default) in PYTHON_FLAGS.items()
        if name in tool.shared and name not in tool.flags
    ]
    result = tool.python.result or result_type(hints.get("return"))
    return inspect.Signature(parameters, return_annotation=TypeName(result))


def optional_type(option: Option) -> Any:
    """Return the type of the value of an option that no signature has."""
    return {"NAMES": tuple[str, ...], "N": int, "LOW,HIGH|each": tuple[float, float]}.get(option.metavar, str)


def input_parameters(tool: Tool) -> list[inspect.Parameter]:
    """Return the positional parameters of a tool."""
    hint = tool.hints.get(tool.input_name)
    types = {name: TypeName(kind) for name, kind in tool.python.inputs.items()}
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_ONLY,
            default=None if kind.endswith("None") else inspect.Parameter.empty,
            annotation=kind,
        )
        for name, kind in (types or {tool.input_name: input_type(tool, hint)}).items()
    ]


def keyword_parameter(name: str, option: Option, default: Any, hint: Any) -> inspect.Parameter:
    """Return the keyword of a flag; a name that Python does not keep for itself loses its underscore."""
    plain = name.rstrip("_")
    return inspect.Parameter(
        name if keyword.iskeyword(plain) else plain,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=value_type(option, hint, default),
    )


def input_type(tool: Tool, hint: Any) -> TypeName:
    """Return the type of what a tool takes first."""
    name = INPUT_TYPES.get(tool.operand, "Any")
    return TypeName(f"{name} | None" if NoneType in get_args(hint) else name)


def value_type(option: Option, hint: Any, default: Any) -> TypeName:
    """Return the type of what a caller may pass for a flag.

    >>> value_type(options.integer("width", 1), int | None, None), value_type(options.choice("", ("a", "b")), str, "a")
    (int | None, Literal["a", "b"])
    """
    name = OPERAND_TYPES[option.load] if option.load else plain_type(option, hint)
    return TypeName(f"{name} | None" if default is None else name)


def plain_type(option: Option, hint: Any) -> str:
    """Return the type of a value that names no file: a caller may pass a list for a tuple, or the text of a flag."""
    if option.choices == options.DTYPES:
        return "DType"
    if option.choices and not option.is_list:
        return f"Literal[{', '.join(map(json.dumps, option.choices))}]"
    base = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    kinds = [one for one in get_args(base) if one is not NoneType] if NoneType in get_args(base) else [base]
    kind = kinds[0]
    if get_origin(kind) is tuple or kind is tuple:
        element = result_type(get_args(kind)[0]) if get_args(kind) else "str"
        return (
            "Sequence[str] | str"
            if element == "str"
            else " | ".join(dict.fromkeys([f"Sequence[{element}]", *element.split(" | "), "str"]))
        )
    return str(getattr(kind, "__name__", "Any"))


def result_type(hint: Any) -> str:
    """Return the type of a tool's result."""
    return " | ".join(one.__name__ for one in get_args(hint) or [hint])


def write_stub(functions: Mapping[str, Callable[..., Any]]) -> str:
    """Return the text of a stub that declares functions by their signatures."""
    parts = [HEADER.replace("%DTYPES%", ", ".join(map(json.dumps, options.DTYPES)))]
    for name, function in functions.items():
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        inputs = [one for one in parameters if one.kind is one.POSITIONAL_ONLY]
        lines = [f"def {name}(", *(f"    {declare(one)}," for one in inputs), "    /,"]
        keywords = [f"    {declare(one)}," for one in parameters if one.kind is one.KEYWORD_ONLY]
        parts.append(
            "\n".join([*lines, *["    *,"] * bool(keywords), *keywords, f") -> {signature.return_annotation}: ..."])
        )
    return "\n".join(parts) + "\n"


def declare(parameter: inspect.Parameter) -> str:
    """Return a parameter as source code."""
    default = parameter.default
    text = json.dumps(default) if isinstance(default, str) else repr(default)
    return f"{parameter.name}: {parameter.annotation}" + ("" if default is parameter.empty else f" = {text}")


if __name__ == "__main__":
    import attnkit

    sys.stdout.write(write_stub({name: getattr(attnkit, name) for name in attnkit.TOOLS}))
