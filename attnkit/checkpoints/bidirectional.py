"""Decoders that attend in both directions, which are encoders here.

`is_causal: false` asks for it: transformers (5.23, in create_causal_mask) then masks padding alone. Its generation
with a cache attends to keys that have not seen the later tokens, and writes another text than without a cache; so
attnkit continues no text with such a model, but encodes it, and applies its head to each position.
"""

import json
import warnings
from dataclasses import replace

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers
from attnkit.errors import AttnkitNote, DataError
from attnkit.model.config import Config
from attnkit.model.recurrent_config import RecurrentConfig

KEY = "is_causal"


def read_direction(raw: ConfigReader, config: Config, masks: str = "") -> Config:
    """A model as it was read, or as an encoder if its file has `is_causal: false`.

    masks  how the family masks in transformers: IS_CAUSAL of `Family`

    DataError for a value by which eager attention and sdpa of transformers compute different numbers: false where
    `masks` says so, null, and true for a stack that is not causal; also for false of other models than lone decoders,
    and of biases by the distance before a query.
    """
    if KEY not in raw.values.plain or isinstance(config, RecurrentConfig):
        return config
    value, directions = raw.values.get(KEY), {config.stack(name).causal for name in config.stacks}
    is_causal = raw.get_bool(KEY, True)
    if masks == "ignored" or directions == {is_causal}:
        if masks == "ignored" and not is_causal:
            note = f"{raw.name}: family {config.family} ignores {KEY} {json.dumps(value)}, as transformers does"
            warnings.warn(note, AttnkitNote, stacklevel=2)
        return config
    if is_causal or value is None or masks:
        raise _error(raw, config, "eager attention and sdpa of transformers disagree about it")
    if config.stacks != ("decoder",) or config.positions.relative:
        raise _error(raw, config, "attention in both directions")
    return as_encoder(config, [one if one < 0 else one + 1 for one in config.stack("decoder").windows])


def _error(raw: ConfigReader, config: Config, why: str) -> DataError:
    value = json.dumps(raw.values.plain[KEY])
    return raw.error(f"{KEY} {value} is not supported by family {config.family}: {why}", KEY)


def as_encoder(config: Config, windows: list[int]) -> Config:
    """The model of a lone decoder as an encoder, with windows on both sides."""
    stack = replace(config.stack("decoder"), causal=False, windows=tuple(windows))
    return replace(config, encoder=stack, decoder=None)


def name_encoder(config: Config, layers: Layers) -> Layers:
    """Where the parameters of each layer are stored, by the name of the only stack.

    >>> from attnkit.model.config import StackConfig
    >>> stack = StackConfig(layers=1, heads=1, hidden=4, kv_heads=1, head_dim=2)
    >>> [*name_encoder(Config("llama", 2, encoder=stack), {"decoder.embed": {}, "head": {}})]
    ['encoder.embed', 'head']
    """
    if config.decoder or any(name.startswith("encoder.") for name in layers):
        return layers
    return {name.replace("decoder.", "encoder."): specs for name, specs in layers.items()}
