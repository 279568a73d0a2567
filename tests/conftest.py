"""Set-up of all tests: the command of this environment, settings of JAX and Hypothesis, an end for tests that hang."""

import faulthandler
import gc
import os
import sys
import time

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from attnkit.tuning import tune_blas
from tests import process

tune_blas()  # before NumPy is imported, so that functions have the bits of the command
# of the engine of JAX, where it is installed: eight devices on one processor, and programs that are compiled fast
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1",
)

PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}  # on a slow machine
hypothesis.settings.register_profile("repeatable", max_examples=30, derandomize=True, **PATIENT)
hypothesis.settings.register_profile("thorough", max_examples=1000, **PATIENT)  # by --hypothesis-profile=thorough
hypothesis.settings.load_profile("repeatable")

# what implementations are made of, and modules that need torch at their top: no tests, and no doctests
collect_ignore_glob = ["transcripts/inputs/*", "checking/right_torch.py", "checking/checkpoints.py"]
HANGS = 600  # seconds after which a test is taken to hang: its process writes where it is, and ends
watched = {"until": 0.0}  # when that will be


def pytest_configure(config):
    """Start a server of command lines in every process that runs tests, while it collects them."""
    gc.disable()  # until all modules are imported
    if runs_tests(config):
        process.default_signals()
    os.environ["PATH"] = process.ALONE
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process would compile what it imports
    if sys.platform == "linux" and os.environ.get("ATTNKIT_TESTS") != "alone" and not config.option.collectonly:
        os.environ["LC_ALL"] = process.SETTINGS["LC_ALL"]
        os.environ.pop("PYTHONUNBUFFERED", None)
        if runs_tests(config):
            os.environ["PATH"] = f"{process.server().command()}{os.pathsep}{process.ALONE}"


def pytest_collection_finish():
    """Leave the collected tests and modules, which live to the end, out of garbage collection, and collect rarely."""
    gc.freeze()
    gc.set_threshold(2_000, 10, 50)
    gc.enable()


def runs_tests(config):
    """Whether this is a process that runs tests, not one whose workers do."""
    return hasattr(config, "workerinput") or not config.option.numprocesses


def pytest_runtest_protocol(item, nextitem):
    """Run a test, and report its set-up and its end only if they fail: a worker sends each report to the controller.

    End the process of a test that hangs. The watch is set anew once in a minute, since each starts a thread.
    """
    now = time.monotonic()
    if watched["until"] < now + HANGS - 60:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        watched["until"] = now + HANGS
    if item.config.option.durations is not None:
        return None  # pytest's own protocol reports all three
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_sessionfinish():
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_setup(item):
    """Skip what only Linux supports on other systems: the marker `linux`, and parameters with /dev/full."""
    if sys.platform != "linux":
        parameters = str(getattr(item, "callspec", None) and item.callspec.params)
        if item.get_closest_marker("linux") or "/dev/full" in parameters:
            pytest.skip("only on Linux")
