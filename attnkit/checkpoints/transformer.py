"""The original Transformer: an encoder and a decoder in the names of torch.nn.Transformer, its arguments as settings.

Alone they map vectors to vectors. With `vocab_size` there is an `embed.weight` besides, one table for both
stacks and the head, scaled by sqrt(d_model), and sinusoidal positions as in the paper.
"""

from math import sqrt

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Entries, Layers, embedding_table, fused_qkv, linear, norm, tied_head
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PositionConfig, StackConfig

PREFIXES = ("transformer.", "model.")


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration."""
    width, vocab = raw.whole("d_model"), raw.whole("vocab_size", 0, least=0)
    return Config(
        "transformer",
        width,
        encoder=_stack(raw, "encoder", vocab),
        decoder=_stack(raw, "decoder", vocab),
        eps=raw.number("layer_norm_eps", 1e-5),
        norm_first=raw.flag("norm_first", False),
        activation=raw.choice("activation", ACTIVATIONS, "relu"),
        positions=PositionConfig("sinusoidal" if vocab else "none"),
        embed_scale=sqrt(width) if vocab else 1.0,
        head=vocab > 0,
        special=raw.special(start=raw.token("bos_token_id")),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    biased = raw.flag("bias", True)
    found: dict[str, Entries] = {"head": tied_head("embed.weight")}
    for stack, middle in (("encoder", ()), ("decoder", (("cross", "multihead_attn"),))):
        at, parts = f"{stack}.layers.{{n}}", [("self", "self_attn"), *middle]
        for name, published in parts:
            found[f"{stack}.{{n}}.{name}"] = _attention(f"{at}.{published}", biased)
        found[f"{stack}.{{n}}.ffn"] = linear("1", f"{at}.linear1", biased) | linear("2", f"{at}.linear2", biased)
        for order in range(1, len(parts) + 2):
            found[f"{stack}.{{n}}.norm{order}"] = norm(f"{at}.norm{order}", biased)
        found[f"{stack}.embed"] = embedding_table("embed.weight")
        found[f"{stack}.norm"] = norm(f"{stack}.norm", biased)
    return found


def _stack(raw: ConfigReader, name: str, vocab: int) -> StackConfig | None:
    """One of the stacks; None where it has no layers."""
    depth = raw.whole(f"num_{name}_layers", least=0)
    if depth == 0:
        return None
    return StackConfig(
        layers=depth,
        heads=raw.whole("nhead"),
        hidden=raw.whole("dim_feedforward"),
        kv_heads=raw.whole("nhead"),
        head_dim=raw.head_dim("d_model", "nhead"),
        vocab=vocab,
        causal=name == "decoder",
        cross=name == "decoder",
        final_norm=True,
    )


def _attention(stem: str, biased: bool) -> Entries:
    bias = f"{stem}.in_proj_bias" if biased else ""
    return fused_qkv(f"{stem}.in_proj_weight", bias, turned=True) | linear("o", f"{stem}.out_proj", biased)
