# ruff: noqa: E501 - a case of a table is a line
"""Terminals, locales and arguments: what the user sees, and what no setting may change."""

import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import numpy as np
import pytest

from attnkit.cli import TOOLS

pytestmark = pytest.mark.slow

ESCAPE = b"\x1b"


@pytest.fixture
def screen(attnkit):
    """Runs a command line with a terminal as its output; the exit code and what was shown."""

    def run(*arguments, columns=80, **options):
        master, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        done = attnkit(*arguments, stdout=terminal, stderr=terminal, **options)
        os.close(terminal)
        shown = b""
        try:
            while piece := os.read(master, 1 << 16):
                shown += piece
        except OSError:  # the terminal's way to say that there is no more
            pass
        os.close(master)
        return done.code, shown

    return run


# T1
@pytest.mark.parametrize("columns", ["20", "0", "abc", "1", "-5", "9" * 30, "٣"])
def test_help_wraps_and_keeps_every_word(attnkit, columns):
    wide, narrow = (attnkit("attend", "--help", env={"COLUMNS": width}) for width in ("200", columns))
    assert (narrow.code, narrow.err) == (0, "")
    flags = {word.strip(",;.") for word in wide.out.decode().split() if word.startswith("--")}
    assert "--kv-heads" in flags
    assert flags <= {word.strip(",;.") for word in narrow.out.decode().split()}


@pytest.mark.parametrize("tool", TOOLS)
def test_help_has_no_marks_and_no_empty_defaults(attnkit, tool):
    run = attnkit(tool, "--help")
    assert run.code == 0 and "Example" in run.out.decode()
    assert "\\b" not in run.out.decode() and "[default: ]" not in run.out.decode()


@pytest.mark.parametrize("columns", ["20", "0", "abc", "9" * 30, "٣"])
def test_tables_fit_and_messages_are_not_wrapped(attnkit, refused, columns):
    environment = {"COLUMNS": columns}
    run = attnkit("show", "good.json", env=environment)
    assert (run.code, run.err) == (0, "")
    assert max(map(len, run.out.decode().splitlines())) <= (20 if columns == "20" else 80)
    refused(attnkit("layernorm", "m" * 200, env=environment), 4, "layernorm: " + "m" * 200)


# T2
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "terminal", "piped"),
    [
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1"}, True, True),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, False, False),
    ],
)
def test_colour(attnkit, screen, settings, terminal, piped):
    for line in (["show", "good.json"], ["show", "good.json", "--heatmap"]):
        code, shown = screen(*line, env=settings)
        assert (code, ESCAPE in shown) == (0, terminal)
        assert (ESCAPE in attnkit(*line, env=settings).out) == piped
    for line in (["--help"], ["attend", "--help"]):
        assert ESCAPE not in screen(*line, env=settings)[1]
    assert (ESCAPE in screen("layernorm", "missing", env=settings)[1]) == terminal


def test_a_terminal_gets_a_table_and_never_binary(attnkit, screen):
    code, shown = screen("layernorm", "good.json")
    assert (code, b"{" in shown) == (0, False)
    code, shown = screen("layernorm", "good.json", "-f", "npy")
    assert code == 2
    assert (
        shown.replace(b"\x1b[31m", b"").replace(b"\x1b[0m", b"")
        == b"attnkit layernorm: npy is binary, but standard output is a terminal; use -o FILE or a pipe\r\n"
    )
    assert screen("posenc", "--size", "2", "--dim", "2", "-o", "out.npz") == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii"}])  # fmt: skip
def test_an_encoding_without_our_signs(attnkit, refused, locale):
    lines = (
        (["--help"], ["attend", "--help"], ["show", "good.json"], ["peek", "good.json"]) if "LC_ALL" in locale else ()
    )
    for line in (*lines, ["show", "good.json", "--heatmap"]):
        assert attnkit(*line, env=locale).code == 0
    refused(attnkit("layernorm", "größe", env=locale), 4, "layernorm: gr")
    run = attnkit("embed", "größe 日本", "--dim", "2", "-f", "json", env=locale)
    assert json.loads(run.out)["labels"]["token"] == ["größe", "日本"]


# T4
NAMES = {
    "unicode": "größe-日本.npy",
    "not UTF-8": b"\xff\xfe.npy",
    "newline": "a\nb.npy",
    "escape": "\x1b[31mred.npy",
    "space": "a b.npy",
    "quote": "a'b\".npy",
    "colon": "a:b.npy",
    "dollar": "$(touch canary).npy",
    "percent": "%s%n{}.npy",
    "bracket": "[red].npy",
    "bidi": "\u202eabc.npy",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_file_names_of_every_kind(attnkit, refused, name):
    run = attnkit("layernorm", name)
    assert (run.code, run.out, run.err.count("\n")) == (4, b"", 1)
    assert run.err[:-1].isprintable()
    assert attnkit("layernorm", "good.json", "-o", name).code == 0
    assert os.fsencode(name) in os.listdir(os.fsencode(attnkit.folder))
    for format in ("npy", "json", "npz", "safetensors"):
        run = attnkit("attend", name, "--mask", name, "-f", format)
        assert (run.code, run.err) == (0, "")
    assert attnkit.temporaries() == []
    assert not (attnkit.folder / "canary").exists()


def test_a_name_that_looks_like_a_flag(attnkit, refused):
    assert attnkit("layernorm", "good.json", "-o", "--heads.npy").code == 0
    assert attnkit("layernorm", "--", "--heads.npy").code == 0
    assert attnkit("layernorm", "./--heads.npy").code == 0
    assert attnkit("attend", "--mask", "./--heads.npy", "--", "--heads.npy").code == 0
    refused(attnkit("layernorm", "--heads.npy"), 2, "layernorm: no such option: --heads.npy")


def test_non_utf8_text(attnkit, refused):
    refused(attnkit("embed", b"a\xff", "--dim", "2"), 3, "embed: TEXT: not UTF-8 text (byte 1)")


# T5


def test_usage_of_the_environment(attnkit, refused):
    run = attnkit("posenc", "--size", "2", "--dim", "2", env={"ATTNKIT_FORMAT": "jsn"})
    refused(run, 2, "posenc: ATTNKIT_FORMAT: no format 'jsn'")


def test_a_traceback_only_when_asked_for(attnkit):
    run = attnkit("layernorm", "missing.npy", env={"ATTNKIT_DEBUG": "1"})
    assert run.code == 4
    assert run.err.startswith("Traceback")
    assert run.err.endswith("attnkit layernorm: missing.npy: No such file or directory\n")


# T8, T9
NOWHERE = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    "8 threads": {"OMP_NUM_THREADS": "8"},
    "64 threads": {"OMP_NUM_THREADS": "64"},
    "no AVX": {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512_SKX", "OPENBLAS_CORETYPE": "Nehalem"},
    "decimal comma": {"LC_ALL": "de_DE.UTF-8", "LC_NUMERIC": "de_DE.UTF-8"},
    "C locale": {"LC_ALL": "C"},
    "time zone": {"TZ": "Asia/Kathmandu"},
    "epoch": {"SOURCE_DATE_EPOCH": "0"},
    "hash seed": {"PYTHONHASHSEED": "7"},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", NOWHERE.values(), ids=NOWHERE)
def test_settings_without_effect(attnkit, settings):
    line = [
        "run",
        "embed 'a b c d e f g' --dim 64 | posenc | mask --causal | attend --heads 8 --seed 1 | layernorm | ffn --hidden 99",
    ]
    runs = [attnkit(*line, "--format", "npz", env=one) for one in ({}, settings)]  # the first in this process
    assert [(run.code, run.err) for run in runs] == [(0, "")] * 2
    if not set(settings) & {"OMP_NUM_THREADS", "NPY_DISABLE_CPU_FEATURES"}:
        assert runs[0].out == runs[1].out
    first, second = (np.load(io.BytesIO(run.out))["x"] for run in runs)
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


def test_it_runs_as_a_module_too(attnkit):
    run = attnkit.run([sys.executable, "-m", "attnkit", "layernorm", "good.json"])
    assert run == attnkit("layernorm", "good.json")


@pytest.mark.parametrize(
    ("setting", "marks"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"FORCE_COLOR": "1"}, True)],
)
def test_errors_and_warnings_have_colour_on_a_terminal_alone(tmp_path, setting, marks):
    environ = (
        {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"} | setting
    )
    for arguments, start, colored in (
        (["attend", "missing"], "attnkit attend: missing", "\x1b[31mattnkit attend\x1b[0m: missing"),
        (["layernorm", "nan.json"], "attnkit layernorm: warning: x", "attnkit layernorm: \x1b[33mwarning\x1b[0m: x"),
    ):
        (tmp_path / "nan.json").write_text('{"tensors":{"x":{"dtype":"float64","shape":[1,2],"data":[["NaN",1]]}}}')
        leader, follower = pty.openpty()
        command = ["attnkit", *arguments, "-f", "json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=follower, cwd=tmp_path, env=environ, check=False)
        os.close(follower)
        assert os.read(leader, 4096).decode().startswith(colored if marks else start)
        os.close(leader)
        piped = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environ, check=False)
        assert piped.stderr.decode().startswith(start)
