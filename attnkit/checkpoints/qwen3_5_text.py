"""Qwen3.5 without experts: Qwen3-Next with flat projections and one network."""

from attnkit.checkpoints import qwen3_next
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_linear
from attnkit.model.config import Config

VARIANT_OF = qwen3_next
MIXTURES = ("experts", "chosen experts", "expert width", "dense layers", "router", "shared width")
FIELDS = {key: value for key, value in qwen3_next.FIELDS.items() if key not in MIXTURES}
PREFIXES = ("model.", "model.language_model.", "language_model.")


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return qwen3_next.read_hybrid(raw, stored, kv_heads=4)


def map_layers(raw: ConfigReader) -> Layers:
    return qwen3_next.map_hybrid(raw) | {"decoder.{n}.recall": map_recall(raw)}


def map_recall(raw: ConfigReader) -> dict[str, TensorSpec]:
    """Map a layer that keeps a state, with queries, keys and values side by side."""
    heads, groups, key, value, _ = qwen3_next.read_sizes(raw).values()
    units = {"q": groups * key, "k": groups * key, "v": heads * value}
    return (
        qwen3_next.map_shares(f"{qwen3_next.RECALL}.in_proj_qkv", units, 1)
        | map_linear(qwen3_next.RECALL, wg="in_proj_z", wbeta="in_proj_b", wdt="in_proj_a", biased=False)
        | qwen3_next.map_rest(raw)
    )
