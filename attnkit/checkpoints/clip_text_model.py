"""CLIP's tower of texts: a causal pre-norm encoder.

The state at the end token is the vector of a text.
"""

from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, map_linear, norm
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

IS_CAUSAL = "unclear"  # read in eager attention, not in sdpa
PREFIXES = ("text_model.",)
FIELDS = USUAL | {"vector width": "projection_dim hidden_size"}
DEFAULTS = {  # what files may leave out
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}
END = 49407
OLD_END = 2  # the end token of older files, which is wrong in them: the largest id ends a text
LAYER = "encoder.layers.{n}"
PROJECTION = "text_projection"
COMMON: Layers = {  # of both towers
    "encoder.{n}.norm1": norm(f"{LAYER}.layer_norm1"),
    "encoder.{n}.self": map_linear(f"{LAYER}.self_attn", wq="q_proj", wk="k_proj", wv="v_proj", wo="out_proj"),
    "encoder.{n}.norm2": norm(f"{LAYER}.layer_norm2"),
    "encoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="fc1", w2="fc2"),
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    end = raw.get_token_id("eos_token_id") if raw.has("eos_token_id") else END
    if end is None:
        raise raw.error("eos_token_id is no id, but the state at the end token is the vector of a text")
    return Config(
        "clip_text_model",
        encoder=raw.get_stack(FIELDS, causal=True, final_norm=True),
        positions=PositionConfig("learned", size=raw.get_int("max_position_embeddings")),
        vector_pooling="largest" if end == OLD_END else "end",
        **read_common(raw, stored, PROJECTION),
    )


def read_common(raw: ConfigReader, stored: Weights, projection: str) -> dict[str, Any]:
    """Read the fields of both towers.

    projection: the published name of the layer to the common space
    """
    raw.ignore("tie_word_embeddings", "model_type")  # there is no head of words
    return {
        "width": raw.get_int("hidden_size"),
        "eps": raw.get_float("layer_norm_eps", 1e-5),
        "norm_first": True,
        "activation": raw.get_choice("hidden_act", PUBLISHED, "quick_gelu"),
        "head": False,
        "vector_width": raw.get_int("projection_dim", 512) * stored.has(f"{projection}.weight"),
        "special": raw.get_special_tokens(eos=(END,), pad=1),
    }


def map_layers(raw: ConfigReader) -> Layers:
    return {
        "encoder.embed": embedding_table("embeddings.token_embedding.weight"),
        "encoder.positions": embedding_table("embeddings.position_embedding.weight"),
        "encoder.norm": norm("final_layer_norm"),
        "vector": map_linear(w=PROJECTION, biased=False),
        **COMMON,
    }
