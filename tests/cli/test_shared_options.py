"""The options of all tools: a tool takes those that change what it writes, and no others."""

import json

import numpy as np
import pytest

import attnkit
from attnkit.cli import TOOLS, find_tool, main
from attnkit.errors import flag_name
from tests.process import ROOT

STORY = str(ROOT / "samples/data/story")
TEXT = "A small bear looked at the"
INPUTS = {
    "attend": ["e.json"],
    "conv": ["e.json", "--filters", "2", "--size", "1"],
    "cost": [STORY, "--tokens", "4"],
    "decode": ["--model", STORY, TEXT, "--max-tokens", "0"],
    "diff": ["e.json", "f.json"],
    "embed": ["Ġthe Ġcat", "--dim", "4"],
    "encode": ["--model", STORY, "the fox"],
    "engines": [],
    "explore": ["w.json"],
    "ffn": ["e.json", "--hidden", "2"],
    "grad": ["embed 'Ġthe Ġcat' --dim 4 | decode | loss --target 1,0", "--attribute", "input-x-gradient"],
    "golden": ["numbers.toml"],
    "heads": ["w.json"],
    "history": ["e.json"],
    "layernorm": ["e.json"],
    "lens": ["run.npz", "--model", STORY, "--top", "1"],
    "linear": ["e.json", "--params", "linear.npz"],
    "loss": ["e.json", "--target", "1,0"],
    "mask": ["e.json", "--causal", "--as", "additive"],
    "mel": ["sound.json", "--window", "4", "--hop", "2", "--mels", "2"],
    "merge": ["part.json"],
    "near": ["e.json", "--index", ":table", "--top", "1"],
    "peek": ["e.json"],
    "posenc": ["e.json"],
    "recall": ["e.json"],
    "rnn": ["e.json", "--hidden", "2"],
    "rollout": ["run.npz"],
    "run": ["posenc", "e.json"],
    "scan": ["--model", STORY, TEXT, "--score", " stars", "--ablate", "heads", "--positions"],
    "score": ["text.txt", "--references", "text.txt"],
    "show": ["e.json"],
    "softmax": ["e.json"],
    "train": ["text.txt", "-o", "model", "--layers", "1", "--heads", "1", "--dim", "4", "--block", "2", "--steps", "1"],
}
# the options with values, and the formats in which they show
VALUES = {
    "only": ([["x"], ["weights"], ["bleu"]], ["json"]),
    "dtype": ([["float64"], ["float16"]], ["json"]),
    "precision": ([["1"]], ["table"]),
    "tokens": ([["plain"], ["raw"]], ["table", "csv"]),
    "indent": ([[]], ["json"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    embedded = attnkit.embed("Ġthe Ġcat", dim=4)
    for name, record in {
        "e.json": embedded,
        "sound.json": attnkit.Record(
            {"x": np.arange(8.0), "y": attnkit.Tensor(np.ones(2), ("mel",), {"mel": ["Ġa", "Ġb"]})}
        ),
        "f.json": embedded.with_tensors({"x": embedded["x"] * 1.01}),
        "w.json": attnkit.attend(embedded, keep="weights"),
        "part.json": attnkit.attend(embedded, partial=True),
        "run.npz": attnkit.encode("the fox", model=STORY, keep="*"),
    }.items():
        attnkit.formats.save(record, str(folder / name))
    np.savez(folder / "linear.npz", w=np.eye(4, dtype=np.float32))
    (folder / "numbers.toml").write_text('cat.pipeline = "embed cat --dim 4"')
    (folder / "text.txt").write_text("the fox looked at the stars\n" * 4)
    return folder


def written(arguments, capfd):
    """What a command line writes, without what is not its result: a history, and times; None for an error."""
    code = main.main(arguments)
    text = capfd.readouterr().out
    if code not in (0, 1):
        return None
    try:
        values = json.loads(text)
    except ValueError:
        return text
    return text.count("\n"), {name: values[name] for name in ("tensors", "labels", "engines") if name in values}


@pytest.mark.parametrize("name", TOOLS)
def test_every_option_of_all_tools_that_a_tool_takes_changes_what_it_writes(name, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    tool, idle = find_tool(name), []
    for option in {*VALUES} & {*tool.options} - {*tool.flags}:
        values, formats = VALUES[option]
        pairs = (
            (written(base, capfd), written([*base, flag_name(option), *value], capfd))
            for base in ([name, *INPUTS[name], "-f", "html" if tool.gives == "page" else format] for format in formats)
            for value in values
        )
        idle += [] if any(None not in pair and pair[0] != pair[1] for pair in pairs) else [option]
    assert idle == [], f"{name} takes options that change nothing"
