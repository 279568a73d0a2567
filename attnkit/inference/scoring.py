"""Texts that are given: how likely a model finds each of their tokens."""

from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.inference import callbacks, kv_cache_file, layers, text_inputs
from attnkit.inference.detokenizer import Detokenizer, common_prefix_length
from attnkit.inference.generate import positions_left
from attnkit.inference.hooks import Tracer
from attnkit.inference.options import GenerationOptions
from attnkit.inference.prompts import Prompt, tokenize_prompt
from attnkit.model import Array
from attnkit.record import Labels, Record


class ScoredText(NamedTuple):
    """How likely the tokens of a text are, and the intermediates of the run that were asked for."""

    record: Record
    trace: Record


def score_text(
    core: model.Model, start: Prompt, asked: GenerationOptions, voice: Detokenizer, tracer: Tracer
) -> ScoredText:
    """How likely the model finds each token after a beginning: x (T,), their ids, the rank of each among all words."""
    ids, first = tokens_to_score(start, asked, voice)
    positions_left(core.config, len(ids))
    cache = model.KVCache() if start.cache is None and asked.cache_out else start.cache
    read = 0 if cache is None else cache.length
    context = layers.new_context(
        memory=start.memory if cache is None or start.memory is None else start.memory[None],
        cache=cache,
        visit=tracer.visit,
        dtype=asked.dtype,
    )
    tokens = np.array(ids[read:])
    x = model.run(core, model.layer_plan(core.config, "decoder"), tokens if cache is None else tokens[None], context)
    x = x if cache is None else x[0]
    unasked = 0 if asked.trace or asked.patch else first - 1 - read  # the head is the most of the work
    logits = model.head_logits(core, np.ascontiguousarray(x[unasked:]), tracer.visit)[first - 1 - read - unasked :]
    tracer.check()
    if asked.cache_out and cache is not None:
        words = voice.spelled(ids) if voice.tokenizer else None
        side_output = kv_cache_file.cache_record(cache, ids, words, start.source)
        callbacks.current().write_side_output(asked.cache_out, side_output)
    traced = Record({})
    if asked.trace:
        traced = tracer.record(voice.spelled(ids[read:]), start.source, voice.spelled(ids))
    return ScoredText(score_record(logits, ids, first, asked, voice), traced)


def tokens_to_score(start: Prompt, asked: GenerationOptions, voice: Detokenizer) -> tuple[list[int], int]:
    """All tokens of a text to score, and how many at its start are given."""
    if asked.score is None:
        silent = asked.emit in (None, "text", "ids") and not (asked.cache_out or asked.trace)
        none_given = asked.model_.config.encoder or asked.cache_in is not None  # else the first token is a text's own
        if silent and none_given and len(start.ids) <= start.given:
            raise UsageError("nothing to score; --score TEXT", "--max-tokens 0")
        return start.ids, start.given
    whole = (start.text or "") + asked.score
    if start.text is None or asked.cache_in is not None:
        more = tokenize_prompt(asked.score, asked, voice)
        special = asked.model_.config.special
        if asked.model_.config.encoder:
            more = text_inputs.with_eos(more, special)
        elif more[:1] == [special.bos]:
            more = more[1:]
        ids, first = [*start.ids, *more], len(start.ids)
    else:  # cut as one text, for a token may reach over the end of the prompt
        ids = tokenize_prompt(whole, asked, voice)
        first = common_prefix_length(ids, tokenize_prompt(start.text, asked, voice))
        if first == 0:
            ids, first = [*start.ids[:1], *ids] if not start.text else ids, 1
    if len(ids) <= first:
        raise DataError("no token to score", "--score")
    return ids, first


def score_record(logits: Array, ids: list[int], first: int, asked: GenerationOptions, voice: Detokenizer) -> Record:
    """The record of the scores of tokens: logits (T + 1, N) from the token before the first one on."""
    words = np.array(ids[first:], dtype=np.int64)
    rows = logits[: len(words)]
    if asked.emit in ("logits", "probs"):
        rows, words = (logits, np.array(ids[first - 1 :], dtype=np.int64)) if asked.score is None else (rows, words)
        made = rows if asked.emit == "logits" else model.probabilities(rows)
        arrays, said = {"x": made, "ids": words}, asked.emit
    elif asked.emit == "ids":
        arrays, said = {"x": words}, "tokens"
    else:
        logprobs = model.score_tokens(rows, words)
        rank = (rows > np.take_along_axis(rows, words[:, None], axis=-1)).sum(axis=-1) + 1
        arrays, said = {"x": logprobs, "ids": words, "rank": rank}, "log-probability of each token"
    axes = {name: ("token", "vocab")[: array.ndim] for name, array in arrays.items()}
    labels: dict[str, Labels] = {}
    if voice.tokenizer:
        labels["token"] = voice.spelled([int(word) for word in words])
        if arrays["x"].ndim == 2 and (names := voice.words()):
            labels["vocab"] = names
        if voice.joins:
            labels["text"] = [voice.text(ids)]
    return Record({}).put(arrays, axes, labels, {"x": said})
