"""Whether the numbers of an answer are right: exactly, rounded, or by a slip."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import counted
from attnkit.model.exercises.worked_slips import SLIPS, call_step, work_with_slip
from attnkit.model.exercises.worked_steps import COMPUTATIONS, PLACES, Formula, rounding_slack, work
from attnkit.model.slips import Slip

TOLERANCE = 0.006  # of an answer rounded to two places, or to three digits from 10 on
WHOLE, EXACT = 1e-9, 1e-5  # how near to a whole number a right one is whole, and an answer right
NEAR = 0.2  # more than rounded steps move a number


class Problem(NamedTuple):
    """A step of a computation from given tensors, which is asked for.

    computation  a name of COMPUTATIONS
    """

    computation: str
    given: Mapping[str, Any]
    answer: str

    def solve(self) -> Any:
        """Compute the answer."""
        return work(COMPUTATIONS[self.computation], self.given)[self.answer]

    def slack(self, slip: Slip[Formula] | None = None) -> Any:
        """How far rounded steps move each number of the answer, or of a slip's."""
        steps = COMPUTATIONS[self.computation]
        return rounding_slack({**steps, **slip.changes} if slip else steps, self.given, self.answer)

    def slips(self) -> Iterator[tuple[Slip[Formula], Any]]:
        """Each slip that is possible up to the answer, with the answer that it gives."""
        steps = COMPUTATIONS[self.computation]
        possible = {*[*steps][: [*steps].index(self.answer) + 1]}
        for slip in SLIPS[self.computation]:
            worked = work_with_slip(steps, self.given, slip) if slip.changes.keys() <= possible else None
            if worked is not None and not np.isnan(worked[self.answer]).any():
                yield slip, worked[self.answer]


class Verdict(NamedTuple):
    """Whether an answer is right, and a remark on it; "" for none.

    is_slip  whether the remark names a slip, and not only the first wrong number
    """

    is_right: bool
    words: str = ""
    is_slip: bool = False


def tolerance(right: Any, slack: Any = 0.0) -> Any:
    """How far each number of an answer may be from the right one.

    A whole number is exact. Another one may be rounded to two places, from 10 on to three digits.

    slack  how far rounded steps before the answer may move each number

    >>> tolerance(np.array([2.0, 0.7311, 12.34, -212.5])).tolist()
    [1e-05, 0.006, 0.06, 0.6]
    """
    finite = np.where(np.isfinite(right), right, 0)
    digits = np.floor(np.log10(np.maximum(np.abs(finite), 1)))
    is_exact = (np.abs(finite - np.round(finite)) < WHOLE) & (slack < WHOLE)
    return np.where(is_exact, EXACT, TOLERANCE * 10**digits + slack)


def wrong_numbers(answer: Any, right: Any, slack: Any = 0.0) -> Any:
    """Mark the numbers of an answer that are not within the tolerance.

    >>> wrong_numbers(np.array([0.73, 0.25, 3]), np.array([0.7311, 0.2689, 3])).tolist()
    [False, True, False]
    """
    return ~np.isclose(answer, right, rtol=0, atol=tolerance(right, slack))


def is_same(outcome: Any, right: Any) -> bool:
    """Whether a slip has no effect on an answer."""
    return outcome.size == right.size and np.allclose(outcome.ravel(), right.ravel(), rtol=0, atol=WHOLE)


def has_numbers_of(answer: Any, right: Any, slack: Any = 0.0) -> bool:
    """Whether an answer has the numbers of the right one, in any layout."""
    return answer.size == right.size and not wrong_numbers(answer.ravel(), right.ravel(), np.ravel(slack)).any()


def mark(problem: Problem, answer: Any) -> Verdict:
    """Judge an answer: right, right but for rounding, or wrong, with a known slip.

    >>> problem = Problem("softmax", {"scores": np.array([[3.0, 2.0]])}, "weights")
    >>> mark(problem, np.array([0.73, 0.27]))
    Verdict(is_right=True, words='', is_slip=False)
    >>> mark(problem, np.array([0.27, 0.73])).words
    'the exponents have the wrong sign; softmax is e^score / Σ e^score'
    """
    right, slack = problem.solve(), problem.slack()
    if has_numbers_of(answer, right):
        return Verdict(True)
    if has_numbers_of(answer, right, slack):
        return Verdict(True, "but for the rounding of the steps before it: keep three places until the end")
    slips = [*problem.slips()]
    notes = [slip.note for slip, outcome in slips if has_numbers_of(answer, outcome)]
    notes = notes or name_steps(problem, answer)
    near = [(slip, outcome) for slip, outcome in slips if has_numbers_of(answer, outcome, NEAR)]
    notes = notes or [slip.note for slip, outcome in near if has_numbers_of(answer, outcome, problem.slack(slip))]
    return Verdict(False, join_notes(notes), True) if notes else Verdict(False, describe_mistake(answer, right))


def join_notes(notes: list[str]) -> str:
    """One note, or several that an answer may show.

    >>> join_notes(["a is missing", "b is twice", "a is missing"])
    'one of: a is missing, or: b is twice'
    """
    different = [*dict.fromkeys(notes)]
    return ("one of: " if len(different) > 1 else "") + ", or: ".join(different)


def name_steps(problem: Problem, answer: Any) -> list[str]:
    """Name other steps than the one that is asked for that an answer equals."""
    steps = COMPUTATIONS[problem.computation]
    asked = call_step(problem.computation, problem.answer)
    named = {
        words: value
        for name, value in work(steps, problem.given).items()
        if name in steps and name != problem.answer and (words := call_step(problem.computation, name))
    }
    return [
        f"those are {words}; the answer is {asked}" for words, value in named.items() if has_numbers_of(answer, value)
    ]


def count_told_slips(problem: Problem) -> tuple[int, int, int]:
    """How well the numbers of a problem show slips: more is better.

    Minus the slips whose answer passes for the right one, the slips that do not, and their different answers.

    >>> count_told_slips(Problem("softmax", {"scores": np.array([[2.0, 2.0]])}, "weights"))
    (0, 2, 2)
    """
    right, slack = problem.solve(), problem.slack()
    outcomes = [outcome for _, outcome in problem.slips() if not is_same(outcome, right)]
    told = [one for one in outcomes if not has_numbers_of(np.round(one, PLACES), right, slack)]
    return len(told) - len(outcomes), len(told), len({(one.size, *np.round(one.ravel(), PLACES)) for one in told})


def describe_mistake(answer: Any, right: Any) -> str:
    """Describe what is wrong first in an answer, without the right numbers.

    >>> describe_mistake(np.array([[1.0, 2.0], [3.0, 9.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    'row 2 of 2, number 2 is 9, too large; the rows before it are right'
    >>> describe_mistake(np.zeros(2), np.zeros((2, 3)))
    'it has 2 numbers (expected 6: 2 rows of 3)'
    >>> describe_mistake(np.array([432, 210]), np.array([[210.0], [432.0]]))
    'those are the right numbers in another order'
    """
    if answer.size != right.size:
        rows = f": {right.shape[0]} rows of {right.shape[-1]}" if right.ndim == 2 and len(right) > 1 else ""
        return f"it has {counted(answer.size, 'number')} (expected {right.size}{rows})"
    if right.ndim == 2 and has_numbers_of(answer.reshape(right.shape[::-1]).T, right):
        return "its rows and columns are exchanged"
    if has_numbers_of(-answer, right):
        return "its sign is reversed"
    if ((right >= 0) & (right <= 1)).all() and has_numbers_of(answer / 100, right):
        return "those are percentages: write each with its sign, as 73%"
    is_telling = 2 * len(np.unique(right)) > right.size  # and not a matrix of 0 and 1, say
    if is_telling and has_numbers_of(np.sort(answer, axis=None), np.sort(right, axis=None)):
        return "those are the right numbers in another order"
    answer = answer.reshape(right.shape)
    wrong = wrong_numbers(answer, right)
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    row, number = ("".join(str(i + 1) for i in place[:-1]), place[-1] + 1) if place else ("", 1)
    size = "not a number" if np.isnan(answer[place]) else "too large" if answer[place] > right[place] else "too small"
    is_row = len(right) > 1 if right.ndim == 2 else False
    named = f"row {row} of {len(right)}, number {number}" if is_row else f"number {number}" if right.size > 1 else "it"
    ahead = "; the rows before it are right" if is_row and row != "1" else ""
    return f"{named} is {answer[place]:g}, {size}{ahead}"
