"""Llama: a pre-norm decoder with RMS norm, RoPE, grouped queries and a gated FFN.

Other families begin with it, and say what differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader, Fields
from attnkit.checkpoints.weights import (
    Layers,
    TensorSpec,
    Weights,
    embedding_table,
    map_linear,
    name_blocks,
    norm,
    tied_head,
)
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("model.",)
FIELDS = USUAL | {
    "key/value heads": "num_key_value_heads", "head width": "head_dim", "norm eps": "rms_norm_eps",
    "biases": "attention_bias mlp_bias", "theta": "rope_theta", "scaling": "rope_type type",
}  # fmt: skip
LEARNS, TEMPLATE, POSITIONS = ("causal",), "<s> $A", "rotary"
TOKENS = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
WINDOWED = FIELDS | {"windows": "sliding_window"}
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
LAYER, WORDS = "layers.{n}", "embed_tokens.weight"
NORMS = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
FULL, SLIDING = "full_attention", "sliding_attention"
PARTIAL = "partial_rotary_factor"


def read_config(
    raw: ConfigReader,
    stored: Weights,
    *,
    eps: float | None = None,
    theta: float = 10000.0,
    size: int = 2048,
    hidden: int | None = None,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    tied: bool = False,
    fields: Fields = FIELDS,
    **choices: Any,
) -> Config:
    """Read the configuration of a Llama, with defaults and choices of other families.

    eps      of all norms, whatever the file has
    theta, size, hidden, head_dim, kv_heads, tied  where the file has no such key
    fields   of the family, whose keys state the sizes
    choices  fields of Config, in place of those of a Llama
    """
    size = raw.get_int("max_position_embeddings", size)
    has_head = stored.has("lm_head.weight") or raw.has_architecture("ForCausalLM")
    usual: dict[str, Any] = {
        "decoder": raw.get_stack(
            fields, hidden=hidden, head_dim=head_dim, kv_heads=kv_heads, causal=True, final_norm=True
        ),
        "norm": "rms",
        "norm_first": True,
        "positions": PositionConfig("rotary", size=size, rope=read_rotation(raw, size, theta)),
        "head": raw.get_bool("tie_word_embeddings", tied) or has_head,
        "special": raw.get_special_tokens(),
    }
    usual["eps"] = raw.get_float("rms_norm_eps", 1e-6) if eps is None else eps
    if "activation" not in choices:
        usual["activation"] = raw.get_choice("hidden_act", PUBLISHED, "silu")
    return Config(raw.get_str("model_type"), raw.get_int("hidden_size"), **usual | choices)


def map_layers(raw: ConfigReader) -> Layers:
    is_biased = raw.get_bool("attention_bias", False)
    return map_llama(raw, qkv_bias=is_biased, output_bias=is_biased, ffn_bias=raw.get_bool("mlp_bias", False))


def map_llama(
    raw: ConfigReader,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    ffn_bias: bool = False,
    norms: Mapping[str, str] = NORMS,
    norm_bias: bool = False,
    offset: float = 0.0,
    tied: bool = False,
    qk_norm: bool = False,
) -> Layers:
    """Map the parameters of the families of Llama, by what differs between them.

    norms   the norms of a layer by their published names; {} if none has parameters
    offset  added to the weights of all norms
    tied    whether the head is the table of embeddings where the file does not say
    """
    table: dict[str, dict[str, TensorSpec]] = {
        "decoder.embed": embedding_table(WORDS),
        "decoder.{n}.self": map_linear(f"{LAYER}.self_attn", wq="q_proj", wk="k_proj", wv="v_proj", biased=qkv_bias)
        | map_linear(f"{LAYER}.self_attn", wo="o_proj", biased=output_bias)
        | (map_qk_norm(f"{LAYER}.self_attn", offset) if qk_norm else {}),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="gate_proj", w3="up_proj", w2="down_proj", biased=ffn_bias),
        "decoder.norm": norm("norm", norm_bias, offset) if norms else {},
        "head": tied_head("lm_head.weight", to=WORDS * raw.get_bool("tie_word_embeddings", tied)),
    }
    named = {f"decoder.{{n}}.{part}": norm(f"{LAYER}.{name}", norm_bias, offset) for part, name in norms.items()}
    return table | named


def map_qk_norm(prefix: str, offset: float = 0.0, q: str = "q_norm", k: str = "k_norm") -> dict[str, TensorSpec]:
    """Map the norms of queries and keys, which have no biases."""
    names = {"gamma_q": q, "gamma_k": k}
    return {name: TensorSpec((f"{prefix}.{part}.weight",), offset=offset) for name, part in names.items()}


def limit_window(config: Config, sizes: Sequence[int]) -> Config:
    """Limit each layer to a sliding window of keys, the query's own included."""
    windows = tuple(size - 1 for size in sizes) if any(sizes) else ()
    return replace(config, decoder=replace(config.stack("decoder"), windows=windows))


def limit_layers(raw: ConfigReader, config: Config, kinds: Sequence[str], window: int | None = None) -> Config:
    """Limit the sliding layers to the `sliding_window` of the file; null: no limit.

    kinds   of the layers where the file has no `layer_types`
    window  where the file has no `sliding_window`
    """
    kinds, size = read_layer_types(raw, kinds), read_window(raw, window)
    return limit_window(config, [size if kind == SLIDING else 0 for kind in kinds])


def read_window(raw: ConfigReader, default: int | None = None, least: int = 1) -> int:
    """The number of keys that a query of a sliding layer sees, its own included.

    0 for all, which null states.
    """
    is_null = raw.values.get("sliding_window", default) is None
    return 0 if is_null else raw.get_int("sliding_window", default, least)


def every(count: int, layers: int) -> list[str]:
    """The kinds of layers where every count-th layer has full attention.

    >>> every(2, 3)
    ['sliding_attention', 'full_attention', 'sliding_attention']
    """
    return [SLIDING if (number + 1) % count else FULL for number in range(layers)]


def read_layer_types(raw: ConfigReader, default: Sequence[str]) -> list[str]:
    """The kind of attention of each layer, by `layer_types`, else the default."""
    kinds = raw.values.get("layer_types") or [*default]
    if not isinstance(kinds, list) or len(kinds) != len(default) or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise raw.error(f"layer_types is not a list of {len(default)} times {FULL} or {SLIDING}")
    return kinds


def read_rotation(raw: ConfigReader, size: int, theta: float, kind: str = "") -> dict[str, Any]:
    """The rotation: one object since version 5 of the format, two keys before.

    theta  where the file has none; kind: of the layers, where there is an object for each kind
    """
    rope = raw.get_object("rope_parameters")
    rope = rope.get_object(kind) if kind and rope.has(kind) else rope
    rope = rope if rope.values else raw.get_object("rope_scaling")
    theta = raw.get_float("rope_theta", theta)
    inner = rope.get_float("rope_theta", theta)
    if not kind and raw.has("rope_theta") and inner != theta:
        raise raw.error(f"rope_theta {theta:g} contradicts {rope.values.path}rope_theta {inner:g}")
    return read_rope(raw, rope.values, size, theta)


def read_rope(raw: ConfigReader, rope: Mapping[str, Any], size: int, theta: float) -> dict[str, Any]:
    """A rotation in the form that `rope_frequencies` accepts."""
    inner = ConfigReader(rope, raw.name)
    kind = inner.get_str("rope_type", inner.get_str("type", "default"))
    if kind not in ROPE_TYPES:
        raise raw.error(f"rope_type {kind[:40]!r} is not supported (use {', '.join(ROPE_TYPES)})")
    theta = inner.get_float("rope_theta", theta)
    others = {key: rope[key] for key in rope if key not in ("type", PARTIAL) and rope[key] is not None}
    if raw.has("original_max_position_embeddings"):
        others["original_max_position_embeddings"] = raw.get_int("original_max_position_embeddings")
    return {"max_position_embeddings": size, **others, "rope_type": kind, "rope_theta": theta}


def rotate_partly(raw: ConfigReader, config: Config, default: float = 1.0, key: str = PARTIAL) -> Config:
    """Rotate a part of the features of each head: the first ones, rounded down.

    default  the part where the file has no key for it
    """
    part = raw.get_object("rope_parameters").get_float(PARTIAL, raw.get_float(key, default))
    width = int(config.stack("decoder").head_dim * part)
    if not 2 <= width <= config.stack("decoder").head_dim:
        raise raw.error(f"{PARTIAL} {part:g} rotates {width} features of {config.stack('decoder').head_dim}")
    return replace(config, positions=replace(config.positions, rotary_dim=width))


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": recipe.dim // recipe.heads,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": recipe.hidden or -(-recipe.dim * 8 // 3 // 32) * 32,
        "mlp_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


UNROTATED = {
    "blk.{n}.attn_q": ("rotated", "num_attention_heads"), "blk.{n}.attn_k": ("rotated", "num_key_value_heads"),
}  # fmt: skip
GGUF_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OF_MIXTRAL = {  # which is a Llama with experts to llama.cpp
    "ffn_gate_inp": "block_sparse_moe.gate",
    **{
        f"ffn_{name}{ending}": f"block_sparse_moe.experts.{{e}}.{short}"
        for ending in ("_exps", ".{e}")
        for name, short in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
}
BIASED = ("head", "biases", "rotation")


def name_gguf(more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The published names by those of a GGUF file.

    more: of further tensors of a layer, or other ones
    """
    body = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    return body | name_blocks({**GGUF_LAYER, **more}, "model.layers.{n}")


def infer_mixtral(file: Any) -> dict[str, Any]:
    """Mixtral is a Llama with experts to llama.cpp, and Llama has none."""
    if not file.get_int("expert_count"):
        return {}
    file.check_gating(SOFTMAX)
    values = {"num_local_experts": file.get("expert_count"), "num_experts_per_tok": file.get("expert_used_count")}
    return {"model_type": "mixtral", "sliding_window": None, **values}


SOFTMAX = 1  # the rule of a router: expert_gating_func
GGUF_SIZES = (
    "width", "layers", "hidden width", "heads", "key/value heads", "longest text", "head width", "theta",
)  # fmt: skip
USUAL_GGUF: dict[str, Any] = {  # of the architectures that begin with it
    "keys": (*GGUF_SIZES, ("rms_norm_eps", "rms norm eps")),
    "names": name_gguf(),
    "infer": ("head", "rotation", "whole rotation"),
}  # fmt: skip
GGUF = USUAL_GGUF | {
    "names": name_gguf(OF_MIXTRAL),
    "infer": (*BIASED, "whole rotation", infer_mixtral),
    "changes": UNROTATED,
}
