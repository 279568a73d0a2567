"""One model in training: its parameters and gradients in two buffers, and the steps that change them."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.publishing import assemble_checkpoint, published_tensors
from attnkit.errors import NotFiniteError, UsageError
from attnkit.inference import callbacks
from attnkit.model import Array
from attnkit.model.backward.dropout import dropout_backward
from attnkit.model.backward.tape import Dropout, ModelGradients
from attnkit.model.backward.whole_models import StackInputs, model_backward, run_model
from attnkit.model.context import Model, Params
from attnkit.model.dropout import dropout
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.kernels.threads import run_parallel
from attnkit.model.loss import IGNORE_INDEX, LossOptions, cross_entropy, loss_and_gradient
from attnkit.training.batches import Batch
from attnkit.training.gradients import clip_gradients, gradient_norm
from attnkit.training.optimizers import Optimizer
from attnkit.training.parameter_buffer import ParameterBuffer
from attnkit.training.parameter_groups import (
    match_parameters,
    tensor_groups,
    tensors_of,
    unfrozen_parameters,
)
from attnkit.training.recipe import Recipe
from attnkit.training.schedules import SCHEDULES
from attnkit.training.start import Start

MANY = 512  # tokens, and LARGE: tokens times parameters, from which a pass is computed in parts at once
LARGE = 1 << 28
PARTS = 2  # of such a pass, as each costs the time of its calls


class StepResult(NamedTuple):
    """The numbers of a step: the mean loss of its tokens, the norm of the gradients before clipping, and the rate."""

    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int


class Evaluation(NamedTuple):
    """The numbers of the held-out part: the mean loss, and of labelled texts the part whose label is most probable."""

    loss: float
    accuracy: float | None = None


class Hooks(NamedTuple):
    """Hooks of the forward and of the backward pass of one step."""

    forward: Hook = no_hook
    backward: Hook = no_hook


NO_HOOKS = Hooks()


class Trainer:
    """A model, its optimizer and its data.

    parameters  the tensors by their published names, in one buffer, which the optimizer changes in place
    gradients   theirs, in a buffer of the same layout
    model       its parameters are views of the first buffer
    total       steps of the whole run, None where only time or patience ends it
    """

    def __init__(self, recipe: Recipe, start: Start) -> None:
        self.recipe, self.raw, self.corpus = recipe, start.raw, start.corpus
        self.total = recipe.total_steps(self.corpus.steps_per_epoch)
        self.table = published_tensors(start.raw)
        groups = tensor_groups(self.table, recipe.layer_decay)
        order = sorted(self.table.shapes, key=groups.__getitem__)  # those of a group are one range for the optimizer
        self.parameters = ParameterBuffer.of({name: start.tensors[name] for name in order})
        self.gradients = self.parameters.zeros()
        self.model = views_as_model(start.raw, self.parameters)
        self._gradient_views = views_as_model(start.raw, self.gradients).params
        self._schedule = recipe.schedule_options(self.total)
        self.optimizer = Optimizer(self.parameters, recipe.optimizer_options(), groups)
        frozen = match_parameters(self.table.names, recipe.freeze)
        engine = callbacks.current().engine
        self._engine: Any = engine and engine.differentiator(self.model, self.parameters, self._assemble)
        self._free = set(self.parameters) - tensors_of(self.table, frozen)
        if not self._free:
            raise UsageError("every parameter is frozen (--freeze)")

    def _assemble(self, tensors: Mapping[str, Any]) -> Params:
        """Return the parameters by layer of tensors, which may be those of another library."""
        return assemble_checkpoint(self.raw, tensors).params

    def trainable(self, step: int) -> set[str]:
        """Return the tensors that are changed in a step, by their published names."""
        if self.recipe.unfreeze_every is None:
            return self._free
        names = unfrozen_parameters(self.table.names, self.model.config, step, self.recipe.unfreeze_every)
        return self._free & tensors_of(self.table, names)

    def step(self, number: int, hooks: Hooks = NO_HOOKS) -> StepResult:
        """Change the parameters by the gradients of the batch of a step, from 1.

        NotFiniteError, before they are changed, where the loss or the gradient is not finite.
        """
        loss, tokens = self.collect_gradients(number, hooks)
        trainable = self.trainable(number)
        for name in set(self.parameters) - trainable:
            self.gradients[name][...] = 0
        norm = self._clip()
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise NotFiniteError(f"step {number}: the {'gradient' if np.isfinite(loss) else 'loss'} is not finite")
        factor = SCHEDULES[self.recipe.schedule](number, self._schedule)
        self.optimizer.step(self.gradients, factor, trainable)
        return StepResult(loss, norm, self.optimizer.options.lr * factor, tokens)

    def collect_gradients(self, number: int, hooks: Hooks = NO_HOOKS) -> tuple[float, int]:
        """Put the gradients of the mean loss of a step in their buffer; return that loss, and its number of tokens.

        The rows of the batch are worked on in `accumulate` passes, whose gradients are added up.
        """
        batch, passes = self.corpus.batch(number), self.recipe.accumulate
        count = int((batch.targets != IGNORE_INDEX).sum())
        self.gradients.flat[...] = 0
        total = 0.0
        for index, rows in enumerate(split_rows(len(batch.ids), passes)):
            total += self._add_gradients(take_rows(batch, rows), count, (number - 1) * passes + index + 1, hooks)
        return total / count, count if batch.mask is None else int(batch.mask.sum())

    def gradient_of(self, parameter: str) -> Array:
        """Return the gradient of a parameter, as decoder.0.self.wq, of the last batch."""
        layer, _, name = parameter.rpartition(".")
        return self._gradient_views[layer][name]

    def evaluate(self) -> Evaluation | None:
        """Return the numbers of the held-out part, None where there is none."""
        if self.corpus.held_out is None:
            return None
        total, count, correct = 0.0, 0, 0
        for batch in self.corpus.held_out():
            logits = self._compute_logits(batch)
            total += float(cross_entropy(logits, batch.targets, LossOptions(reduction="sum")))
            count += int((batch.targets != IGNORE_INDEX).sum())
            correct += int((logits.argmax(axis=-1) == batch.targets).sum())
        return Evaluation(total / count, correct / count if self.model.config.classes else None)

    def _add_gradients(self, batch: Batch, count: int, number: int, hooks: Hooks) -> float:
        """Add the gradients of the rows of a pass, which has a number, to the buffer; return the sum of their losses.

        A large pass is PARTS smaller ones at once, on any number of cores, as each of its operations is too small to
        be shared by them; not where hooks are to see its whole intermediates.
        """
        if self._engine and hooks is NO_HOOKS:
            return self._add_computed(batch, count, number)
        is_large = batch.ids.size >= MANY and batch.ids.size * self.parameters.flat.size >= LARGE
        parts = split_rows(len(batch.ids), PARTS if is_large and hooks is NO_HOOKS else 1)
        dropping = [self._dropout(rate, number) for rate in (self.recipe.dropout, self.recipe.weight_drop)]
        results: list[tuple[float, ModelGradients]] = [(0.0, {})] * len(parts)

        def work(indices: Iterator[int]) -> None:
            for index in indices:
                rows = parts[index]
                own = dropping[0] and dropping[0]._replace(row=rows.start)
                results[index] = self._differentiate(take_rows(batch, rows), count, (own, dropping[1]), hooks)

        run_parallel(work, range(len(parts)))
        for _, gradients in results:
            self._add(gradients)
        return sum(loss for loss, _ in results)

    def _add_computed(self, batch: Batch, count: int, number: int) -> float:
        """Add the gradients that the engine computes of the rows of a pass; return the sum of their losses."""
        dropping = self._dropout(self.recipe.dropout, number)
        inputs, options = stack_inputs(self.model, batch), {"count": count, "smoothing": self.recipe.smoothing}
        loss, gradient = self._engine.differentiate(
            self.parameters.flat, inputs, batch.targets, dropping=dropping, **options
        )
        self.gradients.flat[...] += gradient
        return float(loss)

    def _compute_logits(self, batch: Batch) -> Array:
        """Return the logits of a batch."""
        inputs = stack_inputs(self.model, batch)
        logits: Array = (
            self._engine.logits(self.parameters.flat, inputs) if self._engine else run_model(self.model, inputs)[0]
        )
        return logits

    def _differentiate(
        self, batch: Batch, count: int, dropouts: tuple[Dropout | None, Dropout | None], hooks: Hooks
    ) -> tuple[float, ModelGradients]:
        """Return the sum of the losses of some rows, and the gradients of that sum divided by `count`.

        The first dropout is that of intermediates, the second that of weights.
        """
        dropping, weights = dropouts
        model = drop_weights(self.model, weights)
        inputs = stack_inputs(model, batch)
        logits, recorded = run_model(model, inputs, dropout=dropping, hook=hooks.forward)
        options = LossOptions(label_smoothing=self.recipe.smoothing, reduction="sum")
        loss, slope = loss_and_gradient(logits, batch.targets, options, np.float32(1 / count), in_place=True)
        gradients = model_backward(model, recorded, slope, hook=hooks.backward).params
        return float(loss), drop_weight_gradients(gradients, weights)

    def _add(self, gradients: ModelGradients) -> None:
        """Add gradients of parameters to their tensors; of tied parameters, which share one gradient, the first."""
        done = set()
        for layer, parts in gradients.items():
            for name, gradient in parts.items():
                view = self._gradient_views[layer][name]
                place = (view.__array_interface__["data"][0], view.size)
                if place not in done:
                    done.add(place)
                    view += gradient

    def _clip(self) -> float:
        if self.recipe.clip:
            return clip_gradients(self.gradients.flat, self.recipe.clip)
        return gradient_norm(self.gradients.flat)

    def _dropout(self, rate: float, number: int) -> Dropout | None:
        return Dropout(rate, self.recipe.seed, number) if rate else None


def drop_weights(model: Model, dropping: Dropout | None) -> Model:
    """Return a model with dropout on the weights between the states of its recurrent layers (Merity et al. 2018)."""
    if dropping is None:
        return model
    params = {
        layer: {
            name: dropout(array, **dropping._asdict(), place=f"{layer}.{name}") if is_dropped(layer, name) else array
            for name, array in parts.items()
        }
        for layer, parts in model.params.items()
    }
    return Model(model.config, params)


def drop_weight_gradients(gradients: ModelGradients, dropping: Dropout | None) -> ModelGradients:
    """Return gradients of the weights of `drop_weights` as those of the weights that it took: its adjoint."""
    if dropping is not None:
        for layer, parts in gradients.items():
            for name in (name for name in parts if is_dropped(layer, name)):
                parts[name] = dropout_backward(parts[name], **dropping._asdict(), place=f"{layer}.{name}")
    return gradients


def is_dropped(layer: str, name: str) -> bool:
    """Return whether a parameter is a weight between the states of a recurrent layer.

    >>> is_dropped("decoder.0.rnn", "hidden_reverse"), is_dropped("decoder.0.rnn", "hidden_bias")
    (True, False)
    """
    return layer.endswith(".rnn") and name in ("hidden", "hidden_reverse")


def views_as_model(raw: Mapping[str, object], buffer: ParameterBuffer) -> Model:
    """Return the model of a configuration whose parameters are views of a buffer of published tensors."""
    checkpoint = assemble_checkpoint(raw, buffer)
    return Model(checkpoint.config, {layer: dict(checkpoint.params[layer]) for layer in checkpoint.params})


def split_rows(count: int, parts: int) -> list[slice]:
    """Return the rows of each part of a batch; there are fewer parts where there are fewer rows.

    >>> split_rows(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = [part * count // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def take_rows(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch.

    >>> take_rows(Batch(np.eye(2), np.ones((2, 2))), slice(1, 2)).ids.tolist()
    [[0.0, 1.0]]
    """
    return Batch(*(None if part is None else part[rows] for part in batch))  # type: ignore[arg-type]


def stack_inputs(model: Model, batch: Batch) -> dict[str, StackInputs]:
    """Return what each stack of a model computes from, of a batch."""
    last = model.config.stacks[-1]
    inputs = {last: StackInputs(batch.ids, batch_mask(batch.mask))}
    if batch.source is not None:
        inputs["encoder"] = StackInputs(batch.source, batch_mask(batch.source_mask))
    return inputs


def batch_mask(real: Array | None) -> Array | None:
    """Return which tokens of a batch are no padding as a mask (B, 1, T), None where all are: real (B, T)."""
    return None if real is None or real.all() else real[:, None, :]
