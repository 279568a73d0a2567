"""Hostile dumps and answers: each is compared, or refused in one line."""

from tests.fuzz import dumps, runner


def test_dumps_are_compared_or_refused(tmp_path, monkeypatch):
    """A short form of python -m tests.fuzz --only dumps; tests/fuzz/runner.py says what each case must obey."""
    monkeypatch.setattr(runner, "SECONDS", 60.0)  # of a case that hangs
    outcomes, escapes = runner.run(dumps.doors(str(tmp_path)), 66, seed=5)
    assert not escapes
    assert all(outcomes[f"dumps: {name}"]["refused"] for name in ("npz", "json", "tree", "folder"))
    assert outcomes["dumps: npz"]["accepted"] and outcomes["dumps: pair"]["accepted"]
