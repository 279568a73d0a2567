"""Generate or score text with a whole model: from the input and the options to the record of the result.

Every text is computed alone, without padding, so that a text of a batch is what it is by itself.
"""

import copy
from collections.abc import Sequence

from attnkit import callbacks
from attnkit.errors import UsageError
from attnkit.generation.batching import PadLayout, add_padding_mask, pad_layout, pad_records
from attnkit.generation.generate import TextModel, generate_one, generation_record
from attnkit.generation.options import GenerationOptions, check_options, max_new_tokens
from attnkit.generation.prompts import Prompt, make_detokenizer, make_prompts
from attnkit.generation.scoring import score_text, trace_text
from attnkit.inputs import layers
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.model import Model
from attnkit.record import Record, shared_labels

TOKEN_TENSORS = ("x", "ids", "mask", "types", "token_type_ids", "scores")


def run_decode(source: Sequence[str] | Record | None, options: GenerationOptions) -> Record | str:
    """Generate text after texts or the ids of a record, or score texts; with emit="text" return the text alone."""
    check_options(options)
    source = layers.ids_from_x(source) if isinstance(source, Record) else source
    core = layers.complete_model(options.model_)
    if not core.config.head:
        raise UsageError(f"this {core.config.family} model has no head: it maps tokens to vectors", "--model")
    if core.engine and options.grad:
        raise UsageError("numpy computes gradients (--engine numpy)", "--grad")
    detokenizer = make_detokenizer(options)
    prompts, is_batch = make_prompts(source, options, detokenizer)
    for flag, value in (("--best", options.best), ("--cache-out", options.cache_out), ("--grad", options.grad)):
        if is_batch and value:
            raise UsageError("needs a single text, got a batch", flag)
    if options.is_scoring:
        record = score_prompts(core, prompts, options, detokenizer, is_batch)
    else:
        record = generate_texts(core, prompts, options, detokenizer, is_batch)
    if options.emit == "text":
        texts = shared_labels(record.labels.get("text"))
        if not texts:
            raise UsageError("--emit text needs words, and the model has no tokenizer that joins them")
        return "\n".join(texts)
    return record.merge(unrelated_tensors(source)) if isinstance(source, Record) else record


def generate_texts(
    core: Model, prompts: list[Prompt], options: GenerationOptions, detokenizer: Detokenizer, is_batch: bool
) -> Record:
    """Generate a text after each prompt; write their traces if requested, each of one pass over the whole text."""
    if core.engine is None:
        layers.prepare_decoding(options.model_, max_new_tokens(options))
    text_model = TextModel(core, options, detokenizer, options._replace(trace=None).tracer())
    caches = copy.deepcopy([prompt.cache for prompt in prompts]) if options.trace else []  # generation extends them
    generations = [generate_one(text_model, prompt, len(prompts) == 1) for prompt in prompts]
    text_model.tracer.check()
    if options.trace:
        traces = [
            trace_text(
                text_model._replace(tracer=options.tracer()),
                prompt._replace(cache=cache),
                [*prompt.ids, *generation.sequences[0].ids],
            )
            for prompt, cache, generation in zip(prompts, caches, generations, strict=True)
        ]
        batch = pad_records(traces, detokenizer.padding, PadLayout() if is_batch else None)
        callbacks.current().write_side_output(options.trace, batch)
    return generation_record(prompts, generations, text_model, is_batch)


def score_prompts(
    core: Model, prompts: list[Prompt], options: GenerationOptions, detokenizer: Detokenizer, is_batch: bool
) -> Record:
    """Score the texts of prompts, each with a tracer of its own; write their traces if requested."""
    scored = [score_text(TextModel(core, options, detokenizer, options.tracer()), prompt) for prompt in prompts]
    layout = pad_layout(prompts, options) if is_batch else None
    record = pad_records([text.record for text in scored], detokenizer.padding, layout)
    if layout:
        record = add_padding_mask(record, ("batch",), [len(text.record["x"]) for text in scored], layout)
    if options.trace:
        traces = pad_records([text.trace for text in scored], detokenizer.padding, layout)
        callbacks.current().write_side_output(options.trace, traces)
    if options.grad:
        callbacks.current().write_side_output(options.grad, scored[0].gradients)
    return record


def unrelated_tensors(record: Record) -> Record:
    """Return the tensors of a record that have no axis of the tokens of its text."""
    token_axes = {"token", "key", "query", "vocab"}
    return record.select(
        [name for name in record if name not in TOKEN_TENSORS and not token_axes & set(record.axes_of(name))]
    )
