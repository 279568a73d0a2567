"""The README and the pages of help: their blocks, links and length. test_transcripts.py runs the console blocks."""

import doctest
import re

import pytest

from tests import process
from tests.places import ROOT
from tests.process import on_a_terminal
from tests.transcripts import BLOCK

README = ROOT / "README.md"
PAGES = sorted((ROOT / "attnkit" / "help").glob("*.md"))
CHAPTERS = sorted((ROOT / "attnkit" / "help" / "lecture").glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *CHAPTERS], ids=lambda page: page.stem)
def test_every_block_of_a_page_is_run(page):
    kinds = set(re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    assert kinds <= {"console", "python", "text", "yaml"}  # a workflow, which tests/commands/test_golden.py runs
    assert re.search(BLOCK, page.read_text())


SHOWN = [
    README,
    *PAGES,
    *CHAPTERS,
    ROOT / "attnkit" / "help" / "skill" / "SKILL.md",
    *sorted((ROOT / "samples").glob("*.out")),
]


def test_what_is_shown_has_no_control_characters():
    assert [file for file in SHOWN if re.search(r"[^\t\n\x20-\x7e\xa0-\U0010ffff]", file.read_text())] == []


WITH_PYTHON = [page for page in (README, *PAGES, *CHAPTERS) if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_python_blocks(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.stem, None, None)
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0


def test_the_readme_fits_on_200_lines():
    assert len(README.read_text().splitlines()) <= 200


def test_the_pipeline_of_the_first_command_shows_every_step(tmp_path):
    (line,) = [line for line in README.read_text().splitlines() if "pip install -q '.[text]' &&" in line]
    shown = on_a_terminal(line.split("pip install -q '.[text]' && ")[1], tmp_path, TERM="dumb", COLUMNS="100")
    for step in ("q", "k", "v", "scores", "scaled", "masked", "weights", "heads"):
        assert re.search(
            rf"^{step} \(head 2, .*\) float32   = |^{step} \(head 2, .*\) float32$", shown, re.MULTILINE
        ), step
    assert "query\\key      The      cat      sat       on      the      mat" in shown
    assert re.search(r"^mat +\w+ 0\.\d{4} +\w+ 0\.\d{4} +\w+ 0\.\d{4}$", shown, re.MULTILINE)


def test_ci_runs_the_test_command_of_the_readme():
    (line,) = [line for line in README.read_text().splitlines() if "-m pytest" in line]
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == line


@pytest.mark.parametrize("link", re.findall(r"""(?:\]\(|src=")(?!http)([^)"]+)[)"]""", README.read_text()))
def test_links_lead_somewhere(link):
    path, _, anchor = link.partition("#")
    assert (ROOT / path).exists()
    headings = re.findall(r"^## (.*)$", (ROOT / path).read_text(), re.MULTILINE) if anchor else []
    assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_the_picture_of_an_alignment_is_what_the_readme_draws(tmp_path):
    """Its words and its title; the colours of cells are of numbers, which round differently on other processors."""
    drawn = [
        line[2:] for line in README.read_text().splitlines() if re.search(r"^\$ .*(-trace|-o) (trace|alignment)", line)
    ]
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    process.bash("\n".join(drawn), cwd=tmp_path)
    texts = [
        re.findall(r">([^<>\n]+)</", (folder / "alignment.svg").read_text())
        for folder in (tmp_path, ROOT / "samples" / "data")
    ]
    assert texts[0] == texts[1] and {"What the decoder reads", "·noir", "·black"} <= {*texts[0]}
