"""The candidates of every choice of a generated text, as tensors (token, rank): `decode --steps`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.inference.detokenizer import Detokenizer
from attnkit.model.generation import StepInfo
from attnkit.record import Array, Record, Tensor

AXES = ("token", "rank")
WORDS = "candidates.ids"  # its labels are the tokens of the candidates, a list for each step


class StepCandidates(NamedTuple):
    """The candidates (M,) of one step, most probable first; those that the filters removed come last.

    probs     their probabilities by the model itself
    filtered  their probabilities in the choice, after the filters
    chosen    which of them was chosen: none, where that is not among them
    """

    ids: Array
    logits: Array
    probs: Array
    filtered: Array
    chosen: Array


def rank_candidates(info: StepInfo, count: int) -> StepCandidates:
    """Return the `count` most probable tokens of a step: by their probability after the filters, then before.

    >>> from attnkit.model.generation import Filtered
    >>> logits = np.log(np.array([0.5, 0.125, 0.375]))
    >>> kept = np.where([True, False, True], logits, -np.inf)
    >>> step = rank_candidates(StepInfo(0, logits, (Filtered("top-k", logits, kept),), 2, -1.0), 3)
    >>> step.ids.tolist(), step.probs.round(3).tolist(), step.filtered.round(3).tolist()
    ([0, 2, 1], [0.5, 0.375, 0.125], [0.571, 0.429, 0.0])
    """
    filtered, probs = info.probabilities, model.probabilities(info.logits)
    possible, _ = model.candidates(filtered, count)
    others, _ = model.candidates(probs, count)
    possible = possible[filtered[possible] > 0]
    ids = np.concatenate([possible, others[~np.isin(others, possible) & (filtered[others] == 0)]])[:count]
    ids = ids.astype(np.int64)
    return StepCandidates(ids, info.logits[ids], probs[ids], filtered[ids], ids == info.chosen)


def candidate_tensors(
    texts: Sequence[Sequence[StepCandidates]], lead: tuple[str, ...], detokenizer: Detokenizer
) -> Record:
    """Return `candidates.ids`, `.logits`, `.probs`, `.filtered` and `.chosen` of texts, a batch padded with zeros.

    Each is (T, M), or (B, T, M) where `lead` names the axis of the texts. The labels under `candidates.ids` are the
    tokens: a list for each step, text after text.
    """
    longest = max(map(len, texts), default=0)
    width = min((len(step.ids) for text in texts for step in text), default=0)
    tensors: dict[str, Tensor] = {}
    for at, name in enumerate(StepCandidates._fields if width else ()):
        rows = [np.stack([step[at][:width] for step in text]) for text in texts]
        array = np.stack([np.pad(row, ((0, longest - len(row)), (0, 0))) for row in rows])
        tensors[f"candidates.{name}"] = Tensor(array if lead else array[0], (*lead, *AXES))
    words: list[list[str]] = []
    for text in texts if detokenizer.tokenizer else ():
        words += [detokenizer.token_strings(step.ids[:width].tolist()) for step in text]
        words += [[detokenizer.padding] * width] * (longest - len(text))
    return Record({}).with_tensors(tensors, {WORDS: words} if words and width else None)
