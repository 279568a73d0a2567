"""Which flags exclude and which require each other: tables that are checked for every caller and shown in the help.

A term of a table is a parameter, `memory`, met where it has another value than its default; alternatives,
`memory|key`, met where one of them is; or a parameter with values, `kind=alibi|t5`, met where it has one of them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnkit.cli.options import Flag
from attnkit.errors import UsageError, flag_name

if TYPE_CHECKING:
    from attnkit.cli.tool import Tool

Exclusive = Sequence[tuple[str, ...]]  # of the terms of a row at most one is met
Requires = Sequence[tuple[str, str]]  # where the first term is met, so must be the second
OneOf = Sequence[tuple[str, ...]]  # of the terms of a row at least one must be met


def differs_from_default(value: Any, default: Any = None) -> bool:
    """Decide whether a value is other than its default, None, False and an empty tuple.

    >>> [differs_from_default(*values) for values in ((1, 1), (2, 1), (False,), (0,))]
    [False, True, False, True]
    """
    if value is None or value is False or value is default or (isinstance(value, tuple) and not value):
        return False
    is_plain = isinstance(value, str | int | float | tuple)
    return not (is_plain and type(value) is type(default) and value == default)


def check_flags(tool: "Tool", values: Mapping[str, Any]) -> None:
    """Raise UsageError where values break a table of the tool; it names the flags."""
    for row in tool.exclusive:
        met = [term for term in row if is_met(term, tool, values)]
        if len(met) > 1:
            raise UsageError(f"cannot be combined with {spell(met[1], tool)}", spell(met[0], tool))
    for first, second in tool.requires:
        if is_met(first, tool, values) and not is_met(second, tool, values):
            raise UsageError(f"needs {spell(second, tool, metavar=True)}", spell(first, tool))
    for row in tool.one_of:
        if not any(is_met(term, tool, values) for term in row):
            raise UsageError(f"needs {join_or([spell(term, tool, metavar=True) for term in row])}")


def is_met(term: str, tool: "Tool", values: Mapping[str, Any]) -> bool:
    """Decide whether a term of a table is met for the values of a tool's flags."""
    name, equals, allowed = term.partition("=")
    if equals:
        return str(values.get(find_name(name, tool))) in allowed.split("|")
    names = [find_name(one, tool) for one in term.split("|")]
    return any(differs_from_default(values.get(one), tool.defaults.get(one)) for one in names)


def describe_flags(tool: "Tool") -> str:
    """Return the tables as paragraphs of the help; "" for a tool without tables."""
    needs: dict[str, list[str]] = {}
    for first, second in tool.requires:
        needs.setdefault(spell(second, tool), []).append(spell(first, tool))
    excludes: dict[str, list[str]] = {}
    for first, second in (row for row in tool.exclusive if len(row) == 2):
        excludes.setdefault(spell(first, tool), []).append(spell(second, tool))
    paragraphs = [
        [
            f"{'one of ' * (len(row) > 1)}{join_or([spell(term, tool) for term in row])} is required"
            for row in tool.one_of
        ],
        [", ".join(spell(term, tool) for term in row) + " exclude each other" for row in tool.exclusive if row[2:]]
        + [f"{flag} excludes {', '.join(others)}" for flag, others in excludes.items()],
        [f"{', '.join(flags)} {'need' if flags[1:] else 'needs'} {other}" for other, flags in needs.items()],
    ]
    return "\n\n".join(f"{'; '.join(rows)}.".replace("one of", "One of", 1) for rows in paragraphs if rows)


def spell(term: str, tool: "Tool", metavar: bool = False) -> str:
    """Return a term of a table as it is written on a command line: `kind=alibi|t5` as `--kind alibi or t5`."""
    name, equals, allowed = term.partition("=")
    if equals:
        return f"{flag_name(name)} {join_or(allowed.split('|'))}"
    flags: dict[str, Flag] = tool.flags | tool.extra
    names = [find_name(one, tool) for one in term.split("|")]
    return join_or([f"{flag_name(one)} {flags[one].metavar if metavar else ''}".rstrip() for one in names])


def join_or(words: Sequence[str]) -> str:
    """Return alternatives as a phrase.

    >>> join_or(["--params", "--model", "--hidden"])
    '--params, --model or --hidden'
    """
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def find_name(name: str, tool: "Tool") -> str:
    """Return the parameter of that name, which may end in an underscore."""
    return name if name in tool.flags or name in tool.extra else f"{name}_"
