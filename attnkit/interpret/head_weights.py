"""What the weights of each head say: copying, and composition with earlier heads."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import UsageError, with_article
from attnkit.model.formulas.head_circuits import (
    MODES,
    HeadWeights,
    composition_scores,
    copying_scores,
    read_by,
    split_projections,
    vocabulary_product,
    written_by,
)
from attnkit.records import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


COMPOSITION = tuple(f"composition.{mode}" for mode in MODES)
COLUMNS = ("copying", *MODES)


def describe_weights(checkpoint: "Checkpoint") -> Record:
    """Describe the weights of each head of self-attention: x (head, 4).

    Of q, k and v it has the largest composition score with a head of an earlier layer of the same stack; all of them
    are in the tensors `composition.q` and so on, (head, head), NaN if there is none. UsageError for a model without
    such heads.
    """
    config = checkpoint.config
    layers = find_attention_layers(checkpoint)
    if config.latent:
        raise UsageError(
            f"heads of {with_article(config.family)} model read latent vectors, whose norms no weights state", "--model"
        )
    labels = [f"{name}:{head}" for name in layers for head in range(head_count(config, name))]
    composition = {mode: np.full((len(labels), len(labels)), np.nan, np.float32) for mode in MODES}
    copying: list[Array] = []
    for stack in config.stacks:
        mine = [name for name in layers if name.startswith(f"{stack}.")]
        weights = {name: split_projections(checkpoint.params[name], head_count(config, name)) for name in mine}
        fill_composition(composition, weights, sum(map(len, copying)))
        copying += find_copying(checkpoint, stack, weights)
    strongest = [np.fmax.reduce(composition[mode], axis=1, initial=np.nan) for mode in MODES]
    x = np.stack([np.concatenate(copying), *strongest], axis=1)
    arrays = zip(COMPOSITION, composition.values(), strict=True)
    tensors = {name: Tensor(array, ("head", "earlier")) for name, array in arrays}
    names: dict[str, Any] = {"head": labels, "earlier": labels, "score": [*COLUMNS]}
    return Record({"x": Tensor(x, ("head", "score"), formula=FORMULA)}).with_tensors(tensors, names)


FORMULA = "Σ λ / Σ |λ| of W_E W_V W_O W_U, and the largest |W_OV W| / (|W_OV| |W|)"


def find_attention_layers(checkpoint: "Checkpoint") -> list[str]:
    config = checkpoint.config
    layers = [name for name in checkpoint.layers() if name.endswith(".self")]
    if not layers:
        hint = "; decode --trace FILE keeps the weights of a decoder that attends" * (config.encoder is not None)
        raise UsageError(f"this {config.family} model has no heads of self-attention{hint}", "--model")
    return layers


def head_count(config: "model.Config", layer: str) -> int:
    return config.stack(model.parse_layer_name(layer)[0]).heads


def find_copying(checkpoint: "Checkpoint", stack: str, weights: Mapping[str, HeadWeights]) -> list[Array]:
    """The copying scores of each layer, NaN if no single matrix leads to words."""
    config, params = checkpoint.config, checkpoint.params
    is_linear = config.head and not (config.transform or config.classes or config.embed_width)
    if not (is_linear and stack == config.stacks[-1] and config.stack(stack).vocab):
        return [np.full(len(one.q), np.nan) for one in weights.values()]
    product = vocabulary_product(params["head"]["w"], params[f"{stack}.embed"]["table"])
    return [copying_scores(one, product) for one in weights.values()]


def fill_composition(composition: Mapping[str, Array], weights: Mapping[str, HeadWeights], first: int) -> None:
    """Fill in the composition scores of one stack, whose heads begin at `first`."""
    written: list[tuple[slice, Array]] = []  # of each earlier layer: its heads, what they write
    for name, later in weights.items():
        callbacks.current().on_progress(name)
        rows = slice(first, first + len(later.q))
        for mode, read in read_by(later).items():
            for columns, earlier in written:
                composition[mode][rows, columns] = composition_scores(earlier, read)
        written.append((rows, written_by(later)))
        first = rows.stop
