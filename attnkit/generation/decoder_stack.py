"""Run a decoder without a vocabulary on hidden states."""

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import DataError
from attnkit.generation.options import DecodeOptions
from attnkit.generation.prompts import find_memory
from attnkit.generation.task import Input, ModelTask, require_states
from attnkit.inputs import layers
from attnkit.records import Record, Tensor, shared_labels


class DecoderStack(ModelTask):
    """Hidden states of a decoder without a vocabulary: its input is x."""

    def run_model(self, source: Input) -> Record:
        """The hidden states of the decoder."""
        return run_decoder_stack(require_states(source), self.options)


def run_decoder_stack(record: Record, options: DecodeOptions) -> Record:
    """Run a decoder without a vocabulary on vectors x (..., T, D) -> (..., T, D)."""
    core, config = layers.complete_model(options.checkpoint), options.config
    x = record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {x.shape}: expected (T, {config.width}) or (B, T, {config.width})")
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
    if options.inspection.tracing.trace:
        names = None if source is None else shared_labels(source)
        callbacks.current().write_side_output(
            options.inspection.tracing.trace, tracer.record(record.labels.get("token"), names)
        )
    return record.with_tensors({"x": Tensor(y, record.axes_of("x"), formula="hidden states of the decoder")})
