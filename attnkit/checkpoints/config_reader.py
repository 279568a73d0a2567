"""What a published `config.json` says, each value checked when it is asked for."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attnkit.errors import DataError
from attnkit.model.config import SpecialTokens

Value = TypeVar("Value")

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


LARGEST = (1 << 31) - 1  # no size and no id is larger


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float holds.

    >>> is_finite(1), is_finite(True), is_finite(10**400)
    (True, False, False)
    """
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_nested(value: Any) -> bool:
    """Whether a value is a list of lists."""
    return isinstance(value, list) and all(isinstance(one, list) for one in value)


class ConfigReader:
    """The keys of a configuration; a key that is null counts as one that is absent.

    values  as parsed; name: the file, for errors; DataError names the file and the key

    >>> ConfigReader({"n_embd": 8}, "config.json").whole("n_embd")
    8
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def wrong(self, problem: str) -> DataError:
        """The error for what this file says."""
        return DataError(problem, self.name)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """A whole number between two others, themselves included."""
        value = self._get(key, default, "a whole number")
        if type(value) is not int or not least <= value <= most:
            expected = f"from {least} on" if most == LARGEST else f"from {least} to {most}"
            raise self._ill(key, value, f"a whole number {expected}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._get(key, default, "a number")
        if not is_finite(value) or value <= 0:
            raise self._ill(key, value, "a number above 0")
        return float(value)

    def numbers(self, key: str, default: Sequence[float], least: float = -math.inf) -> list[float]:
        """As many numbers as the default has, not below the least."""
        value = self._get(key, list(default), "a list of numbers")
        listed = isinstance(value, list) and len(value) == len(default)
        if not listed or not all(is_finite(one) and least <= one for one in value):
            above = "" if least == -math.inf else " above 0"
            raise self._ill(key, value, f"{len(default)} numbers{above}")
        return [float(one) for one in value]

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._get(key, default, "true or false")
        if type(value) is not bool:
            raise self._ill(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._get(key, default, "a text")
        if not isinstance(value, str):
            raise self._ill(key, value, "a text")
        return value

    def choice(self, key: str, table: Mapping[str, Value], default: str | None = None) -> Value:
        """What a table says of a text."""
        value = self.text(key, default)
        if value not in table:
            raise self.wrong(f"{key} {value[:40]!r} is not supported (use {', '.join(table)})")
        return table[value]

    def mapping(self, key: str) -> dict[str, Any]:
        """An object, empty where it is absent."""
        value = self._get(key, {}, "an object")
        if not isinstance(value, dict):
            raise self._ill(key, value, "an object")
        return value

    def pair(self, key: str) -> tuple[int, int]:
        """Height and width: two whole numbers, or one that is both."""
        value = self._get(key, None, "a whole number or two")
        sizes = value if isinstance(value, list) else [value, value]
        if len(sizes) != 2 or not all(type(size) is int and 0 < size <= LARGEST for size in sizes):
            raise self._ill(key, value, "a whole number or two")
        return sizes[0], sizes[1]

    def token(self, key: str, default: int | None = None) -> int | None:
        """The id of a token, None where there is none (some write -1 for that)."""
        ids = self.tokens(key, () if default is None else (default,))
        return ids[0] if ids else None

    def tokens(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """One id or a list of them."""
        value = self._get(key, list(default), "an id or a list of ids")
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int and token <= LARGEST for token in ids):
            raise self._ill(key, value, "an id or a list of ids")
        return tuple(token for token in ids if token >= 0)

    def built_as(self, end: str) -> bool:
        """Whether the published architecture has a name that ends so."""
        names = self.values.get("architectures") or []
        return isinstance(names, list) and any(str(name).endswith(end) for name in names)

    def head_dim(self, width: str, heads: str) -> int:
        """The width of one head; DataError where the heads do not divide the width."""
        if self.whole(width) % self.whole(heads):
            problem = f"{width} {self.whole(width)} is not divisible by {heads} {self.whole(heads)}"
            raise self.wrong(problem)
        return self.whole(width) // self.whole(heads)

    def special(self, start: int | None = None, eos: tuple[int, ...] = (), **ids: int | None) -> SpecialTokens:
        """The special tokens, the arguments standing in for those that are not said."""
        lists = self._get("bad_words_ids", [], "a list of lists of ids")
        banned = [words[0] for words in lists if len(words) == 1] if is_nested(lists) else None
        if banned is None or not all(type(one) is int and 0 <= one <= LARGEST for one in banned):
            raise self._ill("bad_words_ids", lists, "a list of lists of ids")
        return SpecialTokens(
            start=self.token("decoder_start_token_id", start),
            eos=self.tokens("eos_token_id", eos),
            pad=self.token("pad_token_id", ids.get("pad")),
            bos=self.token("bos_token_id", ids.get("bos")),
            forced_bos=self.token("forced_bos_token_id"),
            forced_eos=self.token("forced_eos_token_id", ids.get("forced_eos")),
            banned=tuple(banned),
        )

    def _get(self, key: str, default: Any, expected: str) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise self.wrong(f"{key} is missing (expected {expected})")
        return default if value is None else value

    def _ill(self, key: str, value: object, expected: str) -> DataError:
        return self.wrong(f"{key} is {str(value)[:40]!r} (expected {expected})")
