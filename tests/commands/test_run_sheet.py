"""The worked sheet of a pipeline: every step of every stage with its parameters, blanks for students, all formats."""

import re

import numpy as np
import pytest

import attnkit
from tests.process import run

LAYER = """\
embed "The cat" --dim 4 --seed 1
| attend --heads 2 --seed 3 --residual
| layernorm --gamma gamma.json
| ffn --hidden 3 --seed 2
"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "layer.attnkit").write_text(LAYER)
    (tmp_path / "gamma.json").write_text("[1, 2, 1, 2]")
    return tmp_path


def sheet(here, *words, format="markdown"):
    """The text of a sheet, and its headings in their order."""
    done = run("run", "layer.attnkit", "--steps", "-f", format, *words, cwd=here)
    assert (done.code, done.err) == (0, "")
    return done.out.decode(errors="replace")


def tables(text):
    """Heading -> the rows of numbers below it, of each stage by its number."""
    found, stage, name = {}, "", ""
    for line in text.splitlines():
        if line.startswith("## "):
            stage = line[3:].partition(".")[0]
        elif line.startswith("### "):
            name = f"{stage}.{line[4:].partition(' ')[0]}"
        elif line.startswith("| ") and not set(line) <= set("|-: "):
            found.setdefault(name, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def numbers(rows):
    return np.array([[float(cell) for cell in row[1:]] for row in rows[1:]])


def test_a_sheet_has_every_step_and_parameter_under_its_stage(here):
    text = sheet(here)
    commands = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert commands == [
        "1. attnkit embed 'The cat' --dim 4 --seed 1",
        "2. attnkit attend --heads 2 --seed 3 --residual",
        "3. attnkit layernorm --gamma gamma.json",
        "4. attnkit ffn --hidden 3 --seed 2",
    ]
    found = tables(text)
    attention = ["wq", "wk", "wv", "wo", "q", "k", "v", "scores", "scaled", "weights", "heads", "x"]
    norm = ["gamma", "mean", "variance", "inverse_std", "normalized", "x"]
    network = ["w1", "w2", "hidden", "activated", "x"]
    expected = ["1.ids", "1.x", *(f"2.{one}" for one in attention), *(f"3.{one}" for one in norm)]
    assert [*found] == [*expected, *(f"4.{one}" for one in network)]


def test_the_numbers_of_a_sheet_follow_from_each_other(here):
    """What is printed can be checked by hand: each step from the ones before it, to the digits that it has."""
    found = tables(sheet(here, "--precision", "6"))
    given = numbers(found["3.x"])
    hidden = given @ numbers(found["4.w1"])
    np.testing.assert_allclose(numbers(found["4.hidden"]), hidden, atol=1e-4)
    np.testing.assert_allclose(numbers(found["4.activated"]), np.maximum(hidden, 0), atol=1e-4)
    np.testing.assert_allclose(numbers(found["4.x"]), np.maximum(hidden, 0) @ numbers(found["4.w2"]), atol=1e-4)
    x = attnkit.attend(attnkit.embed("The cat", dim=4, seed=1), heads=2, seed=3, residual=True)["x"]
    np.testing.assert_allclose(numbers(found["2.x"]), x, atol=1e-5)


def blank_cells(rows):
    """The cells beside the labels of rows; of several heads each table begins with the labels of its columns."""
    return {cell for row in rows[1:] if row[0] != rows[0][0] for cell in row[1:]}


SCORES = ["2.scores", "2.scaled", "2.weights", "2.heads", "2.x"]
NORM = ["3.mean", "3.variance", "3.inverse_std", "3.normalized", "3.x"]
NETWORK = ["4.hidden", "4.activated", "4.x"]


@pytest.mark.parametrize(
    ("blank", "empty"),
    [
        ("x", ["2.x", *NORM, *NETWORK]),
        ("weights", ["2.weights", "2.heads", "2.x", *NORM, *NETWORK]),
        ("k,attend.w?", ["2.wq", "2.wk", "2.wv", "2.wo", "2.k", *SCORES, *NORM, *NETWORK]),
        ("v", ["2.v", "2.heads", "2.x", *NORM, *NETWORK]),
        ("variance", ["3.variance", "3.inverse_std", "3.normalized", "3.x", *NETWORK]),
        ("4.ffn.*", ["4.w1", "4.w2", *NETWORK]),
        ("wq,wv", ["2.wq", "2.wv"]),
    ],
)
def test_blank_cells_and_what_is_computed_from_them_have_no_numbers_and_the_others_stay(here, blank, empty):
    whole, found = tables(sheet(here)), tables(sheet(here, "--blank", blank))
    assert [*found] == [*whole]
    for name, rows in found.items():
        if name in empty:
            assert [row[0] for row in rows] == [row[0] for row in whole[name]]
            assert blank_cells(rows) == {"____"}
        else:
            assert rows == whole[name]


def test_what_the_lecture_hands_out_can_be_computed_and_shows_no_answer(tmp_path):
    """Its embeddings are given, and the outputs stand nowhere, not in the heads above them nor in the words below."""
    line = 'embed "The cat" --dim 4 | posenc | mask --causal | attend --heads 2 | decode --top 2'
    given = ["1.ids", "1.x", "2.angle", "2.sine", "2.cosine", "2.encoding", "2.x", "3.mask.causal", "3.mask"]
    whole, found = (
        tables(run("run", line, "--steps", "-f", "markdown", *words, cwd=tmp_path).out.decode())
        for words in ((), ("--blank", "weights,attend.x"))
    )
    shown = {name for name, rows in found.items() if rows == whole[name]}
    assert shown == {*given, "4.q", "4.k", "4.v", "4.scores", "4.scaled", "4.masked"}
    hidden = [rows for name, rows in found.items() if name not in shown]
    assert set.union(*(blank_cells(rows) for rows in hidden)) == {"____"}


@pytest.mark.parametrize("pattern", ["ids", "embed.x", "1.*"])
def test_what_a_sheet_starts_from_is_never_left_out(here, pattern):
    done = run("run", "layer.attnkit", "--steps", "-f", "markdown", "--blank", pattern, cwd=here)
    problem = "is what the sheet starts from; only what is computed from it can be left out (wq, 2.attend.wq, wk"
    assert (done.code, done.out) == (2, b"") and f"attnkit run: --blank: {pattern!r} {problem}" in done.err


def test_the_formats_hold_the_same_sheet(here):
    html = sheet(here, "--title", "One layer", format="html")
    assert "<h2>One layer</h2>" in html and html.count("<h2>4. attnkit ffn") == 1
    assert re.findall(r"<h2>(\w+)", html)[1:] == re.findall(r"^##+ (\w+)", sheet(here), re.MULTILINE)
    assert sheet(here, "--title", "One layer").startswith("# One layer\n\n## 1. attnkit embed")
    assert "4. attnkit ffn" in sheet(here, format="svg")


def test_a_sheet_in_pdf_is_in_pages_of_a4(here):
    pytest.importorskip("matplotlib")
    data = sheet(here, format="pdf")
    boxes = re.findall(r"/MediaBox ?\[ ?0 0 ([0-9.]+) ([0-9.]+)", data)
    assert len(boxes) > 1 and {(round(float(x)), round(float(y))) for x, y in boxes} == {(595, 842)}
