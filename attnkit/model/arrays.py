"""Arrays of other libraries as NumPy arrays.

A library is used if it made the array, and never imported.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, Protocol, TypeVar

import numpy as np

from attnkit.errors import UsageError
from attnkit.model.dtypes import Array

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class SupportsArray(Protocol):
    """An array of any library: a tensor of PyTorch, an array of JAX."""

    def __array__(self) -> Any:
        """The array of NumPy."""


def numpy_array(value: Any) -> Array:
    """The NumPy array of a tensor of another library, not copied if possible.

    value  of torch, JAX or MLX, or anything that NumPy converts

    No number changes: bfloat16 stays bfloat16, narrower floats become float32, narrower integers int8, and complex
    numbers two real ones on a last axis. A tensor of torch is detached, and copied from its device. UsageError for an
    array without numbers, such as one of torch's device `meta`, or of jax while it traces a function.

    >>> numpy_array([1.0, 2.0]), numpy_array(np.array([1 + 2j]))
    (array([1., 2.]), array([[1., 2.]]))
    """
    if is_foreign(value) or type(value).__module__ == "mlx.core":
        try:
            array = _from_library(value)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"no numbers can be read from this {type(value).__name__}: {reason}") from error
    elif isinstance(value, list | tuple) and any(map(is_foreign, value)):
        array = np.stack([numpy_array(one) for one in value])
    else:
        array = np.asarray(value)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    if array.dtype.name.startswith("float") and array.itemsize == 1:
        return array.astype(np.float32)
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return array.astype(np.int8)
    return array


def is_foreign(value: Any) -> bool:
    """Whether a value is an array, but not one of NumPy.

    >>> is_foreign(memoryview(b"")), is_foreign(np.zeros(2)), is_foreign([1.0])
    (False, False, False)
    """
    return not isinstance(value, np.ndarray | np.generic) and hasattr(type(value), "__array__")


def is_torch_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, a parameter of a module included.

    >>> is_torch_tensor(np.zeros(2))
    False
    """
    return any(one.__module__ == "torch" and one.__name__ == "Tensor" for one in type(value).__mro__)


def takes_foreign_arrays(function: FunctionT) -> FunctionT:
    """Make a function accept arrays of other libraries, in dicts and pairs too.

    >>> class Row:
    ...     def __array__(self, dtype=None, copy=None):
    ...         return np.array([1.0, 3.0])
    >>> takes_foreign_arrays(lambda x, params: x.sum() * params["w"].sum())(Row(), {"w": Row()}).tolist()
    16.0
    """

    @wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        if named:
            return function(*map(_convert, values), **{name: _convert(one) for name, one in named.items()})
        return function(*map(_convert, values))

    return call  # type: ignore[return-value]


def _convert(value: Any) -> Any:
    """An array of another library as one of NumPy; in dicts, lists and tuples too."""
    kind = type(value)
    if kind is np.ndarray:
        return value
    if kind is dict:
        return {name: _convert(one) for name, one in value.items()} if _holds_foreign(value) else value
    if kind is tuple or kind is list:
        return kind(map(_convert, value)) if _holds_foreign(value) else value
    return numpy_array(value) if is_foreign(value) else value


def _holds_foreign(value: Any) -> bool:
    """Whether a dict, or the first of a list or tuple, is an array of another library."""
    if type(value) is dict:
        return any(map(_holds_foreign, value.values()))
    return is_foreign(value[0] if type(value) in (list, tuple) and value else value)


def _from_library(value: Any) -> Array:
    if is_torch_tensor(value):
        return _from_torch(value)
    if type(value).__module__ == "mlx.core" and str(value.dtype).endswith("bfloat16"):
        return np.asarray(value.view(import_module("mlx.core").uint16)).view(_bfloat16())
    return np.asarray(value)


def _from_torch(tensor: Any) -> Array:
    torch = import_module("torch")
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy(force=True)
        return bits.view(_bfloat16())
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    array: Array = tensor.numpy(force=True)
    return array


def _bfloat16() -> "np.dtype[Any]":
    dtype: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    return dtype
