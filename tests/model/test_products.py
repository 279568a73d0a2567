"""Matrix products on every core are those of BLAS, only where they are requested."""

import numpy as np
import pytest

from attnkit.model.kernels import products, threads
from attnkit.model.kernels.products import matrix_product, parallel_products


@pytest.mark.parametrize("shape", [(1000, 64), (4, 250, 64), (128, 64), (127, 64), (0, 64), (64,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_equal(shape, dtype, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape).astype(dtype), rng.standard_normal((64, 40)).astype(dtype)
    for right in (y, np.asfortranarray(y)):
        with parallel_products():
            ours = matrix_product(x, right)
        assert ours.dtype == dtype and ours.shape == (*shape[:-1], 40)
        np.testing.assert_allclose(ours, x @ y, rtol=0, atol={"float32": 1e-4, "float64": 1e-12}[dtype])


def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((777, 96)).astype(np.float32), rng.standard_normal((96, 50)).astype(np.float32)
    results = []
    for count in (1, 2, 3):
        with parallel_products(), monkeypatch.context() as patch:
            patch.setattr(threads, "_saved", [count])
            results.append(matrix_product(x, y))
    assert all((result == results[0]).all() for result in results)


def test_products_outside_are_left_to_blas(monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0)
    calls = []
    monkeypatch.setattr(threads, "run_parallel", lambda work, tasks: calls.append(work(iter(tasks))))
    x = np.ones((200, 8))
    matrix_product(x, np.ones((8, 8)))
    with parallel_products():
        matrix_product(x, np.ones((8, 8)))
        with parallel_products():
            pass
        matrix_product(x, np.ones((8, 8)))
    matrix_product(x, np.ones((8, 8)))
    assert len(calls) == 2
