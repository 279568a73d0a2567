"""show, peek, diff, run and history as functions of Python; records as a notebook shows them."""

import html.parser
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.display.figures import canvas
from attnkit.errors import DifferentError, UsageError
from attnkit.records import Record
from tests import process

EMBED = 'embed "The cat sat" --dim 4'
RECORD = attnkit.attend(attnkit.embed("The cat sat", dim=4), heads=2, causal=True, keep="weights")
FLAGS = [{}, {"heatmap": True}, {"stats": True}, {"list": True}, {"name": "weights", "heads": True}, {"slice": "0,:2"}]


def words(flags):
    return [word for name, value in flags.items() for word in [f"--{name}", *([value] if value is not True else [])]]


class Page(html.parser.HTMLParser):
    """The tags and the text of a page, whose elements must be closed in the order of their start."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, tag):
        return sum(one == tag for one, _ in self.tags)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_show_is_the_text_of_the_command(flags, tmp_path):
    formats.save(RECORD, str(tmp_path / "r.npz"))
    shell = process.run("show", "r.npz", *words(flags), cwd=tmp_path, env={"NO_COLOR": "1", "COLUMNS": "80"})
    shown = attnkit.show(str(tmp_path / "r.npz"), **flags)
    assert f"{shown}\n" == shell.out.decode() and repr(shown) == str(shown)
    Page(shown._repr_html_())


def test_show_takes_what_a_tool_takes():
    assert str(attnkit.show([[1.0, 2.0]], precision=1)).splitlines()[-1] == "0            1.0  2.0"
    with pytest.raises(UsageError, match="--heatmap: cannot be combined with --stats"):
        attnkit.show(RECORD, heatmap=True, stats=True)
    with pytest.raises(UsageError, match="show takes 1 by position, got 2"):
        attnkit.show(RECORD, RECORD)
    with pytest.raises(UsageError, match=r"show takes no 'heatmpa'; did you mean heatmap\?"):
        attnkit.show(RECORD, heatmpa=True)


def test_a_model_is_shown_as_its_text():
    folder = pathlib.Path(__file__).parents[2] / "samples" / "data" / "story"
    shown = attnkit.show(folder)
    assert "model_type" in str(shown) and "<pre" in shown._repr_html_()
    assert str(attnkit.show(folder, pipeline="decoder.0")).startswith("attnkit ")


def test_peek_shows_a_record_on_standard_error_and_returns_it(capsys):
    passed = attnkit.peek(RECORD, stats=True)
    assert passed.history == RECORD.history and passed.labels == RECORD.labels
    assert all(passed[name] is RECORD[name] for name in RECORD)
    shown = capsys.readouterr()
    assert shown.err == f"{attnkit.show(RECORD, stats=True)}\n" and shown.out == ""


def test_run_gives_the_record_of_the_calls_and_of_the_shell(tmp_path):
    by_run = attnkit.run(f"{EMBED} | posenc | attend --heads 2 --keep weights")
    by_calls = attnkit.attend(attnkit.posenc(attnkit.embed("The cat sat", dim=4)), heads=2, keep="weights")
    line = f"attnkit {EMBED} | attnkit posenc | attnkit attend --heads 2 --keep weights -f npz"
    (tmp_path / "shell.npz").write_bytes(process.bash(line, cwd=tmp_path).out)
    data = [b"".join(map(bytes, formats.encode(one, "npz"))) for one in (by_run, by_calls)]
    assert data == [(tmp_path / "shell.npz").read_bytes()] * 2


@pytest.mark.parametrize(
    "kind", [lambda record, file: record, lambda record, file: file, lambda record, file: record["x"]]
)
def test_run_takes_a_record_an_array_or_a_file(kind, tmp_path):
    formats.save(RECORD, str(tmp_path / "r.npz"))
    result = attnkit.run("layernorm | ffn --hidden 3", kind(RECORD, str(tmp_path / "r.npz")))
    np.testing.assert_array_equal(result["x"], attnkit.ffn(attnkit.layernorm(RECORD), hidden=3)["x"])


def test_run_reads_a_pipeline_from_a_path_and_ends_with_any_tool(tmp_path):
    (tmp_path / "p.attnkit").write_text("# a comment\nlayernorm |\nshow --heatmap\n")
    shown = attnkit.run(tmp_path / "p.attnkit", RECORD)
    assert str(shown).startswith("x (token 3, model 4) float32\n") and shown._repr_html_().startswith("<svg")
    assert attnkit.run(f"{EMBED} | decode --emit ids", only="x")["x"].shape == (3,)


def test_a_notebook_without_matplotlib_shows_a_view_as_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    canvas.load_matplotlib.cache_clear()
    shown = attnkit.show(RECORD, name="weights", heatmap=True)._repr_html_()
    assert shown.startswith("<pre") and "weights (head 2" in shown and "pip install &#x27;.[figures]" in shown


def test_run_gives_the_records_of_a_stream(tmp_path):
    (tmp_path / "s.json").write_text("[[1,2]]\n[[3,4]]\n")
    streamed = attnkit.run("mask --causal", str(tmp_path / "s.json"))
    assert [one["x"].tolist() for one in streamed] == [[[1, 2]], [[3, 4]]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("posenc",), "posenc needs a record or an array: attnkit.run"),
        ((), "one pipeline: attnkit.run"),
        ((3,), "one pipeline: attnkit.run"),
        (("posenc -o x.npz", RECORD), "--output: Python writes no result to a file"),
        (("posenc | nothing", RECORD), "no tool 'nothing'"),
    ],
)
def test_what_run_refuses(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        attnkit.run(*arguments)


def test_history_is_the_script_and_replays_it():
    script = attnkit.history(RECORD)
    assert script.startswith("#!/bin/sh\n# made by attnkit ") and "attnkit attend --heads 2 --causal" in script
    assert attnkit.history(RECORD, replay=True) == "2 commands run again: identical bit for bit"
    changed = Record({**RECORD.arrays(), "x": RECORD["x"] + 1}, RECORD.labels, RECORD.history)
    with pytest.raises(DifferentError, match="x of stage 2, attend, differs first at"):
        attnkit.history(changed, replay=True)


def test_diff_of_python_is_that_of_the_shell(tmp_path):
    other = RECORD.with_tensors({"x": RECORD["x"] * 2})
    for name, one in (("a", RECORD), ("b", other)):
        formats.save(one, str(tmp_path / f"{name}.npz"))
    files = [str(tmp_path / "a.npz"), tmp_path / "b.npz"]
    reports = [
        attnkit.diff(*files),
        attnkit.diff(RECORD, files[1]),
        attnkit.diff(files[0], other),
        attnkit.diff(RECORD, other),
    ]
    shell = process.run("diff", "a.npz", "b.npz", cwd=tmp_path, env={"COLUMNS": "80"})
    assert {f"{report}\n" for report in reports} == {shell.out.decode()} and shell.code == 1
    assert not any(report.same for report in reports)
    assert sorted(reports[0].history[-1]["files"]) == sorted(map(os.fspath, files))
    assert attnkit.diff(RECORD, RECORD).same and attnkit.diff(RECORD, other, only=["ids", "weights"]).same
    page = Page(reports[0]._repr_html_())
    assert page.count("table") == 1 and page.count("tr") == 1 + len(RECORD) and "max |a−b|" in page.texts


def test_heat_maps_of_a_difference_are_below_its_table():
    report = attnkit.diff([[1.0, 2.0]], [[1.0, 2.5]], heatmap=True)
    assert "\nx: A − B (token 1, model 2) float64\n" in str(report)
    page = Page(report._repr_html_())
    assert page.count("table") == 2 and "-0.50" in page.texts and "-0.5" in "".join(page.texts)
    assert Page(attnkit.diff([[1.0, 2.0]], [[1.0, 2.5]])._repr_html_()).count("table") == 1
    assert Page(attnkit.diff([1.0], [1.0], heatmap=True)._repr_html_()).count("table") == 1


def test_diff_of_an_array_is_of_x_alone():
    assert attnkit.diff(RECORD, RECORD["x"]).labels["tensor"] == ["x"]
    assert attnkit.diff([[1.0, 2.0]], [[1.0, 2.5]], atol=0.5).same
    for wrong in ((RECORD,), (RECORD, None), ()):
        with pytest.raises(UsageError):
            attnkit.diff(*wrong)


def test_a_record_is_html_in_a_notebook():
    page = Page(RECORD._repr_html_())
    assert page.count("table") == 5  # x, ids, table, two heads
    assert page.count("script") == 0 and not [name for _, given in page.tags for name in given if name.startswith("on")]
    numbers = [text for text in page.texts if re.fullmatch(r"-?[0-9]+\.[0-9]{4}|·", text)]
    assert numbers[0] == f"{RECORD['x'][0, 0]:.4f}" and numbers.count("·") == 6  # what causal attention masks
    assert [text for text in page.texts if text in ("The", "cat", "sat")][:3] == ["The", "cat", "sat"]


def test_matrices_are_heat_maps_and_many_tensors_a_list():
    x = np.linspace(-1, 1, 100).reshape(10, 10)
    page = Page(Record({"x": x})._repr_html_())
    fills = [given["style"] for tag, given in page.tags if tag == "td"]
    assert len(fills) == 100 and "#2166ac" in fills[0] and "#b2182b" in fills[-1]
    page = Page(Record({f"t{at}": x for at in range(9)})._repr_html_())
    assert page.count("table") == 1 and page.texts[3:6] == ["t0", "(token 10, model 10)", "float64"]
    tall = Page(Record({"x": np.zeros((1000, 200))})._repr_html_())
    assert tall.count("td") <= 49 * 49 and "… 952 more" in tall.texts


@pytest.mark.parametrize(
    "array",
    [
        np.float64(3),
        np.zeros(0),
        np.zeros((2, 0)),
        np.array([[np.nan, -np.inf] * 40]),
        np.ones((1,) * 5),
        np.ones(3, bool),
    ],
)
def test_every_kind_of_tensor_has_html(array):
    Page(Record({"x": np.asarray(array)})._repr_html_())
    Page(attnkit.show(Record({"x": np.asarray(array)}), heatmap=True)._repr_html_())


def test_texts_of_a_record_are_escaped():
    hostile = "<script>alert('x')</script>\x1b[2J"
    labels = {"token": [hostile, '"'], hostile: [hostile] * 2}
    record = Record({"x": np.ones((2, 2)), hostile: np.ones((9, 9))}, labels)
    for page in (
        record._repr_html_(),
        attnkit.diff(record, record.with_tensors({"x": np.zeros((2, 2))}))._repr_html_(),
    ):
        assert Page(page).count("script") == 0 and "\x1b" not in page and "&lt;script&gt;" in page


def test_a_record_loaded_from_a_file_is_html_too(tmp_path):
    formats.save(RECORD, str(tmp_path / "r.npz"))
    code = (
        "import sys, attnkit; r = attnkit.formats.load('r.npz'); print('attnkit.display' in sys.modules);"
        "print(r._repr_html_()[:4])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "False\n<div\n"
