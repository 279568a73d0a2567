"""The tokenizer inside a GGUF file, presented as the files of a folder.

The readers of published tokenizers then read it. A GGUF file states the tokens, their scores, kinds and merges. It only
names the way in which text is split before merges; SPLITS has the patterns.
"""

import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson

from attnkit.errors import AttnkitNote, DataError
from attnkit.formats.gguf import FLAG, NUMERIC, TEXT, TEXTS, WHOLE, WHOLES, Metadata, Value, ValueType
from attnkit.formats.streams import name_errors, prefix_errors
from attnkit.records import Array
from attnkit.tokenizers.files import LARGEST_ID, TokenizerFolder
from attnkit.tokenizers.huggingface import QWEN2_PATTERN, QWEN35_PATTERN

PREFIX, HF_JSON = "tokenizer.ggml.", "tokenizer.huggingface.json"
FILES = {"gpt2": "tokenizer.json", "llama": "tokenizer.model", "t5": "spiece.model", "bert": "vocab.txt"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of tokens
BPE, UNIGRAM = 2, 1  # algorithms of sentencepiece
BLANK = re.compile(r"\[PAD[0-9]+\]")  # what converters call a token that the vocabulary lacks
MOST_SENTINELS = 100  # of T5
WORD_START = "▁"
POOLS = {1: "mean", 2: "cls", 3: "last"}  # pooling_type -> the names of encode --pool
NO_ID = 0xFFFFFFFF  # where there is no such token
SPECIAL = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id",
    "cls": "cls_token_id", "sep": "seperator_token_id", "mask": "mask_token_id",
}  # fmt: skip

GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
LETTERS = r"[^\r\n\p{L}\p{N}]?"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (rf"{LETTERS}{UPPER}*{LOWER}+|{LETTERS}{UPPER}+{LOWER}*|\p{{N}}{REST}",)
GPT4O = (rf"{LETTERS}{UPPER}*{LOWER}+{CONTRACTIONS}|{LETTERS}{UPPER}+{LOWER}*{CONTRACTIONS}|\p{{N}}{{1,3}}{REST}",)
DIGITS, TRIPLES = r"\p{N}", r"[0-9][0-9][0-9]"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
CASED = (  # letters of alphabets with capitals, as the tokenizer of DeepSeek LLM lists them
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏"
    "𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK = (  # line ends, then the letters and the marks of each language model, then Chinese and digits
    (r"[\r\n]", rf"\s?[{CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"),
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
)
SEED_CODER = (
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{LETTERS}\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
)
BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)


class Splitter(NamedTuple):
    """How text is split before byte pairs are merged.

    patterns    regular expressions, each splitting what those before it left
    normalizes  whether text is normalized to NFC first
    whole       whether a part that is a token is not merged from bytes
    """

    patterns: Sequence[str]
    normalizes: bool = False
    whole: bool = False


# tokenizer.ggml.pre -> how text is split, as llama.cpp's llama-vocab.cpp and the published tokenizers have it
SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "gigachat", "trillion", "a.x-4.0",
                     "mellum", "granite-docling"), Splitter(GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"),
                    Splitter(LLAMA3, whole=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitter(LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"),
                    Splitter((QWEN2_PATTERN,), normalizes=True)),
    "stablelm2": Splitter((QWEN2_PATTERN,)),
    "qwen35": Splitter((QWEN35_PATTERN,), normalizes=True),
    "seed-coder": Splitter(SEED_CODER),
    "tekken": Splitter(TEKKEN, whole=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), Splitter(GPT4O)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
                    Splitter((DIGITS, *GPT2))),
    "falcon": Splitter((r"[\p{P}\$\+<=>\^~\|`]+", *GPT2, TRIPLES)),
    **dict.fromkeys(("deepseek-v3", "joyai-llm"), Splitter(DEEPSEEK3)),
    **{f"deepseek-{kind}": Splitter(patterns) for kind, patterns in zip(("llm", "coder"), DEEPSEEK, strict=True)},
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), Splitter(BLOOM)),
    "viking": Splitter((*BLOOM, DIGITS)),
}  # fmt: skip
USUAL = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "falcon": "falcon", "bloom": "bloom"}
ARCHITECTURE = "general.architecture"
OLDEST = "gpt-2"  # of other files that state no `pre`


class GgufFolder(TokenizerFolder):
    """The tokenizer of a GGUF file as a folder with the file of its kind.

    tokenizer.json, tokenizer.model, spiece.model or vocab.txt
    """

    usual_class = ""

    def __init__(self, path: str, metadata: Metadata, files: Sequence[str]) -> None:
        self.path, self.side, self.files = path, "source", [*files]
        self.metadata = metadata

    @cached_property
    def kind(self) -> str | None:
        """The kind of the tokenizer, None if the file has none.

        DataError for one that is not known.
        """
        kind = self.get("model", TEXT)
        if kind is not None and kind not in FILES:
            raise self.error(f"{PREFIX}model {kind[:40]!r} is not known (expected {', '.join(FILES)})")
        return kind

    @cached_property
    def names(self) -> frozenset[str]:  # type: ignore[override]  # no folder has to be listed
        """The file that the tokenizer would be in."""
        if HF_JSON in self.metadata:
            return frozenset(["tokenizer.json"])
        return frozenset([FILES[self.kind]] if self.kind else [])

    def file_path(self, name: str) -> str:
        return self.path

    @property
    def states_ends(self) -> bool:
        """Whether add_bos_token and add_eos_token count.

        They do not beside a tokenizer.json in the file.
        """
        return HF_JSON not in self.metadata

    @property
    def pool(self) -> str:
        """How the states of the tokens become one vector of a text, "" if they do not."""
        kind = self.metadata.read(f"{self.architecture}.pooling_type", WHOLE, 0)
        return POOLS.get(kind, "")

    @property
    def architecture(self) -> str:
        return self.metadata.read(ARCHITECTURE, TEXT, "")

    def get(self, key: str, kind: ValueType[Value]) -> Value | None:
        """The value of a key of the tokenizer, None if there is none.

        DataError for another kind.
        """
        return self.metadata.read(PREFIX + key, kind)

    def error(self, problem: str, file: str = "") -> DataError:
        return DataError(problem, self.path)

    def read_json(self, name: str) -> dict[str, Any]:
        return {}

    def read_bytes(self, name: str) -> bytes:
        """One of the files. DataError if the file does not state what it needs."""
        if name == "tokenizer.json":
            stated = self.metadata.read(HF_JSON, TEXT)
            return self.write_tokenizer_json() if stated is None else stated.encode()
        if name == "vocab.txt":
            return self.write_word_pieces()
        if name in ("tokenizer.model", "spiece.model"):
            return self.write_sentencepiece(BPE if name == "tokenizer.model" else UNIGRAM)
        raise self.error(f"no {name} in a GGUF file")

    def strings(self, key: str) -> list[str]:
        value = self.get(key, TEXTS)
        if value is None:
            raise self.error(f"{PREFIX}{key} is missing (expected {TEXTS.expected})")
        with prefix_errors(PREFIX + key), name_errors(self.path):
            return value.read()

    @cached_property
    def tokens(self) -> list[str]:
        tokens = self.strings("tokens")
        if not 0 < len(tokens) <= LARGEST_ID:
            raise self.error(f"a vocabulary of {len(tokens)} tokens (expected 1 to {LARGEST_ID})")
        return tokens

    def numbers(self, key: str, kind: ValueType[Array]) -> list[Any] | None:
        """A number for each token, or None if the file states none."""
        value = self.get(key, kind)
        if value is not None and len(value) != len(self.tokens):
            raise self.error(f"{PREFIX}{key} is no list of {len(self.tokens)} numbers")
        return None if value is None else list(value.tolist())

    @cached_property
    def kinds(self) -> list[int]:
        """The kind of each token; without kinds, special tokens are control tokens."""
        stated = self.numbers("token_type", WHOLES)
        if stated is not None:
            others = [kind for kind in stated if not NORMAL <= kind <= BYTE]
            if others:
                raise self.error(f"{PREFIX}token_type {others[0]} is not known (expected {NORMAL} to {BYTE})")
            return stated
        ids = {name: self.token_id(name) for name in SPECIAL}
        kinds = [NORMAL] * len(self.tokens)
        for name, id in ids.items():
            if id is not None:
                kinds[id] = UNKNOWN if name == "unk" else CONTROL
        return kinds

    def token_id(self, name: str) -> int | None:
        """The id of a special token, or None."""
        id = read_id(self.metadata, SPECIAL[name])
        if id is not None and id >= len(self.tokens):
            raise self.error(f"{PREFIX}{SPECIAL[name]} is {id} (expected an id below {len(self.tokens)})")
        return id

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What tokenizer_config.json would state."""
        template = self.metadata.read("tokenizer.chat_template", TEXT)
        chat = {} if template is None else {"chat_template": template}
        if HF_JSON in self.metadata:
            return chat
        ids = {name: self.token_id(name) for name in SPECIAL}
        found: dict[str, Any] = {f"{name}_token": self.tokens[id] for name, id in ids.items() if id is not None} | chat
        for key in ("add_bos_token", "add_eos_token", "add_space_prefix"):
            if (value := self.get(key, FLAG)) is not None:
                found[key.replace("space_prefix", "prefix_space")] = value
        if self.kind == "llama":
            found = {"add_bos_token": True, "legacy": True, **found}
        elif self.kind == "gpt2" and self.splitter.whole:
            found.setdefault("add_bos_token", True)
        if self.kind == "t5":
            found["extra_ids"] = self.sentinels
        if self.kind == "bert":
            found["do_lower_case"] = self.is_uncased
        else:
            found["added_tokens_decoder"] = self.whole_tokens
        return found

    @cached_property
    def whole_tokens(self) -> dict[str, dict[str, Any]]:
        """The tokens that are never split, by id: control and user-defined tokens."""
        return {
            str(id): {"content": token, "special": kind == CONTROL}
            for id, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (CONTROL, USER_DEFINED) and (self.kind == "gpt2" or token.strip(f" {WORD_START}"))
        }

    @cached_property
    def splitter(self) -> Splitter:
        """How text is split.

        DataError for a name that is not known: another one would give other tokens.
        """
        if self.splitter_name not in SPLITS:
            problem = f"{PREFIX}pre {self.splitter_name[:40]!r} is not known (expected {', '.join(SPLITS)})"
            raise self.error(problem)
        return SPLITS[self.splitter_name]

    @property
    def splitter_name(self) -> str:
        """The name of the splitter; in older files the usual one of the architecture."""
        return self.get("pre", TEXT) or USUAL.get(self.architecture, OLDEST)

    @property
    def is_uncased(self) -> bool:
        """Whether the word pieces are in lower case, but for special tokens."""
        return not any(token.startswith(WORD_START) and token != token.lower() for token in self.tokens)

    @cached_property
    def sentinels(self) -> int:
        """The number of sentinels at the end of T5's vocabulary.

        Their tokens are <extra_id_99> … <extra_id_0>.
        """
        blanks = sum(BLANK.fullmatch(token) is not None for token in self.tokens[-2 * MOST_SENTINELS :])
        return min(blanks, MOST_SENTINELS)

    def write_tokenizer_json(self) -> bytes:
        """A byte-level BPE as tokenizer.json."""
        vocabulary = {token: id for id, token in reversed([*enumerate(self.tokens)])}
        merges = self.strings("merges") if PREFIX + "merges" in self.metadata else derive_merges(vocabulary)
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.splitter.patterns
        ]
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        added = [
            {"id": int(id), "content": one["content"], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": one["special"]}
            for id, one in self.whole_tokens.items()
            if vocabulary[one["content"]] == int(id)
        ]  # fmt: skip
        document = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if self.splitter.normalizes else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, to_bytes]},
            "post_processor": to_bytes,
            "decoder": to_bytes,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": self.splitter.whole},
        }
        if not self.get("pre", TEXT):
            self.note(f"how text is split: as {self.splitter_name}, which is usual for {self.architecture}")
        return orjson.dumps(document)

    def write_word_pieces(self) -> bytes:
        """Write BERT's vocab.txt.

        llama.cpp marks the pieces that begin a word, and not those that continue one.
        """
        kinds = zip(self.tokens, self.kinds, strict=True)
        pieces = [token if kind != NORMAL else word_piece(token) for token, kind in kinds]
        self.note(f"the case of text: {'lower' if self.is_uncased else 'as it is'}, as in its word pieces")
        return "\n".join(pieces).encode()

    def write_sentencepiece(self, algorithm: int) -> bytes:
        """A sentencepiece model. Source: sentencepiece_model.proto."""
        tokens, scores, kinds = self.tokens, self.numbers("scores", NUMERIC), [*self.kinds]
        if scores is None:
            raise self.error(f"{PREFIX}scores is missing")
        count = len(tokens) - self.sentinels if algorithm == UNIGRAM else len(tokens)
        unknown = self.token_id("unk") or (kinds.index(UNKNOWN) if UNKNOWN in kinds else 0)
        kinds = [UNUSED if kind == UNKNOWN else kind for kind in kinds]  # what older converters call blanks
        kinds[unknown] = UNKNOWN
        pieces = []
        for token, score, kind in zip(tokens[:count], scores, kinds, strict=False):
            text = token.replace(" ", WORD_START) if kind in (NORMAL, USER_DEFINED) else token
            fields = (
                write_bytes(1, text.encode()) + b"\x15" + struct.pack("<f", np.float32(score)) + write_number(3, kind)
            )
            pieces.append(write_bytes(1, fields))
        has_bytes = BYTE in kinds
        trainer = write_number(3, algorithm) + write_number(35, has_bytes) + write_number(40, unknown)
        has_prefix = self.get("add_space_prefix", FLAG) is not False
        is_trimmed = self.get("remove_extra_whitespaces", FLAG) is True
        normalizer = write_number(3, has_prefix) + write_number(4, is_trimmed)
        charsmap = self.get("precompiled_charsmap", WHOLES)
        if charsmap is not None:
            normalizer += write_bytes(2, charsmap.astype(np.uint8).tobytes())
        if algorithm == BPE and has_prefix:
            self.note("where spaces are added: before a text and after special tokens, as in llama.cpp")
        return b"".join(pieces) + write_bytes(2, trainer) + write_bytes(3, normalizer)

    def note(self, what: str) -> None:
        """Note what the file does not state."""
        warnings.warn(f"{self.path}: the file does not state {what}", AttnkitNote, stacklevel=2)


def read_id(metadata: Metadata, key: str) -> int | None:
    """The id of a token, None if there is none. DataError for a value that is no id."""
    id = metadata.read(PREFIX + key, WHOLE)
    return None if id == NO_ID else id


def word_piece(token: str) -> str:
    """A piece as BERT has it, with ## if it continues a word.

    >>> word_piece("▁run"), word_piece("ning"), word_piece("[CLS]")
    ('run', '##ning', '[CLS]')
    """
    if re.fullmatch(r"\[[A-Z]+\]", token):
        return token
    return token.removeprefix(WORD_START) if token.startswith(WORD_START) else f"##{token}"


def derive_merges(vocabulary: Mapping[str, int]) -> list[str]:
    """Merges that make each token from two others, in the order of their ids.

    >>> derive_merges({"a": 0, "b": 1, "ab": 2, "aab": 3})
    ['a b', 'a ab']
    """
    merges, lengths = [], {len(token) for token in vocabulary}
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        places = [at for at in range(1, len(token)) if at in lengths and len(token) - at in lengths]
        parts = ((token[:at], token[at:]) for at in places)
        found = [(a, b) for a, b in parts if a in vocabulary and b in vocabulary]
        merges += [f"{a} {b}" for a, b in sorted(found, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))]
    return merges


def write_number(field: int, value: int) -> bytes:
    """A field of a message of Protocol Buffers with a whole number.

    >>> write_number(3, 300).hex()
    '18ac02'
    """
    return write_varint(field << 3) + write_varint(int(value))


def write_bytes(field: int, value: bytes) -> bytes:
    """A field of a message of Protocol Buffers with bytes.

    >>> write_bytes(1, b"hi")
    b'\\n\\x02hi'
    """
    return write_varint(field << 3 | 2) + write_varint(len(value)) + value


def write_varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
