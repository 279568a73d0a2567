"""Figures from the command line: every tool, every format, every flag, through `run` as through a pipe."""

import io
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.cli.main import main
from attnkit.records import Record, Tensor
from tests.pictures import Picture

STORY = Path(__file__).parents[2] / "samples/data/story"
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder with a record of four heads, whose words have the marks of a vocabulary."""
    monkeypatch.chdir(tmp_path)
    record = attnkit.attend(attnkit.mask(attnkit.embed("The cat sat", dim=8), causal=True), heads=4, keep="weights")
    formats.save(record, "r.npz")
    marked = Record(
        {"x": Tensor(np.eye(3), ("query", "key"))}, {"query": ["The", "Ġcat", "Ġsat"], "key": ["▁a", "b", "c"]}
    )
    formats.save(marked, "marked.npz")
    return tmp_path


def drawn(*arguments):
    """Run a command that must succeed, and return the texts of its figure, written to f.svg."""
    assert main([*arguments, "-o", "f.svg"]) == 0
    return ["".join(node.itertext()) for node in ElementTree.parse("f.svg").getroot().iter(TEXT)]


@pytest.mark.parametrize(
    "kind, start", [("svg", b"<svg"), ("html", b"<!DOCTYPE html>"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_a_suffix_and_a_format_give_the_same_file(here, capfdbinary, kind, start):
    line = ["show", "r.npz:weights", "--slice", "0", "--heatmap"]
    assert main([*line, "-o", f"f.{kind}"]) == 0 and main([*line, "-f", kind]) == 0
    data = capfdbinary.readouterr().out
    assert data == (here / f"f.{kind}").read_bytes() and data.startswith(start)
    assert main(["run", f"show r.npz:weights --slice 0 --heatmap -f {kind}"]) == 0
    assert capfdbinary.readouterr().out == data


def test_the_flags_reach_the_figure(here):
    texts = drawn(
        "show", "r.npz:weights", "--heatmap", "--title", "Four heads", "--range", "0,1", "--precision", "3", "--numbers"
    )
    assert texts[0] == "Four heads" and {"head 3", "query", "key", "masked", "1.000", "0", "1"} <= set(texts)
    document = Path("f.svg").read_text()
    assert (
        main(["show", "r.npz:weights", "--heatmap", "--cmap", "gray", "--theme", "dark", "--no-numbers", "-o", "f.svg"])
        == 0
    )
    dark = Path("f.svg").read_text()
    assert "#16181c" in dark and "#16181c" not in document
    assert Picture(document).grids[-1][-1, 0] == "#440154" and Picture(dark).grids[-1][-1, 0] == "#000000"
    assert "1.00" not in Picture(dark).texts


def test_tokens_are_plain_in_figures_and_raw_in_tables(here, capfd):
    assert {"·cat", "·sat", "·a", "b"} <= set(drawn("show", "marked.npz", "--heatmap"))
    assert {"Ġcat", "Ġsat", "▁a"} <= set(drawn("show", "marked.npz", "--heatmap", "--tokens", "raw"))
    assert main(["show", "marked.npz"]) == 0 and "Ġcat" in capfd.readouterr().out
    assert main(["show", "marked.npz", "--tokens", "plain"]) == 0
    table = capfd.readouterr().out
    assert "·cat" in table and "·a" in table and "Ġ" not in table


@pytest.mark.parametrize(
    "flags, name",
    [
        ("--theme dark", "theme"),
        ("--title T", "title"),
        ("--heatmap --range 0,1", "range"),
        ("--heatmap --cmap gray", "cmap"),
        ("--heatmap --numbers", "numbers"),
        ("--heatmap --no-numbers", "no-numbers"),
        ("--curves", "curves"),
    ],
)
def test_a_flag_of_figures_elsewhere_is_an_error(here, capfd, flags, name):
    shown = f"show r.npz {flags}"
    for line in (shown.split(), ["run", shown], ["run", f"{shown} -f table"]):
        assert main(line) == 2
        problem = f"attnkit show: --{name}: needs a figure: -o FILE.svg, .png, .pdf or .html\n"
        assert capfd.readouterr() == ("", problem)


def test_a_flag_of_figures_within_a_pipeline_is_an_error(here, capfd):
    assert main(["run", "embed a --dim 2 --theme dark | show -f svg"]) == 2
    assert capfd.readouterr().err.startswith("attnkit embed: --theme: needs a figure")


def test_without_the_library_png_is_an_error_of_one_line_and_the_file_stays(here):
    (here / "f.png").write_bytes(b"old")
    code = (
        "import sys; sys.modules['matplotlib'] = None; from attnkit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "show", "r.npz", "-o", "f.png"], capture_output=True, check=False
    )
    problem = b"attnkit show: a figure: needs the matplotlib library: pip install '.[figures]' in a clone of attnkit\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", problem)
    assert (here / "f.png").read_bytes() == b"old"


def test_png_and_pdf_are_not_written_to_a_terminal_and_hold_one_record(here, capfd):
    (here / "two.jsonl").write_text("[[1,2]]\n[[3,4]]\n")
    assert main(["show", "two.jsonl", "-f", "png"]) == 3
    assert "png holds one record, but the stream has more" in capfd.readouterr().err


def test_the_steps_of_a_tool_are_one_page_each_with_its_formula(here):
    texts = drawn("attend", "r.npz", "--heads", "2", "--steps")
    titles = [before for before, text in pairwise(texts) if text.startswith("= ")]
    assert titles[-3:] == ["weights", "heads", "x"] and ("scores", "= Q Kᵀ") in pairwise(texts)


def test_the_steps_of_a_pipeline_are_one_page_with_every_command(here, capfd):
    pipeline = 'embed "The cat" --dim 4 | posenc | attend'
    texts = drawn("run", pipeline, "--steps")
    assert capfd.readouterr().err == ""
    places = [
        texts.index(command)
        for command in ("1. attnkit embed 'The cat' --dim 4 --seed 0", "2. attnkit posenc", "3. attnkit attend")
    ]
    assert places == sorted(places) and texts.count("token \\ model") == 4  # of embed, of the encoding, and both x
    final = attnkit.attend(attnkit.posenc(attnkit.embed("The cat", dim=4)))["x"]
    assert texts[-len("The0123cat0123") :].count(f"{final[1, 3]:.4f}") == 1


def test_the_steps_of_a_generated_text_are_in_its_figure(here, capfd):
    line = ["decode", "--model", str(STORY), "One day", "--max-tokens", "3", "--steps"]
    texts = drawn(*line)
    assert capfd.readouterr().err == ""
    assert [text for text in texts if text.startswith("step ")] == ["step 0", "step 1", "step 2"]
    assert sum(text.startswith("chosen: ") for text in texts) == 3
    assert any(text.startswith("·") for text in texts) and not [text for text in texts if text.startswith("Ġ")]
    assert any(text.startswith("One day") for text in texts)
    assert "Ġ" in "".join(drawn(*line, "--tokens", "raw"))


def test_scores_and_candidates_are_tables(here):
    texts = drawn("decode", "--model", str(STORY), "One day", "--score", " a")
    assert {"token", "id", "log-probability", "rank"} <= set(texts)
    record = Record({"x": np.eye(2), "table": np.eye(2)}, labels={"vocab": ["yes", "no"]})
    formats.save(record, "v.npz")
    assert {"position", "1st", "2nd", "yes", "no", "0.7311"} <= set(drawn("decode", "v.npz"))


def test_statistics_lists_curves_and_models(here):
    assert {"min", "max", "std", "weights"} <= set(drawn("show", "r.npz", "--stats"))
    assert {"name", "shape", "(head 4, query 3, key 3)"} <= set(drawn("show", "r.npz", "--list"))
    assert {"model", "token", "0", "7"} <= set(drawn("show", "r.npz", "--name", "x", "--curves"))
    assert any(text.startswith("family") for text in drawn("show", str(STORY)))
    assert any("attnkit attend" in text for text in drawn("history", "r.npz"))


def test_peek_draws_on_the_pipe_what_it_shows_on_standard_error(here, capfd):
    assert {"head 0", "query"} <= set(drawn("peek", "r.npz", "--heatmap", "--name", "weights", "-q"))
    assert main(["peek", "r.npz", "-q", "-f", "json"]) == 0
    assert "tensors" in json.loads(capfd.readouterr().out)


def test_a_figure_of_600_words_has_all_of_them_in_cells(here):
    x = np.zeros((1, 600, 600), np.float32)
    x[0, 599, 3] = 1
    formats.save(Record({"weights": Tensor(x, ("head", "query", "key"))}), "long.npz")
    texts = drawn("show", "long.npz:weights", "--heatmap", "--range", "0,1")
    assert "each cell shows the number of largest magnitude among 2 × 2" in texts
    cells = Picture(Path("f.svg").read_text()).grids[0]
    assert cells.shape == (300, 300) and [*zip(*np.nonzero(cells == "#fde725"), strict=True)] == [(299, 1)]


def test_a_picture_in_pixels(here):
    image = pytest.importorskip("PIL.Image")
    assert main(["show", "r.npz:weights", "--heatmap", "--theme", "transparent", "-o", "f.png"]) == 0
    pixels = np.asarray(image.open(io.BytesIO(Path("f.png").read_bytes())))
    assert pixels.shape[2] == 4 and pixels[0, 0, 3] == 0 and pixels[..., 3].max() == 255


def test_a_figure_leaves_no_settings_in_the_home_of_the_user(here):
    home, environ = here / "home", {name: value for name, value in os.environ.items() if name[:3] not in ("MPL", "XDG")}
    home.mkdir()
    command = [sys.executable, "-m", "attnkit", "show", "r.npz:weights", "--heatmap", "-o", "f.png"]
    done = subprocess.run(command, env=environ | {"HOME": str(home)}, capture_output=True, check=True)
    assert done.stderr == b"" and {path.name for path in home.iterdir()} <= {".cache"}
