"""attnkit engines: what can compute here, on which devices and memory."""

from typing import Any

from attnkit import display
from attnkit.cli.calls import tool
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.output import report_text
from attnkit.cli.stage import Stage
from attnkit.cli.tool import PythonForm, Records
from attnkit.errors import format_bytes


def read_nothing(stage: Stage, inputs: Any) -> Records:
    return Records(None, iter([None]))


@tool(
    operand="",
    reader=read_nothing,
    needs_no_input=lambda parameters: True,
    gives="report",
    without=OF_TENSORS,
    python=PythonForm(reader=read_nothing, result="str"),
)
def engines(item: None) -> str:
    """List what computes: each engine, its version, and its devices with their memory.

    NumPy computes everything, on the cores of this machine. attend, encode, decode and train also compute by JAX,
    with --engine jax (pip install '.[jax]'): on CPU, GPU and TPU, on several of them with --mesh, on many hosts.
    On a terminal the list is a table, else JSON.

    \b
    Example:
      attnkit engines
    """
    from attnkit.backends.choice import list_engines

    rows = list_engines()
    return report_text({"engines": rows}, lambda style: draw_engines(rows, style))


def draw_engines(rows: list[dict[str, Any]], style: display.Style) -> str:
    lines = [
        (
            row["engine"],
            row["version"] or row["install"],
            device["kind"],
            str(device["count"]),
            "" if device["memory"] is None else format_bytes(device["memory"]),
        )
        for row in rows
        for device in row["devices"] or [{"kind": "", "count": "", "memory": None}]
    ]
    return display.format_table(
        display.TextTable(("engine", "version", "device", "count", "memory of each"), lines), style
    )
