"""Slips of mixtures of experts, gated networks and latent attention, for make_slips.py.

Each case changes the last mixture or attention of a model of transformers: the function of its router, of its experts
or of the block around them, its parameters, or the function that rotates.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from make_slips import Port, last_attention, own, slip, turned
from torch import nn
from torch.nn.functional import gelu, linear, silu

MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v2", "deepseek_v2-greedy", "deepseek_v3")
LATENT = ("deepseek_v2", "deepseek_v2-greedy", "deepseek_v3", "deepseek_v3-halves")

mixture = functools.partial(slip, tried=MIXTURES)
latent = functools.partial(slip, tried=LATENT)


def last_block(port: Port) -> nn.Module:
    return [module for module in port.model.modules() if hasattr(module, "experts")][-1]


def router_of(block: nn.Module) -> nn.Module:
    return block.router if hasattr(block, "router") else block.gate


def shared_of(block: nn.Module) -> nn.Module | None:
    return getattr(block, "shared_expert", getattr(block, "shared_experts", None))


# the router


def wrong_router(**changes: Any) -> Callable[[Port], list[Any]]:
    """The router of the last mixture with some of its rules changed."""

    def apply(port: Port) -> list[Any]:
        gate, known = router_of(last_block(port)), port.config.experts
        rules = {name: getattr(known, name) for name in known.__dataclass_fields__} | {
            name: value(known) if callable(value) else value for name, value in changes.items()
        }
        correction = getattr(gate, "e_score_correction_bias", torch.zeros(known.count))

        def forward(x):
            logits = linear(x.reshape(-1, x.shape[-1]), gate.weight, getattr(gate, "bias", None)).float()
            score = rules["score"]
            scores = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "chosen": logits}[score]
            choice = scores if rules.get("uncorrected") else scores + correction
            if rules["groups"] > 1:
                groups = choice.reshape(len(choice), rules["groups"], -1)
                best = groups.topk(rules["group_best"], dim=-1).values.sum(-1).topk(rules["chosen_groups"], dim=-1)
                kept = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, best.indices, True)
                choice = groups.masked_fill(~kept[..., None], -torch.inf).reshape(choice.shape)
            chosen = choice.topk(rules["chosen"], dim=-1).indices
            gates = (scores + correction if rules.get("corrected_gates") else scores).gather(1, chosen)
            gates = gates.softmax(-1) if score == "chosen" else gates
            gates = gates / gates.sum(-1, keepdim=True) if rules["renormalizes"] else gates
            return logits.to(x.dtype), (gates * rules["scale"]).to(x.dtype), chosen

        return [mock.patch.object(gate, "forward", forward)]

    return apply


def of_router(key: str, *names: str, families: Callable[[Port], bool] = lambda port: True, **changes: Any) -> None:
    mixture(key, *names, families=families)(wrong_router(**changes))


SOFT_CHOSEN = "the gates are softmax over the chosen experts alone"
DIVIDED = "the gates of the chosen experts are divided by their sum"

of_router("router as it is", "", families=lambda p: False)
of_router(
    "gates not divided", "the gates of the chosen experts are not divided by their sum",
    families=lambda p: p.config.experts.renormalizes, renormalizes=False,
)  # fmt: skip
of_router(
    "gates divided", DIVIDED,
    families=lambda p: not p.config.experts.renormalizes and p.config.experts.score == "softmax", renormalizes=True,
)  # fmt: skip
of_router(
    "softmax after top-k", SOFT_CHOSEN, DIVIDED,
    families=lambda p: p.config.experts.score == "softmax", score="chosen", renormalizes=False,
)  # fmt: skip
of_router(
    "softmax before top-k", "the gates are softmax over all experts",
    families=lambda p: p.config.experts.score == "chosen", score="softmax",
)  # fmt: skip
of_router(
    "softmax for sigmoid", "the gates are softmax over all experts",
    families=lambda p: p.config.experts.score == "sigmoid", score="softmax",
)  # fmt: skip
of_router(
    "sigmoid for softmax", "the gates are sigmoids", families=lambda p: p.config.experts.score != "sigmoid",
    score="sigmoid",
)  # fmt: skip
of_router("one expert", "1 expert computes each token", chosen=1)
of_router("one expert fewer", "{fewer} experts compute each token",
          families=lambda p: p.config.experts.chosen > 2, chosen=lambda known: known.chosen - 1)  # fmt: skip
of_router("one expert more", "{more} experts compute each token", chosen=lambda known: known.chosen + 1)
of_router("no gate factor", "the factor of the gates is missing",
          families=lambda p: p.config.experts.scale != 1, scale=1.0)  # fmt: skip
of_router("gate factor twice", "the factor of the gates is applied twice",
          families=lambda p: p.config.experts.scale != 1, scale=lambda known: known.scale**2)  # fmt: skip
of_router("groups ignored", "the groups of experts are ignored",
          families=lambda p: p.config.experts.groups > 1, groups=1)  # fmt: skip
of_router("groups by one expert", "the score of a group is the sum of its 1 best",
          families=lambda p: p.config.experts.group_best == 2, group_best=1)  # fmt: skip
of_router("no correction", "the correction of the choice of experts is missing",
          families=lambda p: p.family == "deepseek_v3", uncorrected=True)  # fmt: skip
of_router("correction in the gates", "the correction of the choice of experts is in the gates too",
          families=lambda p: p.family == "deepseek_v3", corrected_gates=True)  # fmt: skip


@mixture("no router bias", "the bias router_bias is missing", families=lambda p: p.family == "gpt_oss")
def no_router_bias(port: Port):
    nn.init.zeros_(router_of(last_block(port)).bias)
    return []


# the experts


def wrong_experts(instead=lambda number, count: number, **changes: Any) -> Callable[[Port], list[Any]]:
    """The experts of the last mixture with something wrong in each."""

    def apply(port: Port) -> list[Any]:
        experts = last_block(port).experts
        is_oss, count = port.family == "gpt_oss", port.config.experts.count
        cut = changes.get("cut", "alternate" if is_oss else "halves")
        limit, plus = (0.6, 1.0) if is_oss else (torch.inf, 0.0)
        limit, plus = changes.get("limit", limit), changes.get("plus", plus)
        activation = changes.get("activation", (lambda x: x * torch.sigmoid(1.702 * x)) if is_oss else silu)

        def one(x, number):
            up_weight, down_weight = experts.gate_up_proj[number], experts.down_proj[number]
            up_weight, down_weight = (w if is_oss else w.T for w in (up_weight, down_weight))
            both, bias = x @ up_weight, 0.0
            if is_oss:
                both = both + experts.gate_up_proj_bias[number] * (not changes.get("no_up_bias"))
                bias = experts.down_proj_bias[number] * (not changes.get("no_down_bias"))
            gate, up = (both[..., ::2], both[..., 1::2]) if cut == "alternate" else both.chunk(2, dim=-1)
            gate, up = (up, gate) if changes.get("exchanged") else (gate, up)
            return (activation(gate.clamp(max=limit)) * (up.clamp(-limit, limit) + plus)) @ down_weight + bias

        def forward(x, chosen, gates):
            y = torch.zeros_like(x)
            for token, rank in torch.cartesian_prod(torch.arange(len(x)), torch.arange(chosen.shape[1])).tolist():
                gate, number = gates[token, rank], instead(int(chosen[token, rank]), count)
                if changes.get("gates") == "input":
                    y[token] += one(x[token] * gate, number)
                else:
                    y[token] += one(x[token], number) * (1 if changes.get("gates") == "none" else gate)
            return y

        return [mock.patch.object(experts, "forward", forward)]

    return apply


def is_oss(port: Port) -> bool:
    return port.family == "gpt_oss"


mixture("gate and up of experts", "gate and up are exchanged")(wrong_experts(exchanged=True))
mixture("gate and up of experts alternate", "gate and up are cut as alternating columns",
        families=lambda p: not is_oss(p))(wrong_experts(cut="alternate"))  # fmt: skip
mixture("gate and up of experts in halves", "gate and up are cut as halves", families=is_oss)(
    wrong_experts(cut="halves")
)
mixture("no 1 of the up projection", "the 1 that is added to the up projection is missing", families=is_oss)(
    wrong_experts(plus=0.0)
)
mixture("no bound of gate and up", "gate and up are not bounded by 0.6", families=is_oss)(
    wrong_experts(limit=torch.inf)
)
mixture("no biases of gate and up", "the biases of gate and up are missing", families=is_oss)(
    wrong_experts(no_up_bias=True)
)
mixture("no biases of the down projections", "the biases of the down projection are missing", families=is_oss)(
    wrong_experts(no_down_bias=True)
)
mixture("no biases of experts", "the biases of the experts are missing", families=is_oss)(
    wrong_experts(no_up_bias=True, no_down_bias=True)
)
mixture("experts with GELU", "the activation is gelu ")(wrong_experts(activation=gelu))
mixture("experts with tanh GELU", "the activation is gelu-tanh ")(
    wrong_experts(activation=functools.partial(gelu, approximate="tanh"))
)
mixture("experts with SiLU", "the activation is silu ", families=is_oss)(wrong_experts(activation=silu))
mixture("experts with ReLU", "the activation is relu ")(wrong_experts(activation=torch.relu))
mixture("experts without activation", "the activation is missing")(wrong_experts(activation=lambda x: x))
mixture("expert after", "each expert is the one after it")(wrong_experts(lambda number, count: (number + 1) % count))
mixture("expert before", "each expert is the one before it")(wrong_experts(lambda number, count: (number - 1) % count))
mixture("two experts exchanged", "experts 1 and 3 are exchanged", "expert 3 computes in place of expert 1",
        "expert 1 computes in place of expert 3")(  # where tokens chose one of the two alone
    wrong_experts(lambda number, count: {1: 3, 3: 1}.get(number, number))
)  # fmt: skip
mixture("an expert for another", "expert 2 computes in place of expert 4")(
    wrong_experts(lambda number, count: {4: 2}.get(number, number))
)
mixture("no gates", "the gates of the experts are not applied")(wrong_experts(gates="none"))
mixture("gates of the input", "the gates multiply the input of the experts")(wrong_experts(gates="input"))


# the network that all tokens share


def wrong_block(**changes: Any) -> Callable[[Port], list[Any]]:
    def apply(port: Port) -> list[Any]:
        block = last_block(port)

        def forward(hidden_states):
            x = hidden_states.reshape(-1, hidden_states.shape[-1])
            _, gates, chosen = router_of(block)(x)
            y, shared = block.experts(x, chosen, gates), shared_of(block)(x)
            if hasattr(block, "shared_expert_gate"):
                logit = block.shared_expert_gate(x)
                shared = shared * {"none": 1.0, "linear": logit}.get(changes.get("gate"), torch.sigmoid(logit))
            return (y + shared * changes.get("factor", lambda known: 1.0)(port.config.experts)).reshape(
                hidden_states.shape
            )

        return [mock.patch.object(block, "forward", forward)]

    return apply


def has_shared(port: Port) -> bool:
    return shared_of(last_block(port)) is not None


def has_shared_gate(port: Port) -> bool:
    return port.family == "qwen2_moe"


mixture("no shared expert", "the shared expert is missing", families=has_shared)(wrong_block(factor=lambda known: 0.0))
mixture("factor on the shared expert", "the factor of the gates multiplies the shared expert too",
        families=lambda p: has_shared(p) and p.config.experts.scale != 1)(
    wrong_block(factor=lambda known: known.scale)
)  # fmt: skip
mixture("no gate of the shared expert", "the gate of the shared expert is missing", families=has_shared_gate)(
    wrong_block(gate="none")
)
mixture("linear gate of the shared expert", "the gate of the shared expert is not a sigmoid",
        families=has_shared_gate)(wrong_block(gate="linear"))  # fmt: skip


@mixture("gate and up of the shared expert", "gate and up are exchanged", families=has_shared)
def shared_gate_and_up(port: Port):
    shared = shared_of(last_block(port))
    shared.gate_proj.weight, shared.up_proj.weight = shared.up_proj.weight, shared.gate_proj.weight
    return []


@mixture("shared expert with GELU", "the activation is gelu ", families=has_shared)
def shared_activation(port: Port):
    shared_of(last_block(port)).act_fn = nn.GELU()
    return []


# gated networks that are dense


def wrong_gate(change: Callable[[Any], Any]) -> Callable[[Port], list[Any]]:
    """The last dense network, whose gate and up are one projection, with both cut in another way."""

    def apply(port: Port) -> list[Any]:
        block = [module for module in port.model.modules() if hasattr(module, "gate_up_proj")][-1]

        def forward(x):
            gate, up = change(block.gate_up_proj(x))
            return block.down_proj(up * block.activation_fn(gate))

        return [mock.patch.object(block, "forward", forward)]

    return apply


slip("fused gate and up alternate", "gate and up are cut as alternating columns", tried=("phi3",))(
    wrong_gate(lambda both: (both[..., ::2], both[..., 1::2]))
)
slip("fused gate and up exchanged", "gate and up are exchanged", tried=("phi3",))(
    wrong_gate(lambda both: both.chunk(2, dim=-1)[::-1])
)


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


@slip(
    "activation quick-gelu",
    "the activation is quick-gelu ",
    tried=("gpt2", "bert", "gemma", "phi"),
)
def quick_gelu(port: Port):
    names = ("act", "act_fn", "activation_fn", "intermediate_act_fn", "activation")
    path = [path for path, _ in port.model.named_modules() if path.rpartition(".")[2] in names and ".1." in path][-1]
    port.replace(path, QuickGelu())
    return []


# latent attention


def turn(change: Callable[..., Any]) -> Callable[[Port], list[Any]]:
    """Rotate queries and keys otherwise: change(q, k, cos, sin, is_interleaved) -> both."""

    def apply(port: Port) -> list[Any]:
        name = next(
            one
            for one in ("apply_rotary_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb")
            if hasattr(port.modeling, one)
            and (one != "apply_rotary_pos_emb_interleave" or port.family == "deepseek_v3")
        )

        def rotate(q, k, *angles, **kwargs):
            if len(angles) == 1:  # as complex numbers
                cos, sin = (torch.cat((one, one), dim=-1) for one in (angles[0].real, angles[0].imag))
            else:
                cos, sin = angles[:2]
            both = change(q, k, cos[:, None], sin[:, None], name != "apply_rotary_pos_emb")
            return tuple(one.to(q.dtype) for one in both)

        return [mock.patch.object(port.modeling, name, rotate)]

    return apply


latent("latent rotation in the other layout", "rotary pairs are ")(
    turn(lambda q, k, c, s, other: (turned(q, c, s, not other), turned(k, c, s, not other)))
)
latent("latent keys not rotated", "keys are not rotated")(turn(lambda q, k, c, s, own: (turned(q, c, s, own), k)))
latent("latent queries not rotated", "queries are not rotated")(turn(lambda q, k, c, s, own: (q, turned(k, c, s, own))))
latent("latent rotation missing", "queries are not rotated", "queries and keys are not rotated")(
    turn(lambda q, k, c, s, own: (q, k))
)
latent("latent rotation the other way", "the rotation turns the other way")(
    turn(lambda q, k, c, s, own: (turned(q, c, -s, own), turned(k, c, -s, own)))
)


for name, parameter in (("kv", "kv_a_layernorm"), ("q", "q_a_layernorm")):

    def no_latent_norm(port: Port, parameter=parameter):
        setattr(last_attention(port), parameter, nn.Identity())
        return []

    latent(
        f"no norm of the {name} latent", "the norm is missing",
        families=lambda p, one=parameter: getattr(last_attention(p), one, None) is not None,
    )(no_latent_norm)  # fmt: skip


@latent("1 + weight of the kv latent", "the norm multiplies by 1 + weight")
def latent_offset(port: Port):
    norm = own(last_attention(port).kv_a_layernorm)
    norm.weight = nn.Parameter(1 + norm.weight, requires_grad=False)
    return []


for name, width in (("content", "qk_nope_head_dim"), ("rotary", "qk_rope_head_dim"), ("value", "v_head_dim")):

    def other_scale(port: Port, width=width):
        module = last_attention(port)
        module.scaling = module.scaling * (module.qk_head_dim / getattr(module, width)) ** 0.5
        return []

    latent(f"latent scale of the {name}", f"the scale of the scores is 1/√{{{name}}}, of the {name} features")(
        other_scale
    )


def has_growth(port: Port) -> bool:
    module = last_attention(port)
    return abs(module.scaling * module.qk_head_dim**0.5 - 1) > 1e-6


@latent("no mscale", "the square of mscale is missing in the scale of the scores", families=has_growth)
def no_growth(port: Port):
    module = last_attention(port)
    module.scaling = module.qk_head_dim**-0.5
    return []


@latent("mscale once", "mscale is in the scale of the scores once", families=has_growth)
def growth_once(port: Port):
    module = last_attention(port)
    module.scaling = (module.scaling * module.qk_head_dim**-0.5) ** 0.5
    return []


@latent("yarn of latents ignored", "the scaling of rotary positions (yarn) is ignored", families=has_growth)
def no_yarn(port: Port):
    rotary = port.model.model.rotary_emb
    rotary.inv_freq = type(rotary).compute_default_rope_parameters(port.model.config)[0]
    rotary.attention_scaling = 1.0
    return []


def expand(cut: Callable[..., Any]) -> Callable[[Port], list[Any]]:
    """Cut keys and values out of what the latent expands to in another way: cut(fused, heads, content, value)."""

    def apply(port: Port) -> list[Any]:
        module = last_attention(port)

        def expand_kv(kv_nope, k_rot):
            fused = module.kv_b_proj(kv_nope)[:, 0]
            keys, values = cut(fused, module.num_heads, module.qk_nope_head_dim, module.v_head_dim)
            return torch.cat((keys, k_rot.expand(-1, module.num_heads, -1, -1)), dim=-1), values

        return [mock.patch.object(module, "expand_kv", expand_kv)]

    return apply


def heads_of(x, heads):
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


latent("latent keys before values", "keys and values are cut one after another")(
    expand(lambda x, h, c, v: (heads_of(x[..., : h * c], h), heads_of(x[..., h * c :], h)))
)
latent("latent values before keys", "each head has its values before its keys")(
    expand(lambda x, h, c, v: (heads_of(x, h)[..., v:], heads_of(x, h)[..., :v]))
)
