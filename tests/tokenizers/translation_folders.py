"""Folders with the tokenizers of translation models, made of small models that other tests have."""

import json
import shutil

from tests.places import MODELS, REFERENCES
from tests.tokenizers.spiece_folders import model_bytes

SPM = "sentencepiece.bpe.model"
NLLB = REFERENCES.parent / "transcripts" / "inputs" / "nllb"
HIDDEN = {"additional_special_tokens": ["__fr__", "__zu__", "__en__", "__de__"]}  # in transformers; here all of them
KINDS = {  # name -> family, tokenizer_config.json
    "bart": ("bart", {}),
    "mbart": ("mbart", {"tokenizer_class": "MBartTokenizer"}),
    "mbart-50": ("mbart", {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE", "tgt_lang": "gl_ES"}),
    "m2m_100": ("m2m_100", {"tokenizer_class": "M2M100Tokenizer", "src_lang": "fr", "tgt_lang": "en"} | HIDDEN),
    "m2m_100-wmt21": ("m2m_100", {"tokenizer_class": "M2M100Tokenizer", "language_codes": "wmt21"} | HIDDEN),
    "nllb": ("m2m_100", {"tokenizer_class": "NllbTokenizer", "src_lang": "fra_Latn"}),
    "nllb-legacy": ("m2m_100", {"tokenizer_class": "NllbTokenizer", "legacy_behaviour": True}),
}


def write_folder(folder, name, settings=None):
    """Write the tokenizer files of a folder, and a config.json that names the family."""
    folder.mkdir(exist_ok=True)
    family, usual = KINDS[name]
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (folder / "tokenizer_config.json").write_text(json.dumps(usual | (settings or {})))
    if family == "bart":
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(MODELS / "roberta" / file, folder)
    elif name.startswith("nllb"):
        shutil.copy(NLLB / "tokenizer.json", folder)
    else:
        (folder / SPM).write_bytes(model_bytes("xlm-roberta"))
    if name.startswith("m2m"):
        (folder / "vocab.json").write_text(json.dumps(vocabulary()))
    return folder


def vocabulary():
    """The pieces of the model by ids as M2M-100 numbers them, a few of them left out."""
    from attnkit.tokenizers.unigram import read_sentencepiece

    pieces = [piece.text for piece in read_sentencepiece(model_bytes("xlm-roberta"), SPM).pieces]
    return {piece: id for id, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces[5:]])}
