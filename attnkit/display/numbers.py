"""Numbers as text, one format for a whole table."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MAX_FIXED = 1e6


def number_format(values: Array, precision: int) -> str:
    """Choose the format of all these numbers: whole, fixed, or scientific where fixed would not show the largest.

    A format has no sign for a zero that was rounded (`z`), so that -0.00001 is 0.0000.

    >>> number_format(np.array([1, 2]), 4), number_format(np.array([0.5]), 4), number_format(np.array([3e-7]), 2)
    ('d', 'z.4f', 'z.2e')
    """
    if values.dtype.kind in "biu":
        return "d"
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    peak = finite.max(initial=0.0)
    is_fixed = peak == 0 or min(10.0 ** (1 - precision), 0.1) <= peak < MAX_FIXED
    return f"z.{precision}{'f' if is_fixed else 'e'}"


def to_python(values: Array) -> Any:
    """Return the values as nested lists of Python numbers, bfloat16 included."""
    return (values if values.dtype.kind in "biu" else values.astype(np.float64)).tolist()


def format_number(value: float, precision: int) -> str:
    """Format one number with `precision` significant digits.

    >>> format_number(0.5, 4), format_number(123456.0, 4), format_number(-0.0, 4)
    ('0.5', '1.235e+05', '0')
    """
    return format(value, f"z.{max(precision, 1)}g")
