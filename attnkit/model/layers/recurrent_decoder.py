"""A decoder with attention inside its recurrence, token by token.

    Bahdanau et al. 2015: c_i = attention of s_{i-1} over the memory;  s_i = cell([y_i; c_i], s_{i-1})
    Luong et al. 2015:    s_i = cell([y_i; f_{i-1}], s_{i-1});  c_i = attention of s_i over the memory;
                          f_i = tanh([c_i; s_i] w1 + b1), the readout that input feeding passes on

A decoder whose queries come from the state after the token, without input feeding, needs none of this: its layers run
over all tokens, then attention (see recurrent_config.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.config import parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, cast, quiet, working
from attnkit.model.formulas.feedforward import feed_forward
from attnkit.model.formulas.masks import mask_block, real_tokens
from attnkit.model.formulas.recurrent import select_state
from attnkit.model.formulas.recurrent_cells import (
    CELLS,
    NUMPY,
    Functions,
    Parameters,
    State,
    gate_name,
    multiply_input,
    prepare_state,
)
from attnkit.model.formulas.scores import SCORES, additive_terms
from attnkit.model.formulas.softmax import softmax
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.layers.recurrent_layers import (
    cached_state,
    first_state,
    keep_state,
    recur,
    require_same,
)
from attnkit.model.recurrent_config import RecurrentConfig, as_recurrent

Visit = Callable[[str, Array], Array]  # name and value (B, W) of an intermediate at one token -> the value to use
Tape = dict[str, Any]  # what the adjoint of one token reads: weights, context, gates of each layer, terms of the scores
CROSS, READOUT = "decoder.cross", "decoder.readout"


class Attended(NamedTuple):
    """Keys (B, S, A) and memory (B, S, M), and which are allowed (B, S) [all]."""

    keys: Array
    memory: Array
    allowed: Array | None = None


class Carry(NamedTuple):
    """What the next token reads: states of the layers, and the fed readout."""

    states: tuple[State, ...]
    fed: Array | None = None


@dataclass(frozen=True)
class AttentiveDecoder:
    """Weights of a decoder (layers, score and readout), cast to one dtype.

    functions  functions that its cells are computed by
    """

    config: RecurrentConfig
    layers: tuple[Parameters, ...]
    cross: Parameters
    readout: Parameters
    functions: Functions = NUMPY

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return self.config.recurrent_stack("decoder").cell

    def attended(self, memory: Array, allowed: Array | None = None) -> Attended:
        """Compute the keys of a memory (B, S, M)."""
        empty = np.empty((1, 0, 0, self.width), memory.dtype)
        keys = SCORES[self.config.score].project(empty, memory[:, None], self.cross)[1]
        return Attended(keys[:, 0], memory, allowed)

    @property
    def width(self) -> int:
        """Width of the state from which queries are computed."""
        return self.config.recurrent_stack("decoder").output_width(-1)


@quiet
def apply_recurrence(model: Model, layer: str, x: Array, context: Context) -> Array:
    is_attentive = parse_layer_name(layer)[1] is None
    return (attend_and_recur if is_attentive else recur)(model, layer, x, context)


def attend_and_recur(model: Model, layer: str, x: Array, context: Context) -> Array:
    """Run a decoder over the embeddings of its tokens, one after another.

    x (..., T, E) -> (..., T, C)

    The result is what the readout is computed from; with input feeding it is the readout itself, without a readout the
    state. DataError without a memory.
    """
    return run_decoder(model, layer, x, context)[0]


class DecoderRun(NamedTuple):
    """Carries of a decoder before the first token and after each, and recorded tapes.

    real  (B, T) which tokens are no padding; None: all
    """

    decoder: AttentiveDecoder
    attended: Attended
    carries: list[Carry]
    tapes: list[Tape]
    real: Array | None


def run_decoder(
    model: Model, layer: str, x: Array, context: Context, *, is_recorded: bool = False
) -> tuple[Array, DecoderRun]:
    """Run a decoder as `attend_and_recur` does; return its carries and tapes, too."""
    has_cached_memory = context.cache is not None and any(name == CROSS for name, _ in context.cache)
    if context.memory is None and not has_cached_memory:
        raise DataError.about(CROSS, "needs a memory to attend to, but none is given")
    batch = x if x.ndim == 3 else x[None]
    decoder = make_decoder(model, batch)
    attended = find_attended(decoder, context)
    hooks = SequenceHooks(context.hook, batch.shape[1], x.ndim == 3)
    first, real = first_carry(model, decoder, batch, context), real_tokens(context.mask, *batch.shape[:2])
    run = DecoderRun(decoder, attended, [first], [], real)
    products = multiply_embeddings(decoder, batch)
    outputs: list[Array] = []
    for t in range(batch.shape[1]):
        tape: Tape | None = {} if is_recorded else None
        output, new = decode_token(decoder, batch[:, t], products[:, t], run.carries[-1], attended, hooks.at(t), tape)
        run.carries.append(new if real is None else select_carry(real[:, t, None], new, run.carries[-1]))
        outputs.append(output if real is None else np.where(real[:, t, None], output, 0))
        if tape is not None:
            run.tapes.append(tape)
    keep_carry(context, run.carries[-1], batch.shape[1])
    width = decoder.config.result_width(layer)
    result = np.stack(outputs, axis=1) if outputs else np.empty((len(batch), 0, width), x.dtype)
    return result.astype(x.dtype, copy=False).reshape(*x.shape[:-1], result.shape[-1]), run


def attend_token(
    decoder: AttentiveDecoder, state: Array, attended: Attended, visit: Visit, tape: Tape | None = None
) -> Array:
    """Attend to the memory with a state: weighted sum of the memory, (B, H) -> (B, M)."""
    score, cross = SCORES[decoder.config.score], decoder.cross
    memory, keys = attended.memory[:, None], attended.keys[:, None]  # (B, 1, S, M), one head
    rows = state[:, None, None] if tape is None else state[None, None]  # a text by itself has the same bits; or faster
    left = score.project(rows, memory[..., :0, :], cross)[0].reshape(len(state), 1, 1, -1)
    if tape is not None and decoder.config.score == "additive":
        tape["terms"] = additive_terms(left, keys)[:, 0, 0]
        scores = tape["terms"] @ cross["va"].reshape(-1)
    else:
        scores = score.score(left, keys, cross)[:, 0, 0]
    scores = visit(f"{CROSS}.scores", scores)
    if attended.allowed is not None:
        scores = mask_block(scores, attended.allowed)
    weights = visit(f"{CROSS}.weights", softmax(scores))
    context = visit(f"{CROSS}.output", (weights[:, None] @ attended.memory)[:, 0])
    if tape is not None:
        tape |= {"weights": weights, "context": context}
    return context


def advance_layers(
    decoder: AttentiveDecoder,
    product: Array,
    added: Array | None,
    states: tuple[State, ...],
    visit: Visit,
    tape: Tape | None = None,
) -> tuple[State, ...]:
    """Advance the states of the layers by one token.

    added  (B, A) beside the embedding in the input
    """
    advance, new = CELLS[decoder.cell].advance, list[State]()
    for number, (params, state) in enumerate(zip(decoder.layers, states, strict=True)):
        if number:
            product = multiply_input(new[-1].hidden, params)
        elif added is not None:
            product = product + added @ params["input"][:, -added.shape[-1] :].T
        after, gates = advance(product, state, params, decoder.functions)
        if tape is not None:
            tape.setdefault("gates", []).append(gates)
        for name, gate in gates.items():
            if name != "product":
                full = f"decoder.{number}.rnn.{gate_name(name)}"
                require_same(visit(full, gate), gate, full)
        hidden = visit(f"decoder.{number}.rnn.state", after.hidden)
        cell = None if after.cell is None else visit(f"decoder.{number}.rnn.cell", after.cell)
        new.append(State(hidden, cell))
    return tuple(new)


class TokenFunctions(NamedTuple):
    """What computes a token beside its cells: functions of NumPy or another library."""

    attend: Callable[..., Any]
    read_out: Callable[[Any, Parameters], Any]
    concatenate: Callable[[list[Any], int], Any]


def read_out(x: Array, params: Parameters) -> Array:
    """Compute tanh(x w1 + b1), the readout of input feeding."""
    return feed_forward(x, params, activation="tanh", keep=())["output"]


NUMPY_TOKENS = TokenFunctions(attend_token, read_out, np.concatenate)


def decode_token(
    decoder: AttentiveDecoder,
    x: Array,
    product: Array,
    carry: Carry,
    attended: Attended,
    visit: Visit,
    tape: Tape | None = None,
    functions: TokenFunctions = NUMPY_TOKENS,
) -> tuple[Array, Carry]:
    """Compute one token: its result, and the carry for the next token.

    x (B, E) its embedding, product (B, G·H) of it with the input weights of the first layer -> (B, C)
    """
    decoding = decoder.config.decoding
    before = carry.states[-1].hidden
    added = functions.attend(decoder, before, attended, visit, tape) if decoding.asks_before else carry.fed
    states = advance_layers(decoder, product, added, carry.states, visit, tape)
    after = states[-1].hidden
    if not decoding.asks_before:
        context = functions.attend(decoder, after, attended, visit, tape)
        fed = visit(
            f"{READOUT}.output", functions.read_out(functions.concatenate([context, after], -1), decoder.readout)
        )
        return fed, Carry(states, fed)
    parts = [before, x, added] if decoding.readout_width and added is not None else [after]
    return functions.concatenate(parts, -1), Carry(states)


def multiply_embeddings(decoder: AttentiveDecoder, x: Array) -> Array:
    """Multiply embeddings by the first input weights: (B, T, E) -> (B, T, G·H)."""
    first = decoder.layers[0]
    return multiply_input(cast(x, first["input"].dtype), {**first, "input": first["input"][:, : x.shape[-1]]})


def make_decoder(model: Model, x: Array) -> AttentiveDecoder:
    """Build the decoder of a model in the working dtype of x and its weights."""
    config = as_recurrent(model.config)
    names = [f"decoder.{number}.rnn" for number in range(config.recurrent_stack("decoder").layers)]
    params = [model.params[name] for name in (*names, CROSS)]
    readout = model.params[READOUT] if config.decoding.input_feeding else {}
    dtype = working(x, *(array for one in (*params, readout) for array in one.values()))
    *layers, cross, last = ({name: cast(array, dtype) for name, array in one.items()} for one in (*params, readout))
    return AttentiveDecoder(config, tuple(layers), cross, last)


def find_attended(decoder: AttentiveDecoder, context: Context) -> Attended:
    """Memory and keys of the cache or of the context."""
    cache = context.cache
    allowed = None if context.memory_mask is None else context.memory_mask[:, 0]

    def compute() -> tuple[Array, Array]:
        states = context.memory if context.memory is not None else np.empty((0, 0, decoder.config.memory_width))
        memory = cast(states if states.ndim == 3 else states[None], decoder.layers[0]["input"].dtype)
        attended = decoder.attended(memory)
        return attended.keys[:, None], attended.memory[:, None]

    keys, memory = compute() if cache is None else cache.get_or_compute(CROSS, compute)[:2]
    return Attended(keys[:, 0], memory[:, 0], allowed)


def first_carry(model: Model, decoder: AttentiveDecoder, x: Array, context: Context) -> Carry:
    """Carry before the first token: states, and zeros or the readout of the cache."""
    dtype = decoder.layers[0]["input"].dtype
    states = tuple(
        prepare_state(decoder.cell, first_state(model, f"decoder.{n}.rnn", len(x), context), params, x.shape[:1], dtype)
        for n, params in enumerate(decoder.layers)
    )
    if not decoder.config.decoding.input_feeding:
        return Carry(states)
    before = cached_state(context, READOUT)
    return Carry(states, np.zeros((len(x), decoder.config.width), dtype) if before is None else before.hidden)


def keep_carry(context: Context, carry: Carry, tokens: int) -> None:
    """Keep the last states and the last readout in the context and its cache."""
    for number, state in enumerate(carry.states):
        keep_state(context, f"decoder.{number}.rnn", state, tokens)
    if carry.fed is not None:
        keep_state(context, READOUT, State(carry.fed), tokens)


def select_carry(is_new: Array, new: Carry, old: Carry) -> Carry:
    """The new carry if `is_new` (B, 1) is True, else the old one."""
    states = tuple(select_state(is_new, *pair) for pair in zip(new.states, old.states, strict=True))
    fed = None if new.fed is None or old.fed is None else np.where(is_new, new.fed, old.fed)
    return Carry(states, fed)


class SequenceHooks:
    """Hooks of intermediates that are computed one token at a time.

    A hook reads the tokens so far, and zeros after them.

    >>> hooks = SequenceHooks(lambda name: lambda array: 2 * array, 2, True)
    >>> hooks.at(1)("decoder.cross.output", np.array([[3.0]])).tolist()
    [[6.0]]
    """

    def __init__(self, hook: Hook, tokens: int, is_batch: bool) -> None:
        self._hook, self._tokens, self._is_batch = hook, tokens, is_batch
        self._buffers: dict[str, Array] = {}

    def at(self, t: int) -> Visit:
        """Function that visits the intermediates of token t."""
        return skip if self._hook is no_hook else lambda name, value: self._visit(name, value, t)

    def _visit(self, name: str, value: Array, t: int) -> Array:
        function = self._hook(name)
        if function is None:
            return value
        lead = (len(value), 1) if name in (f"{CROSS}.weights", f"{CROSS}.scores") else (len(value),)
        shape = (*lead, self._tokens, value.shape[-1])
        buffer = self._buffers.setdefault(name, np.zeros(shape, value.dtype))
        rows = buffer.reshape(len(value), self._tokens, -1)
        rows[:, t] = value
        whole = buffer if self._is_batch else buffer[0]
        changed = function(whole)
        if changed is whole:
            return value
        rows[:, t] = changed.reshape(rows.shape)[:, t]
        new: Array = rows[:, t].copy()
        return new


def skip(name: str, value: Array) -> Array:
    """Value of an intermediate that no hook visits."""
    return value
