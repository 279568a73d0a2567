"""The form of a sheet: a CSV file with a line for each answer of a student."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from attnkit.display.cells import Cells, format_cells
from attnkit.errors import DataError, FileError, escaped, shortened, system_reason
from attnkit.formats import open_source
from attnkit.teaching.sheets import CODE_LENGTH, StudentSheet
from attnkit.teaching.student_names import fold_name

LONGEST_FORM, LONGEST_HEADING = 1 << 20, 1000  # bytes of a form, characters of its line `sheet`
NUMBER = r"(?P<number>\d{1,3}[.,]\d{1,3})(?![\w.])"
REST = r"""["']*+\s*[,;:=|]?(?P<rest>.*)"""
LABEL = re.compile(
    rf"""[\s"',;]*+(?P<what>(?:name|sheet)(?![\w.])|exercise\s*{NUMBER}){REST}""",
    re.IGNORECASE,
)
OTHER_LABEL = re.compile(rf"""[\s"',;]*+(?:[^\W\d]+\s+)?{NUMBER}(?=["'\s]*[,;:=|\t]){REST}""")  # Aufgabe 5.1, 5.1:
HEADING = re.compile(rf"((?:\d+\.\d+\s+)+)([a-z]{{{CODE_LENGTH}}})(?![\w.])")
EMPTY = re.compile(r"[\W_]*")  # without a letter, a digit: an answer that is left out, as ? or —
OTHER_FILES = {
    b"PK\x03\x04": "a workbook or another archive",
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "a workbook or a document",
    b"{\\rtf": "a document",
}


class Form(NamedTuple):
    """A form that a student has handed in.

    answers  the number of an exercise -> what is written on its line and on those below it; without a letter, a digit
             or an infinity it is ""
    unread   the lines that belong to no answer
    """

    name: str
    numbers: tuple[str, ...]
    code: str
    answers: Mapping[str, str]
    unread: tuple[str, ...] = ()


class HandedIn(NamedTuple):
    """A file that was handed in: the form in it, or why there is none."""

    path: str
    form: Form | None
    problem: str = ""


def write_form(sheet: StudentSheet) -> bytes:
    r"""The form of a sheet, to be filled in, with a mark by which Excel reads UTF-8.

    >>> write_form(StudentSheet("O'Neil, Zoe", 1, [])).decode("utf-8-sig").splitlines()[0]
    'name,"O\'Neil, Zoe"'
    """
    rows = [["name", sheet.name], ["sheet", sheet.heading], *([f"exercise {one}", ""] for one in sheet.numbers)]
    return ("\ufeff" + format_cells(Cells([*rows[0]], rows[1:]), "csv")).encode()


def read_form(data: bytes) -> Form:
    r"""Read a form as an editor or a spreadsheet has saved it.

    Its cells are separated by commas, semicolons or tabs, or a line has the label and the answer alone. A label may be
    the number of an exercise that no other line is labelled with.

    DataError for what is not a form.

    >>> form = read_form(b"name;Ada\nsheet;5.1 5.2 bcdfghjk;\nexercise 5.1;0,73;0,27\nexercise 5.2:\n 1/3\n")
    >>> form.name, form.numbers, form.answers
    ('Ada', ('5.1', '5.2'), {'5.1': '0,73;0,27', '5.2': '1/3'})
    """
    lines = _decode(data).splitlines()
    labelled = [match for match in map(LABEL.match, lines) if match]
    headers = {match["what"].lower(): _unquote(match["rest"]) for match in reversed(labelled)}
    heading = HEADING.search(headers.get("sheet", "")[:LONGEST_HEADING].lower())
    if not heading:
        missing = "its line 'sheet' is not that of a sheet" if "sheet" in headers else "it has no line 'sheet'"
        raise DataError(f"not a form: {missing}")
    if not fold_name(headers.get("name", "")):
        raise DataError("the form has no name")
    numbers = tuple(heading[1].split())
    others = {*numbers} - {_number_of(match) for match in labelled}  # whose labels were edited
    answers: dict[str, list[str]] = {}
    unread = below = list[str]()  # the answer that lines without a label belong to
    for line in lines:
        label, other = LABEL.match(line), OTHER_LABEL.match(line)
        label = label or (other if other and _number_of(other) in others else None)
        if label and not label["number"]:
            below = unread
            continue
        if label:
            below = answers.setdefault(_number_of(label), [])
        below.append(label["rest"] if label else line)
    texts = {number: _clean(" ".join(lines)) for number, lines in answers.items()}
    return Form(
        shortened(escaped(headers["name"])), numbers, heading[2], texts, tuple(filter(None, map(_clean, unread)))
    )


def _number_of(label: re.Match[str]) -> str:
    """The number of the exercise of a label; "" for a label of the heading."""
    return (label["number"] or "").replace(",", ".")


def _unquote(cell: str) -> str:
    return cell.replace('""', '"').strip(' \t,;"')


def _clean(text: str) -> str:
    """An answer without the quotes and the empty cells of a spreadsheet."""
    text = text.replace('"', " ").strip(" \t,;")
    return "" if EMPTY.fullmatch(text.replace("∞", "0")) else text


def _decode(data: bytes) -> str:
    """The text of a form: UTF-8, the UTF-16 of Excel, or the encoding of Windows."""
    for start, what in OTHER_FILES.items():
        if data.startswith(start):
            raise DataError(f"{what}, not a form; save it as CSV")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        raise DataError("not text, so not a form; save it as CSV")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def hand_in(path: str, folder: str) -> HandedIn:
    """Read a file that was handed in, and call it by its path in the folder."""
    name = escaped(os.path.relpath(path, folder) if os.path.isdir(folder) else path)
    try:
        with open_source(path) as source:
            data = source.peek(LONGEST_FORM + 1)
        if len(data) > LONGEST_FORM:
            raise DataError("longer than a form (1 MB)")
        return HandedIn(name, read_form(data))
    except (DataError, FileError) as error:
        return HandedIn(name, None, error.problem)


def find_forms(path: str) -> list[str]:
    """Find the files of a folder and of the folders in it, those handed in.

    Not hidden ones, nor a sheet beside its form. FileError for a folder that cannot be listed.
    """
    if os.path.isfile(path):
        return [path]
    found: list[str] = []
    for folder, folders, names in os.walk(path, onerror=_raise_file_error):
        folders[:] = sorted(one for one in folders if not one.startswith((".", "__MACOSX")))
        present = {*names}
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            is_sheet = suffix != ".csv" and f"{stem}-form.csv" in present
            file = os.path.join(folder, name)
            if not (name.startswith(".") or is_sheet) and os.path.isfile(file):
                found.append(file)
    return found


def _raise_file_error(error: OSError) -> None:
    raise FileError(system_reason(error), str(error.filename)) from error
