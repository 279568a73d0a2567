"""Slips: steps and nodes that are computed otherwise, with their sentences.

`model/exercises/worked_slips.py` lists those of computations on paper by their steps, for the exercises; the table
SLIPS in `debugger/slips.py` those of implementations by the kinds of nodes, for `attnkit diff --why`. A slip that both
know has its sentence here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")  # what computes a step or a site: a formula on paper, a node of a graph


class Slip(NamedTuple, Generic[T]):
    """A common slip.

    name     what it is, in words
    changes  what computes instead: by the step of a computation, or by the site of a graph
    hint     what to do instead
    number   whose other value the slip is, and this value
    """

    name: str
    changes: Mapping[str, T]
    hint: str = ""
    number: "Number[T] | None" = None
    value: float = math.nan

    @property
    def note(self) -> str:
        return f"{self.name}; {self.hint}" if self.hint else self.name


class Number(NamedTuple, Generic[T]):
    """A number that an implementation may have otherwise.

    sentence   the slip in words, with {} for the number
    changes    what computes instead, made from the number
    stated     the number of the model
    range      where it is looked for, on a logarithmic scale
    published  other values that models have, which are tried before
    """

    sentence: str
    changes: Mapping[str, Callable[[float], T]]
    stated: float
    range: tuple[float, float]
    published: tuple[float, ...] = ()

    def slip(self, value: float) -> Slip[T]:
        """The slip with a value of the number.

        >>> Number("ε is {}", {}, 1e-5, (1e-12, 1.0)).slip(1e-3).name
        'ε is 0.001'
        """
        changes = {site: make(value) for site, make in self.changes.items()}
        return Slip(self.sentence.format(f"{value:g}"), changes, number=self, value=value)


# what slips of whole models and of exercises are called
NO_SCALE = "the scale of the scores is missing"
SCALED_TWICE = "the scale of the scores is applied twice"
SCALE_OF_WIDTH = "the scale of the scores is 1/√D of the whole width"
MULTIPLIED_SCALE = "the scores are multiplied by √K"
OVER_QUERIES = "softmax is over the queries, not the keys"
NO_CAUSAL = "the causal mask is missing"
STRICT_CAUSAL = "the causal mask excludes the token itself"
SHIFTED_CAUSAL = "the causal mask is shifted by one: the next token is visible"
OPPOSITE_CAUSAL = "the causal mask is the wrong way round"
BLOCKED_ZERO = "blocked scores are 0 instead of −∞"
NO_PADDING = "the padding mask is missing"
INVERTED_PADDING = "the padding mask is inverted"
NO_RESIDUAL = "the residual is missing"
RESIDUAL_ALONE = "the output of the sub-layer is not added"
RESIDUAL_TWICE = "the residual is added twice"
RESIDUAL_AFTER = "the residual is added after the norm, not before it"
PRE_NORM = "the norms precede the sub-layers (pre-norm, not post-norm)"
N_MINUS_1 = "the norm divides by n − 1, not by n"
NO_MEAN = "the norm does not subtract the mean (RMS norm)"
NO_ACTIVATION = "the activation is missing"
HALVES = "sinusoidal positions have all sines before all cosines"
SHIFTED_POSITIONS = "positions are shifted by +1"
HEADS_LAST = "the head is the last part of a column's index, not the first"
