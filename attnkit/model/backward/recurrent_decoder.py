"""The adjoint of a decoder with attention inside its recurrence.

Its tokens are undone from the last to the first.

Only what an earlier token needs is undone token by token. The gradients of parameters are one matrix product over all
tokens each, of arrays (T, B, ...).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.backward.recurrent_backward import first_state_backward, recurrence_vjp, sum_parameter_gradients
from attnkit.model.backward.tape import Reverse, Undo
from attnkit.model.config import Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, quiet
from attnkit.model.formulas.linear import as_rows, sum_rows
from attnkit.model.formulas.recurrent_cells import CELLS, State, SumGradients, map_state
from attnkit.model.formulas.softmax import softmax_backward
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.model.layers.recurrent_decoder import CROSS, READOUT, Carry, DecoderRun, run_decoder
from attnkit.model.processor.products import matrix_product


class AttentionGradients(NamedTuple):
    """The gradients of the attention of one token.

    context, weights, scores  (B, M), (B, S) and (B, S)
    query                     (B, A) of what is compared with the keys
    """

    context: Array
    weights: Array
    scores: Array
    query: Array


class TokenGradients(NamedTuple):
    """Gradients of one token; with input feeding (B, R) of the readout and its sum.

    sums, states  of each layer the sums of its gates, and the state after the token
    """

    attention: AttentionGradients
    sums: list[SumGradients]
    states: list[State]
    readout: Array | None = None
    readout_sum: Array | None = None


@dataclass
class AdditiveGradients:
    """Gradients of keys (B, S, A) and va (A,) of an additive score, over all tokens."""

    keys: Array
    va: Array


@quiet
def recurrent_vjp(model: Model, step: Step, x: Array, context: Context) -> tuple[Array, Undo]:
    is_attentive = parse_layer_name(step.layer)[1] is None
    return (decoder_vjp if is_attentive else recurrence_vjp)(model, step.layer, x, context)


def decoder_vjp(model: Model, layer: str, x: Array, context: Context) -> tuple[Array, Undo]:
    """Run a decoder as `attend_and_recur` does: x (..., T, E) -> (..., T, C).

    DataError for a batch whose padding does not follow its texts.
    """
    y, run = run_decoder(model, layer, x, context, is_recorded=True)
    if run.real is not None and (run.real[:, 1:] > run.real[:, :-1]).any():
        raise DataError("texts that are padded before their first token have no gradients")

    @quiet
    def undo(dy: Array, reverse: Reverse) -> Array:
        is_batch, keys = x.ndim == 3, run.attended.keys
        embeddings, slope = (one if is_batch else one[None] for one in (x, dy))
        if run.real is not None:
            slope = np.where(run.real[..., None], slope, 0)
        embeddings, slope = (cast(one, keys.dtype).swapaxes(0, 1) for one in (embeddings, slope))  # (T, B, ...)
        additive = AdditiveGradients(np.zeros_like(keys), np.zeros(keys.shape[-1], keys.dtype))
        carry = Carry(tuple(map_state(np.zeros_like, state) for state in run.carries[0].states))
        tokens: list[TokenGradients] = []
        for t in reversed(range(len(slope))):
            token, carry = undo_token(run, t, slope[t], carry, additive)
            tokens.append(token)
        tokens.reverse()
        show_gradients(run, tokens, reverse.hook, is_batch)
        dinputs = add_layer_gradients(run, tokens, embeddings, reverse)
        dmemory = add_attention_gradients(run, tokens, additive, reverse)
        reverse.add_memory(dmemory if is_batch else dmemory[0])
        for number, state in enumerate(carry.states):
            first_state_backward(model, f"decoder.{number}.rnn", state, context, reverse)
        weight = run.decoder.layers[0]["input"][:, : x.shape[-1]]
        dx = matrix_product(as_rows(dinputs), weight).reshape(embeddings.shape)
        if run.decoder.config.decoding.asks_before and run.decoder.config.decoding.readout_width:
            dx += slope[..., run.decoder.width :][..., : x.shape[-1]]
        return dx.swapaxes(0, 1).reshape(x.shape)

    return y, undo


def undo_token(
    run: DecoderRun, t: int, dy: Array, later: Carry, additive: AdditiveGradients
) -> tuple[TokenGradients, Carry]:
    """Undo one token: the gradients of what it computed, and of the carry before it.

    dy (B, C) is the gradient of its result, `later` the gradient of the carry after it.
    """
    decoder, width, fed = run.decoder, run.decoder.width, run.carries[t + 1].fed
    weight = decoder.layers[0]["input"]
    if fed is not None:
        dfed = dy if later.fed is None else dy + later.fed
        dsum = dfed * (1 - fed * fed)
        both = dsum @ decoder.readout["w1"].T
        attention, dhidden = undo_attention(run, t, both[:, :-width], additive)
        sums, after = undo_layers(run, t, add_to_last(later.states, both[:, -width:] + dhidden))
        before = Carry(tuple(one.state for one in sums), sums[0].inputs @ weight[:, -fed.shape[-1] :])
        return TokenGradients(attention, sums, after, dfed, dsum), before
    has_readout, memory = bool(decoder.config.decoding.readout_width), run.attended.memory.shape[-1]
    sums, after = undo_layers(run, t, later.states if has_readout else add_to_last(later.states, dy))
    dcontext = sums[0].inputs @ weight[:, -memory:]
    attention, dhidden = undo_attention(run, t, dcontext + dy[:, -memory:] if has_readout else dcontext, additive)
    dhidden = dhidden + dy[:, :width] if has_readout else dhidden
    return TokenGradients(attention, sums, after), Carry(add_to_last([one.state for one in sums], dhidden))


def add_to_last(states: Sequence[State], hidden: Array) -> tuple[State, ...]:
    """Add a gradient to the hidden state of the last layer."""
    return *states[:-1], State(states[-1].hidden + hidden, states[-1].cell)


def undo_layers(run: DecoderRun, t: int, later: Sequence[State]) -> tuple[list[SumGradients], list[State]]:
    """Undo the layers of one token: gradients of the sums, and of the state before."""
    decoder, before, after = run.decoder, run.carries[t].states, run.carries[t + 1].states
    sums: list[SumGradients] = []
    states: list[State] = []
    for number in reversed(range(len(decoder.layers))):
        grad = later[number]
        if sums:
            grad = State(grad.hidden + sums[0].inputs @ decoder.layers[number + 1]["input"], grad.cell)
        gates = run.tapes[t]["gates"][number]
        sums.insert(0, CELLS[decoder.cell].undo(grad, gates, before[number], after[number], decoder.layers[number]))
        states.insert(0, grad)
    return sums, states


def undo_attention(
    run: DecoderRun, t: int, dcontext: Array, additive: AdditiveGradients
) -> tuple[AttentionGradients, Array]:
    """Undo the attention of one token: its gradients, and that of its state (B, H)."""
    cross, tape = run.decoder.cross, run.tapes[t]
    dweights = (run.attended.memory @ dcontext[..., None])[..., 0]
    dscores = softmax_backward(dweights, tape["weights"])
    if "terms" not in tape:
        query = (dscores[:, None] @ run.attended.keys)[:, 0]
        dstate = query @ cross["w"].T if "w" in cross else query
        return AttentionGradients(dcontext, dweights, dscores, query), dstate
    terms = tape["terms"]
    additive.va += dscores.reshape(-1) @ as_rows(terms)
    slope = terms * terms
    np.subtract(1, slope, out=slope)
    query = (dscores[:, None] @ slope)[:, 0] * cross["va"].reshape(-1)
    slope *= dscores[..., None]
    additive.keys += slope
    return AttentionGradients(dcontext, dweights, dscores, query), query @ cross["wa"].T


def add_layer_gradients(run: DecoderRun, tokens: list[TokenGradients], x: Array, reverse: Reverse) -> Array:
    """Add gradients of layers and readout, each by one product over all tokens.

    x (T, B, E) -> (T, B, G·H), the gradient of the sums of the first layer's gates
    """
    contexts = np.stack([tape["context"] for tape in run.tapes])
    fed = [carry.fed for carry in run.carries[:-1] if carry.fed is not None]
    x = np.concatenate([x, np.stack(fed) if fed else contexts], -1)
    first: Array | None = None
    for number, params in enumerate(run.decoder.layers):
        states = stack_states([carry.states[number] for carry in run.carries])
        before, after = map_state(lambda part: part[:-1], states), map_state(lambda part: part[1:], states)
        of_gates = [tape["gates"][number] for tape in run.tapes]
        gates = {name: np.stack([one[name] for one in of_gates]) for name in of_gates[0]}
        inputs = np.stack([token.sums[number].inputs for token in tokens])
        products = np.stack([token.sums[number].products for token in tokens]) if "product" in gates else inputs
        hidden = np.stack([token.states[number].hidden for token in tokens])
        sums = SumGradients(inputs, products, tokens[0].sums[number].state)
        parameters = sum_parameter_gradients(x, before, after, gates, sums, hidden, params)
        reverse.add(f"decoder.{number}.rnn", parameters)
        first, x = inputs if first is None else first, after.hidden
    readouts = [token.readout_sum for token in tokens if token.readout_sum is not None]
    if readouts:
        both, slope = np.concatenate([contexts, x], -1), np.stack(readouts)
        bias = {"b1": sum_rows(slope)} if "b1" in run.decoder.readout else {}
        reverse.add(READOUT, {"w1": matrix_product(as_rows(both).T, as_rows(slope)), **bias})
    return first if first is not None else x


def stack_states(states: Sequence[State]) -> State:
    """Stack the states of tokens: (B, P) -> (T, B, P)."""
    cells = [state.cell for state in states if state.cell is not None]
    return State(np.stack([state.hidden for state in states]), np.stack(cells) if cells else None)


def add_attention_gradients(
    run: DecoderRun, tokens: list[TokenGradients], additive: AdditiveGradients, reverse: Reverse
) -> Array:
    """Add the gradients of the score; return the memory's gradient (B, S, M)."""
    cross, memory = run.decoder.cross, run.attended.memory
    asking = run.carries[:-1] if run.decoder.config.decoding.asks_before else run.carries[1:]
    states = np.stack([carry.states[-1].hidden for carry in asking])  # (T, B, H)
    contexts, scores, queries = (
        np.stack([getattr(token.attention, name) for token in tokens]) for name in ("context", "scores", "query")
    )
    total: Array = np.stack([tape["weights"] for tape in run.tapes], -1) @ contexts.swapaxes(0, 1)
    dprojection = matrix_product(as_rows(states).T, as_rows(queries)) if cross else None
    if "va" in cross:
        slope = additive.keys * cross["va"].reshape(-1)
        weights = {"wa": dprojection, "ua": matrix_product(as_rows(memory).T, as_rows(slope))}
        reverse.add(CROSS, weights | {"va": additive.va.reshape(cross["va"].shape)})
        total += slope @ cross["ua"].T
        return total
    if "w" in cross:
        reverse.add(CROSS, {"w": dprojection})
        states = states @ cross["w"]
    total += scores.transpose(1, 2, 0) @ states.swapaxes(0, 1)
    return total


def show_gradients(run: DecoderRun, tokens: list[TokenGradients], hook: Hook, is_batch: bool) -> None:
    """Pass the gradients of intermediates to a hook, in reverse order."""
    if hook is no_hook:
        return

    def show(name: str, values: Iterable[Array | None]) -> None:
        known = [value for value in values if value is not None]
        if known:
            texts = np.stack(known, axis=1)  # (B, T, W)
            texts = texts[:, None] if name in (f"{CROSS}.weights", f"{CROSS}.scores") else texts  # of one head
            apply_hook(hook, name, texts if is_batch else texts[0])

    def show_attention() -> None:
        show(f"{CROSS}.output", (token.attention.context for token in tokens))
        show(f"{CROSS}.weights", (token.attention.weights for token in tokens))
        show(f"{CROSS}.scores", (token.attention.scores for token in tokens))

    asks_before = run.decoder.config.decoding.asks_before
    if not asks_before:
        show(f"{READOUT}.output", (token.readout for token in tokens))
        show_attention()
    for number in reversed(range(len(run.decoder.layers))):
        show(f"decoder.{number}.rnn.cell", (token.states[number].cell for token in tokens))
        show(f"decoder.{number}.rnn.state", (token.states[number].hidden for token in tokens))
    if asks_before:
        show_attention()
