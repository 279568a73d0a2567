"""A pass and its parts: hooks, precision, caches, and which inputs are batches."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnkit.backends.jax.attention_kernels import Kernel, dense_attention
from attnkit.backends.jax.formulas import JAX, JaxArray, Params, See, see_nothing
from attnkit.backends.jax.inputs import Sizes, fill
from attnkit.backends.jax.processes import name_failures, spare_stdout, to_numpy
from attnkit.model.config import Config, Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, DType, cast, is_float, working
from attnkit.model.formulas.dense_attention import add_sinks, query_positions
from attnkit.model.formulas.recurrent_cells import State, map_state
from attnkit.model.formulas.softmax import log_sum_exp
from attnkit.model.graph.functions import Functions
from attnkit.model.graph.nodes import is_traced
from attnkit.model.kernels.weight_stats import summarize_dense_weights
from attnkit.model.kv_cache import KVCache
from attnkit.model.layers.recurrent_layers import keep_state


def hook_of_arrays(context: Context, dtype: DType, params: Mapping[str, Params]) -> See:
    """A function that passes intermediates to the hook of a context as NumPy arrays.

    dtype  of floats among them; params: of the layers, whose sinks belong to the sums of weights
    """
    before: dict[str, Array] = {}  # masked scores and weights of the layer, to be summarized

    def see(name: str, x: JaxArray) -> JaxArray:
        layer, _, part = name.rpartition(".")
        if context.weights != "full" and part in ("masked", "weights"):
            before[part] = to_numpy(x, dtype)
        x = visit(name, x)
        if part == "heads" and before:
            past = 0 if layer.endswith(".cross") else context.past
            weights = before["weights"]
            position = query_positions(slice(0, weights.shape[-2]), past)
            lse = log_sum_exp(before["masked"])
            if (sinks := params[layer].get("sinks")) is not None:
                lse = add_sinks(lse, to_numpy(sinks, lse.dtype))[1]
            summaries = summarize_dense_weights(context.weights, weights, lse, position)
            for summary, array in summaries.items():
                if function := context.hook(f"{layer}.{summary}"):
                    function(array)
            before.clear()
        return x

    def visit(name: str, x: JaxArray) -> JaxArray:
        function = context.hook(name) if is_traced(name) else None
        if function is None:
            return x
        array = to_numpy(x)
        array = array.astype(dtype, copy=False) if is_float(array.dtype) else array
        changed = function(array)
        return x if changed is array else jnp.asarray(changed, x.dtype)

    return see


Pair = tuple[JaxArray, JaxArray]
Caches = dict[str, Any]  # layer -> Pair, or the parts of a state


@dataclass
class Pass:
    """One forward pass: a configuration, parameters, and what is read besides.

    params   layer -> {parameter: array}, in the dtype that is computed in
    inputs   what `prepare_inputs` returns: mask, positions, angles, memory …, as far as the steps need them
    kernel   of attention
    see      reads and may replace every intermediate
    drop     (layer, x) -> x with dropout
    layout   places hidden states on devices
    functions  of the values of nodes
    caches   attention layer -> keys and values of all places of a cache; layers of self-attention write to them.
             Layer with a state -> its first state, and after the pass its last
    capacity  places of the caches, None if there are none
    is_start  whether the caches are empty, so that causal tokens attend to each other alone
    differentiates  whether `see` adds changes by which JAX differentiates: to queries and keys before anything reads
              them, and to no single token of a recurrent layer
    """

    config: Config
    params: Mapping[str, Params]
    inputs: Mapping[str, Any]
    kernel: Kernel = dense_attention
    see: See = see_nothing
    drop: Callable[[str, JaxArray], JaxArray] = lambda layer, x: x
    layout: Callable[[JaxArray], JaxArray] = lambda x: x
    functions: Functions = JAX
    caches: Caches = field(default_factory=dict)
    capacity: int | None = None
    is_start: bool = False
    differentiates: bool = False

    @property
    def core(self) -> Model:
        """The model, with its parameters on devices."""
        return Model(self.config, self.params)

    def see_in(self, layer: str) -> See:
        """The function that reads the intermediates of one layer."""
        return lambda name, x: self.see(f"{layer}.{name}", x)


@contextlib.contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Compute in float64 if asked, and in all bits of float32, not in TF32."""
    exact = jax.default_matmul_precision("highest") if dtype in ("float32", "float64") else contextlib.nullcontext()
    with jax.enable_x64(dtype == "float64"), exact, spare_stdout(), name_failures():
        yield


def wide_dtype(dtype: str) -> DType:
    """The dtype of logits and of what hooks see: float32 at least."""
    return np.dtype("float64" if dtype == "float64" else "float32")


def x_has_rows(first: Step, x: Array, model: Model) -> bool:
    """Whether the input of a first step is a batch."""
    if first.op == "embed":
        return x.ndim == (4 if model.config.patches else 2)
    if first.op == "conv" and model.config.convolution(first.layer).reads_samples:
        return x.ndim > 1
    return x.ndim > 2


def new_tokens(first: Step, x: Array) -> int:
    """The tokens of a decoder's pass, which its cache takes."""
    return int(x.shape[-1 if first.op == "embed" else -2])


def read_caches(cache: KVCache, sizes: Sizes, dtype: str) -> Caches:
    """Put a cache on devices: padded keys and values, and states."""
    caches: Caches = jax.tree.map(lambda part: jnp.array(part, dtype), cache.states)
    for layer, (k, v) in cache:
        places = sizes.capacity if layer.endswith(".self") else sizes.padded(k.shape[-2])
        caches[layer] = jnp.array(fill(k, -2, places or 0), dtype), jnp.array(fill(v, -2, places or 0), dtype)
    return caches


def write_caches(context: Context, caches: Caches, tokens: int, rows: int | None = None) -> None:
    """Add keys and values of new tokens and a memory to the cache; keep final states.

    rows  how many texts there are without padding [all]
    """

    def take_rows(x: Array) -> Array:
        return x[:rows] if x.ndim == 4 else x

    cache, past = context.cache, context.past
    known = {layer for layer, _ in cache or ()}
    for layer, pair in caches.items():
        if isinstance(pair, State):
            state = map_state(lambda part: to_numpy(part)[:rows], pair)
            keep_state(context, layer, map_state(lambda part: cast(part, working(part)), state), tokens)
        elif cache is None:
            continue
        elif not layer.endswith((".self", ".cross")):
            parts = (to_numpy(part)[:rows] for part in pair)
            cache.advance(layer, tuple(cast(part, working(part)) for part in parts), tokens)
        elif layer.endswith(".self"):
            k, v = (take_rows(to_numpy(x[..., past : past + tokens, :])) for x in pair)
            cache.append(layer, k, v)
        elif layer not in known and context.memory is not None:
            k, v = (take_rows(to_numpy(x[..., : context.memory.shape[-2], :])) for x in pair)
            cache.set(layer, k, v)


def memory_length(cache: KVCache | None) -> int:
    """The number of places of a memory whose keys are in a cache."""
    return next((k.shape[-2] for layer, (k, _) in cache or () if layer.endswith(".cross")), 0)
