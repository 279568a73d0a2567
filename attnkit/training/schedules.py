"""Schedules: the factor on the learning rate in each step, counted from 1.

The warm-up is step / warm-up, so that the first step has a rate above 0; a decay counts the steps before, as the
schedulers of torch and transformers do. These count both from 0: their iteration i is the factor of step i up to the
warm-up, of step i + 1 after it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from attnkit.errors import UsageError


class ScheduleOptions(NamedTuple):
    """The options of a schedule.

    total     steps of the whole run, which linear, cosine and slanted_triangular need
    warmup    steps in which the factor grows from 1/warmup to 1; inverse_sqrt needs 1 or more
    final     factor that linear and cosine tend to
    cut_frac  part of the steps in which slanted_triangular grows; ratio: its largest factor over its smallest
    """

    total: int = 0
    warmup: int = 0
    final: float = 0.0
    cut_frac: float = 0.1
    ratio: float = 32.0


Schedule = Callable[[int, ScheduleOptions], float]


def constant_factor(step: int, options: ScheduleOptions) -> float:
    """min(1, step/warmup).

    >>> [constant_factor(step, ScheduleOptions(warmup=4)) for step in (1, 2, 4, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    return step / options.warmup if step < options.warmup else 1.0


def linear_factor(step: int, options: ScheduleOptions) -> float:
    """The warm-up, then a line from 1 to `final` one step after the last.

    Source: torch.optim.lr_scheduler.LinearLR.

    >>> [linear_factor(step, ScheduleOptions(total=6, warmup=2)) for step in (1, 2, 3, 5, 6)]
    [0.5, 1.0, 1.0, 0.5, 0.25]
    """
    return _decay(step, options, lambda done: 1 - done)


def cosine_factor(step: int, options: ScheduleOptions) -> float:
    """The warm-up, then half a cosine from 1 to `final`.

    Source: Loshchilov and Hutter 2017, equation 5, without restarts; torch.optim.lr_scheduler.CosineAnnealingLR.

    >>> [round(cosine_factor(step, ScheduleOptions(total=6, warmup=2)), 4) for step in (1, 2, 3, 5, 6)]
    [0.5, 1.0, 1.0, 0.5, 0.1464]
    """
    return _decay(step, options, lambda done: (1 + math.cos(math.pi * done)) / 2)


def inverse_sqrt_factor(step: int, options: ScheduleOptions) -> float:
    """min(step/warmup, sqrt(warmup/step)).

    Source: Attention Is All You Need, equation 3, divided by its largest value.

    >>> [inverse_sqrt_factor(step, ScheduleOptions(warmup=4)) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    return min(step / options.warmup, math.sqrt(options.warmup / step))


def slanted_triangular_factor(step: int, options: ScheduleOptions) -> float:
    """(1 + p (ratio - 1)) / ratio: p grows to 1 in total cut_frac steps, then falls.

    Source: Howard and Ruder 2018, equation 3.

    >>> options = ScheduleOptions(total=20, cut_frac=0.5, ratio=10)
    >>> [round(slanted_triangular_factor(step, options), 4) for step in (5, 10, 15, 20)]
    [0.55, 1.0, 0.55, 0.1]
    """
    cut = max(math.floor(options.total * options.cut_frac), 1)
    part = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / options.cut_frac - 1))
    return (1 + max(part, 0) * (options.ratio - 1)) / options.ratio


SCHEDULES: dict[str, Schedule] = {
    "constant": constant_factor,
    "linear": linear_factor,
    "cosine": cosine_factor,
    "inverse_sqrt": inverse_sqrt_factor,
    "slanted_triangular": slanted_triangular_factor,
}
NEED_TOTAL = ("linear", "cosine", "slanted_triangular")


def check_schedule(name: str, options: ScheduleOptions) -> None:
    """Raise UsageError for an unknown schedule, and for options that it cannot have."""
    if name not in SCHEDULES:
        raise UsageError(f"schedule {name!r} (expected one of {', '.join(SCHEDULES)})")
    if name in NEED_TOTAL and options.total < 1:
        raise UsageError(f"schedule {name} needs the number of steps (--steps or --epochs)")
    if name == "inverse_sqrt" and options.warmup < 1:
        raise UsageError("schedule inverse_sqrt needs a warm-up of 1 step or more")
    if options.warmup < 0 or (name in ("linear", "cosine") and options.warmup >= options.total > 0):
        raise UsageError(f"warm-up of {options.warmup} steps (expected 0 to {max(options.total - 1, 0)})")
    if not (0 < options.cut_frac < 1 and options.ratio >= 1 and 0 <= options.final <= 1):
        raise UsageError("expected cut_frac between 0 and 1, ratio 1 or more, and final 0 to 1")


def _decay(step: int, options: ScheduleOptions, curve: Callable[[float], float]) -> float:
    """The warm-up, then a curve from 1 to `final` over the part that is done."""
    if step <= options.warmup:
        return step / options.warmup
    done = min((step - 1 - options.warmup) / (options.total - options.warmup), 1)
    return options.final + (1 - options.final) * curve(done)
