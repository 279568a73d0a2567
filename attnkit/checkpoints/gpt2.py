"""GPT-2: a pre-norm decoder whose linear layers are published (in, out), queries, keys and values as one."""

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Layers, embedding_table, fused_qkv, linear, norm, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("transformer.",)
DECODER = {
    "decoder.embed": embedding_table("wte.weight"),
    "decoder.positions": embedding_table("wpe.weight"),
    "decoder.{n}.norm1": norm("h.{n}.ln_1"),
    "decoder.{n}.self": fused_qkv("h.{n}.attn.c_attn.weight", "h.{n}.attn.c_attn.bias", turned=False)
    | linear("o", "h.{n}.attn.c_proj", turned=False),
    "decoder.{n}.norm2": norm("h.{n}.ln_2"),
    "decoder.{n}.ffn": linear("1", "h.{n}.mlp.c_fc", turned=False) | linear("2", "h.{n}.mlp.c_proj", turned=False),
    "decoder.norm": norm("ln_f"),
}


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    if raw.flag("add_cross_attention", False):
        raise raw.wrong("add_cross_attention is not supported")
    width = raw.whole("n_embd")
    heads = raw.whole("n_head")
    return Config(
        "gpt2",
        width,
        decoder=StackConfig(
            layers=raw.whole("n_layer"),
            heads=heads,
            hidden=raw.whole("n_inner", 4 * width),
            kv_heads=heads,
            head_dim=raw.head_dim("n_embd", "n_head"),
            vocab=raw.whole("vocab_size"),
            causal=True,
            final_norm=True,
        ),
        eps=raw.number("layer_norm_epsilon", 1e-5),
        norm_first=True,
        activation=raw.choice("activation_function", ACTIVATIONS, "gelu_new"),
        positions=PositionConfig("learned", size=raw.whole("n_positions", raw.whole("n_ctx", 1024))),
        scale=None if raw.flag("scale_attn_weights", True) else 1.0,
        scale_by_layer=raw.flag("scale_attn_by_inverse_layer_idx", False),
        special=raw.special(),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    is_tied = raw.flag("tie_word_embeddings", True)
    return {**DECODER, "head": tied_head("wte.weight") if is_tied else linear("", "lm_head", biased=False)}
