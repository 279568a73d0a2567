"""The tiny models of the references as GGUF files, converted as llama.cpp converts published models.

What convert_hf_to_gguf.py does to names, numbers and keys is done here in its direction; the package undoes it. The
names are those of the package gguf, frozen by tests/references/make_gguf_names.py.
"""

import json
import re
import struct

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.lfm2 import read_hidden
from attnkit.formats import safetensors
from attnkit.tokenizers.unigram import read_sentencepiece
from tests.drawing import draw_tensors, drawn_models
from tests.gguf_files import LIST, U8, pack_gguf
from tests.places import MODELS, REFERENCES

# model of the references -> architecture
ARCHITECTURES = {
    "wide": "llama", "llama": "llama",
    "llama-linear": "llama", "llama-yarn": "llama", "llama3": "llama", "mistral": "llama",
    "qwen2": "qwen2", "gpt2": "gpt2", "bert-mlm": "bert", "t5": "t5", "t5-gated": "t5", "qwen3": "qwen3",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "olmo": "olmo", "olmo2": "olmo2", "olmo3": "olmo2",
    "smollm3": "smollm3", "granite": "granite", "phi": "phi2", "phi3": "phi3", "phi3-long": "phi3",
    "cohere": "command-r", "cohere-norms": "command-r", "cohere2": "cohere2", "stablelm": "stablelm",
    "stablelm-parallel": "stablelm", "gpt_neox": "gptneox", "gpt_neox-serial": "gptneox", "falcon-7b": "falcon",
    "falcon-40b": "falcon", "falcon-11b": "falcon", "bloom": "bloom", "mixtral": "llama", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe", "olmoe": "olmoe", "gpt_oss": "gpt-oss",
    "lfm2": "lfm2", "lfm2-biases": "lfm2", "lfm2_moe": "lfm2moe",
    "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "deepseek_v2": "deepseek2", "deepseek_v2-greedy": "deepseek2", "deepseek_v3": "deepseek2",
    "nomic_bert": "nomic-bert", "jina_embeddings_v3": "jina-bert-v3", "eurobert": "eurobert",
    "mamba2": "mamba2", "granitemoehybrid": "granitehybrid", "granitemoehybrid-dense": "granitehybrid",
    "falcon_h1-gate": "falcon-h1", "bamba": "granitehybrid",
}  # fmt: skip
DRAWN = ("decoders", "embedders", "recall", "shortconv", "state_spaces")  # tables of the references
FACTORS = (  # of Falcon-H1, which its converter multiplies into the weights
    "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier", "key_multiplier",
    "embedding_multiplier", "lm_head_multiplier",
)  # fmt: skip
PREFIXES = {
    "bloom": "transformer.",
    "bert": "bert.",
    "nomic-bert": "nomic_bert.",
    "jina-bert-v3": "roberta.",
}  # which its converter removes from names
ENCODERS = ("bert", "nomic_bert", "jina_embeddings_v3", "eurobert")
PERMUTED = ("llama", "olmo", "granite", "granitehybrid", "smollm3")
# keys of config.json as the converter reads them; what a GGUF file cannot say is as llama.cpp has it
CHANGES = {
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "qwen2_moe": {"use_sliding_window": False, "mlp_only_layers": []},
    "qwen3_moe": {"decoder_sparse_step": 1},
    "gpt_oss": {"swiglu_limit": 7.0},
    "phi3-long": {"sliding_window": None},
    "deepseek_v2": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 5000.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.7,
        }
    },
    "qwen2": {"use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 10},
    "gemma3": {"query_pre_attn_scalar": 10, "sliding_window_pattern": 6, "layer_types": None},
    "smollm3": {"no_rope_layers": None, "no_rope_layer_interval": 4},
    "olmo3": {
        "rope_parameters": None,
        "rope_theta": 5000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "t5-gated": {"relative_attention_max_distance": 128},
    "qwen3_next": {"layer_types": None, "mlp_only_layers": []},
    "granitemoehybrid-dense": {"position_embedding_type": "nope", "mamba_chunk_size": 256},
    "granitemoehybrid": {"mamba_chunk_size": 256},
    "bamba": {"mamba_chunk_size": 256},
    "mamba2": {"chunk_size": 256},
    "falcon_h1-gate": {
        "mamba_chunk_size": 256,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
        **dict.fromkeys(FACTORS, 1.0),
    },
}


# a Llama whose rows are whole blocks of 32 numbers
WIDE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 67, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


def wide_shapes(config):
    width, hidden, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    rows = {"q": width, "k": width // 2, "v": width // 2, "o": width}
    shapes = {
        "model.embed_tokens.weight": (words, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (words, width),
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.self_attn.{letter}_proj.weight": (count, width) for letter, count in rows.items()}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (hidden, width) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (width, hidden)}
        norms = "input_layernorm", "post_attention_layernorm"
        shapes |= {f"{layer}.{name}.weight": (width,) for name in norms}
    return shapes


def sparse_shapes(model, shapes):
    """The shapes of a model with experts in every layer, the only ones that llama.cpp has of these families."""
    number = {"qwen2_moe": 0, "qwen3_moe": 1}.get(model)
    if model == "qwen3_next":  # whose fourth layer has attention, as llama.cpp has it
        mixers, networks = (
            {
                at: {name for name in shapes if f".layers.{origin}." in name and (".mlp." in name) is is_network}
                for at, origin in origins.items()
            }
            for is_network, origins in ((False, {0: 0, 1: 0, 2: 0, 3: 1}), (True, dict.fromkeys(range(4), 0)))
        )
        layers = {
            re.sub(r"\.layers\.[0-9]+\.", f".layers.{at}.", name): shapes[name]
            for at in range(4)
            for name in mixers[at] | networks[at]
        }
        return {name: shape for name, shape in shapes.items() if ".layers." not in name} | layers
    if number is None:
        return shapes
    others = {name: shape for name, shape in shapes.items() if ".layers." not in name}
    layer = {name: shape for name, shape in shapes.items() if f".layers.{number}." in name}
    return others | {
        name.replace(f".layers.{number}.", f".layers.{at}."): shape for at in range(4) for name, shape in layer.items()
    }


def load_tiny(model):
    """The config.json and the tensors of a model of the references, as a GGUF file can say them."""
    decoders = {name: one for kind in DRAWN for name, one in drawn_models(kind).items()}
    if model == "wide":
        config, tensors = WIDE, draw_tensors("llama", wide_shapes(WIDE))
    elif model in decoders:
        config = decoders[model]["config"]
        tensors = draw_tensors(config["model_type"], sparse_shapes(model, decoders[model]["shapes"]))
    else:
        config = json.loads((MODELS / model / "config.json").read_text())
        mapped = safetensors.map_tensors(str(MODELS / model / "model.safetensors"))
        tensors = {name: mapped.tensor(name) for name in mapped.entries}
    return config | CHANGES.get(model, {}), {name: array.astype(np.float32) for name, array in tensors.items()}


def convert(model, changes=(), quantize=None, chosen=None, older=None):
    """The bytes of a model as a GGUF file.

    changes   keys of the metadata that are added or replaced; `...` removes one
    quantize  (name, array) -> the array, or a packed tensor
    chosen    whether the tensor of a number is in the file [all]
    older     what makes of the tensors those of an older file
    """
    config, tensors = load_tiny(model)
    metadata, stored = convert_metadata(model, config), convert_tensors(model, config, tensors)
    stored |= rope_tensors(config)
    if older:
        stored = older(stored)
    if chosen:
        stored = {name: array for at, (name, array) in enumerate(sorted(stored.items())) if chosen(at)}
    if quantize:
        stored = {name: quantize(name, array) for name, array in stored.items()}
    return pack_gguf({key: value for key, value in (metadata | dict(changes)).items() if value is not ...}, stored)


def permute(array, heads):
    """Make the two halves of each head neighbours: LlamaModel.permute."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def convert_tensors(model, config, tensors):  # noqa: C901 - a line for each change
    architecture = ARCHITECTURES[model]
    names = json.loads((REFERENCES / "gguf_names.json").read_text())[architecture]
    heads = config.get("num_attention_heads") or config.get("n_head") or config.get("num_heads")
    groups = config.get("num_key_value_heads") or heads
    stored, norms, experts = {}, {}, {}
    for name, array in tensors.items():
        bare, _, suffix = name.removeprefix(PREFIXES.get(architecture, "")).rpartition(".")
        if found := re.match(r"(.*layernorm)\.norms\.([0-9]+)", bare):  # StableLM: one tensor of all heads
            norms.setdefault(rename(found[1], names) + f".{suffix}", {})[int(found[2])] = array
            continue
        if found := re.match(r"(.*\.experts)\.([0-9]+)\.(.*)", bare):  # one tensor of all experts
            experts.setdefault(rename(f"{found[1]}.{found[3]}", names) + ".weight", {})[int(found[2])] = array
            continue
        if architecture == "gpt-oss" and (".experts." in bare + name or name.endswith("sinks")):
            stored |= split_gates(name, array)
            continue
        if bare.endswith("shared_expert_gate"):
            array = array[0]
        if bare.endswith("conv.conv") and array.ndim > 1:  # LFM2Model: one kernel of each channel
            array = array[:, 0]
        if suffix in ("e_score_correction_bias", "expert_bias"):
            stored[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = array
            continue
        if bare.endswith("kv_b_proj"):  # DeepseekV2Model: keys, transposed, and values
            content, layer = config["qk_nope_head_dim"], f"blk.{name.split('.')[2]}"
            by_head = array.reshape(heads, -1, array.shape[-1])
            stored[f"{layer}.attn_k_b.weight"] = by_head[:, :content].swapaxes(1, 2)
            stored[f"{layer}.attn_v_b.weight"] = by_head[:, content:]
            continue
        if architecture in ("qwen3next", "qwen35", "qwen35moe") and (delta := delta_tensors(name, array, config)):
            stored |= delta
            continue
        if space := space_of(config, name, array):
            stored |= space
            continue
        if "_linear" in bare:  # GraniteMoeModel: gate and what it multiplies apart
            stored |= split_networks(config, name, array)
            continue
        key = rename(bare, names)
        if key is None:
            continue  # a head that llama.cpp leaves out
        if architecture in PERMUTED and re.search(r"\.[qk]_proj$", bare):
            array = permute(array, heads if ".q_proj" in bare else groups)
        if architecture.startswith(("gemma", "qwen35", "qwen3next")) and bare.endswith("norm"):
            array = array + np.float32(1)
        if architecture == "gpt2" and re.search(r"\.c_(attn|proj|fc)$", bare):
            array = array.T
        if architecture in ("bloom", "gptneox") and "query_key_value" in bare:
            parts = array.reshape(heads, 3, -1, *array.shape[1:])  # of each head, q, k and v
            array = np.concatenate([parts[:, at].reshape(-1, *array.shape[1:]) for at in range(3)])
        if architecture == "falcon" and "query_key_value" in bare:
            shared = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
            width = config["hidden_size"] // heads
            parts = array.reshape(shared, heads // shared + 2, width, -1)
            cut = [parts[:, :-2], parts[:, [-2]], parts[:, [-1]]]
            array = np.concatenate([one.reshape(-1, array.shape[1]) for one in cut])
        stored[f"{key}.{suffix}"] = array
    stacked = {key: np.stack([rows[at] for at in sorted(rows)]) for key, rows in (norms | experts).items()}
    return stored | stacked


def delta_tensors(name, array, config):
    """The tensors of a layer with a state, changed: Qwen3NextModel, and heads of values by key head apart."""
    if ".linear_attn." not in name:
        return {}
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = groups * config["linear_key_head_dim"]
    layer, part = f"blk.{name.split('.')[2]}", name.partition(".linear_attn.")[2]
    is_packed = config["model_type"] == "qwen3_next"

    def moved(rows, first=0):
        if is_packed:
            return rows
        apart = rows[first:].reshape(groups, heads // groups, -1, *rows.shape[1:]).swapaxes(0, 1)
        return np.concatenate([rows[:first], apart.reshape(rows[first:].shape)])

    if part == "in_proj_qkvz.weight":
        each = keys // groups, config["linear_value_head_dim"] * heads // groups
        q, k, v, z = np.split(
            array.reshape(groups, -1, array.shape[-1]), np.cumsum([each[0], each[0], each[1]]), axis=1
        )
        flat = [one.reshape(-1, array.shape[-1]) for one in (q, k, v, z)]
        return {f"{layer}.attn_qkv.weight": np.concatenate(flat[:3]), f"{layer}.attn_gate.weight": flat[3]}
    return {
        "A_log": lambda: {f"{layer}.ssm_a": -np.exp(moved(array))},
        "dt_bias": lambda: {f"{layer}.ssm_dt.bias": moved(array)},
        "conv1d.weight": lambda: {f"{layer}.ssm_conv1d.weight": moved(array[:, 0], 2 * keys)},
        "norm.weight": lambda: {f"{layer}.ssm_norm.weight": array},
        "out_proj.weight": lambda: {f"{layer}.ssm_out.weight": moved(array.T).T},
        "in_proj_ba.weight": lambda: {f"{layer}.ssm_ba.weight": array},
        "in_proj_qkv.weight": lambda: {f"{layer}.attn_qkv.weight": moved(array, 2 * keys)},
        "in_proj_z.weight": lambda: {f"{layer}.attn_gate.weight": moved(array)},
        "in_proj_b.weight": lambda: {f"{layer}.ssm_beta.weight": moved(array)},
        "in_proj_a.weight": lambda: {f"{layer}.ssm_alpha.weight": moved(array)},
    }[part]()


SPACE = {
    "A_log": ("ssm_a", lambda one: -np.exp(one[:, None])),
    "D": ("ssm_d", lambda one: one[:, None]),
    "dt_bias": ("ssm_dt.bias", lambda one: one),
    "conv1d.weight": ("ssm_conv1d.weight", lambda one: one[:, 0]),
}


def space_of(config, name, array):
    """A tensor of a state space that is changed: Mamba2Model."""
    layer, groups = (
        next(iter(re.findall(r"layers\.([0-9]+)\.", name)), ""),
        config.get("n_groups", config.get("mamba_n_groups")),
    )
    for end, (stored, change) in SPACE.items():
        if name.endswith(f".{end}") and (".mixer." in name or ".mamba." in name):
            return {f"blk.{layer}.{stored}": change(array)}
    if config["model_type"] == "falcon_h1" and name.endswith("pre_ff_layernorm.weight"):
        return {f"blk.{layer}.ffn_norm": array}  # without an ending, by the table of the package gguf
    if name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
        return {f"blk.{layer}.ssm_norm.weight": array.reshape(groups, -1)}
    return {}


def split_networks(config, name, array):
    """The networks of Granite 4: those of experts, the shared one beside them, or this alone."""
    layer = f"blk.{name.split('.')[2]}"
    ending = "_exps" if "block_sparse_moe" in name else "_shexp" if config["num_local_experts"] else ""
    if name.endswith("output_linear.weight"):
        return {f"{layer}.ffn_down{ending}.weight": array}
    gate, up = np.split(array, 2, axis=-2)
    return {f"{layer}.ffn_gate{ending}.weight": gate, f"{layer}.ffn_up{ending}.weight": up}


def split_gates(name, array):
    """Experts and sinks of gpt-oss: gates and linear parts apart, matrices (out, in); GptOssModel."""
    layer = f"blk.{name.split('.')[2]}"
    if name.endswith("sinks"):
        return {f"{layer}.attn_sinks.weight": array}
    suffix = "bias" if name.endswith("_bias") else "weight"
    if "down_proj" in name:
        return {f"{layer}.ffn_down_exps.{suffix}": array if suffix == "bias" else array.transpose(0, 2, 1)}
    gate, up = array[..., ::2], array[..., 1::2]
    if suffix == "weight":
        gate, up = gate.transpose(0, 2, 1), up.transpose(0, 2, 1)
    return {f"{layer}.ffn_gate_exps.{suffix}": gate, f"{layer}.ffn_up_exps.{suffix}": up}


def rename(bare, names):
    number = re.search(r"\.([0-9]+)\.", f".{bare}.")
    pattern = re.sub(r"\.[0-9]+\.", ".{n}.", f".{bare}.", count=1)[1:-1]
    stored = names.get(pattern)
    return stored and stored.replace("{n}", number[1] if number else "")


def rope_of(config):
    """The rotation of the layers with full attention, in one object."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    return {"rope_theta": config.get("rope_theta", 10000.0), **rope}


def rope_tensors(config):
    """The divisors of frequencies that llama.cpp computes once, or copies."""
    rope, width = rope_of(config), config.get("head_dim") or 0
    if rope.get("rope_type") == "llama3":  # LlamaModel.generate_extra_tensors
        frequencies = 1 / rope["rope_theta"] ** (np.arange(0, width, 2) / width)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        original, factors = rope["original_max_position_embeddings"], []
        for wavelength in 2 * np.pi / frequencies:
            smooth = (original / wavelength - low) / (high - low)
            if wavelength < original / high:
                factors.append(1.0)
            elif wavelength > original / low:
                factors.append(rope["factor"])
            else:
                factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
        return {"rope_freqs.weight": np.array(factors, np.float32)}
    if rope.get("rope_type") == "longrope":
        names = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
        return {name: np.array(rope[key], np.float32) for name, key in names.items()}
    return {}


def convert_metadata(model, config):  # noqa: C901 - a line for each kind of model
    """The keys that a converter writes, with values of the types it writes."""
    architecture, kind = ARCHITECTURES[model], config["model_type"]
    width = config.get("hidden_size") or config.get("n_embd") or config.get("d_model")
    heads = config.get("num_attention_heads") or config.get("n_head") or config.get("num_heads")
    rope, has_rope = rope_of(config), kind not in ("gpt2", "bert", "t5", "bloom")
    head_dim = config.get("head_dim") or width // heads
    keys = {
        "context_length": config.get("max_position_embeddings") or config.get("n_positions") or 2048,
        "embedding_length": width,
        "block_count": config.get("num_hidden_layers") or config.get("n_layer") or config.get("num_layers"),
        "feed_forward_length": config.get("intermediate_size") or config.get("d_ff") or 4 * width,
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps") or config.get("layer_norm_epsilon"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "rope.freq_base": float(rope["rope_theta"]) if has_rope else None,
        "rope.dimension_count": head_dim if has_rope else None,
        "vocab_size": config.get("vocab_size"),
    }
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if kind in ("phi", "phi3", "stablelm", "gpt_neox"):
        keys["rope.dimension_count"] = int(head_dim * (part or 1.0))
    if kind in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "qwen3_next", "qwen3_5_moe_text"):
        keys["expert_count"] = config.get("num_local_experts") or config.get("num_experts")
        keys["expert_used_count"] = config["num_experts_per_tok"]
    if kind in ("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text"):
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
        keys["expert_shared_feed_forward_length"] = config.get("shared_expert_intermediate_size")
    if kind == "gpt_oss":
        keys["expert_feed_forward_length"] = config["intermediate_size"]
    if kind == "lfm2_moe":
        keys |= {"expert_count": config["num_experts"], "expert_used_count": config["num_experts_per_tok"]}
        keys |= {"expert_feed_forward_length": config["moe_intermediate_size"], "expert_gating_func": 2}
        keys["leading_dense_block_count"] = config["num_dense_layers"]
        keys["expert_weights_scale"] = config["routed_scaling_factor"]
    if kind == "olmoe":
        keys["attention.clamp_kqv"] = config["clip_qkv"]
    if kind in ("gemma2", "gemma3_text", "cohere2", "olmo3", "phi3", "gpt_oss"):
        keys["attention.sliding_window"] = config["sliding_window"] or 0
    if kind == "olmo3":
        keys["attention.sliding_window_pattern"] = [one == "sliding_attention" for one in config["layer_types"]]
        keys["rope.freq_base_swa"] = keys["rope.freq_base"]
    if kind == "bloom":
        keys["attention.head_count_kv"] = heads
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        keys |= {
            "rope.dimension_count": int(head_dim * rope["partial_rotary_factor"]),
            "rope.dimension_sections": [*rope["mrope_section"], 0] if "mrope_section" in rope else None,
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": config["linear_num_value_heads"],
            "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
            "full_attention_interval": 4,
        }
    if kind in ("lfm2", "lfm2_moe"):
        shared = keys["attention.head_count_kv"]
        keys["attention.head_count_kv"] = [0 if one == "conv" else shared for one in config["layer_types"]]
        keys["shortconv.l_cache"] = config["conv_L_cache"]
        if config.get("block_auto_adjust_ff_dim"):
            keys["feed_forward_length"] = read_hidden(ConfigReader(config, "config.json"))
    if kind.startswith("deepseek"):
        keys |= deepseek_keys(config, rope)
    if rope.get("rope_type") in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        keys["rope.scaling.original_context_length"] = rope.get("original_max_position_embeddings")
    if kind == "gemma2":
        caps = "attn_logit_softcapping", "final_logit_softcapping"
        keys |= {name: config[name] for name in caps}
    if kind == "gemma3_text":
        keys["rope.freq_base_swa"] = float(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if kind == "olmo":
        keys |= {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": config["clip_qkv"]}
    if kind == "granite":
        keys |= {
            "attention.scale": config["attention_multiplier"],
            "embedding_scale": config["embedding_multiplier"],
            "residual_scale": config["residual_multiplier"],
            "logit_scale": config["logits_scaling"],
        }
    if "mamba_n_heads" in config or kind == "mamba2":
        keys |= space_keys(config, kind, keys)
    if kind in ("cohere", "cohere2"):
        keys["logit_scale"] = config["logit_scale"]
    if kind in ("gpt_neox", "stablelm"):
        keys["use_parallel_residual"] = config["use_parallel_residual"]
    if kind == "falcon":
        keys |= {"attention.head_count_kv": config["num_kv_heads"] if config["new_decoder_architecture"] else 1}
        keys |= {"tensor_data_layout": "jploski", "feed_forward_length": config["ffn_hidden_size"]}
    if kind == "phi3":
        original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
        keys["rope.scaling.original_context_length"] = original or config["max_position_embeddings"]
        if rope.get("rope_type") == "longrope":
            growth = config["max_position_embeddings"] / original
            keys["rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(growth) / np.log(original)))
    if kind in ENCODERS:
        keys |= {"attention.causal": False, "pooling_type": 1}
    if kind == "t5":
        eps, decoder = config["layer_norm_epsilon"], config.get("num_decoder_layers")
        keys |= {
            "attention.key_length": config["d_kv"],
            "attention.value_length": config["d_kv"],
            "attention.layer_norm_epsilon": eps,
            "attention.layer_norm_rms_epsilon": eps,
            "attention.relative_buckets_count": config["relative_attention_num_buckets"],
            "decoder_start_token_id": config["decoder_start_token_id"],
            **({"decoder_block_count": decoder} if decoder else {}),
        }
    tokens = {
        "bos": config.get("bos_token_id"),
        "eos": config.get("eos_token_id"),
        "padding": config.get("pad_token_id"),
    }
    metadata = {"general.architecture": architecture, "general.name": model}
    metadata |= {f"{architecture}.{key}": value for key, value in keys.items() if value is not None}
    return metadata | {f"tokenizer.ggml.{key}_token_id": value for key, value in tokens.items() if value is not None}


def space_keys(config, kind, known):
    """The keys of models with state spaces: Mamba2Model, GraniteHybridModel, FalconH1Model."""
    heads = config.get("mamba_n_heads") or config["num_heads"]
    keys = {
        "ssm.conv_kernel": config.get("mamba_d_conv") or config["conv_kernel"],
        "ssm.state_size": config.get("mamba_d_state") or config["state_size"],
        "ssm.group_count": config.get("mamba_n_groups") or config["n_groups"],
        "ssm.inner_size": heads * (config.get("mamba_d_head") or config["head_dim"]),
        "ssm.time_step_rank": heads,
    }
    if kind == "mamba2":
        eps = known["attention.layer_norm_epsilon"]
        without = dict.fromkeys(
            (
                "rope.freq_base",
                "rope.dimension_count",
                "attention.key_length",
                "attention.value_length",
                "attention.layer_norm_epsilon",
            )
        )
        return (
            keys
            | without
            | {
                "context_length": 1 << 20,
                "feed_forward_length": 0,
                "attention.head_count": 0,
                "attention.layer_norm_rms_epsilon": eps,
            }
        )
    if kind == "falcon_h1":
        return keys
    full = config.get("attn_layer_indices") or [at for at, one in enumerate(config["layer_types"]) if "full" in one]
    groups = [config["num_key_value_heads"] * (at in full) for at in range(config["num_hidden_layers"])]
    keys |= {"attention.head_count_kv": groups, "rope.scaling.finetuned": kind == "bamba"}
    if kind == "bamba":
        return keys | {"rope.dimension_count": known["rope.dimension_count"] // 2}
    return keys | {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    }


def deepseek_keys(config, rope):
    """DeepseekV2Model: the latent vectors are one key and value of all heads."""
    rank, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    keys = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotary,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotary,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config["q_lora_rank"],
        "rope.dimension_count": rotary,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"] or None,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }
    growth = rope.get("mscale_all_dim")
    return keys | ({"rope.scaling.yarn_log_multiplier": 0.1 * growth} if growth else {})


READ_BY_TRANSFORMERS = ("llama", "qwen2", "stablelm", "falcon-7b", "bloom")


def quantize_rows(name, array, kind):
    """Round a matrix to Q8_0 or Q4_0 as ggml does, if its rows are whole blocks."""
    if array.ndim < 2 or array.shape[-1] % 32:
        return array
    blocks = array.reshape(-1, 32).astype(np.float32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scales = np.abs(largest) / np.float32(127) if kind == "Q8_0" else largest / np.float32(-8)
    scaled = blocks / np.where(scales == 0, 1, scales)
    if kind == "Q8_0":
        numbers = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8).view(np.uint8)
    else:
        halves = np.trunc(scaled + np.float32(8.5)).clip(0, 15).astype(np.uint8).reshape(-1, 2, 16)
        numbers = halves[:, 0] | halves[:, 1] << 4
    packed = np.concatenate([scales.astype("<f2").view(np.uint8), numbers], axis=1)
    return kind, array.shape, packed.tobytes()


def tokenizer_keys(model):
    """The keys of the tokenizer of a model of the references, as its converter writes them."""
    return {f"tokenizer.ggml.{key}": value for key, value in TOKENIZERS[model](MODELS / model).items()}


def byte_level_keys(folder):
    document = json.loads((folder / "tokenizer.json").read_text())
    tokens = document["model"]["vocab"] | {one["content"]: one["id"] for one in document["added_tokens"]}
    names, added = sorted(tokens, key=tokens.get), {one["content"] for one in document["added_tokens"]}
    merges = [one if isinstance(one, str) else " ".join(one) for one in document["model"]["merges"]]
    kinds = [3 if name in added else 1 for name in names]
    return {"model": "gpt2", "pre": "gpt-2", "tokens": names, "token_type": kinds, "merges": merges}


def sentencepiece_keys(path, model):
    stored = read_sentencepiece(path.read_bytes(), "m")
    texts, scores, kinds = ([*part] for part in zip(*stored.pieces, strict=True))
    keys = {"model": model, "tokens": texts, "scores": scores, "token_type": kinds, "unknown_token_id": stored.unknown}
    return keys | ({"precompiled_charsmap": pack_bytes(stored.charsmap)} if stored.charsmap else {})


def llama_keys(folder):
    keys = sentencepiece_keys(folder / "tokenizer.model", "llama")
    return {**keys, "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": True, "add_eos_token": False}


def t5_keys(folder):
    keys = sentencepiece_keys(folder / "spiece.model", "t5")
    blanks = 4
    return {
        **keys,
        "tokens": keys["tokens"] + [f"[PAD{len(keys['tokens']) + at}]" for at in range(blanks)],
        "scores": keys["scores"] + [-1000.0] * blanks,
        "token_type": keys["token_type"] + [5] * blanks,
        "eos_token_id": 1,
        "padding_token_id": 0,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
    }


def bert_keys(folder):
    lines = (folder / "vocab.txt").read_text().splitlines()
    special = "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"
    kinds = [3 if line in special else 1 for line in lines]
    bare = [line if line in special else line[2:] if line[:2] == "##" else f"▁{line}" for line in lines]
    names = ("unknown", "seperator", "padding", "cls", "mask")
    ids = {f"{name}_token_id": lines.index(token) for name, token in zip(names, special, strict=True)}
    return {"model": "bert", "tokens": bare, "token_type": kinds} | ids


def pack_bytes(content):
    return struct.pack("<IIQ", LIST, U8, len(content)) + content


TOKENIZERS = {"gpt2": byte_level_keys, "llama": llama_keys, "t5": t5_keys, "bert-mlm": bert_keys}


SPLIT_TEXTS = (
    "The cat's on HER mat. DON'T! I'LL we're", " two  spaces   three ", "Ünïcödé ﬁnd ½ Ⅷ", "1234567 and 3.14 v2x",
    "new\nline\n\n end \r\n x", "tab\tx", "日本語とカナ 한국어", "😀👍🏽!?", "a_b-c/d\\e", "camelCaseWord HTTPServer",
    "e\u0301 combining a\u0308", "",
)  # fmt: skip
