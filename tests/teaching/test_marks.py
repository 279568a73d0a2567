"""Marks worked by hand, and forms that are missing, twice, edited, or of another class."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.help.exercises import read_exercises
from attnkit.teaching.class_list import ClassList, Student
from attnkit.teaching.forms import Form, HandedIn, read_form
from attnkit.teaching.marks import AnswerMark, Marker
from attnkit.teaching.sheets import draw_sheet

EXERCISES = {one.number: one for one in read_exercises()}
NUMBERS = ("13.2", "8.1")
CLASS = ClassList([Student("Grace Hopper", 2), Student("Ada Lovelace", 3), Student("Alan Turing", 4)], "")
# 8.1 of Ada: the rows are 1, then e² and 1 over e² + 1, then 1, e³ and 1 over e³ + 2. 13.2: her logits are 3, -4 and 1,
# half of them 1.5, -2 and 0.5, whose exponentials 4.48, 0.135 and 1.65 add up to 6.27. Alan's are 2, -1 and 1.
ADA = {"13.2": "0,72 0,02 0,26", "8.1": "1 0 0 / 0.88 0.12 0 / 0.05 0.91 0.05"}
ALAN = {"13.2": "0.71 0.04 0.26", "8.1": ""}
GRACE = {"13.2": "0.5 0.5 0", "8.1": "hello"}
SLIP = "those are the probabilities at temperature 1; divide the logits by 2"


def form(name, answers, secret=None, drawn_as=None, numbers=NUMBERS):
    sheet = draw_sheet(drawn_as or name, [EXERCISES[one] for one in numbers], secret)
    return Form(name, sheet.numbers, sheet.code, answers)


def handed_in(*forms):
    return [one if isinstance(one, HandedIn) else HandedIn(f"{at}.csv", one) for at, one in enumerate(forms, 1)]


def mark_forms(*forms, secret=None, students=None):
    return Marker(EXERCISES, secret, students).mark_all(handed_in(*forms))


def test_marks_by_hand():
    marks = mark_forms(form("Grace Hopper", GRACE), form("Ada Lovelace", ADA), form("Alan Turing", ALAN))
    ada, alan, grace = marks.students
    assert (ada.name, [*ada.answers.values()]) == ("Ada Lovelace", [AnswerMark("right"), AnswerMark("right")])
    assert alan.answers == {"13.2": AnswerMark("slip", SLIP), "8.1": AnswerMark("blank")}
    assert grace.answers["13.2"] == AnswerMark("wrong", "number 1 is 0.5, too large")
    assert grace.answers["8.1"] == AnswerMark("wrong", "'hello' is not a number")
    assert [(one.points, one.total, one.note) for one in marks.students] == [(2, 2, ""), (0, 2, ""), (0, 2, "")]
    assert marks.list_slips() == [(1, "13.2", SLIP)]
    assert marks.list_cells().rows[1] == ["Alan Turing", f"slip: {SLIP}", "blank", 0, 2, ""]


@pytest.mark.parametrize(
    "answer",
    [
        "0.7153 0.0216 0.2631",
        ".72 .02 .26",
        "72% 2% 26%",
        "0,715;0,022;0,263",
        "4.4817/6.2657, 0.1353/6.2657, 1.6487/6.2657",
        "[[0.72, 0.02, 0.26]]",
        "[0.72 0.02 0.26]",
    ],
)
def test_fairly_rounded_answers_are_right(answer):
    marks = mark_forms(form("Ada Lovelace", {"13.2": answer}))
    assert marks.students[0].answers["13.2"].verdict == "right"


def test_the_slips_of_a_class_are_counted():
    names = ["Ada Lovelace", "Alan Turing"]
    forms = [form("Ada Lovelace", {"13.2": "0.88 0 0.12"}), form("Alan Turing", ALAN)]
    marks = mark_forms(*forms)
    assert [one.name for one in marks.students] == names and marks.list_slips() == [(2, "13.2", SLIP)]
    summary, slips = marks.list_tables()
    assert summary.rows == [[name, "0", "1", "0", "1", "0 of 2"] for name in names]
    assert summary.footer == "2 of 2 marked, 0 % of the points"
    assert slips.rows == [["2", "13.2", SLIP]]
    assert marks.to_json()["marks"][1]["answers"]["13.2"] == {"verdict": "slip", "words": SLIP}


def notes(*forms, secret=None, students=CLASS):
    return {one.name: (one.points, one.note) for one in mark_forms(*forms, secret=secret, students=students).students}


def test_a_class_is_listed_in_its_order_with_who_is_missing():
    marks = mark_forms(form("Ada Lovelace", ADA), students=CLASS)
    assert [(one.name, one.points, one.note) for one in marks.students] == [
        ("Grace Hopper", None, "no form was handed in"),
        ("Ada Lovelace", 2, ""),
        ("Alan Turing", None, "no form was handed in"),
    ]
    assert marks.list_tables()[0].footer == "1 of 3 marked, 100 % of the points"


def test_a_form_that_is_handed_in_twice():
    ada = form("Ada Lovelace", ADA)
    assert notes(ada, ada)["Ada Lovelace"] == (2, "handed in 2 times, with the same answers: 1.csv and 2.csv")
    other = ada._replace(answers=ALAN)
    different = "handed in 2 times, with different answers: 1.csv and 2.csv"
    assert notes(ada, other, form("Alan Turing", ALAN)) == {
        "Grace Hopper": (None, "no form was handed in"),
        "Ada Lovelace": (None, different),
        "Alan Turing": (0, ""),
    }
    blank = ada._replace(answers={"13.2": "", "8.1": ""})
    assert notes(blank, ada)["Ada Lovelace"] == (2, "")


def test_a_form_whose_lines_were_edited():
    ada = form("Ada Lovelace", ADA)
    code = ada.code
    assert notes(form("ada, lovelace", ADA, drawn_as="Ada Lovelace"))["Ada Lovelace"] == (2, "")
    assert notes(ada._replace(name="A. Lovelace"))["A. Lovelace"] == (
        None,
        f"1.csv: the code {code} is of the sheet of Ada Lovelace",
    )
    assert notes(ada, form("Alan Turing", ALAN), ada._replace(name="Alan Turing"))["Alan Turing"] == (
        0,
        f"3.csv: the code {code} is of the sheet of Ada Lovelace",
    )
    assert notes(ada._replace(unread=("Task one: 1 0", "2")))["Ada Lovelace"] == (
        2,
        "not read: 'Task one: 1 0' and 1 more line",
    )
    assert notes(ada._replace(name="Alan Turing"))["Alan Turing"] == (
        None,
        f"1.csv: the code {code} is of the sheet of Ada Lovelace",
    )
    edited = f"1.csv: the code {code} is not of this name, these exercises and no --seed"
    assert notes(ada._replace(numbers=("13.2",)))["Ada Lovelace"] == (None, edited)
    assert notes(ada._replace(name="A. Lovelace"), students=None) == {"A. Lovelace": (None, edited)}
    assert notes(ada._replace(numbers=("13.2", "99.9")))["Ada Lovelace"] == (None, "1.csv: no exercise 99.9")
    assert notes(ada._replace(answers={**ADA, "9.1": "1"}))["Ada Lovelace"] == (
        2,
        "answers to 9.1, not on the sheet, are left out",
    )


def test_a_form_of_another_class_or_seed():
    eve = form("Eve", ADA)
    assert notes(eve)["Eve"] == (None, "1.csv: no name of this class")
    seeded = form("Ada Lovelace", ADA, secret=7)
    assert notes(seeded)["Ada Lovelace"][1].endswith("is not of this name, these exercises and no --seed")
    assert notes(form("Ada Lovelace", ADA), secret=7)["Ada Lovelace"][1].endswith("and --seed 7")
    assert notes(form("Ada Lovelace", {}, secret=7), secret=7)["Ada Lovelace"] == (0, "")


MARKER, CODE = Marker(EXERCISES, None, None), form("Ada Lovelace", {}).code


@given(text=st.text(alphabet="0123456789.,;/-%e^()√ln\n\"'[]\\ axnamesht", max_size=60))
def test_any_text_is_marked(text):
    data = f"name,Ada Lovelace\nsheet,{' '.join([*NUMBERS, CODE])}\nexercise 8.1,{text}\n".encode()
    (student,) = MARKER.mark_all(handed_in(read_form(data))).students
    assert student.total == 2 and student.answers["8.1"].verdict in ("wrong", "slip", "blank")


def test_a_file_that_is_no_form_is_last():
    bad = HandedIn("photo.pdf", None, "a PDF, not a form; save it as CSV")
    marks = mark_forms(bad, form("Ada Lovelace", ADA))
    assert [(one.name, one.points, one.note) for one in marks.students] == [
        ("Ada Lovelace", 2, ""),
        ("photo.pdf", None, "a PDF, not a form; save it as CSV"),
    ]
