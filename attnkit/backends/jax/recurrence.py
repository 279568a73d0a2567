"""Recurrent steps of a program: layers, and a decoder with attention inside.

What they compute is what recurrent_layers.py and recurrent_decoder.py in model/layers say. The cells are those of
model/formulas/recurrent_cells.py, the loop over tokens is `jax.lax.scan`; with a hook one token is computed after
another. Tokens that are padding leave the state as it is, wherever they are.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnkit.backends.jax.attention_kernels import projected_scores
from attnkit.backends.jax.formulas import JaxArray, linear, see_nothing, softmax, wide
from attnkit.backends.jax.passes import Pass
from attnkit.errors import DataError
from attnkit.model.config import parse_layer_name
from attnkit.model.formulas.recurrent import DirectionRun, LayerRun, Trace
from attnkit.model.formulas.recurrent_cells import (
    CELLS,
    Functions,
    Parameters,
    State,
    check_parameters,
    map_state,
    multiply_input,
    prepare_state,
)
from attnkit.model.formulas.scores import SCORES
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.layers.recurrent_decoder import (
    CROSS,
    READOUT,
    Attended,
    AttentiveDecoder,
    Carry,
    SequenceHooks,
    TokenFunctions,
    Visit,
    decode_token,
)
from attnkit.model.layers.recurrent_layers import layer_parameters, show_gates

JAX = Functions(jnp.tanh, jax.nn.sigmoid, jax.nn.relu, jnp.split)


def recur(run: Pass, layer: str, x: JaxArray) -> JaxArray:
    """Run a recurrent layer: x (..., T, D) -> (..., T, P), or 2 P for both directions."""
    batch, runs = x if x.ndim == 3 else x[None], list[DirectionRun | None]([None, None])
    for number, parameters in layer_parameters(run.params[layer]).directions():
        check_parameters(cell_of(run, layer), parameters, batch.shape[-1])
        first = first_state(run, layer, parameters, batch, is_reverse=number == 1)
        runs[number] = run_direction(run, layer, batch, parameters, first, is_reverse=number == 1)
    parts = [one for one in runs if one is not None]
    outputs = jnp.concatenate([one.outputs for one in parts], axis=-1)
    run.caches[layer] = jax.tree.map(lambda *sides: jnp.concatenate(sides, axis=-1), *(one.state for one in parts))
    if hook := hook_of(run):
        show_gates(hook, layer, LayerRun(outputs, *runs), None, x.ndim)
    return run.see(f"{layer}.state", outputs.reshape(*x.shape[:-1], outputs.shape[-1]))


def run_direction(
    run: Pass, layer: str, x: JaxArray, parameters: Parameters, first: State, *, is_reverse: bool
) -> DirectionRun:
    """Run one direction, traced for a hook: x (B, T, D) -> outputs (B, T, P)."""
    kind, real, is_seen = CELLS[cell_of(run, layer)], run.inputs.get("real"), hook_of(run) is not None

    def step(before: State, token: tuple[JaxArray, JaxArray | None]) -> Any:
        new, gates = kind.advance(token[0], before, parameters, JAX)
        return select_new(token[1], new, before), (new.hidden, (gates, new.cell) if is_seen else ({}, None))

    last, values = run_tokens(run, step, first, (multiply_input(x, parameters), real), is_reverse=is_reverse)
    outputs, (gates, cell) = jax.tree.map(lambda one: keep_real(real, one), values)
    gates = {name: gates[name] for name in kind.gates if is_seen}  # in the order of the cell
    return DirectionRun(outputs, last, Trace(gates, outputs, cell, first))


def run_tokens(run: Pass, step: Callable[[Any, Any], Any], first: Any, tokens: Any, *, is_reverse: bool = False) -> Any:
    """Scan a step over the tokens (B, T, ...); with a hook one after another.

    step  (state, token) -> the next state and an output -> the last state, and the outputs (B, T, ...)
    """

    def turn(tree: Any) -> Any:
        return jax.tree.map(lambda one: jnp.swapaxes(one, 0, 1), tree)

    is_seen = hook_of(run) is not None and jax.tree.leaves(tokens)[0].shape[1] > 0
    with jax.disable_jit(is_seen):
        last, outputs = jax.lax.scan(step, first, turn(tokens), reverse=is_reverse)
    return last, turn(outputs)


def select_new(is_new: JaxArray | None, new: Any, old: Any) -> Any:
    """The new state of texts whose `is_new` (B,) is True, or else the old one."""
    return new if is_new is None else jax.tree.map(lambda one, two: jnp.where(is_new[:, None], one, two), new, old)


def keep_real(real: JaxArray | None, x: JaxArray) -> JaxArray:
    """Set x (B, T, ...) to 0 if `real` (B, T) is False."""
    return x if real is None else jnp.where(real[..., None], x, 0)


def first_state(run: Pass, layer: str, parameters: Parameters, x: JaxArray, *, is_reverse: bool = False) -> State:
    """The first state of a layer: from the cache, the encoder, or zeros."""
    config: Any = run.config
    (stack, number, _), state = parse_layer_name(layer), None if is_reverse else run.caches.get(layer)
    if state is None and stack == "decoder" and config.decoding.bridge != "none":
        if "source" not in run.inputs:
            raise DataError.about(layer, "begins with the last states of the encoder, but none are given")
        parts = [run.inputs[name][number or 0] for name in ("source", "source_cell") if name in run.inputs]
        state = bridge(run, number or 0, State(*parts))
        state = map_state(lambda part: jnp.repeat(part, len(x) // len(part), axis=0), state)
    if state is None:
        state = prepare_state(cell_of(run, layer), None, parameters, x.shape[:1], np.dtype(np.float32))
    return map_state(lambda part: jnp.asarray(part, x.dtype), state)


def last_states(run: Pass) -> dict[str, Any]:
    """The last states of a recurrent encoder as inputs of its decoder, or {}."""
    layers = (f"encoder.{number}.rnn" for number in range(run.config.stack("encoder").layers))
    states = [run.caches[layer] for layer in layers if layer in run.caches]
    parts = {"source": [state.hidden for state in states], "source_cell": [state.cell for state in states]}
    return {name: tuple(own) for name, own in parts.items() if own and own[0] is not None}


def bridge(run: Pass, number: int, source: State) -> State:
    """The first state of a decoder layer from the last of that encoder layer."""
    config: Any = run.config
    if config.decoding.bridge == "identity":
        return source
    parts = []
    for name, part in zip(("bridge", "bridge_cell"), source, strict=True):
        layer = f"decoder.{number}.{name}"
        if part is not None:
            params = run.params[layer]
            value = jnp.tanh(linear(part.astype(params["w1"].dtype), params["w1"], params.get("b1")))
            parts.append(run.see(layer, value))
    return State(*parts)


def attend_and_recur(run: Pass, layer: str, x: JaxArray) -> JaxArray:
    """Run a decoder over its tokens, one after another: x (..., T, E) -> (..., T, C)."""
    batch, real, hook = x if x.ndim == 3 else x[None], run.inputs.get("real"), hook_of(run)
    config: Any = run.config
    layers = tuple(run.params[f"decoder.{number}.rnn"] for number in range(config.decoder.layers))
    decoder = AttentiveDecoder(config, layers, run.params.get(CROSS, {}), run.params.get(READOUT, {}), JAX)
    places = count()
    attended = find_attended(run, decoder)
    hooks = SequenceHooks(hook or no_hook, batch.shape[1], x.ndim == 3)

    def step(before: Carry, token: tuple[JaxArray, JaxArray, JaxArray | None]) -> Any:
        output, new = decode_token(decoder, *token[:2], before, attended, hooks.at(next(places)), functions=JAX_TOKENS)
        return select_new(token[2], new, before), output

    products = multiply_input(batch, {**layers[0], "input": layers[0]["input"][:, : batch.shape[-1]]})
    states = tuple(first_state(run, f"decoder.{number}.rnn", params, batch) for number, params in enumerate(layers))
    fed = None
    if config.decoding.input_feeding:
        zeros = jnp.zeros((len(batch), config.width), batch.dtype)
        fed = run.caches[READOUT].hidden if READOUT in run.caches else zeros
    carry, outputs = run_tokens(run, step, Carry(states, fed), (batch, products, real))
    run.caches |= {f"decoder.{number}.rnn": state for number, state in enumerate(carry.states)}
    run.caches |= {} if carry.fed is None else {READOUT: State(carry.fed)}
    if run.capacity is not None:
        run.caches[CROSS] = attended.keys[:, None], attended.memory[:, None]
    return keep_real(real, outputs).reshape(*x.shape[:-1], outputs.shape[-1])


def attend_token(
    decoder: AttentiveDecoder, state: JaxArray, attended: Attended, visit: Visit, tape: object = None
) -> JaxArray:
    """Attend to the memory with a state: (B, H) -> (B, M)."""
    score, memory = decoder.config.score, attended.memory[:, None]  # (B, 1, S, M), one head
    left, _ = SCORES[score].project(state[:, None, None], memory[..., :0, :], decoder.cross)
    scores = wide(projected_scores(score, left, attended.keys[:, None], decoder.cross)[:, 0, 0])
    scores = visit(f"{CROSS}.scores", scores)
    if attended.allowed is not None:
        scores = jnp.where(attended.allowed, scores, -jnp.inf)
    weights = visit(f"{CROSS}.weights", softmax(scores)[0])
    return visit(f"{CROSS}.output", (weights.astype(memory.dtype)[:, None] @ attended.memory)[:, 0])


def read_out(x: JaxArray, params: Parameters) -> JaxArray:
    """The network of a readout: tanh(x W1 + b1) W2 + b2."""
    return linear(jnp.tanh(linear(x, params["w1"], params.get("b1"))), params.get("w2"), params.get("b2"))


JAX_TOKENS = TokenFunctions(attend_token, read_out, jnp.concatenate)


def find_attended(run: Pass, decoder: AttentiveDecoder) -> Attended:
    """The memory and its keys, from the cache or the inputs, and its mask."""
    mask = run.inputs.get("memory_mask")
    allowed = None if mask is None else mask.reshape(-1, mask.shape[-1])
    if CROSS in run.caches:
        keys, memory = run.caches[CROSS]
        return Attended(keys[:, 0], memory[:, 0], allowed)
    memory = run.inputs["memory"]
    return decoder.attended(memory if memory.ndim == 3 else memory[None], allowed)


def hook_of(run: Pass) -> Hook | None:
    """The hook of a pass; None if nothing reads its intermediates."""
    return None if run.see is see_nothing or run.differentiates else lambda name: partial(run.see, name)


def cell_of(run: Pass, layer: str) -> str:
    config: Any = run.config
    cell: str = config.recurrent_stack(parse_layer_name(layer)[0]).cell
    return cell
