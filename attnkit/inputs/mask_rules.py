"""The rules of a mask, the cells that each allows, and how they are combined."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from attnkit import model, options, tokenizers
from attnkit.errors import DataError, UsageError
from attnkit.model.dtypes import lowest_finite
from attnkit.records import Array, Labels, Record, row_labels, shared_labels

AXES = {"query": -2, "key": -1}  # of a mask


class Rule(NamedTuple):
    """A rule of a mask: its name, what it allows, and its cells (True = may attend)."""

    name: str
    formula: str
    cells: Array


class CombinedRules(NamedTuple):
    """The rules of a mask, and how they are combined.

    shape   of the mask; union: whether one rule is enough
    start   the position of the first query among the keys
    """

    rules: Sequence[Rule]
    shape: tuple[int, ...]
    union: bool
    invert: bool
    start: int


class MaskRules(NamedTuple):
    """The rules that a mask is made of, besides the mask of the record."""

    causal: Annotated[bool, typer.Option(help="allow keys up to the position of the query")] = False
    align: Annotated[
        Literal["top-left", "bottom-right"], typer.Option(help="corner where the causal diagonal starts if T ≠ S")
    ] = "top-left"
    offset: Annotated[int | None, typer.Option(help="position of the first query among the keys")] = None
    padding: Annotated[bool, typer.Option(help="allow keys that are not padding, by the record's lengths or ids")] = (
        False
    )
    pad_id: Annotated[
        int | None, typer.Option(min=0, help="id of the padding token [default: the id of [PAD] or <pad>]")
    ] = None
    padded_queries: Annotated[
        bool, typer.Option(help="with --padding or --lengths: let a query that is padding attend to no key")
    ] = False
    lengths: Annotated[Record | None, options.file("tensor", "number of valid keys in each batch row, (B)")] = None
    window: options.Window | None = None
    prefix: Annotated[
        int | None,
        typer.Option(
            min=0, help="prefix-LM mask: causal, but all queries attend to the first N keys (not with --causal)"
        ),
    ] = None
    chunk: Annotated[int | None, typer.Option(min=1, help="allow keys in the same chunk of N tokens as the query")] = (
        None
    )
    segments: Annotated[
        Record | None, options.file("tensor", "allow keys in the same segment as the query; segment ids (T) or (B, T)")
    ] = None
    with_: Annotated[Record | None, options.file("tensor", "mask to combine with the other rules, bool or 0 and 1")] = (
        None
    )

    def start(self, queries: int, keys: int) -> int:
        """The position of the first query among the keys."""
        return int(model.causal_offset(queries, keys, align=self.align)) if self.offset is None else self.offset

    def reads_ids(self, record: Record) -> bool:
        """Whether x of a record is the token ids that --padding reads, (T) or (B, T)."""
        x, by_lengths = record["x"], "lengths" in record and self.pad_id is None
        is_alike = "ids" not in record or record["ids"].shape == x.shape
        return self.padding and not by_lengths and is_alike and x.dtype.kind in "iu"


def join_formulas(rules: list[Rule], union: bool, invert: bool, steps: bool) -> str:
    """Join the formulas of rules, or their names if their masks are steps."""
    terms = [f"mask.{rule.name}" if steps else f"({rule.formula})" for rule in rules]
    formula = (" or " if union else " and ").join(terms if steps or rules[1:] else [rules[0].formula])
    return f"not ({formula})" if invert else formula


def make_position_rules(queries: int, keys: int, options: MaskRules) -> list[Rule]:
    """The rules on the positions of queries and keys: causal, prefix, window, chunk."""
    rules, prefix, chunk = [], options.prefix, options.chunk
    start = options.start(queries, keys)
    if options.causal:
        rules.append(Rule("causal", f"key ≤ {format_query_position(start)}", model.causal_mask(queries, keys, start)))
    if prefix is not None:
        formula = f"key ≤ {format_query_position(start)} or key < {prefix}"
        rules.append(Rule("prefix", formula, model.prefix_mask(queries, keys, prefix, start)))
    if options.window is not None:
        left, right = options.window
        before = f"{format_query_position(start, -left)} ≤ " if left >= 0 else ""
        after = f" ≤ {format_query_position(start, right)}" if right >= 0 else ""
        rules.append(Rule("window", f"{before}key{after}", model.window_mask(queries, keys, left, right, start)))
    if chunk is not None:
        query = format_query_position(start)
        formula = f"key // {chunk} = {f'({query})' if ' ' in query else query} // {chunk}"
        rules.append(Rule("chunk", formula, model.chunk_mask(queries, keys, chunk, start)))
    return rules


def make_batch_rules(record: Record | None, size: tuple[int, int], options: MaskRules) -> list[Rule]:
    """The rules that may differ between batch rows: padding, lengths, segments.

    size  number of queries and of keys; UsageError for padded queries that are not the keys
    """
    rules = []
    queries, keys = size
    if options.padding:
        rules.append(Rule("padding", "key is not padding", find_real_keys(record, keys, options.pad_id)))
    if options.lengths is not None:
        rules.append(Rule("lengths", "key < length", model.padding_mask(options.lengths["x"], keys)))
    if options.padded_queries:
        if queries != keys:
            raise UsageError(f"{queries} queries and {keys} keys: expected the same tokens", "--padded-queries")
        real = [rule.cells.swapaxes(-1, -2) for rule in rules]
        rules += [Rule("padded-queries", "query is not padding", np.logical_and.reduce(real))]
    if options.segments is not None:
        ids = options.segments["x"]
        rules.append(Rule("segments", "segment(key) = segment(query)", model.segment_mask(ids, ids)))
    return rules


def read_masks(record: Record | None, own: Record | None, polarity: str, cross: bool) -> list[Rule]:
    rules = []
    if own is not None:
        cells = model.to_boolean(own["x"])
        rules.append(Rule("with", "the mask of --with", cells if polarity == "attend" else ~cells))
    if record is not None and "mask" in record and not cross:
        rules.append(Rule("record", "the record's mask", model.to_boolean(record["mask"])))
    return rules


def format_query_position(start: int | Array, shift: int = 0) -> str:
    """The position of a query among the keys, shifted, as a term of a formula.

    >>> format_query_position(0), format_query_position(2, -5)
    ('query', 'query − 3')
    """
    move = int(start) + shift
    return f"query {'+' if move > 0 else '−'} {abs(move)}" if move else "query"


def find_real_keys(record: Record | None, keys: int, pad_id: int | None) -> Array:
    """Which keys are not padding, (B, 1, S), by the record's lengths or by an id."""
    if record is not None and "lengths" in record and pad_id is None:
        return model.padding_mask(record["lengths"], keys)
    ids = None if record is None else record.get("ids" if "ids" in record else "x")
    if record is None or ids is None or ("ids" not in record and ids.dtype.kind not in "iu"):
        raise UsageError("needs a record with ids or lengths; --lengths FILE gives them", "--padding")
    if pad_id is None:
        words = shared_labels(record.labels.get("vocab"))
        word = tokenizers.find_padding(words)
        if word is None:
            raise UsageError("the vocabulary has no padding token; --pad-id N names its id", "--padding")
        pad_id = words.index(word)
    return np.asarray(ids != pad_id)[..., None, :]  # (..., 1, S)


def check_batch(record: Record | None, rule: Rule, has_ids: bool) -> None:
    """Check that padding, lengths and segments have the rows of the batch.

    has_ids  whether x is token ids, (T) or (B, T)
    """
    if rule.name not in ("padding", "lengths", "segments"):
        return
    shape = rule.cells.shape
    rows = 1 if record is None or record["x"].ndim < 3 - has_ids else len(record["x"])
    allowed = (rows,) if rule.name == "lengths" else (1, rows)
    if len(shape) > 3 or (record is not None and len(shape) == 3 and shape[0] not in allowed):
        operand = str((*shape[:-2], shape[-1]) if rule.name != "lengths" else shape[:-2])
        raise DataError(f"{operand} for a batch of {rows}: expected one row for each", f"--{rule.name}")


def combine_rules(rules: list[Rule], shape: tuple[int, int], union: bool) -> Array:
    whole = np.broadcast_shapes(shape)
    for rule in rules:
        try:
            whole = np.broadcast_shapes(whole, rule.cells.shape)
        except ValueError:
            raise DataError(f"{rule.name} {rule.cells.shape} does not fit the mask {whole}") from None
        if whole[-2:] != shape:
            raise DataError(f"{rule.name} {rule.cells.shape} is larger than {shape[0]} queries × {shape[1]} keys")
    cells = np.full(whole, not union)
    for rule in rules:
        cells = cells | rule.cells if union else cells & rule.cells
    return cells


def token_words(record: Record | None, cells: Array, axis: str, batch: int | None) -> list[str]:
    """The words of the queries or keys of cells, in one row or shared by all."""
    labels = token_labels(record, cells.shape[AXES[axis]], ("key", "token") if axis == "key" else ("token",))
    return shared_labels(labels) if batch is None else row_labels(labels, batch)


def token_labels(record: Record | None, count: int, axes: Sequence[str] = ("token",)) -> Labels | None:
    """The labels of the first of some axes that has any, or None.

    count  of the tokens: labels of another number are those of other tokens, as after a convolution
    """
    labels = next((record.labels[axis] for axis in axes if record.labels.get(axis)), None) if record else None
    rows = labels if labels and isinstance(labels[0], list) else [labels or ()]
    return labels if all(len(row) == count for row in rows) else None


def convert_mask(cells: Array, form: str, fill: str, dtype: np.dtype[Any]) -> Array:
    """Convert a boolean mask to booleans, 0 and 1, numbers to add, or lengths."""
    if form == "01":
        return cells.astype(np.uint8)
    if form == "lengths":
        try:
            return model.mask_lengths(cells)
        except DataError as error:
            raise UsageError(error.problem, "--as lengths") from None
    if form == "additive":
        return model.to_additive(cells, dtype, lowest_finite(dtype) if fill == "lowest" else float(fill))
    return cells
