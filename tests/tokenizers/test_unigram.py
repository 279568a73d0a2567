"""Folders of text encoders with a sentencepiece model and no tokenizer.json: the tokens of transformers, and errors."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnkit
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import DataError
from attnkit.tokenizers.files import check_charsmap
from attnkit.tokenizers.unigram import read_sentencepiece
from tests.tokenizers.spiece_folders import FILES, HERE, REFERENCES, model_bytes, write_folder

MODELS = REFERENCES / "models"
FROZEN = json.loads((HERE / "tokens.json").read_text())


def load(folder, family, model=None, settings=None, has_class=True):
    write_folder(folder, family, model_bytes(family) if model is None else model, settings or {}, has_class)
    return open_tokenizer(str(folder))


@pytest.mark.parametrize("name", FROZEN)
def test_tokens_are_those_of_transformers(tmp_path, name):
    one = FROZEN[name]
    tokenizer = load(tmp_path, name.partition(".")[0], settings=one["settings"], has_class=name != "albert")
    assert len(tokenizer.vocabulary) == one["size"]
    for row in one["rows"]:
        text, pair = (*row["text"], None)[:2]
        if name == "deberta-v2.lower" and "[UNK]" in text:  # which is found before the text is in lower case
            continue
        found = tokenizer.encode(text, pair=pair)
        assert (found.ids, found.spellings) == (row["ids"], row["tokens"])
        assert tokenizer.decode(found.ids) == row["words"]
        if pair is not None:
            assert found.types == row["types"]
            assert [list(place) for place in tokenizer.locate(text, pair).offsets] == row["offsets"]


@pytest.mark.parametrize("family", FILES)
def test_a_text_is_cut_with_its_special_tokens(tmp_path, family):
    tokenizer = load(tmp_path, family)
    whole = tokenizer.encode("The cat sat on the mat.").ids
    cut = tokenizer.truncate("The cat sat on the mat.", None, 5).ids
    assert cut == [*whole[:4], whole[-1]]


def test_a_model_reads_text_by_it(tmp_path):
    row, words = FROZEN["albert"]["rows"][0], "albert.embeddings.word_embeddings.weight"
    raw = json.loads((MODELS / "albert/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"vocab_size": FROZEN["albert"]["size"]}))
    tensors = load_file(MODELS / "albert/model.safetensors")
    resized = {words: np.resize(tensors[words], (FROZEN["albert"]["size"], raw["embedding_size"]))}
    resized["predictions.bias"] = np.resize(tensors["predictions.bias"], FROZEN["albert"]["size"])
    save_file(tensors | resized, tmp_path / "model.safetensors")
    (tmp_path / "spiece.model").write_bytes(model_bytes("albert"))
    record = attnkit.encode(row["text"][0], model=str(tmp_path))
    assert record["ids"].tolist() == row["ids"] and record.labels["token"] == row["tokens"]


def varint(number):
    head, rest = number & 127, number >> 7
    return bytes([head | 128]) + varint(rest) if rest else bytes([head])


def field(number, value):
    """A field of a message: bytes, or a whole number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text, score=-1.0, kind=1):
    return field(1, field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score) + field(3, kind))


BPE = field(2, field(3, 2))
NEEDS = "; such a folder needs a tokenizer.json"


@pytest.mark.parametrize(
    ("family", "model", "problem"),
    [
        ("albert", b"", "empty file"),
        ("albert", b"\x0a\x05abc", "not a sentencepiece model"),
        ("deberta-v2", b"not a model at all", "not a sentencepiece model"),
        ("camembert", b"\xff" * 40, "not a sentencepiece model"),
        ("albert", field(1, b"\x0a\x01\xff"), "not a sentencepiece model"),
        ("albert", field(2, b""), "not a sentencepiece model: no pieces, or a score that is not finite"),
        ("albert", piece("a", float("nan")), "not a sentencepiece model: no pieces, or a score that is not finite"),
        ("albert", piece("é" * 4097), "a piece of 4097 characters (expected at most 4096)"),
        ("albert", piece("a"), f"the model of 1 pieces has no <pad>{NEEDS}"),
        ("deberta-v2", piece("[PAD]") + piece("[CLS]"), f"the model of 2 pieces has no [SEP]{NEEDS}"),
        ("xlm-roberta", piece("a"), f"the first pieces are not <unk>, <s>, </s>{NEEDS}"),
        ("camembert", piece("<unk>"), f"the model of 1 pieces has no <s>{NEEDS}"),
        ("xlm-roberta", piece("a") + BPE, f"a sentencepiece model of algorithm 2, not unigram (1){NEEDS}"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_model_of_its_family(tmp_path, family, model, problem):
    with pytest.raises(DataError) as error:
        load(tmp_path, family, model)
    assert str(error.value) == f"{tmp_path}/{FILES[family]}: {problem}"


def charsmap(units, texts=b"\0", size=None):
    """A map of a block of units, the first ones as passed."""
    trie = struct.pack("<256I", *units, *[0] * (256 - len(units)))
    return struct.pack("<I", len(trie) if size is None else size) + trie + texts


LEAF, HAS_LEAF = 1 << 31, 1 << 8
BAD_MAPS = {
    "a number": 7,
    "too short": b"\xff\xff\xff",
    "a trie of 4 GB": charsmap([], size=2**32 - 4),
    "no trie": charsmap([], size=0),
    "half a block": charsmap([], size=512),
    "longer than the file": charsmap([], size=2048),
    "texts not UTF-8": charsmap([], b"\xff\0"),
    "a child after the trie": charsmap([256 << 10]),
    "a far child": charsmap([1 << 9 | 1 << 10]),
    "a text after the texts": charsmap([HAS_LEAF | 1 << 10, LEAF | 3], b"ab\0"),
    "a text within a character": charsmap([HAS_LEAF | 1 << 10, LEAF | 1], "é\0".encode()),
}


@pytest.mark.parametrize("value", BAD_MAPS.values(), ids=BAD_MAPS)
def test_a_charsmap_that_is_none(tmp_path, value, capfd):
    """The library would allocate what the map requests, and end the process, or panic at the first text."""
    good = (HERE / "albert.model").read_bytes()
    with pytest.raises(DataError) as error:
        load(tmp_path, "albert", good + field(3, field(2, value))).encode("The cat")
    assert str(error.value) == f"{tmp_path}/spiece.model: the precompiled_charsmap is malformed"
    assert capfd.readouterr().err == ""


def test_fields_that_a_model_leaves_out_have_the_values_of_the_format():
    """sentencepiece_model.proto: a piece is NORMAL (1) with score 0, and the unknown piece the first."""
    model = read_sentencepiece(field(1, field(1, b"a")) + field(1, field(1, b"b")), "m.model")
    assert model.pieces == [("a", 0.0, 1), ("b", 0.0, 1)]
    assert (model.unknown, model.algorithm, model.charsmap) == (0, 1, b"")


def test_the_unknown_token_of_deberta_is_found_in_normalized_text(tmp_path):
    tokenizer = load(tmp_path, "deberta-v2")
    assert tokenizer.encode("［UNK］").spellings == ["[CLS]", "[UNK]", "[SEP]"]


def test_a_special_token_in_lower_case_is_text(tmp_path):
    tokenizer = load(tmp_path, "deberta-v2", settings={"do_lower_case": True})
    assert tokenizer.encode("[SEP]").spellings == ["[CLS]", "[SEP]", "[SEP]"]
    assert tokenizer.encode("[sep]").spellings.count("[SEP]") == 1


def test_white_space_that_no_charsmap_removes_stays_before_a_text_and_not_after_it(tmp_path):
    made = load(tmp_path, "xlm-roberta", (HERE / "xlm-roberta.model").read_bytes())
    wide, plain = made.encode("\u2003cat\u2003").ids, made.encode("cat").ids
    assert len(wide) > len(plain) and made.encode("cat\u2003").ids == plain


def test_the_label_of_the_first_unit_of_a_charsmap_is_any():
    check_charsmap(charsmap([1]), "m.model")


def test_the_mask_of_a_model_in_lower_case_is_in_capitals(tmp_path):
    tokenizer = load(tmp_path, "albert")
    assert tokenizer.encode("a [MASK]").spellings.count("[MASK]") == 1
    assert "[MASK]" not in tokenizer.encode("a [mask]").spellings


def test_a_charsmap_of_one_letter(tmp_path):
    """The map of `T` to `cat`, by hand: unit 0 leads to the block's unit `T`, and that to its value."""
    units = [0] * 256
    units[ord("T")] = ord("T") | HAS_LEAF | (ord("T") ^ 1) << 10
    units[1] = LEAF | 0
    made = load(
        tmp_path,
        "xlm-roberta",
        (HERE / "xlm-roberta.model").read_bytes() + field(3, field(2, charsmap(units, b"cat\0"))),
    )
    assert made.encode("T").ids == made.encode("cat").ids != made.encode("the").ids


@pytest.mark.parametrize("file", ["spm.model", "sentencepiece.bpe.model"])
def test_a_file_of_another_family(tmp_path, file):
    (tmp_path / file).write_bytes(model_bytes("albert"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError) as error:
        open_tokenizer(str(tmp_path))
    assert str(error.value) == f"{tmp_path}: {file} is not that of a tokenizer of bert{NEEDS}"


def test_a_long_name_of_a_family_is_cut(tmp_path):
    (tmp_path / "spm.model").write_bytes(model_bytes("albert"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x" * 50}))
    with pytest.raises(DataError, match=f"is not that of a tokenizer of {'x' * 40}; such"):
        open_tokenizer(str(tmp_path))


def test_the_class_of_a_tokenizer_comes_before_the_family_of_the_model(tmp_path):
    """A BERT may have the tokenizer of XLM-RoBERTa, as multilingual sentence models do."""
    tokenizer = load(tmp_path, "xlm-roberta", settings={"tokenizer_class": "XLMRobertaTokenizerFast"})
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    text = "The cat sat"
    assert open_tokenizer(str(tmp_path)).encode(text).ids == tokenizer.encode(text).ids
