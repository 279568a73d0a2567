"""attnkit exercise: the exercises of the lecture, and the check of an answer."""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import display, formats, help
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.output import list_text
from attnkit.cli.text_input import name_reader
from attnkit.errors import DifferentError, UsageError, suggest
from attnkit.help.exercises import Exercise, read_exercises
from attnkit.inputs.answers import read_answer
from attnkit.inputs.exercise_numbers import draw_numbers, pose
from attnkit.model.exercises.marking import mark


@tool(
    operand="[NUMBER]",
    reader=name_reader("exercise", ("answer", "solution", "seed")),
    rules=Constraints(exclusive=[("answer", "solution")]),
    needs_no_input=lambda parameters: True,
    gives=lambda stage: "text" if stage.operands else "report",
    without=OF_TENSORS,
)
def exercise(
    number: str,
    *,
    answer: Annotated[
        str | None, typer.Option(help="check this answer: '[[1, 0], [0, 1]]' or '.84 .58', or - for one on stdin")
    ] = None,
    solution: Annotated[bool, typer.Option(help="show the pipeline that solves it, and its answer")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="draw fresh numbers from this seed")] = None,
) -> str:
    """Print an exercise, check an answer to it, or solve it; or list all exercises.

    The numbers are small enough for paper. An answer has the right numbers in any layout: decimals with a point or a
    comma, fractions, roots, ln, tanh and powers of e, percentages, true and false, lists, rows between slashes, LaTeX,
    CSV, or what print shows of an array. Whole numbers are exact; others are rounded to two places, or to three digits
    from 10 on. An answer that is off only because earlier steps were rounded to two places is right, and told so. The
    exit code is 0 for a right answer and 1 for a wrong one, whose message names the slip where it is a known one,
    otherwise the first wrong number. attnkit help lecture has the chapters. The list is a table on a terminal, and on
    a pipe a line for each exercise: number, chapter and title, separated by tabs; -f json writes it as JSON.

    \b
    Examples:
      attnkit exercise 5.2 --answer '[[0.73, 0.27]]'
      attnkit exercise 5.2 --answer '11/15 0.27'
      attnkit attend q.json --memory k.json --emit weights | attnkit exercise 5.2 --answer -
    """
    if not number:
        rows = [{"number": one.number, "chapter": one.chapter, "title": one.title} for one in read_exercises()]
        table = display.TextTable(("exercise", "chapter", "title"), [[*row.values()] for row in rows])
        return list_text("exercises", rows, table)
    chosen = draw_numbers(find_exercise(number), seed)
    if solution:
        return present_solution(chosen)
    if answer is None:
        return present_exercise(chosen, seed)
    problem = pose(chosen)
    with formats.open_source("-") if answer == "-" else formats.Source.of(os.fsencode(answer), "--answer") as source:
        numbers = read_answer(source, chosen.tensor, problem.solve().size)
    verdict = mark(problem, numbers)
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


def present_exercise(exercise: Exercise, seed: int | None) -> str:
    again = f"attnkit exercise {exercise.number}" + (f" --seed {seed}" if seed is not None else "")
    return "\n".join(
        [
            f"{exercise.number} {exercise.title}",
            "",
            exercise.text,
            "",
            *present_tensors(exercise.tensors),
            "",
            f"{again} --answer '…' checks it, to two decimals; {again} --solution shows the pipeline.",
        ]
    )


def present_tensors(tensors: Mapping[str, Any]) -> list[str]:
    """Write each tensor in a line, parameters of a file by their own names."""
    lines = []
    for name, value in tensors.items():
        parts = value if isinstance(value, dict) else {name: value}
        lines += [f"{part} = {json.dumps(numbers)}" for part, numbers in parts.items()]
    return lines


def present_solution(exercise: Exercise) -> str:
    files = [f"echo '{json.dumps(value)}' > {name}.json" for name, value in exercise.tensors.items()]
    line = exercise.pipeline.format(**{name: f"{name}.json" for name in exercise.tensors})
    stages = " | ".join(f"attnkit {stage}" for stage in line.split(" | "))
    answer = np.round(pose(exercise).solve(), 4) + 0.0  # no -0.0
    return "\n".join([*files, stages, "", f"{exercise.tensor} = {json.dumps(answer.tolist())}"])
