"""attnkit diff: compare two tensors, records or traces."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnkit.cli import options
from attnkit.cli.stage import Records, Stage, cast_x
from attnkit.cli.tool import tool
from attnkit.errors import UsageError, escaped
from attnkit.record import Array, Record, join_names, row_labels, shared_labels

FIGURES = ("differing", "max_abs", "max_rel", "cosine")
STAGE = re.compile(
    r"(encoder|decoder)\.([0-9]+\.(self|cross|ffn|norm[0-9])(\.\w+)?|embed|positions|embed_norm|norm)"
    r"|head\.(dense|norm)|pooler|logits"
)


@dataclass(frozen=True)
class Pair:
    """Two records to compare; traces of a model, as far as they are the same."""

    a: Record
    b: Record
    traces: bool = False


def read_pairs(call: Stage, upstream: Records | None) -> Records:
    """Read the records of A and of B as pairs."""
    if len(call.operands) != 2:
        raise UsageError(f"two files to compare, not {len(call.operands)}: attnkit diff A B")
    return Records(None, pair_records(call))


def pair_records(call: Stage) -> Iterator[Pair]:
    """Yield the records of two streams in pairs; the shorter stream continues with empty records."""
    name_a, name_b = call.operands
    records_a, first = call.read(name_a).items, call.source
    records_b = call.read(name_b).items
    only, dtype = (
        call.common.pop("only", None),
        call.common.pop("dtype", None),
    )  # they apply to both records, not to the result
    while True:
        a, b = next(records_a, None), next(records_b, None)
        if first is not None and first.digest():
            call.files[first.name] = first.digest()
        if a is None and b is None:
            return
        a, b = a or Record({}), b or Record({})
        if dtype:
            a, b = (cast_x(record, dtype) if "x" in record else record for record in (a, b))
        yield Pair(a.only(only), b.only(only)) if only else Pair(a, b, are_traces(a, b))


def are_traces(a: Record, b: Record) -> bool:
    """Return whether all names of two records are stages of a model, and they share at least one."""
    return all(STAGE.fullmatch(name) for record in (a, b) for name in record) and any(name in b for name in a)


@tool(
    operand="A B",
    reader=read_pairs,
    view=lambda record, call, look: render_verdicts(record),
    status=lambda record, call: int(record["differing"].any()),
    check_finite=lambda parameters: False,
    shows_table=True,
)
def diff(
    pair: Pair,
    *,
    rtol: Annotated[float, options.number("relative difference to tolerate", least=0)] = 0.0,
    atol: Annotated[float, options.number("absolute difference to tolerate", least=0)] = 0.0,
) -> Record:
    """Compare two tensors, records or traces: exit code 0 when they are the same, 1 when they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. For every tensor:
    how many numbers differ, the labels and sizes of the largest absolute and relative differences, and the cosine
    similarity. Dtypes, labels and histories are not compared. -f json prints the figures for a script. Of two
    traces, as encode --trace writes them, the stages of both are compared in their order, up to the first that
    differs.

    \b
    Example:
      attnkit embed "a b" --dim 4 -o a.npy --only x && attnkit layernorm a.npy -o b.npy && attnkit diff a.npy b.npy
    """
    if not isinstance(pair, Pair):
        raise UsageError(f"takes a Pair of records, not {type(pair).__name__}")
    a, b = pair.a, pair.b
    if pair.traces:
        return compare_traces(a, b, rtol, atol)
    names = [*a.tensors, *(name for name in b.tensors if name not in a.tensors)]
    rows = {name: compare_tensors(a, b, name, rtol, atol) for name in names}
    return make_report(rows, {name: row["verdict"] for name, row in rows.items()})


def compare_traces(a: Record, b: Record, rtol: float, atol: float) -> Record:
    """Compare the stages of both traces up to the first that differs; summarize the others."""
    shared = [name for name in a if name in b]
    rows: dict[str, dict[str, Any]] = {}
    for name in shared:
        rows[name] = compare_tensors(a, b, name, rtol, atol)
        if rows[name]["differing"]:
            break
    verdicts = summarize_equal(rows, len(shared))
    verdicts |= {name: row["verdict"] for name, row in rows.items() if row["differing"]}
    if later := len(shared) - len(rows):
        verdicts[f"{count_stages(later, 'later ')} not compared; --only NAME compares one"] = ""
    for side, record, other in (("A", a, b), ("B", b, a)):
        if alone := [name for name in record if name not in other]:
            verdicts[f"only in {side}"] = join_names(alone)
    return make_report(rows, verdicts)


def summarize_equal(rows: dict[str, dict[str, Any]], count: int) -> dict[str, str]:
    """Return the verdict on the stages that are the same, among this many of both traces; none where there are none."""
    same = [name for name, row in rows.items() if not row["differing"]]
    if not same:
        return {}
    largest = max(rows[name]["max_abs"] for name in same)
    within = f", largest difference {largest:.3g}" if largest else ""
    extent = "all the same" if len(same) == count else f"the same up to {same[-1]}"
    return {f"{extent} ({count_stages(len(same))}{within})": ""}


def count_stages(number: int, kind: str = "") -> str:
    """Return a number of stages in words.

    >>> count_stages(1), count_stages(2, "later ")
    ('1 stage', '2 later stages')
    """
    return f"{number} {kind}stage{'s' * (number != 1)}"


def make_report(rows: dict[str, dict[str, Any]], verdicts: dict[str, str]) -> Record:
    """Return the record of the figures of every tensor compared, with the verdicts as its formulas."""
    figures = {figure: np.array([row[figure] for row in rows.values()], dtype=np.float64) for figure in FIGURES}
    figures["differing"] = figures["differing"].astype(np.int64)
    return Record(figures, dict.fromkeys(FIGURES, ("tensor",)), {"tensor": list(rows)}, formulas=verdicts)


def compare_tensors(a: Record, b: Record, name: str, rtol: float, atol: float) -> dict[str, Any]:
    """Compare the tensors of one name: return their figures, and a verdict in a sentence."""
    if name not in a or name not in b:
        size = (a if name in a else b)[name].size
        return report_incomparable(size, f"only in {'A' if name in a else 'B'}")
    x, y = a[name], b[name]
    if x.shape != y.shape:
        return report_incomparable(max(x.size, y.size), f"shape {x.shape} in A, {y.shape} in B")
    is_integer = x.dtype.kind in "iu" and y.dtype.kind in "iu"  # a long double holds every 64-bit integer
    wide: Any = np.longdouble if is_integer else np.float64
    left, right = (array.astype(wide).ravel() for array in (x, y))
    with np.errstate(all="ignore"):
        equal = (x == y).ravel() | (np.isnan(left) & np.isnan(right))
        absolute = np.where(equal, 0.0, np.abs(left - right))
        relative = np.where(equal, 0.0, absolute / np.abs(right))
        near = (absolute <= atol + rtol * np.abs(right)) & np.isfinite(left) & np.isfinite(right)
        cosine = 1.0 if equal.all() else cosine_similarity(left, right)
    differing = ~equal & ~(near if rtol or atol else False)
    figures = {
        "differing": int(differing.sum()),
        "max_abs": float(absolute.max(initial=0)),
        "max_rel": float(relative.max(initial=0)),
        "cosine": cosine,
    }
    return figures | {"verdict": describe_difference(a, b, name, absolute, relative, differing, figures)}


def cosine_similarity(left: Array, right: Array) -> float:
    """Return the cosine similarity of two vectors: (N), (N) -> scalar; NaN where one is not finite, 0 where one is 0.

    >>> cosine_similarity(np.array([3.0, 4.0]), np.array([6.0, 8.0]))
    1.0
    >>> cosine_similarity(np.array([1e300]), np.array([-1e300]))
    -1.0
    """
    scaled = [x / max(np.abs(x).max(initial=0), np.finfo(x.dtype).tiny) for x in (left, right)]
    norms = np.linalg.norm(scaled[0]) * np.linalg.norm(scaled[1])
    return float(np.clip(scaled[0] @ scaled[1] / norms, -1, 1)) if norms else 0.0


def report_incomparable(size: int, verdict: str) -> dict[str, Any]:
    """Return the figures of tensors that cannot be compared number by number: all numbers differ."""
    return {"differing": max(size, 1), "max_abs": np.nan, "max_rel": np.nan, "cosine": np.nan, "verdict": verdict}


def describe_difference(
    a: Record, b: Record, name: str, absolute: Array, relative: Array, differing: Array, figures: dict[str, Any]
) -> str:
    """Return the verdict on one tensor in a line."""
    x, y = a[name], b[name]
    kinds = f"shape {x.shape}" + (f", {x.dtype} and {y.dtype}" if x.dtype != y.dtype else f", {x.dtype}")
    if not figures["differing"]:
        within = f", largest difference {figures['max_abs']:.3g}" if figures["max_abs"] else ""
        return f"the same ({kinds}{within})"

    def at(index: int) -> str:
        where = tuple(int(i) for i in np.unravel_index(index, x.shape))
        return f"{format_element(a, name, where)} {format_pair(x[where], y[where])}"

    ranked = (differing, rank_differences(absolute, differing), rank_differences(relative, differing))
    first, worst, worst_relative = (int(np.argmax(array)) for array in ranked)
    elsewhere = (
        "" if worst_relative == worst else f"; worst relative at {at(worst_relative)}: {relative[worst_relative]:.3g}"
    )
    return (
        f"{figures['differing']} of {x.size} differ ({kinds}), first at {at(first)}; "
        f"worst at {at(worst)}: {absolute[worst]:.3g} absolute, {relative[worst]:.3g} relative{elsewhere}; "
        f"cosine {figures['cosine']:.9g}"
    )


def rank_differences(differences: Array, differing: Array) -> Array:
    """Return the differences for argmax: -1 within the tolerance, infinity where one number is NaN."""
    return np.where(differing, np.where(np.isnan(differences), np.inf, differences), -1)


def format_pair(x: Any, y: Any) -> str:
    """Write two numbers that differ in the fewest digits that show the difference.

    >>> format_pair(np.float16(0.1), np.float64(0.1))
    '0.0999755859375 and 0.1'
    """
    short, full = f"{x!s} and {y!s}", f"{float(x)!r} and {float(y)!r}"
    return full if str(x) == str(y) else short


def format_element(record: Record, name: str, index: tuple[int, ...]) -> str:
    """Name an element by its axes and labels.

    >>> format_element(Record({"x": np.zeros((2, 3))}, labels={"token": ["The", "cat"]}), "x", (1, 2))
    "[token 1 'cat', model 2]"
    """
    parts = []
    for dimension, at in enumerate(index):
        labels, axes = record.labels_of(name, dimension), record.axes_of(name)
        row = row_labels(labels, index[axes.index("batch")]) if "batch" in axes else shared_labels(labels)
        parts.append(f"{axes[dimension]} {at}" + (f" {row[at]!r}" if at < len(row) else ""))
    return f"[{', '.join(parts)}]"


def render_verdicts(record: Record) -> str:
    """Render the verdicts of a comparison, a line each."""
    lines = [f"{name}: {sentence}" if sentence else name for name, sentence in record.formulas.items()]
    return "\n".join(escaped(line) for line in lines)
