"""Write and read the KV cache of a decoder as a record."""

import itertools
from collections.abc import Mapping

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import Array, Config, KVCache
from attnkit.model.recurrent_config import as_recurrent
from attnkit.records import Labels, Record, Tensor

CACHE_AXES = {"self": ("batch", "head", "key", "head_dim"), "cross": ("batch", "head", "source", "head_dim")}
HALVES = ("key", "value")


def cache_record(cache: KVCache, ids: list[int], words: list[str] | None, source: list[str] | None = None) -> Record:
    """Make a record of a KV cache: STACK.N.self.key and .value (1, G, S, K), ids (T,).

    There may be one id more than keys: the last token, from which none has been predicted yet. Of a recurrent model
    LAYER.state and .cell (1, H) after `position` tokens, and the keys and values of the memory.
    """
    tensors: dict[str, Tensor | Array] = {"ids": Tensor(np.array(ids, dtype=np.int64), ("token",))}
    read = 0
    for layer, pair in cache:
        part = model.parse_layer_name(layer)[2]
        for half, array in zip(HALVES, pair, strict=True):
            tensors[f"{layer}.{half}"] = Tensor(array.reshape(1, *array.shape[-3:]), CACHE_AXES[part])
        read = pair[0].shape[-2] if part == "self" else read
    if isinstance(cache, model.StateCache):
        tensors["position"], read = Tensor(np.array(cache.length, np.int64), ()), 0
        for layer, state in cache.states.items():
            parts = {"state": state.hidden} | ({} if state.cell is None else {"cell": state.cell})
            tensors |= {f"{layer}.{name}": Tensor(part, ("batch", "model")) for name, part in parts.items()}
    labels: dict[str, Labels] = {} if words is None else {"token": words, "key": words[:read]}
    if source:
        labels["source"] = source
    return Record(tensors, labels)


def read_cache(tensors: Mapping[str, Array], config: Config, dtype: str, more: int) -> tuple[KVCache, list[int]]:
    """The KV cache of a record and its ids, once both are checked against the model.

    The keys of the last token are left out unless `more` tokens follow: at least one token has to be read.
    DataError names the tensor that does not fit; UsageError if keys change with the length of a text.
    """
    if not model.cacheable(config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-in")
    if "ids" not in tensors:
        raise DataError("no cache: it has no ids", "--cache-in")
    ids = model.check_ids(tensors["ids"], config.stack("decoder").vocab)
    words = [int(word) for word in ids.reshape(-1)]
    if config.carries_states:
        return read_state_cache(tensors, as_recurrent(config), ids, dtype, more), words
    lengths = {tensors[name].shape[-2] for name in tensors if name.endswith(".self.key") and tensors[name].ndim == 4}
    if not lengths:
        raise DataError("no cache: it has no keys", "--cache-in")
    length = min(lengths)
    if ids.ndim != 1 or not length <= ids.size <= length + 1:
        raise DataError(f"ids {ids.shape} for the keys of {length} tokens", "--cache-in")
    stack, cache = config.stack("decoder"), KVCache()
    sizes = {"self": length} | ({"cross": None} if stack.cross else {})  # None: any size
    for number, (part, size) in itertools.product(range(stack.layers), sizes.items()):
        layer = f"decoder.{number}.{part}"
        rules = config.attention_rules[layer]
        shapes = [(1, stack.kv_heads, size, width) for width in (rules.head_dim, rules.value_dim)]
        pair = [
            check_cache(tensors, f"{layer}.{half}", shape).astype(dtype, copy=False)
            for half, shape in zip(HALVES, shapes, strict=True)
        ]
        cut = min(length, ids.size + more - 1) if part == "self" else None
        cache.set(layer, *(np.ascontiguousarray(one[..., :cut, :]) for one in pair))
    return cache, words


def read_state_cache(
    tensors: Mapping[str, Array], config: model.RecurrentConfig, ids: Array, dtype: str, more: int
) -> model.StateCache:
    """Read the states of a recurrent model after all ids, or all but the last.

    DataError names the tensor that does not fit; UsageError if the states have read all ids and none follows.
    """
    read = tensors.get("position")
    if read is None or read.shape or read.dtype.kind not in "iu":
        raise DataError("no cache of this model: it has no position", "--cache-in")
    position = int(read)
    if ids.ndim != 1 or not 0 < position <= ids.size <= position + 1:
        raise DataError(f"ids {ids.shape} for the states after {position} tokens", "--cache-in")
    if position > ids.size + more - 1:
        raise UsageError("its states follow all of its tokens: TEXT or --ids must continue them", "--cache-in")
    cache, has_cell = model.StateCache(), config.recurrent_stack("decoder").has_cell_state
    for layer, width in config.state_widths().items():
        names = ("state", "cell") if has_cell and layer.endswith(".rnn") else ("state",)
        parts = [check_cache(tensors, f"{layer}.{name}", (1, width)).astype(dtype, copy=False) for name in names]
        cache.set_state(layer, model.State(*parts), position)
    if config.decoding.score != "none":
        pairs = zip(HALVES, config.cross_widths(), strict=True)
        shapes = {f"decoder.cross.{half}": (1, 1, None, width) for half, width in pairs}
        cache.set("decoder.cross", *(check_cache(tensors, n, s).astype(dtype, copy=False) for n, s in shapes.items()))
    return cache


def check_cache(tensors: Mapping[str, Array], name: str, shape: tuple[int | None, ...]) -> Array:
    if name not in tensors:
        raise DataError(f"no cache of this model: no tensor {name!r}", "--cache-in")
    actual = tensors[name].shape
    pairs = list(zip(shape, actual, strict=False))
    if len(actual) != len(shape) or any(size not in (None, other) for size, other in pairs):
        expected = ", ".join("S" if size is None else str(size) for size in shape)
        raise DataError(f"no cache of this model: {name} has shape {actual} (expected ({expected}))", "--cache-in")
    return tensors[name]
