"""Gemma 3: Gemma 2 with norms of queries and keys, and a rotation for windows.

The norms replace the soft caps.

EmbeddingGemma is the same model as an encoder.
"""

from dataclasses import replace
from functools import partial

from attnkit.checkpoints import gemma, gemma2, llama
from attnkit.checkpoints.bidirectional import KEY, as_encoder
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config

VARIANT_OF = gemma2
FIELDS = gemma2.FIELDS | {"window theta": "rope_local_base_freq rope_theta", "window scaling": "rope_type type"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    is_encoder = raw.get_bool("use_bidirectional_attention", False)
    one_way = raw.replaced({**raw.values.plain, "use_bidirectional_attention": None})
    cap = gemma2.read_cap(raw, "final_logit_softcapping")
    config = gemma2.read_sandwich(one_way, stored, size=131072, qk_norm="head", logit_softcap=cap)
    kinds = llama.every(raw.get_int("sliding_window_pattern", 6), config.stack("decoder").layers)
    config = llama.limit_layers(raw, config, kinds, window=4096)
    size, older = config.positions.size, raw.get_float("rope_local_base_freq", 10000.0)
    has_both = llama.SLIDING in raw.get_dict("rope_parameters")
    positions = replace(
        config.positions,
        rope=llama.read_rotation(raw, size, 1e6, llama.FULL),
        local_rope=llama.read_rotation(raw, size, older, llama.SLIDING)
        if has_both
        else llama.read_rope(raw, {}, size, older),
    )
    config = replace(config, positions=positions)
    return _as_embedder(raw, config) if is_encoder else config


def _as_embedder(raw: ConfigReader, config: Config) -> Config:
    """The model as an encoder, whose windows extend to both sides of a token.

    With `is_causal: false` besides they have the key at the full distance as well.
    """
    stack = config.stack("decoder")
    beyond = KEY in raw.values.plain and not raw.get_bool(KEY, True)
    windows = [-1 if one < 0 else (one + 1) // 2 + beyond for one in stack.windows]
    return replace(as_encoder(config, windows), head=False)


def map_layers(raw: ConfigReader) -> Layers:
    return gemma.map_gemma(raw, gemma2.NORMS, qk_norm=True)


GGUF = gemma2.GGUF | {
    "keys": (*gemma2.GGUF["keys"], "window theta"),
    "infer": (*gemma.GGUF["infer"], partial(gemma2.infer_query_scale, layers=62)),
}
