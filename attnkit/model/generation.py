"""Text from a model, token by token: the likeliest word, a drawn one, or a search with several texts at once.

The model is given as an object that keeps what it has seen, so that the search is the same for all of them. Steps
are counted from 0.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import DataError, UsageError
from attnkit.model.checks import shown
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.embedding import check_ids
from attnkit.model.masks import mask_block
from attnkit.model.sampling import (
    apply_temperature,
    check_finite,
    largest,
    log_probabilities,
    min_p,
    probabilities,
    repetition_penalty,
    sample,
    top_k,
    top_p,
)
from attnkit.model.scores import shifted

Filter = Callable[[Array, Array], Array]  # scores (B, N), ids so far (B, T) -> scores (B, N)
Penalty = Callable[[float, int], float]  # sum of log-probabilities, number of tokens -> score


class NextTokenModel(Protocol):
    """A model in the middle of a text: it remembers the tokens it was given, in as many rows as it was last told."""

    def __call__(self, tokens: Array) -> Array:
        """The logits of the next token, after these that follow all before: tokens (B, T) -> (B, N)."""

    def reorder_cache(self, rows: Array) -> None:
        """Makes row i what row rows[i] was; there may be more rows than before, or fewer: rows (B,)."""


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is chosen.

    limit                how many tokens at most; minimum: before so many, no end
    eos                  the tokens that end a text; they are its last
    banned               tokens that are never chosen
    forced_bos           what follows a prompt of a single token
    forced_eos           what the last token that the limit allows is
    repetition_penalty   of tokens that are in the prompt or were chosen before
    sampled              drawn, else the likeliest
    temperature, top_k, top_p, min_p   what is drawn from, applied in this order
    """

    limit: int = 20
    minimum: int = 0
    eos: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    forced_bos: int | None = None
    forced_eos: int | None = None
    repetition_penalty: float = 1.0
    sampled: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


class Filtered(NamedTuple):
    """The scores (N,) before and after one of the filters."""

    name: str
    before: Array
    after: Array

    @property
    def removed(self) -> Array:
        """The ids that this filter took out of the choice."""
        return np.flatnonzero(np.isneginf(self.after) & ~np.isneginf(self.before))


class StepInfo(NamedTuple):
    """One step: the model's logits (N,), what each filter made of them, the id chosen and its log-probability."""

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
        """What the choice was made by, (N,)."""
        return probabilities(self.scores)


class GeneratedText(NamedTuple):
    """A text that was generated.

    ids        the new tokens, with the one that ended it
    logprobs   of each the log-probability that the model itself gave it, before any filter
    finish_reason  "eos", "stop" or "limit"; "" while it runs
    score      the sum of these; of a beam what beams are ranked by, after filters and penalty
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: str = ""
    score: float = 0.0


class BeamsInfo(NamedTuple):
    """One step of a beam search: the logits (B, N) it came from, the beams that go on and those that ended.

    Both best first; the score of one that goes on is a sum, without the penalty.
    """

    step: int
    logits: Array
    running: tuple[GeneratedText, ...]
    finished: tuple[GeneratedText, ...]


def score_tokens(logits: Array, ids: ArrayLike) -> Array:
    """The log-probability of each given token.

    logits (..., N), ids (...) -> (...)

    DataError for an id outside 0..N-1, or where there is not one for each row of logits.

    >>> score_tokens(np.log(np.array([[0.25, 0.75], [0.5, 0.5]])), [1, 0]).round(4)
    array([-0.2877, -0.6931])
    """
    words = check_ids(ids, logits.shape[-1])
    if words.shape != logits.shape[:-1]:
        raise DataError(f"ids {shown(words.shape)} for logits {shown(logits.shape)}: expected one for each row")
    return np.take_along_axis(log_probabilities(logits), words[..., None], axis=-1)[..., 0]


def generate(
    predict: NextTokenModel,
    prompt: ArrayLike,
    settings: SamplingConfig,
    rng: "np.random.Generator | None" = None,
    stop: Callable[[list[int]], bool] | None = None,
    seen: Callable[[StepInfo], None] | None = None,
) -> GeneratedText:
    """Tokens after the prompt, one at a time: the likeliest of each step, or one drawn by its probability.

    prompt (T,) -> Generated

    `stop` is asked after each token, with all the new ones, whether the text ends there; `seen` is told of each step.
    Ties go to the lower id. UsageError for settings out of range, or to sample without `rng`; DataError for an empty
    prompt, a step without a finite logit, or NaN.

    >>> class Model:  # whose next token is the one after the last
    ...     def __call__(self, tokens):
    ...         return np.eye(4)[(tokens[:, -1] + 1) % 4]
    >>> generate(Model(), [0], SamplingConfig(eos=(3,))).ids
    (1, 2, 3)
    """
    past, filters = _begin(prompt, settings)
    if settings.sampled and rng is None:
        raise UsageError("nothing to sample with (expected a random generator)")
    tokens, result = past, GeneratedText(finish_reason="limit")
    for step in range(settings.limit):
        logits = predict(tokens)
        _check(logits, step, settings)
        told = tuple(_filtered(filters, logits, past))
        scores = told[-1].after if told else logits[0]
        chosen = _choice(scores, step, rng if settings.sampled else None)
        logprob = _logprob(logits[0], chosen)
        result = _longer(result, chosen, logprob, result.score + logprob)
        if seen:
            seen(StepInfo(step, logits[0], told, chosen, logprob))
        reason = _ending(result.ids, settings, stop)
        if reason:
            return result._replace(finish_reason=reason)
        tokens = np.array([[chosen]])
        past = np.concatenate([past, tokens], axis=1)
    return result


def beam_search(
    predict: NextTokenModel,
    prompt: ArrayLike,
    settings: SamplingConfig,
    beams: int,
    penalty: Penalty | None = None,
    returned: int = 1,
    stop: Callable[[list[int]], bool] | None = None,
    seen: Callable[[BeamsInfo], None] | None = None,
) -> list[GeneratedText]:
    """The best texts that a search finds which carries `beams` of them on at once, best first.

    prompt (T,) -> `returned` Generated, or as many as there are

    A step scores every next token of every running beam: the sum of the log-probabilities so far, and its own after
    the filters. Of these the best (1 + ends) * beams are looked at, ends being the number of `eos` tokens, at least
    1: those that end a text are finished if they are among the best `beams`, and forgotten if not; the best `beams`
    of the others run on. Finished texts are ranked by `penalty(sum, tokens)`, the token that ended them counted, the
    prompt not; the best `beams` are kept. The search ends at the limit, where nothing runs on, or where `beams` are
    finished and the best running one would not rank above the last of them if it ended as it stands.

    Ties go to the better beam, then to the lower id. `penalty` is LENGTH_PENALTIES["average"](1) unless given. A
    vocabulary may be smaller than `beams`: there are then as many as there are texts. UsageError for beams < 1, for
    more texts returned than beams, or for sampling; DataError as for `generate`.

    >>> class Model:  # 0 is likeliest after everything but 0, and after 0 nothing is likely
    ...     def __call__(self, tokens):
    ...         return np.log(np.array([[0.3, 0.3, 0.4], [0.45, 0.1, 0.45], [0.9, 0.05, 0.05]])[tokens[:, -1]])
    ...     def reorder_cache(self, rows):
    ...         pass
    >>> [beam.ids for beam in beam_search(Model(), [0], SamplingConfig(limit=2), beams=2, returned=2)]
    [(2, 0), (0, 2)]
    """
    past, filters = _begin(prompt, settings)
    _check_beams(beams, returned, settings)
    rank = penalty or LENGTH_PENALTIES["average"](1.0)
    looked_at = (1 + max(len(settings.eos), 1)) * beams
    tokens, running, finished = past, [GeneratedText()], list[GeneratedText]()
    for step in range(settings.limit):
        logits = predict(tokens)
        _check(logits, step, settings)
        logs = log_probabilities(logits)
        told = _apply(filters, logs, past)
        sums = np.array([beam.score for beam in running])[:, None] + told
        going: list[tuple[int, GeneratedText]] = []
        for place, (row, word) in enumerate(_best(sums, looked_at, step)):
            beam = _longer(running[row], word, float(logs[row, word]), float(sums[row, word]))
            reason = _ending(beam.ids, settings, stop) or ("limit" if step + 1 == settings.limit else "")
            if reason and place < beams:
                finished.append(beam._replace(finish_reason=reason, score=rank(beam.score, step + 1)))
            elif not reason and len(going) < beams:
                going.append((row, beam))
        finished = sorted(finished, key=lambda beam: -beam.score)[:beams]
        rows, running = [row for row, _ in going], [beam for _, beam in going]
        if seen:
            seen(BeamsInfo(step, logits, tuple(running), tuple(finished)))
        full = len(finished) == beams
        if not running or (full and rank(running[0].score, step + 1) <= finished[-1].score):
            break
        if rows != list(range(len(past))):
            predict.reorder_cache(np.array(rows))
        tokens = np.array([beam.ids[-1:] for beam in running])
        past = np.concatenate([past[rows], tokens], axis=1)
    return finished[:returned] or [GeneratedText(finish_reason="limit")]


def gnmt_penalty(exponent: float) -> Penalty:
    """The sum over ((5 + length) / 6)^exponent (Wu et al. 2016, equation 14, without its coverage).

    >>> round(gnmt_penalty(1.0)(-6.0, 7), 4)
    -3.0
    """
    return lambda total, length: total / ((5 + length) / 6) ** exponent


def average_penalty(exponent: float) -> Penalty:
    """The sum over length^exponent: 0 is the sum, 1 the mean.

    >>> average_penalty(1.0)(-6.0, 3)
    -2.0
    """
    return lambda total, length: total / length**exponent


LENGTH_PENALTIES: dict[str, Callable[[float], Penalty]] = {"gnmt": gnmt_penalty, "average": average_penalty}


def _begin(prompt: ArrayLike, settings: SamplingConfig) -> tuple[Array, list[tuple[str, Filter]]]:
    """The prompt (1, T), and the filters that the settings ask for."""
    past = np.asarray(prompt)
    if past.ndim != 1 or not past.size:
        raise DataError(f"prompt {shown(past.shape)}: expected one or more token ids")
    for name in ("limit", "minimum"):
        if getattr(settings, name) < 0:
            raise UsageError(f"{name} {getattr(settings, name)} (expected 0 or more)")
    return past[None].astype(np.int64), list(_filters(settings, past.size))


def _check_beams(beams: int, returned: int, settings: SamplingConfig) -> None:
    if beams < 1:
        raise UsageError(f"beams {beams} (expected 1 or more)")
    if not 1 <= returned <= beams:
        raise UsageError(f"{returned} texts of {beams} beams (expected 1 to {beams})")
    if settings.sampled:
        raise UsageError("a beam search does not sample")


def _filters(settings: SamplingConfig, start: int) -> Iterator[tuple[str, Filter]]:
    """The filters in the order they apply, each with its name; `start` is the number of tokens of the prompt."""
    if settings.repetition_penalty != 1:
        yield "repetition penalty", lambda scores, ids: repetition_penalty(scores, ids, settings.repetition_penalty)
    if settings.banned:
        yield "banned", lambda scores, ids: _without(scores, settings.banned)
    if settings.minimum and settings.eos:
        early = start + settings.minimum
        yield "minimum", lambda scores, ids: _without(scores, settings.eos) if ids.shape[1] < early else scores
    if settings.forced_bos is not None and start == 1:
        yield "forced start", lambda scores, ids: _only(scores, settings.forced_bos) if ids.shape[1] == 1 else scores
    if settings.forced_eos is not None:
        last = start + settings.limit - 1
        yield "forced end", lambda scores, ids: _only(scores, settings.forced_eos) if ids.shape[1] == last else scores
    if settings.sampled:
        yield from _narrowing(settings)


def _narrowing(settings: SamplingConfig) -> Iterator[tuple[str, Filter]]:
    if settings.temperature != 1:
        yield "temperature", lambda scores, ids: apply_temperature(scores, settings.temperature)
    if (k := settings.top_k) is not None:
        yield "top-k", lambda scores, ids: top_k(scores, k)
    if (p := settings.top_p) is not None:
        yield "top-p", lambda scores, ids: top_p(scores, p)
    if (share := settings.min_p) is not None:
        yield "min-p", lambda scores, ids: min_p(scores, share)


def _without(scores: Array, ids: tuple[int, ...]) -> Array:
    allowed = np.ones(scores.shape[-1], dtype=bool)
    allowed[list(ids)] = False
    return mask_block(scores, allowed)


def _only(scores: Array, word: int | None) -> Array:
    return mask_block(np.zeros_like(scores), np.arange(scores.shape[-1]) == word)


def _apply(filters: list[tuple[str, Filter]], scores: Array, past: Array) -> Array:
    for _, apply in filters:
        scores = apply(scores, past)
    return scores


def _filtered(filters: list[tuple[str, Filter]], scores: Array, past: Array) -> Iterator[Filtered]:
    for name, apply in filters:
        after = apply(scores, past)
        yield Filtered(name, scores[0], after[0])
        scores = after


@quiet
def _check(logits: Array, step: int, settings: SamplingConfig) -> None:
    """DataError for a row of logits that allows no choice; at the first step also for an id that is no word."""
    bad = ~np.isfinite(logits.max(axis=-1, initial=-np.inf))
    if bad.any():
        check_finite(logits[bad][:1], step)
    if step == 0:
        forced = [word for word in (settings.forced_bos, settings.forced_eos) if word is not None]
        ids = [*settings.banned, *forced, *(settings.eos if settings.minimum else ())]
        check_ids(np.array(ids, dtype=np.int64), logits.shape[-1])


def _choice(scores: Array, step: int, rng: "np.random.Generator | None") -> int:
    best = int(np.argmax(scores))
    if not np.isfinite(scores[best]):
        check_finite(scores, step)
    return best if rng is None else int(sample(scores, rng))


@quiet
def _logprob(logits: Array, word: int) -> float:
    """The log-probability of one word, without a row of them all: logits (N,)."""
    scores = shifted(cast(logits, working(logits)))
    return float(scores[word]) - math.log(np.exp(scores).sum())


def _longer(text: GeneratedText, word: int, logprob: float, score: float) -> GeneratedText:
    return text._replace(ids=(*text.ids, word), logprobs=(*text.logprobs, logprob), score=score)


def _ending(ids: tuple[int, ...], settings: SamplingConfig, stop: Callable[[list[int]], bool] | None) -> str:
    """Why a text ends with the last of these tokens, "" where it does not."""
    if ids[-1] in settings.eos:
        return "eos"
    return "stop" if stop and stop(list(ids)) else ""


def _best(sums: Array, count: int, step: int) -> Iterator[tuple[int, int]]:
    """The rows and ids of the largest of the sums (B, N), best first; those of -inf are none."""
    flat = sums.ravel()
    places = [int(place) for place in largest(flat, count) if np.isfinite(flat[place])]
    if not places:
        check_finite(flat, step)
    for place in places:
        yield divmod(place, sums.shape[1])
