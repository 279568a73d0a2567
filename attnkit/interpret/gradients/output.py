"""The adjoints of decode, of hidden states to logits and probabilities, and of loss."""

import numpy as np

from attnkit import model
from attnkit.inputs import layers
from attnkit.inputs.next_word import WordChoice, find_output_matrix
from attnkit.inputs.targets import find_logits
from attnkit.interpret.gradients.stages import Outer, StageCall, StageGradients
from attnkit.model import Array
from attnkit.model.backward.whole_models import head_backward
from attnkit.model.linear import linear_backward
from attnkit.model.loss import LossOptions, cross_entropy_backward, loss_and_gradient
from attnkit.model.softmax import softmax_backward

CHOICE = ("temperature", "top_k", "top_p", "min_p", "seed")


def undo_decode(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradients of hidden states and of the output matrix, from those of logits and probabilities."""
    values, emit = call.values, call.values["emit"]
    if "text" in call.result.labels or not isinstance(call.item, type(call.result)):
        raise call.error("generated text has no gradient; decode --model DIR --score TEXT --grad FILE has")
    if emit in ("ids", "text"):
        raise call.error(f"--emit {emit} has no gradient: the choice of a word is no continuous function")
    x = call.before["x"]
    checkpoint = values["model_"]
    if checkpoint is not None and values["layer"] is None and checkpoint.config.decoder is not None:
        raise call.error("no gradient of several layers at once; name one by --layer, as --layer head")
    logits = project_states(call)
    dlogits = np.zeros_like(logits)
    if "x" in outer:
        dx = outer.pop("x")
        dlogits = dlogits + (dx if emit == "logits" else undo_probabilities(call, dx, logits))
    if "logits" in outer:
        dlogits = dlogits + outer.pop("logits")
    if checkpoint is not None:
        core = layers.core_model(checkpoint)
        into.add_input("x", head_backward(core, x, dlogits, into.layers))
        return
    matrix, bias, _, _ = find_output_matrix(call.before, values["table"], values["params"])
    gradients = linear_backward(dlogits, x, matrix, bias)
    into.add_input("x", gradients.x)
    if values["params"] is not None:
        into.add_parameter("w", gradients.weight, ("model", "vocab"))
        into.add_parameter("b", gradients.bias, ("vocab",))
    elif values["table"] is not None:
        into.add_operand("table", table_gradient(gradients.weight))
    else:
        into.add_input("table", table_gradient(gradients.weight))


def table_gradient(weight: Array | None) -> Array:
    """Return the gradient of a table from that of the output matrix, its transpose."""
    return np.ascontiguousarray(np.transpose(weight)) if weight is not None else np.zeros((0, 0))


def project_states(call: StageCall) -> Array:
    """Return the logits (..., N) of decode, at least float32."""
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        return model.head_logits(layers.core_model(values["model_"]), x)
    matrix, bias, _, _ = find_output_matrix(call.before, values["table"], values["params"])
    return model.logits(x, matrix, bias)


def undo_probabilities(call: StageCall, gradient: Array, logits: Array) -> Array:
    """Return the gradient of logits from that of softmax(logits / τ), over the words that the filters leave."""
    choice = WordChoice(**{name: call.values[name] for name in CHOICE})
    weights = model.probabilities(choice.filter(logits))
    return softmax_backward(gradient, weights) / choice.tau


def undo_loss(call: StageCall, outer: Outer, into: StageGradients) -> None:
    """Add the gradient of the logits, from those of the reduced loss and of the loss of each token."""
    values, record = call.values, call.before
    logits, _, _ = find_logits(record)
    name = "logits" if record.get("logits") is logits else "x"
    ids = call.result["target"]
    weight = None if values["weights"] is None else values["weights"]["x"]
    reduced = LossOptions(weight, values["ignore"], values["smoothing"], values["reduction"])
    if "x" in outer:
        into.add_input(name, cross_entropy_backward(logits, ids, reduced, outer.pop("x")))
    each = reduced._replace(reduction="none")
    if "loss" in outer:
        into.add_input(name, cross_entropy_backward(logits, ids, each, outer.pop("loss")))
    if "probability" in outer:  # exp(−loss) without weights and smoothing
        losses, _ = loss_and_gradient(logits, ids, LossOptions(None, values["ignore"], 0.0, "none"))
        slope = -np.nan_to_num(outer.pop("probability")) * np.exp(-losses)
        plain = LossOptions(None, values["ignore"], 0.0, "none")
        into.add_input(name, cross_entropy_backward(logits, ids, plain, slope))
