"""The steps of a configuration as one function, which JAX compiles and splits.

The steps are those of model/config.py. What they compute is what their nodes of model/graph do, by the same functions;
attention, positions and recurrent layers have kernels, whose formulas are those of model/layers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnkit.backends.jax.attention_kernels import Rules, dense_attention, score_function
from attnkit.backends.jax.formulas import (
    JaxArray,
    See,
    multiply_wide,
    position_encoding,
    relative_scores,
    see_nothing,
    wide,
)
from attnkit.backends.jax.inputs import check_first_input
from attnkit.backends.jax.passes import Pair, Pass
from attnkit.backends.jax.recurrence import attend_and_recur, recur
from attnkit.model.config import STATES, AttentionRules, Config, Step, parse_layer_name, walk_steps
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, is_float
from attnkit.model.formulas.head_views import merge_heads, view_heads
from attnkit.model.formulas.linear import scaled
from attnkit.model.formulas.scores import SCORES
from attnkit.model.graph.head import build_head
from attnkit.model.graph.kinds import KINDS
from attnkit.model.graph.nodes import LAST, Inputs, Node, Place, Scope, is_traced
from attnkit.model.graph.steps import begin_with, name_parts
from attnkit.model.groups import GROUPS
from attnkit.model.hooks import Hook, no_hook, summary_names
from attnkit.model.layers.attention import disentangled_positions
from attnkit.model.passes.model_graph import build_steps


def run_steps(run: Pass, steps: Iterable[Step], x: JaxArray) -> JaxArray:
    """Apply steps: ids (..., T), x (..., T, D) or an image -> (..., T, D)."""

    def compute(step: Step, x: JaxArray) -> JaxArray:
        y = scaled(run.drop(step.layer, KERNELS.get(step.op, apply_nodes)(run, step, x)), step.scale)
        return y if step.adds_residual else run.layout(y)

    def add(step: Step, y: JaxArray, residual: JaxArray) -> JaxArray:
        if step.adds_residual == "concat":
            return run.layout(run.see(f"{step.layer}.concat", jnp.concatenate([y, residual], axis=-1)))
        return run.layout(run.see(f"{step.layer}.residual", y + residual))

    return walk_steps(steps, x, compute, add)


WIDE = (
    "norm",
    "norm of heads",
    "norm of channels",
    "norm of groups",
    "gates",
    "recall",
)  # kinds that are computed in float32 at least


class Nodes(NamedTuple):
    """The nodes of one step or of a head, computed from the arrays of sites.

    The sizes and roots that builders read are of no account here: shapes are those of the arrays.
    """

    run: Pass
    inputs: Inputs
    nodes: Mapping[str, Node]

    @classmethod
    def of_step(cls, run: Pass, step: Step, x: JaxArray) -> "Nodes":
        inputs = shape_inputs(run.config, run.inputs.get("grid"), run.inputs.get("types"))
        place = Place(run.core, inputs, step, "x", "memory", 1, x.shape[-2] if x.ndim > 1 else 1)
        return cls(run, inputs, {node.site: node for node in GROUPS[step.op].nodes(place)})

    @classmethod
    def of_head(cls, run: Pass, x: JaxArray, real: JaxArray | None) -> "Nodes":
        inputs = replace(shape_inputs(run.config, run.inputs.get("grid")), mask=real, target_mask=real)
        return cls(run, inputs, {node.site: node for node in build_head(run.core, inputs, "x")})

    def evaluate(self, site: str, known: dict[str, JaxArray]) -> JaxArray:
        """Compute a site from known ones, which are added to, and show each to the pass."""
        if site not in known:
            node = self.nodes[site]
            known[site] = self.run.see(site, self.apply(node, [self.evaluate(one, known) for one in node.inputs]))
        return known[site]

    def apply(self, node: Node, arrays: Sequence[JaxArray]) -> JaxArray:
        """Compute a node; some kinds, and logits, in float32 at least."""
        functions = self.run.functions._replace(multiply=multiply_wide) if node.kind == "logits" else self.run.functions
        inputs = [wide(one) if node.kind in WIDE and is_float(one.dtype) else one for one in arrays]
        value = KINDS[node.kind].value(Scope(self.run.core, self.inputs, node, "", functions=functions), *inputs)
        return value.astype(arrays[0].dtype) if node.kind in WIDE else value


def shape_inputs(config: Config, grid: tuple[int, int] | None, types: Any = None) -> Inputs:
    """What builders read of a pass: segments, and the shape of an image or a sound."""
    tokens, cut, image = np.broadcast_to(0, (1, 1)), config.patches, None
    if cut and grid:
        image = np.broadcast_to(0, (1, cut.channels, grid[0] * cut.patch_height, grid[1] * cut.patch_width))
    features = np.broadcast_to(0, (1, 1 << 20, 1)) if config.sound else None  # so long that no window is too large
    return Inputs(ids=tokens, target=tokens, types=types, image=image, features=features)


def is_seen(model: Model, steps: Sequence[Step], x: Array, context: Context) -> bool:
    """Whether the hook of a context reads any intermediate of some steps.

    It is asked for all of them, so that it knows which there are.
    """
    config = model.config
    if context.hook is no_hook or config.is_recurrent:
        return context.hook is not no_hook
    *_, tokens = check_first_input(config, steps, x, context)  # which finds the grid of an image
    nodes = build_steps(model, shape_inputs(config, context.grid), steps, "x", "memory", (1, tokens))
    names = [node.site for node in nodes if is_traced(node.site)]
    for step in steps:
        if step.attends:
            has_relative = config.positions.relative == "disentangled" and step.layer.endswith(".self")
            parts = (*("relative",) * has_relative, *summary_names(context.weights))
            names += [f"{step.layer}.{part}" for part in parts]
    return reads_any(context.hook, names)


def is_head_seen(model: Model, hook: Hook) -> bool:
    """Whether a hook reads any intermediate of the head; see `is_seen`."""
    if hook is no_hook:
        return False
    nodes = build_head(model, shape_inputs(model.config, None), "x")
    return reads_any(hook, [node.site for node in nodes if is_traced(node.site)])


def reads_any(hook: Hook, names: Iterable[str]) -> bool:
    """Whether a hook reads any of some intermediates; it is asked for each."""
    return any([hook(name) is not None for name in names])  # noqa: C419 (each is asked for)


def apply_nodes(run: Pass, step: Step, x: JaxArray) -> JaxArray:
    """The result of a step whose nodes XLA fuses well: x (..., T, D) -> (..., T, D)."""
    nodes = Nodes.of_step(run, step, x)
    return nodes.evaluate(step.result or [*nodes.nodes][-1], {"x": x})


def compute_head(run: Pass, site: str, x: JaxArray, real: JaxArray | None = None) -> JaxArray:
    """A site of the head, "logits" or "pooler", of hidden states.

    x (..., T, D), real (..., T) which tokens are no padding -> (..., T, N), or (..., C) for classes of the whole
    """
    return Nodes.of_head(run, x, real).evaluate(site, {"x": x})


def mix_tokens(run: Pass, step: Step, x: JaxArray) -> JaxArray:
    """A step whose nodes carry a state: x (..., T, D) -> (..., T, D)."""
    batch = x if x.ndim == 3 else x[None]
    nodes = Nodes.of_step(run, step, batch)
    states = name_parts(run.config, step.layer, run.caches.get(step.layer))
    nodes = nodes._replace(nodes=begin_with(nodes.nodes.values(), states, run.inputs.get("real")))
    if x.ndim == 2:
        see = run.see
        nodes = nodes._replace(run=replace(run, see=lambda site, one: see(site, one[0])[None]))
    known = {"x": batch}
    y = nodes.evaluate(f"{step.layer}.output", known)
    if run.capacity is not None:
        parts = [f"{step.layer}.{LAST}{part}" for part in run.config.states[step.layer]]
        run.caches[step.layer] = tuple(nodes.evaluate(part, known) for part in parts)
    return y if x.ndim == 3 else y[0]


def add_positions(run: Pass, step: Step, x: JaxArray) -> JaxArray:
    """Add learned or sinusoidal positions to x (..., T, D)."""
    if "sinusoids" in run.inputs:
        return run.see(step.layer, x + run.inputs["sinusoids"].astype(x.dtype))
    rows = position_encoding(run.core, step.layer, x, None, run.inputs.get("grid"))
    return run.see(step.layer, x + rows(run.inputs["positions"]))


def attend_layer(run: Pass, step: Step, x: JaxArray) -> JaxArray:
    """Attention of a layer to x, or to the memory: x (..., T, D) -> (..., T, D).

    What comes before and after the scores are nodes; these are computed by a kernel.
    """
    layer, see = step.layer, run.see_in(step.layer)
    attention = run.config.attention_rules[layer]
    if run.config.score != "scaled-dot":
        return attend_by_score(run, layer, attention, x)
    is_cross, nodes = attention.is_cross, Nodes.of_step(run, step, x)
    if attention.rotation:
        angles = run.inputs[attention.rotation]
        turned = {site: node.change(angles=angles) for site, node in nodes.nodes.items() if "times" in node.options}
        nodes = nodes._replace(nodes={**nodes.nodes, **turned})
    known = {"x": x} if is_cross and layer in run.caches else {"x": x, "memory": run.inputs.get("memory", x)}
    projected = nodes._replace(run=replace(run, see=without(run.see, layer, "qkv")))
    if attention.latent is not None:
        projected.evaluate(f"{layer}.q", known)  # first, as NumPy names its intermediates
    if is_cross and layer in run.caches:
        k, v = run.caches[layer]
    else:
        k, v = (projected.evaluate(f"{layer}.{letter}", known) for letter in "kv")
        stored = store(run, layer, k, v)
        k, v = (k, v) if run.is_start else stored
    q = projected.evaluate(f"{layer}.q", known)
    if run.differentiates:
        q, k, v = see("q", q), see("k", k), see("v", v)
    rules = make_rules(run, layer, attention, q, k)
    if not run.differentiates:
        q, k, v = see("q", q), see("k", k), see("v", v)
    return nodes.evaluate(f"{layer}.output", {"x": x, f"{layer}.heads": run.kernel(q, k, v, rules, see)})


def attend_by_score(run: Pass, layer: str, attention: AttentionRules, x: JaxArray) -> JaxArray:
    """Attention of a recurrent decoder to the memory: (..., T, D) -> (..., T, D).

    Neither x nor the memory is projected.
    """
    see, score = run.see_in(layer), run.config.score
    q = view_heads(x, attention.heads)
    if layer in run.caches:
        k, v = run.caches[layer]
    else:
        k = v = view_heads(run.inputs["memory"], attention.kv_heads)
        store(run, layer, k, v)
    rules = make_rules(run, layer, attention, q, k)
    q, k, v = see("q", q), see("k", k), see("v", v)
    if SCORES[score].parameters:
        heads = dense_attention(q, k, v, rules, see, score_function(score, run.params[layer]))
    else:
        heads = run.kernel(q, k, v, rules, see)
    return see("output", merge_heads(heads))


def without(see: See, layer: str, letters: str) -> See:
    """A function that sees all intermediates but queries, keys and values.

    A cache adds to these three.
    """
    hidden = {f"{layer}.{letter}" for letter in letters}
    return see if see is see_nothing else lambda name, x: x if name in hidden else see(name, x)


def store(run: Pass, layer: str, k: JaxArray, v: JaxArray) -> Pair:
    """All keys and values of a layer; new ones go to their places in its cache.

    k, v (..., G, T, K) -> (..., G, C, K)
    """
    if run.capacity is None:
        return k, v
    if layer.endswith(".self"):
        rooms = ((*x.shape[:-2], run.capacity, x.shape[-1]) for x in (k, v))
        before = run.caches.get(layer) or tuple(jnp.zeros(room, k.dtype) for room in rooms)
        write, past = jax.lax.dynamic_update_slice_in_dim, run.inputs["past"]
        k, v = (write(cache, x, past, axis=-2) for cache, x in zip(before, (k, v), strict=True))
    run.caches[layer] = k, v
    return k, v


def make_rules(run: Pass, layer: str, attention: AttentionRules, q: JaxArray, k: JaxArray) -> Rules:
    """The rules of attention in a layer, with relative scores in the bias."""
    inputs = run.inputs
    if attention.is_cross:
        return Rules(attention.factor, mask=inputs.get("memory_mask"), bias=inputs.get("memory_bias"))
    rules = Rules(
        attention.factor,
        causal=attention.causal,
        window=attention.window,
        offset=0 if run.is_start else inputs.get("past", 0),
        mask=inputs.get("mask"),
        bias=inputs.get("bias"),
        softcap=attention.softcap,
        sinks=run.params[layer].get("sinks"),
    )
    if attention.relative == "alibi":
        alibi = inputs["alibi"][..., : k.shape[-2]]
        return rules._replace(bias=alibi if rules.bias is None else alibi + rules.bias)
    if attention.relative == "t5":
        return rules._replace(distances=run.params[f"{attention.stack}.bias"]["table"][inputs["buckets"]])
    if attention.relative == "disentangled":
        scores = run.see(f"{layer}.relative", relative_scores_of(run, layer, q, k) * attention.factor)
        return rules._replace(bias=scores if rules.bias is None else scores + rules.bias)
    return rules


def relative_scores_of(run: Pass, layer: str, q: JaxArray, k: JaxArray) -> JaxArray:
    """Scores of queries and keys by their distances: see model/formulas/relative.py."""
    relative = disentangled_positions(run.core, layer, 1, Context())
    return relative_scores(q, k, relative._replace(places=run.inputs["places"]))


Operator = Callable[[Pass, Step, JaxArray], JaxArray]

# operation of a step -> its kernel; the others are computed by their nodes
KERNELS: dict[str, Operator] = {
    "posenc": add_positions,
    "attend": attend_layer,
    **dict.fromkeys(STATES, mix_tokens),
    "rnn": lambda run, step, x: (recur if parse_layer_name(step.layer)[1] is not None else attend_and_recur)(
        run, step.layer, x
    ),
}
