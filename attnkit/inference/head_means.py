"""Means of attention heads over the tokens of texts, which an ablation may put in their place."""

from collections.abc import Iterable

import numpy as np

from attnkit.errors import DataError
from attnkit.inference.edits import HEADS
from attnkit.record import Array, Record, join_names


def mean_heads(records: Iterable[Record], file: str) -> dict[str, Array]:
    """Return the mean output of every head over all tokens of all texts: LAYER.heads -> (H, K), in float64.

    records  with tensors LAYER.heads, (H, T, K), or (B, H, T, K) with the padding mask of the batch, or means (H, K)

    DataError where there are none, or where their shapes or layers differ.

    >>> record = Record({"decoder.0.self.heads": np.array([[[1.0, 2.0], [3.0, 4.0]]])})
    >>> mean_heads([record, record], "heads.npz")["decoder.0.self.heads"].tolist()
    [[2.0, 3.0]]
    """
    sums: dict[str, Array] = {}
    counts: dict[str, int] = {}
    for number, record in enumerate(records):
        parts = {name: sum_heads(record, name, file) for name in record if name.endswith(HEADS)}
        if not parts:
            raise DataError(
                f"no heads to average (it has {join_names([*record], 4)}); encode --lines --keep '*.heads' keeps them",
                file,
            )
        if number and parts.keys() != sums.keys():
            [name, *_] = sorted(parts.keys() ^ sums.keys())
            raise DataError(f"{name} is in some of its records only", file)
        for name, (total, count) in parts.items():
            if number and total.shape != sums[name].shape:
                raise DataError(f"{name}: heads {total.shape} after heads {sums[name].shape}", file)
            sums[name], counts[name] = sums.get(name, 0) + total, counts.get(name, 0) + count
    return {name: total / counts[name] for name, total in sums.items()}


def sum_heads(record: Record, name: str, file: str) -> tuple[Array, int]:
    """Return the sum of the outputs of heads over the tokens of a record, (H, K), and the number of these tokens."""
    heads, mask = record[name].astype(np.float64), record.get("mask")
    if heads.ndim == 2:
        return heads, 1
    if heads.ndim not in (3, 4) or not heads.shape[-2]:
        raise DataError(f"{name} {heads.shape}: expected (head, query, head_dim)", file)
    if heads.ndim == 3:
        return heads.sum(axis=-2), heads.shape[-2]
    if mask is None and "x" not in record and len(heads) > 1:
        problem = "a trace of a batch does not say what is padding; encode --lines --keep '*.heads' keeps the heads"
        raise DataError(f"{name} {heads.shape}: {problem} of every text by itself", file)
    shape = len(heads), 1, heads.shape[-2]
    if mask is not None and mask.shape != shape:
        raise DataError(f"{name} {heads.shape} with a mask {mask.shape} (expected {shape})", file)
    real = np.ones(shape, bool) if mask is None else mask.astype(bool)
    return np.where(real[..., None], heads, 0).sum(axis=(0, 2)), max(int(real.sum()), 1)
