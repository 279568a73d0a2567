"""Generate text token by token: greedily, by sampling or by beam search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitWarning, DataError, counted
from attnkit.generation import kv_cache_file
from attnkit.generation.options import CANDIDATES, GenerationOptions
from attnkit.generation.prompts import Prompt, memory_context
from attnkit.inputs.detokenizer import Detokenizer, common_prefix_length
from attnkit.interpret.tracer import Tracer, axis_labels
from attnkit.model import GeneratedText
from attnkit.model.beams import BeamsInfo
from attnkit.model.generation import StepInfo
from attnkit.records import Array
from attnkit.tokenizers.tokens import decode_incrementally

if TYPE_CHECKING:
    from attnkit import display


class StepCandidates(NamedTuple):
    """The candidates (M,) of one step, most probable first, filtered ones last.

    probs     their probabilities by the model itself
    filtered  their probabilities in the choice, after the filters
    chosen    which of them was chosen: none, if that is not among them
    """

    ids: Array
    logits: Array
    probs: Array
    filtered: Array
    chosen: Array


def rank_candidates(info: StepInfo, count: int) -> StepCandidates:
    """The `count` most probable tokens of a step, after the filters, then before.

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


class TextModel(NamedTuple):
    """A model of text with its options, its detokenizer and its hooks."""

    core: model.Model
    options: GenerationOptions
    detokenizer: Detokenizer
    tracer: Tracer


class Generation(NamedTuple):
    """The texts generated after one prompt, best first, and what was kept.

    scores      the logits or the probabilities of all tokens, (T, N)
    candidates  the most probable tokens of each step
    """

    sequences: list[GeneratedText]
    scores: Array | None = None
    candidates: Sequence[StepCandidates] = ()


def generate_one(text_model: TextModel, prompt: Prompt, is_only: bool) -> Generation:
    """Generate after one prompt, by beam search or token by token.

    is_only  whether it is the only prompt, so that its text may be streamed
    """
    core, options, detokenizer, tracer = text_model
    config, special = core.config, core.config.special
    requested = options.token_limit
    limit = min(requested, positions_left(config, len(prompt.ids)))
    predict: model.CachedDecoder = (core.engine.decoder if core.engine else model.CachedDecoder)(
        core,
        prompt.cache,
        **memory_context(prompt),
        dtype=options.dtype,
        hook=tracer.visit if options.inspection.patch or options.inspection.ablate else model.no_hook,
        on_non_finite=callbacks.current().on_non_finite,
    )
    tracer.begin(axis_labels(detokenizer.token_strings(prompt.ids), prompt.source), lambda: predict.length)
    sampling = model.SamplingConfig(
        limit=limit,
        eos=special.eos,
        banned=special.banned,
        forced_bos=special.forced_bos,
        forced_eos=None if options.cache_out else special.forced_eos,  # a cached text is to be continued
        repetition_penalty=options.repetition_penalty or 1.0,
        sampling=options.sampling,
    )

    def stop(ids: list[int]) -> bool:
        return truncate_at_stop(options.stop, *split_prompt(prompt, ids, detokenizer))[1]

    stops = stop if options.stop else None
    if options.search.beam:
        generation = Generation(search_beams(predict, text_model, prompt, sampling, stops))
    else:
        generation = choose_tokens(predict, text_model, prompt, sampling, stops, is_only)
    best = generation.sequences[0]
    if limit < requested and best.finish_reason == "limit":
        problem = f"stopped after {limit} tokens: the model has {config.positions.size} positions"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    if options.cache_out:
        write_cache(predict.cache, [*prompt.ids, *best.ids], text_model, prompt)
    return generation


Stop = Callable[[list[int]], bool]


def search_beams(
    predict: model.CachedDecoder,
    text_model: TextModel,
    prompt: Prompt,
    sampling: model.SamplingConfig,
    stop: Stop | None,
) -> list[GeneratedText]:
    """Search the best texts; show each step as a table of running and finished texts."""
    options, detokenizer = text_model.options, text_model.detokenizer

    def text(beam: GeneratedText) -> str:
        return detokenizer.text([*prompt.ids, *beam.ids]) or " ".join(detokenizer.token_strings(beam.ids))

    def render(info: BeamsInfo, style: display.Style) -> display.TextTable:
        from attnkit import display

        running = [("goes on", beam.score, None, text(beam)) for beam in info.running]
        finished = [("ended", None, beam.score, text(beam)) for beam in info.finished]
        return display.beams_table(f"step {info.step}", [*running, *finished], style)

    name, _, exponent = (options.search.length_penalty or "average:1").partition(":")
    penalty = model.LENGTH_PENALTIES[name](float(exponent))
    beam, best, report = options.search.beam or 1, options.search.best or 1, step_callback(options.steps, render)
    return model.beam_search(predict, np.array(prompt.ids), sampling, beam, penalty, best, stop, report)


def choose_tokens(
    predict: model.CachedDecoder,
    text_model: TextModel,
    prompt: Prompt,
    sampling: model.SamplingConfig,
    stop: Stop | None,
    is_only: bool,
) -> Generation:
    """Generate one text token by token; stream it if it is the only one."""
    options, detokenizer = text_model.options, text_model.detokenizer
    stream = stream_text(prompt, options, detokenizer) if is_only else None
    report = step_callback(
        options.steps, lambda info, style: render_choice(info, detokenizer, style, options.candidates)
    )
    scores: list[Array] = []
    candidates: list[StepCandidates] = []

    def on_step(info: StepInfo) -> None:
        if options.keeps_candidates:
            candidates.append(rank_candidates(info, options.candidates))
        if options.emit in ("logits", "probs"):
            scores.append(info.logits if options.emit == "logits" else info.probabilities)
        if stream:
            stream(info.chosen)
        else:
            report(info)

    rng = np.random.default_rng(options.sampling.seed or 0) if options.sampling.is_sampled else None
    text = model.generate(predict, np.array(prompt.ids), sampling, rng, stop, on_step)
    if stream:
        stream(None)
    return Generation([text], np.stack(scores) if scores else None, candidates)


def write_cache(cache: model.KVCache, ids: list[int], text_model: TextModel, prompt: Prompt) -> None:
    detokenizer = text_model.detokenizer
    words = detokenizer.token_strings(ids) if detokenizer.tokenizer else None
    record = kv_cache_file.cache_record(cache, ids, words, prompt.source)
    callbacks.current().write_side_output(text_model.options.cache_out or "", record)


def positions_left(config: model.Config, size: int) -> int:
    """How many tokens may follow `size` tokens."""
    most = config.positions.size
    if not most or config.positions.kind not in ("learned", "sinusoidal"):
        return 1 << 62
    if size > most:
        raise DataError(f"{counted(size, 'token')}, and this {config.family} model has {counted(most, 'position')}")
    return most - size + 1  # the last token needs no position: nothing follows it


def split_prompt(prompt: Prompt, ids: Sequence[int], detokenizer: Detokenizer) -> tuple[str, str]:
    before, whole = detokenizer.text(prompt.ids), detokenizer.text([*prompt.ids, *ids])
    size = common_prefix_length(before, whole)
    return whole[:size], whole[size:]


def truncate_at_stop(stops: Sequence[str], before: str, after: str) -> tuple[str, bool]:
    """Cut added text at the first stop string, and say whether there is one.

    >>> truncate_at_stop(["!"], "Stop! ", "No! Yes")
    ('Stop! No', True)
    """
    places = [place for stop in stops if (place := after.find(stop)) >= 0]
    return before + (after[: min(places)] if places else after), bool(places)


def stream_text(
    prompt: Prompt, options: GenerationOptions, detokenizer: Detokenizer
) -> Callable[[int | None], None] | None:
    """A function that streams the text of each new token, and ends the text at None.

    None if the caller streams no text, or if the result is not the text itself.
    """
    on_text = callbacks.current().on_text
    decode = detokenizer.tokenizer.decode if detokenizer.tokenizer else None
    if on_text is None or decode is None or options.keeps_candidates or options.emit not in (None, "text"):
        return None
    decode_next = decode_incrementally(decode)
    on_text("".join(decode_next(word) for word in prompt.ids[detokenizer.skipped :]), True)
    held, is_stopped = "", False

    def stream_token(word: int | None) -> None:
        nonlocal held, is_stopped
        if is_stopped:
            return
        text, is_stopped = truncate_at_stop(options.stop, "", held + decode_next(word))
        size = 0 if word is None or is_stopped else partial_stop_length(text, options.stop)
        held = text[len(text) - size :]
        on_text(text[: len(text) - size], False)

    return stream_token


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of a text may be the start of a stop string.

    >>> partial_stop_length("the end", ["endless", "no"]), partial_stop_length("the", ["!"])
    (3, 0)
    """
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


def step_callback(
    shows_steps: bool, render: Callable[[Any, display.Style], display.TextTable]
) -> Callable[[Any], None]:
    """A callback that shows each step as a table, or reports the number of the token."""

    def on_step(info: Any) -> None:
        if shows_steps:
            callbacks.current().on_table(lambda style: render(info, style))
        else:
            callbacks.current().on_progress(f"token {info.step + 1}")

    return on_step


def render_choice(
    info: StepInfo, detokenizer: Detokenizer, style: display.Style, count: int = CANDIDATES
) -> display.TextTable:
    """One step as a table: candidates, filtered tokens, the chosen token."""
    from attnkit import display

    ids, probabilities = model.candidates(info.probabilities, count)
    unfiltered = model.probabilities(info.logits)
    words = detokenizer.token_strings([int(word) for word in ids])
    rows = [
        (int(word), name, float(info.logits[word]), float(unfiltered[word]), float(probability))
        for word, name, probability in zip(ids, words, probabilities, strict=True)
        if probability
    ]
    filters = []
    for step in info.filters:
        likeliest = step.removed[np.argsort(-step.before[step.removed], kind="stable")[:5]]
        filters.append((step.name, len(step.removed), detokenizer.token_strings([int(word) for word in likeliest])))
    chosen = detokenizer.token_strings([info.chosen])[0], info.logprob
    return display.choice_table(f"step {info.step}", rows, filters, chosen, style)
