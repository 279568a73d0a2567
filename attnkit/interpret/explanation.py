"""One cell of attention in words: its score, the mask, the softmax, the output."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attnkit.errors import UsageError
from attnkit.formats.streams import name_errors
from attnkit.model.intermediates import SQUARE
from attnkit.records import Array, Record, Tensor, find_label, row_labels

DOTS = ("scaled-dot", "dot")  # scores whose terms are products of a query and a key
MOST = 12  # terms or keys that are written one by one


@dataclass(frozen=True, repr=False)
class Explanation(Record):
    """One cell, as tensors; text: the same in words."""

    text: str = field(kw_only=True, compare=False)

    def __str__(self) -> str:
        return self.text


class WeightCell(NamedTuple):
    """A cell of the weights, with the words of its query and key."""

    lead: tuple[int, ...]
    query: int
    key: int
    queries: Sequence[str]
    keys: Sequence[str]

    def name(self, axis: str) -> str:
        """The number of the query or the key, and its word."""
        at, words = (self.query, self.queries) if axis == "query" else (self.key, self.keys)
        return f"{axis} {number_word(at, words)}"


def number_word(at: int, words: Sequence[str]) -> str:
    """An index with its word, if there is one.

    >>> number_word(1, ["The", "cat"]), number_word(1, [])
    ("1 'cat'", '1')
    """
    return f"{at} {words[at]!r}" if at < len(words) else str(at)


def find_weight(record: Record, place: Sequence[int | str]) -> WeightCell:
    """The cell of the weights of a record at [B,][H,]QUERY,KEY, numbers or words.

    An axis of size 1 may be left out. UsageError for a cell that is not there.
    """
    shape, axes = record["weights"].shape, record.axes_of("weights")
    extra = len(shape) - len(place)
    left_out = [at for at in reversed(range(len(shape) - 2)) if shape[at] == 1][: max(extra, 0)]
    if len(left_out) != extra or len(place) < 2:
        sizes = ", ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        needed = [axis for axis, size in zip(axes[:-2], shape, strict=False) if size > 1] + [*axes[-2:]]
        expected = f"expected {','.join(needed).upper()}"
        raise UsageError(f"{len(place)} indices for weights ({sizes}); {expected}", "--explain")
    indices, cell = iter(place), list[int]()
    words: list[list[str]] = []
    for at, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        words.append(row_labels(record.labels.get(axis), cell[0] if axes[0] == "batch" and at else 0))
        one = 0 if at in left_out else next(indices)
        with name_errors("--explain"):
            cell.append(find_label(words[-1], one, f"axis {axis}") if isinstance(one, str) else one)
        if cell[-1] >= size:
            raise UsageError(f"index {one} is outside axis {axis} of size {size}", "--explain")
    return WeightCell(tuple(cell[:-2]), cell[-2], cell[-1], words[-2], words[-1])


def explain_weight(record: Record, place: Sequence[int | str], score: str) -> Explanation:
    """Explain one cell of the weights and the output of its query.

    record  has every intermediate of attention, and its output as x
    score   the name of the score function

    The tensors are q and k of the cell, the terms of their product, and over all keys of the row the masked scores,
    their exponentials, the weights and the weighted values; x is the output of the head for the query.
    """
    cell = find_weight(record, place)
    *batch, head = cell.lead
    group = head * record["present_key"].shape[-3] // record["weights"].shape[-3]
    q, k = record["q"][(*cell.lead, cell.query)], record["present_key"][(*batch, group, cell.key)]
    rows = {name: record[name][(*cell.lead, cell.query)] for name in SQUARE}
    values = record["present_value"][(*batch, group)]
    shift = rows["masked"].max(initial=-np.inf)
    powers = np.exp(rows["masked"] - shift) if np.isfinite(shift) else np.zeros_like(rows["masked"])
    parts = rows["weights"][:, None] * values
    has_terms = score in DOTS and bool(np.isclose((q * k).sum(), rows["scores"][cell.key], rtol=1e-3, atol=1e-6))
    lead = zip(record.axes_of("weights"), cell.lead, record["weights"].shape, strict=False)
    named = [f"{axis} {at}" for axis, at, size in lead if size > 1]
    lines = [", ".join([*named, cell.name("query"), cell.name("key")])]
    lines += explain_score(record, cell, rows, (q, k) if has_terms else None)
    lines += explain_row(cell, rows["masked"], powers, rows["weights"])
    lines += explain_output(record, cell, rows["weights"], values)
    axes = {"key": list(cell.keys)} if cell.keys else {}
    tensors = {
        "q": Tensor(q, ("model",)),
        "k": Tensor(k, ("model",)),
        **({"terms": Tensor(q * k, ("model",), formula="q · k, term by term")} if has_terms else {}),
        "masked": Tensor(rows["masked"], ("key",), axes),
        "exp": Tensor(powers, ("key",), axes, formula="exp(masked − max)"),
        "weights": Tensor(rows["weights"], ("key",), axes, formula="exp / sum"),
        "parts": Tensor(parts, ("key", "model"), axes, formula="weight · value"),
        "x": Tensor(record["heads"][(*cell.lead, cell.query)], ("model",), formula="the sum of the parts"),
    }
    return Explanation(tensors, text="\n".join(lines))


def explain_score(
    record: Record, cell: WeightCell, rows: dict[str, Array], factors: tuple[Array, Array] | None
) -> list[str]:
    """The lines of one score: term by term, scaled, capped and masked.

    factors  the query and the key whose product it is; None for another score, or where positions turn both
    """
    at = cell.key
    lines = [f"score = {record.tensor('scores').formula or 'q · k'}"]
    if factors is not None:
        q, k = factors
        terms = [f"{plain(one)}·{plain(other)}" for one, other in zip(q[:MOST], k[:MOST], strict=True)]
        more = [f"… {len(q) - MOST} more terms"] if len(q) > MOST else []
        lines += [f"  q = {row_text(q)}", f"  k = {row_text(k)}", f"  {' + '.join([*terms, *more])}"]
    lines[-1] += f" = {plain(rows['scores'][at])}"
    for name, before in (("scaled", "scores"), ("capped", "scaled")):
        formula = record.tensor(name).formula
        if formula and formula != "as before":
            lines.append(f"{name} = {formula} = {plain(rows[name][at])}")
        elif rows[name][at] != rows[before][at]:
            lines.append(f"{name} = {plain(rows[name][at])}")
    masked, added = rows["masked"][at], rows["masked"][at] - rows["capped"][at]
    if np.isneginf(masked):
        lines.append("masked: the query may not attend to this key: -inf")
    else:
        change = f", {plain(added)} added" if added else ""
        lines.append(f"masked: the query may attend to this key: {plain(masked)}{change}")
    return lines


def explain_row(cell: WeightCell, masked: Array, powers: Array, weights: Array) -> list[str]:
    """Lines on the softmax of a row; of many keys, the largest weights."""
    chosen = choose_keys(cell, weights)
    table = [["key", "masked", "exp(masked − max)", "weight"]]
    table += [[number_word(at, cell.keys), *map(plain, (masked[at], powers[at], weights[at]))] for at in chosen]
    rest = [at for at in range(len(weights)) if at not in chosen]
    if rest:
        table.append([f"… {len(rest)} more", "", plain(powers[rest].sum()), plain(weights[rest].sum())])
    table.append(["sum", "", plain(powers.sum()), plain(weights.sum())])
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    lines = [f"softmax of the row of {cell.name('query')}"]
    for row in table:
        numbers = "  ".join(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        lines.append(f"  {row[0].ljust(widths[0])}  {numbers}")
    quotient = f"{plain(powers[cell.key])} / {plain(powers.sum())} = " if powers.sum() else ""
    lines.append(f"  weight of {cell.name('key')} = {quotient}{plain(weights[cell.key])}")
    return lines


def explain_output(record: Record, cell: WeightCell, weights: Array, values: Array) -> list[str]:
    """Lines on the sum of the values of a row, and on the output."""
    chosen = choose_keys(cell, weights)
    lines = [f"output of {cell.name('query')} = the sum of weight · value"]
    for at in chosen:
        sign = "+" if at != chosen[0] else " "
        lines.append(f"  {sign} {plain(weights[at])} · {row_text(values[at])}  {number_word(at, cell.keys)}")
    if len(chosen) < len(weights):
        lines.append(f"  + … {len(weights) - len(chosen)} more")
    head = record["heads"][(*cell.lead, cell.query)]
    lines.append(f"  = {row_text(head)}")
    x = record["x"]
    output = x[(*(cell.lead if x.ndim == 4 else cell.lead[:-1]), cell.query)]
    if not np.array_equal(output, head):
        lines.append(f"x of {cell.name('query')} = {record.tensor('x').formula} = {row_text(output)}")
    return lines


def choose_keys(cell: WeightCell, weights: Array) -> list[int]:
    """Choose the keys to write: all, or the cell's key and keys of large weights."""
    if len(weights) <= MOST:
        return [*range(len(weights))]
    largest = np.argsort(-weights, kind="stable")[:MOST]
    return sorted({*largest.tolist()[: MOST - 1], cell.key})


def row_text(row: Array) -> str:
    """A vector in brackets, its first numbers if they are many."""
    more = [f"… {len(row) - MOST} more"] if len(row) > MOST else []
    return f"[{', '.join([*map(plain, row[:MOST]), *more])}]"


def plain(number: float) -> str:
    """Write a number with four decimals at most, a tiny one with its power of ten.

    >>> plain(0.5), plain(2.0), plain(-0.0), plain(0.00001234), plain(-np.inf)
    ('0.5', '2', '0', '1.2e-05', '-inf')
    """
    value = float(number) + 0.0  # no -0
    if value and abs(value) < 5e-5:
        return f"{value:.1e}"
    text = f"{value:.4f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
