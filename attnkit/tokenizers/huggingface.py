"""Tokenizers of the `tokenizers` library: tokenizer.json, WordPiece and BPE."""

import binascii
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson

from attnkit.errors import DataError
from attnkit.libraries import call_library, import_library
from attnkit.tokenizers.files import (
    LARGEST_ID,
    SPECIAL_TOKENS,
    AddedToken,
    TokenizerFolder,
    check_charsmap,
    check_content,
    check_pieces,
    find_special_tokens,
    is_left,
    tokens_by_id,
)
from attnkit.tokenizers.tokens import Tokenizer, TokenPlaces, Tokens

# the replacements of clean_up_tokenization_spaces, in this order
CLEAN_UPS = (
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

FORCED_CLEAN_UP = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
TARGET = "target_tokenizer.json"  # of a translation whose two sides have different tokens

# the pre-tokenizer of Qwen2: contractions, letters, single digits, signs, line ends, spaces
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35_PATTERN = (  # the same with marks as letters
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_PATTERNS = {"Qwen2Tokenizer": QWEN2_PATTERN, "Qwen3_5Tokenizer": QWEN35_PATTERN}


def clean_up(text: str) -> str:
    """Remove the spaces before punctuation and contractions.

    >>> clean_up("I do n't , you 're .")
    "I don't, you're."
    """
    for before, after in CLEAN_UPS:
        text = text.replace(before, after)
    return text


def parse_tokenizer_json(content: str, name: str, folder: TokenizerFolder | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, without its padding and truncation.

    folder  with what the files beside it state
    """
    library = import_library("tokenizers", "text", name)
    check_content(content[:64].encode("utf-8", "replace"), name)
    check_document(content, name)
    with call_library("not a tokenizer.json", name):
        tokenizer = library.Tokenizer.from_str(content)
    check_templates(tokenizer.post_processor, name)
    if folder is not None:
        apply_class_settings(tokenizer, library, folder)
        add_tokens(tokenizer, library, folder, name)
        set_stated_ends(tokenizer, library, folder)
    with call_library("not a tokenizer.json", name):
        return wrap_tokenizer(tokenizer, name, folder)


def check_document(content: str, name: str) -> None:
    """Raise DataError for values on which the library panics or ends the process.

    Nothing else is checked: the library says what is wrong in any other document.
    """
    try:
        document = orjson.loads(content)
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    for one in list_normalizers(document.get("normalizer")):
        if one.get("type") == "Precompiled":
            check_charsmap(decode_base64(one.get("precompiled_charsmap")), name)
        elif one.get("type") == "Replace" and one.get("pattern") in ({"String": ""}, {"Regex": ""}):
            raise DataError("normalizer: Replace needs a pattern that is not empty", name)
    model = document["model"] if isinstance(document.get("model"), dict) else {}
    prefix, vocabulary = model.get("continuing_subword_prefix"), model.get("vocab")
    if isinstance(prefix, str) and prefix:
        check_merges(model.get("merges"), prefix, name)
    if isinstance(vocabulary, list):  # a unigram model
        check_pieces((row[0] for row in vocabulary if isinstance(row, list) and row and isinstance(row[0], str)), name)


def list_normalizers(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a normalizer of a tokenizer.json and, if it is a sequence, those in it."""
    if isinstance(value, dict):
        yield value
        inner = value.get("normalizers")
        for one in inner if isinstance(inner, list) else []:
            yield from list_normalizers(one)


def decode_base64(text: Any) -> bytes | None:
    """Decode Base64, or None if it is none.

    >>> decode_base64("aGk="), decode_base64("a"), decode_base64("a Gk="), decode_base64(7)
    (b'hi', None, None, None)
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (TypeError, ValueError):
        return None


def check_merges(merges: Any, prefix: str, name: str) -> None:
    """Raise DataError for a merge whose second token lacks the subword prefix."""
    for merge in merges if isinstance(merges, list) else []:
        second = merge.partition(" ")[2] if isinstance(merge, str) else merge[1:]
        second = second[0] if isinstance(second, list) and second else second
        if isinstance(second, str) and not second.startswith(prefix):
            problem = f"{second[:40]!r} does not begin with continuing_subword_prefix {prefix[:40]!r}"
            raise DataError(f"merges: {problem}", name)


def check_templates(post_processor: Any, name: str) -> None:
    """Raise DataError for a template with an undefined special token."""
    if post_processor is None:
        return
    state = orjson.loads(post_processor.__getstate__())
    for processor in state.get("processors", [state]):
        if processor["type"] != "TemplateProcessing":
            continue
        for part in [*processor["single"], *processor["pair"]]:
            token = part.get("SpecialToken", {}).get("id")
            if token is not None and token not in processor["special_tokens"]:
                raise DataError(f"post_processor: {token[:40]!r} is not one of its special_tokens", name)


def load_tokenizer_json(folder: TokenizerFolder) -> Tokenizer:
    """Load tokenizer.json, or target_tokenizer.json for targets."""
    has_own = folder.side == "target" and TARGET in folder.names
    name = TARGET if has_own else "tokenizer.json"
    return parse_tokenizer_json(folder.read_text(name), folder.file_path(name), folder)


LOWER_CASE = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer", "MobileBertTokenizer")
PREFIX_SPACE = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "GPTNeoXTokenizer", "WhisperTokenizer")


def apply_class_settings(tokenizer: Any, library: Any, folder: TokenizerFolder) -> None:
    """Prefer the settings of a tokenizer's class to those of its tokenizer.json.

    As in transformers.
    """
    normalizer, words = tokenizer.normalizer, tokenizer.pre_tokenizer
    if folder.tokenizer_class in LOWER_CASE and isinstance(normalizer, library.normalizers.BertNormalizer):
        tokenizer.normalizer = make_bert_normalizer(library, folder)
    if folder.tokenizer_class in PREFIX_SPACE and isinstance(words, library.pre_tokenizers.ByteLevel):
        words.add_prefix_space = bool(folder.get_bool("add_prefix_space", False))
        tokenizer.pre_tokenizer, ends = words, tokenizer.post_processor
        if isinstance(ends, library.processors.RobertaProcessing):  # it leaves the space out of the places of tokens
            stated = orjson.loads(ends.__getstate__())
            tokenizer.post_processor = library.processors.RobertaProcessing(
                tuple(stated["sep"]), tuple(stated["cls"]), stated["trim_offsets"], words.add_prefix_space
            )


def make_bert_normalizer(library: Any, folder: TokenizerFolder) -> Any:
    """BERT's normalizer: control characters, Chinese characters, accents, case."""
    return library.normalizers.BertNormalizer(
        handle_chinese_chars=folder.get_bool("tokenize_chinese_chars", True),
        strip_accents=folder.get_bool("strip_accents", None),
        lowercase=folder.get_bool("do_lower_case", True),
    )


def load_wordpiece(folder: TokenizerFolder) -> Tokenizer:
    """Load BERT's vocab.txt, one piece a line: [CLS] a [SEP] b [SEP]."""
    name = folder.file_path("vocab.txt")
    library = import_library("tokenizers", "text", name)
    lines = folder.read_text("vocab.txt").removesuffix("\n").split("\n")
    vocabulary = {line.removesuffix("\r"): id for id, line in enumerate(lines)}
    special = find_special_tokens(folder.settings, vocabulary.get)
    for key in ("unk", "cls", "sep"):
        if key not in special:
            raise DataError(f"the vocabulary has no {SPECIAL_TOKENS[key][0]} ({len(vocabulary)} words)", name)
    tokens = {key: lines[id].removesuffix("\r") for key, id in special.items()}
    cls, sep = tokens["cls"], tokens["sep"]
    with call_library("not a vocabulary of WordPiece", name):
        tokenizer = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token=tokens["unk"]))
        tokenizer.normalizer = make_bert_normalizer(library, folder)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece()
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single=[f"{cls}:0", "$A:0", f"{sep}:0"],
            pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
            special_tokens=[(cls, special["cls"]), (sep, special["sep"])],
        )
    if folder.usual_class == "MPNetTokenizer":
        set_roberta_template(tokenizer, library, name, vocabulary)
    return complete_tokenizer(tokenizer, folder, name, special)


OF_GPT2 = dict.fromkeys(("bos", "eos", "unk"), ("<|endoftext|>",))  # special tokens where settings name none
OF_ROBERTA = {"bos": ("<s>",), "eos": ("</s>",), "unk": ("<unk>",), "pad": ("<pad>",), "mask": ("<mask>",)}
OF_CLASSES = {"RobertaTokenizer": OF_ROBERTA, "BartTokenizer": OF_ROBERTA, "OpenAIGPTTokenizer": {"unk": ("<unk>",)}}


def load_bpe(folder: TokenizerFolder) -> Tokenizer:
    """Load vocab.json and merges.txt as the BPE of the usual class."""
    name = folder.file_path("vocab.json")
    library = import_library("tokenizers", "text", name)
    vocabulary = folder.read_vocabulary("vocab.json")
    lines = [line.rstrip("\r") for line in folder.read_text("merges.txt").split("\n")]
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    for merge in merges:
        if len(merge) != 2:
            raise folder.error(f"not a merge of two tokens: {' '.join(merge)[:40]!r}", "merges.txt")
    kind, has_prefix = folder.usual_class, bool(folder.get_bool("add_prefix_space", False))
    options = {"unk_token": "<unk>", "end_of_word_suffix": "</w>"} if kind == "OpenAIGPTTokenizer" else {}
    with call_library("not the merges of vocab.json", folder.file_path("merges.txt")):
        tokenizer = library.Tokenizer(library.models.BPE(vocabulary, merges, **options))
    if kind == "OpenAIGPTTokenizer":
        tokenizer.normalizer = library.normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.BPEDecoder()
    else:
        byte_level = library.pre_tokenizers.ByteLevel
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=has_prefix)
        tokenizer.decoder = library.decoders.ByteLevel()
        if kind in QWEN_PATTERNS:
            split = library.pre_tokenizers.Split(library.Regex(QWEN_PATTERNS[kind]), behavior="isolated")
            to_bytes = byte_level(add_prefix_space=False, use_regex=False)
            tokenizer.normalizer = library.normalizers.NFC()
            tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([split, to_bytes])
    special = find_special_tokens(folder.settings, vocabulary.get, OF_CLASSES.get(kind, OF_GPT2))
    if kind in ("RobertaTokenizer", "BartTokenizer"):
        set_roberta_template(tokenizer, library, name, vocabulary, has_prefix)
    else:
        set_stated_ends(tokenizer, library, folder)
    return complete_tokenizer(tokenizer, folder, name, special)


def set_roberta_template(
    tokenizer: Any, library: Any, name: str, vocabulary: Mapping[str, int], has_prefix: bool = False
) -> None:
    """Put <s> a </s></s> b </s> around a text or a pair.

    has_prefix  whether a space is added before the first word, so that its token has one more character
    """
    for token in ("<s>", "</s>", "<mask>"):
        if token not in vocabulary:
            raise DataError(f"the vocabulary has no {token} ({len(vocabulary)} words)", name)
    tokenizer.post_processor = library.processors.RobertaProcessing(
        ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]), add_prefix_space=has_prefix
    )


def complete_tokenizer(tokenizer: Any, folder: TokenizerFolder, name: str, special: Mapping[str, int]) -> Tokenizer:
    """Add a folder's special and added tokens to a library tokenizer, and wrap it."""
    library = import_library("tokenizers", "text", name)
    there = added_token_ids(tokenizer).keys() | folder.named_tokens.keys()
    usual = [token for id in special.values() if (token := tokenizer.id_to_token(id)) not in there]
    tokenizer.add_special_tokens([library.AddedToken(token, normalized=False) for token in usual])
    add_tokens(tokenizer, library, folder, name)
    return wrap_tokenizer(tokenizer, name, folder)


def add_tokens(tokenizer: Any, library: Any, folder: TokenizerFolder, name: str) -> None:
    """Add a folder's tokens to a library tokenizer: by id, then by name.

    Named ones are those not among all added.

    A token that the tokenizer has added gets the flags that the folder states with its id. DataError where a token has
    another id than stated.
    """
    with call_library("cannot be made a tokenizer", name):
        vocabulary = tokenizer.get_vocab()
        tokenizer.add_tokens([library_token(library, token) for token in folder.added_tokens.values()])
        for id, token in folder.added_tokens.items():
            if tokenizer.token_to_id(token.content) != id:
                problem = describe_misplaced(token.content, id, vocabulary, folder.added_tokens)
                raise DataError(f"added token {token.content[:40]!r} has id {id}, but {problem}", name)
        there = added_token_ids(tokenizer)
        named = [token for content, token in folder.named_tokens.items() if content not in there]
        tokenizer.add_tokens([library_token(library, token) for token in named])


def describe_misplaced(token: str, id: int, vocabulary: Mapping[str, int], added: Collection[int]) -> str:
    """Say why an added token cannot have the id that its file states.

    added  the ids of the added tokens

    >>> describe_misplaced("<new>", 9, {"a": 0, "b": 1}, [9]), describe_misplaced("<new>", 3, {"a": 0, "b": 1}, [3])
    ('ids 2 to 8 are in no file', 'id 2 is in no file')
    >>> describe_misplaced("a", 3, {"a": 0, "b": 1}, [3]), describe_misplaced("<new>", 1, {"a": 0, "b": 1}, [1])
    ('the vocabulary has it with id 0', "id 1 is that of 'b'")
    """
    if token in vocabulary:
        return f"the vocabulary has it with id {vocabulary[token]}"
    ids = {one: word for word, one in vocabulary.items()}
    below = sorted(one for one in {*ids, *added} if one < id)
    for last, following in itertools.pairwise((-1, *below, id)):
        if following - last > 1:
            first, end = last + 1, following - 1
            return f"ids {first} to {end} are in no file" if first < end else f"id {first} is in no file"
    return f"id {id} is that of {ids[id][:40]!r}" if id in ids else "it has another id too"


def library_token(library: Any, token: AddedToken) -> Any:
    """An added token as an object of the tokenizers library."""
    return library.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.in_normalized,
        special=token.special,
    )


def wrap_tokenizer(tokenizer: Any, name: str, folder: TokenizerFolder | None) -> Tokenizer:
    """The Tokenizer of a library's tokenizer, with the settings of its folder."""
    settings = folder.settings if folder else {}
    if not tokenizer.get_vocab_size():
        raise DataError("the tokenizer has no vocabulary", name)
    pads_left, cuts_left = (
        is_left(settings, key, name, (stated or {}).get("direction", "right"))
        for key, stated in (("padding_side", tokenizer.padding), ("truncation_side", tokenizer.truncation))
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = find_special_tokens(settings, added_token_ids(tokenizer).get)
    is_bpe = type(tokenizer.model).__name__ == "BPE"
    tokenizer.encode_special_tokens = splits_special = settings.get("split_special_tokens") is True
    cleans_up = settings.get("clean_up_tokenization_spaces") is True and (not is_bpe or settings.get(FORCED_CLEAN_UP))

    def encode(
        text: str,
        vocabulary: Sequence[str] = (),
        pair: str | None = None,
        with_special: bool = True,
        plain: bool = False,
    ) -> Tokens:
        with call_library("cannot tokenize the text", name):
            tokenizer.encode_special_tokens = plain or splits_special
            encoding = tokenizer.encode(text, pair, add_special_tokens=with_special)
            # not encoding.tokens, which for some ids has the text: an unknown character, a space before <mask>
            # or "" for an id that only the template has
            return Tokens([tokenizer.id_to_token(id) or "" for id in encoding.ids], encoding.ids, encoding.type_ids)

    def decode(ids: Sequence[int], with_special: bool = False) -> str:
        with call_library("cannot decode the ids", name):
            text = tokenizer.decode([int(id) for id in ids], skip_special_tokens=not with_special)
        return clean_up(text) if cleans_up else text

    def list_vocabulary() -> list[str]:
        with call_library("its vocabulary cannot be listed", name):
            added = added_token_ids(tokenizer)
            vocabulary = tokenizer.get_vocab(with_added_tokens=False) | added  # an added token may replace another
        if max(vocabulary.values()) > LARGEST_ID:
            raise DataError(f"id {max(vocabulary.values())} (expected 0 to {LARGEST_ID})", name)
        return tokens_by_id(vocabulary)

    def locate(text: str, pair: str | None = None) -> TokenPlaces:
        with call_library("cannot tokenize the text", name):
            return find_places(tokenizer, text, pair, special.get("unk"))

    def truncate(text: str, pair: str | None, most: int) -> Tokens:
        with call_library(f"cannot cut a text to {most} tokens", name):
            side = "left" if cuts_left else "right"
            tokenizer.enable_truncation(most, direction=side)  # the special tokens are kept
            try:
                return encode(text, (), pair)
            finally:
                tokenizer.no_truncation()

    return Tokenizer(encode, list_vocabulary, decode, special, locate=locate, truncate=truncate, pads_left=pads_left)


def find_places(tokenizer: Any, text: str, pair: str | None, unknown: int | None) -> TokenPlaces:
    """Find the tokens of a text or of a pair in it.

    A token continues a word where it is longer or shorter than its text, as ##ing; without a prefix such as ##, where
    no space is before it. An unknown token begins a word. (The rules of transformers' TokenClassificationPipeline.)
    """
    encoding, texts = tokenizer.encode(text, pair), (text, pair or "")
    ranges: dict[tuple[Any, Any], tuple[int, int]] = {}
    for word, (start, end) in zip(
        zip(encoding.sequence_ids, encoding.word_ids, strict=True), encoding.offsets, strict=True
    ):
        first, last = ranges.get(word, (start, end))
        ranges[word] = min(first, start), max(last, end)
    has_prefix = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))
    subwords = []
    for id, token, part, (start, end) in zip(
        encoding.ids, encoding.tokens, encoding.sequence_ids, encoding.offsets, strict=True
    ):
        whole = texts[part or 0]
        continues = len(token) != end - start if has_prefix else start > 0 and " " not in whole[start - 1 : start + 1]
        subwords.append(continues and id != unknown)
    words = [
        ranges[part, word] if word is not None else offset
        for part, word, offset in zip(encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True)
    ]
    return TokenPlaces(encoding.offsets, words, encoding.sequence_ids, subwords)


def added_token_ids(tokenizer: Any) -> dict[str, int]:
    """The id of each added token of a tokenizer of the library."""
    return {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}


def set_stated_ends(tokenizer: Any, library: Any, folder: TokenizerFolder) -> None:
    """Put bos and eos tokens around texts as add_bos_token and add_eos_token state."""
    stated = [folder.get_bool(f"add_{key}_token", None) for key in ("bos", "eos")]
    if not folder.states_ends or stated == [None, None]:
        return
    ids = find_special_tokens(folder.settings, tokenizer.token_to_id)
    ends = [
        tokenizer.id_to_token(ids[key]) if is_added and key in ids else None
        for key, is_added in zip(("bos", "eos"), stated, strict=True)
    ]
    first, second = (
        [f"{token}:{segment}" for token in (ends[0], f"${'AB'[segment]}", ends[1]) if token] for segment in (0, 1)
    )
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=first,
        pair=[*first, *second],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ends if token],
    )
