"""The sheet of a student: exercises with numbers drawn from the name."""

import hashlib
import json
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from attnkit.help.exercises import Exercise
from attnkit.inputs.exercise_numbers import draw_numbers
from attnkit.teaching.student_names import file_stem, fold_name

SEED_BYTES, CODE_LENGTH = 6, 8
CODE_LETTERS = str.maketrans("0123456789abcdef", "bcdfghjklmnpqrst")  # no digits: no spreadsheet makes it a number
ADVICE = (
    "Write your answers into the file {form}, on the line of the exercise: 0.73 0.27, or 0,73 0,27, or 11/15 4/15. A "
    "matrix has its rows one after the other. Whole numbers are exact; round others to two places, or to three digits "
    "from 10 on."
)
WIDTH = 120  # columns of its lines, as in the texts of exercises


class StudentSheet(NamedTuple):
    """The exercises of a student, and the seed of their numbers."""

    name: str
    seed: int
    exercises: Sequence[Exercise]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers of the exercises: ("5.1", "5.2")."""
        return tuple(one.number for one in self.exercises)

    @property
    def code(self) -> str:
        """Eight letters for the name, the exercises and all their numbers."""
        content = [fold_name(self.name), [[one.number, one.tensors] for one in self.exercises]]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return digest[:CODE_LENGTH].translate(CODE_LETTERS)

    @property
    def heading(self) -> str:
        """The line that tells sheets apart: the exercises and the code."""
        return " ".join([*self.numbers, self.code])

    @property
    def stem(self) -> str:
        """What the file of the sheet is called, without its suffix."""
        return file_stem(self.name)

    @property
    def form_name(self) -> str:
        """What the file of the form is called."""
        return f"{self.stem}-form.csv"

    def present(self) -> str:
        """The sheet as text."""
        texts = [f"{self.name}\nSheet {self.heading}", *(one.present() for one in self.exercises)]
        advice = textwrap.fill(ADVICE.format(form=self.form_name), WIDTH, break_on_hyphens=False)
        return "\n\n".join([*texts, advice])


def draw_sheet(name: str, exercises: Sequence[Exercise], secret: int | None) -> StudentSheet:
    """Draw the sheet of a student, each exercise as `--seed` draws it from its seed."""
    seed = derive_seed(name, secret)
    return StudentSheet(name, seed, [draw_numbers(one, seed) for one in exercises])


def derive_seed(name: str, secret: int | None = None) -> int:
    r"""Derive the seed of a student: six bytes of a SHA-256.

    That of the secret in digits, a line end, and the folded name in UTF-8.

    >>> derive_seed("Ada Lovelace") == derive_seed("ada  LOVELACE") != derive_seed("Ada Lovelace", 7)
    True
    """
    text = f"{'' if secret is None else secret}\n{fold_name(name)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")
