"""The numbers of an exercise: as its computation takes them, and fresh ones."""

import math
from typing import Any

import numpy as np

from attnkit.help.exercises import Exercise
from attnkit.model.exercises.marking import Problem, count_told_slips
from attnkit.model.exercises.worked_steps import COMPUTATIONS

DRAWS = 100  # attempts at fresh numbers that tell the slips apart


def pose(exercise: Exercise) -> Problem:
    """The computation that an exercise asks for, with its numbers."""
    given: dict[str, Any] = {}
    for name, value in exercise.tensors.items():
        given |= value if isinstance(value, dict) else {name: value}
    given |= {name: given[one] if isinstance(one, str) else one for name, one in exercise.inputs.items()}
    arrays = {name: np.asarray(value, np.float64) for name, value in given.items()}
    return Problem(exercise.steps, arrays, exercise.answer or [*COMPUTATIONS[exercise.steps]][-1])


def round_answer(exercise: Exercise) -> Any:
    """The right answer in nested lists, to four decimals."""
    return (np.round(pose(exercise).solve(), 4) + 0.0).tolist()  # no -0.0


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
