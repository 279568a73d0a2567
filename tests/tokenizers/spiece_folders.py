"""Folders with a sentencepiece model and no tokenizer.json, made of small models and the normalization of another."""

import json

from tests.places import REFERENCES

HERE = REFERENCES / "sentencepiece"
FILES = {
    "albert": "spiece.model",
    "deberta-v2": "spm.model",
    "xlm-roberta": "sentencepiece.bpe.model",
    "camembert": "sentencepiece.bpe.model",
}
CLASSES = {
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
NAME = b"nmt_nfkc"  # of the normalization, in a field at the end of Marian's file, 6 bytes after its key


def model_bytes(family):
    """Return the model of a family with the normalization of Marian's; of two fields of one name the last counts."""
    marian = (REFERENCES / "models/marian/source.spm").read_bytes()
    return (HERE / f"{family}.model").read_bytes() + marian[marian.index(NAME) - 6 :]


def write_folder(folder, family, model, settings, has_class=True):
    """Write the tokenizer files of a folder, and a config.json that names the family."""
    folder.mkdir(exist_ok=True)
    (folder / FILES[family]).write_bytes(model)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    named = {"tokenizer_class": CLASSES[family]} if has_class else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | settings))
