"""What a terminal shows of a run: a table that fits, its curve, samples, the time that is left."""

import os
import pty
import re
import struct
import subprocess
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.commands.test_train import SMALL, TEXT, TINY, run

ROW = re.compile(r" *[\d,]+ +\d+\.\d{4}.*[▁▂▃▄▅▆▇█]+")


@pytest.fixture
def tales(tmp_path):
    (tmp_path / "tales.txt").write_text(TEXT)
    (tmp_path / "pairs.tsv").write_text("un chat\ta cat\nun chien\ta dog\nle chat\tthe cat\nle chien\tthe dog\n")
    return tmp_path


def on_a_terminal(folder, *arguments, columns=80, **settings):
    """What a terminal of so many columns shows of `train`, and its exit code."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    environment = plain | {"TERM": "xterm", "LC_ALL": "C.UTF-8"} | settings
    command = ["attnkit", "train", *arguments]
    with subprocess.Popen(command, stdout=follower, stderr=follower, cwd=folder, env=environment) as child:
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 1 << 16):
                shown += piece
        except OSError:  # the other side is closed
            pass
    os.close(leader)
    return child.returncode, shown.decode().replace("\r\n", "\n")


def without_codes(shown):
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", shown)


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (100, "step loss held out bits/byte gradient rate tokens/s"),
        (80, "step loss held out bits/byte gradient rate tokens/s"),
        (60, "step loss held out bits/byte gradient"),
        (40, "step loss held out"),
        (10, "step"),
    ],
)
def test_a_report_is_a_row_that_fits(tales, columns, headings):
    code, shown = on_a_terminal(tales, "tales.txt", "-o", "gpt", *TINY, "--steps", "12", "-q", columns=columns)
    first, *rows, last = shown.splitlines()
    assert code == 0
    assert " ".join(without_codes(first).split()) == headings
    assert [row.split()[0] for row in rows] == ["4", "8", "12"]
    assert [len(row.split()[-1]) for row in rows] == [1, 2, 3], "the curve"
    assert all(len(row) <= max(columns, 20) for row in rows)
    assert len({row.index(row.split()[-1]) for row in rows}) == 1, "columns"
    assert re.fullmatch(
        r"gpt: [\d,]+ parameters after 12 steps, held out [\d.]+; attnkit decode --model gpt TEXT", last
    )


def test_without_a_held_out_part_there_are_no_columns_for_it(tales):
    flags = ("-o", "gpt", *TINY, "--steps", "8", "--valid", "0")
    _, shown = on_a_terminal(tales, "tales.txt", *flags)
    assert without_codes(shown).splitlines()[0].split() == ["step", "loss", "gradient", "rate", "tokens/s"]


@pytest.mark.parametrize(
    ("settings", "codes"),
    [({}, {"\x1b[2m", "\x1b[0m"}), ({"NO_COLOR": "1"}, set()), ({"TERM": "dumb"}, set())],
)
def test_colour(tales, settings, codes):
    flags = ("-o", "gpt", *TINY, "--steps", "4", "--sample", "the")
    _, shown = on_a_terminal(tales, "tales.txt", *flags, **settings)
    assert set(re.findall(r"\x1b\[[0-9;]*m", shown)) == codes


def test_ascii(tales):
    flags = ("-o", "gpt", *TINY, "--steps", "8", "--sample", "the")
    _, shown = on_a_terminal(tales, "tales.txt", *flags, LC_ALL="C", PYTHONIOENCODING="ascii")
    assert shown.isascii() and "?" not in shown
    assert without_codes(shown).splitlines()[2].startswith("  | the")


def test_a_sample_is_below_its_report_and_obeys_nothing(tales):
    (tales / "tales.txt").write_text("\x1b[2J\t\u202e\n" * 90)
    flags = ("-o", "gpt", *TINY, "--steps", "4", "--sample", "\x1b[2J\n")
    code, shown = on_a_terminal(tales, "tales.txt", *flags, "-q", NO_COLOR="1")
    _, row, *sample, _ = shown.splitlines()
    assert code == 0 and ROW.fullmatch(row)
    assert sample[0] == "  │ \\x1b[2J"
    assert all(line.startswith("  │ ") for line in sample)
    assert "\x1b" not in shown and "\u202e" not in shown


PROGRESS = re.compile(r"\r\x1b\[K(attnkit train: step [^\r]*)")


def test_progress_has_the_time_left_and_is_one_line(tales):
    flags = ("tales.txt", "-o", "gpt", *SMALL, "--every", "1000000", "--minutes", "0.025")
    code, shown = on_a_terminal(tales, *flags)
    lines = PROGRESS.findall(shown)
    assert code == 0
    assert all(re.fullmatch(r"attnkit train: step [\d,]+, 0:0[01] left \(\d s\)", line) for line in lines) and lines
    assert re.sub(PROGRESS, "", shown).startswith("\r\x1b[K\x1b[2m    step"), "removed before a report"
    _, shown = on_a_terminal(tales, *flags, columns=30)
    assert {len(line) for line in PROGRESS.findall(shown)} <= {29}


@pytest.mark.parametrize("settings", [["-q"], {"TERM": "dumb"}])
def test_no_progress(tales, settings):
    flags = ("tales.txt", "-o", "gpt", *SMALL, "--every", "1000000", "--minutes", "0.02")
    quiet, variables = (settings, {}) if isinstance(settings, list) else ([], settings)
    assert "\r" not in on_a_terminal(tales, *flags, *quiet, **variables)[1]


def test_bert_continues_no_text(tales):
    flags = ("-o", "bert", "--family", "bert", *TINY, "--steps", "4", "--sample", "the")
    assert run("train", "tales.txt", *flags, cwd=tales) == (
        2, b"", "attnkit train: --sample: a bert model restores masked words, and continues no text\n",
    )  # fmt: skip
    assert not Path(tales, "bert").exists()


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        ("the X", "--sample: line 1: 'X' is not in the vocabulary"),
        ("the cat sat on the mat", "--sample: n_positions 16, fewer than the 22 tokens of a text"),
    ],
)
def test_a_sample_that_the_model_cannot_continue(tales, sample, problem):
    done = run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "4", "--sample", sample, cwd=tales)
    assert (done.code, done.out) == (3, b"")
    assert done.err.startswith(f"attnkit train: {problem}")
    assert not Path(tales, "gpt").exists()


def test_a_translator_translates_the_sample(tales):
    flags = ("--layers", "1", "--heads", "2", "--dim", "16", "--lr", "0.01", "--warmup", "0", "--valid", "0")
    for family in ("marian", "t5"):
        pairs = ["--pairs"] * (family == "t5")
        ends = ("--steps", "150", "--every", "150", "--sample", "le chat")
        done = run("train", "pairs.tsv", "-o", family, "--family", family, *pairs, *flags, *ends, cwd=tales)
        assert done.code == 0
        says = done.out.decode().splitlines()[0].partition('"sample":')[2]
        assert says == '"the cat"}', family
        shown = run("decode", "--model", family, "le chat", "--emit", "text", cwd=tales)
        assert shown.out == b"the cat\n", "as decode does"


def test_a_resumed_run_has_samples_too(tales):
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "4", cwd=tales).code == 0
    done = run("train", "tales.txt", "--resume", "gpt", "--steps", "8", "--sample", "the", cwd=tales)
    assert done.code == 0 and b'"sample":"the' in done.out
    done = run("train", "tales.txt", "--resume", "gpt", "--steps", "9", "--sample", "X", cwd=tales)
    assert done.err == "attnkit train: --sample: line 1: 'X' is not in the vocabulary\n"
