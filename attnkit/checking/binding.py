"""Which argument of a definition each parameter takes: by name, else by place."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from attnkit.errors import UsageError

IGNORED = {"device", "dtype", "generator", "name", "key", "rngs", "dropout", "dropout_p", "training", "inplace", "out"}


class Slot(NamedTuple):
    """A parameter of a function.

    kind  "place", "name" (by keyword alone), "rest" (*args) or "names" (**kwargs)
    """

    name: str
    kind: str = "place"
    has_default: bool = False


class Binding(NamedTuple):
    """The argument that each parameter takes.

    by_place  the arguments that were bound by place, whose order names do not tell
    """

    arguments: Mapping[str, str]
    by_place: tuple[str, ...] = ()


class BoundNames(NamedTuple):
    """What parameters may take.

    synonyms  the arguments in their order, with their names separated by spaces
    required  those that an implementation cannot do without
    places    those that a parameter of another name may take, in their order
    shared    those that several parameters may take
    """

    synonyms: Mapping[str, str]
    required: Collection[str] = ()
    places: Collection[str] = ()
    shared: Collection[str] = ()


def bind(slots: Sequence[Slot], names: BoundNames, stated: Mapping[str, str], where: str) -> Binding:
    """Find the argument for each parameter.

    stated  argument by parameter, as the user says
    where   what the parameters are those of, for errors

    UsageError if a parameter without a default is none of them, or if an argument has no parameter.

    >>> slots = [Slot("K"), Slot("Q"), Slot("value"), Slot("scale", has_default=True)]
    >>> synonyms = {"q": "q query", "k": "k key", "v": "v value"}
    >>> bind(slots, BoundNames(synonyms, synonyms, synonyms), {}, "f").arguments
    {'K': 'k', 'Q': 'q', 'value': 'v'}
    """
    found = dict(stated)
    for slot in slots:
        spelled = simplify(slot.name)
        fits = [argument for argument, words in names.synonyms.items() if spelled in map(simplify, words.split())]
        fits = [one for one in fits if one not in found.values() or one in names.shared]
        if slot.name not in found and fits and slot.kind not in ("rest", "names"):
            found[slot.name] = fits[0]
    is_open = any(slot.kind in ("rest", "names") for slot in slots)
    by_place = _bind_by_place(slots, names, found, where)
    lacking = [argument for argument in names.required if argument not in found.values()]
    if lacking and not is_open:
        raise UsageError(f"{where} has no parameter for {lacking[0]}; --bind PARAMETER={lacking[0]} says which it is")
    return Binding(found, tuple(by_place))


def _bind_by_place(slots: Sequence[Slot], names: BoundNames, found: dict[str, str], where: str) -> list[str]:
    """Bind the parameters whose names say nothing, in order; list their arguments."""
    unbound = [slot for slot in slots if slot.name not in found and slot.kind in ("place", "rest")]
    unbound = [slot for slot in unbound if slot.name.lower() not in IGNORED]
    missing = [argument for argument in names.places if argument not in found.values()]
    wanted = [argument for argument in missing if argument in names.required] or missing
    by_place = []
    for slot in unbound:
        if slot.kind == "rest":
            break
        if slot.has_default:
            continue
        if not wanted:
            choices = ", ".join(names.synonyms)
            hint = f"--bind {slot.name}=ARGUMENT says it, one of {choices}, or a number"
            raise UsageError(f"{where}: what does the parameter {slot.name!r} take? {hint}")
        found[slot.name] = wanted.pop(0)
        by_place.append(found[slot.name])
    rest = [slot for slot in unbound if slot.has_default and slot.name not in found]
    missing = [argument for argument in missing if argument not in found.values()]
    if len(rest) == len(missing) == 1:  # a mask of another name
        found[rest[0].name] = missing[0]
    return by_place


def plan_call(
    slots: Sequence[Slot], binding: Binding, present: Collection[str]
) -> tuple[list[str | None], dict[str, str | None]]:
    """The arguments that a call hands over by place and by name; None for None.

    present  the arguments that the call has

    >>> plan_call([Slot("K"), Slot("Q"), Slot("mask", has_default=True)], Binding({"K": "k", "Q": "q"}), ["q", "k"])
    (['k', 'q'], {})
    """
    places: list[str | None] = []
    names: dict[str, str | None] = {}
    others = [one for one in present if one not in binding.arguments.values()]
    is_by_name = False
    for slot in slots:
        argument = binding.arguments.get(slot.name, "")
        found = argument if argument in present else None
        if slot.kind == "rest":
            places += others
        elif slot.kind == "names":
            names |= {one: one for one in others}
        elif found is None and slot.has_default:
            is_by_name = True
        elif is_by_name or slot.kind == "name":
            names[slot.name] = found
        else:
            places.append(found)
    return places, names


def simplify(name: str) -> str:
    """A name without case and underscores.

    >>> simplify("token_positions"), simplify("W_q"), simplify("inFeatures")
    ('tokenpositions', 'wq', 'infeatures')
    """
    return re.sub("[^a-z0-9]", "", name.lower())
