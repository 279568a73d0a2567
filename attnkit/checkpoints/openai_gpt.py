"""GPT-1 (`openai-gpt`): GPT-2's tensor names, post-norm layers, no final norm."""

from attnkit.checkpoints import gpt2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, tied_head
from attnkit.model.config import Config, PositionConfig

PREFIXES = ("transformer.",)
WRITES_PREFIX = False
IS_CAUSAL = "ignored"  # each layer has a mask of its own
WORDS = "tokens_embed.weight"
FIELDS = gpt2.FIELDS | {"hidden width": "", "activation": "afn"}
TOKENIZER = "OpenAIGPTTokenizer"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu-tanh", "silu": "silu", "swish": "silu"}  # gelu has its own meaning here


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width = raw.get_int("n_embd")
    raw.ignore("n_ctx")  # n_positions again
    return Config(
        "openai-gpt",
        width,
        decoder=raw.get_stack(FIELDS, hidden=4 * width, causal=True),
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        activation=raw.get_choice("afn", ACTIVATIONS, "gelu"),
        positions=PositionConfig("learned", size=raw.get_int("n_positions", 512)),
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    return {
        **gpt2.LAYERS,
        "decoder.embed": embedding_table(WORDS),
        "decoder.positions": embedding_table("positions_embed.weight"),
        "head": tied_head("lm_head.weight", to=WORDS * is_tied),
    }
