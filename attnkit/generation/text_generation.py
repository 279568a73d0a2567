"""Generate or score text with a whole model, from the input to the record.

Every text is computed alone, without padding, so that a text of a batch is what it is by itself.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.generation import kv_cache_file
from attnkit.generation.chat import render_chats
from attnkit.generation.options import CANDIDATES, DecodeOptions, TextModel, check_options, note_samplers
from attnkit.generation.prompts import (
    Prompt,
    choose_target,
    make_detokenizer,
    make_prompts,
    memory_context,
    note_defaults,
    note_language,
    note_picture,
    picture_context,
    positions_left,
    tokenize_prompt,
)
from attnkit.generation.task import Input, ModelTask
from attnkit.inputs import layers, picture_prompts, text_inputs
from attnkit.inputs.detokenizer import Detokenizer, common_prefix_length
from attnkit.interpret.tracer import Tracer, axis_labels
from attnkit.model import GeneratedText, Model
from attnkit.model.passes.beams import BeamsInfo
from attnkit.model.passes.generation import SamplingConfig, StepInfo, generate
from attnkit.model.passes.incremental_decoder import CachedDecoder
from attnkit.options import TraceOptions
from attnkit.records import Array, Labels, Record, Tensor, shared_labels
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

    >>> from attnkit.model.passes.generation import Filtered
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


class Generation(NamedTuple):
    """The texts generated after one prompt, best first, and what was kept.

    scores      the logits or the probabilities of all tokens, (T, N)
    logprob     the mean log-probability of the tokens after the filters, with --fallback and without beams
    candidates  the most probable tokens of each step
    """

    sequences: list[GeneratedText]
    scores: Array | None = None
    candidates: Sequence[StepCandidates] = ()
    logprob: float | None = None


def generate_after(
    text_model: TextModel, prompt: Prompt, is_only: bool, tracer: Tracer | None, where: str
) -> Generation:
    """Generate after one prompt, with --fallback again at other temperatures.

    where  what is read, in notes
    """
    if not text_model.options.speech.fallback:
        return generate_one(text_model, prompt, is_only, tracer)
    from attnkit.generation.fallback import read_with_fallback

    def read(options: DecodeOptions) -> Generation:
        return generate_one(text_model._replace(options=options), prompt, False, tracer)

    return read_with_fallback(read, text_model.options, where)


def generate_one(text_model: TextModel, prompt: Prompt, is_only: bool, tracer: Tracer | None) -> Generation:
    """Generate after one prompt, by beam search or token by token.

    is_only  whether it is the only prompt, so that its text may be streamed
    tracer   edits intermediates
    """
    core, options, detokenizer = text_model
    config, special = core.config, choose_target(options, detokenizer)
    requested = options.token_limit
    limit = min(requested, positions_left(config, len(prompt.ids)))
    predict: CachedDecoder = (core.engine.decoder if core.engine else CachedDecoder)(
        core,
        prompt.cache,
        **memory_context(prompt),
        **read_picture(text_model, prompt, tracer),
        dtype=options.dtype,
        hook=tracer.visit if tracer else model.no_hook,
        on_non_finite=callbacks.current().on_non_finite,
    )
    if tracer:
        tracer.begin(axis_labels(name_tokens(text_model, prompt, prompt.ids), prompt.source), lambda: predict.length)
    sampling = SamplingConfig(
        limit=limit,
        eos=special.eos,
        banned=special.banned,
        banned_first=config.sound.banned_first if config.sound else (),
        times=config.time_tokens if options.speech.timestamps else None,
        forced_bos=special.forced_bos,
        forced_eos=None if options.cache.cache_out else special.forced_eos,  # a cached text is to be continued
        minimum=options.length.min_tokens or 0,
        repetition_penalty=options.penalties.repetition_penalty or 1.0,
        no_repeat_ngram=options.penalties.no_repeat_ngram or 0,
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
        problem = f"stopped after {limit} tokens: the model has {config.positions.longest} positions"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    if options.cache.cache_out:
        write_cache(predict.cache, [*prompt.ids, *best.ids], text_model, prompt)
    return generation


def read_picture(text_model: TextModel, prompt: Prompt, tracer: Tracer | None) -> dict[str, Any]:
    """The field of Context for the picture of a prompt, whose tower a tracer reads."""
    if prompt.places is None or tracer is None:
        return picture_context(prompt, text_model.options)
    tracer.begin({})
    return picture_context(prompt, text_model.options, tracer.visit)


def name_tokens(text_model: TextModel, prompt: Prompt, ids: Sequence[int]) -> list[str]:
    """The token string of each id of a text; those of a picture by their places in it."""
    names = text_model.detokenizer.token_strings(ids)
    if prompt.places is not None and (image := text_model.options.image) is not None:
        tiles = picture_prompts.tiles_of_image(text_model.options.checkpoint, image)
        for at, name in zip(prompt.places.tolist(), tiles.names(), strict=True):
            names[at : at + 1] = [name] * (at < len(names))
    return names


Stop = Callable[[list[int]], bool]


def search_beams(
    predict: CachedDecoder,
    text_model: TextModel,
    prompt: Prompt,
    sampling: SamplingConfig,
    stop: Stop | None,
) -> list[GeneratedText]:
    """Search the best texts; show each step as a table of running and finished texts."""
    options, detokenizer = text_model.options, text_model.detokenizer

    def text(beam: GeneratedText) -> str:
        whole = "".join(split_prompt(prompt, beam.ids, detokenizer))
        return whole or " ".join(detokenizer.token_strings(beam.ids))

    def render(info: BeamsInfo, style: display.Style) -> display.TextTable:
        from attnkit import display

        running = [("goes on", beam.score, None, text(beam)) for beam in info.running]
        finished = [("ended", None, beam.score, text(beam)) for beam in info.finished]
        return display.beams_table(f"step {info.step}", [*running, *finished], style)

    name, _, exponent = (options.search.length_penalty or "average:1").partition(":")
    penalty = model.LENGTH_PENALTIES[name](float(exponent))
    beam, best, report = (
        options.search.beam or 1,
        options.search.best or 1,
        step_callback(options.choices.steps, render),
    )
    return model.beam_search(predict, np.array(prompt.ids), sampling, beam, penalty, best, stop, report)


def choose_tokens(
    predict: CachedDecoder,
    text_model: TextModel,
    prompt: Prompt,
    sampling: SamplingConfig,
    stop: Stop | None,
    is_only: bool,
) -> Generation:
    """Generate one text token by token; stream it if it is the only one."""
    options, detokenizer = text_model.options, text_model.detokenizer
    stream = stream_text(prompt, options, detokenizer) if is_only else None
    report = step_callback(
        options.choices.steps, lambda info, style: render_choice(info, detokenizer, style, options.choices.candidates)
    )
    scores: list[Array] = []
    candidates: list[StepCandidates] = []
    logprobs: list[float] = []

    def on_step(info: StepInfo) -> None:
        if options.speech.fallback:  # of the scores without the temperature
            logprobs.append(float(model.log_probabilities(info.scores * options.sampling.tau)[info.chosen]))
        if options.choices.keeps_candidates:
            candidates.append(rank_candidates(info, options.choices.candidates))
        if options.emit in ("logits", "probs"):
            scores.append(info.logits if options.emit == "logits" else info.probabilities)
        if stream:
            stream(info.chosen)
        else:
            report(info)

    rng = np.random.default_rng(options.sampling.seed or 0) if options.sampling.is_sampled else None
    text = generate(predict, np.array(prompt.ids), sampling, rng, stop, on_step)
    if stream:
        stream(None)
    mean = float(np.mean(logprobs)) if logprobs else None
    return Generation([text], np.stack(scores) if scores else None, candidates, mean)


def write_cache(cache: model.KVCache, ids: list[int], text_model: TextModel, prompt: Prompt) -> None:
    detokenizer = text_model.detokenizer
    words = detokenizer.token_strings(ids) if detokenizer.tokenizer else None
    record = kv_cache_file.cache_record(cache, text_model.core.config, ids, words, prompt.source)
    callbacks.current().write_side_output(text_model.options.cache.cache_out or "", record)


def split_prompt(prompt: Prompt, ids: Sequence[int], detokenizer: Detokenizer) -> tuple[str, str]:
    if prompt.is_chat:
        return "", detokenizer.text(ids)
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
    prompt: Prompt, options: DecodeOptions, detokenizer: Detokenizer
) -> Callable[[int | None], None] | None:
    """A function that streams the text of each new token, and ends the text at None.

    None if the caller streams no text, or if the result is not the text itself.
    """
    on_text = callbacks.current().on_text
    decode = detokenizer.tokenizer.decode if detokenizer.tokenizer else None
    if on_text is None or decode is None or options.choices.keeps_candidates or options.emit not in (None, "text"):
        return None
    decode_next = decode_incrementally(decode)
    if not prompt.is_chat:
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


TOKEN_TENSORS = ("x", "ids", "mask", "lengths", "types", "scores")


class TextGeneration(ModelTask):
    """Continue, translate, answer or score texts by a decoder with a vocabulary."""

    top_is_view = False

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        chats = super().refused if self.options.config.encoder else {}
        pictures = {"a text without a picture": ("grad", "attribute")} if self.options.image is not None else {}
        return {**chats, **pictures, "hidden states; --trace keeps the intermediates of a text": ("keep",)}

    @property
    def reads_pictures(self) -> bool:
        """Whether the model has a tower, whose rows are in the place of tokens."""
        return self.options.checkpoint.pictures is not None

    def check_model(self) -> None:
        """Raise UsageError for options that do not fit the model."""
        if self.options.matrix.vocab is not None:
            raise UsageError("--model and --vocab are mutually exclusive where the model generates text")
        super().check_model()

    def run_model(self, source: Input) -> Record | str:
        """The texts, or their scores."""
        return run_decode(source, self.options)

    def view(self, record: Record, style: display.Style) -> display.ResultView:
        """The texts after their prompts, tables of scores or choices, or attributions."""
        if self.options.inspection.attribute:
            from attnkit.interpret.gradients.attribution_view import attribution_view

            return attribution_view(record, style)
        from attnkit.generation.text_views import view_generation

        return view_generation(record, self.options, style)

    @property
    def adds_tensors(self) -> bool:
        """Whether an option requests tensors beside x: --top alone does."""
        return self.options.choices.asks_for_next_word or super().adds_tensors


def run_decode(source: Input, options: DecodeOptions) -> Record | str:
    """Generate or score text after texts or ids, as a record or as text."""
    check_options(options)
    source = layers.ids_from_x(source) if isinstance(source, Record) else source
    if options.chat.chat:
        source = render_chats(source, options)
        if options.emit == "prompt":
            return "\n".join(source)
    options.require_head()
    core = layers.complete_model(options.checkpoint)
    detokenizer = make_detokenizer(options)
    prompts, is_batch = make_prompts(source, options, detokenizer)
    note_picture(options)
    for flag, value in (
        ("--best", options.search.best),
        ("--cache-out", options.cache.cache_out),
        ("--grad", options.inspection.grad),
    ):
        if is_batch and value:
            raise UsageError("needs a single text, got a batch", flag)
    if options.score is not None or options.length.max_tokens == 0:
        record = score_prompts(core, prompts, options, detokenizer, is_batch)
    else:
        note_language(prompts, options, detokenizer)
        note_defaults(options)
        note_samplers(options)
        record = generate_texts(core, prompts, options, detokenizer, is_batch)
    if options.emit == "text":
        return "\n".join(require_texts(record))
    if not isinstance(source, Record):
        return record
    text_axes = {"token", "key", "query", "vocab"}  # tensors with one of them are of the text before
    rest = [name for name in source if name not in TOKEN_TENSORS and not text_axes & set(source.axes_of(name))]
    return record.merge(source.select(rest))


def require_texts(record: Record) -> list[str]:
    """The texts of a record; UsageError if its tokens could not be joined."""
    texts = shared_labels(record.labels.get("text"))
    if not texts:
        raise UsageError("--emit text needs words, and the model has no tokenizer that joins them")
    return texts


def generate_texts(
    core: Model, prompts: list[Prompt], options: DecodeOptions, detokenizer: Detokenizer, is_batch: bool
) -> Record:
    """Generate a text after each prompt, and write traces of the whole texts."""
    if core.engine is None:
        layers.prepare_decoding(options.checkpoint, options.token_limit)
    text_model, inspection = TextModel(core, options, detokenizer), options.inspection
    untraced = options._replace(inspection=inspection._replace(tracing=TraceOptions()))
    tracer = None if inspection.edits.is_empty else untraced.tracer()
    traced = prompts if inspection.tracing.trace else []
    caches = copy.deepcopy([prompt.cache for prompt in traced])  # generation extends them
    names = ["the sound"] if len(prompts) == 1 else [f"sound {row}" for row in range(len(prompts))]
    generations = [
        generate_after(text_model, prompt, len(prompts) == 1, tracer, where)
        for prompt, where in zip(prompts, names, strict=True)
    ]
    if tracer:
        tracer.check()
    if inspection.tracing.trace:
        traces = [
            trace_text(text_model, prompt._replace(cache=cache), [*prompt.ids, *generation.sequences[0].ids])
            for prompt, cache, generation in zip(prompts, caches, generations, strict=True)
        ]
        batch = pad_records(traces, detokenizer.padding, PadLayout() if is_batch else None)
        callbacks.current().write_side_output(inspection.tracing.trace, batch)
    return generation_record(prompts, generations, text_model, is_batch)


def score_prompts(
    core: Model, prompts: list[Prompt], options: DecodeOptions, detokenizer: Detokenizer, is_batch: bool
) -> Record:
    """Score the texts of prompts, each with its own tracer, and write the traces."""
    scored = [score_text(TextModel(core, options, detokenizer), prompt) for prompt in prompts]
    layout = PadLayout() if is_batch else None
    columns = [prompt.columns for prompt in prompts if prompt.columns is not None]
    if is_batch and len(columns) == len(prompts) > 0 and options.score is None and options.cache.cache_in is None:
        layout = PadLayout(columns, prompts[0].width)  # the tokens scored are those of the padded batch
    record = pad_records([text.record for text in scored], detokenizer.padding, layout)
    if layout:
        record = add_padding_mask(record, ("batch",), [len(text.record["x"]) for text in scored], layout)
    if options.inspection.tracing.trace:
        traces = pad_records([text.trace for text in scored], detokenizer.padding, layout)
        callbacks.current().write_side_output(options.inspection.tracing.trace, traces)
    if options.inspection.grad:
        callbacks.current().write_side_output(options.inspection.grad, scored[0].gradients)
    return record


class ScoredText(NamedTuple):
    """The scores of the tokens of a text, the trace of the run, and its gradients."""

    record: Record
    trace: Record
    gradients: Record


def score_text(text_model: TextModel, prompt: Prompt) -> ScoredText:
    """Score each token of a text after a prompt: log-probability x (T,), id, rank."""
    core, options, detokenizer = text_model
    tracer = options.tracer()
    ids, first = tokens_to_score(prompt, options, detokenizer)
    positions_left(core.config, len(ids))
    cache = model.KVCache() if prompt.cache is None and options.cache.cache_out else prompt.cache
    past = 0 if cache is None else cache.length
    picture = read_picture(text_model, prompt, tracer)
    tracer.begin(axis_labels(name_tokens(text_model, prompt, ids), prompt.source), len(ids))
    x = hidden_states(text_model, prompt, cache, ids[past:], tracer.visit, picture)
    needed = first - 1 - past  # the head is most of the work, so that other rows are left out unless they are kept
    skipped = 0 if options.inspection.tracing.trace or options.inspection.edits.patch else needed
    logits = model.head_logits(core, np.ascontiguousarray(x[skipped:]), tracer.visit)[needed - skipped :]
    tracer.check()
    if options.cache.cache_out and cache is not None:
        write_cache(cache, ids, text_model, prompt)
    trace = record_trace(tracer, text_model, prompt, ids, past) if options.inspection.tracing.trace else Record({})
    gradients = Record({})
    if options.inspection.grad:
        from attnkit.generation.score_gradients import score_gradients

        gradients = score_gradients(text_model, prompt, ids, first)
    record = score_record(logits, ids, first, options, detokenizer)
    if options.inspection.attribute:
        from attnkit.generation.score_gradients import attribute_score

        record = attribute_score(text_model, prompt, ids, first)
    return ScoredText(record, trace, gradients)


def trace_text(text_model: TextModel, prompt: Prompt, ids: list[int]) -> Record:
    """Trace one pass over all ids of a text, as scoring it does.

    The tokens of a KV cache are not computed again; nor is the last token, if the model has no position left for it.
    """
    core, tracer = text_model.core, text_model.options.tracer()
    ids = ids[: positions_left(core.config, 1)]
    past = 0 if prompt.cache is None else prompt.cache.length
    picture = read_picture(text_model, prompt, tracer)
    labels = axis_labels(name_tokens(text_model, prompt, prompt.ids), prompt.source)
    tracer.begin(labels, len(ids), min(len(prompt.ids), len(ids)))
    x = hidden_states(text_model, prompt, prompt.cache, ids[past:], tracer.visit, picture)
    model.head_logits(core, x, tracer.visit)
    tracer.check()
    return record_trace(tracer, text_model, prompt, ids, past)


def record_trace(tracer: Tracer, text_model: TextModel, prompt: Prompt, ids: list[int], past: int) -> Record:
    names = name_tokens(text_model, prompt, ids)
    record = tracer.record(names[past:], prompt.source, names)
    checkpoint, image = text_model.options.checkpoint, text_model.options.image
    if prompt.places is None or image is None:
        return record
    tiles = picture_prompts.tiles_of_image(checkpoint, image)
    record = picture_prompts.name_picture_axes(record, tiles, checkpoint)
    return record.merge(picture_prompts.find_shown_part(checkpoint, image))


def hidden_states(
    text_model: TextModel,
    prompt: Prompt,
    cache: model.KVCache | None,
    ids: list[int],
    hook: model.Hook,
    picture: Mapping[str, Any],
) -> Array:
    """What the decoder computes of ids after those in the cache: (T,) -> (T, D).

    picture  the field of Context for a picture in the text, if there is one
    """
    core, options = text_model.core, text_model.options
    context = layers.new_context(
        **memory_context(prompt, is_batch=cache is not None),
        **picture,
        cache=cache,
        hook=hook,
        dtype=options.dtype,
    )
    tokens, plan = np.array(ids), core.config.plan("decoder")
    return model.run(core, plan, tokens, context) if cache is None else model.run(core, plan, tokens[None], context)[0]


def tokens_to_score(prompt: Prompt, options: DecodeOptions, detokenizer: Detokenizer) -> tuple[list[int], int]:
    if options.score is None:
        has_no_output = options.emit in (None, "text", "ids") and not (
            options.cache.cache_out or options.inspection.tracing.trace
        )
        is_continued = options.config.encoder or options.cache.cache_in is not None
        if has_no_output and is_continued and len(prompt.ids) <= prompt.prefix:
            raise UsageError("nothing to score; --score TEXT", "--max-tokens 0")
        return prompt.ids, prompt.prefix
    if prompt.text is None or options.cache.cache_in is not None:
        ids, first = [*prompt.ids, *continuation(options, detokenizer)], len(prompt.ids)
    else:  # tokenized as one text, as a token may cover the end of the prompt
        ends = prompt.text[-1:], options.score[:1]
        if all(end.isdigit() or end.isupper() or end.islower() for end in ends):
            word, after = options.score[:40], prompt.text[-40:]
            problem = f"{word!r} continues the last word of {after!r}; {' ' + word!r} begins a new one"
            warnings.warn(f"--score: {problem}", AttnkitWarning, stacklevel=2)
        ids = tokenize_prompt(prompt.text + options.score, options, detokenizer)
        first = common_prefix_length(ids, tokenize_prompt(prompt.text, options, detokenizer))
        if first == 0:
            ids, first = [*prompt.ids, *ids] if not prompt.text else ids, 1
    if len(ids) <= first:
        raise DataError("no token to score", "--score")
    return ids, first


def continuation(options: DecodeOptions, detokenizer: Detokenizer) -> list[int]:
    """The ids of --score as a continuation: no start token, an end for a translation."""
    ids = tokenize_prompt(options.score or "", options, detokenizer)
    special = choose_target(options, detokenizer)
    if options.config.encoder:
        return text_inputs.with_eos(ids, special)
    return ids[1:] if ids[:1] == [special.bos] else ids


def score_record(logits: Array, ids: list[int], first: int, options: DecodeOptions, detokenizer: Detokenizer) -> Record:
    words = np.array(ids[first:], dtype=np.int64)
    rows = logits[: len(words)]
    if options.emit in ("logits", "probs"):
        rows, words = (logits, np.array(ids[first - 1 :], dtype=np.int64)) if options.score is None else (rows, words)
        arrays = {"x": rows if options.emit == "logits" else model.probabilities(rows), "ids": words}
        formula: str = options.emit
    elif options.emit == "ids":
        arrays, formula = {"x": words}, "tokens"
    else:
        logprobs = model.score_tokens(rows, words)
        rank = (rows > rows[np.arange(len(rows)), words][:, None]).sum(axis=1) + 1
        arrays, formula = {"x": logprobs, "ids": words, "rank": rank}, "log-probability of each token"
    labels: dict[str, Labels] = {}
    if detokenizer.tokenizer:
        labels["token"] = detokenizer.token_strings([int(word) for word in words])
        if arrays["x"].ndim == 2 and (names := detokenizer.words()):
            labels["vocab"] = names
        if detokenizer.can_decode:
            labels["text"] = [detokenizer.text(ids)]
    tensors = {
        name: Tensor(array, ("token", "vocab")[: array.ndim], formula=formula * (name == "x"))
        for name, array in arrays.items()
    }
    return Record({}).with_tensors(tensors, labels)


TOKENS = ("token", "query", "key")


class PadLayout(NamedTuple):
    """The columns of the tokens of each text in a padded batch of `width` columns.

    columns  None if the texts did not come in one
    """

    columns: Sequence[Array] | None = None
    width: int = 0

    def along(self, axis: str, sizes: Sequence[int]) -> tuple[list[Array], int]:
        """The places of the last entries of each text along an axis, and their number.

        sizes  the entries of each text

        The first column is dropped if the first token of a text has no entry, as no token predicts it.

        >>> PadLayout([np.array([1, 2]), np.array([0, 1, 2])], 3).along("token", [1, 2])
        ([array([1]), array([0, 1])], 2)
        """
        if self.columns is None or axis not in TOKENS:
            return [np.arange(size) for size in sizes], max(sizes)
        first = max(0, *(len(at) - size for at, size in zip(self.columns, sizes, strict=True)))
        return [at[first:] - first for at in self.columns], self.width - first


def pad_records(records: Sequence[Record], padding: str, layout: PadLayout | None) -> Record:
    """Join the records of several texts to one batch, with zeros at padding."""
    if not records:
        raise DataError("a batch without rows (expected one or more)")
    if layout is None:
        return records[0]
    tensors: dict[str, Tensor] = {}
    places: dict[str, tuple[list[Array], int]] = {}
    for name in records[0]:
        own = records[0].axes_of(name)
        axes = own[own[:1] == ("batch",) :]
        rows = [record[name].reshape(record[name].shape[len(own) - len(axes) :]) for record in records]
        along = [layout.along(axis, [row.shape[at] for row in rows]) for at, axis in enumerate(axes)]
        places |= dict(zip(axes, along, strict=True))
        formula = records[0].tensors[name].formula
        tensors[name] = Tensor(pad_arrays(rows, along), ("batch", *axes), formula=formula)
    labels: dict[str, Labels] = {}
    for axis in records[0].labels:  # texts in a list, tokens in rows, others from the first record
        names = [shared_labels(record.labels.get(axis)) for record in records]
        if axis == "text":
            labels[axis] = [text for row in names for text in row]
        elif axis in (*TOKENS, "source"):
            columns, size = places[axis]
            padded = np.full((len(names), size), padding, object)
            for line, row, at in zip(padded, names, columns, strict=True):
                line[at] = row[len(row) - len(at) :]
            labels[axis] = padded.tolist()
        else:
            labels[axis] = names[0]
    return Record({}).with_tensors(tensors, labels)


def pad_arrays(rows: Sequence[Array], along: Sequence[tuple[list[Array], int]]) -> Array:
    """Arrays of different shapes as one batch, zeros elsewhere.

    along  of each axis the places of the last entries of each row, and its size

    >>> pad_arrays([np.array([1, 2]), np.array([3])], [([np.array([0, 1]), np.array([1])], 2)]).tolist()
    [[1, 2], [0, 3]]
    """
    batch = np.zeros((len(rows), *(size for _, size in along)), rows[0].dtype)
    for text, row in enumerate(rows):
        places = [places_of[text] for places_of, _ in along]
        last = tuple(slice(size - len(at), None) for at, size in zip(places, row.shape, strict=True))
        batch[text, ...][np.ix_(*places)] = row[last]
    return batch


def add_padding_mask(record: Record, lead: tuple[str, ...], sizes: Sequence[int], layout: PadLayout) -> Record:
    """Add the mask of the tokens of a batch if it is padded; sizes: of each text."""
    if layout.columns is None and len({*sizes}) < 2:
        return record
    where, size = layout.along("token", sizes)
    mask = np.zeros((len(where), 1, size), bool)
    for row, at in zip(mask, where, strict=True):
        row[0, at] = True
    labels: dict[str, Labels] = {"key": record.labels["token"]} if "token" in record.labels else {}
    return record.with_tensors({"mask": Tensor(mask, (*lead, "all queries", "key"), labels, "token ≠ padding")})


def generation_record(
    prompts: list[Prompt], generations: list[Generation], text_model: TextModel, is_batch: bool
) -> Record:
    options = text_model.options
    sequences = [text for generation in generations for text in generation.sequences]
    lead = ("beam",) if options.search.best else ("batch",) if is_batch else ()
    tensors = generated_tensors(sequences, generations, text_model, lead)
    if not lead:
        tensors = {name: Tensor(one.array[0], one.axes, formula=one.formula) for name, one in tensors.items()}
    if options.search.beam:
        scores = np.array([text.score for text in sequences], options.compute_dtype)
        tensors["scores"] = Tensor(scores, lead or ("beam",))
    pairs = [(prompt, text) for prompt, one in zip(prompts, generations, strict=True) for text in one.sequences]
    record = Record({}).with_tensors(tensors, generated_labels(pairs, tensors, text_model, bool(lead)))
    record = record.merge(candidate_tensors([one.candidates for one in generations], lead, text_model.detokenizer))
    return add_padding_mask(record, lead, [len(text.ids) for text in sequences], PadLayout())


def generated_tensors(
    sequences: Sequence[GeneratedText], generations: Sequence[Generation], text_model: TextModel, lead: tuple[str, ...]
) -> dict[str, Tensor]:
    options = text_model.options
    dtype, pad = options.compute_dtype, text_model.core.config.special.pad or 0
    axes = (*lead, "token")
    ids = pad_rows([np.array(text.ids, np.int64) for text in sequences], pad)
    if options.emit == "ids":
        return {"x": Tensor(ids, axes, formula="tokens chosen")}
    scores = [one.scores for one in generations if one.scores is not None]
    if scores:
        x = Tensor(pad_rows(scores, 0), (*axes, "vocab"), formula=options.emit or "")
    else:
        logprobs = [np.array(text.logprobs, dtype) for text in sequences]
        x = Tensor(pad_rows(logprobs, 0), axes, formula="log-probability of each token")
    return {"x": x, "ids": Tensor(ids, axes)}


def generated_labels(
    pairs: Sequence[tuple[Prompt, GeneratedText]], tensors: Mapping[str, Tensor], text_model: TextModel, has_rows: bool
) -> dict[str, Labels]:
    detokenizer, labels = text_model.detokenizer, text_model.options.sampler_labels
    if "vocab" in (tensors["x"].axes or ()) and (words := detokenizer.words()):
        labels["vocab"] = words
    if not detokenizer.tokenizer:
        return labels
    longest = max(len(text.ids) for _, text in pairs)
    rows = [detokenizer.token_strings(text.ids) for _, text in pairs]
    rows = [row + [detokenizer.padding] * (longest - len(row)) for row in rows]
    labels["token"] = rows if has_rows else rows[0]
    if not detokenizer.can_decode:
        return labels
    parts = [split_prompt(prompt, text.ids, detokenizer) for prompt, text in pairs]
    prompts = [
        (prompt.text or "") if prompt.is_chat else before for (prompt, _), (before, _) in zip(pairs, parts, strict=True)
    ]
    if any(prompts) or not text_model.core.config.encoder:  # a translation may have none
        labels["prompt"] = prompts
    return labels | {"text": [truncate_at_stop(text_model.options.stop, *part)[0] for part in parts]}


def candidate_tensors(
    texts: Sequence[Sequence[StepCandidates]], lead: tuple[str, ...], detokenizer: Detokenizer
) -> Record:
    """The tensors `candidates.*` of texts, a batch padded with zeros.

    Each is (T, M), or (B, T, M) where `lead` names the axis of the texts. The labels under `candidates.ids` are the
    tokens: a list for each step, text after text.
    """
    longest = max(map(len, texts), default=0)
    width = min((len(step.ids) for text in texts for step in text), default=0)
    tensors: dict[str, Tensor] = {}
    for at, name in enumerate(StepCandidates._fields if width else ()):
        rows = [np.stack([step[at][:width] for step in text]) for text in texts]
        array = pad_rows(rows, 0)
        tensors[f"candidates.{name}"] = Tensor(array if lead else array[0], (*lead, "token", "rank"))
    words: list[list[str]] = []
    for text in texts if detokenizer.tokenizer else ():
        words += [detokenizer.token_strings(step.ids[:width].tolist()) for step in text]
        words += [[detokenizer.padding] * width] * (longest - len(text))
    return Record({}).with_tensors(tensors, {"candidates.ids": words} if words and width else None)


def pad_rows(rows: Sequence[Array], filler: float) -> Array:
    """Rows of different lengths as one array: (T, ...) of each -> (N, T, ...)."""
    if not rows:
        raise DataError("a batch without rows (expected one or more)")
    longest = max(map(len, rows))
    table = np.full((len(rows), longest, *rows[0].shape[1:]), filler, rows[0].dtype)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
