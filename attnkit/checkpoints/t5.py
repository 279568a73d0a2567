"""T5: a pre-norm encoder and decoder with RMS norms, no biases, scores not scaled, relative positions as a bias."""

from dataclasses import replace

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Entries, Layers, embedding_table, linear, norm, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("transformer.",)


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration; one that says it is no encoder and decoder is an encoder alone."""
    width, heads, vocab = raw.whole("d_model"), raw.whole("num_heads"), raw.whole("vocab_size")
    depth, both = raw.whole("num_layers"), raw.flag("is_encoder_decoder", True)
    encoder = StackConfig(
        layers=depth,
        heads=heads,
        hidden=raw.whole("d_ff"),
        kv_heads=heads,
        head_dim=raw.whole("d_kv", 64),
        vocab=vocab,
        final_norm=True,
    )
    decoder = replace(encoder, layers=raw.whole("num_decoder_layers", depth), causal=True, cross=True)
    return Config(
        "t5",
        width,
        encoder=encoder,
        decoder=decoder if both else None,
        norm="rms",
        eps=raw.number("layer_norm_epsilon", 1e-6),
        norm_first=True,
        activation=_activation(raw)[0],
        positions=PositionConfig(
            "t5",
            buckets=raw.whole("relative_attention_num_buckets", 32),
            max_distance=raw.whole("relative_attention_max_distance", 128),
        ),
        scale=1.0,
        logit_scale=width**-0.5 if _scaled(raw) else 1.0,
        head=both,
        special=raw.special(start=raw.token("pad_token_id", 0), eos=(1,), pad=0),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    found: dict[str, Entries] = {
        "head": tied_head("shared.weight", "decoder.embed_tokens.weight")
        if _scaled(raw)
        else tied_head("lm_head.weight", *(["shared.weight"] if raw.has("scale_decoder_outputs") else []))
    }
    for stack, middle in (("encoder", ()), ("decoder", (("cross", "EncDecAttention"),))):
        parts = [("self", "SelfAttention"), *middle]
        for order, (name, published) in enumerate(parts):
            at = f"{stack}.block.{{n}}.layer.{order}"
            found[f"{stack}.{{n}}.{name}"] = {
                key: entry
                for letter in "qkvo"
                for key, entry in linear(letter, f"{at}.{published}.{letter}", biased=False).items()
            }
            found[f"{stack}.{{n}}.norm{order + 1}"] = norm(f"{at}.layer_norm", biased=False)
        at = f"{stack}.block.{{n}}.layer.{len(parts)}"
        found[f"{stack}.{{n}}.ffn"] = _ffn(f"{at}.DenseReluDense", gated=_activation(raw)[1])
        found[f"{stack}.{{n}}.norm{len(parts) + 1}"] = norm(f"{at}.layer_norm", biased=False)
        found[f"{stack}.embed"] = embedding_table("shared.weight", f"{stack}.embed_tokens.weight")
        found[f"{stack}.bias"] = embedding_table(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        )
        found[f"{stack}.norm"] = norm(f"{stack}.final_layer_norm", biased=False)
    return found


def _ffn(stem: str, gated: bool) -> Entries:
    out = linear("2", f"{stem}.wo", biased=False)
    if not gated:
        return linear("1", f"{stem}.wi", biased=False) | out
    return linear("1", f"{stem}.wi_0", biased=False) | linear("3", f"{stem}.wi_1", biased=False) | out


def _activation(raw: ConfigReader) -> tuple[str, bool]:
    """The activation and whether it is gated; here gated-gelu means the approximation by tanh."""
    table = {name: (found, False) for name, found in ACTIVATIONS.items()}
    table |= {f"gated-{name}": (found, True) for name, found in ACTIVATIONS.items()}
    return raw.choice("feed_forward_proj", {**table, "gated-gelu": ("gelu-tanh", True)}, "relu")


def _scaled(raw: ConfigReader) -> bool:
    """Whether the head is the shared table and its input scaled: said in one way or, since, in another."""
    return raw.flag("scale_decoder_outputs", raw.flag("tie_word_embeddings", True))
