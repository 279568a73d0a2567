"""BERT: a post-norm encoder of tokens and segments, with a pooler and a head for masked words where it has them."""

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Layers, TensorSpec, embedding_table, linear, norm, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("bert.",)
TRANSFORM = "cls.predictions.transform"


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration; whether there is a pooler and a head, the stored names say."""
    if raw.text("position_embedding_type", "absolute") != "absolute":
        raise raw.wrong(f"position_embedding_type {raw.text('position_embedding_type')[:40]!r} is not supported")
    if raw.flag("is_decoder", False):
        raise raw.wrong("is_decoder is not supported")
    heads, predicts = raw.whole("num_attention_heads"), stored.has(f"{TRANSFORM}.dense.weight")
    return Config(
        "bert",
        raw.whole("hidden_size"),
        encoder=StackConfig(
            layers=raw.whole("num_hidden_layers"),
            heads=heads,
            hidden=raw.whole("intermediate_size"),
            kv_heads=heads,
            head_dim=raw.head_dim("hidden_size", "num_attention_heads"),
            vocab=raw.whole("vocab_size"),
        ),
        eps=raw.number("layer_norm_eps", 1e-12),
        activation=raw.choice("hidden_act", ACTIVATIONS, "gelu"),
        positions=PositionConfig("learned", size=raw.whole("max_position_embeddings")),
        embed_norm=True,
        types=raw.whole("type_vocab_size", 2),
        pooler=stored.has("pooler.dense.weight"),
        head=predicts,
        transform=predicts,
        special=raw.special(),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    at, words = "encoder.layer.{n}", "embeddings.word_embeddings.weight"
    is_tied = raw.flag("tie_word_embeddings", True)
    decoder = tied_head(words) if is_tied else linear("", "cls.predictions.decoder", biased=False)
    return {
        "encoder.embed": embedding_table(words) | {"types": TensorSpec(("embeddings.token_type_embeddings.weight",))},
        "encoder.positions": embedding_table("embeddings.position_embeddings.weight"),
        "encoder.embed_norm": norm("embeddings.LayerNorm"),
        "encoder.{n}.self": linear("q", f"{at}.attention.self.query")
        | linear("k", f"{at}.attention.self.key")
        | linear("v", f"{at}.attention.self.value")
        | linear("o", f"{at}.attention.output.dense"),
        "encoder.{n}.norm1": norm(f"{at}.attention.output.LayerNorm"),
        "encoder.{n}.ffn": linear("1", f"{at}.intermediate.dense") | linear("2", f"{at}.output.dense"),
        "encoder.{n}.norm2": norm(f"{at}.output.LayerNorm"),
        "pooler": linear("", "pooler.dense"),
        "head.dense": linear("", f"{TRANSFORM}.dense"),
        "head.norm": norm(f"{TRANSFORM}.LayerNorm"),
        "head": decoder | {"b": TensorSpec(("cls.predictions.bias", "cls.predictions.decoder.bias"))},
    }
