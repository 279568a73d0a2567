"""Which options exclude and which require each other: tables that are checked for every caller and shown in the help.

A term of a table is a parameter, `memory`, met where it has another value than its default; alternatives,
`memory|key`, met where one of them is; or a parameter with values, `kind=alibi|t5`, met where it has one of them.
A parameter that ends in an underscore, `with_`, is written without it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.cli.options import Option
from attnkit.errors import UsageError, flag_name


class Constraints(NamedTuple):
    """The tables of a tool, and its options by the name of their parameter.

    exclusive  rows of terms of which at most one may be met
    requires   pairs of a term and the term it needs
    one_of     rows of terms of which one must be met
    """

    options: Mapping[str, Option]
    exclusive: Sequence[tuple[str, ...]] = ()
    requires: Sequence[tuple[str, str]] = ()
    one_of: Sequence[tuple[str, ...]] = ()

    def check(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """Raise UsageError where values break a table; it names the options."""
        met = find_changed(values, defaults)
        for row in self.exclusive:
            first, *others = [term for term in row if is_met(term, met, values)] or [""]
            if others:
                raise UsageError(f"cannot be combined with {self.spell(others[0])}", self.spell(first))
        for term, needed in self.requires:
            if is_met(term, met, values) and not is_met(needed, met, values):
                raise UsageError(f"needs {self.spell(needed, metavar=True)}", self.spell(term))
        for row in self.one_of:
            if not any(is_met(term, met, values) for term in row):
                raise UsageError(f"needs {join_words([self.spell(term, metavar=True) for term in row], 'or')}")

    def describe(self) -> str:
        """Return the tables as paragraphs of the help; "" where there are none."""
        needs = group_by_key((self.spell(second), self.spell(first)) for first, second in self.requires)
        excludes = group_by_key((self.spell(row[0]), self.spell(row[1])) for row in self.exclusive if len(row) == 2)
        paragraphs = [
            [
                f"{'one of ' * (len(row) > 1)}{join_words([*map(self.spell, row)], 'or')} is required"
                for row in self.one_of
            ],
            [
                f"{join_words([*map(self.spell, row)], 'and')} are mutually exclusive"
                for row in self.exclusive
                if row[2:]
            ]
            + [f"{flag} cannot be combined with {join_words(others, 'or')}" for flag, others in excludes.items()],
            [f"{', '.join(flags)} {'need' if flags[1:] else 'needs'} {other}" for other, flags in needs.items()],
        ]
        return "\n\n".join(f"{'; '.join(rows)}.".replace("one of", "One of", 1) for rows in paragraphs if rows)

    def spell(self, term: str, metavar: bool = False) -> str:
        """Return a term as it is written on a command line: `kind=alibi|t5` as `--kind alibi or t5`."""
        name, equals, allowed = term.partition("=")
        if equals:
            return f"{flag_name(name)} {join_words(allowed.split('|'), 'or')}"
        names = {one: self.options.get(one) or self.options[f"{one}_"] for one in term.split("|")}
        return join_words(
            [f"{flag_name(one)} {option.metavar * metavar}".rstrip() for one, option in names.items()], "or"
        )


def group_by_key(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group the second words of pairs by the first.

    >>> group_by_key([("a", "b"), ("c", "d"), ("a", "e")])
    {'a': ['b', 'e'], 'c': ['d']}
    """
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def find_changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> set[str]:
    """Return the names of values other than their default, without a last underscore.

    >>> sorted(find_changed({"heads": 1, "with_": "a", "seed": 0}, {"heads": 1}))
    ['seed', 'with']
    """
    pairs = [(name, value, defaults.get(name)) for name, value in values.items()]
    changed = [name for name, value, default in pairs if value is not default and differs_from_default(value, default)]
    return {name.rstrip("_") for name in changed}


def differs_from_default(value: Any, default: Any = None) -> bool:
    """Decide whether a value is other than its default, None, False and an empty tuple.

    >>> [differs_from_default(*values) for values in ((1, 1), (2, 1), (False,), (0,))]
    [False, True, False, True]
    """
    if value is None or value is False or value is default or (isinstance(value, tuple) and not value):
        return False
    is_plain = isinstance(value, str | int | float | tuple)
    return not (is_plain and type(value) is type(default) and value == default)


def is_met(term: str, met: set[str], values: Mapping[str, Any]) -> bool:
    """Decide whether a term is met: one of its names is among those met, or its parameter has one of its values.

    >>> is_met("memory|key", {"key"}, {}), is_met("kind=alibi|t5", set(), {"kind": "t5"})
    (True, True)
    """
    name, equals, allowed = term.partition("=")
    if not equals:
        return not met.isdisjoint(term.split("|"))
    return str(values.get(name, values.get(f"{name}_"))) in allowed.split("|")


def join_words(words: Sequence[str], conjunction: str) -> str:
    """Return words as a phrase.

    >>> join_words(["--params", "--model", "--hidden"], "or")
    '--params, --model or --hidden'
    """
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last
