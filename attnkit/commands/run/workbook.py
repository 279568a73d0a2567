"""The workbook of a pipeline, whose cells are live formulas."""

from collections.abc import Iterator, Sequence

from attnkit import callbacks
from attnkit.cli import pipeline
from attnkit.cli.output_format import Result
from attnkit.cli.stage import Stage
from attnkit.errors import UsageError
from attnkit.interpret.stage_calls import StageCall, number_parts
from attnkit.records import Record


class PipelineWorkbook:
    """The calls of the stages of `run -o FILE.xlsx`, and their intermediates."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages, self._calls = stages, list[StageCall]()
        self._kept, self._intermediates = list[Record](), list[Record | None]()
        self._commands = [stage.command_line() for stage in stages]
        for number, stage in enumerate(stages, start=1):
            pipeline.keep_calls(stage, number, self._calls)

    def follow(self, results: Iterator[Result]) -> Iterator[Result]:
        """Yield the results of the last stage, while stages report to the workbook."""
        with callbacks.use_callbacks(callbacks.current()._replace(on_intermediates=self._kept.append)):
            yield from results

    def add_stage(self, at: int, stage: Stage, result: Result) -> None:
        """Keep the intermediates of a call that has just returned."""
        self._intermediates.append(self._kept[-1] if self._kept else None)
        self._kept.clear()

    def encode(self) -> bytes:
        """The workbook of the calls so far.

        UsageError if the pipeline computes nothing that a sheet could show.
        """
        from attnkit.display.workbook import encode_workbook
        from attnkit.interpret.spreadsheet.sheets import ShownCall, make_sheets

        calls = number_parts(self._calls, len(self._stages))
        rows = zip(calls, self._intermediates, strict=True)
        sheets = make_sheets([ShownCall(call, self._commands[call.number - 1], one) for call, one in rows])
        if not sheets:
            raise UsageError("no stage of the pipeline computes a tensor for a sheet")
        return encode_workbook(sheets)
