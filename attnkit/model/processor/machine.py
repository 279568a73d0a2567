"""The machine that computes, as far as the rounding of its products depends on it."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


@cache
def find_openblas(name: str) -> Callable[..., Any] | None:
    """A function of NumPy's BLAS by its name; None if it is not OpenBLAS."""
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    names = (f"{start}_{name}{end}" for start in ("scipy_openblas", "openblas") for end in ("64_", ""))
    return next((getattr(library, one) for one in names if hasattr(library, one)), None)


@cache
def describe_machine() -> str:
    """The loops of BLAS and the version of NumPy: OpenBLAS SkylakeX, NumPy 2.4.6.

    The number of threads is left out, so that it changes no bytes of a record.
    """
    kernel: Any = find_openblas("get_corename")
    if kernel is None:
        built: Any = np.show_config(mode="dicts")
        return f"{built['Build Dependencies']['blas']['name']}, NumPy {np.__version__}"
    kernel.restype = ctypes.c_char_p
    return f"OpenBLAS {kernel().decode()}, NumPy {np.__version__}"


def count_threads() -> int:
    """The threads of BLAS; 0 if they are not known."""
    threads = find_openblas("get_num_threads")
    return int(threads()) if threads else 0
