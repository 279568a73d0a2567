"""attnkit mask: attention masks: causal, padding, window, prefix, segments …"""

import warnings
from typing import Annotated, Literal

import numpy as np
import typer

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.formats.dtypes import byte_count
from attnkit.formats.streams import name_errors
from attnkit.inputs.mask_rules import (
    CombinedRules,
    MaskRules,
    Rule,
    check_batch,
    combine_rules,
    convert_mask,
    join_formulas,
    make_batch_rules,
    make_position_rules,
    read_masks,
    token_labels,
)
from attnkit.records import Array, Labels, Record, Tensor

FILLS = ("-inf", "lowest", "-1e9")


@tool(
    sections={
        "Rules": "rules",
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
    rules: MaskRules,
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
    has_ids = record is not None and rules.reads_ids(record)
    queries, keys = count_queries_and_keys(record, size, cross, has_ids)
    made = make_position_rules(queries, keys, rules)
    if rules.causal and rules.prefix and not any_:
        allowed = f"the keys that --prefix {rules.prefix} allows"
        problem = f"--causal blocks {allowed}; --prefix alone is causal after the prefix"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    made += [*make_batch_rules(record, (queries, keys), rules), *read_masks(record, rules.with_, polarity, cross)]
    if not made:
        flags = "--causal, --padding, --lengths, --window, --prefix, --chunk, --segments or --with"
        raise UsageError(f"needs one or more rules: {flags}")
    cells = combine_rules(made, (queries, keys), any_)
    callbacks.current().on_operands(CombinedRules(made, cells.shape, any_, invert, rules.start(queries, keys)))
    for rule in made:
        check_batch(record, rule, has_ids)
    if explain is not None:
        from attnkit.interpret.mask_explanation import explain_cell, find_cell

        return explain_cell(record, made, cells, find_cell(record, cells, explain), any_, invert)
    formula = join_formulas(made, any_, invert, steps)
    cells = ~cells if invert else cells
    dtype = np.dtype(np.float32) if record is None else model.output_dtype(record["x"])
    result = add_mask(record, convert_mask(cells, as_, fill, dtype), formula, cross)
    return add_rules(record, result, made, queries, cross) if steps else result


def count_queries_and_keys(
    record: Record | None, size: tuple[int, ...] | None, cross: bool, has_ids: bool
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
    if has_ids:
        tokens = x.shape[-1]
    else:
        tokens = x.shape[axes.index("token")] if "token" in axes else x.shape[max(x.ndim - 2, 0)]
    return tokens, record["memory"].shape[-2] if cross else tokens


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
