"""Decoding with a KV cache, each layer compiled to a few NumPy calls.

Between two matrix products the weights of a large model evict everything else from the processor's caches, so that
every Python call costs several times as much as elsewhere. What is the same for every token is therefore computed
once. The result equals `run` on one token, up to rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.model.attention import normalize_heads, project_heads
from attnkit.model.config import AttentionRules, Config, Step, parse_layer_name
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, quiet
from attnkit.model.formulas.activations import ACTIVATIONS, sigmoid
from attnkit.model.formulas.dense_attention import MULTI_HEAD_DEFAULT
from attnkit.model.formulas.experts import ExpertConfig, mix_experts
from attnkit.model.formulas.feedforward import feed_forward
from attnkit.model.formulas.linear import scaled
from attnkit.model.formulas.recall import FEATURES, RULES, RecallConfig, outer_product, read_state
from attnkit.model.formulas.rotary import has_same_rotation, rotate
from attnkit.model.groups import GROUPS
from attnkit.model.hooks import no_hook
from attnkit.model.kv_cache import KVCache
from attnkit.model.layers.attention import head_options, relative_positions
from attnkit.model.layers.networks import layer_experts
from attnkit.model.passes.output_head import head_logits
from attnkit.model.passes.transformer import run

Layer = Callable[[Array, Mapping[str, Any]], Array]  # x (B, D), positions of the token by kind of layer -> (B, D)
Parameters = Mapping[str, Array]
ANY = 1 << 62  # tokens, more than any text has


class CachedDecoder:
    """A model that predicts the next token and caches what it needs of earlier ones.

    cache    keys and values of the start of the text, and states after it; its tokens are skipped by the first call
    context  other fields of Context, such as the memory (B, S, D) of an encoder-decoder model
    """

    def __init__(self, model: Model, cache: KVCache | None = None, **context: Any) -> None:
        self.model, self.steps = model, model.config.plan("decoder")
        self.cache, self.context = KVCache() if cache is None else cache, context
        self._first = next((at for at, step in enumerate(self.steps) if parse_layer_name(step.layer)[1] is not None), 0)
        self._text: Array | None = None
        self._layers: tuple[KVCache, Layer] | None = None

    @property
    def length(self) -> int:
        """The number of tokens of the text so far."""
        return 0 if self._text is None else self._text.shape[1]

    def __call__(self, tokens: Array) -> Array:
        """Append tokens and return the logits of the next one: tokens (B, T) -> (B, N)."""
        self._text = tokens if self._text is None else np.concatenate([self._text, tokens], axis=1)
        if not keeps_cache(self.model.config, self.cache.length, self._text.shape[1]):
            self.cache = KVCache()
        context, rest = Context(cache=self.cache, **self.context), self._text[:, self.cache.length :]
        is_fast = self._is_compiled(rest, context)
        x = self._decode_token(rest, context) if is_fast else run(self.model, self.steps, rest, context)
        if context.hook is not no_hook:  # which reads the logits of tokens, (B, 1, N)
            return head_logits(self.model, np.ascontiguousarray(x[:, -1:]), context.hook)[:, 0]
        return head_logits(self.model, np.ascontiguousarray(x[:, -1]))

    def _is_compiled(self, tokens: Array, context: Context) -> bool:
        """Whether this is one token of a Transformer, in float32 and without hooks."""
        is_plain = context.hook is no_hook and context.mask is None and context.memory_mask is None
        has_keys = context.past > 0 and not self.model.config.is_recurrent and self.model.engine is None
        return tokens.shape[1] == 1 and is_plain and has_keys and context.dtype in (None, "float32")

    def _decode_token(self, tokens: Array, context: Context) -> Array:
        """Last hidden states (B, 1, D) of one token (B, 1)."""
        if self._layers is None or self._layers[0] is not self.cache:
            self._layers = self.cache, compile_steps(self.model, self.steps[self._first :], self.cache)
        x = run(self.model, self.steps[: self._first], tokens, context)
        context.on_step(self.steps[self._first])
        shared: dict[str, Mapping[str, Any]] = {}
        for layer, rules in self.model.config.attention_rules.items():
            if layer.endswith(".self") and layer.startswith("decoder.") and rules.shared_key not in shared:
                shared[rules.shared_key] = relative_positions(self.model, rules, 1, context)
        return self._layers[1](x[:, 0], shared)[:, None]

    def reorder_cache(self, rows: Array) -> None:
        """Replace row i of the batch by row rows[i]."""
        self.cache.reorder(rows)
        self._text = None if self._text is None else self._text[rows]


def cacheable(config: Config) -> bool:
    """Whether cached keys stay valid as a text grows to any length.

    They do not if its rotations depend on the length of the whole text.
    """
    return keeps_cache(config, 0, ANY)


def keeps_cache(config: Config, before: int, after: int) -> bool:
    """Whether the keys of a text of one length stay valid as it grows to another."""
    ropes = (config.positions.rope, config.positions.local_rope)
    return all(has_same_rotation(rope, before, after) for rope in ropes)


def compile_steps(model: Model, steps: list[Step], cache: KVCache) -> Layer:
    """Compile the steps of layers to one function of one token in each row.

    The cache must hold the earlier tokens, and the keys and values of the memory. `shared` is what
    `relative_positions` returns for the token, rotary or bias, by `AttentionRules.shared_key`. A layer whose
    parameters do not stay in memory is compiled anew for each token.
    """
    compile_one = _compile_step if model.keeps_layers else _compile_later
    operators = [(step, compile_one(model, step, cache)) for step in steps]

    @quiet
    def decode_token(x: Array, shared: Mapping[str, Any]) -> Array:
        saved = x
        for step, operator in operators:  # as `walk_steps` does, without its calls for each step
            if step.reads_saved:
                x, saved = saved, x
            if step.saves_residual:
                saved = x
            y = scaled(operator(x, shared), step.scale)
            x = y + (saved if step.adds_residual == "saved" else x) if step.adds_residual else y
        return x

    return decode_token


def _compile_later(model: Model, step: Step, cache: KVCache) -> Layer:
    return lambda x, shared: _compile_step(model, step, cache)(x, shared)


def _compile_step(model: Model, step: Step, cache: KVCache) -> Layer:
    config, layer_params = model.config, model.params.get(step.layer, {})
    if step.op == "layernorm":
        return _norm(config, layer_params)
    if step.op == "ffn":
        mixture = config.mixture(step.layer)
        return _ffn(config, step.layer, layer_params) if mixture is None else _mixture(model, step.layer, mixture)
    if step.op == "shortconv":
        return _short_convolution(layer_params, step.layer, cache)
    if step.op == "recall" and config.recall is not None and {"wdt", "A_log"} <= layer_params.keys():
        return _recall(config.recall, config.eps, layer_params, step.layer, cache)
    if step.op != "attend":
        context = Context(cache=cache)
        return lambda x, shared: GROUPS[step.op].kernel(model, step.layer, x[:, None], context)[:, 0]
    rules = config.attention_rules[step.layer]
    compile_attention = _cross_attention if rules.is_cross else _latent_attention if rules.latent else _self_attention
    return compile_attention(rules, layer_params, step.layer, cache)


def _norm(config: Config, params: Parameters) -> Layer:
    gamma, beta = (params[name].astype(np.float64) if name in params else None for name in ("gamma", "beta"))
    centred, eps, size = config.norm == "layer", config.eps, np.float64(config.width)

    def norm(x: Array, shared: Mapping[str, Any]) -> Array:
        wide = x.astype(np.float64)
        if centred:
            wide -= np.add.reduce(wide, axis=-1, keepdims=True) / size
        wide /= np.sqrt(np.vecdot(wide, wide)[:, None] / size + eps)
        if gamma is not None:
            wide *= gamma
        if beta is not None:
            wide += beta
        return wide.astype(x.dtype)

    return norm


def _linear(weight: Array, bias: Array | None) -> Callable[[Array], Array]:
    def linear(x: Array) -> Array:
        y = x @ weight
        if bias is not None:
            y += bias
        return y

    return linear


def _ffn(config: Config, layer: str, params: Parameters) -> Layer:
    inner, outer = _linear(params["w1"], params.get("b1")), _linear(params["w2"], params.get("b2"))
    gate = _linear(params["w3"], params.get("b3")) if "w3" in params else None
    options = config.network_options(layer)
    if len(options) > 1:  # more than an activation
        return lambda x, shared: feed_forward(x, params, keep=(), **options)["output"]
    activation = ACTIVATIONS[options["activation"]]

    def ffn(x: Array, shared: Mapping[str, Any]) -> Array:
        hidden = activation(inner(x))
        return outer(hidden if gate is None else hidden * gate(x))

    return ffn


def _mixture(model: Model, layer: str, mixture: ExpertConfig) -> Layer:
    experts, options = layer_experts(model, layer), model.config.network_options(layer)
    return lambda x, shared: mix_experts(x, experts, mixture, keep=(), **options)["output"]


def _short_convolution(params: Parameters, layer: str, cache: KVCache) -> Layer:
    thirds, out = _projections(params, "bcx"), _linear(params["wo"], params.get("bo"))
    taps, bias = params["w"], params.get("b")

    def convolve(x: Array, shared: Mapping[str, Any]) -> Array:
        gate_in, gate_out, values = thirds(x)
        y, window = _slide(cache.states[layer][0], gate_in * values, taps, bias)
        cache.advance(layer, (window,), 1)
        return out(gate_out * y)

    return convolve


def _slide(window: Array, x: Array, taps: Array, bias: Array | None) -> tuple[Array, Array]:
    """The causal convolution of one token, and the window after it.

    window (B, K - 1, C), x (B, C) -> (B, C), (B, K - 1, C)
    """
    whole = np.concatenate([window, x[:, None]], axis=1)
    y = np.einsum("bkc,kc->bc", whole, taps)
    return y if bias is None else y + bias, whole[:, 1:]


def _recall(recall: RecallConfig, eps: float, params: Parameters, layer: str, cache: KVCache) -> Layer:
    """The recurrent form of a layer that keeps a state."""
    project, out, rule = _projections(params), _linear(params["wo"], params.get("bo")), RULES[recall.rule]
    names = [name for name in ("beta", "dt") if f"w{name}" in params]
    gates = {name: _linear(params[f"w{name}"], params.get(f"b{name}")) for name in names}
    bias, skip, rate = params.get("dt_bias"), params.get("D"), np.exp(params["A_log"])
    convolve, finish = _windows(recall, params), _norm_and_gate(recall, eps, params)
    feature, times = FEATURES[recall.feature].value, recall.heads // recall.key_heads
    factors = dict(recall.factors)

    def read(x: Array, shared: Mapping[str, Any]) -> Array:
        *windows, state = cache.states[layer]
        parts: Sequence[Array] = project(x)
        if factors:
            parts = [part * factors.get(letter, 1.0) for letter, part in zip("qkv", parts, strict=True)]
        if windows:
            parts, windows = convolve(parts, windows)
        q, k = (feature(part.reshape(-1, recall.key_heads, recall.key)) for part in parts[:2])
        q, k = (one if times == 1 else np.repeat(one, times, axis=1) for one in (q * recall.scale, k))
        v = written = parts[2].reshape(-1, recall.heads, recall.value)
        step = gates["dt"](x) * factors.get("dt", 1.0)
        step = step if bias is None else step + bias
        step = np.clip(np.logaddexp(step, 0), *recall.step_limits)
        state = state * np.exp(-step * rate)[..., None, None]
        if rule.corrects:
            written = v - read_state(k, state)
        strength = step if rule.strength == "step" else sigmoid(gates["beta"](x))
        state += outer_product(k[..., None], (written * strength[..., None])[..., None, :])
        cache.advance(layer, (*windows, state), 1)
        y = read_state(q, state)
        y = y if skip is None else y + v * skip[:, None]
        return out(finish(y.reshape(len(x), -1), x))

    return read


def _windows(recall: RecallConfig, params: Parameters) -> Callable[..., tuple[list[Array], list[Array]]]:
    """Function from projections and windows to activated convolutions and windows."""
    activation = ACTIVATIONS[recall.activation]

    def convolve(parts: Sequence[Array], windows: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        found = [
            _slide(window, x, params[f"conv_{letter}"], params.get(f"conv_bias_{letter}"))
            for letter, window, x in zip("qkv", windows, parts, strict=True)
        ]
        return [activation(y) for y, _ in found], [window for _, window in found]

    return convolve


def _norm_and_gate(recall: RecallConfig, eps: float, params: Parameters) -> Callable[[Array, Array], Array]:
    """Function from heads side by side (B, H V) and x (B, D) to the same, gated."""
    gate, gate_by = params.get("wg"), ACTIVATIONS[recall.gate or "identity"]
    project = None if gate is None else _linear(gate, params.get("bg"))
    multiplier = dict(recall.factors).get("g", 1.0)
    gamma = np.resize(params["gamma"], recall.widths["v"]) if "gamma" in params else None

    def normalize(y: Array) -> Array:
        if not recall.norm_groups:
            return y
        parts = y.reshape(len(y), recall.norm_groups, -1)
        parts = parts / np.sqrt(np.vecdot(parts, parts)[..., None] / parts.shape[-1] + eps)
        normed: Array = parts.reshape(y.shape)
        return normed if gamma is None else normed * gamma

    def finish(y: Array, x: Array) -> Array:
        factor = 1.0 if project is None else gate_by(project(x) * multiplier)
        return normalize(y * factor) if recall.gates_first else normalize(y) * factor

    return finish


def _projections(params: Parameters, letters: str = "qkv") -> Callable[[Array], tuple[Array, Array, Array]]:
    """Function from x to three projections, as q, k and v; one product if possible."""
    weights, biases = [params[f"w{c}"] for c in letters], [params.get(f"b{c}") for c in letters]
    fused = _fuse_columns(weights)
    if fused is None:
        q, k, v = (_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))
        return lambda x: (q(x), k(x), v(x))
    bias = None if biases[0] is None else np.concatenate([x for x in biases if x is not None])
    project, first = _linear(fused, bias), weights[0].shape[1]
    second = first + weights[1].shape[1]

    def projections(x: Array) -> tuple[Array, Array, Array]:
        y = project(x)
        return y[:, :first], y[:, first:second], y[:, second:]

    return projections


def _fuse_columns(weights: list[Array]) -> Array | None:
    """View weights that are adjacent in memory as one matrix; None for others.

    >>> both = np.arange(6.0).reshape(1, 6)
    >>> _fuse_columns([both[:, :2], both[:, 2:4], both[:, 4:]]).tolist(), _fuse_columns([both, both.copy()])
    ([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]], None)
    """
    first, at = weights[0], weights[0].__array_interface__["data"][0]
    for weight in weights:
        if weight.strides != first.strides or weight.__array_interface__["data"][0] != at:
            return None
        at += weight.shape[1] * weight.strides[1]
    shape = first.shape[0], sum(weight.shape[1] for weight in weights)
    return np.lib.stride_tricks.as_strided(first, shape, first.strides, writeable=False)


def _weighted_values(
    q: Array,
    keys: Array,
    values: Array,
    rules: AttentionRules,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """Dense attention of one token.

    q (B, G, H/G, K), keys (B, G, S, K), values (B, G, S, V), bias (G, H/G, S), sinks (G, H/G, 1) -> (B, H*V)
    """
    scores = q @ keys.swapaxes(-1, -2)
    scores *= rules.factor
    if rules.softcap:
        scores = rules.softcap * np.tanh(scores / rules.softcap)
    if bias is not None:
        scores += bias
    largest = np.maximum.reduce(scores, axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    scores -= largest
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    scores /= total if sinks is None else total + np.exp(sinks - largest)
    return (scores @ values).reshape(len(q), -1)


def _self_attention(rules: AttentionRules, params: Parameters, layer: str, cache: KVCache) -> Layer:
    project, out = _projections(params), _linear(params["wo"], params.get("bo"))
    groups, heads, width = rules.kv_heads, rules.heads // rules.kv_heads, rules.head_dim
    window, clip, norm = rules.window[0], rules.clip, rules.norm
    sinks = params["sinks"].reshape(groups, heads, 1) if "sinks" in params else None
    gate = _linear(params["wg"], params.get("bg")) if "wg" in params else None

    def normalize(x: Array, letter: str, count: int) -> Array:
        if norm is None:
            return x
        return normalize_heads(x[:, None], params.get(f"gamma_{letter}"), params.get(f"beta_{letter}"), count, norm)

    def attend(x: Array, shared: Mapping[str, Any]) -> Array:
        relative = shared.get(rules.shared_key, {})
        q, k, v = project(x)
        q, k = normalize(q, "q", rules.heads), normalize(k, "k", groups)
        if clip:
            q, k, v = (np.clip(part, -clip, clip) for part in (q, k, v))
        k = scaled(k, rules.key_scale)
        q, k, v = q.reshape(-1, groups, heads, width), k.reshape(-1, groups, 1, width), v.reshape(-1, groups, 1, width)
        if "rotary" in relative:
            q, k = (rotate(part, *relative["rotary"], interleaved=rules.interleaved) for part in (q, k))
        keys, values, _ = cache.append(layer, k, v)
        if window >= 0:
            keys, values = keys[..., -window - 1 :, :], values[..., -window - 1 :, :]
        bias = relative.get("bias")  # (H, 1, S)
        if bias is not None:
            bias = bias.reshape(groups, heads, -1)[..., -keys.shape[-2] :]
        y = _weighted_values(q, keys, values, rules, bias, sinks)
        return out(y if gate is None else y * sigmoid(gate(x)))

    return attend


def _latent_attention(rules: AttentionRules, params: Parameters, layer: str, cache: KVCache) -> Layer:
    out, options = _linear(params["wo"], params.get("bo")), MULTI_HEAD_DEFAULT.replace(**head_options(rules))

    def attend(x: Array, shared: Mapping[str, Any]) -> Array:
        rotary = shared.get(rules.shared_key, {}).get("rotary")
        rows = x[:, None]
        q, k, v, _ = project_heads(rows, rows, rows, params, options.replace(rotary=rotary), x.dtype)
        keys, values, _ = cache.append(layer, k, v)
        return out(_weighted_values(q, keys, values, rules))

    return attend


def _cross_attention(rules: AttentionRules, params: Parameters, layer: str, cache: KVCache) -> Layer:
    project, out = _linear(params["wq"], params.get("bq")), _linear(params["wo"], params.get("bo"))
    shape = -1, rules.kv_heads, rules.heads // rules.kv_heads, rules.head_dim

    def attend(x: Array, shared: Mapping[str, Any]) -> Array:
        return out(_weighted_values(project(x).reshape(shape), *cache.get(layer), rules))

    return attend
