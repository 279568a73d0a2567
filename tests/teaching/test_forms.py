"""Forms as editors and spreadsheets save them, and files that are none."""

import csv
import io

import pytest

from attnkit.errors import DataError
from attnkit.help.exercises import read_exercises
from attnkit.teaching.forms import hand_in, read_form, write_form
from attnkit.teaching.sheets import draw_sheet

SHEET = draw_sheet("Müller, Zoë", [one for one in read_exercises() if one.number in ("8.1", "13.2")], None)
CODE = SHEET.code


def resave(separator, cells, encoding="utf-8-sig", quoting=csv.QUOTE_MINIMAL):
    """The form with cells behind its labels, as a spreadsheet saves it."""
    rows = [*csv.reader(io.StringIO(write_form(SHEET).decode("utf-8-sig")))]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting)
    width = 2 + max(map(len, cells.values()))
    for label, value in rows:
        row = [label, *cells.get(label, [value])]
        writer.writerow([*row, *[""] * (width - len(row))])
    return text.getvalue().encode(encoding)


CELLS = {"exercise 8.1": ["0,73", "0,27"], "exercise 13.2": ["1", "0", "0.5", "0.5"]}
TYPED = f"Name: Müller, Zoë\nSHEET: 8.1 13.2 {CODE}\n\nExercise 8.1 = 1/3 2/3\nexercise 13.2\n1 0\n0.5 0.5\n"


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (write_form(SHEET), ["", ""]),
        (resave(";", CELLS), ["0,73;0,27", "1;0;0.5;0.5"]),
        (resave(",", CELLS), ["0,73 , 0,27", "1,0,0.5,0.5"]),
        (resave("\t", CELLS, "utf-16"), ["0,73\t0,27", "1\t0\t0.5\t0.5"]),
        (resave(";", CELLS, "cp1252", csv.QUOTE_ALL), ["0,73 ; 0,27", "1 ; 0 ; 0.5 ; 0.5"]),
        (TYPED.replace("exercise 13.2", "Aufgabe 13.2:").encode(), ["1/3 2/3", "1 0 0.5 0.5"]),
        (TYPED.replace("exercise 13.2", "13,2;").encode(), ["1/3 2/3", "1 0 0.5 0.5"]),
        (TYPED.replace("\n1 0", "\n8.1, 0").encode(), ["1/3 2/3", "8.1, 0 0.5 0.5"]),
        (TYPED.encode(), ["1/3 2/3", "1 0 0.5 0.5"]),
        (f"name,Müller, Zoë\nsheet,8.1 13.2 {CODE}\nexercise 8.1,?\nexercise 13.2,—".encode(), ["", ""]),
    ],
)
def test_what_editors_and_spreadsheets_save(data, answers):
    form = read_form(data)
    assert (form.name, form.numbers, form.code) == ("Müller, Zoë", ("8.1", "13.2"), CODE)
    assert [form.answers[number].replace("  ", " ") for number in form.numbers] == answers


def test_lines_that_belong_to_no_answer_are_kept():
    form = read_form(f"My form\nname,Ada\nsheet,8.1 13.2 {CODE}\nTask one: 1 0\n?\nexercise 8.1,1 0\n".encode())
    assert (form.answers, form.unread) == ({"8.1": "1 0"}, ("My form", "Task one: 1 0"))


def test_a_spreadsheet_of_another_separator_keeps_whole_lines_in_a_cell():
    lines = write_form(SHEET).decode("utf-8-sig").splitlines()
    cells = ['"' + line.replace('"', '""') + '"' for line in lines]
    form = read_form("\n".join([*cells[:2], cells[2] + ";0,73 0,27", cells[3]]).encode())
    assert (form.name, form.code, form.answers) == ("Müller, Zoë", CODE, {"8.1": "0,73 0,27", "13.2": ""})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a form: it has no line 'sheet'"),
        (b"name,Ada\nexercise 13.2,1\n", "not a form: it has no line 'sheet'"),
        (b"name,Ada\nsheet,13.2\n", "not a form: its line 'sheet' is not that of a sheet"),
        (b"name,\nsheet,13.2 bcdfghjk\n", "the form has no name"),
        (b"sheet,13.2 bcdfghjk\n", "the form has no name"),
        (b"PK\x03\x04", "a workbook or another archive, not a form; save it as CSV"),
        (b"%PDF-1.7", "a PDF, not a form; save it as CSV"),
        (b"\x80\x02c\0os", "not text, so not a form; save it as CSV"),
        (b"name,Ada\n" * 200_000, "longer than a form (1 MB)"),
    ],
)
def test_what_is_no_form(data, problem, tmp_path):
    (tmp_path / "a.csv").write_bytes(data)
    assert hand_in(str(tmp_path / "a.csv"), str(tmp_path)) == ("a.csv", None, problem)
    if len(data) < 1000:
        with pytest.raises(DataError):
            read_form(data)
