"""Implementations that tests make of a definition itself, with another formula for some steps."""

import numpy as np

from attnkit.checking.callees import Outcome
from attnkit.checking.verdict import make_rounding
from attnkit.model.exercises.worked_steps import work

OTHER_ROUNDING = 99  # a seed that the examiner does not use


class Computed:
    """Computes the steps of a definition, each rounded, with changes."""

    title, library, by_place = "computed", "", ()

    def __init__(self, definition, changes=None):
        self.definition, self.changes = definition, changes or {}

    def takes(self, argument):
        return True

    def call(self, case, given, dtype):
        steps = {**self.definition.steps, **self.changes}
        *_, answer = steps
        arguments = {**dict.fromkeys(self.definition.arguments), **given}
        try:
            with np.errstate(all="ignore"):
                change = [] if self.definition.is_exact else [make_rounding(dtype, OTHER_ROUNDING)]
                return Outcome(work(steps, arguments, *change)[answer].astype(np.float32))
        except (ValueError, IndexError) as error:
            return Outcome(None, problem=str(error))

    def close(self):
        pass


def plain_ways(definition):
    """For each convention the way that hands arguments over as they are drawn."""
    return {
        name: next((way for way, one in ways.items() if not one.send), next(iter(ways)))
        for name, ways in definition.conventions.items()
    }
