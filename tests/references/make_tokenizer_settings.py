"""Tokenizers with drawn settings, and the ids that transformers gives of odd texts, frozen.

    pip install transformers==5.23.0 tokenizers sentencepiece protobuf
    python tests/references/make_tokenizer_settings.py

Each kind is a folder of tests/references/models with or without its tokenizer.json, or one that a class of transformers
saves of its files. The settings that its class reads are drawn. Writes tokenizer_settings.json.xz: of each kind the
`files` that are not in models/, and `cases`: what each file of settings says, and `rows` of a text, its ids, and the
text decoded without special tokens. The same bytes come out of every run.
"""

import json
import lzma
import os
import pathlib
import random
import shutil
import tempfile
from typing import Any, NamedTuple

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers

HERE = pathlib.Path(__file__).parent
TEXT_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
MODEL_FILES = ("spiece.model", "tokenizer.model", "source.spm", "target.spm", "spm.model", "sentencepiece.bpe.model")
ENDS, CLEANS = ("add_bos_token", "add_eos_token"), "clean_up_tokenization_spaces"
BERT = (CLEANS, "do_lower_case", "strip_accents", "tokenize_chinese_chars", "split_special_tokens")
BYTES = (*ENDS, CLEANS, "add_prefix_space", "split_special_tokens")
OF_QWEN2 = (0, 3, 4)  # its class adds the special tokens once more, without their flags
CASES, TEXTS = 20, 15  # of each kind


class Kind(NamedTuple):
    """A kind of tokenizer: the folder it is made of, the files left out, the class that saves it, and its settings.

    whole_words  whether an added token may be a single word
    ways         how settings state tokens, see draw_settings
    """

    source: str
    settings: tuple[str, ...] = (CLEANS,)
    without: tuple[str, ...] = ()
    saved_by: str = ""
    family: str = ""
    whole_words: bool = True
    ways: tuple[int, ...] = (0, 1, 2, 3, 4)


KINDS = {
    "bert json": Kind("bert-mlm", BERT),
    "bert": Kind("bert-mlm", BERT, ("tokenizer.json",)),
    "roberta json": Kind("roberta", BYTES),
    "roberta": Kind("roberta", BYTES, ("tokenizer.json",)),
    "bart": Kind("roberta", BYTES, ("tokenizer.json",), family="bart"),
    "gpt2 json": Kind("gpt2", BYTES),
    "gpt2": Kind("gpt2", BYTES, ("tokenizer.json",)),
    "qwen2 json": Kind("gpt2", (*ENDS, CLEANS), saved_by="Qwen2Tokenizer", family="qwen2", ways=OF_QWEN2),
    "qwen2": Kind("gpt2", (CLEANS,), ("tokenizer.json",), family="qwen2", ways=OF_QWEN2),
    "gpt_neox json": Kind("gpt2", (CLEANS,), saved_by="GPTNeoXTokenizer", family="gpt_neox"),
    "mpnet json": Kind("mpnet", BERT),
    "mpnet": Kind("mpnet", BERT, ("tokenizer.json",)),
    "modernbert json": Kind("modernbert", (*ENDS, CLEANS)),
    "albert json": Kind("albert"),
    "xlm-roberta json": Kind("xlm-roberta", (*ENDS, CLEANS)),
    "deberta-v2 json": Kind("deberta-v3"),
    "llama json": Kind("llama", (*ENDS, CLEANS), saved_by="LlamaTokenizer"),
    "llama": Kind("llama", (*ENDS, CLEANS, "legacy", "add_prefix_space", "split_special_tokens")),
    "t5 json": Kind("t5", (*ENDS, CLEANS), saved_by="T5Tokenizer"),
    "t5": Kind("t5"),
    "marian": Kind("marian", whole_words=False),
}
PARTS = (
    "the cat sat reading Hello naïve CAFÉ don't I_'m it_'s . , ! ? <mask> [MASK] <s> </s> <pad> <unk> [CLS] [SEP] "
    "<|endoftext|> 1234 3.14 漢字 🙂 é x <new> Anew ab<new>cd _<new>_ A<NEW> ▁ ##ing `a' http://a.b/c?d=e foo_bar"
)
PARTS = [part.replace("_", " ") if part != "foo_bar" else part for part in PARTS.split(" ")]
PARTS += [" ", "  ", "\n", "\t", "\r\n", "e\u0301", "\xa0", "<new> ", " <mask> "]


def draw_text(source: random.Random) -> str:
    return "".join(source.choice(PARTS) + source.choice(("", "", " ")) for _ in range(source.randint(0, 9)))


def draw_flags(source: random.Random, kind: Kind) -> dict[str, bool]:
    flags = {name: source.random() < 0.4 for name in ("lstrip", "rstrip", "single_word", "normalized")}
    return flags | {"single_word": flags["single_word"] and kind.whole_words}


def draw_settings(source: random.Random, kind: Kind, folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Draw what the files of settings say beside what the folder's own tokenizer_config.json does."""
    stated: dict[str, Any] = {name: source.random() < 0.5 for name in kind.settings if source.random() < 0.4}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    mask = {"content": str(tokenizer.mask_token or "<mask>"), **draw_flags(source, kind)}
    way = source.choice(kind.ways)
    if way == 0:  # as transformers saves it: all added tokens by id, with their flags
        added = {str(id): token.__getstate__() for id, token in tokenizer.added_tokens_decoder.items()}
        new = {"content": "<new>", **draw_flags(source, kind), "special": source.random() < 0.5}
        for one in added.values():
            one |= {} if one["content"] != mask["content"] else mask
        return {"tokenizer_config.json": stated | {"added_tokens_decoder": added | {str(len(tokenizer)): new}}}
    if way == 1:
        return {"tokenizer_config.json": stated, "special_tokens_map.json": {"mask_token": mask}}
    if way == 2:
        whole = {"__type": "AddedToken", **mask, "special": True}
        return {"tokenizer_config.json": stated | {"mask_token": whole}}
    if way == 3:
        return {"tokenizer_config.json": stated, "added_tokens.json": {"<new>": len(tokenizer)}}
    return {"tokenizer_config.json": stated | {source.choice(("extra", "additional")) + "_special_tokens": ["<new>"]}}


def write_settings(folder: pathlib.Path, settings: dict[str, dict[str, Any]]) -> None:
    for name, stated in settings.items():
        path = folder / name
        there = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(there | stated))


def make_folder(kind: Kind, folder: pathlib.Path) -> dict[str, str]:
    """Write the files of a kind. Return those that are not in models/, as text."""
    for name in ("config.json", "tokenizer_config.json", *TEXT_FILES, *MODEL_FILES):
        if (HERE / "models" / kind.source / name).exists() and name not in kind.without:
            shutil.copy(HERE / "models" / kind.source / name, folder)
    made = {}
    if kind.saved_by:
        getattr(transformers, kind.saved_by).from_pretrained(folder).save_pretrained(folder)
        for name in (*MODEL_FILES, "vocab.json", "merges.txt"):
            (folder / name).unlink(missing_ok=True)
        stated = json.loads((folder / "tokenizer_config.json").read_text())
        kept = {name: value for name, value in stated.items() if name.endswith(("_token", "_class", "_ids", "_tokens"))}
        (folder / "tokenizer_config.json").write_text(json.dumps(kept))
        made = {name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    if kind.family:
        made["config.json"] = json.dumps({"model_type": kind.family})
        (folder / "config.json").write_text(made["config.json"])
        stated = json.loads((folder / "tokenizer_config.json").read_text())
        if not kind.saved_by:
            stated["tokenizer_class"] = {"bart": "BartTokenizer", "qwen2": "Qwen2Tokenizer"}[kind.family]
            made["tokenizer_config.json"] = json.dumps(stated)
            (folder / "tokenizer_config.json").write_text(made["tokenizer_config.json"])
    return made


def freeze(number: int, kind: Kind) -> dict[str, Any]:
    source, cases = random.Random(number), []
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place, "a")
        folder.mkdir()
        made = make_folder(kind, folder)
        for case in range(CASES):
            copy = shutil.copytree(folder, pathlib.Path(place, f"case-{case}"))
            settings = draw_settings(source, kind, folder)
            write_settings(copy, settings)
            tokenizer = transformers.AutoTokenizer.from_pretrained(copy)
            rows = []
            for text in [draw_text(source) for _ in range(TEXTS)]:
                ids = tokenizer(text)["input_ids"]
                rows.append((text, ids, tokenizer.decode(ids, skip_special_tokens=True)))
            cases.append({"settings": settings, "rows": rows})
    return {"source": kind.source, "without": kind.without, "files": made, "cases": cases}


def main() -> None:
    frozen = {name: freeze(number, kind) for number, (name, kind) in enumerate(KINDS.items())}
    text = json.dumps(frozen, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    (HERE / "tokenizer_settings.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
