"""The engine: models, output heads and attention computed by JAX."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attnkit.backends.jax.attention_kernels import Kernel, Rules, dense_attention, fused_attention, ring_attention
from attnkit.backends.jax.formulas import JaxArray, See, see_nothing
from attnkit.backends.jax.gradients import record_head, record_pass
from attnkit.backends.jax.inputs import Prepared, Sizes, bucket, fill, prepare_inputs, round_up
from attnkit.backends.jax.mesh import (
    PlacedParameters,
    check_mesh,
    empty_parameters,
    input_spec,
    make_mesh,
    put,
    used_layers,
)
from attnkit.backends.jax.passes import (
    Caches,
    Pass,
    hook_of_arrays,
    memory_length,
    new_tokens,
    precision,
    read_caches,
    wide_dtype,
    write_caches,
    x_has_rows,
)
from attnkit.backends.jax.processes import highest, is_first, to_numpy
from attnkit.backends.jax.program import compute_head, is_head_seen, is_seen, run_steps
from attnkit.backends.jax.record_attention import attend_record
from attnkit.backends.jax.training import JaxTrainState
from attnkit.errors import UsageError
from attnkit.model.backward.tape import Reverse, Undo
from attnkit.model.config import Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, DType, is_float, working
from attnkit.model.formulas.dense_attention import MultiHeadOptions
from attnkit.model.formulas.pooling import require_last_tokens
from attnkit.model.formulas.positions import token_positions
from attnkit.model.hooks import Hook, no_hook
from attnkit.model.kv_cache import KVCache
from attnkit.model.passes.incremental_decoder import CachedDecoder, keeps_cache
from attnkit.model.passes.output_head import real_places

LEAST = 128  # places of a cache at least
HEAD_LAYERS = ("head.dense", "head.norm", "head", "pooler")


class JaxEngine:
    """What computes a model by JAX.

    compute  the dtype to compute in: float32, bfloat16 or float16; None: the model's, or --dtype
    mesh     axis -> its size; None: one device
    """

    name = "jax"

    def __init__(self, compute: str | None = None, mesh: Mapping[str, int] | None = None) -> None:
        self.compute = compute
        if mesh is None and jax.process_count() > 1:
            mesh = {"data": jax.device_count()}
        self.mesh = None if mesh is None else make_mesh(mesh)
        self._placed: dict[tuple[int, str], tuple[Any, PlacedParameters]] = {}
        self._programs: dict[Any, Any] = {}

    @property
    def is_first(self) -> bool:
        """Whether this is process 0 of those that compute."""
        return is_first()

    def highest(self, number: int) -> int:
        """The highest of the numbers of all processes."""
        return highest(number)

    def run(self, model: Model, steps: Sequence[Step], x: Array, context: Context) -> Array:
        """Compute what `transformer.run` does."""
        if not steps:
            return x
        check_mesh(model.config, self.mesh)
        dtype, result = self.dtypes(model, steps[0], x, context.dtype)
        for step in steps:
            context.on_step(step)
        if is_seen(model, steps, x, context):
            return self._run_seen(model, steps, x, context, dtype, result)
        with precision(dtype):
            y, prepared = self._run_compiled(model, steps, x, context, dtype)
            y = y[: prepared.rows] if x_has_rows(steps[0], x, model) else y[0] if self.mesh else y
            states = to_numpy(y[..., : prepared.tokens, :], result)
        if not np.isfinite(states).all():
            self.report_non_finite(model, steps, x, context, dtype)
        return states

    def run_packed(
        self,
        model: Model,
        steps: Sequence[Step],
        ids: Sequence[Array],
        segments: Sequence[Array] | None,
        dtype: str | None,
    ) -> list[Array] | None:
        """The hidden states (T, D) of several texts, computed as one padded batch.

        None if one is not finite.
        """
        rows, width = bucket(len(ids)), max(map(len, ids))
        batch, kinds, real = np.zeros((3, rows, width), np.int64)
        for at, one in enumerate(ids):
            batch[at, : len(one)], real[at, : len(one)] = one, 1
            kinds[at, : len(one)] = 0 if segments is None else segments[at]
        real[len(ids) :, 0] = 1
        flaws: list[str] = []
        mask = real[:, None].astype(bool)
        context = Context(mask, positions=token_positions(mask), segment_ids=kinds, dtype=dtype)
        context.on_non_finite = flaws.append
        x = self.run(model, steps, batch, context)
        return None if flaws else [x[at, : len(one)] for at, one in enumerate(ids)]

    def head_logits(self, model: Model, x: Array, hook: Hook = no_hook, mask: Array | None = None) -> Array:
        """Compute what `output_head.head_logits` does."""
        config, pooled = model.config, model.config.is_head_pooled
        layers = self.head_layers(model)
        dtype = self.head_dtype(model, x, "head")
        real = None if mask is None or not pooled else np.broadcast_to(mask[..., 0, :], x.shape[:-1])
        if pooled and config.pooling == "concat":
            require_last_tokens(x, real_places(x, mask))
        rows = x if pooled else fill(x.reshape(-1, x.shape[-1]), 0, bucket(x[..., 0].size))

        def compute(params: Any, x: JaxArray, real: JaxArray | None, see: See = see_nothing) -> JaxArray:
            return compute_head(Pass(config, params, {}, see=see), "logits", x, real)

        with precision(dtype):
            if is_head_seen(model, hook):
                return self._head_seen(model, layers, compute, (x, real), hook, dtype)
            y = self.call(model, dtype, layers, ("logits",), compute, (rows, real))
            y = to_numpy(y, wide_dtype(dtype))
        return y if pooled else y[: x[..., 0].size].reshape(*x.shape[:-1], y.shape[-1])

    def pool_first(self, model: Model, x: Array, hook: Hook = no_hook) -> Array:
        """Compute what `output_head.pool_first` does."""
        dtype = self.head_dtype(model, x, "pooler")

        def compute(params: Any, x: JaxArray, real: None, see: See = see_nothing) -> JaxArray:
            return compute_head(Pass(model.config, params, {}, see=see), "pooler", x)

        with precision(dtype):
            if hook("pooler") is not None:
                return self._head_seen(model, ["pooler"], compute, (x, None), hook, dtype)
            return to_numpy(self.call(model, dtype, ["pooler"], ("pooler",), compute, (x, None)), x.dtype)

    def differentiates(self, steps: Sequence[Step]) -> bool:
        """Whether the engine computes the gradients of steps itself.

        NumPy computes the gradients of a recurrent decoder with attention.
        """
        return all(step.op != "rnn" or parse_layer_name(step.layer)[1] is not None for step in steps)

    def run_recorded(self, model: Model, steps: Sequence[Step], x: Array, context: Context) -> tuple[Array, Undo]:
        """Run steps as `recorded_pass.run_recorded` does, and prepare to undo them all."""
        return record_pass(self, model, steps, x, context)

    def head_backward(self, model: Model, x: Array, grad_output: Array, reverse: Reverse, mask: Array | None) -> Array:
        """Compute what `model_gradients.head_backward` does."""
        dtype = self.head_dtype(model, x, "head")
        real = mask if model.config.is_head_pooled else None
        return record_head(self, model, "logits", x, real, self.head_layers(model), dtype)(grad_output, reverse)

    def pool_first_backward(self, model: Model, x: Array, grad_output: Array, reverse: Reverse) -> Array:
        """Compute what `model_gradients.pool_first_backward` does."""
        dtype = self.head_dtype(model, x, "pooler")
        return record_head(self, model, "pooler", x, None, ["pooler"], dtype)(grad_output, reverse)

    def head_dtype(self, model: Model, x: Array, layer: str) -> str:
        """The dtype in which a layer of the head computes hidden states."""
        return self.compute or str(working(x, *empty_parameters(model.params, layer)).name)

    def head_layers(self, model: Model) -> list[str]:
        """The layers of the head of a model."""
        pooled = model.config.is_head_pooled and model.config.pooling == "pooler"
        return [name for name in HEAD_LAYERS if name in model.params and (name != "pooler" or pooled)]

    def train_state(self, model: Model, **options: Any) -> JaxTrainState:
        """A model in training, on devices."""
        return JaxTrainState(self, model, **options)

    def attention(
        self, q: Array, k: Array, v: Array, params: Mapping[str, Array], options: MultiHeadOptions, **request: Any
    ) -> dict[str, Array]:
        """Compute what `attention.multi_head_attention` does; request: summary and keep."""
        return attend_record(self, (q, k, v), params, options, **request)

    def placed(self, model: Model, dtype: str) -> PlacedParameters:
        """The parameters of a model on devices, in a dtype."""
        key = id(model.params), dtype
        known = self._placed.get(key)
        if known is None or known[0]() is not model.params:
            is_kept = isinstance(model.params, dict)
            owner = (lambda params=model.params: params) if is_kept else weakref.ref(model.params)
            self._placed[key] = known = owner, PlacedParameters(model.config, model.params, dtype, self.mesh)
        return known[1]

    def dtypes(self, model: Model, first: Step, x: Array, dtype: str | None) -> tuple[str, DType]:
        """The dtype to compute steps in, and the dtype of their result."""
        layers = (layer for layer in (first.layer, *model.params) if layer in model.params)
        own = next(one.dtype for layer in layers for one in empty_parameters(model.params, layer))
        if first.op == "embed":
            result = np.dtype(dtype or (x.dtype if model.config.patches and is_float(x.dtype) else own))
            usual = np.result_type(result, own) if model.config.patches else result
        else:
            result = np.dtype(dtype or x.dtype)
            usual = np.result_type(working(np.empty(0, result)), own)
        return self.compute or str(usual.name), result

    def kernel(self) -> Kernel:
        """The kernel of attention of a pass without hooks."""
        mesh = self.mesh
        if mesh is None or mesh.shape["seq"] == 1:
            return fused_attention

        def ring(q: JaxArray, k: JaxArray, v: JaxArray, rules: Rules, see: See) -> JaxArray:
            if rules.bias is not None:
                raise UsageError("a mask of numbers needs all keys at once (expected booleans)", "--mesh seq")
            if rules.mask is not None:
                shape = (q.shape[0], 1, *rules.mask.shape[-2:])
                rules = rules._replace(mask=jnp.broadcast_to(rules.mask, shape))
            return ring_attention(mesh, q, k, v, rules)[0].astype(q.dtype)

        return ring

    def layout(self) -> Callable[[JaxArray], JaxArray]:
        """The function that places hidden states (B, T, D) on the devices of a mesh."""
        mesh = self.mesh
        if mesh is None:
            return lambda x: x
        sharding = NamedSharding(mesh, PartitionSpec("data", "seq", None))
        return lambda x: jax.lax.with_sharding_constraint(x, sharding) if x.ndim == 3 else x

    def put_inputs(self, prepared: Prepared, dtype: str) -> tuple[JaxArray, dict[str, Any]]:
        """Put the inputs of a program on devices."""

        def place(name: str, array: Array) -> JaxArray:
            kind: Any = array.dtype if array.dtype == bool else np.int32
            if is_float(array.dtype):
                kind = dtype if name in ("x", "memory") else jnp.promote_types(dtype, jnp.float32)
            return put(array, kind, self.mesh, input_spec(name, array) if self.mesh else PartitionSpec())

        arrays: dict[str, Any] = {"x": prepared.x, **prepared.arrays}
        placed = {name: jax.tree.map(partial(place, name), one) for name, one in arrays.items()}
        return placed.pop("x"), placed

    def sizes(self, capacity: int | None = None, memory: int = 0) -> Sizes:
        """The sizes that inputs are padded to, given the places of a cache and a memory."""
        shape = {"data": 1, "seq": 1} if self.mesh is None else self.mesh.shape
        return Sizes(True, shape["data"], shape["seq"], capacity, memory)

    def decoder(self, model: Model, cache: KVCache | None, **context: Any) -> CachedDecoder:
        """A decoder that predicts the next token, compiled unless hooked or with pictures."""
        check_mesh(model.config, self.mesh)
        if self.mesh and self.mesh.shape["seq"] > 1:
            raise UsageError("splits one long text, not the tokens that follow it; data and model do", "--mesh seq")
        if context.get("hook", no_hook) is not no_hook or context.get("pictures") is not None:
            return CachedDecoder(model, cache, **context)
        return CompiledDecoder(self, model, cache, **context)

    def spread(self, caches: Caches, rows: int) -> Caches:
        """Repeat the caches of one text for a number of rows, split over the mesh."""
        if self.mesh is None:
            return caches
        spec, count = PartitionSpec("data"), round_up(rows, self.sizes().rows)
        spread: Caches = jax.tree.map(
            lambda x: put(np.repeat(to_numpy(x), count, axis=0), x.dtype, self.mesh, spec), caches
        )
        return spread

    def _run_compiled(
        self, model: Model, steps: Sequence[Step], x: Array, context: Context, dtype: str
    ) -> tuple[JaxArray, Prepared]:
        """Run padded inputs; the cache of the context receives their keys and values."""
        sizes = self.sizes()
        if context.cache is not None:
            places = round_up(bucket(context.past + sizes.padded(new_tokens(steps[0], x))), sizes.tokens)
            sizes = self.sizes(places, memory_length(context.cache))
        if self.mesh and not x_has_rows(steps[0], x, model):
            memory = None if context.memory is None else context.memory[None]
            x, batch = x[None], replace(context, memory=memory)
            batch.past, batch.final_states = context.past, context.final_states
            context = batch
        prepared = prepare_inputs(model, steps, x, context, sizes)
        caches = {} if context.cache is None else self.spread(read_caches(context.cache, sizes, dtype), prepared.rows)
        placed_x, inputs = self.put_inputs(prepared, dtype)
        layers = used_layers(model.config, steps, model.params)
        key = "run", tuple(steps), prepared.grid, sizes.capacity

        def compute(params: Any, x: JaxArray, inputs: dict[str, Any], caches: Caches) -> Any:
            run = Pass(model.config, params, inputs | {"grid": prepared.grid}, self.kernel(), layout=self.layout())
            run.caches, run.capacity = dict(caches), sizes.capacity
            return run_steps(run, steps, x), run.caches

        y, caches = self.call(model, dtype, layers, key, compute, (placed_x, inputs, caches))
        write_caches(context, caches, prepared.tokens, prepared.rows)
        return y, prepared

    def call(
        self, model: Model, dtype: str, layers: Sequence[str], key: Any, compute: Any, arguments: tuple[Any, ...]
    ) -> Any:
        """Call a function of parameters and arguments, compiled once for a key and shapes."""
        placed = self.placed(model, dtype)
        arrays = placed.arrays(layers)
        program = self._programs.get((id(placed), key))
        if program is None:
            whole = self.mesh and NamedSharding(self.mesh, PartitionSpec())

            def assembled(arrays: Any, *arguments: Any) -> Any:
                return compute(placed.assemble(arrays, layers), *arguments)

            shardings = {"out_shardings": (whole, None) if key[0] in ("run", "decode") else whole} if whole else {}
            donated = {"donate_argnums": 3} if key[0] == "decode" else {}  # the caches
            program = self._programs[id(placed), key] = jax.jit(assembled, **shardings, **donated)
        return program(arrays, *arguments)

    def _run_seen(
        self,
        model: Model,
        steps: Sequence[Step],
        x: Array,
        context: Context,
        dtype: str,
        result: DType,
        layout: Callable[[JaxArray], JaxArray] = lambda x: x,
    ) -> Array:
        """Run steps one operation after another, with hooks; `layout` receives results."""
        with precision(dtype):
            capacity = None if context.cache is None else context.past + new_tokens(steps[0], x)
            prepared = prepare_inputs(
                model, steps, x, context, Sizes(False, 1, 1, capacity, memory_length(context.cache))
            )
            inputs = {"x": prepared.x, **prepared.arrays}
            whole = {name: jax.tree.map(lambda one: self.whole(one, dtype), one) for name, one in inputs.items()}
            layers = used_layers(model.config, steps, model.params)
            placed = self.placed(model, dtype)
            params = placed.assemble(placed.arrays(layers), layers)
            run = Pass(model.config, params, whole | {"grid": prepared.grid}, dense_attention, layout=layout)
            run.see, run.capacity = hook_of_arrays(context, result, params), capacity
            if context.cache is not None:
                run.caches = read_caches(context.cache, Sizes(False, capacity=capacity), dtype)
            y = run_steps(run, steps, whole["x"])
            write_caches(context, run.caches, prepared.tokens)
            return to_numpy(y, result)

    def whole(self, array: Array, dtype: str) -> JaxArray:
        """Put an array on devices that all of them hold."""
        kind = dtype if is_float(array.dtype) else bool if array.dtype == bool else np.int32
        return put(array, kind, self.mesh, PartitionSpec())

    def _head_seen(
        self, model: Model, layers: Sequence[str], compute: Any, arguments: tuple[Any, ...], hook: Hook, dtype: str
    ) -> Array:
        """Compute a head one operation after another, with a hook."""
        placed = self.placed(model, dtype)
        params = placed.assemble(placed.arrays(layers), layers)
        x, real = (None if one is None else self.whole(one, dtype) for one in arguments)
        kind = wide_dtype(dtype)
        return to_numpy(compute(params, x, real, hook_of_arrays(Context(hook=hook), kind, params)), kind)

    def report_non_finite(self, model: Model, steps: Sequence[Step], x: Array, context: Context, dtype: str) -> None:
        """Report the first layer whose result is not finite, found by a second pass."""
        if is_float(x.dtype) and not np.isfinite(x).all():
            return
        left, layers = iter(steps), list[str]()

        def check(x: JaxArray) -> JaxArray:
            step = next(left)
            if not np.isfinite(to_numpy(x)).all():
                layers.append(step.layer)
            return x

        again = replace(context, cache=None, hook=no_hook)
        self._run_seen(model, steps, x, again, dtype, wide_dtype(dtype), layout=check)
        if layers:
            context.on_non_finite(layers[0])


class CompiledDecoder(CachedDecoder):
    """A CachedDecoder whose keys and values stay on devices until `cache` is read."""

    def __init__(self, engine: JaxEngine, model: Model, cache: KVCache | None, **context: Any) -> None:
        self._caches: Caches = {}
        super().__init__(model, cache, **context)
        self._engine, self._past = engine, self._cache.length
        self._memory_length = memory_length(self._cache)  # without padding
        self._capacity = 0
        self._has_keys = any(layer.endswith(".self") for layer in model.config.attention_rules)
        dtype = context.get("dtype")
        self._dtype, _ = engine.dtypes(model, self.steps[0], np.zeros((1, 1), np.int64), dtype)

    @property
    def cache(self) -> KVCache:
        """The keys and values of all tokens so far, in NumPy."""
        known, new = self._cache.length, self._past - self._cache.length
        if new:
            context = Context(**self.context)
            context.cache, context.past = self._cache, known
            write_caches(context, self._caches, new, None if self._text is None else len(self._text))
        return self._cache

    @cache.setter
    def cache(self, cache: KVCache) -> None:
        """Begin anew with the keys and values of a cache."""
        self._cache, self._past, self._caches = cache, cache.length, {}

    def __call__(self, tokens: Array) -> Array:
        """Append tokens and return the logits of the next one: tokens (B, T) -> (B, N)."""
        self._text = tokens if self._text is None else np.concatenate([self._text, tokens], axis=1)
        if not keeps_cache(self.model.config, self._past, self._text.shape[1]):
            self._past, self._capacity, self._caches, self._cache = 0, 0, {}, KVCache()
        rest = self._text[:, self._past :]
        context = Context(**self.context)
        context.past = self._past
        for step in self.steps:
            context.on_step(step)
        with precision(self._dtype):
            logits = self._step(rest, context)
        if not np.isfinite(logits).all():
            self._engine.report_non_finite(self.model, self.steps, self._text, context, self._dtype)
        return logits

    def _step(self, tokens: Array, context: Context) -> Array:
        """Compute new tokens (B, T), padded to a size that programs are compiled for."""
        engine, (rows, count) = self._engine, tokens.shape
        width = count if count == 1 else engine.sizes().padded(count)
        self._make_room(self._past + width, rows)
        sizes = engine.sizes(self._capacity, self._memory_length)
        prepared = prepare_inputs(self.model, self.steps, tokens, context, sizes)
        x, inputs = engine.put_inputs(prepared, self._dtype)
        is_start = not self._past and "mask" not in inputs
        config, layers = self.model.config, used_layers(self.model.config, self.steps, self.model.params)
        heads = [name for name in ("head.dense", "head.norm", "head") if name in self.model.params]

        def compute(params: Any, x: JaxArray, inputs: dict[str, Any], caches: Caches, last: JaxArray) -> Any:
            run = Pass(config, params, inputs, engine.kernel(), layout=engine.layout())
            run.caches, run.capacity, run.is_start = dict(caches), self._capacity, is_start
            y = jax.lax.dynamic_slice_in_dim(run_steps(run, self.steps, x), last, 1, axis=-2)
            return compute_head(run, "logits", y)[..., 0, :], run.caches

        key = "decode", tuple(self.steps), self._capacity, is_start
        arguments = x, inputs, self._caches, np.int32(count - 1)
        logits, self._caches = engine.call(self.model, self._dtype, [*layers, *heads], key, compute, arguments)
        self._past += count
        if not self._memory_length and context.memory is not None:
            self._memory_length = context.memory.shape[-2]
        return to_numpy(logits[:rows], wide_dtype(self._dtype))

    def _make_room(self, places: int, rows: int) -> None:
        """Make the caches large enough; states never grow."""
        if places <= self._capacity or (self._capacity and not self._has_keys):
            return
        is_first, self._capacity = not self._capacity, max(LEAST, 1 << (places - 1).bit_length())
        if is_first:
            sizes = Sizes(True, capacity=self._capacity)
            self._caches = self._engine.spread(read_caches(self._cache, sizes, self._dtype), rows)
            return
        for layer, pair in self._caches.items():
            if layer.endswith(".self"):
                k, v = pair
                room = [(0, 0)] * (k.ndim - 2) + [(0, self._capacity - k.shape[-2]), (0, 0)]
                self._caches[layer] = jnp.pad(k, room), jnp.pad(v, room)

    def reorder_cache(self, rows: Array) -> None:
        """Replace row i of the batch by row rows[i]."""
        self._text = None if self._text is None else self._text[rows]
        multiple = self._engine.sizes().rows
        index = np.concatenate([rows, np.zeros(round_up(len(rows), multiple) - len(rows), np.int64)])
        self._caches = jax.tree.map(lambda x: x[index], self._caches)
