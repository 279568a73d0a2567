"""The programs that JAX has compiled are kept for a few tests: those of all take gigabytes."""

import gc
import itertools

import pytest

KEPT = 30  # tests, of 10 to 90 MB each
DONE = itertools.count(1)


@pytest.fixture(autouse=True)
def forget_programs():
    yield
    if next(DONE) % KEPT == 0:
        import jax

        jax.clear_caches()
        gc.collect()
