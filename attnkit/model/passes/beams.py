"""Beam search: the best of several texts continued at once, with penalties."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnkit.errors import UsageError
from attnkit.model.dtypes import Array
from attnkit.model.formulas.sampling import check_finite, largest, log_probabilities
from attnkit.model.passes.generation import (
    GeneratedText,
    NextTokenModel,
    SamplingConfig,
    append_token,
    apply_filters,
    check_logits,
    finish_reason,
    start_generation,
)

Penalty = Callable[[float, int], float]  # sum of log-probabilities, number of tokens -> score


class BeamsInfo(NamedTuple):
    """One step of a beam search: logits (B, N), running and finished beams.

    The score of a running beam is a sum, without the penalty.
    """

    step: int
    logits: Array
    running: tuple[GeneratedText, ...]
    finished: tuple[GeneratedText, ...]


def gnmt_penalty(exponent: float) -> Penalty:
    """sum / ((5 + length) / 6)^exponent (Wu et al. 2016, equation 14).

    >>> round(gnmt_penalty(1.0)(-6.0, 7), 4)
    -3.0
    """
    return lambda total, length: total / ((5 + length) / 6) ** exponent


def average_penalty(exponent: float) -> Penalty:
    """sum / length^exponent: 0 is the sum, 1 the mean.

    >>> average_penalty(1.0)(-6.0, 3)
    -2.0
    """
    return lambda total, length: total / length**exponent


LENGTH_PENALTIES: dict[str, Callable[[float], Penalty]] = {"gnmt": gnmt_penalty, "average": average_penalty}
DEFAULT_PENALTY = average_penalty(1.0)


def beam_search(
    predict: NextTokenModel,
    prompt: ArrayLike,
    settings: SamplingConfig,
    beams: int,
    penalty: Penalty = DEFAULT_PENALTY,
    returned: int = 1,
    stop: Callable[[list[int]], bool] | None = None,
    on_step: Callable[[BeamsInfo], None] | None = None,
) -> list[GeneratedText]:
    """Generate texts by beam search, and return the best ones first.

    prompt (T,) -> `returned` GeneratedText, or as many as there are

    A step scores every next token of every running beam: the sum of the log-probabilities so far, and its own after
    the filters. Of these the best (1 + ends) * beams are considered, ends being the number of `eos` tokens, at least
    1: those that end a text are finished if they are among the best `beams`, and dropped if not; the best `beams`
    of the others continue. Finished texts are ranked by `penalty(sum, tokens)`, the token that ended them counted, the
    prompt not; the best `beams` are kept. The search ends at the limit, if no beam continues, or if `beams` are
    finished and the best running one would not rank above the last of them if it ended now.

    Ties go to the better beam, then to the lower id. A vocabulary may be smaller than `beams`: there are then as many
    as there are texts. UsageError for beams < 1, for more texts returned than beams, or for sampling; DataError as for
    `generate`.

    >>> class Model:  # a bigram model
    ...     def __call__(self, tokens):
    ...         return np.log(np.array([[0.3, 0.3, 0.4], [0.45, 0.1, 0.45], [0.9, 0.05, 0.05]])[tokens[:, -1]])
    ...     def reorder_cache(self, rows):
    ...         pass
    >>> [beam.ids for beam in beam_search(Model(), [0], SamplingConfig(limit=2), beams=2, returned=2)]
    [(2, 0), (0, 2)]
    """
    sequences, filters = start_generation(prompt, settings)
    _check_beams(beams, returned, settings)
    considered = (1 + max(len(settings.eos), 1)) * beams
    tokens, running, finished = sequences, [GeneratedText()], list[GeneratedText]()
    for step in range(settings.limit):
        logits = predict(tokens)
        check_logits(logits, step, settings)
        logs = log_probabilities(logits)
        candidates = list(
            _extend_beams(running, logs, apply_filters(filters, logs, sequences), considered, settings, stop)
        )
        ended = [
            beam._replace(score=penalty(beam.score, step + 1)) for _, beam in candidates[:beams] if beam.finish_reason
        ]
        finished = sorted(finished + ended, key=lambda beam: -beam.score)[:beams]
        continued = [(row, beam) for row, beam in candidates if not beam.finish_reason][:beams]
        rows, running = [row for row, _ in continued], [beam for _, beam in continued]
        if on_step:
            on_step(BeamsInfo(step, logits, tuple(running), tuple(finished)))
        if not running or (len(finished) == beams and penalty(running[0].score, step + 1) <= finished[-1].score):
            break
        if rows != list(range(len(sequences))):
            predict.reorder_cache(np.array(rows))
        tokens = np.array([beam.ids[-1:] for beam in running])
        sequences = np.concatenate([sequences[rows], tokens], axis=1)
    return finished[:returned] or [GeneratedText(finish_reason="limit")]


def _extend_beams(
    running: list[GeneratedText],
    logs: Array,
    filtered: Array,
    count: int,
    settings: SamplingConfig,
    stop: Callable[[list[int]], bool] | None,
) -> Iterator[tuple[int, GeneratedText]]:
    """Yield the best `count` beams one token longer, with the rows they continue.

    logs (B, V) of the next tokens, and as the filters leave them; a beam that ends here has its finish reason.
    """
    sums = np.array([beam.score for beam in running])[:, None] + filtered
    for row, word in top_candidates(sums, count, step=len(running[0].ids)):
        beam = append_token(running[row], word, float(logs[row, word]), float(sums[row, word]))
        limit = "limit" if len(beam.ids) == settings.limit else ""
        yield row, beam._replace(finish_reason=finish_reason(beam.ids, settings, stop) or limit)


def _check_beams(beams: int, returned: int, settings: SamplingConfig) -> None:
    if beams < 1:
        raise UsageError(f"beams {beams} (expected 1 or more)")
    if not 1 <= returned <= beams:
        raise UsageError(f"{returned} texts of {beams} beams (expected 1 to {beams})")
    if settings.sampling.is_sampled:
        raise UsageError("a beam search does not sample")


def top_candidates(sums: Array, count: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield rows and ids of the largest finite sums (B, N), best first.

    NotFiniteError if there is none.
    """
    flat = sums.ravel()
    places = [int(place) for place in largest(flat, count) if np.isfinite(flat[place])]
    if not places:
        check_finite(flat, step)
    for place in places:
        yield divmod(place, sums.shape[1])
