"""The sheet of a student: its seed, and numbers that `--seed` draws too."""

import hashlib

from attnkit.help.exercises import read_exercises
from attnkit.inputs.exercise_numbers import draw_numbers
from attnkit.teaching.sheets import derive_seed, draw_sheet

SOME = [one for one in read_exercises() if one.number in ("8.1", "13.2")]


def test_the_seed_is_that_of_sha256sum():
    """The first twelve digits of `printf '\\nada lovelace' | sha256sum`, and of `printf '7\\nada lovelace' | …`."""
    assert derive_seed("Ada Lovelace") == 0xB9493B21AEF9
    assert derive_seed("Ada Lovelace", 7) == 0xDB53F936AE3A
    assert derive_seed("Zoe\u0308") == int(hashlib.sha256("\nzo\u00eb".encode()).hexdigest()[:12], 16)


def test_a_sheet_has_the_numbers_that_its_seed_draws():
    sheet = draw_sheet("Ada Lovelace", SOME, None)
    assert [one.tensors for one in sheet.exercises] == [draw_numbers(one, 0xB9493B21AEF9).tensors for one in SOME]
    assert sheet.exercises[0].tensors == {"scores": [[2, 0, 2], [2, 0, 0], [0, 3, 0]]}  # with every NumPy


def test_the_code_tells_names_exercises_and_seeds_apart():
    codes = {
        draw_sheet(name, exercises, secret).code
        for name in ("Ada", "Alan")
        for exercises in (SOME, SOME[:1], SOME[::-1])
        for secret in (None, 7)
    }
    assert len(codes) == 12 and all(code.isalpha() and len(code) == 8 for code in codes)
    assert draw_sheet("Ada", SOME, 7) != draw_sheet("Ada", SOME, None)
    assert draw_sheet('"ada"', SOME, 7).code == draw_sheet("Ada", SOME, 7).code
