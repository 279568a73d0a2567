"""Arrays of other libraries as NumPy arrays.

A library is used if it made the array, and never imported.
"""

import sys
from typing import Any

import numpy as np

from attnkit.formats.dtypes import NAMES, dtype_of
from attnkit.records import Array


def numpy_array(value: Any) -> Array:
    """The NumPy array of a tensor of another library, not copied if possible.

    value  of torch, JAX or MLX, or anything that NumPy converts

    No number changes: bfloat16 stays bfloat16, narrower floats become float32, narrower integers int8, and complex
    numbers two real ones on a last axis.

    >>> numpy_array([1.0, 2.0]), numpy_array(np.array([1 + 2j]))
    (array([1., 2.]), array([[1., 2.]]))
    """
    if is_torch_tensor(value):
        array = _from_torch(value)
    elif type(value).__module__ == "mlx.core" and str(value.dtype).endswith("bfloat16"):
        array = np.asarray(value.view(sys.modules["mlx.core"].uint16)).view(dtype_of("bfloat16"))
    else:
        array = np.asarray(value)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    if array.dtype.name not in NAMES and array.dtype.name.startswith("float") and array.itemsize == 1:
        return array.astype(np.float32)
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return array.astype(np.int8)
    return array


def is_torch_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, without importing it.

    >>> is_torch_tensor(np.zeros(2))
    False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_torch(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy(force=True)
        return bits.view(dtype_of("bfloat16"))
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    array: Array = tensor.numpy(force=True)
    return array
