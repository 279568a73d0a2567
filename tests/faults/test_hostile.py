"""Records that somebody crafted: what their strings may do to a shell and to a terminal, which is nothing."""

import contextlib
import json
import os
import pty
import re
import shlex
import threading
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from attnkit.cli import main
from attnkit.formats import Record, save
from attnkit.records import Tensor

STORY = Path(__file__).parents[2] / "samples" / "data" / "story"
HOSTILE = {
    "newline": "a\ntouch OOPS\n#",
    "carriage return": "a\rtouch OOPS\r#",
    "line separator": "a\u2028touch OOPS\u2028#",
    "escape": "\x1b[2J\x1b]0;title\x07\x9b31m",
    "quotes": "a' \" '; touch OOPS; '\" ",
    "backticks": "a`touch OOPS`$(touch OOPS)${IFS}",
    "operators": "a; touch OOPS & touch OOPS | touch OOPS > OOPS",
    "backslash": "a\\",
    "bidi": "\u202eabc\u2066\U000e0001",
}
DIGEST = "0" * 64
ENTRY = {"command": "attnkit embed 'a b' --dim 2", "version": "0.1.0", "files": {"words.txt": DIGEST}}


def crafted(folder, *history):
    """A file of a record with this history."""
    (folder / "h.json").write_text(json.dumps({"tensors": {"x": {"data": [[1, 2]]}}, "history": history}))
    return "h.json"


@pytest.fixture
def ran(attnkit):
    """Runs a script in a folder of its own, `attnkit` being a program that notes its arguments: those of each run."""
    (attnkit.folder / "bin").mkdir()
    (attnkit.folder / "run").mkdir()
    noting = attnkit.folder / "bin" / "attnkit"
    noting.write_text("#!/bin/sh\n{ printf '%s\\0' \"$@\"; printf '\\1\\0'; } >> ../noted\n")
    noting.chmod(0o755)

    def run(shell, script):
        noted = attnkit.folder / "noted"
        noted.write_bytes(b"")
        path = f"{noting.parent}:/usr/bin:/bin"
        done = attnkit.run([shell], stdin=script, cwd=attnkit.folder / "run", env={"PATH": path})
        assert (done.code, done.out, done.err, os.listdir(attnkit.folder / "run")) == (0, b"", "", [])
        return [words.split("\0")[:-1] for words in noted.read_text().split("\1\0")[:-1]]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_script_runs_nothing_but_the_commands_of_the_record(attnkit, main, ran, text):
    entries = {
        "text": {"command": shlex.join(["attnkit", "embed", text, "--dim", "2"])},
        "raw text": {"command": f"attnkit embed {text} --dim 2"},
        "operand": {"command": f"attnkit layernorm {shlex.quote(text)}"},
        "flag": {"command": f"attnkit layernorm --gamma {shlex.quote(text)}"},
        "tool": {"command": f"attnkit {text}"},
        "program": {"command": text},
        "version": {"version": text},
        "file": {"files": {text: DIGEST}},
        "digest": {"files": {"words.txt": text}},
        "beside": {"beside": text},
        "machine": {"machine": text},
        "trace": {"command": shlex.join(["attnkit", "encode", "--model", "d", "a", "--trace", text]), "beside": text},
    }
    printed = []
    for what, changed in entries.items():
        entry = ENTRY | changed
        done = main("history", crafted(attnkit.folder, entry))
        if done.code != 0:
            assert (done.code, done.out, done.err.count("\n")) == (3, b"", 1), (what, done)
            assert done.err[:-1].isprintable()
            continue
        printed.append(what)
        for shell in ("sh", "bash"):
            [words] = ran(shell, done.out)
            assert words[0] in ("embed", "layernorm", "encode"), what
            assert not set(shlex.split(entry["command"])) - {*words, "attnkit", text}, (what, words)
            assert text not in words or text in shlex.split(entry["command"])
    assert {"text", "operand", "flag", "file", "trace"} <= {*printed}


WRITING = {
    "attnkit embed a --dim 2 -o OOPS": "writes OOPS",
    "attnkit embed a --dim 2 --output=OOPS": "writes OOPS",
    "attnkit embed a --dim 2 -qoOOPS": "writes OOPS",
    "attnkit run 'embed a --dim 2' --save OOPS": "writes the folder OOPS",
    "attnkit history h.json": "history cannot be a stage of a pipeline",
    "attnkit embed --help": "--help cannot be a stage of a pipeline",
    "attnkit": "an empty stage",
    "attnkit embed a --dim 2; touch OOPS": "--dim: expected a whole number of at least 1, got '2;'",
    "attnkit embed a --dmi 2": "no such option: --dmi",
    "X=1 attnkit embed a --dim 2": "not attnkit's",
}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("replay", [(), ("--replay",)], ids=["script", "replay"])
def test_a_history_that_attnkit_did_not_write_is_refused(attnkit, main, refused, command, replay):
    refused(
        main("history", crafted(attnkit.folder, {"command": command, "version": "1"}), *replay),
        3,
        "history: ",
        WRITING[command],
    )
    assert sorted(os.listdir(attnkit.folder)) == ["good.json", "h.json"]


def test_a_script_writes_no_file(attnkit):
    line = ["decode", "--model", STORY, "Once", "--score", " upon", "--trace", "t.npz", "--cache-out", "c.npz"]
    assert attnkit(*line, "-o", "o.npz").code == 0
    (attnkit.folder / "again").mkdir()
    for name in ("t.npz", "c.npz", "o.npz"):
        script = attnkit("history", name).out
        assert b"# without writing t.npz\n# without writing c.npz\n" in script
        done = attnkit.run(["sh"], stdin=script, cwd=attnkit.folder / "again")
        assert done.code == 0 and os.listdir(attnkit.folder / "again") == []
        (attnkit.folder / "again.json").write_bytes(done.out)
        assert attnkit("diff", name, "again.json").code == 0


def test_a_script_says_that_it_reads_standard_input(attnkit):
    (attnkit.folder / "n.json").write_bytes(attnkit("layernorm", "-f", "json", stdin=b"[[1,2]]").out)
    assert (
        b"\n# attnkit layernorm read standard input: give it the same again\nattnkit layernorm\n"
        in attnkit("history", "n.json").out
    )
    (attnkit.folder / "n.json").write_bytes(attnkit("layernorm", "good.json").out)
    assert b"standard input" not in attnkit("history", "n.json").out


def test_a_script_of_a_pipe_with_show_in_it(attnkit):
    attnkit.shell("attnkit embed 'a b c' --dim 4 | attnkit show --slice 0:2 -f json | attnkit attend -o h.npz")
    done = attnkit.shell("attnkit history h.npz | sh > again.json && attnkit diff h.npz again.json")
    assert done.code == 0 and b"\nx          0 of 8 " in done.out
    assert attnkit("history", "h.npz", "--replay").code == 0


# S6
READING = {
    "layernorm {}": "/dev/zero",
    "attend --mask {}": "fifo",
    "embed --ids {} --dim 2": "/dev/../dev/zero",
    "embed a --dim 2 --vocab {}": "link",
    "mask --with {}:x": "link",
}


@pytest.mark.parametrize(("command", "name"), READING.items())
def test_a_replay_reads_regular_files_alone(attnkit, refused, command, name):
    os.mkfifo(attnkit.folder / "fifo")
    (attnkit.folder / "link").symlink_to("/dev/zero")
    file = crafted(attnkit.folder, {"command": f"attnkit {command.format(name)}", "version": "0.1.0"})
    run = attnkit("history", file, "--replay", stdin=b"[[1,2]]")
    refused(run, 4, command.split()[0] + ": ", "not a regular file")


# A10
def test_a_replay_that_differs_is_no_error_of_the_data(attnkit, refused):
    attnkit("embed", "a b", "--dim", "2", "-o", "h.json")
    made = json.loads((attnkit.folder / "h.json").read_text())
    made["tensors"]["x"]["data"][0][0] += 1
    (attnkit.folder / "h.json").write_text(json.dumps(made))
    refused(
        attnkit("history", "h.json", "--replay"),
        1,
        "history: h.json: run again, x of stage 1, embed, differs first at [0][0]",
    )


# S3: the strings of a record, of its files' names and of a vocabulary on a terminal
TEXTS = [
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m\x85\x7f",
    "\u202e\u2066\u200f\U000e0001",
    "a\rb\tc\x00\u2028d\n\ne",
    "<script>alert(1)</script>&'\"]]>",
]
PLAIN = re.compile(rb"\x1b\[[0-9;]*m|\r\n")  # our own colours, and what the terminal makes of a newline


def hostile_record(text):
    """A record with this text in every string that it has, a heat map and words among them."""
    rng = np.random.default_rng(0)
    names = [f"{text}{at}" for at in range(4)]
    tensors = {
        "x": Tensor(rng.normal(size=(2, 4)), ("token", "model")),
        "weights": Tensor(rng.random((2, 2, 2)), (f"h{text}", "query", "key")),
        text: Tensor(rng.normal(size=(2, 4)), (text, f"b{text}")),
        "table": Tensor(rng.normal(size=(4, 4)), ("vocab", "model")),
        "ids": Tensor(np.array([0, 1]), ("token",)),
    }
    labels = dict.fromkeys(("token", "query", "key", f"h{text}", text), names[:2]) | {"vocab": names, "model": names}
    history = [
        {"command": shlex.join(["attnkit", "embed", text, "--dim", "4"]), "version": "0.1.0", "files": {text: DIGEST}}
    ]
    return Record(tensors, labels, history)


VIEWS = [
    "show h.json", "show h.json --list", "show h.json --stats", "show h.json --heatmap", "show h.json --heads",
    "show h.json --name weights --heatmap", "show h.json --name weights,TEXT", "show h.json --name TEXT --heatmap",
    "show h.json --slice 0", "show h.json -f json", "show h.json -f json --indent", "show h.json:TEXT",
    "show h.json:nothing", "show h.json --name nothing", "history h.json", "history h.json --replay",
    "diff h.json h.json", "diff h.json other.json", "diff h.json other.json -f json", "diff other.json good.json",
    "peek h.json", "peek h.json -f json", "peek h.json --heatmap", "decode h.json --top 2",
    "decode h.json --emit text", "decode h.json --only TEXT",
    "decode h.json --emit ids", "attend h.json --steps", "attend h.json --keep weights",
    "layernorm h.json --only TEXT,x",
    "layernorm TEXT", "layernorm h.json --kind TEXT", "TEXT", "embed TEXT --dim 4", "embed TEXT --dim 4 -f json",
    "embed TEXT --vocab words --dim 4", "mask h.json --causal --explain 1,0", "posenc h.json --positions TEXT",
    "encode --model d TEXT --trace TEXT", "merge h.json", "ffn h.json --hidden 4 --steps", "attend --help",
]  # fmt: skip


@contextlib.contextmanager
def on_terminal():
    """Standard output and error are a terminal in a `with` block; the list gets what it is to show."""
    master, terminal = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # the terminal's way to say that there is no more
            while piece := os.read(master, 1 << 16):
                shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(terminal, number)
        with open(terminal, "w", encoding="utf-8") as screen, contextlib.redirect_stdout(screen):
            yield shown
    finally:
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)
        reader.join()
        os.close(master)


@pytest.fixture(params=TEXTS, ids=ascii)
def hostile(request, tmp_path):
    """A text, and a folder with a record that is full of it."""
    record = hostile_record(request.param)
    save(record, str(tmp_path / "h.json"))
    changed = {"x": Tensor(record["x"] + 1, ("token", "model")), "more": record["x"]}
    other = Record({**record.tensors, **changed}, record.labels)
    save(other, str(tmp_path / "other.json"))
    (tmp_path / "good.json").write_text("[[1,2]]")
    (tmp_path / "words").write_text("a\n")
    return request.param, tmp_path


def test_no_text_of_a_record_reaches_a_terminal_as_an_order(hostile, monkeypatch):
    text, folder = hostile
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    codes = {}
    for view in VIEWS:
        arguments = [word.replace("TEXT", text.replace("\0", "")) for word in view.split()]
        with on_terminal() as pieces:
            codes[view] = main.main(arguments)
        shown = b"".join(pieces)
        left = PLAIN.sub(b"", shown).decode("utf-8")
        assert shown or codes[view] == 0, view
        assert all(c.isprintable() for c in left), (view, shown)
    assert sum(code == 0 for code in codes.values()) > len(VIEWS) // 2, codes
    assert 70 not in codes.values(), codes


def test_pictures_are_whole_and_without_scripts(hostile, main):
    _, folder = hostile
    for suffix in ("svg", "html"):
        for view in ("--heatmap", "--list", "--stats", "--heads") if suffix == "html" else ("--heatmap",):
            assert main("show", str(folder / "h.json"), view, "-o", str(folder / f"p.{suffix}")).code == 0
            drawn = (folder / f"p.{suffix}").read_text()
            assert "<script" not in drawn and not re.search(
                r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", drawn
            )
            ElementTree.fromstring(drawn if suffix == "svg" else re.sub(r"<!DOCTYPE[^>]*>|<meta[^>]*>", "", drawn))


def test_a_pipe_gets_text_as_it_is(hostile, main):
    text, folder = hostile
    done = main("decode", str(folder / "h.json"), "--emit", "text")
    assert done.code == 0 and text.encode() in done.out
