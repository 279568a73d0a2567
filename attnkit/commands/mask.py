"""attnkit mask: attention masks: causal, padding, window, prefix, segments …"""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from attnkit import model, tokenizers
from attnkit.cli import options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.explanations import explained_view
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.formats.dtypes import byte_count
from attnkit.formats.streams import name_errors
from attnkit.model.dtypes import lowest_finite
from attnkit.records import Array, Labels, Record, Tensor, find_label, row_labels, shared_labels

FILLS = ("-inf", "lowest", "-1e9")
AXES = {"query": -2, "key": -1}  # of a mask


class Rule(NamedTuple):
    """A rule of a mask: its name, what it allows, and its cells (True = may attend)."""

    name: str
    formula: str
    cells: Array


@tool(
    sections={
        "Rules": "causal align offset padding pad_id padded_queries lengths window prefix chunk segments with_",
        "Combination": "any_ invert polarity",
        "Results": "size cross as_ fill explain steps",
    },
    rules=Constraints(
        exclusive=[("offset", "align"), ("padded_queries", "any", "cross")],
        requires=[
            ("pad_id", "padding"),
            ("padded_queries", "padding|lengths"),
            ("polarity", "with"),
            ("fill", "as=additive"),
            *((flag, "causal|window|prefix|chunk") for flag in ("align", "offset")),
        ],
    ),
    needs_no_input=lambda parameters: parameters["size"] is not None,
    without=("check_finite",),
    view=explained_view,
)
def mask(
    record: Record | None,
    *,
    size: Annotated[
        tuple[int, ...] | None,
        typer.Option(
            parser=options.parse_whole_numbers,
            metavar="T[,S]",
            help="read no input; x is a mask of T queries and S keys",
        ),
    ] = None,
    causal: Annotated[bool, typer.Option(help="allow keys up to the position of the query")] = False,
    align: Annotated[
        Literal["top-left", "bottom-right"], typer.Option(help="corner where the causal diagonal starts if T ≠ S")
    ] = "top-left",
    offset: Annotated[int | None, typer.Option(help="position of the first query among the keys")] = None,
    padding: Annotated[
        bool, typer.Option(help="allow keys that are not padding, by the record's lengths or ids")
    ] = False,
    pad_id: Annotated[
        int | None, typer.Option(min=0, help="id of the padding token [default: the id of [PAD] or <pad>]")
    ] = None,
    padded_queries: Annotated[
        bool, typer.Option(help="with --padding or --lengths: let a query that is padding attend to no key")
    ] = False,
    lengths: Annotated[Record | None, options.file("tensor", "number of valid keys in each batch row, (B)")] = None,
    window: options.Window | None = None,
    prefix: Annotated[
        int | None,
        typer.Option(
            min=0, help="prefix-LM mask: causal, but all queries attend to the first N keys (not with --causal)"
        ),
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="allow keys in the same chunk of N tokens as the query")
    ] = None,
    segments: Annotated[
        Record | None, options.file("tensor", "allow keys in the same segment as the query; segment ids (T) or (B, T)")
    ] = None,
    with_: Annotated[
        Record | None, options.file("tensor", "mask to combine with the other rules, bool or 0 and 1")
    ] = None,
    cross: Annotated[
        bool, typer.Option(help="make a mask for cross-attention: the keys are the record's memory")
    ] = False,
    any_: Annotated[bool, typer.Option(help="allow a key if one rule allows it, instead of all rules")] = False,
    invert: Annotated[bool, typer.Option(help="swap allowed and blocked keys in the final mask")] = False,
    polarity: Annotated[
        Literal["attend", "ignore"], typer.Option(help="meaning of True in the mask of --with")
    ] = "attend",
    as_: Annotated[
        Literal["bool", "01", "additive", "lengths"],
        typer.Option(help="output: booleans, 0 and 1, numbers to add to the scores, or lengths"),
    ] = "bool",
    fill: Annotated[str, options.choice(FILLS, "value that an additive mask adds to blocked scores")] = "-inf",
    explain: Annotated[
        tuple[int | str, ...] | None,
        typer.Option(
            parser=options.parse_cell,
            metavar="[B,]I,J",
            help="instead of a mask, explain which rule blocks key J for query I (numbers or words); -f json: "
            "as a record",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option(help="add the mask of each rule to the record and show a table of each")
    ] = False,
) -> Record:
    """Make an attention mask: True where a query (row) may attend to a key (column).

    A query may attend to a key if all rules allow it, or, with --any, if one rule allows it. A mask in the input record
    is one of the rules. The result is added to the record as `mask`, which attend uses. With --size, mask reads no
    input, and the mask is x.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit mask --causal | attnkit attend --heads 2
    """
    queries, keys = count_queries_and_keys(record, size, cross, padding, pad_id)
    start = model.causal_offset(queries, keys, align=align) if offset is None else offset
    rules = make_position_rules(queries, keys, start, causal, prefix, window, chunk)
    if causal and prefix and not any_:
        problem = f"--causal blocks the keys that --prefix {prefix} allows; --prefix alone is causal after the prefix"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    rules += [
        *make_batch_rules(record, (queries, keys), padding, pad_id, padded_queries, lengths, segments),
        *read_masks(record, with_, polarity, cross),
    ]
    if not rules:
        flags = "--causal, --padding, --lengths, --window, --prefix, --chunk, --segments or --with"
        raise UsageError(f"needs one or more rules: {flags}")
    cells = combine_rules(rules, (queries, keys), any_)
    has_ids = record is not None and holds_ids(record, padding, pad_id)
    for rule in rules:
        check_batch(record, rule, has_ids)
    if explain is not None:
        return explain_cell(record, rules, cells, find_cell(record, cells, explain), any_, invert)
    formula = join_formulas(rules, any_, invert, steps)
    cells = ~cells if invert else cells
    dtype = np.dtype(np.float32) if record is None else model.output_dtype(record["x"])
    result = add_mask(record, convert_mask(cells, as_, fill, dtype), formula, cross)
    return add_rules(record, result, rules, queries, cross) if steps else result


def join_formulas(rules: list[Rule], union: bool, invert: bool, steps: bool) -> str:
    """Join the formulas of rules, or their names if their masks are steps."""
    terms = [f"mask.{rule.name}" if steps else f"({rule.formula})" for rule in rules]
    formula = (" or " if union else " and ").join(terms if steps or rules[1:] else [rules[0].formula])
    return f"not ({formula})" if invert else formula


def make_position_rules(
    queries: int,
    keys: int,
    start: int | Array,
    causal: bool,
    prefix: int | None,
    window: tuple[int, int] | None,
    chunk: int | None,
) -> list[Rule]:
    rules = []
    if causal:
        rules.append(Rule("causal", f"key ≤ {format_query_position(start)}", model.causal_mask(queries, keys, start)))
    if prefix is not None:
        formula = f"key ≤ {format_query_position(start)} or key < {prefix}"
        rules.append(Rule("prefix", formula, model.prefix_mask(queries, keys, prefix, start)))
    if window is not None:
        left, right = window
        before = f"{format_query_position(start, -left)} ≤ " if left >= 0 else ""
        after = f" ≤ {format_query_position(start, right)}" if right >= 0 else ""
        rules.append(Rule("window", f"{before}key{after}", model.window_mask(queries, keys, left, right, start)))
    if chunk is not None:
        query = format_query_position(start)
        formula = f"key // {chunk} = {f'({query})' if ' ' in query else query} // {chunk}"
        rules.append(Rule("chunk", formula, model.chunk_mask(queries, keys, chunk, start)))
    return rules


def make_batch_rules(
    record: Record | None,
    size: tuple[int, int],
    padding: bool,
    pad_id: int | None,
    padded_queries: bool,
    lengths: Record | None,
    segments: Record | None,
) -> list[Rule]:
    """The rules that may differ between batch rows: padding, lengths, segments.

    size  number of queries and of keys; UsageError for padded queries that are not the keys
    """
    rules = []
    queries, keys = size
    if padding:
        rules.append(Rule("padding", "key is not padding", find_real_keys(record, keys, pad_id)))
    if lengths is not None:
        rules.append(Rule("lengths", "key < length", model.padding_mask(lengths["x"], keys)))
    if padded_queries:
        if queries != keys:
            raise UsageError(f"{queries} queries and {keys} keys: expected the same tokens", "--padded-queries")
        real = [rule.cells.swapaxes(-1, -2) for rule in rules]
        rules += [Rule("padded-queries", "query is not padding", np.logical_and.reduce(real))]
    if segments is not None:
        ids = segments["x"]
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


def holds_ids(record: Record, padding: bool, pad_id: int | None) -> bool:
    """Whether x of a record is the token ids that --padding reads, (T) or (B, T)."""
    x, by_lengths = record["x"], "lengths" in record and pad_id is None
    is_alike = "ids" not in record or record["ids"].shape == x.shape
    return padding and not by_lengths and is_alike and x.dtype.kind in "iu"


def count_queries_and_keys(
    record: Record | None, size: tuple[int, ...] | None, cross: bool, padding: bool, pad_id: int | None
) -> tuple[int, int]:
    if record is None:
        if size is None or len(size) > 2:
            raise UsageError("T or T,S", "--size")
        with name_errors("--size"):
            byte_count((size[0], size[-1]), 1)
        return size[0], size[-1]
    x = record["x"]
    if x.ndim < 1:
        raise DataError("x is a single number: it has no token axis")
    axes = record.axes_of("x")
    if holds_ids(record, padding, pad_id):
        tokens = x.shape[-1]
    else:
        tokens = x.shape[axes.index("token")] if "token" in axes else x.shape[max(x.ndim - 2, 0)]
    return tokens, record["memory"].shape[-2] if cross else tokens


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


def find_cell(record: Record | None, cells: Array, place: tuple[int | str, ...]) -> tuple[int, ...]:
    if len(place) != cells.ndim:
        raise UsageError(f"{len(place)} indices for a mask of shape {cells.shape}", "--explain")
    *before, _, _ = place
    batch = next((at for at in before if isinstance(at, int)), 0)
    cell = []
    for axis, at in zip((*["batch"] * len(before), "query", "key"), place, strict=True):
        words = [] if axis == "batch" else token_words(record, cells, axis, batch if before else None)
        with name_errors("--explain"):
            cell.append(at if isinstance(at, int) else find_label(words, at, f"axis {axis}"))
    if any(at >= size for at, size in zip(cell, cells.shape, strict=True)):
        raise UsageError(f"{','.join(map(str, place))} is outside the mask of shape {cells.shape}", "--explain")
    return tuple(cell)


def explain_cell(
    record: Record | None, rules: list[Rule], cells: Array, cell: tuple[int, ...], union: bool, invert: bool
) -> Record:
    """Say which rules allow and which block a cell, a line for each."""
    may = bool(cells[cell]) != invert
    query, key = (
        f"{at}{quote_token(record, cells, axis, cell)}" for axis, at in zip(("query", "key"), cell[-2:], strict=True)
    )
    batch = f" of batch row {cell[0]}" if cell[2:] else ""
    lines = [f"query {query}{batch} {'may' if may else 'may not'} attend to key {key}"]
    verdicts = [bool(np.broadcast_to(rule.cells, cells.shape)[cell]) for rule in rules]
    for rule, allows in zip(rules, verdicts, strict=True):
        lines.append(f"  {rule.name} {'allows' if allows else 'blocks'} it: {rule.formula}")
    if rules[1:]:
        lines.append(f"  one rule that {'allows' if union else 'blocks'} it is enough" + ", then inverted" * invert)
    elif invert:
        lines.append("  inverted")
    tensors = {
        "allowed": Tensor(np.array(may), ()),
        "rules": Tensor(np.array(verdicts), ("rule",), {"rule": [rule.name for rule in rules]}),
        "cell": Tensor(np.array(cell), ("axis",), {"axis": ["batch", "query", "key"][-len(cell) :]}),
    }
    from attnkit.interpret.explanation import Explanation

    return Explanation(tensors, text="\n".join(lines))


def quote_token(record: Record | None, cells: Array, axis: str, cell: tuple[int, ...]) -> str:
    row, at = token_words(record, cells, axis, cell[0] if cell[2:] else None), cell[AXES[axis]]
    return f" {row[at]!r}" if at < len(row) else ""


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


def add_rules(record: Record | None, result: Record, rules: list[Rule], queries: int, cross: bool) -> Record:
    """Add the mask of each rule, mask.causal and so on, before the mask of all.

    queries  the number of queries; the one row of a rule for all of them has an axis of its own name, and so has the
             one column of a rule for all keys
    """
    each = {}
    for rule in rules:
        query = "query" if rule.cells.shape[-2:-1] == (queries,) else "all queries"
        key = "all keys" if rule.name == "padded-queries" else "source" if cross else "key"
        axes = (*("batch", "head")[: rule.cells.ndim - 2], query, key)
        each[f"mask.{rule.name}"] = Tensor(rule.cells, axes[-rule.cells.ndim :], formula=rule.formula)
    before = record or Record({})
    own = {name: one for name, one in result.tensors.items() if name not in before or before.tensors[name] is not one}
    return before.with_tensors(each, result.labels).without(own).with_tensors(own, result.labels)


def add_mask(record: Record | None, mask: Array, formula: str, cross: bool) -> Record:
    """Add the mask to the record as `mask`, `memory_mask` or `lengths`."""
    over, lengths = "source" if cross else "key", mask.dtype == np.int64
    axes = ("batch",) if lengths else (*("batch", "head")[: mask.ndim - 2], "query", over)
    name = "x" if record is None else "lengths" if lengths else "memory_mask" if cross else "mask"
    labels: dict[str, Labels] = {}
    if not lengths and (words := token_labels(record, mask.shape[-2])):
        labels = {"query": words} if cross else {"query": words, "key": words}
    return (record or Record({})).with_tensors({name: Tensor(mask, axes[: mask.ndim], labels, formula)})
