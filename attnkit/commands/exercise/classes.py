"""A class: a sheet for each student, and the marks of their forms."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnkit import callbacks, display, formats
from attnkit.cli.options import FIGURE_FORMATS
from attnkit.cli.output import rows_text
from attnkit.cli.stage import running_stage
from attnkit.display.cells import Cells
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.help.exercises import Exercise, read_exercises
from attnkit.inputs.exercise_numbers import round_answer
from attnkit.teaching.class_list import ClassList, read_class
from attnkit.teaching.folder import write_new_files
from attnkit.teaching.forms import HandedIn, find_forms, hand_in, write_form
from attnkit.teaching.marks import Marker
from attnkit.teaching.options import ClassOptions
from attnkit.teaching.sheets import StudentSheet, draw_sheet

SUFFIXES = {"table": ".txt", "markdown": ".md"}  # of sheets that are no figures


def load_class(path: str) -> ClassList:
    """Read the names of a class, and note which column they are from."""
    with formats.open_source(path) as source:
        students = read_class(source)
    warnings.warn(f"{source.name}: {students.origin}", AttnkitNote, stacklevel=2)
    return students


def present_class(path: str, exercises: Sequence[Exercise], seed: int | None, solution: bool) -> str:
    """Draw the sheets of a class, and write them or list their answers."""
    students, sheets = load_class(path).students, list[StudentSheet]()
    for one in students:
        callbacks.current().on_progress(f"sheet {len(sheets) + 1:,} of {len(students):,}")
        sheets.append(draw_sheet(one.name, exercises, seed))
    return list_answers(sheets) if solution else write_sheets(sheets)


def write_sheets(sheets: Sequence[StudentSheet]) -> str:
    """Write sheets and their forms to the folder of -o, if there is one; list them."""
    stage = running_stage()
    extra = stage.extra if stage else {}
    looks = extra.get("sheets", {})
    kind = looks.get("format", "table")
    suffix = SUFFIXES.get(kind, f".{kind}")
    if (folder := extra.get("folder")) is not None:
        write_new_files(folder, dict(file for one in sheets for file in make_files(one, looks, suffix)))
    heads = ["name", "seed", "code", "sheet"]
    rows = [[one.name, one.seed, one.code, one.stem + suffix] for one in sheets]
    table = display.TextTable(heads, [[*map(str, row)] for row in rows], [1])
    return rows_text({"sheets": [dict(zip(heads, row, strict=True)) for row in rows]}, Cells(heads, rows), [table])


def make_files(sheet: StudentSheet, looks: Mapping[str, Any], suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a sheet by name: the sheet as text or figure, and its form.

    looks  the options of its figure, its format among them
    """
    text, stage = sheet.present(), running_stage()
    if stage and looks.get("format") in FIGURE_FORMATS:
        from attnkit.cli.figures import encode_figure

        yield sheet.stem + suffix, encode_figure(replace(stage, common={**looks}), text, looks["format"])
    else:
        yield sheet.stem + suffix, f"{text}\n".encode()
    yield sheet.form_name, write_form(sheet)


def list_answers(sheets: Sequence[StudentSheet]) -> str:
    """List the right answers of all sheets, for the teacher."""
    heads = ["name", "exercise", "answer"]
    rows = [[sheet.name, one.number, round_answer(one)] for sheet in sheets for one in sheet.exercises]
    texts = [[*map(str, row)] for row in rows]
    answers = [dict(zip(heads, row, strict=True)) for row in rows]
    return rows_text({"answers": answers}, Cells(heads, texts), [display.TextTable(heads, texts)])


def mark_forms(group: ClassOptions, seed: int | None) -> str:
    """Mark the forms of a folder, and list the marks."""
    folder, stage = str(group.mark), running_stage()
    students = load_class(group.class_) if group.class_ else None
    output = stage.common.get("output") if stage else None
    handed_in = [*hand_in_all(folder, output)]
    if not handed_in:
        raise DataError("no forms", folder)
    exercises = {one.number: one for one in read_exercises()}
    marks = Marker(exercises, seed, students).mark_all(handed_in)
    return rows_text(marks.to_json(), marks.list_cells(), marks.list_tables(), has_aside=True)


def hand_in_all(folder: str, output: str | None) -> Iterator[HandedIn]:
    """Yield what was handed in, but not an older output; UsageError if that is a form."""
    for path in find_forms(folder):
        one = hand_in(path, folder)
        if output is not None and os.path.realpath(path) == os.path.realpath(output):
            if one.form:
                raise UsageError(f"{output} is one of the forms, and would be lost", "--output")
            continue
        yield one
