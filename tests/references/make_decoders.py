"""Tiny decoders of today and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_decoders.py [NAME...]

writes decoders.json, each model's config.json and the shapes of its tensors as transformers saves them, and
decoders.npz, what it computes in eager attention (Falcon with ALiBi: in sdpa, since eager adds its bias twice). The
weights are those of tests/drawing.py, which draws them by name, so no file holds them. Members of the .npz begin with
the name of the model:

    ids          (1, 17); long.ids (1, 41), past windows and original contexts; batch.ids (3, 9) and batch.mask
    hidden.N     (1, 17, D) states in float64: 0 = embeddings, N = after layer N, the last after the final norm
    logits, long.logits, batch.logits   (.., 4, V) of the last four tokens, in float64 (.f64) and float32 (.f32)
    greedy, beam (1, 17 + 12) prompt and continuation, greedy and the best of 3 beams, of the float64 model

The batch is padded on the left; the three texts are computed one by one where a padded query reads no key. In the
float64 model every part is computed in float64: the casts to float32 inside transformers are turned off by setting
torch.float32 to torch.float64 while it is built and run.
"""

import contextlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
import transformers

from tests.drawing import draw_tensors

HERE = pathlib.Path(__file__).parent
VOCAB = 67
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = TOKENS | {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ALL_HEADS = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
OLDER = {key: value for key, value in ALL_HEADS.items() if key != "intermediate_size"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}
LATENT = LLAMA | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 3,
    "moe_intermediate_size": 11,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 2.5, 4.0],
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "qwen3": ("qwen3", LLAMA | {"head_dim": 10, "tie_word_embeddings": True}),
    "qwen3-window": (
        "qwen3",
        LLAMA
        | {
            "head_dim": 10,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 2,
            "attention_bias": True,
        },
    ),
    "gemma": ("gemma", LLAMA | {"head_dim": 10, "num_key_value_heads": 1}),
    "gemma2": (
        "gemma2",
        LLAMA
        | {
            "head_dim": 10,
            "sliding_window": 5,
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        LLAMA
        | {
            "head_dim": 10,
            "sliding_window": 5,
            "query_pre_attn_scalar": 7,
            "sliding_window_pattern": 3,
            "rope_theta": 5000.0,
            "rope_local_base_freq": 100.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
    ),
    "olmo": ("olmo", LLAMA | {"clip_qkv": 0.7}),
    "olmo2": ("olmo2", LLAMA),
    "olmo3": ("olmo3", LLAMA | {"sliding_window": 5, "rope_scaling": YARN}),
    "smollm3": ("smollm3", LLAMA | {"no_rope_layer_interval": 2}),
    "smollm3-window": (
        "smollm3",
        LLAMA | {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5},
    ),
    "granite": (
        "granite",
        LLAMA
        | {"embedding_multiplier": 3.0, "logits_scaling": 0.5, "residual_multiplier": 0.4, "attention_multiplier": 0.3},
    ),
    "phi": ("phi", LLAMA | {"hidden_size": 36, "partial_rotary_factor": 0.7}),
    "phi-norms": ("phi", LLAMA | {"hidden_size": 48, "qk_layernorm": True}),
    "phi3": ("phi3", LLAMA | {"sliding_window": 7}),
    "phi3-long": (
        "phi3",
        LLAMA
        | {
            "hidden_size": 48,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16,
            "rope_scaling": {key: LONG[key] for key in ("rope_type", "short_factor", "long_factor")},
        },
    ),
    "cohere": ("cohere", LLAMA | {"logit_scale": 0.3}),
    "cohere-norms": ("cohere", LLAMA | {"use_qk_norm": True}),
    "cohere2": ("cohere2", LLAMA | {"sliding_window": 5, "logit_scale": 0.3}),
    "stablelm": ("stablelm", LLAMA | {"hidden_size": 48, "use_qkv_bias": True}),
    "stablelm-parallel": (
        "stablelm",
        LLAMA | {"hidden_size": 48, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "gpt_neox": ("gpt_neox", ALL_HEADS | {"hidden_size": 48, "rotary_pct": 0.5, "rotary_emb_base": 500}),
    "gpt_neox-serial": ("gpt_neox", ALL_HEADS | {"hidden_size": 48, "use_parallel_residual": False}),
    "gpt_neo": (
        "gpt_neo",
        TOKENS
        | {
            "vocab_size": VOCAB,
            "hidden_size": 24,
            "num_layers": 4,
            "num_heads": 3,
            "window_size": 5,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 2]],
        },
    ),
    "gptj": (
        "gptj",
        TOKENS | {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 3, "n_head": 3, "rotary_dim": 4, "n_positions": 64},
    ),
    "falcon-7b": ("falcon", OLDER | {"multi_query": True}),
    "falcon-40b": ("falcon", OLDER | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": (
        "falcon",
        OLDER | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-rw": (
        "falcon",
        OLDER | {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
    ),
    "bloom": ("bloom", TOKENS | {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 3, "n_head": 6}),
    "mixtral": ("mixtral", LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 6}),
    "qwen3_moe": (
        "qwen3_moe",
        LLAMA
        | {
            "head_dim": 10,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 11,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen2_moe": (
        "qwen2_moe",
        LLAMA
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 11,
            "shared_expert_intermediate_size": 13,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 3,
        },
    ),
    "olmoe": ("olmoe", LLAMA | {"num_experts": 7, "num_experts_per_tok": 3, "clip_qkv": 0.9}),
    "gpt_oss": (
        "gpt_oss",
        LLAMA
        | {
            "head_dim": 10,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "swiglu_limit": 0.6,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "rope_theta": 50.0,
                "truncate": False,
            },
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        LATENT
        | {
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.7,
            "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek_v2-greedy": (
        "deepseek_v2",
        LATENT | {"q_lora_rank": 9, "attention_bias": True, "first_k_dense_replace": 0},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        LATENT
        | {
            "q_lora_rank": 9,
            "n_group": 4,
            "topk_group": 2,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "first_k_dense_replace": 2,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek_v3-halves": (
        "deepseek_v3",
        LATENT | {"q_lora_rank": None, "n_group": 2, "topk_group": 1, "rope_interleave": False},
    ),
    "opt": ("opt", OLDER | {"ffn_dim": 37}),
    "opt-350m": ("opt", OLDER | {"ffn_dim": 37, "word_embed_proj_dim": 15, "do_layer_norm_before": False}),
}


@contextlib.contextmanager
def in_double():
    """Compute every part in float64, those too that transformers casts to float32."""
    before = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = before
        torch.set_default_dtype(before[0])


def save(name: str, kind: str, values: dict, folder: pathlib.Path) -> tuple[dict, dict]:
    """Save a model with drawn weights; its configuration and the shapes of its tensors."""
    config = transformers.AutoConfig.for_model(kind, **values)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {key: list(tensor.shape) for key, tensor in sorted(safetensors.numpy.load_file(path).items())}
    write_weights(folder, kind, shapes, np.float32)
    written = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in written.items() if key != "transformers_version"}, shapes


def write_weights(folder: pathlib.Path, kind: str, shapes: dict, dtype: type) -> None:
    tensors = {key: np.asarray(one, dtype) for key, one in draw_tensors(kind, shapes).items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def texts(name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(name))
    batch, mask = rng.integers(3, VOCAB, (3, 9)), np.ones((3, 9), np.int64)
    for row, count in enumerate((0, 4, 2)):
        batch[row, :count], mask[row, :count] = 0, 0
    return {
        "ids": rng.integers(3, VOCAB, (1, 17)),
        "long.ids": rng.integers(3, VOCAB, (1, 41)),
        "batch.ids": batch,
        "batch.mask": mask,
    }


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of the texts."""
    has_alibi = json.loads((folder / "config.json").read_text()).get("alibi", False)
    options = {
        "attn_implementation": "sdpa" if has_alibi else "eager",
        "experts_implementation": "eager",
        "dtype": getattr(torch, "float64" if dtype == "f64" else "float32"),
    }
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    ids = torch.tensor(given["ids"])
    found = {}
    with torch.no_grad():
        output = model(ids, output_hidden_states=True, use_cache=False)
        if dtype == "f64":
            found |= {f"hidden.{at}": state.numpy() for at, state in enumerate(output.hidden_states)}
        found[f"logits.{dtype}"] = output.logits[:, -4:].numpy()
        found[f"long.logits.{dtype}"] = model(torch.tensor(given["long.ids"]), use_cache=False).logits[:, -4:].numpy()
        rows = []
        for row, mask in zip(given["batch.ids"], given["batch.mask"], strict=True):
            rows.append(model(torch.tensor(row[mask == 1])[None], use_cache=False).logits[0, -4:].numpy())
        found[f"batch.logits.{dtype}"] = np.stack(rows)
        if dtype == "f64":
            plain = {"max_new_tokens": 12, "do_sample": False, "use_cache": model.config.model_type != "phi3"}
            found["greedy"] = model.generate(ids, **plain).numpy()
            found["beam"] = model.generate(ids, num_beams=3, **plain).numpy()
            batch = {"attention_mask": torch.tensor(given["batch.mask"]), **plain}
            found["batch.greedy"] = model.generate(torch.tensor(given["batch.ids"]), **batch).numpy()
    return found


def main(names: list[str]) -> None:
    path, arrays_path = HERE / "decoders.json", HERE / "decoders.npz"
    table = json.loads(path.read_text()) if path.exists() else {}
    arrays = dict(np.load(arrays_path)) if arrays_path.exists() else {}
    for name in names or MODELS:
        arrays = {key: one for key, one in arrays.items() if not key.startswith(f"{name}/")}
        with tempfile.TemporaryDirectory() as place:
            folder, given = pathlib.Path(place), texts(name)
            config, shapes = save(name, *MODELS[name], folder)
            found = compute(folder, given, "f32")
            write_weights(folder, config["model_type"], shapes, np.float64)
            with in_double():
                found |= compute(folder, given, "f64")
        table[name] = {"config": config, "shapes": shapes}
        arrays |= {f"{name}/{key}": one for key, one in (given | found).items()}
        print(name, {key: one.shape for key, one in found.items() if "greedy" in key or "beam" in key})
    path.write_text(json.dumps({name: table[name] for name in MODELS if name in table}, indent=1) + "\n")
    np.savez_compressed(arrays_path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
