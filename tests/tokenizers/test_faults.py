"""Bad folders: one line that names the file and what is wrong in it."""

import base64
import json
import sys

import pytest

from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import DataError, FileError, UsageError
from attnkit.tokenizers import files, huggingface
from attnkit.tokenizers.huggingface import parse_tokenizer_json
from tests.places import MODELS

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 466247\n"
WORDS = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n"


def fails(path, message, kind=DataError, text=None):
    with pytest.raises(kind, match=message) as caught:
        tokenizer = open_tokenizer(str(path))
        if text is not None:
            tokenizer.encode(text)
    assert "\n" not in str(caught.value)


def write(path, **files):
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        (path / f"{stem}.{ending}").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def test_no_folder(tmp_path):
    fails(tmp_path / "none", "none: No such file or directory", FileError)


def test_no_tokenizer(tmp_path):
    write(tmp_path, config_json={})
    fails(tmp_path, r"no tokenizer in the folder \(looked for tokenizer.json, vocab.txt, vocab.json with merges.txt")


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt", "spiece.model", "tokenizer.model", "vocab.yml"])
@pytest.mark.parametrize(("content", "message"), [(POINTER, "a Git LFS pointer"), (b"", "empty file")])
def test_half_downloaded(tmp_path, file, content, message):
    (tmp_path / file).write_bytes(content)
    fails(tmp_path, f"{file}: {message}")


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt", "vocab.yml", "tokenizer_config.json"])
def test_not_utf_8(tmp_path, file):
    (tmp_path / "vocab.txt").write_bytes(WORDS) if file == "tokenizer_config.json" else None
    (tmp_path / file).write_bytes(b"ab\xff")
    fails(tmp_path, rf"{file}: not UTF-8 text \(byte 2\)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a tokenizer.json: EOF"),
        (b"{}", "not a tokenizer.json: Model missing"),
        (b'{"model": {"type": "Unigram", "vocab": []}}', "the tokenizer has no vocabulary"),
        (b"[]", "not a tokenizer.json"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "the tokenizer has no vocabulary"),
    ],
)
def test_not_a_tokenizer_json(tmp_path, content, message):
    write(tmp_path, tokenizer_json=content)
    fails(tmp_path, f"tokenizer.json: {message}")


@pytest.mark.parametrize("row", [7, [], [7, 0.0], ["a"], {"a": 0}])
def test_a_row_of_a_unigram_model_that_is_no_piece(row, tmp_path):
    write(tmp_path, tokenizer_json={"model": {"type": "Unigram", "unk_id": 0, "vocab": [row]}})
    fails(tmp_path, "tokenizer.json: not a tokenizer.json: invalid ")


def test_the_largest_id_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_ID", 9)
    monkeypatch.setattr(huggingface, "LARGEST_ID", 9)
    for id, size in ((9, 10), (10, None)):
        vocabularies = {
            "vocab_json": {"a": id},
            "tokenizer_json": {"model": {"type": "WordLevel", "vocab": {"a": id}, "unk_token": "a"}},
        }
        for name, content in vocabularies.items():
            place = tmp_path / f"{name}-{id}"
            place.mkdir()
            write(place, **{name: content})
            if size:
                assert len(open_tokenizer(str(place)).vocabulary) == size
            else:
                with pytest.raises(DataError, match=r"id 10 \(expected 0 to 9\)$"):
                    _ = open_tokenizer(str(place)).vocabulary


def test_an_id_out_of_reason(tmp_path):
    model = {"type": "WordLevel", "vocab": {"a": 4_000_000_000}, "unk_token": "a"}
    write(tmp_path, tokenizer_json={"model": model})
    with pytest.raises(DataError, match="id 4000000000"):
        _ = open_tokenizer(str(tmp_path)).vocabulary


def test_a_text_without_an_unknown_token(tmp_path):
    write(tmp_path, tokenizer_json={"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}})
    fails(tmp_path, r"tokenizer.json: cannot tokenize the text: .*\[UNK\]", text="b")


@pytest.mark.parametrize("missing", ["[UNK]", "[CLS]", "[SEP]"])
def test_vocab_txt_without_special_tokens(tmp_path, missing):
    write(tmp_path, vocab_txt=WORDS.replace(missing.encode() + b"\n", b""))
    fails(tmp_path, rf"vocab.txt: the vocabulary has no \[{missing[1:-1]}\] \(3 words\)")


def test_settings_of_another_kind(tmp_path):
    write(tmp_path, vocab_txt=WORDS, tokenizer_config_json={"do_lower_case": "yes"})
    fails(tmp_path, "tokenizer_config.json: do_lower_case is 'yes'")
    write(tmp_path, tokenizer_config_json=b"[1]")
    fails(tmp_path, "tokenizer_config.json: not a JSON object")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (b"{'a': 1}", "not JSON"),
        (b"[]", "not a JSON object"),
        ({"a": "0"}, "token 'a' has id '0'"),
        ({"a": -1}, "token 'a' has id -1"),
        ({"a": 1 << 40}, "token 'a' has id 1099511627776"),
        ({"a": 0, "b": 0}, "tokens 'a' and 'b' have the same id 0"),
    ],
)
def test_not_a_vocabulary(tmp_path, vocabulary, message):
    write(tmp_path, vocab_json=vocabulary, merges_txt=b"#version: 0.2\n")
    fails(tmp_path, f"vocab.json: {message}")


@pytest.mark.parametrize(
    ("merges", "message"), [(b"a b c\n", "not a merge of two tokens: 'a b c'"), (b"a x\n", "not the merges of vocab")]
)
def test_not_merges(tmp_path, merges, message):
    write(tmp_path, vocab_json={"a": 0, "b": 1, "ab": 2}, merges_txt=merges)
    fails(tmp_path, f"merges.txt: {message}")


@pytest.mark.parametrize("file", ["source.spm", "spiece.model", "tokenizer.model"])
def test_not_a_sentencepiece_model(tmp_path, file):
    (tmp_path / file).write_bytes((MODELS / "llama" / "tokenizer.model").read_bytes()[:1000])
    fails(tmp_path, f"{file}: not a sentencepiece model")


def test_sentencepiece_models_without_their_vocabulary(tmp_path):
    model = (MODELS / "t5" / "spiece.model").read_bytes()
    (tmp_path / "source.spm").write_bytes(model)
    fails(tmp_path, "no vocab.json or vocab.yml beside")
    write(tmp_path, vocab_json={"</s>": 0})
    fails(tmp_path, "vocab.json: the vocabulary of 1 tokens has no unk token")
    with pytest.raises(FileError, match=r"target\.spm: No such file"):
        open_tokenizer(str(tmp_path), "target")


def test_yaml_lines(tmp_path):
    write(tmp_path, vocab_yml=b"a: 0\n- b\n")
    fails(tmp_path, "vocab.yml: line 2 is not `token: id`: '- b'")
    write(tmp_path, vocab_yml=b"a: 0\na: 1\n")
    fails(tmp_path, "vocab.yml: line 2: token 'a' occurs twice")
    write(tmp_path, vocab_yml=b"a: 0\n")
    fails(tmp_path, r"vocab.yml: token 'b' at \[1\] is not in the vocabulary", text="a b")


@pytest.mark.parametrize(("library", "name"), [("tokenizers", "bert-mlm"), ("sentencepiece", "t5")])
def test_without_the_library(monkeypatch, library, name):
    monkeypatch.setitem(sys.modules, library, None)
    fails(MODELS / name, rf"needs the {library} library: pip install '\.\[text\]'", UsageError)


def test_a_tokenizer_json_alone():
    with pytest.raises(DataError, match=r"t\.json: a Git LFS pointer"):
        parse_tokenizer_json(POINTER.decode(), "t.json")


@pytest.mark.parametrize("escape", ["\\UFFFFFFFF", "\\ud800", "\\uDFFF", "\\U00110000", "\\xZZ", "\\u12", "\\q"])
def test_escapes_that_are_no_character(tmp_path, escape):
    (tmp_path / "vocab.yml").write_text(f'a: 0\n"b{escape}": 1\n')
    fails(tmp_path, "vocab.yml: line 2: escape .* is no character")


def test_escapes_beside_those_that_are_none():
    assert files.unescape_yaml(r"\uD7FF\uE000\U0010FFFF\0\x00") == "\ud7ff\ue000\U0010ffff\0\0"


def test_every_escape_of_yaml(tmp_path):
    (tmp_path / "vocab.yml").write_text(r'"\x41\u00e9\U0001f642\t\"\\\N\_\L\P\/\ ": 0')
    assert open_tokenizer(str(tmp_path)).vocabulary == ['Aé🙂\t"\\\x85\xa0\u2028\u2029/ ']


@pytest.mark.parametrize(("count", "size", "room"), [(1, 80, 0), (1, 3, 0), (0, 3, None), (4, 84, None), (0, 80, None)])
def test_extra_ids_as_a_vocabulary_has_room_for(tmp_path, count, size, room):
    (tmp_path / "spiece.model").write_bytes((MODELS / "t5" / "spiece.model").read_bytes())
    write(tmp_path, tokenizer_config_json={"extra_ids": count}, config_json={"vocab_size": size})
    if room is None:
        assert len(open_tokenizer(str(tmp_path)).vocabulary) == 80 + count
    else:
        fails(tmp_path, rf"expected 0 to {room}, as 80 pieces in a vocab_size of {size} allow")


def test_extra_ids_that_the_model_has_no_room_for(tmp_path):
    for file in ("spiece.model", "config.json"):
        (tmp_path / file).write_bytes((MODELS / "t5" / file).read_bytes())
    write(tmp_path, tokenizer_config_json={"extra_ids": 200_000})
    fails(
        tmp_path, r"tokenizer_config.json: extra_ids is '200000' \(expected 0 to 4, as 80 pieces in a vocab_size of 84"
    )
    (tmp_path / "config.json").unlink()
    fails(tmp_path, r"extra_ids is '200000' \(expected 0 to 65536\)")


def test_very_many_tokens_found_whole(tmp_path):
    """A pattern of so many alternatives takes half a minute to make."""
    (tmp_path / "spiece.model").write_bytes((MODELS / "t5" / "spiece.model").read_bytes())
    write(tmp_path, tokenizer_config_json={"extra_ids": 1 << 16})
    tokens = (
        open_tokenizer(str(tmp_path)).encode("a <extra_id_1> b <extra_id_12> <extra_id_65535><extra_id_x>").spellings
    )
    assert [token for token in tokens if token.startswith("<extra")] == [
        "<extra_id_1>",
        "<extra_id_12>",
        "<extra_id_65535>",
    ]


PRECOMPILED = {
    "type": "Precompiled",
    "precompiled_charsmap": base64.b64encode(b"\xff\xff\xff\xff" + bytes(64)).decode(),
}
EMPTY = {"type": "Replace", "pattern": {"String": ""}, "content": "y"}
MALFORMED = "the precompiled_charsmap is malformed"
NO_PATTERN = "normalizer: Replace needs a pattern that is not empty"
NO_PREFIX = r"merges: 't' does not begin with continuing_subword_prefix '{}'"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("normalizer", PRECOMPILED, MALFORMED),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}, PRECOMPILED]}, MALFORMED),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}, MALFORMED),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "a"}, MALFORMED),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": None}, MALFORMED),
        ("normalizer", EMPTY, NO_PATTERN),
        ("normalizer", {"type": "Sequence", "normalizers": [EMPTY]}, NO_PATTERN),
        ("normalizer", EMPTY | {"pattern": {"Regex": ""}}, NO_PATTERN),
        ("prefix", "##", NO_PREFIX.format("##")),
        ("prefix", "\x00\x1b\n", NO_PREFIX.format(r"\\x00\\x1b\\n")),
        ("prefix", "é" * 5000, NO_PREFIX.format("é" * 40)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("merges", [["a t"], [["a", "t"]]])
def test_a_value_on_which_the_library_would_panic(key, value, problem, merges, capfd):
    """Nothing is on standard error, where the library would write a message and its addresses."""
    model = {"type": "BPE", "vocab": {"a": 0, "t": 1, "at": 2}, "merges": merges}
    document = (
        {"model": model | {"continuing_subword_prefix": value}} if key == "prefix" else {"model": model, key: value}
    )
    with pytest.raises(DataError, match=f"^t.json: {problem}$"):
        parse_tokenizer_json(json.dumps(document), "t.json").encode("at")
    assert capfd.readouterr().err == ""


def test_merges_with_the_prefix_of_their_tokens():
    model = {
        "type": "BPE",
        "vocab": {"a": 0, "##t": 1, "at": 2},
        "merges": ["a ##t"],
        "continuing_subword_prefix": "##",
    }
    assert parse_tokenizer_json(json.dumps({"model": model}), "t.json").encode("at").ids == [2]


def test_a_piece_of_a_unigram_model_that_the_library_cannot_free():
    """The library frees a tree as deep as a piece is long, one call within another: 200,000 levels end the process."""
    vocab = [["<unk>", 0.0], ["a", -1.0], ["a" * 4096, -2.0]]
    document = {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}}
    assert parse_tokenizer_json(json.dumps(document), "t.json").encode("a").ids == [1]
    vocab[2][0] = "a" * 200_000
    with pytest.raises(DataError, match=r"^t.json: a piece of 200000 characters .expected at most 4096.$"):
        parse_tokenizer_json(json.dumps(document), "t.json")
