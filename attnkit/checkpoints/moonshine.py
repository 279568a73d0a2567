"""Moonshine: an encoder of samples, and a decoder of text with gated networks.

Three convolutions come before the encoder; the first is normed over all its channels and frames.
"""

from dataclasses import replace

from attnkit.checkpoints import llama
from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import (
    Layers,
    Specs,
    TensorSpec,
    Weights,
    embedding_table,
    map_fused,
    map_linear,
    norm,
    tied_head,
)
from attnkit.model.config import Config, ConvolutionLayer, PositionConfig, SoundConfig
from attnkit.model.formulas.activations import PUBLISHED
from attnkit.model.formulas.convolution import Convolution

PREFIXES = ("model.",)
FIELDS = USUAL | {
    "layers": "", "heads": "", "key/value heads": "", "biases": "attention_bias", "norm eps": "",
    "encoder layers": "encoder_num_hidden_layers", "decoder layers": "decoder_num_hidden_layers",
    "encoder heads": "encoder_num_attention_heads", "decoder heads": "decoder_num_attention_heads",
    "encoder key/value heads": "encoder_num_key_value_heads",
    "decoder key/value heads": "decoder_num_key_value_heads",
    "activation": "encoder_hidden_act decoder_hidden_act", "theta": "rope_theta", "scaling": "rope_type type",
    "encoder vocabulary": "", "sound": "", "convolutions": "",
}  # fmt: skip
SMALLEST = {llama.PARTIAL: 1.0}
ROTATED = 0.9  # the part of a head that rotates, where the file does not say


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("pad_head_dim_to_multiple_of")  # of zeros, which are cut off again
    raw.ignore("is_encoder_decoder", *(key for key in ALIASES if key in raw.values.plain))
    for stack in ("encoder", "decoder"):
        heads, groups = (f"{stack}_num_{name}_heads" for name in ("attention", "key_value"))
        if raw.has(groups) and raw.get_int(groups) != raw.get_int(heads, 8):
            raise raw.error(f"{groups} {raw.get_int(groups)} is not supported (use {raw.get_int(heads, 8)})")
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    width, size = raw.get_int("hidden_size"), raw.get_int("max_position_embeddings")
    config = Config(
        "moonshine",
        width,
        encoder=raw.get_stack(FIELDS, "encoder", final_norm=True, vocab=0),
        decoder=replace(
            raw.get_stack(FIELDS, "decoder", causal=True, cross=True, final_norm=True),
            activation=raw.get_choice("decoder_hidden_act", PUBLISHED, "silu"),
        ),
        norm_first=True,
        activation=raw.get_choice("encoder_hidden_act", PUBLISHED, "gelu"),
        positions=PositionConfig("rotary", size=size, rope=llama.read_rotation(raw, size, 10000.0), interleaved=True),
        sound=SoundConfig(None, 0, find_convolutions(width)),
        head=True,
        special=raw.get_special_tokens(start=1, bos=1, eos=(2,)),
    )
    if config.stack("encoder").head_dim != config.stack("decoder").head_dim:
        raise raw.error("heads of other widths in encoder and decoder are not supported")
    config = llama.rotate_partly(raw, config, ROTATED)
    if config.positions.rotary_dim % 2:
        raise raw.error(
            f"{llama.PARTIAL} rotates {config.positions.rotary_dim} features of a head (expected an even number)"
        )
    return config


ALIASES = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_act")  # of the decoder's keys
DEFAULTS = {  # what files may leave out
    "vocab_size": 32768,
    "hidden_size": 288,
    "intermediate_size": 1152,
    "encoder_num_hidden_layers": 6,
    "decoder_num_hidden_layers": 6,
    "encoder_num_attention_heads": 8,
    "decoder_num_attention_heads": 8,
    "max_position_embeddings": 512,
}


def find_convolutions(width: int) -> dict[str, ConvolutionLayer]:
    """The convolutions of the samples, by the width of the model."""
    first = ConvolutionLayer(
        1, width, 127, Convolution((64,)), "tanh", norm="group", norm_last=True, reads_samples=True
    )
    return {
        "conv1": first,
        "conv2": ConvolutionLayer(width, 2 * width, 7, Convolution((3,)), "gelu"),
        "conv3": ConvolutionLayer(2 * width, width, 3, Convolution((2,)), "gelu"),
    }


def map_layers(raw: ConfigReader) -> Layers:
    raw = raw.replaced({**DEFAULTS, **raw.values.plain})
    tokens, biased = "decoder.embed_tokens.weight", raw.get_bool("attention_bias", False)
    layers: dict[str, Specs] = {
        f"encoder.{part}": map_convolution(f"encoder.{part}", cut)
        for part, cut in find_convolutions(raw.get_int("hidden_size")).items()
    }
    layers |= {
        "encoder.norm": norm("encoder.layer_norm", False),
        "decoder.embed": embedding_table(tokens),
        "decoder.norm": norm("decoder.norm", False),
        "head": tied_head("proj_out.weight", to=tokens * raw.get_bool("tie_word_embeddings", True)),
    }
    attention = {"self": "self_attn", "cross": "encoder_attn"}
    for stack, parts in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        place, names = f"{stack}.layers.{{n}}", ("input_layernorm", "post_attention_layernorm", "final_layernorm")
        for part in parts:
            layers[f"{stack}.{{n}}.{part}"] = map_linear(
                f"{place}.{attention[part]}", wq="q_proj", wk="k_proj", wv="v_proj", biased=biased
            ) | map_linear(f"{place}.{attention[part]}", wo="o_proj", biased=False)
        for number, name in enumerate(names[: len(parts) + 1], start=1):
            layers[f"{stack}.{{n}}.norm{number}"] = norm(f"{place}.{name}", False)
    layers["encoder.{n}.ffn"] = map_linear("encoder.layers.{n}.mlp", w1="fc1", w2="fc2")
    gate = map_fused("31", "decoder.layers.{n}.mlp.fc1.weight", "decoder.layers.{n}.mlp.fc1.bias")  # the gate is last
    layers["decoder.{n}.ffn"] = gate | map_linear("decoder.layers.{n}.mlp", w2="fc2")
    return layers


def map_convolution(name: str, cut: ConvolutionLayer) -> Specs:
    """Map a convolution to the matrix of its windows, and the norm after the first."""
    weight = TensorSpec((f"{name}.weight",), transposed=True, patch_shape=(cut.inputs, cut.size))
    if cut.norm:
        return {"w": weight, **norm("encoder.groupnorm")}
    return {"w": weight, "b": TensorSpec((f"{name}.bias",))}
