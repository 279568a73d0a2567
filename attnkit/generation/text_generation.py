"""Generate or score text with a whole model, from the input to the record.

Every text is computed alone, without padding, so that a text of a batch is what it is by itself.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.generation.generate import (
    Generation,
    StepCandidates,
    TextModel,
    generate_one,
    positions_left,
    split_prompt,
    truncate_at_stop,
    write_cache,
)
from attnkit.generation.options import GenerationOptions, check_options
from attnkit.generation.prompts import Prompt, make_detokenizer, make_prompts, memory_context, tokenize_prompt
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.detokenizer import Detokenizer, common_prefix_length
from attnkit.interpret.tracer import axis_labels
from attnkit.model import GeneratedText, Model
from attnkit.records import Array, Labels, Record, Tensor, shared_labels

TOKEN_TENSORS = ("x", "ids", "mask", "types", "token_type_ids", "scores")


def run_decode(source: Sequence[str] | Record | None, options: GenerationOptions) -> Record | str:
    """Generate or score text after texts or ids, as a record or as text."""
    check_options(options)
    source = layers.ids_from_x(source) if isinstance(source, Record) else source
    core = layers.complete_model(options.model_)
    if not core.config.head:
        raise UsageError(f"this {core.config.family} model has no head: it maps tokens to vectors", "--model")
    if core.engine and options.inspection.grad:
        raise UsageError("numpy computes gradients (--engine numpy)", "--grad")
    detokenizer = make_detokenizer(options)
    prompts, is_batch = make_prompts(source, options, detokenizer)
    for flag, value in (
        ("--best", options.search.best),
        ("--cache-out", options.cache_out),
        ("--grad", options.inspection.grad),
    ):
        if is_batch and value:
            raise UsageError("needs a single text, got a batch", flag)
    if options.score is not None or options.max_tokens == 0:
        record = score_prompts(core, prompts, options, detokenizer, is_batch)
    else:
        record = generate_texts(core, prompts, options, detokenizer, is_batch)
    if options.emit == "text":
        texts = shared_labels(record.labels.get("text"))
        if not texts:
            raise UsageError("--emit text needs words, and the model has no tokenizer that joins them")
        return "\n".join(texts)
    if not isinstance(source, Record):
        return record
    text_axes = {"token", "key", "query", "vocab"}  # tensors with one of them are of the text before
    rest = [name for name in source if name not in TOKEN_TENSORS and not text_axes & set(source.axes_of(name))]
    return record.merge(source.select(rest))


def generate_texts(
    core: Model, prompts: list[Prompt], options: GenerationOptions, detokenizer: Detokenizer, is_batch: bool
) -> Record:
    """Generate a text after each prompt, and write traces of the whole texts."""
    if core.engine is None:
        layers.prepare_decoding(options.model_, options.token_limit)
    untraced = options._replace(inspection=options.inspection._replace(trace=None))
    text_model = TextModel(core, options, detokenizer, untraced.tracer())
    traced = prompts if options.inspection.trace else []
    caches = copy.deepcopy([prompt.cache for prompt in traced])  # generation extends them
    generations = [generate_one(text_model, prompt, len(prompts) == 1) for prompt in prompts]
    text_model.tracer.check()
    if options.inspection.trace:
        traces = [
            trace_text(
                text_model._replace(tracer=options.tracer()),
                prompt._replace(cache=cache),
                [*prompt.ids, *generation.sequences[0].ids],
            )
            for prompt, cache, generation in zip(prompts, caches, generations, strict=True)
        ]
        batch = pad_records(traces, detokenizer.padding, PadLayout() if is_batch else None)
        callbacks.current().write_side_output(options.inspection.trace, batch)
    return generation_record(prompts, generations, text_model, is_batch)


def score_prompts(
    core: Model, prompts: list[Prompt], options: GenerationOptions, detokenizer: Detokenizer, is_batch: bool
) -> Record:
    """Score the texts of prompts, each with its own tracer, and write the traces."""
    scored = [score_text(TextModel(core, options, detokenizer, options.tracer()), prompt) for prompt in prompts]
    layout = PadLayout() if is_batch else None
    columns = [prompt.columns for prompt in prompts if prompt.columns is not None]
    if is_batch and len(columns) == len(prompts) > 0 and options.score is None and options.cache_in is None:
        layout = PadLayout(columns, prompts[0].width)  # the tokens scored are those of the padded batch
    record = pad_records([text.record for text in scored], detokenizer.padding, layout)
    if layout:
        record = add_padding_mask(record, ("batch",), [len(text.record["x"]) for text in scored], layout)
    if options.inspection.trace:
        traces = pad_records([text.trace for text in scored], detokenizer.padding, layout)
        callbacks.current().write_side_output(options.inspection.trace, traces)
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
    core, options, detokenizer, tracer = text_model
    ids, first = tokens_to_score(prompt, options, detokenizer)
    positions_left(core.config, len(ids))
    cache = model.new_cache(core.config) if prompt.cache is None and options.cache_out else prompt.cache
    past = 0 if cache is None else cache.length
    strings = detokenizer.token_strings
    tracer.begin(axis_labels(strings(ids), prompt.source), len(ids))
    x = hidden_states(text_model, prompt, cache, ids[past:])
    needed = first - 1 - past  # the head is most of the work, so that other rows are left out unless they are kept
    skipped = 0 if options.inspection.trace or options.inspection.patch else needed
    logits = model.head_logits(core, np.ascontiguousarray(x[skipped:]), tracer.visit)[needed - skipped :]
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
    detokenizer, labels = text_model.detokenizer, dict[str, Labels]()
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
    prompts = [before for before, _ in parts]
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
