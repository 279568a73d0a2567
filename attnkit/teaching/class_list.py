"""The names of a class: a CSV file as courses export it, or a name on each line."""

import csv
import io
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attnkit.errors import DataError, counted
from attnkit.formats import Source
from attnkit.formats.streams import name_errors
from attnkit.teaching.student_names import fold_name

LONGEST_LIST = 1 << 24  # bytes of a file of names
SEPARATORS = ("\t", ";", ",")
ALONE = "\x1f"  # a separator that no line has: each line is one field
# headings without capitals, accents, blanks and punctuation
NAMES = ("name", "fullname", "studentname", "student", "students", "displayname")
FIRST_NAMES = ("firstname", "first", "givenname", "forename", "vorname", "prenom", "nombre")
LAST_NAMES = ("lastname", "last", "surname", "familyname", "nachname", "nom", "apellidos")
IDS = (
    "studentid", "studentnumber", "id", "idnumber", "sid", "sisuserid", "matrikelnummer", "matriculationnumber",
    "username", "login", "loginid", "sisloginid", "email", "emailaddress", "mail",
)  # fmt: skip
NO_STUDENTS = ("points possible", "student test")  # rows of a gradebook that are no students


class Student(NamedTuple):
    """A student: the name on the sheet, and the line of the file that states it."""

    name: str
    line: int


class ClassList(NamedTuple):
    """The students of a class, and in words where their names are from."""

    students: Sequence[Student]
    origin: str


class _Line(NamedTuple):
    number: int
    fields: Sequence[str]


def read_class(source: Source) -> ClassList:
    r"""Read the students of a class.

    The names are in the column `name`, or in those of first and last names, otherwise in a column of ids or addresses;
    without headings in the first column of words. Students with the same name have their id behind it.

    DataError for a row without a name, and for a name that occurs twice and has no id.

    >>> read_class(Source.of(b"student_id;name\n7;Ada\n8;Alan\n9;Ada\n")).students
    [Student(name='Ada (7)', line=2), Student(name='Alan', line=3), Student(name='Ada (9)', line=4)]
    >>> read_class(Source.of(b"Ada\nAlan\n")).origin
    '2 names on lines of their own'
    """
    with name_errors(source.name):
        lines, separator = _split_lines(_read_text(source))
    heads = [_squash(head) for head in lines[0].fields] if lines else []
    columns = _find_names(heads)
    ids = next((heads.index(one) for one in IDS if one in heads), None)
    if columns:
        where = f"under the heading {' and '.join(repr(lines[0].fields[at].strip()) for at in columns)}"
        lines = lines[1:]
    else:
        columns = [_first_words(lines)]
        where = "on lines of their own" if separator == ALONE else f"in column {columns[0] + 1}, without a heading"
    named = [(line, _join_fields(line, columns)) for line in lines]
    named = [(line, name) for line, name in named if fold_name(name) not in NO_STUDENTS]
    if not named:
        raise DataError("no names", source.name)
    students = [*_name_students(named, ids if ids not in columns else None, source.name)]
    return ClassList(students, f"{counted(len(students), 'name')} {where}")


def _read_text(source: Source) -> str:
    data = source.peek(LONGEST_LIST + 1)
    if len(data) > LONGEST_LIST:
        raise DataError("too long for a list of names (16 MB)", source.name)
    if data.startswith(b"PK\x03\x04"):
        raise DataError("a workbook or another archive (expected CSV); save it as CSV, UTF-8", source.name)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start}); save it as CSV, UTF-8", source.name) from None


def _split_lines(text: str) -> tuple[list[_Line], str]:
    """The lines with a field, and the separator by which all have several fields.

    Otherwise the one by which the first line has several; ALONE if there is none.
    """
    parsed = {mark: [*_parse(text, mark)] for mark in (*SEPARATORS, ALONE)}
    split = [mark for mark in SEPARATORS if parsed[mark] and len(parsed[mark][0].fields) > 1]
    whole = [mark for mark in split if all(len(line.fields) > 1 for line in parsed[mark])]
    chosen = [*whole, *split, ALONE][0]
    return parsed[chosen], chosen


def _parse(text: str, separator: str) -> Iterator[_Line]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    start = 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield _Line(start, fields)
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"line {start}: {error}") from None


def _squash(heading: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", heading.casefold()) if one.isalnum())


def _find_names(heads: Sequence[str]) -> list[int]:
    """The columns of the names by their headings; [] if no heading is known.

    >>> _find_names(["id", "name"]), _find_names(["surname", "firstname"]), _find_names(["email"]), _find_names(["ada"])
    ([1], [1, 0], [0], [])
    """
    whole, first, last, ids = (
        next((heads.index(one) for one in known if one in heads), None)
        for known in (NAMES, FIRST_NAMES, LAST_NAMES, IDS)
    )
    for columns in ([whole], [first, last], [ids]):
        if found := [at for at in columns if at is not None]:
            return found
    return []


def _first_words(lines: Sequence[_Line]) -> int:
    """The first column of words without digits and addresses, otherwise the first one."""
    for at in range(len(lines[0].fields) if lines else 0):
        cells = [line.fields[at] for line in lines if at < len(line.fields)]
        if all(fold_name(cell) and not any(one.isdigit() or one == "@" for one in cell) for cell in cells):
            return at
    return 0


def _join_fields(line: _Line, columns: Sequence[int]) -> str:
    fields = [line.fields[at] for at in columns if at < len(line.fields)]
    return " ".join(" ".join(fields).split())


def _name_students(named: Sequence[tuple[_Line, str]], ids: int | None, source: str) -> Iterator[Student]:
    """Yield the students, those with the same name with their id behind it."""
    counts: dict[str, int] = {}
    for line, name in named:
        if not (key := fold_name(name)):
            raise DataError(f"line {line.number}: no name", source)
        counts[key] = counts.get(key, 0) + 1
    lines: dict[str, int] = {}
    for line, name in named:
        own = line.fields[ids].strip() if ids is not None and ids < len(line.fields) else ""
        name = f"{name} ({own})" if counts[fold_name(name)] > 1 and own else name
        if first := lines.get(fold_name(name)):
            hint = "" if own else "; a column student_id or email tells them apart"
            raise DataError(f"line {line.number}: {name!r} is the name of line {first} too{hint}", source)
        lines[fold_name(name)] = line.number
        yield Student(name, line.number)
