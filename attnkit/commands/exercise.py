"""attnkit exercise: the exercises of the lecture, and the check of an answer."""

import json
import math
import os
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import display, formats, help
from attnkit.cli import options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.output import list_text
from attnkit.cli.text_input import name_reader
from attnkit.errors import DifferentError, UsageError, suggest
from attnkit.help.exercises import Exercise, read_exercises
from attnkit.inputs.answers import read_answer
from attnkit.model.marking import Problem, count_told_slips, mark
from attnkit.model.worked_steps import COMPUTATIONS

DRAWS = 100  # attempts at fresh numbers that tell the slips apart


@tool(
    operand="[NUMBER]",
    reader=name_reader("exercise", ("answer", "solution", "seed")),
    rules=Constraints(exclusive=[("answer", "solution")]),
    needs_no_input=lambda parameters: True,
    gives=lambda stage: "text" if stage.operands else "report",
    without=options.OF_TENSORS,
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


def pose(exercise: Exercise) -> Problem:
    """The computation that an exercise asks for, with its numbers."""
    given: dict[str, Any] = {}
    for name, value in exercise.tensors.items():
        given |= value if isinstance(value, dict) else {name: value}
    given |= {name: given[one] if isinstance(one, str) else one for name, one in exercise.inputs.items()}
    arrays = {name: np.asarray(value, np.float64) for name, value in given.items()}
    return Problem(exercise.steps, arrays, exercise.answer or [*COMPUTATIONS[exercise.steps]][-1])


def draw_numbers(exercise: Exercise, seed: int | None) -> Exercise:
    """Draw fresh numbers that tell as many slips apart as the printed ones do."""
    if seed is None:
        return exercise
    rng, best, most = np.random.default_rng(seed), exercise, (-math.inf, 0, 0)
    _, told, different = count_told_slips(pose(exercise))
    for _ in range(DRAWS):
        drawn = exercise._replace(tensors=redraw_tensors(exercise, rng))
        if is_varied(drawn, exercise) and (shown := count_told_slips(pose(drawn))) > most:
            best, most = drawn, shown
            if all(one >= enough for one, enough in zip(shown, (0, told, different), strict=True)):
                break
    return best


def is_varied(drawn: Exercise, printed: Exercise) -> bool:
    """Whether no tensor that is drawn, nor the answer, has the same number everywhere."""
    values = [value for name, value in drawn.tensors.items() if value != printed.tensors[name]]
    arrays = [np.asarray(part) for value in values for part in (value.values() if isinstance(value, dict) else [value])]
    arrays.append(np.round(pose(drawn).solve(), 2))
    return not any(array.size > 1 and (array == array.flat[0]).all() for array in arrays)


def redraw_tensors(exercise: Exercise, rng: np.random.Generator) -> dict[str, Any]:
    """Draw the tensors with fresh numbers; multiples of a row after it."""
    tensors: dict[str, Any] = {}
    for name, value in exercise.tensors.items():
        factors = exercise.multiples.get(name)
        row = redraw(value[:1] if factors else value, exercise.fresh.get(name), rng)
        tensors[name] = [[round(factor * one, 6) for one in row[0]] for factor in factors] if factors else row
    return tensors


def redraw(value: Any, numbers: Any, rng: np.random.Generator) -> Any:
    """Draw every number of nested lists, or of tensors by name, from a list.

    Of a list of rows, or of matrices, whole ones are drawn: rows that add up to 1 still do.

    >>> redraw([[1, 2], [3, 4]], [7], np.random.default_rng(0))
    [[7, 7], [7, 7]]
    >>> redraw([[1, 0], [0, 1]], [[0.4, 0.6]], np.random.default_rng(0))
    [[0.4, 0.6], [0.4, 0.6]]
    >>> redraw({"w": [1], "b": [2]}, {"b": [7]}, np.random.default_rng(0))
    {'w': [1], 'b': [7]}
    """
    if numbers is None:
        return value
    if isinstance(value, dict):
        lists = numbers if isinstance(numbers, dict) else dict.fromkeys(value, numbers)
        return {name: redraw(part, lists.get(name), rng) for name, part in value.items()}
    if np.ndim(value) > np.ndim(numbers[0]):
        return [redraw(part, numbers, rng) for part in value]
    return numbers[int(rng.integers(len(numbers)))]


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
