"""Shape checks, whose errors name both sides of a mismatch."""

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import Array


def as_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text for an error message.

    >>> as_text((2, 4, 8)), as_text((4,))
    ('(2,4,8)', '(4,)')
    """
    return str(shape).replace(" ", "")


def fit(x: Array, shape: tuple[int, ...], name: str, target: str) -> Array:
    """Broadcast x to a shape, or raise DataError with both names.

    >>> fit(np.array([1, 2]), (3, 2), "bias (2,)", "scores (3,2)").shape
    (3, 2)
    """
    if x.shape == shape:
        return x
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise DataError(f"{name} does not broadcast to {target}") from None


def index(where: Array) -> str:
    """Return the first True of a boolean array as an index path.

    >>> index(np.array([[False, False], [False, True]]))
    '[1][1]'
    """
    return "".join(f"[{i}]" for i in np.argwhere(where)[0])
