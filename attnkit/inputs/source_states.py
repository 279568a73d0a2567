"""The last states of a recurrent encoder, which a record keeps beside its memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnkit import model
from attnkit.errors import DataError
from attnkit.inputs.operands import LAST_STATES, AttendedTensor
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
    ran = [
        n for n in range(config.encoder.layers if config.encoder else 0) if f"encoder.{n}.rnn" in context.final_states
    ]
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
    if (states := config.source_states) is None:
        return None
    names, shape = LAST_STATES[: states.parts], (rows, states.layers, states.width)
    parts = []
    for name in names:
        if name not in arrays:
            raise DataError(f"the record has a memory and no {name}, which the decoder begins with")
        if arrays[name].shape not in (shape, shape[1:] if rows == 1 else shape):
            raise DataError.about(name, f"{arrays[name].shape}: expected {shape}")
        parts.append(arrays[name].reshape(shape).astype(dtype, copy=False))
    return [
        tuple(model.State(*(part[row, number][None] for part in parts)) for number in range(states.layers))
        for row in range(rows)
    ]


def memory_fields(memory: AttendedTensor | None, config: model.RecurrentConfig, x: Array) -> dict[str, Any]:
    """The fields of a context for a memory, its mask and its encoder's last states."""
    if memory is None:
        return {}
    states, rows = memory["x"], len(x) if x.ndim == 3 else 1
    if states.ndim != x.ndim or states.shape[-1] != config.memory_width or (x.ndim == 3 and len(states) != rows):
        width = config.memory_width
        raise DataError(f"{states.shape} for x {x.shape}: expected the same batch, and width {width}", "--memory")
    arrays = {name: memory.companions[name] for name in memory.companions}
    last = read_states(arrays, config, rows, states.dtype.name)
    mask = None if memory.mask is None else memory.mask["x"]
    return {"memory": states, "memory_mask": mask, "source_states": None if last is None else stack_rows(last)}


def stack_rows(rows: Sequence[tuple[model.State, ...]]) -> tuple[model.State, ...]:
    """Join the states of the rows of a batch.

    >>> one = model.State(np.zeros((1, 4)))
    >>> [state.hidden.shape for state in stack_rows([(one, one), (one, one)])]
    [(2, 4), (2, 4)]
    """

    def join(parts: Sequence[Array | None]) -> Array | None:
        arrays = [part for part in parts if part is not None]
        return np.concatenate(arrays) if arrays else None

    joined = []
    for states in zip(*rows, strict=True):
        hidden = np.concatenate([state.hidden for state in states])
        joined.append(model.State(hidden, join([state.cell for state in states])))
    return tuple(joined)
