"""The gradients of a model that scores a text: of intermediates and parameters."""

import numpy as np

from attnkit import callbacks, model
from attnkit.generation.options import TextModel
from attnkit.generation.prompts import Prompt
from attnkit.inputs.source_states import source_states_record
from attnkit.interpret.gradients.attribution import Embeddings, attribute, attribution_record, count_points, replacing
from attnkit.interpret.gradients.check import CHECKED, CheckResult, Point, compare_along, layers_point, point_layers
from attnkit.interpret.gradients.pipeline import describe_trace, gather_tensors, layer_axes, select_names
from attnkit.interpret.gradients.stages import collect_gradients
from attnkit.interpret.tracer import Tracer
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.backward.tied import cast_parameters, sum_tied
from attnkit.model.formulas.loss import loss_and_gradient
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.passes.model_gradients import head_backward, memory_gradient
from attnkit.model.passes.recorded_pass import run_backward, run_recorded
from attnkit.records import Labels, Record, Tensor

LOSS = "loss"  # the name of the mean negative log-likelihood in the record


def score_gradients(text_model: TextModel, prompt: Prompt, ids: list[int], first: int) -> Record:
    """Gradients of the mean of −log p over the tokens of a text from `first` on.

    The record has `loss`, the mean itself, then the intermediates of the run in its order, under the names that a
    trace gives them, then the parameters. A memory from elsewhere has the gradient `memory`. With --check it has
    `check`. UsageError for a pattern of --grad-only that fits no name.
    """
    _, options, detokenizer = text_model
    patterns = options.inspection.grad_only or ("*",)
    collected: dict[str, Array] = {}
    hook = collect_gradients(collected, Tracer({"--grad-only": patterns}).wants)
    loss, reverse = run_reverse(text_model, prompt, ids, first, hook)
    tensors = describe_trace(collected, detokenizer.token_strings(ids), prompt.source)
    if prompt.source_ids is None and reverse.memory is not None:
        labels = {"source": prompt.source} if prompt.source else {}
        tensors["memory"] = Tensor(reverse.memory, ("source", "model"), labels)
    if reverse.states:  # of the encoder's last states, which came with a memory
        states = tuple(reverse.states[layer] for layer in sorted(reverse.states))
        tensors |= source_states_record(states, is_batch=False).tensors
    params = text_model.core.params
    sums = sum_tied(reverse.gradients, params)
    for layer in [layer for layer in params if layer in sums]:
        for name, array in sums[layer].items():
            tensors[f"{layer}.{name}"] = Tensor(array, layer_axes(layer, name, array.ndim))
    names = [*select_names(gather_tensors(tensors), patterns)]
    checked = {}
    if options.inspection.check:
        result = check_scoring(text_model, prompt, ids, first)
        callbacks.current().on_check(result.line(), result.error)
        checked = {CHECKED: result.tensor()}
    return gather_tensors({LOSS: Tensor(loss, ())} | tensors | checked).select([LOSS, *names, *checked])


def run_reverse(
    text_model: TextModel, prompt: Prompt, ids: list[int], first: int, hook: Hook = no_hook, forward: Hook = no_hook
) -> tuple[Array, Reverse]:
    """The mean of −log p from token `first` on, and the gradients of its run.

    hook     receives the gradients of intermediates; forward: reads these, and may replace embeddings
    """
    core, options, reverse = text_model.core, text_model.options, Reverse(hook=hook)
    memory, encoder, states = prompt.memory, None, prompt.source_states
    if prompt.source_ids is not None:
        context = model.Context(hook=forward, dtype=options.compute_dtype)
        memory, encoder = run_recorded(core, core.config.plan("encoder"), np.array(prompt.source_ids), context)
        states = context.last_states()
    context = model.Context(memory=memory, source_states=states, hook=forward, dtype=options.dtype)
    hidden, decoder = run_recorded(core, core.config.plan("decoder"), np.array(ids), context)
    logits = model.head_logits(core, hidden)
    slope = np.zeros_like(logits)
    loss, slope[first - 1 : len(ids) - 1] = loss_and_gradient(logits[first - 1 : len(ids) - 1], ids[first:])
    run_backward(core, decoder, head_backward(core, hidden, slope, reverse), reverse)
    gradient = memory_gradient(decoder.context, reverse)
    if encoder is not None and gradient is not None:
        run_backward(core, encoder, gradient, reverse)
    return loss, reverse


def attribute_score(text_model: TextModel, prompt: Prompt, ids: list[int], first: int) -> Record:
    """How much each token contributes to the sum of log p from `first` on.

    x (T,) is of all tokens that the decoder reads, `source` (S,) of those that its encoder reads for it.
    """
    count, core, detokenizer = len(ids) - first, text_model.core, text_model.detokenizer
    names, inputs = {"decoder.embed": ("x", "token")}, {"decoder": (ids, text_model.options.dtype)}
    if prompt.source_ids is not None:
        names["encoder.embed"] = ("source", "source")
        inputs["encoder"] = prompt.source_ids, text_model.options.compute_dtype

    def evaluate(embeddings: Embeddings) -> tuple[float, dict[str, Array]]:
        collected: dict[str, Array] = {}
        hook = collect_gradients(collected, names.__contains__)
        loss, _ = run_reverse(text_model, prompt, ids, first, hook, replacing(embeddings))
        return -count * float(loss), {name: -count * collected[name] for name in names}

    embeddings: dict[str, Array] = {}
    for stack, (tokens, dtype) in inputs.items():
        step = core.config.plan(stack)[0]
        embeddings[step.layer] = model.run(core, [step], np.array(tokens), model.Context(dtype=dtype))
    result = attribute(embeddings, evaluate, count_points(text_model.options.inspection.attribute or ""))
    labels: dict[str, Labels] = {"token": detokenizer.token_strings(ids)}
    if prompt.source_ids is not None and prompt.source:
        labels["source"] = prompt.source
    return attribution_record(result, names, labels)


def check_scoring(text_model: TextModel, prompt: Prompt, ids: list[int], first: int) -> CheckResult:
    """Compare the gradients with a central difference along a random direction."""
    config, params = text_model.core.config, text_model.core.params
    engine = text_model.core.engine  # of the gradients; NumPy computes the difference
    core = model.Model(config, cast_parameters({layer: params[layer] for layer in params}, np.float64), engine)
    wide = text_model._replace(core=core, options=text_model.options._replace(dtype="float64"))
    _, reverse = run_reverse(wide, prompt, ids, first)
    sums = sum_tied(reverse.gradients, core.params)
    point = layers_point({layer: {name: core.params[layer][name] for name in parts} for layer, parts in sums.items()})
    gradients = layers_point(sums)
    if prompt.source_ids is None and prompt.memory is not None and reverse.memory is not None:
        point["memory",], gradients["memory",] = prompt.memory.astype(np.float64), reverse.memory

    def evaluate(moved: Point) -> Array:
        changed = point_layers(moved)
        new = {layer: {**core.params[layer], **changed.get(layer, {})} for layer in core.params}
        there = prompt._replace(memory=moved.get(("memory",), prompt.memory))
        return run_reverse(wide._replace(core=model.Model(config, new)), there, ids, first)[0]

    return compare_along(point, gradients, 0, evaluate)
