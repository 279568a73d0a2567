"""What a model costs, counted from its configuration: products, bytes, parameters and cache, stage by stage.

A FLOP is an addition or a multiplication: a product of (M, K) and (K, N) is 2 M K N of them. Counted is what runs.
Scores are those of every query and key, blocked ones among them, as long as they are computed as one matrix; where
there are so many that they are computed in tiles, those of the tiles that are not skipped. A generated token attends to
the keys in its window. Rows of zeros that kernels add, and a bias multiplied by one, are not counted.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit.errors import UsageError, counted
from attnkit.model import Array, Config, RecurrentConfig, Step, parse_layer_name
from attnkit.model.attention import MANY
from attnkit.model.config import AttentionRules
from attnkit.model.dense_attention import AttentionOptions
from attnkit.model.kernels.incremental_decoder import keeps_cache
from attnkit.model.kernels.tiled_attention import BLOCKS
from attnkit.model.kernels.tiles import key_ranges
from attnkit.records import Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
CACHED = re.compile(r"decoder\.[0-9]+\.self")  # layers whose keys and values each token adds to the cache
NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


class Stage(NamedTuple):
    """One stage of a run, by its name in a trace.

    shape        of its result for one text, and of a single pass
    flops        of its products; elementwise: of everything else, a function such as exp as one
    read         numbers that it reads, parameters among them; written: numbers of its result
    cached       numbers that each token adds to the cache of keys and values
    parameters   numbers that it owns: those of a shared tensor count where it is used first
    window       keys before a query that it attends to; -1: all
    """

    name: str
    shape: tuple[int, ...]
    flops: int = 0
    elementwise: int = 0
    read: int = 0
    written: int = 0
    cached: int = 0
    parameters: int = 0
    window: int = -1


@dataclass(frozen=True)
class Passes:
    """Forward passes of one stack.

    texts     the texts of a batch
    tokens    of each text, in all passes together
    count     the number of passes
    past      tokens of each text in the cache before the first of them
    source    tokens of the memory, whose keys and values are computed in the first pass unless `has_memory`
    is_step   whether each pass computes one token by the incremental decoder, with the keys of its window alone
    heads     rows that the output head reads of each text; 0: it is not computed
    lengths   tokens of each text of a batch that is padded at its end, whose texts are attended to one by one
    is_dense  whether all scores are kept, so that none are computed in tiles
    """

    texts: int
    tokens: int
    count: int = 1
    past: int = 0
    source: int = 0
    has_memory: bool = False
    is_step: bool = False
    heads: int = 0
    lengths: tuple[int, ...] = ()
    is_dense: bool = False

    @property
    def rows(self) -> int:
        """The tokens of all texts."""
        return self.texts * self.tokens

    def pairs(self, rules: AttentionRules) -> int:
        """Pairs of a query and a key of one head of all texts, whose scores are computed."""
        if rules.is_cross:
            return self.texts * self.tokens * self.source
        if self.lengths:
            ends = ((length, self.tokens - length) for length in self.lengths)
            return sum(self.cells(rules, real, 0, real) + self.cells(rules, rest, real, real) for real, rest in ends)
        if not self.is_step and self.count == 1:
            return self.texts * self.cells(rules, self.tokens, self.past, self.past + self.tokens)
        first, last = self.past + 1, self.past + self.tokens
        if not self.is_step or rules.window[0] < 0:
            return self.texts * ((first + last) * self.tokens // 2)
        most = rules.window[0] + 1
        growing = max(0, min(last, most) - first + 1)
        return self.texts * ((first + first + growing - 1) * growing // 2 + (self.tokens - growing) * most)

    def cells(self, rules: AttentionRules, tokens: int, past: int, keys: int) -> int:
        """Pairs of so many tokens of a text and its keys: all, or those of the tiles that are not skipped."""
        if self.is_dense or tokens < 2 or rules.heads * tokens * keys < MANY:
            return tokens * keys
        return tiled_pairs(tokens, past, keys, rules.window, rules.causal)

    def keys(self, rules: AttentionRules) -> int:
        """Keys that the passes read, of one key head of all texts."""
        if rules.is_cross:
            return self.texts * self.count * self.source
        is_pass = self.count == 1 and not self.is_step
        return self.texts * (self.past + self.tokens) if is_pass else self.pairs(rules)


@lru_cache(maxsize=64)
def tiled_pairs(tokens: int, past: int, keys: int, window: tuple[int, int], causal: bool) -> int:
    """Scores of a head that tiled attention computes for one text.

    >>> tiled_pairs(512, 0, 512, (-1, -1), True), tiled_pairs(512, 0, 512, (-1, -1), False)
    (196608, 262144)
    """
    options = AttentionOptions(causal=causal, window=window, past=past)
    return count_tiles(*key_ranges(1, tokens, keys, keys, options)[1:])


def count_tiles(low: Array, high: Array) -> int:
    """Scores of tiles of queries, each with all keys from its lowest to its highest.

    low, high  the keys of each query, (B, T)

    >>> count_tiles(np.zeros((1, 300), int), np.arange(1, 301)[None])
    78736
    """
    starts = np.arange(0, low.shape[1], BLOCKS[0])
    ends = np.minimum(starts + BLOCKS[0], low.shape[1])
    return int((np.maximum(high[:, ends - 1] - low[:, starts], 0) * (ends - starts)).sum())


class ModelShapes(NamedTuple):
    """What is counted: a configuration, and the parameters of its layers.

    shapes  layer -> {parameter: its shape}
    owned   layer -> {parameter}: those whose tensor no layer before it has
    """

    config: Config
    shapes: Shapes
    owned: Mapping[str, frozenset[str]]

    @property
    def parameters(self) -> int:
        """The number of different parameters."""
        return sum(math.prod(self.shapes[layer][name]) for layer, names in self.owned.items() for name in names)

    def size(self, layer: str, *names: str) -> int:
        """Numbers of some parameters of a layer [all]."""
        shapes = self.shapes.get(layer, {})
        return sum(math.prod(shapes[name]) for name in names or shapes if name in shapes)

    def own_size(self, layer: str, *names: str) -> int:
        """Numbers of those parameters that the layer owns."""
        own = self.owned.get(layer, frozenset())
        return sum(math.prod(self.shapes[layer][name]) for name in names or own if name in own)


def count_model(checkpoint: "Checkpoint") -> ModelShapes:
    """The shapes of the parameters of a model, and which are whose."""
    config, specs, seen = checkpoint.config, checkpoint.params.specs, set()
    shapes, owned = {}, {}
    for layer, parameters in specs.items():
        shapes[layer] = {name: config.parameter_shape(layer, name) for name in parameters}
        own = set()
        for name, spec in parameters.items():
            stored = tuple(checkpoint.params.weights.find(names) for names in spec.joined_names())
            key = stored, spec.share, spec.entry, spec.padding_row
            if key not in seen:
                seen.add(key)
                own.add(name)
        owned[layer] = frozenset(own)
    return ModelShapes(config, shapes, owned)


def count_forward(model: ModelShapes, tokens: int, texts: int = 1) -> list[Stage]:
    """Stages of one pass over texts of so many tokens, with the logits of every token.

    The decoder of an encoder-decoder model reads as many tokens as the encoder, unless that reads a sound.
    """
    for stack in model.config.stacks:
        check_length(model.config, stack, tokens)
    return count_stacks(model, Passes(texts, tokens, heads=tokens), source_tokens(model.config, tokens))


def count_generation(model: ModelShapes, tokens: int, generated: int, texts: int = 1) -> dict[str, list[Stage]]:
    """Stages of a prompt, and of the generated tokens after it.

    The first new token follows from the pass over the prompt, and the last one is not read, so that there is one pass
    less than tokens are generated. The prompt of an encoder-decoder model is what its encoder reads; its decoder begins
    with one token. UsageError for a model that does not generate.
    """
    config = model.config
    if config.decoder is None or not config.head or config.classes:
        raise UsageError(f"a {config.family} model generates no text", "--generate")
    prompt = 1 if config.encoder else tokens
    check_length(config, "decoder", prompt + generated - 1)
    check_length(config, config.stacks[0], tokens)
    source = source_tokens(config, tokens)
    prefill = count_stacks(model, Passes(texts, prompt, heads=1), source)
    steps: list[Stage] = []
    for passes in generation_passes(config, prompt, generated - 1, texts):
        passes = replace(passes, source=source, has_memory=passes.past > 0)
        steps = sum_stages([*steps, *count_stack(model, "decoder", passes), *count_head(model, passes)])
    return {"prompt": prefill} | ({"generation": steps} if steps else {})


def source_tokens(config: Config, tokens: int) -> int:
    """The states of the source of so many tokens, 0 without an encoder; those of a sound are as many in any case."""
    if config.encoder is None:
        return 0
    return (config.sound.positions if config.sound else 0) or tokens


def generation_passes(config: Config, prompt: int, steps: int, texts: int) -> Iterator[Passes]:
    """Yield the passes after a prompt: all steps together, or one by one where rotations change with the length."""
    if not steps:
        return
    if isinstance(config, RecurrentConfig):
        yield Passes(texts, steps, steps, prompt, heads=steps)
    elif keeps_cache(config, prompt, prompt + steps):
        yield Passes(texts, steps, steps, prompt, is_step=True, heads=steps)
    else:
        for length in range(prompt, prompt + steps):
            if keeps_cache(config, length, length + 1):
                yield Passes(texts, 1, 1, length, is_step=True, heads=1)
            else:
                yield Passes(texts, length + 1, heads=1)


def check_length(config: Config, stack: str, tokens: int) -> None:
    """Raise UsageError for more tokens than a stack has positions."""
    longest = longest_text(config, stack)
    if longest and tokens > longest:
        problem = f"{tokens} tokens, and the {stack} of this {config.family} model has {longest} positions"
        raise UsageError(problem, "--tokens")


def longest_text(config: Config, stack: str) -> int:
    """The number of tokens of the longest text of a stack whose positions end; else 0.

    The positions of the patches of an image are resized, and a sound is cut to the positions of its encoder.
    """
    is_text = not config.patches and not (config.sound and stack == "encoder")
    return config.position_count(stack) if is_text and config.positions.kind in ("learned", "sinusoidal") else 0


def count_stacks(model: ModelShapes, passes: Passes, source: int) -> list[Stage]:
    """Stages of an encoder's pass over the source, if there is one, the decoder's passes, and the head."""
    config = model.config
    if config.decoder is None:
        return [*count_stack(model, "encoder", passes), *count_head(model, passes)]
    stages = []
    if config.encoder is not None:
        stages = count_stack(model, "encoder", Passes(passes.texts, source))
        passes = replace(passes, source=source)
    return [*stages, *count_stack(model, "decoder", passes), *count_head(model, passes)]


def count_stack(model: ModelShapes, stack: str, passes: Passes) -> list[Stage]:
    """Stages of the passes of one stack."""
    stages = [stage for step in model.config.plan(stack) for stage in count_step(model, step, passes)]
    shared = [layer for layer in (f"{stack}.bias", f"{stack}.relative") if layer in model.shapes]
    return [*(Stage(layer, (), parameters=model.own_size(layer)) for layer in shared), *stages]


def count_step(model: ModelShapes, step: Step, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of one step, its residual at last."""
    if isinstance(model.config, RecurrentConfig) and step.op in ("rnn", "attend"):
        stages = count_recurrent(model, step.layer, passes)
    else:
        stages = COUNTERS[step.op](model, step.layer, passes)
    last = None
    for last in stages:
        yield last
    if last and step.adds_residual and step.adds_residual != "concat":
        numbers = passes.rows * model.config.width
        scaled = 2 if step.scale != 1 else 1
        shape = (shown_tokens(passes), model.config.width)
        yield Stage(f"{step.layer}.residual", shape, 0, scaled * numbers, 2 * numbers, numbers)


def shown_tokens(passes: Passes) -> int:
    """The tokens of one pass."""
    return passes.tokens // passes.count


def matrix_stage(
    model: ModelShapes, layer: str, name: str, stage: str, passes: Passes, rows: int, after: int = 0
) -> Stage:
    """A product of rows with one weight, and its bias.

    rows   of all texts and passes; after: elementwise FLOPs of each result beside the bias
    """
    inner, columns = model.shapes[layer][name]
    bias = "b" + name.removeprefix("w")
    has_bias = bias in model.shapes[layer] and bias != name
    result = rows * columns
    return Stage(
        stage,
        (max(rows // passes.texts // passes.count, 1), columns),
        2 * rows * inner * columns,
        result * (has_bias + after),
        rows * inner + passes.count * model.size(layer, name, bias),
        result,
        parameters=model.own_size(layer, name, bias),
    )


def count_embedding(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    """Yield the stage of embeddings: rows of tables, or the product of patches."""
    config, width = model.config, model.config.result_width(layer)
    numbers = passes.rows * width
    if config.patches:
        pixels = model.shapes[layer]["w"][0]
        patches = passes.texts * (passes.tokens - config.patches.before)
        read = patches * pixels + passes.count * model.size(layer)
        flops, biased = 2 * patches * pixels * width, patches * width * ("b" in model.shapes[layer])
        yield Stage(layer, (passes.tokens, width), flops, biased, read, numbers, parameters=model.own_size(layer))
        return
    has_types = "types" in model.shapes[layer]
    elementwise = numbers * (has_types + (config.embed_scale != 1))
    read = numbers * (1 + has_types)
    shape = shown_tokens(passes), width
    yield Stage(layer, shape, 0, elementwise, read, numbers, parameters=model.own_size(layer))


def count_positions(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    width = model.config.result_width(layer)
    numbers = passes.rows * width
    shape = shown_tokens(passes), width
    yield Stage(layer, shape, 0, numbers, 2 * numbers, numbers, parameters=model.own_size(layer))


def count_norm(model: ModelShapes, layer: str, passes: Passes, rows: int = 0) -> Iterator[Stage]:
    """Yield the stage of a norm: squares, sum and division; the mean subtracted; gamma and beta."""
    shapes = model.shapes.get(layer, {})
    width = next((shape[-1] for shape in shapes.values()), model.config.width)
    numbers = (rows or passes.rows) * width
    each = 3 + 2 * (model.config.norm == "layer") + len(shapes)
    shape = max(numbers // width // passes.texts // passes.count, 1), width
    read = numbers + passes.count * model.size(layer)
    yield Stage(layer, shape, 0, each * numbers, read, numbers, parameters=model.own_size(layer))


def count_linear(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    if len(model.shapes[layer]["w"]) == 1:  # a factor of each feature
        numbers = passes.rows * model.config.width
        shape, read = (shown_tokens(passes), model.config.width), numbers + passes.count * model.size(layer)
        yield Stage(layer, shape, 0, numbers, read, numbers, parameters=model.own_size(layer))
        return
    yield matrix_stage(model, layer, "w", layer, passes, passes.rows)


def count_network(model: ModelShapes, layer: str, passes: Passes, rows: int = 0) -> Iterator[Stage]:
    """Yield the products of a feed-forward network; the activation and the gate count to those they are of."""
    if model.config.mixture(layer):
        yield from count_mixture(model, layer, passes)
        return
    rows = rows or passes.rows
    names = {"w1": "hidden", "w3": "linear", "w2": "output"}
    for name in (name for name in names if name in model.shapes[layer]):
        yield matrix_stage(model, layer, name, f"{layer}.{names[name]}", passes, rows, after=name != "w2")


def count_mixture(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of a mixture of experts: the router, the experts that are chosen, the shared network.

    Tokens may choose the same experts; the parameters read are those of as many experts as a pass can choose.
    """
    mixture, name = model.config.mixture(layer), layer.removesuffix(".ffn")
    assert mixture is not None
    size = mixture.count
    router = matrix_stage(model, layer, "router", f"{layer}.router", passes, passes.rows, after=3)
    extra = [one for one in ("router_bias", "correction") if one in model.shapes[layer]]
    yield router._replace(
        elementwise=router.elementwise + passes.rows * size * len(extra),
        read=router.read + passes.count * model.size(layer, *extra) if extra else router.read,
        parameters=router.parameters + (model.own_size(layer, *extra) if extra else 0),
    )
    rows = passes.rows * mixture.chosen
    used = passes.count * min(size, mixture.chosen * passes.rows // passes.count)
    for stage in count_network(model, f"{name}.expert.0", passes, rows):
        weight = {"hidden": "1", "linear": "3", "output": "2"}[stage.name.rpartition(".")[2]]
        names = f"w{weight}", f"b{weight}"
        one = model.size(f"{name}.expert.0", *names)
        owned = sum(model.own_size(f"{name}.expert.{number}", *names) for number in range(size))
        gated = 2 * stage.written * (weight == "2")
        yield stage._replace(
            name=stage.name.replace(".expert.0.", ".expert."),
            shape=(shown_tokens(passes) * mixture.chosen, stage.shape[1]),
            elementwise=stage.elementwise + gated,
            read=stage.read - passes.count * one + used * one,
            parameters=owned,
        )
    if mixture.shared:
        yield from count_network(model, f"{name}.shared", passes)
    if "shared_gate" in model.shapes[layer]:
        stage = matrix_stage(model, layer, "shared_gate", f"{name}.shared.gate", passes, passes.rows, after=1)
        yield stage._replace(elementwise=stage.elementwise + passes.rows * model.config.width)


def count_attention(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of a layer of attention: projections, scores, weights and their sums of values."""
    rules, shapes = model.config.attention_rules[layer], model.shapes.get(layer, {})
    heads, groups, texts, (width, value) = rules.heads, rules.kv_heads, passes.texts, head_widths(rules)
    rows, window = passes.rows, rules.window[0]
    key_rows = texts * passes.source * (not passes.has_memory) if rules.is_cross else rows
    tokens, keys = shown_tokens(passes), passes.source if rules.is_cross else passes.past + passes.tokens
    if rules.latent:
        yield from count_latents(model, layer, passes)
    cached = {"k": groups * width, "v": groups * value} if CACHED.fullmatch(layer) else {}
    for letter, count, of in (("q", heads, rows), ("k", groups, key_rows), ("v", groups, key_rows)):
        if not of:
            continue
        rotated = 3 * bool(rules.rotation) * (letter != "v") * rules.rotary_dim * count * of
        normed = 5 * (rules.norm is not None) * (letter != "v") * width * count * of
        stage = matrix_stage(model, layer, f"w{letter}", f"{layer}.{letter}", passes, of)
        yield stage._replace(
            elementwise=stage.elementwise + rotated + normed + bool(rules.clip) * stage.written,
            cached=cached.get(letter, 0),
            parameters=stage.parameters + model.own_size(layer, f"gamma_{letter}", f"beta_{letter}"),
            window=window,
        )
    pairs = passes.pairs(rules)
    if rules.relative == "disentangled":
        yield from count_distances(model, layer, passes, pairs)
    read_keys = passes.keys(rules) * groups
    numbers, size = pairs * heads, (heads, tokens, keys)
    added = (rules.factor != 1) + 3 * bool(rules.softcap) + bool(rules.relative)
    yield Stage(
        f"{layer}.scores",
        size,
        2 * numbers * width,
        added * numbers,
        rows * heads * width + read_keys * width,
        numbers,
        window=window,
    )
    sinks = rows * heads * 2 * ("sinks" in shapes)
    yield Stage(
        f"{layer}.weights",
        size,
        0,
        4 * numbers + sinks,
        numbers,
        numbers,
        parameters=model.own_size(layer, "sinks"),
        window=window,
    )
    yield Stage(
        f"{layer}.heads",
        (heads, tokens, value),
        2 * numbers * value,
        0,
        numbers + read_keys * value,
        rows * heads * value,
        window=window,
    )
    if "wo" in shapes:
        yield matrix_stage(model, layer, "wo", f"{layer}.output", passes, rows)._replace(window=window)


def head_widths(rules: AttentionRules) -> tuple[int, int]:
    """Features of a key head and of a value head."""
    latent = rules.latent
    return (latent.content + latent.rotary, latent.value) if latent else (rules.head_dim, rules.head_dim)


def count_latents(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of latent vectors, with their norms, and of the key that all heads share."""
    for name in ("q_latent", "kv_latent", "k_rotary"):
        if f"w{name}" in model.shapes[layer]:
            gamma = f"gamma_{name}"
            has_norm = gamma in model.shapes[layer]
            stage = matrix_stage(model, layer, f"w{name}", f"{layer}.{name}", passes, passes.rows, after=4 * has_norm)
            yield stage._replace(parameters=stage.parameters + model.own_size(layer, gamma))


def count_distances(model: ModelShapes, layer: str, passes: Passes, pairs: int) -> Iterator[Stage]:
    """Yield the scores of disentangled positions: the table of distances projected, and products with it."""
    config, rules = model.config, model.config.attention_rules[layer]
    stack, number, _ = parse_layer_name(layer)
    distances, inner = 2 * config.positions.buckets, rules.heads * rules.head_dim
    own = layer if config.positions.shares_projections else f"{stack}.{number}.relative"
    terms = len(config.positions.terms)
    projected = 2 * distances * config.width * inner
    products = 2 * passes.rows * inner * distances
    letters = [f"{kind}{'k' if term == 'c2p' else 'q'}" for term in config.positions.terms for kind in "wb"]
    weights = model.size(own, *letters)
    read = distances * config.width + weights
    yield Stage(
        f"{layer}.distances",
        (distances, inner),
        terms * projected,
        0,
        read,
        terms * distances * inner,
        parameters=model.own_size(own) if own != layer else 0,
    )
    yield Stage(
        f"{layer}.relative",
        (rules.heads, passes.tokens, passes.tokens),
        terms * products,
        2 * terms * pairs * rules.heads,
        terms * (distances + passes.rows) * inner,
        pairs * rules.heads,
    )


def count_head(model: ModelShapes, passes: Passes) -> list[Stage]:
    """Stages from the last hidden states to the logits, or to the vector of a text or an image."""
    config = model.config
    if config.has_probe:
        return [*count_probe(model, passes)]
    if config.vector_width:
        return [matrix_stage(model, "vector", "w", "vector", passes, passes.texts)]
    if not config.head:
        return []
    rows = passes.texts * (passes.count if config.is_head_pooled else passes.heads)
    if not rows:
        return []
    stages = []
    if config.is_head_pooled and config.pooling == "pooler":
        stages.append(matrix_stage(model, "pooler", "w", "pooler", passes, rows, after=1))
    if config.transform:
        stages.append(matrix_stage(model, "head.dense", "w", "head.dense", passes, rows, after=1))
        stages += count_norm(model, "head.norm", passes, rows) if config.head_norm else []
    extra = (config.logit_scale != 1) + 3 * bool(config.logit_softcap)
    return [*stages, matrix_stage(model, "head", "w", "logits", passes, rows, after=extra)]


def count_probe(model: ModelShapes, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of the vector of an image, which a learned query makes of its states."""
    yield Stage("vector", (), parameters=model.own_size("vector"))
    for step in model.config.plan("vector"):
        yield from count_step(model, step, Passes(passes.texts, 1, source=passes.tokens))


def count_recurrent(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of a recurrent layer, or of attention in a recurrent decoder."""
    assert isinstance(model.config, RecurrentConfig)
    stack, number, part = parse_layer_name(layer)
    if part == "cross":
        yield from count_alignment(model, passes)
        return
    layers = range(model.config.recurrent_stack(stack).layers) if number is None else [number]
    for one in layers:
        yield from count_bridges(model, one, passes) if stack == "decoder" else ()
        yield from count_cells(model, f"{stack}.{one}.rnn", passes)
    if number is None:
        yield from count_alignment(model, passes)
        if model.config.decoding.input_feeding:
            yield from count_network(model, "decoder.readout", passes)


def count_bridges(model: ModelShapes, number: int, passes: Passes) -> Iterator[Stage]:
    """Yield the products of the first states of a decoder layer."""
    for name in ("bridge", "bridge_cell"):
        layer = f"decoder.{number}.{name}"
        if layer in model.shapes and not passes.past:
            yield matrix_stage(model, layer, "w1", layer, passes, passes.texts, after=1)


def count_cells(model: ModelShapes, layer: str, passes: Passes) -> Iterator[Stage]:
    """Yield the products of a recurrent layer: with its input, with its state, and the projection of its state."""
    shapes, rows = model.shapes[layer], passes.rows
    directions = [name for name in ("hidden", "hidden_reverse") if name in shapes]
    states = sum(shapes[name][1] for name in directions)
    for name, stage in (("input", "product"), ("hidden", "state"), ("projection", "projected")):
        weights = [weight for weight in (name, f"{name}_reverse") if weight in shapes]
        if not weights:
            continue
        names = [*weights, *(f"{name}_bias{weight.removeprefix(name)}" for weight in weights)]
        size, inner = sum(math.prod(shapes[weight]) for weight in weights), shapes[weights[0]][1]
        width = sum(shapes[weight][0] for weight in weights)
        is_input, is_state = name == "input", name == "hidden"
        after = width * is_input + (3 * width + 4 * states) * is_state
        results = states if is_state else width
        yield Stage(
            f"{layer}.{stage}",
            (shown_tokens(passes), results),
            2 * rows * size,
            rows * after,
            rows * inner * len(weights) + (passes.count if is_input else passes.tokens) * model.size(layer, *names),
            rows * results,
            parameters=model.own_size(layer, *names),
        )


def count_alignment(model: ModelShapes, passes: Passes) -> Iterator[Stage]:
    """Yield the stages of the attention of a recurrent decoder to the memory."""
    config, layer = model.config, "decoder.cross"
    assert isinstance(config, RecurrentConfig)
    decoding, shapes = config.decoding, model.shapes.get(layer, {})
    memory, state, rows = config.memory_width, config.recurrent_stack("decoder").output_width(-1), passes.rows
    pairs, source = rows * passes.source, passes.texts * passes.source
    scored = decoding.score_width if decoding.score == "additive" else memory
    if decoding.score == "additive":
        times = (not passes.has_memory) if decoding.is_sequential else passes.count
        if times:
            flops = 2 * times * source * math.prod(shapes["ua"])
            read = times * (source * memory + model.size(layer, "ua"))
            yield Stage(
                f"{layer}.k", (passes.source, scored), flops, 0, read, times * source * scored,
                parameters=model.own_size(layer, "ua"),
            )  # fmt: skip
    query = {"additive": "wa", "general": "w"}.get(decoding.score)
    if query:
        flops, size = 2 * rows * math.prod(shapes[query]), model.size(layer, query)
        each = passes.tokens if decoding.is_sequential else passes.count
        yield Stage(
            f"{layer}.q", (shown_tokens(passes), scored), flops, 0, rows * state + each * size, rows * scored,
            parameters=model.own_size(layer, query),
        )  # fmt: skip
    shape = 1, shown_tokens(passes), passes.source
    keys = pairs if decoding.is_sequential else passes.count * source
    added = 2 * scored * (decoding.score == "additive")
    yield Stage(
        f"{layer}.scores", shape, 2 * pairs * scored, added * pairs, rows * scored + keys * scored, pairs,
        parameters=model.own_size(layer, "va"),
    )  # fmt: skip
    yield Stage(f"{layer}.weights", shape, 0, 4 * pairs, pairs, pairs)
    heads_shape = 1, shown_tokens(passes), memory
    yield Stage(f"{layer}.heads", heads_shape, 2 * pairs * memory, 0, pairs + keys * memory, rows * memory)


def count_convolution(model: ModelShapes, layer: str, passes: Passes, windows: int = 0) -> Iterator[Stage]:
    """Yield the product of the windows, its norm and activation.

    windows  their number; 0: as many as the states need
    """
    sound, cut = model.config.sound, model.config.convolution(layer)
    windows = windows or (sound.frames_before(layer.rpartition(".")[2], passes.tokens) if sound else 0)
    after = 1 + (7 if cut.norm else 0)
    stage = matrix_stage(model, layer, "w", layer, passes, passes.texts * passes.count * windows, after)
    yield stage._replace(parameters=model.own_size(layer))


COUNTERS = {
    "embed": count_embedding,
    "conv": count_convolution,
    "posenc": count_positions,
    "layernorm": count_norm,
    "linear": count_linear,
    "attend": count_attention,
    "ffn": count_network,
}


def sum_stages(stages: Iterable[Stage]) -> list[Stage]:
    """Add up stages of one name, in the order of their first; parameters, and the cache of a token, count once."""
    sums: dict[str, Stage] = {}
    for stage in stages:
        known = sums.get(stage.name)
        if known is not None:
            stage = add_stages(known, stage)._replace(parameters=known.parameters, cached=known.cached)
        sums[stage.name] = stage
    return [*sums.values()]


def add_stages(first: Stage, second: Stage) -> Stage:
    """The sum of two stages under the name of the first."""
    names = ("flops", "elementwise", "read", "written", "cached", "parameters")
    return first._replace(**{name: getattr(first, name) + getattr(second, name) for name in names})


def count_cache(model: ModelShapes, tokens: int, source: int = 0, texts: int = 1) -> int:
    """Numbers that the cache holds after so many tokens of the decoder: keys and values, or recurrent states.

    Layers with a window keep all tokens.
    """
    config = model.config
    if isinstance(config, RecurrentConfig):
        stack = config.recurrent_stack("decoder")
        states = config.state_widths().items()
        held = sum(width * (1 + (stack.has_cell_state and name.endswith(".rnn"))) for name, width in states)
        attended = sum(config.cross_widths()) if config.decoding.score != "none" else 0
        return texts * (held + source * attended)
    of = [rules for layer, rules in config.attention_rules.items() if layer.startswith("decoder.")]
    return sum(texts * (source if one.is_cross else tokens) * one.kv_heads * sum(head_widths(one)) for one in of)


def count_least_cache(model: ModelShapes, tokens: int, source: int = 0, texts: int = 1) -> int:
    """Numbers that suffice: a layer with a window keeps the keys in it, latent attention the latents alone."""
    of = [rules for layer, rules in model.config.attention_rules.items() if layer.startswith("decoder.")]
    total = 0
    for rules in of:
        kept = source if rules.is_cross else tokens if rules.window[0] < 0 else min(tokens, rules.window[0] + 1)
        latent = rules.latent
        each = latent.rank + latent.rotary if latent else rules.kv_heads * sum(head_widths(rules))
        total += texts * kept * each
    return total


def layer_of(name: str) -> str:
    """The layer that a stage belongs to; a stage outside the stacks, and a layer's own result, is its own.

    The name of a stage of a pipeline begins with its number and its tool.

    >>> layer_of("decoder.0.self.scores"), layer_of("decoder.embed"), layer_of("head.dense")
    ('decoder.0.self', 'decoder.embed', 'head.dense')
    >>> layer_of("2.attend.scores"), layer_of("1.encode.encoder.0.self.q")
    ('2.attend', '1.encode.encoder.0.self')
    """
    parts = name.split(".")
    tool = 2 * parts[0].isdigit()
    if tool and not set(parts[2:3]) & {"encoder", "decoder", "head"}:
        return ".".join(parts[:2])
    numbered = len(parts) > tool + 1 and parts[tool + 1].isdigit()
    return ".".join(parts[: tool + (3 if numbered else 2)])


def collapse(stages: Iterable[Stage], by_layer: bool = True) -> list[Stage]:
    """Add up the stages of a layer, and those of all layers with one window, with # for their number.

    >>> stages = [Stage(f"decoder.{n}.self.{name}", (2, 2), 5) for n in (0, 1) for name in ("q", "output")]
    >>> [(stage.name, stage.flops) for stage in collapse(stages)]
    [('decoder.#.self', 20)]
    """
    sums: dict[str, Stage] = {}
    for stage in stages:
        name = NUMBER.sub("#", layer_of(stage.name) if by_layer else stage.name, count=1)
        key = f"{name} window {stage.window}" if stage.window >= 0 else name
        known = sums.get(key)
        sums[key] = (add_stages(known, stage) if known else stage)._replace(name=key, shape=stage.shape)
    return [*sums.values()]


QUANTITIES = ("parameters", "flops", "elementwise", "read", "written", "cached")
LABELS = ("parameters", "FLOPs", "elementwise FLOPs", "bytes read", "bytes written", "cache bytes/token")
IN_BYTES = ("read", "written", "cached")
HELD = ("cache", "least_cache", "gradients", "optimizer")  # scalars of a record: bytes that stay in memory
ITEMSIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
USUAL = 128  # tokens of a text
MOMENTS = 2  # numbers that AdamW keeps of each parameter


class Workload(NamedTuple):
    """What is counted: tokens of each text, tokens generated after them, texts, and whether it is training."""

    tokens: int
    generated: int = 0
    texts: int = 1
    train: bool = False

    def change(self, name: str, number: int) -> "Workload":
        """The run with another number of tokens, generated tokens (generate) or texts (batch)."""
        field = {"generate": "generated", "batch": "texts"}.get(name, name)
        return Workload(**(self._asdict() | {field: number}))


def count_phases(model: ModelShapes, run: Workload) -> dict[str, list[Stage]]:
    """The stages of each phase of a run by its name.

    UsageError for a run that the model cannot do.
    """
    tokens, texts = run.tokens, run.texts
    patches = count_patches(model.config)
    if patches and tokens != patches:
        raise UsageError(f"{tokens} tokens, and an image of this model has {patches}", "--tokens")
    if run.generated:
        source = source_tokens(model.config, tokens)
        if source not in (0, tokens):
            raise UsageError(f"{tokens} tokens, and a sound of this model has {source}", "--tokens")
        return count_generation(model, tokens, run.generated, texts)
    forward = count_forward(model, tokens, texts)
    if not run.train:
        return {"forward": forward}
    return {"forward": forward, "backward": [undo_stage(stage) for stage in forward]}


def count_patches(config: Config) -> int:
    """Tokens of an image of the size of a model, all of them; 0 for a model of texts."""
    cut = config.patches
    return cut.tokens(cut.height, cut.width) if cut else 0


def default_tokens(config: Config, generated: int = 0) -> int:
    """The tokens of a run that states none: 128, or fewer if the model has fewer positions.

    generated  tokens after them, of which all but the last are read
    """
    if patches := count_patches(config):
        return patches
    if generated and config.sound and (source := source_tokens(config, 0)):
        return source
    ends = [longest for stack in config.stacks if (longest := longest_text(config, stack))]
    is_prompt = config.encoder is None and generated > 0
    return max(min([USUAL, *ends]) - (max(0, USUAL + generated - 1 - min(ends)) if is_prompt and ends else 0), 1)


def undo_stage(stage: Stage) -> Stage:
    """The backward pass of a stage: two products for each, the gradients of its two factors."""
    doubled = {name: 2 * getattr(stage, name) for name in ("flops", "elementwise", "read", "written")}
    return stage._replace(**doubled, parameters=0, cached=0)


def describe_phase(name: str, run: Workload) -> str:
    """The title of a phase."""
    of = f" of {counted(run.texts, 'text')}" if run.texts > 1 else ""
    if name == "generation":
        return f"{name}: {counted(run.generated, 'token')}{of}, the last of which is not read"
    return f"{name}: {counted(run.tokens, 'token')}{of}"


def cost_record(models: Mapping[str, ModelShapes], run: Workload, dtype: str, by_layer: bool = True) -> Record:
    """What a run costs: x (phase, stage, quantity), shape (phase, stage, dimension), and bytes in memory (model,).

    Of several models, each has its own phases. A result of fewer than three dimensions has zeros for the others.
    """
    phases = {
        f"{model}: " * (len(models) > 1) + describe_phase(name, run): stages
        for model, one in models.items()
        for name, stages in count_phases(one, run).items()
    }
    held = {model: {"weights": one.parameters} | count_held(one, run) for model, one in models.items()}
    return phases_record(phases, held, dtype, by_layer)


def phases_record(
    phases: Mapping[str, Iterable[Stage]], held: Mapping[str, Mapping[str, int]], dtype: str, by_layer: bool
) -> Record:
    """What some phases cost, as `cost_record`, and numbers that each model holds in memory."""
    phases = {title: collapse(stages, by_layer) for title, stages in phases.items()}
    stages = [*dict.fromkeys(stage.name for some in phases.values() for stage in some)]
    x = np.zeros((len(phases), len(stages), len(QUANTITIES)), np.int64)
    shape = np.zeros((len(phases), len(stages), 3), np.int64)
    for phase, some in enumerate(phases.values()):
        for stage in some:
            at = phase, stages.index(stage.name)
            x[at] = [whole_number(number) for number in quantities(stage, ITEMSIZES[dtype])]
            shape[at][: len(stage.shape)] = stage.shape
    tensors = {"x": Tensor(x, ("phase", "stage", "quantity")), "shape": Tensor(shape, ("phase", "stage", "dimension"))}
    for name in dict.fromkeys(name for one in held.values() for name in one):
        numbers = [whole_number(one.get(name, 0) * ITEMSIZES[dtype]) for one in held.values()]
        tensors[name] = Tensor(np.array(numbers, np.int64), ("model",))
    labels: dict[str, Labels] = {"phase": [*phases], "stage": stages, "quantity": [*LABELS], "model": [*held]}
    return Record(tensors, labels)


def quantities(stage: Stage, itemsize: int) -> list[int]:
    """The numbers of a stage by the order of QUANTITIES, in bytes where they are memory."""
    return [getattr(stage, name) * (itemsize if name in IN_BYTES else 1) for name in QUANTITIES]


def whole_number(number: int) -> int:
    """The number; UsageError where it is too large for a record."""
    if number >= 1 << 63:
        raise UsageError("a run of more than 2^63 FLOPs or bytes (expected fewer tokens, or texts)")
    return number


CURVES = ("FLOPs", "FLOPs of weights", "FLOPs of scores", "bytes", "cache bytes")


def sweep_record(models: Mapping[str, ModelShapes], runs: Mapping[str, Workload], dtype: str) -> Record:
    """The totals of several runs: x (run, curve), of each model the curves of CURVES."""
    size = ITEMSIZES[dtype]
    rows = [
        [whole_number(number) for one in models.values() for number in sum_run(one, run, size)] for run in runs.values()
    ]
    curves = [f"{model} {name}" if len(models) > 1 else name for model in models for name in CURVES]
    return Record({"x": Tensor(np.array(rows, np.int64), ("run", "curve"))}, {"run": [*runs], "curve": curves})


def sum_run(model: ModelShapes, run: Workload, itemsize: int) -> list[int]:
    """The totals of a run, in the order of CURVES."""
    stages = [stage for some in count_phases(model, run).values() for stage in some]
    scores = sum(stage.flops for stage in stages if stage.name.endswith((".scores", ".heads", ".relative")))
    total, moved = sum(stage.flops for stage in stages), sum(stage.read + stage.written for stage in stages)
    cache = count_held(model, run).get("cache", 0)
    return [total, total - scores, scores, moved * itemsize, cache * itemsize]


def count_held(model: ModelShapes, run: Workload) -> dict[str, int]:
    """Numbers that stay in memory beside the weights, by the names of HELD."""
    config = model.config
    if run.train:
        return {"gradients": model.parameters, "optimizer": MOMENTS * model.parameters}
    if config.decoder is None or config.classes:
        return {}
    source = source_tokens(config, run.tokens)
    read = (1 if config.encoder and run.generated else run.tokens) + max(run.generated - 1, 0)
    cache = count_cache(model, read, source, run.texts)
    if isinstance(config, RecurrentConfig):
        return {"cache": cache}
    least = count_least_cache(model, read, source, run.texts)
    return {"cache": cache} | ({"least_cache": least} if least < cache else {})


def format_count(count: int) -> str:
    """A number with four digits at least, in the unit that is easiest to read; "" for 0.

    >>> format_count(9999), format_count(12345678), format_count(0)
    ('9,999', '12.35 M', '')
    """
    if count < 10000:
        return f"{count:,}" if count else ""
    power = min((len(str(count)) - 1) // 3, 6)
    number = f"{count / 1000**power:.4g}"
    return f"{number} {'kMGTPE'[power - 1]}"
