"""The nodes of recurrent layers: gates, states, and attention inside a recurrence.

A state is a loop: one node that computes it for all tokens, from what the layer reads and a first state. Its body are
nodes of one token: the gates, and the states that follow from them. A gate is a node of the graph, too: all tokens at
once, from the states before each. So a gate depends on a state, and no state on a gate of the graph.

STACK.N.rnn.state and cell   loops, (B, T, P) and (B, T, H), both directions side by side
STACK.N.rnn.previous and previous_cell   the states that each token begins with
STACK.N.rnn.last_state and last_cell     those after the last token of each text, (B, P)
decoder.0.rnn.input          the embedding beside what attention found, or beside the readout of the token before
decoder.rnn                  what a decoder that attends inside its recurrence computes; 0 at padding

Options of a loop: `body`, the nodes of one token; `carried`, what a token reads of the one before; `whole`, the inputs
that are not read token by token; `directions`, 0 forward and 1 reverse; `real` (B, T), the tokens that are no padding;
`blanks`, whether the states of padding are 0. Slips alone set `carries`, `continues`, `first`, `forward`, `padded`,
`returns`, `sides` and `turned`, and of a gate `hidden_bias`, `input_bias`, `shift`, `swaps` and `transposed`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.model.config import find_attention_rules, parse_layer_name
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward
from attnkit.model.formulas.linear import linear_backward
from attnkit.model.formulas.recurrent import reverse_texts
from attnkit.model.formulas.recurrent_cells import CELLS, gate_name
from attnkit.model.formulas.scores import additive_scores_backward, dot_backward
from attnkit.model.graph.costs import Cost, Costs, Sizes
from attnkit.model.graph.networks import build_network
from attnkit.model.graph.nodes import Apply, Built, Kind, Node, Place, Scope, UndoNodes, stack_sizes
from attnkit.model.intermediates import STEPS
from attnkit.model.recurrent_config import DIRECTIONS, RecurrentConfig, as_recurrent

Arrays = Mapping[str, Array]


class Carried(NamedTuple):
    """What a token of a loop reads of the token before.

    read   the site by which the nodes of the body read it
    site   the site of the body whose value it is
    first  the site of its value before the first token, "" for zeros
    """

    read: str
    site: str
    first: str = ""


def _loop(scope: Scope, *arrays: Array) -> Array:
    """A state of every token, by the nodes of a body token by token: (B, T, W).

    The inputs are read token by token, but for those that the option `whole` names. The real tokens of a text are read
    in their order, or in reverse; what follows from padding is 0 if the option `blanks` says so.
    """
    given, body = dict(zip(scope.node.inputs, arrays, strict=True)), scope.option("body")
    apply = scope.within(_convert_body(scope))
    halves = []
    for direction in scope.option("directions"):
        nodes = [node.change(directions=(direction,)) for node in body]
        halves.append(_run_texts(scope, given, nodes, apply, direction))
    return _beside(scope, halves)


def _count_loop(sizes: Sizes) -> Costs:
    """Count the products of a recurrent layer by its parameters.

    The factors are its input and its state; a projection multiplies the state again.

    The loop of a cell is that of its state.
    """
    layer, _, site = sizes.node.site.rpartition(".")
    shapes, passes = sizes.model.shapes[layer], sizes.passes
    rows, states = passes.rows, sum(shapes[name][1] for name in sizes.found("hidden", "hidden_reverse"))
    for name, row in (("input", "product"), ("hidden", "state"), ("projection", "projected")):
        weights = sizes.found(name, f"{name}_reverse")
        if not weights or site == "cell":
            continue
        names = [*weights, *(f"{name}_bias{weight.removeprefix(name)}" for weight in weights)]
        size, inner = sum(math.prod(shapes[weight]) for weight in weights), shapes[weights[0]][1]
        width = sum(shapes[weight][0] for weight in weights)
        after = {"input": width, "hidden": 3 * width + 4 * states}.get(name, 0)
        results, times = states if name == "hidden" else width, passes.count if name == "input" else passes.tokens
        yield Cost(
            f"{layer}.{row}",
            (passes.shown_tokens, results),
            2 * rows * size,
            rows * after,
            rows * inner * len(weights) + times * sizes.model.size(layer, *names),
            rows * results,
            parameters=sizes.own(*names),
        )


def _undo_loop(scope: Scope, dy: Array, y: Array, *arrays: Array) -> list[Array]:
    """Gradients of what a loop reads, from the last token to the first.

    The tokens are computed again first.
    """
    given, directions = dict(zip(scope.node.inputs, arrays, strict=True)), scope.option("directions")
    core, found = _convert_body(scope), {name: np.zeros_like(array) for name, array in given.items()}
    for direction, half in zip(directions, np.split(_blank(scope, dy), len(directions), axis=-1), strict=True):
        nodes = [node.change(directions=(direction,)) for node in scope.option("body")]
        first = {one.read: _first_state(scope, given, one, nodes) for one in scope.option("carried")}
        tape: list[tuple[int, Arrays]] = []
        _run_tokens(scope, given, nodes, scope.within(core), direction, first, slice(None), tape)
        undo = scope.undo_within(core, nodes)
        _undo_tokens(scope, half, tape, undo, found)
    return [found[name] for name in scope.node.inputs]


def _undo_tokens(
    scope: Scope, dy: Array, tape: Sequence[tuple[int, Arrays]], undo: UndoNodes, found: dict[str, Array]
) -> None:
    """Add the gradients of one direction of a loop: its reads and its parameters."""
    whole, real, carried = scope.option("whole"), scope.option("real"), scope.option("carried")
    later = {one.read: np.zeros_like(tape[0][1][one.read]) for one in carried}
    for t, values in reversed(tape):
        keeps = True if real is None else real[:, t, None, None]
        gradients = {one.site: np.where(keeps, later[one.read], 0) for one in carried}
        gradients[scope.node.site] = gradients[scope.node.site] + dy[:, t : t + 1]
        sites, params = undo(gradients, {name: values[name] for name in (*found, *later)}, values)
        for layer, names in params.items():
            scope.add(layer, names)
        for name in {*found} & {*sites}:
            found[name][(slice(None), *[slice(t, t + 1)] * (name not in whole))] += sites[name]
        passed = {name: np.where(keeps, 0, array) for name, array in later.items()}
        later = {name: array + sites[name] if name in sites else array for name, array in passed.items()}
    for one in carried:
        if one.first:
            found[one.first] += later[one.read][:, 0]


def _convert_body(scope: Scope) -> Model:
    """The model with the parameters of a loop's body in the precision of the run."""
    layers = {node.layer: scope.core.params.get(node.layer, {}) for node in scope.option("body")}
    params = {layer: {name: scope.convert(one) for name, one in held.items()} for layer, held in layers.items()}
    return scope.core._replace(params=params)


def _beside(scope: Scope, halves: Sequence[Array]) -> Array:
    """The directions beside one another; by a slip the reverse one first."""
    return np.concatenate(halves[::-1] if scope.option("sides") else halves, axis=-1)


def _run_texts(scope: Scope, given: Arrays, body: Sequence[Node], apply: Apply, direction: int) -> Array:
    """One direction of a loop, for all texts at once.

    By a slip each text begins with the last state of the one before.
    """
    texts = len(next(iter(given.values())))
    first = {one.read: _first_state(scope, given, one, body) for one in scope.option("carried")}
    if not scope.option("continues"):
        return _run_tokens(scope, given, body, apply, direction, first, slice(None))[0]
    rows, state = [], {name: array[:1] for name, array in first.items()}
    for at in range(texts):
        text = {name: array[at : at + 1] for name, array in given.items()}
        row, state = _run_tokens(scope, text, body, apply, direction, state, slice(at, at + 1))
        rows.append(row)
    return np.concatenate(rows)


def _first_state(scope: Scope, given: Arrays, one: Carried, body: Sequence[Node]) -> Array:
    """What the first token reads, (B, 1, W)."""
    if one.first and scope.option("first") != "zeros":
        return given[one.first][:, None]
    width = next(node.shape[-1] for node in body if node.site == one.site) // len(scope.option("directions"))
    like = next(iter(given.values()))
    return np.zeros((len(like), 1, width), like.dtype)


def _run_tokens(
    scope: Scope,
    given: Arrays,
    body: Sequence[Node],
    apply: Apply,
    direction: int,
    first: Arrays,
    texts: slice,
    tape: list[tuple[int, Arrays]] | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The site of a loop for every token, and what the last of them leaves.

    tape  receives each token and the values of its nodes
    """
    whole, real, state, found = scope.option("whole"), scope.option("real"), {**first}, list[Array]()
    tokens = next(array.shape[1] for name, array in given.items() if name not in whole)
    is_real = None if real is None or direction in scope.option("padded", ()) else real[texts]
    order = range(tokens)[:: _stride(scope, direction)]
    for t in order:
        values = {name: array if name in whole else array[:, t : t + 1] for name, array in given.items()} | state
        for node in body:
            values[node.site] = apply(node, [values[one] for one in node.inputs])
        found.append(values[scope.option("returns", scope.node.site)])
        if tape is not None:
            tape.append((t, values))
        keeps = True if is_real is None else is_real[:, t, None, None]
        for one in scope.option("carried") if scope.option("carries", True) else ():
            state[one.read] = np.where(keeps, values[one.site], state[one.read])
    stacked = np.concatenate(found, axis=1)[:, np.argsort(order)]
    if direction and scope.option("turned"):
        stacked = reverse_texts(stacked, None if real is None else real[texts].sum(axis=1))
    return _blank(scope, stacked, texts), state


def _stride(scope: Scope, direction: int) -> int:
    """1 if a direction reads the tokens in their order, −1 if in reverse."""
    return -1 if direction and not scope.option("forward") else 1


def _blank(scope: Scope, x: Array, texts: slice = slice(None)) -> Array:
    """The array with 0 at padding."""
    real = scope.option("real")
    is_read = scope.option("padded")  # by a slip
    return x if real is None or is_read or not scope.option("blanks") else np.where(real[texts][..., None], x, 0)


def _previous(scope: Scope, x: Array, *first: Array) -> Array:
    """The row of the real token before each token: (B, T, W) -> (B, T, W).

    The first token reads the first state (B, W), or zeros.
    """
    halves, directions = [], scope.option("directions")
    for direction, half in zip(directions, np.split(x, len(directions), axis=-1), strict=True):
        stride, is_real = _stride(scope, direction), _real(scope, x, direction)
        begin = first[0] if first and scope.option("first") != "zeros" else np.zeros_like(half[:, 0])
        if scope.option("continues"):
            begin = np.concatenate([begin[:1], _at(half, _last_places(is_real, stride))[:-1]])
        rows = np.concatenate([begin[:, None], half[:, ::stride]], axis=1)  # before all tokens, and after each
        before = _rows_before(is_real[:, ::stride]) * scope.option("carries", True)
        halves.append(np.take_along_axis(rows, before[..., None], axis=1)[:, ::stride])
    return np.concatenate(halves, axis=-1)


def _rows_before(is_real: Array) -> Array:
    """The number of the last real token before each, from 1: (B, T) -> (B, T).

    0 means that there is none.
    """
    after = np.where(is_real, np.arange(1, is_real.shape[1] + 1), 0)
    before: Array = np.maximum.accumulate(np.pad(after, ((0, 0), (1, 0)))[:, :-1], axis=1)
    return before


def _undo_previous(scope: Scope, dy: Array, y: Array, x: Array, *first: Array) -> list[Array]:
    halves, begins, directions = [], [np.zeros_like(one) for one in first], scope.option("directions")
    for direction, half in zip(directions, np.split(dy, len(directions), axis=-1), strict=True):
        stride = _stride(scope, direction)
        rows = np.zeros((len(half), half.shape[1] + 1, half.shape[2]), half.dtype)
        before = _rows_before(_real(scope, x, direction)[:, ::stride])
        np.add.at(rows, (np.arange(len(half))[:, None], before), half[:, ::stride])
        halves.append(rows[:, 1:][:, ::stride])
        begins = [one + rows[:, 0] for one in begins]
    return [np.concatenate(halves, axis=-1), *begins]


def _real(scope: Scope, x: Array, direction: int) -> Array:
    """Which tokens a direction reads (B, T); by a slip padding, too."""
    real = scope.option("real")
    return np.ones(x.shape[:2], bool) if real is None or direction in scope.option("padded", ()) else real


def _last(scope: Scope, x: Array) -> Array:
    """The state after the last token of each text: (B, T, W) -> (B, W).

    A reverse direction ends at the first token.
    """
    directions = scope.option("directions")
    halves = zip(directions, np.split(x, len(directions), axis=-1), strict=True)
    places = ((half, _last_places(_real(scope, x, direction), _stride(scope, direction))) for direction, half in halves)
    return _beside(scope, [_at(half, place) for half, place in places])


def _undo_last(scope: Scope, dy: Array, y: Array, x: Array) -> list[Array]:
    dx, directions = np.zeros_like(x), scope.option("directions")
    halves = (np.split(one, len(directions), axis=-1) for one in (dx, dy))
    for direction, into, half in zip(directions, *halves, strict=True):
        into[np.arange(len(x)), _last_places(_real(scope, x, direction), _stride(scope, direction))] = half
    return [dx]


def _last_places(is_real: Array, stride: int) -> Array:
    """Where the last real token of each text is, or the first: (B, T) -> (B,)."""
    places = is_real[:, ::-stride].argmax(axis=1)
    last: Array = places if stride < 0 else is_real.shape[1] - 1 - places
    return last


def _at(x: Array, places: Array) -> Array:
    """One token of each text: (B, T, W), (B,) -> (B, W)."""
    rows: Array = x[np.arange(len(x)), places]
    return rows


def _gate(scope: Scope, x: Array, before: Array, *reset: Array) -> Array:
    """A gate from its input and the state before: (B, T, D), (B, T, P) -> (B, T, H).

    reset  a gate by which the candidate of a GRU multiplies that state, or its product, as the option `reset` says
    """
    directions, by = scope.option("directions"), reset[0] if reset else before
    states, resets = ([one] if len(directions) == 1 else np.split(one, 2, axis=-1) for one in (before, by))
    sums = [
        _sum_products(scope, DIRECTIONS[1 - direction if scope.option("swaps") else direction], x, state, by)
        for direction, state, by in zip(directions, states, resets, strict=True)
    ]
    return _blank(scope, ACTIVATIONS[scope.option("activation")](np.concatenate(sums, axis=-1)))


def _sum_products(scope: Scope, suffix: str, x: Array, state: Array, reset: Array) -> Array:
    """W x + b + U h + c of one block of rows of the weights."""
    way, params = scope.option("reset", ""), scope.core.params[scope.node.layer]
    biases = {
        name: scope.option(name, 1.0) * _block(scope, name + suffix)
        for name in ("input_bias", "hidden_bias")
        if name + suffix in params
    }
    wide, hidden = (_block(scope, f"{name}{suffix}") for name in ("input", "hidden"))
    product = (state * reset if way == "before" else state) @ (hidden if scope.option("transposed") else hidden.T)
    own, bias = x @ wide.T + scope.option("shift", 0.0) + biases.get("input_bias", 0.0), biases.get("hidden_bias", 0.0)
    if way == "beside":
        beside: Array = own + product * reset + bias
        return beside
    sums: Array = own + ((product + bias) * reset if way == "after" else product + bias)
    return sums


def _undo_gate(scope: Scope, dy: Array, y: Array, x: Array, before: Array, *reset: Array) -> list[Array]:
    directions, dx = scope.option("directions"), np.zeros_like(x)
    dy, parts = _blank(scope, dy), list[list[Array]]()
    halves = (np.split(one, len(directions), axis=-1) for one in (dy, before, *reset))
    for direction, slope, state, *by in zip(directions, *halves, strict=True):
        suffix = DIRECTIONS[direction]
        sums = _sum_products(scope, suffix, x, state, *(by or [state]))
        slope = activation_backward(scope.option("activation"), slope, sums)
        dx += _undo_product(scope, slope, x, f"input{suffix}", f"input_bias{suffix}")
        names = f"hidden{suffix}", f"hidden_bias{suffix}"
        if scope.option("reset") == "after":
            product = state @ _block(scope, names[0]).T + (_block(scope, names[1]) if scope.has(names[1]) else 0)
            parts.append([_undo_product(scope, slope * by[0], state, *names), slope * product])
        elif by:
            inner = _undo_product(scope, slope, state * by[0], *names)
            parts.append([inner * by[0], inner * state])
        else:
            parts.append([_undo_product(scope, slope, state, *names)])
    return [dx, *(np.concatenate(one, axis=-1) for one in zip(*parts, strict=True))]


def _undo_product(scope: Scope, dy: Array, x: Array, weight: str, bias: str) -> Array:
    """The gradient of x from that of its product with the rows of a gate.

    The gradients of these rows are added to the scope.
    """
    has_bias, gradients = scope.has(bias), dict[str, Array]()
    own = linear_backward(dy, x, _block(scope, weight).T, _block(scope, bias) if has_bias else None)
    for name, part in ((weight, own.weight), (bias, own.bias)):
        if part is not None:
            whole = np.zeros(scope.core.params[scope.node.layer][name].shape, part.dtype)
            np.split(whole, CELLS[scope.option("cell")].blocks)[scope.option("block")][...] = part.T
            gradients[name] = whole
    scope.add(scope.node.layer, gradients)
    return own.x


def _block(scope: Scope, name: str) -> Array:
    """The rows of a gate in a weight or bias."""
    array = scope.core.params[scope.node.layer][name]
    rows = len(array) // CELLS[scope.option("cell")].blocks
    start = rows * scope.option("block")
    return scope.convert(array[start : start + rows])


def _cell_state(scope: Scope, input_gate: Array, forget: Array, candidate: Array, before: Array) -> Array:
    """c′ = f c + i g of an LSTM."""
    forget = 1 - input_gate if scope.option("coupled") else forget
    gates = [
        np.ones_like(gate) if scope.option("ungated") == at else gate for at, gate in enumerate((input_gate, forget))
    ]
    new: Array = gates[1] * before + gates[0] * candidate
    return new


def _undo_cell_state(
    scope: Scope, dy: Array, y: Array, input_gate: Array, forget: Array, candidate: Array, before: Array
) -> list[Array]:
    return [dy * candidate, dy * before, dy * input_gate, dy * forget]


def _hidden_state(scope: Scope, gate: Array, x: Array, *before: Array) -> Array:
    """h′ = o tanh(c′) of an LSTM, or (1 − z) n + z h of a GRU."""
    if not before:
        activated: Array = ACTIVATIONS[scope.option("activation")](x)
        return activated if scope.option("ungated") else gate * activated
    kept: Array = 1 - gate if scope.option("exchanged") else gate
    new: Array = (1 - kept) * x + kept * before[0]
    return new


def _undo_hidden_state(scope: Scope, dy: Array, y: Array, gate: Array, x: Array, *before: Array) -> list[Array]:
    if not before:
        activation = scope.option("activation")
        return [dy * ACTIVATIONS[activation](x), activation_backward(activation, dy * gate, x)]
    return [dy * (before[0] - x), dy * (1 - gate), dy * gate]


def _align(scope: Scope, q: Array, k: Array) -> Array:
    """Scores of queries and keys: (B, T, A), (B, S, A) -> (B, 1, T, S)."""
    if scope.option("score") == "additive":
        va = scope.parameter("va")
        assert va is not None
        terms = q[:, :, None] + k[:, None]
        scores: Array = (terms if scope.option("linear") else np.tanh(terms)) @ va.reshape(-1)
        return scores[:, None]
    return (q @ k.swapaxes(-1, -2))[:, None]


def _count_alignment(sizes: Sizes) -> Costs:
    """Count the products of attention to the memory.

    The keys, the query, their scores and the values each have a product.
    """
    config, layer = as_recurrent(sizes.model.config), sizes.node.layer
    model, passes = sizes.model, sizes.passes
    decoding, shapes = config.decoding, model.shapes.get(layer, {})
    memory, state, rows = config.memory_width, config.recurrent_stack("decoder").output_width(-1), passes.rows
    pairs, source = rows * passes.source, passes.texts * passes.source
    scored = decoding.score_width if decoding.score == "additive" else memory
    if decoding.score == "additive":
        times = (not passes.has_memory) if decoding.is_sequential else passes.count
        if times:
            flops = 2 * times * source * math.prod(shapes["ua"])
            read = times * (source * memory + model.size(layer, "ua"))
            yield Cost(
                f"{layer}.k", (passes.source, scored), flops, 0, read, times * source * scored,
                parameters=model.own_size(layer, "ua"),
            )  # fmt: skip
    query = {"additive": "wa", "general": "w"}.get(decoding.score)
    if query:
        flops, size = 2 * rows * math.prod(shapes[query]), model.size(layer, query)
        each = passes.tokens if decoding.is_sequential else passes.count
        yield Cost(
            f"{layer}.q", (passes.shown_tokens, scored), flops, 0, rows * state + each * size, rows * scored,
            parameters=model.own_size(layer, query),
        )  # fmt: skip
    shape = 1, passes.shown_tokens, passes.source
    keys = pairs if decoding.is_sequential else passes.count * source
    added = 2 * scored * (decoding.score == "additive")
    yield Cost(
        f"{layer}.scores", shape, 2 * pairs * scored, added * pairs, rows * scored + keys * scored, pairs,
        parameters=model.own_size(layer, "va"),
    )  # fmt: skip
    yield Cost(f"{layer}.weights", shape, 0, 4 * pairs, pairs, pairs)
    heads_shape = 1, passes.shown_tokens, memory
    yield Cost(f"{layer}.heads", heads_shape, 2 * pairs * memory, 0, pairs + keys * memory, rows * memory)


def _undo_align(scope: Scope, dy: Array, y: Array, q: Array, k: Array) -> list[Array]:
    va = scope.parameter("va") if scope.option("score") == "additive" else None
    params, undo = ({}, dot_backward) if va is None else ({"va": va}, additive_scores_backward)
    dq, dk, parts = undo(dy, q[:, None], k[:, None], params)
    scope.add(scope.node.layer, parts)
    return [dq[:, 0], dk[:, 0]]


def _concat(scope: Scope, *arrays: Array) -> Array:
    """Concatenate arrays along their last axis.

    By a slip some are zeros, or their order is another.
    """
    parts = [np.zeros_like(one) if at in scope.option("zeros", ()) else one for at, one in enumerate(arrays)]
    return np.concatenate([parts[at] for at in scope.option("order", range(len(parts)))], axis=-1)


def _undo_concat(scope: Scope, dy: Array, y: Array, *arrays: Array) -> list[Array]:
    return np.split(dy, np.cumsum([one.shape[-1] for one in arrays])[:-1], axis=-1)


KINDS = {
    "loop": Kind(value=_loop, pullback=_undo_loop, cost=_count_loop),
    "previous state": Kind(value=_previous, pullback=_undo_previous),
    "last state": Kind(value=_last, pullback=_undo_last),
    "gate": Kind(value=_gate, pullback=_undo_gate),
    "cell state": Kind(value=_cell_state, pullback=_undo_cell_state),
    "hidden state": Kind(value=_hidden_state, pullback=_undo_hidden_state),
    "alignment": Kind(value=_align, pullback=_undo_align, cost=_count_alignment),
    "concat": Kind(value=_concat, pullback=_undo_concat),
    "real tokens": Kind(value=lambda scope, x: _blank(scope, x), pullback=lambda scope, dy, y, x: [_blank(scope, dy)]),
}


class Recurrence(NamedTuple):
    """What the nodes of the layers of a stack have in common.

    real  (B, T) which tokens are no padding; None: all
    """

    place: Place
    config: RecurrentConfig
    stack: str
    real: Array | None

    @property
    def cell(self) -> str:
        return self.config.recurrent_stack(self.stack).cell

    @property
    def shared(self) -> dict[str, Any]:
        """The options of nodes that are computed of all tokens."""
        directions = (0, 1) if self.config.recurrent_stack(self.stack).is_bidirectional else (0,)
        return {"directions": directions, "real": self.real}

    def shape(self, number: int) -> tuple[int, int, int]:
        """The shape of the states of a layer."""
        return self.place.states(self.config.recurrent_stack(self.stack).output_width(number))

    def carried(self, number: int) -> list[Carried]:
        """The states that a layer carries from token to token."""
        layer, has_cell = f"{self.stack}.{number}.rnn", CELLS[self.cell].has_cell_state
        bridge = self.config.decoding.bridge if self.stack == "decoder" else "none"
        firsts = {
            "none": ("", ""),
            "identity": (f"encoder.{number}.rnn.last_state", f"encoder.{number}.rnn.last_cell"),
            "tanh": (f"decoder.{number}.bridge", f"decoder.{number}.bridge_cell"),
        }[bridge]
        hidden = Carried(f"{layer}.previous", f"{layer}.state", firsts[0])
        return [hidden, *[Carried(f"{layer}.previous_cell", f"{layer}.cell", firsts[1])] * has_cell]

    def body(self, number: int, x: str) -> list[Node]:
        """The nodes of a layer's states after a token: from its input and states before."""
        layer, kind, shape = f"{self.stack}.{number}.rnn", CELLS[self.cell], self.shape(number)
        before, state = f"{layer}.previous", f"{layer}.state"
        common = {"directions": self.shared["directions"], "cell": self.cell}
        if not kind.gates:
            options = {**common, "block": 0, "activation": self.cell}
            return [Node(state, "gate", (x, before), shape, layer, options)]
        names, nodes = {gate: f"{layer}.{gate_name(gate)}" for gate in kind.gates}, list[Node]()
        for block, gate in enumerate(kind.gates):
            options = {**common, "block": block, "activation": "tanh" if gate == "candidate" else "sigmoid"}
            resets = gate == "candidate" and "reset" in names
            options |= {"reset": "after" if self.cell == "gru" else "before"} if resets else {}
            reads = (x, before, *[names.get("reset", "")] * resets)
            nodes.append(Node(names[gate], "gate", reads, shape, layer, options))
        if not kind.has_cell_state:
            return [*nodes, Node(state, "hidden state", (names["update"], names["candidate"], before), shape)]
        parts = (names["input"], names["forget"], names["candidate"], f"{layer}.previous_cell")
        cell = Node(f"{layer}.cell", "cell state", parts, shape)
        return [
            *nodes,
            cell,
            Node(state, "hidden state", (names["output"], cell.site), shape, "", {"activation": "tanh"}),
        ]

    def loops(
        self, number: int, body: Sequence[Node], carried: Sequence[Carried], reads: str, whole: Sequence[str] = ()
    ) -> Built:
        """The loops of the states of a layer.

        reads  what the body reads of each token; whole: what it reads of all
        """
        firsts = dict.fromkeys(one.first for one in carried if one.first)
        options = {"body": tuple(body), "carried": tuple(carried), "whole": (*whole, *firsts), **self.shared}
        layer = f"{self.stack}.{number}.rnn"
        for one in self.carried(number)[::-1]:
            yield Node(one.site, "loop", (reads, *whole, *firsts), self.shape(number), layer, options)

    def shifts(self, carried: Sequence[Carried], width: int) -> Built:
        """What each token reads of the one before."""
        for one in carried:
            reads = (one.site, *[one.first] * bool(one.first))
            yield Node(one.read, "previous state", reads, self.place.states(width), options=self.shared)

    def bridges(self, number: int) -> Built:
        """The first states of a layer of a decoder, from the last ones of the encoder."""
        if self.stack != "decoder" or self.config.decoding.bridge != "tanh":
            return
        batch, _, width = self.shape(number)
        for one in self.carried(number):
            source = f"encoder.{number}.rnn.last_{one.site.rpartition('.')[2]}"
            layer, sums = one.first, f"{one.first}.hidden"
            yield Node(sums, "linear", (source,), (batch, width), layer, {"names": ("w1", "b1")})
            yield Node(layer, "activate", (sums,), (batch, width), "", {"activation": "tanh"})


def build_recurrence(place: Place) -> Built:
    """The nodes of a recurrent layer, or of all layers of an attentive decoder.

    An attentive decoder attends inside its recurrence.
    """
    config, (stack, number, _) = as_recurrent(place.core.config), parse_layer_name(place.step.layer)
    mask = place.inputs.of(stack, config)[1]
    owner = Recurrence(place, config, stack, None if mask is None or mask.all() else mask.astype(bool))
    return in_order([*(_build_attentive(owner) if number is None else _build_layer(owner, number))])


def in_order(nodes: Sequence[Node]) -> Built:
    """Sort nodes so that each follows those that it reads.

    The order stays as it is otherwise.
    """
    waiting, found = {node.site: node for node in nodes}, set[str]()

    def visit(node: Node) -> Built:
        if node.site not in found:
            found.add(node.site)
            for one in node.inputs:
                yield from visit(waiting[one]) if one in waiting else ()
            yield node

    for node in nodes:
        yield from visit(node)


def _build_layer(owner: Recurrence, number: int) -> Built:
    place, shape = owner.place, owner.shape(number)
    carried, body = owner.carried(number), owner.body(number, place.x)
    yield from owner.bridges(number)
    for node in owner.loops(number, body, carried, place.x):
        yield node.change(blanks=True)
    yield from owner.shifts(carried, shape[-1])
    yield from (node.change(**owner.shared, blanks=True) for node in body if not is_state(node.site))
    for one in carried:
        layer, _, state = one.site.rpartition(".")
        yield Node(f"{layer}.last_{state}", "last state", (one.site,), (shape[0], shape[-1]), "", owner.shared)


def is_state(site: str) -> bool:
    """Whether a site is a state of a recurrent layer.

    >>> is_state("encoder.0.rnn.cell"), is_state("encoder.0.rnn.reset_gate")
    (True, False)
    """
    return site.endswith((".rnn.state", ".rnn.cell"))


CROSS, READOUT = "decoder.cross", "decoder.readout"


def _build_attentive(owner: Recurrence) -> Built:
    """The nodes of a decoder whose input depends on what attention found before.

    The states of its first layer are loops over the nodes of all layers, of attention, and of the readout that is fed.
    """
    place, config, decoding = owner.place, owner.config, owner.config.decoding
    numbers = range(config.recurrent_stack("decoder").layers)
    last, entry, both = f"decoder.{numbers[-1]}.rnn", "decoder.0.rnn.input", "decoder.rnn.concat"
    fed = Carried(f"{READOUT}.previous", f"{READOUT}.output")
    asked, found = f"{last}.previous" if decoding.asks_before else f"{last}.state", f"{CROSS}.output"
    attention = [*build_alignment(place, asked)]
    fixed = [node for node in attention if node.inputs == (place.memory,)]  # the same for all tokens
    beside = (place.x, found if decoding.asks_before else fed.read)
    body = [node for node in attention if node not in fixed]
    body.append(Node(entry, "concat", beside, place.states(config.input_width("decoder", 0))))
    for number in numbers:
        body += owner.body(number, f"decoder.{number - 1}.rnn.state" if number else entry)
    reads = (asked, place.x, found) if decoding.asks_before else (found, asked)
    joined = Node(both, "concat", reads, place.states(config.readout_input_width))
    carried, result = [one for number in numbers for one in owner.carried(number)], f"{last}.state"
    if decoding.input_feeding:
        inner = place._replace(step=place.step._replace(layer=READOUT), x=both)
        body += [joined, *build_network(inner, READOUT, decoding.readout_width)]
        carried.append(fed)
        yield from owner.shifts([fed], decoding.readout_width)
        result = fed.site
    elif decoding.readout_width:
        yield joined
        result = both
    yield from fixed
    shared = (place.memory, *(node.site for node in fixed))
    whole = [site for site in shared if any(site in node.inputs for node in body)]
    yield from owner.loops(0, [*in_order(body)], carried, place.x, whole)
    for number in numbers:
        yield from owner.bridges(number)
        yield from owner.shifts(owner.carried(number), owner.shape(number)[-1])
        below = f"decoder.{number - 1}.rnn.state"
        yield from owner.loops(number, owner.body(number, below), owner.carried(number), below) if number else ()
    yield from (node for node in body if not is_state(node.site))
    shape = place.states(config.result_width("decoder.rnn"))
    yield Node("decoder.rnn", "real tokens", (result,), shape, "", {**owner.shared, "blanks": True})


def build_attend(place: Place) -> Built:
    """The nodes of attention to the memory after all recurrent layers have run.

    In such a decoder the layers run over all tokens before attention.
    """
    layer, memory = place.step.layer, stack_sizes(place.core, place.inputs, "encoder")[1]
    for letter, read, tokens, width in (
        ("q", place.x, place.tokens, _width_of(place, "decoder")),
        ("k", place.memory, memory, _width_of(place, "encoder")),
    ):
        yield Node(f"{layer}.{letter}", "heads", (read,), (place.batch, 1, tokens, width), "", {"heads": 1})
    yield from build_alignment(place, place.x)


def _width_of(place: Place, stack: str) -> int:
    return as_recurrent(place.core.config).recurrent_stack(stack).output_width(-1)


def build_alignment(place: Place, query: str) -> Built:
    """The nodes of attention of a state, by its site, to the memory."""
    config, inputs, memory = as_recurrent(place.core.config), place.inputs, place.memory
    rules, keys, width = (
        find_attention_rules(config, CROSS),
        stack_sizes(place.core, inputs, "encoder")[1],
        config.memory_width,
    )
    padding = inputs.of("encoder", config)[1]
    padding = None if padding is None or padding.all() else padding
    q, k, v, *steps, output = (f"{CROSS}.{name}" for name in ("q_projected", "k_projected", "v", *STEPS[3:], "output"))
    scores, scaled, capped, masked, weights, heads = steps
    score, inner = config.decoding.score, config.decoding.score_width or _width_of(place, "decoder")
    left, right = {"additive": (q, k), "general": (query, k)}.get(score, (query, memory))
    if score == "additive":
        yield Node(q, "linear", (query,), place.states(inner), CROSS, {"names": ("wa", "")})
    if right == k:
        names = {"names": ("ua", "")} if score == "additive" else {"names": ("w", ""), "transposed": True}
        yield Node(k, "linear", (memory,), (place.batch, keys, inner), CROSS, names)
    yield Node(v, "heads", (memory,), (place.batch, 1, keys, width), "", {"heads": 1})
    square = (place.batch, 1, place.tokens, keys)
    yield Node(scores, "alignment", (left, right), square, CROSS, {"score": score})
    yield Node(scaled, "scale", (scores,), square, "", {"factor": rules.factor, "rules": rules})
    yield Node(capped, "cap", (scaled,), square, "", {"softcap": rules.softcap})
    yield Node(masked, "mask", (capped,), square, CROSS, {"rules": rules, "padding": padding})
    yield Node(weights, "softmax", (masked,), square, CROSS)
    yield Node(heads, "mix", (weights, v), (place.batch, 1, place.tokens, width), "", {})
    yield Node(output, "join", (heads,), place.states(width))
