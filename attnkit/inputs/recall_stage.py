"""Linear attention of a record: sources, weights, nodes, and states in files."""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from attnkit import options
from attnkit.errors import DataError, UsageError
from attnkit.formats.memory import check_memory
from attnkit.inputs.layers import find_layer
from attnkit.inputs.operands import read_position, read_state_parts
from attnkit.inputs.padding import find_real_tokens
from attnkit.model.checks import as_text
from attnkit.model.config import Config, Step
from attnkit.model.context import Model
from attnkit.model.dtypes import is_float, output_dtype, working
from attnkit.model.formulas.linear import random_weight
from attnkit.model.formulas.recall import RULES, RecallOptions, UpdateRule
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.nodes import LAST, Inputs, Node, Place
from attnkit.model.graph.recall import ReadSite, build_recall, build_recall_layer, run_recall
from attnkit.model.intermediates import INTERMEDIATES, kept_names
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

NAMES = kept_names("recall")
SOURCES = ("query", "key", "value")
# parameter -> the sizes of its axes, as `parameter_sizes` names them
PARAMETERS = {
    "wq": ("query", "keys"),
    "wk": ("key", "keys"),
    "wv": ("value", "values"),
    "wo": ("values", "out"),
    "bq": ("keys",),
    "bk": ("keys",),
    "bv": ("values",),
    "bo": ("out",),
    "wbeta": ("query", "heads"),
    "bbeta": ("heads",),
    "wdt": ("query", "steps"),
    "dt_bias": ("steps",),
    "A_log": ("heads",),
    "D": ("heads",),
}
# axes of the parameters that attention lacks
OWN_AXES = {"wbeta": ("model", "head"), "wdt": ("model", "head")} | dict.fromkeys(
    ("bbeta", "dt_bias", "A_log", "D"), ("head",)
)
PER_STATE = (*NAMES[NAMES.index("held") : NAMES.index("read")],)  # what the recurrent form alone computes


class RecallSources(NamedTuple):
    """The tensors that provide queries, keys, values and gates; None: of the record."""

    query: Annotated[Record | None, options.file("tensor", "queries, instead of x")] = None
    key: Annotated[Record | None, options.file("tensor", "keys, instead of x")] = None
    value: Annotated[Record | None, options.file("tensor", "values, instead of x")] = None
    beta: Annotated[
        Record | None,
        options.file(
            "tensor",
            "how strongly each token is written, (T), (H, T) or (B, H, T); of mamba2 the step Δ [default: the record's "
            "beta, or by weights, or 1]",
        ),
    ] = None
    decay: Annotated[
        Record | None,
        options.file(
            "tensor",
            "the factor of the state at each token, 0 to 1, in the same shapes, or (H, T, K) for each row of the state "
            "[default: the record's decay, or by weights]",
        ),
    ] = None


class RecallWeights(NamedTuple):
    """The weights of linear attention: of a file, drawn, or of a layer of a model."""

    params: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors",
            "weights wq wk wv wo (in, out), biases bq bk bv bo; wbeta, bbeta: β = sigmoid(x W + b); wdt, dt_bias: "
            "Δ = softplus(x W + b); A_log: decay = exp(−Δ exp(A_log)); D: adds D v to what is read",
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="seed of random weights, as many as the rule reads [default: none, W = I]")
    ] = None
    model_: options.Model = None
    layer: options.Layer = None


class RecallStage(NamedTuple):
    """What a stage computes with.

    arrays   site -> an array that the nodes read; origins: site -> where it comes from, for `StageGraph.read`
    nodes    the last one is the result
    offset   tokens before those of the record
    layer    of a model, whose parameters the nodes read; "": the parameters are of no model
    """

    options: RecallOptions
    params: Mapping[str, Array]
    arrays: Mapping[str, Array]
    origins: Mapping[str, Mapping[str, str]]
    nodes: list[Node]
    offset: int
    is_batch: bool
    layer: str = ""

    @property
    def core(self) -> Model:
        return Model(Config("", 0), {self.layer: self.params})

    @property
    def node(self) -> Node:
        """The node that reads the state."""
        return next(node for node in self.nodes if node.kind == "recall")

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape (B, H, K, V) of the state, with a column for Σ k if that divides."""
        key = next(node.shape[-1] for node in self.nodes if node.site == "k")
        return (*self.node.shape[:2], key, self.node.shape[-1])

    @property
    def windows(self) -> dict[str, tuple[int, ...]]:
        """The tokens that convolutions of a model keep: part -> (B, K - 1, C)."""
        return {node.options["part"]: node.shape for node in self.nodes if node.kind == "last window"}

    @property
    def value(self) -> int:
        """The width of a value."""
        return self.node.shape[-1] - self.options.divide


def find_recall(
    record: Record,
    chosen: RecallOptions,
    sources: RecallSources,
    weights: RecallWeights,
    state_in: Mapping[str, Array] | None,
) -> RecallStage:
    """Collect what linear attention computes with; DataError if shapes do not fit."""
    if weights.model_ is not None:
        layer = find_layer(weights.model_, weights.layer, "recall")
        return with_state(find_model_recall(record, weights.model_, layer), state_in)
    given = {name: one["x"] for name in SOURCES if (one := getattr(sources, name)) is not None}
    arrays = {name: given[name] if name in given else record["x"] for name in SOURCES}
    dtype = working(*arrays.values())
    shapes = {name: array.shape for name, array in arrays.items()}
    check_same_tokens(shapes)
    query = shapes["query"]
    is_split, is_batch = len(query) == 4, len(query) > 2
    if is_split:
        chosen = take_heads(chosen, shapes)
    params = find_recall_weights(shapes, chosen, weights, dtype)
    check_recall_parameters(params, parameter_sizes(shapes, chosen, params))
    known, origins = dict[str, Array](), dict[str, Mapping[str, str]]()
    read, built = dict[str, ReadSite](), list[Node]()
    for name, array in arrays.items():
        site = name if name in given else "x"
        if site not in known:
            known[site] = array.astype(dtype, copy=False)
            origins[site] = {"flag": name} if name in given else {"name": "x"}
            built += [] if is_batch else [Node(f"{site}_text", "reshape", (site,), (1, *array.shape))]
        read[name] = ReadSite(site, array.shape) if is_batch else ReadSite(f"{site}_text", (1, *array.shape))
    whole = (query[0] if is_batch else 1, chosen.heads, query[-2])
    for name in gates_of(RULES[chosen.rule]):
        own = getattr(sources, name)
        if own is not None or name in record:
            array = record[name] if own is None else own["x"]
            where, site = name if own is None else f"--{name}", f"{name}_given"  # the node of the gate is called name
            read[name] = ReadSite(site, check_given_gate(name, array, whole, is_batch, where))
            known[site] = array.astype(dtype, copy=False)
            origins[site] = {"name": name} if own is None else {"flag": name}
    check_gates(chosen, params, read)
    real = None if "query" in given else find_real_tokens(record, whole[::2][not is_batch :])
    real = None if real is None or real.all() else np.atleast_2d(real)
    built += build_recall(chosen, read, {name: one.shape for name, one in params.items()}, real=real)
    stage = RecallStage(chosen, params, known, origins, built, 0, is_batch)
    check_memory(8 * math.prod(stage.state_shape), f"states {as_text(stage.state_shape)}", "--heads")
    if not is_batch:
        built.append(Node("text", "reshape", (built[-1].site,), built[-1].shape[1:]))
    return with_state(stage, state_in)


def find_model_recall(record: Record, checkpoint: "Checkpoint", layer: str) -> RecallStage:
    """Collect what a layer of a model computes with.

    The sites of its nodes are without the name of the layer.
    """
    config, params, x = checkpoint.config, dict(checkpoint.params[layer]), record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {as_text(x.shape)}: expected (T, {config.width}) or (B, T, {config.width})")
    recall, is_batch = config.recall, x.ndim == 3
    assert recall is not None
    batch = x.shape[:-1] if is_batch else (1, *x.shape[:-1])
    real = find_real_tokens(record, x.shape[:-1])
    mask = None if real is None or real.all() else np.atleast_2d(real)
    read, start = "x" if is_batch else "x_text", f"{layer}."
    inputs = Inputs(ids=np.zeros(batch, np.int64), mask=mask)
    place = Place(Model(config, {layer: params}), inputs, Step("recall", layer), read, "", *batch)
    built = [] if is_batch else [Node(read, "reshape", ("x",), (1, *x.shape))]
    for node in build_recall_layer(place):
        reads = tuple(site.removeprefix(start) for site in node.inputs)
        built.append(node._replace(site=node.site.removeprefix(start), inputs=reads))
    if not is_batch:
        built.append(Node("text", "reshape", (built[-1].site,), built[-1].shape[1:]))
    known = {"x": x.astype(working(x, *params.values()), copy=False)}
    return RecallStage(recall.options(batch[1]), params, known, {"x": {"name": "x"}}, built, 0, is_batch, layer)


def with_state(stage: RecallStage, state_in: Mapping[str, Array] | None) -> RecallStage:
    """A stage that begins with the state of a file."""
    if state_in is None:
        return stage
    parts, offset = read_recall_state(state_in, stage)
    dtype = working(*stage.arrays.values())
    nodes = [
        node.change(state=parts[node.options["part"]].astype(dtype, copy=False)) if "part" in node.options else node
        for node in stage.nodes
    ]
    return stage._replace(nodes=nodes, offset=offset)


def gates_of(rule: UpdateRule) -> tuple[str, ...]:
    """The gates that a rule reads, if they are given.

    >>> gates_of(RULES["delta"]), gates_of(RULES["retnet"])
    (('beta',), ())
    """
    return ("beta",) * (rule.strength != "none") + ("decay",) * (rule.decay in ("given", "step"))


def take_heads(chosen: RecallOptions, shapes: Mapping[str, tuple[int, ...]]) -> RecallOptions:
    """The options with the numbers of heads that are already split.

    UsageError for another number of them.
    """
    heads, groups = shapes["value"][1], shapes["key"][1]
    for flag, number, count in (("--heads", chosen.heads, heads), ("--key-heads", chosen.key_heads, groups)):
        if number not in (None, 1, count):
            raise UsageError(f"{number}, but x has {count}", flag)
    if not (heads and groups):
        raise DataError(f"x of {heads} heads: expected 1 or more")
    return chosen._replace(heads=heads, key_heads=groups)


def check_same_tokens(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise DataError unless queries, keys and values are of the same tokens."""
    query = shapes["query"]
    if not 2 <= len(query) <= 4:
        raise DataError(f"x {as_text(query)}: expected (T, D), (B, T, D) or (B, H, T, K)")
    for name, shape in shapes.items():
        if len(shape) != len(query) or (shape[0], shape[-2]) != (query[0], query[-2]):
            raise DataError(f"{as_text(shape)}: expected the tokens of the queries {as_text(query)}", f"--{name}")


def find_recall_weights(
    shapes: Mapping[str, tuple[int, ...]], chosen: RecallOptions, weights: RecallWeights, dtype: Any
) -> dict[str, Array]:
    """The weights of a file, or as many as a rule reads from N(0, 1/in)."""
    if weights.params is not None:
        if unknown := [name for name in weights.params if name not in PARAMETERS]:
            raise DataError(f"parameter {unknown[0]!r} is not one of {join_names([*PARAMETERS])}", "--params")
        for name, array in weights.params.items():
            if array.ndim != len(PARAMETERS[name]):
                raise DataError(f"{name} of rank {array.ndim}: expected {len(PARAMETERS[name])}", "--params")
        return {name: array.astype(dtype, copy=False) for name, array in weights.params.items()}
    if weights.seed is None:
        return {}
    rng, rule = np.random.default_rng(weights.seed), RULES[chosen.rule]
    sizes = parameter_sizes(shapes, chosen, {})
    names = ["wq", "wk", "wv", *["wbeta"] * (rule.strength == "sigmoid")]
    names += [*["wdt"] * (rule.decay in ("given", "step")), "wo"]
    rows = [tuple(sizes[axis] for axis in PARAMETERS[name]) for name in names]
    return {name: random_weight(rng, *shape).astype(dtype) for name, shape in zip(names, rows, strict=True)}


def parameter_sizes(
    shapes: Mapping[str, tuple[int, ...]], chosen: RecallOptions, params: Mapping[str, Array]
) -> dict[str, int]:
    """The sizes of the axes of parameters, by the weights or the widths of x.

    DataError unless heads fit them. Without wq and wk, a head of keys is as wide as one of H heads of x.
    """
    heads, groups = chosen.heads, chosen.key_heads or chosen.heads
    width = {name: shape[-1] for name, shape in shapes.items()}
    if heads % groups:
        raise DataError(f"{heads} heads of values are no multiple of {groups} heads of keys", "--key-heads")
    if len(shapes["query"]) == 4:
        if projected := [name for name in params if name.startswith("w")]:
            raise DataError(f"{projected[0]}: x is already split into heads, so that nothing is projected", "--params")
        return {"heads": heads, "out": 0, "steps": heads, "values": heads * width["value"]}
    keys = next((params[name].shape[-1] for name in ("wq", "wk") if name in params), None)
    sizes = width | {"heads": heads, "keys": keys or width["query"], "values": width["value"]}
    for name, of in (("wv", "values"), ("wo", "out"), ("wdt", "steps")):
        sizes[of] = params[name].shape[-1] if name in params else sizes.get(of, width["value"])
    if "wdt" not in params:
        sizes["steps"] = heads
    for of, count in (("keys", groups), ("values", heads)):
        if sizes[of] % count:
            raise DataError(f"d_model {sizes[of]} is not divisible by heads {count}")
    own = {name: keys if f"w{name[0]}" in params else width[name] for name in ("query", "key")}
    if own["query"] != own["key"]:
        raise DataError(f"queries of width {own['query']} and keys of width {own['key']}: expected the same")
    if sizes["steps"] not in (heads, rows := heads * sizes["keys"] // groups):
        raise DataError(f"wdt of {sizes['steps']} columns: expected {heads} or {rows}", "--params")
    return sizes


def check_recall_parameters(params: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Raise DataError unless parameters have these sizes, and are floats."""
    for name, array in params.items():
        if missing := [axis for axis in PARAMETERS[name] if axis not in sizes]:
            raise DataError(
                f"{name}: x is already split into heads, so that {missing[0]} are not projected", "--params"
            )
        expected = tuple(sizes[axis] for axis in PARAMETERS[name])
        if array.shape != expected:
            raise DataError(f"{name} {as_text(array.shape)}: expected {as_text(expected)}", "--params")


def check_given_gate(name: str, array: Array, whole: tuple[int, ...], is_batch: bool, where: str) -> tuple[int, ...]:
    """The shape of a gate with an axis of texts; DataError unless it fits (B, H, T).

    Only the decay may have an axis of rows of the state besides.
    """
    if not is_float(array.dtype) and array.dtype.kind not in "iu":
        raise DataError(f"{array.dtype}: expected numbers", where)
    has_rows = name == "decay" and array.ndim == 3 + is_batch
    shape: tuple[int, ...] = (*(1,) * (3 + has_rows - array.ndim), *array.shape)
    target = (*whole, shape[-1]) if has_rows else whole
    if len(shape) != len(target) or any(one not in (1, size) for one, size in zip(shape, target, strict=True)):
        raise DataError(f"{as_text(array.shape)}: expected {as_text(whole[not is_batch :])}", where)
    return shape


def check_gates(chosen: RecallOptions, params: Mapping[str, Array], read: Mapping[str, ReadSite]) -> None:
    """Raise UsageError if nothing gives the gate that a rule needs."""
    rule = RULES[chosen.rule]
    needed = "beta" if rule.strength == "step" else "decay" if rule.decay == "given" else ""
    if needed and needed not in read and "wdt" not in params:
        what = " (its steps Δ)" if needed == "beta" else ""
        raise UsageError(f"{chosen.rule} needs --{needed} FILE{what}, wdt of --params, or --seed", "--rule")


def read_recall_state(tensors: Mapping[str, Array], stage: RecallStage) -> tuple[dict[str, Array], int]:
    """The parts of the state of a file, and the tokens before it.

    Σ k is the last column of the state (B, H, K, V) if it divides.
    """
    divides = stage.options.divide
    *lead, key, columns = stage.state_shape[not stage.is_batch :]
    shapes = {"state": (*lead, key, columns - divides)} | ({"sum": (*lead, key)} if divides else {})
    shapes |= {name: shape[not stage.is_batch :] for name, shape in stage.windows.items()}
    found = read_state_parts(tensors, shapes)
    state = found["state"]
    if divides:
        state = np.concatenate([state, found["sum"][..., None]], axis=-1)
    parts = {name: found[name].reshape(shape) for name, shape in stage.windows.items()}
    return parts | {"state": state.reshape(stage.state_shape)}, read_position(tensors)


def state_record(stage: RecallStage, parts: Mapping[str, Array]) -> Record:
    """The record of a file of states, as `read_recall_state` reads it."""
    state = parts["state"]
    own, lead = state if stage.is_batch else state[0], ("batch", "head")[not stage.is_batch :]
    tokens, width = stage.node.shape[-2], stage.value
    tensors = {"state": Tensor(own[..., :width], (*lead, "key_dim", "value_dim"))}
    if stage.options.divide:
        tensors["sum"] = Tensor(own[..., -1], (*lead, "key_dim"))
    axes = ("batch", "token", "model")[not stage.is_batch :]
    tensors |= {name: Tensor(parts[name] if stage.is_batch else parts[name][0], axes) for name in stage.windows}
    return Record(tensors | {"position": Tensor(np.array(stage.offset + tokens, np.int64), ())})


def compute_recall(
    record: Record, stage: RecallStage, keep: Collection[str] = ()
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The intermediates that are kept and x, and the parts of the last state.

    What the recurrent form alone computes is computed by it.
    """
    if {*keep} & {*PER_STATE} and stage.node.options["chunk"] is not None:
        nodes = [node.change(chunk=None) if node.kind == "recall" else node for node in stage.nodes]
        stage = stage._replace(nodes=nodes)
    dtype, memo = working(*stage.arrays.values()), dict[str, Array]()
    graph, known = Graph(stage.core, Inputs(), {node.site: node for node in stage.nodes}), dict(stage.arrays)
    for site in stage.node.inputs:
        graph.evaluate(site, known, precision=dtype.name, memo=memo)
    found = run_recall(stage.node.options, [memo[site] for site in stage.node.inputs], keep)
    memo[stage.node.site] = found["output"]
    x = graph.evaluate(stage.nodes[-1].site, known, precision=dtype.name, memo=memo)
    arrays = {name: memo[name] for name in ("q", "k", "v") if name in keep}
    arrays |= {name: memo[name] for name in ("beta", "decay") if name in keep and name in memo}
    if "beta" in keep and "beta" not in memo and "step" in memo:
        arrays["beta"] = memo["step"]
    arrays |= {name: found[name] for name in PER_STATE if name in found}
    if stage.options.divide:
        arrays |= {name: found[name][..., : stage.value] for name in PER_STATE if name in found}
    if "read" in keep:
        arrays["read"] = next(memo[name] for name in ("skipped", "divided", "read") if name in memo)
    windows = {part: graph.evaluate(f"{LAST}{part}", known, precision=dtype.name, memo=memo) for part in stage.windows}
    form = output_dtype(record["x"]) if "x" in record else x.dtype
    return {name: arrays[name].astype(form, copy=False) for name in NAMES if name in arrays} | {
        "x": x.astype(form, copy=False)
    }, windows | {"state": found["state"]}


def describe_recall(
    record: Record, stage: RecallStage, arrays: Mapping[str, Array], keep: Collection[str]
) -> dict[str, Tensor]:
    """Name the axes and formulas of the intermediates that are kept, and of x."""
    rule, chosen, tensors = RULES[stage.options.rule], stage.options, dict[str, Tensor]()
    formulas = recall_formulas(stage)
    for name in NAMES:
        if name not in arrays or name not in keep:
            continue
        array, axes = arrays[name], INTERMEDIATES["recall"][name].axes or ()
        if name in ("beta", "decay"):
            array = array[..., 0] if array.shape[-1] == 1 else array
            axes = axes[: array.ndim - 1]
        if name in ("q", "k") and array.shape[1] < chosen.heads:
            axes = ("key_head", *axes[1:])
        tensors[name] = Tensor(array, ("batch", *axes), formula=formulas[name])
        if not stage.is_batch:
            tensors[name] = Tensor(array[0], axes, formula=formulas[name])
    like = record.tensor("x").axes_like(arrays["x"].shape) if "x" in record else None
    output = (" gated" * ("wg" in stage.params)) + " W_O" * ("wo" in stage.params) + " + b_O" * ("bo" in stage.params)
    formula = f"read, heads side by side{output}" if keep else f"{formulas['read']}{output}, S ← {rule.formula}"
    tensors["x"] = Tensor(arrays["x"], like, formula=formula)
    return tensors


def recall_formulas(stage: RecallStage) -> dict[str, str]:
    """How each intermediate is computed."""
    rule, chosen, params = RULES[stage.options.rule], stage.options, stage.params
    formulas = {name: row.formula for name, row in INTERMEDIATES["recall"].items()}
    for letter in "qkv":
        text = (
            "input"
            + f" W_{letter.upper()}" * (f"w{letter}" in params)
            + f" + b_{letter.upper()}" * (f"b{letter}" in params)
        )
        has_feature = letter != "v" and chosen.feature != "identity"
        text = f"{chosen.feature}({text})" if has_feature else text
        formulas[letter] = text + f" · {chosen.scale:g}" * (letter == "q" and chosen.scale != 1)
    step = "softplus(x W_dt" + " + b" * ("dt_bias" in params) + ")"
    is_given = {name: f"{name}_given" in stage.arrays for name in ("beta", "decay")}
    if rule.strength == "step":
        formulas["beta"] = "Δ" if is_given["beta"] else f"Δ = {step}"
    else:
        formulas["beta"] = "as given" if is_given["beta"] else "sigmoid(x W_beta" + " + b" * ("bbeta" in params) + ")"
    rate = " exp(A_log)" * ("A_log" in params)
    of_step = f"exp(−Δ{rate}), Δ = {step}" if rule.strength != "step" else f"exp(−Δ{rate})"
    formulas["decay"] = "1 − 2^(−5 − head)" if rule.decay == "fixed" else "as given" if is_given["decay"] else of_step
    beta = "β " if "beta" in stage.node.options["gates"] else ""
    formulas["written"] = beta + ("error" if rule.corrects else "v")
    formulas["held"] = "Sᵀk, S decayed" if rule.decay != "none" else "Sᵀk"
    formulas["states"] = "S ← " + ("decay · S + " if rule.decay != "none" else "S + ") + "k writtenᵀ"
    formulas["read"] = "Sᵀq" + " / q · Σ k" * chosen.divide + " + D v" * ("D" in params)
    return formulas


def steps_of(stage: RecallStage) -> tuple[str, ...]:
    """The intermediates that --steps shows: those that change something for the rule."""
    rule = RULES[stage.options.rule]
    has_beta = any(node.site in ("beta", "step") for node in stage.nodes) and rule.strength != "none"
    shown = {"q", "k", "v", "states", "read"}
    shown |= {"beta", "written"} if has_beta else set()
    shown |= {"decay"} if rule.decay != "none" else set()
    shown |= {"held", "error", "written"} if rule.corrects else set()
    return tuple(name for name in NAMES if name in shown)


def earlier_recall(record: Record) -> list[str]:
    """The intermediates of an earlier recall that a record contains."""
    rows = INTERMEDIATES["recall"]
    found = []
    for name in rows:
        axes = record.tensors[name].axes or () if name in record else ()
        axes = axes[axes[:1] == ("batch",) :]
        has_row = axes == rows[name].axes or axes == (*(rows[name].axes or ()), "key_dim")
        if axes and has_row and name not in ("beta", "decay"):
            found.append(name)
    return found
