"""Slips of the attention, norms, positions and scaling of today's decoders, for make_slips.py.

Each case changes a model of transformers: its modules, their attributes, its buffers, or its functions.
"""

import functools
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from make_slips import Norm, Port, change_norm, own, slip, turned
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def attention_modules(port: Port) -> list[nn.Module]:
    """The module of attention of each layer."""
    return [port.model.get_submodule(port.path(layer, "wq").rpartition(".")[0]) for layer in port.attention_layers()]


def rules_of(port: Port, module: nn.Module) -> Any:
    layers = port.attention_layers()
    return port.config.attention_rules[layers[attention_modules(port).index(module)]]


def block_of(port: Port, module: nn.Module) -> nn.Module:
    path = next(path for path, one in port.model.named_modules() if one is module)
    return port.model.get_submodule(path.rpartition(".")[0])


def on_modules(**options: Any) -> Callable[[Port], list[Any]]:
    """Set what goes wrong in the attention of all layers."""

    def apply(port: Port) -> list[Any]:
        for module in attention_modules(port):
            module.wrong = options
        return []

    return apply


# norms of queries and keys

HEAD_NORMS = ("qwen3", "gemma3", "phi-norms", "lfm2")  # with the same weights for all heads
EACH_HEAD = ("cohere-norms", "stablelm-parallel")  # with weights of each head
WHOLE_NORMS = ("olmo2", "olmoe")  # over all heads at once
QUERY_KEY = (*HEAD_NORMS, *EACH_HEAD, *WHOLE_NORMS)


def norm_names(module: nn.Module) -> tuple[str, str]:
    names = ("q_norm", "q_layernorm")
    found = next(name for name in names if hasattr(module, name))
    return found, found.replace("q", "k", 1)


def without_norms(letters: str):
    def apply(port: Port):
        for module in attention_modules(port):
            for name in norm_names(module):
                if name[0] in letters:
                    setattr(module, name, nn.Identity())
        return []

    return apply


slip(
    "no norm of q and k",
    "queries are not normalized",
    "queries and keys are not normalized",
    tried=QUERY_KEY,
)(without_norms("qk"))
slip("no norm of k", "keys are not normalized", tried=QUERY_KEY)(without_norms("k"))


class HeadsNorm(nn.Module):
    """A norm of (…, heads, K) or (…, heads * K), over each head or over all."""

    def __init__(self, weight, bias, eps, kind, heads, whole, is_transposed=False):
        super().__init__()
        self.weight, self.bias, self.eps, self.kind = weight, bias, eps, kind
        self.heads, self.whole, self.is_transposed = heads, whole, is_transposed

    def forward(self, x):
        shape = x.shape
        y = x.transpose(1, 2) if self.is_transposed else x
        y = y.reshape(*y.shape[:2], self.heads, -1)
        wide = y.flatten(-2).float() if self.whole else y.float()
        if self.kind == "layer":
            wide = wide - wide.mean(-1, keepdim=True)
        wide = wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt()
        wide = wide.reshape(*y.shape)
        weight = self.weight.float()
        weight = weight.reshape(self.heads, -1) if weight.numel() != y.shape[-1] else weight
        wide = wide * weight
        if self.bias is not None:
            wide = wide + self.bias.float()
        wide = wide.transpose(1, 2) if self.is_transposed else wide
        return wide.reshape(shape).to(x.dtype)


def norm_weight(port: Port, module: nn.Module) -> torch.Tensor:
    """The weight of a norm, which Gemma adds to 1."""
    weight = (
        torch.stack([one.weight for one in module.norms]) if hasattr(module, "norms") else module.weight
    )  # of StableLM
    return weight + 1 if port.config.family.startswith("gemma") else weight


def other_scope(whole: bool):
    def apply(port: Port):
        for module in attention_modules(port):
            rules = rules_of(port, module)
            for name in norm_names(module):
                before = getattr(module, name)
                weight = nn.Parameter(norm_weight(port, before).detach(), requires_grad=False)
                heads = rules.heads if name[0] == "q" else rules.kv_heads
                norm = HeadsNorm(
                    weight,
                    getattr(before, "bias", None),
                    port.config.eps,
                    port.config.norm,
                    heads,
                    whole,
                    port.family in TRANSPOSED,
                )
                setattr(module, name, norm)
        return []

    return apply


TRANSPOSED = ("gemma3", "phi-norms", "stablelm-parallel")
slip(
    "norm over all heads",
    "queries are normalized over all heads together",
    "queries and keys are normalized over all heads together",
    tried=(*HEAD_NORMS, *EACH_HEAD),
)(other_scope(True))
slip(
    "norm of each head",
    "queries are normalized head by head",
    "queries and keys are normalized head by head",
    tried=WHOLE_NORMS,
)(other_scope(False))


@slip(
    "norm after the rotation",
    "queries are normalized after the rotation",
    "queries and keys are normalized after the rotation",
    tried=("qwen3", "gemma3", "qwen3_moe"),
)
def norm_after(port: Port):
    """The attention of Qwen3 and Gemma 3, with its norms after the rotation."""
    patches = []
    for module in attention_modules(port):

        def forward(hidden_states, position_embeddings, attention_mask=None, module=module, **kwargs):
            shape = (*hidden_states.shape[:-1], -1, module.head_dim)
            q, k, v = (getattr(module, f"{letter}_proj")(hidden_states).view(shape).transpose(1, 2) for letter in "qkv")
            q, k = port.modeling.apply_rotary_pos_emb(q, k, *position_embeddings)
            q, k = module.q_norm(q), module.k_norm(k)
            heads, weights = port.modeling.eager_attention_forward(
                module, q, k, v, attention_mask, scaling=module.scaling
            )
            return module.o_proj(heads.reshape(*hidden_states.shape[:-1], -1)), weights

        patches.append(mock.patch.object(module, "forward", forward))
    return patches


@slip(
    "norms of q and k exchanged",
    "queries are normalized with the parameters of keys",
    "the norms of queries and keys are exchanged",
    tried=("qwen3", "gemma3", "phi-norms", "qwen3_moe"),
)
def exchanged_heads(port: Port):
    for module in attention_modules(port):
        first, second = norm_names(module)
        one, other = getattr(module, first), getattr(module, second)
        setattr(module, first, other)
        setattr(module, second, one)
        swap_weights(one, other)
        setattr(module, first, one)
        setattr(module, second, other)
    return []


def swap_weights(one: nn.Module, other: nn.Module) -> None:
    """Exchange the parameters of two modules."""
    own(one), own(other)
    for name, _ in list(one.named_parameters(recurse=False)):
        first, second = getattr(one, name), getattr(other, name)
        setattr(one, name, second)
        setattr(other, name, first)


def with_offset(offset: float, letters: str = ""):
    """Norms that multiply by weight + offset: those of queries, or the last of a layer."""

    def apply(port: Port):
        if letters:
            targets = [(module, norm_names(module)[0]) for module in attention_modules(port)]
        else:
            path = port.path(last_layer_norm(port), "gamma")
            targets = [(port.model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])]
        for module, name in targets:
            before = getattr(module, name)
            setattr(module, name, Norm("rms", before.weight, None, port.config.eps, offset=offset))
        return []

    return apply


def last_layer_norm(port: Port) -> str:
    layers = [one.layer for one in port.config.plan("decoder") if one.op == "layernorm" and one.layer.count(".") == 2]
    return layers[-1]


slip(
    "weight of q's norm without 1",
    "the norm multiplies by weight, not by 1 + weight",
    tried=("gemma3",),
)(with_offset(0.0, "q"))
slip("1 + weight of q's norm", "the norm multiplies by 1 + weight, not by weight", tried=("qwen3", "qwen3_moe"))(
    with_offset(1.0, "q")
)
slip(
    "weight without 1",
    "the norm multiplies by weight, not by 1 + weight",
    tried=("gemma", "gemma2", "gemma3", "qwen3_next"),
)(with_offset(0.0))
slip("1 added twice", "the norm multiplies by 1 + weight, not by weight", tried=("gemma", "gemma2"))(with_offset(2.0))

# norms of layers

SANDWICH = ("gemma2", "gemma3", "olmo2", "olmo3")


def norms_of_last_layer(port: Port) -> list[str]:
    """The norms of the last layer."""
    last = port.config.decoder.layers - 1
    return [one.layer for one in port.config.plan("decoder") if one.op == "layernorm" and f".{last}." in one.layer]


def exchange(first: str, second: str):
    def apply(port: Port):
        last = port.config.decoder.layers - 1
        modules = [port.module(f"decoder.{last}.{name}", "gamma") for name in (first, second)]
        swap_weights(*modules)
        return []

    return apply


for first, second, families in (
    ("norm1", "norm2", ("qwen3", "gemma", "gemma2", "gpt_neox", "gpt_neox-serial", "granite", "falcon-40b", "bloom")),
    ("output_norm1", "output_norm2", SANDWICH),
    ("norm1", "output_norm1", ("gemma2", "gemma3")),
):
    slip(
        f"{first} and {second} exchanged",
        "the parameters are those of {layer}." + second,
        f"the parameters of {{layer}}.{first} and {{layer}}.{second} are exchanged",
        tried=families,
    )(exchange(first, second))


def missing_norm(name: str):
    def apply(port: Port):
        last = port.config.decoder.layers - 1
        port.replace(port.path(f"decoder.{last}.{name}", "gamma"), nn.Identity())
        return []

    return apply


for name in ("output_norm1", "output_norm2"):
    slip(f"no {name}", "the norm is missing", f"{{layer}}.{name} is not applied", tried=SANDWICH)(missing_norm(name))

PLAIN_NORMS = ("qwen3", "lfm2", "olmo2", "gpt_neox", "cohere", "gpt_oss")


def changed_norm(**changes: Any):
    def apply(port: Port):
        change_norm(port, last_layer_norm(port), **changes)
        return []

    return apply


slip("eps 0.0001", "eps of the norm is 0.0001", tried=PLAIN_NORMS)(changed_norm(eps=1e-4))
slip("eps 0.0025", "eps of the norm is 0.0025", tried=PLAIN_NORMS)(changed_norm(eps=2.5e-3))


class HalfVariance(Norm):
    """A norm whose squares are computed in float16."""

    def forward(self, x):
        wide = x.float() - (x.float().mean(-1, keepdim=True) if self.kind == "layer" else 0)
        square = wide.half().square().float().mean(-1, keepdim=True)
        y = wide * torch.rsqrt(square + self.eps) * self.weight.float()
        y = y if self.bias is None else y + self.bias.float()
        return y.to(x.dtype)


@slip("overflow of the variance", "the squares of the norm overflow in float16", tried=("granite-large",))
def half_variance(port: Port):
    path = port.path("decoder.1.norm1", "gamma")
    before = port.model.get_submodule(path)
    port.replace(path, HalfVariance(port.config.norm, before.weight, getattr(before, "bias", None), port.config.eps))
    return []


# windows

WINDOWED = ("gemma2", "gemma3", "qwen3-window", "olmo3", "gpt_oss", "cohere2", "smollm3-window")


def windows(chosen: Callable[[int, int], int]):
    """Windows of other sizes: (keys before a query in a layer, those of layers with a window) -> keys; -1: all."""

    def apply(port: Port):
        size = max(port.config.decoder.windows)
        for module in attention_modules(port):
            left = chosen(rules_of(port, module).window[0], size)

            def allowed(one, left=left):
                i, j = torch.arange(one.shape[-2])[:, None], torch.arange(one.shape[-1])
                real = one[:, :, -1:, :] if one.shape[0] > 1 else True
                return ((j <= i) & ((j >= i - left) | (left < 0)))[None, None] & real

            module.wrong = {"allowed": allowed}
        return []

    return apply


MISSING, APPLIED = "the window is missing", "a window of {left} keys before a query is applied"
slip("windows on the other layers", MISSING, APPLIED, tried=WINDOWED)(
    windows(lambda own, size: -1 if own >= 0 else size)
)
slip("windows on all layers", APPLIED, tried=WINDOWED)(windows(lambda own, size: size))
slip("windows on no layer", MISSING, tried=(*WINDOWED, "phi3"))(windows(lambda own, size: -1))
slip("windows one wider", "the window is {one_more} keys before a query", tried=(*WINDOWED, "phi3"))(
    windows(lambda own, size: own + 1 if own >= 0 else -1)
)
slip("windows one narrower", "the window is {one_less} keys before a query", tried=(*WINDOWED, "phi3"))(
    windows(lambda own, size: own - 1 if own >= 0 else -1)
)
slip("windows twice as wide", "the window is {twice} keys before a query", tried=(*WINDOWED, "phi3"))(
    windows(lambda own, size: 2 * own + 1 if own >= 0 else -1)
)
slip("windows half as wide", "the window is {half_left} keys before a query", tried=(*WINDOWED, "phi3"))(
    windows(lambda own, size: own // 2 if own >= 0 else -1)
)


# rotary positions

ROTATED = ("qwen3", "lfm2", "gemma2", "granite", "phi", "gpt_neox", "cohere", "olmo2", "phi3", "mixtral")


def own_rotation(rotate: Callable[[Port, Any, torch.Tensor], torch.Tensor], all_layers: bool = False):
    """Rotate whole heads (B, H, T, K) of queries and keys in one's own way."""

    def apply(port: Port):
        for module in attention_modules(port):
            rules = rules_of(port, module)
            if rules.rotation or all_layers:
                module.wrong = {"turned": functools.partial(rotate, port, rules)}
        return [mock.patch.object(port.modeling, "apply_rotary_pos_emb", lambda q, k, *others, **options: (q, k))]

    return apply


def rotate_heads(x: torch.Tensor, frequencies: torch.Tensor, rules: Any, factor: float = 1.0) -> torch.Tensor:
    """Rotate the first 2 N features by N frequencies."""
    phases = torch.arange(x.shape[-2])[:, None] * frequencies
    cos, sin = (factor * torch.cat((one, one), dim=-1).float() for one in (phases.cos(), phases.sin()))
    width = 2 * len(frequencies)
    first = turned(x[..., :width].float(), cos, sin, rules.interleaved)
    return torch.cat((first.to(x.dtype), x[..., width:]), dim=-1)


def theta_of(rules: Any) -> float:
    return float(rules.rope.get("rope_theta", 1e4))


def powers(theta: float, width: int, over: int) -> torch.Tensor:
    return torch.tensor(theta, dtype=torch.float64) ** (-torch.arange(0, width, 2, dtype=torch.float64) / over)


for theta in (37000, 123, 2400000):
    slip(f"theta {theta}", f"rope_theta is {theta:g} instead of", tried=ROTATED)(
        own_rotation(
            lambda port, rules, x, t=theta: rotate_heads(x, powers(t, rules.rotary_dim, rules.rotary_dim), rules)
        )
    )

PARTIAL = ("phi", "gpt_neox", "phi-norms", "stablelm", "phi3-partial")
slip(
    "base over the head",
    "the frequencies of rotary positions are those of the whole head",
    tried=PARTIAL,
)(
    own_rotation(
        lambda port, rules, x: rotate_heads(x, powers(theta_of(rules), rules.rotary_dim, rules.head_dim), rules)
    )
)


def distant_pairs(port: Port, rules: Any, x: torch.Tensor) -> torch.Tensor:
    """Pairs (i, i + K/2) of the first features, under partial rotation."""
    count, half = rules.rotary_dim // 2, x.shape[-1] // 2
    phases = torch.arange(x.shape[-2])[:, None] * powers(theta_of(rules), rules.rotary_dim, rules.rotary_dim)
    cos, sin = phases.cos().to(x.dtype), phases.sin().to(x.dtype)
    first, second = x[..., :count], x[..., half : half + count]
    y = x.clone()
    y[..., :count] = first * cos - second * sin
    y[..., half : half + count] = second * cos + first * sin
    return y


slip("pairs of half a head", "rotary pairs are (i, i + K/2)", tried=PARTIAL)(own_rotation(distant_pairs))


def whole_head(port: Port, rules: Any, x: torch.Tensor) -> torch.Tensor:
    return rotate_heads(x, powers(theta_of(rules), rules.head_dim, rules.head_dim), rules)


slip("whole head rotated", "all features of a head are rotated", tried=PARTIAL)(own_rotation(whole_head))
slip(
    "rotated layers not rotated",
    "queries are not rotated",
    "queries and keys are not rotated",
    tried=("smollm3", "cohere2"),
)(own_rotation(lambda port, rules, x: x))
slip(
    "NoPE layers rotated",
    "queries are rotated, in a layer without rotary positions",
    "queries and keys are rotated, in a layer without rotary positions",
    tried=("smollm3", "smollm3-window", "cohere2"),
)(
    own_rotation(
        lambda port, rules, x: rotate_heads(
            x,
            powers(theta_of(port.config.attention_rules["decoder.0.self"]), rules.rotary_dim, rules.rotary_dim),
            rules,
        ),
        all_layers=True,
    )
)


@slip(
    "theta of the other layers",
    "rotary positions are those of layers without a window",
    "rotary positions are those of layers with a window",
    tried=("gemma3",),
)
def other_rotation(port: Port):
    rotary = port.model.get_submodule("model.rotary_emb")
    for name in ("inv_freq", "attention_scaling"):
        one, other = (f"{kind}_attention_{name}" for kind in ("sliding", "full"))
        first, second = getattr(rotary, one), getattr(rotary, other)
        setattr(rotary, one, second)
        setattr(rotary, other, first)
    return []


# scaling for long texts


def rotary_module(port: Port) -> nn.Module:
    return next(module for path, module in port.model.named_modules() if path.endswith("rotary_emb"))


def scaled(change: Callable[[Any, dict[str, Any]], tuple[torch.Tensor, float]]):
    """Other frequencies, and another factor of cosines and sines: (rules, their rotation) -> both."""

    def apply(port: Port):
        def rotate(port, rules, x):
            frequencies, factor = change(rules, dict(rules.rope))
            return rotate_heads(x, frequencies, rules, factor)

        return own_rotation(rotate)(port)

    return apply


def published(rules: Any, rope: dict[str, Any], length: int = 10**6) -> tuple[torch.Tensor, float]:
    """The frequencies and the factor of a rotation, from transformers' function of its type."""
    if rope.get("rope_type", "default") == "default":
        return powers(theta_of(rules), rules.rotary_dim, rules.rotary_dim), 1.0

    config = types.SimpleNamespace(
        rope_parameters={**rope, "partial_rotary_factor": 1.0},
        head_dim=rules.rotary_dim,
        hidden_size=rules.rotary_dim,
        num_attention_heads=1,
        max_position_embeddings=rope["max_position_embeddings"],
        standardize_rope_params=lambda: None,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
    return frequencies.double(), factor


YARN = ("olmo3", "gpt_oss", "llama-yarn", "qwen3-factor", "qwen3-yarn")
LONG = ("phi3-long",)


slip(
    "scaling ignored",
    "the scaling of rotary positions (",
    tried=(*YARN, *LONG),
)(scaled(lambda rules, rope: (powers(theta_of(rules), rules.rotary_dim, rules.rotary_dim), 1.0)))
slip("yarn's factor missing", "the factor of yarn on cosines and sines is missing", tried=YARN)(
    scaled(lambda rules, rope: (published(rules, rope)[0], 1.0))
)
slip("yarn's factor twice", "the factor of yarn on cosines and sines is applied twice", tried=YARN)(
    scaled(lambda rules, rope: (published(rules, rope)[0], published(rules, rope)[1] ** 2))
)
slip(
    "yarn's factor by the formula",
    "the factor of yarn on cosines and sines is that of the formula",
    tried=("qwen3-factor",),
)(
    scaled(
        lambda rules, rope: (
            published(rules, rope)[0],
            published(rules, {key: value for key, value in rope.items() if key != "attention_factor"})[1],
        )
    )
)
slip("yarn truncated", "the ramp of yarn is truncated to whole pairs", tried=("gpt_oss", "qwen3-ramp"))(
    scaled(lambda rules, rope: published(rules, {**rope, "truncate": True}))
)
slip(
    "yarn not truncated",
    "the ramp of yarn is not truncated to whole pairs",
    tried=("olmo3", "llama-yarn", "qwen3-yarn"),
)(scaled(lambda rules, rope: published(rules, {**rope, "truncate": False})))
slip("short factors for long", "the short factors of longrope are used", tried=LONG)(
    scaled(lambda rules, rope: (published(rules, rope, 1)[0], published(rules, rope)[1]))
)
slip("longrope's factor missing", "the factor of longrope on cosines and sines is missing", tried=LONG)(
    scaled(lambda rules, rope: (published(rules, rope)[0], 1.0))
)
slip("longrope's factors missing", "the factors of longrope are missing", tried=LONG)(
    scaled(lambda rules, rope: (powers(theta_of(rules), rules.rotary_dim, rules.rotary_dim), published(rules, rope)[1]))
)

# scale and soft cap of the scores

slip("cap of another size", "the soft cap of the scores is 2.5 instead of 1.5", tried=("gemma2",))(
    on_modules(softcap=2.5)
)
slip("no cap", "the soft cap of the scores is missing", tried=("gemma2",))(on_modules(softcap=0))
slip("cap before the scale", "the soft cap of the scores is applied before their scale", tried=("gemma2",))(
    on_modules(softcap=1.5, caps_first=True)
)
slip("a cap", "a soft cap of the scores (3) is applied", tried=("qwen3", "llama"))(on_modules(softcap=3))
WIDE_HEADS = ("qwen3", "gemma2", "gemma3", "gpt_oss", "qwen3_moe")
slip("scale of hidden / heads", "the scale of the scores is 1/√(D/H)", tried=WIDE_HEADS)(
    lambda port: on_modules(scale=lambda s, q: (port.config.width / q.shape[1]) ** -0.5)(port)
)
slip(
    "another scale",
    "the scores are multiplied by 0.23 instead of",
    tried=("qwen3", "gemma2", "phi", "granite", "llama"),
)(on_modules(scale=lambda s, q: 0.23))
slip("scale of a head", "the scale of the scores is 1/√K", tried=("gemma2", "gemma3", "granite"))(
    on_modules(scale=lambda s, q: q.shape[-1] ** -0.5)
)


# multipliers


def attribute(name: str, value: Callable[[Any], Any]):
    """Change an attribute of every module that has it."""

    def apply(port: Port):
        for module in port.model.modules():
            if name in vars(module) or name in module._buffers:
                setattr(module, name, value(getattr(module, name)))
        return []

    return apply


def configured(name: str, value: Callable[[Any], Any]):
    def apply(port: Port):
        config = port.model.config
        setattr(config, name, value(getattr(config, name)))
        return []

    return apply


slip("no multiplier of embeddings", "the factor 3 of the embeddings is missing", tried=("granite",))(
    attribute("embedding_multiplier", lambda one: 1.0)
)
slip("another multiplier of embeddings", "the embeddings are multiplied by 5.5 instead of 3", tried=("granite",))(
    attribute("embedding_multiplier", lambda one: 5.5)
)
slip("no √D in Gemma", "the factor √D of the embeddings is missing", tried=("gemma", "gemma2", "gemma3"))(
    attribute("embed_scale", torch.ones_like)
)
slip("no multiplier of residuals", "the multiplier of the residual branch is missing", tried=("granite",))(
    attribute("residual_multiplier", lambda one: 1.0)
)
slip("another multiplier of residuals", "the residual branch is multiplied by 0.7 instead of 0.4", tried=("granite",))(
    attribute("residual_multiplier", lambda one: 0.7)
)
slip(
    "logits multiplied",
    "the logits are multiplied by 0.5 instead of 2 (divided for multiplied, or the reverse",
    tried=("granite",),
)(configured("logits_scaling", lambda one: 1 / one))
slip("logits divided", "the logits are multiplied by", tried=("cohere", "cohere2"))(
    lambda port: attribute("logit_scale", lambda one: 1 / one)(port)
)
slip("no scale of logits", "the scale of the logits is missing", tried=("granite",))(
    configured("logits_scaling", lambda one: 1.0)
)
slip("no scale of logits in Cohere", "the scale of the logits is missing", tried=("cohere", "cohere2"))(
    attribute("logit_scale", lambda one: 1.0)
)
slip("another scale of logits", "the logits are multiplied by 0.25 instead of", tried=("granite",))(
    configured("logits_scaling", lambda one: 4.0)
)
slip("no cap of logits", "the soft cap of the logits is missing", tried=("gemma2",))(
    configured("final_logit_softcapping", lambda one: None)
)
slip("another cap of logits", "the soft cap of the logits is 3 instead of 2", tried=("gemma2",))(
    configured("final_logit_softcapping", lambda one: 3.0)
)

# blocks


def block_parts(port: Port, block: nn.Module) -> tuple[Callable[..., Any], nn.Module, list[nn.Module]]:
    """Attention, network and norms of a block."""
    attention = next(one for one in attention_modules(port) if block_of(port, one) is block)
    norms = ("input_layernorm", "ln_attn", "ln_1"), ("post_attention_layernorm", "ln_mlp", "ln_2")
    found = [next((getattr(block, name) for name in names if hasattr(block, name)), None) for names in norms]
    return attention, block.mlp, found


def wired(wiring: str):
    """The last block with another order of its sub-layers."""

    def apply(port: Port):
        block = block_of(port, attention_modules(port)[-1])
        attention, network, (first, second) = block_parts(port, block)

        def forward(hidden_states, *others, **kwargs):
            x = hidden_states
            one = first(x)
            y = attention(one, *others, **kwargs)
            y = y[0] if isinstance(y, tuple) else y
            if wiring == "serial":
                middle = x + y
                z = network((second or first)(middle))
                result = middle + z
            elif wiring == "parallel":
                result = x + y + network(second(x))
            elif wiring == "one norm":
                result = x + y + network(one)
            else:  # the network reads the norm of attention, which is not parallel
                middle = x + y
                result = middle + network(first(middle))
            return (result, None) if port.family.startswith("falcon") else result

        return [mock.patch.object(block, "forward", forward)]

    return apply


PARALLEL = ("phi", "cohere", "cohere2", "falcon-7b", "falcon-40b", "gpt_neox", "gptj", "stablelm-parallel", "phi-norms")
SERIAL = ("qwen3", "gpt_neox-serial", "stablelm", "gemma", "smollm3", "mixtral")
slip("serial", "the sub-layers follow one another (serial, not parallel)", tried=PARALLEL)(wired("serial"))
slip("parallel blocks", "the sub-layers read the same input (parallel, not serial)", tried=SERIAL)(wired("parallel"))
slip(
    "one norm",
    "{layer}.norm2 is left out: the sub-layers read one norm",
    tried=("gpt_neox", "falcon-40b", "gpt_neox-serial", "qwen3"),
)(wired("one norm"))
slip(
    "norm of attention before the network",
    "the parameters are those of {layer}.norm1",
    "{layer}.norm2 is left out",
    tried=("gpt_neox-serial", "qwen3", "gemma"),
)(wired("other norm"))


# fused projections


def cut_again(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, by_groups: bool) -> list[torch.Tensor]:
    """Heads (B, H, T, K) cut out of their fused projection in the other layout: by groups, or one after another."""
    batch, heads, tokens, width = q.shape
    groups = k.shape[1]
    each = heads // groups
    one, two, three = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, K)
    if by_groups:
        fused = torch.cat((one, two, three), dim=2).reshape(batch, tokens, groups, each + 2, width)
        parts = fused[..., :each, :], fused[..., each, :], fused[..., each + 1, :]
    else:
        grouped = one.reshape(batch, tokens, groups, each, width), two[:, :, :, None], three[:, :, :, None]
        parts = torch.cat(grouped, dim=3).reshape(batch, tokens, -1, width).split((heads, groups, groups), dim=2)
    return [part.reshape(batch, tokens, -1, width).transpose(1, 2) for part in parts]


def cut_wrong(by_groups: bool):
    def apply(port: Port):
        modules = attention_modules(port)
        for name in ("_split_heads", "_reshape"):  # of Falcon, and of BLOOM
            if hasattr(modules[0], name):
                return [cut_method(module, name, by_groups) for module in modules]

        def rotate(port, rules, x):
            return rotate_heads(x, powers(theta_of(rules), rules.rotary_dim, rules.rotary_dim), rules)

        patches = own_rotation(rotate)(port)
        for module in modules:
            module.wrong = {**module.wrong, "cut": functools.partial(cut_again, by_groups=by_groups)}
        return patches

    return apply


def cut_method(module: nn.Module, name: str, by_groups: bool):
    """The method of a module that cuts its fused projection, followed by the other cut."""
    before, is_last = getattr(module, name), name == "_split_heads"  # heads (B, T, H, K), those of keys repeated

    def cut(fused):
        q, k, v = (x.transpose(1, 2) if is_last else x for x in before(fused))
        groups = getattr(module, "num_kv_heads", module.num_heads) if is_last else module.num_heads
        each = k.shape[1] // groups
        q, k, v = cut_again(q, k[:, ::each], v[:, ::each], by_groups)
        k, v = (x.repeat_interleave(each, dim=1) for x in (k, v))
        return tuple(x.transpose(1, 2) if is_last else x for x in (q, k, v))

    return mock.patch.object(module, name, cut)


BY_GROUPS = "the fused q, k and v are split by groups of heads; they are stored one after another"
FLAT = "the fused q, k and v are split one after another; they are stored by groups of heads"
PER_HEAD = "the fused q, k and v are split one after another; they are stored per head"
slip("fused cut by groups", BY_GROUPS, tried=("phi3",))(cut_wrong(True))
slip("fused cut in three", FLAT, PER_HEAD, tried=("falcon-40b", "falcon-11b", "gpt_neox", "bloom", "falcon-rw"))(
    cut_wrong(False)
)

# padding, relative positions


LEFT_PADDED = ("qwen3", "gemma2", "phi", "olmo2", "cohere2")


@slip("padding not masked", "the padding mask is missing", padded=True, tried=LEFT_PADDED)
def padding_visible(port: Port):
    for module in attention_modules(port):
        rules = rules_of(port, module)

        def allowed(one, left=rules.window[0]):
            i, j = torch.arange(one.shape[-2])[:, None], torch.arange(one.shape[-1])
            return ((j <= i) & ((j >= i - left) | (left < 0)))[None, None].expand(one.shape[0], -1, -1, -1)

        module.wrong = {"allowed": allowed}
    return []


@slip(
    "padding ignored",
    "rotary positions count the padding",
    "the padding mask is missing, and rotary positions count the padding",
    padded=True,
    tried=LEFT_PADDED,
)
def padding_ignored(port: Port):
    port.arguments["position_ids"] = torch.arange(port.ids.shape[1])[None]
    return padding_visible(port)


@slip(
    "buckets in both directions",
    "the buckets of relative positions are those of both directions",
    "the buckets of relative positions are those of one direction",
    tried=("t5", "t5-gated"),
)
def buckets(port: Port):
    modules = [one for one in port.model.modules() if hasattr(one, "_relative_position_bucket")]
    function = modules[0]._relative_position_bucket

    def flipped(relative_position, bidirectional=True, **options):
        return function(relative_position, bidirectional=not bidirectional, **options)

    return [mock.patch.object(one, "_relative_position_bucket", flipped) for one in modules]


def slopes(change: Callable[[int], torch.Tensor]):
    def apply(port: Port):
        def build(attention_mask, num_heads, dtype):
            chosen = change(num_heads)
            where = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
            if port.family == "falcon-rw":
                chosen = chosen.bfloat16()
                biased = (chosen[..., None] * where[:, None, :]).bfloat16()
            else:
                biased = chosen[..., None] * where[:, None, :]
            return biased.reshape(len(attention_mask) * num_heads, 1, -1).to(dtype)

        port.arguments["attention_mask"] = torch.ones(port.ids.shape, dtype=torch.long)  # BLOOM calls it then alone
        return [mock.patch.object(port.modeling, "build_alibi_tensor", build)]

    return apply


def powers_of_two(heads: int, first: int = 1, base: float = 8.0) -> torch.Tensor:
    return 2.0 ** (-base * torch.arange(first, heads + first) / heads)


def right_slopes(heads: int) -> torch.Tensor:
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    return _get_alibi_slopes(heads, "cpu")


ALIBI = ("bloom", "falcon-rw")
slip("slopes of ALiBi without the rule", "the slopes of ALiBi are 2^(−8 i/H) though H is no power of two", tried=ALIBI)(
    slopes(powers_of_two)
)
slip("slopes of ALiBi from 1", "the slopes of ALiBi begin at 1", tried=ALIBI)(slopes(lambda h: powers_of_two(h, 0)))
slip("no ALiBi", "the bias of relative positions is missing", tried=ALIBI)(slopes(lambda h: torch.zeros(h)))
slip("ALiBi of the other sign", "the bias of ALiBi has the other sign", tried=ALIBI)(slopes(lambda h: -right_slopes(h)))
slip("slopes of ALiBi reversed", "the slopes of ALiBi are in reverse order", tried=ALIBI)(
    slopes(lambda h: right_slopes(h).flip(0))
)
slip("ALiBi scaled", "the bias of ALiBi is scaled as the scores are", tried=("bloom",))(
    slopes(lambda h: right_slopes(h) * 0.5)
)
slip("ALiBi not scaled", "the bias of ALiBi is not scaled as the scores are", tried=("falcon-rw",))(
    slopes(lambda h: right_slopes(h) * 2)
)
