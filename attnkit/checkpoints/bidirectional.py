"""Decoders that attend in both directions, which are encoders here.

`is_causal: false` asks for it: transformers (5.23, in create_causal_mask) then masks padding alone. Its generation
with a cache attends to keys that have not seen the later tokens, and writes another text than without a cache; so
attnkit continues no text with such a model, but encodes it, and applies its head to each position.
"""

import warnings
from dataclasses import replace

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers
from attnkit.errors import AttnkitNote
from attnkit.model.config import Config

KEY = "is_causal"


def read_direction(raw: ConfigReader, config: Config, masks: str = "") -> Config:
    """A model as it was read, or as an encoder if its file has `is_causal: false`.

    The key concerns causal stacks alone. Null is false, as in transformers.

    masks  how the family masks in transformers: IS_CAUSAL of `Family`

    DataError for a model with other causal stacks than a lone decoder, or with biases of distances before a query.
    """
    if KEY not in raw.values.plain or not any(config.stack(name).causal for name in config.stacks):
        return config
    if raw.get_bool(KEY, True):
        return config
    if masks == "ignored":
        note = f"{raw.name}: family {config.family} ignores {KEY} false, as transformers does"
        warnings.warn(note, AttnkitNote, stacklevel=2)
        return config
    if masks or config.stacks != ("decoder",) or config.positions.relative:
        raise raw.error(f"{KEY} false is not supported by family {config.family}: attention in both directions", KEY)
    return as_encoder(config, [one if one < 0 else one + 1 for one in config.stack("decoder").windows])


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
