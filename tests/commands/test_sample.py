"""attnkit sample: the samples listed, run and copied, from a clone and as a package has them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnkit
from attnkit import help
from tests.process import bash, run
from tests.transcripts import check

SAMPLES = Path(__file__).parent.parent.parent / "samples"


INDEX = """\
# Samples

Short scripts of one idea each, in the order of `attnkit help lecture`; beside each is what it prints.
`attnkit sample NAME` runs one, `attnkit sample NAME --copy` copies it with its data to change it.
[numbers.toml](numbers.toml) has the pipelines of some; `attnkit golden numbers.toml` compares their numbers with
stored ones.

The small models in [data](data) know little: `fr-en` the words of
[french_english.py](data/french_english.py), `story` those of [tales.py](data/tales.py), `recall-delta`
and `recall-attention` the lines of [recall.py](data/recall.py), `shapes` the pictures of
[shapes.py](data/shapes.py). What they make of others means nothing.
"""


def sample(*words, cwd, **settings):
    return run("sample", *words, cwd=cwd, env=settings)


def test_every_script_is_listed_by_chapter_with_the_first_sentence_of_its_comment(tmp_path):
    rows = json.loads(sample("-f", "json", cwd=tmp_path).out)["samples"]
    assert sorted(row["name"] for row in rows) == [path.stem for path in sorted(SAMPLES.glob("[0-9]*.sh"))]
    assert {"name": "01-the-cat-sat", "chapter": "attention", "idea": "Self-attention by hand."} in rows
    assert all(row["idea"].endswith((".", "?")) for row in rows)
    chapters = [row["chapter"] for row in rows]
    order = [*(chapter.name for chapter in help.list_chapters()), ""]
    assert chapters == sorted(chapters, key=order.index) and {*chapters} <= {*order}


def test_a_pipe_gets_a_line_for_each_sample_that_cut_can_read(tmp_path):
    rows = json.loads(sample("-f", "json", cwd=tmp_path).out)["samples"]
    lines = bash("attnkit sample | cut -f1,3", cwd=tmp_path).out.decode().splitlines()
    assert lines == [f"{row['name']}\t{row['idea']}" for row in rows]
    assert bash("attnkit sample | head -n 1 | cut -f2", cwd=tmp_path).out == b"recurrence\n"


def test_the_index_is_the_list(tmp_path):
    lines = INDEX.splitlines()
    chapter = None
    for row in json.loads(sample("-f", "json", cwd=tmp_path).out)["samples"]:
        if row["chapter"] != chapter:
            chapter = row["chapter"]
            lines += ["", f"## {chapter or 'The tools'}", ""]
        lines.append(f"- [{row['name']}]({row['name']}.sh): {row['idea']}")
    index = SAMPLES / "README.md"
    check(index, index.read_text(encoding="utf-8"), "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["01-the-cat-sat", "01-the-cat-sat.sh", "the-cat-sat", "01", "1", "cat-sat"])
def test_a_sample_is_found_by_its_name_its_number_or_a_part(name, tmp_path):
    assert (
        sample(name, "--script", cwd=tmp_path).out.decode().rstrip()
        == (SAMPLES / "01-the-cat-sat.sh").read_text().rstrip()
    )


@pytest.mark.slow
def test_a_sample_runs_where_attnkit_is_not_on_the_path(tmp_path):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for program in ("bash", "cat", "dirname", "env"):
        (bin_ / program).symlink_to(shutil.which(program))
    done = sample("the-cat-sat", cwd=tmp_path, PATH=str(bin_))
    assert (done.out.decode(), done.err) == ((SAMPLES / "01-the-cat-sat.out").read_text(), "")
    done = sample("jq-and-numpy", cwd=tmp_path, PATH=str(bin_))
    assert (done.code, done.err) == (
        2,
        "attnkit sample: 15-jq-and-numpy: needs jq, which is not installed\n",
    )


def test_a_sample_that_fails_says_so(tmp_path):
    (tmp_path / "bash").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "bash").chmod(0o755)
    done = sample("the-cat-sat", cwd=tmp_path, PATH=str(tmp_path))
    assert (done.code, done.out.decode()) == (3, "")
    assert done.err == "attnkit sample: 01-the-cat-sat: it ended with exit code 5\n"


def test_a_copy_has_the_script_and_the_data_that_it_names(tmp_path):
    done = sample("27", "--copy", cwd=tmp_path)
    assert done.out.decode().split() == ["27-a-translation.sh", "data/fr-en", "data/french_english.py"]
    assert (tmp_path / "data/fr-en/config.json").read_bytes() == (SAMPLES / "data/fr-en/config.json").read_bytes()
    assert sample("19", "--copy", cwd=tmp_path).out.decode().split() == ["19-one-process.sh", "layer.attnkit"]
    assert os.access(tmp_path / "layer.attnkit", os.X_OK)


def test_a_copy_of_all_is_the_folder_that_the_pages_read(tmp_path):
    assert sample("--copy", cwd=tmp_path).out == b"samples\n"
    copied = {path.relative_to(tmp_path / "samples") for path in (tmp_path / "samples").rglob("*")}
    assert copied == {path.relative_to(SAMPLES) for path in SAMPLES.rglob("*")}
    done = run("decode", "--model", "samples/data/story", "Once upon", "--max-tokens", "1", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    done = sample("--copy", cwd=tmp_path)
    assert (done.code, done.err) == (4, "attnkit sample: samples: it exists already; nothing was copied\n")


def test_a_copy_replaces_nothing(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/words.json").write_text("mine")
    done = sample("32", "--copy", cwd=tmp_path)
    assert (done.code, done.out.decode()) == (4, "")
    assert done.err == "attnkit sample: data/words.json: it exists already; nothing was copied\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data/words.json").read_text() == "mine"


@pytest.mark.slow
def test_an_installed_package_has_the_samples(tmp_path):
    """In an installed package they are inside it, and nothing is beside it."""
    package = Path(attnkit.__file__).parent
    shutil.copytree(package, tmp_path / "attnkit", ignore=shutil.ignore_patterns("__pycache__", "samples"))
    shutil.copytree(SAMPLES, tmp_path / "attnkit/samples")
    done = subprocess.run(
        [sys.executable, "-m", "attnkit", "sample", "one-process"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ((SAMPLES / "19-one-process.out").read_text(), "")
