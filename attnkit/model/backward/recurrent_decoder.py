"""A decoder with attention inside its recurrence: recorded in a forward pass, and undone token by token.

What one token computes is stated in model/recurrent_decoder.py. Arrays are kept by token, (T, B, ...). Only what the
next token needs is undone token by token; the gradients of parameters are one matrix product over all tokens each.
"""

from dataclasses import dataclass

import numpy as np

from attnkit.errors import DataError
from attnkit.model.backward.recurrent_backward import first_state_backward, sum_parameter_gradients
from attnkit.model.backward.tape import Reverse, Undo
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, quiet
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.kernels.products import matrix_product
from attnkit.model.linear import as_rows, sum_rows
from attnkit.model.masks import mask_block
from attnkit.model.recurrent_cells import CELLS, State, SumGradients, map_state, multiply_input
from attnkit.model.recurrent_decoder import (
    CROSS,
    READOUT,
    Attended,
    AttentiveDecoder,
    Carry,
    find_attended,
    first_carry,
    keep_carry,
    make_decoder,
    multiply_embeddings,
    real_tokens,
)
from attnkit.model.recurrent_model import gate_name
from attnkit.model.softmax import softmax, softmax_backward


@dataclass
class LayerRecord:
    """What a layer of the decoder computed: hidden (T + 1, B, P) and cell (T + 1, B, H) from the first state on."""

    hidden: Array
    cell: Array | None
    gates: dict[str, Array]

    def state(self, at: int | slice) -> State:
        """Return the state before a token, or the states before some."""
        return map_state(lambda part: part[at], State(self.hidden, self.cell))

    def keep(self, t: int, state: State, gates: dict[str, Array]) -> None:
        """Keep what token t computed."""
        self.hidden[t + 1] = state.hidden
        if self.cell is not None:
            self.cell[t + 1] = state.cell
        if not self.gates:
            self.gates |= {
                name: np.empty((len(self.hidden) - 1, *gate.shape), gate.dtype) for name, gate in gates.items()
            }
        for name, gate in gates.items():
            self.gates[name][t] = gate


@dataclass
class DecoderRecord:
    """What a decoder computed of T tokens.

    x         (T, B, E) embeddings
    layers    of each layer
    fed       (T + 1, B, R) of input feeding: the readouts, zeros first
    attended  the memory and its keys
    scores, weights  (T, B, S), of attention
    inner     (T, B, S, A) of an additive score: the hyperbolic tangents that it adds up
    contexts  (T, B, M) what attention found
    """

    decoder: AttentiveDecoder
    x: Array
    layers: list[LayerRecord]
    fed: Array | None
    attended: Attended
    scores: Array
    weights: Array
    inner: Array | None
    contexts: Array

    @property
    def asks_before(self) -> bool:
        """Whether attention asks with the state before the token."""
        return self.decoder.config.decoding.asks_before

    def queries(self) -> Array:
        """Return the states that attention asks with, (T, B, H)."""
        hidden = self.layers[-1].hidden
        return hidden[:-1] if self.asks_before else hidden[1:]

    def added(self) -> Array | None:
        """Return what the embeddings have beside them in the input of the first layer, (T, B, A)."""
        return self.contexts if self.asks_before else None if self.fed is None else self.fed[:-1]


@quiet
def decoder_vjp(model: Model, layer: str, x: Array, context: Context) -> tuple[Array, Undo]:
    """Run a decoder over its tokens as `attend_and_recur` does, and prepare to undo it: x (..., T, E) -> (..., T, C).

    DataError for a batch whose padding does not follow its texts.
    """
    batch = x if x.ndim == 3 else x[None]
    decoder = make_decoder(model, batch)
    real = real_tokens(context, batch.shape[:2])
    if real is not None and (real[:, 1:] > real[:, :-1]).any():
        raise DataError("texts that are padded before their first token have no gradients")
    record = new_record(decoder, batch, first_carry(model, decoder, batch, context), context)
    products = multiply_embeddings(decoder, batch).swapaxes(0, 1)
    for t in range(batch.shape[1]):
        run_token(record, t, products[t])
    keep_carry(context, last_carry(record), context.past + batch.shape[1])
    show_record(record, context.hook, x.ndim == 3)
    outputs = token_outputs(record).swapaxes(0, 1)
    if real is not None:
        outputs = np.where(real[..., None], outputs, 0)

    @quiet
    def undo(dy: Array, reverse: Reverse) -> Array:
        slope = dy if dy.ndim == 3 else dy[None]
        if real is not None:
            slope = np.where(real[..., None], slope, 0)
        slope = cast(slope, record.scores.dtype).swapaxes(0, 1)
        gradients = new_gradients(record)
        for t in reversed(range(len(slope))):
            undo_token(record, gradients, t, slope[t])
        show_gradients(record, gradients, reverse.hook, x.ndim == 3)
        add_layer_gradients(record, gradients, reverse)
        add_attention_gradients(record, gradients, reverse, x.ndim == 3)
        for number, state in enumerate(gradients.carry):
            first_state_backward(model, f"decoder.{number}.rnn", state, context, reverse)
        weight, width = decoder.layers[0]["input"], record.x.shape[-1]
        dx = matrix_product(as_rows(gradients.sums[0].inputs), weight[:, :width]).reshape(record.x.shape)
        if record.asks_before and decoder.config.decoding.readout_width:
            dx += slope[..., decoder.width : decoder.width + width]
        return dx.swapaxes(0, 1).reshape(x.shape)

    return outputs.astype(x.dtype, copy=False).reshape(*x.shape[:-1], outputs.shape[-1]), undo


def new_record(decoder: AttentiveDecoder, x: Array, carry: Carry, context: Context) -> DecoderRecord:
    """Return the arrays that a decoder writes to, with what the first token finds: x (B, T, E)."""
    tokens, attended = x.shape[1], find_attended(decoder, context, len(x))
    keys, memory = attended.keys, attended.memory

    def room(first: Array) -> Array:
        array = np.empty((tokens + 1, *first.shape), first.dtype)
        array[0] = first
        return array

    layers = [
        LayerRecord(room(state.hidden), None if state.cell is None else room(state.cell), {}) for state in carry.states
    ]
    scores = np.empty((tokens, len(x), keys.shape[1]), keys.dtype)
    is_additive = decoder.config.decoding.score == "additive"
    return DecoderRecord(
        decoder,
        np.ascontiguousarray(cast(x, keys.dtype).swapaxes(0, 1)),
        layers,
        None if carry.fed is None else room(carry.fed),
        attended,
        scores,
        np.empty_like(scores),
        np.empty((*scores.shape, keys.shape[2]), keys.dtype) if is_additive else None,
        np.empty((tokens, len(x), memory.shape[2]), memory.dtype),
    )


def run_token(record: DecoderRecord, t: int, product: Array) -> None:
    """Compute one token, of whose embedding the input weights of the first layer make `product` (B, G·H)."""
    decoder = record.decoder
    if record.asks_before:
        attend_token(record, t, record.layers[-1].hidden[t])
    added = record.added()
    if added is not None:
        product = product + added[t] @ decoder.layers[0]["input"][:, -added.shape[-1] :].T
    advance = CELLS[decoder.cell].advance
    for number, (params, layer) in enumerate(zip(decoder.layers, record.layers, strict=True)):
        if number:
            product = multiply_input(record.layers[number - 1].hidden[t + 1], params)
        layer.keep(t, *advance(product, layer.state(t), params))
    if record.asks_before:
        return
    after = record.layers[-1].hidden[t + 1]
    attend_token(record, t, after)
    if record.fed is not None:
        both = np.concatenate([record.contexts[t], after], -1)
        np.tanh(both @ decoder.readout["w1"] + decoder.readout.get("b1", 0), out=record.fed[t + 1])


def attend_token(record: DecoderRecord, t: int, state: Array) -> None:
    """Attend to the memory with a state (B, H): write scores, weights and the context vector of token t."""
    decoder, (keys, memory, allowed) = record.decoder, record.attended
    scores = record.scores[t]
    if record.inner is not None:
        inner = record.inner[t]
        np.add(keys, (state @ decoder.cross["wa"])[:, None], out=inner)
        np.tanh(inner, out=inner)
        np.matmul(inner, decoder.cross["va"].reshape(-1), out=scores)
    else:
        query = state @ decoder.cross["w"] if "w" in decoder.cross else state
        np.matmul(keys, query[..., None], out=scores[..., None])
    if allowed is not None:
        scores[...] = mask_block(scores, allowed)
    record.weights[t] = softmax(scores)
    np.matmul(record.weights[t][:, None], memory, out=record.contexts[t][:, None])


def token_outputs(record: DecoderRecord) -> Array:
    """Return what the decoder computed of the tokens, (T, B, C)."""
    hidden = record.layers[-1].hidden
    if record.fed is not None:
        return record.fed[1:]
    if record.decoder.config.decoding.readout_width:
        return np.concatenate([hidden[:-1], record.x, record.contexts], -1)
    return hidden[1:]


def last_carry(record: DecoderRecord) -> Carry:
    """Return what the last token hands on."""
    return Carry(tuple(layer.state(-1) for layer in record.layers), None if record.fed is None else record.fed[-1])


def named_intermediates(record: DecoderRecord) -> dict[str, Array]:
    """Return the intermediates by name, in the order in which they are computed, (T, B, ...)."""
    cross = {f"{CROSS}.{name}": getattr(record, name) for name in ("scores", "weights")}
    cross[f"{CROSS}.output"] = record.contexts
    layers: dict[str, Array] = {}
    for number, layer in enumerate(record.layers):
        name = f"decoder.{number}.rnn"
        layers |= {f"{name}.{gate_name(gate)}": array for gate, array in layer.gates.items() if gate != "product"}
        layers[f"{name}.state"] = layer.hidden[1:]
        if layer.cell is not None:
            layers[f"{name}.cell"] = layer.cell[1:]
    readout = {} if record.fed is None else {f"{READOUT}.output": record.fed[1:]}
    return (cross | layers if record.asks_before else layers | cross) | readout


def show_record(record: DecoderRecord, hook: Hook, is_batch: bool) -> None:
    """Let a hook read the intermediates, (B, T, ...), with a head where they are scores or weights."""
    if hook is no_hook:
        return
    for name, array in named_intermediates(record).items():
        apply_hook(hook, name, by_text(name, array, is_batch))


def by_text(name: str, array: Array, is_batch: bool) -> Array:
    """Return an intermediate (T, B, W) as hooks see it: (B, T, W), of scores and weights (B, 1, T, S)."""
    texts = array.swapaxes(0, 1)
    texts = texts[:, None] if name in (f"{CROSS}.weights", f"{CROSS}.scores") else texts
    return texts if is_batch else texts[0]


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
        one = CELLS[decoder.cell].undo(grad, gates, layer.state(t), layer.state(t + 1), params)
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
    reverse.add_memory(total if is_batch else total[0])


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
