"""Texts of several lengths in one pass without padding, and one vector of each."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnkit import model
from attnkit.inputs import encoding
from attnkit.records import Array, Record

ROWS = 1 << 10  # tokens of a pack of texts, which one core computes: its hidden states stay in the cache


def pool_separately(encoded: encoding.Encoding, normalize: bool, dtype: str | None) -> Record | None:
    """The vector of each text of a padded batch, with the bits of the text alone.

    It is computed without padding.

    None if the batch has to be computed as a whole: without a pooling, or if a result is not finite.
    """
    from attnkit.model.kernels.threads import run_parallel

    core, texts = encoded.core, encoding.split_batch(encoded) if encoded.pool != "none" else []
    if not texts or core.engine or core.config.carries_states:
        return None
    vectors: dict[int, tuple[Array, str]] = {}

    def work(packs: Iterator[list[int]]) -> None:
        for pack in packs:
            for at, x in zip(pack, compute_pack([texts[at] for at in pack], dtype), strict=False):
                vectors[at] = encoding.pool_texts(texts[at], x, normalize)

    if model.can_pack(core, encoded.steps):
        if not all(map(is_packable, texts)):
            return None
        run_parallel(work, split_packs(texts))
    else:
        for at, one in enumerate(texts):
            x = model.run(core, one.steps, one.inputs, encoding.make_context(one, dtype=dtype))
            vectors[at] = encoding.pool_texts(one, x, normalize)
    if len(vectors) < len(texts):
        return None
    return encoding.pooled_record(encoded.base, np.stack([vectors[at][0] for at in range(len(texts))]), vectors[0][1])


def is_packable(one: encoding.Encoding) -> bool:
    """Whether a text has at least one token, and no more than the model has positions."""
    positions, length = one.core.config.positions, len(one.inputs)
    return length > 0 and not 0 < positions.size < positions.first + length


def split_packs(texts: Sequence[encoding.Encoding], rows: int = ROWS) -> list[list[int]]:
    """Split the numbers of texts into packs of some tokens, the longest texts first."""
    packs: list[list[int]] = []
    count = rows
    for at in sorted(range(len(texts)), key=lambda at: -len(texts[at].inputs)):
        count += len(texts[at].inputs)
        if count > rows:
            packs.append([])
            count = len(texts[at].inputs)
        packs[-1].append(at)
    return packs


def compute_pack(pack: Sequence[encoding.Encoding], dtype: str | None) -> list[Array]:
    """The hidden states of each text of a pack; none if one of them is not finite."""
    first = pack[0]
    kinds = [one.base.get("types") for one in pack]
    segments = [kind for kind in kinds if kind is not None]
    ids = [one.inputs for one in pack]
    states = model.run_packed(first.core, first.steps, ids, segments if len(segments) == len(ids) else None, dtype)
    return states or []
