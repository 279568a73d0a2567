"""What is shown, as data and as pictures: every result honours the format that is asked for, or says which it can."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.formats import Record
from attnkit.interpret.tensor_statistics import row_statistics
from tests.process import run

STORY = str(Path(__file__).parents[2] / "samples" / "data" / "story")


def process(line, folder):
    """A command of attnkit as a process of its own."""
    return run(*(line.split(" ") if isinstance(line, str) else line), cwd=folder, env={"COLUMNS": "80"})


def written(line, folder):
    """What a command of attnkit that succeeds writes to standard output."""
    code, out, err = process(line, folder)
    assert code == 0, err
    return out


@pytest.fixture
def here(tmp_path):
    formats.save(attnkit.embed("a b", dim=4), str(tmp_path / "r.npz"))
    return tmp_path


TEXTS = [
    f"show {STORY} --pipeline decoder.0",
    "history r.npz",
    "decode r.npz --emit text",
]


@pytest.mark.parametrize("line", TEXTS)
def test_a_text_is_a_picture_where_one_is_asked_for(here, line):
    text = written(line, here).decode()
    assert written(f"{line} -f table", here).decode() == text
    for form, start in (("svg", b"<svg"), ("html", b"<!DOCTYPE html>")):
        drawn = written(f"{line} -f {form}", here)
        written(f"{line} -o made.{form}", here)
        assert drawn.startswith(start) and (here / f"made.{form}").read_bytes() == drawn
        assert text.split()[0].encode() in drawn
        if not line.startswith("history"):  # which is no stage
            assert written(["run", line, "--format", form], here) == drawn
    written(f"{line} -o made.sh", here)
    assert (here / "made.sh").read_text() == text


@pytest.mark.parametrize("line", TEXTS)
def test_a_text_is_refused_where_tensors_are_asked_for(here, line):
    for form in ("json", "npy", "npz", "safetensors"):
        problem = f"the result is text, which {form} cannot hold (expected table, svg, png, pdf or html)\n"
        for flags, name in ((f"-f {form}", "--format"), (f"-o out.{form}", f"out.{form}")):
            done = process(f"{line} {flags}", here)
            assert (done.code, done.out) == (2, b"")
            assert done.err == f"attnkit {line.split()[0]}: {name}: {problem}"
    assert sorted(os.listdir(here)) == ["r.npz"]


def test_an_explanation_is_a_text_or_a_record(here):
    line = "mask --size 5 --causal --window 1,0 --explain 3,1"
    text = written(line, here).decode()
    assert text.startswith("query 3 may not attend to key 1\n") and written(f"{line} -o made.txt", here) == b""
    assert (here / "made.txt").read_text() == text
    record = json.loads(written(f"{line} -f json", here))
    assert record["labels"] == {"rule": ["causal", "window"], "axis": ["query", "key"]}
    assert {name: one["data"] for name, one in record["tensors"].items()} == {
        "allowed": False, "rules": [True, False], "cell": [3, 1],
    }  # fmt: skip
    assert written(["run", line, "--format", "json"], here) == written(f"{line} -f json", here)
    assert b"<svg" in written(f"{line} -f svg", here)
    written(f"{line} -o made.npz", here)
    assert written("history made.npz --replay", here) == b"1 command run again: equal bit for bit\n"
    assert process(f"{line} --dtype float32 -f json", here).code == 0


@pytest.mark.parametrize("suffix", [".pdf", ".csv", ".npz", ".json", ".png", ".gz"])
@pytest.mark.parametrize("line", TEXTS)
def test_no_suffix_of_another_format_is_ignored(here, line, suffix):
    done = process(f"{line} -o out{suffix}", here)
    if (here / f"out{suffix}").exists():  # it is a picture then
        assert suffix in (".pdf", ".png") and not (here / f"out{suffix}").read_bytes().isascii()
    else:
        assert done.code == 2 and f"out{suffix}: " in done.err


def test_a_text_between_stages_is_refused_too(here):
    done = process(["run", "decode r.npz --emit text -f json | embed --dim 2"], here)
    assert done.code == 2 and "the result is text" in done.err


def test_the_control_characters_of_a_text_are_spelled_out_in_a_picture(here):
    words, table = ["\x1b[31mred", "b"], np.eye(2)
    formats.save(Record({"x": table, "table": table}, labels={"vocab": words}), str(here / "red.npz"))
    assert rb"\x1b[31mred" in written("decode red.npz --emit text -f svg", here).replace(b"&#160;", b" ")


def test_statistics_are_data_too(here):
    x = np.array([[1.0, -2.0, 0.0], [np.nan, np.inf, 4.0]], np.float32)
    formats.save(Record({"x": x, "ids": np.array([3, 5]), "none": np.zeros((0, 2))}), str(here / "s.npz"))
    record = json.loads(written("show s.npz --stats -f json", here))
    found = {name: one["data"] for name, one in record["tensors"].items()}
    assert record["labels"] == {"name": ["x", "ids", "none"]} and record["tensors"]["min"]["axes"] == ["name"]
    assert found["min"] == [-2, 3, "NaN"] and found["max"] == [4, 5, "NaN"] and found["mean"] == [0.75, 4, "NaN"]
    assert found["std"][:2] == [np.std([1.0, -2, 0, 4]), 1]
    assert (found["zeros"], found["nan"], found["inf"]) == ([1, 0, 0], [1, 0, 0], [1, 0, 0])
    assert (
        written(["run", "show s.npz --stats", "--format", "json"], here).decode()
        == json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
    )
    written("show s.npz --stats --name x -o made.npz", here)
    assert np.load(here / "made.npz")["zeros"].tolist() == [1]
    assert written("history made.npz --replay", here) == b"1 command run again: equal bit for bit\n"
    assert b"inf" in written("show s.npz --stats", here).splitlines()[0]


def test_a_list_is_described_without_data(here):
    expected = {
        "x": {"dtype": "float32", "shape": [2, 4], "axes": ["token", "model"]},
        "ids": {"dtype": "int64", "shape": [2], "axes": ["token"]},
        "table": {"dtype": "float32", "shape": [2, 4], "axes": ["vocab", "model"]},
    }
    assert json.loads(written("show r.npz --list -f json", here)) == {"tensors": expected}
    assert json.loads(written("show r.npz --list -f json --name ids", here)) == {"tensors": {"ids": expected["ids"]}}
    (here / "two.jsonl").write_bytes(2 * written("show r.npz -f json", here))
    assert len(written("show two.jsonl --list -f json", here).splitlines()) == 2
    whole = json.loads(written(f"show {STORY} --list -f json", here))["tensors"]
    shape = {"dtype": "float16", "shape": [64, 192], "axes": ["model", "q k v"]}
    assert whole["transformer.h.0.attn.c_attn.weight"] == shape


@pytest.mark.parametrize(
    "flags, problem",
    [
        ("--heatmap -f npy", "--heatmap: npy cannot hold what it shows (expected table, svg, png, pdf or html)"),
        ("--heads -o a.npz", "--heads: npz cannot hold what it shows (expected table, svg, png, pdf or html)"),
        ("--list -o a.npz", "--list: npz cannot hold what it shows (expected json, table, svg, png, pdf or html)"),
        ("--list --stats -f json", "--stats: cannot be combined with --list"),
    ],
)
def test_a_way_of_looking_that_is_no_data(here, flags, problem):
    for line in (f"show r.npz {flags}".split(), ["run", f"show r.npz {flags}"]):
        done = process(line, here)
        assert (done.code, done.out) == (2, b"")
        assert done.err == f"attnkit show: {problem}\n"


def test_peek_passes_its_stream_on_whatever_it_shows(here):
    done = process("peek r.npz --stats -f json", here)
    assert json.loads(done.out)["tensors"]["x"]["shape"] == [2, 4] and done.err.startswith("name ")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("...,0", np.s_[..., 0]),
        ("b", np.s_[1]),
        ("a,...", np.s_[0, ...]),
        ("b,1:3", np.s_[1, 1:3]),
        ("...", np.s_[...]),
    ],
)
def test_a_slice_takes_an_ellipsis_and_labels(here, part, expected):
    whole = attnkit.embed("a b", dim=4)["x"]
    cut = json.loads(written(["show", "r.npz", "--slice", part, "-f", "json"], here))["tensors"]["x"]
    np.testing.assert_array_equal(np.array(cut["data"], np.float32), whole[expected])


@pytest.mark.parametrize(
    ("part", "rows", "words"),
    [
        ("a#2,:", 2, None),
        ("[0,2],:", [0, 2], ["a", "a"]),
        ("[-1,b],1:3", np.s_[[2, 1], 1:3], ["a", "b"]),
        ("[a#2,a#1],...", [2, 0], ["a", "a"]),
        ("[1],:", [1], ["b"]),
        ("[0,2],[3,1]", np.ix_([0, 2], [3, 1]), ["a", "a"]),
    ],
)
def test_a_slice_takes_the_nth_of_a_word_and_lists_of_indices(here, part, rows, words):
    record = attnkit.embed("a b a", dim=4)
    formats.save(record, str(here / "thrice.npz"))
    cut = json.loads(written(["show", "thrice.npz", "--slice", part, "-f", "json"], here))
    np.testing.assert_array_equal(np.array(cut["tensors"]["x"]["data"], np.float32), record["x"][rows])
    assert cut.get("labels", {}).get("token") == words


def test_a_list_beside_an_index_keeps_the_order_of_the_axes(here):
    x = np.arange(24.0).reshape(2, 3, 4)
    np.save(here / "cube.npy", x)
    cut = json.loads(written(["show", "cube.npy", "--slice", "[1,0],0,[3,1]", "-f", "json"], here))
    assert cut["tensors"]["x"]["data"] == [[15.0, 13.0], [3.0, 1.0]]


def test_a_label_that_is_missing_or_twice_is_named_with_its_numbers(here):
    formats.save(attnkit.embed("a b a", dim=4), str(here / "twice.npz"))
    for line, problem in [
        (
            "show twice.npz --slice a",
            "--slice: axis token of x has the label 'a' at 0, 2; write one of these numbers, or a#1 or a#2",
        ),
        ("show twice.npz --slice a#3", "--slice: axis token of x has no label 'a#3' (it has a, b, a)"),
        ("show twice.npz --slice a#0", "--slice: axis token of x has no label 'a#0' (it has a, b, a)"),
        ("show twice.npz --slice [0,3]", "--slice: index 3 is outside axis token of size 3"),
        ("show twice.npz --slice [0,]", "--slice: expected a slice such as 0,:,2:5"),
        ("show twice.npz --slice c", "--slice: axis token of x has no label 'c' (it has a, b, a)"),
        ("show twice.npz --slice 0,c", "--slice: axis model of x has no label 'c' (it has no labels)"),
        ("mask twice.npz --causal --explain a,b", "--explain: axis query has the label 'a' at 0, 2"),
        (
            "mask twice.npz --causal --explain b,-1",
            "--explain: expected comma-separated whole numbers of at least 0, or words",
        ),
    ]:
        done = process(line, here)
        assert (done.code, done.out) == (2, b"") and problem in done.err
    explained = written("mask twice.npz --causal --explain b,2", here)
    assert explained == b"query 1 'b' may not attend to key 2 'a'\n  causal blocks it: key \xe2\x89\xa4 query\n"
    assert written("mask r.npz --causal --explain a,b", here) == written("mask r.npz --causal --explain 0,1", here)


def test_the_tensors_of_a_weights_file_have_no_names_of_axes_that_they_do_not_state(here):
    np.savez(here / "w.npz", w=np.zeros((2, 3)), b=np.zeros(3))
    rows = [row.split("  ")[:3] for row in written("show w.npz --list", here).decode().split("\n")]
    assert [[cell.strip() for cell in row if cell] for row in rows[2:4]] == [["w", "(2, 3)"], ["b", "(3)"]]
    assert json.loads(written("show w.npz --list -f json", here))["tensors"]["w"]["axes"] == ["axis0", "axis1"]
    assert written("show w.npz:w", here).decode().split("\n")[0] == "w (2, 3) float64"
    assert "axes" not in json.loads(written("show w.npz -f json", here))["tensors"]["w"]
    names = ["name,dtype,shape,axes,bytes", "w,float64,2 3,axis0 axis1,48"]
    assert written("show w.npz --list -f csv", here).decode().split("\n")[:2] == names
    assert "x (token 2, model 4)" in written("show r.npz", here).decode()
    assert "decoder.0.self.wq (model 64, heads 64)" in written(f"show {STORY}:decoder.0.self.wq", here).decode()


def test_the_rows_of_a_tensor_by_hand():
    record = row_statistics(Record({"x": np.array([[3.0, 4.0], [0.0, -2.0]]), "ids": np.array([1, 2])}))
    np.testing.assert_allclose(record["x"], [[5, 3.5, 0.5, 3, 4], [2, -1, 1, -2, 0]])
    assert record.labels["statistic"] == ["norm", "mean", "std", "min", "max"] and [*record] == ["x"]


def test_rows_keep_their_words_and_follow_a_slice(tmp_path):
    run("embed", "The cat sat", "--dim", "8", "-o", "x.npz", cwd=tmp_path)
    done = run("show", "x.npz", "--rows", "--slice", "1:,:", "-f", "csv", cwd=tmp_path)
    lines = done.out.decode().splitlines()
    assert lines[0] == "token,norm,mean,std,min,max" and [line.split(",")[0] for line in lines[1:]] == ["cat", "sat"]
    x = attnkit.formats.load(str(tmp_path / "x.npz"))["x"]
    norms = [float(line.split(",")[1]) for line in lines[1:]]
    np.testing.assert_allclose(norms, np.linalg.norm(x[1:].astype(float), axis=1), rtol=1e-6)
    done = run("show", "x.npz:ids", "--rows", cwd=tmp_path)
    assert (done.code, done.err) == (3, "attnkit show: x.npz: no tensor has rows of floats (it has ids)\n")


def test_the_losses_of_a_run_are_a_curve(tmp_path):
    reports = [(1, 4.0, 4.5), (2, 2.0, 3.0), (3, 1.0, 2.5)]
    keys = {"gradient_norm": 1.0, "learning_rate": 0.1, "tokens": 8}
    lines = [json.dumps({"step": step, "loss": loss, "held_out_loss": held} | keys) for step, loss, held in reports]
    (tmp_path / "training.jsonl").write_text("\n".join(lines) + "\n")
    shown = run("show", "training.jsonl", cwd=tmp_path, env={"COLUMNS": "40"}).out.decode().splitlines()
    assert shown[:2] == ["loss  4.0000 → 1.0000  █▃▁", "held_out_loss  4.5000 → 2.5000  █▃▁"]
    record = json.loads(run("show", "training.jsonl", "-f", "json", cwd=tmp_path).out)
    assert record["tensors"]["x"]["data"] == [[4.0, 4.5], [2.0, 3.0], [1.0, 2.5]]
    assert record["labels"] == {"step": ["1", "2", "3"], "curve": ["loss", "held_out_loss"]}
    svg = run("show", "training.jsonl", "-f", "svg", cwd=tmp_path).out.decode()
    assert svg.count("held_out_loss") >= 1 and "<path" in svg
    (tmp_path / "training.jsonl").write_text('{"step": 1}\n')
    done = run("show", "training.jsonl", cwd=tmp_path)
    assert (done.code, done.err) == (3, "attnkit show: training.jsonl: line 1 is not a report\n")


def test_a_run_without_recorded_steps_is_a_page_of_its_losses(tmp_path):
    (tmp_path / "run").mkdir()
    keys = {"gradient_norm": 1.0, "learning_rate": 0.1, "tokens": 8}
    lines = [json.dumps({"step": step, "loss": 4.0 / step} | keys) for step in (1, 2, 4)]
    (tmp_path / "run" / "training.jsonl").write_text("\n".join(lines) + "\n")
    done = run("explore", "run", "-o", "page.html", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "<h2>run" in page and "<path" in page
