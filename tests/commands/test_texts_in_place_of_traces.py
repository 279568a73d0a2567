"""heads, lens, rollout and explore of a text that --model reads: the bytes of the pipeline that reads it first."""

import pytest

from tests import process

STORY = process.ROOT / "samples" / "data" / "story"
TEXT = "Once upon a time there was a fox"


@pytest.mark.parametrize(
    ("tool", "keep", "options"),
    [
        ("heads", "*.self.weights", ("--sort", "first")),
        ("rollout", "*.self.weights", ("--layers", "1:")),
        ("lens", "*", ("--model", str(STORY), "--position", "-1")),
        ("lens", "*", ("--model", str(STORY), "--direct", " there", "--by", "head")),
    ],
)
def test_a_text_is_read_by_the_model(tool, keep, options):
    encoded = process.run("encode", "--model", STORY, "--keep", keep, TEXT, "-f", "json")
    piped = process.run(tool, *options, "-f", "npz", stdin=encoded.out)
    direct = process.run(tool, TEXT, "--model", STORY, *options, "-f", "npz")
    assert (piped.code, piped.err, direct.code, direct.err) == (0, "", 0, "")
    assert direct.out == piped.out


def test_explore_of_a_text_names_it():
    page = process.run("explore", "--model", STORY, TEXT, "-o", "-")
    assert (page.code, page.err) == (0, "")
    assert TEXT in page.out.decode()


def test_a_word_is_the_name_of_a_file():
    run = process.run("lens", "--model", STORY, "fox")
    assert run.code == 4
    assert run.err.startswith("attnkit lens: fox: No such file or directory; for a text: attnkit encode fox")


def test_heads_of_a_file_need_no_model(tmp_path):
    (tmp_path / "a.json").write_text("[[1]]")
    run = process.run("heads", tmp_path / "a.json", "--model", STORY)
    assert (run.code, run.err) == (
        2,
        "attnkit heads: --model: a trace in a file needs no model; --model alone describes its weights\n",
    )


def test_rollout_of_a_trace_needs_no_model(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text('{"tensors":{"decoder.0.self.weights":[[[1.0]]]}}')
    run = process.run("rollout", trace, "--model", STORY)
    assert (run.code, run.err) == (
        2,
        "attnkit rollout: --model: reads a text of several words; a trace needs no model\n",
    )
    run = process.run("rollout", "--model", STORY, "fox")
    assert run.code == 4 and "fox: No such file or directory; for a text: attnkit encode fox" in run.err


def test_rollout_of_a_text_is_a_triangle_of_rows_with_the_sum_1():
    """A causal model of two layers, whose first token attends to itself alone."""
    run = process.run("rollout", "--model", STORY, TEXT, "--only", "x", "-f", "csv")
    rows = [[float(one) for one in line.split(",")[1:]] for line in run.out.decode().splitlines()[1:]]
    assert len(rows) == 8 and rows[0] == [1] + 7 * [0]
    assert all(abs(sum(row) - 1) < 1e-6 and not any(row[at + 1 :]) for at, row in enumerate(rows))
