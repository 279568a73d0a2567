"""Phi-1 and Phi-2: parallel sub-layers after one layer norm, half-rotated heads."""

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.config import Config
from attnkit.model.formulas.activations import PUBLISHED

VARIANT_OF = llama
FIELDS = llama.FIELDS | {
    "norm eps": "layer_norm_eps", "query-key norm": "qk_layernorm", "rotated features": "partial_rotary_factor",
}  # fmt: skip
GGUF = llama.USUAL_GGUF | {
    "keys": (*llama.GGUF_SIZES, "norm eps"),
    "names": llama.name_gguf({"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"})
    | {"output_norm": "model.final_layernorm"},
    "infer": ("head", "rotation", ("rotated part", llama.PARTIAL)),
}
LAYER = llama.LAYER


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = llama.read_config(
        raw,
        stored,
        norm="layer",
        eps=raw.get_float("layer_norm_eps", 1e-5),
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu_new"),
        parallel=True,
        qk_norm="head" if raw.get_bool("qk_layernorm", False) else "",
    )
    return llama.rotate_partly(raw, config, 0.5)


def map_layers(raw: ConfigReader) -> Layers:
    is_tied, attention = raw.get_bool("tie_word_embeddings", False), f"{LAYER}.self_attn"
    norms: dict[str, TensorSpec] = {}
    if raw.get_bool("qk_layernorm", False):
        for letter in "qk":
            own = norm(f"{attention}.{letter}_layernorm")
            norms |= {f"gamma_{letter}": own["gamma"], f"beta_{letter}": own["beta"]}
    return {
        "decoder.embed": embedding_table(llama.WORDS),
        "decoder.{n}.norm1": norm(f"{LAYER}.input_layernorm"),
        "decoder.{n}.norm2": norm(f"{LAYER}.input_layernorm"),
        "decoder.{n}.self": map_linear(attention, wq="q_proj", wk="k_proj", wv="v_proj", wo="dense") | norms,
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="fc1", w2="fc2"),
        "decoder.norm": norm("final_layernorm"),
        "head": map_linear(w="lm_head") | tied_head("lm_head.weight", to=llama.WORDS * is_tied),
    }
