"""Tokenizers of translation models, and the tokens that transformers gives by them, frozen.

    pip install transformers==4.57.6 tokenizers==0.22.2 sentencepiece==0.2.1 protobuf orjson numpy
    PYTHONPATH=. python tests/references/make_languages.py

(the last version that turns a sentencepiece model into a tokenizer of the tokenizers library as published
tokenizer.json were made.) Writes tests/transcripts/inputs/nllb/tokenizer.json, a small one of NLLB with four languages;
and languages.json: for each kind of folder, of each text in each of some languages, the ids as a source and as a
target, and the text of the ids of the target without special tokens. The same bytes come out of every run.
"""

import json
import pathlib
import tempfile

import make_models as base
import transformers

from tests.tokenizers.translation_folders import KINDS, NLLB, write_folder

HERE = pathlib.Path(__file__).parent
TEXTS = [*base.FRENCH, "The cat sat on the mat.", "two  spaces,   three;\ttabs\nand lines ", "<mask> a </s> b <unk>"]
LANGUAGES = {
    "mbart": ["en_XX", "ro_RO"],
    "mbart-50": ["de_DE", "gl_ES"],
    "m2m_100": ["fr", "zu"],
    "m2m_100-wmt21": ["en", "de"],
    "nllb": ["fra_Latn", "zho_Hans"],
    "nllb-legacy": ["eng_Latn", "zho_Hans"],
}


def write_nllb() -> None:
    NLLB.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place) / "sentencepiece.bpe.model"
        lines = [*base.LINES, *(" ".join(pair) for pair in base.PAIRS)]
        base.sentence_pieces(file, lines, 110, "bpe", normalization_rule_name="identity")
        languages = ["eng_Latn", "fra_Latn", "deu_Latn", "zho_Hans"]
        tokenizer = transformers.NllbTokenizerFast(vocab_file=str(file), additional_special_tokens=languages)
        tokenizer.backend_tokenizer.save(str(NLLB / "tokenizer.json"))
    print("ids of nllb:", len(tokenizer))


def freeze(name: str, folder: pathlib.Path) -> list[dict]:
    load = transformers.AutoTokenizer.from_pretrained
    if name == "bart":
        tokenizer = load(folder)
        rows = []
        for text in TEXTS:
            ids = tokenizer(text)["input_ids"]
            rows.append({"text": text, "source": ids, "words": tokenizer.decode(ids, skip_special_tokens=True)})
        return rows
    rows = []
    for language in LANGUAGES[name]:
        tokenizer = load(folder, src_lang=language, tgt_lang=language)
        for text in TEXTS:
            source, target = tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]
            words = tokenizer.decode(target, skip_special_tokens=True)
            rows.append({"language": language, "text": text, "source": source, "target": target, "words": words})
    return rows


def main() -> None:
    write_nllb()
    frozen = {}
    for name in KINDS:
        with tempfile.TemporaryDirectory() as place:
            frozen[name] = freeze(name, write_folder(pathlib.Path(place), name))
    kinds = (
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "]"
        for name, rows in frozen.items()
    )
    (HERE / "languages.json").write_text("{" + ",\n".join(kinds) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
