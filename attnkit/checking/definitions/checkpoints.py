"""Checkpoints of a model and its optimizer, saved and loaded again."""

from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition
from attnkit.model.slips import Slip


def near_square(given: Any, generator: Any) -> Any:
    return generator.standard_normal((3, 5)) ** 2


CHECKPOINT = Definition(
    "a checkpoint: parameters, state of the optimizer and iteration come back as they were saved",
    {
        "w": Argument("A B", ""),
        "mean": Argument("A B", ""),
        "square": Argument("A B", ""),
        "step": Argument("", ""),
        "model": Argument("", "model net module"),
        "optimizer": Argument("", "optimizer optim opt"),
        "iteration": Argument("", "iteration it step iter step_count n"),
        "file": Argument("", "file out src path dst destination f filename source checkpoint_path"),
        "to": Argument("", ""),
    },
    {
        "parameters": lambda w: w,
        "first": lambda mean: mean,
        "second": lambda square: square,
        "count": lambda step: step,
        "returned": lambda iteration: iteration,
        "state": lambda parameters, first, second, count, returned: np.concatenate(
            [parameters.ravel(), first.ravel(), second.ravel(), [count, returned]]
        ),
    },
    {"A": 3, "B": 5},
    (
        Case("to a path", lead=(), given={"square": near_square, "to": "path"}),
        Case("to an open file", lead=(), given={"square": near_square, "to": "file"}),
    ),
    "P",
    (
        Slip("the parameters are not restored", {"parameters": lambda w: w * 0}, "model.load_state_dict(…)"),
        Slip(
            "the state of the optimizer is not restored",
            {"first": lambda mean: mean * 0, "second": lambda square: square * 0, "count": lambda: 0},
            "optimizer.load_state_dict(…)",
        ),
        Slip("the iteration is not returned", {"returned": lambda: -1}),
        Slip("the iteration is one too large", {"returned": lambda iteration: iteration + 1}),
        Slip("the iteration is 0", {"returned": lambda: 0}),
        Slip(
            "the first and the second moment are exchanged",
            {"first": lambda square: square, "second": lambda mean: mean},
        ),
    ),
    functions="save_checkpoint run_save_checkpoint load_checkpoint run_load_checkpoint",
    defaults={"step": 3, "iteration": 17},
    drive="restore",
    expects="two functions of one module, save_checkpoint(model, optimizer, iteration, out) and "
    "load_checkpoint(src, model, optimizer) that returns the iteration",
)

DEFINITIONS = {"checkpoint": CHECKPOINT}
