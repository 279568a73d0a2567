"""Formulas of steps with other names of what they read."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from attnkit.model.exercises.worked_steps import Formula


def with_names(formula: Formula, names: Sequence[str]) -> Formula:
    """A formula of any number of values by the names of what it reads.

    >>> inspect.signature(with_names(lambda *values: sum(values), ["x", "y"]))
    <Signature (x, y, /)>
    """

    def named(*values: Any) -> Any:
        return formula(*values)

    named.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(one, inspect.Parameter.POSITIONAL_ONLY) for one in names]
    )
    return named


def rename(formula: Formula, names: Mapping[str, str | None]) -> Formula:
    """A formula that reads other steps or arguments; one that is None is not given.

    >>> inspect.signature(rename(lambda x, w, b: x @ w, {"x": "norm1", "b": None}))
    <Signature (norm1, w, /)>
    """
    own = [*inspect.signature(formula).parameters]
    read = [names.get(one, one) for one in own]

    def renamed(*values: Any) -> Any:
        rest = iter(values)
        return formula(*[None if one is None else next(rest) for one in read])

    return with_names(renamed, [one for one in read if one is not None])
