"""Write and read the KV cache of a decoder as a record."""

from collections.abc import Mapping

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import Array, Config, KVCache
from attnkit.model.recurrent_config import as_recurrent
from attnkit.records import Labels, Record, Tensor

CACHE_AXES = {"self": ("batch", "head", "key", "head_dim"), "cross": ("batch", "head", "source", "head_dim")}
HALVES = ("key", "value")


def cache_record(
    cache: KVCache, config: Config, ids: list[int], words: list[str] | None, source: list[str] | None = None
) -> Record:
    """Make a record of a KV cache: STACK.N.self.key and .value (1, G, S, K), ids (T,).

    There may be one id more than keys: the last token, from which none has been predicted yet. The parts of the states
    that layers carry, as LAYER.window, are those after `position` tokens.
    """
    tensors: dict[str, Tensor | Array] = {"ids": Tensor(np.array(ids, dtype=np.int64), ("token",))}
    read = 0
    for layer, pair in cache:
        part = model.parse_layer_name(layer)[2]
        for half, array in zip(HALVES, pair, strict=True):
            tensors[f"{layer}.{half}"] = Tensor(array.reshape(1, *array.shape[-3:]), CACHE_AXES[part])
        read = pair[0].shape[-2] if part == "self" else read
    if cache.states:
        tensors["position"] = Tensor(np.array(cache.length, np.int64), ())
    for layer, state in cache.states.items():
        parts = [part for part in state if part is not None]
        for (name, axes), array in zip(config.states[layer].items(), parts, strict=True):
            tensors[f"{layer}.{name}"] = Tensor(array, ("batch", *axes))
    labels: dict[str, Labels] = {} if words is None else {"token": words, "key": words[:read]}
    if source:
        labels["source"] = source
    return Record(tensors, labels)


def read_cache(tensors: Mapping[str, Array], config: Config, dtype: str, more: int) -> tuple[KVCache, list[int]]:
    """The KV cache of a record and its ids, once both are checked against the model.

    The keys of the last token are left out unless `more` tokens follow: at least one token has to be read. A state
    cannot leave one out. DataError names the tensor that does not fit; UsageError if keys change with the length of a
    text, or if the states have read all ids and none follows.
    """
    if not model.cacheable(config):
        raise UsageError("its keys change with the length of the text, so no cache can be kept", "--cache-in")
    if "ids" not in tensors:
        raise DataError("no cache: it has no ids", "--cache-in")
    ids = model.check_ids(tensors["ids"], config.stack("decoder").vocab)
    length = state_length(tensors, ids) if config.carries_states else key_length(tensors, ids)
    if config.carries_states and length > ids.size + more - 1:
        raise UsageError("its states follow all of its tokens: TEXT or --ids must continue them", "--cache-in")
    cache = KVCache()
    for layer, shapes in key_shapes(config, length).items():
        pair = [
            check_cache(tensors, f"{layer}.{half}", shape).astype(dtype, copy=False)
            for half, shape in zip(HALVES, shapes, strict=True)
        ]
        cut = None if layer.endswith(".cross") else min(length, ids.size + more - 1)
        cache.set(layer, *(np.ascontiguousarray(one[..., :cut, :]) for one in pair))
    for layer, parts in config.states.items():
        state = [
            check_cache(tensors, f"{layer}.{name}", (1, *axes.values())).astype(dtype, copy=False)
            for name, axes in parts.items()
        ]
        cache.advance(layer, model.State(*state) if config.is_recurrent else tuple(state), length)
    return cache, [int(word) for word in ids.reshape(-1)]


def key_length(tensors: Mapping[str, Array], ids: Array) -> int:
    """Count the tokens with keys; DataError unless they are the ids, or all but one."""
    lengths = {tensors[name].shape[-2] for name in tensors if name.endswith(".self.key") and tensors[name].ndim == 4}
    if not lengths:
        raise DataError("no cache: it has no keys", "--cache-in")
    length: int = min(lengths)
    if ids.ndim != 1 or not length <= ids.size <= length + 1:
        raise DataError(f"ids {ids.shape} for the keys of {length} tokens", "--cache-in")
    return length


def state_length(tensors: Mapping[str, Array], ids: Array) -> int:
    """Count the tokens that the states have read.

    DataError unless they are the ids, or all but one.
    """
    read = tensors.get("position")
    if read is None or read.shape or read.dtype.kind not in "iu":
        raise DataError("no cache of this model: it has no position", "--cache-in")
    position: int = read.item()
    if ids.ndim != 1 or not 0 < position <= ids.size <= position + 1:
        raise DataError(f"ids {ids.shape} for the states after {position} tokens", "--cache-in")
    return position


def key_shapes(config: Config, length: int) -> dict[str, list[tuple[int | None, ...]]]:
    """The shapes of the keys and values of each layer of attention; None for any size.

    length  tokens of the decoder, whose number the keys of a memory do not have
    """
    if config.is_recurrent:
        recurrent = as_recurrent(config)
        attends = recurrent.decoding.score != "none"
        return {"decoder.cross": [(1, 1, None, width) for width in recurrent.cross_widths()]} if attends else {}
    layers = {layer: rules for layer, rules in config.attention_rules.items() if layer.startswith("decoder.")}
    return {
        layer: [
            (1, rules.kv_heads, None if rules.is_cross else length, width)
            for width in (rules.head_dim, rules.value_dim)
        ]
        for layer, rules in layers.items()
    }


def check_cache(tensors: Mapping[str, Array], name: str, shape: tuple[int | None, ...]) -> Array:
    if name not in tensors:
        raise DataError(f"no cache of this model: no tensor {name!r}", "--cache-in")
    actual = tensors[name].shape
    pairs = list(zip(shape, actual, strict=False))
    if len(actual) != len(shape) or any(size not in (None, other) for size, other in pairs):
        expected = ", ".join("S" if size is None else str(size) for size in shape)
        raise DataError(f"no cache of this model: {name} has shape {actual} (expected ({expected}))", "--cache-in")
    return tensors[name]
