"""The steps of a training run that it recorded, with the words of their ids and the reports of the run."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.errors import AttnkitError, DataError, FileError
from attnkit.formats.streams import exists
from attnkit.record import Array, Labels, Record, Tensor
from attnkit.tokenizers.auto import load_tokenizer
from attnkit.training.folder import CURVE, recorded_steps
from attnkit.training.reports import report_values
from attnkit.training.run import read_curve, read_origin

POINTS = 2000  # most reports of a curve


def find_steps(folder: str) -> dict[int, str]:
    """Return the files of the recorded steps of a folder by their numbers, ascending; DataError where it has none."""
    try:
        steps = {number: os.path.join(folder, name) for number, name in recorded_steps(folder).items()}
    except OSError as error:
        raise FileError(error.strerror or "cannot be read", folder) from None
    if not steps:
        raise DataError(
            "a folder without recorded steps (expected step-N.npz); train --record STEPS writes them", folder
        )
    return steps


def thin(steps: Sequence[int], most: int) -> list[int]:
    """Return at most so many of some numbers, evenly, the first and the last among them.

    >>> thin([1, 2, 3, 4, 5], 3), thin([1, 2], 3)
    ([1, 3, 5], [1, 2])
    """
    if len(steps) <= most:
        return [*steps]
    return [steps[round(at * (len(steps) - 1) / (most - 1))] for at in range(most)]


def read_reports(folder: str) -> list[dict[str, Any]]:
    """Return the reports of a run, at most POINTS of them; none where the folder has no curve."""
    path = os.path.join(folder, CURVE)
    reports = [report_values(one) for one in read_curve(path)] if exists(path) else []
    return [reports[at] for at in thin(range(len(reports)), POINTS)]


def find_losses(folder: str) -> Record | None:
    """Read the losses of a run that recorded no step; None where it recorded some, or has no reports."""
    path = os.path.join(folder, CURVE)
    return read_losses(path) if exists(path) and not recorded_steps(folder) else None


def read_losses(path: str) -> Record:
    """Read the losses in the reports of a run: x (step, curve), with norms of gradients and learning rates.

    The curves are of the training text, and where there is one of the held-out part.

    DataError for a file that holds no report.
    """
    reports = read_curve(path)
    if not reports:
        raise DataError("no report of a run", path)
    curves = {"loss": [one.loss for one in reports]}
    if any(one.held_out_loss is not None for one in reports):
        curves["held_out_loss"] = [np.nan if one.held_out_loss is None else one.held_out_loss for one in reports]
    tensors = {"x": Tensor(np.array([*curves.values()]).T, ("step", "curve"), formula="the loss since the row before")}
    for name in ("gradient_norm", "learning_rate"):
        tensors[name] = Tensor(np.array([getattr(one, name) for one in reports]), ("step",))
    return Record(tensors, {"step": [str(one.step) for one in reports], "curve": [*curves]})


def describe_step(record: Record, folder: str) -> Record:
    """Return the record of a step with the words of its ids and the command of its run, as far as a folder has them."""
    labels: dict[str, Labels] = dict(record.labels)
    of_ids = "target" if "source" in record else "source"
    for name, side, axes in (("ids", of_ids, ("token", "query", "key")), ("source", "source", ("source",))):
        words = read_words(folder, side) if name in record and record[name].ndim == 2 else []
        if words:
            labels |= dict.fromkeys(axes, spell_ids(record[name], words))
    try:
        history: Any = [{"command": read_origin(folder)[0].command}]
    except AttnkitError:
        history = []
    return replace(record, labels=labels, history=history)


def read_words(folder: str, side: str) -> list[str]:
    """Return the vocabulary of a side of the model of a folder; [] where it has no tokenizer."""
    try:
        return load_tokenizer(folder, side).vocabulary
    except AttnkitError:
        return []


def spell_ids(ids: Array, words: Sequence[str]) -> list[list[str]]:
    """Return the token strings of ids (B, T); of one that is none of the words its number.

    >>> import numpy as np
    >>> spell_ids(np.array([[1, 2]]), ["a", "b"])
    [['b', '2']]
    """
    return [[words[id] if 0 <= id < len(words) else str(id) for id in row] for row in ids.tolist()]
