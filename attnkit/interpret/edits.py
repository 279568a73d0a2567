"""Edits of intermediates: what `--patch` and `--ablate` put in or add to cells.

A target is NAME, or NAME[SLICE] for some of its cells, such as decoder.1.self.heads[2,:5]; with + at its end what is
there is added to. Positions count from the start of the text, whether or not earlier tokens are in a KV cache.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnkit import formats
from attnkit.errors import DataError, UsageError, counted, suggest
from attnkit.formats.streams import name_errors
from attnkit.inputs.padding import find_real_tokens
from attnkit.interpret.slices import ALL, Index, check_bound, fill_index, parse_slice
from attnkit.records import Array, Labels, Record, join_names

TARGET = re.compile(r"(?P<name>[^\[\]=+]+)(\[(?P<slice>[^\[\]]*)\])?(?P<adds>\+?)")
HEADS = ".heads"  # suffix of the intermediate that holds the heads of a layer
HEAD_RANGE = re.compile(r"[0-9]{1,9}|[0-9]{0,9}:[0-9]{0,9}", re.ASCII)  # HEAD or A:B
OF_TOKENS = ("token", "query")  # axes that have the tokens of one pass; those of keys have all tokens so far
OF_TEXT = (*OF_TOKENS, "key")


class PassTokens(NamedTuple):
    """An intermediate of one pass, and if its tokens are in the text.

    shape   without an axis of rows that are edited alike
    axes    the names of its axes
    size    of the text up to the last token of the pass
    labels  axis -> the words along it
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    size: int
    labels: Mapping[str, Labels]

    def sizes(self) -> tuple[int, ...]:
        sizes = zip(self.shape, self.axes, strict=True)
        return tuple(self.size if axis in OF_TOKENS else size for size, axis in sizes)

    def offsets(self) -> tuple[int, ...]:
        return tuple(whole - size for whole, size in zip(self.sizes(), self.shape, strict=True))

    def until(self, size: int) -> "PassTokens":
        """The same of a pass that ends if the text has that size.

        >>> PassTokens((2, 5, 5), ("head", "query", "key"), 5, {}).until(3).shape
        (2, 3, 3)
        """
        sizes = zip(self.shape, self.axes, strict=True)
        shape = tuple(one - (self.size - size) * (axis in OF_TEXT) for one, axis in sizes)
        return self._replace(shape=shape, size=size)


class Edit(NamedTuple):
    """What an option puts in cells of an intermediate, or adds to them.

    target  as the user wrote it; flag: the option
    name    of the intermediate; part: the index of its cells
    values  of the shape of the cells, of their last axes, or of the whole intermediate
    """

    target: str
    name: str
    part: tuple[Index, ...]
    values: Array
    adds: bool = False
    flag: str = "--patch"

    def apply(self, array: Array, now: PassTokens, first: PassTokens, grows: bool) -> Array | None:
        """Edit the cells of an intermediate; None if this pass has none of them.

        now    the intermediate in this pass, and `first` in the first one
        grows  whether more tokens may follow, so that a position outside may still come

        Values with an axis of tokens are of the first pass; others are the same in every pass. UsageError for an
        index outside, DataError for values of another shape.
        """
        axes, whole = first.axes, first.sizes()
        with name_errors(self.flag):
            places = fill_index(self.part, axes, lambda at: first.labels.get(axes[at]), self.name, whole)
            parts = [part for part in places if not isinstance(part, list)]  # TARGET has no lists
            for part, axis, size in zip(parts, axes, whole, strict=True):
                if not (grows and axis in OF_TEXT):
                    check_bound(part, axis, size)
        index = tuple(map(from_start, parts, whole))
        ranges = [at for at, part in enumerate(index) if isinstance(part, slice)]
        grid = make_grid(index, first)
        source, is_same = self.fit(first, grid, ranges)
        if not is_same and now.offsets() != first.offsets():
            return None
        grid = make_grid(index, now) if is_same else grid
        if not all(one.size for one in grid):
            return None
        sizes = [grid[at].size for at in ranges]
        values = np.broadcast_to(self.values, sizes) if source is None else self.values[np.ix_(*source)]
        with name_errors(self.flag):
            values = formats.cast_array(values.reshape([one.size for one in grid]), array.dtype.name)
        changed, at = array.copy(), (slice(None),) * (array.ndim - len(grid)) + np.ix_(*grid)
        changed[at] = changed[at] + values if self.adds else values
        return changed

    def fit(
        self, first: PassTokens, grid: Sequence[Array], ranges: Sequence[int]
    ) -> tuple[Sequence[Array] | None, bool]:
        """The cells of the values, and whether every pass takes them.

        ranges  the axes of the cells, which are no single index

        DataError for values of another shape.
        """
        sizes, shape = tuple(grid[at].size for at in ranges), self.values.shape
        lead = len(ranges) - len(shape)
        if lead >= 0 and shape == sizes[lead:]:
            return None, not any(first.axes[at] in OF_TEXT for at in ranges[lead:])
        if shape == first.shape:
            return grid, False
        source = [one + offset for one, offset in zip(grid, first.offsets(), strict=True)]  # of another text
        if not self.part or not has_cells(shape, source, first):
            raise DataError(f"shape {shape} for {self.target.rstrip('+')} of shape {sizes}", self.flag)
        return source, False


def from_start(part: slice | int, size: int) -> slice | int:
    """An index with bounds that count from the start of the axis.

    >>> from_start(-1, 5), from_start(slice(-3, None), 5)
    (4, slice(2, None, None))
    """
    if isinstance(part, int):
        return part + size * (part < 0)
    start, stop = (None if bound is None else max(bound + size * (bound < 0), 0) for bound in (part.start, part.stop))
    return slice(start, stop, part.step)


def make_grid(index: Sequence[slice | int], cells: PassTokens) -> list[Array]:
    """The indices of a pass, for each axis, that an index of the whole text selects.

    >>> cells = PassTokens((1, 4), ("token", "model"), 6, {})  # the token at position 5
    >>> [one.tolist() for one in make_grid((slice(3, None), 2), cells)], [*make_grid((4, 2), cells)[0]]
    ([[0], [2]], [])
    """
    grid = []
    for part, size, offset in zip(index, cells.sizes(), cells.offsets(), strict=True):
        whole = np.arange(size)[part if isinstance(part, slice) else slice(part, part + 1)] - offset
        grid.append(whole[whole >= 0])
    return grid


def has_cells(shape: tuple[int, ...], cells: Sequence[Array], like: PassTokens) -> bool:
    """Whether a shape differs from an intermediate in its tokens alone, and has cells.

    >>> has_cells((9, 4), [np.array([8]), np.arange(4)], PassTokens((5, 4), ("token", "model"), 5, {}))
    True
    """
    if len(shape) != len(like.shape):
        return False
    sizes = zip(shape, cells, like.shape, like.axes, strict=True)
    return all(one.max(initial=-1) < size and (size == other or axis in OF_TEXT) for size, one, other, axis in sizes)


def parse_target(text: str, flag: str = "--patch") -> tuple[str, tuple[Index, ...], bool]:
    """Parse NAME[SLICE]+ to the name, the index, and whether it is added to.

    >>> parse_target("decoder.0.self.heads[2,:5]+")
    ('decoder.0.self.heads', (2, slice(None, 5, None)), True)
    """
    match = TARGET.fullmatch(text)
    try:
        index = parse_slice(match["slice"]) if match and match["slice"] is not None else ()
    except ValueError as error:
        raise UsageError(f"{text!r}: expected {error} in the brackets", flag) from None
    if not match:
        raise UsageError(f"{text!r} is not NAME or NAME[SLICE]", flag)
    return match["name"], index, bool(match["adds"])


def make_edits(
    patches: Mapping[str, Array] | None,
    ablated: Sequence[str],
    means: Mapping[str, Array] | None,
    counts: Mapping[str, int],
) -> list[Edit]:
    """The edits of --patch, {target: values}, and after them the edits of --ablate.

    means   LAYER.heads -> (H, K), what --mean puts in place of 0
    counts  attention layer -> its heads: UsageError for an ablated layer or head that is not among them
    """
    edits = [
        Edit(target, name, index, np.asarray(values), adds)
        for target, values in (patches or {}).items()
        for name, index, adds in [parse_target(target)]
    ]
    ablations = parse_ablations(ablated)
    for edit in ablations:
        layer, heads = edit.name.removesuffix(HEADS), edit.part[0] if edit.part else ALL
        if layer not in counts:
            near = suggest(layer, counts) or f" (it has {join_names(counts, 4)})"
            raise UsageError(f"the run has no attention layer {layer!r}{near}", "--ablate")
        last = max(heads.start or 0, (heads.stop or 0) - 1) if isinstance(heads, slice) else heads
        if isinstance(last, int) and last >= counts[layer]:
            raise UsageError(f"{layer} has heads 0 to {counts[layer] - 1}, not {last}", "--ablate")
    if means is None:
        return edits + ablations
    for edit in ablations:
        mean, count = means.get(edit.name), counts[edit.name.removesuffix(HEADS)]
        if mean is None:
            hint = "encode --keep '*.heads' keeps the heads of all layers"
            raise UsageError(f"no {edit.name!r} (it has {join_names(means, 4)}); {hint}", "--mean")
        if len(mean) != count:
            raise DataError(f"{edit.name} has {counted(len(mean), 'head')} (expected {count})", "--mean")
        heads, *positions = edit.part or (ALL,)
        numbers = range(count)[heads] if isinstance(heads, slice) else [heads]
        edits += [edit._replace(part=(at, *positions), values=mean[at]) for at in numbers]  # type: ignore[index]
    return edits


def parse_ablations(ablated: Sequence[str]) -> list[Edit]:
    """The edits that set heads to 0.

    ablated  each is LAYER, all its heads; LAYER:HEAD or LAYER:A:B, heads A to B - 1; LAYER[HEADS,POSITIONS]; or more
             heads of the layer before

    >>> [(edit.name, edit.part) for edit in parse_ablations(("encoder.3.self:5", "7:9", "encoder.4.self"))]
    [('encoder.3.self.heads', (5,)), ('encoder.3.self.heads', (slice(7, 9, None),)), ('encoder.4.self.heads', ())]
    """
    edits: list[Edit] = []
    layer = ""
    for text in ablated:
        layer, index = parse_ablation(text, layer)
        edits.append(Edit(text, f"{layer}{HEADS}", index, np.zeros(()), flag="--ablate"))
    return edits


def parse_ablation(text: str, layer: str) -> tuple[str, tuple[Index, ...]]:
    """Parse heads to ablate to their layer, and the index of heads and positions.

    >>> parse_ablation("decoder.0.self[2,4:]", ""), parse_ablation("7:9", "decoder.0.self")
    (('decoder.0.self', (2, slice(4, None, None))), ('decoder.0.self', (slice(7, 9, None),)))
    """
    if "[" in text:
        name, index, adds = parse_target(text, "--ablate")
        if adds or len(index) not in (1, 2) or not isinstance(index[0], int | slice) or ... in index:
            raise UsageError(f"expected LAYER[HEADS] or LAYER[HEADS,POSITIONS], got {text!r}", "--ablate")
        return name, index
    heads = text
    if not HEAD_RANGE.fullmatch(text):
        layer, _, heads = (text if ":" in text else f"{text}::").partition(":")  # LAYER has all heads, `:`
    if not (layer and HEAD_RANGE.fullmatch(heads)):
        expected = "LAYER, LAYER:HEAD or LAYER:A:B, such as encoder.3.self:5"
        raise UsageError(f"expected {expected}, got {text!r}", "--ablate")
    [chosen] = parse_slice(heads)
    if isinstance(chosen, slice) and chosen.stop is not None and chosen.stop <= (chosen.start or 0):
        raise UsageError(f"{text}: the range of heads is empty", "--ablate")
    return layer, () if chosen == slice(None) else (chosen,)


def mean_heads(records: Iterable[Record], file: str) -> dict[str, Array]:
    """Average the output of every head over all texts: LAYER.heads -> (H, K).

    records  with tensors LAYER.heads, (H, T, K), or (B, H, T, K) with the padding mask of the batch, or means (H, K)

    DataError if there are none, or where their shapes or layers differ.

    >>> record = Record({"decoder.0.self.heads": np.array([[[1.0, 2.0], [3.0, 4.0]]])})
    >>> mean_heads([record, record], "heads.npz")["decoder.0.self.heads"].tolist()
    [[2.0, 3.0]]
    """
    sums: dict[str, Array] = {}
    counts: dict[str, int] = {}
    for number, record in enumerate(records):
        parts = {name: sum_heads(record, name, file) for name in record if name.endswith(HEADS)}
        if not parts:
            hint = "encode --lines --keep '*.heads' keeps them"
            raise DataError(f"no heads to average (it has {join_names([*record], 4)}); {hint}", file)
        if number and parts.keys() != sums.keys():
            [name, *_] = sorted(parts.keys() ^ sums.keys())
            raise DataError(f"{name} is in some of its records only", file)
        for name, (total, count) in parts.items():
            if number and total.shape != sums[name].shape:
                raise DataError(f"{name}: heads {total.shape} after heads {sums[name].shape}", file)
            sums[name], counts[name] = sums.get(name, 0) + total, counts.get(name, 0) + count
    return {name: total / counts[name] for name, total in sums.items()}


def sum_heads(record: Record, name: str, file: str) -> tuple[Array, int]:
    """Sum the outputs of heads over the tokens of a record, (H, K); count the tokens."""
    heads = record[name].astype(np.float64)
    if heads.ndim == 2:
        return heads, 1
    if heads.ndim not in (3, 4) or not heads.shape[-2]:
        raise DataError(f"{name} {heads.shape}: expected (head, query, head_dim)", file)
    if heads.ndim == 3:
        return heads.sum(axis=-2), heads.shape[-2]
    real = find_real_tokens(record, (len(heads), heads.shape[-2]))
    if real is None and "x" not in record and len(heads) > 1:
        problem = "a trace of a batch does not say what is padding; encode --lines --keep '*.heads' keeps the heads"
        raise DataError(f"{name} {heads.shape}: {problem} of every text by itself", file)
    real = np.ones((len(heads), heads.shape[-2]), bool) if real is None else real
    return np.where(real[:, None, :, None], heads, 0).sum(axis=(0, 2)), max(int(real.sum()), 1)
