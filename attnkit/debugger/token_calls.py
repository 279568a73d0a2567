"""Dumps of recurrent models in torch: calls for each token, packed sequences.

A decoder that attends inside its recurrence calls its modules token by token: `decoder.rnn.output.0` is the first call,
`decoder.rnn#1.output.0` the second. All calls together are one tensor of a dump, of all tokens. A PackedSequence is
recorded as its parts: the rows of tokens without padding, the number of texts that have each token, and the order of
the texts. It becomes a padded batch, and its lengths a tensor beside it. Token ids (T, B) of modules that read the
sequence first, as torch's do by default, become (B, T).
"""

import math
import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from attnkit.debugger.dumps import Dump
from attnkit.debugger.module_tree import DumpEntry
from attnkit.records import Array

CALL = re.compile(r"#(\d{1,9})(?!\w)")
PARTS = DATA, SIZES, SORTED, ORDER = ".0", ".1", ".2", ".3"  # of a PackedSequence
MOST = 1 << 24  # tokens of a padded batch


def gather_tokens(mine: Dump) -> Dump:
    """A dump with the calls of a module as one tensor, and sequences padded.

    Packed sequences become padded batches.

    The calls (B, 1, W) become (T, B, 1, W), and those of token ids (B,) become (B, T).
    """
    calls: dict[str, list[str]] = {}
    for name in mine:
        calls.setdefault(CALL.sub("", name), []).append(name)
    tokens = max(len(names) for names in calls.values())
    entries: dict[str, DumpEntry] = {}
    for name, names in calls.items():
        entry, shapes = _entry(mine, names[0]), {(mine.shape(one), mine.dtype(one)) for one in names}
        is_id = entry.dtype.startswith("int")
        if len(names) == tokens > 1 and len(shapes) == 1 and not (is_id and math.prod(entry.shape[1:]) != 1):
            shape = (*entry.shape[:1], tokens) if is_id else (tokens, *entry.shape)
            entries[name] = entry._replace(shape=shape, read=partial(_stack_calls, mine, names, shape))
        else:
            entries |= {one: _entry(mine, one) for one in names}
    entries = _texts_first(_pad_packed(entries))
    return Dump(mine.name, entries, mine.is_ordered and tokens == 1, mine.left_out)


def _entry(mine: Dump, name: str) -> DumpEntry:
    return DumpEntry(mine.dtype(name), mine.shape(name), lambda: mine[name], mine.digits(name))


def _stack_calls(mine: Dump, names: list[str], shape: tuple[int, ...]) -> Array:
    stacked = np.stack([mine[name] for name in names])
    return stacked if stacked.shape == shape else np.moveaxis(stacked, 0, 1).reshape(shape)


def _texts_first(entries: Mapping[str, DumpEntry]) -> dict[str, DumpEntry]:
    """The entries with ids and masks (T, B) as (B, T).

    The last states of a module (L, B, H) say which axis is B, unless both have one size.
    """
    turned: set[tuple[int, ...]] = set()
    for name, entry in entries.items():
        last = entries.get(f"{name[:-2]}.1", entries.get(f"{name[:-2]}.1.0"))  # of an LSTM a pair
        if name.endswith(".output.0") and last is not None and len(entry.shape) == len(last.shape) == 3:
            texts = last.shape[1]
            turned |= {(tokens, texts) for tokens in entry.shape[:2] if texts in entry.shape[:2] and tokens != texts}
    return {
        name: entry._replace(shape=entry.shape[::-1], read=partial(_transpose, entry))
        if entry.shape in turned and entry.dtype.startswith(("int", "bool"))
        else entry
        for name, entry in entries.items()
    }


def _transpose(entry: DumpEntry) -> Array:
    return entry.read().T


def _pad_packed(entries: Mapping[str, DumpEntry]) -> dict[str, DumpEntry]:
    """The entries with padded batches in place of the parts of packed sequences."""
    found: dict[str, DumpEntry] = {}
    for name, entry in entries.items():
        packed, part = name[:-2], name[-2:]
        if part not in PARTS or (sizes := _packed_sizes(entries, packed)) is None:
            found[name] = entry
        elif part == DATA:
            texts, order = sizes
            shape = (int(texts[0]), len(texts), entry.shape[1])
            found[packed] = entry._replace(shape=shape, read=partial(_pad, entry, texts, order))
            lengths = (texts[None] > np.arange(shape[0])[:, None]).sum(axis=1)[order]
            found[f"{packed}.lengths"] = DumpEntry("int64", (shape[0],), partial(np.asarray, lengths))
    return found


def _packed_sizes(entries: Mapping[str, DumpEntry], name: str) -> tuple[Array, Array] | None:
    """The sizes of packed batches (T,), and the place of each text (B,), or None.

    A size is the number of texts that have the token. None if nothing is packed.
    """
    data, sizes, order = (entries.get(name + part) for part in (DATA, SIZES, ORDER))
    if data is None or sizes is None or (len(data.shape), len(sizes.shape)) != (2, 1):
        return None
    if not sizes.dtype.startswith("int") or not 0 < sizes.shape[0] <= data.shape[0]:
        return None
    texts = sizes.read()
    count = int(texts[0])
    if texts.min() < 1 or (np.diff(texts) > 0).any() or texts.sum() != data.shape[0] or count * len(texts) > MOST:
        return None
    places = np.arange(count) if order is None else order.read()
    is_order = places.dtype.kind == "i" and places.shape == (count,) and (np.sort(places) == np.arange(count)).all()
    return (texts, places) if is_order else None


def _pad(data: DumpEntry, texts: Array, order: Array) -> Array:
    """Pad the rows of a packed sequence to (B, T, W).

    texts  (T,), the number of texts that have each token
    """
    is_token = texts[:, None] > np.arange(int(texts[0]))  # (T, B)
    rows = data.read()
    padded = np.zeros((*is_token.shape, data.shape[1]), rows.dtype)
    padded[is_token] = rows
    batch: Array = padded.swapaxes(0, 1)[order]
    return batch
