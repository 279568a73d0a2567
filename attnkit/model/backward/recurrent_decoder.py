"""The adjoint of a decoder with attention inside its recurrence.

Only what the next token needs is computed token by token; the gradients of parameters are one matrix product over all
tokens each.
"""

from dataclasses import dataclass

import numpy as np

from attnkit.model.backward.linear import as_rows, sum_rows
from attnkit.model.backward.recorded_decoder import DecoderRecord, by_text, named_intermediates
from attnkit.model.backward.recurrent import UNDO, SumGradients, sum_parameter_gradients
from attnkit.model.backward.recurrent_model import first_state_backward
from attnkit.model.backward.scores import softmax_backward
from attnkit.model.backward.tape import RecordedStep, Reverse
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, quiet
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.kernels.products import matrix_product
from attnkit.model.recurrent_cells import State, map_state
from attnkit.model.recurrent_decoder import (
    CROSS,
    READOUT,
)


@dataclass
class DecoderGradients:
    """The gradients of what a decoder computed, in the places of DecoderRecord.

    sums      of each layer, of the sums of its gates, (T, B, G·H)
    hidden    of each layer (T, B, P), and cells (T, B, H)
    queries   (T, B, A) of what is compared with the keys, and keys (B, S, A) of an additive score
    fed       (T + 1, B, R) of input feeding, and readout (T, B, R) before its hyperbolic tangent
    carry     of what each layer was handed, at the token that is undone
    """

    sums: list[SumGradients]
    hidden: list[Array]
    cells: list[Array | None]
    contexts: Array
    weights: Array
    scores: Array
    queries: Array
    keys: Array
    fed: Array | None
    readout: Array | None
    carry: list[State]


@quiet
def decoder_backward(model: Model, recorded: RecordedStep, dy: Array, context: Context, reverse: Reverse) -> Array:
    """Return the gradient of the embeddings of a decoder; add those of its parameters, of the memory and first states.

    dy (..., T, C), x (..., T, E) -> (..., T, E)
    """
    record, real = recorded.saved["record"], recorded.saved["real"]
    slope = dy if dy.ndim == 3 else dy[None]
    if real is not None:
        slope = np.where(real[..., None], slope, 0)
    slope = cast(slope, record.scores.dtype).swapaxes(0, 1)
    gradients = new_gradients(record)
    for t in reversed(range(len(slope))):
        undo_token(record, gradients, t, slope[t])
    show_gradients(record, gradients, reverse.hook, recorded.x.ndim == 3)
    add_layer_gradients(record, gradients, reverse)
    add_attention_gradients(record, gradients, reverse, recorded.x.ndim == 3)
    for number, state in enumerate(gradients.carry):
        first_state_backward(model, f"decoder.{number}.rnn", state, context, reverse)
    weight, width = record.decoder.layers[0]["input"], record.x.shape[-1]
    dx = matrix_product(as_rows(gradients.sums[0].inputs), weight[:, :width]).reshape(record.x.shape)
    if record.asks_before and record.decoder.config.decoding.readout_width:
        dx += slope[..., record.decoder.width : record.decoder.width + width]
    return dx.swapaxes(0, 1).reshape(recorded.x.shape)


def new_gradients(record: DecoderRecord) -> DecoderGradients:
    """Return the arrays that the adjoints of the tokens write to."""
    sums, hidden, cells, carry = [], [], [], []
    for layer, params in zip(record.layers, record.decoder.layers, strict=True):
        inputs = np.empty((*record.x.shape[:2], len(params["input"])), layer.hidden.dtype)
        state = map_state(np.zeros_like, layer.state(0))
        sums.append(SumGradients(inputs, np.empty_like(inputs) if "product" in layer.gates else inputs, state))
        hidden.append(np.empty_like(layer.hidden[1:]))
        cells.append(None if layer.cell is None else np.empty_like(layer.cell[1:]))
        carry.append(state)
    keys = record.attended.keys
    return DecoderGradients(
        sums,
        hidden,
        cells,
        np.zeros_like(record.contexts),
        np.empty_like(record.weights),
        np.empty_like(record.scores),
        np.empty((*record.x.shape[:2], keys.shape[-1]), keys.dtype),
        np.zeros_like(keys) if record.inner is not None else np.empty(0, keys.dtype),
        None if record.fed is None else np.zeros_like(record.fed),
        None if record.fed is None else np.empty_like(record.fed[1:]),
        carry,
    )


def undo_token(record: DecoderRecord, gradients: DecoderGradients, t: int, dy: Array) -> None:
    """Undo one token: dy (B, C) is the gradient of what the decoder computed of it."""
    decoder, width = record.decoder, record.decoder.width
    top = gradients.carry[-1]
    if record.fed is not None and gradients.fed is not None and gradients.readout is not None:
        fed = record.fed[t + 1]
        gradients.fed[t + 1] += dy
        gradients.readout[t] = gradients.fed[t + 1] * (1 - fed * fed)
        both = gradients.readout[t] @ decoder.readout["w1"].T
        gradients.contexts[t] += both[:, :-width]
        query = undo_attention(record, gradients, t)
        gradients.carry[-1] = State(top.hidden + both[:, -width:] + query, top.cell)
    elif decoder.config.decoding.readout_width:
        gradients.contexts[t] += dy[:, width + record.x.shape[-1] :]
    else:
        gradients.carry[-1] = State(top.hidden + dy, top.cell)
    undo_layers(record, gradients, t)
    if record.asks_before:
        hidden = undo_attention(record, gradients, t)
        if decoder.config.decoding.readout_width:
            hidden += dy[:, :width]
        top = gradients.carry[-1]
        gradients.carry[-1] = State(top.hidden + hidden, top.cell)


def undo_layers(record: DecoderRecord, gradients: DecoderGradients, t: int) -> None:
    """Undo the layers of one token, the last first, and add the gradient of what the embedding had beside it."""
    decoder, below = record.decoder, None
    for number in reversed(range(len(record.layers))):
        layer, params, after = record.layers[number], decoder.layers[number], gradients.carry[number]
        grad = after if below is None else State(after.hidden + below, after.cell)
        gates = {name: gate[t] for name, gate in layer.gates.items()}
        one = UNDO[decoder.cell](grad, gates, layer.state(t), layer.state(t + 1), params)
        sums = gradients.sums[number]
        sums.inputs[t], gradients.hidden[number][t], gradients.carry[number] = one.inputs, grad.hidden, one.state
        if sums.products is not sums.inputs:
            sums.products[t] = one.products
        if (cells := gradients.cells[number]) is not None:
            cells[t] = grad.cell
        if number:
            below = one.inputs @ params["input"]
    target = gradients.contexts if record.asks_before else gradients.fed
    if target is not None:  # contexts of this token, the readout of the one before
        target[t] += gradients.sums[0].inputs[t] @ decoder.layers[0]["input"][:, -target.shape[-1] :]


def undo_attention(record: DecoderRecord, gradients: DecoderGradients, t: int) -> Array:
    """Undo the attention of one token, whose context has its whole gradient; return that of the state of its query."""
    decoder, (keys, memory, _) = record.decoder, record.attended
    weights = gradients.weights[t]
    np.matmul(memory, gradients.contexts[t][..., None], out=weights[..., None])
    scores = gradients.scores[t] = softmax_backward(weights, record.weights[t])
    query = gradients.queries[t]
    if record.inner is not None:
        slope = record.inner[t] * record.inner[t]
        np.subtract(1, slope, out=slope)
        np.matmul(scores[:, None], slope, out=query[:, None])
        query *= decoder.cross["va"].reshape(-1)
        slope *= scores[..., None]
        gradients.keys += slope
        slope_of_state: Array = query @ decoder.cross["wa"].T
        return slope_of_state
    np.matmul(scores[:, None], keys, out=query[:, None])
    slope_of_state = query @ decoder.cross["w"].T if "w" in decoder.cross else query.copy()
    return slope_of_state


def add_layer_gradients(record: DecoderRecord, gradients: DecoderGradients, reverse: Reverse) -> None:
    """Add the gradients of the parameters of the layers and of the readout, each by one product over all tokens."""
    added = record.added()
    x = record.x if added is None else np.concatenate([record.x, added], -1)
    for number, (layer, params) in enumerate(zip(record.layers, record.decoder.layers, strict=True)):
        before, after = layer.state(slice(None, -1)), layer.state(slice(1, None))
        sums, hidden = gradients.sums[number], gradients.hidden[number]
        parameters = sum_parameter_gradients(x, before, after, layer.gates, sums, hidden, params)
        reverse.add(f"decoder.{number}.rnn", parameters)
        x = after.hidden
    if gradients.readout is not None:
        both, slope = np.concatenate([record.contexts, x], -1), gradients.readout
        bias = {"b1": sum_rows(slope)} if "b1" in record.decoder.readout else {}
        reverse.add(READOUT, {"w1": matrix_product(as_rows(both).T, as_rows(slope)), **bias})


def add_attention_gradients(
    record: DecoderRecord, gradients: DecoderGradients, reverse: Reverse, is_batch: bool
) -> None:
    """Add the gradients of the parameters of the score, and of the memory, by products over all tokens."""
    cross, memory = record.decoder.cross, record.attended.memory
    queries, states = as_rows(gradients.queries), as_rows(record.queries())
    scores = gradients.scores.transpose(1, 2, 0)  # (B, S, T)
    total: Array = record.weights.transpose(1, 2, 0) @ gradients.contexts.swapaxes(0, 1)
    if record.inner is not None:
        slope, va = gradients.keys * cross["va"].reshape(-1), cross["va"]
        total += slope @ cross["ua"].T
        dva = as_rows(record.inner).T @ gradients.scores.ravel()
        weights = {"wa": matrix_product(states.T, queries), "ua": matrix_product(as_rows(memory).T, as_rows(slope))}
        reverse.add(CROSS, weights | {"va": dva.reshape(va.shape)})
    elif "w" in cross:
        reverse.add(CROSS, {"w": matrix_product(states.T, queries)})
        total += scores @ (record.queries() @ cross["w"]).swapaxes(0, 1)
    else:
        total += scores @ record.queries().swapaxes(0, 1)
    total = total if is_batch else total[0]
    reverse.memory = total if reverse.memory is None else reverse.memory + total


def show_gradients(record: DecoderRecord, gradients: DecoderGradients, hook: Hook, is_batch: bool) -> None:
    """Let a hook read the gradients of the intermediates, in the opposite order of a forward pass."""
    if hook is no_hook:
        return
    named: dict[str, Array | None] = {
        f"{CROSS}.{name}": getattr(gradients, name) for name in ("scores", "weights", "contexts")
    }
    named[f"{CROSS}.output"] = named.pop(f"{CROSS}.contexts")
    named[f"{READOUT}.output"] = None if gradients.fed is None else gradients.fed[1:]
    for number, hidden in enumerate(gradients.hidden):
        named |= {f"decoder.{number}.rnn.state": hidden, f"decoder.{number}.rnn.cell": gradients.cells[number]}
    for name in reversed(list(named_intermediates(record))):
        array = named.get(name)
        if array is not None:
            apply_hook(hook, name, by_text(name, array, is_batch))
