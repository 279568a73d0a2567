"""What TransformerLens' patching helpers make of the tiny models models/gpt2 and models/llama, frozen: patching.npz.

    pip install torch==2.13.0 transformer-lens==4.3.0
    python tests/references/make_patching.py

Names are MODEL.HELPER, HELPER without its get_act_patch_. Each is the logit of WORD at the last position of CORRUPTED,
patched with an activation of CLEAN: (L, T), (L, H), or (L, T, H) by_pos. Both models read ids of the tokenizer of gpt2.
MODEL.clean and MODEL.corrupted are the logits without patches, MODEL.ids the ids of both texts. Weights are as
published.
"""

import numpy as np
import torch
from make_interpretability import HERE, boot
from tokenizers import Tokenizer
from transformer_lens import patching

CLEAN, CORRUPTED, WORD = "the cat was on", "the mat was on", " the"
HELPERS = ("resid_pre", "resid_mid", "attn_out", "mlp_out", "attn_head_out_all_pos", "attn_head_out_by_pos")
HELPERS += ("attn_head_v_all_pos", "attn_head_pattern_all_pos")


def measure(name: str) -> dict[str, np.ndarray]:
    """Run all helpers on a model."""
    model, tokenizer = boot(name, False), Tokenizer.from_file(str(HERE / "models" / "gpt2" / "tokenizer.json"))
    clean, corrupted = (torch.tensor([tokenizer.encode(text).ids]) for text in (CLEAN, CORRUPTED))
    word = tokenizer.encode(CLEAN + WORD).ids[-1]
    assert clean.shape == corrupted.shape and len(tokenizer.encode(CLEAN + WORD).ids) == clean.shape[1] + 1

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, word]

    _, cache = model.run_with_cache(clean)
    arrays = {"ids": torch.cat([clean, corrupted]), "word": torch.tensor(word)}
    arrays |= {"clean": metric(model(clean)), "corrupted": metric(model(corrupted))}
    for helper in HELPERS:
        arrays[helper] = getattr(patching, f"get_act_patch_{helper}")(model, corrupted, cache, metric)
    return {f"{name}.{key}": value.detach().numpy() for key, value in arrays.items()}


if __name__ == "__main__":
    with torch.no_grad():
        np.savez_compressed(HERE / "patching.npz", **measure("gpt2"), **measure("llama"))
