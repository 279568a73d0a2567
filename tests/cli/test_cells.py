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


def test_a_stream_is_an_error(here):
    code, _, err = run("embed", "--lines", "--dim", "2", "-f", "csv", stdin=b"a b\nc d\n")
    assert code == 3 and "csv holds one record, but the stream has more" in err


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


def test_peek_passes_a_table_through_and_converts_it_on_request(here):
    assert run("peek", "-q", stdin=b"1,2\n3,4\n")[1] == "1,2\n3,4\n"
    assert '"data":[[1,2],[3,4]]' in run("peek", "-q", "-f", "json", stdin=b"1,2\n3,4\n")[1]
    assert run("peek", "-q", "-f", "csv", stdin=b"1 2\n3 4\n")[1] == "token,0,1\n0,1,2\n1,3,4\n"


def test_a_table_for_eyes_names_what_a_pipe_needs(here):
    for view in ([], ["--heatmap"], ["--list"], ["--stats"]):
        code, out, err = run("layernorm", stdin=run("show", "w.npz", *view)[1].encode())
        assert (code, out) == (3, "")
        assert err.endswith(
            "looks like text); show -f json writes tensors, and peek shows them in the middle of a pipe\n"
        )


def test_pipe_and_run_give_the_same_table(here):
    ran = run("run", "embed 'a b' --dim 4 | attend --heads 2", "--format", "csv")[1]
    piped = run("attend", "--heads", "2", "-f", "csv", stdin=run("embed", "a b", "--dim", "4")[1].encode())[1]
    assert ran == piped and ran.startswith("token,0,1,2,3\na,")


def test_text_may_be_a_markdown_file(here):
    assert run("history", "w.npz", "-o", "a.md")[0] == 0
    assert (here / "a.md").read_text().startswith("#!/bin/sh\n")


def test_markdown_of_one_head_is_a_matrix(here):
    lines = run("show", "w.npz:weights", "-f", "markdown")[1].splitlines()
    assert lines[0] == "| query | The | = | cat | sat |" and len(lines) == 6


@pytest.mark.parametrize("kind", ["masked", "weights"])
def test_masked_cells_look_alike_however_the_tensor_is_requested(here, kind):
    stdin = run("embed", "The cat", "--dim", "4", "-f", "json")[1].encode()
    emitted, kept = (
        run("attend", "--causal", flag, kind, "-f", "npz", "-o", f"{flag[2:]}.npz", stdin=stdin)
        for flag in ("--emit", "--keep")
    )
    assert emitted[0] == kept[0] == 0
    tables = [run("show", name)[1].splitlines()[1:6] for name in ("emit.npz", f"keep.npz:{kind}")]
    assert tables[0] == tables[1] and tables[0][3].split()[-1] == "·" and tables[0][0] == "head 0"
