"""What each stage of a pipeline costs, from the shapes of what it read, its weights and its result."""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.checkpoints.sentence_modules import Dense
from attnkit.inputs import encoding, layers
from attnkit.inputs.attention_inputs import PreparedAttention, prepare_attention, weigh_values
from attnkit.inputs.convolution_stage import find_convolution
from attnkit.inputs.output_matrix import find_output_matrix
from attnkit.inputs.recurrent_layers import find_recurrent_weights
from attnkit.interpret.cost import (
    ModelShapes,
    Passes,
    Stage,
    count_cells,
    count_convolution,
    count_head,
    count_linear,
    count_model,
    count_network,
    count_probe,
    count_step,
    count_tiles,
    matrix_stage,
)
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.tracer import Tracer
from attnkit.model import Array, Config, Step, parse_layer_name
from attnkit.model.attention import MANY, text_lengths
from attnkit.model.dense_attention import AttentionOptions
from attnkit.model.intermediates import SQUARE
from attnkit.model.kernels.tiles import key_ranges

WHOLE = re.compile(r"[0-9]+\.encode\.")  # the beginning of the names of a model's stages
SHOWN = ("show", "peek")  # tools that compute nothing
NORM = 3  # elementwise FLOPs of a number that is normalized: square, sum and division; 2 more subtract the mean
SOFTMAX = 4  # of a score: maximum subtracted, exponential, sum, division


def count_call(call: StageCall) -> list[Stage]:
    """The stages of one call of a tool, by the number of its stage, its name, and that of an intermediate.

    UsageError if cost has no rule for the tool, or for what its options ask.
    """
    if call.tool in SHOWN:
        return []
    if call.tool not in COUNTERS:
        raise call.error(f"cost has no rule for this tool (it counts {', '.join(COUNTERS)})")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pipeline itself has warned
        stages = [*COUNTERS[call.tool](call)]
    return [one._replace(name=(call.stage + one.name).rstrip("."), shape=one.shape[-3:]) for one in stages]


def shorten_names(stages: Sequence[Stage]) -> list[Stage]:
    """Stages of a whole model by their names in a trace alone, if one stage of the pipeline runs one.

    >>> [one.name for one in shorten_names([Stage("1.encode.encoder.0.ffn", (2,)), Stage("2.ffn.hidden", (2,))])]
    ['encoder.0.ffn', '2.ffn.hidden']
    """
    whole = {match[0] for one in stages if (match := WHOLE.match(one.name))}
    return [one._replace(name=WHOLE.sub("", one.name)) for one in stages] if len(whole) == 1 else [*stages]


def weights_of(name: str, parameters: Mapping[str, Array]) -> ModelShapes:
    """A stage's own weights as the only layer of a model.

    >>> weights_of("ffn", {"w1": np.ones((2, 3))}).parameters
    6
    """
    shapes = {parameter: array.shape for parameter, array in parameters.items()}
    return ModelShapes(Config("", 0), {name: shapes}, {name: frozenset(shapes)})


def layer_shapes(call: StageCall) -> ModelShapes:
    """The model of a stage, each of whose layers counts all its parameters as its own."""
    model = count_model(call.values["model_"])
    return model._replace(owned={layer: frozenset(shapes) for layer, shapes in model.shapes.items()})


def passes_of(x: Array, **options: Any) -> Passes:
    """One pass over vectors (..., T, D), each row of a batch a text; a single vector is one token.

    >>> passes_of(np.ones((2, 3, 4))).rows
    6
    """
    return Passes(math.prod(x.shape[:-2]), x.shape[-2] if x.ndim > 1 else 1, **options)


def strip_layer(stages: Iterator[Stage], layer: str) -> Iterator[Stage]:
    """Yield stages of a layer under the names of their intermediates alone."""
    for stage in stages:
        yield stage._replace(name=stage.name.removeprefix(layer).lstrip("."))


def count_layer(call: StageCall, step: Step, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of a layer of a model."""
    return strip_layer(count_step(layer_shapes(call), step, passes), step.layer)


def count_numbers(call: StageCall, each: int, read: int = 0, parameters: int = 0) -> Stage:
    """The stage of a tool that multiplies no matrices: some FLOPs for each number of its result.

    read  numbers that it reads beside its x and its parameters
    """
    x, y = call.before.get("x"), call.result["x"]
    before = 0 if x is None else x.size
    return Stage("", y.shape, 0, each * y.size, before + read + parameters, y.size, parameters=parameters)


def count_addends(call: StageCall) -> int:
    """Elementwise FLOPs of what options add to a result, for each of its numbers."""
    names = ("residual", "add", "add_after")
    added = sum(call.values.get(name) not in (None, False) for name in names)
    return added * (1 + (layers.residual_scale(call.values["model_"]) != 1))


def with_addends(call: StageCall, stages: Iterator[Stage]) -> Iterator[Stage]:
    """Yield stages, and then what options add to their result."""
    yield from stages
    size = call.result["x"].size
    if each := count_addends(call):
        yield Stage("residual", call.result["x"].shape, 0, each * size, 2 * size, size)


def count_embed(call: StageCall) -> Iterator[Stage]:
    values, record = call.values, call.result
    if values["model_"] is not None:
        layer = layers.find_layer(values["model_"], values["layer"], "embed")
        yield from count_layer(call, Step("embed", layer), passes_of(record["x"]))
        return
    table = record.get("table")
    size = record["x"].size
    own = 0 if table is None else table.size
    yield Stage("", record["x"].shape, 0, size * bool(values["scale"]), size * bool(own), size, parameters=own)


def count_posenc(call: StageCall) -> Iterator[Stage]:
    values, result = call.values, call.result
    if values["model_"] is not None:
        layer = layers.find_layer(values["model_"], values["layer"], "posenc")
        yield from count_layer(call, Step("posenc", layer), passes_of(result["x"]))
    elif values["kind"] in ("alibi", "t5"):
        bias = result["bias"] if "bias" in result else result["x"]
        yield Stage("", bias.shape, 0, bias.size * (values["kind"] == "alibi"), 0, bias.size)
    else:
        is_alone = values["alone"] or values["size"] is not None
        yield count_numbers(call, 0 if is_alone else 3 if values["kind"] == "rotary" else 1)


def count_mask(call: StageCall) -> Iterator[Stage]:
    name = "mask" if "mask" in call.result else "x"
    yield Stage("", call.result[name].shape, written=call.result[name].size)


def count_softmax(call: StageCall) -> Iterator[Stage]:
    extra = (call.values["temperature"] != 1) + (call.values["mask"] is not None or "mask" in call.before)
    yield count_numbers(call, SOFTMAX + extra)


def count_layernorm(call: StageCall) -> Iterator[Stage]:
    values = call.values
    own = [one["x"].size for name in ("gamma", "beta") if (one := values[name]) is not None]
    kind = values["kind"]
    if values["model_"] is not None:
        layer, model = layers.find_layer(values["model_"], values["layer"], "layernorm"), layer_shapes(call)
        own, kind = [math.prod(shape) for shape in model.shapes[layer].values()], model.config.norm
    each = NORM + 2 * (kind != "rms") + len(own) + count_addends(call)
    yield count_numbers(call, each, parameters=sum(own))


def count_ffn(call: StageCall) -> Iterator[Stage]:
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        layer = layers.find_layer(values["model_"], values["layer"], "ffn")
        stages = count_network(layer_shapes(call), layer, passes_of(x))
        return with_addends(call, strip_layer(stages, layer.removesuffix(".ffn")))
    if values["experts"] is not None:
        return with_addends(call, count_experts(call))
    weights, _ = call.apply(layers.find_ffn_weights, x)
    return with_addends(call, strip_layer(count_network(weights_of("ffn", weights), "ffn", passes_of(x)), "ffn"))


def count_experts(call: StageCall) -> Iterator[Stage]:
    """Yield the stages of a mixture of experts of a file: the router, and the experts that are chosen."""
    passes, params, chosen = passes_of(call.before["x"]), call.values["params"], call.values["experts"]
    model = weights_of("ffn", {name: one for name, one in params.items() if name.startswith("router")})
    router = matrix_stage(model, "ffn", "router", "router", passes, passes.rows, after=3)
    bias = params["router_bias"].size if "router_bias" in params else 0
    yield router._replace(elementwise=router.elementwise + passes.rows * bias, parameters=router.parameters + bias)
    used = min(len(params["w1"]), chosen * passes.rows)
    one = weights_of("ffn", {name: array[0] for name, array in params.items() if not name.startswith("router")})
    for stage in count_network(one, "ffn", passes, passes.rows * chosen):
        is_output = stage.name.endswith(".output")
        yield stage._replace(
            name=stage.name.replace("ffn.", "expert."),
            elementwise=stage.elementwise + 2 * stage.written * is_output,
            read=stage.read + (used - 1) * stage.parameters,
            parameters=stage.parameters * len(params["w1"]),
        )


def count_linear_call(call: StageCall) -> Iterator[Stage]:
    values, x = call.values, call.before["x"]
    weights = layers.linear_weights(values["params"], values["model_"], values["layer"])
    model = weights_of("linear", weights)
    if weights["w"].ndim == 1:  # a factor of each feature
        model = model._replace(config=Config("", x.shape[-1]))
    return with_addends(call, strip_layer(count_linear(model, "linear", passes_of(x)), "linear"))


def count_conv(call: StageCall) -> Iterator[Stage]:
    """Yield the product of the windows with the kernel, (windows, C / groups K) with (C / groups K, E)."""
    x, y = call.before["x"], call.result["x"]
    stage = call.apply(find_convolution, x)
    own = sum(one.size for one in stage.weights.values())
    each = ("b" in stage.weights) + (stage.activation != "identity")
    inner = math.prod(stage.weights["w"].shape[1:])
    yield Stage("", y.shape, 2 * y.size * inner, each * y.size, x.size + own, y.size, parameters=own)


def count_mel(call: StageCall) -> Iterator[Stage]:
    samples = call.before["x"].size if "x" in call.before else 0
    yield spectrogram_stage("", call.result["x"].shape, call.values["window"], samples)


def spectrogram_stage(name: str, shape: tuple[int, ...], window: int, samples: int) -> Stage:
    """The stage of a spectrogram (F, M): Fourier transforms, and the product of their power with the filters.

    A transform counts as 5/2 W log2 W elementwise FLOPs.
    """
    bins, size = window // 2 + 1, math.prod(shape)
    transform = round(2.5 * window * math.log2(window))
    each = shape[0] * (window + transform + 3 * bins) + 4 * size
    return Stage(name, shape, 2 * size * bins, each, samples + bins * shape[-1], size)


def count_rnn(call: StageCall) -> Iterator[Stage]:
    values, x = call.values, call.before["x"]
    if values["model_"] is not None:
        layer = layers.find_layer(values["model_"], values["layer"], "rnn")
        memory = values["memory"]
        source = 0 if memory is None else memory["x"].shape[-2]
        yield from count_layer(call, Step("rnn", layer), passes_of(x, source=source))
        return
    weights = call.apply(find_recurrent_weights, x)
    for number, directions in enumerate(weights.layers):
        one = {
            f"{name}{'_reverse' * is_reverse}": array
            for is_reverse, (_, parameters) in enumerate(directions.directions())
            for name, array in parameters.items()
        }
        name = f"l{number}"
        for stage in count_cells(weights_of(name, one), name, passes_of(x)):
            yield stage if len(weights.layers) > 1 else stage._replace(name=stage.name.removeprefix("l0."))


def count_merge(call: StageCall) -> Iterator[Stage]:
    """Yield the weighted sum of the parts, and with --join the product with W_O."""
    parts = [part["x"] for part in call.item]
    size = parts[0].size
    yield Stage("heads", parts[0].shape, 0, 3 * len(parts) * size, len(parts) * size, size)
    first = call.item[0]
    if call.values["join"] and "wo" in first:
        own = {name: first[name] for name in ("wo", "bo") if name in first}
        passes = passes_of(call.result["x"])
        yield matrix_stage(weights_of("", own), "", "wo", "output", passes, passes.rows)


def count_attend(call: StageCall) -> Iterator[Stage]:
    values = call.values
    if values["weights"] not in (None, "full"):
        raise call.error("--weights: what it computes beside the heads is not counted")
    if values["explain"] is not None:
        raise call.error("--explain: text is not counted")
    if values["weights_from"] is not None:
        return with_addends(call, count_weighted(call))
    prepared = call.apply(prepare_attention, call.before)
    if values["model_"] is None:
        return with_addends(call, count_attention(call, prepared))
    inputs, options = prepared.inputs, prepared.options
    query, key, _ = inputs.arrays()
    layer = inputs.layer
    is_alone = (
        query.ndim == 3 and key.shape[:-1] == query.shape[:-1] and options.products.is_fixed and not keeps_scores(call)
    )
    passes = passes_of(
        query,
        past=options.past + (0 if options.past_key is None else options.past_key.shape[-2]),
        source=key.shape[-2] if layer.endswith(".cross") else 0,
        lengths=padded_lengths(options, len(query), query.shape[-2]) if is_alone else (),
        is_dense=keeps_scores(call),
    )
    return with_addends(call, count_layer(call, Step("attend", layer), passes))


def keeps_scores(call: StageCall) -> bool:
    """Whether an option asks for scores or weights, so that none are computed in tiles."""
    names = {*call.values["keep"], call.values["emit"]}
    return bool(call.values["steps"] or names & {*SQUARE, "all"})


def padded_lengths(options: AttentionOptions, texts: int, tokens: int) -> tuple[int, ...]:
    """The lengths of texts that are attended to one by one, as they are padded at their end; () for none.

    >>> padded_lengths(AttentionOptions(mask=np.array([[[[True, False]]], [[[True, True]]]])), 2, 2)
    (1, 2)
    """
    x = np.broadcast_to(np.zeros(()), (texts, 1, tokens, 1))
    lengths = text_lengths(x, x, options)
    return () if lengths is None else tuple(lengths.tolist())


def count_weighted(call: StageCall) -> Iterator[Stage]:
    """Yield the projection of the values, their sums by given weights, and the output."""
    computed = call.apply(weigh_values, call.before)
    model, value = weights_of("", computed.projections), passes_of(computed.value)
    if "wv" in computed.projections:
        yield matrix_stage(model, "", "wv", "v", value, value.rows)
    weights, heads = computed.weights, computed.heads
    flops = 2 * weights.size * heads.shape[-1]
    yield Stage("heads", heads.shape, flops, 0, weights.size + computed.v.size, heads.size)
    if "wo" in computed.projections:
        rows = passes_of(computed.output)
        yield matrix_stage(model, "", "wo", "output", rows, rows.rows)


def count_attention(call: StageCall, prepared: PreparedAttention) -> Iterator[Stage]:
    """Yield the stages of attention with weights of its own, or none."""
    inputs, options, projections = prepared
    arrays = dict(zip("qkv", inputs.arrays(), strict=True))
    model = weights_of("", prepared.parameters())
    groups = options.heads if options.kv_heads is None else options.kv_heads
    shapes = {}
    for letter, heads in (("q", options.heads), ("k", groups), ("v", groups)):
        x, passes = arrays[letter], passes_of(arrays[letter])
        weight = projections.get(f"w{letter}")
        width = x.shape[-1] if weight is None else weight.shape[1]
        shapes[letter] = x.shape if x.ndim == 4 else (*x.shape[:-2], heads, x.shape[-2], width // heads)
        normed = letter != "v" and options.norm is not None
        if weight is not None:
            stage = matrix_stage(model, "", f"w{letter}", letter, passes, passes.rows)
            yield stage._replace(elementwise=stage.elementwise + 5 * normed * stage.written)
        elif normed:
            yield Stage(letter, shapes[letter], 0, 5 * x.size, x.size, x.size)
    yield from count_scores(call, prepared, shapes)
    if "wo" in projections:
        passes = passes_of(arrays["q"])
        yield matrix_stage(model, "", "wo", "output", passes, passes.rows)


def count_scores(
    call: StageCall, prepared: PreparedAttention, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Stage]:
    """Yield scores, weights and heads of queries, keys and values (..., H, T, K) of these shapes."""
    options, params = prepared.options, prepared.options.score_params or {}
    lead = np.broadcast_shapes(shapes["q"][:-3], shapes["k"][:-3])
    heads, queries, width = shapes["q"][-3:]
    groups, value = shapes["k"][-3], shapes["v"][-1]
    past = 0 if options.past_key is None else options.past_key.shape[-2]
    keys, texts = past + shapes["k"][-2], math.prod(lead)
    if options.score == "general":
        own, inner = params["w"].size, params["w"].shape[-1]
        rows = texts * heads * queries
        flops = 2 * rows * width * inner
        yield Stage("query", (heads, queries, inner), flops, 0, rows * width + own, rows * inner, parameters=own)
        width = inner
    if options.score == "additive":
        inner = params["ua"].shape[1]
        for letter, name, count, of in (("query", "wa", heads, queries), ("key", "ua", groups, keys)):
            rows = texts * count * of
            own, read = params[name].size, rows * len(params[name])
            yield Stage(letter, (count, of, inner), 2 * rows * own, 0, read + own, rows * inner, parameters=own)
        width = inner
    pairs = count_pairs(call, prepared, lead, heads, queries, keys)
    size = heads, queries, keys
    extra = (options.score == "scaled-dot" or options.scale is not None) + 3 * bool(options.softcap)
    extra += (options.bias is not None) + 2 * width * (options.score == "additive")
    reads, of_keys = texts * heads * queries * width, texts * groups * keys
    own = params["va"].size if "va" in params else 0
    yield Stage("scores", size, 2 * pairs * width, extra * pairs, reads + of_keys * width, pairs, parameters=own)
    sinks = 0 if options.sinks is None else options.sinks.size
    each = SOFTMAX * pairs + 2 * texts * queries * sinks
    yield Stage("weights", size, 0, each, pairs, pairs, parameters=sinks)
    yield Stage(
        "heads", (heads, queries, value), 2 * pairs * value, 0, pairs + of_keys * value, texts * heads * queries * value
    )


def count_pairs(
    call: StageCall, prepared: PreparedAttention, lead: Sequence[int], heads: int, queries: int, keys: int
) -> int:
    """Scores that are computed: all, or those of the tiles that are not skipped."""
    options, texts = prepared.options, math.prod(lead)
    has_many = queries > 1 and heads * queries * keys >= MANY
    is_dot = options.score in ("dot", "scaled-dot") and options.softmax_dtype is None
    if keeps_scores(call) or not has_many or not is_dot:
        return texts * heads * queries * keys
    past = options.past + (0 if options.past_key is None else options.past_key.shape[-2])
    limit = keys if options.mask is None or options.mask.ndim == 0 else min(keys, options.mask.shape[-1])
    _, low, high = key_ranges(texts, queries, keys, limit, options.replace(past=past, past_key=None, past_value=None))
    return heads * count_tiles(low, high)


def count_encode(call: StageCall) -> Iterator[Stage]:
    """Yield the stages of a whole model by their names in a trace, and the layers after it."""
    values = call.values
    if values["patch"] or values["ablate"]:
        raise call.error("--patch and --ablate: what they change is not counted")
    if values["image"] is not None:
        values = {**values, "model_": values["model_"].tower("vision")}
        call = replace(call, values=values)
    encoded = call.apply(encoding.prepare_encoding, call.item)
    config, model = encoded.core.config, count_model(values["model_"])
    asked = Tracer({"--keep": values["keep"], "--trace": (values["trace_only"] or ("*",)) if values["trace"] else ()})
    windows = sound_windows(encoded)
    passes = encoder_passes(encoded, windows)
    mask = encoded.base.get("mask")
    is_fixed = config.fixes_shapes(f"{encoded.stack}.0.self") and mask is not None and mask.ndim == 3
    options = AttentionOptions(mask=mask[:, None]) if mask is not None and is_fixed else AttentionOptions()
    lengths = padded_lengths(options, passes.texts, passes.tokens)
    if (audio := values["audio"]) is not None and audio["x"].ndim == 1 and config.sound and config.sound.spectrogram:
        yield spectrogram_stage("mel", encoded.inputs.shape, config.sound.spectrogram.window, audio["x"].size)
    for step in encoded.steps:
        is_dense = any(asked.wants(f"{step.layer}.{name}") for name in SQUARE)
        one = replace(passes, is_dense=is_dense, lengths=() if is_dense else lengths)
        if step.op == "posenc" and config.patches:
            yield from resized_positions(encoded, step.layer)
        if step.layer in windows:
            yield from count_convolution(model, step.layer, passes, windows[step.layer])
        else:
            yield from count_step(model, step, one)
    has_head_alone = encoded.is_whole and config.head and len(config.stacks) == 1
    if has_head_alone and any(map(asked.wants, encoding.HEAD_STEPS)):
        yield from count_head(model, replace(passes, heads=passes.tokens))
    if encoded.pool == "pooler":
        yield matrix_stage(model, "pooler", "w", "pooler", passes, passes.texts, after=1)
    if encoded.pool == "folder" and config.has_probe:
        yield from count_probe(model, passes)
    for number, module in encoded.modules.modules.items():
        if isinstance(module, Dense) and encoded.pool == "folder":
            name = f"modules.{number}"
            own = {"w": module.w} | ({} if module.b is None else {"b": module.b})
            yield matrix_stage(weights_of(name, own), name, "w", name, passes, passes.texts)


def resized_positions(encoded: encoding.Encoding, layer: str) -> Iterator[Stage]:
    """Yield the products that resize a table of positions to the patches of an image of another size."""
    config, shape = encoded.core.config, encoded.inputs.shape
    cut = config.patches
    assert cut is not None
    (rows, columns), (down, across) = cut.grid(cut.height, cut.width), cut.grid(*shape[-2:])
    if (rows, columns) != (down, across) and encoded.steps[0].op == "embed":
        flops = 2 * config.width * down * columns * (rows + across)
        numbers = config.width * down * across
        yield Stage(f"{layer}.resized", (down * across, config.width), flops, 0, config.width * rows * columns, numbers)


def sound_windows(encoded: encoding.Encoding) -> dict[str, int]:
    """The windows of each convolution that makes frames of a sound, by its layer, first to last."""
    config, windows = encoded.core.config, dict[str, int]()
    if not config.sound or not encoded.steps or encoded.steps[0].op != "conv":
        return windows
    frames = encoded.inputs.shape[-2 if config.sound.spectrogram else -1]
    for step in encoded.steps:
        if step.op == "conv" and not step.adds_residual:
            cut = config.convolution(step.layer)
            zeros = cut.options.padding
            before = sum(zeros) * (2 // len(zeros)) if isinstance(zeros, tuple) else 0
            frames = (frames + before - cut.size) // cut.options.stride[0] + 1
            windows[step.layer] = frames
    return windows


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


def count_decode(call: StageCall) -> Iterator[Stage]:
    """Yield the logits of hidden states, and the probabilities of words."""
    values, checkpoint = call.values, call.values["model_"]
    if checkpoint is None:
        matrix, bias, _, _ = find_output_matrix(call.before, values["table"], values["params"])
        own = {"w": matrix} | ({} if bias is None else {"b": bias})
        passes, is_tied = passes_of(call.before["x"]), values["table"] is None and values["params"] is None
        stage = matrix_stage(weights_of("head", own), "head", "w", "logits", passes, passes.rows)
        yield stage._replace(parameters=0 if is_tied else stage.parameters)
    elif values["layer"] is not None and parse_layer_name(values["layer"])[2] == "head":
        passes = passes_of(call.before["x"])
        yield from count_head(layer_shapes(call), replace(passes, heads=passes.tokens))
    else:
        hint = "attnkit cost DIR --tokens T --generate N counts it; decode --trace FILE, then attnkit cost FILE"
        raise call.error(f"the text of a whole model is not counted in a pipeline ({hint})")
    logits, shape = call.result["logits"].size, call.result["logits"].shape
    yield Stage("probabilities", shape, 0, (SOFTMAX + (values["temperature"] != 1)) * logits, logits, logits)


COUNTERS: dict[str, Callable[[StageCall], Iterator[Stage]]] = {
    "embed": count_embed,
    "posenc": count_posenc,
    "mask": count_mask,
    "attend": count_attend,
    "softmax": count_softmax,
    "merge": count_merge,
    "layernorm": count_layernorm,
    "ffn": count_ffn,
    "linear": count_linear_call,
    "conv": count_conv,
    "mel": count_mel,
    "rnn": count_rnn,
    "encode": count_encode,
    "decode": count_decode,
}
