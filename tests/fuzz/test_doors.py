"""A sample of the cases of each door; python -m tests.fuzz runs as many as are wanted."""

import pytest

from tests.fuzz import gguf, media, options, runner
from tests.process import Run

DOORS = {"gguf models": (gguf, 40), "pictures": (media, 100), "sounds": (media, 100), "options": (options, 30)}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_a_door(name, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "SECONDS", 60.0)  # of a case that hangs
    module, cases = DOORS[name]
    outcomes, escapes = runner.run({name: module.doors(str(tmp_path))[name]}, cases, seed=1)
    assert not escapes
    assert outcomes[name]["accepted"] and outcomes[name]["refused"]


def test_the_limits_of_a_case():
    """An exit code of a bug, an error of two lines, too much time or memory: each is an escape."""

    def judge(check, memory=runner.EXTRA_MEMORY):
        return runner.judge(runner.Door(lambda rng: None, lambda case: check(), memory=memory), None)

    assert judge(lambda: runner.check_command("attend", stdin=b"[[1,2]]")) == ("accepted", "")
    assert judge(lambda: runner.check_command("attend", "--heads", "3", stdin=b"[[1,2]]")) == ("refused", "")
    outcome, why = judge(lambda: b"x" * (60 << 20) != b"", memory=20 << 20)
    assert outcome == "escaped" and "MB more memory" in why
    assert judge(lambda: b"x" * (60 << 20) != b"", memory=200 << 20) == ("accepted", "")
    assert judge(lambda: 1 / 0) == ("escaped", "ZeroDivisionError: division by zero")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_command", lambda *words, **more: Run(70, b"", "attnkit: a bug in attnkit: x\n"))
        assert judge(lambda: runner.check_command("attend"))[0] == "escaped"
        patch.setattr(runner, "run_command", lambda *words, **more: Run(3, b"", "Traceback\nattnkit: x\nmore\n"))
        assert judge(lambda: runner.check_command("attend"))[0] == "escaped"
        patch.setattr(runner, "SECONDS", 0.05)
        assert judge(spin)[0] == "escaped"


def spin():
    while True:
        pass
