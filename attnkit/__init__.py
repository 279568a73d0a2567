"""The Transformer as Unix tools.

commands/      one file per tool: read, call, write
cli/           what every tool shares: options, stages, output, errors to exit codes
training/      optimizers, schedules, batches, initial parameters, the folder of a model
generation/    text in, text out: prompts, generation, scoring, labels
debugger/      where an implementation differs from a model, and why
interpret/     looking inside: traces, edits, lens, heads, comparison, gradients
inputs/        what tools and models compute from: texts, layers, masks, states
backends/      engines beside NumPy: the same steps on GPUs, TPUs and many hosts, by JAX
checkpoints/   published folders to a configuration and parameters, one file per family
model/         the arithmetic: pure functions on arrays; reference.py: the paper in plain NumPy; kernels/: fast paths
recorders/     what torch, JAX, ONNX and other programs compute, written to a file meanwhile
formats/       records to bytes and back, one file per format
tokenizers/    text to ids and back
display/       tables, heat maps and pictures of tensors
records.py     Tensor and Record; errors.py: kinds of errors and their exit codes; libraries.py: optional libraries
tuning.py      settings of BLAS and of the allocator, before NumPy is loaded
help/          pages of `attnkit help TOPIC`; begin with architecture.md

A room imports only rooms below it.

The tools are functions too: `attnkit.attend(attnkit.embed("The cat sat", dim=8), heads=2)`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and until __main__ is, Ctrl-C prints Python's traceback
    from typing import Any

__version__ = "0.1.0"

TOOLS = (
    "embed",
    "posenc",
    "mask",
    "attend",
    "softmax",
    "merge",
    "layernorm",
    "ffn",
    "linear",
    "conv",
    "mel",
    "rnn",
    "encode",
    "decode",
    "loss",
    "grad",
    "train",
    "score",
    "near",
    "cost",
    "engines",
    "rollout",
    "lens",
    "scan",
    "heads",
    "show",
    "explore",
    "peek",
    "diff",
    "run",
    "history",
)

RECORDERS = ("record", "record_onnx", "tap")


def __getattr__(name: str) -> "Any":
    """Import a tool, the core or the formats on first use."""
    import importlib

    if name in (*TOOLS, "Record", "Tensor", "formats"):
        _draw_records_in_notebooks()
    if name in TOOLS:
        function = getattr(importlib.import_module(f"attnkit.commands.{name}"), name)
        return importlib.import_module("attnkit.cli.signature").describe_tool(function)
    if name == "plot":
        return importlib.import_module("attnkit.cli.notebook").plot
    if name in ("Record", "Tensor"):
        return getattr(importlib.import_module("attnkit.records"), name)
    if name in RECORDERS:
        return getattr(importlib.import_module("attnkit.recorders"), name)
    if name in ("model", "formats"):
        return importlib.import_module(f"attnkit.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _draw_records_in_notebooks() -> None:
    """Have records show themselves as HTML, by a function imported on first use."""
    import importlib

    def draw(record: "Any") -> "Any":
        return importlib.import_module("attnkit.display.notebook").record_html(record)

    record = importlib.import_module("attnkit.records")
    if record.Record not in record.to_html.registry:
        record.to_html.register(record.Record, draw)


def __dir__() -> list[str]:
    return [*TOOLS, *RECORDERS, "plot", "Record", "Tensor", "model", "formats", "__version__"]
