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


def test_statistics_lists_and_differences_are_rows(here):
    assert run("show", "w.npz", "--stats", "-f", "csv")[1].splitlines()[0] == "name,min,max,mean,std,zeros,nan,inf"
    assert run("show", "w.npz", "--list", "-f", "tsv")[1].splitlines()[1] == "x\tfloat32\t4 4\ttoken model\t64"
    code, out, _ = run("diff", "w.npz", "w.npz", "-f", "csv")
    assert code == 0 and out.splitlines()[1].startswith("x,0,16,0.0,0.0,1.0")
    code, out, _ = run("diff", "w.npz:x", "w.npz:weights", "-f", "markdown")
    assert code == 1 and out.startswith("| tensor | differing | size |")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["attend", "w.npz", "--keep", "q", "-f", "csv"], "hold one table, and there is q, x; name one tensor: --only"),
        (["show", "w.npz", "--name", "x,ids", "-f", "csv"], "hold one table, and there is x, ids"),
        (["show", "w.npz", "--heatmap", "-f", "tsv"], "--heatmap: tsv does not hold what it shows"),
        (["show", "w.npz", "--heads", "-o", "a.md"], "--heads: markdown does not hold what it shows"),
        (["diff", "w.npz", "w.npz", "--heatmap", "-f", "csv"], "--heatmap: csv does not hold what it shows"),
        (["history", "w.npz", "-o", "a.csv"], "the result is text, which csv cannot hold"),
        (["run", "embed 'a b' --dim 2 -f csv | attend"], "which the next stage cannot read"),
    ],
)
def test_what_is_no_table_is_an_error(here, arguments, problem):
    code, out, err = run(*arguments)
    assert code in (2, 3) and out == "" and problem in err and err.count("\n") == 1
    assert not (here / "a.csv").exists() and not (here / "a.md").exists()


def test_a_stream_is_an_error_and_csv_is_never_read_back(here):
    code, _, err = run("embed", "--lines", "--dim", "2", "-f", "csv", stdin=b"a b\nc d\n")
    assert code == 3 and "csv holds one record, but the stream has more" in err
    code, _, err = run("attend", stdin=run("embed", "a b", "--dim", "2", "-f", "csv")[1].encode())
    assert code == 3 and "not a tensor file" in err


def test_pipe_and_run_give_the_same_table(here):
    ran = run("run", "embed 'a b' --dim 4 | attend --heads 2", "--format", "csv")[1]
    piped = run("attend", "--heads", "2", "-f", "csv", stdin=run("embed", "a b", "--dim", "4")[1].encode())[1]
    assert ran == piped and ran.startswith("token,0,1,2,3\na,")


def test_text_may_be_a_markdown_file(here):
    assert run("history", "w.npz", "-o", "a.md")[0] == 0
    assert (here / "a.md").read_text().startswith("#!/bin/sh\n")
