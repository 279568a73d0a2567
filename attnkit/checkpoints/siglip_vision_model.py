"""SigLIP's tower of images: patches without a class token.

The vector is the result of a learned query, the probe.
"""

from attnkit.checkpoints import clip_text_model, siglip_text_model, vit
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, map_fused, map_linear, norm
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("vision_model.",)
FIELDS = vit.FIELDS | {"head width": ""}
DEFAULTS = {  # what files may leave out
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}
PATCHES = "embeddings.patch_embedding"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    patches = vit.read_patches(raw, has_class=False)
    common, has_head = siglip_text_model.read_common(raw), raw.get_bool("vision_use_head", True)
    return Config(
        "siglip_vision_model",
        encoder=raw.get_stack(FIELDS, final_norm=True),
        positions=PositionConfig("learned", size=patches.tokens(patches.height, patches.width)),
        patches=patches,
        vector_width=common["width"] * has_head,
        vector_pooling="probe" * has_head,
        **common,
    )


def map_layers(raw: ConfigReader) -> Layers:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    patch_shape = (raw.get_int("num_channels", 3), *raw.get_size("patch_size"))
    return {
        "encoder.embed": {
            "w": TensorSpec((f"{PATCHES}.weight",), transposed=True, patch_shape=patch_shape),
            "b": TensorSpec((f"{PATCHES}.bias",)),
        },
        "encoder.positions": embedding_table("embeddings.position_embedding.weight"),
        "encoder.norm": norm("post_layernorm"),
        "vector": {"probe": TensorSpec(("head.probe",), leading_ones=2)},
        "vector.cross": map_fused("qkv", "head.attention.in_proj_weight", "head.attention.in_proj_bias")
        | map_linear("head.attention", wo="out_proj"),
        "vector.norm": norm("head.layernorm"),
        "vector.ffn": map_linear("head.mlp", w1="fc1", w2="fc2"),
        **clip_text_model.COMMON,
    }
