"""Read and check the tokenizer files of a folder, and find their special tokens."""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attnkit.errors import DataError, FileError, refuse_lfs_pointer, system_reason
from attnkit.tokenizers.tokens import MASK

WORD = r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)'|(?P<plain>[^\s"'].*?))"""
LINE = re.compile(WORD + r"\s*:\s+([0-9]{1,18})")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", " ": " ", "/": "/", '"': '"', "\\": "\\",
}  # fmt: skip


def parse_yaml_vocabulary(text: str, name: str) -> dict[str, int]:
    r"""Parse the `token: id` lines of a YAML vocabulary. DataError names the line.

    >>> parse_yaml_vocabulary("the: 0\n'it''s': 1\n\"\\x41\\\"\": 2\n", "vocab.yml")
    {'the': 0, "it's": 1, 'A"': 2}
    """
    ids: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.strip() == "---":
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise DataError(f"line {number} is not `token: id`: {line.strip()[:40]!r}", name)
        double, single, plain, id = match.groups()
        try:
            token = plain or (single.replace("''", "'") if double is None else unescape_yaml(double))
        except ValueError as error:
            raise DataError(f"line {number}: {error}", name) from None
        if token in ids:
            raise DataError(f"line {number}: token {token[:40]!r} occurs twice", name)
        ids[token] = int(id)
    return ids


def unescape_yaml(text: str) -> str:
    r"""Replace the escapes of a double-quoted YAML string.

    >>> unescape_yaml(r"caf\xe9\n")
    'café\n'
    """

    def character(match: re.Match[str]) -> str:
        code = int(match[1] or match[2] or match[3] or "0", 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000 or (match[4] and match[4] not in ESCAPED):
            raise ValueError(f"escape {match[0]} is no character")
        return ESCAPED[match[4]] if match[4] else chr(code)

    return ESCAPE.sub(character, text)


BLOCK = 1024  # bytes; a trie consists of whole blocks
LEAF = 1 << 31  # the bit of a unit that holds a value, and has no children


def check_charsmap(data: object, name: str) -> None:
    """Raise DataError for a map that refers beyond itself, which kills a library.

    data  the size of the trie, 4 bytes; the trie; the texts, each of which ends with a zero byte

    Source: Normalizer::DecodePrecompiledCharsMap of sentencepiece, and the units of Darts-clone (darts.h).

    >>> check_charsmap(bytes([0, 4, 0, 0]) + bytes(BLOCK) + b"a", "m.spm")
    >>> check_charsmap(b"abc", "m.spm")
    Traceback (most recent call last):
    attnkit.errors.DataError: m.spm: the precompiled_charsmap is malformed
    """
    if not isinstance(data, bytes) or not _is_whole(data):
        raise DataError("the precompiled_charsmap is malformed", name)


def _is_whole(data: bytes) -> bool:
    size = int.from_bytes(data[:4], "little")
    trie, texts = data[4 : 4 + size], np.frombuffer(data[4 + size :], np.uint8)
    if not size or size % BLOCK or len(trie) < size:
        return False
    try:
        data[4 + size :].decode("utf-8")
    except UnicodeDecodeError:
        return False
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    children = np.arange(len(units)) ^ (units >> 10 << (units >> 6 & 8))
    is_inner = units & LEAF == 0
    if (children[is_inner] >= len(units)).any():
        return False
    starts = units[children[is_inner & (units & 256 != 0)]] & (LEAF - 1)
    return bool((starts < len(texts)).all() and (texts[starts] & 0xC0 != 0x80).all())


LARGEST_ID = (1 << 22) - 1  # bounds the memory and time that a vocabulary takes
LONGEST_PIECE = 4096  # characters; the tokenizers library needs as many levels of the stack as a piece has bytes

# the usual names of each special token, for files that name none
SPECIAL_TOKENS = {
    "bos": ("<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "sep": ("[SEP]",),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]",),
    "mask": MASK,
}


class AddedToken(NamedTuple):
    """A token that is found in a text before the text is split, and is never split.

    special      whether decoded text leaves it out
    lstrip       whether it takes the spaces before it; rstrip: those after it
    single_word  whether it is found only where no letter, digit or underscore is beside it
    normalized   whether it is found in the normalized text; None: it is where it is not special
    """

    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None

    @property
    def in_normalized(self) -> bool:
        return not self.special if self.normalized is None else self.normalized


FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


def parse_added_token(value: Any, special: bool | None = None) -> AddedToken | None:
    """The token of a string or of an object with `content` and flags, or None.

    special  overrides the flag of an object, and is that of a string

    >>> parse_added_token({"content": "<mask>", "lstrip": True}, special=True)
    AddedToken(content='<mask>', special=True, lstrip=True, rstrip=False, single_word=False, normalized=None)
    >>> parse_added_token("<s>").special, parse_added_token(None)
    (False, None)
    """
    content = token_content(value)
    if content is None:
        return None
    flags = {} if isinstance(value, str) else {name: value[name] for name in FLAGS if isinstance(value.get(name), bool)}
    return AddedToken(content, **flags | ({} if special is None else {"special": special}))


def token_content(token: Any) -> str | None:
    """The text of a token, a string or an object with `content`, or None.

    >>> token_content("<s>"), token_content({"content": "<s>", "lstrip": True}), token_content(None)
    ('<s>', '<s>', None)
    """
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def find_special_tokens(
    settings: Mapping[str, Any],
    find: Callable[[str], int | None],
    usual: Mapping[str, tuple[str, ...]] = SPECIAL_TOKENS,
) -> dict[str, int]:
    """The ids of special tokens: the ones that settings name, or of usual names.

    usual  name -> the tokens that have it where settings name none, the first that is there

    >>> find_special_tokens({"eos_token": "."}, {".": 0, "<unk>": 1}.get)
    {'eos': 0, 'unk': 1}
    """
    special = {}
    for name in SPECIAL_TOKENS:
        named = f"{name}_token" in settings
        tokens = (token_content(settings[f"{name}_token"]),) if named else usual.get(name, ())
        id = next((id for token in tokens if token and (id := find(token)) is not None), None)
        if id is not None:
            special[name] = id
    return special


def is_left(settings: Mapping[str, Any], key: str, name: str, default: str = "right") -> bool:
    """Whether a text is padded or cut on the left, by a key of its settings.

    tokenizer_config.json has them: `padding_side` and `truncation_side`.

    >>> is_left({"padding_side": "left"}, "padding_side", ""), is_left({}, "padding_side", "")
    (True, False)
    """
    side = settings.get(key) or default
    if side not in ("left", "right"):
        raise DataError(f"{key} is {str(side)[:40]!r} (expected left or right)", name)
    return bool(side == "left")


class TokenizerFolder:
    """A published folder, read for its tokenizer.

    side   "source" or "target" of a translation
    names  the files in the folder; files: the paths of those that have been read
    find_class  a family -> the class of transformers that its tokenizers have, "" for one without rules of its own
    """

    def __init__(self, path: str, side: str = "source", find_class: Callable[[str], str] = lambda family: "") -> None:
        self.path, self.side, self.find_class = path, side, find_class
        self.files: list[str] = []
        try:
            self.names = frozenset(os.listdir(path))
        except (OSError, ValueError) as error:
            raise FileError(system_reason(error), path) from None

    def file_path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def read_bytes(self, name: str) -> bytes:
        path = self.file_path(name)
        try:
            with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise FileError("not a regular file", path)
                content = file.read()
        except OSError as error:
            raise FileError(system_reason(error), path) from None
        self.files += [] if path in self.files else [path]
        return check_content(content, path)

    def read_text(self, name: str) -> str:
        try:
            return self.read_bytes(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8 text (byte {error.start})", name) from None

    def read_json(self, name: str) -> dict[str, Any]:
        if name not in self.names:
            return {}
        import orjson

        try:
            value = orjson.loads(self.read_text(name))
        except orjson.JSONDecodeError as error:
            raise self.error(f"not JSON: {error}", name) from None
        if not isinstance(value, dict):
            raise self.error("not a JSON object", name)
        return value

    def read_vocabulary(self, name: str) -> dict[str, int]:
        text, path = self.read_text(name), self.file_path(name)
        is_json = text.lstrip()[:1] == "{" or name.endswith(".json")
        return check_token_ids(self.read_json(name) if is_json else parse_yaml_vocabulary(text, path), path)

    @cached_property
    def vocabulary_file(self) -> str | None:
        """The file with the ids of the tokens, or None."""
        is_separate = self.side == "target" and self.settings.get("separate_vocabs") is True
        yaml_files = sorted(name for name in self.names if name.endswith(".vocab.yml"))
        names = ["target_vocab.json" if is_separate else "vocab.json", "vocab.yml"]
        names += yaml_files if len(yaml_files) == 1 else []
        return next((name for name in names if name in self.names), None)

    @cached_property
    def family(self) -> str:
        """The `model_type` of config.json, or ""."""
        return str(self.read_json("config.json").get("model_type") or "")

    @cached_property
    def usual_class(self) -> str:
        """The class of transformers that tokenizers of its family have, or ""."""
        return self.find_class(self.family)

    @cached_property
    def tokenizer_class(self) -> str:
        """The class of transformers that the folder names for its tokenizer, or ""."""
        stated = self.settings.get("tokenizer_class") or self.read_json("config.json").get("tokenizer_class")
        return str(stated or "").removesuffix("Fast")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """tokenizer_config.json and special_tokens_map.json.

        The map has the flags of tokens that an older tokenizer_config.json, without added_tokens_decoder, only names.
        """
        tokens, stated = self.read_json("special_tokens_map.json"), self.read_json("tokenizer_config.json")
        return tokens | stated if "added_tokens_decoder" in stated else stated | tokens

    @property
    def states_ends(self) -> bool:
        """Whether add_bos_token and add_eos_token count.

        Beside a tokenizer.json, its own template does.
        """
        return "tokenizer.json" not in self.names

    def error(self, problem: str, file: str = "tokenizer_config.json") -> DataError:
        return DataError(problem, self.file_path(file))

    def get_bool(self, name: str, default: bool | None) -> bool | None:
        value = self.settings.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} is {str(value)[:40]!r} (expected true or false)")
        return value

    @cached_property
    def added_tokens(self) -> dict[int, AddedToken]:
        """The added tokens by id, of added_tokens_decoder or added_tokens.json."""
        decoder = self.settings.get("added_tokens_decoder")
        if not isinstance(decoder, dict):
            ids = check_token_ids(self.read_json("added_tokens.json"), self.path)
            added = {id: AddedToken(token, token in self.named_tokens) for token, id in ids.items()}
            return dict(sorted(added.items()))
        added = {}
        for id, value in decoder.items():
            is_id = id.isdecimal() and len(id) <= len(str(LARGEST_ID)) and int(id) <= LARGEST_ID
            token = parse_added_token(value) if is_id else None
            if token is None:
                raise self.error(f"added token {id[:40]!r} has no content or no id")
            added[int(id)] = token
        return dict(sorted(added.items()))

    @cached_property
    def named_tokens(self) -> dict[str, AddedToken]:
        """The special tokens that the settings name: eos_token and so on, and others."""
        listed = self.settings.get("extra_special_tokens") or self.settings.get("additional_special_tokens")
        further = listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else []
        usual = [f"{name}_token" for name in SPECIAL_TOKENS]
        others = [name for name in self.settings if name.endswith("_token") and name not in usual]
        named: dict[str, AddedToken] = {}
        for value in (*(self.settings.get(name) for name in (*usual, *others)), *further):
            token = parse_added_token(value, special=True)
            if token is not None and token.content:
                named.setdefault(token.content, token)
        return named


def open_folder(place: str | TokenizerFolder, side: str = "source") -> TokenizerFolder:
    """The folder at a path, or one that is open already."""
    return TokenizerFolder(place, side) if isinstance(place, str) else place


def check_content(content: bytes, name: str) -> bytes:
    refuse_lfs_pointer(content, name)
    if not content:
        raise DataError("empty file", name)
    return content


def check_pieces(pieces: Iterable[str], name: str) -> None:
    """Raise DataError for a piece of a unigram model that is too long."""
    longest = max(map(len, pieces), default=0)
    if longest > LONGEST_PIECE:
        raise DataError(f"a piece of {longest} characters (expected at most {LONGEST_PIECE})", name)


def check_token_ids(vocabulary: Mapping[str, Any], name: str) -> dict[str, int]:
    """Check {token: id}: each id a whole number in range, and no id twice."""
    tokens: dict[int, str] = {}
    for token, id in vocabulary.items():
        if type(id) is not int or not 0 <= id <= LARGEST_ID:
            raise DataError(f"token {token[:40]!r} has id {repr(id)[:40]} (expected 0 to {LARGEST_ID})", name)
        if id in tokens:
            raise DataError(f"tokens {tokens[id][:40]!r} and {token[:40]!r} have the same id {id}", name)
        tokens[id] = token
    return dict(vocabulary)


def tokens_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    """The tokens of {token: id} in the order of their ids, or "" for an unused id.

    >>> tokens_by_id({"b": 2, "a": 0}), tokens_by_id({})
    (['a', '', 'b'], [])
    """
    tokens = [""] * (max(vocabulary.values(), default=-1) + 1)
    for token, id in vocabulary.items():
        tokens[id] = token
    return tokens
