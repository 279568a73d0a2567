"""The tests run the command of the environment they run in, wherever the shell would find another."""

import os
import sys
from pathlib import Path

import pytest

os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def pytest_runtest_setup(item):
    """Skip elsewhere what only Linux has: tests of the marker `linux`, and parameters with /dev/full."""
    parameters = str(getattr(item, "callspec", None) and item.callspec.params)
    if sys.platform != "linux" and (item.get_closest_marker("linux") or "/dev/full" in parameters):
        pytest.skip("only on Linux")
