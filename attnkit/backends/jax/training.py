"""The loss of a batch and its gradients, by JAX's differentiation of the forward pass that program.py has."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attnkit.backends.jax import formulas
from attnkit.backends.jax.formulas import JaxArray
from attnkit.backends.jax.inputs import prepare_inputs
from attnkit.backends.jax.passes import check_supported, precision
from attnkit.backends.jax.placement import parameter_spec, put, used_layers
from attnkit.backends.jax.processes import to_numpy
from attnkit.backends.jax.program import Pass, run_steps
from attnkit.model.backward.tape import Dropout
from attnkit.model.backward.transformer import dropout_layers
from attnkit.model.backward.whole_models import StackInputs
from attnkit.model.config import Step, layer_plan
from attnkit.model.context import Context, Model
from attnkit.model.dropout import dropout_mask
from attnkit.model.dtypes import Array
from attnkit.model.loss import IGNORE_INDEX

Inputs = Mapping[str, StackInputs]  # stack -> its inputs
Assemble = Callable[[Mapping[str, JaxArray]], Mapping[str, Any]]  # tensors by name -> layer -> {parameter: array}


class Differentiator:
    """A model whose parameters are one array, its loss and the gradient of that array.

    engine    the JaxEngine that computes
    buffer    the places of tensors in the array, and their shapes: a ParameterBuffer
    assemble  makes the parameters by layer of the tensors
    """

    def __init__(self, engine: Any, model: Model, buffer: Any, assemble: Assemble) -> None:
        check_supported(model, engine.mesh)
        self._engine, self._model, self._buffer, self._assemble = engine, model, buffer, assemble
        self._steps: dict[str, list[Step]] = {name: layer_plan(model.config, name) for name in model.config.stacks}
        self._loss = jax.jit(self._compute_gradients, static_argnames=("rate",))
        self._logits = jax.jit(lambda flat, arrays: self._compute_logits(self._split(flat), arrays, {}, rate=0.0))

    def differentiate(
        self,
        flat: Array,
        inputs: Inputs,
        targets: Array,
        *,
        count: float,
        smoothing: float = 0.0,
        dropping: Dropout | None = None,
    ) -> tuple[float, Array]:
        """Return the sum of the losses of targets, and the gradient of that sum divided by `count`.

        flat (N,), targets (B, T) or (B,) -> one number, (N,) in the dtype of flat
        """
        with precision(self._dtype(flat)):
            arrays, sizes = self._place(flat, inputs)
            rows = np.full((sizes[0], *([sizes[1]] * (targets.ndim - 1))), IGNORE_INDEX, np.int32)
            rows[tuple(slice(size) for size in targets.shape)] = targets
            masks = {} if dropping is None else self._masks(inputs, dropping, sizes)
            options = np.asarray([1 / count, smoothing], flat.dtype)
            rate = 0.0 if dropping is None else dropping.rate
            placed = [self._put(one) for one in (flat, rows, options)]
            loss, gradient = self._loss(placed[0], arrays, placed[1], placed[2], masks, rate=rate)
            return float(loss) * count, to_numpy(gradient, flat.dtype)

    def logits(self, flat: Array, inputs: Inputs) -> Array:
        """Return the logits of a batch, (B, T, N) or (B, C)."""
        ids = inputs[self._model.config.stacks[-1]].x
        with precision(self._dtype(flat)):
            arrays, _ = self._place(flat, inputs)
            logits = to_numpy(self._logits(self._put(flat), arrays), flat.dtype)
        return logits[: len(ids)] if self._model.config.is_head_pooled else logits[: len(ids), : ids.shape[1]]

    def _dtype(self, flat: Array) -> str:
        return self._engine.compute or str(flat.dtype.name)

    def _put(self, array: Array) -> JaxArray:
        return put(array, array.dtype, self._engine.mesh, PartitionSpec())

    def _place(self, flat: Array, inputs: Inputs) -> tuple[dict[str, Any], tuple[int, int]]:
        """Return the inputs of every stack on devices, and the padded numbers of texts and of tokens of the last."""
        arrays, memory, mask, size = dict[str, Any](), None, None, (0, 0)
        for name, steps in self._steps.items():
            one = inputs[name]
            context = Context(one.mask, memory, mask if one.memory_mask is None else one.memory_mask, one.positions)
            context.segment_ids = one.segment_ids
            prepared = prepare_inputs(self._model, steps, one.x, context, self._engine.sizes())
            prepared.arrays.pop("memory", None)  # of zeros, for its shape
            arrays[name] = self._engine.put_inputs(prepared, self._dtype(flat))
            shape = prepared.x.shape
            size = shape[0], shape[1] if prepared.x.ndim > 1 else 0
            memory, mask = (
                np.broadcast_to(np.zeros(1), (len(one.x), prepared.tokens, self._model.config.width)),
                one.mask,
            )
        return arrays, size

    def _masks(self, inputs: Inputs, dropping: Dropout, sizes: tuple[int, int]) -> dict[str, JaxArray]:
        """Return the masks of dropout, those of NumPy, by the layers whose results they apply to."""
        masks, width = {}, self._model.config.width
        for name, steps in self._steps.items():
            x = inputs[name].x
            for layer in sorted(dropout_layers(steps)):
                own = dropout_mask((*x.shape[:2], width), **dropping._asdict(), place=layer)
                room = self._engine.sizes().padded(x.shape[1])
                whole = np.zeros((sizes[0], room, width), bool)
                whole[: len(x), : x.shape[1]] = own
                masks[layer] = self._put(whole)
        return masks

    def _split(self, flat: JaxArray) -> dict[str, JaxArray]:
        """Return the tensors of an array."""
        shapes = self._buffer.shapes()
        return {name: flat[place].reshape(shapes[name]) for name, place in self._buffer.ranges.items()}

    def _compute_gradients(self, flat: JaxArray, *arguments: Any, rate: float) -> tuple[JaxArray, JaxArray]:
        """Return the loss, and its gradient as an array like that of the parameters."""
        compute = jax.value_and_grad(self._compute_loss)
        loss, gradients = compute(self._split(flat), *arguments, rate=rate)
        parts, end = [], 0
        for name, place in self._buffer.ranges.items():
            parts += [jnp.zeros(place.start - end, flat.dtype), gradients[name].ravel()]
            end = place.stop
        return loss, jnp.concatenate([*parts, jnp.zeros(flat.size - end, flat.dtype)])

    def _compute_logits(
        self, tensors: Mapping[str, JaxArray], arrays: Any, masks: Mapping[str, JaxArray], rate: float
    ) -> JaxArray:
        """Return the logits of padded inputs, with dropout where there are masks."""
        config, engine = self._model.config, self._engine
        params, memory, real = self._parameters(tensors), None, None

        def drop(layer: str, x: JaxArray) -> JaxArray:
            return x * masks[layer] / (1 - rate) if layer in masks else x

        for name, steps in self._steps.items():
            x, own = arrays[name]
            own = own if memory is None else own | {"memory": memory}
            run = Pass(config, params, own, engine.kernel(), drop=drop, layout=engine.layout())
            memory = run_steps(run, steps, x)
            real = own["mask"][:, 0, 0] if "mask" in own and own["mask"].ndim == 4 else None
        return formulas.head_logits(config, params, memory, real)

    def _parameters(self, tensors: Mapping[str, JaxArray]) -> dict[str, dict[str, JaxArray]]:
        """Return the parameters by layer, in the dtype to compute in, split over a mesh as those of a model are."""
        config, mesh = self._model.config, self._engine.mesh
        kind = self._engine.compute
        params = self._assemble({name: x.astype(kind or x.dtype) for name, x in tensors.items()})
        steps = [step for steps in self._steps.values() for step in steps]
        layers = [*used_layers(config, steps, params), *(one for one in params if one.startswith(("head", "pooler")))]

        def split(layer: str, name: str, array: JaxArray) -> JaxArray:
            if mesh is None:
                return array
            spec = parameter_spec(config, mesh, layer, name, array.shape)
            return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))

        return {layer: {name: split(layer, name, x) for name, x in params[layer].items()} for layer in layers}

    def _compute_loss(
        self, tensors: Any, arrays: Any, targets: JaxArray, options: JaxArray, masks: Any, *, rate: float
    ) -> JaxArray:
        """Return the sum of the losses times the first of the options; the second is label smoothing."""
        scale, smoothing = options
        logs = jax.nn.log_softmax(self._compute_logits(tensors, arrays, masks, rate))
        counts = targets != IGNORE_INDEX
        hard = jnp.take_along_axis(logs, jnp.where(counts, targets, 0)[..., None], axis=-1)[..., 0]
        losses = (1 - smoothing) * hard + smoothing * logs.mean(axis=-1)
        return -jnp.where(counts, losses, 0).sum() * scale
