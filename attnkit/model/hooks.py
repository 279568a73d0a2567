"""Eyes and hands inside a computation: who looks at an intermediate by its name may also replace it."""

import re
from collections.abc import Callable, Collection

from attnkit.errors import UsageError
from attnkit.model.dtypes import Array

Hook = Callable[[str], Callable[[Array], Array] | None]


def no_hook(name: str) -> None:
    """The visit of a computation that is left alone."""


def scoped(visit: Hook, layer: str) -> Hook:
    """The visit of a part of a computation: the names there begin with the name of the part.

    >>> scoped(lambda name: name.upper, "encoder.0.self")("weights")()
    'ENCODER.0.SELF.WEIGHTS'
    """
    return no_hook if visit is no_hook else lambda name: visit(f"{layer}.{name}")


def apply_hook(visit: Hook, name: str, array: Array) -> Array:
    """The array as its visitor leaves it.

    >>> apply_hook({"x": lambda x: x + 1}.get, "x", 1), apply_hook(no_hook, "x", 1)
    (2, 1)
    """
    act = visit(name)
    return array if act is None else act(array)


def is_requested(keep: Collection[str] | None, visit: Hook, name: str) -> bool:
    """Whether somebody keeps an intermediate, as all are where `keep` is None, or visits it.

    >>> is_requested(("q",), no_hook, "q"), is_requested(("q",), no_hook, "k"), is_requested(None, no_hook, "k")
    (True, False, True)
    """
    return keep is None or name in keep or visit(name) is not None


# what may stand in place of the weights of attention -> the names of the intermediates it gives
WEIGHT_SUMMARIES: dict[str, tuple[str, ...]] = {
    "full": (),
    "stats": ("lse", "entropy", "max", "argmax", "span", "received"),
    "topk": ("top", "keys"),
    "rows": ("rows",),
}


def parse_weight_summary(how: str) -> tuple[str, tuple[int, ...]]:
    """What is asked for in place of the weights, and its numbers: K, or the rows.

    UsageError for what is none of full, stats, topk:K and rows:I,J.

    >>> parse_weight_summary("rows:3,-1")
    ('rows', (3, -1))
    """
    if not re.fullmatch(r"full|stats|topk:0*[1-9][0-9]{0,8}|rows:-?[0-9]{1,9}(,-?[0-9]{1,9})*", how, re.ASCII):
        raise UsageError(f"weights {how!r} (expected full, stats, topk:K or rows:I,J,…)")
    kind, _, numbers = how.partition(":")
    return kind, tuple(map(int, numbers.split(","))) if numbers else ()


def summary_names(how: str) -> tuple[str, ...]:
    """The names of what stands in place of the weights; none where nothing does.

    >>> summary_names("topk:8"), summary_names("full")
    (('weights.top', 'weights.keys'), ())
    """
    return tuple(f"weights.{name}" for name in WEIGHT_SUMMARIES[parse_weight_summary(how)[0]])
