"""Large matrix products by blocks of rows on every core, where a caller requests them."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from attnkit.model.dtypes import Array

LARGE = 1 << 25  # multiplications from which several threads are faster
BLOCKS, LEAST = 8, 96  # most blocks of a product, and the fewest rows of one; on any number of cores
_local = threading.local()


@contextmanager
def parallel_products() -> Iterator[None]:
    """Have `matrix_product` compute large products of this thread on every core, with BLAS limited to one thread.

    BLAS's own threads wait actively for each other, which on a busy machine takes most of their time, and between
    products they take it from other parallel work.

    >>> with parallel_products():
    ...     matrix_product(np.eye(2), np.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    from attnkit.model.kernels.threads import single_blas

    outer = getattr(_local, "is_parallel", False)
    with single_blas():
        _local.is_parallel = True
        try:
            yield
        finally:
            _local.is_parallel = outer


def matrix_product(x: Array, y: Array) -> Array:
    """Return x @ y; within `parallel_products` large ones by blocks of rows on every core.

    x (..., M, K), y (K, N) -> (..., M, N)

    >>> matrix_product(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])).tolist()
    [[11.0]]
    """
    count = math.prod(x.shape[:-1])
    if not getattr(_local, "is_parallel", False) or x.size * y.shape[-1] < LARGE or count < 2 * LEAST:
        product: Array = x @ y
        return product
    from attnkit.model.kernels.threads import run_parallel, split_range

    rows = x.reshape(count, x.shape[-1])
    result = np.empty((count, y.shape[-1]), np.result_type(x, y))

    def work(parts: Iterator[slice]) -> None:
        for part in parts:
            np.matmul(rows[part], y, out=result[part])

    blocks = min(BLOCKS, 1 << (count // LEAST).bit_length() - 1)  # a power of two, which few cores share equally
    run_parallel(work, split_range(0, count, -(-count // blocks)))
    return result.reshape(*x.shape[:-1], y.shape[-1])
