"""Bring an array of a dump to the layout of its site.

Its axes may be in another order, joined, split, cut or left out.

An array is the site's numbers with its axes in some order, neighbours of which may be joined. Where several orders have
its shape, the values decide. What had to be found by value is a finding.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, permutations
from typing import NamedTuple

import numpy as np

from attnkit.debugger.modules import Columns
from attnkit.errors import counted
from attnkit.interpret.tracer import intermediate_axes
from attnkit.model.dtypes import Array

TOKENS = ("token", "query", "key", "source")
PADDED = (*TOKENS, "vocab")  # axes that may be longer than those of the site, with padding
NEARER = 0.1  # another layout is taken if its distance is this part of that of the usual one
CHUNK = 256  # columns compared with all others at a time
HEARD = re.compile(r"^spectrogram$|\.(?:position_)?conv\d*(?:\.(?:convolved|normalized))?$")  # sites of frames
MIXED = "columns in another order"
PROJECTIONS = 32  # numbers that stand for a column


class Fitted(NamedTuple):
    """An array in the layout of its site.

    array    None if no layout of it has the shape of the site
    done     what was done to it, "" for nothing
    finding  what had to be found by value, "" for nothing
    problem  why there is no array, with both shapes
    order    the order of the columns of heads that was found by value, None for the usual one
    """

    array: Array | None
    done: str = ""
    finding: str = ""
    problem: str = ""
    order: Array | None = None


class Reading(NamedTuple):
    """A layout that an array may have: the array in it, and what was done.

    is_usual  whether implementations choose freely between this layout and that of the site
    """

    array: Array
    done: str = ""
    is_usual: bool = True


def site_axes(site: str, rank: int) -> tuple[str, ...]:
    """The names of the axes of a site.

    >>> site_axes("decoder.0.self.weights", 4), site_axes("ids", 2)
    (('batch', 'head', 'query', 'key'), ('batch', 'token'))
    >>> site_axes("encoder.conv1.convolved", 3)
    ('batch', 'frame', 'channel')
    """
    axes = ("batch", "token") if site.endswith("ids") else intermediate_axes(site, rank)
    axes = ("batch", "channel", "height", "width") if site == "pixels" else axes
    axes = ("batch", "model") if re.search(r"\.(last_\w+|bridge(_cell)?(\.hidden)?)$", site) else axes
    axes = ("batch", "frame", "channel") if HEARD.search(site) else axes
    return axes if len(axes) == rank else tuple(f"axis {at}" for at in range(rank))


def to_layout(
    array: Array,
    shape: tuple[int, ...],
    axes: Sequence[str],
    columns: Columns | None = None,
    expected: Array | None = None,
    heads: int = 0,
    order: Array | None = None,
) -> Fitted:
    """Bring an array to the shape of its site.

    shape, axes  of the site
    columns      the columns of the array that the site is, as in `TensorSource`
    expected     the site of the reference, which decides between layouts of one shape; None: the usual one
    heads        of queries, keys or values that are joined, whose columns may be in another order; 0: of nothing such
    order        the order of the columns that was found in another layer, which counts where none is found

    >>> joined = np.arange(6.0).reshape(3, 2)  # 3 tokens, 2 heads of width 1
    >>> fitted = to_layout(joined, (1, 2, 3, 1), ("batch", "head", "token", "head_dim"))
    >>> fitted.array.tolist(), fitted.done
    ([[[[0.0], [2.0], [4.0]], [[1.0], [3.0], [5.0]]]], 'axes (token, head)')
    >>> to_layout(joined, (1, 4, 2), ("batch", "token", "model")).problem
    'shape (3, 2), which is no layout of (batch 1, token 4, model 2)'
    """
    views = find_views(array, shape, axes, columns)
    best = next(views, None)
    if best is None:
        site = ", ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        part = f", columns {columns[0]} to {columns[1]} of {columns[2]}" if columns else ""
        return Fitted(None, problem=f"shape {array.shape}{part}, which is no layout of ({site})")
    if expected is None:
        return Fitted(best.array, best.done)
    least, finding = distance(best.array, expected), ""
    for view in views if least > 0 else ():
        other = distance(view.array, expected)
        if other < NEARER and other <= NEARER * least:
            best, least = view, other
            finding = "" if view.is_usual else f"{view.done} found by value"
    heads = shape[list(axes).index("head")] if {"head", "head_dim"} <= {*axes} else heads
    if heads and least > NEARER:
        for view in find_views(array, shape, axes, columns):
            if (found := find_order(view.array, expected, heads)) is not None:
                words = _list("" if view.is_usual else view.done, describe_order(found, heads))
                return Fitted(order_columns(view.array, found, heads), view.done, words, order=found)
        if order is not None:
            ordered = order_columns(best.array, order, heads)
            return Fitted(ordered, best.done, _list(finding, describe_order(order, heads)), order=order)
    return Fitted(best.array, best.done, finding)


def find_views(
    array: Array, shape: tuple[int, ...], axes: Sequence[str], columns: Columns | None = None
) -> Iterator[Reading]:
    """The layouts that an array may have, the most plausible first.

    shape, axes, columns  as in `to_layout`
    """
    for part, cut, is_own in cut_columns(array, columns) if columns else [Reading(array)]:
        for view in chain(_reorder(part, shape, axes), _cut_padding(part, shape, axes)):
            yield Reading(view.array, _list(cut, view.done), is_own and view.is_usual)


def _list(*words: str) -> str:
    return ", ".join(filter(None, words))


def distance(mine: Array, expected: Array) -> float:
    """How far two arrays are apart, relative to the norm of the expected one.

    Numbers that are not finite in the expected array do not count.

    >>> distance(np.array([3.0, 4.0, 7.0]), np.array([3.0, 5.0, -np.inf])) == 1 / 34**0.5
    True
    """
    finite = np.isfinite(expected)
    with np.errstate(all="ignore"):
        difference = np.linalg.norm((mine.astype(np.float64) - expected)[finite])
    norm = np.linalg.norm(expected[finite].astype(np.float64))
    return float(difference / norm) if norm and np.isfinite(difference) else float(difference > 0)


# the axes


def _reorder(array: Array, shape: tuple[int, ...], axes: Sequence[str]) -> Iterator[Reading]:
    """Views of an array of as many numbers as the site, one for each order of axes."""
    if array.size == math.prod(shape) * max(array.shape[:1], default=1) and array.ndim and len(array) > 1:
        array = array[0] if (array == array[:1]).all() else array  # as rows of positions, the same for every text
    if array.size != math.prod(shape) or not array.size:
        return
    is_same = array.shape == shape
    if is_same:
        yield Reading(array, "")
    sizes = [size for size in array.shape if size != 1]
    for is_reversed in (False, True):
        for whole, names in _split_widths(array, shape, axes):
            kept = [at for at, size in enumerate(whole) if size != 1]
            for order in sorted(permutations(kept), key=lambda one: _count_inversions(one, kept)):
                ordered = [whole[at] for at in order]
                groups = _join(ordered, sizes[::-1] if is_reversed else sizes)
                if groups is None or (is_reversed and sizes == sizes[::-1]) or (list(order) == kept and is_same):
                    continue
                view = array.reshape(ordered).transpose(np.argsort(order)).reshape(shape)
                words = ", ".join("·".join(names[order[at]] for at in group) for group in groups)
                moved = [axis for axis in (names[at] for at in order) if axis not in ("head", *TOKENS)]
                is_usual = not is_reversed and moved == [names[at] for at in kept if names[at] in moved]
                is_usual = is_usual and ("key" not in names or list(order) == kept)
                is_plain = list(order) == kept and len(groups) == len(kept) and not is_reversed
                done = "" if is_plain else f"axes ({words})" + " with the shape listed in reverse" * is_reversed
                yield Reading(view, done, is_usual)


def _split_widths(
    array: Array, shape: tuple[int, ...], axes: Sequence[str]
) -> Iterator[tuple[tuple[int, ...], tuple[str, ...]]]:
    """The shape of the site, and the shapes with its last axis split into heads."""
    yield shape, tuple(axes)
    if "head" in axes or array.ndim < 3:
        return
    for one, other in combinations(array.shape, 2):
        if one * other == shape[-1] and min(one, other) > 1:
            for heads, width in dict.fromkeys([(one, other), (other, one)]):
                yield (*shape[:-1], heads, width), (*axes[:-1], "head", "head_dim")


def _join(ordered: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """The groups of neighbouring axes whose products are some sizes, or None.

    >>> _join([2, 3, 4], [6, 4]), _join([2, 3, 4], [2, 3, 4]), _join([2, 3, 4], [3, 8])
    ([[0, 1], [2]], [[0], [1], [2]], None)
    """
    groups, rest = [], list(range(len(ordered)))
    for size in sizes:
        group, product = [], 1
        while rest and product < size:
            group.append(rest.pop(0))
            product *= ordered[group[-1]]
        if product != size:
            return None
        groups.append(group)
    return None if rest else groups


def _count_inversions(order: Sequence[int], kept: Sequence[int]) -> float:
    """How unusual an order is: how many pairs of axes are exchanged."""
    if list(order) == list(kept)[::-1]:
        return 1.5
    return sum(one > other for one, other in combinations(order, 2))


def _cut_padding(array: Array, shape: tuple[int, ...], axes: Sequence[str]) -> Iterator[Reading]:
    """Views of an array with more tokens, or a larger vocabulary, than the site."""
    sizes = [size for size in array.shape if size != 1]
    kept = [at for at, axis in enumerate(axes) if shape[at] != 1 or axis in PADDED]
    kept = kept if len(kept) == len(sizes) else [at for at in kept if shape[at] != 1]
    if len(kept) != len(sizes) or array.size <= math.prod(shape):
        return
    for order in sorted(permutations(kept), key=lambda one: _count_inversions(one, kept)):
        extra = {axes[at]: size - shape[at] for at, size in zip(order, sizes, strict=True) if size != shape[at]}
        if min(extra.values()) < 0 or not {*extra} <= {*PADDED}:
            continue
        words = " and ".join(counted(count, "word" if axis == "vocab" else axis) for axis, count in extra.items())
        for which in ("last", "first") if {*extra} <= {*TOKENS} else ("last",):
            starts = [extra.get(axes[at], 0) if which == "first" else 0 for at in order]
            cut = tuple(slice(start, start + shape[at]) for start, at in zip(starts, order, strict=True))
            for view in _reorder(array.reshape(sizes)[cut], shape, axes):
                yield Reading(view.array, _list(f"without the {which} {words}", view.done), view.is_usual)


def match_ranks(mine: Array, expected: Array) -> Array:
    """Order the last axis so that the numbers that both arrays have agree.

    mine, expected (..., N), no number twice -> (..., N) indices

    >>> mine, expected = np.array([[4, 2, 7]]), np.array([[2, 5, 4]])
    >>> order = match_ranks(mine, expected)
    >>> np.take_along_axis(mine, order, axis=-1).tolist()
    [[2, 7, 4]]
    """
    shared = mine[..., None, :] == expected[..., :, None]  # (..., expected, mine)
    others = np.argsort(shared.any(axis=-2), axis=-1, kind="stable")  # of mine, those that both have last
    free = np.cumsum(~shared.any(axis=-1), axis=-1) - 1
    spare = np.take_along_axis(others, np.maximum(free, 0), axis=-1)
    return np.where(shared.any(axis=-1), shared.argmax(axis=-1), spare)


# columns


def cut_columns(array: Array, columns: Columns) -> Iterator[Reading]:
    """The columns of a fused tensor: those of the scheme, then those of others.

    columns  first, end and count, as in `TensorSource`, and of parts that alternate the number of groups

    >>> fused = np.arange(6.0)  # 2 heads of width 1: q q k k v v, or q k v q k v
    >>> [(view.array.tolist(), view.done) for view in cut_columns(fused, (2, 4, 6))]
    [([2.0, 3.0], ''), ([1.0, 4.0], 'columns fused per head')]
    """
    first, end, count, *alternating = columns
    every = math.prod((count, *alternating))
    width = array.shape[-1] // every if array.ndim else 0
    if not width or array.shape[-1] % every:
        return
    if alternating:
        by_group = array.reshape(*array.shape[:-1], *alternating, count, width)[..., first:end, :]
        yield Reading(by_group.reshape(*array.shape[:-1], -1))
        return
    yield Reading(array[..., first * width : end * width])
    if count == 2:
        pairs = array.reshape(*array.shape[:-1], -1, 2)
        yield Reading(array[..., (1 - first) * width : (2 - first) * width], "columns of the other half", False)
        yield Reading(pairs[..., first], "columns that alternate", False)
        return
    groups = (count - end) // 2 if first == 0 else end - first  # key heads
    queries = count // groups - 2 if groups else 0  # heads of a group: its queries, a key and a value
    if groups < 2 or queries < 1 or count % groups:
        return
    chosen = slice(0, queries) if first == 0 else slice(queries, queries + 1) if end < count else slice(-1, None)
    parts = array.reshape(*array.shape[:-1], groups, queries + 2, width)[..., chosen, :]
    yield Reading(
        parts.reshape(*array.shape[:-1], -1), "columns fused per head" + " of the keys" * (queries > 1), False
    )


def cut_layers(states: Array, columns: Columns) -> Array:
    """The states of one layer, both directions side by side.

    (..., L, B, H) or (..., L, H) -> (..., B, W)

    columns  the first, the end and the count of the directions of all layers, which are an axis

    >>> cut_layers(np.arange(8.0).reshape(4, 1, 2), (2, 4, 4)).tolist()
    [[4.0, 5.0, 6.0, 7.0]]
    """
    first, end, count = columns
    if states.ndim == 2 or (states.ndim == 3 and states.shape[-3] != count):
        states = states[..., None, :]
    if states.ndim < 3 or states.shape[-3] != count:
        return states
    part = np.moveaxis(states[..., first:end, :, :], -3, -2)
    return part.reshape(*part.shape[:-2], -1)


def find_permutation(mine: Array, expected: Array) -> Array | None:
    """The order of the columns of one array that makes it another, or None.

    mine, expected (..., N) -> (N,), so that mine[..., order] is expected

    Every column is compared with all others by some projections of it, and the order found by all its values.

    >>> find_permutation(np.array([[1.0, 2.0, 3.0], [5.0, 6.0, 9.0]]), np.array([[3.0, 1.0, 2.0], [9.0, 5.0, 6.0]]))
    array([2, 0, 1])
    """
    x, y = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (mine, expected))
    if x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    if len(x) > PROJECTIONS:
        mix = np.random.default_rng(0).standard_normal((PROJECTIONS, len(x)))
        left, right = mix @ x, mix @ y
    else:
        left, right = x, y
    left, right = left.astype(np.float32), right.astype(np.float32)
    order = np.empty(x.shape[1], np.int64)
    for start in range(0, x.shape[1], CHUNK):
        part = right[:, start : start + CHUNK]
        order[start : start + CHUNK] = np.argmin(np.square(left).sum(axis=0) - 2 * part.T @ left, axis=1)
    if len(np.unique(order)) != len(order) or distance(x[:, order], y) > NEARER:
        return None
    return order


def find_order(mine: Array, expected: Array, heads: int) -> Array | None:
    """The order of heads and their columns that is the expected one: (H*K,).

    mine, expected (B, T, H*K) or (B, H, T, K)

    None if they are in this order, or if columns of several heads are mixed.
    """
    is_split = mine.ndim == 4
    flat, other = (
        np.swapaxes(one, 1, 2).reshape(one.shape[0], one.shape[2], -1) if is_split else one for one in (mine, expected)
    )
    order = find_permutation(flat, other)
    if order is None and is_split and (inner := find_permutation(mine[:, 0], expected[:, 0])) is not None:
        order = (np.arange(heads)[:, None] * len(inner) + inner).ravel()  # of heads that share columns
        order = order if distance(flat[..., order], other) <= NEARER else None
    return None if order is None or describe_order(order, heads) in ("", MIXED) else order


def order_columns(x: Array, order: Array, heads: int) -> Array:
    """The columns of heads in an order: (B, T, H*K) or (B, H, T, K)."""
    if x.ndim != 4:
        return x[..., order]
    ordered = np.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)[..., order]
    return np.swapaxes(ordered.reshape(*ordered.shape[:2], heads, -1), 1, 2)


def describe_order(order: Array, heads: int) -> str:
    """Describe how columns of heads are ordered.

    >>> describe_order(np.array([0, 2, 1, 3]), 1)
    'columns interleaved in each head (in halves in the reference)'
    >>> describe_order(np.array([2, 3, 0, 1]), 2)
    'heads in the order 1, 0'
    """
    width = len(order) // heads
    blocks = np.asarray(order).reshape(heads, width)
    sources, inner = blocks // width, blocks % width
    if (sources != sources[:, :1]).any() or (inner != inner[:1]).any():
        return MIXED
    words = []
    if (inner[0] != np.arange(width)).any():
        words.append(_describe_inner(inner[0]))
    if (sources[:, 0] != np.arange(heads)).any():
        words.append(f"heads in the order {', '.join(map(str, np.argsort(sources[:, 0]).tolist()))}")
    return " and ".join(words)


def _describe_inner(inner: Array) -> str:
    for width in range(len(inner), 2, -1):
        pairs = np.arange(width).reshape(-1, 2).T.ravel() if width % 2 == 0 else np.arange(0)
        rest = np.arange(width, len(inner))
        part = "" if width == len(inner) else f" among the first {width}"
        if len(pairs) and (inner == np.concatenate([pairs, rest])).all():
            return f"columns interleaved in each head{part} (in halves in the reference)"
        if len(pairs) and (inner == np.concatenate([np.argsort(pairs), rest])).all():
            return f"columns in halves in each head{part} (interleaved in the reference)"
    return "columns of each head in another order"
