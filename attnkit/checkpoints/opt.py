"""OPT: a pre-norm decoder with ReLU, and positions from row 2.

One size is post-norm.
"""

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("model.decoder.", "decoder.")
FIELDS = USUAL | {
    "hidden width": "ffn_dim", "embedding width": "word_embed_proj_dim", "norm": "layer_norm_elementwise_affine",
    "norm places": "do_layer_norm_before", "activation": "activation_function", "biases": "enable_bias",
}  # fmt: skip
LAYER, WORDS = "layers.{n}", "embed_tokens.weight"
FIRST = 2  # row of the first position


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width, is_first = raw.get_int("hidden_size"), raw.get_bool("do_layer_norm_before", True)
    narrow = raw.get_int("word_embed_proj_dim", width)
    size = raw.get_int("max_position_embeddings", 2048) + FIRST
    return Config(
        "opt",
        width,
        decoder=raw.get_stack(FIELDS, causal=True, final_norm=_has_final_norm(raw)),
        eps=1e-5,
        norm_first=is_first,
        activation=raw.get_choice("activation_function", PUBLISHED, "relu"),
        positions=PositionConfig("learned", size=size, first=FIRST),
        embed_width=narrow if narrow != width else 0,
        projects_first=True,
        transform=narrow != width,
        head_width=narrow,
        head_norm=False,
        head_activation="identity",
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased, has_gamma = raw.get_bool("enable_bias", True), raw.get_bool("layer_norm_elementwise_affine", True)
    attention, is_tied = f"{LAYER}.self_attn", raw.get_bool("tie_word_embeddings", True)
    norms = {"decoder.{n}.norm1": f"{LAYER}.self_attn_layer_norm", "decoder.{n}.norm2": f"{LAYER}.final_layer_norm"}
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.projection": map_linear(w="project_in", biased=False),
        "decoder.positions": embedding_table("embed_positions.weight"),
        "decoder.{n}.self": map_linear(
            attention, wq="q_proj", wk="k_proj", wv="v_proj", wo="out_proj", biased=is_biased
        ),
        "decoder.{n}.ffn": map_linear(LAYER, w1="fc1", w2="fc2", biased=is_biased),
        **{layer: norm(name) if has_gamma else {} for layer, name in norms.items()},
        "decoder.norm": norm("final_layer_norm") if has_gamma else {},
        "head.dense": map_linear(w="project_out", biased=False),
        "head": tied_head("lm_head.weight", to=WORDS * is_tied),
    }


def _has_final_norm(raw: ConfigReader) -> bool:
    return not raw.get_bool("_remove_final_layer_norm", False) and raw.get_bool("do_layer_norm_before", True)
