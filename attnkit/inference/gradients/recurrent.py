"""The adjoint of rnn."""

import numpy as np

from attnkit.errors import UsageError
from attnkit.inference.gradients.stages import Outer, StageCall, StageGradients
from attnkit.inference.recurrent import find_texts, read_state_file
from attnkit.inference.recurrent_weights import find_recurrent_weights
from attnkit.model.backward.recurrent import stack_backward
from attnkit.model.recurrent_layers import run_stack


def undo_rnn(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of x and of the weights, as their file names them; states of --state-in are constants."""
    if "x" not in outer:
        return
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        raise UsageError("the gradients of a pipeline take rnn with --params or --hidden", "--model")
    cell, texts, weights = values["cell"], find_texts(call.before, values["lengths"]), find_recurrent_weights(x, values)
    states, offset = None, 0
    if values["state_in"] is not None:
        states, offset = read_state_file(values["state_in"], cell, weights.layers, texts)
    runs = run_stack(cell, texts.x, weights.layers, states, lengths=texts.lengths, offset=offset, has_trace=True)
    dy = outer.pop("x")
    grad = dy if texts.is_batch else dy[None]
    dx, layers = stack_backward(cell, np.ascontiguousarray(grad), texts.x, weights.layers, runs, lengths=texts.lengths)
    into.add_input("x", dx if texts.is_batch else dx[0])
    for name, gradient in weights.by_name([one.parameters for one in layers]).items():
        into.add_parameter(name, gradient)
