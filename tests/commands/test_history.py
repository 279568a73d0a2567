"""The tool history, in the shell and in Python."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.model.processor.machine import describe_machine
from attnkit.records import find_machine
from tests import process

ENV = {"COLUMNS": "80"}


def shell(line, stdin=b"", check=True, **env):
    """What a line of bash writes to standard output."""
    code, out, err = process.bash(line, stdin=stdin, env=ENV | env)
    assert not check or code == 0, err
    return out


def tensors_of(output):
    """The tensors of every JSON record of an output."""
    return [json.loads(line)["tensors"] for line in output.splitlines()]


@pytest.mark.slow
def test_history_is_a_script_that_makes_the_record_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(8.0).reshape(2, 4))
    np.savez("w.npz", wq=np.eye(4) / 2)
    shell("attnkit layernorm x.npy -f json | attnkit attend --params w.npz --heads 2 -o out.npz")
    script = shell("attnkit history out.npz")
    assert b"attnkit layernorm -f json x.npy \\\n  | attnkit attend --heads 2 --params w.npz" in script
    digest = shell("sha256sum x.npy").split()[0]
    assert digest + b"  x.npy" in script
    assert tensors_of(shell("sh -", script)) == tensors_of(shell("attnkit show out.npz -f json"))
    assert b"identical bit for bit" in shell("attnkit history out.npz --replay")
    np.save("x.npy", np.ones((2, 4)))
    done = process.run("history", "out.npz", "--replay", env=ENV)
    assert done.code == 1 and "x.npy has changed" in done.err


def test_a_seed_that_was_not_given_is_in_the_history_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell("attnkit embed 'a b c' --dim 4 | attnkit decode --top-k 2 -o d.npz")
    assert b"attnkit decode --top-k 2 --seed 0" in shell("attnkit history d.npz")
    assert b"identical" in shell("attnkit history d.npz --replay")
    assert attnkit.embed(["a b", "c"], dim=2).history[0]["command"] == "attnkit embed 'a b' c --dim 2 --seed 0"


@pytest.mark.slow
def test_a_slice_and_a_dash_are_replayed_a_stream_cannot_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell("attnkit embed 'a b c' --dim 4 -f npz | attnkit show --slice 0:2,::2 -f npz > s.npz")
    assert b"attnkit show --slice 0:2,::2" in shell("attnkit history s.npz")
    assert b"identical" in shell("attnkit history s.npz --replay")
    shell("echo '[[1,2]]' | attnkit layernorm - -o d.npz")
    assert shell("attnkit history d.npz").endswith(b"\nattnkit layernorm\n")
    shell("echo '[[1,2]]' | attnkit attend --memory <(echo '[[1,2]]') -o m.npz")
    assert b"cannot be read again" in shell("attnkit history m.npz")
    done = process.run("history", "m.npz", "--replay", stdin=b"[[1, 2]]", env=ENV)
    assert done.code == 3 and "a stream that cannot be read again" in done.err


@pytest.mark.slow
def test_a_history_that_is_not_attnkits_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = '{"tensors":{"x":{"data":[1]}},"history":[{"command":%s,"version":"0.1.0"}]}'
    for command, message in (
        ('"touch canary"', "not attnkit's"),
        ('"attnkit layernorm x.json -o canary"', "writes canary"),
        ('"attnkit attend \'"', "cannot be read"),
    ):
        Path("h.json").write_text(record % command)
        done = process.run("history", "h.json", "--replay", env=ENV)
        assert done.code == 3 and message in done.err, done.err
    Path("h.json").write_text(record % '"attnkit embed $(touch canary) --dim 2"')
    shell("attnkit history h.json | sh -")
    assert not Path("canary").exists()


@pytest.mark.slow
def test_every_line_of_a_stream_has_a_history_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell("printf 'a b\\n--c\\n' | attnkit embed --lines --dim 2 | tail -1 > last.json")
    assert b"attnkit embed --dim 2 --seed 0 -- --c" in shell("attnkit history last.json")
    assert b"identical" in shell("attnkit history last.json --replay")


LAYER = "embed 'the cat sat on the mat' --dim 32 | posenc | attend --heads 4 --seed 1 | layernorm"
ELSEWHERE = "OpenBLAS Abacus, NumPy 2.0.0"


def replayed(tmp_path, change):
    """What `history --replay` says of a record whose tensors another machine made."""
    record = attnkit.run(LAYER)
    history = [{**entry, "machine": ELSEWHERE} if "machine" in entry else entry for entry in record.history]
    changed = replace(record.with_tensors(change(record)), history=history)
    attnkit.formats.save(changed, str(tmp_path / "r.npz"))
    done = process.run("history", "r.npz", "--replay", cwd=tmp_path, env=ENV)
    return done.code, done.out.decode().splitlines(), done.err


def test_another_machine_gives_the_same_to_rounding(tmp_path):
    code, lines, err = replayed(tmp_path, lambda r: {"x": np.nextafter(r["x"], np.float32(9))})
    assert (code, err) == (0, "")
    assert re.fullmatch(r"4 commands run again: the same to rounding, at most 1 ulp, \S+ of the largest \(x\); noise "
                        "measured by running its history in float64 and rounded", lines[0])  # fmt: skip
    assert lines[1] == f"made on {ELSEWHERE}; this is {describe_machine()}"


def test_a_change_names_the_first_stage_that_moved(tmp_path):
    moved = lambda r: {"x": r["x"] + np.float32(0.001) * (np.arange(32) == 7)}  # noqa: E731
    code, lines, err = replayed(tmp_path, moved)
    assert (code, lines) == (1, [])
    assert err == (
        "attnkit history: r.npz: run again, x of stage 4, layernorm, differs first at [0][7]; up to stage 1, embed, "
        f"all is identical (it was made on {ELSEWHERE})\n"
    )
    err = replayed(tmp_path, lambda r: {**moved(r), "table": 1.5 * r["table"]})[2]
    assert (
        "run again, table of stage 1, embed, differs first at [0][0] (now = 0.666667 · then; the rest is rounding)"
        in err
    )
    assert "run again, x of stage 4, layernorm, differs first at [0][0];" in replayed(
        tmp_path, lambda r: {"x": np.where(np.arange(192).reshape(6, 32) < 3, np.nan, r["x"]).astype(np.float32)}
    )[2]  # fmt: skip


def test_a_changed_file_names_its_stage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("w.npz", wq=np.eye(4))
    attnkit.formats.save(attnkit.run("embed 'a b' --dim 4 | attend --params w.npz"), "r.npz")
    np.savez("w.npz", wq=2 * np.eye(4))
    done = process.run("history", "r.npz", "--replay", env=ENV)
    assert done.code == 1 and "run again, stage 2: w.npz has changed (SHA-256 " in done.err


def test_a_record_names_its_machine_once_and_again_where_it_changes():
    here = describe_machine()
    record = attnkit.run("embed 'a b' --dim 4 | posenc | layernorm")
    assert [entry.get("machine") for entry in record.history] == [here, None, None]
    other = replace(record, history=[{**record.history[0], "machine": ELSEWHERE}, *record.history[1:]])
    machines = [entry.get("machine") for entry in attnkit.ffn(attnkit.softmax(other), hidden=2).history]
    assert machines == [ELSEWHERE, None, None, here, None]
    assert find_machine(attnkit.softmax(other).history) == here


@pytest.mark.parametrize("machine", ["", "a" * 101, "a\nb", "caf\u00e9", 7])
def test_a_machine_is_a_short_text(tmp_path, machine):
    entry = {"command": "attnkit embed a --dim 2", "version": "0.1.0", "machine": machine}
    (tmp_path / "r.json").write_text(json.dumps({"tensors": {"x": {"data": [1]}}, "history": [entry]}))
    done = process.run("show", "r.json", cwd=tmp_path, env=ENV)
    assert done.code == 3 and "entry 0 of key" in done.err and done.err.count("\n") == 1
