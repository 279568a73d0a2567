"""The adjoint of rotary positions."""

from attnkit.model.dtypes import Array
from attnkit.model.rotary import rotate


def rotate_backward(grad_output: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """Return the gradient of features that were rotated: rotate it by the opposite angles; the rest is unchanged.

    grad_output (..., T, D), cos (..., T, R/2), sin (..., T, R/2) -> (..., T, D)

    The transpose of the rotation [c -s; s c] is [c s; -s c], also where both are scaled by a factor, as in YaRN.
    Errors and `interleaved` are those of `rotate`. Source: RoFormer (Su et al. 2021), section 3.4.2.

    >>> import numpy as np
    >>> rotate_backward(np.array([[-2.0, 1.0, 7.0]]), np.array([[0.0]]), np.array([[1.0]]))
    array([[1., 2., 7.]])
    """
    return rotate(grad_output, cos, -sin, interleaved=interleaved)
