"""GPT-1: the names of GPT-2, each norm after its residual and none at the end."""

from attnkit.checkpoints import gpt2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.mapping import Layers, embedding_table, linear, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("transformer.",)
ACTIVATIONS = {"relu": "relu", "gelu": "gelu-tanh", "silu": "silu", "swish": "silu"}  # this family's own meaning


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    width, heads = raw.whole("n_embd"), raw.whole("n_head")
    return Config(
        "openai-gpt",
        width,
        decoder=StackConfig(
            layers=raw.whole("n_layer"),
            heads=heads,
            hidden=4 * width,
            kv_heads=heads,
            head_dim=raw.head_dim("n_embd", "n_head"),
            vocab=raw.whole("vocab_size"),
            causal=True,
        ),
        eps=raw.number("layer_norm_epsilon", 1e-5),
        activation=raw.choice("afn", ACTIVATIONS, "gelu"),
        positions=PositionConfig("learned", size=raw.whole("n_positions", 512)),
        special=raw.special(),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    is_tied = raw.flag("tie_word_embeddings", True)
    return {
        **gpt2.DECODER,
        "decoder.embed": embedding_table("tokens_embed.weight"),
        "decoder.positions": embedding_table("positions_embed.weight"),
        "head": tied_head("tokens_embed.weight") if is_tied else linear("", "lm_head", biased=False),
    }
