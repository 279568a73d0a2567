"""What implementations get wrong: each slip is a stage with a changed option or input, and its name in words.

`find_slips` lists the slips that can occur in some stages of a graph. A slip of one name may change several stages of a
layer at once, as rotary positions are applied to queries and to keys.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.debugger.stages import QUICK_GELU, Graph, Stage, SubLayer, with_positions
from attnkit.model.activations import ACTIVATIONS
from attnkit.model.rotary import has_same_rotation
from attnkit.model.slips import (
    HEADS_LAST,
    INVERTED_PADDING,
    MULTIPLIED_SCALE,
    N_MINUS_1,
    NO_ACTIVATION,
    NO_CAUSAL,
    NO_MEAN,
    NO_PADDING,
    NO_RESIDUAL,
    NO_SCALE,
    OPPOSITE_CAUSAL,
    OVER_QUERIES,
    PRE_NORM,
    RESIDUAL_AFTER,
    RESIDUAL_ALONE,
    RESIDUAL_TWICE,
    SCALE_OF_WIDTH,
    SCALED_TWICE,
    SHIFTED_CAUSAL,
    STRICT_CAUSAL,
)

THETAS = (1e4, 1.5e5, 1.6e5, 5e5, 1e6)  # of published models
EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)  # of published models
ROUNDINGS = ("bfloat16", "float16")

Change = tuple[str, Stage]  # the name of a slip, and the stage as it has it


class Slip(NamedTuple):
    """A slip by name: the stages of a graph that it changes, by site."""

    name: str
    stages: Mapping[str, Stage]


def find_slips(graph: Graph, cone: Sequence[Stage], dtype: str) -> list[Slip]:
    """The slips that some stages of a graph may have in a dtype, each name once."""
    found: dict[str, dict[str, Stage]] = {}
    for stage in cone:
        changes = [*SLIPS[stage.operation](graph, stage)] if stage.operation in SLIPS else []
        changes += block_slips(graph, stage)
        if dtype in ("float32", "float64"):
            changes += rounding_slips(graph, stage)
        for name, changed in changes:
            found.setdefault(name, {})[stage.site] = changed
    return [Slip(name, stages) for name, stages in found.items()]


POST_NORM = "the norms follow the residuals (post-norm, not pre-norm)"
PARALLEL = "the sub-layers read the same input (parallel, not serial)"
AS_READ = " (as the next norm reads it)"


def block_slips(graph: Graph, stage: Stage) -> Iterator[Change]:
    """Slips of the order in a block, which change what several stages read.

    A name for the sum with a residual may stand for what the next norm reads, if the dump names what modules read.
    """
    block = graph.blocks.get(".".join(stage.site.split(".")[:2]))
    if block is None:
        return
    parts, start = block.parts, block.start
    for at, part in enumerate(parts):
        if graph.core.config.norm_first:
            yield from _post_norm(stage, part, parts, at, start)
            yield from _parallel(stage, part, parts, at, start)
        else:
            yield from _pre_norm(graph, stage, part, parts, at, start)


def _post_norm(stage: Stage, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str) -> Iterator[Change]:
    before = parts[at - 1].norm if at else start  # the result of the sub-layer before
    if stage.site == part.norm:
        yield POST_NORM, stage._replace(inputs=(part.output, before))
    elif part.norm in stage.inputs and stage.operation == "linear":
        yield POST_NORM, stage._replace(inputs=(before,))
    elif stage.site == part.residual and at + 1 == len(parts):
        yield POST_NORM, stage._replace(inputs=(part.norm,))
    elif stage.site == part.residual:
        yield POST_NORM, stage._replace(inputs=(part.output, before))
        yield POST_NORM + AS_READ, stage._replace(inputs=(parts[at + 1].output, part.norm))


def _parallel(stage: Stage, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str) -> Iterator[Change]:
    if at and stage.site == part.norm:
        yield PARALLEL, stage._replace(inputs=(start,))
    elif at and part.norm in stage.inputs and stage.operation == "linear":
        yield (
            f"{part.norm} is left out: the sub-layers read one norm (parallel)",
            stage._replace(inputs=(parts[0].norm,)),
        )
    elif stage.site == part.residual and at + 1 == len(parts):
        yield PARALLEL, stage._replace(inputs=(*(one.output for one in parts), start))
    elif stage.site == part.residual:
        yield PARALLEL + AS_READ, stage._replace(inputs=(start,))


def _pre_norm(
    graph: Graph, stage: Stage, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str
) -> Iterator[Change]:
    before = next((one.parts[-1].residual for one in graph.blocks.values() if one.parts[-1].norm == start), start)
    first = parts[at - 1].residual if at else before
    reads = parts[at - 1].norm if at else start  # what the sub-layer reads in a post-norm model
    if stage.site == part.norm:
        yield PRE_NORM, stage._replace(inputs=(first,))
    elif stage.site == part.residual:
        yield PRE_NORM, stage._replace(inputs=(part.output, first))
    elif reads in stage.inputs and stage.operation == "linear":
        yield PRE_NORM, stage._replace(inputs=(part.norm,))


def join_slips(graph: Graph, one: Slip, other: Slip) -> Slip:
    """Two slips at once."""
    stages = dict(one.stages)
    for site, stage in other.stages.items():
        before = graph.stages[site]
        if site in stages:
            options = {name: value for name, value in stage.options.items() if value is not before.options.get(name)}
            stage = (
                stages[site]
                .change(**options)
                ._replace(inputs=stage.inputs if stage.inputs != before.inputs else stages[site].inputs)
            )
        stages[site] = stage
    return Slip(f"{one.name} and {other.name}", stages)


def rounding_slips(graph: Graph, stage: Stage) -> Iterator[Change]:
    for form in ROUNDINGS:
        yield f"{stage.site} is rounded to {form}", stage.change(rounds=form)
        yield f"the inputs of {stage.site} are rounded to {form}", stage.change(rounds_inputs=form)
        if stage.layer:
            yield f"the parameters are rounded to {form}", stage.change(rounds_parameters=form)


def slip_words(graph: Graph, stage: Stage) -> Iterator[Change]:
    params = graph.core.params
    head = params["head"].get("w") if "head" in params else None
    table = params[stage.layer]["table"]
    if head is not None and head.T.shape == table.shape and not np.shares_memory(head, table):
        other = stage._replace(layer="head").change(table="w", transposed=True)
        yield "the embeddings are the rows of the output head", other
    yield "the embeddings are multiplied by √D", stage.change(factor=math.sqrt(graph.core.config.width))


def slip_types(graph: Graph, stage: Stage) -> Iterator[Change]:
    yield "the embeddings of segments are missing", stage.change(absent=True)
    yield "all tokens are of the first segment", stage.change(all_first=True)


def slip_scale(graph: Graph, stage: Stage) -> Iterator[Change]:
    """Slips of the factor on embeddings, and on scores."""
    factor = stage.options["factor"]
    if (rules := stage.options.get("rules")) is None:
        width = math.sqrt(graph.core.config.width)
        if factor != 1:
            yield "the factor √D of the embeddings is missing", stage.change(factor=1.0)
        if not math.isclose(factor, width):
            yield "the embeddings are multiplied by √D", stage.change(factor=width)
        if len(stage.inputs) > 1:
            yield "the embeddings of segments are missing", stage._replace(inputs=stage.inputs[:1])
        return
    yield NO_SCALE, stage.change(factor=1.0)
    yield "the scale of the scores is 1/√K", stage.change(factor=rules.head_dim**-0.5)
    yield (
        SCALE_OF_WIDTH,
        stage.change(factor=(rules.heads * rules.head_dim) ** -0.5),
    )
    yield SCALED_TWICE, stage.change(factor=factor * factor)
    yield MULTIPLIED_SCALE, stage.change(factor=rules.head_dim**0.5)


def slip_rows(graph: Graph, stage: Stage) -> Iterator[Change]:
    config, where = graph.core.config, np.asarray(stage.options["where"])
    positions = config.positions
    for shift in dict.fromkeys((1, 2, -1, -2, -positions.first)):
        if shift:
            moved = with_positions(config, first=positions.first + shift, size=positions.size and positions.size + 9)
            if positions.kind == "sinusoidal":
                yield f"positions are shifted by {shift:+}", stage.change(where=where + shift)
            elif positions.first + shift >= 0 and positions.first + shift + where.max(initial=0) < positions.size:
                first = f" (they begin at {positions.first + shift} instead of {positions.first})"
                yield f"positions are shifted by {shift:+}{first}", stage.change(config=moved)
    if where.ndim == 2:
        yield "positions count the padding", stage.change(where=np.arange(where.shape[-1]))
    if positions.kind == "sinusoidal":
        other = "halves" if positions.layout == "paper" else "paper"
        words = {"halves": "all sines before all cosines", "paper": "alternating sines and cosines"}
        yield f"sinusoidal positions have {words[other]}", stage.change(config=with_positions(config, layout=other))


def slip_add(graph: Graph, stage: Stage) -> Iterator[Change]:
    first, second = stage.inputs
    if not stage.site.endswith(".residual"):
        yield "the positions are missing", stage._replace(inputs=(first,))
        return
    if stage.options.get("factor", 1.0) != 1:
        yield "the multiplier of the residual branch is missing", stage.change(factor=1.0)
    yield NO_RESIDUAL, stage._replace(inputs=(first,))
    yield RESIDUAL_ALONE, stage._replace(inputs=(second,))
    if not graph.core.config.norm_first:
        yield RESIDUAL_AFTER, stage._replace(inputs=(first,))
    yield RESIDUAL_TWICE, stage._replace(inputs=(first, second, second))
    if norm := _norm_before(graph, stage):
        yield f"the residual is added after the norm ({norm}), not before it", stage._replace(inputs=(first, norm))


def _norm_before(graph: Graph, residual: Stage) -> str:
    """The norm between what a residual adds and its sub-layer, in a pre-norm model."""
    saved = residual.inputs[1]
    layer = residual.site.rpartition(".")[0]
    reads = {one for name, stage in graph.stages.items() if name.startswith(f"{layer}.") for one in stage.inputs}
    norms = [name for name, stage in graph.stages.items() if stage.operation == "norm" and saved in stage.inputs]
    return next((norm for norm in norms if norm in reads), "")


def slip_norm(graph: Graph, stage: Stage) -> Iterator[Change]:
    params = graph.core.params.get(stage.layer, {})
    for eps in EPSILONS:
        if not math.isclose(eps, stage.options["eps"]):
            yield f"eps of the norm is {eps:g} instead of {stage.options['eps']:g}", stage.change(eps=eps)
    yield "eps of the norm is added to the standard deviation, not to the variance", stage.change(eps_outside=True)
    yield N_MINUS_1, stage.change(ddof=1)
    yield "the norm is missing", stage.change(skips=True)
    if stage.options["kind"] == "layer":
        yield NO_MEAN, stage.change(kind="rms")
    else:
        yield "the norm subtracts the mean (layer norm)", stage.change(kind="layer")
    if "gamma" in params:
        yield "the norm multiplies by 1 + weight, not by weight", stage.change(offset=1.0)
        yield "the weight of the norm is missing", stage.change(missing=("gamma",))
    if "beta" in params:
        yield "the bias of the norm is missing", stage.change(missing=("beta",))
    if {"gamma", "beta"} <= {*params}:
        yield "weight and bias of the norm are missing", stage.change(missing=("gamma", "beta"))
    yield from _neighbours(graph, stage)
    before = graph.stages[stage.inputs[0]]
    if before.operation == "add" and before.site.endswith(".residual") and not graph.core.config.norm_first:
        yield RESIDUAL_AFTER, stage._replace(inputs=before.inputs[:1])


def _neighbours(graph: Graph, stage: Stage) -> Iterator[Change]:
    """Parameters of the layers before and after."""
    stack, number, part = model.parse_layer_name(stage.layer)
    for other in () if number is None else (number - 1, number + 1):
        layer = f"{stack}.{other}.{part}"
        if layer in graph.core.params and _same_shapes(graph, stage.layer, layer):
            yield f"the parameters are those of {layer}", stage._replace(layer=layer)


def _same_shapes(graph: Graph, layer: str, other: str) -> bool:
    shapes = [{name: array.shape for name, array in graph.core.params[one].items()} for one in (layer, other)]
    return shapes[0] == shapes[1]


def slip_linear(graph: Graph, stage: Stage) -> Iterator[Change]:
    weight, bias = stage.options["names"]
    params = graph.core.params.get(stage.layer, {})
    if bias in params:
        yield f"the bias {bias} is missing", stage.change(missing=(bias,))
    if weight in params and params[weight].ndim == 1:
        yield "the factors of the features are missing", stage.change(missing=(weight,))
    elif weight in params and params[weight].shape[0] == params[weight].shape[1]:
        yield f"the weight {weight} is transposed", stage.change(transposed=True)
    yield from _neighbours(graph, stage)
    if weight in ("w1", "w3") and "w3" in params:
        other = {"w1": ("w3", "b3"), "w3": ("w1", "b1")}[weight]
        yield "gate and up are exchanged", stage.change(names=other)
    yield from _skip_norm(graph, stage)
    for instead in ("wq", "wk", "wv") if weight in ("wq", "wk", "wv") else ():
        if instead != weight and params[instead].shape == params[weight].shape:
            exchanged = stage.change(names=(instead, f"b{instead[1:]}"))
            yield f"{weight[1:]} is computed with the weight of {instead[1:]}", exchanged
    place = "qkv".find(weight[1:]) if weight in ("wq", "wk", "wv") else -1
    rules = graph.core.config.attention_rules.get(stage.layer)
    if place >= 0 and rules and not rules.is_cross and rules.heads == rules.kv_heads > 1:
        split = stage._replace(operation="split wrong")
        for stored, words in (
            ("flat", "the fused q, k and v are split per head; they are stored one after another"),
            ("per head", "the fused q, k and v are split one after another; they are stored per head"),
        ):
            yield words, split.change(heads=rules.heads, place=place, stored=stored)


def _skip_norm(graph: Graph, stage: Stage) -> Iterator[Change]:
    """A stage that reads what the norm before it reads."""
    before = graph.stages.get(stage.inputs[0])
    if before is not None and before.operation == "norm":
        yield f"{before.site} is not applied", stage._replace(inputs=before.inputs)


def slip_heads(graph: Graph, stage: Stage) -> Iterator[Change]:
    letter = stage.site.rpartition(".")[2]
    if stage.options["heads"] > 1:
        yield "heads are split without transposing", stage.change(splits="no transposing")
        yield HEADS_LAST, stage.change(splits="heads last")
    rope = stage.options.get("rope")
    if rope is None:
        return
    if letter == "v":
        yield "values are rotated", stage.change(times=1)
        return
    where = np.asarray(stage.options["where"])
    whose = {"q": "queries", "k": "keys"}[letter]
    is_interleaved = stage.options.get("interleaved", False)
    order = "halves instead of neighbours" if is_interleaved else "interleaved"
    yield f"rotary pairs are {order}", stage.change(interleaved=not is_interleaved)
    yield "the rotation turns the other way", stage.change(direction=-1)
    for times, words in ((0, "not rotated"), (2, "rotated twice")):
        yield f"{whose} are {words}", stage.change(times=times)
        yield f"queries and keys are {words}", stage.change(times=times)
    for shift in (1, -1):
        yield f"rotary positions are shifted by {shift:+}", stage.change(where=where + shift)
        yield f"rotary positions of {whose} are shifted by {shift:+}", stage.change(where=where + shift)
    if where.ndim == 2:
        lengths = where.max(axis=-1) + 1
        shortest, longest = int(lengths.min()), int(lengths.max())
        if shortest < longest and not has_same_rotation(rope, shortest, longest):
            words = "rotary frequencies are those of the longest text of the batch, as in transformers"
            yield words, stage.change(length=longest)
        yield "rotary positions count the padding", stage.change(where=np.arange(where.shape[-1]))
    size = stage.shape[-1]
    for share in (2, 4):
        if size % (2 * share) == 0:
            yield f"only {size // share} of {size} features of a head are rotated", stage.change(width=size // share)
    yield from _slip_frequencies(stage, rope)


def _slip_frequencies(stage: Stage, rope: Mapping[str, Any]) -> Iterator[Change]:
    """Slips of the base of rotary positions and of its scaling for long texts."""
    base = float(rope.get("rope_theta", 1e4))
    for theta in THETAS:
        if not math.isclose(theta, base):
            yield f"rope_theta is {theta:g} instead of {base:g}", stage.change(rope={**rope, "rope_theta": theta})
    for form in ROUNDINGS:
        yield f"the frequencies of rotary positions are rounded to {form}", stage.change(rounds_frequencies=form)
        yield f"the cosines and sines of rotary positions are rounded to {form}", stage.change(rounds_angles=form)
    kind = rope.get("rope_type", "default")
    if kind != "default":
        plain = {"rope_type": "default", "rope_theta": base}
        yield f"the scaling of rotary positions ({kind}) is ignored", stage.change(rope=plain, factor=1.0)
    if kind == "yarn":
        yield "the factor of yarn on cosines and sines is missing", stage.change(factor=1.0)
    for other in ("linear", "dynamic"):
        if "factor" in rope and other != kind:
            words = f"the scaling of rotary positions is {other} instead of {kind}"
            yield words, stage.change(rope={**rope, "rope_type": other}, factor=1.0)


def slip_repeat(graph: Graph, stage: Stage) -> Iterator[Change]:
    if stage.options.get("is_grouped"):
        yield "key heads are repeated in turn, not in blocks", stage.change(in_turn=True)


def slip_mask(graph: Graph, stage: Stage) -> Iterator[Change]:
    rules, padding = stage.options["rules"], stage.options["padding"]
    if rules.causal:
        yield NO_CAUSAL, stage.change(rules=rules._replace(causal=False))
        yield STRICT_CAUSAL, stage.change(offset=-1)
        yield SHIFTED_CAUSAL, stage.change(offset=1)
        opposite = rules._replace(causal=False, window=(0, rules.window[0]))
        yield OPPOSITE_CAUSAL, stage.change(rules=opposite)
    elif not rules.is_cross:
        yield "a causal mask is applied", stage.change(rules=rules._replace(causal=True))
    if rules.window != (-1, -1):
        left, right = rules.window
        yield "the window is missing", stage.change(rules=rules._replace(window=(-1, -1)))
        if rules.causal:
            none = rules._replace(window=(-1, -1), causal=False)
            yield "the causal mask and the window are missing", stage.change(rules=none)
        for step in (1, -1):
            sides = (left + step, right + step if right >= 0 else right)
            if sides[0] >= 0:
                words = f"the window is {sides[0]} keys before a query instead of {left} (off by one)"
                yield words, stage.change(rules=rules._replace(window=sides))
    if padding is not None:
        yield NO_PADDING, stage.change(padding=None)
        yield INVERTED_PADDING, stage.change(padding=~padding)
    if padding is not None or rules.causal or rules.window != (-1, -1):
        for fill in (-1.0, 0.0, 1.0):
            yield f"blocked scores are {fill:g} instead of −∞", stage.change(fill=fill)
    if rules.relative and not rules.is_cross:
        yield "the bias of relative positions is missing", stage.change(no_bias=True)


def slip_cap(graph: Graph, stage: Stage) -> Iterator[Change]:
    if stage.options["softcap"]:
        yield "the soft cap of the scores is missing", stage.change(softcap=0.0)


def slip_route(graph: Graph, stage: Stage) -> Iterator[Change]:
    mixture = graph.core.config.mixture(stage.layer)
    if mixture is not None and mixture.score == "softmax":
        changed = replace(mixture, renormalizes=not mixture.renormalizes)
        words = "are not" if mixture.renormalizes else "are"
        yield f"the gates of the chosen experts {words} divided by their sum", stage.change(mixture=changed)


def slip_softmax(graph: Graph, stage: Stage) -> Iterator[Change]:
    if "sinks" in graph.core.params[stage.layer]:
        yield "the sinks are missing", stage.change(missing=("sinks",))
    yield OVER_QUERIES, stage.change(axis=-2)
    yield "softmax is over the heads, not the keys", stage.change(axis=-3)


def slip_join(graph: Graph, stage: Stage) -> Iterator[Change]:
    yield "heads are joined without transposing", stage.change(no_transposing=True)


def slip_activate(graph: Graph, stage: Stage) -> Iterator[Change]:
    for name in (*ACTIVATIONS, QUICK_GELU):
        if name != stage.options["activation"]:
            words = NO_ACTIVATION if name == "identity" else f"the activation is {name}"
            yield f"{words} (expected {stage.options['activation']})", stage.change(activation=name)
    if stage.options["is_gated"]:
        other = stage.site.replace(".activated", ".linear")
        yield "gate and up are exchanged", stage._replace(inputs=(other,))


def slip_multiply(graph: Graph, stage: Stage) -> Iterator[Change]:
    first, second = stage.inputs
    yield "gate and up are exchanged", stage._replace(inputs=(first, first.replace(".activated", ".hidden")))
    yield "the gate is not applied", stage._replace(operation="scale", inputs=(second,), options={})


def slip_pool(graph: Graph, stage: Stage) -> Iterator[Change]:
    for kind in ("first", "mean"):
        if kind != stage.options["kind"]:
            yield f"the head reads the {kind} of the states", stage.change(kind=kind)
    if stage.options["kind"] != "first" and stage.options["real"] is not None:
        yield "the mean of the states counts the padding", stage.change(real=None)


def slip_logits(graph: Graph, stage: Stage) -> Iterator[Change]:
    params, config = graph.core.params, graph.core.config
    if stage.options["factor"] != 1:
        yield "the scale of the logits is missing", stage.change(factor=1.0)
    if stage.options["softcap"]:
        yield "the soft cap of the logits is missing", stage.change(softcap=0.0)
    if "b" in params["head"]:
        yield "the bias of the output head is missing", stage.change(missing=("b",))
    table = params.get(f"{config.stacks[-1]}.embed", {}).get("table")
    weight = params["head"]["w"]
    if table is not None and table.T.shape == weight.shape and not np.shares_memory(table, weight):
        yield (
            "the output head is the table of the embeddings",
            stage._replace(layer=f"{config.stacks[-1]}.embed").change(names=("table", "b"), transposed=True),
        )
    yield from _skip_norm(graph, stage)


SLIPS: dict[str, Callable[[Graph, Stage], Iterator[Change]]] = {
    "words": slip_words,
    "types": slip_types,
    "scale": slip_scale,
    "rows": slip_rows,
    "add": slip_add,
    "norm": slip_norm,
    "linear": slip_linear,
    "heads": slip_heads,
    "scores": slip_repeat,
    "cap": slip_cap,
    "mask": slip_mask,
    "softmax": slip_softmax,
    "mix": slip_repeat,
    "join": slip_join,
    "activate": slip_activate,
    "multiply": slip_multiply,
    "route": slip_route,
    "pool": slip_pool,
    "logits": slip_logits,
}
