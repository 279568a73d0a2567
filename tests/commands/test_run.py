"""The tool run, in the shell and in Python."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests import process

ENV = {"COLUMNS": "80"}


def shell(line, stdin=b"", check=True, **env):
    """What a line of bash writes to standard output."""
    code, out, err = process.bash(line, stdin=stdin, env=ENV | env)
    assert not check or code == 0, err
    return out


@pytest.mark.slow
def test_run_takes_files_folders_and_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipe = Path("layer")
    pipe.write_text("#!/usr/bin/env -S attnkit run\n# a layer\nposenc |  # where\n  attend --heads 2\n")
    pipe.chmod(0o755)
    record = shell("attnkit embed 'a b' --dim 4 -f npz")
    expected = shell("attnkit posenc | attnkit attend --heads 2", record)
    assert shell("./layer", record) == expected
    Path("r.npz").write_bytes(record)
    named = shell("./layer r.npz --save kept --only x --format npy")
    assert sorted(path.name for path in Path("kept").iterdir()) == ["1-posenc.npz", "2-attend.npz"]
    assert named == shell("attnkit show kept/2-attend.npz:x -f npy")
    done = process.run("run", "layer", "--steps", stdin=record, env=ENV)
    assert done.err.count("x (token 2, model 4)") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("layernorm x.npy", "attend x.npy --memory - -f npy"),
        ("layernorm x.npy", "attend - --seed 1"),
        ("embed --lines --dim 2 -f npz 'a b'", "attend --query x.npy:x --key -:x --value x.npy --keep weights -f npz"),
        ("embed a --dim 4", "decode --emit text"),
        ("posenc x.npy", "diff - x.npy"),
        ("embed 'a b c' 'd e' --dim 4 -f npz", "attend --keep weights,masked"),
        ("embed 'a b c' 'd e' --dim 4 -f npz", "mask --causal --window 2,0"),
        ("embed a --dim 4 -f safetensors", "peek -q -f npz"),
    ],
)
def test_the_operand_that_is_the_stage_before(tmp_path, monkeypatch, first, second):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(4.0).reshape(2, 2))
    expected = shell(f"attnkit {first} | attnkit {second}", check=False)
    assert expected and shell(f"attnkit run {shlex.quote(f'{first} | {second}')}", check=False) == expected
