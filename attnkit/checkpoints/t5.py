"""T5: a pre-norm encoder-decoder with RMS norm, no biases and relative positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import (
    Layers,
    Specs,
    Weights,
    embedding_table,
    map_linear,
    name_blocks,
    norm,
    tied_head,
    tied_table,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("transformer.",)
WRITES_PREFIX = False
SHARED = "shared.weight"
FIELDS = USUAL | {
    "encoder layers": "num_layers", "decoder layers": "num_decoder_layers", "heads": "num_heads",
    "hidden width": "d_ff", "width": "d_model", "head width": "d_kv", "norm eps": "layer_norm_epsilon",
    "activation": "feed_forward_proj", "gate": "feed_forward_proj", "logit factor": "scale_decoder_outputs",
    "buckets": "relative_attention_num_buckets", "largest distance": "relative_attention_max_distance",
    "dropout": "dropout_rate", "layers": "", "longest text": "n_positions",
}  # fmt: skip
LEARNS, TEMPLATE = ("spans", "pairs"), "$A </s>"
HAS_LONGEST_TEXT = False  # n_positions is no limit
TOKENS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))
FORMS = ({"feed_forward_proj": "gated-gelu"},)
SCALES_STATES = True
WEIGHTS_OUTPUT = 2  # after the bias of positions


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width, has_decoder = raw.get_int("d_model"), raw.get_bool("is_encoder_decoder", True)
    raw.ignore("n_positions", "dense_act_fn", "is_gated_act")  # there is no limit; feed_forward_proj states the others
    encoder = raw.get_stack(FIELDS, "encoder", head_dim=64, final_norm=True)
    depth = raw.get_int("num_decoder_layers", encoder.layers)
    decoder = replace(encoder, layers=depth, causal=True, cross=True)
    return Config(
        "t5",
        width,
        encoder=encoder,
        decoder=decoder if has_decoder else None,
        norm="rms",
        eps=raw.get_float("layer_norm_epsilon", 1e-6),
        norm_first=True,
        activation=_read_activation(raw)[0],
        positions=PositionConfig(
            relative="t5",
            buckets=raw.get_int("relative_attention_num_buckets", 32),
            max_distance=raw.get_int("relative_attention_max_distance", 128),
        ),
        scale=1.0,
        logit_scale=width**-0.5 if _is_scaled(raw) else 1.0,
        head=has_decoder,
        special=raw.get_special_tokens(start=raw.get_token_id("pad_token_id", 0), eos=(1,), pad=0),
    )


def map_layers(raw: ConfigReader) -> Layers:
    _, is_gated = _read_activation(raw)
    encoder, decoder = "encoder.block.{n}.layer", "decoder.block.{n}.layer"
    return {
        "encoder.embed": tied_table("encoder.embed_tokens.weight", to=SHARED),
        "encoder.bias": _map_position_bias("encoder"),
        "encoder.{n}.norm1": norm(f"{encoder}.0.layer_norm", biased=False),
        "encoder.{n}.self": _map_attention(f"{encoder}.0.SelfAttention"),
        "encoder.{n}.norm2": norm(f"{encoder}.1.layer_norm", biased=False),
        "encoder.{n}.ffn": _map_ffn(f"{encoder}.1.DenseReluDense", is_gated),
        "encoder.norm": norm("encoder.final_layer_norm", biased=False),
        "decoder.embed": tied_table("decoder.embed_tokens.weight", to=SHARED),
        "decoder.bias": _map_position_bias("decoder"),
        "decoder.{n}.norm1": norm(f"{decoder}.0.layer_norm", biased=False),
        "decoder.{n}.self": _map_attention(f"{decoder}.0.SelfAttention"),
        "decoder.{n}.norm2": norm(f"{decoder}.1.layer_norm", biased=False),
        "decoder.{n}.cross": _map_attention(f"{decoder}.1.EncDecAttention"),
        "decoder.{n}.norm3": norm(f"{decoder}.2.layer_norm", biased=False),
        "decoder.{n}.ffn": _map_ffn(f"{decoder}.2.DenseReluDense", is_gated),
        "decoder.norm": norm("decoder.final_layer_norm", biased=False),
        "head": _map_head(raw),
    }


def _map_attention(prefix: str) -> Specs:
    return map_linear(prefix, wq="q", wk="k", wv="v", wo="o", biased=False)


def _map_ffn(prefix: str, is_gated: bool) -> Specs:
    inner = (
        map_linear(prefix, w1="wi_0", w3="wi_1", biased=False)
        if is_gated
        else map_linear(prefix, w1="wi", biased=False)
    )
    return inner | map_linear(prefix, w2="wo", biased=False)


def _map_position_bias(stack: str) -> Specs:
    """Map the bias of a stack, which its first block stores for all."""
    return embedding_table(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")


def _map_head(raw: ConfigReader) -> Specs:
    """Map the head: the shared table if states are scaled, else its own if any."""
    return tied_head("lm_head.weight", to=SHARED) if _is_scaled(raw) else tied_head("lm_head.weight", SHARED)


def _read_activation(raw: ConfigReader) -> tuple[str, bool]:
    """The activation and whether it is gated. Here gated-gelu is the tanh form."""
    plain = {name: (activation, False) for name, activation in PUBLISHED.items()}
    gated = {f"gated-{name}": (activation, True) for name, activation in PUBLISHED.items()}
    return raw.get_choice("feed_forward_proj", {**plain, **gated, "gated-gelu": ("gelu-tanh", True)}, "relu")


def _is_scaled(raw: ConfigReader) -> bool:
    """Whether states are scaled before the head: by key, or if it is tied.

    null says nothing of the tie.
    """
    is_tied = not raw.has("tie_word_embeddings") or raw.get_bool("tie_word_embeddings", True)
    return raw.get_bool("scale_decoder_outputs", is_tied)


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "d_kv": recipe.dim // recipe.heads,
        "decoder_start_token_id": special["pad"],
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": True,
    }


def draw_initial(
    config: Config, raw: Mapping[str, Any], part: str, name: str, usual: tuple[str, float]
) -> tuple[str, float]:
    """Draw from normal distributions in place of a scale of scores (mesh_tensorflow)."""
    stack = config.stack("encoder")
    deviations = {
        "wq": (config.width * stack.head_dim) ** -0.5,
        "wo": (stack.heads * stack.head_dim) ** -0.5,
        "w2": stack.hidden**-0.5,
    }
    is_embedding = part in ("embed", "head") and name in ("table", "w")
    scale = 1.0 if is_embedding else deviations.get(name, config.width**-0.5)
    return "normal", float(raw.get("initializer_factor") or 1.0) * scale


def infer_gates(file: Any) -> dict[str, Any]:
    """The activation, which is that of the first models unless there are gates."""
    decoder, eps = file.get("decoder_block_count"), file.get("attention.layer_norm_rms_epsilon")
    return {
        "feed_forward_proj": "gated-gelu" if GATE in file.entries else "relu",
        "layer_norm_epsilon": file.get("attention.layer_norm_epsilon", eps),
        "is_encoder_decoder": file.architecture == "t5",
        **({"num_decoder_layers": decoder} if decoder else {}),
    }


GATE = "enc.blk.0.ffn_gate.weight"


def name_gguf() -> dict[str, str]:
    """The published names by those of a GGUF file."""
    attention = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_o": "o"}
    inner = {f"attn_{key}": f"layer.0.SelfAttention.{key}" for key in attention.values()}
    inner |= {"attn_norm": "layer.0.layer_norm", "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias"}
    cross = {f"cross_{name}": f"layer.1.EncDecAttention.{key}" for name, key in attention.items()}
    cross |= {"cross_attn_norm": "layer.1.layer_norm"}
    names = {"token_embd": "shared", "output": "lm_head"}
    for short, stack, number, others in (("enc", "encoder", 1, {}), ("dec", "decoder", 2, cross)):
        ffn = {"ffn_norm": f"layer.{number}.layer_norm"}
        dense = {"ffn_gate": "wi_0", "ffn_up": "wi", "ffn_down": "wo"}
        ffn |= {name: f"layer.{number}.DenseReluDense.{key}" for name, key in dense.items()}
        names |= name_blocks({**inner, **others, **ffn}, f"{stack}.block.{{n}}", f"{short}.blk.{{n}}")
        names[f"{short}.output_norm"] = f"{stack}.final_layer_norm"
    return names


GGUF: dict[str, Any] = {
    "keys": (
        "width", ("num_layers", "layers"), "hidden width", "heads", "head width",
        ("layer_norm_epsilon", "rms norm eps"), "longest text", "buckets",
        ("decoder_start_token_id", "first token"),
    ),
    "names": name_gguf(),
    "infer": ("head", infer_gates),
    "instead": {
        GATE: {
            "enc.blk.{n}.ffn_up": "encoder.block.{n}.layer.1.DenseReluDense.wi_1",
            "dec.blk.{n}.ffn_up": "decoder.block.{n}.layer.2.DenseReluDense.wi_1",
        }
    },
}  # fmt: skip
