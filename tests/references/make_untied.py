"""Models with an output head of their own, after training: python tests/references/make_untied.py

Made with torch 2.13.0 and transformers 5.23.0. Each model is tiny and random, has `tie_word_embeddings: false`, and
takes five steps of AdamW on random targets before it is saved, so that its head, its embeddings and every tensor that
only looks like one of them differ. untied/NAME is its folder, and untied.npz has, for the ids in it, NAME.logits in
float64 arithmetic of the saved float32 parameters; the decoder of a translator reads its start token and the ids from
the last to the first. deberta-plain has `relative_attention: false` with terms of
distances, which still count in the scale of its scores.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
IDS = [[3, 11, 7, 5, 2, 13], [9, 4, 3, 12, 6, 8]]
WORDS = 17
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 24,
}
DEBERTA = {"pos_att_type": "c2p|p2c", "position_buckets": 4, "max_relative_positions": 8, "type_vocab_size": 0}
MARIAN = {
    "vocab_size": WORDS, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 24,
    "pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 0,
}  # fmt: skip
T5 = {
    "vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2,
    "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
GPT2 = {
    "vocab_size": WORDS,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 24,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
ENDS = {"pad_token_id": 1, "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
MODELS = {
    "bert": ("BertForMaskedLM", SMALL),
    "roberta": ("RobertaForMaskedLM", SMALL),
    "xlm-roberta": ("XLMRobertaForMaskedLM", SMALL),
    "camembert": ("CamembertForMaskedLM", SMALL),
    "albert": ("AlbertForMaskedLM", SMALL | {"embedding_size": 6}),
    "mpnet": ("MPNetForMaskedLM", SMALL),
    "electra": ("ElectraForMaskedLM", SMALL | {"embedding_size": 8}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": WORDS, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 24},
    ),
    "modernbert": ("ModernBertForMaskedLM", SMALL | ENDS),
    "deberta-v2": ("DebertaV2ForMaskedLM", SMALL | DEBERTA | {"relative_attention": True, "legacy": True}),
    "deberta-newer": ("DebertaV2ForMaskedLM", SMALL | DEBERTA | {"relative_attention": True, "legacy": False}),
    "deberta-plain": ("DebertaV2ForMaskedLM", SMALL | DEBERTA | {"relative_attention": False}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", SMALL),
    "mistral": ("MistralForCausalLM", SMALL | {"num_key_value_heads": 1}),
    "qwen2": ("Qwen2ForCausalLM", SMALL | {"num_key_value_heads": 1}),
    "marian": ("MarianMTModel", MARIAN | {"share_encoder_decoder_embeddings": True}),
    "marian-apart": ("MarianMTModel", MARIAN | {"share_encoder_decoder_embeddings": False}),
    "t5": ("T5ForConditionalGeneration", T5),
}


def make(name: str, folder: Path) -> np.ndarray:
    """Write the folder of a model after its steps; return its logits as it is read again."""
    torch.manual_seed(len(name))
    architecture, settings = MODELS[name]
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**settings, tie_word_embeddings=False))
    with torch.no_grad():  # biases start at 0, norms at 1
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    ids = torch.tensor(IDS)
    more = {}
    if model.config.is_encoder_decoder:
        start = torch.full((len(ids), 1), model.config.decoder_start_token_id)
        more["decoder_input_ids"] = torch.cat([start, ids.flip(1)], 1)
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(input_ids=ids, **more).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, torch.randint(WORDS, (len(logits),))).backward()
        optimizer.step()
    model.save_pretrained(folder)
    again = kind.from_pretrained(folder, attn_implementation="eager").double().eval()
    with torch.no_grad():
        return again(input_ids=ids, **more).logits.numpy()


def main() -> None:
    kept, frozen = HERE / "untied", {"ids": np.array(IDS)}
    shutil.rmtree(kept, ignore_errors=True)
    for name in MODELS:
        frozen[f"{name}.logits"] = make(name, kept / name)
        for file in (kept / name).iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                file.unlink()
    np.savez(HERE / "untied.npz", **frozen)


if __name__ == "__main__":
    main()
