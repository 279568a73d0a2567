"""Compare texts with numbers in them, as they are printed on one processor and on another.

Libraries add in an order that depends on the processor, so the last digits of a number differ. Whole numbers must be
equal. Other numbers are equal within a tolerance, relative to the largest number of their tensor or column.
"""

import difflib
import re

RELATIVE = 1e-5  # of the largest number of a tensor or a column
WIDTH = 160  # of a line in a report of differences
KIND = re.compile(r"(\$ |2>|\[exit )?")  # a command, standard error, an exit code, or else standard output
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


TENSOR = re.compile(
    r"""(?P<data>\[(?:[-\d.e+,\s\[\]]|"(?:NaN|-?Infinity)")*\])  # as JSON has it
      | \((?:largest\ )?difference\ [^)]*\)  # of a verdict: with a slip, and without it
      | (?<=\ abs-max\ )\S+ | (?<=\ first\ )[-\d.einf+\s]+$     # as `figures` gives it""",
    re.VERBOSE,
)


def value(number):
    """The value of a number as it is printed."""
    return float(number.replace("−", "-"))


def last_place(a, b, scale):
    """The difference that rounding to the last printed place may add, for three digits of the scale or four decimals.

    >>> last_place("0.1234", "0.1235", 0) < 1.1e-4, last_place("249", "249.1", 249) < 0.11, last_place("0.1", "0.2", 9)
    (True, True, 0.0)
    """
    parts = [re.split("e", one, flags=re.IGNORECASE) for one in (a, b)]
    decimals = [len(digits.partition(".")[2]) - int(*power or [0]) for digits, *power in parts]
    step = 1.01 * 10.0 ** -max(decimals)
    is_table = len(set(decimals)) == 1 and min(decimals) > 3 and "e" not in a + b
    return step if is_table or step < scale / 900 else 0.0


def same_number(a, b, scale):
    """Whether two printed numbers are equal: whole numbers exactly, others up to rounding at a scale.

    >>> same_number("3", "4", 9), same_number("0.12345", "0.12346", 1), same_number("0.12345", "0.1239", 1)
    (False, True, False)
    >>> same_number("2e-07", "-3e-07", 1), same_number("2e-07", "-3e-07", 3e-7)
    (True, False)
    """
    if a == b or not re.search(r"[.e]", a + b, re.IGNORECASE):
        return a == b
    return abs(value(a) - value(b)) <= RELATIVE * scale + last_place(a, b, scale)


def scales(lines):
    """For each number of each line the largest of its tensor or column.

    A column is the same place, counted from the right, in lines of as many numbers that follow one another, in what
    one command writes to standard output or to standard error.

    >>> scales(["[[1, 2]] 0.3", "a,2.5", "b,-3.5", "x abs-sum 9.5 abs-max 4.5 dot 0.2 first 0.1 -0.3"])
    [[2.0, 2.0, 0.3], [3.5], [3.5], [9.5, 4.5, 0.2, 4.5, 4.5]]
    >>> scales(["$ seq 9", "1", "2", "[exit 4]", "$ seq 1", "1"])
    [[9.0], [2.0], [2.0], [4.0], [1.0], [1.0]]
    """
    keys, largest, table, shape = [], {}, 0, None
    for row, line in enumerate(lines):
        numbers = [*NUMBER.finditer(line)]
        tensors = [(*match.span(), (row, match.start("data"))) for match in TENSOR.finditer(line)]
        before, shape = shape, (KIND.match(line)[0], len(numbers))
        table += shape != before
        keys.append([])
        for at, number in enumerate(numbers):
            inside = (key for start, end, key in tensors if start <= number.start() < end)
            key = next(inside, ("table", table, at - len(numbers)))
            keys[-1].append(key)
            largest[key] = max(largest.get(key, 0.0), abs(value(number[0])))
    return [[largest[key] for key in row] for row in keys]


def same_line(a, b, scale):
    """Whether two lines are equal but for rounding; scale contains the scale of each number of a."""
    if a == b or (a.startswith("sha256 ") and b.startswith("sha256 ")):
        return True
    same = NUMBER.sub("#", a) == NUMBER.sub("#", b)
    return same and all(map(same_number, NUMBER.findall(a), NUMBER.findall(b), scale))


def difference(expected, found, name="out", exact=False):
    """The differences between two texts, "" if only the rounding of numbers differs."""
    if expected == found:
        return ""
    a, b = expected.splitlines(), found.splitlines()
    if len(a) != len(b):
        lines = [line[:WIDTH] for line in difflib.unified_diff(a, b, "expected", "found", n=1, lineterm="")]
    else:
        rows = [row for row in zip(a, b, scales(a), strict=True) if row[0] != row[1]]
        if not exact:
            rows = [row for row in rows if not same_line(*row)]
        lines = [f"{sign}{part(line, x, y, scale)}" for x, y, scale in rows for sign, line in (("-", x), ("+", y))]
    return "\n".join([f"{name}: - expected, + found", *lines[:80]]) + "\n" if lines else ""


def part(line, a, b, scale):
    """The part of a line around the first place where a and b differ, by more than rounding if they do.

    >>> part("x 1.0 2.5 3", "x 1.0 2.5 3", "x 1.00000001 2.6 3", [1, 2.5, 3])
    'x 1.0 2.5 3'
    """
    numbers = zip(NUMBER.finditer(a), NUMBER.finditer(b), scale, strict=False)
    places = (x.start() for x, y, largest in numbers if not same_number(x[0], y[0], largest))
    raw = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    at = next(places, raw) if NUMBER.sub("#", a) == NUMBER.sub("#", b) else raw
    start = max(0, at - WIDTH // 2)
    return "…" * (start > 0) + line[start : start + WIDTH] + "…" * (len(line) > start + WIDTH)
