"""Apply a model's last steps to hidden states, or a decoder without a vocabulary."""

from collections.abc import Sequence

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitError, DataError, UsageError
from attnkit.generation.options import GenerationOptions
from attnkit.inputs import encoding, layers, patches, text_inputs
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.inputs.output_matrix import OutputLogits, OutputOperands
from attnkit.records import Array, Labels, Record, Tensor, shared_labels


def apply_output_head(source: Sequence[str] | Record | None, options: GenerationOptions) -> OutputLogits:
    """Apply the head of a model to hidden states, texts or an image."""
    core, config = layers.core_model(options.model_), options.model_.config
    if not config.head:
        raise UsageError(f"this {config.family} model has no head: it maps tokens to vectors", "--model")
    tracer = options.tracer()
    if isinstance(source, Record):
        record = source
    else:  # run its only stack, as encode does, or its decoder over the source
        layers.check_pair(config, options.pair, source)
        read = text_inputs.ModelInput(
            source, options.pair, options.ids, options.image, options.tokenizer, options.batch, audio=options.audio
        )
        inputs, base = text_inputs.model_inputs(options.model_, config.stacks[0], read)
        has_both = bool(config.encoder and config.decoder)
        context = layers.context_from(base, hook=model.no_hook if has_both else tracer.visit, dtype=options.dtype)
        complete = layers.complete_model(options.model_)
        states = model.run(complete, config.plan(config.stacks[0]), inputs, context)
        if has_both:
            decoding = layers.new_context(
                memory=states, memory_mask=context.mask, hook=tracer.visit, dtype=options.dtype
            )
            states = model.run(complete, config.plan("decoder"), shift_source(config, inputs), decoding)
        record = Record({"x": Tensor(states, ("batch", "token", "model")[3 - states.ndim :])}).merge(base)
    x = record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {x.shape}: expected hidden states (T, {config.width}) or (B, T, {config.width})")
    logits = encoding.compute_logits(core, record, x, tracer.visit)
    callbacks.current().on_operands(OutputOperands(record, logits, core))
    tracer.check()
    if options.inspection.trace:
        tokens, memory_tokens = record.labels.get("token"), None
        if tokens and config.encoder and config.decoder:
            tokens, memory_tokens = shift_labels(tokens, options), tokens
        traced = tracer.record(tokens, memory_tokens).merge(patches.find_box(record))
        callbacks.current().write_side_output(options.inspection.trace, traced)
    if config.classes:
        return OutputLogits(record, logits, list(config.classes), None, "label", config.label_function)
    side = "target" if config.encoder and config.decoder else "source"
    try:
        tokenizer = options.tokenizer or text_inputs.tokenizer_of(options.model_, side)
    except AttnkitError:
        return OutputLogits(record, logits, [], None)
    return OutputLogits(record, logits, Detokenizer(tokenizer, logits.shape[-1]).words() or [], tokenizer.decode)


def shift_source(config: model.Config, ids: Array) -> Array:
    """Read the source after its start, as a classifier's decoder does.

    (..., T) -> (..., T)

    >>> shift_source(model.Config("bart", 2, special=model.SpecialTokens(start=2)), np.array([0, 5, 2])).tolist()
    [2, 0, 5]
    """
    start = np.full((*ids.shape[:-1], 1), config.special.start)
    return np.concatenate([start, ids[..., :-1]], axis=-1)


def shift_labels(tokens: Labels, options: GenerationOptions) -> Labels:
    """The tokens of `shift_source`, of one text or of each."""
    start = options.model_.config.special.start or 0
    size = options.model_.config.stack("decoder").vocab
    words = text_inputs.vocabulary_of(options.model_, "source", options.tokenizer, size)
    first = words[start] if start < len(words) else str(start)
    rows = [[first, *row[:-1]] for row in ([tokens] if isinstance(tokens[0], str) else tokens)]
    return rows[0] if isinstance(tokens[0], str) else rows


def run_decoder_stack(record: Record, options: GenerationOptions) -> Record:
    """Run a decoder without a vocabulary on vectors x (..., T, D) -> (..., T, D)."""
    core, config = layers.complete_model(options.model_), options.model_.config
    x = record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {x.shape}: expected (T, {config.width}) or (B, T, {config.width})")
    from attnkit.generation.prompts import find_memory

    memory, mask, source = find_memory(record, options.memory)
    if memory is not None and (memory.ndim != x.ndim or memory.shape[-1] != config.width):
        raise DataError.about(
            "memory", f"{memory.shape} for x {x.shape}: expected the same batch, and width {config.width}"
        )
    if memory is not None and memory is record.get("memory") and np.array_equal(x, memory):
        raise DataError("x is the memory itself: the target comes as x, as in decode --memory FILE < target.npz")
    tracer = options.tracer()
    for each in (record.get("mask"), mask):
        layers.warn_empty_mask_rows(each)
    context = layers.context_from(record, memory=memory, memory_mask=mask, hook=tracer.visit)
    y = model.run(core, config.plan("decoder"), x.astype(options.dtype or x.dtype, copy=False), context)
    tracer.check()
    if options.inspection.trace:
        names = None if source is None else shared_labels(source)
        callbacks.current().write_side_output(
            options.inspection.trace, tracer.record(record.labels.get("token"), names)
        )
    return record.with_tensors({"x": Tensor(y, record.axes_of("x"), formula="hidden states of the decoder")})
