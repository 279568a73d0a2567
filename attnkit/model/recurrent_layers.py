"""Recurrent layers of one or both directions, and stacks of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError
from attnkit.model.dtypes import Array
from attnkit.model.recurrent import DirectionRun, run_direction_in_blocks
from attnkit.model.recurrent_cells import Parameters, State

PART = 1 << 12  # tokens of a long text that run through all layers before the next
States = tuple[State | None, State | None]  # of the forward and of the reverse direction


class RecurrentLayer(NamedTuple):
    """Parameters of the forward direction of a layer, of its reverse, or of both."""

    forward: Parameters | None = None
    reverse: Parameters | None = None

    def directions(self) -> list[tuple[int, Parameters]]:
        """Number and parameters of each direction; 0 is forward, 1 reverse."""
        return [(number, one) for number, one in enumerate(self) if one is not None]


class LayerRun(NamedTuple):
    """Outputs (B, T, P) of a layer, or (B, T, 2 P), and the run of each direction."""

    outputs: Array
    forward: DirectionRun | None
    reverse: DirectionRun | None

    def states(self) -> States:
        """Final state of each direction."""
        return (
            None if self.forward is None else self.forward.state,
            None if self.reverse is None else self.reverse.state,
        )


def run_layer(
    cell: str,
    x: Array,
    layer: RecurrentLayer,
    states: States = (None, None),
    *,
    lengths: Array | None = None,
    offset: int = 0,
    has_trace: bool = False,
) -> LayerRun:
    """Outputs of a layer at every token, both directions side by side.

    x (B, T, D), states (B, P) and (B, H) [zeros], lengths (B,) [T] -> outputs (B, T, P) or (B, T, 2 P)

    A reverse direction reads each text from its own last token. With `has_trace` the runs have what the adjoint needs.
    `offset` is the number of tokens before x: a text that is cut anywhere, whose parts begin with the states and the
    number of tokens before them, has the same bits as the whole. Errors: see
    `run_direction`, which this equals up to rounding.

    >>> one = {"input": np.ones((1, 1)), "hidden": np.ones((1, 1))}
    >>> run_layer("relu", np.array([[[1.0], [2.0]]]), RecurrentLayer(one, one)).outputs.tolist()
    [[[1.0, 3.0], [3.0, 2.0]]]
    """
    if not layer.directions():
        raise DataError("a layer without parameters of any direction")
    runs: list[DirectionRun | None] = [None, None]
    for number, parameters in layer.directions():
        runs[number] = run_direction_in_blocks(
            cell, x, parameters, states[number],
            lengths=lengths, reverse=number == 1, offset=offset, has_trace=has_trace,
        )  # fmt: skip
    outputs = [run.outputs for run in runs if run is not None]
    return LayerRun(outputs[0] if len(outputs) == 1 else np.concatenate(outputs, -1), *runs)


def run_stack(
    cell: str,
    x: Array,
    layers: Sequence[RecurrentLayer],
    states: Sequence[States] | None = None,
    *,
    lengths: Array | None = None,
    offset: int = 0,
    has_trace: bool = False,
) -> list[LayerRun]:
    """Runs of layers, each of which reads the outputs of the one before.

    x (B, T, D) -> one run for each layer

    Arguments and errors: see `run_layer`.

    >>> layer = RecurrentLayer({"input": np.ones((1, 1)), "hidden": np.ones((1, 1))})
    >>> run_stack("relu", np.array([[[1.0], [2.0]]]), [layer, layer])[-1].outputs.ravel().tolist()
    [1.0, 4.0]
    """
    runs: list[LayerRun] = []
    for number, layer in enumerate(layers):
        before = (None, None) if states is None else states[number]
        runs.append(run_layer(cell, x, layer, before, lengths=lengths, offset=offset, has_trace=has_trace))
        x = runs[-1].outputs
    return runs


def run_long_text(
    cell: str, x: Array, layers: Sequence[RecurrentLayer], states: Sequence[States] | None = None, *, offset: int = 0
) -> tuple[Array, list[States]]:
    """Outputs and final states of forward layers, in less memory.

    x (B, T, D), states (B, P) and (B, H) [zeros] -> outputs (B, T, P), states of each layer

    They are those of `run_stack`, to the bit. A part of the tokens runs through all layers before the next, so that the
    outputs of inner layers are not held. Errors: see `run_layer`.

    >>> layer = RecurrentLayer({"input": np.ones((1, 1)), "hidden": np.ones((1, 1))})
    >>> outputs, states = run_long_text("relu", np.array([[[1.0], [2.0]]]), [layer, layer])
    >>> outputs.ravel().tolist(), states[1][0].hidden.tolist()
    ([1.0, 4.0], [[4.0]])
    """
    outputs: Array | None = None
    for start in range(0, max(x.shape[1], 1), PART):
        runs = run_stack(cell, x[:, start : start + PART], layers, states, offset=offset + start)
        states, part = [run.states() for run in runs], runs[-1].outputs
        if outputs is None:
            if x.shape[1] <= PART:
                return part, states
            outputs = np.empty((*x.shape[:2], part.shape[-1]), part.dtype)
        outputs[:, start : start + PART] = part
    if outputs is None or states is None:
        raise DataError("no layers")
    return outputs, list(states)
