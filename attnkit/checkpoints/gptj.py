"""GPT-J: parallel sub-layers after one norm, interleaved RoPE, a biased head."""

from attnkit.checkpoints import gpt2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("transformer.",)
FIELDS = gpt2.FIELDS | {"rotated features": "rotary_dim"}
SMALLEST = {"rotary_dim": 2}
LAYER, WORDS = "h.{n}", "wte.weight"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width = raw.get_int("n_embd")
    stack = raw.get_stack(FIELDS, hidden=4 * width, causal=True, final_norm=True)
    raw.expect(scale_attn_weights=True)
    head_dim, is_rotated = raw.get_head_dim("n_embd", "n_head"), raw.values.get("rotary_dim", 64) is not None
    rotated = raw.get_int("rotary_dim", 64, most=head_dim) if is_rotated else 0
    return Config(
        "gptj",
        width,
        decoder=stack,
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        norm_first=True,
        parallel=True,
        activation=raw.get_choice("activation_function", PUBLISHED, "gelu_new"),
        positions=PositionConfig("rotary", size=raw.get_int("n_positions", 2048), rotary_dim=rotated, interleaved=True),
        head=stored.has("lm_head.weight") or raw.get_bool("tie_word_embeddings", False),
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", False)
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.{n}.norm1": norm(f"{LAYER}.ln_1"),
        "decoder.{n}.norm2": norm(f"{LAYER}.ln_1"),
        "decoder.{n}.self": map_linear(
            f"{LAYER}.attn", wq="q_proj", wk="k_proj", wv="v_proj", wo="out_proj", biased=False
        ),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="fc_in", w2="fc_out"),
        "decoder.norm": norm("ln_f"),
        "head": map_linear(w="lm_head") | tied_head("lm_head.weight", to=WORDS * is_tied),
    }
