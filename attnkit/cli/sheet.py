"""The worked sheet of a pipeline, to print and hand out."""

import fnmatch
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnkit import callbacks
from attnkit.cli import figures, views
from attnkit.cli.explanations import is_explanation, render_explained
from attnkit.cli.output_format import Result
from attnkit.cli.tool import Stage
from attnkit.errors import UsageError, suggest
from attnkit.model.parameters import parameter_axes
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.display.figures import Section

BLANK = "____"  # what a student fills in


class Sheet:
    """The sections of the stages of `run --steps`, as they finish.

    calls  the stages, which from now on add all their steps to their results
    blank  shell patterns of the tensors whose numbers are left out: weights, attend.w?, 3.*
    """

    def __init__(self, calls: Sequence[Stage], blank: Sequence[str] = ()) -> None:
        self._looks = figures.figure_options(calls[-1])
        self.sections: list[Section] = []
        self._blank = dict.fromkeys(blank, False)  # -> whether it has matched a tensor
        self._names: list[str] = []
        self._commands = [stage.command_line() for stage in calls]
        self._parameters: dict[str, Array] = {}
        for stage in calls:
            if "steps" in stage.tool.flags and stage.parameters.get("weights") is None:
                stage.parameters["steps"] = True

    def follow(self, results: Iterator[Result]) -> Iterator[Result]:
        """Yield the results of the last stage, while stages report to the sheet.

        UsageError at the end for a pattern of --blank that has matched no tensor.
        """
        with callbacks.use_callbacks(callbacks.current()._replace(on_parameters=self._parameters.update)):
            yield from results
        self._check_blank()

    def add_stage(self, at: int, stage: Stage, result: Result) -> None:
        """Add a result: its command, its parameters, and what it computed."""
        from attnkit.display.figures import Section

        name = f"{at + 1}.{stage.tool.name}"
        self.sections.append(Section(f"{at + 1}. {self._commands[at]}", []))
        parameters = Record({one: self._describe(one, array) for one, array in self._parameters.items()})
        self._parameters.clear()
        for parameter in parameters:
            self._add_section(name, parameter, parameters)
        has_own_view = (stage.tool.views.table or stage.tool.views.figure) not in (None, render_explained)
        if not isinstance(result, Record) or is_explanation(result, stage) or has_own_view:
            self.sections += [*stage.sections, *figures.make_sections(result, stage, self._looks)]
            return
        record = views.name_tokens(result, stage.common.get("tokens") or "plain")
        for tensor in views.computed_names(record, stage):
            self._add_section(name, tensor, record)

    def _describe(self, parameter: str, array: Array) -> Tensor:
        axes = parameter_axes("", parameter)
        return Tensor(array, axes if len(axes) == array.ndim else None)

    def _add_section(self, stage: str, tensor: str, record: Record) -> None:
        from attnkit.display.figures import tensor_section

        section = tensor_section(views.tensor_view(record, tensor), self._looks)
        names = (tensor, f"{stage.partition('.')[2]}.{tensor}", f"{stage}.{tensor}")
        self._names += [name for name in (names[0], names[2]) if name not in self._names]
        matching = [one for one in self._blank if any(fnmatch.fnmatchcase(name, one) for name in names)]
        self._blank |= dict.fromkeys(matching, True)
        self.sections.append(leave_blank(section) if matching else section)

    def _check_blank(self) -> None:
        """Check that every pattern of --blank has matched a tensor."""
        for pattern, is_used in self._blank.items():
            if not is_used:
                near = suggest(pattern, self._names) or f" (it has {join_names(self._names, 12)})"
                raise UsageError(f"{pattern!r} matches no tensor of the sheet{near}", "--blank")


def leave_blank(section: "Section") -> "Section":
    """Replace the numbers of a section by blanks; the labels of rows and columns stay.

    >>> from attnkit.display.figures import Section, Table
    >>> leave_blank(Section("x", [Table([["token", "0"], ["The", "1.0"]])])).panels[0].rows
    [['token', '0'], ['The', '____']]
    """
    from attnkit.display.figures import Table

    def empty(table: Table) -> Table:
        head, *rows = table.rows
        blank = [[text if at in table.left else BLANK for at, text in enumerate(row)] for row in rows]
        return table._replace(rows=[head, *blank])

    panels = [empty(panel) if isinstance(panel, Table) else BLANK for panel in section.panels]
    return section._replace(panels=panels, notes=())
