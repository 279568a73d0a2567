"""A model as a graph of stages: every intermediate (site) with the sites that it is computed from.

A stage is data: an operation, the sites it reads, and its options. The same functions compute the model as it is and as
an implementation may have got it wrong: a slip is a stage with another option or input. Names of sites are those of
traces, and a few that traces lack: `embed.words`, `embed.types`, `positions.rows`, `q_projected`, `k_projected`,
`v_projected`, `joined`, `head.pooled` and `head.hidden`. The batch is the first axis of every array.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from attnkit import model
from attnkit.errors import UsageError
from attnkit.model import masks, pooling, transformer
from attnkit.model.activations import ACTIVATIONS
from attnkit.model.attention import normalize_heads
from attnkit.model.config import AttentionRules
from attnkit.model.dense_attention import LatentConfig, add_sinks
from attnkit.model.dtypes import Array, quiet, rounded
from attnkit.model.experts import ExpertConfig, mix_experts, route
from attnkit.model.head_views import merge_heads, view_heads
from attnkit.model.intermediates import STEPS
from attnkit.model.latent import expand_keys, expand_queries
from attnkit.model.norms import rms_norm
from attnkit.model.relative import relative_scores
from attnkit.model.rotary import batch_frequencies, grid_angles, rope_frequencies, rotary_angles, rotate
from attnkit.model.softmax import log_sum_exp, softmax

QUICK_GELU = "quick-gelu"  # x · σ(1.702 x), which no family of attnkit has
COLUMNS = 1 << 12  # of a weight that are converted at a time


class Stage(NamedTuple):
    """One stage: a site, its operation, the sites it reads, and its options.

    shape  of the site
    layer  the layer whose parameters it reads, "" for none
    """

    site: str
    operation: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    layer: str = ""
    options: Mapping[str, Any] = {}

    def change(self, **options: Any) -> "Stage":
        """The stage with some of its options changed."""
        return self._replace(options={**self.options, **options})


@dataclass
class Inputs:
    """What a model reads.

    ids      (B, T) of the first stack; target: those of the decoder of an encoder-decoder model
    mask     (B, T) True = a token, no padding; target_mask likewise
    types    (B, T) segments
    image    (B, C, height, width)
    """

    ids: Array | None = None
    target: Array | None = None
    mask: Array | None = None
    target_mask: Array | None = None
    types: Array | None = None
    image: Array | None = None

    def of(self, stack: str, config: model.Config) -> tuple[Array | None, Array | None]:
        """The ids and the mask of a stack."""
        is_target = stack == "decoder" and config.encoder is not None
        return (self.target, self.target_mask) if is_target else (self.ids, self.mask)


class Arrays(Protocol):
    """Arrays by site."""

    def __contains__(self, site: object, /) -> bool: ...

    def __getitem__(self, site: str, /) -> Array: ...

    def __iter__(self) -> Iterator[str]: ...


class Known(Mapping[str, Array]):
    """Sites whose arrays are given by the first of some mappings; some are hidden."""

    def __init__(self, *mappings: "Arrays", hidden: Collection[str] = ()) -> None:
        self.mappings, self.hidden = mappings, hidden

    def __contains__(self, site: object) -> bool:
        return site not in self.hidden and any(site in one for one in self.mappings)

    def __getitem__(self, site: str) -> Array:
        if site in self:
            return next(one[site] for one in self.mappings if site in one)
        raise KeyError(site)

    def __iter__(self) -> Iterator[str]:
        return (site for site in dict.fromkeys(itertools.chain(*self.mappings)) if site not in self.hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SubLayer(NamedTuple):
    """A sub-layer of a block: the sites of its norm, result and residual sum."""

    norm: str
    output: str
    residual: str


class LayerBlock(NamedTuple):
    """A layer of a stack: the site that it reads, and its sub-layers in order."""

    start: str
    parts: tuple[SubLayer, ...]


class CycleError(Exception):
    """A changed stage reads a site that is computed from its own."""


@dataclass
class Graph:
    """The stages of a model by site, in the order of computation."""

    core: model.Model
    inputs: Inputs
    stages: dict[str, Stage] = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.core.config, model.RecurrentConfig):
            raise UsageError(f"{self.core.config.family} models are recurrent; stages are those of Transformers")
        config = self.core.config
        if config.sound:
            raise UsageError(f"a {config.family} model of sounds has no list of stages", "--model")
        if not (config.patches or any(config.stack(stack).vocab for stack in config.stacks)):
            raise UsageError(f"this {config.family} model has no embeddings, and takes no text")
        self.stages = {stage.site: stage for stage in _build(self.core, self.inputs)}

    @functools.cached_property
    def blocks(self) -> dict[str, LayerBlock]:
        """The blocks by STACK.NUMBER whose sub-layers all have a norm and a residual."""
        found: dict[str, LayerBlock] = {}
        config = self.core.config
        for stack in () if config.norm_output or config.parallel else config.stacks:
            for number in range(config.stack(stack).layers):
                name = f"{stack}.{number}"
                steps = [step.layer for step in model.layer_steps(config, stack, number)]
                works = [layer for layer in steps if f"{layer}.residual" in self.stages]
                norms = [layer for layer in steps if layer in self.stages and layer not in works]
                if len(works) != len(norms) or not works:  # none: a decoder without targets
                    continue
                parts = tuple(
                    SubLayer(norm, f"{work}.output", f"{work}.residual")
                    for norm, work in zip(norms, works, strict=True)
                )
                first = parts[0].norm if config.norm_first else parts[0].residual
                found[name] = LayerBlock(self.stages[first].inputs[0 if config.norm_first else 1], parts)
        return found

    @property
    def roots(self) -> dict[str, Array]:
        """The arrays that no stage computes: token ids by site."""
        named = {"ids": self.inputs.ids, "decoder.ids": self.inputs.target}
        return {site: ids for site, ids in named.items() if ids is not None}

    def cone(self, site: str, known: Mapping[str, Array]) -> list[Stage]:
        """The stages between a site and the known sites that it is computed from."""
        found, waiting = set(), [site]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [one for one in self.stages[name].inputs if one not in known]
        return [stage for name, stage in self.stages.items() if name in found]

    @quiet
    def evaluate(
        self,
        site: str,
        known: Mapping[str, Array],
        changes: Mapping[str, Stage] | None = None,
        precision: str = "float64",
        memo: dict[str, Array] | None = None,
    ) -> Array:
        """Compute a site from the nearest known sites that it depends on.

        changes    stages in place of those of the model
        precision  the dtype to compute in; a 16-bit one rounds the result of every stage
        memo       sites that are already computed, which is added to
        """
        memo = {} if memo is None else memo
        self._compute(site, known, changes or {}, precision, memo, ())
        return memo[site]

    def _compute(
        self,
        site: str,
        known: Mapping[str, Array],
        changes: Mapping[str, Stage],
        precision: str,
        memo: dict[str, Array],
        path: tuple[str, ...],
    ) -> Array:
        if site not in memo:
            if site in path:
                raise CycleError(site)
            stage, way = changes.get(site, self.stages[site]), (*path, site)
            arrays = [
                as_wide(known[one], precision)
                if one in known
                else self._compute(one, known, changes, precision, memo, way)
                for one in stage.inputs
            ]
            memo[site] = self.apply(stage, arrays, precision)
        return memo[site]

    @quiet
    def apply(self, stage: Stage, arrays: Sequence[Array], precision: str = "float64") -> Array:
        """Compute one stage from the arrays of the sites it reads."""
        around = Around(self, stage, precision)
        if form := stage.options.get("rounds_inputs"):
            arrays = [rounded(array, form).astype(array.dtype) for array in arrays]
        result = OPERATIONS[stage.operation](around, *arrays)
        form = stage.options.get("rounds", precision if precision in NARROW else "")
        if form and result.dtype.kind == "f":
            result = rounded(result, form).astype(np.float64 if precision == "float64" else np.float32)
        return result


NARROW = ("float16", "bfloat16")


def as_wide(array: Array, precision: str) -> Array:
    """An array as it is computed with: float64, or float32 for 32 bits and less."""
    return array if array.dtype.kind in "iub" else array.astype(_working(precision), copy=False)


def _working(precision: str) -> Any:
    return np.float64 if precision == "float64" else np.float32


class Around(NamedTuple):
    """What an operation computes with beside its arrays: stage and parameters."""

    graph: Graph
    stage: Stage
    precision: str

    def option(self, name: str, default: Any = None) -> Any:
        return self.stage.options.get(name, default)

    @property
    def config(self) -> model.Config:
        config: model.Config = self.option("config", self.graph.core.config)
        return config

    def has(self, name: str) -> bool:
        """Whether a parameter exists, and no slip leaves it out."""
        return name in self.graph.core.params.get(self.stage.layer, {}) and name not in self.option("missing", ())

    def parameter(self, name: str) -> Array | None:
        """A parameter of the layer in the precision of the computation, or None."""
        return self.convert(self.graph.core.params[self.stage.layer][name]) if self.has(name) else None

    def convert(self, array: Array) -> Array:
        """A parameter in the precision of the computation, rounded if a slip says so."""
        narrow = self.precision if self.precision in NARROW else ""
        if form := self.option("rounds_parameters") or self.option("rounds_inputs") or narrow:
            array = rounded(array, form)
        return array.astype(_working(self.precision), copy=False)

    def linear(self, x: Array, weight: str, bias: str) -> Array:
        """x W + b, some columns of W at a time, which are converted to the precision."""
        stored = self.graph.core.params.get(self.stage.layer, {}).get(weight)
        y = x
        if stored is not None and stored.ndim == 1:
            y = x * self.convert(stored)
        elif stored is not None:
            stored = stored.T if self.option("transposed") else stored
            y = np.empty((*x.shape[:-1], stored.shape[1]), x.dtype)
            for start in range(0, stored.shape[1], COLUMNS):
                part = slice(start, start + COLUMNS)
                y[..., part] = x @ self.convert(stored[:, part])
        shift = self.parameter(bias)
        return y if shift is None else y + shift


# operations: (what surrounds them, arrays of the inputs) -> the array of the site


def _words(around: Around, ids: Array) -> Array:
    table = around.graph.core.params[around.stage.layer][around.option("table", "table")]
    rows = around.convert((table.T if around.option("transposed") else table)[ids])
    scaled: Array = rows * np.asarray(around.option("factor", 1.0), rows.dtype)
    return scaled


def _types(around: Around, words: Array) -> Array:
    segments, table = around.graph.inputs.types, around.graph.core.params[around.stage.layer]["types"]
    if segments is None or around.option("all_first"):
        segments = np.zeros(words.shape[:-1], np.int64)
    return around.convert(np.zeros_like(table) if around.option("absent") else table)[segments]


def _patches(around: Around) -> Array:
    params = {name: around.convert(array) for name, array in around.graph.core.params[around.stage.layer].items()}
    image = around.convert(np.asarray(around.graph.inputs.image))
    return transformer.embed_patches(around.config, params, image)[0]


def _scale(around: Around, x: Array, *others: Array) -> Array:
    """The first input by a factor, plus the others."""
    return sum(others, x * np.asarray(around.option("factor", 1.0), x.dtype))


def _rows(around: Around, x: Array) -> Array:
    """Rows of absolute positions (T, D), or (B, T, D) of a padded batch."""
    core, layer = around.graph.core, around.stage.layer
    altered = core._replace(config=around.config)
    image = around.graph.inputs.image
    grid = None
    if core.config.patches is not None and image is not None:
        grid = core.config.patches.grid(*image.shape[-2:])
    where = around.option("where")
    return around.convert(transformer.position_encoding(altered, layer, x, where, grid)(where))


def _norm(around: Around, x: Array, *others: Array) -> Array:
    """Layer or RMS norm of the sum of the inputs."""
    x = sum(others, x)
    if around.option("skips"):
        return x
    eps, gamma, beta = around.option("eps"), around.parameter("gamma"), around.parameter("beta")
    centred: Array = x - x.mean(axis=-1, keepdims=True) if around.option("kind") == "layer" else x
    count = x.shape[-1] - around.option("ddof", 0)
    square = np.square(centred).sum(axis=-1, keepdims=True) / count
    y: Array = centred / (np.sqrt(square) + eps) if around.option("eps_outside") else centred / np.sqrt(square + eps)
    if gamma is not None:
        y = y * (around.option("offset", 0.0) + gamma)
    return y if beta is None else y + beta


def _linear(around: Around, x: Array) -> Array:
    weight, bias = around.option("names")
    return around.linear(x, weight, bias)


def _split_wrong(around: Around, x: Array) -> Array:
    """One of q, k and v, cut out of their fused projection in another layout."""
    flat = [around.linear(x, f"w{letter}", f"b{letter}") for letter in "qkv"]  # (B, T, H*K) each
    heads, at = around.option("heads"), around.option("place")
    by_head = np.stack([one.reshape(*one.shape[:-1], heads, -1) for one in flat], axis=-2)  # (B, T, H, 3, K)
    if around.option("stored") == "flat":
        fused = np.concatenate(flat, axis=-1).reshape(by_head.shape)
        return fused[..., at, :].reshape(flat[0].shape)
    fused = by_head.reshape(*flat[0].shape[:-1], 3, -1)
    return fused[..., at, :]


def _heads(around: Around, x: Array) -> Array:
    """Split into heads, and rotate: (B, T, H*K) -> (B, H, T, K)."""
    count = around.option("heads")
    if around.option("splits") == "before":
        y = x
    elif around.option("splits") == "no transposing":
        y = x.reshape(x.shape[0], count, x.shape[1], -1)
    elif around.option("splits") == "heads last":
        y = np.moveaxis(x.reshape(*x.shape[:-1], -1, count), -1, 1)
    else:
        y = view_heads(x, count)
    if clip := around.option("clip", 0.0):
        y = np.clip(y, -clip, clip)
    for _ in range(around.option("times", 0)):
        y = _rotate(around, y)
    return np.ascontiguousarray(y)


def _rotate(around: Around, x: Array) -> Array:
    cos, sin = _angles(around, around.option("width", x.shape[-1]))
    return rotate(x, cos, sin, interleaved=around.option("interleaved", False))


def _angles(around: Around, width: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotation of a stage."""
    rope, where = around.option("rope"), np.asarray(around.option("where"))
    if (places := around.option("places")) is not None:
        return grid_angles(places, width, rope)
    length = around.option("length")  # of all texts; None: each has its own
    frequencies, factor = rope_frequencies(width, rope, length) if length else batch_frequencies(width, rope, where)
    if form := around.option("rounds_frequencies"):
        frequencies = rounded(frequencies, form).astype(np.float64)
    cos, sin = rotary_angles(where, width, frequencies=frequencies)
    if form := around.option("rounds_angles"):
        cos, sin = (rounded(one, form).astype(np.float64) for one in (cos, sin))
    if where.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, R/2)
    factor = around.option("factor", factor)
    return cos * factor, sin * around.option("direction", 1) * factor


def _scores(around: Around, q: Array, k: Array) -> Array:
    return q @ np.swapaxes(_repeat(around, k, q.shape[-3]), -1, -2)


def _repeat(around: Around, x: Array, heads: int) -> Array:
    """Key or value heads for every query head: (B, G, S, K) -> (B, H, S, K)."""
    groups = x.shape[-3]
    if heads == groups:
        return x
    order = np.arange(heads) % groups if around.option("in_turn") else np.arange(heads) // (heads // groups)
    return x[:, order]


def _cap(around: Around, x: Array) -> Array:
    softcap = around.option("softcap", 0.0)
    return softcap * np.tanh(x / softcap) if softcap else x


def _mask(around: Around, x: Array, *pair: Array) -> Array:
    """Scores (B, H, T, S) with bias and mask; the pair are q and k."""
    rules: AttentionRules = around.option("rules")
    if not around.option("no_bias") and not rules.is_cross:
        x = x + _relative_bias(around, rules, x.shape[-2], pair) if rules.relative else x
    queries, keys = x.shape[-2:]
    allowed = np.ones((queries, keys), bool)
    if rules.causal:
        allowed = allowed & masks.causal_mask(queries, keys, around.option("offset", 0))
    if rules.window != (-1, -1):
        left, right = rules.window
        allowed = allowed & masks.window_mask(queries, keys, left, right)
    padding = around.option("padding")
    if padding is not None:
        allowed = allowed & padding[:, None, None, :]
    return masks.mask_block(x, allowed, around.option("fill", -np.inf))


def _relative_bias(around: Around, rules: AttentionRules, queries: int, pair: Sequence[Array]) -> Array:
    """What relative positions add to scores: (H, T, S) or (B, H, T, S)."""
    core = around.graph.core
    if rules.relative == "alibi":
        padding = around.option("padding")
        mask = None if padding is None else padding[:, None]
        return around.convert(transformer.alibi(core.config, rules, queries, mask))
    if not pair:
        buckets = transformer.position_buckets(core.config, rules.stack, 0, queries)
        return around.convert(model.t5_bias(buckets, core.params[f"{rules.stack}.bias"]["table"]))
    q, k = pair
    relative = transformer.disentangled_positions(core, around.stage.layer, queries, model.Context())
    tables: dict[str, Any] = {
        name: around.convert(one)
        for name, one in relative._asdict().items()
        if isinstance(one, np.ndarray) and one.dtype.kind == "f"
    }
    scores: Array = relative_scores(q, k, relative._replace(**tables)) * rules.factor
    return scores


def _softmax(around: Around, x: Array) -> Array:
    axis, sinks = around.option("axis", -1), around.parameter("sinks")
    weights = np.moveaxis(softmax(np.ascontiguousarray(np.moveaxis(x, axis, -1))), -1, axis)
    if sinks is None:
        return weights
    share, _ = add_sinks(log_sum_exp(x), sinks)
    result: Array = weights * share[..., None].astype(x.dtype)
    return result


def _norm_heads(around: Around, x: Array) -> Array:
    """Norm of projected queries or keys: (B, T, H*K) -> (B, H, T, K)."""
    gamma, beta = around.option("names")
    return normalize_heads(
        x, around.parameter(gamma), around.parameter(beta), around.option("heads"), around.option("norm")
    )


def _mix(around: Around, weights: Array, v: Array) -> Array:
    return weights @ _repeat(around, v, weights.shape[-3])


def _join(around: Around, x: Array) -> Array:
    if around.option("no_transposing"):
        return x.reshape(x.shape[0], x.shape[2], -1)
    return merge_heads(x)


def _activate(around: Around, x: Array) -> Array:
    name = around.option("activation")
    return x / (1 + np.exp(-1.702 * x)) if name == QUICK_GELU else ACTIVATIONS[name](x)


def _multiply(around: Around, x: Array, y: Array) -> Array:
    return x * y


def _latent(around: Around, x: Array) -> Array:
    """A latent vector of each token: (B, T, D) -> (B, T, R)."""
    weight, bias = around.option("names")
    return rms_norm(
        around.linear(x, weight, bias), around.parameter(around.option("gamma")), eps=around.option("eps")
    ).y


def _expanded(around: Around) -> tuple[dict[str, Array], model.MultiHeadOptions]:
    """The parameters and options that expand latent vectors to heads."""
    params = {name: around.convert(array) for name, array in around.graph.core.params[around.stage.layer].items()}
    rotary = _angles(around, around.option("width")) if around.option("rope") is not None else None
    interleaved = around.option("interleaved", False)
    return params, model.MultiHeadOptions(heads=around.option("heads"), rotary=rotary, interleaved=interleaved)


def _latent_queries(around: Around, source: Array) -> Array:
    return expand_queries(source, *_expanded(around))


def _latent_keys(around: Around, latent: Array, shared: Array) -> Array:
    return expand_keys(latent, shared, *_expanded(around))[0]


def _latent_values(around: Around, latent: Array, shared: Array) -> Array:
    return expand_keys(latent, shared, *_expanded(around))[1]


def _route(around: Around, logits: Array) -> Array:
    """Which experts compute each token, or their gates: (B, T, E) -> (B, T, k)."""
    mixture = around.option("mixture") or around.config.mixture(around.stage.layer)
    assert mixture is not None
    routing = route(logits.reshape(-1, logits.shape[-1]), mixture, around.parameter("correction"))
    part: Array = routing.chosen if around.option("part") == "chosen" else routing.gates
    return part.reshape(*logits.shape[:-1], -1)


def _experts(around: Around, x: Array, gates: Array, chosen: Array) -> Array:
    """The chosen experts of each token by their gates, and the shared network: (B, T, D) -> (B, T, D)."""
    core, mixture = around.graph.core, around.config.mixture(around.stage.layer)
    assert mixture is not None
    experts = transformer.layer_experts(core, around.stage.layer)

    def convert(params: Mapping[str, Array]) -> dict[str, Array]:
        return {name: around.convert(array) for name, array in params.items()}

    wide = experts._replace(
        router=convert(experts.router),
        expert=lambda number: convert(experts.expert(number)),
        shared=None if experts.shared is None else convert(experts.shared),
    )
    given = {"chosen": chosen, "gates": gates}
    hook: Any = lambda name: (lambda array: given[name]) if name in given else None  # noqa: E731
    options: dict[str, Any] = {"activation": around.config.activation, "limit": around.config.ffn_limit}
    return mix_experts(x, wide, mixture, keep=(), hook=hook, **options)["output"]


def _pool(around: Around, x: Array) -> Array:
    """The vector that a head of whole texts reads: (B, T, D) -> (B, 1, P)."""
    kind, real = around.option("kind"), around.option("real")
    if kind == "first":
        return x[:, :1]
    if kind == "patches" and around.config.patches:
        return pooling.patch_pool(x, around.config.patches.before)[:, None, :]
    real = np.ones(x.shape[:-1], bool) if real is None else real
    pools = {"mean": pooling.mean_pool, "last": pooling.last_token}
    return pools.get(kind, pooling.concat_pool)(x, real)[:, None, :]


def _pooler(around: Around, x: Array) -> Array:
    return np.tanh(around.linear(x[:, 0], "w", "b"))


def _logits(around: Around, x: Array) -> Array:
    """Logits of states (B, T, D), or of one vector of each text."""
    y = _cap(around, around.linear(x * np.asarray(around.option("factor", 1.0), x.dtype), *around.option("names")))
    return y[:, 0] if around.option("is_pooled") else y


def _same(around: Around, x: Array) -> Array:
    return x[:, None, :]


OPERATIONS: dict[str, Callable[..., Array]] = {
    "words": _words,
    "types": _types,
    "patches": _patches,
    "scale": _scale,
    "rows": _rows,
    "add": _scale,
    "norm": _norm,
    "linear": _linear,
    "split wrong": _split_wrong,
    "norm of heads": _norm_heads,
    "heads": _heads,
    "scores": _scores,
    "cap": _cap,
    "mask": _mask,
    "softmax": _softmax,
    "mix": _mix,
    "join": _join,
    "activate": _activate,
    "multiply": _multiply,
    "latent": _latent,
    "latent queries": _latent_queries,
    "latent keys": _latent_keys,
    "latent values": _latent_values,
    "route": _route,
    "experts": _experts,
    "pool": _pool,
    "pooler": _pooler,
    "one row": _same,
    "logits": _logits,
}


# the graph of a configuration

Built = Iterator[Stage]


class Place(NamedTuple):
    """Where a step stands: what it reads, and the sizes of what passes through."""

    core: model.Model
    inputs: Inputs
    step: model.Step
    x: str
    memory: str
    batch: int
    tokens: int

    def states(self, width: int) -> tuple[int, int, int]:
        return self.batch, self.tokens, width

    def width(self) -> int:
        return self.core.config.result_width(self.step.layer)

    def positions(self) -> Array:
        """The positions of the tokens: (T,), or (B, T) of a padded batch."""
        _, mask = self.inputs.of(self.step.layer.partition(".")[0], self.core.config)
        if mask is None or mask.all():
            return np.arange(self.tokens)
        return transformer.token_positions(mask)


def _build(core: model.Model, inputs: Inputs) -> Built:
    config, memory = core.config, ""
    for stack in config.stacks:
        if inputs.of(stack, config)[0] is None and inputs.image is None:
            return  # the decoder of an encoder-decoder model without targets
        batch, tokens = _sizes(core, inputs, stack)
        x = saved = f"{stack}.ids" if stack == "decoder" and config.encoder else "ids"
        for step in config.plan(stack):
            if step.reads_saved:
                x, saved = saved, x
            before = x
            saved = x if step.saves_residual else saved
            place = Place(core, inputs, step, x, memory, batch, tokens)
            stages = list(_BUILDERS[step.op](place))
            yield from stages
            x = stages[-1].site
            if step.adds_residual:
                added = saved if step.adds_residual == "saved" else before
                options = {} if step.scale == 1 else {"factor": step.scale}
                yield Stage(f"{step.layer}.residual", "add", (x, added), place.states(config.width), options=options)
                x = f"{step.layer}.residual"
        memory = x
    yield from _build_head(core, inputs, memory)


def _sizes(core: model.Model, inputs: Inputs, stack: str) -> tuple[int, int]:
    """The number of texts and tokens of a stack, or of images and patches."""
    ids, _ = inputs.of(stack, core.config)
    if ids is not None:
        return ids.shape[0], ids.shape[1]
    cut, image = core.config.patches, np.asarray(inputs.image)
    assert cut is not None
    return len(image), cut.tokens(*image.shape[-2:])


def _build_embeddings(place: Place) -> Built:
    config, layer, shape = place.core.config, place.step.layer, place.states(place.width())
    if config.patches is not None:
        yield Stage(layer, "patches", (), shape, layer)
        return
    words, types = f"{layer}.words", f"{layer}.types"
    yield Stage(words, "words", (place.x,), shape, layer)
    has_types = "types" in place.core.params[layer]
    if has_types:
        yield Stage(types, "types", (words,), shape, layer)
    yield Stage(layer, "scale", (words, *[types] * has_types), shape, options={"factor": config.embed_scale})


def _build_positions(place: Place) -> Built:
    layer, where, shape = place.step.layer, place.positions(), place.states(place.width())
    rows = (*where.shape, shape[-1])
    yield Stage(f"{layer}.rows", "rows", (place.x,), rows, layer, {"where": where})
    yield Stage(layer, "add", (place.x, f"{layer}.rows"), shape)


def _build_norm(place: Place) -> Built:
    yield _norm_stage(place.core.config, place.step.layer, place.x, place.states(place.width()))


def _norm_stage(config: model.Config, layer: str, x: str, shape: tuple[int, ...]) -> Stage:
    return Stage(layer, "norm", (x,), shape, layer, {"kind": config.norm, "eps": config.eps})


def _build_linear(place: Place) -> Built:
    layer = place.step.layer
    yield Stage(layer, "linear", (place.x,), place.states(place.width()), layer, {"names": ("w", "b")})


def _positions_of(place: Place, rules: AttentionRules) -> dict[str, Any]:
    """The options of a stage that rotates."""
    if not rules.rotation:
        return {}
    rotation = {"rope": rules.rope, "width": rules.rotary_dim, "interleaved": rules.interleaved}
    if rules.rotation == "grid_rotary":
        config, image = place.core.config, place.inputs.image
        grid = config.patches.grid(*image.shape[-2:]) if config.patches and image is not None else None
        rotation["places"] = transformer.patch_places(config, grid, place.tokens)
    return rotation | {"where": place.positions()}


def _build_projections(place: Place, rules: AttentionRules, source: str, keys: int) -> Built:
    layer = place.step.layer
    for letter, read, rows in (("q", place.x, place.tokens), ("k", source, keys), ("v", source, keys)):
        count = rules.heads if letter == "q" else rules.kv_heads
        projected = f"{layer}.{letter}_projected"
        shape = (place.batch, rows, count * rules.head_dim)
        parameters = (f"w{letter}", f"b{letter}")
        yield Stage(projected, "linear", (read,), shape, layer, {"names": parameters, "heads": count})
        options: dict[str, Any] = {"heads": count, "clip": rules.clip}
        split = (place.batch, count, rows, rules.head_dim)
        if rules.norm and letter != "v":
            norm = {"names": (f"gamma_{letter}", f"beta_{letter}"), "heads": count, "norm": rules.norm}
            yield Stage(f"{layer}.{letter}_normed", "norm of heads", (projected,), split, layer, norm)
            projected = f"{layer}.{letter}_normed"
            options["splits"] = "before"
        if rotation := _positions_of(place, rules):
            options |= {**rotation, "times": int(letter != "v")}
        yield Stage(f"{layer}.{letter}", "heads", (projected,), split, "", options)


def _build_latents(place: Place, rules: AttentionRules, latent: LatentConfig) -> Built:
    layer, q_source, rotation = place.step.layer, place.x, _positions_of(place, rules)
    sizes = {"q_latent": latent.query_rank, "kv_latent": latent.rank}
    for name, size in sizes.items():
        if size:
            names = {"names": (f"w{name}", f"b{name}"), "gamma": f"gamma_{name}", "eps": latent.eps}
            yield Stage(f"{layer}.{name}", "latent", (place.x,), place.states(size), layer, names)
            q_source = f"{layer}.q_latent" if name == "q_latent" else q_source
    shared = {"names": ("wk_rotary", "bk_rotary")}
    yield Stage(f"{layer}.k_rotary", "linear", (place.x,), place.states(latent.rotary), layer, shared)
    kv = (f"{layer}.kv_latent", f"{layer}.k_rotary")
    lead, options = (place.batch, rules.heads, place.tokens), {"heads": rules.heads, **rotation}
    yield Stage(f"{layer}.q", "latent queries", (q_source,), (*lead, rules.head_dim), layer, options)
    yield Stage(f"{layer}.k", "latent keys", kv, (*lead, rules.head_dim), layer, options)
    yield Stage(f"{layer}.v", "latent values", kv, (*lead, latent.value), layer, options)


def _build_attention(place: Place) -> Built:
    core, inputs, layer = place.core, place.inputs, place.step.layer
    rules = core.config.attention_rules[layer]
    source = place.memory if rules.is_cross else place.x
    keys = _sizes(core, inputs, "encoder")[1] if rules.is_cross else place.tokens
    if rules.latent is not None:
        yield from _build_latents(place, rules, rules.latent)
    else:
        yield from _build_projections(place, rules, source, keys)
    padding = inputs.of(core.config.stacks[0] if rules.is_cross else rules.stack, core.config)[1]
    padding = None if padding is None or padding.all() else padding
    names = ("q", "k", "v", *STEPS[3:], "joined", "output")  # scores to heads between them
    q, k, v, scores, scaled, capped, masked, weights, heads, joined, output = (f"{layer}.{name}" for name in names)
    pair = (q, k) if rules.relative == "disentangled" and not rules.is_cross else ()
    grouped = {"is_grouped": rules.heads != rules.kv_heads}
    square, each = (place.batch, rules.heads, place.tokens, keys), (place.batch, rules.heads, place.tokens)
    yield Stage(scores, "scores", (q, k), square, options=grouped)
    yield Stage(scaled, "scale", (scores,), square, options={"factor": rules.factor, "rules": rules})
    yield Stage(capped, "cap", (scaled,), square, options={"softcap": rules.softcap})
    yield Stage(masked, "mask", (capped, *pair), square, layer, {"rules": rules, "padding": padding})
    yield Stage(weights, "softmax", (masked,), square, layer)
    yield Stage(heads, "mix", (weights, v), (*each, rules.value_dim), options=grouped)
    yield Stage(joined, "join", (heads,), place.states(rules.heads * rules.value_dim))
    yield Stage(output, "linear", (joined,), place.states(place.width()), layer, {"names": ("wo", "bo")})


def _build_ffn(place: Place) -> Built:
    layer, config = place.step.layer, place.core.config
    if mixture := config.mixture(layer):
        yield from _build_mixture(place, mixture)
        return
    is_gated = "w3" in place.core.params[layer]
    shape = place.states(config.stack(layer.partition(".")[0]).hidden)
    hidden, activated, linear, gated = (f"{layer}.{name}" for name in ("hidden", "activated", "linear", "gated"))
    yield Stage(hidden, "linear", (place.x,), shape, layer, {"names": ("w1", "b1")})
    activation = {"activation": config.activation, "is_gated": is_gated}
    yield Stage(activated, "activate", (hidden,), shape, options=activation)
    if is_gated:
        yield Stage(linear, "linear", (place.x,), shape, layer, {"names": ("w3", "b3")})
        yield Stage(gated, "multiply", (activated, linear), shape)
    inner = gated if is_gated else activated
    yield Stage(f"{layer}.output", "linear", (inner,), place.states(place.width()), layer, {"names": ("w2", "b2")})


def _build_mixture(place: Place, mixture: ExpertConfig) -> Built:
    layer, sizes = place.step.layer, {"chosen": mixture.chosen, "gates": mixture.chosen}
    router = f"{layer}.router"
    names = {"names": ("router", "router_bias")}
    yield Stage(router, "linear", (place.x,), place.states(mixture.count), layer, names)
    for name, size in sizes.items():
        yield Stage(
            f"{layer}.{name}", "route", (router,), place.states(size), layer, {"part": name, "count": mixture.count}
        )
    reads = (place.x, f"{layer}.gates", f"{layer}.chosen")
    yield Stage(f"{layer}.output", "experts", reads, place.states(place.width()), layer)


_BUILDERS: dict[str, Callable[[Place], Built]] = {
    "embed": _build_embeddings,
    "posenc": _build_positions,
    "layernorm": _build_norm,
    "linear": _build_linear,
    "attend": _build_attention,
    "ffn": _build_ffn,
}


def _build_head(core: model.Model, inputs: Inputs, x: str) -> Built:
    config = core.config
    batch, tokens = _sizes(core, inputs, config.stacks[-1])
    if config.pooler:
        yield Stage("pooler", "pooler", (x,), (batch, config.width), "pooler")
    if not config.head:
        return
    rows: tuple[int, ...] = (batch, tokens)
    if config.is_head_pooled:
        rows = (batch, 1)
        shape = (*rows, config.pooled_width)
        if config.pooling == "pooler":
            yield Stage("head.pooled", "one row", ("pooler",), shape)
        else:
            real = inputs.of(config.stacks[-1], config)[1]
            yield Stage("head.pooled", "pool", (x,), shape, options={"kind": config.pooling, "real": real})
        x = "head.pooled"
    inner, outer = config.parameter_shape("head", "w")
    if config.transform:
        activation = {"activation": config.head_activation or config.activation, "is_gated": False}
        yield Stage("head.hidden", "linear", (x,), (*rows, inner), "head.dense", {"names": ("w", "b")})
        yield Stage("head.dense", "activate", ("head.hidden",), (*rows, inner), options=activation)
        x = "head.dense"
        if config.head_norm:
            yield _norm_stage(config, "head.norm", x, (*rows, inner))
            x = "head.norm"
    options = {"names": ("w", "b"), "factor": config.logit_scale, "is_pooled": config.is_head_pooled}
    options |= {"softcap": config.logit_softcap}
    yield Stage("logits", "logits", (x,), (batch, outer) if config.is_head_pooled else (*rows, outer), "head", options)


def with_positions(config: model.Config, **changes: Any) -> model.Config:
    """A configuration with fields of its positions changed."""
    return replace(config, positions=replace(config.positions, **changes))
