"""The programs that JAX has compiled are kept for as long as a test runs: all of them take gigabytes."""

import gc

import pytest


@pytest.fixture(autouse=True)
def forget_programs():
    yield
    import jax

    jax.clear_caches()
    gc.collect()
