"""The marks of forms: each answer judged, and the slips of a whole class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.display import TextTable
from attnkit.display.cells import FORMULA_STARTS, Cells
from attnkit.errors import DataError, counted
from attnkit.formats import Source
from attnkit.help.exercises import Exercise
from attnkit.inputs.answers import read_answer
from attnkit.inputs.exercise_numbers import pose
from attnkit.model.exercises.marking import mark
from attnkit.teaching.class_list import ClassList
from attnkit.teaching.forms import Form, HandedIn
from attnkit.teaching.sheets import StudentSheet, draw_sheet
from attnkit.teaching.student_names import fold_name

MOST_SLIPS = 10  # rows of the table of slips
VERDICTS = ("right", "slip", "wrong", "blank")


class AnswerMark(NamedTuple):
    """The mark of an answer: a word of VERDICTS, and a remark on it, "" for none."""

    verdict: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.words}" if self.words else self.verdict


class StudentMark(NamedTuple):
    """The marks of a student.

    answers  the number of an exercise -> its mark; empty if no form of the student could be marked
    note     what a teacher should know of the form
    """

    name: str
    answers: Mapping[str, AnswerMark]
    note: str = ""

    @property
    def points(self) -> int | None:
        """The answers that are right; None without a form that could be marked."""
        return self.count("right") if self.answers else None

    @property
    def total(self) -> int | None:
        """The exercises of the sheet."""
        return len(self.answers) or None

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.answers.values())


class ClassMarks(NamedTuple):
    """The marks of all students of a class."""

    students: Sequence[StudentMark]

    def list_slips(self) -> list[tuple[int, str, str]]:
        """Count each slip of an exercise, the most frequent first."""
        slips = Counter(
            (number, one.words)
            for student in self.students
            for number, one in student.answers.items()
            if one.verdict == "slip"
        )
        return [(count, number, words) for (number, words), count in slips.most_common()]

    def list_cells(self) -> Cells:
        """A row for each student: the mark of every exercise, the points and a note."""
        numbers = dict.fromkeys(number for student in self.students for number in student.answers)
        rows = [
            [
                _no_formula(one.name),
                *[str(one.answers.get(number, "")) for number in numbers],
                one.points,
                one.total,
                _no_formula(one.note),
            ]
            for one in self.students
        ]
        return Cells(["name", *numbers, "points", "total", "note"], rows)

    def to_json(self) -> dict[str, Any]:
        """The marks for a script."""
        students = [
            {
                "name": one.name,
                "answers": {
                    number: {"verdict": answer.verdict, "words": answer.words} for number, answer in one.answers.items()
                },
                "points": one.points,
                "total": one.total,
                "note": one.note,
            }
            for one in self.students
        ]
        slips = [{"count": count, "exercise": number, "words": words} for count, number, words in self.list_slips()]
        return {"marks": students, "slips": slips}

    def list_tables(self) -> list[TextTable]:
        """The summary for the teacher: who has how many points, and the frequent slips."""
        rows = [
            [one.name, *_list_counts(one), "–" if one.points is None else f"{one.points} of {one.total}", one.note]
            for one in self.students
        ]
        marked = [one for one in self.students if one.points is not None]
        footer = f"{len(marked):,} of {len(self.students):,} marked"
        if marked:
            share = sum(one.points or 0 for one in marked) / sum(one.total or 0 for one in marked)
            footer += f", {100 * share:.0f} % of the points"
        heads = ["name", *VERDICTS, "points", "note"]
        if not any(one.note for one in self.students):
            heads, rows = heads[:-1], [row[:-1] for row in rows]
        tables = [TextTable(heads, rows, range(1, 6), footer=footer)]
        slips = [[str(count), number, words] for count, number, words in self.list_slips()]
        more = f"{counted(len(slips) - MOST_SLIPS, 'more slip')}; -f json has all" if slips[MOST_SLIPS:] else ""
        if slips:
            tables.append(TextTable(["times", "exercise", "slip"], slips[:MOST_SLIPS], [0], footer=more))
        return tables


def _no_formula(text: str) -> str:
    """A text of a student as a spreadsheet shows it and does not compute it.

    >>> _no_formula("=1+1"), _no_formula("Ada")
    ("'=1+1", 'Ada')
    """
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _list_counts(student: StudentMark) -> list[str]:
    return [str(student.count(one)) if student.answers else "–" for one in VERDICTS]


def mark_answer(exercise: Exercise, text: str) -> AnswerMark:
    """Mark what is written for an exercise, whose numbers are drawn already."""
    if not text:
        return AnswerMark("blank")
    problem = pose(exercise)
    try:
        numbers = read_answer(Source.of(text.encode(), "answer"), exercise.tensor, problem.solve().size)
    except DataError as error:
        return AnswerMark("wrong", error.problem)
    verdict = mark(problem, numbers)
    return AnswerMark("right" if verdict.is_right else "slip" if verdict.is_slip else "wrong", verdict.words)


def _describe_reading(form: Form, paths: Sequence[str]) -> list[str]:
    """What a teacher should know of a form that was marked."""
    notes = [f"handed in {len(paths)} times, with the same answers: {' and '.join(paths)}"] if paths[1:] else []
    if surplus := [number for number in form.answers if number not in form.numbers]:
        notes.append(f"answers to {', '.join(surplus)}, not on the sheet, are left out")
    if form.unread:
        more = f" and {counted(len(form.unread) - 1, 'more line')}" if form.unread[1:] else ""
        notes.append(f"not read: {form.unread[0][:40]!r}{more}")
    return notes


class Marker:
    """Marks the forms of a class.

    exercises  those that a sheet may have, by their numbers
    secret     the seed that the sheets were drawn with beside the names, or None
    students   whose forms are expected; None: any
    """

    def __init__(self, exercises: Mapping[str, Exercise], secret: int | None, students: ClassList | None) -> None:
        self._exercises, self._secret = exercises, secret
        self._expected = None if students is None else {fold_name(one.name): one.name for one in students.students}
        self._sheets: dict[tuple[str, tuple[str, ...]], StudentSheet] = {}  # by name and exercises

    def mark_all(self, handed_in: Sequence[HandedIn]) -> ClassMarks:
        """Mark all files; one that cannot be marked has a note.

        The students are those of the class in its order, otherwise in that of their names, before files without one.
        """
        by_name: dict[str, list[HandedIn]] = {fold_name(name): [] for name in (self._expected or {}).values()}
        for one in handed_in:
            by_name.setdefault(fold_name(one.form.name) if one.form else "", []).append(one)
        nameless = by_name.pop("", [])
        keys = [*by_name] if self._expected is not None else sorted(by_name)
        marks = [self._mark_student(key, by_name[key]) for key in keys]
        return ClassMarks([*marks, *(StudentMark(one.path, {}, one.problem) for one in nameless)])

    def _mark_student(self, key: str, handed_in: Sequence[HandedIn]) -> StudentMark:
        """The marks of a student by the forms with this name, with notes on other sheets."""
        forms = {one.path: one.form for one in handed_in if one.form}
        problems = {path: self._find_problem(form) for path, form in forms.items()}
        notes = [f"{path}: {problem}" for path, problem in problems.items() if problem]
        valid = {path: form for path, form in forms.items() if not problems[path]}
        valid = {path: form for path, form in valid.items() if any(form.answers.values())} or valid
        name = (self._expected or {}).get(key) or next(form.name for form in forms.values())
        if not forms:
            return StudentMark(name, {}, "no form was handed in")
        if len({tuple(form.answers.items()) for form in valid.values()}) > 1:
            notes.append(f"handed in {len(valid)} times, with different answers: {' and '.join(valid)}")
        elif valid:
            form = [*valid.values()][-1]
            notes += _describe_reading(form, [*valid])
            return StudentMark(name, self._mark_answers(form), "; ".join(notes))
        return StudentMark(name, {}, "; ".join(notes))

    def _mark_answers(self, form: Form) -> dict[str, AnswerMark]:
        exercises = self._draw(form.name, form.numbers).exercises
        return {one.number: mark_answer(one, form.answers.get(one.number, "")) for one in exercises}

    def _draw(self, name: str, numbers: tuple[str, ...]) -> StudentSheet:
        key = fold_name(name), numbers
        if key not in self._sheets:
            self._sheets[key] = draw_sheet(name, [self._exercises[number] for number in numbers], self._secret)
        return self._sheets[key]

    def _find_problem(self, form: Form) -> str:
        """Why a form cannot be marked; "" if it can."""
        if unknown := [number for number in form.numbers if number not in self._exercises]:
            return f"no exercise {', '.join(unknown)}"
        is_expected = self._expected is None or fold_name(form.name) in self._expected
        if is_expected and self._draw(form.name, form.numbers).code == form.code:
            return ""
        if owner := self._find_owner(form):
            return f"the code {form.code} is of the sheet of {owner}"
        if not is_expected:
            return "no name of this class"
        seed = "no --seed" if self._secret is None else f"--seed {self._secret}"
        return f"the code {form.code} is not of this name, these exercises and {seed}"

    def _find_owner(self, form: Form) -> str:
        """The student of the class whose sheet has the code of a form, or ""."""
        names = (self._expected or {}).values()
        return next((name for name in names if self._draw(name, form.numbers).code == form.code), "")
