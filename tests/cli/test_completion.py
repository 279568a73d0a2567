"""Completion of tools, options, choices, layers and tensor names: the words, and bash, zsh and fish themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.cli import TOOLS, find_tool, main
from attnkit.cli.options import COMMON
from tests.process import ROOT

STORY = "samples/data/story"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def complete(monkeypatch, capfd):
    """The words that complete a line, as the script of fish asks for them."""

    def words(line):
        monkeypatch.setenv("_ATTNKIT_COMPLETE", "complete_fish")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        assert main.main([]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return out.split()

    return words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attnkit la", ["layernorm"]),
        ("attnkit --v", ["--version"]),
        ("attnkit help reco", ["records"]),
        ("attnkit help attend ", []),
        ("attnkit completion ", ["bash", "zsh", "fish"]),
        ("attnkit layernorm --k", ["--kind", "--keep"]),
        ("attnkit layernorm --kind ", ["layer", "rms", "batch"]),
        ("attnkit layernorm --kind=r", ["rms"]),
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
def test_complete(line, expected, complete):
    assert complete(line) == expected


def test_every_option_of_every_tool_is_offered(complete):
    for name in TOOLS:
        flags = {f"--{flag.rstrip('_').replace('_', '-')}" for flag in find_tool(name).options}
        assert flags | {"--help"} == {*complete(f"attnkit {name} --")}


def test_names_of_a_file_that_a_shell_would_run_are_not_offered(tmp_path, complete):
    path = tmp_path / "r.npz"
    np.savez(path, **{"plain.name": np.zeros(2), "$(touch oops)": np.zeros(2), "a b": np.zeros(2)})
    assert complete(f"attnkit show {path}:") == [f"{path}:plain.name"]
    attnkit.formats.save(attnkit.Record({"x": np.zeros(2), "mask": np.ones(2, bool)}), str(path))
    assert complete(f"attnkit show {path} --only x,m") == ["x,mask"]


def test_a_file_that_cannot_be_read_offers_nothing(tmp_path, complete):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04")
    assert complete(f"attnkit show {tmp_path}/bad.npz:") == []


def test_bash_completes_through_the_script():
    lines = [
        "attnkit pe",
        f"attnkit show {STORY} : decoder.norm.g",
        "attnkit attend --align = b",
        "attnkit attend --kv",
    ]
    loop = (
        "for line; do COMP_WORDS=($line) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _attnkit_completion attnkit; "
        'echo "${COMPREPLY[*]}"; done'
    )
    command = ["bash", "-c", f'eval "$(attnkit completion bash)"; {loop}', "-", *lines]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": PATH})
    assert (run.stdout, run.stderr) == ("peek\ndecoder.norm.gamma\nbottom-right\n--kv-heads\n", "")


def type_keys(command, keys, expected, **variables):
    """What a shell on a terminal shows after these keys, up to the expected text."""
    child, terminal = pty.fork()
    if not child:
        os.execvpe(command[0], command, os.environ | {"PATH": PATH, "TERM": "xterm", "PS1": "$ "} | variables)
    shown, end = b"", time.monotonic() + 60
    try:
        for key in keys:
            os.write(terminal, key.encode())
            ready = False
            while time.monotonic() < end and not ready:
                if select.select([terminal], [], [], 0.5)[0]:
                    shown += os.read(terminal, 4096)
                    ready = expected in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode("utf-8", "replace"))
                else:
                    ready = key != keys[-1]
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode("utf-8", "replace"))


SHELL_LINES = [
    ("attnkit lay\t", "attnkit layernorm"),
    ("attnkit attend --kv\t", "attend --kv-heads"),
    ("attnkit posenc --kind rot\t", "--kind rotary"),
    ("attnkit attend --keep q,wei\t", "q,weights"),
    (f"attnkit show {STORY}:decoder.norm.g\t", f"{STORY}:decoder.norm.gamma"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "expected"), SHELL_LINES)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_on_a_terminal_completes(shell, keys, expected, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run(
        ["attnkit", "completion", shell], capture_output=True, text=True, env=os.environ | {"PATH": PATH}
    )
    assert script.returncode == 0
    file = tmp_path / f"attnkit.{shell}"
    file.write_text(script.stdout)
    command, start = {
        "bash": (["bash", "--norc", "-i"], f". {file}\n"),
        "zsh": (["zsh", "-f", "-i"], f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump; . {file}\n"),
        "fish": (["fish", "--no-config", "-i"], f"source {file}\n"),
    }[shell]
    assert expected in type_keys(command, [start, keys], expected, HOME=str(tmp_path))


@pytest.mark.parametrize("arguments", ["completion", "completion -h", "completion --help", "help completion"])
def test_help_on_completion_says_how_to_install_it(arguments, capfd):
    assert main.main(arguments.split()) == 0
    assert capfd.readouterr().out.startswith('# bash: add to ~/.bashrc       eval "$(attnkit completion bash)"\n')


def test_an_unknown_shell_is_a_usage_error(capfd):
    assert main.main(["completion", "zhs"]) == 2
    assert (
        capfd.readouterr().err == "attnkit completion: expected one of: bash, zsh, fish, got 'zhs'; did you mean zsh?\n"
    )


@pytest.mark.parametrize("name", TOOLS)
def test_the_sections_of_a_help_hold_each_option_once(name):
    tool = find_tool(name)
    listed = [name for names in tool.sections.values() for name in names.split()]
    named = [flag for name in listed for flag in tool.fields.get(name, [name])]
    assert len(named) == len(set(named))
    assert not tool.sections or {*named} == {*tool.flags, *({*tool.extra_names} - {*COMMON})}
