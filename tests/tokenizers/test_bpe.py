"""BPE of a vocabulary and merges in memory: a tokenizer of them, and their training."""

import json

import pytest

import attnkit
from attnkit.errors import DataError, UsageError
from attnkit.tokenizers.bpe import byte_characters, make_bpe, train_bpe
from tests.places import folder
from tests.process import run

TEXT = "the cat sat on the mat, that the cat saw<|endoftext|>the mat ate é 7"


def test_a_vocabulary_of_bytes_and_one_of_gpt2_are_the_same_tokenizer():
    vocabulary, merges = train_bpe([TEXT], 270, ["<|endoftext|>"])
    spelled = {"".join(byte_characters()[one] for one in token): id for id, token in vocabulary.items() if id}
    own, other = (
        make_bpe(vocabulary, merges, ["<|endoftext|>"]),
        make_bpe(
            {"<|endoftext|>": 0} | spelled,
            [tuple("".join(byte_characters()[one] for one in part) for part in pair) for pair in merges],
            ["<|endoftext|>"],
        ),
    )
    ids = own.encode(TEXT).ids
    assert ids == other.encode(TEXT).ids and ids.count(0) == 1
    assert b"".join(vocabulary[id] for id in ids).decode() == TEXT
    assert own.decode(ids, with_special=True) == TEXT
    assert own.decode(ids) == TEXT.replace("<|endoftext|>", "")


def test_special_tokens_are_text_where_it_is_plain_and_the_longest_is_taken():
    tokenizer = make_bpe({id: bytes([id]) for id in range(256)}, [], ["<|end|>", "<|end|><|end|>"])
    assert tokenizer.encode("a<|end|><|end|>").ids == [97, 257]
    assert tokenizer.encode("a<|end|>", plain=True).ids == [97, *b"<|end|>"]
    assert tokenizer.encode("a<|end|>").ids == [97, 256]


def test_merges_by_hand_and_of_equally_frequent_pairs_the_greatest():
    """Words: ab, cd, cd-: (a, b), (c, d) once or twice; then (' ', 'cd') and ('cd', '-') once each."""
    vocabulary, merges = train_bpe(["ab cd", "cd-"], 261)
    assert merges == [(b"c", b"d"), (b"a", b"b"), (b" ", b"cd")]
    assert [vocabulary[id] for id in range(256, 259)] == [b"cd", b"ab", b" cd"]
    assert train_bpe(["aaaa"], 300)[1] == [(b"a", b"a"), (b"aa", b"aa")]  # and then no pair is left


def test_no_merge_crosses_a_word_or_a_special_token():
    _, merges = train_bpe(["ab<s>ba<s>ab ba"], 300, ["<s>"])
    assert {first + second for first, second in merges} == {b"ab", b"ba", b" ba"}


def test_wrong_sizes_and_merges():
    with pytest.raises(UsageError, match="size 10 "):
        train_bpe(["a"], 10)
    with pytest.raises(DataError, match="not the merges of the vocabulary"):
        make_bpe({0: b"a"}, [(b"a", b"b")])


def test_embed_takes_a_tokenizer_in_memory():
    tokenizer = make_bpe(*train_bpe(["low low lower"], 260, ["<end>"]), special=["<end>"])
    record = attnkit.embed("low lower<end>", tokenizer=tokenizer, dim=4)
    assert record.labels["token"] == ["low", "Ġlow", "e", "r", "<end>"]
    assert attnkit.embed("<end>", tokenizer=tokenizer, dim=4, plain=True)["ids"].shape == (5,)


@pytest.mark.parametrize("name", ["gpt2", "marian", "t5", "llama"])
def test_special_tokens_are_kept_on_request(name):
    from attnkit.checkpoints import open_checkpoint
    from attnkit.inputs.text_inputs import tokenizer_of

    tokenizer = tokenizer_of(open_checkpoint(str(folder(name))), "source")
    end = tokenizer.vocabulary[tokenizer.special["eos"]]
    ids = [*tokenizer.encode("a b", with_special=False).ids, tokenizer.special["eos"]]
    assert end in tokenizer.decode(ids, with_special=True) and end not in tokenizer.decode(ids)
    assert tokenizer.keeping_special().decode(ids) == tokenizer.decode(ids, with_special=True)
    plain = tokenizer.encode(f"a {end}", plain=True, with_special=False).ids
    assert tokenizer.special["eos"] not in plain and tokenizer.special["eos"] in tokenizer.encode(f"a {end}").ids


def test_decode_keeps_special_tokens_of_a_generated_text():
    """The ids of a prompt, among them the end of a text."""
    model = str(folder("gpt2"))
    ids = json.loads(run("embed", "a<|endoftext|>b", "--model", model, "--only", "ids").out)["tensors"]["ids"]["data"]
    line = ["decode", "--model", model, "--ids", "-", "--max-tokens", "1", "--emit", "text"]
    plain, kept = (run(*line, *more, stdin=json.dumps(ids).encode()).out.decode() for more in ([], ["--keep-special"]))
    assert kept.startswith("a<|endoftext|>b") and plain == kept.replace("<|endoftext|>", "")
