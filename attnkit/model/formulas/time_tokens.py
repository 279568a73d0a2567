"""Tokens of times in the text of a sound: where they may be, and segments."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.model.dtypes import Array
from attnkit.model.formulas.masks import mask_block
from attnkit.model.formulas.softmax import log_sum_exp

FRAMES = 2  # of a spectrogram, from one time to the next


class TimeTokens(NamedTuple):
    """The tokens of times, the last ones of a vocabulary.

    first   the id of time 0; the token before it says that a text has no times
    eos     the id of the end token, below which all tokens are words
    latest  how many times after 0 may begin a text; None: any
    """

    first: int
    eos: int
    latest: int | None = None


def allow_times(scores: Array, ids: Array, times: TimeTokens) -> Array:
    """Scores of the next tokens, with -inf by the rules of times.

    A time must, or must not, be the next.

    scores (B, N), ids (B, T) of the text so far -> (B, N)

    A text begins with a time. Times come in pairs, the end of a segment and the begin of the next, except before the
    end; they never decrease, and a segment is longer than 0. If the times are together more probable than the most
    probable word, a time is next. Source: Whisper (Radford et al. 2022), WhisperTimeStampLogitsProcessor.

    >>> times = TimeTokens(first=3, eos=1)  # ids: a word, the end, no times, 0.00, 0.02
    >>> allow_times(np.zeros((1, 5)), np.zeros((1, 0), int), times).tolist()
    [[-inf, -inf, -inf, 0.0, 0.0]]
    >>> allow_times(np.zeros((2, 5)), np.array([[3, 0], [0, 4]]), times).tolist()
    [[0.0, 0.0, -inf, -inf, 0.0], [-inf, 0.0, -inf, -inf, 0.0]]
    """
    allowed = np.ones(scores.shape, bool)
    allowed[:, times.first - 1] = False
    for row, text in zip(allowed, ids, strict=True):
        is_time = text >= times.first
        is_after_time = bool(is_time[-1:].any())
        is_after_pair = is_after_time and (len(text) < 2 or bool(is_time[-2]))
        if is_after_pair:
            row[times.first :] = False
        elif is_after_time:
            row[: times.eos] = False
        if is_time.any():
            last = int(text[is_time][-1])
            row[times.first : last + (is_after_pair or not is_after_time)] = False
        if not len(text):
            row[: times.first] = False
            if times.latest is not None:
                row[times.first + times.latest + 1 :] = False
    scores = mask_block(scores, allowed)
    likelier = log_sum_exp(scores[:, times.first :]) > scores[:, : times.first].max(axis=-1)
    allowed[:, : times.first] &= ~likelier[:, None]
    return mask_block(scores, allowed)


class Segment(NamedTuple):
    """A part of a text between two times: the frames of its window, and its ids."""

    start: int
    end: int
    ids: tuple[int, ...]


def split_segments(ids: Sequence[int], first: int, frames: int) -> tuple[list[Segment], int]:
    """The segments of the text of a window, and the frame where the next begins.

    first  the id of time 0

    A window that ends within a segment is read again from the begin of that, whose tokens are left out.

    >>> split_segments([10, 1, 13, 13, 2], 10, 100)
    ([Segment(start=0, end=6, ids=(10, 1, 13, 13))], 6)
    >>> split_segments([10, 1, 13, 14, 2, 20], 10, 100)[1], split_segments([10, 1], 10, 100)
    (100, ([Segment(start=0, end=100, ids=(10, 1))], 100))
    """
    is_time = [id >= first for id in ids]
    cuts = [at + 1 for at in range(len(ids) - 1) if is_time[at] and is_time[at + 1]]
    if not cuts:
        last = max((id - first for id in ids if id >= first), default=0)
        return [Segment(0, FRAMES * last or frames // FRAMES * FRAMES, tuple(ids))], frames
    is_whole = is_time[-2:] == [False, True]
    cuts = [*cuts, len(ids)] if is_whole else [*cuts[:-1], cuts[-1] + 1]
    segments = []
    for begin, end in zip([0, *cuts[:-1]], cuts, strict=True):
        last = end - 1 if is_whole or end < cuts[-1] else end - 2
        segments.append(Segment(FRAMES * (ids[begin] - first), FRAMES * (ids[last] - first), tuple(ids[begin:end])))
    return segments, frames if is_whole else segments[-1].end
