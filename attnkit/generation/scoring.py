"""The gradients of a whole model that scores a text: of every intermediate of the run, and of every parameter."""

import warnings
from typing import NamedTuple

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.generation.generate import TextModel, positions_left, write_cache
from attnkit.generation.options import GenerationOptions, compute_dtype
from attnkit.generation.prompts import Prompt, memory_of, tokenize_prompt
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.detokenizer import Detokenizer, common_prefix_length
from attnkit.inputs.source_states import source_states_record
from attnkit.interpret.gradients.attribution import (
    Embeddings,
    attribute,
    attribution_record,
    count_points,
    read_and_replace,
)
from attnkit.interpret.gradients.check import CHECKED, STEP, CheckResult, Point, dot_gradients, draw_direction, move
from attnkit.interpret.gradients.pipeline import PipelineGradients, gather_tensors, layer_axes, select_names
from attnkit.interpret.gradients.stages import collect_gradients
from attnkit.interpret.gradients.tools import describe_trace
from attnkit.interpret.tracer import Tracer, axis_labels
from attnkit.model import Array
from attnkit.model.backward.recorded_steps import run_backward, run_recorded
from attnkit.model.backward.tape import Reverse, Tape
from attnkit.model.backward.tied import cast_parameters, sum_tied
from attnkit.model.backward.whole_models import head_backward, memory_gradient
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.loss import loss_and_gradient
from attnkit.record import Labels, Record, Tensor

LOSS = "loss"  # the name of the mean negative log-likelihood in the record


class ScoringPass(NamedTuple):
    """A recorded forward pass: the hidden states (T, D), the tape of each stack, and the memory (S, D), if any."""

    hidden: Array
    decoder: Tape
    encoder: Tape | None
    memory: Array | None


def score_gradients(text_model: TextModel, prompt: Prompt, ids: list[int], first: int) -> Record:
    """Return the gradients of the mean of −log p over the tokens of a text from the index `first` on.

    The record has `loss`, the mean itself, then the intermediates of the run in its order, under the names that a
    trace gives them, then the parameters. A memory from elsewhere has the gradient `memory`. With --check it has
    `check`. UsageError for a pattern of --grad-only that fits no name.
    """
    _, options, detokenizer, _ = text_model
    patterns = options.grad_only or ("*",)
    collected: dict[str, Array] = {}
    hook = collect_gradients(collected, {}, Tracer({"--grad-only": patterns}).wants)
    loss, reverse = run_reverse(text_model, prompt, ids, first, hook)
    tensors = describe_trace(collected, detokenizer.token_strings(ids), prompt.source)
    if prompt.source_ids is None and reverse.memory is not None:
        labels = {"source": prompt.source} if prompt.source else {}
        tensors["memory"] = Tensor(reverse.memory, ("source", "model"), labels)
    tensors |= source_state_gradients(reverse)
    tensors |= parameter_gradients(text_model.core, reverse)
    names = [*select_names(gather_tensors(tensors), patterns)]
    checked = {}
    if options.check:
        result = check_scoring(text_model, prompt, ids, first)
        callbacks.current().on_check(result.line(), result.error)
        checked = {CHECKED: result.tensor()}
    return gather_tensors({LOSS: Tensor(loss, ())} | tensors | checked).select([LOSS, *names, *checked])


def run_reverse(
    text_model: TextModel, prompt: Prompt, ids: list[int], first: int, hook: Hook = no_hook, forward: Hook = no_hook
) -> tuple[Array, Reverse]:
    """Return the mean of −log p over the tokens of a text from the index `first` on, and the gradients of its run.

    hook     receives the gradients of intermediates; forward: reads these, and may replace embeddings
    """
    core, reverse = text_model.core, Reverse(hook=hook)
    passed = run_scoring(text_model, prompt, ids, forward)
    logits = model.head_logits(core, passed.hidden)
    slope = np.zeros_like(logits)
    loss, slope[first - 1 : len(ids) - 1] = loss_and_gradient(logits[first - 1 : len(ids) - 1], ids[first:])
    run_backward(core, passed.decoder, head_backward(core, passed.hidden, slope, reverse), reverse)
    memory = memory_gradient(passed.decoder.context, reverse)
    if passed.encoder is not None and memory is not None:
        run_backward(core, passed.encoder, memory, reverse)
    return loss, reverse


def attribute_score(text_model: TextModel, prompt: Prompt, ids: list[int], first: int) -> Record:
    """Return how much each token contributes to the sum of log p over the tokens of a text from the index `first` on.

    x (T,) is of all tokens that the decoder reads, `source` (S,) of those that its encoder reads for it.
    """
    count, detokenizer = len(ids) - first, text_model.detokenizer
    names = {"decoder.embed": ("x", "token")}
    names |= {"encoder.embed": ("source", "source")} if prompt.source_ids is not None else {}

    def evaluate(embeddings: Embeddings, read: dict[str, Array] | None = None) -> tuple[float, dict[str, Array]]:
        collected: dict[str, Array] = {}
        hook, forward = collect_gradients(collected, {}, names.__contains__), read_and_replace(read or {}, embeddings)
        loss, _ = run_reverse(text_model, prompt, ids, first, hook, forward)
        return -count * float(loss), {name: -count * collected[name] for name in names}

    embeddings = {name: np.zeros(0) for name in names}
    evaluate({}, embeddings)
    result = attribute(embeddings, evaluate, count_points(text_model.options.attribute or ""))
    labels: dict[str, Labels] = {"token": detokenizer.token_strings(ids)}
    if prompt.source_ids is not None and prompt.source:
        labels["source"] = prompt.source
    return attribution_record(result, names, labels)


def check_scoring(text_model: TextModel, prompt: Prompt, ids: list[int], first: int) -> CheckResult:
    """Compare the gradients of a scored text with a central difference in float64, along a random direction."""
    config, params = text_model.core.config, text_model.core.params
    core = model.Model(config, cast_parameters({layer: params[layer] for layer in params}, np.float64))
    wide = text_model._replace(core=core, options=text_model.options._replace(dtype="float64"))
    loss, reverse = run_reverse(wide, prompt, ids, first)
    sums = sum_tied(reverse.gradients, core.params)
    layers = {layer: {name: core.params[layer][name] for name in parts} for layer, parts in sums.items()}
    gradients, arrays = PipelineGradients(models={"": (core, sums)}), {}
    if prompt.source_ids is None and prompt.memory is not None and reverse.memory is not None:
        gradients.tensors["memory"] = Tensor(reverse.memory)
        arrays["memory"] = prompt.memory.astype(np.float64)
    point = Point(arrays, {"": layers})
    direction = draw_direction(point, 0)

    def loss_at(step: float) -> float:
        moved = move(point, direction, step)
        new = {layer: {**core.params[layer], **moved.models[""].get(layer, {})} for layer in core.params}
        there = prompt._replace(memory=moved.arrays.get("memory", prompt.memory))
        return float(run_reverse(wide._replace(core=model.Model(config, new)), there, ids, first)[0])

    difference = (loss_at(STEP) - loss_at(-STEP)) / (2 * STEP)
    return CheckResult(dot_gradients(gradients, direction), difference, float(loss))


def run_scoring(text_model: TextModel, prompt: Prompt, ids: list[int], hook: Hook) -> ScoringPass:
    """Run the model on the ids of a text, and its encoder on those of the source; record both."""
    core, options = text_model.core, text_model.options
    memory, encoder, states = prompt.memory, None, prompt.source_states
    if prompt.source_ids is not None:
        context = model.Context(hook=hook, dtype=compute_dtype(options))
        memory, encoder = run_recorded(
            core, model.layer_plan(core.config, "encoder"), np.array(prompt.source_ids), context
        )
        states = context.last_states()
    context = model.Context(memory=memory, source_states=states, hook=hook, dtype=options.dtype)
    hidden, decoder = run_recorded(core, model.layer_plan(core.config, "decoder"), np.array(ids), context)
    return ScoringPass(hidden, decoder, encoder, memory)


def source_state_gradients(reverse: Reverse) -> dict[str, Tensor]:
    """Return the gradients of the encoder's last states that came with a memory, under the names of these."""
    if not reverse.states:
        return {}
    record = source_states_record(tuple(reverse.states[layer] for layer in sorted(reverse.states)), is_batch=False)
    return {name: record.tensor(name) for name in record}


def parameter_gradients(core: model.Model, reverse: Reverse) -> dict[str, Tensor]:
    """Return the gradients of the parameters by their names, as decoder.0.self.wq, in the order of the model."""
    sums = sum_tied(reverse.gradients, core.params)
    return {
        f"{layer}.{name}": Tensor(array, layer_axes(layer, name, array.ndim))
        for layer in core.params
        for name, array in sums.get(layer, {}).items()
    }


class ScoredText(NamedTuple):
    """The scores of the tokens of a text, the intermediates of the run that the tracer kept, and their gradients."""

    record: Record
    trace: Record
    gradients: Record


def score_text(text_model: TextModel, prompt: Prompt) -> ScoredText:
    """Score each token of a text after a prompt: log-probability x (T,), ids, the rank of each among all words."""
    core, options, detokenizer, tracer = text_model
    ids, first = tokens_to_score(prompt, options, detokenizer)
    positions_left(core.config, len(ids))
    cache = model.new_cache(core.config) if prompt.cache is None and options.cache_out else prompt.cache
    past = 0 if cache is None else cache.length
    strings = detokenizer.token_strings
    tracer.begin(axis_labels(strings(ids), prompt.source), len(ids))
    x = hidden_states(text_model, prompt, cache, ids[past:])
    skipped = 0 if options.trace or options.patch else first - 1 - past  # the head is the most of the work
    logits = model.head_logits(core, np.ascontiguousarray(x[skipped:]), tracer.visit)[first - 1 - past - skipped :]
    tracer.check()
    if options.cache_out and cache is not None:
        write_cache(cache, ids, text_model, prompt)
    trace = trace_of_pass(text_model, prompt, ids, past) if options.trace else Record({})
    gradients = Record({})
    if options.grad:
        gradients = score_gradients(text_model, prompt, ids, first)
    record = score_record(logits, ids, first, options, detokenizer)
    if options.attribute:
        record = attribute_score(text_model, prompt, ids, first)
    return ScoredText(record, trace, gradients)


def trace_text(text_model: TextModel, prompt: Prompt, ids: list[int]) -> Record:
    """Return the intermediates of one pass over all ids of a text, as scoring it would give them.

    The tokens of a KV cache are not computed again; nor is the last token, where the model has no position left for it.
    """
    core, tracer = text_model.core, text_model.tracer
    ids = ids[: positions_left(core.config, 1)]
    past = 0 if prompt.cache is None else prompt.cache.length
    labels = axis_labels(text_model.detokenizer.token_strings(prompt.ids), prompt.source)
    tracer.begin(labels, len(ids), min(len(prompt.ids), len(ids)))
    x = hidden_states(text_model, prompt, prompt.cache, ids[past:])
    model.head_logits(core, x, tracer.visit)
    tracer.check()
    return trace_of_pass(text_model, prompt, ids, past)


def trace_of_pass(text_model: TextModel, prompt: Prompt, ids: list[int], past: int) -> Record:
    """Return what the tracer kept of a pass over the ids of a text after the first `past`, labelled with its tokens."""
    strings = text_model.detokenizer.token_strings
    return text_model.tracer.record(strings(ids[past:]), prompt.source, strings(ids))


def hidden_states(text_model: TextModel, prompt: Prompt, cache: model.KVCache | None, ids: list[int]) -> Array:
    """Return what the decoder computes of ids after those in the cache: (T,) -> (T, D)."""
    core, options = text_model.core, text_model.options
    context = layers.new_context(
        **memory_of(prompt, is_batch=cache is not None),
        cache=cache,
        hook=text_model.tracer.visit,
        dtype=options.dtype,
    )
    tokens, plan = np.array(ids), model.layer_plan(core.config, "decoder")
    return model.run(core, plan, tokens, context) if cache is None else model.run(core, plan, tokens[None], context)[0]


def tokens_to_score(prompt: Prompt, options: GenerationOptions, detokenizer: Detokenizer) -> tuple[list[int], int]:
    """Return all tokens of a text, and the index of the first one to score."""
    if options.score is None:
        has_no_output = options.emit in (None, "text", "ids") and not (options.cache_out or options.trace)
        is_continued = options.model_.config.encoder or options.cache_in is not None
        if has_no_output and is_continued and len(prompt.ids) <= prompt.prefix:
            raise UsageError("nothing to score; --score TEXT", "--max-tokens 0")
        return prompt.ids, prompt.prefix
    if prompt.text is None or options.cache_in is not None:
        ids, first = [*prompt.ids, *continuation(options, detokenizer)], len(prompt.ids)
    else:  # tokenized as one text, as a token may cover the end of the prompt
        warn_joined_words(prompt.text, options.score)
        ids = tokenize_prompt(prompt.text + options.score, options, detokenizer)
        first = common_prefix_length(ids, tokenize_prompt(prompt.text, options, detokenizer))
        if first == 0:
            ids, first = [*prompt.ids[:1], *ids] if not prompt.text else ids, 1
    if len(ids) <= first:
        raise DataError("no token to score", "--score")
    return ids, first


def warn_joined_words(prompt: str, text: str) -> None:
    """Warn where the first word of a scored text continues the last word of its prompt, in scripts with spaces."""
    ends = prompt[-1:], text[:1]
    if all(end.isdigit() or end.isupper() or end.islower() for end in ends):
        problem = f"{text[:40]!r} continues the last word of {prompt[-40:]!r}; {' ' + text[:40]!r} begins a new one"
        warnings.warn(f"--score: {problem}", AttnkitWarning, stacklevel=2)


def continuation(options: GenerationOptions, detokenizer: Detokenizer) -> list[int]:
    """Return the ids of the text of --score as a continuation: without a start token, of a translation with an end."""
    ids = tokenize_prompt(options.score or "", options, detokenizer)
    special = options.model_.config.special
    if options.model_.config.encoder:
        return text_inputs.with_eos(ids, special)
    return ids[1:] if ids[:1] == [special.bos] else ids


def score_record(
    logits: Array, ids: list[int], first: int, options: GenerationOptions, detokenizer: Detokenizer
) -> Record:
    """Return the record of the scores of tokens: logits (T + 1, N) from the token before the first one on."""
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
