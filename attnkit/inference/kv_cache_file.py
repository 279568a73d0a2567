"""Write and read the KV cache of a decoder as a record."""

from collections.abc import Mapping

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import Array, Config, KVCache
from attnkit.record import Labels, Record, Tensor

CACHE_AXES = {"self": ("batch", "head", "key", "head_dim"), "cross": ("batch", "head", "source", "head_dim")}
HALVES = ("key", "value")


def cache_record(cache: KVCache, ids: list[int], words: list[str] | None, source: list[str] | None = None) -> Record:
    """Return the record of a KV cache: STACK.N.self.key and .value (1, G, S, K), those of the memory, and ids (T,).

    There may be one id more than keys: the last token, from which none has been predicted yet.
    """
    tensors: dict[str, Tensor | Array] = {"ids": Tensor(np.array(ids, dtype=np.int64), ("token",))}
    read = 0
    for layer, pair in cache:
        part = model.parse_layer_name(layer)[2]
        for half, array in zip(HALVES, pair, strict=True):
            tensors[f"{layer}.{half}"] = Tensor(array.reshape(-1, *array.shape[-3:]), CACHE_AXES[part])
        read = pair[0].shape[-2] if part == "self" else read
    labels: dict[str, Labels] = {} if words is None else {"token": words, "key": words[:read]}
    if source:
        labels["source"] = source
    return Record(tensors, labels)


def read_cache(tensors: Mapping[str, Array], config: Config, dtype: str, more: int) -> tuple[KVCache, list[int]]:
    """Return the KV cache of a record and its ids, once both are checked against the model.

    The keys of the last token are left out unless `more` tokens follow: at least one token has to be read.
    DataError names the tensor that does not fit; UsageError where keys change with the length of a text.
    """
    if not model.cacheable(config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-in")
    if "ids" not in tensors:
        raise DataError("no cache: it has no ids", "--cache-in")
    ids = model.check_ids(tensors["ids"], config.stack("decoder").vocab)
    lengths = {tensors[name].shape[-2] for name in tensors if name.endswith(".self.key") and tensors[name].ndim == 4}
    if not lengths:
        raise DataError("no cache: it has no keys", "--cache-in")
    length = min(lengths)
    if ids.ndim != 1 or not length <= ids.size <= length + 1:
        raise DataError(f"ids {ids.shape} for the keys of {length} tokens", "--cache-in")
    length_read, cache = min(length, ids.size + more - 1), KVCache()
    for layer, shape in expected_shapes(config, length).items():
        pair = [check_cache(tensors, f"{layer}.{half}", shape).astype(dtype, copy=False) for half in HALVES]
        cut = length_read if layer.endswith("self") else None
        cache.set(layer, *(np.ascontiguousarray(one[..., :cut, :]) for one in pair))
    return cache, [int(word) for word in ids]


def expected_shapes(config: Config, length: int) -> dict[str, tuple[int | None, ...]]:
    """Return attention layer -> the shape of its keys; None: any size."""
    stack = config.stack("decoder")
    parts: list[tuple[str, int | None]] = [("self", length), *([("cross", None)] if stack.cross else [])]
    return {
        f"decoder.{number}.{part}": (1, stack.kv_heads, size, stack.head_dim)
        for number in range(stack.layers)
        for part, size in parts
    }


def check_cache(tensors: Mapping[str, Array], name: str, shape: tuple[int | None, ...]) -> Array:
    """Return a tensor of the cache; DataError unless it has this shape."""
    if name not in tensors:
        raise DataError(f"no cache of this model: no tensor {name!r}", "--cache-in")
    actual = tensors[name].shape
    pairs = list(zip(shape, actual, strict=False))
    if len(actual) != len(shape) or any(size not in (None, other) for size, other in pairs):
        expected = ", ".join("S" if size is None else str(size) for size in shape)
        raise DataError(f"no cache of this model: {name} has shape {actual} (expected ({expected}))", "--cache-in")
    return tensors[name]
