"""DINOv2: a pre-norm encoder of image patches with layer scale, and no head."""

from typing import Any

from attnkit.checkpoints import vit
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import read_image_labels
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_fused, map_linear, norm
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("dinov2.",)
FIELDS = vit.FIELDS | {"hidden width": "mlp_ratio", "gate": "use_swiglu_ffn"}
RENAMED_MODULES = vit.RENAMED_ATTENTION
LAYER = vit.LAYER
UNUSED = ("apply_layernorm", "reshape_hidden_states", "out_features", "out_indices", "stage_names", "layerscale_value",
          "use_mask_token", "tie_word_embeddings")  # fmt: skip  # of a backbone, of training, or of words


def read_config(raw: ConfigReader, stored: Weights, **cut: Any) -> Config:
    """The configuration; cut: fields of PatchConfig for what a variant has besides."""
    width = raw.get_int("hidden_size")
    patches = vit.read_patches(raw, **cut)
    rows, columns = patches.grid(patches.height, patches.width)
    is_gated = raw.get_bool("use_swiglu_ffn", False)
    raw.ignore(*UNUSED, "drop_path_rate", *["hidden_act"] * is_gated)
    return Config(
        raw.get_str("model_type"),
        width,
        encoder=raw.get_stack(FIELDS | {"hidden width": ""}, hidden=_read_hidden(raw), final_norm=True),
        eps=raw.get_float("layer_norm_eps", 1e-6),
        norm_first=True,
        layer_scale=True,
        activation="silu" if is_gated else raw.get_choice("hidden_act", PUBLISHED, "gelu"),
        positions=PositionConfig("learned", size=1 + rows * columns),
        patches=patches,
        head=stored.has("classifier.weight"),
        pooling="patches",
        **read_image_labels(raw),
    )


def map_layers(raw: ConfigReader) -> Layers:
    attention, is_biased = f"{LAYER}.attention", raw.get_bool("qkv_bias", True)
    return {
        "encoder.embed": vit.map_patches(raw),
        "encoder.positions": vit.LAYERS["encoder.positions"],
        "encoder.{n}.norm1": norm(f"{LAYER}.norm1"),
        "encoder.{n}.self": map_linear(f"{attention}.attention", wq="query", wk="key", wv="value", biased=is_biased)
        | map_linear(f"{attention}.output", wo="dense"),
        "encoder.{n}.scale1": {"w": TensorSpec((f"{LAYER}.layer_scale1.lambda1",))},
        "encoder.{n}.norm2": norm(f"{LAYER}.norm2"),
        "encoder.{n}.ffn": _map_network(raw),
        "encoder.{n}.scale2": {"w": TensorSpec((f"{LAYER}.layer_scale2.lambda1",))},
        "encoder.norm": norm("layernorm"),
        "head": map_linear(w="classifier"),
    }


def _read_hidden(raw: ConfigReader) -> int:
    """The width of the network.

    That of a gated one is two thirds of it, rounded up to a multiple of 8.
    """
    hidden = raw.get_int("hidden_size") * raw.get_int("mlp_ratio", 4)
    return (hidden * 2 // 3 + 7) // 8 * 8 if raw.get_bool("use_swiglu_ffn", False) else hidden


def _map_network(raw: ConfigReader) -> dict[str, TensorSpec]:
    if not raw.get_bool("use_swiglu_ffn", False):
        return map_linear(f"{LAYER}.mlp", w1="fc1", w2="fc2")
    fused = map_fused("13", f"{LAYER}.mlp.weights_in.weight", f"{LAYER}.mlp.weights_in.bias")
    return fused | map_linear(f"{LAYER}.mlp", w2="weights_out")
