"""Linear scales: round ticks, and the place of a value between two ends."""

import math

MAX_TICKS = 6


def linear_ticks(low: float, high: float) -> list[float]:
    """Return at most MAX_TICKS + 1 round numbers between the ends, multiples of 1, 2 or 5 times a power of ten.

    >>> linear_ticks(-1.0, 1.0), linear_ticks(0.0, 7.0), linear_ticks(3.0, 3.0)
    ([-1.0, -0.5, 0.0, 0.5, 1.0], [0.0, 2.0, 4.0, 6.0], [3.0])
    """
    extent = high / 2 - low / 2  # of the largest float64 too
    if not extent > abs(high) * 1e-12:
        return [low]
    least = extent / MAX_TICKS * 2
    power = 10.0 ** math.floor(math.log10(least))
    step = next((one * power for one in (1, 2, 5) if one * power >= least), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(at * step, 12 - math.floor(math.log10(step))) for at in range(first, last + 1)]


def place(value: float, low: float, high: float) -> float:
    """Return where a value is between two ends: 0 at `low`, 1 at `high`; 0.5 where they are equal.

    >>> place(1.0, 0.0, 4.0), place(2.0, 2.0, 2.0)
    (0.25, 0.5)
    """
    extent = high / 2 - low / 2
    return (value / 2 - low / 2) / extent if extent > 0 else 0.5
