"""What a tool is for Python: its signature, and the stub of the package.

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
from attnkit.cli.operands import CONTENTS
from attnkit.cli.tool import Tool
from attnkit.options import DTYPES

DOC_WIDTH = 110  # of the lines of a docstring

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
from attnkit.checking.report import CheckReport
from attnkit.checkpoints import Checkpoint
from attnkit.cli.notebook import plot as plot
from attnkit.display.notebook import Rendering
from attnkit.debugger.hashes import HashReport
from attnkit.commands.golden.report import GoldenReport
from attnkit.debugger.report import VerdictReport
from attnkit.interpret.comparison import DiffReport
from attnkit.interpret.rounding_report import RoundingReport
from attnkit.interpret.text_agreement import AgreementReport
from attnkit.interpret.weights_comparison import WeightsReport
from attnkit.model.arrays import SupportsArray
from attnkit.recorders import record as record, record_onnx as record_onnx, tap as tap
from attnkit.records import Record as Record, Tensor as Tensor
from attnkit.tokenizers import Tokenizer

__version__: str
TOOLS: tuple[str, ...]

Array = np.ndarray[Any, Any]
Path = str | os.PathLike[str]
TensorLike = Record | Tensor | SupportsArray | np.generic | float | Sequence[Any] | Path
DType = Literal[
    %DTYPES%
]
'''


class TypeName(str):
    """A type of a signature by its name, shown without quotes."""

    __repr__ = str.__str__


def describe_tool(function: Callable[..., Any]) -> Callable[..., Any]:
    """Set the Python signature of a tool, and list its parameters in its docstring."""
    if "__signature__" not in function.__dict__:
        tool = function.__dict__["tool"]
        parameters = [*input_parameters(tool), *(keyword_parameter(tool, name) for name in tool.python_options)]
        result = tool.python.result or name_type(get_args(tool.hints["return"]) or [tool.hints["return"]])
        function.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=TypeName(result))
        text, example, last = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:")
        function.__doc__ = f"{text}\n\n{list_keywords(tool)}{example}{last}"
    return function


def list_keywords(tool: Tool) -> str:
    """List the keywords of a tool, each with the help of its option."""
    texts = {plain_name(name): tool.options[name].help for name in tool.python_options}
    width = max(map(len, texts), default=0)
    lines = [
        textwrap.fill(
            f"  {name:<{width}}  {text}", DOC_WIDTH, subsequent_indent=" " * (width + 4), break_on_hyphens=False
        )
        for name, text in texts.items()
    ]
    return "\n".join(["Parameters:", *lines]) if lines else ""


def input_parameters(tool: Tool) -> list[inspect.Parameter]:
    """Make the positional parameters of a tool."""
    optional = " | None" * (NoneType in get_args(tool.hints.get(tool.input_name)))
    inputs = tool.python.inputs or {tool.input_name: INPUT_TYPES.get(tool.operand, "Any") + optional}
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_ONLY,
            default=None if kind.endswith("None") else inspect.Parameter.empty,
            annotation=TypeName(kind),
        )
        for name, kind in inputs.items()
    ]


def plain_name(name: str) -> str:
    """Remove the underscore at the end of a name, unless Python reserves the rest."""
    plain = name.rstrip("_")
    return name if keyword.iskeyword(plain) else plain


def keyword_parameter(tool: Tool, name: str) -> inspect.Parameter:
    """Make the keyword of an option."""
    option, default = tool.options[name], tool.defaults.get(name)
    if option.is_flag and default is None:
        default = False
    kind = CONTENTS[option.load].python if option.load else value_type(tool, name)
    return inspect.Parameter(
        plain_name(name),
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=TypeName(f"{kind} | None" if default is None else kind),
    )


def value_type(tool: Tool, name: str) -> str:
    """Name the type of a value: a list for a tuple, or text as in a shell, too."""
    option, hint = tool.options[name], tool.annotations[name]
    if option.choices == DTYPES:
        return "DType"
    if option.choices and not option.multiple:
        return f"Literal[{', '.join(map(json.dumps, option.choices))}]"
    kind = options.plain_type(hint)
    if get_origin(kind) is not tuple:
        return name_type([kind])
    element = name_type(get_args(get_args(kind)[0]) or get_args(kind)[:1])
    return " | ".join(dict.fromkeys([f"Sequence[{element}]", *element.split(" | ") * (element != "str"), "str"]))


def name_type(kinds: Any) -> str:
    """Name a type, or a union of types."""
    return " | ".join(str(getattr(one, "__name__", "Any")) for one in kinds)


def write_stub(functions: Mapping[str, Callable[..., Any]]) -> str:
    """Write a stub that declares functions by their signatures."""
    parts = [HEADER.replace("%DTYPES%", ", ".join(map(json.dumps, DTYPES)))]
    for name, function in functions.items():
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        inputs = [declare(one) for one in parameters if one.kind is one.POSITIONAL_ONLY]
        keywords = [declare(one) for one in parameters if one.kind is one.KEYWORD_ONLY]
        rows = [*inputs, "/", *["*"] * bool(keywords), *keywords]
        parts.append(
            "\n".join([f"def {name}(", *(f"    {row}," for row in rows), f") -> {signature.return_annotation}: ..."])
        )
    return "\n".join(parts) + "\n"


def declare(parameter: inspect.Parameter) -> str:
    """Write a parameter as source code."""
    default = parameter.default
    text = json.dumps(default) if isinstance(default, str) else repr(default)
    return f"{parameter.name}: {parameter.annotation}" + ("" if default is parameter.empty else f" = {text}")


if __name__ == "__main__":
    import attnkit

    sys.stdout.write(write_stub({name: getattr(attnkit, name) for name in attnkit.TOOLS}))
