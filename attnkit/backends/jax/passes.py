"""The small parts of a pass: its precision, its caches, and which of its inputs are batches."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from attnkit.backends.jax.inputs import Sizes, fill
from attnkit.backends.jax.placement import check_mesh, stored_parameters
from attnkit.backends.jax.processes import name_failures, spare_stdout, to_numpy
from attnkit.backends.jax.program import Caches
from attnkit.errors import UsageError
from attnkit.model.config import Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array
from attnkit.model.kv_cache import KVCache
from attnkit.model.recurrent_config import RecurrentConfig


@contextlib.contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Compute in float64 where that is the dtype, and in all bits of float32, not in TF32, where that is."""
    exact = jax.default_matmul_precision("highest") if dtype in ("float32", "float64") else contextlib.nullcontext()
    with jax.enable_x64(dtype == "float64"), exact, spare_stdout(), name_failures():
        yield


def check_supported(model: Model, mesh: Mesh | None) -> None:
    """Raise UsageError for a model that is no Transformer, or that cannot be split over a mesh."""
    if isinstance(model.config, RecurrentConfig):
        raise UsageError(f"jax computes Transformers, not a {model.config.family} model; numpy does", "--engine")
    if mesh is not None:
        check_mesh(model.config, mesh)


def x_has_rows(first: Step, x: Array, model: Model) -> bool:
    """Return whether the input of a first step is a batch."""
    if first.op == "embed":
        return x.ndim == (4 if model.config.patches else 2)
    return x.ndim > 2


def with_rows(context: Context) -> Context:
    """Return the context of one text as that of a batch of one."""
    past = context.past
    context = replace(context, memory=None if context.memory is None else context.memory[None])
    context.past = past
    return context


def read_caches(cache: KVCache, sizes: Sizes, dtype: str) -> Caches:
    """Return keys and values of a cache on devices, padded: those of self-attention have room for more."""
    caches: Caches = {}
    for layer, (k, v) in cache:
        places = sizes.capacity if layer.endswith(".self") else sizes.padded(k.shape[-2])
        caches[layer] = jnp.array(fill(k, -2, places or 0), dtype), jnp.array(fill(v, -2, places or 0), dtype)
    return caches


def write_caches(context: Context, caches: Caches, tokens: int) -> None:
    """Add the keys and values of new tokens, and of a memory, to the cache of a context."""
    cache = context.cache
    if cache is None:
        return
    known, past = {layer for layer, _ in cache}, context.past
    for layer, pair in caches.items():
        if layer.endswith(".self"):
            k, v = (to_numpy(x[..., past : past + tokens, :]) for x in pair)
            cache.append(layer, k, v)
        elif layer not in known and context.memory is not None:
            k, v = (to_numpy(x[..., : context.memory.shape[-2], :]) for x in pair)
            cache.set(layer, k, v)


def gated_layers(model: Model, steps: Sequence[Step]) -> frozenset[str]:
    """Return the layers of feed-forward networks with a gate."""
    return frozenset(
        step.layer for step in steps if step.op == "ffn" and "w3" in stored_parameters(model.params, step.layer)
    )


def memory_length(cache: KVCache | None) -> int:
    """Return how many places of a memory have their keys in a cache."""
    return next((k.shape[-2] for layer, (k, _) in cache or () if layer.endswith(".cross")), 0)
