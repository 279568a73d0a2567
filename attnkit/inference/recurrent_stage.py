"""Run one recurrent layer of a model on a record, or all layers of a decoder that attends between its tokens."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.inference import layers, source_states
from attnkit.inference.masking import AttendedTensor
from attnkit.inference.recurrent import INTERMEDIATES, expand_names
from attnkit.inference.tracer import intermediate_axes
from attnkit.record import Array, Labels, Record, Tensor

WEIGHTS = "decoder.cross.weights"


def run_layer_of_model(record: Record, flags: Mapping[str, Any]) -> Record:
    """Return a record with x after a recurrent layer of a model, for the values of the flags of rnn.

    The last states of an encoder's layers travel in the record as `memory_state` and `memory_cell`; a decoder begins
    with those of --memory.
    """
    checkpoint, memory = flags["model_"], flags["memory"]
    layer = layers.find_layer(checkpoint, flags["layer"], "rnn")
    config = layers.require_recurrent(checkpoint)
    stack = config.recurrent_stack(model.parse_layer_name(layer)[0])
    names = requested_names(flags["keep"], stack.cell, flags["steps"], layer)
    record = layers.normalize_mask(record)
    x, arrays = check_input(record["x"], config, layer), dict[str, Array]()
    context = layers.context_from(record, **memory_fields(memory, config, x), hook=find_intermediates(arrays, names))
    y = model.run(layers.core_model(checkpoint), [model.Step("rnn", layer)], x, context)
    tensors = {short_name(name, config): Tensor(one, intermediate_axes(name, one.ndim)) for name, one in arrays.items()}
    tensors["x"] = Tensor(y, record.tensor("x").axes_like(y.shape), formula=formula_of(layer))
    labels: dict[str, Labels] = {}
    if WEIGHTS in arrays and memory is not None and (source := memory.labels_of("x", -2)):
        labels["source"] = source
    if WEIGHTS in arrays and (tokens := record.labels_of("x", -2)):
        labels["query"] = tokens
    record = record.without([name for name in (*INTERMEDIATES, "weights") if name in record])
    return source_states.add_last_states(record, config, context, x.ndim == 3).with_tensors(tensors, labels)


def requested_names(keep: Collection[str], cell: str, steps: bool, layer: str) -> tuple[str, ...]:
    """Return the endings of the intermediates to keep: of the cell, and the weights of a decoder that attends."""
    is_attentive = model.parse_layer_name(layer)[1] is None
    if "weights" in keep and not is_attentive:
        raise UsageError(f"{layer} has no attention inside: no weights", "--keep")
    rest = [name for name in keep if name != "weights"]
    names = expand_names(rest, cell, steps, True) if rest or steps else ()
    return (*names, *["weights"] * (is_attentive and ("weights" in keep or steps)))


def find_intermediates(arrays: dict[str, Array], names: Collection[str]) -> model.Hook:
    """Return a hook that adds the intermediates whose names end so."""

    def hook(name: str) -> Callable[[Array], Array] | None:
        if name.rpartition(".")[2] not in names:
            return None

        def visit(array: Array) -> Array:
            arrays[name] = array
            return array

        return visit

    return hook if names else model.no_hook


def check_input(x: Array, config: model.RecurrentConfig, layer: str) -> Array:
    """Return x (T, D) or (B, T, D) as floats, once its width is that of the input of the layer."""
    stack, number, _ = model.parse_layer_name(layer)
    chosen = config.recurrent_stack(stack)
    width = config.input_width(stack, number) if number is not None else chosen.embedding
    if x.ndim not in (2, 3) or x.shape[-1] != width:
        raise DataError(f"x {x.shape}: expected (T, {width}) or (B, T, {width}) for {layer}")
    return x.astype(model.output_dtype(x), copy=False)


def memory_fields(memory: AttendedTensor | None, config: model.RecurrentConfig, x: Array) -> dict[str, Any]:
    """Return the fields of a context that a memory gives: itself, its mask, and the last states of its encoder."""
    if memory is None:
        return {}
    states, rows = memory["x"], len(x) if x.ndim == 3 else 1
    if states.ndim != x.ndim or states.shape[-1] != config.memory_width or (x.ndim == 3 and len(states) != rows):
        width = config.memory_width
        raise DataError(f"{states.shape} for x {x.shape}: expected the same batch, and width {width}", "--memory")
    arrays = {name: memory.companions[name] for name in memory.companions}
    last = source_states.read_states(arrays, config, rows, states.dtype.name)
    mask = None if memory.mask is None else memory.mask["x"]
    return {"memory": states, "memory_mask": mask, "source_states": None if last is None else stack_rows(last)}


def stack_rows(rows: Sequence[tuple[model.State, ...]]) -> tuple[model.State, ...]:
    """Return the states of the layers of one batch, from those of its rows.

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


def short_name(name: str, config: model.RecurrentConfig) -> str:
    """Return the name of an intermediate in a record: of one of several layers with its number, as reset_gate_l1.

    >>> short_name("encoder.1.rnn.state", model.RecurrentConfig("seq2seq", 2))
    'state'
    """
    layer, _, own = name.rpartition(".")
    stack, number, _ = model.parse_layer_name(layer)
    has_many = config.decoding.is_sequential and stack == "decoder" and config.stack(stack).layers > 1
    return f"{own}_l{number}" if has_many and number is not None else own


def formula_of(layer: str) -> str:
    """Return what x is after a layer."""
    return "states, and what attention adds to them" if model.parse_layer_name(layer)[1] is None else "hidden states"
