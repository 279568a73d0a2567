"""A GGUF file as a model: its metadata as a config.json, its tensors under their published names.

llama.cpp renames tensors and changes some. ARCHITECTURES says for each architecture which family it is, what its names
and keys are, and how to undo the changes; the reader of the family then reads the file as it does a folder.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.gguf_tokenizer import ARCHITECTURE, GgufFolder, read_id
from attnkit.checkpoints.llama import FULL, SLIDING
from attnkit.checkpoints.weights import Weights
from attnkit.errors import DataError
from attnkit.formats.gguf import FLAG, FLAGS, NUMBER, TEXT, WHOLE, GgufFile, Kind, open_gguf
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import name_errors
from attnkit.model.dtypes import Array

Values = dict[str, Any]
Undo = Callable[..., Array]

BLOCK = re.compile(r"blk\.([0-9]{1,6})\.")
SUFFIX = re.compile(r"\.(weight|bias)$")
EXPERT = re.compile(r"(?<=[a-z]\.)[0-9]{1,6}$")  # in older files, which have tensors for each expert
TOKENS = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
HARMLESS = (
    "context_length", "feed_forward_length", "rope.dimension_count", "rope.scaling.finetuned",
    "tensor_data_layout", "attention.causal", "attention.max_alibi_bias", "pooling_type",
)  # fmt: skip

MOST_EXPERTS = 1 << 12
KINDS: dict[str, Kind[Any]] = {  # of keys after the name of the architecture; all others are whole numbers
    **dict.fromkeys(
        (
            "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.scale",
            "attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping", "final_logit_softcapping",
            "embedding_scale", "residual_scale", "logit_scale", "expert_weights_scale", "rope.freq_base",
            "rope.freq_base_swa", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier",
        ),
        NUMBER,
    ),
    **dict.fromkeys(("use_parallel_residual", "expert_weights_norm"), FLAG),
    "attention.sliding_window_pattern": FLAGS,
    "rope.scaling.type": TEXT,
    "expert_count": Kind(
        f"a whole number, at most {MOST_EXPERTS}", lambda value: type(value) is int and 0 <= value <= MOST_EXPERTS
    ),
}  # fmt: skip

AGAIN = {  # keys that no family reads, and what they have to be equal to
    "attention.value_length": "attention.key_length",
    "attention.head_count_kv": "attention.head_count",
    "rope.freq_base_swa": "rope.freq_base",
}


class Change(NamedTuple):
    """What llama.cpp does to a tensor.

    undo   array of the file, values of config.json -> the published array
    shape  shape in the file -> the published one
    other  the name of a second tensor, of which the published one is made too; `undo` and `shape` get it as well, and
           `shape` raises ValueError where both do not fit each other
    """

    undo: Undo
    shape: Callable[..., tuple[int, ...]] = tuple
    other: str = ""


class Architecture(NamedTuple):
    """An architecture of llama.cpp.

    model_type  the family
    names       name in the file, without .weight -> published name; {n} is the number of a layer, {h} of a head and {e}
                of an expert, of which the file has all in one tensor, unless its name has {e} too. With .weight the
                published name has another ending; "": the tensor is a part of what another one is published as
    keys        key of config.json -> key of the metadata, after the name of the architecture
    fixed       values of config.json that the architecture implies
    changes     name in the file -> what llama.cpp does to the tensor
    infer       what tells more values, from other keys and the tensors
    instead     a tensor -> names in place of others, in a file that has it
    """

    model_type: str
    names: Mapping[str, str]
    keys: Mapping[str, str]
    fixed: Mapping[str, Any] = {}
    changes: Mapping[str, Change] = {}
    infer: tuple[Callable[["ModelFile"], Values], ...] = ()
    instead: Mapping[str, Mapping[str, str]] = {}

    def names_of(self, file: "ModelFile") -> Mapping[str, str]:
        """The names that apply to a file."""
        found = [names for name, names in self.instead.items() if name in file.entries]
        return reduce(lambda names, more: {**names, **more}, found, self.names)


class ModelFile:
    """The metadata of a file and the shapes of its tensors, as `infer` reads them.

    architecture  the name of the architecture
    entries       tensor name -> dtype and shape
    used          the keys that have been read
    """

    def __init__(self, opened: GgufFile) -> None:
        self.name = opened.parts[0].name
        self.metadata, self.parts = opened.metadata, opened.parts
        self.entries = {name: entry for part in opened.parts for name, entry in part.entries.items()}
        architecture = opened.metadata.read(ARCHITECTURE, TEXT)
        if architecture is None:
            raise DataError(f"no {ARCHITECTURE}: not the file of a model", self.name)
        self.architecture = architecture
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key after the name of the architecture, as config.json would hold it.

        DataError for a value of another kind than KINDS has.
        """
        self.used.add(key)
        kind: Kind[Any] = KINDS.get(key, WHOLE)
        value: Any = self.metadata.read(f"{self.architecture}.{key}", kind)
        return default if value is None else json_value(value)

    def get_int(self, key: str, default: int = 0) -> int:
        return int(self.get(key, default))

    def numbers(self, name: str) -> list[float]:
        """The numbers of a small tensor."""
        [part] = [part for part in self.parts if name in part.entries]
        return [json_value(float(number)) for number in part.tensor(name).astype(np.float32).ravel()]

    def head_dim(self) -> int:
        """The width of a head. DataError if the file does not say."""
        if (own := self.get_int("attention.key_length")) > 0:
            return own
        width, heads = self.get_int("embedding_length"), self.get_int("attention.head_count")
        if heads < 1 or width < 1 or width % heads:
            problem = f"embedding_length {width} is not divisible by attention.head_count {heads}"
            raise DataError(problem, self.name)
        return width // heads


def json_value(value: Any) -> Any:
    """A value of the metadata as JSON would hold it: of float32 the shortest decimal.

    >>> json_value(np.float32(1e-6).item()), json_value(np.array([8, 4]))
    (1e-06, [8, 4])
    """
    if isinstance(value, np.ndarray):
        return [json_value(item) for item in value.tolist()]
    with np.errstate(over="ignore"):
        return float(str(np.float32(value))) if isinstance(value, float) and np.float32(value) == value else value


def unrotate(heads: str, array: Array, values: Mapping[str, Any]) -> Array:
    """Undo the order of rows that makes the two halves of a head neighbours.

    >>> unrotate("heads", np.arange(8), {"heads": 2})
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    count = values.get(heads) or values["num_attention_heads"]
    with_heads = array.reshape(count, -1, 2, *array.shape[1:])
    return with_heads.swapaxes(1, 2).reshape(array.shape)


def by_head(heads: str, groups: str, array: Array, values: Mapping[str, Any]) -> Array:
    """Rows of all queries, keys and values, in the order of groups of heads that share a key and a value.

    >>> by_head("heads", "groups", np.arange(8), {"heads": 4, "groups": 2})
    array([0, 1, 4, 6, 2, 3, 5, 7])
    """
    count, shared = values[heads], values.get(groups, 1)
    each = len(array) // (count + 2 * shared)
    q, k, v = np.split(array, [count * each, (count + shared) * each])
    grouped = [part.reshape(shared, -1, *array.shape[1:]) for part in (q, k, v)]
    return np.concatenate(grouped, axis=1).reshape(array.shape)


def take_turns(gates: Array, linear: Array, values: Mapping[str, Any]) -> Array:
    """Gates and linear parts (experts, ...) of gpt-oss, whose outputs take turns on the last axis.

    >>> take_turns(np.array([[1, 2]]), np.array([[3, 4]]), {})
    array([[1, 3, 2, 4]])
    """
    both = np.stack([part if part.ndim < 3 else part.swapaxes(-1, -2) for part in (gates, linear)], axis=-1)
    return both.reshape(*both.shape[:-2], -1)


def turns_shape(gates: tuple[int, ...], linear: tuple[int, ...]) -> tuple[int, ...]:
    if gates != linear:
        raise ValueError
    experts, outputs, *inputs = gates
    return (experts, *inputs, 2 * outputs)


def join_latent(keys: Array, contents: Array, values: Mapping[str, Any]) -> Array:
    """The rows of keys (H, rank, K) and those of values (H, V, rank), by head.

    >>> join_latent(np.array([[[1, 2]], [[3, 4]]]), np.array([[[5]], [[6]]]), {}).ravel()
    array([1, 2, 5, 3, 4, 6])
    """
    return np.concatenate([keys.swapaxes(1, 2), contents], axis=1).reshape(-1, keys.shape[1])


def latent_shape(keys: tuple[int, ...], contents: tuple[int, ...]) -> tuple[int, ...]:
    (heads, rank, width), (also_heads, value, also_rank) = keys, contents
    if (heads, rank) != (also_heads, also_rank):
        raise ValueError
    return heads * (width + value), rank


TRANSPOSED = Change(lambda array, values: array.T, lambda shape: shape[::-1])
ROW = Change(lambda array, values: array.reshape(1, -1), lambda shape: (1, *shape[-1:]))
LESS_ONE = Change(lambda array, values: array - array.dtype.type(1))
UNROTATED = {
    "blk.{n}.attn_q": Change(partial(unrotate, "num_attention_heads")),
    "blk.{n}.attn_k": Change(partial(unrotate, "num_key_value_heads")),
}

KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
}
ROTARY = {**KEYS, "head_dim": "attention.key_length", "rope_theta": "rope.freq_base"}
RMS = {**ROTARY, "rms_norm_eps": "attention.layer_norm_rms_epsilon"}
LAYER_NORM = {**ROTARY, "layer_norm_eps": "attention.layer_norm_epsilon"}
WINDOW = {"sliding_window": "attention.sliding_window"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}

WORDS, HEAD = "token_embd.weight", "output.weight"
BODY = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EXPERTS = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
ROUTER = ".ffn_gate_inp.weight"
QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
    "ffn_gate.{e}": "block_sparse_moe.experts.{e}.w1",
    "ffn_up.{e}": "block_sparse_moe.experts.{e}.w3",
    "ffn_down.{e}": "block_sparse_moe.experts.{e}.w2",
}
DEEPSEEK = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",  # of older files; newer ones have the parts
    "attn_k_b": "self_attn.kv_b_proj",
    "attn_v_b": "",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{name}_exps": f"mlp.experts.{{e}}.{name}_proj" for name in ("gate", "up", "down")},
    **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}
GPT_OSS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
    "ffn_up_exps.weight": "",
    "ffn_up_exps.bias": "",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def name_blocks(names: Mapping[str, str], prefix: str, stored: str = "blk.{n}", **changes: str) -> dict[str, str]:
    """Names of the tensors of a layer, with some changed.

    >>> name_blocks({"attn_q": "self_attn.q_proj"}, "model.layers.{n}")
    {'blk.{n}.attn_q': 'model.layers.{n}.self_attn.q_proj'}
    """
    return {
        f"{stored}.{name}": published and f"{prefix}.{published}" for name, published in {**names, **changes}.items()
    }


def name_llama(**changes: str) -> dict[str, str]:
    return BODY | name_blocks(LAYER, "model.layers.{n}", **changes)


def infer_head(file: ModelFile) -> Values:
    """A head that predicts words: the table of embeddings, unless the file has another."""
    return {"architectures": ["ForCausalLM"], "tie_word_embeddings": HEAD not in file.entries}


def infer_biases(file: ModelFile) -> Values:
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "mlp_bias": "blk.0.ffn_up.bias" in file.entries,
    }


def infer_rotation(file: ModelFile) -> Values:
    """The scaling of the rotation, by keys or by tensors of divisors of the frequencies."""
    kind, factor = file.get("rope.scaling.type", "none"), file.get("rope.scaling.factor")
    original, attention = (file.get(f"rope.scaling.{key}") for key in ("original_context_length", "attn_factor"))
    extent = file.get_int("context_length")
    short, long = ("rope_factors_short.weight", "rope_factors_long.weight")
    if "rope_freqs.weight" in file.entries:  # divisors for every length, as of Llama 3.1
        divisors = file.numbers("rope_freqs.weight")
        rope = {"short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0}
        return {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": extent, **rope}}
    if short in file.entries and long in file.entries:
        rope = {"short_factor": file.numbers(short), "long_factor": file.numbers(long)}
        rope |= {"original_max_position_embeddings": original or extent}
        return {"rope_scaling": {"rope_type": "longrope", **rope, "attention_factor": attention or 1.0}}
    if kind == "none" or not factor:
        return {}
    rope = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        rope |= {"original_max_position_embeddings": original} if original else {}
        betas = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
        rope |= {key: value for key, name in betas.items() if (value := file.get(f"rope.scaling.{name}"))}
        if published := file.get("rope.scaling.yarn_attn_factor"):
            rope["attention_factor"] = published
        elif attention and factor > 0:
            rope["attention_factor"] = attention * (1 + 0.1 * math.log(factor))
    return {"rope_scaling": rope}


def infer_mixtral(file: ModelFile) -> Values:
    """Mixtral is a Llama with experts to llama.cpp, and Llama has none."""
    if not file.get_int("expert_count"):
        return {}
    check_gating(file, SOFTMAX)
    values = {"num_local_experts": file.get("expert_count"), "num_experts_per_tok": file.get("expert_used_count")}
    return {"model_type": "mixtral", "sliding_window": None, **values}


def infer_experts(renormalizes: bool, file: ModelFile) -> Values:
    """The rule of the router, which the architecture implies. DataError if the file states another."""
    check_gating(file, SOFTMAX)
    return {"norm_topk_prob": renormalizes}


def check_gating(file: ModelFile, rule: int) -> None:
    if (stated := file.get_int("expert_gating_func", rule)) != rule:
        raise DataError(f"expert_gating_func {stated} is not supported here (expected {rule})", file.name)


def infer_gpt_oss(file: ModelFile) -> Values:
    """The rotation, whose ramp does not begin and end at whole numbers. DataError for another rule of the router."""
    found = infer_rotation(file)
    rope = {**found["rope_scaling"], "truncate": False} if found else {}
    check_gating(file, SOFTMAX_OF_CHOSEN)
    return {"rope_scaling": rope} if rope else {}


def infer_whole_rotation(file: ModelFile) -> Values:
    """Nothing; DataError if only a part of each head is rotated, which the family does not."""
    if (count := file.get_int("rope.dimension_count", file.head_dim())) != file.head_dim():
        problem = f"rope.dimension_count is {count} (expected the width of a head, {file.head_dim()})"
        raise DataError(problem, file.name)
    return {}


def infer_part(key: str, file: ModelFile) -> Values:
    """The part of each head that is rotated."""
    count, width = file.get_int("rope.dimension_count"), file.head_dim()
    # the part is multiplied by the width and rounded down: the next float above keeps the count
    return {key: min(math.nextafter(count / width, 2.0), 1.0)} if count else {}


def infer_query_scale(layers: int, file: ModelFile) -> Values:
    """The number whose root scores are divided by: of the model with so many layers, the largest, width by heads."""
    width, heads = file.get_int("embedding_length"), file.get_int("attention.head_count")
    is_largest = file.get_int("block_count") == layers and heads > 0
    return {"query_pre_attn_scalar": width // heads if is_largest else file.head_dim()}


def infer_stablelm(file: ModelFile) -> Values:
    """What the tensors say. The key use_parallel_residual is true in files of either kind, and llama.cpp ignores it."""
    file.get("use_parallel_residual")
    return {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.entries,
        "use_qkv_bias": "blk.0.attn_q.bias" in file.entries,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in file.entries,
    }


def infer_cohere(file: ModelFile) -> Values:
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.entries}


def infer_falcon(file: ModelFile) -> Values:
    """The generation: one key and value for all heads, or groups of heads, with two norms or one."""
    shared, has_two = file.get_int("attention.head_count_kv", 1), FALCON_NORM in file.entries
    groups = {
        "new_decoder_architecture": True,
        "num_kv_heads": shared,
        "num_ln_in_parallel_attn": 2 if has_two else 1,
    }
    of_heads = groups if has_two or shared > 1 else {"multi_query": True}
    return {**of_heads, "bias": "blk.0.attn_output.bias" in file.entries}


def infer_clip(file: ModelFile) -> Values:
    """The limit of queries, keys and values. DataError for an epsilon that OLMo does not have."""
    if (eps := file.get("attention.layer_norm_epsilon", OLMO_EPS)) != OLMO_EPS:
        raise DataError(f"attention.layer_norm_epsilon is {eps} (expected {OLMO_EPS})", file.name)
    return {"clip_qkv": clip} if (clip := file.get("attention.clamp_kqv")) else {}


def infer_clip_of_experts(file: ModelFile) -> Values:
    clip = file.get("attention.clamp_kqv")
    return {**infer_experts(False, file), **({"clip_qkv": clip} if clip else {})}


def infer_windows(file: ModelFile) -> Values:
    """OLMo 3 is OLMo 2 with windows to llama.cpp; the layers that have one may be stated."""
    if not (window := file.get("attention.sliding_window")):
        return {}
    flags = file.get("attention.sliding_window_pattern", [])
    kinds = [SLIDING if has_window else FULL for has_window in flags]
    return {"model_type": "olmo3", "sliding_window": window, **({"layer_types": kinds} if kinds else {})}


def infer_deepseek(file: ModelFile) -> Values:
    """The generation, by the rule of the router, the widths of a head, and the growth of a longer context."""
    rotary = file.get_int("rope.dimension_count")
    whole = {name: file.get_int(f"attention.{name}_length") for name in ("key", "value")}  # that of the latent vectors
    key, value = (file.get_int(f"attention.{name}_length_mla", width) for name, width in whole.items())
    file.used.add("attention.head_count_kv")  # 1: that of the latent vectors, too
    has_correction = any(name.endswith(".exp_probs_b.bias") for name in file.entries)
    rule = file.get_int("expert_gating_func", SIGMOID if has_correction else SOFTMAX)
    if rule not in (SOFTMAX, SIGMOID):
        raise DataError(f"expert_gating_func {rule} is not supported here (expected {SOFTMAX} or {SIGMOID})", file.name)
    groups = file.get_int("expert_group_count", 1)
    limited = "group_limited_greedy" if groups > 1 else "greedy"
    rope = infer_rotation(file).get("rope_scaling", {})
    growth = file.get("rope.scaling.yarn_log_multiplier")
    if rope and growth:
        rope |= dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * growth, 6))
    return {
        "model_type": "deepseek_v3" if rule == SIGMOID else "deepseek_v2",
        "topk_method": "noaux_tc" if rule == SIGMOID else limited,
        "norm_topk_prob": file.get("expert_weights_norm", False),
        "q_lora_rank": file.get("attention.q_lora_rank"),
        "num_key_value_heads": file.get("attention.head_count"),
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": value,
        "attention_bias": "blk.0.attn_kv_a_mqa.bias" in file.entries,
        "rope_scaling": rope,
        "n_group": groups,
        "topk_group": file.get_int("expert_group_used_count", 1),
    }


def infer_t5(file: ModelFile) -> Values:
    """The activation, which is that of the first models unless there are gates."""
    decoder, eps = file.get("decoder_block_count"), file.get("attention.layer_norm_rms_epsilon")
    return {
        "feed_forward_proj": "gated-gelu" if T5_GATE in file.entries else "relu",
        "layer_norm_epsilon": file.get("attention.layer_norm_epsilon", eps),
        "is_encoder_decoder": file.architecture == "t5",
        **({"num_decoder_layers": decoder} if decoder else {}),
    }


def infer_bert(file: ModelFile) -> Values:
    types = file.entries.get("token_types.weight", ("", (0,)))[1]
    return {"type_vocab_size": types[0]}


def name_t5() -> dict[str, str]:
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


T5_GATE, FALCON_NORM = "enc.blk.0.ffn_gate.weight", "blk.0.attn_norm_2.weight"
T5_GATED = {
    "enc": "encoder.block.{n}.layer.1.DenseReluDense.wi_1",
    "dec": "decoder.block.{n}.layer.2.DenseReluDense.wi_1",
}
OLMO_EPS = 1e-5
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # rules of routers: expert_gating_func
OLMO = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
PHI = {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
GPT2 = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
FUSED = {
    "attn_norm": "input_layernorm", "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense", "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}  # fmt: skip
NEOX = {"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense"}
BERT = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
}  # fmt: skip
GEMMA_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
GEMMA = {f"blk.{{n}}.{name}": LESS_ONE for name in GEMMA_NORMS} | {"output_norm": LESS_ONE}
BIASED, PLAIN = (infer_head, infer_biases, infer_rotation), (infer_head, infer_rotation, infer_whole_rotation)

ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        name_llama(**MIXTRAL_EXPERTS),
        RMS,
        changes=UNROTATED,
        infer=(*BIASED, infer_whole_rotation, infer_mixtral),
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        name_llama(**QWEN_EXPERTS),
        {
            **RMS, **EXPERTS, "moe_intermediate_size": "expert_feed_forward_length",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        changes={"blk.{n}.ffn_gate_inp_shexp": ROW},
        infer=(*PLAIN, partial(infer_experts, False)),
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        name_llama(**QWEN_EXPERTS),
        {**RMS, **EXPERTS, "moe_intermediate_size": "expert_feed_forward_length"},
        infer=(*BIASED, infer_whole_rotation, partial(infer_experts, True)),
    ),
    "olmoe": Architecture(
        "olmoe",
        name_llama(**QWEN_EXPERTS),
        {**RMS, **EXPERTS},
        infer=(*PLAIN, infer_clip_of_experts),
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        name_llama(**GPT_OSS),
        {
            **RMS, **WINDOW, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
        changes={
            **{
                f"blk.{{n}}.ffn_gate_exps.{suffix}": Change(take_turns, turns_shape, f"blk.{{n}}.ffn_up_exps.{suffix}")
                for suffix in ("weight", "bias")
            },
            "blk.{n}.ffn_down_exps.weight": Change(
                lambda array, values: array.swapaxes(-1, -2), lambda shape: (shape[0], shape[2], shape[1])
            ),
        },
        infer=(infer_head, infer_biases, infer_gpt_oss, infer_whole_rotation),
    ),
    "deepseek2": Architecture(
        "deepseek_v2",
        name_llama(**DEEPSEEK),
        {
            "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
            "num_attention_heads": "attention.head_count", "max_position_embeddings": "context_length",
            "intermediate_size": "feed_forward_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
            "rope_theta": "rope.freq_base", "kv_lora_rank": "attention.kv_lora_rank",
            "qk_rope_head_dim": "rope.dimension_count", "n_routed_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count", "n_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "first_k_dense_replace": "leading_dense_block_count", "routed_scaling_factor": "expert_weights_scale",
        },
        changes={"blk.{n}.attn_k_b": Change(join_latent, latent_shape, "blk.{n}.attn_v_b.weight")},
        infer=(infer_head, infer_deepseek),
    ),
    "qwen2": Architecture("qwen2", name_llama(), RMS, infer=PLAIN),
    "qwen3": Architecture("qwen3", name_llama(), RMS, infer=(*BIASED, infer_whole_rotation)),
    "smollm3": Architecture("smollm3", name_llama(), RMS, changes=UNROTATED, infer=(*BIASED, infer_whole_rotation)),
    "granite": Architecture(
        "granite",
        name_llama(),
        {
            **RMS,
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        changes=UNROTATED,
        infer=(*BIASED, infer_whole_rotation),
    ),
    "gemma": Architecture("gemma", name_llama(), RMS, changes=GEMMA, infer=PLAIN),
    "gemma2": Architecture(
        "gemma2",
        name_llama(**SANDWICH),
        {**RMS, **WINDOW, **CAPS},
        changes=GEMMA,
        infer=(*PLAIN, partial(infer_query_scale, 46)),
    ),
    "gemma3": Architecture(
        "gemma3_text",
        name_llama(**SANDWICH),
        {**RMS, **WINDOW, **CAPS, "rope_local_base_freq": "rope.freq_base_swa"},
        changes=GEMMA,
        infer=(*PLAIN, partial(infer_query_scale, 62)),
    ),
    "olmo": Architecture("olmo", name_llama(), ROTARY, changes=UNROTATED, infer=(*PLAIN, infer_clip)),
    "olmo2": Architecture("olmo2", name_llama(**OLMO), RMS, infer=(*BIASED, infer_whole_rotation, infer_windows)),
    "phi2": Architecture(
        "phi",
        {**name_llama(**PHI), "output_norm": "model.final_layernorm"},
        LAYER_NORM,
        infer=(infer_head, infer_rotation, partial(infer_part, "partial_rotary_factor")),
    ),
    "phi3": Architecture(
        "phi3",
        name_llama(attn_qkv="self_attn.qkv_proj", ffn_up="mlp.gate_up_proj"),
        {**RMS, **WINDOW, "original_max_position_embeddings": "rope.scaling.original_context_length"},
        infer=(infer_head, infer_rotation, partial(infer_part, "partial_rotary_factor")),
    ),
    "stablelm": Architecture(
        "stablelm",
        name_llama(attn_q_norm="self_attn.q_layernorm.norms.{h}", attn_k_norm="self_attn.k_layernorm.norms.{h}"),
        LAYER_NORM,
        infer=(infer_head, infer_stablelm, partial(infer_part, "partial_rotary_factor")),
    ),
    "command-r": Architecture(
        "cohere",
        name_llama(),
        {**LAYER_NORM, "logit_scale": "logit_scale"},
        infer=(infer_head, infer_biases, infer_rotation, infer_whole_rotation, infer_cohere),
    ),
    "cohere2": Architecture(
        "cohere2",
        name_llama(),
        {**LAYER_NORM, **WINDOW, "logit_scale": "logit_scale"},
        infer=(*BIASED, infer_whole_rotation),
    ),
    "gptneox": Architecture(
        "gpt_neox",
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"}
        | name_blocks({**FUSED, **NEOX}, "gpt_neox.layers.{n}"),
        {**LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
        changes={"blk.{n}.attn_qkv": Change(partial(by_head, "num_attention_heads", "num_attention_heads"))},
        infer=(infer_head, infer_rotation, partial(infer_part, "rotary_pct")),
    ),
    "falcon": Architecture(
        "falcon",
        {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}
        | name_blocks(FUSED, "transformer.h.{n}", attn_norm_2="ln_attn"),
        {
            "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
            "num_attention_heads": "attention.head_count", "max_position_embeddings": "context_length",
            "ffn_hidden_size": "feed_forward_length", "rope_theta": "rope.freq_base",
            "layer_norm_epsilon": "attention.layer_norm_epsilon",
        },
        changes={"blk.{n}.attn_qkv": Change(partial(by_head, "num_attention_heads", "num_kv_heads"))},
        infer=(*PLAIN, infer_falcon),
        instead={FALCON_NORM: {"blk.{n}.attn_norm": "transformer.h.{n}.ln_mlp"}},
    ),
    "bloom": Architecture(
        "bloom",
        {"token_embd": "word_embeddings", "token_embd_norm": "word_embeddings_layernorm", "output_norm": "ln_f",
         "output": "lm_head"}
        | name_blocks(FUSED, "h.{n}"),
        {"hidden_size": "embedding_length", "n_layer": "block_count", "n_head": "attention.head_count",
         "layer_norm_epsilon": "attention.layer_norm_epsilon"},
        changes={"blk.{n}.attn_qkv": Change(partial(by_head, "n_head", "n_head"))},
        infer=(infer_head,),
    ),
    "gpt2": Architecture(
        "gpt2",
        {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head"}
        | name_blocks(GPT2, "h.{n}"),
        {"n_embd": "embedding_length", "n_layer": "block_count", "n_head": "attention.head_count",
         "n_inner": "feed_forward_length", "n_positions": "context_length",
         "layer_norm_epsilon": "attention.layer_norm_epsilon"},
        changes={f"blk.{{n}}.{name}": TRANSPOSED for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")},
        infer=(infer_head,),
    ),
    "bert": Architecture(
        "bert",
        {"token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
         "position_embd": "embeddings.position_embeddings", "token_embd_norm": "embeddings.LayerNorm"}
        | name_blocks(BERT, "encoder.layer.{n}"),
        {**KEYS, "layer_norm_eps": "attention.layer_norm_epsilon"},
        infer=(infer_bert,),
    ),
    "t5": Architecture(
        "t5",
        name_t5(),
        {
            "d_model": "embedding_length", "num_layers": "block_count", "d_ff": "feed_forward_length",
            "num_heads": "attention.head_count", "d_kv": "attention.key_length",
            "layer_norm_epsilon": "attention.layer_norm_rms_epsilon", "n_positions": "context_length",
            "relative_attention_num_buckets": "attention.relative_buckets_count",
            "decoder_start_token_id": "decoder_start_token_id",
        },
        infer=(infer_head, infer_t5),
        instead={T5_GATE: {f"{short}.blk.{{n}}.ffn_up": name for short, name in T5_GATED.items()}},
    ),
}  # fmt: skip
ARCHITECTURES["t5encoder"] = ARCHITECTURES["t5"]


def open_model(path: str) -> tuple[ConfigReader, Weights, GgufFolder]:
    """The configuration and the tensors of a GGUF file, as the reader of its family expects them, and its tokenizer.

    DataError for an architecture that is not known, or for keys that are not read and may change a number.
    """
    file = ModelFile(open_gguf(path))
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise DataError(f"architecture {file.architecture[:40]!r} is not known (expected {known})", path)
    with name_errors(path):
        values = infer_values(file, architecture)
        weights = name_tensors(file, architecture, values)
        names = {key: f"{file.architecture}.{name}" for key, name in architecture.keys.items()}
        return ConfigReader(values, path, names=names), weights, GgufFolder(path, file.metadata, weights.files)


def infer_values(file: ModelFile, architecture: Architecture) -> Values:
    """The values of config.json that a file and its architecture say."""
    values: Values = {"model_type": architecture.model_type, **architecture.fixed}
    if WORDS not in file.entries or len(file.entries[WORDS][1]) != 2:
        raise DataError(f"no table of embeddings {WORDS!r}")
    values["vocab_size"] = rows = file.entries[WORDS][1][0]
    if (stated := file.get_int("vocab_size", rows)) != rows:
        raise DataError(f"{file.architecture}.vocab_size is {stated} (expected {rows}, the rows of {WORDS})")
    routers = {shape[0] for name, (_, shape) in file.entries.items() if name.endswith(ROUTER) and shape}
    if (count := file.get_int("expert_count")) and routers != {count}:
        outputs = ", ".join(map(str, sorted(routers))) or "none"
        raise DataError(f"expert_count is {count}, and the outputs of the routers are {outputs}")
    for key, name in architecture.keys.items():
        if (value := file.get(name)) is not None:
            values[key] = value
    if values.get("sliding_window") == 0:  # as converters write null
        values["sliding_window"] = None
    for infer in architecture.infer:
        values |= infer(file)
    values |= {key: id for key, name in TOKENS.items() if (id := read_id(file.metadata, name)) is not None}
    ends = [id for name in ENDS if (id := read_id(file.metadata, name)) is not None]
    if ends:
        values["eos_token_id"] = [*dict.fromkeys(ends)]
    refuse_unread_keys(file)
    return values


def refuse_unread_keys(file: ModelFile) -> None:
    """Raise DataError for a key of the architecture that is not read and may change a number."""
    begin = f"{file.architecture}."
    for key, value in file.metadata.items():
        name = key.removeprefix(begin)
        is_known = name == key or name in file.used or name in HARMLESS
        if not is_known and name in AGAIN:
            expected = file.head_dim() if name == "attention.value_length" else file.get(AGAIN[name])
            if (stated := file.get(name)) != expected:
                raise DataError(f"{key} is {stated} (expected {expected}, as {begin}{AGAIN[name]})")
            continue
        is_off = isinstance(value, bool | int | float) and not value
        if not is_known and not is_off:
            raise DataError(f"{key[:100]} is not supported, and may change what the model computes")


class Restored(NamedTuple):
    """The tensor in the file that a published one is made of.

    change  what llama.cpp did to it
    row     the row of it that it is, where the file has several tensors as one
    other   the name of a second tensor that it is made of
    """

    name: str
    change: Change | None = None
    row: int | None = None
    other: str = ""

    def entry(self, parts: Mapping[str, Mapped]) -> tuple[str, tuple[int, ...]]:
        """The dtype and the published shape. DataError for tensors that do not fit each other."""
        dtype, shape = parts[self.name].entries[self.name]
        shape = shape if self.row is None else shape[1:]
        others = [parts[self.other].entries[self.other][1]] if self.other in parts else []
        try:
            return dtype, self.change.shape(shape, *others) if self.change else shape
        except IndexError:
            raise DataError(f"tensor {self.name!r} has shape {shape} (expected more dimensions)") from None
        except (ValueError, TypeError):
            found = f"shape {others[0]}" if others else "missing"
            problem = f"tensor {self.name!r} has shape {shape}, which does not fit {self.other!r} ({found})"
            raise DataError(problem) from None

    def read(self, parts: Mapping[str, Mapped], values: Mapping[str, Any]) -> Array:
        """The published tensor."""
        part = parts[self.name]
        array = part.tensor(self.name) if self.row is None else part.rows(self.name, self.row)
        if self.change is None:
            return array
        try:
            others = [parts[self.other].tensor(self.other)] if self.other else []
            return self.change.undo(array, *others, values)
        except (ValueError, ZeroDivisionError):
            raise DataError(f"tensor {self.name!r}: shape {array.shape} does not fit the heads of the model") from None


def name_tensors(file: ModelFile, architecture: Architecture, values: Values) -> Weights:
    """The tensors under their published names, each changed back when it is read."""
    mapped: dict[str, Mapped] = {}
    for name, (_, shape) in file.entries.items():
        if 0 in shape:  # of any number of experts or heads, in no bytes
            raise DataError(f"tensor {name[:100]!r} has shape {shape} (expected at least 1 of each)")
    names = architecture.names_of(file)
    parts = {name: part for part in file.parts for name in part.entries}
    for part in file.parts:
        found = (find_published(file, architecture, names, name) for name in part.entries if name not in ROPE_FACTORS)
        restored = {published: one for many in found for published, one in many.items()}
        entries = {name: one.entry(parts) for name, one in restored.items()}
        packed = {name: part.packed[one.name] for name, one in restored.items() if one.name in part.packed}
        read, read_rows = (partial(function, parts, restored, values) for function in (restore_tensor, restore_rows))
        mapped |= dict.fromkeys(restored, Mapped(part.name, entries, read, packed, read_rows))
    weights = Weights(file.name, [part.name for part in file.parts], mapped)
    weights.is_strict = True  # llama.cpp opens no file with a tensor that it does not read
    return weights


def find_published(
    file: ModelFile, architecture: Architecture, names: Mapping[str, str], name: str
) -> dict[str, Restored]:
    """The published tensors that one in the file is, by name; one of an unknown name is itself."""
    suffix, number = SUFFIX.search(name), BLOCK.search(name)
    bare = SUFFIX.sub("", name)
    expert = EXPERT.search(bare)
    pattern = BLOCK.sub("blk.{n}.", EXPERT.sub("{e}", bare))
    whole = pattern + (suffix[0] if suffix else "")
    published = names.get(whole, names.get(pattern))
    if published is None:
        return {name: Restored(name)}
    if not published:
        return {}
    layer = number[1] if number else ""
    published = published.replace("{n}", layer) + (suffix[0] if suffix and whole not in names else "")
    if expert:
        published = published.replace("{e}", expert[0])
    change = architecture.changes.get(whole, architecture.changes.get(pattern))
    for mark, key in (("{h}", "attention.head_count"), ("{e}", "expert_count")):
        if mark in published:
            rows, most = file.entries[name][1][:1], file.get_int(key)
            if not rows or rows[0] > most:
                shape = file.entries[name][1]
                raise DataError(f"tensor {name[:100]!r} has shape {shape} (expected at most {most} rows, by {key})")
            return {published.replace(mark, str(row)): Restored(name, row=row) for row in range(rows[0])}
    return {published: Restored(name, change, other=change.other.replace("{n}", layer) if change else "")}


def restore_tensor(
    parts: Mapping[str, Mapped], restored: Mapping[str, Restored], values: Mapping[str, Any], name: str
) -> Array:
    return restored[name].read(parts, values)


def restore_rows(
    parts: Mapping[str, Mapped], restored: Mapping[str, Restored], values: Mapping[str, Any], name: str, index: Any
) -> Array:
    """The rows of a published tensor that an index selects; no others are decoded, where rows are as in the file."""
    one = restored[name]
    is_plain = one.change is None and one.row is None
    return parts[one.name].rows(one.name, index) if is_plain else one.read(parts, values)[index]
