"""The Transformer as Unix tools.

model/        the arithmetic: pure functions on arrays, in the order of a forward pass
tensors/      records and the formats they are read from and written to
checkpoints/  published folders to a configuration and parameters, one file a family
tokenizers/   text to ids and back
display/      arrays as tables and heat maps
commands/     the tools, one file each; every one is a function of a record
tool          what surrounds that function: its place in a pipe, its line of history
texts images  what a model is given; layers: one layer of it as a tool's parameters
masking       which mask and bias attention uses
tracing       intermediates of a run kept, replaced, switched off; recipes: a model as a shell pipeline
generating/   text token by token: prompts, caches, what is shown on the way
options, commandline, operands, formats, views, output   flags, arguments, files, formats, looks, results
libraries     optional ones: imported when needed, their failures in one line
pipelines     tools chained in one process
cli           the process: arguments in, exit code out

The tools are functions too: `attnkit.attend(attnkit.embed("The cat sat", dim=8), heads=2)`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and until __main__ is, Ctrl-C prints Python's traceback
    from typing import Any

__version__ = "0.1.0"

TOOLS = ("embed", "posenc", "mask", "attend", "merge", "layernorm", "ffn", "encode", "decode")


def __getattr__(name: str) -> "Any":
    """The tools, the core and the formats, imported when they are first asked for."""
    import importlib

    if name in TOOLS:
        return getattr(importlib.import_module(f"attnkit.commands.{name}"), name)
    if name in ("model", "formats"):
        return importlib.import_module(f"attnkit.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*TOOLS, "model", "formats", "__version__"]
