"""The cost of each stage of a pipeline, by the shapes of its call.

A call has the shapes of its inputs, its weights and its result.

A stage is a few nodes of the kinds that models are made of, of the shapes of its call; a layer of a model is that
layer's nodes.
"""

import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.checkpoints.sentence_modules import Dense
from attnkit.inputs import encoding, layers
from attnkit.inputs.attention_inputs import PreparedAttention
from attnkit.inputs.output_matrix import find_output_matrix
from attnkit.inputs.recall_stage import RecallStage
from attnkit.interpret.cost import count_head, count_model, count_nodes, count_step
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.networks import network_nodes
from attnkit.interpret.summary_cost import count_summary
from attnkit.interpret.tracer import Tracer
from attnkit.model import Array, Config
from attnkit.model.attention import text_lengths
from attnkit.model.config import AttentionRules
from attnkit.model.formulas.dense_attention import AttentionOptions
from attnkit.model.graph.costs import Cost, ModelShapes, Passes, Shape, count_tiles, has_tiles
from attnkit.model.graph.nodes import Node
from attnkit.model.intermediates import SQUARE
from attnkit.model.kernels.tiles import key_ranges

# the beginning of the names of rows of a whole model; decode may apply its head alone
WHOLE = re.compile(r"[0-9]+\.(encode\.|decode\.(?=encoder\.|decoder\.))")
SHOWN = ("show", "peek")  # tools that compute nothing

Counter = Callable[[StageCall], Iterable[Cost]]


def count_call(call: StageCall, counters: Mapping[str, Counter]) -> list[Cost]:
    """The rows of one call of a tool, named by stage, tool and intermediate.

    counters  tool -> the rows of a call; UsageError if cost has no rule for the tool, or for what its options ask.
    """
    if call.tool in SHOWN:
        return []
    if call.tool not in counters:
        raise call.error(f"cost has no rule for this tool (it counts {', '.join(counters)})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pipeline itself has warned
        rows = [*counters[call.tool](call)]
    return [one._replace(name=(call.shared_prefix + one.name).rstrip("."), shape=one.shape[-3:]) for one in rows]


def shorten_names(rows: Sequence[Cost]) -> list[Cost]:
    """Rows of a model by their names in a trace, if one stage alone runs one.

    >>> [one.name for one in shorten_names([Cost("1.encode.encoder.0.ffn", (2,)), Cost("2.ffn.hidden", (2,))])]
    ['encoder.0.ffn', '2.ffn.hidden']
    """
    whole = {match[0] for one in rows if (match := WHOLE.match(one.name))}
    return [one._replace(name=WHOLE.sub("", one.name)) for one in rows] if len(whole) == 1 else [*rows]


def weights_of(layers: Mapping[str, Mapping[str, Array]], width: int = 0) -> ModelShapes:
    """A stage's own weights as the layers of a model.

    >>> weights_of({"ffn": {"w1": np.ones((2, 3))}}).parameters
    6
    """
    shapes = {layer: {name: one.shape for name, one in arrays.items()} for layer, arrays in layers.items()}
    return ModelShapes(Config("", width), shapes, {layer: frozenset(names) for layer, names in shapes.items()})


def layer_shapes(call: StageCall) -> ModelShapes:
    """The model of a stage, each of whose layers counts all its parameters as its own."""
    model = count_model(call.values["model_"])
    return model._replace(owned={layer: frozenset(shapes) for layer, shapes in model.shapes.items()})


def passes_of(x: Array, **options: Any) -> Passes:
    """One pass over vectors (..., T, D), each row of a batch a text.

    A single vector is one token.

    >>> passes_of(np.ones((2, 3, 4))).rows
    6
    """
    return Passes(math.prod(x.shape[:-2]), x.shape[-2] if x.ndim > 1 else 1, **options)


def states(x: Array, width: int = 0) -> Shape:
    """The shape (B, T, D) of vectors (..., T, D), or of others of a given width."""
    passes = passes_of(x)
    return passes.texts, passes.tokens, width or x.shape[-1]


def strip_layer(rows: Iterable[Cost], layer: str) -> Iterator[Cost]:
    """Yield rows of a layer under the names of their intermediates alone."""
    for row in rows:
        yield row._replace(name=row.name.removeprefix(layer).lstrip("."))


def count_layer(call: StageCall, tool: str, x: Array, **options: Any) -> Iterator[Cost]:
    """Yield the rows of a layer of a model, in one pass over x.

    tool  its operation; options: of the pass
    """
    layer = layers.find_layer(call.values["model_"], call.values["layer"], tool)
    step = layers.find_step(layer, tool)
    return strip_layer(count_step(layer_shapes(call), step, passes_of(x, **options)), layer)


def count_whole(call: StageCall, *nodes: Node, parameters: Mapping[str, Array] | None = None) -> list[Cost]:
    """The row of nodes that are computed in place of each other.

    The row has the shape of the stage's result.

    parameters  of the layer ""
    """
    y = call.result["x"]
    rows = count_nodes([*nodes, *addends(call)], weights_of({"": parameters or {}}), passes_of(y))
    return [row._replace(shape=y.shape) for row in rows]


def addends(call: StageCall) -> Iterator[Node]:
    """Yield the sums with what options add to a result."""
    names = [name for name in ("residual", "add", "add_after") if call.values.get(name) not in (None, False)]
    factor = layers.result_scale(call.values.get("model_"), call.values.get("layer"), bool(names))
    options, shape = {"factor": factor}, call.result["x"].shape
    yield from (Node("", "add", ("", name), shape, options=options) for name in names)
    if not names and factor != 1:
        yield Node("", "scale", ("",), shape, options=options)


def with_addends(call: StageCall, rows: Iterable[Cost]) -> Iterator[Cost]:
    """Yield rows, and then what options add to their result."""
    yield from rows
    if any(addends(call)):
        yield from (row._replace(name="residual") for row in count_whole(call))


def count_embed(call: StageCall) -> Iterable[Cost]:
    values, record = call.values, call.result
    if values["model_"] is not None:
        return count_layer(call, "embed", record["x"])
    own, shape = {"table": record["table"]} if "table" in record else {}, record["x"].shape
    factor = 2.0 if values["scale"] else 1.0
    return count_whole(
        call,
        Node("", "words", ("ids",), shape),
        Node("", "scale", ("",), shape, options={"factor": factor}),
        parameters=own,
    )


def count_posenc(call: StageCall) -> Iterable[Cost]:
    values, result = call.values, call.result
    if values["model_"] is not None:
        return count_layer(call, "posenc", result["x"])
    if values["kind"] in ("alibi", "t5"):
        bias = result["bias"] if "bias" in result else result["x"]
        return [Cost("", bias.shape, 0, bias.size * (values["kind"] == "alibi"), 0, bias.size)]
    is_alone = values["alone"] or values["size"] is not None
    each, x, y = 0 if is_alone else 3 if values["kind"] == "rotary" else 1, call.before.get("x"), result["x"]
    return [Cost("", y.shape, 0, each * y.size, 0 if x is None else x.size, y.size)]


def count_mask(call: StageCall) -> Iterable[Cost]:
    mask = call.result["mask" if "mask" in call.result else "x"]
    return [Cost("", mask.shape, written=mask.size)]


def count_softmax(call: StageCall) -> Iterable[Cost]:
    shape, values = call.result["x"].shape, call.values
    nodes = [
        Node("", "softmax", ("x",), shape),
        Node("", "scale", ("",), shape, options={"factor": values["temperature"]}),
    ]
    if values["mask"] is not None or "mask" in call.before:
        nodes.append(Node("", "add", ("", "mask"), shape))
    return count_whole(call, *nodes)


def count_layernorm(call: StageCall) -> Iterable[Cost]:
    values, x = call.values, call.before["x"]
    own = {name: one for name in ("gamma", "beta") if (one := getattr(call.prepared, name)) is not None}
    kind = values["kind"]
    if values["model_"] is not None:
        layer, model = layers.find_layer(values["model_"], values["layer"], "layernorm"), layer_shapes(call)
        own, kind = {name: np.broadcast_to(0, shape) for name, shape in model.shapes[layer].items()}, model.config.norm
    options = {"kind": "rms" if kind == "rms" else "layer", "names": tuple(own)}
    return count_whole(call, Node("", "norm", ("x",), x.shape, options=options), parameters=own)


def count_ffn(call: StageCall) -> Iterable[Cost]:
    core, layer, nodes = network_nodes(call)
    model = weights_of(core.params) if call.values["model_"] is None else layer_shapes(call)
    rows = strip_layer(count_nodes(nodes, model, passes_of(call.before["x"])), layer.removesuffix(".ffn"))
    return with_addends(call, rows if call.values["model_"] is not None else strip_layer(rows, "ffn."))


def count_own_linear(
    row: str, own: Mapping[str, Array], passes: Passes, rows: int = 0, names: tuple[str, str] = ("w", "b")
) -> list[Cost]:
    """The row of a linear layer with weights of its own.

    own   among which are those of the names
    rows  that it multiplies; 0: those of all tokens
    """
    model = weights_of({"": {name: own[name] for name in names if name in own}})
    shape = (rows or passes.rows, own[names[0]].shape[-1])
    return count_nodes([Node(row, "linear", ("x",), shape, options={"names": names})], model, passes)


def count_linear(call: StageCall) -> list[Cost]:
    """The row of a linear layer, with its activation."""
    x, y = call.before["x"], call.result["x"]
    rows = (
        count_own_linear("", call.prepared, passes_of(x))
        if call.prepared
        else [Cost("", y.shape, 0, 0, x.size, y.size)]
    )
    each = int(call.values["activation"] != "identity")
    return [rows[0]._replace(elementwise=rows[0].elementwise + each * y.size), *rows[1:]]


def count_conv(call: StageCall) -> Iterable[Cost]:
    """Yield the product of windows with the kernel of a convolution.

    The factors are (windows, C / groups K) and (C / groups K, E).
    """
    x, y = call.before["x"], call.result["x"]
    stage = call.prepared
    if isinstance(stage, layers.LayerOperands):
        yield from with_addends(call, count_layer(call, "conv", x))
        return
    own = sum(one.size for one in stage.weights.values())
    each = ("b" in stage.weights) + (stage.activation != "identity")
    inner = math.prod(stage.weights["w"].shape[1:])
    read = x.size + own + (0 if stage.before is None else stage.before.size)
    yield Cost("", y.shape, 2 * y.size * inner, each * y.size, read, y.size, parameters=own)


def count_mel(call: StageCall) -> list[Cost]:
    samples = {"sound": call.before["x"].shape} if "x" in call.before else {"sound": (0,)}
    return count_spectrogram("", call.result["x"].shape, call.values["window"], samples)


def count_spectrogram(row: str, shape: Shape, window: int, given: Mapping[str, Shape]) -> list[Cost]:
    """The row of a spectrogram (F, M) of a sound."""
    node = Node(row, "spectrogram", ("sound",), shape, options={"window": window})
    return count_nodes([node], weights_of({}), Passes(1, shape[0]), given)


def count_rnn(call: StageCall) -> Iterable[Cost]:
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        memory = values["memory"]
        yield from count_layer(call, "rnn", x, source=0 if memory is None else memory["x"].shape[-2])
        return
    weights = call.prepared.weights
    for number, directions in enumerate(weights.layers):
        one = {
            f"{name}{'_reverse' * is_reverse}": array
            for is_reverse, (_, parameters) in enumerate(directions.directions())
            for name, array in parameters.items()
        }
        name = f"l{number}"
        rows = count_nodes(
            [Node(f"{name}.state", "loop", ("x",), x.shape, name)], weights_of({name: one}), passes_of(x)
        )
        yield from rows if len(weights.layers) > 1 else strip_layer(rows, name)


def count_recall(call: StageCall) -> list[Cost]:
    stage: RecallStage = call.prepared
    given = {site: array.shape for site, array in stage.arrays.items()}
    passes = Passes(stage.node.shape[0], stage.node.shape[2])
    return count_nodes(stage.nodes, weights_of({stage.layer: stage.params}), passes, given)


def count_merge(call: StageCall) -> Iterable[Cost]:
    """Yield the weighted sum of the parts, and with --join the product with W_O."""
    parts = [part["x"] for part in call.item]
    size = parts[0].size
    yield Cost("heads", parts[0].shape, 0, 3 * len(parts) * size, len(parts) * size, size)
    first = call.item[0]
    if call.values["join"] and "wo" in first:
        yield from count_own_linear("output", first, passes_of(call.result["x"]), names=("wo", "bo"))


def count_attend(call: StageCall) -> Iterable[Cost]:
    values = call.values
    if values["weights_from"] is not None:
        return with_addends(call, count_weighted(call))
    prepared: PreparedAttention = call.prepared
    if values["model_"] is None:
        return with_addends(call, count_attention(call, prepared))
    inputs, options = prepared.inputs, prepared.options
    query, key, _ = inputs.arrays()
    is_alone = query.ndim == 3 and key.shape[:-1] == query.shape[:-1] and not keeps_scores(call)
    past, groups = past_keys(options), options.heads if options.kv_heads is None else options.kv_heads
    width = call.values["model_"].config.attention_rules[inputs.layer].head_dim
    passes = passes_of(query)
    q, k = (passes.texts, options.heads, passes.tokens, width), (passes.texts, groups, past + key.shape[-2], width)
    rows = count_layer(
        call,
        "attend",
        query,
        past=options.past + past,
        source=key.shape[-2] if inputs.layer.endswith(".cross") else 0,
        lengths=padded_lengths(options, *query.shape[:2]) if is_alone and options.products.is_fixed else (),
        is_dense=keeps_scores(call),
        scores=count_pairs(call, options, q, k[-2]) if has_summary(call) else -1,
    )
    return with_addends(call, itertools.chain(rows, count_weights(call, options, q, k)))


def has_summary(call: StageCall) -> bool:
    """Whether a summary takes the place of the weights."""
    return call.values["weights"] not in (None, "full")


def count_weights(call: StageCall, options: AttentionOptions, q: Shape, k: Shape) -> Iterator[Cost]:
    """Yield the row of the summary of --weights, if scores are computed again."""
    if has_summary(call) and is_tiled(call, options, q, k[-2]):
        yield count_summary(call.values["weights"], q, k, with_past(options))


def with_past(options: AttentionOptions) -> AttentionOptions:
    """The options of attention to keys that begin with those of the cache."""
    return options.replace(past=options.past + past_keys(options), past_key=None, past_value=None)


def past_keys(options: AttentionOptions) -> int:
    """The number of keys before those of the stage."""
    return 0 if options.past_key is None else options.past_key.shape[-2]


def keeps_scores(call: StageCall) -> bool:
    """Whether an option asks for scores or weights, which rules tiles out."""
    names, values = {*call.values["keep"], call.values["emit"]}, call.values
    return bool(values["steps"] or values["explain"] is not None or names & {*SQUARE, "all"})


def padded_lengths(options: AttentionOptions, texts: int, tokens: int) -> tuple[int, ...]:
    """The lengths of texts attended to one by one, padded at their end; or ().

    >>> padded_lengths(AttentionOptions(mask=np.array([[[[True, False]]], [[[True, True]]]])), 2, 2)
    (1, 2)
    """
    x = np.broadcast_to(np.zeros(()), (texts, 1, tokens, 1))
    lengths = text_lengths(x, x, options)
    return () if lengths is None else tuple(lengths.tolist())


def count_weighted(call: StageCall) -> Iterable[Cost]:
    """Yield the projection of the values, their sums by given weights, and the output."""
    computed = call.prepared
    own, heads = computed.projections, computed.heads
    if "wv" in own:
        yield from count_own_linear("v", own, passes_of(computed.value), names=("wv", "bv"))
    flops, read = 2 * computed.weights.size * heads.shape[-1], computed.weights.size + computed.v.size
    yield Cost("heads", heads.shape, flops, 0, read, heads.size)
    if "wo" in own:
        yield from count_own_linear("output", own, passes_of(computed.output), names=("wo", "bo"))


def count_attention(call: StageCall, prepared: PreparedAttention) -> list[Cost]:
    """The rows of attention with weights of its own, or none."""
    arrays, own = dict(zip("qkv", prepared.inputs.arrays(), strict=True)), prepared.parameters()
    options, nodes = prepared.options, list[Node]()
    groups, heads = options.heads if options.kv_heads is None else options.kv_heads, dict[str, Shape]()
    for letter, count in (("q", options.heads), ("k", groups), ("v", groups)):
        x, weight, site = arrays[letter], own.get(f"w{letter}"), letter
        width = x.shape[-1] if weight is None else weight.shape[1]
        *lead, count, tokens, width = x.shape if x.ndim == 4 else (*x.shape[:-2], count, x.shape[-2], width // count)
        heads[letter] = (math.prod(lead), count, tokens, width)
        if weight is not None:
            names = {"names": (f"w{letter}", f"b{letter}")}
            nodes.append(Node(f"{letter}_projected", "linear", (letter,), states(x, count * width), "", names))
        if options.norm is not None and letter != "v":
            names = {"names": (f"gamma_{letter}", f"beta_{letter}")}
            nodes.append(Node(f"{letter}_normed", "norm of heads", (site,), heads[letter], "", names))
        rotation = {"width": width, "times": 1} if options.rotary is not None and letter != "v" else {}
        nodes.append(Node(letter, "heads", (site,), heads[letter], "", rotation))
    texts, past = max(heads["q"][0], heads["k"][0]), past_keys(options)
    q, k = (texts, *heads["q"][1:]), (texts, heads["k"][1], past + heads["k"][-2], heads["k"][-1])
    scores = count_pairs(call, options, q, k[-2])
    passes = Passes(texts, heads["q"][-2], past=past, scores=scores)
    nodes += score_nodes(prepared, heads)
    if "wg" in own:
        flat, split = (texts, passes.tokens, own["wg"].shape[1]), (*heads["q"][:-1], heads["v"][-1])
        nodes.append(Node("gate_projected", "linear", ("q",), flat, "", {"names": ("wg", "bg")}))
        nodes.append(Node("gated_heads", "gated", ("heads", "gate_projected"), split))
    if "wo" in own:
        shape, names = (texts, passes.tokens, own["wo"].shape[1]), {"names": ("wo", "bo")}
        nodes.append(Node("output", "linear", ("heads",), shape, options=names))
    sinks = {} if options.sinks is None else {"sinks": options.sinks}
    rows = count_nodes(nodes, weights_of({"": own | sinks}), passes)
    return [*rows, *count_weights(call, options, q, k)]


def score_nodes(prepared: PreparedAttention, heads: Mapping[str, Shape]) -> Iterator[Node]:
    """Yield scores, weights and heads of q, k and v (B, H, T, K) of given shapes."""
    options = prepared.options
    texts, count, queries, width = heads["q"]
    q, k, params = "q", "k", options.score_params or {}
    rules = AttentionRules("", count, heads["k"][1], width, options.scale, 1.0)
    if options.score == "general":
        yield Node("query", "linear", ("q",), (*heads["q"][:-1], params["w"].shape[-1]), "", {"names": ("w", "")})
        q = "query"
    if options.score == "additive":
        for site, of, name in (("query", "q", "wa"), ("key", "k", "ua")):
            yield Node(site, "linear", (of,), (*heads[of][:-1], params[name].shape[-1]), "", {"names": (name, "")})
        q, k = "query", "key"
    square, weights = (texts, count, queries, heads["k"][-2]), {"rules": rules}
    factor = 2.0 if options.score == "scaled-dot" or options.scale is not None else 1.0
    yield Node("scores", "scores", (q, k), square, "", weights | {"score": options.score})
    yield Node("scaled", "scale", ("scores", *["bias"] * (options.bias is not None)), square, "", {"factor": factor})
    yield Node("capped", "cap", ("scaled",), square, "", {"softcap": options.softcap})
    yield Node("weights", "softmax", ("capped",), square, "", weights)
    yield Node("heads", "mix", ("weights", "v"), (*heads["q"][:-1], heads["v"][-1]), "", weights)


def is_tiled(call: StageCall, options: AttentionOptions, q: Shape, keys: int) -> bool:
    """Whether the scores of queries of a shape are computed in tiles.

    A summary is computed in tiles, however many there are.
    """
    is_dot = options.score in ("dot", "scaled-dot") and options.softmax_dtype is None
    is_summed = has_summary(call) and options.sinks is None
    return is_dot and not keeps_scores(call) and (is_summed or has_tiles(q[-3], q[-2], keys))


def count_pairs(call: StageCall, options: AttentionOptions, q: Shape, keys: int) -> int:
    """Count the scores of one head of all texts that are computed.

    Tiles that are skipped do not count.

    q  the shape of the queries, (B, H, T, K)
    """
    texts, _, queries, _ = q
    if not is_tiled(call, options, q, keys):
        return texts * queries * keys
    limit = keys if options.mask is None or options.mask.ndim == 0 else min(keys, options.mask.shape[-1])
    return count_tiles(*key_ranges(texts, queries, keys, limit, with_past(options))[1:])


def count_encode(call: StageCall) -> Iterable[Cost]:
    """Yield the rows of a model by their names in a trace, and the layers after."""
    values = call.values
    if values["patch"] or values["ablate"]:
        raise call.error("--patch and --ablate: what they change is not counted")
    if has_summary(call):
        raise call.error("--weights: the scores that a summary computes again are counted of attend alone")
    encoded: encoding.Encoding = call.prepared
    config, model = encoded.core.config, count_model(values["model_"])
    asked = Tracer({"--keep": values["keep"], "--trace": (values["trace_only"] or ("*",)) if values["trace"] else ()})
    windows = sound_windows(encoded)
    passes = encoder_passes(encoded, windows)
    mask = encoded.base.get("mask")
    is_fixed = config.fixes_shapes(f"{encoded.stack}.0.self") and mask is not None and mask.ndim == 3
    options = AttentionOptions(mask=mask[:, None]) if mask is not None and is_fixed else AttentionOptions()
    lengths = padded_lengths(options, passes.texts, passes.tokens)
    if (audio := values["audio"]) is not None and audio["x"].ndim == 1 and config.sound and config.sound.spectrogram:
        given = {"sound": audio["x"].shape}
        yield from count_spectrogram("mel", encoded.inputs.shape, config.sound.spectrogram.window, given)
    for step in encoded.steps:
        is_dense = any(asked.wants(f"{step.layer}.{name}") for name in SQUARE)
        one = replace(passes, is_dense=is_dense, lengths=() if is_dense else lengths)
        if step.op == "posenc" and config.patches:
            yield from resized_positions(encoded, step.layer)
        yield from count_step(model, step, one, windows.get(step.layer, 0))
    has_head_alone = encoded.is_whole and config.head and len(config.stacks) == 1
    if has_head_alone and any(map(asked.wants, encoding.HEAD_STEPS)):
        yield from count_head(model, replace(passes, heads=passes.tokens))
    if encoded.pool == "pooler":
        yield from count_nodes(
            [Node("pooler", "pooler", ("x",), (passes.texts, config.width), "pooler")], model, passes
        )
    if encoded.pool == "folder" and config.has_probe:
        yield from count_head(model, passes)
    for number, module in encoded.modules.modules.items():
        if isinstance(module, Dense) and encoded.pool == "folder":
            own = {"w": module.w} | ({} if module.b is None else {"b": module.b})
            rows = 0 if module.on_tokens else passes.texts
            name = encoding.module_site(number, module)
            yield from count_own_linear(name, own, passes, rows)
            if module.residual is not None:
                yield from count_own_linear(f"{name}.residual", {"w": module.residual}, passes, rows)


def resized_positions(encoded: encoding.Encoding, layer: str) -> Iterable[Cost]:
    """Yield the products that resize a table of positions to another image's grid."""
    config, shape = encoded.core.config, encoded.inputs.shape
    cut = config.patches
    assert cut is not None
    (rows, columns), (down, across) = cut.grid(cut.height, cut.width), cut.grid(*shape[-2:])
    if (rows, columns) != (down, across) and encoded.steps[0].op == "embed":
        flops = 2 * config.width * down * columns * (rows + across)
        numbers = config.width * down * across
        yield Cost(f"{layer}.resized", (down * across, config.width), flops, 0, config.width * rows * columns, numbers)


def sound_windows(encoded: encoding.Encoding) -> dict[str, int]:
    """The windows of each convolution of a sound, by its layer, first to last."""
    config = encoded.core.config
    if not config.sound or not encoded.steps or encoded.steps[0].op != "conv":
        return {}
    frames = encoded.inputs.shape[-2 if config.sound.spectrogram else -1]
    made = [step.layer for step in encoded.steps if step.op == "conv" and not step.adds_residual]
    return {layer: config.sound.frames_after(layer.rpartition(".")[2], frames) for layer in made}


def encoder_passes(encoded: encoding.Encoding, windows: Mapping[str, int]) -> Passes:
    """One pass over the texts, the image or the sound that a whole model reads."""
    config, inputs, first = encoded.core.config, encoded.inputs, encoded.steps[0].op if encoded.steps else ""
    if config.patches and first == "embed":
        return Passes(math.prod(inputs.shape[:-3]), config.patches.tokens(*inputs.shape[-2:]))
    if windows:
        over = 2 if config.sound and config.sound.spectrogram else 1
        return Passes(math.prod(inputs.shape[:-over]), [*windows.values()][-1])
    shape = inputs.shape if inputs.dtype.kind in "iu" else inputs.shape[:-1]
    return Passes(math.prod(shape[:-1]), shape[-1])


def count_decode(call: StageCall) -> Iterable[Cost]:
    """Yield the logits of hidden states, and the probabilities of words."""
    values, checkpoint = call.values, call.values["model_"]
    if "x" not in call.before:
        raise call.error(
            "what it computes of a whole text, image or sound is not counted; `attnkit cost DIR` counts a model"
        )
    x = call.before["x"]
    if checkpoint is None:
        matrix, bias, _, _ = find_output_matrix(call.before, values["table"], values["params"])
        own, is_tied = (
            {"w": matrix} | ({} if bias is None else {"b": bias}),
            values["table"] is None and values["params"] is None,
        )
        rows = count_own_linear("logits", own, passes_of(x))
        rows = [row._replace(parameters=0 if is_tied else row.parameters) for row in rows]
    else:
        rows = count_head(layer_shapes(call), replace(passes_of(x), heads=passes_of(x).tokens))
    yield from rows
    yield from count_probabilities((*x.shape[:-1], rows[-1].shape[-1]), values["temperature"])


def count_probabilities(shape: Shape, temperature: float = 1.0) -> Iterator[Cost]:
    """Yield the row of the softmax of logits."""
    softmax, scale = (Node("probabilities", kind, ("logits",), shape) for kind in ("softmax", "scale"))
    for row in count_nodes([softmax, scale.change(factor=temperature)], weights_of({}), Passes(1, 1)):
        yield row._replace(shape=shape)


COUNTERS: Mapping[str, Counter] = {
    "embed": count_embed,
    "posenc": count_posenc,
    "mask": count_mask,
    "attend": count_attend,
    "softmax": count_softmax,
    "merge": count_merge,
    "layernorm": count_layernorm,
    "ffn": count_ffn,
    "linear": lambda call: with_addends(call, count_linear(call)),
    "conv": count_conv,
    "mel": count_mel,
    "rnn": count_rnn,
    "recall": count_recall,
    "encode": count_encode,
    "decode": count_decode,
}
