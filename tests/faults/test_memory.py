"""A process with few addresses (ulimit -v): a result, or one line about memory, and no traceback."""

import sys

import pytest

from attnkit.cli.main import describe_error
from attnkit.libraries import import_library
from tests import process

UNMAPPED = "numpy/_core/x.so: failed to map segment from shared object"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses are those of Linux")
@pytest.mark.parametrize(
    ("limit", "code", "line"),
    [
        (60_000, 3, "attnkit attend: not enough memory to load NumPy\n"),
        (95_000, 3, "attnkit attend: not enough memory to load NumPy\n"),
        (250_000, 0, ""),
    ],
)
def test_few_addresses(limit, code, line):
    """OpenBLAS would end the process where it has not the addresses for a thread on each core."""
    command = f"echo '[[1, 2]]' | (ulimit -v {limit}; {sys.executable} -m attnkit attend -f npy)"
    run = process.bash(command, env={"PATH": process.ALONE})
    assert (run.code, run.err) == (code, line)
    assert bool(run.out) == (code == 0)


def test_a_library_that_has_no_room_is_not_missing(monkeypatch):
    assert describe_error(ImportError(UNMAPPED)) == (3, "not enough memory to load NumPy")
    assert describe_error(ImportError("No module named 'x'"))[0] == 70

    def fail(name):
        raise ImportError(f"{name}.so: failed to map segment from shared object")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(MemoryError, match="the tokenizers library cannot be loaded"):
        import_library("tokenizers", "text", "--model")
