"""The statistics of each row of a tensor: its norm, mean, deviation, minimum and maximum."""

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import is_float, quiet
from attnkit.record import Array, Labels, Record, Tensor, join_names

STATISTICS = ("norm", "mean", "std", "min", "max")


def row_statistics(record: Record) -> Record:
    """Compute the statistics of every row of the float tensors of a record, in float64.

    (..., D) -> (..., 5), with the axis `statistic` in place of the last one; the deviation is the population's

    DataError where no tensor holds floats.

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
    """Return the norm, mean, deviation, minimum and maximum of the last axis: (..., D) -> (..., 5)."""
    x = array.astype(np.float64)
    norm = np.sqrt((x * x).sum(axis=-1))
    return np.stack([norm, x.mean(axis=-1), x.std(axis=-1), x.min(axis=-1), x.max(axis=-1)], axis=-1)
