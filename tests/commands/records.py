"""Records that several tests of tools begin with."""

import numpy as np

from attnkit import formats
from attnkit.records import Record

CAT = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])


def of(x, **more):
    return Record({"x": np.asarray(x)} | {name: np.asarray(value) for name, value in more.items()})


def read_back(record):
    """The record after a trip through JSON, where axes and labels are checked."""
    data = b"".join(bytes(part) for part in formats.encode(record, "json"))
    return next(iter(formats.read(formats.Source.of(data))))
