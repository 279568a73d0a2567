"""The last states of a recurrent encoder, which a record keeps beside its memory."""

from collections.abc import Mapping

import numpy as np

from attnkit import model
from attnkit.errors import DataError
from attnkit.inputs.operands import LAST_STATES
from attnkit.model import Array
from attnkit.records import Record, Tensor


def source_states_record(states: tuple[model.State, ...], is_batch: bool) -> Record:
    """The record of the last states of an encoder: (layer, P), or (batch, layer, P).

    >>> one = model.State(np.zeros((1, 4)))
    >>> source_states_record((one, one), is_batch=False)["memory_state"].shape
    (2, 4)
    """
    tensors = {}
    for name, parts in zip(LAST_STATES, zip(*states, strict=True), strict=True):
        if all(part is not None for part in parts):
            stacked = np.stack(parts, axis=1)
            axes = ("batch", "layer", "model")
            tensors[name] = Tensor(stacked if is_batch else stacked[0], axes if is_batch else axes[1:])
    return Record(tensors)


def add_last_states(record: Record, config: model.Config, context: model.Context, is_batch: bool) -> Record:
    """Add the last states of the encoder layers that ran to the record."""
    stack = config.encoder if isinstance(config, model.RecurrentConfig) else None
    ran = [n for n in range(stack.layers if stack else 0) if f"encoder.{n}.rnn" in context.final_states]
    if not ran:
        return record
    new = source_states_record(tuple(context.final_states[f"encoder.{n}.rnn"] for n in ran), is_batch)
    for name in new:
        before = record[name][..., : ran[0], :] if ran[0] and name in record else new[name][..., :0, :]
        both = np.concatenate([before, new[name]], axis=-2)
        record = record.with_tensors({name: Tensor(both, new.axes_of(name))})
    return record


def read_states(
    arrays: Mapping[str, Array], config: model.Config, rows: int, dtype: str
) -> list[tuple[model.State, ...]] | None:
    """Read the last states of the encoder for each text; None if none is needed.

    DataError if one is missing or has another shape.
    """
    if not isinstance(config, model.RecurrentConfig) or config.encoder is None or config.decoding.bridge == "none":
        return None
    stack = config.recurrent_stack("encoder")
    names = LAST_STATES if stack.has_cell_state else LAST_STATES[:1]
    shape = (rows, stack.layers, config.memory_width)
    parts = []
    for name in names:
        if name not in arrays:
            raise DataError(f"the record has a memory and no {name}, which the decoder begins with")
        if arrays[name].shape not in (shape, shape[1:] if rows == 1 else shape):
            raise DataError.about(name, f"{arrays[name].shape}: expected {shape}")
        parts.append(arrays[name].reshape(shape).astype(dtype, copy=False))
    return [
        tuple(model.State(*(part[row, number][None] for part in parts)) for number in range(stack.layers))
        for row in range(rows)
    ]
