"""The program that changes the package in one place (tests/mutation.py), on a function of two lines."""

import pytest

from tests import mutation

CLIP = "def clip(x, low=0):\n    return low if x < low else x\n"


@pytest.mark.linux
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that fork follows threads
def test_a_changed_default_is_noticed_and_an_equal_comparison_survives(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    path, names, reached = tmp_path / "clip.py", {}, set()
    path.write_text(CLIP)
    exec(compile(CLIP, path, "exec"), names)
    module = mutation.Module(path, mutation.live_functions(tmp_path))
    tests = [(lambda: names["clip"](0.5) == 0.5 and names["clip"](-1) == 0, 0.01)]
    assert {str(one): mutation.is_noticed(module, one, tests) for one in module.mutants} == {
        "clip.py:1: low=0  ->  low=1": mutation.NOTICED,
        "clip.py:2: x < low  ->  x <= low": mutation.SURVIVED,
    }
    module.watch(reached)
    assert names["clip"](3) == 3 and reached == {"clip.py:1:clip"}
