"""Training by JAX: one compiled step changes the state that stays on devices.

JAX differentiates the forward pass that program.py has. Every array of the state is split over a mesh as its parameter.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attnkit.backends.jax import formulas
from attnkit.backends.jax.attention_kernels import MANY, Rules, dense_attention, fused_attention
from attnkit.backends.jax.formulas import JaxArray, See
from attnkit.backends.jax.inputs import BATCHED, prepare_inputs, round_up
from attnkit.backends.jax.mesh import PlacedParameters, assemble, check_mesh, put
from attnkit.backends.jax.passes import Pass, precision
from attnkit.backends.jax.processes import to_numpy
from attnkit.backends.jax.program import compute_head, run_steps
from attnkit.backends.jax.recurrence import last_states
from attnkit.model.backward.tape import Dropout
from attnkit.model.config import Step
from attnkit.model.context import Context, Model, Params
from attnkit.model.dtypes import Array
from attnkit.model.formulas.dropout import dropout_mask
from attnkit.model.formulas.loss import IGNORE_INDEX
from attnkit.model.passes.model_gradients import StackInputs
from attnkit.model.passes.recorded_pass import dropout_layers
from attnkit.model.recurrent_config import is_state_weight

PARAMETER = "parameter"
State = Mapping[str, JaxArray]  # what an optimizer has of one parameter


class Factors(NamedTuple):
    """One update: the parameter times `keep`, less `scale` times its direction.

    decay  times the parameter, is added to the gradient
    other  of adam what is added to the root; of sgd the factor on the gradient that is added to the momentum
    """

    keep: Any
    decay: Any
    scale: Any
    other: Any


def find_factors(options: Any, rate: float, weight_decay: float, step: int) -> Factors:
    """The factors of an update: OptimizerOptions, and the numbers of `Update`.

    The decay of adamw is separate; the first update of sgd is not dampened.
    """
    if options.name == "sgd":
        return Factors(1.0, weight_decay, rate, 1 - options.dampening if step > 1 else 1.0)
    beta1, beta2 = options.betas
    root = float((1 - beta2**step) ** 0.5)
    keep, decay = (1 - rate * weight_decay, 0.0) if options.name == "adamw" else (1.0, weight_decay)
    return Factors(keep, decay, rate * root / (1 - beta1**step), options.eps * root)


def update_parameter(
    arrays: State, gradient: JaxArray, options: Any, factors: Factors, is_skipped: Any
) -> dict[str, JaxArray]:
    """Update a parameter and its optimizer state, unless the update is skipped.

    arrays  PARAMETER and the names of the state -> their arrays

    >>> from types import SimpleNamespace
    >>> options, zero = SimpleNamespace(name="adam", betas=(0.9, 0.999), eps=0.0), jnp.zeros(1)
    >>> arrays = {"parameter": zero + 1, "exp_avg": zero, "exp_avg_sq": zero}
    >>> after = update_parameter(arrays, zero + 5, options, find_factors(options, 0.1, 0.0, 1), False)
    >>> after["parameter"].round(4).tolist(), after["exp_avg"].round(4).tolist()
    ([0.8999999761581421], [0.5])
    """
    parameter = arrays[PARAMETER]
    gradient = gradient + factors.decay * parameter

    def choose(**new: JaxArray) -> dict[str, JaxArray]:
        chosen = {name: jnp.where(is_skipped, arrays[name], one) for name, one in new.items()}
        kept: dict[str, JaxArray] = jax.lax.optimization_barrier(chosen)
        return kept  # written over the old one before it is read again

    if options.name != "sgd":
        beta1, beta2 = options.betas
        mean = beta1 * arrays["exp_avg"] + (1 - beta1) * gradient
        state = choose(exp_avg=mean, exp_avg_sq=beta2 * arrays["exp_avg_sq"] + (1 - beta2) * gradient * gradient)
        direction = state["exp_avg"] / (jnp.sqrt(state["exp_avg_sq"]) + factors.other)
    elif options.momentum:
        state = choose(momentum_buffer=options.momentum * arrays["momentum_buffer"] + factors.other * gradient)
        direction = state["momentum_buffer"]
    else:
        state, direction = {}, gradient
    changed = factors.keep * parameter - factors.scale * direction
    return {PARAMETER: jnp.where(is_skipped, parameter, changed), **state}


Inputs = Mapping[str, StackInputs]  # stack -> its inputs
Dropouts = tuple[Sequence[Dropout], Sequence[Dropout]]  # of results and of weights, one for each pass
Arrays = dict[str, JaxArray]  # parameter -> its array, or what is kept of it


class PlacedBatch(NamedTuple):
    """A batch on devices.

    parts   what has an entry for each text, (R * P, ...), of R texts in each of P passes: `inputs` of every stack,
            `targets` and `masks` of dropout by layer; text p of all passes is R * p + pass. `weights` are the factors
            on parameters in each pass, as if there were one text
    shared  stack -> what all texts read
    """

    parts: dict[str, Any]
    shared: dict[str, dict[str, Any]]


class JaxTrainState:
    """The parameters of a model and the state of their optimizer on devices.

    engine     the JaxEngine that computes
    model      what is placed on devices; its arrays are not kept
    optimizer  OptimizerOptions; states: the names of what it has of every parameter, zeros at first
    clip       the largest norm of all gradients, 0 for any; smoothing: of labels
    """

    def __init__(
        self, engine: Any, model: Model, *, optimizer: Any, states: Iterable[str], clip: float, smoothing: float
    ) -> None:
        check_mesh(model.config, engine.mesh)
        self._engine, self._config, self._layers = engine, model.config, list(model.params)
        self._options, self._clip, self._smoothing = optimizer, clip, smoothing
        self._steps: dict[str, list[Step]] = {name: model.config.plan(name) for name in model.config.stacks}
        self._dtype = next(iter(next(iter(model.params.values())).values())).dtype
        with precision(self._kind()):
            placed = PlacedParameters(model.config, model.params, self._dtype, engine.mesh)
            parameters = placed.arrays(self._layers)
            self._shardings = {name: array.sharding for name, array in parameters.items()}
            self._arrays: dict[str, Arrays] = {PARAMETER: parameters}
            for state in states:
                zeros = {name: jnp.zeros(x.shape, x.dtype, device=x.sharding) for name, x in parameters.items()}
                self._arrays[state] = zeros
        self._views = placed.views
        self._change = jax.jit(self._compute_step, static_argnames=("passes", "rate"), donate_argnums=0)
        self._evaluate = jax.jit(self._compute_evaluation)

    def step(
        self,
        inputs: Inputs,
        targets: Array,
        *,
        passes: Sequence[slice],
        count: int,
        dropouts: Dropouts,
        updates: Mapping[str, Any],
    ) -> tuple[float, float]:
        """Change parameters by the gradients of a batch; return loss and gradient norm.

        targets (B, T) or (B,); count: the targets that the mean of losses is taken over
        passes   the rows that are worked on together
        dropouts  of the results of layers, and of the weights between states: that of each pass, none for none
        updates  parameter -> learning rate, weight decay and number of its update, of those that change

        If a result is not finite, nothing is changed.
        """
        names = sorted(set(updates) & set(self._shardings))
        numbers = np.array([find_factors(self._options, *updates[name]) for name in names], self._dtype)
        chosen = {kind: {name: arrays[name] for name in names} for kind, arrays in self._arrays.items()}
        frozen = {name: array for name, array in self._arrays[PARAMETER].items() if name not in updates}
        rate = dropouts[0][0].rate if dropouts[0] else 0.0
        with precision(self._kind()):
            placed = self._place(inputs, targets, passes, dropouts)
            scale = np.asarray(1 / count, self._dtype)
            changed, loss, norm = self._change(chosen, frozen, numbers, scale, placed, passes=len(passes), rate=rate)
            for kind, arrays in changed.items():
                self._arrays[kind] |= arrays
            return float(loss), float(norm)

    def evaluate(self, inputs: Inputs, targets: Array) -> tuple[float, int]:
        """The sum of the losses of targets, and the number of targets that rank first."""
        with precision(self._kind()):
            placed = self._place(inputs, targets, [slice(0, len(targets))], ((), ()))
            loss, hits = self._evaluate(self._arrays[PARAMETER], placed)
            return float(loss), int(hits)

    def fetch(self, buffers: Sequence[Params]) -> None:
        """Write the parameters, then each of their states, to arrays by layer."""
        with precision(self._kind()):
            for arrays, params in zip(self._arrays.values(), buffers, strict=True):
                for name, array in arrays.items():
                    layer, _, parameter = name.rpartition(".")
                    params[layer][parameter][...] = to_numpy(array)

    def load(self, buffers: Sequence[Params]) -> None:
        """Replace the parameters and their states by what `fetch` has written."""
        with precision(self._kind()):
            for arrays, params in zip(self._arrays.values(), buffers, strict=True):
                for name in arrays:
                    layer, _, parameter = name.rpartition(".")
                    sharding = self._shardings[name]
                    axes = sharding.spec if isinstance(sharding, NamedSharding) else ()
                    arrays[name] = self._put(params[layer][parameter], *axes)

    def _put(self, array: Array, *axes: str | None) -> JaxArray:
        return put(array, array.dtype, self._engine.mesh, PartitionSpec(*axes))

    def _place(self, inputs: Inputs, targets: Array, passes: Sequence[slice], dropouts: Dropouts) -> PlacedBatch:
        """Put a padded batch on devices; what is added has no targets."""
        texts = round_up(max(rows.stop - rows.start for rows in passes), self._engine.sizes().rows)
        places = np.zeros((texts, len(passes)), np.int64)  # of each text in the batch, of added ones the first
        if targets.ndim > 1:
            width = self._engine.sizes().padded(targets.shape[1]) - targets.shape[1]
            targets = np.pad(targets, ((0, 0), (0, width)), constant_values=IGNORE_INDEX)
        chosen = np.full((texts, len(passes), *targets.shape[1:]), IGNORE_INDEX, np.int32)
        for number, rows in enumerate(passes):
            size = rows.stop - rows.start
            places[:size, number], chosen[:size, number] = np.arange(rows.start, rows.stop), targets[rows]
        chosen = chosen.reshape(places.size, *targets.shape[1:])
        parts, shared = self._place_inputs(inputs, places.ravel())
        masks = self._place_masks(inputs, texts, passes, dropouts[0]) if dropouts[0] else {}
        batch = {"inputs": parts, "targets": self._put(chosen, "data"), "masks": masks}
        return PlacedBatch(batch | {"weights": self._place_weights(dropouts[1]) if dropouts[1] else {}}, shared)

    def _place_inputs(self, inputs: Inputs, places: Array) -> tuple[dict[str, Any], dict[str, Any]]:
        """The inputs of each stack that some texts have, and those that all texts share."""
        parts, shared, memory, mask = dict[str, Any](), dict[str, Any](), None, None
        for name, steps in self._steps.items():
            x = inputs[name].x[places]
            own = inputs[name].mask
            own = None if own is None else own[places]
            context = Context(own, memory, mask)
            prepared = prepare_inputs(Model(self._config, {}), steps, x, context, self._engine.sizes())
            prepared.arrays.pop("memory", None)  # of zeros, for its shape
            first, others = self._engine.put_inputs(prepared, self._kind())
            parts[name], shared[name] = {"x": first}, {}
            for key, one in others.items():
                part = one[0] if isinstance(one, tuple) else one
                is_batched = key in BATCHED and part.ndim >= BATCHED[key] and len(part) == len(places)
                (parts if is_batched else shared)[name][key] = one
            memory = np.broadcast_to(np.zeros(1), (len(x), prepared.tokens, self._config.width))
            mask = own
        return parts, shared

    def _place_masks(
        self, inputs: Inputs, texts: int, passes: Sequence[slice], dropouts: Sequence[Dropout]
    ) -> dict[str, JaxArray]:
        """The masks of dropout, drawn by NumPy, by the layers that they apply to."""
        masks, cut = {}, self._config.patches
        for name, steps in self._steps.items():
            tokens = cut.tokens(*inputs[name].x.shape[-2:]) if cut else inputs[name].x.shape[1]
            length = tokens if cut else self._engine.sizes().padded(tokens)
            for layer in sorted(dropout_layers(steps)):
                width = self._config.result_width(layer)
                whole = np.zeros((texts, len(passes), length, width), bool)
                for number, (rows, one) in enumerate(zip(passes, dropouts, strict=True)):
                    size = rows.stop - rows.start
                    whole[:size, number, :tokens] = dropout_mask((size, tokens, width), **one._asdict(), place=layer)
                masks[layer] = self._put(whole.reshape(-1, *whole.shape[2:]), "data", "seq")
        return masks

    def _place_weights(self, dropouts: Sequence[Dropout]) -> dict[str, JaxArray]:
        """The factors of the weights between states, (P, ...) by layer and parameter."""
        factors, share = {}, np.asarray(1 - dropouts[0].rate, self._dtype)
        for layer in self._layers:
            for name in (one for one in self._views[layer] if is_state_weight(layer, one)):
                shape, place = self._config.parameter_shape(layer, name), f"{layer}.{name}"
                masks = [dropout_mask(shape, **one._asdict(), place=place) for one in dropouts]
                factors[place] = self._put(np.stack(masks) / share)
        return factors

    def _compute_step(
        self,
        chosen: dict[str, Arrays],
        frozen: Arrays,
        numbers: JaxArray,
        scale: JaxArray,
        placed: PlacedBatch,
        *,
        passes: int,
        rate: float,
    ) -> tuple[dict[str, Arrays], JaxArray, JaxArray]:
        """Do a step: new parameters and states, the loss and the norm of its gradients.

        numbers (N, 4) the Factors of the parameters by name
        """
        loss, gradients = self._compute_gradients(chosen[PARAMETER], frozen, scale, placed, passes, rate)
        norm = jnp.sqrt(sum(jnp.square(one).sum() for one in gradients.values()))
        shrink = jnp.minimum(1, self._clip / (norm + 1e-6)) if self._clip else 1
        is_skipped = ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        rows = jax.lax.optimization_barrier([[*row] for row in numbers])  # scalars: so the kernels of all are alike
        changed = {kind: Arrays() for kind in chosen}
        for row, name in zip(rows, sorted(gradients), strict=True):
            before = {kind: arrays[name] for kind, arrays in chosen.items()}
            after = update_parameter(before, gradients[name] * shrink, self._options, Factors(*row), is_skipped)
            for kind in changed:
                changed[kind][name] = after[kind]
                if self._engine.mesh is not None:
                    changed[kind][name] = jax.lax.with_sharding_constraint(after[kind], self._shardings[name])
        return changed, loss, norm

    def _compute_gradients(
        self, trained: Arrays, frozen: Arrays, scale: JaxArray, placed: PlacedBatch, passes: int, rate: float
    ) -> tuple[JaxArray, Arrays]:
        """The scaled sum of the losses and its gradients, one pass after another."""

        def compute_loss(trained: Arrays, part: dict[str, Any]) -> JaxArray:
            logits = self._compute_logits(trained | frozen, PlacedBatch(part, placed.shared), rate)
            return self._losses(logits, part["targets"], self._smoothing).sum() * scale

        compute = jax.value_and_grad(compute_loss)
        if passes == 1:
            result: tuple[JaxArray, Arrays] = compute(trained, placed.parts)
            return result
        parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, passes, *x.shape[1:]), 1, 0), placed.parts)
        zeros = jax.tree.map(jnp.zeros_like, (scale, trained))

        def add(total: Any, part: dict[str, Any]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, compute(trained, part)), None

        result = jax.lax.scan(add, zeros, parts)[0]
        return result

    def _compute_evaluation(self, parameters: Arrays, placed: PlacedBatch) -> tuple[JaxArray, JaxArray]:
        """The sum of the losses, and the number of targets that rank first."""
        logits, targets = self._compute_logits(parameters, placed, 0.0), placed.parts["targets"]
        hits = logits.argmax(axis=-1) == targets.reshape(logits.shape[:-1])
        return self._losses(logits, targets, 0.0).sum(), hits.sum()

    def _losses(self, logits: JaxArray, targets: JaxArray, smoothing: float) -> JaxArray:
        """The loss of each target, 0 if there is none: logits (..., N) -> (...)."""
        targets = targets.reshape(logits.shape[:-1])
        chosen = jnp.where(jnp.arange(logits.shape[-1]) == targets[..., None], logits, 0).sum(axis=-1)
        expected = (1 - smoothing) * chosen + (smoothing * logits.mean(axis=-1) if smoothing else 0)
        return jnp.where(targets == IGNORE_INDEX, 0, jax.nn.logsumexp(logits, axis=-1) - expected)

    def _compute_logits(self, parameters: Arrays, placed: PlacedBatch, rate: float) -> JaxArray:
        """The logits (..., N) of padded inputs, with dropout if there are masks."""
        config, engine, masks = self._config, self._engine, placed.parts["masks"]
        kind = self._kind()
        params = assemble(self._views, {name: x.astype(kind) for name, x in parameters.items()}, self._layers)
        is_whole = engine.mesh is None or engine.mesh.shape["seq"] == 1  # no text is split
        functions = formulas.JAX_ROWS if is_whole else formulas.JAX
        for place, factor in placed.parts["weights"].items():
            layer, _, parameter = place.rpartition(".")
            params[layer] |= {parameter: params[layer][parameter] * factor[0].astype(kind)}
        memory: Any = None
        states: dict[str, Any] = {}
        real = None

        def drop(layer: str, x: JaxArray) -> JaxArray:
            return x * masks[layer] / (1 - rate) if layer in masks else x

        for name, steps in self._steps.items():
            inputs = {**placed.shared[name], **placed.parts["inputs"][name]}
            inputs |= {} if memory is None else {"memory": memory, **states}
            run = Pass(config, params, inputs, self._kernel(), drop=drop, layout=engine.layout(), functions=functions)
            memory = run_steps(run, steps, inputs["x"])
            states = last_states(run) if name == "encoder" else {}
            real = inputs["mask"][:, 0, 0] if "mask" in inputs and inputs["mask"].ndim == 4 else inputs.get("real")
        rows = memory.reshape(-1, memory.shape[-1]) if is_whole and not config.is_head_pooled else memory
        return compute_head(Pass(config, params, {}), "logits", rows, real)

    def _kind(self) -> str:
        return self._engine.compute or str(self._dtype.name)

    def _kernel(self) -> Any:
        """The kernel of attention: a CPU differentiates few scores faster densely."""
        fused = self._engine.kernel()
        if jax.default_backend() != "cpu" or fused is not fused_attention:
            return fused

        def choose(q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, see: See) -> JaxArray:
            is_large = q.shape[-3] * q.shape[-2] * k.shape[-2] >= MANY
            return (fused if is_large else dense_attention)(q, k, v, rules, see)

        return choose
