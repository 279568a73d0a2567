"""Named parameters, or their gradients, as views of one contiguous array."""

from collections.abc import Iterator, Mapping
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from attnkit.model import Array

ALIGNMENT = 64  # bytes: a cache line, and the widest vector of a processor


class ParameterBuffer(Mapping[str, Array]):
    """Arrays by name, in the order of `shapes`, as views of one array of zeros; assign to the views, not to names.

    flat    all elements, with zeros between the arrays, each of which starts on a cache line
    ranges  name -> its elements in `flat`

    >>> buffer = ParameterBuffer({"w": (2, 3), "b": (3,)})
    >>> buffer["b"][...] = 1
    >>> float(buffer.flat.sum()), buffer.ranges["b"]
    (3.0, slice(16, 19, None))
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: DTypeLike = np.float32) -> None:
        width = ALIGNMENT // np.dtype(dtype).itemsize
        self.ranges: dict[str, slice] = {}
        end = 0
        for name, shape in shapes.items():
            self.ranges[name] = slice(end, end + int(np.prod(shape, dtype=np.int64)))
            end = -(-self.ranges[name].stop // width) * width
        self.flat = _aligned_zeros(end, np.dtype(dtype))
        self._views = {name: self.flat[self.ranges[name]].reshape(shape) for name, shape in shapes.items()}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], dtype: DTypeLike = np.float32) -> Self:
        """Return a buffer with copies of some arrays.

        >>> ParameterBuffer.of({"w": np.eye(2)})["w"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        buffer = cls({name: array.shape for name, array in arrays.items()}, dtype)
        for name, array in arrays.items():
            buffer[name][...] = array
        return buffer

    def zeros(self) -> "ParameterBuffer":
        """Return a buffer of zeros for arrays of the same names, shapes and dtype."""
        return ParameterBuffer(self.shapes(), self.flat.dtype)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array."""
        return {name: view.shape for name, view in self._views.items()}

    def layers(self) -> dict[str, dict[str, Array]]:
        """Return the views by layer and parameter, as `attnkit.model` takes parameters.

        >>> list(ParameterBuffer({"decoder.0.ffn.w1": (1, 1), "decoder.0.ffn.b1": (1,)}).layers()["decoder.0.ffn"])
        ['w1', 'b1']
        """
        layers: dict[str, dict[str, Array]] = {}
        for name, view in self._views.items():
            layer, _, parameter = name.rpartition(".")
            layers.setdefault(layer, {})[parameter] = view
        return layers

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def _aligned_zeros(size: int, dtype: np.dtype[np.generic]) -> Array:
    """Return zeros (size,) that start on a cache line."""
    width = ALIGNMENT // dtype.itemsize
    room = np.zeros(size + width, dtype)
    start = -room.ctypes.data % ALIGNMENT // dtype.itemsize
    return room[start : start + size]
