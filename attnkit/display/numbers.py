"""Numbers as text, one style for a whole table."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

TOO_LARGE = 1e6


def style(values: Array, precision: int) -> str:
    """The format of all these numbers: whole, fixed, or scientific where fixed would not show the largest.

    A format has no sign for a zero that was rounded (`z`), so that -0.00001 is 0.0000.

    >>> style(np.array([1, 2]), 4), style(np.array([0.5]), 4), style(np.array([3e-7]), 2)
    ('d', 'z.4f', 'z.2e')
    """
    if values.dtype.kind in "biu":
        return "d"
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    peak = finite.max(initial=0.0)
    fixed = peak == 0 or min(10.0 ** (1 - precision), 0.1) <= peak < TOO_LARGE
    return f"z.{precision}{'f' if fixed else 'e'}"


def plain(values: Array) -> Any:
    """The values as nested lists of Python numbers, bfloat16 included."""
    return (values if values.dtype.kind in "biu" else values.astype(np.float64)).tolist()


def brief(value: float, precision: int) -> str:
    """A number alone, in `precision` significant digits.

    >>> brief(0.5, 4), brief(123456.0, 4), brief(-0.0, 4)
    ('0.5', '1.235e+05', '0')
    """
    return format(value, f"z.{max(precision, 1)}g")
