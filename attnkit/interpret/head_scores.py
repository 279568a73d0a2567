"""The scores of heads in a trace, or in a record that keeps weights of attention."""

from collections.abc import Iterable, Sequence

import numpy as np

from attnkit.errors import DataError
from attnkit.inputs.padding import find_real_tokens
from attnkit.model.dtypes import is_float
from attnkit.model.formulas.head_scores import MEANS, HeadScores, concatenate_heads, score_heads
from attnkit.records import Array, Record, Tensor, join_names, row_labels

WEIGHTS = "weights"  # the name of the weights of attend, and the end of those of a trace: decoder.0.self.weights
OTHER_TEXT = "source"  # the key axis of attention over another text
COLUMNS = (*MEANS, "largest")
FORMULA = "mean weight on a target; entropy in nats; mean |query − key|; largest weight"


def score_records(records: Iterable[Record]) -> Record:
    """Score all heads over the texts of records: x (head, score).

    Beside x: `kind` (head), the measure of the kind of each head, whose labels are the kinds; `pair` (head, 3), the
    text, query and key of its largest weight, whose labels are their words; `texts`, how many there are.

    DataError if no record has a token, or a record has other heads than the first.
    """
    totals: dict[str, HeadScores] = {}
    words: dict[str, list[str]] = {}
    for number, record in enumerate(records, start=1):
        layers = score_layers(record)  # none where there is no token
        counts = [{name: len(one.largest) for name, one in many.items()} for many in (layers, totals or layers)]
        if layers and counts[0] != counts[1]:
            own, first = (
                join_names([f"{name or WEIGHTS} ({n} heads)" for name, n in one.items()], 3) for one in counts
            )
            raise DataError(f"record {number} has {own}, the first {first}")
        for name, scores in layers.items():
            axes, pairs = record.axes_of(f"{name}.{WEIGHTS}".removeprefix("."))[-2:], []
            for text, *place in scores.place.tolist():
                rows = [row_labels(record.labels.get(axis), text) for axis in axes if text >= 0]
                pair = [row[at] if at < len(row) else str(at) for row, at in zip(rows, place, strict=text >= 0)]
                pairs.append(" → ".join(pair))
            before = totals.get(name)
            is_new = scores.largest > (before.largest if before else -1)
            old = words.get(name, pairs)
            words[name] = [new if one else last for one, new, last in zip(is_new, pairs, old, strict=True)]
            totals[name] = before + scores if before else scores
    if not totals:
        raise DataError("no record with a token")
    scores = concatenate_heads(totals.values())
    x = np.concatenate([scores.means(), np.where(scores.place[:, :1] < 0, np.nan, scores.largest[:, None])], axis=1)
    names = [f"{name}:{head}".removeprefix(":") for name, one in totals.items() for head in range(len(one.largest))]
    tensors = {
        "x": Tensor(x, ("head", "score"), {"head": names, "score": [*COLUMNS]}, FORMULA),
        "kind": Tensor(scores.kind_measures(), ("kind",), {"kind": scores.kinds()}),
        "pair": Tensor(scores.place, ("pair", "place"), {"pair": [pair for pairs in words.values() for pair in pairs]}),
        "texts": Tensor(np.array(scores.texts), ()),
    }
    return Record(tensors).with_tensors({}, {"place": ["text", "query", "key"]})


def score_layers(record: Record) -> dict[str, HeadScores]:
    """Score the heads of each layer; each row of a batch is a text.

    Padding is left out: if the mask of the record has it, else the keys that no query of any head attends to. A
    record without a token has no scores. DataError if a record keeps no weights, or these are not (H, T, S) or
    (B, H, T, S).

    >>> from attnkit.records import Tensor
    >>> weights = Tensor(np.eye(4)[None], ("head", "query", "key"), {"key": [*"abcd"]})
    >>> score_layers(Record({"decoder.0.self.weights": weights}))["decoder.0.self"].kinds()
    ['self']
    """
    names = find_weights(record)
    if not names:
        if summaries := [name for name in record if f".{WEIGHTS}." in f".{name}"]:
            raise DataError(f"{summaries[0]} is a summary of the weights; --weights full keeps them all")
        raise DataError("no weights of attention; encode or decode --trace FILE, or --keep '*.weights', keeps them")
    batches = {name: weights for name in names if (weights := read_weights(record, name)).size}
    scores = {}
    for name, batch in batches.items():
        axis = record.axes_of(name)[-1]
        same = [other for at, other in batches.items() if record.axes_of(at)[-1] == axis]
        real = attended_keys(record, axis, [other for other in same if other.shape[::3] == batch.shape[::3]])
        texts = [
            score_heads(weights, token_numbers(record, axis, row, len(real[row])), real[row], axis == OTHER_TEXT)
            for row, weights in enumerate(batch)
        ]
        scores[name.removesuffix(WEIGHTS).removesuffix(".")] = sum(texts[1:], texts[0])
    return scores


def find_weights(record: Record) -> list[str]:
    """The names of the weights of attention in a record.

    >>> find_weights(Record({"weights": np.ones((1, 2, 2)), "decoder.0.ffn.hidden": np.ones((2, 2))}))
    ['weights']
    """
    return [name for name in record if name == WEIGHTS or name.endswith(f".{WEIGHTS}")]


def read_weights(record: Record, name: str) -> Array:
    weights = record[name]
    if weights.ndim not in (3, 4) or not is_float(weights.dtype):
        raise DataError.about(name, f"{weights.dtype} {weights.shape}: expected weights (head, query, key)")
    if record.axes_of(name)[-1] != OTHER_TEXT and weights.shape[-2] > weights.shape[-1]:
        raise DataError.about(name, f"{weights.shape}: {weights.shape[-2]} queries for {weights.shape[-1]} keys")
    return weights if weights.ndim == 4 else weights[None]


def attended_keys(record: Record, axis: str, batches: Sequence[Array]) -> Array:
    """Which keys are no padding, (B, S), by the mask or by what is attended to.

    batches  the weights (B, H, T, S) of all layers over the same keys
    """
    rows, _, _, keys = batches[0].shape
    if axis == OTHER_TEXT:
        record = Record({"mask": record.tensors["memory_mask"]} if "memory_mask" in record else {})
    if "mask" not in record or record["mask"].shape[-1:] == (keys,):
        real = find_real_tokens(record, (rows, keys))
        if real is not None:
            return real
    return np.asarray(np.stack([(batch != 0).any(axis=(1, 2)) for batch in batches]).any(axis=0))


def token_numbers(record: Record, axis: str, row: int, keys: int) -> Array | None:
    """A number for each key, equal for equal tokens; None if tokens are unknown.

    >>> token_numbers(Record({}, {"key": ["a", "b", "a"]}), "key", 0, 3)
    array([0, 1, 0])
    """
    ids = record.get("ids")
    if ids is not None and ids.ndim in (1, 2) and ids.shape[-1] == keys and axis != OTHER_TEXT:
        return ids if ids.ndim == 1 else ids[row] if row < len(ids) else None
    words = row_labels(record.labels.get(axis), row)
    return np.unique(words, return_inverse=True)[1] if len(words) == keys else None
