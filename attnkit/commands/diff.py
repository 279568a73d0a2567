"""attnkit diff: compare two tensors, records or traces."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

from attnkit.cli import options, views
from attnkit.cli.stage import Records, Stage, cast_x
from attnkit.cli.tool import tool
from attnkit.errors import UsageError
from attnkit.inference.diff_report import DiffReport, Pair, are_traces, compare_records, render_report
from attnkit.inference.operands import select_tensor
from attnkit.record import Record

if TYPE_CHECKING:
    from attnkit.display import Style


def read_pairs(call: Stage, upstream: Records | None) -> Records:
    """Read the records of A and of B as pairs."""
    if len(call.operands) != 2:
        raise UsageError(f"two files to compare, not {len(call.operands)}: attnkit diff A B")
    return Records(None, pair_records(call))


def pair_records(call: Stage) -> Iterator[Pair]:
    """Yield the records of two streams in pairs; the shorter stream continues with empty records."""
    a_file, b_file = call.operands
    stream_a, first = call.read(a_file), call.files.source
    stream_b = call.read(b_file)
    only, dtype = (call.common.pop(name, None) for name in ("only", "dtype"))  # of both records, not of the result
    while True:
        a, b = next(stream_a.items, None), next(stream_b.items, None)
        call.files.add_digest(first)
        if a is None and b is None:
            return
        if a is not None and b is not None:
            b = match_tensor(b, stream_a, b_file)
            a = match_tensor(a, stream_b, a_file)
        yield make_pair(a or Record({}), b or Record({}), only, dtype)


def match_tensor(record: Record, other: Records, file: str) -> Record:
    """Return the tensor of a record to compare with the other operand, where that is one tensor: x, else its NAME."""
    if not (other.format == "npy" or other.tensor):
        return record
    has_name = other.tensor in record and "x" not in record
    return select_tensor(record, other.tensor if has_name else "", file)


def make_pair(a: Record, b: Record, only: tuple[str, ...] | None, dtype: str | None) -> Pair:
    """Pair two records, or the tensors of --only in both, with x in the dtype of --dtype."""
    if dtype:
        a, b = (cast_x(record, dtype) if "x" in record else record for record in (a, b))
    if only:
        return Pair(a.select(only), b.select(only))
    return Pair(a, b, are_traces(a, b))


def render_differences(report: Record, call: Stage, style: "Style") -> str:
    """Write the report as a table, with heat maps of the differences where --heatmap requests them."""
    if not isinstance(report, DiffReport):
        raise UsageError(f"takes a report, not {type(report).__name__}")
    return render_report(report, style, heatmap=bool(call.extra.get("heatmap")))


def check_heatmap(call: Stage) -> Callable[[Record], Record] | None:
    """Check that the format can hold what --heatmap shows; the result is the report in each format."""
    views.derived(call)
    return None


@tool(
    operand="A B",
    reader=read_pairs,
    view=render_differences,
    status=lambda record, call: int(not record["same"]),
    derived=check_heatmap,
    extra={"heatmap": options.switch("a heat map of A − B for every tensor that differs")},
    check_finite=lambda parameters: False,
    shows_table=True,
    status_is_result=True,
)
def diff(
    pair: Pair,
    *,
    rtol: Annotated[float, options.number("relative difference to tolerate", least=0)] = 0.0,
    atol: Annotated[float, options.number("absolute difference to tolerate", least=0)] = 0.0,
    all_: Annotated[bool, options.switch("compare the stages of traces after the first that differs too")] = False,
) -> DiffReport:
    """Compare two tensors, records or traces: exit code 0 when they are the same, 1 when they differ.

    Numbers a and b are the same when |a − b| ≤ atol + rtol · |b|; NaN is the same as NaN. A line for every tensor:
    how many numbers differ, the largest |a − b| and where it is, the largest |a − b| / |b| where b is not 0, and the
    cosine similarity. Dtypes, labels and histories are not compared. -q prints nothing, -f json the figures: `same`
    is true or false, `at` and `first` are the places of the largest and of the first difference.

    An NPY file and FILE:NAME are one tensor, which is compared with x of the other file. Of two traces, as
    encode --trace writes them, the stages of both are compared in their order, up to the first that differs;
    with --all all of them.

    \b
    Example:
      attnkit embed "a b" --dim 4 -o a.npy --only x && attnkit layernorm a.npy -o b.npy && attnkit diff a.npy b.npy
    """
    if not isinstance(pair, Pair):
        raise UsageError(f"takes a Pair of records, not {type(pair).__name__}")
    return compare_records(pair, rtol, atol, all_)
