"""Statistics of many large tensors, each read once, on every core."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from attnkit import formats
from attnkit.errors import DataError
from attnkit.model.dtypes import is_float, quiet
from attnkit.model.processor.threads import run_parallel
from attnkit.records import Array, Labels, Record, Tensor, join_names

CHUNK = 1 << 16  # numbers that stay in the cache while they are summed
UNEVEN = 1e-6  # least variance as a share of the squared mean that a difference of sums gives well

Item = TypeVar("Item")
Value = TypeVar("Value")


def map_parallel(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """The values of a function for each item, in order, computed on every core.

    >>> map_parallel(lambda number: number**2, range(4))
    [0, 1, 4, 9]
    """
    tasks = [*enumerate(items)]
    values: dict[int, Value] = {}

    def work(waiting: Iterator[tuple[int, Item]]) -> None:
        for at, item in waiting:
            values[at] = function(item)

    run_parallel(work, tasks)
    return [values[at] for at, _ in tasks]


def describe_tensors(record: Record) -> list[dict[str, Any]]:
    """The name, axes, shape, dtype and statistics of each tensor of a record."""

    def describe(name: str) -> dict[str, Any]:
        array = record[name]
        facts = {"name": name, "axes": record.axes_of(name), "shape": array.shape, "dtype": array.dtype.name}
        facts |= summarize(array)
        formats.release_pages(array)
        return facts

    return map_parallel(describe, record)


def summarize(array: Array) -> dict[str, float | int]:
    """Min, max, mean, std and norm of the finite numbers; counts of the others.

    The first five are left out if no number is finite; the norm also if it is too large for a float64.

    >>> summarize(np.array([3.0, -4.0, np.nan]))
    {'min': -4.0, 'max': 3.0, 'mean': -0.5, 'std': 3.5, 'norm': 5.0, 'zeros': 0, 'nan': 1, 'inf': 0}
    """
    flat = array.reshape(-1)
    low, high, total, squares = np.inf, -np.inf, 0.0, 0.0
    zeros = nans = infs = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK].astype(np.float64)
            zeros += part.size - int(np.count_nonzero(part))
            square = float(part @ part)
            if not np.isfinite(square):
                finite = np.isfinite(part)
                nans += int(np.isnan(part).sum())
                infs += int(np.isinf(part).sum())
                part = part[finite]
                square = float(part @ part)
            low, high = min(low, float(part.min(initial=np.inf))), max(high, float(part.max(initial=-np.inf)))
            total, squares = total + float(part.sum()), squares + square
    counts: dict[str, float | int] = {"zeros": zeros, "nan": nans, "inf": infs}
    count = flat.size - nans - infs
    if not count:
        return counts
    mean = total / count
    variance = squares / count - mean * mean
    with np.errstate(over="ignore"):
        is_even = not variance > UNEVEN * mean * mean  # sums cancel
        std = float(flat[np.isfinite(flat)].std(dtype=np.float64)) if is_even else float(variance**0.5)
    numbers = {"min": low, "max": high, "mean": mean, "std": std, "norm": squares**0.5}
    return {name: one for name, one in numbers.items() if np.isfinite(one)} | counts


STATISTICS = ("norm", "mean", "std", "min", "max")


def row_statistics(record: Record) -> Record:
    """Compute statistics of every row of the float tensors of a record, in float64.

    (..., D) -> (..., 5), with the axis `statistic` in place of the last one; the deviation is the population's

    DataError if no tensor holds floats.

    >>> row_statistics(Record({"x": np.array([[3.0, 4.0]])}))["x"]
    array([[5. , 3.5, 0.5, 3. , 4. ]])
    """
    tensors = {
        name: Tensor(describe_rows(one.array), (*one.axis_names()[:-1], "statistic"), one.labels, one.formula)
        for name, one in record.tensors.items()
        if is_float(one.array.dtype) and one.array.ndim and one.array.shape[-1]
    }
    if not tensors:
        raise DataError(f"no tensor has rows of floats (it has {join_names([*record])})")
    labels: dict[str, Labels] = {axis: words for axis, words in record.labels.items() if axis != "statistic"}
    return Record(tensors, labels | {"statistic": [*STATISTICS]}, record.history)


@quiet
def describe_rows(array: Array) -> Array:
    """Norm, mean, deviation, minimum and maximum of each row: (..., D) -> (..., 5)."""
    x = array.astype(np.float64)
    norm = np.sqrt((x * x).sum(axis=-1))
    return np.stack([norm, x.mean(axis=-1), x.std(axis=-1), x.min(axis=-1), x.max(axis=-1)], axis=-1)
