"""The Transformer as Unix tools.

Each folder is a room, whose docstring lists its files; `attnkit help architecture` draws the rooms in their order.

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
    "recall",
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
    "check",
    "golden",
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
