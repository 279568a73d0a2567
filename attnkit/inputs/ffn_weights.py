"""Find the weights of the feed-forward network: of a file, of a model's layer, or random ones."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnkit import formats, model
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.model.parameters import ATTENTION, FFN
from attnkit.record import Array, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def find_ffn_weights(
    x: Array,
    *,
    params: Mapping[str, Array] | None,
    model_: "Checkpoint | None",
    layer: str | None,
    hidden: int | None,
    seed: int,
    activation: str,
    gated: bool,
) -> tuple[Mapping[str, Array], str]:
    """Find the weights of ffn and the name of its activation, by its options."""
    if model_ is not None:
        return model_.params[layers.find_layer(model_, layer, "ffn")], model_.config.activation
    if hidden is not None:
        return random_ffn_weights(x, hidden, gated, seed), activation
    return select_ffn_weights(params or {}, gated), activation


def random_ffn_weights(x: Array, hidden: int, gated: bool, seed: int) -> dict[str, Array]:
    """Draw weights from N(0, 1/rows), in the dtype of x."""
    rng, width = np.random.default_rng(seed), x.shape[-1] if x.ndim else 0
    shapes = {"w1": (width, hidden), "w2": (hidden, width)} | ({"w3": (width, hidden)} if gated else {})
    itemsize = model.output_dtype(x).itemsize
    formats.check_memory(itemsize * width * hidden * len(shapes), f"a network of {hidden} hidden units", "--hidden")
    return {name: model.random_weight(rng, *shape).astype(model.output_dtype(x)) for name, shape in shapes.items()}


def select_ffn_weights(params: Mapping[str, Array], gated: bool) -> dict[str, Array]:
    required = {"w1", "w2"} | ({"w3"} if gated else set())
    if missing := sorted(required - set(params)):
        raise DataError(f"no {', '.join(missing)} (it has {join_names([*params])})", "--params")
    if unknown := sorted({*params} - {*FFN, *ATTENTION}):
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(sorted(FFN))}", "--params")
    params = {name: array for name, array in params.items() if name in FFN}
    if "w3" in params and not gated:
        raise UsageError("it has a w3, which only --gated uses", "--params")
    return params
