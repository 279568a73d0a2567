"""-f csv, tsv and markdown of every tool, in the real process."""

import csv
import io

import numpy as np
import pytest

import attnkit
from attnkit.formats import save
from tests import process


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(attnkit.attend(attnkit.embed("The =cat sat", dim=4), keep=("weights",)), "w.npz")
    return tmp_path


def run(*arguments, stdin=b""):
    code, out, err = process.run(*arguments, stdin=stdin)
    return code, out.decode(), err


@pytest.mark.parametrize("suffix", ["csv", "tsv", "md"])
def test_the_suffix_chooses_the_format(here, suffix):
    name = "markdown" if suffix == "md" else suffix
    assert run("show", "w.npz:weights", "-o", f"w.{suffix}") == (0, "", "")
    assert (here / f"w.{suffix}").read_text() == run("show", "w.npz:weights", "-f", name)[1]


def test_numbers_and_labels_are_those_of_the_record(here):
    rows = list(csv.reader(io.StringIO(run("show", "w.npz:weights", "--slice", "0", "-f", "csv")[1])))
    assert rows[0] == ["query", "The", "=", "cat", "sat"] and [row[0] for row in rows[1:]] == ["The", "=", "cat", "sat"]
    weights = np.load("w.npz")["weights"][0]
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], weights.dtype), weights)


@pytest.mark.parametrize("format", ["csv", "tsv"])
def test_a_table_is_the_input_of_every_tool_as_the_record_is(here, format):
    """The numbers are those of the record; words label the rows of the result."""
    table = run("embed", "The cat", "--dim", "4", "-f", format)[1].encode()
    record = run("embed", "The cat", "--dim", "4", "--only", "x", "-f", "json")[1].encode()
    of_table, of_record = (run("attend", "--dtype", "float32", "-f", "csv", stdin=data)[1] for data in (table, record))
    assert of_table == of_record and of_table.startswith("token,0,1,2,3\nThe,")
    (here / "mask.csv").write_text("1,0\n1,1\n")
    causal = run("attend", "--causal", "--only", "x", stdin=record)[1].split("history")[0]
    assert run("attend", "--mask", "mask.csv", "--only", "x", stdin=record)[1].split("history")[0] == causal
