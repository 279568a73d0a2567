"""Find the weights of the feed-forward network: of a file, of a model's layer, or random ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnkit import formats, model
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.model.parameters import ATTENTION, FFN
from attnkit.record import Array, join_names


def find_ffn_weights(x: Array, flags: Mapping[str, Any]) -> tuple[dict[str, Array], str]:
    """Return the weights of ffn and the name of its activation, for the values of its flags."""
    checkpoint, activation = flags["model_"], str(flags["activation"])
    if checkpoint is not None:
        return dict(
            checkpoint.params[layers.find_layer(checkpoint, flags["layer"], "ffn")]
        ), checkpoint.config.activation
    if flags["hidden"] is not None:
        return random_ffn_weights(x, flags["hidden"], flags["gated"], flags["seed"]), activation
    return select_ffn_weights(flags["params"] or {}, flags["gated"]), activation


def random_ffn_weights(x: Array, hidden: int, gated: bool, seed: int) -> dict[str, Array]:
    """Draw weights from N(0, 1/rows), in the dtype of x."""
    rng, width = np.random.default_rng(seed), x.shape[-1] if x.ndim else 0
    shapes = {"w1": (width, hidden), "w2": (hidden, width)} | ({"w3": (width, hidden)} if gated else {})
    itemsize = model.output_dtype(x).itemsize
    formats.check_memory(itemsize * width * hidden * len(shapes), f"a network of {hidden} hidden units", "--hidden")
    return {name: model.random_weight(rng, *shape).astype(model.output_dtype(x)) for name, shape in shapes.items()}


def select_ffn_weights(params: Mapping[str, Array], gated: bool) -> dict[str, Array]:
    """Return the weights of this network in a file; DataError names the missing and the unknown ones."""
    required = {"w1", "w2"} | ({"w3"} if gated else set())
    if missing := sorted(required - set(params)):
        raise DataError(f"no {', '.join(missing)} (it has {join_names([*params])})", "--params")
    if unknown := sorted({*params} - {*FFN, *ATTENTION}):
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(sorted(FFN))}", "--params")
    params = {name: array for name, array in params.items() if name in FFN}
    if "w3" in params and not gated:
        raise UsageError("it has a w3, which only --gated uses", "--params")
    return params
