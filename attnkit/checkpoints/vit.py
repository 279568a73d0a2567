"""ViT: a pre-norm encoder of image patches, with a class token for the head."""

from collections.abc import Mapping
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import read_image_labels
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_linear, norm
from attnkit.model.config import Config, PatchConfig, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("vit.",)
FIELDS = USUAL | {
    "vocabulary": "", "head width": "head_dim", "biases": "qkv_bias", "image": "image_size num_channels",
    "patches": "patch_size", "dropout": "attention_probs_dropout_prob hidden_dropout_prob", "longest text": "",
}  # fmt: skip
LEARNS, OPTIONS = ("images",), ("heads", "size", "patch")
RETURNS_LAST_NORM = False
RENAMED_ATTENTION = (
    (r"attention\.attention\.([qkv])\w+\.", r"attention.\1_proj."),
    (r"attention\.output\.dense\.", "attention.o_proj."),
)
RENAMED_MODULES = (
    (r"^encoder\.layer\.", "layers."),
    *RENAMED_ATTENTION,
    (r"intermediate\.dense\.", "mlp.fc1."),
    (r"(?<=\d\.)output\.dense\.", "mlp.fc2."),
)
PATCHES, LAYER = "embeddings.patch_embeddings.projection", "encoder.layer.{n}"
LAYERS: Layers = {
    "encoder.positions": {"table": TensorSpec(("embeddings.position_embeddings",), leading_ones=1)},
    "encoder.{n}.norm1": norm(f"{LAYER}.layernorm_before"),
    "encoder.{n}.norm2": norm(f"{LAYER}.layernorm_after"),
    "encoder.{n}.ffn": map_linear(LAYER, w1="intermediate.dense", w2="output.dense"),
    "encoder.norm": norm("layernorm"),
    "pooler": map_linear(w="pooler.dense"),
    "head": map_linear(w="classifier"),
}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width = raw.get_int("hidden_size")
    patches = read_patches(raw)
    rows, columns = patches.grid(patches.height, patches.width)
    has_pooler = stored.has("pooler.dense.weight")
    raw.ignore("tie_word_embeddings")  # there are no words
    if (raw.get_int("pooler_output_size", width), raw.get_str("pooler_act", "tanh")) != (width, "tanh") and has_pooler:
        raise raw.error(f"a pooler other than tanh of size {width} is not supported")
    return Config(
        "vit",
        width,
        encoder=raw.get_stack(FIELDS, final_norm=True),
        eps=raw.get_float("layer_norm_eps", 1e-12),
        norm_first=True,
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu"),
        positions=PositionConfig("learned", size=1 + rows * columns),
        patches=patches,
        pooler=has_pooler,
        head=stored.has("classifier.weight"),
        **read_image_labels(raw),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("qkv_bias", True)
    return {
        **LAYERS,
        "encoder.embed": map_patches(raw),
        "encoder.{n}.self": map_linear(
            f"{LAYER}.attention.attention", wq="query", wk="key", wv="value", biased=is_biased
        )
        | map_linear(f"{LAYER}.attention.output", wo="dense"),
    }


def map_patches(raw: ConfigReader) -> dict[str, TensorSpec]:
    """Map the convolution of the patches, and the class token."""
    patch_shape = (raw.get_int("num_channels", 3), *raw.get_size("patch_size"))
    return {
        "w": TensorSpec((f"{PATCHES}.weight",), transposed=True, patch_shape=patch_shape),
        "b": TensorSpec((f"{PATCHES}.bias",)),
        "cls": TensorSpec(("embeddings.cls_token",), leading_ones=2),
    }


def read_patches(raw: ConfigReader, **choices: Any) -> PatchConfig:
    """The sizes of the image and of its patches, which must fit in it.

    choices  further fields of PatchConfig
    """
    (height, width), (patch_height, patch_width) = raw.get_size("image_size"), raw.get_size("patch_size")
    if height < patch_height or width < patch_width:
        raise raw.error(f"image_size {height}x{width} is smaller than patch_size {patch_height}x{patch_width}")
    return PatchConfig(height, width, patch_height, patch_width, raw.get_int("num_channels", 3), **choices)


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "architectures": ["ViTForImageClassification"],
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "num_channels": 3,
        "qkv_bias": True,
    }
