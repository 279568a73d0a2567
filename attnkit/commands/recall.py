"""attnkit recall: linear attention, which keeps a state in place of a cache."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attnkit import callbacks, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.inputs.layers import add_residuals, result_scale
from attnkit.inputs.recall_stage import (
    NAMES,
    SOURCES,
    RecallSources,
    RecallWeights,
    compute_recall,
    describe_recall,
    earlier_recall,
    find_recall,
    state_record,
    steps_of,
)
from attnkit.model.formulas.recall import FEATURES, RULES, RecallOptions
from attnkit.records import Array, Record

Update = Annotated[
    RecallOptions,
    options.OptionsOf(
        rule=options.choice(
            RULES,
            "how the state changes: linear S + k vᵀ; decay α S + k vᵀ; retnet the same with a fixed α of each head; "
            "mamba2 α S + Δ k vᵀ, α = exp(−Δ); delta S + β k (v − Sᵀk)ᵀ; gated-delta the same of α S",
        ),
        feature=options.choice(
            FEATURES, "function of queries and keys: elu is elu(x) + 1; unit divides by the length √(Σ x² + 1e-6)"
        ),
        divide=typer.Option(help="divide what is read by q · Σ k, as softmax divides by its sum"),
        scale=typer.Option(metavar="X", help="multiply the queries by X"),
        heads=typer.Option(min=1, metavar="H", help="number of heads, each with a state of its own"),
        key_heads=typer.Option(
            min=1, metavar="G", help="number of heads of queries and keys, each for H/G heads of values [default: H]"
        ),
        chunk=typer.Option(
            min=1, metavar="N", help="compute N tokens at once, in products [default: one token after another]"
        ),
    ),
]
OF_UPDATE = ("rule", "feature", "divide", "scale", "heads", "key_heads", "chunk")
GATED = "rule=decay|mamba2|gated-delta"


def needs_no_record(flags: Mapping[str, Any]) -> bool:
    """Whether queries, keys and values all come from files, so that no record is read."""
    return all(flags[name] is not None and not str(flags[name]).startswith(":") for name in SOURCES)


@tool(
    sections={
        "Update": "update",
        "Inputs": "sources",
        "Weights": "weights",
        "States": "state_in state_out",
        "Results": "residual add keep steps explain",
    },
    rules=Constraints(
        exclusive=[
            ("params", "seed", "model"),
            *(("model", flag) for flag in (*OF_UPDATE, *SOURCES, "beta", "decay")),
            ("divide", "rule=delta|gated-delta"),
            *(("chunk", flag) for flag in ("keep", "steps", "explain")),
            *(("explain", flag) for flag in ("keep", "steps", "state_out", "residual", "add")),
        ],
        requires=[("beta", "rule=mamba2|delta|gated-delta"), ("decay", GATED), ("layer", "model")],
    ),
    needs_no_input=needs_no_record,
)
def recall(
    record: Record | None,
    *,
    update: Update,
    sources: RecallSources,
    weights: RecallWeights,
    residual: options.Residual = False,
    add: options.Add = None,
    state_in: Annotated[
        Mapping[str, Array] | None,
        options.file("tensors", "begin with the state in FILE, as --state-out writes it [default: zeros]"),
    ] = None,
    state_out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="write the state after the last token to FILE, which --state-in continues"),
    ] = None,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "add these intermediates to the record: states, after each token; held, what the state held at the key; "
            "error, v − held; written; read",
            (*NAMES, "all"),
        ),
    ] = (),
    steps: options.Steps = False,
    explain: Annotated[
        tuple[int | str, ...] | None,
        typer.Option(
            parser=options.parse_cell,
            metavar="[B,][H,]TOKEN",
            help="instead of a result, explain how one token changes the state of a head and reads it (numbers or "
            "words); -f json: as a record",
        ),
    ] = None,
) -> Record:
    """Compute linear attention: read a state in place of a cache of keys and values.

    Each head keeps a matrix S (key, value). A token scales it, writes k wᵀ into it, and reads Sᵀq, its own token among
    what it reads. S does not grow with the text. A sum of k vᵀ (linear) forgets nothing, a decay forgets all alike,
    and the delta rule replaces what the state holds at a key. Without weights q = k = v = x, and β = 1. x is (T, D),
    (B, T, D) or, already split into heads, (B, H, T, K). Padding of the record's mask is not written, and reads 0.
    --chunk computes the same numbers, but for rounding, by products as attention does. A text that is cut anywhere, and
    continued with --state-in, gives the same numbers as the whole. With --model a layer of a model states the rule,
    its weights, and what comes before and after it. Intermediates of an earlier recall are removed
    from the record.

    \b
    Example:
      echo '[[1,0],[0,1],[1,0]]' | attnkit recall --rule delta --value <(echo '[[1],[2],[5]]') --steps
    """
    record = record or Record({})
    stage = find_recall(record, update, sources, weights, state_in)
    callbacks.current().on_parameters(stage.params)
    callbacks.current().on_operands(stage)
    listener = callbacks.current().on_intermediates if update.chunk is None else None
    names = NAMES if "all" in keep or explain is not None else (*keep, *(steps_of(stage) if steps else ()))
    arrays, state = compute_recall(record, stage, NAMES if listener else names)
    if state_out:
        callbacks.current().write_side_output(state_out, state_record(stage, state))
    rest = record.without(earlier_recall(record))
    if listener:
        listener(rest.with_tensors(describe_recall(record, stage, arrays, NAMES)))
    tensors = describe_recall(record, stage, arrays, names)
    scale = result_scale(weights.model_, weights.layer)
    tensors["x"] = add_residuals(tensors["x"], record["x"] if residual else None, add, scale)
    result = rest.with_tensors(tensors)
    if explain is None:
        return result
    from attnkit.interpret.recall_explanation import explain_token

    return explain_token(result, stage, explain)
