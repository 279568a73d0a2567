"""Every block of the README and of the pages of help is run on a terminal of 100 columns and prints what it shows.

ATTNKIT_REMAKE=1 writes what they print into the page instead, to be read as a difference.
"""

import doctest
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rounding import difference

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "attnkit" / "help").glob("*.md"))
CHAPTERS = sorted((ROOT / "attnkit" / "help" / "lecture").glob("*.md"))
BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)


def on_a_terminal(command, folder):
    """What a line of bash shows on a terminal without colour."""
    leader, follower = pty.openpty()
    terminal = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}
    env = os.environ | terminal
    env.pop("FORCE_COLOR", None)
    process = subprocess.Popen(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, cwd=folder, env=env
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait() == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="a block pipes into jq")
@pytest.mark.parametrize("page", [README, *PAGES, *CHAPTERS], ids=lambda page: page.stem)
def test_console_blocks(page, tmp_path):
    if page not in CHAPTERS:  # which need an installed package and an empty folder
        (tmp_path / "samples").symlink_to(ROOT / "samples")

    def run(block):
        commands = re.findall(r"^\$ (.*)$", block[1], re.MULTILINE)
        shown = "".join(f"$ {command}\n{on_a_terminal(command, tmp_path)}" for command in commands)
        return f"```console\n{shown}```"

    text = page.read_text(encoding="utf-8")
    made = BLOCKS.sub(run, text)
    if os.environ.get("ATTNKIT_REMAKE"):
        page.write_text(made, encoding="utf-8")
    assert not difference(text, made)


@pytest.mark.parametrize("page", [*PAGES, *CHAPTERS], ids=lambda page: page.stem)
def test_every_block_of_a_page_is_run(page):
    kinds = set(re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    assert kinds <= {"console", "python", "text"}
    assert re.search(BLOCKS, page.read_text())


SHOWN = [README, *PAGES, *CHAPTERS, *sorted((ROOT / "samples").glob("*.out"))]


@pytest.mark.parametrize("file", SHOWN, ids=lambda file: file.name)
def test_what_is_shown_has_no_control_characters(file):
    assert not re.findall(r"[^\t\n\x20-\x7e\xa0-\U0010ffff]", file.read_text())


@pytest.mark.parametrize("page", [README, PAGES[0].with_name("python.md")], ids=lambda page: page.stem)
def test_python_blocks(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.stem, None, None)
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0


def test_no_other_page_has_a_python_block():
    assert [page.stem for page in PAGES if "```python" in page.read_text()] == ["python"]


def test_the_readme_fits_on_200_lines():
    assert len(README.read_text().splitlines()) <= 200


def test_the_pipeline_of_the_first_command_shows_every_step(tmp_path):
    (line,) = [line for line in README.read_text().splitlines() if "pip install -q . &&" in line]
    shown = on_a_terminal(line.split("pip install -q . && ")[1], tmp_path)
    for step in ("q", "k", "v", "scores", "scaled", "masked", "weights", "heads"):
        assert re.search(
            rf"^{step} \(head 2, .*\) float32   = |^{step} \(head 2, .*\) float32$", shown, re.MULTILINE
        ), step
    assert "query\\key      The      cat      sat       on      the      mat" in shown
    assert re.search(r"^mat +\w+ 0\.\d{4} +\w+ 0\.\d{4} +\w+ 0\.\d{4}$", shown, re.MULTILINE)


def test_ci_runs_the_test_command_of_the_readme():
    (line,) = [line for line in README.read_text().splitlines() if "-m pytest" in line]
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == line


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README.read_text()))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
