"""attnkit attend: scaled dot-product and multi-head attention."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from attnkit import callbacks, options
from attnkit import model as nn
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.tool import PythonForm
from attnkit.errors import DataError, UsageError
from attnkit.inputs import intermediates, layers
from attnkit.inputs.attention_inputs import (
    WEIGHTED,
    AttentionInputs,
    Masking,
    Past,
    Projection,
    Rotation,
    Scoring,
    Sources,
    WeightedValues,
    prepare_attention,
    weigh_values,
)
from attnkit.model.intermediates import STEPS, kept_names
from attnkit.model.parameters import OUTPUT_PARAMETERS
from attnkit.records import Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

NAMES = kept_names("attend")  # what --keep and --emit accept
RESIDUAL = "residual"  # what --keep adds for a norm after the sub-layer
GROUPS = {"present": ("present_key", "present_value"), "all": NAMES}  # --keep takes them too
# what has no effect on weights that are given
COMPUTES_WEIGHTS = (
    "query", "key", "past_key", "past_value", "kv_heads", "model", "seed", "mask", "causal", "align", "window",
    "lengths", "offset", "strict", "rotary", "score", "scale", "softcap", "bias", "qk_norm", "sinks", "softmax_dtype",
    "concat", "emit", "weights", "partial", "explain", "engine",
)  # fmt: skip
EXCLUSIVE = [
    ("params", "model", "seed"),
    ("offset", "align"),
    ("offset", "past_key"),
    *(("model", flag) for flag in ("qk_norm", "sinks", "rotary")),
    *(("rotary", flag) for flag in ("memory", "query", "key", "offset")),
    *(("sinks", flag) for flag in ("partial", "explain")),
    *(("partial", flag) for flag in ("emit", "residual", "add", "concat", "strict")),
    *(("concat", flag) for flag in ("emit", "residual", "add")),
    *(("explain", flag) for flag in ("emit", "keep", "steps", "partial", "residual", "add", "concat", "weights")),
    *(("weights_from", flag) for flag in COMPUTES_WEIGHTS),
]
REQUIRES = [
    ("layer", "model"),
    ("show_head", "steps"),
    ("past_key", "past_value"),
    ("past_value", "past_key"),
    ("align", "causal|window|model"),
    ("base", "rotary"),
    ("offset", "causal|window|partial|model"),
]
ALWAYS = ("q", "k", "v", "present_key", "present_value")  # what costs nothing to return


def needs_no_record(flags: Mapping[str, Any]) -> bool:
    """Whether query, key and value all come from files, so that no record is read."""
    operands = [flags[name] for name in ("query", "key", "value")]
    return all(operand is not None and not str(operand).startswith(":") for operand in operands)


def _stated_by_model(checkpoint: "Checkpoint", flags: Mapping[str, Any]) -> dict[str, Any]:
    stack = checkpoint.config.stack(nn.parse_layer_name(layers.find_layer(checkpoint, flags["layer"], "attend"))[0])
    return {"heads": stack.heads, "kv_heads": stack.kv_heads, "score": checkpoint.config.score}


@tool(
    sections={
        "Inputs": "sources past_key past_value",
        "Weights": "projection weights_from",
        "Masks": "masking offset strict",
        "Scores": "rotation score scale softcap bias qk_norm sinks softmax_dtype",
        "Results": "residual add concat emit keep weights partial steps show_head explain",
        "Engine": "engine",
    },
    rules=Constraints(
        exclusive=EXCLUSIVE, requires=REQUIRES, repeats={"model": ("heads kv_heads score", _stated_by_model)}
    ),
    needs_no_input=needs_no_record,
    extra={"show_head": options.ShowHead, "engine": options.EngineOptions},
    python=PythonForm(options=options.ENGINE_KEYWORDS),
    check_finite=lambda flags: flags["emit"] != "masked",  # where -inf is no accident
)
def attend(
    record: Record | None,
    *,
    projection: Projection,
    sources: Sources,
    masking: Masking,
    scoring: Scoring,
    rotation: Rotation,
    past: Past,
    softmax_dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"] | None,
        typer.Option(help="round the scores and weights to this dtype"),
    ] = None,
    residual: options.Residual = False,
    add: options.Add = None,
    concat: Annotated[
        bool, typer.Option(help="concatenate the result and the input, [result; x] (Luong et al. 2015, equation 5)")
    ] = False,
    emit: Annotated[str | None, options.choice(NAMES, "return this intermediate as x")] = None,
    keep: Annotated[
        tuple[str, ...],
        options.names("add these intermediates, or the input as `residual`", (*NAMES, RESIDUAL, *GROUPS)),
    ] = (),
    weights: options.Weights = None,
    partial: Annotated[
        bool,
        typer.Option(help="attend to a part of the keys, for attnkit merge: x is the heads, lse their log-sum-exp"),
    ] = False,
    weights_from: Annotated[
        Record | None,
        options.file("tensor", "take these weights, (T, S), (H, T, S) or (B, H, T, S), and compute none: weights V"),
    ] = None,
    steps: options.Steps = False,
    explain: Annotated[
        tuple[int | str, ...] | None,
        typer.Option(
            parser=options.parse_cell,
            metavar="[B,][H,]QUERY,KEY",
            help="instead of a result, explain one weight and the output of its query, step by step (numbers or "
            "words); -f json: as a record",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="stop with an error at a fully masked row, instead of a warning")
    ] = False,
) -> Record:
    """Compute attention: average the values by how well keys match each query.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V. Without weights Q = K = V = x. x is (T, D), (B, T, D) or, already split
    into heads, (B, H, T, D). Self-attention uses the record's mask and bias. Cross-attention (--memory) uses the
    mask of the memory: its memory_mask, otherwise the padding in its mask. A warning names a mask or bias that is
    not used. A query that may not attend to any key (a fully masked row) gets zeros and a warning. With --model and
    --layer, the model sets the weights, heads, scale, positions and causal mask. Intermediates of an earlier attend
    are removed from the record.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit mask --causal | attnkit attend --heads 2 --steps
    """
    given = record or Record({})
    if weights_from is not None:
        weighted = weigh_values(given, projection, sources, weights_from)
        callbacks.current().on_operands(weighted)
        return describe_weighted(given, weighted, keep, steps, residual, add)
    check_outputs(record, weights, steps, (*keep, emit), {"residual": residual, "concat": concat})
    prepared = prepare_attention(given, projection, sources, masking, scoring, past, softmax_dtype, rotation)
    callbacks.current().on_parameters(prepared.parameters())
    callbacks.current().on_operands(prepared)
    inputs, settings, projections = prepared
    if partial and "wg" in projections:
        problem = "the gate wg applies to the heads of all parts, and merge does not know it"
        raise UsageError(problem, "--partial")
    keep = keep if explain is None else NAMES
    names = expand_groups(keep)
    q, k, v = inputs.arrays()
    requested = (*names, *STEPS * steps, *("weights",) * (weights is not None))
    returned = (*requested, *filter(None, [emit]), *ALWAYS, *("lse",) * (partial or v.shape[-1:] != (0,)))
    engine, listener = callbacks.current().engine, callbacks.current().on_intermediates
    is_traced = listener is not None and explain is None and weights in (None, "full")
    request: Any = {"summary": weights or "full", "keep": returned}
    settings = settings.replace(products=layers.products_of(projection.model_, projection.layer))
    if engine:
        request["keep"] = (*returned, *NAMES * is_traced)
        result = engine.attention(q, k, v, projections, settings, **request)
    else:
        aside = NAMES if is_traced else ()
        result = nn.multi_head_attention(q, k, v, projections, settings, aside=aside, **request)
    if not partial and "lse" in result:
        intermediates.warn_fully_masked_rows(np.isneginf(result["lse"]), strict)

    formulas = intermediates.attention_formulas(result, projections, settings)
    output = Tensor(result.pop("output"), formula=formulas["output" if steps or keep else "attention"])
    output = layers.add_residuals(
        output, inputs.record["x"] if residual else None, add, layers.result_scale(projection.model_, projection.layer)
    )
    output = put_beside(output, inputs.record) if concat else output
    tensors = intermediates.describe_attention(result, formulas, inputs.key_axis, past.past_key is not None)
    has_query = sources.query is not None
    output = choose_output(output, tensors, inputs.query, "heads" if partial else emit, has_query)
    additions = intermediates.added_intermediates(tensors, requested, keep)
    if RESIDUAL in keep:
        additions[RESIDUAL] = replace(inputs.record.tensor("x"), formula="x")
    if partial:  # with the parameters that merge needs for the output
        additions |= {"lse": tensors["lse"]}
        additions |= {
            name: Tensor(projections[name], axes) for name, axes in OUTPUT_PARAMETERS.items() if name in projections
        }

    def complete(additions: Mapping[str, Tensor]) -> Record:
        rest, labels = label_axes(inputs, weights, has_query, [*additions, "x"], result["q"].shape[-2])
        return rest.with_tensors({**additions, "x": output}, labels)

    if listener and is_traced:
        listener(complete(intermediates.added_intermediates(tensors, NAMES, ("all",))))
    if not (additions or emit or has_query):
        return inputs.rest.with_tensors({"x": output})
    computed = complete(additions)
    if explain is None:
        return computed
    from attnkit.interpret.explanation import explain_weight

    return explain_weight(computed, explain, settings.score)


def describe_weighted(
    record: Record, weighted: WeightedValues, keep: tuple[str, ...], steps: bool, residual: bool, add: Record | None
) -> Record:
    """Add the sums of values by given weights to a record, with requested steps."""
    if other := [name for name in keep if name not in (*WEIGHTED, "all")]:
        raise UsageError(f"given weights have no {other[0]} (expected {', '.join(WEIGHTED)})", "--keep")
    callbacks.current().on_parameters(weighted.projections)
    tensors = weighted.describe(record)
    output = layers.add_residuals(tensors.pop("x"), record["x"] if residual else None, add, 1.0)
    names = WEIGHTED if steps or "all" in keep else keep
    if not names:
        output = replace(output, formula=output.formula.replace("heads side by side", "weights V"))
    words = record.labels.get("token") if output.axis_names()[-2:-1] == ("token",) else None
    rest = record.without([name for name in WEIGHTED if name in record])

    def complete(kept: Mapping[str, Tensor]) -> Record:
        labels = {"query": words, "key": words} if words and kept else {}
        return rest.with_tensors({**kept, "x": output}, labels)

    if listener := callbacks.current().on_intermediates:
        listener(complete(tensors))
    return complete({name: one for name, one in tensors.items() if name in names})


def expand_groups(keep: tuple[str, ...]) -> tuple[str, ...]:
    """Expand the groups among the names of --keep.

    >>> expand_groups(("weights", "present"))
    ('weights', 'present_key', 'present_value')
    """
    return tuple(one for name in keep for one in GROUPS.get(name, (name,)))


def check_outputs(
    record: Record | None,
    weights: str | None,
    steps: bool,
    names: tuple[str | None, ...],
    adds_input: Mapping[str, bool],
) -> None:
    """Check that these inputs and this summary of the weights give what is requested.

    adds_input  options that add the input -> whether they are set
    """
    for name, is_set in adds_input.items():
        if record is None and is_set:
            raise UsageError(f"--{name} adds the input, but with these options attend reads no input")
    if weights not in (None, "full") and (steps or "weights" in names or "all" in names):
        raise UsageError(
            f"--weights {weights} gives a part of the weights, but --steps, --keep or --emit needs all of them"
        )


def put_beside(output: Tensor, record: Record) -> Tensor:
    x = record["x"]
    if x.shape[:-1] != output.array.shape[:-1]:
        raise DataError(f"x {x.shape} beside a result {output.array.shape}: they differ in more than width")
    both = np.concatenate([output.array, x.astype(output.array.dtype, copy=False)], axis=-1)
    return Tensor(both, formula=f"[{output.formula}; x]")


def choose_output(
    output: Tensor, tensors: Mapping[str, Tensor], queries: Record, name: str | None, has_query: bool
) -> Tensor:
    """Choose the tensor that becomes x: the intermediate of that name, or the output.

    has_query  whether the queries are not the tokens of the record: their axis is then called so
    """
    axes = queries.tensor("x").axes_like(output.shape)
    if name is not None and name not in tensors:
        raise UsageError(f"no {name} in this attention: only that of some models has it", "--emit")
    output = replace(output, axes=axes) if name is None else tensors[name]
    if not has_query:
        return output
    return replace(output, axes=tuple("query" if axis == "token" else axis for axis in output.axis_names()))


def label_axes(
    inputs: AttentionInputs, weights: str | None, has_query: bool, names: Collection[str], queries: int
) -> tuple[Record, dict[str, Labels]]:
    """Label queries, keys and selected rows; clear labels that no longer fit.

    has_query  whether the queries are not the tokens of the record
    names      of the tensors that are added
    queries    number of queries
    """
    summary = "full" if weights is None else weights
    labels = intermediates.attention_labels(inputs.query, inputs.key, inputs.key_axis, summary, queries)
    sizes = {"query": inputs.query["x"].shape[-2]} if has_query else {}
    sizes |= {"source": inputs.key["x"].shape[-2]} if inputs.key_axis == "source" else {}
    return intermediates.clear_labels(inputs.rest, labels, sizes, names)
