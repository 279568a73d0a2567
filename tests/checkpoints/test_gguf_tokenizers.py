"""Tokenizers inside GGUF files: the ids of the tokenizer in the folder, and those of transformers for the same file."""

import json
import shutil
import warnings

import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.checkpoints.gguf_tokenizer import SPLITS
from attnkit.errors import AttnkitNote, DataError
from attnkit.inputs.text_inputs import tokenizer_of
from tests.gguf_models import SPLIT_TEXTS, TOKENIZERS, convert, tokenizer_keys
from tests.places import MODELS, REFERENCES, folder

FROZEN = json.loads((REFERENCES / "gguf_splits.json").read_text())

TEXTS = (
    "The cat sat on the mat.", " two  spaces", "Ünïcödé ﬁnd ½", "don't I'LL", "1234567 and 3.14", "new\nline\n\nend ",
    "tab\tx", "日本語", "😀👍🏽", "", " ", "<s> and </s> within", "[MASK] this", "<extra_id_0> x", "a<|endoftext|>b",
)  # fmt: skip


def load_published(tmp_path, model):
    """The tokenizer of the folder; a Llama that puts a space before every part, as llama.cpp does."""
    copy = tmp_path / "published"
    shutil.copytree(folder(model), copy)
    settings = json.loads((copy / "tokenizer_config.json").read_text()) | {"legacy": True}
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    return open_tokenizer(str(copy))


def load(tmp_path, model, changes=()):
    (tmp_path / "m.gguf").write_bytes(convert(model, tokenizer_keys(model) | dict(changes)))
    with warnings.catch_warnings(action="ignore"):
        return tokenizer_of(open_checkpoint(str(tmp_path / "m.gguf")))


@pytest.mark.parametrize("model", TOKENIZERS)
def test_ids_and_texts_are_those_of_the_folder(model, tmp_path):
    found, expected = load(tmp_path, model), load_published(tmp_path, model)
    for text in TEXTS:
        assert found.encode(text).ids == expected.encode(text).ids, text
        assert found.encode(text).spellings == expected.encode(text).spellings, text
        ids = expected.encode(text).ids
        assert found.decode(ids) == expected.decode(ids), text
    assert found.vocabulary == expected.vocabulary
    assert {**found.special} == {**expected.special}
    assert found.files == (str(tmp_path / "m.gguf"),)


def splitter(name, *more):
    library = pytest.importorskip("tokenizers")
    splits = [library.pre_tokenizers.Split(library.Regex(one), "isolated") for one in SPLITS[name].patterns]
    split = library.pre_tokenizers.Sequence([*splits, *more])
    return lambda text: [part for part, _ in split.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", FROZEN)
def test_text_is_split_as_transformers_splits_it(name):
    library = pytest.importorskip("tokenizers")
    split = splitter(name, library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    for text, expected in zip(SPLIT_TEXTS, FROZEN[name], strict=True):
        assert split(text) == expected, text


# by hand; with the vocabularies that llama.cpp has for its tests, the first three give the ids of its lists
BY_HAND = {
    "deepseek-llm": ("Ab12b\r\n c!! 中文", ["Ab", "12", "b", "\r", "\n", " c", "!!", " ", "中文"]),
    "deepseek-coder": ("Ab12b\r\n c!! 中文", ["Ab", "1", "2", "b", "\r", "\n", " c", "!!", " ", "中文"]),
    "qwen35": ("xq\u0301y 12!\n", ["xq\u0301y", " ", "1", "2", "!\n"]),
    "qwen2": ("xe\u0301y", ["xe", "\u0301y"]),
    "seed-coder": ("it's !!\nx1", ["it", "'s", " !!", "\n", "x", "1"]),
    "viking": (" ab12, c", [" ab", "1", "2", ",", " c"]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_text_is_split_by_the_pattern_of_a_name(name):
    text, expected = BY_HAND[name]
    assert splitter(name)(text) == expected


def test_runs_of_spaces_that_users_defined_are_tokens(tmp_path):
    """GPT-NeoX, MPT and Phi-2 have some."""
    keys = tokenizer_keys("gpt2")
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    tokens[292], kinds[292] = "   ", 4
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": []}
    found = load(tmp_path, "gpt2", changes).encode("a   b").ids
    assert found == [tokens.index("a"), 292, tokens.index("b")]


def test_blanks_that_are_called_unknown(tmp_path):
    """In files of Phi-3 of 2024 <unk> is a control token, and the blanks at the end are unknown ones."""
    keys = tokenizer_keys("llama")
    tokens, scores, kinds = (keys[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    blanks = ["[PAD330]", "[PAD331]"]
    changes = {"tokens": tokens + blanks, "scores": [*scores, 0.0, 0.0], "token_type": [3, *kinds[1:], 2, 2]}
    named = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    found, expected = load(tmp_path, "llama", named), load(tmp_path, "llama")
    for text in ("The cat sat on the mat.", "日本語"):
        assert found.encode(text).ids == expected.encode(text).ids


def test_the_name_of_a_split_changes_the_ids(tmp_path):
    """Qwen2 splits each digit, Llama 3 groups of three; Llama 3 takes a whole part that is a token."""
    keys = tokenizer_keys("gpt2")
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    tokens[290], tokens[291], tokens[292] = "12", "123", "zqz"
    changes = {"tokenizer.ggml.merges": ["1 2", "12 3"], "tokenizer.ggml.tokens": tokens}
    ids = {token: id for id, token in enumerate(tokens)}

    def encode(text, **more):
        named = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
        return load(tmp_path, "gpt2", changes | named).encode(text).ids

    assert encode("1231", pre="gpt-2") == [291, ids["1"]]
    assert encode("1231", pre="qwen2") == [ids[one] for one in "1231"]
    assert encode("zqz", pre="gpt-2", add_bos_token=False) == [ids["z"], ids["q"], ids["z"]]
    assert encode("zqz", pre="llama-bpe", add_bos_token=False) == [292]
    # a control token and one that users defined are matched whole
    kinds[292] = 4
    assert encode("azqza", pre="gpt-2", token_type=kinds) == [ids["a"], 292, ids["a"]]


def test_tokens_around_a_text(tmp_path):
    def ids(model, **changes):
        named = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
        return load(tmp_path, model, named).encode("The").ids

    plain = ids("llama", add_bos_token=False)
    assert ids("llama") == ids("llama", add_bos_token=...) == [1, *plain]
    assert ids("llama", add_eos_token=True) == [1, *plain, 2]
    assert ids("gpt2", bos_token_id=299, add_bos_token=True) == [299, *ids("gpt2")]
    assert ids("gpt2", bos_token_id=299, pre="llama-bpe") == [
        299,
        *ids("gpt2"),
    ]  # Llama 3 adds it unless told otherwise
    # of XLM-RoBERTa, whose tokenizer is of the kind of T5
    assert ids("t5", bos_token_id=2, add_bos_token=True) == [2, *ids("t5")]
    assert ids("t5", add_space_prefix=False) != ids("t5") == ids("t5", add_space_prefix=True)
    bare = ids("llama", add_space_prefix=False, add_bos_token=False)
    assert bare != plain and load(tmp_path, "llama").vocabulary[bare[0]] == "T"


def test_merges_that_are_missing_follow_from_the_tokens(tmp_path):
    assert (
        load(tmp_path, "gpt2", {"tokenizer.ggml.merges": ...}).encode("The cat sat on the mat.").ids
        == load(tmp_path, "gpt2").encode("The cat sat on the mat.").ids
    )


def test_what_the_file_does_not_state_is_noted(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("llama", tokenizer_keys("llama")))
    with pytest.warns(AttnkitNote, match="does not state where spaces are added: before a text and after"):
        tokenizer_of(open_checkpoint(str(tmp_path / "m.gguf")))
    stated = {"tokenizer.ggml.add_space_prefix": False}
    for model, keys in (("llama", stated), ("t5", {})):
        (tmp_path / "m.gguf").write_bytes(convert(model, tokenizer_keys(model) | keys))
        with warnings.catch_warnings(action="error"):
            tokenizer_of(open_checkpoint(str(tmp_path / "m.gguf")))
    (tmp_path / "m.gguf").write_bytes(convert("gpt2", tokenizer_keys("gpt2") | {"tokenizer.ggml.pre": ...}))
    with pytest.warns(AttnkitNote, match="does not state how text is split: as gpt-2, which is usual for gpt2"):
        tokenizer_of(open_checkpoint(str(tmp_path / "m.gguf")))


def test_a_tokenizer_json_inside_is_read(tmp_path):
    document = (MODELS / "gpt2" / "tokenizer.json").read_text()
    found = load(tmp_path, "gpt2", {"tokenizer.huggingface.json": document, "tokenizer.ggml.tokens": ...})
    assert found.encode("The cat").ids == open_tokenizer(folder("gpt2")).encode("The cat").ids


NO_IDS = dict.fromkeys((f"{name}_token_id" for name in ("unknown", "seperator", "padding", "cls", "mask")), ...)
FAULTS = {
    "another kind": ("gpt2", {"model": "rwkv"}, "tokenizer.ggml.model 'rwkv' is not known (expected gpt2, llama, t5"),
    "kind 0 of a token": ("llama", {"token_type": [0] * 330}, "token_type 0 is not known"),
    "no tokenizer": ("gpt2", {"model": ...}, "no tokenizer"),
    "another split": ("gpt2", {"pre": "brand-new"}, "tokenizer.ggml.pre 'brand-new' is not known (expected gpt-2, "),
    "a kind that is a list": ("llama", {"model": [1, 2]}, "tokenizer.ggml.model is [1, 2] (expected a text)"),
    "a flag that is a list": ("llama", {"add_space_prefix": [1, 2]}, "add_space_prefix is [1, 2] (expected true"),
    "a flag that is a text": ("gpt2", {"add_bos_token": "no"}, "add_bos_token is 'no' (expected true or false)"),
    "an id that is a list": ("gpt2", {"bos_token_id": [1, 2]}, "bos_token_id is [1, 2] (expected"),
    "an id that is a text": ("bert-mlm", {"mask_token_id": "x"}, "mask_token_id is 'x' (expected a whole"),
    "no tokens": ("gpt2", {"tokens": ...}, "tokenizer.ggml.tokens is missing"),
    "tokens that are numbers": ("gpt2", {"tokens": [1, 2]}, "tokens is [1, 2] (expected a list of texts)"),
    "empty vocabulary": ("gpt2", {"tokens": []}, "a vocabulary of 0 tokens"),
    "few kinds": ("gpt2", {"token_type": [1, 2]}, "tokenizer.ggml.token_type is no list of 300 numbers"),
    "an id beyond": ("gpt2", {"bos_token_id": 300}, "bos_token_id is 300 (expected an id below 300)"),
    "a merge of unknown tokens": ("gpt2", {"merges": ["zz yy"]}, "not a tokenizer.json"),
    "a merge of three": ("gpt2", {"merges": ["a b c"]}, "not a tokenizer.json"),
    "no scores": ("llama", {"scores": ...}, "tokenizer.ggml.scores is missing"),
    "scores nan": ("t5", {"scores": [float("nan")] * 84}, ""),
    "an unknown kind of token": ("llama", {"token_type": [99] * 330}, "token_type 99 is not known (expected 1 to 6)"),
    "an empty piece": ("llama", {"tokens": [""] * 330}, "not a sentencepiece model"),
    "no unknown token": ("bert-mlm", {"tokens": ["▁a", "b"], "token_type": ..., **NO_IDS}, "no [UNK]"),
    "a damaged map": ("t5", {"precompiled_charsmap": [1, 2, 3]}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_bad_tokenizers(name, tmp_path):
    model, changes, problem = FAULTS[name]
    named = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    try:
        load(tmp_path, model, named).encode("The cat")
    except DataError as error:
        assert str(error).startswith(f"{tmp_path}/m.gguf: ") and problem in str(error), error
    else:
        assert not problem
