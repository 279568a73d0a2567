"""The files of a published folder: read, checked, and what they say of special tokens."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from attnkit.errors import DataError, FileError
from attnkit.tokenizers.tokens import MASK

POINTER = b"version https://git-lfs"
LARGEST = (1 << 22) - 1  # no id is larger, so a vocabulary takes little memory and time

# what each special token is called where no file says so
SPECIAL = {
    "bos": ("<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "sep": ("[SEP]",),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]",),
    "mask": MASK,
}


class Added(NamedTuple):
    """A token put into the vocabulary after training, always found whole in a text."""

    spelling: str
    id: int
    special: bool = True


def spelling(token: Any) -> str | None:
    """The spelling of a token, given as text or as an object with its `content`.

    >>> spelling("<s>"), spelling({"content": "<s>", "lstrip": True}), spelling(None)
    ('<s>', '<s>', None)
    """
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def specials(settings: Mapping[str, Any], find: Callable[[str], int | None]) -> dict[str, int]:
    """Ids of the special tokens: those that the settings name, else those of a usual name that `find` knows.

    >>> specials({"eos_token": "."}, {".": 0, "<unk>": 1}.get)
    {'eos': 0, 'unk': 1}
    """
    found = {}
    for name, usual in SPECIAL.items():
        named = (spelling(settings[f"{name}_token"]),) if f"{name}_token" in settings else usual
        id = next((id for word in named if word and (id := find(word)) is not None), None)
        if id is not None:
            found[name] = id
    return found


class Folder:
    """A folder of a published model, as far as text is concerned.

    side   "source" or "target", where the two sides of a translation differ
    files  those that have been read
    """

    def __init__(self, path: str, side: str = "source") -> None:
        self.path, self.side = path, side
        self.files: list[str] = []
        try:
            self.names = frozenset(os.listdir(path))
        except (OSError, ValueError) as error:
            raise FileError(reason(error), path) from None

    def at(self, name: str) -> str:
        """A file of the folder as it is called in messages."""
        return os.path.join(self.path, name)

    def data(self, name: str) -> bytes:
        """All of a file; DataError where only the pointer to it was downloaded."""
        try:
            with open(self.at(name), "rb") as file:
                content = file.read()
        except OSError as error:
            raise FileError(reason(error), self.at(name)) from None
        self.files += [] if self.at(name) in self.files else [self.at(name)]
        return checked(content, self.at(name))

    def text(self, name: str) -> str:
        """All of a file as UTF-8 text."""
        try:
            return self.data(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8 text (byte {error.start})", self.at(name)) from None

    def json(self, name: str) -> dict[str, Any]:
        """The JSON object of a file, {} where there is no such file."""
        if name not in self.names:
            return {}
        import orjson

        try:
            found = orjson.loads(self.text(name))
        except orjson.JSONDecodeError as error:
            raise DataError(f"not JSON: {error}", self.at(name)) from None
        if not isinstance(found, dict):
            raise DataError("not a JSON object", self.at(name))
        return found

    def numbers(self, name: str) -> dict[str, int]:
        """The {token: id} of a vocabulary, in JSON or as YAML's simple lines of `token: id`."""
        text = self.text(name)
        found = self.json(name) if text.lstrip()[:1] == "{" or name.endswith(".json") else pairs(text, self.at(name))
        return checked_numbers(found, self.at(name))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """tokenizer_config.json, and special_tokens_map.json for what it leaves out."""
        return self.json("special_tokens_map.json") | self.json("tokenizer_config.json")

    def flag(self, name: str, default: bool | None) -> bool | None:
        """What the settings switch on or off, the default where they say nothing."""
        found = self.settings.get(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise DataError(f"{name} is {str(found)[:40]!r} (expected true or false)", self.at("tokenizer_config.json"))
        return found

    @cached_property
    def added(self) -> list[Added]:
        """The tokens of added_tokens.json and of the settings' added_tokens_decoder, by their ids."""
        listed = self.settings.get("added_tokens_decoder") or {}
        found = {id: Added(word, id) for word, id in checked_numbers(self.json("added_tokens.json"), self.path).items()}
        for id, token in listed.items() if isinstance(listed, dict) else ():
            word = spelling(token)
            if word is None or not id.isdecimal() or int(id) > LARGEST:
                raise DataError(f"added token {id[:40]!r} has no spelling or no id", self.at("tokenizer_config.json"))
            found[int(id)] = Added(word, int(id), not isinstance(token, dict) or bool(token.get("special", True)))
        return [found[id] for id in sorted(found)]


def reason(error: OSError | ValueError) -> str:
    """What the system says, or Python for a name that no system call can take."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def checked(content: bytes, name: str) -> bytes:
    """The content of a file, unless it is empty or stands for one that was not downloaded."""
    if content.startswith(POINTER):
        raise DataError("a Git LFS pointer, not the file it stands for: `git lfs pull` fetches that", name)
    if not content:
        raise DataError("empty file", name)
    return content


def checked_numbers(found: Mapping[str, Any], name: str) -> dict[str, int]:
    """A vocabulary whose ids are whole numbers, each once."""
    seen: dict[int, str] = {}
    for word, id in found.items():
        if type(id) is not int or not 0 <= id <= LARGEST:
            raise DataError(f"token {word[:40]!r} has id {repr(id)[:40]} (expected 0 to {LARGEST})", name)
        if id in seen:
            raise DataError(f"tokens {seen[id][:40]!r} and {word[:40]!r} have the same id {id}", name)
        seen[id] = word
    return dict(found)


def spelled(numbers: Mapping[str, int]) -> list[str]:
    """The vocabulary of {token: id} by id, "" for an id that stands for nothing.

    >>> spelled({"b": 2, "a": 0})
    ['a', '', 'b']
    """
    vocabulary = [""] * (max(numbers.values(), default=-1) + 1)
    for word, id in numbers.items():
        vocabulary[id] = word
    return vocabulary


WORD = r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)'|(?P<plain>[^\s"'].*?))"""
LINE = re.compile(WORD + r"\s*:\s+([0-9]{1,18})")
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", " ": " ", "/": "/", '"': '"', "\\": "\\",
}  # fmt: skip


def pairs(text: str, name: str) -> dict[str, int]:
    r"""The `token: id` lines of a YAML vocabulary; tokens may be quoted.

    >>> pairs("the: 0\n'it''s': 1\n\"\\x41\\\"\": 2\n", "vocab.yml")
    {'the': 0, "it's": 1, 'A"': 2}
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.strip() == "---":
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise DataError(f"line {number} is not `token: id`: {line.strip()[:40]!r}", name)
        double, single, plain, id = match.groups()
        try:
            word = plain if plain is not None else single.replace("''", "'") if double is None else unescaped(double)
        except ValueError as error:
            raise DataError(f"line {number}: {error}", name) from None
        if word in found:
            raise DataError(f"line {number}: token {word[:40]!r} stands twice", name)
        found[word] = int(id)
    return found


def unescaped(text: str) -> str:
    r"""Text between double quotes in YAML without its escapes.

    >>> unescaped(r"caf\xe9\n")
    'café\n'
    """

    def character(match: re.Match[str]) -> str:
        code = int(match[1] or match[2] or match[3] or "0", 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000 or (match[4] and match[4] not in ESCAPED):
            raise ValueError(f"escape {match[0]} stands for no character")
        return ESCAPED[match[4]] if match[4] else chr(code)

    return ESCAPE.sub(character, text)
