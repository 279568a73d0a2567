"""Tokenizers of translation models: the tokens of transformers, with the language where each of them puts it.

What the tokens are, and how they were made: tests/references/make_languages.py.
"""

import json

import pytest

from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import DataError, UsageError
from attnkit.tokenizers.languages import find_language, speak
from attnkit.tokenizers.tokens import Languages
from tests.places import REFERENCES
from tests.tokenizers.translation_folders import KINDS, write_folder

FROZEN = json.loads((REFERENCES / "languages.json").read_text())


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The tokenizer of a kind of folder, for a side."""
    folders = {name: write_folder(tmp_path_factory.mktemp("tokens") / name, name) for name in KINDS}
    return lambda name, side="source": open_tokenizer(str(folders[name]), side)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "bart"])
def test_sources_and_targets_are_those_of_transformers(opened, name):
    source, target = opened(name), opened(name, "target")
    for row in FROZEN[name]:
        found = speak(source, row["language"], "source").encode(row["text"])
        assert found.ids == row["source"], row
        assert [source.vocabulary.index(token) for token in found.spellings] == found.ids
        expected = row["target"]
        if name in ("mbart", "nllb-legacy"):  # in transformers at the end
            expected = [expected[-1]] * (name != "mbart") + expected[:-1]
        assert speak(target, row["language"], "target").encode(row["text"]).ids == expected, row
        assert target.decode(row["target"]).strip() == row["words"].strip()


def test_bart_has_the_tokens_of_roberta(opened):
    tokenizer = opened("bart")
    assert tokenizer.languages is None and tokenizer.locate and tokenizer.truncate
    assert opened("nllb").locate is None and opened("nllb").truncate is None  # these would count the language
    for row in FROZEN["bart"]:
        assert tokenizer.encode(row["text"]).ids == row["source"], row
        assert tokenizer.decode(row["source"]) == row["words"]
    assert tokenizer.encode("a", pair="b").ids == [0, 68, 2, 2, 69, 2]


@pytest.mark.parametrize(("name", "side", "language"), [
    ("mbart", "source", "en_XX"), ("mbart-50", "source", "de_DE"), ("mbart-50", "target", "gl_ES"),
    ("m2m_100", "source", "fr"), ("m2m_100", "target", "en"), ("m2m_100-wmt21", "source", "en"),
    ("nllb", "source", "fra_Latn"), ("nllb-legacy", "source", "eng_Latn"),
])  # fmt: skip
def test_without_a_language_it_is_that_of_the_folder_or_the_usual_one(opened, name, side, language):
    tokenizer = opened(name, side)
    assert speak(tokenizer, None, side).encode("le chat") == speak(tokenizer, language, side).encode("le chat")


def test_a_text_ends_without_its_language_too(opened):
    tokenizer = opened("m2m_100")
    assert tokenizer.encode("le chat").spellings[-1] == "</s>"
    assert tokenizer.languages and speak(tokenizer, "fr", "source").languages is None  # which is chosen


def test_a_target_without_a_language_has_none(opened):
    tokenizer = opened("nllb", "target")
    assert speak(tokenizer, None, "target").encode("le chat").ids == [
        *tokenizer.encode("le chat", with_special=False).ids,
        2,
    ]


def test_an_unknown_language_is_named_beside_some_known_ones(opened):
    with pytest.raises(UsageError, match=r"--source-language: the model has no language 'en' \(expected one of en_XX "):
        speak(opened("mbart-50"), "en", "source")
    with pytest.raises(UsageError, match=r"no language 'xx' \(expected one of .* … \(100 in all\)\)"):
        speak(opened("m2m_100"), "xx", "target")
    with pytest.raises(UsageError, match=r"no language 'xx' \(expected one of fr, en\)$"):
        find_language(Languages({"fr": 7, "en": 8}, end=2), "xx")
    with pytest.raises(UsageError, match=r"--target-language: the tokenizer has no languages"):
        speak(opened("bart"), "en", "target")


@pytest.mark.parametrize(("name", "settings", "problem"), [
    ("mbart-50", {"src_lang": "xx"}, "'xx' is no language of the vocabulary"),
    ("mbart", {"tgt_lang": ["en_XX"]}, "is no language of the vocabulary"),
    ("m2m_100-wmt21", {"language_codes": "all"}, r"language_codes 'all' is not known \(use m2m100, wmt21\)"),
    ("nllb", {"legacy_behaviour": "yes"}, r"legacy_behaviour is 'yes' \(expected true or false\)"),
])  # fmt: skip
def test_wrong_settings_are_named(tmp_path, name, settings, problem):
    with pytest.raises(DataError, match=problem):
        open_tokenizer(str(write_folder(tmp_path / "folder", name, settings)))


def test_a_model_of_nllb_without_tokenizer_json_is_refused(tmp_path):
    folder = write_folder(tmp_path / "folder", "mbart", {"tokenizer_class": "NllbTokenizer"})
    (folder / "config.json").write_text(json.dumps({"model_type": "m2m_100"}))
    with pytest.raises(
        DataError, match=r"sentencepiece.bpe.model is not that of a tokenizer of m2m_100; such a folder"
    ):
        open_tokenizer(str(folder))
