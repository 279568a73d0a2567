"""Hooks: read or replace a named intermediate during a forward pass."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from attnkit.errors import UsageError
from attnkit.model.dtypes import Array

Hook = Callable[[str], Callable[[Array], Array] | None]


def no_hook(name: str) -> None:
    """The hook that does nothing for any intermediate."""


def scoped(hook: Hook, layer: str) -> Hook:
    """Hook of a part of a model, whose name begins the names of intermediates.

    >>> scoped(lambda name: name.upper, "encoder.0.self")("weights")()
    'ENCODER.0.SELF.WEIGHTS'
    """
    return no_hook if hook is no_hook else lambda name: hook(f"{layer}.{name}")


def apply_hook(hook: Hook, name: str, array: Array) -> Array:
    """Pass an array through the hook of its name.

    >>> apply_hook({"x": lambda x: x + 1}.get, "x", 1), apply_hook(no_hook, "x", 1)
    (2, 1)
    """
    function = hook(name)
    return array if function is None else function(array)


def is_requested(keep: Collection[str] | None, hook: Hook, name: str) -> bool:
    """Whether an intermediate is kept or has a hook; None keeps all.

    >>> is_requested(("q",), no_hook, "q"), is_requested(("q",), no_hook, "k"), is_requested(None, no_hook, "k")
    (True, False, True)
    """
    return keep is None or name in keep or hook(name) is not None


@dataclass(frozen=True, eq=False)
class Requested:
    """Intermediates of attention that are to be returned, hooked or summarized.

    summary    what to compute in place of the weights: full, stats, topk:K or rows:I,J
    summaries  the names of its intermediates

    >>> "q" in Requested(keep=("q",)), "k" in Requested(keep=("q",))
    (True, False)
    """

    keep: Collection[str] | None = None
    hook: Hook = no_hook
    summary: str = "full"
    summaries: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return is_requested(self.keep, self.hook, name)

    @property
    def has_summary(self) -> bool:
        """Whether any intermediate of the summary is needed."""
        return any(name in self for name in self.summaries)

    def is_returned(self, name: str) -> bool:
        """Whether an intermediate is returned; the heads always are."""
        return name == "heads" or self.keep is None or name in self.keep


def request_intermediates(keep: Collection[str] | None, hook: Hook, summary: str) -> Requested:
    """Resolve the intermediates to compute; a summary is kept in place of weights.

    >>> sorted(request_intermediates(("q", "weights"), no_hook, "rows:0").keep)
    ['q', 'weights.rows']
    """
    names = summary_names(summary)
    if names and keep is not None and "weights" in keep:
        keep = {*keep, *names} - {"weights"}
    return Requested(keep, hook, summary, names)


# kind of summary of the weights of attention -> the names of its intermediates
WEIGHT_SUMMARIES: dict[str, tuple[str, ...]] = {
    "full": (),
    "stats": ("lse", "entropy", "max", "argmax", "span", "received"),
    "topk": ("top", "keys"),
    "rows": ("rows",),
}


def parse_weight_summary(summary: str) -> tuple[str, tuple[int, ...]]:
    """Parse a summary of the weights: its kind, and K or the rows.

    UsageError for anything but full, stats, topk:K and rows:I,J.

    >>> parse_weight_summary("rows:3,-1")
    ('rows', (3, -1))
    """
    if not re.fullmatch(r"full|stats|topk:0*[1-9][0-9]{0,8}|rows:-?[0-9]{1,9}(,-?[0-9]{1,9})*", summary, re.ASCII):
        raise UsageError(f"weights {summary!r} (expected full, stats, topk:K or rows:I,J,…)")
    kind, _, numbers = summary.partition(":")
    return kind, tuple(map(int, numbers.split(","))) if numbers else ()


def summary_names(summary: str) -> tuple[str, ...]:
    """Names of the intermediates of a summary of the weights; none for "full".

    >>> summary_names("topk:8"), summary_names("full")
    (('weights.top', 'weights.keys'), ())
    """
    return tuple(f"weights.{name}" for name in WEIGHT_SUMMARIES[parse_weight_summary(summary)[0]])
