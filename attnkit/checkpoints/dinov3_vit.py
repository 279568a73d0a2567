"""DINOv3: DINOv2 with registers and rotated patches, without position table."""

from attnkit.checkpoints import vit
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.dinov2 import UNUSED
from attnkit.checkpoints.weights import Layers, Specs, TensorSpec, Weights, map_linear, norm
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("model.",)
FIELDS = vit.FIELDS | {
    "head width": "", "biases": "mlp_bias", "theta": "rope_theta", "registers": "num_register_tokens",
}  # fmt: skip
LAYER = "layer.{n}"
OF_TRAINING = ("drop_path_rate", "pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift")


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore(*UNUSED, *OF_TRAINING)
    rope = {"rope_type": "default", "rope_theta": raw.get_float("rope_theta", 100.0)}
    return Config(
        "dinov3_vit",
        raw.get_int("hidden_size"),
        encoder=raw.get_stack(FIELDS, final_norm=True),
        eps=raw.get_float("layer_norm_eps", 1e-5),
        norm_first=True,
        layer_scale=True,
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu"),
        positions=PositionConfig("rotary", rope=rope, over_grid=True),
        patches=vit.read_patches(raw, registers=raw.get_int("num_register_tokens", 0, least=0)),
        head=False,
    )


def map_layers(raw: ConfigReader) -> Layers:
    return {
        "encoder.embed": map_tokens(raw),
        "encoder.{n}.norm1": norm(f"{LAYER}.norm1"),
        "encoder.{n}.self": map_attention(raw),
        "encoder.{n}.scale1": {"w": TensorSpec((f"{LAYER}.layer_scale1.lambda1",))},
        "encoder.{n}.norm2": norm(f"{LAYER}.norm2"),
        "encoder.{n}.ffn": map_network(raw),
        "encoder.{n}.scale2": {"w": TensorSpec((f"{LAYER}.layer_scale2.lambda1",))},
        "encoder.norm": norm("norm"),
    }


def map_tokens(raw: ConfigReader) -> Specs:
    """Map the convolution of the patches, the class token and the registers."""
    patch_shape = (raw.get_int("num_channels", 3), *raw.get_size("patch_size"))
    specs = {
        "w": TensorSpec(("embeddings.patch_embeddings.weight",), transposed=True, patch_shape=patch_shape),
        "b": TensorSpec(("embeddings.patch_embeddings.bias",)),
        "cls": TensorSpec(("embeddings.cls_token",), leading_ones=2),
    }
    if raw.get_int("num_register_tokens", 0, least=0):
        specs["registers"] = TensorSpec(("embeddings.register_tokens",), leading_ones=1)
    return specs


def map_attention(raw: ConfigReader) -> Specs:
    """Map the projections; those of keys usually have no bias."""
    place = f"{LAYER}.attention"
    return {
        **map_linear(place, biased=raw.get_bool("query_bias", True), wq="q_proj"),
        **map_linear(place, biased=raw.get_bool("key_bias", False), wk="k_proj"),
        **map_linear(place, biased=raw.get_bool("value_bias", True), wv="v_proj"),
        **map_linear(place, biased=raw.get_bool("proj_bias", True), wo="o_proj"),
    }


def map_network(raw: ConfigReader) -> Specs:
    place, is_biased = f"{LAYER}.mlp", raw.get_bool("mlp_bias", True)
    if raw.get_bool("use_gated_mlp", False):
        return map_linear(place, biased=is_biased, w1="gate_proj", w3="up_proj", w2="down_proj")
    return map_linear(place, biased=is_biased, w1="up_proj", w2="down_proj")
