"""Mamba-2: layers of a norm and a state space, without attention and networks.

A state space is linear attention whose queries are C, keys B and values x, and whose step Δ both decays the state and
scales what is written. Hybrid families begin with what is read and mapped here.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import (
    Layers,
    Share,
    Specs,
    TensorSpec,
    Weights,
    embedding_table,
    map_linear,
    name_blocks,
    norm,
    tied_head,
)
from attnkit.errors import DataError
from attnkit.model.config import Config
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import PUBLISHED
from attnkit.model.formulas.recall import RecallConfig

PREFIXES = ("backbone.",)
FIELDS = USUAL | {
    "heads": "num_heads", "head width": "head_dim", "hidden width": "", "norm eps": "layer_norm_epsilon",
    "longest text": "", "state": "n_groups state_size expand", "state taps": "conv_kernel",
    "step limits": "time_step_limit", "biases": "use_bias use_conv_bias",
}  # fmt: skip
SMALLEST = {"num_heads": 2, "n_groups": 1, "state_size": 3}
IS_CAUSAL = "ignored"
RETURNS_EMBEDDINGS = False
LAYER, WORDS = "layers.{n}", "embeddings.weight"
CHUNK = 64  # tokens that are computed at once; a file may state fewer
PARTS = {"g": "z", "v": "x", "k": "B", "q": "C", "dt": "Δ"}  # of the projection, in their order in the file


class Keys(NamedTuple):
    """The keys of config.json for the sizes of a state space, and some defaults."""

    heads: str = "num_heads"
    head_dim: str = "head_dim"
    groups: str = "n_groups"
    state: str = "state_size"
    taps: str = "conv_kernel"
    chunk: str = "chunk_size"
    usual_groups: int = 8
    usual_state: int = 128


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual")
    raw.ignore("time_step_init_scheme", "time_step_scale", "residual_in_fp32", "layer_types")
    raw.expect(norm_before_gate=True, rms_norm=True, intermediate_size=inner_width(raw))
    recall, layers = read_own(raw), raw.get_int("num_hidden_layers")
    stack = raw.get_stack(
        FIELDS,
        hidden=0,
        head_dim=recall.value,
        causal=True,
        final_norm=True,
        networks=False,
        mixers=("recall",) * layers,
    )
    has_head = stored.has("lm_head.weight") or raw.has_architecture("ForCausalLM")
    return Config(
        "mamba2",
        raw.get_int("hidden_size"),
        decoder=stack,
        norm="rms",
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        norm_first=True,
        activation=recall.activation,
        recall=recall,
        head=raw.get_bool("tie_word_embeddings", False) or has_head,
        special=raw.get_special_tokens(eos=(2,), pad=1, bos=0),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("use_bias", False)
    return {
        "decoder.embed": embedding_table(WORDS, "embedding.weight"),
        "decoder.{n}.norm1": norm(f"{LAYER}.norm", biased=False),
        "decoder.{n}.recall": map_space(
            read_own(raw), f"{LAYER}.mixer", is_biased, is_biased, raw.get_bool("use_conv_bias", True)
        ),
        "decoder.norm": norm("norm_f", biased=False),
        "head": tied_head("lm_head.weight", to=WORDS * raw.get_bool("tie_word_embeddings", False)),
    }


def inner_width(raw: ConfigReader) -> int:
    return raw.get_int("expand", 2) * raw.get_int("hidden_size")


def read_own(raw: ConfigReader) -> RecallConfig:
    return read_space(raw, Keys(), inner_width(raw), raw.get_int("head_dim", 64))


def read_space(raw: ConfigReader, keys: Keys, inner: int, head_dim: int, **choices: Any) -> RecallConfig:
    """Read the sizes of a state space, whose gate comes before its norm.

    inner  features of all heads; choices: fields of RecallConfig, in place of those of Mamba-2
    """
    heads, groups = raw.get_int(keys.heads, 128), raw.get_int(keys.groups, keys.usual_groups)
    if heads * head_dim != inner:
        raise raw.error(f"{keys.heads} {heads} times {keys.head_dim} {head_dim} is not the inner width {inner}")
    if heads % groups:
        raise raw.error(f"{keys.heads} {heads} is not divisible by {keys.groups} {groups}")
    usual: dict[str, Any] = {
        "taps": raw.get_int(keys.taps, 4),
        "activation": raw.get_choice("hidden_act", PUBLISHED, "silu"),
        "step_limits": raw.get_limits("time_step_limit"),
        "has_skip": True,
        "norm_groups": groups,
        "gates_first": True,
        "chunk": min(raw.get_int(keys.chunk, 256), CHUNK),
    }
    state = raw.get_int(keys.state, keys.usual_state)
    return RecallConfig("mamba2", heads, groups, state, head_dim, **usual | choices)


def map_space(recall: RecallConfig, prefix: str, in_bias: bool, out_bias: bool, conv_bias: bool) -> Specs:
    """Map the parameters of a state space with their published names.

    The projection has the parts z, x, B, C and Δ one after another, the convolution x, B and C.
    """
    sizes = {"g": recall.widths["v"], "v": recall.widths["v"], "k": recall.widths["k"], "q": recall.widths["q"]}
    sizes["dt"] = recall.heads
    specs = {name: TensorSpec((f"{prefix}.{name}",)) for name in ("dt_bias", "A_log", "D")}
    for part, share in cut_parts(sizes).items():
        specs[f"w{part}"] = TensorSpec((f"{prefix}.in_proj.weight",), transposed=True, share=share)
        if in_bias:
            specs[f"b{part}"] = TensorSpec((f"{prefix}.in_proj.bias",), share=share)
    for part, share in cut_parts({part: sizes[part] for part in "vkq"}).items():
        shape = (1, recall.taps)
        specs[f"conv_{part}"] = TensorSpec((f"{prefix}.conv1d.weight",), True, share, patch_shape=shape)
        if conv_bias:
            specs[f"conv_bias_{part}"] = TensorSpec((f"{prefix}.conv1d.bias",), share=share)
    if recall.norm_groups:
        specs["gamma"] = TensorSpec((f"{prefix}.norm.weight",))
    return specs | map_linear(prefix, wo="out_proj", biased=out_bias)


def name_space(prefix: str) -> dict[str, str]:
    """The published names of a state space, by those of a GGUF file.

    prefix  of the published names in a layer
    """
    names = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj"}
    own = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
    return {name: f"{prefix}.{published}" for name, published in {**names, **own}.items()}


def infer_space(file: Any) -> dict[str, bool]:
    """Which biases of a state space a file has, by the first layer that has one."""
    layers = [name for name in file.entries if name.endswith("ssm_in.weight")]
    first = min(layers, key=lambda name: int(name.split(".")[1]), default="").removesuffix("ssm_in.weight")
    return {part: f"{first}ssm_{part}.bias" in file.entries for part in ("in", "conv1d", "out")}


def infer_sizes(file: Any) -> dict[str, Any]:
    """The sizes that a file states by others, and its biases."""
    width, inner = file.get_int("embedding_length", 1), file.get_int("ssm.inner_size")
    heads, biases = file.get_int("ssm.time_step_rank"), infer_space(file)
    if width < 1 or inner % width or heads < 1 or inner % heads:
        problem = f"ssm.inner_size {inner} is not divisible by embedding_length {width} and ssm.time_step_rank {heads}"
        raise DataError(problem, file.name)
    found = {"expand": inner // width, "head_dim": inner // heads}
    return found | {"use_bias": biases["in"], "use_conv_bias": biases["conv1d"]}


def undo_rate(array: Array, values: Mapping[str, Any]) -> Array:
    """The logarithm of a rate A that is stored as −e^A, in a column.

    >>> undo_rate(np.array([[-1.0], [-np.e]]), {}).tolist()
    [0.0, 1.0]
    """
    found: Array = np.log(-array.reshape(-1))
    return found


CHANGES: dict[str, Any] = {  # of a state space by llama.cpp
    "blk.{n}.ssm_a": (undo_rate, lambda shape: shape[:1]),
    "blk.{n}.ssm_d": (lambda array, values: array.reshape(-1), lambda shape: shape[:1]),
    "blk.{n}.ssm_norm.weight": (lambda array, values: array.reshape(-1), lambda shape: (math.prod(shape),)),
    "blk.{n}.ssm_conv1d.weight": (lambda array, values: array[:, None], lambda shape: (shape[0], 1, *shape[1:])),
}
GGUF: dict[str, Any] = {
    "keys": (
        "width", "layers", ("layer_norm_epsilon", "rms norm eps"), ("conv_kernel", "state taps"),
        ("state_size", "state width"), ("n_groups", "state groups"),
        ("num_heads", "state heads"),
    ),
    "names": {"token_embd": f"backbone.{WORDS.removesuffix('.weight')}", "output_norm": "backbone.norm_f",
              "output": "lm_head"}
    | name_blocks({"attn_norm": "norm", **name_space("mixer")}, f"backbone.{LAYER}"),
    "infer": ("head", infer_sizes),
    "changes": CHANGES,
}  # fmt: skip


def cut_parts(sizes: dict[str, int]) -> dict[str, Share]:
    """The shares of parts of unequal sizes, one after another.

    >>> cut_parts({"v": 4, "k": 1})["k"][:3]
    (4, 1, 5)
    """
    ends, total = 0, sum(sizes.values())
    shares = {}
    for part, size in sizes.items():
        shares[part] = Share(ends, size, total)
        ends += size
    return shares
