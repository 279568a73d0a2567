"""Tokenizers from a text: they round-trip, as published folders have them, the same bytes in every process."""

import hashlib
import json
import re
import subprocess
import sys

import pytest

from attnkit import callbacks
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.checkpoints.t5 import SENTINELS
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.training import vocabulary
from attnkit.training.families import FAMILIES, family_tokens
from attnkit.training.folder import write_folder
from attnkit.training.vocabulary import parse_kind, train_tokenizer

pytestmark = pytest.mark.no_blas
TEXT = (
    "The cat sat on the mat.\nIl est à la gare, n'est-ce pas ?\n\tTwo  spaces,   three;\n"
    "Reading, writing and counting: that is what a school is for, and they walked, talked and laughed.\n"
    "Once upon a time there was a cat that sat on a mat, and a bat that sat on a hat.\n"
) * 3
SIZES = ("chars", "bpe:300", "unigram:58")
KINDS = pytest.mark.parametrize("kind", SIZES)
# BPE and unigram of a Marian are trained on pairs
EACH_TOKENIZER = pytest.mark.parametrize(
    ("family", "kind"),
    [(one, kind) for one in FAMILIES if one != "vit" for kind in SIZES if one != "marian" or kind == "chars"],
)
PAIRS = "le chat dort\tthe cat sleeps\n\nle chat, la fille et l'été\tthe cat, the girl and the summer\n" * 9


def load(family, kind, folder):
    write_folder(str(folder), train_tokenizer(parse_kind(kind), family, [TEXT], "text.txt"))
    return open_tokenizer(str(folder))


@EACH_TOKENIZER
def test_a_text_comes_back_from_its_ids(family, kind, tmp_path):
    tokenizer = load(family, kind, tmp_path)
    ids = tokenizer.encode(TEXT, tokenizer.vocabulary).ids
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.special["unk"] not in ids
    special = {name: tokenizer.vocabulary.index(token) for name, token in family_tokens(family).names.items()}
    assert special.items() <= dict(tokenizer.special).items()
    first = [tokenizer.vocabulary.index(token) for token in family_tokens(family).before]
    last = [tokenizer.vocabulary.index(token) for token in family_tokens(family).after]
    assert ids[: len(first)] == first and ids[len(ids) - len(last) :] == last
    assert tokenizer.encode("", tokenizer.vocabulary).ids == first + last
    assert [id for id in ids[len(first) : len(ids) - len(last)] if id in special.values()] == []


@EACH_TOKENIZER
def test_special_tokens_come_first_and_the_size_is_the_requested_one(family, kind, tmp_path):
    vocabulary = load(family, kind, tmp_path).vocabulary
    tokens = family_tokens(family).tokens
    assert tuple(vocabulary[: len(tokens)]) == tokens
    sentinels = len(SENTINELS) * (family == "t5")
    size = int(kind.partition(":")[2] or len(tokens) + len(set(TEXT)))
    assert len(vocabulary) == size + sentinels and "" not in vocabulary
    assert vocabulary[size:] == [*reversed(SENTINELS)][:sentinels]


def test_the_tokens_of_chars_are_the_characters_in_their_order(tmp_path):
    vocabulary = load("gpt2", "chars", tmp_path).vocabulary
    assert vocabulary == ["<|endoftext|>", "<unk>", *sorted(set(TEXT))]


def test_the_files_are_those_of_published_folders(tmp_path):
    load("bert", "bpe:300", tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert [settings[f"{key}_token"] for key in ("pad", "unk", "cls", "sep", "mask")] == list(
        family_tokens("bert").tokens
    )
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "BPE"


PROGRAM = """
import hashlib, sys
from attnkit.training.vocabulary import parse_kind, train_tokenizer
files = train_tokenizer(parse_kind(sys.argv[1]), sys.argv[2], [sys.stdin.read()], "text.txt")
print(hashlib.sha256(b"".join(bytes(part) for name in sorted(files) for part in files[name])).hexdigest())
"""


@pytest.mark.parametrize("family", ["t5", "marian"])
@KINDS
def test_another_process_writes_the_same_bytes(kind, family):
    text = TEXT if family == "t5" else PAIRS
    files = train_tokenizer(parse_kind(kind), family, [text], "text.txt")
    digest = hashlib.sha256(b"".join(bytes(part) for name in sorted(files) for part in files[name])).hexdigest()
    command = [sys.executable, "-c", PROGRAM, kind, family]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest


@pytest.mark.parametrize("kind", ["bpe:60", "unigram:60"])
def test_a_marian_has_a_sentencepiece_model_for_each_language(kind, tmp_path):
    write_folder(str(tmp_path), train_tokenizer(parse_kind(kind), "marian", [PAIRS], "pairs.tsv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "source.spm",
        "target.spm",
        "tokenizer_config.json",
        "vocab.json",
    ]
    source, target = (open_tokenizer(str(tmp_path), side) for side in ("source", "target"))
    assert source.vocabulary == target.vocabulary
    assert source.vocabulary[:2] == ["</s>", "<unk>"] and source.vocabulary[-1] == "<pad>"
    assert {name: source.vocabulary[id] for name, id in source.special.items()} == {
        "eos": "</s>",
        "unk": "<unk>",
        "pad": "<pad>",
    }
    for tokenizer, text in ((source, "le chat, la fille et l'été"), (target, "the cat, the girl and the summer")):
        ids = tokenizer.encode(text, tokenizer.vocabulary).ids
        assert tokenizer.decode(ids) == text and ids[-1] == 0 and 1 not in ids
    decomposed = source.encode("l'e\u0301te\u0301", source.vocabulary).ids
    assert decomposed == source.encode("l'été", source.vocabulary).ids
    assert 1 in source.encode("whisky", source.vocabulary).ids  # letters of English alone


def test_special_tokens_that_a_text_writes_are_no_part_of_it(tmp_path):
    """A line of <|endoftext|> after each text teaches a model to end; its letters are not for other words."""
    for kind in ("chars", "bpe:280"):
        for name, text in (("with", "one tale<|endoftext|>\nanother" * 5), ("without", "one tale\nanother" * 5)):
            write_folder(str(tmp_path / name), train_tokenizer(parse_kind(kind), "gpt2", [text], "tales.txt"))
        tokenizers = [open_tokenizer(str(tmp_path / name)) for name in ("with", "without")]
        assert tokenizers[0].vocabulary == tokenizers[1].vocabulary
        ids = tokenizers[0].encode("tale<|endoftext|>", tokenizers[0].vocabulary).ids
        assert ids[-1] == 0 and 0 not in ids[:-1] and 1 not in ids


@pytest.mark.parametrize("long", ["猫" * 2500, "ab" * 1250, " " * 2500, "-_" * 1250], ids=["猫", "ab", "space", "-_"])
def test_a_long_word_is_cut(long):
    """The trainer of BPE takes time with the square of a word's length."""
    text = f"one\n1 {long}. two\n{long[:1000]}"
    with pytest.warns(AttnkitNote, match=r"^text.txt: 1 long word cut into parts of 1,000 characters, to train"):
        parts = vocabulary._cut_long_words([text], "text.txt")
    assert "".join(parts) == text and len(parts) == 3
    words = [word for part in parts for word in re.findall(r"\w+|\s+|[^\w\s]+", part.replace("_", "-"))]
    assert max(map(len, words)) <= 1001  # a space may come before the first part


@pytest.mark.parametrize(("kind", "family"), [("bpe:400", "gpt2"), ("unigram:200", "t5"), ("bpe:400", "marian")])
def test_a_text_without_spaces_trains_a_tokenizer(kind, family):
    """So long a word at once would take BPE a minute, and leave unigram no finite probability."""
    text, told = "".join(chr(0x4E00 + number * number % 211) for number in range(100_000)), []
    with callbacks.use_callbacks(callbacks.Callbacks(on_progress=told.append)), pytest.warns(AttnkitNote):
        files = train_tokenizer(parse_kind(kind), family, [f"{text}\t{text}"], "text.txt")
    assert len(files) >= 2
    names = {"gpt2": ["bpe of 400 tokens"], "t5": ["unigram of 200 tokens"], "marian": ["source.spm", "target.spm"]}
    assert told == [f"tokenizer: {name}" for name in names[family]]


def test_a_pair_of_texts_has_the_tokens_of_the_family_around_both(tmp_path):
    tokenizer = load("bert", "chars", tmp_path)
    tokens = tokenizer.encode("a", tokenizer.vocabulary, pair="b")
    assert tokens.spellings == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    assert tokens.types == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "text",
    ["words:9", "bpe", "bpe:", "bpe:0", "bpe:-1", "chars:9", "unigram:many", "bpe:9999999", "bpe:" + "9" * 5000],
)
def test_kinds_that_do_not_exist(text):
    with pytest.raises(UsageError, match="expected chars, words, bpe:N, unigram:N or a folder"):
        parse_kind(text)


def test_texts_and_sizes_that_give_no_tokenizer():
    with pytest.raises(DataError, match=r"tales.txt: empty text"):
        train_tokenizer(parse_kind("chars"), "gpt2", [""], "tales.txt")
    with pytest.raises(UsageError, match=r"bpe:200 .expected 258 or more: 256 bytes"):
        train_tokenizer(parse_kind("bpe:200"), "gpt2", [TEXT], "tales.txt")
    with pytest.raises(UsageError, match=r"unigram:9000 \(this text has pieces for [0-9]+ tokens at most"):
        train_tokenizer(parse_kind("unigram:9000"), "gpt2", [TEXT], "tales.txt")
    with pytest.raises(DataError, match=r"tales.txt: no tokenizer can be trained on it: "):
        train_tokenizer(parse_kind("unigram:9"), "gpt2", [TEXT], "tales.txt")
    with pytest.raises(DataError, match=r"pairs.tsv: no tokenizer can be trained on it: "):
        train_tokenizer(parse_kind("unigram:9"), "marian", [PAIRS], "pairs.tsv")
    with pytest.raises(DataError, match=r"pairs.tsv: line 1: 1 column .expected source, tab, target"):
        train_tokenizer(parse_kind("unigram:90"), "marian", ["no pair"], "pairs.tsv")


def test_words_are_runs_of_letters_and_single_other_characters(tmp_path):
    write_folder(str(tmp_path), train_tokenizer(parse_kind("words"), "gpt2", ["Où est-ce ? U.S._1\n"], "a.txt"))
    tokenizer = open_tokenizer(str(tmp_path), "source")
    assert tokenizer.vocabulary[2:] == sorted(["Où", "est", "-", "ce", "?", "U", ".", "S", "_1"])
    ids = tokenizer.encode("est-ce Où?", tokenizer.vocabulary).ids
    assert [tokenizer.vocabulary[id] for id in ids] == ["est", "-", "ce", "Où", "?"]
