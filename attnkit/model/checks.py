"""Shape checks, whose errors name both sides of a mismatch."""

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import Array


def as_text(shape: tuple[int, ...]) -> str:
    """Format a shape for an error message.

    >>> as_text((2, 4, 8)), as_text((4,))
    ('(2,4,8)', '(4,)')
    """
    return str(shape).replace(" ", "")


def fit(x: Array, shape: tuple[int, ...], name: str, target: str, given: Array | None = None) -> Array:
    """Broadcast x to a shape, or raise DataError with both names.

    given  the array whose shape the error states, if it is not x

    >>> fit(np.array([1, 2]), (3, 2), "bias", "scores (3,2)").shape
    (3, 2)
    """
    if x.shape == shape:
        return x
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        stated = as_text((x if given is None else given).shape)
        raise DataError.about(name, f"{stated} does not broadcast to {target}") from None


def index(where: Array) -> str:
    """Index path of the first True of a boolean array.

    >>> index(np.array([[False, False], [False, True]]))
    '[1][1]'
    """
    return "".join(f"[{i}]" for i in np.argwhere(where)[0])


def check_shapes(q: Array, k: Array, v: Array, *, trailing: int, same_width: bool) -> None:
    """Raise DataError unless batch, heads, lengths and widths match.

    The last `trailing` axes are not batch axes.

    q (..., H, T, K), k (..., G, S, K), v (..., G, S, V), or without heads if `trailing` is 2

    >>> check_shapes(np.ones((2, 3, 4)), np.ones((1, 5, 4)), np.ones((1, 5, 2)), trailing=3, same_width=True)
    """
    for name, x in (("Q", q), ("K", k), ("V", v)):
        if x.ndim < trailing:
            raise DataError.about(
                name, f"{as_text(x.shape)}: rank {x.ndim} (expected {' or '.join(map(str, range(trailing, 5)))})"
            )
    for name, x, other, y in (("Q", q, "K", k), ("K", k, "V", v)):
        pair = f"{as_text(x.shape)} and {other} {as_text(y.shape)}"
        if x.ndim != y.ndim:
            raise DataError.about(name, f"{pair}: rank {x.ndim} != {y.ndim}")
        if x.shape[:-trailing] != y.shape[:-trailing]:
            one, two = (
                str(part.shape[0]) if part.ndim == trailing + 1 else as_text(part.shape[:-trailing]) for part in (x, y)
            )
            raise DataError.about(name, f"{pair}: batch {one} != {two}")
    if same_width and q.shape[-1] != k.shape[-1]:
        pair = f"{as_text(q.shape)} and K {as_text(k.shape)}"
        raise DataError.about("Q", f"{pair}: last dimension {q.shape[-1]} != {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        pair = f"{as_text(k.shape)} and V {as_text(v.shape)}"
        raise DataError.about("K", f"{pair}: {k.shape[-2]} keys but {v.shape[-2]} values")
    if trailing == 3:
        _check_head_counts(q, k, v)


def _check_head_counts(q: Array, k: Array, v: Array) -> None:
    heads, groups = q.shape[-3], k.shape[-3]
    if v.shape[-3] != groups:
        raise DataError.about("K", f"{as_text(k.shape)} and V {as_text(v.shape)}: heads {groups} != {v.shape[-3]}")
    if heads < 1 or groups < 1 or heads % groups:
        pair = f"{as_text(q.shape)} and K {as_text(k.shape)}"
        raise DataError.about("Q", f"{pair}: {heads} heads are not a multiple of {groups}")


def check_gradient(grad_output: Array, shape: tuple[int, ...], name: str) -> None:
    """Raise DataError unless a gradient has the shape of its output.

    >>> check_gradient(np.zeros((2, 3)), (2, 3), "y")
    """
    if grad_output.shape != shape:
        raise DataError(f"gradient {as_text(grad_output.shape)} of {name}: expected {as_text(shape)}")
