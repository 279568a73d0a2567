"""LFM2: short convolutions with gates in most layers, attention in the others.

Queries and keys are normed by head. The norm that is called `embedding_norm` follows the last layer. The projection of
a short convolution has three parts: the gate before it, the gate after it, and what it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, map_fused, map_linear, norm
from attnkit.errors import DataError
from attnkit.model.config import Config

VARIANT_OF = llama
FIELDS = llama.FIELDS | {
    "hidden width": "block_ff_dim intermediate_size", "norm eps": "norm_eps", "biases": "conv_bias",
    "mixers": "layer_types full_attn_idxs", "taps": "conv_L_cache", "activation": "",
    "head": "tie_word_embeddings tie_embedding",
}  # fmt: skip
MIXERS = {"conv": "shortconv", llama.FULL: "self"}  # kinds of layers, and what mixes their tokens
NORMS = {"norm1": "operator_norm", "norm2": "ffn_norm"}
TAPS = 3
CENTRED = "an encoder is not supported: its short convolutions see a token on each side, and attention all tokens"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    config = read_lfm2(raw, stored)
    return replace(config, decoder=replace(config.stack("decoder"), hidden=read_hidden(raw)))


def read_lfm2(raw: ConfigReader, stored: Weights, **choices: Any) -> Config:
    """Read an LFM2 whose networks have the stated width.

    choices: fields of Config. DataError for an encoder, whose convolutions are centred.
    """
    if any(map(raw.has_architecture, ("BidirectionalModel", "BidirectionalForMaskedLM"))):
        raise raw.error(CENTRED, "architectures")
    raw.ignore("block_use_xavier_init", "conv_use_xavier_init", "block_mlp_init_scale", "block_out_init_scale")
    width, heads = raw.get_int("hidden_size"), raw.get_int("num_attention_heads")
    raw.expect(block_dim=width, conv_dim=width, conv_dim_out=width, num_heads=heads)  # stated twice
    raw.expect(block_use_swiglu=True, use_pos_enc=True)
    eps = raw.get_float("norm_eps", 1e-5)
    raw.expect(block_norm_eps=eps)
    tied = raw.get_bool("tie_embedding", raw.get_bool("tie_word_embeddings", True))
    config = llama.read_config(
        raw,
        stored,
        eps=eps,
        theta=1e6,
        size=128000,
        kv_heads=8,
        fields=FIELDS,
        tied=tied,
        activation="silu",
        qk_norm="head",
        taps=raw.get_int("conv_L_cache", TAPS),
        **choices,
    )
    stack = config.stack("decoder")
    mixers = tuple(MIXERS[kind] for kind in read_kinds(raw, stack.layers))
    return replace(config, decoder=replace(stack, mixers=mixers))


def read_hidden(raw: ConfigReader) -> int:
    """The width of the networks: two thirds of the stated one, rounded up.

    It becomes a multiple of `block_multiple_of`, unless the file says that the stated width is the one.

    >>> [read_hidden(ConfigReader({"block_ff_dim": size}, "config.json")) for size in (12288, 10752, 6656)]
    [8192, 7168, 4608]
    """
    hidden = raw.get_int("block_ff_dim", raw.get_int("intermediate_size", 12288))
    multiple, has_factor = (
        raw.get_int("block_multiple_of", 256),
        raw.values.get("block_ffn_dim_multiplier", 1) is not None,
    )
    factor = raw.get_float("block_ffn_dim_multiplier", 1.0) if has_factor else 1.0
    if not raw.get_bool("block_auto_adjust_ff_dim", True):
        return hidden
    hidden = int(2 * hidden / 3)
    return -(-int(factor * hidden) // multiple) * multiple if has_factor else hidden


def read_kinds(raw: ConfigReader, layers: int) -> Sequence[str]:
    """The kind of each layer, by `layer_types`, else by `full_attn_idxs`."""
    kinds, full = raw.values.get("layer_types"), raw.values.get("full_attn_idxs")
    if kinds is None:
        if full is not None and not (isinstance(full, list) and all(isinstance(one, int) for one in full)):
            raise raw.error("full_attn_idxs is no list of the numbers of layers")
        return [llama.FULL if full is None or number in full else "conv" for number in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in MIXERS for kind in kinds):
        raise raw.error(f"layer_types is not a list of {layers} times conv or {llama.FULL}")
    return kinds


def map_layers(raw: ConfigReader) -> Layers:
    tied, is_biased = (
        raw.get_bool("tie_embedding", raw.get_bool("tie_word_embeddings", True)),
        raw.get_bool("conv_bias", False),
    )
    attention, taps, prefix = f"{llama.LAYER}.self_attn", raw.get_int("conv_L_cache", TAPS), f"{llama.LAYER}.conv"
    own = {
        "decoder.{n}.self": map_linear(attention, wq="q_proj", wk="k_proj", wv="v_proj", wo="out_proj", biased=False)
        | llama.map_qk_norm(attention, q="q_layernorm", k="k_layernorm"),
        "decoder.{n}.shortconv": map_fused("bcx", f"{prefix}.in_proj.weight", f"{prefix}.in_proj.bias" * is_biased)
        | {"w": TensorSpec((f"{prefix}.conv.weight",), transposed=True, patch_shape=(1, taps))}
        | ({"b": TensorSpec((f"{prefix}.conv.bias",))} if is_biased else {})
        | map_linear(prefix, wo="out_proj", biased=is_biased),
        "decoder.{n}.ffn": map_linear(f"{llama.LAYER}.feed_forward", w1="w1", w3="w3", w2="w2", biased=False),
        "decoder.norm": norm("embedding_norm", biased=False),
    }
    return {**llama.map_llama(raw, norms=NORMS, tied=tied), **own}


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes.

    Every third layer has attention.
    """
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": llama.new_values(recipe, special)["intermediate_size"],
        "conv_L_cache": TAPS,
        "conv_bias": False,
        "initializer_range": 0.02,
        "layer_types": [llama.FULL if number % 3 == 2 else "conv" for number in range(recipe.layers)],
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }


def infer_mixers(file: Any) -> dict[str, Any]:
    """What mixes the tokens of each layer: none without key heads has attention.

    DataError for layers with different numbers of key heads, and for an encoder.
    """
    if file.get("attention.causal") is False:
        raise DataError(CENTRED, file.name)
    counts = file.get_counts("attention.head_count_kv")
    shared = {count for count in counts if count}
    if len(shared) > 1:
        raise DataError(f"attention.head_count_kv {counts}: layers with different numbers of heads", file.name)
    return {
        "layer_types": [llama.FULL if count else "conv" for count in counts],
        "num_key_value_heads": max(shared, default=1),
        "block_auto_adjust_ff_dim": False,
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in file.entries),
    }


BLOCK = {
    "attn_norm": "operator_norm", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm", "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2", "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv", "shortconv.out_proj": "conv.out_proj",
}  # fmt: skip
GGUF: dict[str, Any] = {
    "keys": ("width", "layers", ("intermediate_size", "hidden width"), "heads", "head width", "longest text",
             "theta", ("norm_eps", "rms norm eps"), ("conv_L_cache", "taps")),
    "names": llama.name_gguf(BLOCK) | {"token_embd_norm": "model.embedding_norm"},
    "infer": ("head", "whole rotation", infer_mixers),
    "changes": {
        "blk.{n}.shortconv.conv.weight": (
            lambda array, values: array[:, None], lambda shape: (shape[0], 1, *shape[1:])
        ),
    },
}  # fmt: skip
