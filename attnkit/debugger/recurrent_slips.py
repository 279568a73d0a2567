"""Slips of recurrent layers: gates, states, directions, padding and attention.

Each function lists the slips of one kind of node, as those of slips.py do. A slip of a gate changes the gate of the
graph and the loops whose body has it (slips.slip_loop).
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnkit.model.graph.graph import Graph
from attnkit.model.graph.nodes import Node
from attnkit.model.graph.recurrence import is_state
from attnkit.model.recurrent_cells import CELLS, gate_name

Change = tuple[str, Node]

ACTIVATIONS = ("sigmoid", "tanh", "relu", "identity")
LETTERS = {"input": "i", "forget": "f", "candidate": "g", "output": "o", "reset": "r", "update": "z"}
# orders of gates in other programs that are more than an exchange of two
ORDERS = {"ONNX": ("input", "output", "forget", "candidate")}
NOT_CARRIED = "the state is not carried: every token begins with the first one"
CONTINUED = "the state is not reset between texts: each begins with the last one of the text before"
NO_BRIDGE = "the decoder begins with zeros, not with the last state of the encoder"
REVERSE_FIRST = "the reverse direction is before the forward one, side by side"
CELL_FOR_STATE = "the cell state is taken for the hidden state"
ASKED = {
    "previous": "attention asks with the state after the token, not with the one before it",
    "state": "attention asks with the state before the token, not with the one after it",
}


def _gate_words(gate: str) -> str:
    """Name a gate.

    >>> _gate_words("reset_gate"), _gate_words("candidate"), _gate_words("state")
    ('the reset gate', 'the candidate', 'the state')
    """
    return f"the {gate.replace('_', ' ')}"


def slip_gate(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of one gate: its rows of the weights, activation, biases and reset."""
    gate, params = stage.site.rpartition(".")[2], graph.core.params[stage.layer]
    own, words = stage.options["activation"], _gate_words(gate)
    for name in ACTIVATIONS:
        if name != own:
            has = "no activation" if name == "identity" else f"the activation {name}"
            yield f"{words} has {has} (expected {own})", stage.change(activation=name)
    other = {"sigmoid": "tanh", "tanh": "sigmoid"}.get(own)
    if other and not is_state(stage.site):
        yield "sigmoid and tanh are exchanged in all gates", stage.change(activation=other)
    yield from _slip_order(stage, gate.removesuffix("_gate"))
    yield from _slip_biases(params, stage)
    yield from _slip_reset(stage)
    yield "the weight of the state is transposed", stage.change(transposed=True)
    if len(stage.options["directions"]) > 1:
        yield "the parameters of both directions are exchanged", stage.change(swaps=True)
    if gate == "forget_gate":
        yield "1 is added to the sum of the forget gate", stage.change(shift=1.0)


def _slip_order(stage: Node, gate: str) -> Iterator[Change]:
    """Slips of the order of the gates in the weights."""
    gates = CELLS[stage.options["cell"]].gates
    for block, name in enumerate(gates):
        if name != gate:
            first, second = (_gate_words(gate_name(one)) for one in sorted((gate, name), key=gates.index))
            yield f"{first} and {second} are exchanged", stage.change(block=block)
    for program, order in ORDERS.items():
        if {*order} == {*gates}:
            letters, right = (" ".join(LETTERS[one] for one in names) for names in (order, gates))
            words = f"the gates are in the order {letters} of {program}, not {right}"
            yield words, stage.change(block=order.index(gate))


def _slip_biases(params: Mapping[str, Any], stage: Node) -> Iterator[Change]:
    if "hidden_bias" in params:
        yield "the bias of the state's product is missing", stage.change(hidden_bias=0.0)
        yield "the bias of the state's product is added twice", stage.change(hidden_bias=2.0)
    if "input_bias" in params:
        yield "the bias of the input's product is missing", stage.change(input_bias=0.0)
        yield "the bias of the input's product is added twice", stage.change(input_bias=2.0)
    if {"hidden_bias", "input_bias"} <= {*params}:
        yield "both biases are missing", stage.change(hidden_bias=0.0, input_bias=0.0)


# how the candidate uses the reset gate -> how it should not, and the slip in words
RESETS = {
    "after": {
        "before": "the reset gate multiplies the state, not its product",
        "beside": "the bias of the state's product is added outside of the reset",
        "": "the reset gate is not applied",
    },
    "before": {"after": "the reset gate multiplies the product, not the state", "": "the reset gate is not applied"},
}


def _slip_reset(stage: Node) -> Iterator[Change]:
    for way, words in RESETS.get(stage.options.get("reset", ""), {}).items():
        yield words, stage.change(reset=way)


def slip_cell_state(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of c′ = f c + i g."""
    yield "the forget gate is 1 − the input gate", stage.change(coupled=True)
    for at, words in ((0, "the input gate is not applied"), (1, "the forget gate is not applied")):
        yield words, stage.change(ungated=at)


def slip_hidden_state(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of o tanh(c′), and of (1 − z) n + z h."""
    if len(stage.inputs) == 3:
        yield "z and 1 − z are exchanged: h′ = z n + (1 − z) h", stage.change(exchanged=True)
        return
    for name in ACTIVATIONS:
        if name != "tanh":
            has = "is not activated" if name == "identity" else f"has the activation {name} (expected tanh)"
            yield f"the cell state {has} before the output gate", stage.change(activation=name)
    yield "the output gate is not applied", stage.change(ungated=True)
    words = "the cell state is taken for the hidden state, which the next token reads"
    yield words, stage.change(ungated=True, activation="identity")


def slip_recurrence(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of loops: what is carried from token to token, and the first state."""
    options = stage.options
    yield NOT_CARRIED, stage.change(carries=False)
    if stage.shape[0] > 1 and not options.get("whole"):
        yield CONTINUED, stage.change(continues=True)
    firsts = [one for one in stage.inputs if ".last_" in one or ".bridge" in one]
    if firsts:
        yield NO_BRIDGE, stage.change(first="zeros")
        yield from _slip_first(graph, stage, firsts)
    if len(options["directions"]) > 1:
        yield "the reverse direction reads the tokens in their order", stage.change(forward=True)
    yield from _slip_padding(stage)
    cell = f"{stage.site.rpartition('.')[0]}.cell"
    if stage.kind == "loop" and stage.site.endswith(".state") and cell in graph.nodes:
        yield CELL_FOR_STATE, stage.change(returns=cell)
    if stage.kind == "loop" and len(options["directions"]) > 1:
        yield "the outputs of the reverse direction are not turned back", stage.change(turned=True)
        yield REVERSE_FIRST, stage.change(sides=True)


def _slip_padding(stage: Node) -> Iterator[Change]:
    options = stage.options
    if options["real"] is not None:
        if len(options["directions"]) > 1:
            yield "the reverse direction begins in the padding", stage.change(padded=(1,))
        yield "padding is read as tokens", stage.change(padded=(0, 1))


def _slip_first(graph: Graph, stage: Node, firsts: list[str]) -> Iterator[Change]:
    """Slips of the states that a decoder begins with."""
    last = graph.core.config.stack("encoder").layers - 1
    others = {
        "the bridge is missing: the decoder begins with the last state of the encoder": {
            one: f"encoder.{one.split('.')[1]}.rnn.last_{'cell' if one.endswith('_cell') else 'state'}"
            for one in firsts
            if ".bridge" in one
        },
        "hidden and cell state are exchanged where the decoder begins": {one: _other_part(one) for one in firsts},
        "every layer begins with the last state of the last layer of the encoder": {
            one: f"encoder.{last}.rnn.{one.rpartition('.')[2]}" for one in firsts if last and ".last_" in one
        },
    }
    for words, instead in others.items():
        moved = {one: other for one, other in instead.items() if one != other}
        sizes = [
            graph.nodes[one].shape == graph.nodes[other].shape for one, other in moved.items() if other in graph.nodes
        ]
        if len(sizes) == len(moved) > 0 and all(sizes):
            yield words, _begin_with(stage, moved)


def _other_part(site: str) -> str:
    """The cell state for a hidden state, and the other way round.

    >>> _other_part("encoder.0.rnn.last_state"), _other_part("decoder.0.bridge_cell")
    ('encoder.0.rnn.last_cell', 'decoder.0.bridge')
    """
    hidden, cell = ("last_state", "last_cell") if ".last_" in site else ("bridge", "bridge_cell")
    return site.replace(cell, hidden) if site.endswith(cell) else site.replace(hidden, cell)


def read_whole(loop: Node, sites: Sequence[str]) -> Node:
    """A loop whose body reads other sites, of all tokens at once."""
    return loop.change(whole=(*loop.options["whole"], *sites))._replace(inputs=(*loop.inputs, *sites))


def _begin_with(stage: Node, instead: Mapping[str, str]) -> Node:
    """A loop, or what its tokens begin with, with other first states."""
    inputs = tuple(dict.fromkeys(instead.get(one, one) for one in stage.inputs))
    if "carried" not in stage.options:
        return stage._replace(inputs=inputs)
    carried = tuple(one._replace(first=instead.get(one.first, one.first)) for one in stage.options["carried"])
    whole = tuple(dict.fromkeys(instead.get(one, one) for one in stage.options["whole"]))
    return stage._replace(inputs=inputs).change(carried=carried, whole=whole)


def slip_last(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the last state of each text."""
    yield from _slip_padding(stage)
    if len(stage.options["directions"]) > 1:
        words = "the last state of the reverse direction is taken at the last token, which it reads first"
        yield words, stage.change(forward=True)
        yield REVERSE_FIRST, stage.change(sides=True)
    layer, _, name = stage.site.rpartition(".")
    if name == "last_state" and f"{layer}.cell" in graph.nodes:
        yield CELL_FOR_STATE, stage._replace(inputs=(f"{layer}.cell",))


def slip_alignment(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the score of a state and a memory."""
    query, keys = stage.inputs
    if stage.options["score"] == "additive":
        yield "the tanh of the additive score is missing", stage.change(linear=True)
        yield "the score is the dot product of the projected states, not additive", stage.change(score="dot")
    elif stage.options["score"] == "general":
        memory = graph.nodes[keys].inputs[0]
        if graph.nodes[memory].shape[-1] == graph.nodes[query].shape[-1]:
            words = "the weight of the score is missing (dot instead of general)"
            yield words, stage._replace(inputs=(query, memory))
    yield from slip_query(stage)


def slip_query(stage: Node) -> Iterator[Change]:
    """The state that attention asks with: before the token, or after it."""
    layer, _, which = stage.inputs[0].rpartition(".")
    if stage.layer == "decoder.cross" and which in ASKED and layer.endswith(".rnn"):
        other = f"{layer}.{'state' if which == 'previous' else 'previous'}"
        yield ASKED[which], stage._replace(inputs=(other, *stage.inputs[1:]))


NOUNS = {"embed": "the embedding", "output": "the context", "state": "the state", "previous": "the state"}


def slip_concat(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of what is put side by side, for a cell or for the readout."""
    reads = stage.inputs
    if "decoder.readout.previous" in reads:
        yield "the readout is not fed to the next token (no input feeding)", stage.change(zeros=(1,))
    nouns = ["the readout" if ".readout." in one else NOUNS.get(one.rpartition(".")[2], "the input") for one in reads]
    for order in itertools.permutations(range(len(reads))):
        if order != tuple(range(len(reads))):
            words = ", ".join(nouns[at] for at in order)
            yield f"{stage.site} has its parts in the order {words}", stage.change(order=order)
    for at, one in enumerate(reads):
        layer, _, which = one.rpartition(".")
        if which == "previous" and layer.endswith(".rnn"):
            words = "the readout reads the state after the token, not the one before it"
            yield words, stage._replace(inputs=(*reads[:at], f"{layer}.state", *reads[at + 1 :]))
        if which == "output" and layer == "decoder.cross":
            yield f"{stage.site} has zeros in place of the context", stage.change(zeros=(at,))


SLIPS: dict[str, Callable[[Graph, Node], Iterator[Change]]] = {
    "cell state": slip_cell_state,
    "hidden state": slip_hidden_state,
    "previous state": slip_recurrence,
    "last state": slip_last,
    "alignment": slip_alignment,
    "concat": slip_concat,
}
