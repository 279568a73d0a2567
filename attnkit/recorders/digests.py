"""Digests of tensors: a hash and a few numbers, for recordings too large to keep."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.formats.dtypes import name_of
from attnkit.model.dtypes import Array, cast

SAMPLES = 8  # of a tensor
BLOCK = 1 << 20  # numbers that are added at a time
FLOAT64 = np.dtype(np.float64)
KEY = "digests"


class Digest(NamedTuple):
    """A tensor in a few numbers.

    sha256   of its bytes in C order
    sum, norm, largest  of the finite numbers, in float64; the largest absolute value
    non_finite          the number of others
    samples  numbers at evenly spaced places, the first and the last among them
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    sum: float
    norm: float
    largest: float
    non_finite: int
    samples: tuple[float, ...]

    def distance(self, other: "Digest") -> float:
        """The largest difference of samples, relative to the largest number of both.

        >>> a, b = digest(np.array([1.0, 4.0])), digest(np.array([1.0, 2.0]))
        >>> a.distance(b), a.distance(a), a.distance(digest(np.array([np.nan, 4.0])))
        (0.5, 0.0, nan)
        """
        pairs = zip(self.samples, other.samples, strict=True)
        differences = [0.0 if a == b or (a != a and b != b) else abs(a - b) for a, b in pairs]  # NaN is the same as NaN
        distance = float(np.max(differences, initial=0.0))
        return distance / max(self.largest, other.largest) if distance else 0.0


def digest(array: Array) -> Digest:
    """Digest a tensor.

    >>> digest(np.array([[3.0, -4.0]])).norm, digest(np.arange(3)).samples
    (5.0, (0.0, 1.0, 2.0))
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    places = np.unique(np.linspace(0, max(flat.size - 1, 0), min(SAMPLES, flat.size)).astype(np.int64))
    total = squares = largest = 0.0
    finite = 0
    for at in range(0, flat.size, BLOCK):
        block = cast(flat[at : at + BLOCK], FLOAT64)
        numbers = block[np.isfinite(block)]
        total, squares = total + float(numbers.sum()), squares + float(np.square(numbers).sum())
        largest, finite = max(largest, float(np.abs(numbers).max(initial=0.0))), finite + numbers.size
    sha256 = hashlib.sha256(flat.view(np.uint8).data).hexdigest()
    samples = tuple(map(float, cast(flat[places], FLOAT64)))
    sizes = total, math.sqrt(squares), largest, flat.size - finite
    return Digest(name_of(array.dtype), tuple(array.shape), sha256, *sizes, samples)


class DigestWriter:
    """Write the digests of a recording as JSON, a line for each tensor.

    write  writes pieces of bytes to the file
    """

    def __init__(self, write: Callable[[Sequence[bytes]], object]) -> None:
        self._write, self._separator = write, f'{{"{KEY}":{{\n'

    def add(self, name: str, array: Array) -> None:
        """Write the digest of a tensor."""
        values = {key: spell_numbers(value) for key, value in digest(array)._asdict().items()}
        line = f"{self._separator}{json.dumps(name)}:{json.dumps(values, separators=(',', ':'))}"
        self._write([line.encode()])
        self._separator = ",\n"

    def finish(self, metadata: object = None) -> None:
        """End the file; metadata, which a file of tensors has, are none of its digests."""
        self._write([b"\n}}\n"])


def spell_numbers(value: Any) -> Any:
    """A number, or numbers, as strict JSON has them: not finite ones are strings.

    >>> spell_numbers((1.0, float("-inf")))
    [1.0, '-Infinity']
    """
    if isinstance(value, tuple):
        return [spell_numbers(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def has_digests(start: bytes) -> bool:
    """Whether a file that starts with these bytes has digests.

    >>> has_digests(b'{"digests":{'), has_digests(b'{"tensors":{')
    (True, False)
    """
    return start.startswith(f'{{"{KEY}":'.encode())


def parse_digests(text: bytes) -> dict[str, Digest]:
    """The digests of a JSON file by name; DataError if they are damaged."""
    try:
        found: Mapping[str, Mapping[str, Any]] = json.loads(text)[KEY]
        return {name: _parse_digest(values) for name, values in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError("these digests are damaged (expected what attnkit.record writes to a .json file)") from error


def _parse_digest(values: Mapping[str, Any]) -> Digest:
    numbers = float(values["sum"]), float(values["norm"]), float(values["largest"])
    shape, samples = tuple(map(int, values["shape"])), tuple(map(float, values["samples"]))
    if len(samples) != min(SAMPLES, math.prod(shape)):
        raise ValueError("another number of samples")
    return Digest(str(values["dtype"]), shape, str(values["sha256"]), *numbers, int(values["non_finite"]), samples)
