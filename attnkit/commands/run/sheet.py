"""The worked sheet of a pipeline, to print and hand out."""

import fnmatch
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnkit import callbacks, display
from attnkit.cli import figures
from attnkit.cli.output_format import Result
from attnkit.cli.stage import Stage
from attnkit.errors import UsageError, suggest
from attnkit.model.parameters import parameter_axes
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.display.figures import Section

BLANK = "____"  # what a student fills in
START = "embed"  # the tool whose results are what a sheet starts from: the vectors of words are given, not computed

# tool -> step -> the tensors that it is computed from; others from the x before the stage and every step before them
READS: dict[str, dict[str, tuple[str, ...]]] = {
    "posenc": {"angle": (), "sine": ("angle",), "cosine": ("angle",), "encoding": ("angle", "sine", "cosine")},
    "attend": {
        "q": ("x",),
        "k": ("x", "memory"),
        "v": ("x", "memory"),
        "scores": ("q", "k"),
        "scaled": ("scores",),
        "capped": ("scaled",),
        "masked": ("scaled", "capped", "mask", "bias"),
        "weights": ("scaled", "capped", "masked"),
        "heads": ("weights", "v"),
    },
    "ffn": {"hidden": ("x",), "linear": ("x",), "activated": ("hidden",)},
}
READ_NO_X = {"mask"}  # tools


class Sheet:
    """The sections of the stages of `run --steps`, as they finish.

    stages  those of the pipeline, which from now on add all their steps to their results
    blank   shell patterns of the tensors whose numbers are left out: weights, attend.w?, 3.*; what is computed from
            them is left out too, and what the sheet starts from never is
    """

    def __init__(self, stages: Sequence[Stage], blank: Sequence[str] = ()) -> None:
        self._looks = figures.figure_options(stages[-1])
        self.sections: list[Section] = []
        self._blank = dict.fromkeys(blank, False)  # -> whether it has matched a tensor
        self._names: list[str] = []
        self._given: set[str] = set()  # patterns that match what the sheet starts from
        self._empty: set[str] = set()  # tensors of the record before the stage whose numbers are left out
        self._commands = [stage.command_line() for stage in stages]
        self._parameters: dict[str, Array] = {}
        for stage in stages:
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
        from attnkit.display.figures import Section, tensor_section

        name = f"{at + 1}.{stage.tool.name}"
        self.sections.append(Section(f"{at + 1}. {self._commands[at]}", []))
        parameters = Record({one: self._describe(one, array) for one, array in self._parameters.items()})
        self._parameters.clear()
        for parameter in parameters:
            section = tensor_section(display.tensor_view(parameters, parameter), self._looks)
            self.sections.append(leave_blank(section) if self._is_blank(name, parameter) else section)
        sections = self._result_sections(stage, result)
        empty = set[str]()
        for place, (tensor, section) in enumerate(sections):
            earlier = [one for one, _ in sections[:place]]
            is_empty = self._is_blank(name, tensor) or self._reads_blanks(stage.tool.name, tensor, earlier, empty)
            empty |= {tensor} if is_empty else set()
            self.sections.append(leave_blank(section) if is_empty else section)
        self._empty = self._empty - {tensor for tensor, _ in sections} | empty

    def _result_sections(self, stage: Stage, result: Result) -> "list[tuple[str, Section]]":
        """The sections of what a stage computed, each with the name of its tensor."""
        from attnkit.display.figures import block_sections

        beside = block_sections(stage.beside, self._looks)
        sections = [*beside, *figures.make_sections(result, stage, self._looks)]
        return [(section.title, section) for section in sections]

    def _reads_blanks(self, tool: str, tensor: str, earlier: Sequence[str], empty: set[str]) -> bool:
        """Whether a tensor is computed from one whose numbers are left out."""
        reads = READS.get(tool, {}).get(tensor)
        if reads is None:
            return bool(empty) or ("x" in self._empty and tool not in READ_NO_X)
        return any(one in (empty if one in earlier else self._empty) for one in reads)

    def _describe(self, parameter: str, array: Array) -> Tensor:
        axes = parameter_axes("", parameter)
        return Tensor(array, axes if len(axes) == array.ndim else None)

    def _is_blank(self, stage: str, tensor: str) -> bool:
        """Whether a pattern matches a tensor of a stage."""
        names = (tensor, f"{stage.partition('.')[2]}.{tensor}", f"{stage}.{tensor}")
        is_start = names[1].startswith(f"{START}.")
        matching = [one for one in self._blank if any(fnmatch.fnmatchcase(name, one) for name in names)]
        if is_start:
            self._given |= {*matching}
            return False
        self._names += [name for name in (names[0], names[2]) if name not in self._names]
        self._blank |= dict.fromkeys(matching, True)
        return bool(matching)

    def _check_blank(self) -> None:
        """Check that every pattern of --blank has matched a tensor."""
        for pattern, is_used in self._blank.items():
            if not is_used and pattern in self._given:
                problem = "is what the sheet starts from; only what is computed from it can be left out"
                raise UsageError(f"{pattern!r} {problem} ({join_names(self._names, 12)})", "--blank")
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
        blank = [[text if at == 0 and at in table.left else BLANK for at, text in enumerate(row)] for row in rows]
        return table._replace(rows=[head, *blank])

    panels = [empty(panel) if isinstance(panel, Table) else BLANK for panel in section.panels]
    return section._replace(panels=panels, notes=())
