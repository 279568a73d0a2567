"""Training in NumPy: buffers of parameters and gradients, changed in place."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.publishing import PublishedTensors, published_tensors
from attnkit.checkpoints.weights import TensorSpec
from attnkit.model import Array
from attnkit.model.backward.tape import Dropout, ModelGradients
from attnkit.model.config import Config
from attnkit.model.context import Model
from attnkit.model.formulas.dropout import dropout
from attnkit.model.formulas.loss import IGNORE_INDEX, LossOptions, cross_entropy, loss_and_gradient
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from attnkit.model.processor.threads import run_parallel, split_range
from attnkit.model.recurrent_config import is_state_weight
from attnkit.training.batches import Batch
from attnkit.training.optimizers import Optimizer, ParameterBuffer
from attnkit.training.parameter_groups import tensor_groups
from attnkit.training.recipe import Recipe


class StepPlan(NamedTuple):
    """What a step does.

    batch      what it learns from
    passes     the rows of the batch that are worked on together; the gradients of all passes are added up
    first      the number of the first of these passes in the run, by which dropout is drawn
    trainable  the tensors that it changes, by their published names
    factor     of the schedule on the learning rate
    """

    batch: Batch
    passes: list[slice]
    first: int
    trainable: Collection[str]
    factor: float

    @property
    def targets(self) -> int:
        """How many targets there are, of whose losses the mean is taken."""
        return int((self.batch.targets != IGNORE_INDEX).sum())

    def dropout(self, rate: float, seed: int) -> list[Dropout | None]:
        """The dropout of each pass, None at a rate of 0."""
        numbers = range(self.first, self.first + len(self.passes))
        return [Dropout(rate, seed, number) if rate else None for number in numbers]


def split_rows(count: int, parts: int) -> list[slice]:
    """The rows of each part of a batch: 0 to 1 and 2 to 4 for 5 rows in 2 parts."""
    ends = [part * count // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def take_rows(batch: Batch, rows: slice) -> Batch:
    return Batch(*(None if part is None else part[rows] for part in batch))  # type: ignore[arg-type]


def stack_inputs(config: Config, batch: Batch) -> dict[str, StackInputs]:
    """The inputs of each stack of a model from a batch."""
    inputs = {config.stacks[-1]: StackInputs(batch.ids, batch_mask(batch.mask))}
    if batch.source is not None:
        inputs["encoder"] = StackInputs(batch.source, batch_mask(batch.source_mask))
    return inputs


def batch_mask(real: Array | None) -> Array | None:
    """A mask (B, 1, T) from real tokens (B, T); None if all are real."""
    return None if real is None or real.all() else real[:, None, :]


def count_places(config: Config, batch: Batch) -> int:
    """The tokens of a batch with padding; of images class token and patches.

    >>> from attnkit.model.config import PatchConfig
    >>> count_places(Config("", 4, patches=PatchConfig(8, 8, 4, 4)), Batch(np.zeros((3, 3, 8, 8)), np.zeros(3)))
    15
    """
    cut = config.patches
    return len(batch.ids) * cut.tokens(*batch.ids.shape[-2:]) if cut else batch.ids.size


BLOCK = 1 << 16  # elements that are worked on at a time, which stay in a core's cache


def gradient_norm(gradients: Array) -> float:
    """The Euclidean norm of gradients, summed in float64 in a fixed order.

    >>> gradient_norm(np.array([3.0, 4.0], np.float32))
    5.0
    """
    flat = gradients.reshape(-1)
    blocks = list(split_range(0, flat.size, BLOCK))
    squares = np.zeros(len(blocks))

    def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            wide = flat[blocks[number]].astype(np.float64)
            squares[number] = wide @ wide

    run_parallel(work, range(len(blocks)))
    return float(np.sqrt(squares.sum()))


def clip_gradients(gradients: Array, max_norm: float) -> float:
    """Scale gradients in place to a norm of at most `max_norm`.

    The result is the norm before. The factor is max_norm / (norm + 1e-6), as in torch.nn.utils.clip_grad_norm_. If
    the norm is not finite, the gradients are unchanged.

    >>> gradients = np.array([3.0, 4.0])
    >>> clip_gradients(gradients, 1.0), gradients.round(4).tolist()
    (5.0, [0.6, 0.8])
    """
    norm = gradient_norm(gradients)
    factor = max_norm / (norm + 1e-6)
    if not np.isfinite(norm) or factor >= 1:
        return norm
    flat = gradients.reshape(-1)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            flat[block] *= factor

    run_parallel(work, split_range(0, flat.size, BLOCK))
    return norm


MANY = 512  # tokens, and LARGE: tokens times parameters, from which a pass is computed in parts at once
LARGE = 1 << 28
PARTS = 2  # of such a pass, as each costs the time of its calls


class Hooks(NamedTuple):
    """Hooks of the forward and of the backward pass of one step."""

    forward: Hook = no_hook
    backward: Hook = no_hook


NO_HOOKS = Hooks()


class NumpyState:
    """The parameters of a model in training and their optimizer, in their own dtype.

    parameters  the tensors by their published names, in one buffer, which the optimizer changes in place
    gradients   theirs, in a buffer of the same layout
    model       its parameters are those of the first buffer
    """

    def __init__(self, recipe: Recipe, raw: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self._recipe = recipe
        table = published_tensors(raw)
        groups = tensor_groups(table, recipe.layer_decay)
        order = sorted(table.shapes, key=groups.__getitem__)  # a group is one range for the optimizer
        dtype = np.result_type(*{array.dtype for array in tensors.values()})
        self.parameters = ParameterBuffer.of({name: tensors[name] for name in order}, dtype)
        self.gradients = self.parameters.zeros()
        self._values = BufferedParameters(table, self.parameters)
        self._slopes = BufferedParameters(table, self.gradients, is_slope=True)
        self.model = Model(table.config, self._values.params)
        self.optimizer = Optimizer(self.parameters, recipe.optimizer_options(), groups)

    def step(self, plan: StepPlan) -> tuple[float, float]:
        """Change the parameters; return the mean loss, and the norm before clipping.

        If one of them is not finite, nothing is changed.
        """
        loss = self.collect_gradients(plan)
        for name in set(self.parameters) - set(plan.trainable):
            self.gradients[name][...] = 0
        flat, limit = self.gradients.flat, self._recipe.clip
        norm = clip_gradients(flat, limit) if limit else gradient_norm(flat)
        if np.isfinite(loss) and np.isfinite(norm):
            self.optimizer.step(self.gradients, plan.factor, plan.trainable)
            self._values.read()
        return loss, norm

    def collect_gradients(self, plan: StepPlan, hooks: Hooks = NO_HOOKS) -> float:
        """Put the gradients of the mean loss of a step in their buffer; return that loss."""
        self.gradients.flat[...] = 0
        self._slopes.read()
        count, total = plan.targets, 0.0
        rates = self._recipe.dropout, self._recipe.weight_drop
        dropouts = zip(*(plan.dropout(rate, self._recipe.seed) for rate in rates), strict=True)
        for rows, dropping in zip(plan.passes, dropouts, strict=True):
            total += self._add_gradients(take_rows(plan.batch, rows), count, dropping, hooks)
        self._slopes.write()
        return total / count

    def gradient_of(self, parameter: str) -> Array:
        """The gradient of a parameter, such as decoder.0.self.wq, for the last batch."""
        layer, _, name = parameter.rpartition(".")
        return self._slopes.params[layer][name]

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """The sum of the losses of a batch, and the number of targets that rank first."""
        logits, _ = run_model(self.model, stack_inputs(self.model.config, batch))
        loss = cross_entropy(logits, batch.targets, LossOptions(reduction="sum"))
        return float(loss), int((logits.argmax(axis=-1) == batch.targets).sum())

    def fetch(self) -> "NumpyState":
        return self

    def load(self, state: "NumpyState") -> None:
        """Go on from what `fetch` returned, this state, whose buffers have changed since."""
        self._values.read()

    def _add_gradients(
        self, batch: Batch, count: int, dropouts: tuple[Dropout | None, Dropout | None], hooks: Hooks
    ) -> float:
        """Add the gradients of a pass to the buffer; return the sum of its losses.

        A large pass is PARTS smaller ones at once, on any number of cores, as each of its operations is too small to
        be shared by them; not where hooks are to see its whole intermediates.
        """
        places = count_places(self.model.config, batch)
        is_large = places >= MANY and places * self.parameters.flat.size >= LARGE
        parts = split_rows(len(batch.ids), PARTS if is_large and hooks is NO_HOOKS else 1)
        results: list[tuple[float, ModelGradients]] = [(0.0, {})] * len(parts)

        def work(indices: Iterator[int]) -> None:
            for index in indices:
                rows = parts[index]
                own = dropouts[0] and dropouts[0]._replace(row=rows.start)
                results[index] = self._differentiate(take_rows(batch, rows), count, (own, dropouts[1]), hooks)

        run_parallel(work, range(len(parts)))
        for _, gradients in results:
            self._add(gradients)
        return sum(loss for loss, _ in results)

    def _differentiate(
        self, batch: Batch, count: int, dropouts: tuple[Dropout | None, Dropout | None], hooks: Hooks
    ) -> tuple[float, ModelGradients]:
        """The sum of the losses of some rows, and its gradients divided by `count`.

        The first dropout applies to intermediates, the second to weights.
        """
        dropping, weights = dropouts
        model = Model(self.model.config, drop_state_weights(self.model.params, weights))
        inputs = stack_inputs(model.config, batch)
        logits, recorded = run_model(model, inputs, dropout=dropping, hook=hooks.forward)
        options = LossOptions(label_smoothing=self._recipe.smoothing, reduction="sum")
        scale = self.parameters.flat.dtype.type(1 / count)
        loss, slope = loss_and_gradient(logits, batch.targets, options, scale, in_place=True)
        gradients = model_backward(model, recorded, slope, hook=hooks.backward).params
        return float(loss), drop_state_weights(gradients, weights)

    def _add(self, gradients: ModelGradients) -> None:
        """Add gradients of parameters to their tensors, once for tied parameters."""
        done = set()
        for layer, parts in gradients.items():
            for name, gradient in parts.items():
                array = self._slopes.params[layer][name]
                place = (array.__array_interface__["data"][0], array.size)
                if place not in done:
                    done.add(place)
                    array += gradient


def drop_state_weights(params: Mapping[str, Mapping[str, Array]], dropping: Dropout | None) -> ModelGradients:
    """Drop weights between recurrent states (Merity et al. 2018), or their gradients."""
    dropped = {layer: dict(parts) for layer, parts in params.items()}
    if dropping is not None:
        for layer, parts in dropped.items():
            for name in (name for name in parts if is_state_weight(layer, name)):
                parts[name] = dropout(parts[name], **dropping._asdict(), place=f"{layer}.{name}")
    return dropped


class BufferedParameters:
    """The parameters of a buffer of tensors, or their gradients or states.

    The states are those of an optimizer.

    params  by layer: views of the buffer, or copies where no view is the parameter, as of rows of every head in one
            tensor, of tensors that are joined, and where a number is added to the published ones, which slopes lack

    >>> raw = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 9}
    >>> table = published_tensors(raw)
    >>> buffer = ParameterBuffer(table.shapes)
    >>> BufferedParameters(table, buffer).params["decoder.0.ffn"]["b1"][...] = 1
    >>> float(buffer["transformer.h.0.mlp.c_fc.bias"].sum())
    16.0
    """

    def __init__(self, table: PublishedTensors, buffer: ParameterBuffer, is_slope: bool = False) -> None:
        self.params: dict[str, dict[str, Array]] = {layer: {} for layer in table.specs}
        self._copies: list[tuple[Array, TensorSpec, list[Array]]] = []
        for layer, specs in table.specs.items():
            for name, spec in specs.items():
                spec = spec._replace(offset=0.0) if is_slope else spec
                tensors = [buffer[published] for published in table.names[f"{layer}.{name}"]]
                array = spec.to_parameter(spec.join(tensors), table.config.parameter_shape(layer, name))
                self.params[layer][name] = array
                if not np.shares_memory(array, buffer.flat):
                    self._copies.append((array, spec, tensors))

    def read(self) -> None:
        """Copy what has changed in the buffer."""
        for array, spec, tensors in self._copies:
            array[...] = spec.to_parameter(spec.join(tensors), array.shape)

    def write(self) -> None:
        """Copy what has changed in the copies to the buffer."""
        for array, spec, tensors in self._copies:
            spec.store(tensors, array)
