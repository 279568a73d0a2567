"""The names of a class: files as Canvas, Moodle, Gradescope and spreadsheets write them, and hostile ones."""

import pytest

from attnkit.errors import DataError
from attnkit.formats import Source
from attnkit.teaching.class_list import read_class
from attnkit.teaching.student_names import file_stem, fold_name

MOODLE = "\ufeffFirst name,Surname,ID number,Email address\nAda,Lovelace,17,ada@x.org\nZoë,Müller,18,zoe@x.org\n"
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Quiz 1\n"
    "    Points Possible,,,,,10\n"
    '"Lovelace, Ada",101,s17,ada,A,7\n"Müller, Zoë",102,s18,zoe,A,9\n'
)
GRADESCOPE = "Name,SID,Email,Sections\nAda Lovelace,17,ada@x.org,\nZoë Müller,18,zoe@x.org,\n"
GERMAN = "Matrikelnummer;Nachname;Vorname\r\n17;Lovelace;Ada\r\n18;Müller;Zoë\r\n"
TWO = ["Ada Lovelace", "Zoë Müller"]


def read(data):
    return read_class(Source.of(data.encode() if isinstance(data, str) else data, "names.csv"))


@pytest.mark.parametrize(
    ("text", "names", "origin"),
    [
        (MOODLE, TWO, "2 names under the heading 'First name' and 'Surname'"),
        (CANVAS, ["Lovelace, Ada", "Müller, Zoë"], "2 names under the heading 'Student'"),
        (GRADESCOPE, TWO, "2 names under the heading 'Name'"),
        (GERMAN, TWO, "2 names under the heading 'Vorname' and 'Nachname'"),
        (GERMAN.encode("utf-16"), TWO, "2 names under the heading 'Vorname' and 'Nachname'"),
        ("student_id\tname\n17\tAda  Lovelace \n\n18\tZoë Müller\n\t\n", TWO, "2 names under the heading 'name'"),
        ("email\nada@x.org\n", ["ada@x.org"], "1 name under the heading 'email'"),
        ("17,Ada Lovelace\n18,Zoë Müller\n", TWO, "2 names in column 2, without a heading"),
        ("Ada Lovelace\nZoë Müller", TWO, "2 names on lines of their own"),
        ('"Lovelace, Ada"\nZoë Müller\n', ["Lovelace, Ada", "Zoë Müller"], "2 names on lines of their own"),
        ("Lovelace, Ada;17\nMüller, Zoë;18\n", ["Lovelace, Ada", "Müller, Zoë"], "2 names in column 1, without a"),
        ('name\n"Ada\nLovelace"\n', ["Ada Lovelace"], "1 name under"),
    ],
)
def test_the_names_of_a_course(text, names, origin):
    found = read(text)
    assert [one.name for one in found.students] == names
    assert found.origin.startswith(origin)


def test_the_same_name_has_its_id_behind_it():
    found = read("name,student_id\nJo Li,7\nAda,8\njo  li,9\n")
    assert [(one.name, one.line) for one in found.students] == [("Jo Li (7)", 2), ("Ada", 3), ("jo li (9)", 4)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name\nAda\nada\n", "line 3: 'ada' is the name of line 2 too; a column student_id or email tells them apart"),
        ("name,id\nAda,7\nAda,7\n", "line 3: 'Ada (7)' is the name of line 2 too"),
        ("name,id\nAda,7\n...,8\n", "line 3: no name"),
        ("name,id\nAda,7\n,8\n", "line 3: no name"),
        ("name\n", "no names"),
        ("", "no names"),
        (b"PK\x03\x04\x14", "a workbook or another archive (expected CSV); save it as CSV, UTF-8"),
        (b"name\nZo\xeb\n", "not UTF-8 text (byte 7); save it as CSV, UTF-8"),
        ("name\n" + "a" * 200_000, "line 2: field larger than field limit (131072)"),
    ],
)
def test_what_is_no_list_of_names(text, problem):
    with pytest.raises(DataError) as raised:
        read(text)
    assert (raised.value.name, raised.value.problem) == ("names.csv", problem)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("/", ""),
        ("C:\\boot.ini", "C-boot-ini"),
        ("Zoe\u0308 \u202eM\0u\n", "Zoë-M-u"),
        (".hidden", "hidden"),
        ("-rf *", "rf"),
        ("किरण", "किरण"),
    ],
)
def test_a_name_of_a_file_stays_in_its_folder(name, stem):
    assert file_stem(name) == stem


def test_names_that_differ_have_files_that_differ():
    long = ["ä" * 300, "ä" * 301]
    assert all(len(file_stem(one).encode()) <= 100 for one in long) and file_stem(long[0]) != file_stem(long[1])
    names = ["O'Neil", "O Neil", "ONeil", "किरण", "करण", "Ada (7)", "Ada (8)", "Straße", "Stra e"]
    assert len({fold_name(one) for one in names}) == len({file_stem(one).casefold() for one in names}) == 8
