"""A decoder with attention inside its recurrence, recorded in a forward pass.

What one token computes is that of model/recurrent_decoder.py. Arrays are kept by token, (T, B, ...).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnkit.errors import DataError
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, quiet
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.masks import mask_block
from attnkit.model.recurrent_cells import CELLS, State, map_state, multiply_input
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
from attnkit.model.softmax import softmax


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
def record_decoder(model: Model, layer: str, x: Array, context: Context) -> tuple[Array, dict[str, Any]]:
    """Return what `attend_and_recur` does, and the record that `decoder_backward` needs.

    x (..., T, E) -> (..., T, C)

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
    return outputs.astype(x.dtype, copy=False).reshape(*x.shape[:-1], outputs.shape[-1]), {
        "record": record,
        "real": real,
    }


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
