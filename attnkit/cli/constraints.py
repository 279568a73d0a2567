"""Which options exclude, require and repeat each other, as tables.

A term of a table is a parameter, `memory`, met where it has another value than its default; alternatives,
`memory|key`, met where one of them is; or a parameter with values, `kind=alibi|t5`, met where it has one of them. The
last alternative may have values: `model|padding=causal`. A parameter that ends in an underscore, `with_`, is written
without it.

An option repeats another where the content of that one, or the input record, says the same: the width of a table. It
then has no effect, and must agree.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from attnkit.cli.options import Option
from attnkit.errors import UsageError, flag_name

INPUT = "x"  # the source of repeats that is the input record
# source, an option or INPUT -> the options that repeat it, and the function that reads what it says of them, from its
# content and the values of all options
Repeats = Mapping[str, tuple[str, Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]]]


class Constraints(NamedTuple):
    """The tables of a tool.

    exclusive  rows of terms of which at most one may be met
    requires   pairs of a term and the term it needs
    one_of     rows of terms of which one must be met
    repeats    source -> the options that must agree with it, and the function that reads what it says of them
    options    the options of the tool by the name of their parameter
    """

    exclusive: Sequence[tuple[str, ...]] = ()
    requires: Sequence[tuple[str, str]] = ()
    one_of: Sequence[tuple[str, ...]] = ()
    repeats: Repeats = MappingProxyType({})
    options: Mapping[str, Option] = MappingProxyType({})

    def check(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """Raise UsageError if values break a table."""
        met = find_changed(values, defaults)
        sources = self._find_sources(met)
        met -= {*sources}
        values = {name: value for name, value in values.items() if name not in sources}
        for row in self.exclusive:
            first, *others = [term for term in row if is_met(term, met, values)] or [""]
            if others:
                raise UsageError(f"cannot be combined with {self.spell(others[0])}", self.spell(first))
        for term, needed in self.requires:
            if is_met(term, met, values) and not is_met(needed, met, values):
                raise UsageError(self._describe_need(needed, sources), self.spell(term))
        for row in self.one_of:
            if not any(is_met(term, met, values) for term in row):
                raise UsageError(f"needs {join_words([self.spell(term, metavar=True) for term in row], 'or')}")

    def _find_sources(self, met: set[str]) -> dict[str, str]:
        """The options that a source among those met may state, each with the source."""
        return {name: source for source, row in self.repeats.items() if source in met for name in row[0].split()}

    def _describe_need(self, needed: str, sources: Mapping[str, str]) -> str:
        """Why a needed term is not met: it was not passed, or only repeats a source."""
        if needed in sources:
            return f"cannot be combined with {self.spell(sources[needed])}"
        return f"needs {self.spell(needed, metavar=True)}"

    def find_repeated(self, passed: Iterable[str], values: Mapping[str, Any], record: Any) -> set[str]:
        """Which passed options only repeat a source. UsageError if one contradicts it.

        values  of all options, with contents in place of files; record: the input
        """
        repeated = set()
        for source, (options, read) in self.repeats.items():
            content = record if source == INPUT else values.get(source, values.get(f"{source}_"))
            names = [name for name in passed if name.rstrip("_") in options.split()]
            statements = read(content, values) if names and differs_from_default(content) else {}
            for name in names if statements else ():
                stated = statements.get(name.rstrip("_"))
                if not agree(values[name], stated):
                    where = f"{describe_value(stated)} in {self._spell_source(source)}"
                    raise UsageError(f"{describe_value(values[name])}, but {where}", flag_name(name))
                repeated.add(name)
        return repeated

    def _spell_source(self, source: str) -> str:
        return INPUT if source == INPUT else self.spell(source)

    def describe(self) -> str:
        """The tables as paragraphs of the help; "" if there are none."""
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
            [
                f"{join_words([*map(self.spell, row[0].split())], 'and')} must agree with {self._spell_source(source)}"
                for source, row in self.repeats.items()
            ],
        ]
        return "\n\n".join(f"{'; '.join(rows)}.".replace("one of", "One of", 1) for rows in paragraphs if rows)

    def spell(self, term: str, metavar: bool = False) -> str:
        """A term as a command line has it: `kind=alibi|t5` as `--kind alibi or t5`."""
        names, valued, allowed = split_term(term)
        options = {one: self.options.get(one) or self.options[f"{one}_"] for one in names}
        words = [f"{flag_name(one)} {option.metavar * metavar}".rstrip() for one, option in options.items()]
        return join_words([*words, *([f"{flag_name(valued)} {join_words(allowed, 'or')}"] if valued else ())], "or")


def agree(value: Any, stated: Any) -> bool:
    """Whether the value of an option is the stated one, floats to six digits.

    >>> agree(0.3535534, 8**-0.5), agree(2, 3), agree(4, None)
    (True, False, False)
    """
    if isinstance(value, float) and isinstance(stated, int | float):
        return math.isclose(value, stated, rel_tol=1e-6)
    return bool(value == stated)


def describe_value(value: Any) -> str:
    """A value of an option, or of what an input states, as an error names it.

    >>> describe_value(None), describe_value(True), describe_value(0.5), describe_value("rms")
    ('none', 'on', '0.5', 'rms')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    """The names of values other than their default, without a last underscore.

    >>> sorted(find_changed({"heads": 1, "with_": "a", "seed": 0}, {"heads": 1}))
    ['seed', 'with']
    """
    pairs = [(name, value, defaults.get(name)) for name, value in values.items()]
    changed = [name for name, value, default in pairs if value is not default and differs_from_default(value, default)]
    return {name.rstrip("_") for name in changed}


def differs_from_default(value: Any, default: Any = None) -> bool:
    """Decide whether a value is set: not its default, None, False or ().

    >>> [differs_from_default(*values) for values in ((1, 1), (2, 1), (False,), (0,))]
    [False, True, False, True]
    """
    if value is None or value is False or value is default or (isinstance(value, tuple) and not value):
        return False
    is_plain = isinstance(value, str | int | float | tuple)
    return not (is_plain and type(value) is type(default) and value == default)


def is_met(term: str, met: set[str], values: Mapping[str, Any]) -> bool:
    """Whether a term is met: one of its names is, or its parameter has the value.

    >>> is_met("memory|key", {"key"}, {}), is_met("kind=alibi|t5", set(), {"kind": "t5"})
    (True, True)
    """
    names, valued, allowed = split_term(term)
    return not met.isdisjoint(names) or (bool(valued) and str(values.get(valued, values.get(f"{valued}_"))) in allowed)


def split_term(term: str) -> tuple[list[str], str, list[str]]:
    """The parameters of a term without values, the one with values, and these.

    >>> split_term("model|padding=causal"), split_term("memory|key")
    ((['model'], 'padding', ['causal']), (['memory', 'key'], '', []))
    """
    left, equals, right = term.partition("=")
    names = left.split("|")
    return (names[:-1], names[-1], right.split("|")) if equals else (names, "", [])


def join_words(words: Sequence[str], conjunction: str) -> str:
    """Words as a phrase.

    >>> join_words(["--params", "--model", "--hidden"], "or")
    '--params, --model or --hidden'
    """
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last
