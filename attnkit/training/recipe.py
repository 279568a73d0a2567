"""The recipe of a run: every option that decides its numbers, as JSON and back."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from attnkit.errors import DataError, UsageError, shortened
from attnkit.training.data import parse_share
from attnkit.training.optimizers import OptimizerOptions, optimizer_options

DEFAULT_STEPS = 1000  # of a run that names no end
MAY_BE_ZERO = ("momentum", "weight_decay", "warmup", "clip", "dropout", "weight_drop", "smoothing", "seed", "steps")


@dataclass(frozen=True)
class Recipe:
    """The values of the options in `attnkit.training.options`; None if derived.

    hidden  None: 4 times dim (gated: 8/3 of it, a multiple of 32); of recurrent states dim
    block   tokens of a text; for pairs the longest source or target
    steps, epochs, minutes, patience   the end: the first of them that is reached
    every   steps between two reports, each with an evaluation and a save
    dtype   of the tensors in model.safetensors; a run computes in float32
    """

    family: str = "gpt2"
    layers: int | None = None
    heads: int = 4
    dim: int = 128
    hidden: int | None = None
    size: int = 32
    patch: int = 4
    cell: str = "gru"
    attention: str = "additive"
    input_feeding: bool = False
    bidirectional: bool = False
    config: str | None = None
    from_: str | None = None
    tokens: str | None = None
    pairs: bool = False
    classify: bool = False
    batch: int = 12
    block: int = 64
    accumulate: int = 1
    optimizer: str = "adamw"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float | None = None
    schedule: str = "constant"
    warmup: int = 100
    clip: float = 1.0
    dropout: float = 0.0
    weight_drop: float = 0.0
    smoothing: float = 0.0
    freeze: tuple[str, ...] = ()
    unfreeze_every: int | None = None
    layer_decay: float = 1.0
    valid: str = "5%"
    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    patience: int | None = None
    every: int = 100
    dtype: str = "float32"
    seed: int = 0
    record: tuple[int, ...] = ()

    def optimizer_options(self) -> OptimizerOptions:
        """The options of the optimizer. UsageError if they do not fit it."""
        if self.momentum and self.optimizer != "sgd":
            raise UsageError(f"momentum {self.momentum:g} is of sgd, not of {self.optimizer}")
        decay: dict[str, Any] = {} if self.weight_decay is None else {"weight_decay": self.weight_decay}
        momentum = {"momentum": self.momentum} if self.momentum else {}
        return optimizer_options(self.optimizer, lr=self.lr, **decay, **momentum)

    def total_steps(self, steps_per_epoch: int) -> int | None:
        """The last step of the run; None if only time or patience ends it.

        >>> Recipe(epochs=2).total_steps(50), Recipe().total_steps(50), Recipe(minutes=3).total_steps(50)
        (100, 1000, None)
        """
        ends = [self.steps, None if self.epochs is None else self.epochs * steps_per_epoch]
        limits = [end for end in ends if end is not None]
        is_open = self.minutes is not None or self.patience is not None
        return min(limits) if limits else None if is_open else DEFAULT_STEPS

    def check(self) -> "Recipe":
        """Check the options, and return the recipe. UsageError for impossible ones."""
        self.optimizer_options()
        rates = {"dropout": self.dropout, "weight drop": self.weight_drop, "label smoothing": self.smoothing}
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise UsageError(f"{name} {rate:g} (expected 0 or more, below 1)")
        if self.patience is not None and not parse_share(self.valid):
            raise UsageError("patience needs a held-out part (--valid 5%)")
        return self


def changed_values(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe that differ from its defaults, by name."""
    fields = dataclasses.fields(recipe)
    return {field.name: value for field in fields if (value := getattr(recipe, field.name)) != field.default}


def to_json(recipe: Recipe) -> dict[str, Any]:
    """The changed values of a recipe for a JSON file.

    >>> to_json(Recipe(layers=2, freeze=("decoder.embed",)))
    {'layers': 2, 'freeze': ['decoder.embed']}
    """
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed_values(recipe).items()}


def from_json(values: Mapping[str, Any], name: str) -> Recipe:
    """Read the values of `to_json`. DataError for others, in the file `name`.

    >>> from_json({"layers": 2, "record": [1]}, "training.json").record
    (1,)
    """
    known = {field.name: field.type for field in dataclasses.fields(Recipe)}
    if unknown := sorted(set(values) - set(known)):
        raise DataError(f"a recipe has no {unknown[0]!r}", name)
    fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    for key, value in fields.items():
        if not _is_value(key, value, known[key]):
            raise DataError(f"{key} of the recipe cannot be {shortened(repr(value))}", name)
    return Recipe(**fields)


def _is_value(key: str, value: Any, kind: Any) -> bool:
    """Whether a value fits the type of a field: numbers are above 0, or at least 0."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_value(key, one, get_args(kind)[0]) for one in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (value < 0 or (value == 0 and key not in MAY_BE_ZERO)):
        return False
    return isinstance(value, kind) or (is_number and isinstance(0.0, kind))
