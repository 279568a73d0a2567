"""Records that somebody crafted: what their strings may do to a shell and to a terminal, which is nothing."""

import itertools
import json
import os
import shlex
from pathlib import Path

import pytest

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


def words_of(script):
    """The stages of a script, each as its words; comments are none."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    lexer.whitespace = " \t\n"
    found = list(lexer)
    return [list(part) for pipe, part in itertools.groupby(found, lambda word: word == "|") if not pipe]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_runs_nothing_but_the_commands_of_the_record(attnkit, text, shell):
    entries = {
        "command's text": ENTRY | {"command": shlex.join(["attnkit", "embed", text, "--dim", "2"])},
        "raw command": ENTRY | {"command": f"attnkit embed {text} --dim 2"},
        "flag": ENTRY | {"command": f"attnkit posenc --size 2 --dim 2 {text}"},
        "tool": ENTRY | {"command": f"attnkit {text}"},
        "program": ENTRY | {"command": text},
        "version": ENTRY | {"version": text},
        "file": ENTRY | {"files": {text: DIGEST}},
        "digest": ENTRY | {"files": {"words.txt": text}},
        "beside": ENTRY | {"beside": text},
        "written": ENTRY | {"command": shlex.join(["attnkit", "embed", "a", "--dim", "2", "--trace", text]), "beside": text},
    }  # fmt: skip
    printed = 0
    for what, entry in entries.items():
        run = attnkit("history", crafted(attnkit.folder, entry))
        if run.code != 0:
            assert (run.code, run.out) == (3, b"") and run.err.count("\n") == 1, (what, run)
            assert run.err[:-1].isprintable()
            continue
        printed += 1
        script = run.out.decode()
        assert all(line.isprintable() for line in script.splitlines() if line.startswith("#"))
        stages = words_of(script)
        assert [words[:2] for words in stages] == [["attnkit", "embed"]], (what, script)
        done = attnkit.run([shell], stdin=run.out)
        assert (done.code, done.err) == (0, "") or "attnkit embed" in done.err, (what, done)
        assert sorted(os.listdir(attnkit.folder)) == ["good.json", "h.json"], (what, script)
    assert printed >= 2


WRITING = {
    "attnkit embed a --dim 2 -o OOPS": "writes OOPS",
    "attnkit embed a --dim 2 --output=OOPS": "writes OOPS",
    "attnkit embed a --dim 2 -qoOOPS": "writes OOPS",
    "attnkit run 'embed a' --save OOPS": "run is no stage of a pipeline",
    "attnkit history h.json": "history is no stage of a pipeline",
    "attnkit embed --help": "--help is no stage of a pipeline",
    "attnkit embed a --dim 2 > OOPS": "dim",
    "attnkit": "an empty stage",
    "attnkit embed a --dim 2; touch OOPS": "dim",
    "attnkit embed a --dmi 2": "no such option: --dmi",
    "X=1 attnkit embed a --dim 2": "not attnkit's",
}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("replay", [(), ("--replay",)], ids=["script", "replay"])
def test_a_history_that_attnkit_did_not_write_is_refused(attnkit, refused, command, replay):
    run = attnkit("history", crafted(attnkit.folder, ENTRY | {"command": command}), *replay)
    if run.code == 0:  # words of a text like all others
        assert shlex.split(run.out.decode().splitlines()[-1])[:2] == ["attnkit", "embed"]
    else:
        refused(run, 3, "history: ", WRITING[command].replace("dim", ""))
    assert sorted(os.listdir(attnkit.folder)) == ["good.json", "h.json"]


def test_a_script_writes_no_file(attnkit, tmp_path):
    story = str(STORY)
    kept = attnkit("decode", "--model", story, "Once", "--max-tokens", "2", "--trace", "t.npz", "--cache-out", "c.npz", "-o", "o.npz")  # fmt: skip
    assert kept.code == 0
    for name in ("t.npz", "c.npz", "o.npz"):
        script = attnkit("history", name).out
        (attnkit.folder / "again").mkdir(exist_ok=True)
        done = attnkit.run(["sh"], stdin=script, cwd=attnkit.folder / "again")
        assert done.code == 0 and os.listdir(attnkit.folder / "again") == []
        (attnkit.folder / "again.json").write_bytes(done.out)
        assert attnkit("diff", name, "again.json").code == 0
        assert b"# without writing t.npz\n# without writing c.npz\n" in script


def test_a_script_says_that_it_reads_standard_input(attnkit):
    (attnkit.folder / "n.json").write_bytes(attnkit("layernorm", "-f", "json", stdin=b"[[1,2]]").out)
    assert b"\n# reads standard input\nattnkit layernorm\n" in attnkit("history", "n.json").out
    (attnkit.folder / "n.json").write_bytes(attnkit("layernorm", "good.json").out)
    assert b"standard input" not in attnkit("history", "n.json").out


def test_a_script_of_a_pipe_with_show_in_it(attnkit):
    attnkit.shell("attnkit embed 'a b c' --dim 4 | attnkit show --slice 0:2 -f json | attnkit attend -o h.npz")
    done = attnkit.shell("attnkit history h.npz | sh > again.json && attnkit diff h.npz again.json")
    assert done.code == 0 and b"x: the same" in done.out
    assert attnkit("history", "h.npz", "--replay").code == 0


# S6
@pytest.mark.parametrize("name", ["/dev/zero", "fifo", "/dev/../dev/zero", "link"])
@pytest.mark.parametrize(
    "command", ["layernorm {}", "attend --mask {}", "embed --ids {} --dim 2", "embed a --dim 2 --vocab {}", "mask --with {}:x"]
)  # fmt: skip
def test_a_replay_reads_regular_files_alone(attnkit, refused, name, command):
    os.mkfifo(attnkit.folder / "fifo")
    (attnkit.folder / "link").symlink_to("/dev/zero")
    file = crafted(attnkit.folder, {"command": f"attnkit {command.format(name)}", "version": "0.1.0"})
    run = attnkit("history", file, "--replay", stdin=b"[[1,2]]")
    refused(run, 4, "", "not a regular file")


# A10
def test_a_replay_that_differs_is_no_error_of_the_data(attnkit, refused):
    attnkit("embed", "a b", "--dim", "2", "-o", "h.json")
    made = json.loads((attnkit.folder / "h.json").read_text())
    made["tensors"]["x"]["data"][0][0] += 1
    (attnkit.folder / "h.json").write_text(json.dumps(made))
    refused(attnkit("history", "h.json", "--replay"), 1, "history: h.json: run again, x differs first at [0][0]")
