"""Decoding token by token: one compiled step, and caches that double when full."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnkit.backends.jax import formulas
from attnkit.backends.jax.formulas import JaxArray
from attnkit.backends.jax.inputs import Sizes, prepare_inputs, round_up
from attnkit.backends.jax.mesh import used_layers
from attnkit.backends.jax.passes import Caches, Pass, memory_length, precision, read_caches, wide_dtype, write_caches
from attnkit.backends.jax.processes import to_numpy
from attnkit.backends.jax.program import run_steps
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.kernels.incremental_decoder import CachedDecoder, cacheable
from attnkit.model.kv_cache import KVCache, StateCache

LEAST = 128  # places of a cache at least


class CompiledDecoder(CachedDecoder):
    """A CachedDecoder whose keys and values stay on devices until `cache` is read.

    engine  the JaxEngine that computes it
    """

    def __init__(self, engine: Any, model: Model, cache: KVCache | None, **context: Any) -> None:
        self._caches: Caches = {}
        super().__init__(model, cache, **context)
        self._engine, self._past = engine, self._cache.length
        self._memory_length = memory_length(self._cache)  # without padding
        self._capacity = 0
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
        if not cacheable(self.model.config, self._text.shape[1]):
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
            return formulas.head_logits(config, params, y, None)[..., 0, :], run.caches

        key = "decode", tuple(self.steps), self._capacity, is_start
        arguments = x, inputs, self._caches, np.int32(count - 1)
        logits, self._caches = engine.call(self.model, self._dtype, [*layers, *heads], key, compute, arguments)
        self._past += count
        if not self._memory_length and context.memory is not None:
            self._memory_length = context.memory.shape[-2]
        return to_numpy(logits[:rows], wide_dtype(self._dtype))

    def _make_room(self, places: int, rows: int) -> None:
        """Make the caches large enough; those of recurrent layers never grow."""
        if places <= self._capacity or (self._capacity and isinstance(self._cache, StateCache)):
            return
        is_first, self._capacity = not self._capacity, max(LEAST, 1 << (places - 1).bit_length())
        if is_first:
            sizes = Sizes(True, capacity=self._capacity)
            self._caches = self._engine.spread(read_caches(self._cache, sizes, self._dtype), rows)
            return
        for layer, (k, v) in self._caches.items():
            if layer.endswith(".self"):
                room = [(0, 0)] * (k.ndim - 2) + [(0, self._capacity - k.shape[-2]), (0, 0)]
                self._caches[layer] = jnp.pad(k, room), jnp.pad(v, room)

    def reorder_cache(self, rows: Array) -> None:
        """Replace row i of the batch by row rows[i]."""
        self._text = None if self._text is None else self._text[rows]
        multiple = self._engine.sizes().rows
        index = np.concatenate([rows, np.zeros(round_up(len(rows), multiple) - len(rows), np.int64)])
        self._caches = jax.tree.map(lambda x: x[index], self._caches)
