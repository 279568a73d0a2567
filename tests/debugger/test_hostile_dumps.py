"""Hostile dumps and answers: each is compared, or refused in one line."""

import pytest

from tests.fuzz import dumps, runner


@pytest.mark.slow
def test_dumps_are_compared_or_refused(tmp_path, monkeypatch):
    """A short form of python -m tests.fuzz --only dumps; tests/fuzz/runner.py says what each case must obey."""
    monkeypatch.setattr(runner, "SECONDS", 60.0)  # of a case that hangs
    monkeypatch.setattr(dumps, "MODELS", ("gpt2", "gpt2", "bert", "bert"))
    outcomes, escapes = runner.run(dumps.doors(str(tmp_path)), 44, seed=5)
    assert not escapes
    assert all(outcomes[f"dumps: {name}"]["refused"] for name in ("npz", "json", "tree", "folder"))
    assert outcomes["dumps: npz"]["accepted"] and outcomes["dumps: pair"]["accepted"]
