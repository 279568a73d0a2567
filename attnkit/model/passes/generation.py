"""Generation token by token: greedy search, sampling, scores of a given text.

A model is a NextTokenModel, which caches earlier tokens itself. Steps are counted from 0.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import as_text
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.formulas.masks import mask_block
from attnkit.model.formulas.sampling import (
    GREEDY,
    Sampling,
    check_finite,
    exclude_repeats,
    log_probabilities,
    probabilities,
    repetition_penalty,
    sample_word,
)
from attnkit.model.formulas.softmax import shifted
from attnkit.model.formulas.time_tokens import TimeTokens, allow_times

Filter = Callable[[Array, Array], Array]  # scores (B, N), ids so far (B, T) -> scores (B, N)


class NextTokenModel(Protocol):
    """A model that predicts the next token of each row and keeps the earlier ones."""

    def __call__(self, tokens: Array) -> Array:
        """Append tokens and return the logits of the next one: tokens (B, T) -> (B, N)."""

    def reorder_cache(self, rows: Array) -> None:
        """Replace row i by row rows[i]; the number of rows (B,) may change."""


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is chosen.

    limit                maximum number of new tokens; minimum: number before which no token of eos is chosen
    eos                  tokens that end a text, as its last
    banned               tokens that are never chosen; banned_first: never as the first new token
    times                tokens of times, which stand where `allow_times` says; None: anywhere
    forced_bos           first new token after a prompt of a single token
    forced_eos           last token at the limit
    repetition_penalty   of tokens that are in the prompt or were chosen before, of which `sampling` may count the last
    no_repeat_ngram      N: no N tokens in a row occur twice, those of the prompt included; 0: any may
    sampling             filters and choice of a token at random; by default the most likely one is chosen
    """

    limit: int = 20
    minimum: int = 0
    eos: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    banned_first: tuple[int, ...] = ()
    times: TimeTokens | None = None
    forced_bos: int | None = None
    forced_eos: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    sampling: Sampling = GREEDY


class Filtered(NamedTuple):
    """The scores (N,) before and after one of the filters."""

    name: str
    before: Array
    after: Array

    @property
    def removed(self) -> Array:
        """The ids that this filter excluded."""
        return np.flatnonzero(np.isneginf(self.after) & ~np.isneginf(self.before))


class StepInfo(NamedTuple):
    """How one token was chosen: a step of decoding.

    step     its number, from 0
    logits   (N,), before the filters; filters: the output of each
    chosen   the id of the token, and logprob its log-probability
    """

    step: int
    logits: Array
    filters: tuple[Filtered, ...]
    chosen: int
    logprob: float

    @property
    def scores(self) -> Array:
        """The logits after every filter."""
        return self.filters[-1].after if self.filters else self.logits

    @property
    def probabilities(self) -> Array:
        """The probabilities of the choice, (N,)."""
        return probabilities(self.scores)


class GeneratedText(NamedTuple):
    """A generated text.

    ids            the new tokens, with the one that ended it
    logprobs       log-probability of each by the model itself, before any filter
    finish_reason  "eos", "stop" or "limit"; "" while it runs
    score          their sum; of a beam the score that ranks beams, after filters and penalty
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: str = ""
    score: float = 0.0


def score_tokens(logits: Array, ids: ArrayLike) -> Array:
    """Log-probability of each token.

    logits (..., N), ids (...) -> (...)

    DataError for an id outside 0..N-1, or if there is not one for each row of logits.

    >>> score_tokens(np.log(np.array([[0.25, 0.75], [0.5, 0.5]])), [1, 0]).round(4)
    array([-0.2877, -0.6931])
    """
    words = check_ids(ids, logits.shape[-1])
    if words.shape != logits.shape[:-1]:
        raise DataError.about(
            "ids", f"{as_text(words.shape)} for logits {as_text(logits.shape)}: expected one for each row"
        )
    return np.take_along_axis(log_probabilities(logits), words[..., None], axis=-1)[..., 0]


def generate(
    predict: NextTokenModel,
    prompt: ArrayLike,
    settings: SamplingConfig,
    rng: "np.random.Generator | None" = None,
    stop: Callable[[list[int]], bool] | None = None,
    on_step: Callable[[StepInfo], None] | None = None,
) -> GeneratedText:
    """Generate tokens after the prompt, greedily or by sampling.

    prompt (T,) -> GeneratedText

    `stop` is called after each token with all new ones, and returns whether the text ends; `on_step` with each step.
    Ties go to the lower id. UsageError for settings out of range, or to sample without `rng`; DataError for an empty
    prompt, a step without a finite logit, or NaN.

    >>> class Model:  # predicts the last id + 1
    ...     def __call__(self, tokens):
    ...         return np.eye(4)[(tokens[:, -1] + 1) % 4]
    >>> generate(Model(), [0], SamplingConfig(eos=(3,))).ids
    (1, 2, 3)
    """
    sequences, filters = start_generation(prompt, settings)
    if settings.sampling.is_sampled and rng is None:
        raise UsageError("nothing to sample with (expected a random generator)")
    tokens, result = sequences, GeneratedText(finish_reason="limit")
    for step in range(settings.limit):
        logits = predict(tokens)
        check_logits(logits, step, settings)
        filtered = tuple(_filtered(filters, logits, sequences))
        scores = filtered[-1].after if filtered else logits[0]
        chosen = _choice(scores, step, rng if settings.sampling.is_sampled else None)
        logprob = _logprob(logits[0], chosen)
        result = append_token(result, chosen, logprob, result.score + logprob)
        if on_step:
            on_step(StepInfo(step, logits[0], filtered, chosen, logprob))
        reason = finish_reason(result.ids, settings, stop)
        if reason:
            return result._replace(finish_reason=reason)
        tokens = np.array([[chosen]])
        sequences = np.concatenate([sequences, tokens], axis=1)
    return result


def start_generation(prompt: ArrayLike, settings: SamplingConfig) -> tuple[Array, list[tuple[str, Filter]]]:
    """Prompt (1, T) and filters; an error for an empty prompt or negative limit."""
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not ids.size:
        raise DataError(f"prompt {as_text(ids.shape)}: expected one or more token ids")
    for name in ("limit", "minimum"):
        if getattr(settings, name) < 0:
            raise UsageError(f"{name} {getattr(settings, name)} (expected 0 or more)")
    return ids[None].astype(np.int64), list(_filters(settings, ids.size))


def _filters(settings: SamplingConfig, start: int) -> Iterator[tuple[str, Filter]]:
    """Yield the filters by name in the order they apply.

    start  the number of tokens of the prompt
    """
    if settings.repetition_penalty != 1:
        yield "repetition penalty", partial(_penalize, settings.repetition_penalty, settings.sampling.penalized or 0)
    if settings.no_repeat_ngram:
        yield "repeated n-gram", lambda scores, ids: exclude_repeats(scores, ids, settings.no_repeat_ngram)
    if settings.banned:
        yield "banned", lambda scores, ids: _without(scores, settings.banned)
    if settings.banned_first:
        yield (
            "banned first",
            lambda scores, ids: _without(scores, settings.banned_first) if ids.shape[1] == start else scores,
        )
    if (times := settings.times) is not None:
        yield "times", lambda scores, ids: allow_times(scores, ids[:, start:], times)
    if settings.minimum and settings.eos:
        early = start + settings.minimum
        yield "minimum", lambda scores, ids: _without(scores, settings.eos) if ids.shape[1] < early else scores
    if settings.forced_bos is not None and start == 1:
        yield "forced start", lambda scores, ids: _only(scores, settings.forced_bos) if ids.shape[1] == 1 else scores
    if settings.forced_eos is not None:
        last = start + settings.limit - 1
        yield "forced end", lambda scores, ids: _only(scores, settings.forced_eos) if ids.shape[1] == last else scores
    for name, change in settings.sampling.filters():
        yield name, partial(_ignore_ids, change)


def _ignore_ids(change: Callable[[Array], Array], scores: Array, ids: Array) -> Array:
    return change(scores)


def _penalize(penalty: float, last: int, scores: Array, ids: Array) -> Array:
    """Penalize the last tokens, or all of them for 0."""
    return repetition_penalty(scores, ids[:, -last:], penalty)


def _without(scores: Array, ids: tuple[int, ...]) -> Array:
    allowed = np.ones(scores.shape[-1], dtype=bool)
    allowed[list(ids)] = False
    return mask_block(scores, allowed)


def _only(scores: Array, word: int | None) -> Array:
    return mask_block(np.zeros_like(scores), np.arange(scores.shape[-1]) == word)


def apply_filters(filters: list[tuple[str, Filter]], scores: Array, sequences: Array) -> Array:
    """Scores (B, N) after every filter; sequences (B, T) are the ids so far."""
    for _, apply in filters:
        scores = apply(scores, sequences)
    return scores


def _filtered(filters: list[tuple[str, Filter]], scores: Array, sequences: Array) -> Iterator[Filtered]:
    for name, apply in filters:
        after = apply(scores, sequences)
        yield Filtered(name, scores[0], after[0])
        scores = after


@quiet
def check_logits(logits: Array, step: int, settings: SamplingConfig) -> None:
    """Raise an error for a row without a finite logit, or an id out of range.

    Ids are checked at the first step.
    """
    bad = ~np.isfinite(logits.max(axis=-1, initial=-np.inf))
    if bad.any():
        check_finite(logits[bad][:1], step)
    if step == 0:
        forced = [word for word in (settings.forced_bos, settings.forced_eos) if word is not None]
        ids = [*settings.banned, *settings.banned_first, *forced, *(settings.eos if settings.minimum else ())]
        check_ids(np.array(ids, dtype=np.int64), logits.shape[-1])


def _choice(scores: Array, step: int, rng: "np.random.Generator | None") -> int:
    best = int(np.argmax(scores))
    if not np.isfinite(scores[best]):
        check_finite(scores, step)
    return best if rng is None else int(sample_word(scores, rng))


@quiet
def _logprob(logits: Array, word: int) -> float:
    """Log-probability of one word, without computing the others: logits (N,)."""
    scores = shifted(cast(logits, working(logits)))
    return float(scores[word]) - math.log(np.exp(scores).sum())


def append_token(text: GeneratedText, word: int, logprob: float, score: float) -> GeneratedText:
    """Append a token, its log-probability and the new score to a text."""
    return text._replace(ids=(*text.ids, word), logprobs=(*text.logprobs, logprob), score=score)


def finish_reason(ids: tuple[int, ...], settings: SamplingConfig, stop: Callable[[list[int]], bool] | None) -> str:
    """Why a text ends with the last of these tokens: eos, stop, or "" if not."""
    if ids[-1] in settings.eos:
        return "eos"
    return "stop" if stop and stop(list(ids)) else ""
