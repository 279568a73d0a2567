"""Sentencepiece models of text encoders, and the tokens that transformers gives by them, frozen.

    pip install transformers==4.57.6 tokenizers==0.22.2 sentencepiece==0.2.1 protobuf torch==2.13.0
    python tests/references/make_sentencepiece.py

(the last version that turns the tokenizer of such a folder into one of the tokenizers library, as published
tokenizer.json were made.) Writes for each family sentencepiece/FAMILY.model, a small model that does not normalize
text: the tests append the field of models/marian/source.spm that does (NFKC and more), which is large; and tokens.json:
of each text, and of pairs, the `ids`, `types`, `tokens`, `offsets` and the `words` of the text decoded. FAMILY.SETTINGS
has other values in tokenizer_config.json. The same bytes come out of every run.
"""

import json
import pathlib
import sys
import tempfile

import make_models as base
import transformers

sys.path.insert(0, "tests/tokenizers")
from spiece_folders import FILES, HERE, model_bytes, write_folder

TEXTS = [
    *base.TEXTS,
    *base.FRENCH,
    "e\u0301 a\u0300 \u2167 \u00bd \u2460 \u1e9e \u0130stanbul \u01c5 \uff34\uff48\uff45 \uff0e",
    "zero\u200bwidth\u200djoined\ufeff and\u00a0hard\u3000wide \u2028 line\r\nend\x07",
    "\u0645\u0631\u062d\u0628\u0627 \u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940 \ud55c\uad6d",
    "\U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "the <mask> and [MASK], <s> </s> [SEP] <pad> [CLS]x<unk>[UNK] <s>NOTUSED a<mask>b",
    "``quoted'' (aside) - a\u2581b \u2581\u2581c  1,000 2,500, 7, \uff1cmask\uff1e \u00a35",
    "   leading, trailing   ",
    "\u2581",
    "THE CAT, reading: 3.14!?",
]
PAIRS = [("The cat sat.", "It was reading!"), ("", "upon  a time \u00e9"), ("[SEP]", " ")]
SETTINGS = {  # what else tokenizer_config.json says
    "albert.cased": {"do_lower_case": False, "keep_accents": True},
    "deberta-v2.lower": {"do_lower_case": True, "split_by_punct": True},
}
NUMBERS = [f"{n},{n}00 and {n}, then {n}," for n in range(1, 10)] * 4
OPTIONS = {
    "albert": {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": ["(", ")", "-", "\u00a3"], "split_by_unicode_script": False, "split_by_number": False,
    },
    "deberta-v2": {
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3,
        "pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]",
    },
    "xlm-roberta": {}, "camembert": {},
}  # fmt: skip


def main() -> None:
    frozen = {}
    for family, options in OPTIONS.items():
        lines = [*base.LINES, *(pair[0] for pair in base.PAIRS), *NUMBERS * (family == "albert")]
        more = {"hard_vocab_limit": False, "normalization_rule_name": "identity", **options}
        base.sentence_pieces(HERE / f"{family}.model", lines, 200, "unigram", **more)
    for name in [*OPTIONS, *SETTINGS]:
        family = name.partition(".")[0]
        with tempfile.TemporaryDirectory() as folder:
            write_folder(pathlib.Path(folder), family, model_bytes(family), SETTINGS.get(name, {}))
            assert (pathlib.Path(folder) / FILES[family]).exists()
            frozen[name] = freeze(transformers.AutoTokenizer.from_pretrained(folder))
            frozen[name]["settings"] = SETTINGS.get(name, {})
    names = ",\n".join(
        f'{json.dumps(name)}: {{"settings": {json.dumps(one["settings"])}, "size": {one["size"]}, "rows": [\n'
        + ",\n".join(json.dumps(row, ensure_ascii=False) for row in one["rows"])
        + "]}"
        for name, one in frozen.items()
    )
    (HERE / "tokens.json").write_text(f"{{{names}}}\n", encoding="utf-8")


def freeze(tokenizer) -> dict:
    rows = []
    assert tokenizer.is_fast
    for text in [*((one,) for one in TEXTS), *PAIRS]:
        found = tokenizer(*text, return_offsets_mapping=True, return_token_type_ids=True)
        ids = found["input_ids"]
        row = {"text": text, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)}
        row |= {"types": found["token_type_ids"], "offsets": found["offset_mapping"]} if len(text) == 2 else {}
        rows.append(row | {"words": tokenizer.decode(ids, skip_special_tokens=True)})
    return {"rows": rows, "size": len(tokenizer)}


if __name__ == "__main__":
    main()
