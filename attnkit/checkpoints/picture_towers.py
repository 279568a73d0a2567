"""The parts of a model that reads texts with pictures.

They are a decoder, and a tower of pictures with its connector.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights
from attnkit.model.config import Config, ConnectorConfig

TIED = "tie_word_embeddings"


class PictureTokens(NamedTuple):
    """What stands for a picture in the text of a prompt, and in its tokens.

    id        of the token in whose place a row of a picture is
    stands    the token that a prompt has for a whole picture
    form      of what replaces that: a row of PLACEHOLDERS in inputs/picture_prompts.py
    ends      tokens before and after the rows of a picture, (): none
    attends   whether the tokens of a picture attend to each other in both directions
    """

    id: int
    stands: int
    form: str
    ends: tuple[int, ...] = ()
    attends: bool = False


class Tower(NamedTuple):
    """A part of a model as a family of its own: see Family in checkpoint.py."""

    VARIANT_OF: Any
    PREFIXES: tuple[str, ...]
    read_config: Callable[[ConfigReader, Weights], Config]
    map_layers: Callable[[ConfigReader], Layers]


def with_connector(family: Any, prefixes: tuple[str, ...], connector: ConnectorConfig, layers: Layers) -> Tower:
    """The tower of a family with a connector.

    layers  where the parameters of the connector are stored
    """
    return Tower(
        family,
        prefixes,
        lambda raw, stored: replace(family.read_config(raw, stored), connector=connector),
        lambda raw: {**family.map_layers(raw), **layers},
    )


def read_decoder(raw: ConfigReader, defaults: Mapping[str, Any]) -> ConfigReader:
    """The configuration of the decoder, tied where the whole model says so.

    Ids of generation_config.json count before those of the decoder, and these before others of the whole model.
    """
    text = raw.get_object("text_config")
    tokens = {key: value for key, value in raw.values.plain.items() if key.endswith("_token_id")}
    first = {key: value for key, value in tokens.items() if key in raw.origins}
    raw.ignore(*tokens)
    tied = {TIED: raw.get_bool(TIED, bool(defaults.get(TIED)))}
    return text.replaced({**defaults, **tokens, **text.values.plain, **first, **tied})


def find_part(raw: ConfigReader, key: str, families: Mapping[str, Any], usual: str) -> Any:
    """The family of a part; DataError for one that is not among some."""
    name = raw.get_object(key).get_str("model_type", usual)
    if name not in families:
        family = raw.get_str("model_type")
        known = ", ".join(families)
        raise raw.error(f"{key}.model_type {name[:40]!r} is not supported by family {family} (use {known})")
    return families[name]
