"""One cell of a mask in words: which rules allow it, and which block it."""

import numpy as np

from attnkit.errors import UsageError
from attnkit.formats.streams import name_errors
from attnkit.inputs.mask_rules import AXES, Rule, token_words
from attnkit.interpret.explanation import Explanation
from attnkit.records import Array, Record, Tensor, find_label


def find_cell(record: Record | None, cells: Array, place: tuple[int | str, ...]) -> tuple[int, ...]:
    if len(place) != cells.ndim:
        raise UsageError(f"{len(place)} indices for a mask of shape {cells.shape}", "--explain")
    *before, _, _ = place
    batch = next((at for at in before if isinstance(at, int)), 0)
    cell = []
    for axis, at in zip((*["batch"] * len(before), "query", "key"), place, strict=True):
        words = [] if axis == "batch" else token_words(record, cells, axis, batch if before else None)
        with name_errors("--explain"):
            cell.append(at if isinstance(at, int) else find_label(words, at, f"axis {axis}"))
    if any(at >= size for at, size in zip(cell, cells.shape, strict=True)):
        raise UsageError(f"{','.join(map(str, place))} is outside the mask of shape {cells.shape}", "--explain")
    return tuple(cell)


def explain_cell(
    record: Record | None, rules: list[Rule], cells: Array, cell: tuple[int, ...], union: bool, invert: bool
) -> Record:
    """Say which rules allow and which block a cell, a line for each."""
    may = bool(cells[cell]) != invert
    query, key = (
        f"{at}{quote_token(record, cells, axis, cell)}" for axis, at in zip(("query", "key"), cell[-2:], strict=True)
    )
    batch = f" of batch row {cell[0]}" if cell[2:] else ""
    lines = [f"query {query}{batch} {'may' if may else 'may not'} attend to key {key}"]
    verdicts = [bool(np.broadcast_to(rule.cells, cells.shape)[cell]) for rule in rules]
    for rule, allows in zip(rules, verdicts, strict=True):
        lines.append(f"  {rule.name} {'allows' if allows else 'blocks'} it: {rule.formula}")
    if rules[1:]:
        lines.append(f"  one rule that {'allows' if union else 'blocks'} it is enough" + ", then inverted" * invert)
    elif invert:
        lines.append("  inverted")
    tensors = {
        "allowed": Tensor(np.array(may), ()),
        "rules": Tensor(np.array(verdicts), ("rule",), {"rule": [rule.name for rule in rules]}),
        "cell": Tensor(np.array(cell), ("axis",), {"axis": ["batch", "query", "key"][-len(cell) :]}),
    }
    return Explanation(tensors, text="\n".join(lines))


def quote_token(record: Record | None, cells: Array, axis: str, cell: tuple[int, ...]) -> str:
    row, at = token_words(record, cells, axis, cell[0] if cell[2:] else None), cell[AXES[axis]]
    return f" {row[at]!r}" if at < len(row) else ""
