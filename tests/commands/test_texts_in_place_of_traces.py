"""heads, lens and explore of a text that --model reads: the bytes of the pipeline that reads it first."""

import pytest

from tests import process

STORY = process.ROOT / "samples" / "data" / "story"
TEXT = "Once upon a time there was a fox"


@pytest.mark.parametrize(
    ("tool", "keep", "options"),
    [
        ("heads", "*.self.weights", ("--sort", "first")),
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
