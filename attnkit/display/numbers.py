"""Numbers as text, one format for a whole table."""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MAX_FIXED = 1e6
FEWEST_DECIMALS = 3  # less are a request for rough numbers
NOISE = 64  # units of rounding that a computed number may be off, of the largest of its tensor


class CellFormat(NamedTuple):
    """How a table writes numbers: none but 0 is written as 0.

    numbers  of `number_format`
    noise    the largest number that may be rounding alone, but for probabilities, which are as exact near 0
    are_probabilities  whether a number that is not 1 is not written as 1, too
    """

    numbers: str
    noise: float = 0.0
    are_probabilities: bool = False

    def text(self, value: Any) -> str:
        """Format a number.

        >>> [CellFormat("z.3f", 1e-9).text(value) for value in (0.5, 0.0004, -0.0004, 1e-12, 0.9996)]
        ['0.500', '<0.001', '>-0.001', '0.000', '1.000']
        >>> [CellFormat("z.3f", 1e-9, are_probabilities=True).text(value) for value in (1e-12, 0.9996, 1.0)]
        ['<0.001', '>0.999', '1.000']
        """
        text = format(value, self.numbers)
        if not self.numbers.endswith("f") or (decimals := int(self.numbers[2:-1])) < FEWEST_DECIMALS:
            return text
        number, unit = float(text), 10.0**-decimals
        if number == 0 and abs(value) > (0 if self.are_probabilities else self.noise):
            return f"<{format(unit, self.numbers)}" if value > 0 else f">-{format(unit, self.numbers)}"
        if number == 1 and value < 1 - self.noise and self.are_probabilities:
            return f">{format(1 - unit, self.numbers)}"
        return text


def cell_format(values: Array, precision: int, are_probabilities: bool = False) -> CellFormat:
    """Choose the format of a table, honest about what is nearly 0 or nearly 1.

    >>> [cell_format(np.array([5, 6e-7]), 4).text(value) for value in (5.0, 6e-7, 0.0, 1e-16)]
    ['5.0000', '<0.0001', '0.0000', '0.0000']
    """
    numbers = number_format(values, precision)
    if values.dtype.kind in "biu":
        return CellFormat(numbers)
    resolution = 2.0**-7 if values.dtype.name == "bfloat16" else float(np.finfo(values.dtype).eps)
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return CellFormat(numbers, NOISE * resolution * finite.max(initial=0.0), are_probabilities)


def are_probabilities(values: Array) -> bool:
    """Whether every row is a distribution, or all zero, of a fully masked row.

    >>> are_probabilities(np.array([[0.25, 0.75], [0.0, 0.0]])), are_probabilities(np.array([[0.25, 0.5]]))
    (True, False)
    """
    if values.dtype.kind in "biu" or not values.size or not np.isfinite(values).all() or values.min() < 0:
        return False
    sums = values.sum(axis=-1, dtype=np.float64)
    return bool((np.abs(sums - 1)[sums != 0] < 1e-2).all() and sums.any())


def number_format(values: Array, precision: int) -> str:
    """Choose one format for all numbers: whole, fixed or scientific.

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
    """The values as nested lists of Python numbers, bfloat16 included."""
    return (values if values.dtype.kind in "biu" else values.astype(np.float64)).tolist()


def format_number(value: float, precision: int) -> str:
    """Format one number with `precision` significant digits.

    >>> format_number(0.5, 4), format_number(123456.0, 4), format_number(-0.0, 4)
    ('0.5', '1.235e+05', '0')
    """
    return format(value, f"z.{max(precision, 1)}g")
