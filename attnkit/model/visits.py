"""Eyes and hands inside a computation: who looks at an intermediate by its name may also replace it."""

import re
from collections.abc import Callable, Collection

from attnkit.errors import UsageError
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


def wanted(keep: Collection[str] | None, visit: Visit, name: str) -> bool:
    """Whether somebody keeps an intermediate, as all are where `keep` is None, or visits it.

    >>> wanted(("q",), nobody, "q"), wanted(("q",), nobody, "k"), wanted(None, nobody, "k")
    (True, False, True)
    """
    return keep is None or name in keep or visit(name) is not None


# what may stand in place of the weights of attention -> the names of the intermediates it gives
VIEWS: dict[str, tuple[str, ...]] = {
    "full": (),
    "stats": ("lse", "entropy", "max", "argmax", "span", "received"),
    "topk": ("top", "keys"),
    "rows": ("rows",),
}


def view(how: str) -> tuple[str, tuple[int, ...]]:
    """What is asked for in place of the weights, and its numbers: K, or the rows.

    UsageError for what is none of full, stats, topk:K and rows:I,J.

    >>> view("rows:3,-1")
    ('rows', (3, -1))
    """
    if not re.fullmatch(r"full|stats|topk:0*[1-9][0-9]{0,8}|rows:-?[0-9]{1,9}(,-?[0-9]{1,9})*", how, re.ASCII):
        raise UsageError(f"weights {how!r} (expected full, stats, topk:K or rows:I,J,…)")
    kind, _, numbers = how.partition(":")
    return kind, tuple(map(int, numbers.split(","))) if numbers else ()


def view_names(how: str) -> tuple[str, ...]:
    """The names of what stands in place of the weights; none where nothing does.

    >>> view_names("topk:8"), view_names("full")
    (('weights.top', 'weights.keys'), ())
    """
    return tuple(f"weights.{name}" for name in VIEWS[view(how)[0]])
