"""attnkit exercise: the exercises of the lecture, and the check of an answer."""

import json
import tempfile
import warnings
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import display, formats, help
from attnkit.cli import options, pipeline
from attnkit.cli.constraints import Constraints
from attnkit.cli.output import report_text
from attnkit.cli.text_input import name_reader
from attnkit.cli.tool import tool
from attnkit.errors import DataError, DifferentError, UsageError, suggest
from attnkit.help.exercises import Exercise, Slip, read_exercises
from attnkit.records import Array

TOLERANCE = 0.006  # of an answer rounded to two places, relative to the largest number where that is above 1
DRAWS = 100  # attempts at fresh numbers for which no slip gives the right answer


@tool(
    operand="[NUMBER]",
    reader=name_reader("exercise", ("answer", "solution", "seed")),
    rules=Constraints(exclusive=[("answer", "solution")]),
    needs_no_input=lambda parameters: True,
    gives="text",
    without=options.OF_TENSORS,
)
def exercise(
    number: str,
    *,
    answer: Annotated[
        str | None, typer.Option(help="check this answer: '[[1, 0], [0, 1]]', or - for a tensor on stdin")
    ] = None,
    solution: Annotated[bool, typer.Option(help="show the pipeline that solves it, and its answer")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="draw fresh numbers from this seed")] = None,
) -> str:
    """Print an exercise of the lecture, check an answer to it, or solve it; without a number, list the exercises.

    The numbers are small enough for paper. An answer is right within 0.006, two rounded decimals, of each number (of
    the largest number where that is above 1). The exit code is 0 for a right answer and 1 for a wrong one, whose
    message names the first wrong row, and the slip where it is a known one. attnkit help lecture has the chapters.

    \b
    Examples:
      attnkit exercise 5.2 --answer '[[0.73, 0.27]]'
      attnkit attend q.json --memory k.json --emit weights | attnkit exercise 5.2 --answer -
    """
    if not number:
        rows = [{"number": one.number, "chapter": one.chapter, "title": one.title} for one in read_exercises()]
        table = display.TextTable(("exercise", "chapter", "title"), [[*row.values()] for row in rows])
        return report_text({"exercises": rows}, lambda style: display.format_table(table, style))
    chosen = draw_numbers(find_exercise(number), seed)
    if solution:
        return present_solution(chosen)
    if answer is None:
        return present_exercise(chosen, seed)
    return check_answer(chosen, read_answer(answer, chosen.tensor))


def find_exercise(number: str) -> Exercise:
    exercises = {one.number: one for one in read_exercises()}
    if number not in exercises:
        chapter = help.find_chapter(number)
        own = [one for one in exercises.values() if chapter and one.chapter == chapter.name]
        meant = f"; those of {own[0].chapter} are {', '.join(one.number for one in own)}" if own else ""
        meant = meant or suggest(number, exercises)
        raise UsageError(f"no exercise {number!r}{meant or '; attnkit exercise lists them'}")
    return exercises[number]


def draw_numbers(exercise: Exercise, seed: int | None) -> Exercise:
    """Draw fresh numbers for which each slip gives its own wrong answer."""
    if seed is None:
        return exercise
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS):
        tensors = {name: redraw(value, exercise.fresh.get(name), rng) for name, value in exercise.tensors.items()}
        drawn = exercise._replace(tensors=tensors)
        answers = [solve(drawn), *(solve(drawn, slip) for slip in drawn.slips)]
        if not any(is_right(one, other) for one, other in combinations(answers, 2)):
            return drawn
    raise DataError(f"no numbers of seed {seed} tell the slips from the solution and from each other", exercise.number)


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


def solve(exercise: Exercise, way: Slip | None = None) -> Array:
    """Run the pipeline of an exercise or a slip, and read the tensor of the answer."""
    line, tensor = (exercise.pipeline, exercise.tensor) if way is None else (way.pipeline, way.tensor)
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: str(Path(folder, f"{name}.json")) for name in exercise.tensors}
        for name, value in exercise.tensors.items():
            Path(paths[name]).write_text(json.dumps(value))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a slip, or of a gradient of several numbers
            (record,) = pipeline.chain_stages(pipeline.parse_stages(line.format(**paths))).items
    return remove_single_axes(np.asarray(record[tensor], np.float64))


def read_answer(answer: str, tensor: str) -> Array:
    """Read the answer from a file or standard input: the named tensor, otherwise x."""
    source = formats.open_source("-") if answer == "-" else formats.Source.of(answer.encode(), "--answer")
    with source:
        records = list(formats.read(source))
    if len(records) != 1:
        raise DataError(f"{len(records)} records (expected 1)", source.name)
    array = records[0][tensor if tensor in records[0] else "x"]
    return remove_single_axes(np.asarray(array, np.float64))


def is_right(answer: Array, right: Array) -> bool:
    return answer.shape == right.shape and not wrong_cells(answer, right).any()


def wrong_cells(answer: Array, right: Array) -> Array:
    """Mark the numbers of an answer that are not within the tolerance.

    >>> wrong_cells(np.array([0.73, 0.25]), np.array([0.7311, 0.2689]))
    array([False,  True])
    """
    scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0)))
    return np.asarray(~np.isclose(answer, right, rtol=0, atol=TOLERANCE * scale, equal_nan=True))


def check_answer(exercise: Exercise, answer: Array) -> str:
    """Check an answer; DifferentError names its slip, or its first wrong row."""
    right = solve(exercise)
    if is_right(answer, right):
        return f"{exercise.number}: right"
    for slip in exercise.slips:
        if is_right(answer, solve(exercise, slip)):
            raise DifferentError(f"wrong: {slip.note}", exercise.number)
    raise DifferentError(f"wrong: {describe_mistake(answer, right)}", exercise.number)


def remove_single_axes(array: Array) -> Array:
    """Remove leading axes of size 1: [[0.7, 0.3]] and [0.7, 0.3] are one answer.

    >>> remove_single_axes(np.ones((1, 1, 3))).shape
    (3,)
    """
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return array


def describe_mistake(answer: Array, right: Array) -> str:
    """Describe what is wrong first in an answer, without the right numbers.

    >>> describe_mistake(np.array([[1.0, 2.0], [3.0, 9.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    'row 2 of 2, number 2 is 9, too large; the rows before it are right'
    >>> describe_mistake(np.zeros(2), np.zeros((2, 3)))
    'its shape is (2), expected (2, 3)'
    """
    if answer.shape != right.shape:
        shapes = [f"({', '.join(map(str, array.shape))})" for array in (answer, right)]
        return f"its shape is {shapes[0]}, expected {shapes[1]}"
    if right.ndim == 2 and right.shape[0] == right.shape[1] and is_right(answer.T, right):
        return "its rows and columns are exchanged"
    if is_right(-answer, right):
        return "its sign is reversed"
    wrong = wrong_cells(answer, right)
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    row, number = ("".join(str(i + 1) for i in place[:-1]), place[-1] + 1) if place else ("", 1)
    size = "not a number" if np.isnan(answer[place]) else "too large" if answer[place] > right[place] else "too small"
    named = f"row {row} of {len(right)}, number {number}" if row else f"number {number}" if place else "it"
    ahead = "; the rows before it are right" if row not in ("", "1") else ""
    return f"{named} is {answer[place]:g}, {size}{ahead}"


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
    answer = np.round(solve(exercise), 4) + 0.0  # no -0.0
    return "\n".join([*files, stages, "", f"{exercise.tensor} = {json.dumps(answer.tolist())}"])
