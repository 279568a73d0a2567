"""Completion of tools, options, choices, layers and tensor names; in bash through the real process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import commands
from attnkit.cli import completion, main, parser
from tests.places import ROOT

STORY = "samples/data/story"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attnkit la", ["layernorm"]),
        ("attnkit help reco", ["records"]),
        ("attnkit help attend ", []),
        ("attnkit completion ", ["bash", "zsh", "fish"]),
        ("attnkit embed 'a | b' | attnkit layernorm --k", ["--kind", "--keep"]),
        ("attnkit layernorm --kind ", ["layer", "rms", "batch"]),
        ("attnkit layernorm --kind=r", ["--kind=rms"]),
        ("attnkit attend --keep q,ca", ["q,capped"]),
        ("attnkit show -f saf", ["safetensors"]),
        (f"attnkit layernorm --model {STORY} --layer decoder.no", ["decoder.norm"]),
        (f"attnkit decode --model {STORY} --ablate decoder.1", ["decoder.1.self"]),
        (f"attnkit show {STORY}:decoder.0.ffn.w", [f"{STORY}:decoder.0.ffn.w1", f"{STORY}:decoder.0.ffn.w2"]),
        ("attnkit attend --heads ", []),
        ("attnkit nosuch --k", []),
        ("attnkit show no-such-file:", []),
    ],
)
def test_complete(line, expected):
    assert completion.complete(line) == expected


def test_every_option_of_every_tool_is_offered():
    for name in commands.TOOLS:
        flags = {f"--{flag.rstrip('_').replace('_', '-')}" for flag in parser.collect_flags(commands.find_tool(name))}
        assert flags | {"--help"} == {*completion.complete(f"attnkit {name} --")}


def test_names_of_a_file_that_a_shell_would_run_are_not_offered(tmp_path):
    path = tmp_path / "r.npz"
    np.savez(path, **{"plain.name": np.zeros(2), "$(touch oops)": np.zeros(2), "a b": np.zeros(2)})
    assert completion.complete(f"attnkit show {path}:") == [f"{path}:plain.name"]
    attnkit.formats.save(attnkit.Record({"x": np.zeros(2), "mask": np.ones(2, bool)}), str(path))
    assert completion.complete(f"attnkit show {path} --only x,m") == ["x,mask"]


def test_bash_completes_through_the_script(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    lines = ["attnkit pe", f"attnkit show {STORY}:decoder.norm.g", "attnkit attend --align=b"]
    loop = 'for line; do COMP_LINE=$line COMP_POINT=${#line} _attnkit; echo "${COMPREPLY[*]}"; done'
    command = ["bash", "-c", f'eval "$(attnkit completion bash)"; {loop}', "-", *lines]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path})
    assert (run.stdout, run.stderr) == ("peek\ndecoder.norm.gamma\nbottom-right\n", "")  # bash breaks words at : and =


def test_a_file_that_cannot_be_read_offers_nothing(tmp_path, capfd):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04")
    assert main.main(["completion", "bash", f"attnkit show {tmp_path}/bad.npz:"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_completion_says_how_to_install_it(arguments, capfd):
    assert main.main(["completion", *arguments]) == 0
    assert 'add to ~/.bashrc       eval "$(attnkit completion bash)"' in capfd.readouterr().out


def test_an_unknown_shell_is_a_usage_error(capfd):
    assert main.main(["completion", "zhs"]) == 2
    assert (
        capfd.readouterr().err == "attnkit completion: expected one of: bash, zsh, fish, got 'zhs'; did you mean zsh?\n"
    )


@pytest.mark.parametrize("arguments", [["completion"], ["completion", "--help"], ["help", "completion"]])
def test_help_on_completion_says_how_to_install_it(arguments, capfd):
    assert main.main(arguments) == 0
    assert capfd.readouterr().out.startswith('# bash: add to ~/.bashrc       eval "$(attnkit completion bash)"\n')


@pytest.mark.parametrize("name", commands.TOOLS)
def test_the_sections_of_a_help_hold_each_option_once(name):
    tool = commands.find_tool(name)
    named = [flag for names in tool.sections.values() for flag in names.split()]
    assert len(named) == len(set(named))
    assert not tool.sections or {*named} == {*tool.flags, *tool.extra}
