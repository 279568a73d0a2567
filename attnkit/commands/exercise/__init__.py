"""attnkit exercise: the exercises of the lecture, and the check of an answer.

classes    the sheets of a class, and the marks of its forms
"""

import json
import os
from collections.abc import Sequence
from typing import Annotated

import typer

from attnkit import display, formats, help
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.options import FIGURE_FORMATS, OF_TENSORS
from attnkit.cli.output import list_text
from attnkit.cli.stage import Stage
from attnkit.cli.text_input import name_reader
from attnkit.cli.tool import Records
from attnkit.errors import DifferentError, UsageError, suggest
from attnkit.help.exercises import Exercise, read_exercises
from attnkit.inputs.answers import read_answer
from attnkit.inputs.exercise_numbers import draw_numbers, pose, round_answer
from attnkit.model.exercises.marking import mark
from attnkit.teaching.options import ClassOptions

read_one = name_reader("exercise", ("answer", "solution", "seed"))
SHEETS = ("table", "markdown", *FIGURE_FORMATS)  # formats of a sheet
OF_SHEETS = ("format", "theme", "title")  # options that are those of the sheets, and not of their list


def read_numbers(stage: Stage, upstream: Records | None) -> Records:
    """Read the numbers of exercises: one at most, any of a class, none of forms.

    The output of a class is the folder of its sheets, which the tool writes itself.
    """
    if stage.parameters["mark"] and stage.operands:
        raise UsageError("cannot be combined with NUMBER: the forms name their exercises", "--mark")
    if choose_result(stage) != "rows":
        read_one(stage, upstream)
    elif not (stage.parameters["mark"] or stage.parameters["solution"]):
        stage.extra["folder"] = stage.common.pop("output", None)
        if stage.extra["folder"] and stage.common.get("format") in SHEETS:
            stage.extra["sheets"] = {name: stage.common.pop(name) for name in OF_SHEETS if name in stage.common}
    return Records(None, iter([stage.operands]))


def choose_result(stage: Stage) -> str:
    """What the tool gives: text of one exercise, a report of all, rows of a class."""
    if stage.parameters["class_"] or stage.parameters["mark"]:
        return "rows"
    return "text" if stage.operands else "report"


@tool(
    operand="[NUMBER]...",
    reader=read_numbers,
    rules=Constraints(
        exclusive=[
            ("answer", "solution"),
            ("answer", "class"),
            ("answer", "mark"),
            ("mark", "solution"),
        ]
    ),
    needs_no_input=lambda parameters: True,
    gives=choose_result,
    without=OF_TENSORS,
)
def exercise(
    numbers: Sequence[str],
    *,
    answer: Annotated[
        str | None, typer.Option(help="check this answer: '[[1, 0], [0, 1]]' or '.84 .58', or - for one on stdin")
    ] = None,
    solution: Annotated[
        bool, typer.Option(help="show the pipeline that solves it, and its answer; of a class, all answers")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="draw fresh numbers from this seed; of a class, from it and each name")
    ] = None,
    group: ClassOptions,
) -> str:
    """Print, check or solve an exercise; draw and mark the sheets of a class.

    Without a NUMBER the exercises are listed.

    The numbers are small enough for paper. An answer has the right numbers in any layout: decimals with a point or a
    comma, fractions, roots, ln, tanh and powers of e, percentages, true and false, lists, rows between slashes, LaTeX,
    CSV, or what print shows of an array. Whole numbers are exact; others are rounded to two places, or to three digits
    from 10 on. An answer that is off only because earlier steps were rounded to two places is right, and told so. The
    exit code is 0 for a right answer and 1 for a wrong one, whose message names the slip where it is a known one,
    otherwise the first wrong number. attnkit help lecture has the chapters. The list is a table on a terminal, and on
    a pipe a line for each exercise: number, chapter and title, separated by tabs; -f json writes it as JSON.

    With --class a NUMBER may also be a chapter, and without one a sheet has all exercises. A sheet has numbers of its
    own, drawn from the name of the student, and a form beside it to fill in, a CSV file. --mark marks filled forms: a
    summary on a terminal, otherwise CSV, or JSON with -f json. attnkit help teaching is the whole path.

    \b
    Examples:
      attnkit exercise 5.2 --answer '[[0.73, 0.27]]'
      attnkit exercise 5.2 --answer '11/15 0.27'
      attnkit attend q.json --memory k.json --emit weights | attnkit exercise 5.2 --answer -
      attnkit exercise 5.2 8.1 --class names.csv -o sheets
      attnkit exercise --mark forms -o marks.csv
    """
    if group.mark or group.class_:
        from attnkit.commands.exercise import classes

        return (
            classes.mark_forms(group, seed)
            if group.mark
            else classes.present_class(str(group.class_), choose_exercises(numbers), seed, solution)
        )
    if not numbers:
        rows = [{"number": one.number, "chapter": one.chapter, "title": one.title} for one in read_exercises()]
        table = display.TextTable(("exercise", "chapter", "title"), [[*row.values()] for row in rows])
        return list_text("exercises", rows, table)
    (number,) = numbers
    chosen = draw_numbers(find_exercise(number), seed)
    if solution:
        return present_solution(chosen)
    if answer is None:
        return present_exercise(chosen, seed)
    problem = pose(chosen)
    with formats.open_source("-") if answer == "-" else formats.Source.of(os.fsencode(answer), "--answer") as source:
        values = read_answer(source, chosen.tensor, problem.solve().size)
    verdict = mark(problem, values)
    if not verdict.is_right:
        raise DifferentError(f"wrong: {verdict.words}", number)
    return f"{number}: right" + (f", {verdict.words}" if verdict.words else "")


def find_exercise(number: str) -> Exercise:
    exercises = {one.number: one for one in read_exercises()}
    if number not in exercises:
        chapter = help.find_chapter(number)
        own = [one for one in exercises.values() if chapter and one.chapter == chapter.name]
        meant = f"; those of {own[0].chapter} are {', '.join(one.number for one in own)}" if own else ""
        meant = meant or suggest(number, exercises)
        raise UsageError(f"no exercise {number!r}{meant or '; attnkit exercise lists them'}")
    return exercises[number]


def choose_exercises(words: Sequence[str]) -> list[Exercise]:
    """The exercises of numbers and chapters, each once; without any, all."""
    chosen: dict[str, Exercise] = {}
    for word in words:
        chapter = help.find_chapter(word)
        found = [one for one in read_exercises() if chapter and one.chapter == chapter.name] or [find_exercise(word)]
        chosen |= {one.number: one for one in found}
    return [*chosen.values()] if words else read_exercises()


def present_exercise(exercise: Exercise, seed: int | None) -> str:
    again = f"attnkit exercise {exercise.number}" + (f" --seed {seed}" if seed is not None else "")
    advice = f"{again} --answer '…' checks it, to two decimals; {again} --solution shows the pipeline."
    return f"{exercise.present()}\n\n{advice}"


def present_solution(exercise: Exercise) -> str:
    files = [f"echo '{json.dumps(value)}' > {name}.json" for name, value in exercise.tensors.items()]
    line = exercise.pipeline.format(**{name: f"{name}.json" for name in exercise.tensors})
    stages = " | ".join(f"attnkit {stage}" for stage in line.split(" | "))
    return "\n".join([*files, stages, "", f"{exercise.tensor} = {json.dumps(round_answer(exercise))}"])
