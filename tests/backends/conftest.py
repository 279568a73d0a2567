"""The programs that JAX has compiled are kept for a few tests: those of all take gigabytes."""

import gc
import itertools

import pytest

KEPT = 30  # tests, of 10 to 90 MB each
DONE = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Forget the programs after every KEPT tests that were not skipped."""
    yield
    if next(DONE) % KEPT == 0:
        import jax

        jax.clear_caches()
        gc.collect()
