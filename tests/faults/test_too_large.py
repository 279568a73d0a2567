"""Sizes of random weights and models that no memory holds: an error of one line, before anything is allocated."""

import json

import pytest

from attnkit.cli import main
from tests.places import MODELS

TOO_LARGE = {
    "embed a --dim 1000000000000": "--dim: a table (1, 1000000000000) needs 12.0 TB",
    "ffn x.json --hidden 1000000000000": "--hidden: a network of 1000000000000 hidden units needs 32.0 TB",
    "rnn x.json --hidden 1000000000": "--hidden: a network of 1 × 1000000000 states needs 8000.0 PB",
    "rnn x.json --hidden 4 --layers 1000000000": "--hidden: a network of 1000000000 × 4 states needs 756.0 GB",
    "posenc --size 1000000000 --dim 1000000": "--size: shape (1000000000, 1000000) needs 8.0 PB",
    "mask --size 10000000 --causal": "--size: shape (10000000, 10000000) needs 100.0 TB",
    "train text -o m --accumulate 1000000000": "--accumulate: a step of 12,000,000,000 texts of 64",
    "train text -o m --batch 100000000000": "--batch: a step of 100,000,000,000 texts of 64 tokens needs 102.4 TB",
    "train text -o m --family bert --batch 100000000000 --block 8": "texts of 8 tokens needs 12.8 TB",
    "train text -o m --layers 100000000": "parameters, with their gradients, needs 158.6 TB",
    "train text -o m --family marian --layers 100000000": "with their gradients, needs",
    "train text -o m --family lstm --dim 100000000": "with their gradients, needs",
}


@pytest.mark.parametrize("line", TOO_LARGE)
def test_what_needs_more_than_the_memory_is_refused_with_both_sizes(line, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text("[[1, 2], [3, 4]]")
    (tmp_path / "text").write_text("a cat\ta cat\n" * 20)
    assert main.main(line.split()) == 3
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and not (tmp_path / "m").exists()
    assert TOO_LARGE[line] in err and ", more than this machine's memory (" in err


def test_tokens_are_not_reserved_before_they_are_chosen(capfd):
    """A million of a model that has no longest text; the first one is the end here, by --stop."""
    words = ["decode", "--model", str(MODELS / "t5"), "translate", "--max-tokens", "1000000000"]
    assert main.main([*words[:-1], "2", "-f", "json"]) == 0
    [text] = json.loads(capfd.readouterr().out)["labels"]["text"]
    assert main.main([*words, "--stop", text[:3], "-f", "json"]) == 0
