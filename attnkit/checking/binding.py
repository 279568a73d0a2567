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


def bind(
    parameters: Sequence[Slot],
    names: Mapping[str, str],
    required: Collection[str],
    places: Collection[str],
    stated: Mapping[str, str],
    where: str,
) -> Binding:
    """Find the argument for each parameter.

    names     the arguments in their order, with their synonyms, separated by spaces
    required  the arguments that an implementation cannot do without
    places    the arguments that a parameter of another name may take, in their order
    stated    argument by parameter, as the user says
    where     what the parameters are those of, for errors

    UsageError if a parameter without a default is none of them, or if an argument has no parameter.

    >>> parameters = [Slot("K"), Slot("Q"), Slot("value"), Slot("scale", has_default=True)]
    >>> names = {"q": "q query", "k": "k key", "v": "v value"}
    >>> bind(parameters, names, names, names, {}, "f").arguments
    {'K': 'k', 'Q': 'q', 'value': 'v'}
    """
    found = dict(stated)
    for parameter, argument in stated.items():
        if argument not in names:
            raise UsageError(f"no argument {argument!r} (expected {', '.join(names)})", "--bind")
        if parameter not in [one.name for one in parameters]:
            raise UsageError(f"{where} has no parameter {parameter!r}", "--bind")
    for one in parameters:
        spelled = simplify(one.name)
        fits = [argument for argument, words in names.items() if spelled in map(simplify, words.split())]
        if one.name not in found and fits and fits[0] not in found.values():
            found[one.name] = fits[0]
    free = [
        one for one in parameters if one.name not in found and one.kind in ("place", "rest") and not one.has_default
    ]
    free = [one for one in free if one.name.lower() not in IGNORED]
    missing = [argument for argument in places if argument not in found.values()]
    wanted = [argument for argument in missing if argument in required] or missing
    by_place: list[str] = []
    for one in free:
        if one.kind == "rest":
            break
        if not wanted:
            raise UsageError(f"{where}: what does the parameter {one.name!r} take? --bind {one.name}=ARGUMENT says it")
        found[one.name] = wanted.pop(0)
        by_place.append(found[one.name])
    lacking = [argument for argument in required if argument not in found.values()]
    if lacking and not any(one.kind in ("rest", "names") for one in parameters):
        raise UsageError(f"{where} has no parameter for {lacking[0]}; --bind PARAMETER={lacking[0]} says which it is")
    return Binding(found, tuple(by_place))


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
