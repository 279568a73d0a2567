"""Targets of a loss: words or ids as the id that each row of logits is to predict."""

import math
import re
from collections.abc import Sequence

import numpy as np

from attnkit import model, tokenizers
from attnkit.errors import DataError, UsageError, counted, suggest
from attnkit.inputs.padding import find_real_tokens
from attnkit.records import Array, Labels, Record, shared_labels

IDS = re.compile(r"\s*-?[0-9]{1,18}(\s*[,\s]\s*-?[0-9]{1,18})*\s*", re.ASCII)


def find_logits(record: Record) -> tuple[Array, tuple[str, ...], list[str]]:
    """Find the logits of a record, with the names of their axes and columns.

    >>> from attnkit.records import Tensor
    >>> logits = Tensor(np.eye(2), ("token", "vocab"), {"vocab": ["a", "b"]})
    >>> find_logits(Record({}).with_tensors({"x": logits}))[1:]
    (('token', 'vocab'), ['a', 'b'])
    """
    name = "logits" if "logits" in record and record["logits"].shape == record["x"].shape else "x"
    logits, axes = record[name], record.axes_of(name)
    if not logits.ndim:
        raise DataError("x is a single number (expected logits, a column for each word)")
    words = shared_labels(record.labels_of(name, logits.ndim - 1))
    return logits, axes, words if len(words) == logits.shape[-1] else []


def find_targets(target: str | Array, shape: tuple[int, ...], words: Sequence[str], ignore: int) -> Array:
    """Find the id of each target: words, ids in text, or an array of ids.

    shape  of the logits, (..., T, N) -> (..., T) int64

    Fewer targets than rows belong to the last rows; the rows before are ignored.
    DataError for more targets than rows, for ids of another shape, or outside 0..N-1; UsageError for a word that the
    vocabulary lacks.

    >>> find_targets("am I", (3, 3), ["a", "am", "I"], -100).tolist()
    [-100, 1, 2]
    """
    *places, size = shape
    stated = np.asarray(words_to_ids(target, words) if isinstance(target, str) else target)
    ids = model.check_ids(np.where(stated == ignore, np.zeros((), stated.dtype), stated), size, "target")
    ids = np.where(stated == ignore, ignore, ids)
    if ids.shape == tuple(places):
        return ids
    rows = places[-1] if places else 1
    ids = np.atleast_1d(ids)
    if ids.ndim != 1 or math.prod(places[:-1]) != 1:
        raise DataError(f"targets {ids.shape}: expected {tuple(places)}, an id for each row of the logits")
    if len(ids) > rows or not len(ids):
        raise DataError(f"{counted(len(ids), 'target')} for {counted(rows, 'row')} of logits")
    return np.concatenate([np.full(rows - len(ids), ignore), ids]).reshape(places)


def ignore_padding(targets: Array, record: Record, ignore: int) -> Array:
    """Targets with `ignore` at the places that mask or lengths leave empty.

    targets (..., T) -> (..., T)

    Masks and lengths of other tokens do not count.

    >>> ignore_padding(np.array([[5, 7]]), Record({"mask": np.array([[[True, False]]])}), -100).tolist()
    [[5, -100]]
    """
    try:
        real = find_real_tokens(record, targets.shape)
    except DataError:
        return targets
    return targets if real is None else np.where(real, targets, ignore)


def words_to_ids(text: str, words: Sequence[str]) -> list[int]:
    """The ids of a text: of words, words and punctuation, characters, or numbers.

    The first of these ways counts in which the vocabulary has every token.
    UsageError names the first token that the vocabulary lacks, with a suggestion.

    >>> words_to_ids("a cat.", ["a", "cat", "."]), words_to_ids("2, 0", ["a", "cat", "."])
    ([0, 1, 2], [2, 0])
    """
    ids = {word: id for id, word in enumerate(words)}
    splits = [
        text.split(),
        *(split(text, words).spellings for split in (tokenizers.split_words, tokenizers.split_chars)),
    ]
    for tokens in splits:
        if tokens and all(token in ids for token in tokens):
            return [ids[token] for token in tokens]
    if IDS.fullmatch(text):
        return [int(id) for id in re.findall("-?[0-9]+", text)]
    if not words:
        raise UsageError(f"target {text!r}: the columns of the logits have no words (expected ids)")
    token = next((token for token in splits[1] if token not in ids), text)
    raise UsageError(f"target {token!r} is not in the vocabulary{suggest(token, words)}")


def target_words(targets: Array, words: Sequence[str], ignore: int) -> dict[str, Labels]:
    """Label targets (T,) or (B, T) by words on the axis `target`, "" if ignored.

    >>> target_words(np.array([1, -100]), ["a", "am"], -100)
    {'target': ['am', '']}
    """
    if not words or targets.ndim not in (1, 2):
        return {}
    rows = [["" if id == ignore else words[id] for id in row] for row in np.atleast_2d(targets).tolist()]
    return {"target": rows[0] if targets.ndim == 1 else rows}


def expected_distribution(targets: Array, size: int, ignore: int, smoothing: float) -> Array:
    """The one-hot or smoothed distribution that the loss compares with.

    targets (...) -> (..., N) float64

    >>> expected_distribution(np.array([1]), 2, -100, 0.5).tolist()
    [[0.25, 0.75]]
    """
    counts = (targets != ignore)[..., None]
    hot = model.one_hot(np.where(targets == ignore, 0, targets), size, np.float64)
    return np.where(counts, (1 - smoothing) * hot + smoothing / size, 0)


def is_distribution(logits: Array) -> bool:
    """Whether every row is a distribution over words, which logits hardly ever are.

    >>> is_distribution(np.array([[0.25, 0.75]])), is_distribution(np.array([[2.0, -1.0]]))
    (True, False)
    """
    if logits.shape[-1] < 2 or not logits.size or logits.dtype.kind in "iub":
        return False
    sums = logits.sum(axis=-1, dtype=np.float64)
    return bool((logits >= 0).all() and (abs(sums - 1) < 1e-2).all())
