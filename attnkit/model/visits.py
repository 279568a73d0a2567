"""Eyes and hands inside a computation: who looks at an intermediate by its name may also replace it."""

from collections.abc import Callable

from attnkit.model.precision import Array

Visit = Callable[[str], Callable[[Array], Array] | None]


def nobody(name: str) -> None:
    """The visit of a computation that is left alone."""


def inside(visit: Visit, layer: str) -> Visit:
    """The visit of a part of a computation: the names there begin with the name of the part.

    >>> inside(lambda name: name.upper, "encoder.0.self")("weights")()
    'ENCODER.0.SELF.WEIGHTS'
    """
    return nobody if visit is nobody else lambda name: visit(f"{layer}.{name}")


def seen(visit: Visit, name: str, array: Array) -> Array:
    """The array as its visitor leaves it.

    >>> seen({"x": lambda x: x + 1}.get, "x", 1), seen(nobody, "x", 1)
    (2, 1)
    """
    act = visit(name)
    return array if act is None else act(array)
