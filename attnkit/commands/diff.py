"""attnkit diff: compare two tensors, records or traces."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnkit import display
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


def pairs(call: Stage, upstream: Records | None) -> Records:
    """Feed: the records of A and of B, side by side."""
    if len(call.operands) != 2:
        raise UsageError(f"two files to compare, not {len(call.operands)}: attnkit diff A B")
    return Records(None, together(call))


def together(call: Stage) -> Iterator[Pair]:
    """Record by record; a stream that ends before the other goes on with records of nothing."""
    name_a, name_b = call.operands
    ours, first = call.read(name_a).items, call.source
    theirs = call.read(name_b).items
    only, dtype = call.common.pop("only", None), call.common.pop("dtype", None)  # of what is compared
    while True:
        a, b = next(ours, None), next(theirs, None)
        if first is not None and first.digest():
            call.files[first.name] = first.digest()
        if a is None and b is None:
            return
        a, b = a or Record({}), b or Record({})
        if dtype:
            a, b = (cast_x(one, dtype) if "x" in one else one for one in (a, b))
        yield Pair(a.only(only), b.only(only)) if only else Pair(a, b, are_traces(a, b))


def are_traces(a: Record, b: Record) -> bool:
    """Whether all the names of two records are stages of a model, and some of them stages of both."""
    return all(STAGE.fullmatch(name) for one in (a, b) for name in one) and any(name in b for name in a)


@tool(
    operand="A B",
    feed=pairs,
    view=lambda record, call, look: told(record, look),
    status=lambda record, call: int(record["differing"].any()),
    numeric=lambda given: False,
    eyes=True,
)
def diff(
    pair: Pair,
    *,
    rtol: Annotated[float, options.number("relative difference that counts as none", least=0)] = 0.0,
    atol: Annotated[float, options.number("absolute difference that counts as none", least=0)] = 0.0,
) -> Record:
    """Compare two tensors, records or traces: exit code 0 when they are the same, 1 when they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. For every tensor:
    how many numbers differ, where the largest absolute and relative differences are, by their labels, and the
    cosine of the angle between the two. Dtypes, labels and histories are not compared. -f json gives the
    figures to a script. Of two traces, as encode --trace writes them, the stages that both have are compared in
    their order, up to the first that differs.

    \b
    Example:
      attnkit embed "a b" --dim 4 -o a.npy --only x && attnkit layernorm a.npy -o b.npy && attnkit diff a.npy b.npy
    """
    if not isinstance(pair, Pair):
        raise UsageError(f"takes a Pair of records, not {type(pair).__name__}")
    a, b = pair.a, pair.b
    if pair.traces:
        return compared_traces(a, b, rtol, atol)
    names = [*a.tensors, *(name for name in b.tensors if name not in a.tensors)]
    rows = {name: compared(a, b, name, rtol, atol) for name in names}
    return figured(rows, {name: row["verdict"] for name, row in rows.items()})


def compared_traces(a: Record, b: Record, rtol: float, atol: float) -> Record:
    """The stages of both traces up to the first that differs, and what there is to say of the others."""
    shared = [name for name in a if name in b]
    rows: dict[str, dict[str, Any]] = {}
    for name in shared:
        rows[name] = compared(a, b, name, rtol, atol)
        if rows[name]["differing"]:
            break
    same = [name for name, row in rows.items() if not row["differing"]]
    told = {}
    if same:
        largest = max(rows[name]["max_abs"] for name in same)
        within = f", largest difference {largest:.3g}" if largest else ""
        what = "all the same" if len(same) == len(shared) else f"the same up to {same[-1]}"
        told[f"{what} ({counted(len(same))}{within})"] = ""
    told |= {name: row["verdict"] for name, row in rows.items() if row["differing"]}
    if later := len(shared) - len(rows):
        told[f"{counted(later, 'later ')} not compared; --only NAME compares one"] = ""
    for which, ours, other in (("A", a, b), ("B", b, a)):
        if alone := [name for name in ours if name not in other]:
            told[f"only in {which}"] = join_names(alone)
    return figured(rows, told)


def counted(number: int, kind: str = "") -> str:
    """A number of stages.

    >>> counted(1), counted(2, "later ")
    ('1 stage', '2 later stages')
    """
    return f"{number} {kind}stage{'s' * (number != 1)}"


def figured(rows: dict[str, dict[str, Any]], told: dict[str, str]) -> Record:
    """The record of the figures of every tensor compared; what there is to tell goes with it as formulas."""
    figures = {figure: np.array([row[figure] for row in rows.values()], dtype=np.float64) for figure in FIGURES}
    figures["differing"] = figures["differing"].astype(np.int64)
    return Record(figures, dict.fromkeys(FIGURES, ("tensor",)), {"tensor": list(rows)}, formulas=told)


def compared(a: Record, b: Record, name: str, rtol: float, atol: float) -> dict[str, Any]:
    """How the tensors of one name differ: the figures, and a sentence."""
    if name not in a or name not in b:
        size = (a if name in a else b)[name].size
        return incomparable(size, f"only in {'A' if name in a else 'B'}")
    x, y = a[name], b[name]
    if x.shape != y.shape:
        return incomparable(max(x.size, y.size), f"shape {x.shape} in A, {y.shape} in B")
    whole = x.dtype.kind in "iu" and y.dtype.kind in "iu"  # a long double holds every 64-bit integer
    wide: Any = np.longdouble if whole else np.float64
    left, right = (one.astype(wide).ravel() for one in (x, y))
    with np.errstate(all="ignore"):
        equal = (x == y).ravel() | (np.isnan(left) & np.isnan(right))
        apart = np.where(equal, 0.0, np.abs(left - right))
        relative = np.where(equal, 0.0, apart / np.abs(right))
        near = (apart <= atol + rtol * np.abs(right)) & np.isfinite(left) & np.isfinite(right)
        cosine = 1.0 if equal.all() else cosine_of(left, right)
    differing = ~equal & ~(near if rtol or atol else False)
    figures = {
        "differing": int(differing.sum()),
        "max_abs": float(apart.max(initial=0)),
        "max_rel": float(relative.max(initial=0)),
        "cosine": cosine,
    }
    return figures | {"verdict": verdict(a, b, name, apart, relative, differing, figures)}


def cosine_of(left: Array, right: Array) -> float:
    """The cosine of the angle between two vectors: NaN where one is not finite, 0 where one is 0.

    >>> cosine_of(np.array([3.0, 4.0]), np.array([6.0, 8.0])), cosine_of(np.array([1e300]), np.array([-1e300]))
    (1.0, -1.0)
    """
    scaled = [one / max(np.abs(one).max(initial=0), np.finfo(one.dtype).tiny) for one in (left, right)]
    norms = np.linalg.norm(scaled[0]) * np.linalg.norm(scaled[1])
    return float(np.clip(scaled[0] @ scaled[1] / norms, -1, 1)) if norms else 0.0


def incomparable(size: int, why: str) -> dict[str, Any]:
    """The figures of tensors that cannot be compared number by number: all of them differ."""
    return {"differing": max(size, 1), "max_abs": np.nan, "max_rel": np.nan, "cosine": np.nan, "verdict": why}


def verdict(
    a: Record, b: Record, name: str, apart: Array, relative: Array, differing: Array, figures: dict[str, Any]
) -> str:
    """What there is to say of one tensor, in a line."""
    x, y = a[name], b[name]
    kinds = f"shape {x.shape}" + (f", {x.dtype} and {y.dtype}" if x.dtype != y.dtype else f", {x.dtype}")
    if not figures["differing"]:
        within = f", largest difference {figures['max_abs']:.3g}" if figures["max_abs"] else ""
        return f"the same ({kinds}{within})"

    def at(index: int) -> str:
        where = tuple(int(i) for i in np.unravel_index(index, x.shape))
        return f"{place(a, name, where)} {told_apart(x[where], y[where])}"

    first, worst, odd = (
        int(np.argmax(one)) for one in (differing, ranked(apart, differing), ranked(relative, differing))
    )
    elsewhere = "" if odd == worst else f"; worst relative at {at(odd)}: {relative[odd]:.3g}"
    return (
        f"{figures['differing']} of {x.size} differ ({kinds}), first at {at(first)}; "
        f"worst at {at(worst)}: {apart[worst]:.3g} absolute, {relative[worst]:.3g} relative{elsewhere}; "
        f"cosine {figures['cosine']:.9g}"
    )


def ranked(differences: Array, differing: Array) -> Array:
    """The differences that count, so that argmax finds the worst; NaN beside a number is the worst of all."""
    return np.where(differing, np.where(np.isnan(differences), np.inf, differences), -1)


def told_apart(x: Any, y: Any) -> str:
    """Two numbers that differ, in as few digits as show it.

    >>> told_apart(np.float16(0.1), np.float64(0.1))
    '0.0999755859375 and 0.1'
    """
    short, full = f"{x!s} and {y!s}", f"{float(x)!r} and {float(y)!r}"
    return full if str(x) == str(y) else short


def place(record: Record, name: str, index: tuple[int, ...]) -> str:
    """An element by its axes and labels.

    >>> place(Record({"x": np.zeros((2, 3))}, labels={"token": ["The", "cat"]}), "x", (1, 2))
    "[token 1 'cat', model 2]"
    """
    parts = []
    for dimension, at in enumerate(index):
        labels, axes = record.labels_of(name, dimension), record.axes_of(name)
        row = row_labels(labels, index[axes.index("batch")]) if "batch" in axes else shared_labels(labels)
        parts.append(f"{axes[dimension]} {at}" + (f" {row[at]!r}" if at < len(row) else ""))
    return f"[{', '.join(parts)}]"


def told(record: Record, look: display.Style) -> str:
    """A line a tensor, or what else there is to tell."""
    lines = [f"{name}: {sentence}" if sentence else name for name, sentence in record.formulas.items()]
    return "\n".join(escaped(line) for line in lines)
