"""What TransformerLens says of the tiny models models/gpt2 and models/llama, frozen: interpretability.npz.

    pip install torch==2.13.0 transformer-lens==4.3.0
    python tests/references/make_interpretability.py

Names are MODEL.WHAT. Weights are as published (no folding), except for direct logit attribution, where TransformerLens
needs the scale of the final norm folded into the unembedding; nothing is centered. Arrays begin with the layers.

lens         accumulated_resid with the final norm applied, times the unembedding: (L + 1, T, N)
logits       of the model itself, of the ids IDS
direct       logit_attrs of decompose_resid for TOKEN at the last position; minus: of TOKEN less OTHER
heads        logit_attrs of stack_head_results, of the same difference: (L·H)
NAME_score   detect_head's measure "mul" of each head on the ids: (L, H)
q, k, v      all_composition_scores: (L, H, L, H)
copying      Σ λ / Σ |λ| over the eigenvalues of the full OV circuit, embedding to unembedding: (L, H)
"""

import pathlib

import numpy as np
import torch
from transformer_lens import FactoredMatrix, TransformerBridge, head_detector
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
IDS = [3, 5, 7, 3, 5, 9, 7, 3, 5]
TOKEN, OTHER = 11, 23
NAMES = ("previous_token_head", "duplicate_token_head", "induction_head")


def boot(name: str, is_folded: bool) -> TransformerBridge:
    """Load a model as TransformerLens runs it."""
    path = str(HERE / "models" / name)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    bridge = TransformerBridge.boot_transformers(path, hf_model=model, dtype=torch.float32, device="cpu")
    folding = {"center_writing_weights": False, "center_unembed": False, "fold_value_biases": False}
    bridge.enable_compatibility_mode(disable_warnings=True, fold_ln=is_folded, **folding)
    return bridge


def detect(pattern: torch.Tensor, ids: torch.Tensor, name: str) -> list[float]:
    """Return the score of each head of a layer, as detect_head computes it from a text."""
    target = getattr(head_detector, f"get_{name}_detection_pattern")(ids)
    options = {"exclude_bos": False, "exclude_current_token": False, "error_measure": "mul"}
    return [head_detector.compute_head_attention_similarity_score(one, target, **options) for one in pattern]


def measure(name: str) -> dict[str, np.ndarray]:
    """Run both forms of a model and its weights."""
    plain, folded, ids = boot(name, False), boot(name, True), torch.tensor([IDS])
    logits, cache = plain.run_with_cache(ids)
    arrays = {"logits": logits[0], "lens": cache.accumulated_resid(apply_ln=True)[:, 0] @ plain.W_U + plain.b_U}
    _, cache_folded = folded.run_with_cache(ids)
    parts = cache_folded.decompose_resid(pos_slice=-1)
    arrays["direct"] = cache_folded.logit_attrs(parts, TOKEN, pos_slice=-1)[:, 0]
    arrays["minus"] = cache_folded.logit_attrs(parts, TOKEN, OTHER, pos_slice=-1)[:, 0]
    heads = cache_folded.stack_head_results(pos_slice=-1)
    arrays["heads"] = cache_folded.logit_attrs(heads, TOKEN, OTHER, pos_slice=-1)[:, 0]
    for kind in NAMES:
        patterns = [cache["pattern", layer][0] for layer in range(plain.cfg.n_layers)]
        arrays[f"{kind}_score"] = torch.tensor([detect(pattern, ids, kind) for pattern in patterns])
    for mode in "QKV":
        arrays[mode.lower()] = plain.all_composition_scores(mode).scores
    eigenvalues = FactoredMatrix(plain.W_E @ expand(plain.W_V, plain), plain.W_O @ plain.W_U).eigenvalues
    arrays["copying"] = eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)
    return {f"{name}.{key}": value.detach().numpy().astype(np.float32) for key, value in arrays.items()}


def expand(values: torch.Tensor, bridge: TransformerBridge) -> torch.Tensor:
    """Repeat the values of grouped queries, one for each query head."""
    return values.repeat_interleave(bridge.cfg.n_heads // values.shape[1], dim=1)


if __name__ == "__main__":
    np.savez_compressed(HERE / "interpretability.npz", **measure("gpt2"), **measure("llama"))
