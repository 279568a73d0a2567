"""The tool history, in the shell and in Python."""

import json
from pathlib import Path

import numpy as np
import pytest

import attnkit
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
    assert b"equal bit for bit" in shell("attnkit history out.npz --replay")
    np.save("x.npy", np.ones((2, 4)))
    done = process.run("history", "out.npz", "--replay", env=ENV)
    assert done.code == 1 and "x.npy has changed" in done.err


def test_a_seed_that_was_not_given_is_in_the_history_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell("attnkit embed 'a b c' --dim 4 | attnkit decode --top-k 2 -o d.npz")
    assert b"attnkit decode --top-k 2 --seed 0" in shell("attnkit history d.npz")
    assert b"equal" in shell("attnkit history d.npz --replay")
    assert attnkit.embed(["a b", "c"], dim=2).history[0]["command"] == "attnkit embed 'a b' c --dim 2 --seed 0"


@pytest.mark.slow
def test_a_slice_and_a_dash_are_replayed_a_stream_cannot_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell("attnkit embed 'a b c' --dim 4 -f npz | attnkit show --slice 0:2,::2 -f npz > s.npz")
    assert b"attnkit show --slice 0:2,::2" in shell("attnkit history s.npz")
    assert b"equal" in shell("attnkit history s.npz --replay")
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
    assert b"equal" in shell("attnkit history last.json --replay")
