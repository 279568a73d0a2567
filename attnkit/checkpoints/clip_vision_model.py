"""CLIP's tower of images: a pre-norm encoder of patches with normed embeddings."""

from attnkit.checkpoints import clip_text_model, vit
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, map_linear, norm
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("vision_model.",)
FIELDS = vit.FIELDS | {"head width": "", "vector width": "projection_dim hidden_size"}
DEFAULTS = {  # what files may leave out
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}
PROJECTION = "visual_projection"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    patches = vit.read_patches(raw)
    return Config(
        "clip_vision_model",
        encoder=raw.get_stack(FIELDS, final_norm=True),
        positions=PositionConfig("learned", size=patches.tokens(patches.height, patches.width)),
        patches=patches,
        embed_norm=True,
        vector_pooling="cls",
        **clip_text_model.read_common(raw, stored, PROJECTION),
    )


def map_layers(raw: ConfigReader) -> Layers:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    patch_shape = (raw.get_int("num_channels", 3), *raw.get_size("patch_size"))
    return {
        "encoder.embed": {
            "w": TensorSpec(("embeddings.patch_embedding.weight",), transposed=True, patch_shape=patch_shape),
            "cls": TensorSpec(("embeddings.class_embedding",)),
        },
        "encoder.positions": embedding_table("embeddings.position_embedding.weight"),
        "encoder.embed_norm": norm("pre_layrnorm"),
        "encoder.norm": norm("post_layernorm"),
        "vector": map_linear(w=PROJECTION, biased=False),
        **clip_text_model.COMMON,
    }
