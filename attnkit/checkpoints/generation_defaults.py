"""The search that the files of a folder ask for, by the names of our options."""

from collections.abc import Callable, Mapping
from typing import Any

from attnkit.checkpoints.config_reader import is_finite

# key -> the option of decode, the value that changes nothing, and the value of the option
OPTIONS: dict[str, tuple[str, float, Callable[[Any], Any]]] = {
    "num_beams": ("beam", 1, lambda value: value),
    "length_penalty": ("length_penalty", 1, lambda value: f"average:{value:g}"),
    "repetition_penalty": ("repetition_penalty", 1, lambda value: value),
    "no_repeat_ngram_size": ("no_repeat_ngram", 0, lambda value: value),
    "min_length": ("min_tokens", 1, lambda value: value - 1),  # which counts the token that the decoder starts with
}
OF_BEAMS = ("beam", "length_penalty")


def list_defaults(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The options of keys of generation_config.json, but those without effect.

    >>> list_defaults({"num_beams": 4, "length_penalty": 2.0, "min_length": 0, "no_repeat_ngram_size": 3})
    {'beam': 4, 'length_penalty': 'average:2', 'no_repeat_ngram': 3}
    >>> list_defaults({"length_penalty": 2.0})
    {}
    """
    asked = {
        name: convert(stated[key])
        for key, (name, neutral, convert) in OPTIONS.items()
        if is_finite(stated.get(key)) and stated[key] > 0 and stated[key] != neutral
    }
    return asked if "beam" in asked else {name: value for name, value in asked.items() if name not in OF_BEAMS}


def key_of(option: str) -> str:
    """The key that stands for an option.

    >>> key_of("min_tokens")
    'min_length'
    """
    return next(key for key, (name, *_) in OPTIONS.items() if name == option)
