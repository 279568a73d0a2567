"""Gradients of a pass or a head, whose program JAX differentiates.

The gradient of an intermediate is that of a change which is added to it, and is zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from attnkit.backends.jax.attention_kernels import Kernel, Rules, dense_attention
from attnkit.backends.jax.formulas import JaxArray, See
from attnkit.backends.jax.inputs import Sizes, prepare_inputs
from attnkit.backends.jax.mesh import used_layers
from attnkit.backends.jax.passes import Pass, precision
from attnkit.backends.jax.processes import to_numpy
from attnkit.backends.jax.program import compute_head, run_steps
from attnkit.backends.jax.recurrence import last_states
from attnkit.errors import UsageError
from attnkit.model.backward.tape import Reverse, Undo
from attnkit.model.config import Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, is_float
from attnkit.model.formulas.recurrent_cells import State
from attnkit.model.graph.nodes import is_traced
from attnkit.model.hooks import no_hook
from attnkit.model.intermediates import SQUARE

Arrays = dict[str, Any]
Program = Callable[[Any, Arrays, See, Kernel], Arrays]  # (parameters, inputs, see, kernel) -> results by name


@dataclass
class Changes:
    """What is added to intermediates of a pass, and their values with it.

    added  site -> a change; None: those of floats are listed
    given  site -> the array that it has in place of its own
    """

    added: Mapping[str, JaxArray] | None
    given: Mapping[str, JaxArray] = field(default_factory=dict)
    values: Arrays = field(default_factory=dict)

    def see(self, name: str, x: JaxArray) -> JaxArray:
        """Change an intermediate, and keep its value."""
        x = x + jax.lax.stop_gradient(self.given[name] - x) if name in self.given else x
        x = x + self.added[name] if self.added and name in self.added else x
        if is_traced(name) and is_float(x.dtype) and (self.added is None or name in self.added):
            self.values[name] = x
        return x


class Found(NamedTuple):
    """Gradients of inputs and intermediates by name, and of parameters by layer."""

    inputs: Arrays
    sites: Arrays
    params: dict[str, dict[str, JaxArray]]


class Recorded(NamedTuple):
    """A computation to differentiate.

    program  what it computes of parameters and inputs
    layers   those whose parameters it reads
    inputs   arrays by name; learned: the names of those that have gradients
    given    site -> the array that the forward pass had in place of its own
    key      of the program among those that are compiled
    """

    engine: Any
    model: Model
    dtype: str
    program: Program
    layers: Sequence[str]
    inputs: Arrays
    learned: tuple[str, ...]
    given: Mapping[str, Array]
    key: tuple[Any, ...]

    def undo(self, slopes: Arrays, reverse: Reverse, first: str = "") -> Found:
        """Gradients by those of the results; those of parameters are added.

        The hook receives the gradients of intermediates; what it adds to one counts for all that it is computed from.

        first  a site whose gradient is wanted anyway
        """
        with precision(self.dtype):
            shapes = self.list_sites()
            names = [name for name in shapes if name == first or reverse.hook(name) is not None]
            zeros = {name: np.zeros(shapes[name].shape, shapes[name].dtype) for name in names}
            found, added = self.differentiate(slopes, zeros, zeros), dict[str, Array]()
            for name in reversed(names):
                gradient, function = found.sites[name], reverse.hook(name)
                changed = gradient if function is None else function(gradient)
                if changed is not gradient:
                    added[name] = changed - gradient
            if added:
                found = self.differentiate(slopes, zeros, zeros | added)
                for name in reversed(names):
                    if function := reverse.hook(name):
                        function(found.sites[name] - added.get(name, 0))
        for layer in reversed(self.layers):
            names = [name for name in self.model.params[layer] if name != "correction"]  # of a choice alone
            arrays = {name: to_numpy(found.params[layer][name]) for name in names}
            if ".expert." not in layer or any(one.any() for one in arrays.values()):  # else no token has chosen it
                reverse.add(layer, arrays)
        return found

    def list_sites(self) -> Mapping[str, Any]:
        """The sites of floats in the order of computation, with their shapes."""
        placed, changes = self.engine.placed(self.model, self.dtype), Changes(None)

        def compute(arrays: Any, inputs: Arrays) -> Arrays:
            self.program(placed.assemble(arrays, self.layers), inputs, changes.see, dense_attention)
            return changes.values

        found = jax.eval_shape(compute, placed.arrays(self.layers), self.inputs)
        return {name: found[name] for name in changes.values}  # those of JAX are in the order of the alphabet

    def differentiate(self, slopes: Arrays, zeros: Arrays, outer: Arrays) -> Found:
        """Gradients by those of the results, and by `outer` of sites."""
        kernel = choose_kernel(self.engine.kernel(), [*zeros])

        def compute(params: Any, inputs: Arrays, zeros: Arrays, slopes: Arrays, outer: Arrays, given: Arrays) -> Any:
            def run(params: Any, learned: Arrays, zeros: Arrays) -> tuple[Arrays, Arrays]:
                changes = Changes(zeros, given)
                results = self.program(params, inputs | learned, changes.see, kernel)
                return {name: results[name] for name in slopes}, {name: changes.values[name] for name in zeros}

            values, pullback = jax.vjp(run, params, {name: inputs[name] for name in self.learned}, zeros)
            return pullback(jax.tree.map(lambda slope, one: slope.astype(one.dtype), (slopes, outer), values))

        key = *self.key, tuple(zeros), tuple(slopes), tuple(self.given)
        arguments = self.inputs, zeros, slopes, outer, dict(self.given)
        params, learned, sites = self.engine.call(self.model, self.dtype, self.layers, key, compute, arguments)
        return Found(jax.tree.map(to_numpy, learned), {name: to_numpy(one) for name, one in sites.items()}, params)


def choose_kernel(fused: Kernel, names: Sequence[str]) -> Kernel:
    """The kernel of attention that shows the intermediates of these names."""
    if any(name.rpartition(".")[2] in SQUARE for name in names):
        return dense_attention

    def compute(q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, see: See) -> JaxArray:
        return see("heads", fused(q, k, v, rules, see))

    return compute


def record_pass(engine: Any, model: Model, steps: Sequence[Step], x: Array, context: Context) -> tuple[Array, Undo]:
    """Run steps and prepare to undo them: see `recorded_pass.run_recorded`."""
    if context.cache is not None:
        raise UsageError("a cache of keys and values has no gradients: expected all tokens in one call")
    given, hook = dict[str, Array](), context.hook

    def read(name: str) -> Callable[[Array], Array] | None:
        function = hook(name)

        def visit(array: Array) -> Array:
            changed = array if function is None else function(array)
            if changed is not array:
                given[name] = changed
            return changed

        return None if function is None else visit

    context.hook = hook if hook is no_hook else read
    y = engine.run(model, steps, x, context)
    context.hook = hook
    dtype, _ = engine.dtypes(model, steps[0], x, context.dtype)

    def program(params: Any, inputs: Arrays, see: See, kernel: Kernel) -> Arrays:
        run = Pass(model.config, params, inputs | {"grid": prepared.grid}, kernel, see=see, differentiates=True)
        y = run_steps(run, steps, inputs["x"])
        return {"y": y} | (last_states(run) if model.config.encoder else {})

    with precision(dtype):
        prepared = prepare_inputs(model, steps, x, context, Sizes(False))
        arrays = {"x": prepared.x, **prepared.arrays}
        inputs = {name: jax.tree.map(lambda one: engine.whole(one, dtype), one) for name, one in arrays.items()}
    floats = ("memory", "source", "source_cell", *["x"] * is_float(prepared.x.dtype))
    learned = tuple(name for name in floats if name in inputs)
    layers, key = used_layers(model.config, steps, model.params), ("gradients", tuple(steps), prepared.grid)
    recorded = Recorded(engine, model, dtype, program, layers, inputs, learned, given, key)

    def undo(dy: Array, reverse: Reverse) -> Array:
        is_of_ids = "x" not in learned
        found = recorded.undo({"y": dy, **take_states(steps, reverse)}, reverse, steps[0].layer if is_of_ids else "")
        if "memory" in found.inputs:
            reverse.add_memory(found.inputs["memory"])
        add_states(found.inputs, reverse)
        if not is_of_ids:
            dx: Array = found.inputs["x"]
            return dx
        embedded: Array = found.sites[steps[0].layer] * np.asarray(model.config.embed_scale, dy.dtype)
        return embedded

    return y, undo


def take_states(steps: Sequence[Step], reverse: Reverse) -> Arrays:
    """Gradients of the last states of recurrent layers, under `last_states` names."""
    states = [reverse.states.pop(step.layer) for step in steps if step.layer in reverse.states]
    parts = {"source": tuple(one.hidden for one in states), "source_cell": tuple(one.cell for one in states)}
    return {name: own for name, own in parts.items() if own and own[0] is not None}


def add_states(gradients: Arrays, reverse: Reverse) -> None:
    """Add the gradients of the states that a decoder begins with."""
    hidden, cells = gradients.get("source", ()), gradients.get("source_cell", ())
    for number, one in enumerate(hidden):
        reverse.states[f"encoder.{number}.rnn"] = State(one, cells[number] if cells else None)


def record_head(
    engine: Any, model: Model, site: str, x: Array, mask: Array | None, layers: Sequence[str], dtype: str
) -> Undo:
    """Prepare to undo the head of a model: see `model_gradients.head_backward`.

    The head gives "logits" or "pooler" of hidden states.
    """

    def program(params: Any, inputs: Arrays, see: See, kernel: Kernel) -> Arrays:
        return {"y": compute_head(Pass(model.config, params, {}, see=see), site, inputs["x"], inputs.get("real"))}

    with precision(dtype):
        arrays = {"x": x} | ({} if mask is None else {"real": np.broadcast_to(mask[..., 0, :], x.shape[:-1])})
        inputs = {name: engine.whole(one, dtype) for name, one in arrays.items()}
    recorded = Recorded(engine, model, dtype, program, layers, inputs, ("x",), {}, ("gradients", site))

    def undo(dy: Array, reverse: Reverse) -> Array:
        dx: Array = recorded.undo({"y": dy}, reverse).inputs["x"]
        return dx

    return undo
