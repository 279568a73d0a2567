"""The scores of the heads in a trace, or in any record that keeps weights of attention."""

from collections.abc import Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.inference.intermediates import KEY_AXES
from attnkit.model.head_scores import HeadScores, score_heads
from attnkit.record import Array, Record, row_labels

WEIGHTS = "weights"  # the name of the weights of attend, and the end of those of a trace: decoder.0.self.weights
OTHER_TEXT = "source"  # the key axis of attention over another text


def score_layers(record: Record) -> dict[str, HeadScores]:
    """Return the scores of the heads of each layer, "" for the weights of attend; each row of a batch is a text.

    Padding is left out: where the mask of the record has it, else the keys that no query of any head attends to.
    DataError where the record keeps no weights, or these are not (H, T, S) or (B, H, T, S).

    >>> from attnkit.record import Tensor
    >>> weights = Tensor(np.eye(4)[None], ("head", "query", "key"), {"key": [*"abcd"]})
    >>> score_layers(Record({"decoder.0.self.weights": weights}))["decoder.0.self"].kinds()
    ['self']
    """
    names = find_weights(record)
    if not names:
        raise DataError("no weights of attention; encode or decode --trace FILE, or --keep '*.weights', keeps them")
    batches = {name: read_weights(record, name) for name in names}
    scores = {}
    for name, batch in batches.items():
        axis = record.axes_of(name)[-1]
        same = [other for at, other in batches.items() if record.axes_of(at)[-1] == axis]
        real = attended_keys(record, axis, [other for other in same if other.shape[-1] == batch.shape[-1]])
        texts = [
            score_heads(weights, token_numbers(record, axis, row, len(real[row])), real[row], axis == OTHER_TEXT)
            for row, weights in enumerate(batch)
        ]
        scores[name.removesuffix(WEIGHTS).removesuffix(".")] = sum(texts[1:], texts[0])
    return scores


def find_weights(record: Record) -> list[str]:
    """Return the names of the weights of attention in a record.

    >>> find_weights(Record({"weights": np.ones((1, 2, 2)), "decoder.0.ffn.hidden": np.ones((2, 2))}))
    ['weights']
    """
    return [name for name in record if name == WEIGHTS or name.endswith(f".{WEIGHTS}")]


def read_weights(record: Record, name: str) -> Array:
    """Return weights as a batch (B, H, T, S); DataError for another shape, or without a text, a query or a key."""
    weights = record[name]
    if weights.ndim not in (3, 4) or not weights.size or weights.dtype.kind != "f":
        raise DataError(f"{name} {weights.dtype} {weights.shape}: expected weights (head, query, key)")
    if record.axes_of(name)[-1] in KEY_AXES[:1] and weights.shape[-2] > weights.shape[-1]:
        raise DataError(f"{name} {weights.shape}: {weights.shape[-2]} queries for {weights.shape[-1]} keys")
    return weights if weights.ndim == 4 else weights[None]


def attended_keys(record: Record, axis: str, batches: Sequence[Array]) -> Array:
    """Return which keys are no padding, (B, S): by the mask of the record, or since some query attends to them.

    batches  the weights (B, H, T, S) of all layers over the same keys
    """
    mask, (rows, _, _, keys) = record.get("memory_mask" if axis == OTHER_TEXT else "mask"), batches[0].shape
    if mask is not None and mask.dtype == bool and mask.ndim == 3 and mask.shape[::2] == (rows, keys):
        return np.asarray(mask.any(axis=1))
    return np.asarray(np.stack([(batch != 0).any(axis=(1, 2)) for batch in batches]).any(axis=0))


def token_numbers(record: Record, axis: str, row: int, keys: int) -> Array | None:
    """Return a number for each key, the same for the same token: its id, or by its label; None where neither is known.

    >>> token_numbers(Record({}, {"key": ["a", "b", "a"]}), "key", 0, 3)
    array([0, 1, 0])
    """
    ids = record.get("ids")
    if ids is not None and ids.ndim in (1, 2) and ids.shape[-1] == keys and axis != OTHER_TEXT:
        return ids if ids.ndim == 1 else ids[row] if row < len(ids) else None
    words = row_labels(record.labels.get(axis), row)
    return np.unique(words, return_inverse=True)[1] if len(words) == keys else None
