"""Texts that go on: tokens chosen one after another, shown as they come, and the record of them."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import display, model, tokenizers
from attnkit.errors import AttnkitWarning, DataError
from attnkit.inference import callbacks, kv_cache_file
from attnkit.inference.batching import PadLayout, add_padding_mask
from attnkit.inference.detokenizer import Detokenizer, common_prefix_length
from attnkit.inference.hooks import Tracer
from attnkit.inference.options import GenerationOptions, compute_dtype, max_new_tokens
from attnkit.inference.prompts import Prompt
from attnkit.model import GeneratedText
from attnkit.model.generation import BeamsInfo, StepInfo
from attnkit.record import Array, Labels, Record


class Generation(NamedTuple):
    """What one text went on with: the texts of a search or the one text, best first; logits or probabilities."""

    found: list[GeneratedText]
    numbers: Array | None = None


def generate_one(
    core: model.Model,
    start: Prompt,
    asked: GenerationOptions,
    voice: Detokenizer,
    tracer: Tracer,
    alone: bool,
) -> Generation:
    """Generates after one beginning."""
    config, wanted = core.config, max_new_tokens(asked)
    limit = min(wanted, positions_left(config, len(start.ids)))
    memory = None if start.memory is None else start.memory[None]
    visit = tracer.visit if asked.ablate else model.no_hook
    events = callbacks.current()
    predict = model.CachedDecoder(
        core, start.cache, memory=memory, dtype=asked.dtype, visit=visit, breaks=events.on_non_finite
    )
    prompt, settings = np.array(start.ids), sampling_config(config.special, asked, limit)
    stop = stop_condition(asked.stop, start, voice) if asked.stop else None
    kept: list[Array] = []
    if asked.beam:
        penalty = length_penalty(asked.length_penalty or "average:1")
        show = step_callback(asked, lambda info, look: render_beams(info, start, voice, look))
        found = model.beam_search(predict, prompt, settings, asked.beam, penalty, asked.best or 1, stop, show)
    else:
        typed = stream_text(start, asked, voice) if alone else None
        show = step_callback(asked, lambda info, look: render_choice(info, voice, look))
        rng = np.random.default_rng(asked.seed or 0) if asked.sampled else None

        def seen(info: StepInfo) -> None:
            if asked.emit in ("logits", "probs"):
                kept.append(info.logits if asked.emit == "logits" else info.probabilities)
            if typed:
                typed(info.chosen)
            else:
                show(info)

        found = [model.generate(predict, prompt, settings, rng, stop, seen)]
        if typed:
            typed(None)
    if limit < wanted and found[0].why == "limit":
        said = f"stopped after {limit} tokens: the model has {config.positions.size} positions"
        warnings.warn(said, AttnkitWarning, stacklevel=2)
    if asked.cache_out:
        ids = [*start.ids, *found[0].ids]
        words = voice.spelled(ids) if voice.tokenizer else None
        side_output = kv_cache_file.cache_record(predict.cache, ids, words, start.source)
        events.write_side_output(asked.cache_out, side_output)
    return Generation(found, np.stack(kept) if kept else None)


def positions_left(config: model.Config, size: int) -> int:
    """How many tokens may follow so many; DataError where these are too many themselves."""
    most = config.positions.size
    if not most or config.positions.kind not in ("learned", "sinusoidal"):
        return 1 << 62
    if size > most:
        raise DataError(f"{size} tokens, and this {config.family} model has {most} positions")
    return most - size + 1  # nothing follows the last one, so it needs no position


def sampling_config(special: model.SpecialTokens, asked: GenerationOptions, limit: int) -> model.SamplingConfig:
    """How tokens are chosen, by the flags and by what the model says of its special tokens."""
    return model.SamplingConfig(
        limit=limit,
        eos=special.eos,
        banned=special.banned,
        forced_bos=special.forced_bos,
        forced_eos=None if asked.cache_out else special.forced_eos,  # the text is to go on
        repetition_penalty=asked.repetition_penalty or 1.0,
        sampled=asked.sampled,
        temperature=asked.temperature or 1.0,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
    )


def length_penalty(text: str) -> Callable[[float, int], float]:
    """The length penalty of its name and its exponent.

    >>> length_penalty("average:1")(-6.0, 3)
    -2.0
    """
    name, _, exponent = text.partition(":")
    return model.LENGTH_PENALTIES[name](float(exponent))


def stop_condition(stops: Sequence[str], start: Prompt, voice: Detokenizer) -> Callable[[list[int]], bool]:
    """Whether the text after the beginning has one of the stops in it."""
    return lambda ids: truncate_at_stop(stops, *split_prompt(start, ids, voice))[1]


def split_prompt(start: Prompt, ids: Sequence[int], voice: Detokenizer) -> tuple[str, str]:
    """The text of the beginning, and what the new tokens add to it."""
    before, whole = voice.text(start.ids), voice.text([*start.ids, *ids])
    at = common_prefix_length(before, whole)
    return whole[:at], whole[at:]


def truncate_at_stop(stops: Sequence[str], before: str, after: str) -> tuple[str, bool]:
    """The text as far as the first stop in what was added to it, and whether there is one.

    >>> truncate_at_stop(["!"], "Stop! ", "No! Yes")
    ('Stop! No', True)
    """
    found = [at for stop in stops if (at := after.find(stop)) >= 0]
    return before + (after[: min(found)] if found else after), bool(found)


def stream_text(start: Prompt, asked: GenerationOptions, voice: Detokenizer) -> Callable[[int | None], None] | None:
    """What takes each new token, and None at the end, to show the text as it grows; None where nobody reads along."""
    typed = callbacks.current().on_text
    decode = voice.tokenizer.decode if voice.tokenizer else None
    if typed is None or decode is None or asked.steps or asked.emit not in (None, "text"):
        return None
    step = tokenizers.decode_incrementally(decode)
    before = "".join(step(word) for word in start.ids[voice.skipped :])
    typed(before, True)
    waiting, ended = "", False

    def type_one(word: int | None) -> None:
        nonlocal waiting, ended
        if ended:
            return
        text, ended = truncate_at_stop(asked.stop, "", waiting + step(word))
        held = 0 if word is None or ended else partial_stop_length(text, asked.stop)
        waiting = text[len(text) - held :]
        typed(text[: len(text) - held], False)

    return type_one


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of a text may be the start of a stop.

    >>> partial_stop_length("the end", ["endless", "no"]), partial_stop_length("the", ["!"])
    (3, 0)
    """
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


def step_callback(asked: GenerationOptions, shown: Callable[[Any, display.Style], str]) -> Callable[[Any], None]:
    """What hears of every step: it shows the step where --steps asks for it, else says how far the work is."""

    def hear(info: Any) -> None:
        if asked.steps:
            callbacks.current().on_table(lambda look: shown(info, look))
        else:
            callbacks.current().on_progress(f"token {info.step + 1}")

    return hear


def render_choice(info: StepInfo, voice: Detokenizer, look: display.Style) -> str:
    """One step as a table: its candidates, what the filters removed, what was chosen."""
    ids, shares = model.candidates(info.probabilities, callbacks.current().candidates)
    own = model.probabilities(info.logits)
    words = voice.spelled([int(word) for word in ids])
    rows = [
        (int(word), name, float(info.logits[word]), float(own[word]), float(share))
        for word, name, share in zip(ids, words, shares, strict=True)
        if share
    ]
    filters = []
    for one in info.filters:
        gone = one.removed
        likeliest = gone[np.argsort(-one.before[gone], kind="stable")[:5]]
        filters.append((one.name, len(gone), voice.spelled([int(word) for word in likeliest])))
    chosen = voice.spelled([info.chosen])[0], info.logprob
    return display.choice_table(f"step {info.step}", rows, filters, chosen, look)


def render_beams(info: BeamsInfo, start: Prompt, voice: Detokenizer, look: display.Style) -> str:
    """One step of a search as a table: the texts that go on, by their sums, and those that ended, by their scores."""

    def text(beam: GeneratedText) -> str:
        return voice.text([*start.ids, *beam.ids]) or " ".join(voice.spelled(beam.ids))

    going = [("goes on", beam.score, None, text(beam)) for beam in info.running]
    ended = [("ended", None, beam.score, text(beam)) for beam in info.finished]
    return display.beams_table(f"step {info.step}", [*going, *ended], look)


def to_record(
    begun: list[Prompt], made: list[Generation], asked: GenerationOptions, voice: Detokenizer, several: bool
) -> Record:
    """The record of what was generated: x the log-probability of each token, ids, the scores of a search."""
    pairs = [(start, one) for start, texts in zip(begun, made, strict=True) for one in texts.found]
    pad = asked.model_.config.special.pad or 0
    dtype = compute_dtype(asked)
    ids, rows = [list(one.ids) for _, one in pairs], [np.array(one.logprobs, dtype) for _, one in pairs]
    lead = ("beam",) if asked.best else ("batch",) if several else ()
    arrays = {"x": pad_beams(rows, 0), "ids": pad_beams([np.array(row, np.int64) for row in ids], pad)}
    said = {"x": "log-probability of each token"}
    numbers = [one.numbers for one in made if one.numbers is not None]
    axes: dict[str, tuple[str, ...]] = {"x": (*lead, "token"), "ids": (*lead, "token")}
    labels: dict[str, Labels] = {}
    if asked.emit == "ids":
        arrays, said = {"x": arrays["ids"]}, {"x": "tokens chosen"}
    elif numbers:
        arrays["x"], axes["x"] = pad_beams(numbers, 0), (*lead, "token", "vocab")
        said = {"x": asked.emit or ""}
        if words := voice.words():
            labels["vocab"] = words
    if not lead:
        arrays = {name: array[0] for name, array in arrays.items()}
    if asked.beam:
        arrays["scores"] = np.array([one.score for _, one in pairs], dtype)
        axes["scores"] = lead or ("beam",)
    if voice.tokenizer:
        longest = max(map(len, ids))
        names = [voice.spelled(row) + [voice.padding] * (longest - len(row)) for row in ids]
        labels["token"] = names if lead else names[0]
        if voice.joins:
            parts = [split_prompt(start, one.ids, voice) for start, one in pairs]
            if not asked.model_.config.encoder or any(before for before, _ in parts):  # a translation has none
                labels["prompt"] = [before for before, _ in parts]
            labels["text"] = [truncate_at_stop(asked.stop, *part)[0] for part in parts]
    record = Record({}).put(arrays, {name: axes[name] for name in arrays}, labels, said)
    return add_padding_mask(record, lead, [*map(len, ids)], PadLayout())


def pad_beams(rows: Sequence[Array], filler: float) -> Array:
    """Rows of different lengths as one array: (T, ...) of each -> (N, T, ...)."""
    if not rows:
        raise DataError("a batch without rows (expected one or more)")
    longest = max(map(len, rows))
    table = np.full((len(rows), longest, *rows[0].shape[1:]), filler, rows[0].dtype)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
