"""Tied tables that are stored with different numbers, and what transformers computes with them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_ties.py

writes ties.json, the config.json of tiny models and the shapes of their tensors, and ties.npz, NAME.logits in float64
arithmetic of the float32 parameters for the ids in it. Every configuration ties its head and its tables, and every one
of these is stored. tests/drawing.py draws each tensor by its name, so all of them differ: transformers ties none of
them, and warns. In NAME-moved the head is stored and the table it is tied to is not. The decoder of a translator reads
its start token and the ids from the last to the first.
"""

import collections
import json
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
import transformers
from make_untied import ENDS, GPT2, IDS, MARIAN, SMALL, T5, WORDS

from tests.drawing import draw_tensors

HERE = Path(__file__).parent
GPT = GPT2 | {"n_layer": 1}
ONE = SMALL | {"num_hidden_layers": 1}
PLAIN = {key: value for key, value in ONE.items() if key != "intermediate_size"}
GROUPED = ONE | {"num_key_value_heads": 1}
BART = MARIAN | {"eos_token_id": 2, "decoder_start_token_id": 2}
DEBERTA = {"pos_att_type": "c2p|p2c", "position_buckets": 4, "relative_attention": True, "type_vocab_size": 0}
WIDE = {"hidden_size": 16, "head_dim": 8}
GEMMA3 = {
    "text_config": GROUPED | WIDE | {"tie_word_embeddings": False},
    "vision_config": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
                      "image_size": 8, "patch_size": 4},
    "mm_tokens_per_image": 4,
}  # fmt: skip
MODELS = {  # name -> class of transformers, configuration
    "gpt2": ("GPT2LMHeadModel", GPT),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "max_position_embeddings": 24,
         "attention_types": [[["global"], 1]]},
    ),
    "gptj": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", ONE | {"hidden_size": 16}),
    "bloom": ("BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 8, "n_layer": 1, "n_head": 2}),
    "falcon": ("FalconForCausalLM", PLAIN),
    "opt": ("OPTForCausalLM", PLAIN | {"ffn_dim": 12, "word_embed_proj_dim": 8}),
    "phi": ("PhiForCausalLM", ONE | {"hidden_size": 16}),
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 4}),
    "gemma": ("GemmaForCausalLM", GROUPED | WIDE),
    "gemma3": ("Gemma3ForConditionalGeneration", GEMMA3),
    "cohere": ("CohereForCausalLM", GROUPED),
    "bert": ("BertForMaskedLM", ONE),
    "roberta": ("RobertaForMaskedLM", ONE),
    "mpnet": ("MPNetForMaskedLM", ONE),
    "albert": ("AlbertForMaskedLM", ONE | {"embedding_size": 6}),
    "electra": ("ElectraForMaskedLM", ONE | {"embedding_size": 8}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": WORDS, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 24},
    ),
    "deberta-v2": ("DebertaV2ForMaskedLM", ONE | DEBERTA | {"legacy": True}),
    "modernbert": ("ModernBertForMaskedLM", ONE | ENDS),
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "mbart": ("MBartForConditionalGeneration", BART),
    "m2m_100": ("M2M100ForConditionalGeneration", BART),
    "marian": ("MarianMTModel", MARIAN | {"share_encoder_decoder_embeddings": True}),
    "marian-apart": ("MarianMTModel", MARIAN | {"share_encoder_decoder_embeddings": False}),
}  # fmt: skip
SOURCES = {  # models that are stored again without the table that others are tied to
    "llama": "model.embed_tokens.weight",
    "bert": "bert.embeddings.word_embeddings.weight",
    "bart": "model.shared.weight",
    "t5": "shared.weight",
}
SINES = tuple(f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder"))
COMPUTED = collections.defaultdict(tuple, marian=SINES)  # buffers, by the name of a family
OWN = {"bart": ("lm_head.weight",), "t5": ("lm_head.weight", "decoder.embed_tokens.weight")}  # removed besides it


def logits(kind: type, folder: Path) -> np.ndarray:
    """The logits of a folder in float64."""
    model = kind.from_pretrained(folder, attn_implementation="eager").double().eval()
    ids, more = torch.tensor(IDS), {}
    if model.config.is_encoder_decoder:
        start = torch.full((len(ids), 1), model.config.decoder_start_token_id or 0)
        more["decoder_input_ids"] = torch.cat([start, ids.flip(1)], 1)
    with torch.no_grad():
        return model(input_ids=ids, **more).logits.numpy()


def main() -> None:
    known, frozen = {}, {"ids": np.array(IDS)}
    for name, (architecture, settings) in MODELS.items():
        kind = getattr(transformers, architecture)
        model = kind(kind.config_class(**settings, tie_word_embeddings=True))
        shapes = {key: [*one.shape] for key, one in model.state_dict().items() if key not in COMPUTED[name[:6]]}
        variants = {name: shapes}
        if name in SOURCES:
            gone = {SOURCES[name], *OWN.get(name, ())}
            variants[f"{name}-moved"] = {key: shape for key, shape in shapes.items() if key not in gone}
        for variant, stored in variants.items():
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                model.config.architectures = [architecture]
                model.config.save_pretrained(folder)
                config = json.loads((folder / "config.json").read_text())
                config.pop("transformers_version")
                tensors = draw_tensors(config["model_type"], stored)
                safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
                known[variant] = {"config": config, "shapes": stored}
                frozen[f"{variant}.logits"] = logits(kind, folder)
    (HERE / "ties.json").write_text(json.dumps(known, indent=1) + "\n")
    np.savez(HERE / "ties.npz", **frozen)


if __name__ == "__main__":
    main()
