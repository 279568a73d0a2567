"""config.json and the other JSON files of a folder, checked as they are read."""

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from attnkit.errors import DataError, refuse_lfs_pointer
from attnkit.formats.json_text import parse_json
from attnkit.formats.streams import exists, name_errors, open_source, regular_files_only
from attnkit.model.config import SpecialTokens, StackConfig

Value = TypeVar("Value")

INFINITY, INFINITE = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?Infinity)'), {"__float__": "Infinity"}
LARGEST = (1 << 31) - 1  # the largest size or id
END_KEYS = ("eos_token_id", "forced_bos_token_id", "forced_eos_token_id")  # null: none, in every file
TOKEN_KEYS = (*END_KEYS, "decoder_start_token_id", "bos_token_id", "pad_token_id", "bad_words_ids")


Fields = Mapping[str, str]  # a fact of a model -> the keys of config.json that state it; "" or absent: none does
# the usual keys; a family states its own where they differ, those of one stack as "encoder layers"
FIELDS: dict[str, str] = {
    "family": "model_type",
    "stacks": "is_causal",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "hidden width": "intermediate_size",
    "vocabulary": "vocab_size",
    "norm eps": "layer_norm_eps",
    "activation": "hidden_act",
    "longest text": "max_position_embeddings",
    "vector width": "hidden_size",
    "head": "tie_word_embeddings",
    "classes": "id2label",
    "probabilities": "problem_type",
    "tokens": "eos_token_id bos_token_id pad_token_id decoder_start_token_id",
}


def keys_of(fields: Fields, fact: str) -> list[str]:
    """The keys that state a fact, of the model or of one of its stacks.

    >>> keys_of({"encoder layers": "depth", "layers": "n_layer"}, "layers")
    ['n_layer', 'depth']
    """
    return [key for one in (fact, f"encoder {fact}", f"decoder {fact}") for key in fields.get(one, "").split()]


def first_keys(fields: Fields, fact: str) -> list[str]:
    """The first key of those that state a fact of the model, and of each stack.

    >>> first_keys({"encoder layers": "depth", "layers": "n_layer num_layers"}, "layers")
    ['n_layer', 'depth']
    """
    named = (fields.get(one, "") for one in (fact, f"encoder {fact}", f"decoder {fact}"))
    return [words.split()[0] for words in named if words]


class NotedValues(Mapping[str, Any]):
    """The values of an object, which note the key of each value that is read.

    plain  the object itself, which is read without a note
    reads  the keys read so far, False for those that change nothing; of an object inside another as
           rope_parameters.factor, for which `path` is "rope_parameters."

    >>> values = NotedValues({"n_embd": 8, "n_head": 2}, {})
    >>> values.get("n_embd"), values.get("n_inner"), values.reads
    (8, None, {'n_embd': True, 'n_inner': True})
    """

    def __init__(self, plain: Mapping[str, Any], reads: dict[str, bool], path: str = "") -> None:
        self.plain = plain
        self.reads = reads
        self.path = path

    def __getitem__(self, key: str) -> Any:
        self.reads[self.path + key] = True
        return self.plain[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)

    def stated(self) -> dict[str, bool]:
        """The keys read that count, and whether each has a value other than null.

        >>> values = NotedValues({"n_embd": 8}, {"n_embd": True, "n_inner": True, "rope.theta": True, "n_ctx": False})
        >>> values.stated()
        {'n_embd': True, 'n_inner': False, 'rope.theta': False}
        """
        return {read: _find_value(self.plain, read) is not None for read, counts in self.reads.items() if counts}

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Yield the keys that were not read, with their values."""
        return _find_unread(self.plain, self.reads, self.path)


def _find_value(values: Mapping[str, Any], path: str) -> Any:
    first, _, rest = path.partition(".")
    value = values.get(first)
    return _find_value(value, rest) if rest and isinstance(value, dict) else None if rest else value


def _find_unread(values: Mapping[str, Any], reads: Mapping[str, bool], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        inner = f"{path}{key}."
        if isinstance(value, dict) and any(read.startswith(inner) for read in reads):
            yield from _find_unread(value, reads, inner)
        elif path + key not in reads:
            yield path + key, value


class ConfigReader:
    """The values of a configuration by key.

    A null counts as absent, but as false, and as no token.

    values   the parsed object, which notes what is read of it
    name     the file, for errors
    origins  the file of each key that comes from another one
    names    key -> what the file calls it, where that is another name

    >>> ConfigReader({"n_embd": 8}, "config.json").get_int("n_embd")
    8
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        name: str,
        origins: Mapping[str, str] = MappingProxyType({}),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.values = values if isinstance(values, NotedValues) else NotedValues(values, {})
        self.name = name
        self.origins = origins
        self.names = names

    def error(self, problem: str, key: str = "") -> DataError:
        """The error of a problem, in the file of a key."""
        return DataError(problem, self.origins.get(key, self.name))

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get_int(self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """An integer from `least` to `most`."""
        value = self._get(key, default, "a whole number")
        if type(value) is not int or not least <= value <= most:
            is_open = most == LARGEST and not (type(value) is int and value > most)
            expected = f"from {least} on" if is_open else f"from {least} to {most}"
            raise self._type_error(key, value, f"a whole number {expected}")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default, "a number")
        if not is_finite(value) or value <= 0:
            raise self._type_error(key, value, "a number above 0")
        return float(value)

    def get_floats(self, key: str, default: Sequence[float], least: float = -math.inf) -> list[float]:
        """A list of as many numbers as the default has, none below `least`."""
        value = self._get(key, list(default), "a list of numbers")
        has_length = isinstance(value, list) and len(value) == len(default)
        if not has_length or not all(is_finite(number) and least <= number for number in value):
            above = "" if least == -math.inf else " above 0"
            raise self._type_error(key, value, f"{len(default)} numbers{above}")
        return [float(number) for number in value]

    def get_limits(self, key: str) -> tuple[float, float]:
        """The limits of positive numbers, the upper one perhaps infinite.

        Null is for none.

        >>> ConfigReader({"limit": [0.5, {"__float__": "Infinity"}]}, "config.json").get_limits("limit")
        (0.5, inf)
        """
        value = self._get(key, [0.0, INFINITE], "two numbers")
        numbers = [math.inf if one == INFINITE else one for one in value] if isinstance(value, list) else []
        if not all(one == math.inf or is_finite(one) for one in numbers) or len(numbers) != 2:
            raise self._type_error(key, value, "two numbers")
        least, most = (float(one) for one in numbers)
        if not 0 <= least <= most:
            raise self._type_error(key, value, "two numbers from 0 on, the second not below the first")
        return least, most

    def get_bool(self, key: str, default: bool) -> bool:
        """A flag; null is false, whatever the default is, as in Python.

        >>> ConfigReader({"multi_query": None}, "config.json").get_bool("multi_query", True)
        False
        """
        value = False if self.values.get(key, default) is None else self._get(key, default, "true or false")
        if type(value) is not bool:
            raise self._type_error(key, value, "true or false")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default, "a string")
        if not isinstance(value, str):
            raise self._type_error(key, value, "a string")
        return value

    def get_choice(self, key: str, table: Mapping[str, Value], default: str | None = None) -> Value:
        """The entry of a table for a string."""
        value = self.get_str(key, default)
        if value not in table:
            raise self.error(f"{key} {value[:40]!r} is not supported (use {', '.join(table)})", key)
        return table[value]

    def get_dict(self, key: str) -> dict[str, Any]:
        """An object as a whole, or {} if it is absent."""
        self.values.reads[self.values.path + key] = True
        return self._get_object(key)

    def get_object(self, key: str) -> "ConfigReader":
        """The reader of an object, of {} if it is absent, whose keys are noted one by one."""
        plain = self._get_object(key)
        return ConfigReader(NotedValues(plain, self.values.reads, f"{self.values.path}{key}."), self.name, self.origins)

    def replaced(self, values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> "ConfigReader":
        """The reader of other values in place of these.

        What is read of them counts as read here.

        origins  the file of each value that comes from another one

        >>> raw = ConfigReader({"type": "su", "factor": 2.0}, "config.json")
        >>> raw.replaced({**raw.values.plain, "type": "longrope"}).get_str("type"), [*raw.values.unread()]
        ('longrope', [('factor', 2.0)])
        """
        noted = NotedValues(values, self.values.reads, self.values.path)
        return ConfigReader(noted, self.name, {**self.origins, **(origins or {})}, self.names)

    def ignore(self, *keys: str) -> None:
        """Count keys as read that change nothing in this model.

        >>> raw = ConfigReader({"label": 1, "rotary_pct": 0.5}, "config.json")
        >>> raw.ignore("label")
        >>> [*raw.values.unread()]
        [('rotary_pct', 0.5)]
        """
        for key in keys:
            self.values.reads.setdefault(self.values.path + key, False)

    def expect(self, **values: Any) -> None:
        """Count keys as read that state again what the model does.

        DataError for another value.

        >>> ConfigReader({"experts_per_token": 3}, "config.json").expect(experts_per_token=2)
        Traceback (most recent call last):
        attnkit.errors.DataError: config.json: experts_per_token 3 is not supported (use 2)
        """
        for key, expected in values.items():
            value = self.values.plain.get(key)
            if value is not None and value != expected:
                problem = f"{key} {json.dumps(value)[:40]} is not supported (use {json.dumps(expected)})"
                raise self.error(problem)
        self.ignore(*values)

    def get_size(self, key: str) -> tuple[int, int]:
        """Height and width, from a list of two integers or from one for both."""
        value = self._get(key, None, "a whole number or two")
        sizes = value if isinstance(value, list) else [value, value]
        if len(sizes) != 2 or not all(type(size) is int and 0 < size <= LARGEST for size in sizes):
            raise self._type_error(key, value, "a whole number or two")
        return sizes[0], sizes[1]

    def get_token_id(self, key: str, default: int | None = None) -> int | None:
        """The id of a token, or None if there is none (some files write -1 for that)."""
        ids = self.get_token_ids(key, () if default is None else (default,))
        return ids[0] if ids else None

    def get_token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The ids of a key, from a list or from a single one; null: none."""
        value = self.values.get(key, list(default))
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and token <= LARGEST for token in ids):
            raise self._type_error(key, value, "an id or a list of ids")
        return tuple(token for token in ids if token >= 0)

    def has_architecture(self, suffix: str) -> bool:
        """Whether `architectures` contains a name with this suffix, as ForCausalLM."""
        names = self.values.get("architectures") or []
        return isinstance(names, list) and any(str(name).endswith(suffix) for name in names)

    def get_head_dim(self, width: str, heads: str) -> int:
        """The width of one head: the width of the model by the number of heads."""
        if self.get_int(width) % self.get_int(heads):
            raise self.error(f"{width} {self.get_int(width)} is not divisible by {heads} {self.get_int(heads)}")
        return self.get_int(width) // self.get_int(heads)

    def get_stack(
        self,
        fields: Fields,
        name: str = "",
        *,
        hidden: int | None = None,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        **choices: Any,
    ) -> StackConfig:
        """The sizes of a stack.

        Without keys, there are as many key and value heads as heads, width/heads wide; so are there with null.

        fields            of the family; name: of the stack, if the stacks have keys of their own
        hidden, head_dim  defaults of these sizes
        kv_heads          key and value heads of a file without a key for them
        choices           causal, cross and final_norm of StackConfig, and its vocab if no key states it

        >>> raw = ConfigReader({"depth": 2, "num_attention_heads": 2, "hidden_size": 6, "vocab_size": 9}, "config.json")
        >>> stack = raw.get_stack(FIELDS | {"layers": "depth", "hidden width": ""}, hidden=24, causal=True)
        >>> stack.layers, stack.hidden, stack.head_dim, stack.kv_heads, stack.causal
        (2, 24, 3, 2, True)
        """
        sizes = ("layers", "heads", "key/value heads", "head width", "hidden width", "width", "vocabulary")
        layer_key, head_key, kv_key, head_dim_key, hidden_key, width_key, vocab_key = (
            self.find_key(fields, size, name) for size in sizes
        )
        heads = self.get_int(head_key)
        shared = self._get_size(kv_key, kv_heads if kv_heads and kv_key not in self.values.plain else heads)
        if heads % shared:
            default = "" if self.has(kv_key) else " (default)"
            raise self.error(f"{head_key} {heads} is not divisible by {kv_key} {shared}{default}")
        if head_dim is None and not (head_dim_key and self.has(head_dim_key)):
            head_dim = self.get_head_dim(width_key, head_key)
        if vocab_key and "vocab" not in choices:
            choices["vocab"] = self.get_int(vocab_key)
        return StackConfig(
            layers=self.get_int(layer_key),
            heads=heads,
            hidden=self._get_size(hidden_key, hidden),
            kv_heads=shared,
            head_dim=self._get_size(head_dim_key, head_dim),
            **choices,
        )

    def find_key(self, fields: Fields, fact: str, stack: str = "") -> str:
        """The key that states a fact: the first that the file has, else the last.

        "" for none.

        >>> ConfigReader({"depth": 2}, "config.json").find_key({"layers": "n_layer depth num_layers"}, "layers")
        'depth'
        """
        names = fields.get(f"{stack} {fact}", fields.get(fact, "")).split()
        return next(filter(self.has, names), names[-1]) if len(names) > 1 else "".join(names)

    def get_special_tokens(
        self,
        start: int | None = None,
        eos: tuple[int, ...] = (),
        pad: int | None = None,
        bos: int | None = None,
        forced_bos: int | None = None,
        forced_eos: int | None = None,
    ) -> SpecialTokens:
        """The special tokens, with defaults for absent ones; a start may not be null."""
        lists = self._get("bad_words_ids", [], "a list of lists of ids")
        is_nested = isinstance(lists, list) and all(isinstance(ids, list) for ids in lists)
        banned = [ids[0] for ids in lists if len(ids) == 1] if is_nested else []
        if not is_nested or not all(type(token) is int and 0 <= token <= LARGEST for token in banned):
            raise self._type_error("bad_words_ids", lists, "a list of lists of ids")
        return SpecialTokens(
            start=self.get_token_id("decoder_start_token_id") if self.has("decoder_start_token_id") else start,
            eos=self.get_token_ids("eos_token_id", eos),
            pad=self.get_token_id("pad_token_id", pad),
            bos=self.get_token_id("bos_token_id", bos),
            forced_bos=self.get_token_id("forced_bos_token_id", forced_bos),
            forced_eos=self.get_token_id("forced_eos_token_id", forced_eos),
            banned=tuple(banned),
        )

    def _get_object(self, key: str) -> dict[str, Any]:
        value = self.values.plain.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._type_error(key, value, "an object")
        return value or {}

    def _get_size(self, key: str, default: int | None) -> int:
        return self.get_int(key, default) if key or default is None else default

    def _get(self, key: str, default: Any, expected: str) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise self.error(f"{self.names.get(key, key)} is missing (expected {expected})")
        return default if value is None else value

    def _type_error(self, key: str, value: object, expected: str) -> DataError:
        return self.error(f"{self.names.get(key, key)} is {str(value)[:40]!r} (expected {expected})", key)


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float holds.

    >>> is_finite(1), is_finite(True), is_finite(10**400)
    (True, False, False)
    """
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


@regular_files_only()
def read_json(path: str) -> Any:
    """Read the value in a JSON file. DataError names the line that is not JSON."""
    with open_source(path) as source, name_errors(path):
        text = bytes(source.read_all())
        refuse_lfs_pointer(text, path)
        return parse_json(quote_infinity(text) if b"Infinity" in text else text)


def quote_infinity(text: bytes) -> bytes:
    """JSON with every bare Infinity, which Python writes, as newer files have it.

    >>> quote_infinity(b'{"time_step_limit": [0.0, Infinity], "words": "Infinity"}').decode()
    '{"time_step_limit": [0.0, {"__float__": "Infinity"}], "words": "Infinity"}'
    """
    stated = json.dumps(INFINITE).encode()
    return INFINITY.sub(lambda found: stated if found[1] == b"Infinity" else found[0], text)


PREPROCESSOR = "preprocessor_config.json"  # how a model's images or sounds become its input
PROCESSOR = "processor_config.json"  # the same and what text stands for images, as version 5 of transformers writes it


def read_preprocessor(folder: str) -> ConfigReader:
    """Read preprocessor_config.json of a folder, where null counts as absent.

    Without the file there are the values of images in processor_config.json, or none.
    """
    path, newer = (os.path.join(folder, name) for name in (PREPROCESSOR, PROCESSOR))
    values = read_json_object(path) if exists(path) else {}
    if not values and exists(newer) and isinstance(inner := read_json_object(newer).get("image_processor"), dict):
        path, values = newer, inner
    return ConfigReader({key: value for key, value in values.items() if value is not None}, path)


def read_json_object(path: str) -> dict[str, Any]:
    """Read the object in a JSON file, as `read_json` does."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError("not a JSON object", path)
    return value
