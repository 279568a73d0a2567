"""Write the weights of the package g2p-en under the names of a seq2seq model, and the other files of its folder.

    python3 make_g2p.py PACKAGE WEIGHTS.npz FOLDER

PACKAGE is where `pip install --no-deps g2p-en==2.1.0` has put it (Apache-2.0, Park and Kim 2019); it is read in place.
"""

import json
import pathlib
import sys

import numpy as np

LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
SPOKEN = """
AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2
F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z
ZH"""
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *SPOKEN.split()]
NAMES = {"enc_emb": "encoder.embedding.weight", "dec_emb": "decoder.embedding.weight"}
NAMES |= {"fc_w": "head.weight", "fc_b": "head.bias"}
NAMES |= {
    f"{stack[:3]}_{part[0]}_{side}": f"{stack}.rnn.{part}_{side}_l0"
    for stack in ("encoder", "decoder")
    for part in ("weight", "bias")
    for side in ("ih", "hh")
}
CONFIG = {
    "model_type": "seq2seq",
    "cell": "gru",
    "embedding_size": 256,
    "hidden_size": 256,
    "vocab_size": len(LETTERS),
    "decoder_vocab_size": len(PHONEMES),
    "decoder_start_token_id": PHONEMES.index("<s>"),
    "eos_token_id": PHONEMES.index("</s>"),
    "pad_token_id": PHONEMES.index("<pad>"),
}
SPLIT_LETTERS = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
END = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [LETTERS.index("</s>")], "tokens": ["</s>"]}},
}


def tokenizer(words: list[str], split: dict, after: dict | None) -> dict:
    """Return the tokenizer.json of a list of words: its special tokens are those in angle brackets."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": word, **flags} for id, word in enumerate(words) if word[0] == "<"],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": after,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: id for id, word in enumerate(words)}, "unk_token": "<unk>"},
    }


def main(package: str, weights: str, folder: str) -> None:
    """Write both."""
    target = pathlib.Path(folder)
    target.mkdir()
    with np.load(pathlib.Path(package) / "checkpoint20.npz") as stored:
        np.savez(weights, **{NAMES[name]: stored[name] for name in stored})
    files = {
        "config.json": CONFIG,
        "tokenizer.json": tokenizer(LETTERS, SPLIT_LETTERS, END),
        "target_tokenizer.json": tokenizer(PHONEMES, {"type": "WhitespaceSplit"}, None),
    }
    for name, value in files.items():
        (target / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
