"""Tokenizers that the `tokenizers` library runs: tokenizer.json, WordPiece, byte-level and lower-case BPE."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnkit.errors import DataError
from attnkit.libraries import call_library, import_library
from attnkit.tokenizers.files import LARGEST, SPECIAL, Folder, checked, specials, spelled, spelling
from attnkit.tokenizers.tokens import Tokenizer, Tokens

# what is left out before and after, where a folder asks for spaces to be cleaned up; in this order
CLEANED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)

# how Qwen2 cuts a text before its merges: contractions, letters, single digits, signs, line ends, spaces
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def clean_up(text: str) -> str:
    """Text without the spaces before punctuation and contractions.

    >>> clean_up("I do n't , you 're .")
    "I don't, you're."
    """
    for before, after in CLEANED:
        text = text.replace(before, after)
    return text


def from_json(content: str, name: str, settings: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, special tokens included; its own padding and truncation are left out.

    settings  what the tokenizer_config.json beside it says
    """
    tokenizers = import_library("tokenizers", "text", name)
    checked(content[:64].encode("utf-8", "replace"), name)
    with call_library("not a tokenizer.json", name):
        return wrap_tokenizer(tokenizers.Tokenizer.from_str(content), name, settings or {})


def from_settings(folder: Folder) -> Tokenizer:
    """The tokenizer.json of a folder, and what its tokenizer_config.json adds."""
    return from_json(folder.text("tokenizer.json"), folder.at("tokenizer.json"), folder.settings)


def wordpiece(folder: Folder) -> Tokenizer:
    """BERT's vocab.txt: one piece a line, `##` within a word, [CLS] a [SEP] and [CLS] a [SEP] b [SEP]."""
    library = import_library("tokenizers", "text", folder.at("vocab.txt"))
    name = folder.at("vocab.txt")
    lines = folder.text("vocab.txt").removesuffix("\n").split("\n")
    numbers = {line.removesuffix("\r"): id for id, line in enumerate(lines)}
    special = specials(folder.settings, numbers.get)
    for need in ("unk", "cls", "sep"):
        if need not in special:
            raise DataError(f"the vocabulary has no {SPECIAL[need][0]} ({len(numbers)} words)", name)
    words = {key: lines[id].removesuffix("\r") for key, id in special.items()}
    with call_library("not a vocabulary of WordPiece", name):
        made = library.Tokenizer(library.models.WordPiece(numbers, unk_token=words["unk"]))
        made.normalizer = library.normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=folder.flag("tokenize_chinese_chars", True),
            strip_accents=folder.flag("strip_accents", None),
            lowercase=folder.flag("do_lower_case", True),
        )
        made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        made.decoder = library.decoders.WordPiece(prefix="##")
        made.post_processor = library.processors.TemplateProcessing(
            single=[f"{words['cls']}:0", "$A:0", f"{words['sep']}:0"],
            pair=[f"{words['cls']}:0", "$A:0", f"{words['sep']}:0", "$B:1", f"{words['sep']}:1"],
            special_tokens=[(words[key], special[key]) for key in ("cls", "sep")],
        )
    return complete_settings(made, folder, name, special)


def byte_pairs(folder: Folder) -> Tokenizer:
    """vocab.json and merges.txt: GPT-2's pairs of bytes; those of openai-gpt and qwen2 where config.json says so."""
    library = import_library("tokenizers", "text", folder.at("vocab.json"))
    numbers, name = folder.numbers("vocab.json"), folder.at("merges.txt")
    lines = [line.rstrip("\r") for line in folder.text("merges.txt").split("\n")]
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise DataError(f"not a merge of two tokens: {' '.join(wrong)[:40]!r}", name)
    family = folder.json("config.json").get("model_type")
    lower = family == "openai-gpt"
    options = {"unk_token": "<unk>", "end_of_word_suffix": "</w>"} if lower else {}
    with call_library("not the merges of vocab.json", name):
        made = library.Tokenizer(library.models.BPE(numbers, pairs, **options))
    if lower:
        made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        made.decoder = library.decoders.BPEDecoder(suffix="</w>")
    else:
        cut = library.pre_tokenizers
        made.pre_tokenizer = cut.ByteLevel(add_prefix_space=folder.flag("add_prefix_space", False))
        if family == "qwen2":
            made.normalizer = library.normalizers.NFC()
            whole = cut.Split(library.Regex(QWEN2), behavior="isolated")
            made.pre_tokenizer = cut.Sequence([whole, cut.ByteLevel(add_prefix_space=False, use_regex=False)])
        made.decoder = library.decoders.ByteLevel()
    return complete_settings(made, folder, folder.at("vocab.json"), specials(folder.settings, numbers.get))


def complete_settings(library: Any, folder: Folder, name: str, special: Mapping[str, int]) -> Tokenizer:
    """A tokenizer made from its parts, with the special and the added tokens of the folder found whole in a text."""
    token = import_library("tokenizers", "text", name).AddedToken
    with call_library("cannot be made a tokenizer", name):
        library.add_special_tokens([token(library.id_to_token(id), normalized=False) for id in special.values()])
        for added in folder.added:
            library.add_tokens([token(added.spelling, normalized=False, special=added.special)])
            if library.token_to_id(added.spelling) != added.id:
                raise DataError(
                    f"added token {added.spelling[:40]!r} has id {added.id}, after others of ids below it", name
                )
        return wrap_tokenizer(library, name, folder.settings)


def wrap_tokenizer(library: Any, name: str, settings: Mapping[str, Any]) -> Tokenizer:
    """The library's tokenizer as ours."""
    if not library.get_vocab_size(with_added_tokens=True):
        raise DataError("the tokenizer has no vocabulary", name)
    library.no_padding()
    library.no_truncation()
    special = special_of(library, settings)
    pairs = type(library.model).__name__ == "BPE"
    if pairs and ("add_bos_token" in settings or "add_eos_token" in settings):
        enclose(library, settings, special)
    clean = settings.get("clean_up_tokenization_spaces") is True and not pairs

    def encode(text: str, vocabulary: Sequence[str] = (), pair: str | None = None) -> Tokens:
        with call_library("cannot cut the text", name):
            found = library.encode(text, pair)
            return Tokens(found.tokens, found.ids, found.type_ids)

    def decode(ids: Sequence[int]) -> str:
        with call_library("cannot join the tokens", name):
            text = library.decode([int(id) for id in ids], skip_special_tokens=True)
        return clean_up(text) if clean else text

    def spell() -> list[str]:
        with call_library("its vocabulary cannot be listed", name):
            added = {token.content: id for id, token in library.get_added_tokens_decoder().items()}
            numbers = library.get_vocab(with_added_tokens=False) | added  # an added token may stand in place of another
        if max(numbers.values()) > LARGEST:
            raise DataError(f"id {max(numbers.values())} (expected 0 to {LARGEST})", name)
        return spelled(numbers)

    return Tokenizer(encode, spell, decode, special)


def special_of(library: Any, settings: Mapping[str, Any]) -> dict[str, int]:
    """Ids of the special tokens, once those that the settings name are found whole in a text."""
    own = {token.content: id for id, token in library.get_added_tokens_decoder().items()}
    named = [word for key in SPECIAL if (word := spelling(settings.get(f"{key}_token"))) and word not in own]
    known = {word: id for word in named if (id := library.token_to_id(word)) is not None}
    if known:
        token = import_library("tokenizers", "text", "").AddedToken
        library.add_special_tokens([token(word, normalized=False) for word in known])
    return specials(settings, (own | known).get)


def enclose(library: Any, settings: Mapping[str, Any], special: Mapping[str, int]) -> None:
    """Put the first and the last token round every text that the settings ask for, and no others."""
    asked = {key: special[key] for key in ("bos", "eos") if settings.get(f"add_{key}_token") and key in special}
    words = {key: library.id_to_token(id) for key, id in asked.items()}
    first, second = (
        [f"{word}:{at}" for word in (words.get("bos"), f"${'AB'[at]}", words.get("eos")) if word] for at in (0, 1)
    )
    library.post_processor = import_library("tokenizers", "text", "").processors.TemplateProcessing(
        single=first, pair=[*first, *second], special_tokens=[(words[key], id) for key, id in asked.items()]
    )
