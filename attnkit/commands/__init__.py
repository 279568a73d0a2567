"""One file a tool: a function of a record, with its flags in its signature."""

import importlib
from typing import TYPE_CHECKING

from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.cli.tool import Tool

TOOLS = {
    "embed": "text or token ids to vectors",
    "posenc": "positions: sinusoidal, learned, rotary, ALiBi, T5",
    "mask": "who may attend to whom: causal, padding, windows, segments",
    "attend": "scaled dot-product and multi-head attention",
    "merge": "attention over parts of the keys put together",
    "layernorm": "layer, RMS and batch normalization",
    "ffn": "the position-wise feed-forward network",
    "encode": "text to the hidden states of a published model, in one go",
    "decode": "hidden states to logits, probabilities and words",
    "show": "a tensor, record or file as tables and heat maps",
    "peek": "look into the middle of a pipe",
    "diff": "compare two tensors or records",
    "run": "a whole pipeline in one process",
    "history": "the commands that made a record; run them again",
}


# (tool, a flag it does not have) -> what does the same
INSTEAD = {("attend", "--temperature"): "--scale S multiplies the scores; a temperature T is --scale 1/(T·√K)"}


def find_tool(name: str) -> "Tool":
    """The tool of that name; only its own file is imported."""
    if name not in TOOLS:
        from attnkit.cli.options import suggest

        what = "flag" if name.startswith("-") else "tool"
        meant = suggest(name, [*TOOLS, "help", "--help", "--version"])
        raise UsageError(f"no {what} {name!r}{meant or '; attnkit --help lists the tools'}")
    found: Tool = getattr(importlib.import_module(f"{__name__}.{name}"), name).tool
    return found


def flag_hint(tool: str, flag: str) -> str:
    """A hint at what has a flag that a tool lacks: the tools that have it, or another flag; "" where nothing has.

    >>> flag_hint("attend", "--heatmap"), flag_hint("attend", "--hedas")
    ('; --heatmap is a flag of show and peek', '')
    """
    if (tool, flag) in INSTEAD:
        return f"; {INSTEAD[tool, flag]}"
    name = flag.removeprefix("--").replace("-", "_")
    others = [other for other in TOOLS if {name, f"{name}_"} & {*find_tool(other).flags, *find_tool(other).extra}]
    *most, last = others or [""]
    return f"; {flag} is a flag of {', '.join(most)}{' and ' * bool(most)}{last}" if others else ""
