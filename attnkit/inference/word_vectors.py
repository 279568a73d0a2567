"""The vectors of all words of a model, as its embedding layer makes them."""

from typing import TYPE_CHECKING

import numpy as np

from attnkit import model
from attnkit.errors import DataError
from attnkit.inference import layers, text_inputs
from attnkit.record import Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def word_vectors(checkpoint: "Checkpoint", layer: str | None = None) -> Record:
    """Return what `embed --model` makes of each token of the vocabulary, x (V, D), labelled with the tokens.

    layer  an embedding layer of the model; None: that of the first stack

    They are the stored table itself, which may be mapped, where the model neither scales it nor adds segments.
    DataError for a model of images; UsageError for another layer.
    """
    config = checkpoint.config
    if config.patches:
        raise DataError(f"a {config.family} model embeds images, and has no vectors of words", checkpoint.folder)
    layer = layers.find_layer(checkpoint, layer, "embed")
    params = checkpoint.params[layer]
    x = params["table"]
    if config.embed_scale != 1 or "types" in params:
        x = model.embed_tokens(layers.core_model(checkpoint), layer, np.arange(len(x)), model.Context())
    side = "source" if model.parse_layer_name(layer)[0] == config.stacks[0] else "target"
    words = text_inputs.vocabulary_of(checkpoint, side, None, len(x))
    return Record({"x": Tensor(x, ("row", "model"))}, {"row": words} if words else {})
