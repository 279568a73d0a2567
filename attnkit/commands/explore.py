"""attnkit explore: one page that explores traces."""

import warnings
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from attnkit.cli import figures, operands, options
from attnkit.cli.stage import Records, Stage, running_stage
from attnkit.cli.tool import tool
from attnkit.errors import AttnkitNote, DataError
from attnkit.record import Record

MOST = 16  # records of one page


class Named(NamedTuple):
    """A record, and the file that it is from."""

    record: Record
    file: str


def read_traces(call: Stage, upstream: Records | None) -> Records:
    """Read the records of all the files, or of standard input, as one input."""
    found = []
    for path in call.operands or ("-" if upstream is not None else operands.stdin_or_error(),):
        stream = call.read(path)
        name = call.files.source.name if call.files.source and path != "-" else "<stdin>"
        found += [Named(record, name) for record in stream.items]
    return Records("json", iter([found]))


@tool(
    operand="[TRACE]...",
    reader=read_traces,
    check_finite=lambda parameters: False,
    returns_text=lambda parameters: True,
    is_page=True,
)
def explore(
    traces: Sequence[Named],
    *,
    record: Annotated[
        int | None,
        options.integer("show only this record of a batch or a stream, from 0 [default: up to 16 of them]", least=0),
    ] = None,
    exact: Annotated[
        bool, options.switch("keep all weights as they are [default: of many weights, 8 bits or the largest]")
    ] = False,
) -> str:
    """Write one page that explores traces: an HTML file that loads nothing.

    TRACE is a file of encode, decode or run --trace, a record with weights (attend --keep weights), or a stream or a
    batch of them; two files are compared. The page shows all heads and the kind of each, the text with what each token
    attends to, the stages, and where two traces differ; every view has an address and saves itself as SVG and PNG.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit attend --heads 2 --keep weights | attnkit explore -o page.html
    """
    from attnkit.display.explore import explore_page, pack_traces
    from attnkit.display.figures.options import DEFAULT_OPTIONS
    from attnkit.inference import exploration

    if not traces:
        raise DataError("nothing to explore: no record")
    chosen = []
    for file in dict.fromkeys(one.file for one in traces):
        rows = [row for one in traces if one.file == file for row in exploration.split_rows(one.record)]
        picked = exploration.choose_record(rows, record, file)
        first = record or 0
        names = [f"{file} {first + at}" if len(rows) > 1 else file for at in range(len(picked))]
        chosen += [Named(row, name) for row, name in zip(picked, names, strict=True)]
    if len(chosen) > MOST:
        note = f"the page has the first {MOST} of {len(chosen)} records; --record N chooses one"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    for one in chosen[:MOST]:
        exploration.check_weights(one.record, one.file)
    pages = [exploration.make_trace(*one) for one in chosen[:MOST]]
    is_pair = len(chosen) == 2
    difference = exploration.compare_traces(chosen[0].record, chosen[1].record) if is_pair else None
    call = running_stage()
    looks = figures.figure_options(call) if call else DEFAULT_OPTIONS
    return explore_page(pack_traces(pages, difference, exact), looks, "attnkit explore")
