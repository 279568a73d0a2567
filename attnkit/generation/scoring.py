"""Score given tokens: the log-probability and the rank of each, the trace of the run, and its gradients."""

import warnings
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.generation.generate import TextModel, positions_left, write_cache
from attnkit.generation.options import GenerationOptions
from attnkit.generation.prompts import Prompt, memory_context, tokenize_prompt
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.detokenizer import Detokenizer, common_prefix_length
from attnkit.interpret.tracer import axis_labels
from attnkit.model import Array
from attnkit.record import Labels, Record, Tensor


class ScoredText(NamedTuple):
    """The scores of the tokens of a text, the trace of the run, and its gradients."""

    record: Record
    trace: Record
    gradients: Record


def score_text(text_model: TextModel, prompt: Prompt) -> ScoredText:
    """Score each token of a text after a prompt: log-probability x (T,), id, rank."""
    core, options, detokenizer, tracer = text_model
    ids, first = tokens_to_score(prompt, options, detokenizer)
    positions_left(core.config, len(ids))
    cache = model.new_cache(core.config) if prompt.cache is None and options.cache_out else prompt.cache
    past = 0 if cache is None else cache.length
    strings = detokenizer.token_strings
    tracer.begin(axis_labels(strings(ids), prompt.source), len(ids))
    x = hidden_states(text_model, prompt, cache, ids[past:])
    skipped = (
        0 if options.inspection.trace or options.inspection.patch else first - 1 - past
    )  # the head is the most of the work
    logits = model.head_logits(core, np.ascontiguousarray(x[skipped:]), tracer.visit)[first - 1 - past - skipped :]
    tracer.check()
    if options.cache_out and cache is not None:
        write_cache(cache, ids, text_model, prompt)
    trace = record_trace(text_model, prompt, ids, past) if options.inspection.trace else Record({})
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
    core, tracer = text_model.core, text_model.tracer
    ids = ids[: positions_left(core.config, 1)]
    past = 0 if prompt.cache is None else prompt.cache.length
    labels = axis_labels(text_model.detokenizer.token_strings(prompt.ids), prompt.source)
    tracer.begin(labels, len(ids), min(len(prompt.ids), len(ids)))
    x = hidden_states(text_model, prompt, prompt.cache, ids[past:])
    model.head_logits(core, x, tracer.visit)
    tracer.check()
    return record_trace(text_model, prompt, ids, past)


def record_trace(text_model: TextModel, prompt: Prompt, ids: list[int], past: int) -> Record:
    """What the tracer kept of the ids after the first `past`, with their labels."""
    strings = text_model.detokenizer.token_strings
    return text_model.tracer.record(strings(ids[past:]), prompt.source, strings(ids))


def hidden_states(text_model: TextModel, prompt: Prompt, cache: model.KVCache | None, ids: list[int]) -> Array:
    """What the decoder computes of ids after those in the cache: (T,) -> (T, D)."""
    core, options = text_model.core, text_model.options
    context = layers.new_context(
        **memory_context(prompt, is_batch=cache is not None),
        cache=cache,
        hook=text_model.tracer.visit,
        dtype=options.dtype,
    )
    tokens, plan = np.array(ids), core.config.plan("decoder")
    return model.run(core, plan, tokens, context) if cache is None else model.run(core, plan, tokens[None], context)[0]


def tokens_to_score(prompt: Prompt, options: GenerationOptions, detokenizer: Detokenizer) -> tuple[list[int], int]:
    if options.score is None:
        has_no_output = options.emit in (None, "text", "ids") and not (options.cache_out or options.inspection.trace)
        is_continued = options.model_.config.encoder or options.cache_in is not None
        if has_no_output and is_continued and len(prompt.ids) <= prompt.prefix:
            raise UsageError("nothing to score; --score TEXT", "--max-tokens 0")
        return prompt.ids, prompt.prefix
    if prompt.text is None or options.cache_in is not None:
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
            ids, first = [*prompt.ids[:1], *ids] if not prompt.text else ids, 1
    if len(ids) <= first:
        raise DataError("no token to score", "--score")
    return ids, first


def continuation(options: GenerationOptions, detokenizer: Detokenizer) -> list[int]:
    """The ids of --score as a continuation: no start token, an end for a translation."""
    ids = tokenize_prompt(options.score or "", options, detokenizer)
    special = options.model_.config.special
    if options.model_.config.encoder:
        return text_inputs.with_eos(ids, special)
    return ids[1:] if ids[:1] == [special.bos] else ids


def score_record(
    logits: Array, ids: list[int], first: int, options: GenerationOptions, detokenizer: Detokenizer
) -> Record:
    """Build the record of scored tokens from logits (T + 1, N)."""
    words = np.array(ids[first:], dtype=np.int64)
    rows = logits[: len(words)]
    if options.emit in ("logits", "probs"):
        rows, words = (logits, np.array(ids[first - 1 :], dtype=np.int64)) if options.score is None else (rows, words)
        x, formula = rows if options.emit == "logits" else model.probabilities(rows), options.emit
        arrays = {"x": x, "ids": words}
    elif options.emit == "ids":
        arrays, formula = {"x": words}, "tokens"
    else:
        logprobs = model.score_tokens(rows, words)
        rank = (rows > np.take_along_axis(rows, words[:, None], axis=-1)).sum(axis=-1) + 1
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
