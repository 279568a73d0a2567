"""attnkit exercise --class and --mark: folders of sheets and forms, through the real process and in this one."""

import csv
import json
import os
import shlex

import pytest

from tests.process import bash, on_a_terminal, run

NAMES = 'student_id;name\n1;"Lovelace, Ada"\n2;Zoë Müller\n3;../../etc/passwd\n'


@pytest.fixture
def course(tmp_path):
    (tmp_path / "names.csv").write_text(NAMES, "utf-8-sig")
    return tmp_path


def draw(folder, *arguments, to="sheets"):
    return run("exercise", "13.2", "8.1", "--class", "names.csv", "-o", to, *arguments, cwd=folder)


def fill_in(path, **answers):
    """Write answers behind the labels of a form: `_13_2="0.5 0.5"`."""
    text = path.read_text("utf-8-sig")
    for number, answer in answers.items():
        label = f"exercise {number[1:].replace('_', '.')},"
        text = text.replace(label, label + answer)
    path.write_text(text)


def test_a_class_from_names_to_marks_in_processes(course):
    done = bash("attnkit exercise 13.2 8.1 --class names.csv -o sheets -f json", cwd=course)
    assert done.err == "attnkit exercise: note: names.csv: 3 names under the heading 'name'\n"
    sheets = json.loads(done.out)["sheets"]
    assert [one["sheet"] for one in sheets] == ["Lovelace-Ada.txt", "Zoë-Müller.txt", "etc-passwd.txt"]
    files = {f"{one['sheet'][:-4]}{end}" for one in sheets for end in (".txt", "-form.csv")}
    assert {*os.listdir(course / "sheets")} == files and {*os.listdir(course)} == {"names.csv", "sheets"}
    text = (course / "sheets" / "Lovelace-Ada.txt").read_text()
    assert text.startswith(f"Lovelace, Ada\nSheet 13.2 8.1 {sheets[0]['code']}\n\n13.2 Temperature\n")
    alone = bash(f"attnkit exercise 13.2 --seed {sheets[0]['seed']}", cwd=course).out.decode()
    assert alone.split("\n\n")[2] in text

    solutions = bash("attnkit exercise 13.2 8.1 --class names.csv --solution -q", cwd=course)
    answers = [*csv.reader(solutions.out.decode().splitlines())]
    assert answers[0] == ["name", "exercise", "answer"] and len(answers) == 7
    fill_in(course / "sheets" / "Lovelace-Ada-form.csv", _13_2=answers[1][2], _8_1=answers[2][2])
    done = bash("attnkit exercise --mark sheets --class names.csv -o marks.csv", cwd=course)
    rows = [*csv.reader((course / "marks.csv").read_text().splitlines())]
    assert rows[0] == ["name", "13.2", "8.1", "points", "total", "note"]
    assert rows[1] == ["Lovelace, Ada", "right", "right", "2", "2", ""]
    assert rows[2] == ["Zoë Müller", "blank", "blank", "0", "2", ""]
    assert done.out == b"" and "Lovelace, Ada" in done.err and "3 of 3 marked, 33 % of the points" in done.err


def test_the_same_name_draws_the_same_sheet(course):
    first, second = draw(course, "-q"), draw(course, "-q", to="again")
    assert first == second and first.code == 0
    for path in (course / "sheets").iterdir():
        assert path.read_bytes() == (course / "again" / path.name).read_bytes()
    (course / "names.csv").write_text("name\nzoë  müller\n")
    assert draw(course, "-q", to="other").code == 0
    old, new = ((course / one / "Zoë-Müller.txt") for one in ("sheets", "other"))
    assert not new.exists() and old.read_text().lower() == (course / "other" / "zoë-müller.txt").read_text().lower()


def test_a_secret_seed_draws_other_sheets_and_marks_need_it(course):
    assert draw(course, "--seed", "2027", "-q").code == draw(course, "-q", to="open").code == 0
    name = "Zoë-Müller.txt"
    assert (course / "sheets" / name).read_text() != (course / "open" / name).read_text()
    marked = json.loads(run("exercise", "--mark", "sheets", "--seed", "2027", "-f", "json", cwd=course).out)["marks"]
    assert [one["points"] for one in marked] == [0, 0, 0]
    refused = json.loads(run("exercise", "--mark", "sheets", "-f", "json", cwd=course).out)["marks"]
    assert all(one["points"] is None and "no --seed" in one["note"] for one in refused)


def test_no_file_is_replaced_by_another(course):
    assert draw(course).code == 0 and draw(course).code == 0
    form = course / "sheets" / "Zoë-Müller-form.csv"
    fill_in(form, _13_2="1 2")
    filled = form.read_bytes()
    (course / "names.csv").write_text(NAMES + "4;Eve\n")
    done = draw(course, "-q")
    problem = "it exists with other content, perhaps filled in; nothing was written, name another folder"
    assert (done.code, done.err) == (4, f"attnkit exercise: sheets/Zoë-Müller-form.csv: {problem}\n")
    assert form.read_bytes() == filled and not (course / "sheets" / "Eve.txt").exists()
    form.unlink()
    assert draw(course, "-q").code == 0 and (course / "sheets" / "Eve.txt").exists() and form.exists()


def test_the_output_of_marks_is_no_form(course):
    draw(course)
    path = "sheets/Zoë-Müller-form.csv"
    done = run("exercise", "--mark", "sheets", "-o", path, cwd=course)
    assert (done.code, done.err) == (2, f"attnkit exercise: --output: {path} is one of the forms, and would be lost\n")
    for _ in range(2):
        assert run("exercise", "--mark", "sheets", "-q", "-o", "sheets/marks.csv", cwd=course).code == 0
    assert len((course / "sheets" / "marks.csv").read_text().splitlines()) == 4


def test_files_of_a_learning_platform(course):
    """A folder for each student, hidden files, links that lead nowhere, a picture, and a FIFO."""
    draw(course)
    forms = course / "forms"
    for name in ("Lovelace-Ada", "Zoë-Müller"):
        (forms / f"{name}_12345_file").mkdir(parents=True)
        (course / "sheets" / f"{name}-form.csv").rename(forms / f"{name}_12345_file" / "form (1).csv")
    (forms / ".DS_Store").write_bytes(b"\0")
    (forms / "photo.png").write_bytes(b"\x89PNG\0")
    (forms / "lost.csv").symlink_to("nowhere")
    os.mkfifo(forms / "pipe")
    done = run("exercise", "--mark", "forms", "-f", "csv", cwd=course)
    rows = [*csv.reader(done.out.decode().splitlines())]
    assert [row[0] for row in rows] == ["name", "Lovelace, Ada", "Zoë Müller", "photo.png"]
    assert rows[3][-1] == "not text, so not a form; save it as CSV"
    assert run("exercise", "--mark", "forms/photo.png", "-f", "csv", cwd=course).code == 0


@pytest.mark.parametrize("kind", ["markdown", "html"])
def test_sheets_as_documents(course, kind):
    assert draw(course, "-f", kind, "-q").code == 0
    suffix = "md" if kind == "markdown" else kind
    text = (course / "sheets" / f"Zoë-Müller.{suffix}").read_text()
    assert "Zoë Müller" in text and "13.2 Temperature" in text
    assert len(run("exercise", "--mark", "sheets", "-f", "csv", cwd=course).out.splitlines()) == 4  # no sheet is a form


def test_options_of_figures_are_those_of_the_sheets(course):
    for options in ("-o a -f html --theme dark -q", "-o b -f html -q"):
        assert run("exercise", "3.1", "--class", "names.csv", *options.split(), cwd=course).code == 0
    dark, light = ((course / one / "Zoë-Müller.html").read_text() for one in "ab")
    assert dark != light and "One-hot" in dark
    listed = run("exercise", "3.1", "--class", "names.csv", "-f", "html", "-q", cwd=course)
    assert listed.out.startswith(b"<!DOCTYPE html>") and {*os.listdir(course)} == {"names.csv", "a", "b"}


@pytest.mark.parametrize(
    "line", ["run 'exercise 3.1 --class names.csv -o a' -q", "run 'exercise 3.1 --class names.csv' -o a -q"]
)
def test_a_pipeline_draws_the_same_sheets(course, line):
    alone = run("exercise", "3.1", "--class", "names.csv", "-o", "b", "-q", cwd=course)
    assert run(*shlex.split(line), cwd=course) == alone
    assert {*os.listdir(course / "a")} == {*os.listdir(course / "b")}


def test_a_terminal_shows_a_summary(course):
    draw(course)
    fill_in(course / "sheets" / "Zoë-Müller-form.csv", _8_1="1 1 1 0 1 1 0 0 1")
    (course / "sheets" / "bad\x1b[2J.csv").write_text("name,x")
    shown = on_a_terminal("attnkit exercise --mark sheets", course, COLUMNS="100")
    assert "name" in shown and "points" in shown and "2J" in shown and "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        ("--class names.csv --answer 1", 2, "--answer: cannot be combined with --class"),
        ("--mark sheets --answer 1", 2, "--answer: cannot be combined with --mark"),
        ("--mark sheets --solution", 2, "--mark: cannot be combined with --solution"),
        ("13.2 --mark sheets", 2, "--mark: cannot be combined with NUMBER: the forms name their exercises"),
        ("5.2 5.3", 2, "expected one exercise, got 2: 5.2 5.3"),
        ("99.1 --class names.csv", 2, "no exercise '99.1'; did you mean 9.1?"),
        ("--class none.csv", 4, "none.csv: No such file or directory"),
        ("--class empty.csv -q", 3, "empty.csv: no names"),
        ("--mark none", 4, "none: No such file or directory"),
        ("--mark void", 3, "void: no forms"),
        ("13.2 --class names.csv -q -o names.csv", 4, "names.csv: cannot make this folder: File exists"),
        ("13.2 --class names.csv -q -o -", 2, "--output: expected the name of a folder, got '-'"),
        (
            "13.2 --class names.csv -q -f npz",
            2,
            "--format: the result is text, which npz cannot hold (expected json, csv,",
        ),
    ],
)
def test_what_is_refused(course, arguments, code, problem):
    (course / "void").mkdir()
    (course / "empty.csv").touch()
    done = run("exercise", *arguments.split(), cwd=course)
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith(f"attnkit exercise: {problem}") and done.err.count("\n") == 1


def test_chapters_and_names_from_standard_input(course):
    done = run("exercise", "masks", "3", "3.2", "--class", "-", "--solution", "-f", "json", stdin=b"name\nAda\n")
    assert [one["exercise"] for one in json.loads(done.out)["answers"]] == ["8.1", "8.2", "3.1", "3.2"]
    done = run("exercise", "3", "--class", "-", "-f", "json", "-q", stdin=b"name\nAda\n")
    assert len(json.loads(done.out)["sheets"]) == 1 and done.err == ""
