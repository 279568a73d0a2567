"""Slips of layers with a state space, and of the factors around them, for make_slips.py.

Each case changes the last mixer of a model of transformers, whose forward method is replaced by one that can go wrong,
or a factor of it.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from make_slips import Port, slip
from torch import nn
from torch.nn.functional import silu, softplus

PLAIN = ("mamba2", "mamba2-limit", "bamba", "granitemoehybrid")
FALCON = ("falcon_h1", "falcon_h1-norm", "falcon_h1-gate")

space = functools.partial(slip, tried=(*PLAIN, *FALCON))
falcon = functools.partial(slip, tried=FALCON)
granite = functools.partial(slip, tried=("granitemoehybrid", "granitemoehybrid-dense"))


def last_mixer(port: Port) -> nn.Module:
    return [module for module in port.model.modules() if hasattr(module, "A_log")][-1]


def last_layer(port: Port) -> nn.Module:
    return port.model.model.layers[-1]


def has_norm(port: Port) -> bool:
    return port.config.recall.norm_groups > 0


def gates_first(port: Port) -> bool:
    return has_norm(port) and port.config.recall.gates_first


def wrong_mixer(**changes: Any) -> Callable[[Port], list[Any]]:
    """The last mixer with some of its rules changed, token by token."""

    def apply(port: Port) -> list[Any]:
        mixer, recall = last_mixer(port), port.config.recall
        heads, groups, inner = recall.heads, recall.key_heads, recall.heads * recall.value

        def convolve(x: torch.Tensor) -> torch.Tensor:
            taps, bias = mixer.conv1d.weight, mixer.conv1d.bias
            taps = taps.flip(-1) if changes.get("turned") else taps
            before = recall.taps - 1 + changes.get("late", 0)
            x = nn.functional.pad(x.transpose(1, 2), (before, max(-changes.get("late", 0), 0)))
            bias = None if changes.get("no_conv_bias") else bias
            y = nn.functional.conv1d(x, taps, bias, groups=len(taps))[
                ..., : -changes["late"] if changes.get("late", 0) > 0 else None
            ]
            y = y.transpose(1, 2)
            return y if changes.get("no_activation") else silu(y)

        def repeat(x: torch.Tensor) -> torch.Tensor:
            x = x.unflatten(-1, (groups, recall.key))
            if changes.get("first"):
                return x[..., :1, :].expand(*x.shape[:-2], heads, x.shape[-1])
            each = heads // groups
            return x.repeat(1, 1, each, 1) if changes.get("in_turn") else x.repeat_interleave(each, dim=2)

        def forward(hidden_states, cache_params=None, attention_mask=None, **kwargs):
            mask = 1 if attention_mask is None else attention_mask[:, :, None].to(hidden_states.dtype)
            projected = mixer.in_proj(hidden_states * mask * getattr(mixer, "ssm_in_multiplier", 1.0))
            projected = projected * getattr(mixer, "mup_vector", 1.0)
            keys = groups * recall.key
            gate, mixed, dt = projected.split([inner, inner + 2 * keys, heads], dim=-1)
            mixed = convolve(mixed)
            mixed = mixed if changes.get("no_second_mask") else mixed * mask
            x, k, q = mixed.split([inner, keys, keys], dim=-1)
            x, k, q = x.unflatten(-1, (heads, recall.value)).float(), repeat(k).float(), repeat(q).float()
            dt = dt if changes.get("no_dt_bias") else dt + mixer.dt_bias
            dt = dt if changes.get("no_softplus") else softplus(dt)
            dt = dt if changes.get("no_limits") else dt.clamp(*recall.step_limits)
            rate = {"sign": mixer.A_log.float().exp(), "log": mixer.A_log.float()}.get(
                changes.get("rate"), -mixer.A_log.float().exp()
            )
            state, read = torch.zeros(len(x), heads, recall.value, recall.key), []
            for t in range(x.shape[1]):
                decay = 1.0 if changes.get("no_decay") else (dt[:, t].float() * rate).exp()[..., None, None]
                written = x[:, t] if changes.get("no_strength") else x[:, t] * dt[:, t, :, None].float()
                state = state * decay + written[..., None] * k[:, t, :, None]
                read.append((state @ q[:, t, ..., None])[..., 0])
            y = torch.stack(read, dim=1)
            skipped = x * dt[..., None].float() if changes.get("skips_written") else x
            y = y if changes.get("no_skip") else y + mixer.D[:, None] * skipped
            y = y.flatten(2).to(hidden_states.dtype)
            if has_norm(port):
                return mixer.out_proj(mixer.norm(y, gate))
            gate = torch.sigmoid(gate) if changes.get("sigmoid_gate") else silu(gate)
            return mixer.out_proj(y if changes.get("no_gate") else y * gate)

        return [mock.patch.object(mixer, "forward", forward)]

    return apply


def wrong_norm(groups: Any = None, order: str = "", **changes: Any) -> Callable[[Port], list[Any]]:
    """The norm of what is read, and its gate, in the last mixer."""

    def apply(port: Port) -> list[Any]:
        norm, recall = last_mixer(port).norm, port.config.recall
        parts = {"heads": recall.heads, None: recall.norm_groups}.get(groups, groups)
        is_first = {"gate": True, "norm": False}.get(order, recall.gates_first)

        def forward(x, gate=None):
            factor = torch.sigmoid(gate) if changes.get("sigmoid_gate") else silu(gate)
            factor = 1.0 if changes.get("no_gate") else factor
            y = x * factor if is_first else x
            if not changes.get("no_norm"):
                split = y.unflatten(-1, (parts, -1)).float()
                split = split * (split.square().mean(-1, keepdim=True) + port.config.eps).rsqrt()
                y = split.flatten(-2).to(x.dtype)
                y = y if changes.get("no_weight") else y * norm.weight
            return y if is_first else y * factor

        return [mock.patch.object(norm, "forward", forward)]

    return apply


def of_mixer(key: str, *names: str, families=lambda port: True, padded: bool = False, **changes: Any) -> None:
    space(key, *names, families=families, padded=padded)(wrong_mixer(**changes))


def of_norm(key: str, *names: str, families=has_norm, **changes: Any) -> None:
    space(key, *names, families=families)(wrong_norm(**changes))


of_mixer("mixer as it is", "", families=lambda p: False)
of_mixer("step without softplus", "the step Δ is not softplus of its projection", no_softplus=True)
of_mixer("no bias of the step", "the bias dt_bias of the step Δ is missing", no_dt_bias=True)
of_mixer("no limits of the step", "the step Δ is not limited to",
         families=lambda p: p.config.recall.step_limits != (0, float("inf")), no_limits=True)  # fmt: skip
of_mixer("sign of A", "the state grows: the sign of the rate A is wrong", rate="sign")
of_mixer("A_log for A", "A_log is taken for the rate A = −e^A_log", rate="log")
of_mixer("no D", "D times the values is missing", no_skip=True)
of_mixer("D after the step", "D is multiplied by the values times Δ", skips_written=True)
of_mixer("no decay of a state space", "the state does not decay", no_decay=True)
of_mixer("x without the step", "what is written is not multiplied by its strength, β or Δ", no_strength=True)
of_mixer("groups in turn", "key heads are repeated in turn, not in blocks", in_turn=True)
of_mixer("first group", "all heads read the queries and keys of the first group", first=True)
of_mixer("taps turned round", "the taps of the convolution are turned around", turned=True)
of_mixer("convolution late", "the convolution is shifted by one: a token does not see itself", late=1)
of_mixer("convolution early", "the convolution is shifted by one: a token sees the next one", late=-1)
of_mixer("no activation of the convolution", "the activation is missing", no_activation=True)
of_mixer("no bias of the convolution of a state space", "the bias of the convolution is missing",
         families=lambda p: last_mixer(p).conv1d.bias is not None, no_conv_bias=True)  # fmt: skip
of_mixer("no second mask", "padding is written to the state",
         families=lambda p: last_mixer(p).conv1d.bias is not None and last_mixer(p).in_proj.bias is None,
         padded=True, no_second_mask=True)  # fmt: skip
of_mixer("no gate", "the gate is not applied", families=lambda p: not has_norm(p), no_gate=True)
of_mixer("sigmoid for silu", "the gate is sigmoid", families=lambda p: not has_norm(p), sigmoid_gate=True)
of_norm("norm before the gate", "the norm precedes the gate", families=gates_first, order="norm")
of_norm("norm after the gate", "the norm follows the gate",
        families=lambda p: has_norm(p) and not p.config.recall.gates_first, order="gate")  # fmt: skip
of_norm("norm of all features", "the norm is of all features", groups=1)
of_norm("norm of heads", "the norm is of each head", groups="heads")
of_norm("no gate beside the norm", "the gate is not applied", no_gate=True)
of_norm("sigmoid beside the norm", "the gate is sigmoid", sigmoid_gate=True)
of_norm("no norm of a state space", "the norm of what is read is missing", no_norm=True)
of_norm("no weights of the norm", "the weights of the norm of what is read are missing", no_weight=True)


def set_factor(owner: Callable[[Port], Any], name: str, value: Any = 1.0) -> Callable[[Port], list[Any]]:
    """Another value of a factor that a module keeps."""

    def apply(port: Port) -> list[Any]:
        setattr(owner(port), name, value(port) if callable(value) else value)
        return []

    return apply


def set_part(first: int) -> Callable[[Port], list[Any]]:
    """One of the five factors of the projection of a state space is 1."""

    def apply(port: Port) -> list[Any]:
        mixer, recall = last_mixer(port), port.config.recall
        inner, keys = recall.heads * recall.value, recall.key_heads * recall.key
        sizes = [inner, inner, keys, keys, recall.heads]
        start = sum(sizes[:first])
        mixer.mup_vector[..., start : start + sizes[first]] = 1.0
        return []

    return apply


falcon("no factor before attention", "the factor 1.2 of what follows decoder.2.norm2 is missing")(
    set_factor(last_layer, "attention_in_multiplier")
)
falcon("no factor after attention", "the multiplier of the residual branch is missing")(
    set_factor(last_layer, "attn_out_multiplier")
)
falcon("no factor before the state", "the factor 0.9 of what follows decoder.2.norm1 is missing")(
    set_factor(last_mixer, "ssm_in_multiplier")
)
falcon("no factor after the state", "the multiplier of the residual branch is missing")(
    set_factor(last_layer, "ssm_out_multiplier")
)
falcon("no key factor", "the factor 1.4 of the keys is missing")(
    set_factor(lambda port: last_layer(port).self_attn, "key_multiplier")
)
falcon("no factor before silu", "the factor 1.3 of what the activation reads is missing")(
    set_factor(lambda port: last_layer(port).feed_forward, "gate_multiplier")
)
falcon("no factor of the network", "the multiplier of the residual branch is missing")(
    set_factor(lambda port: last_layer(port).feed_forward, "down_multiplier")
)
falcon("no factor of the logits", "the scale of the logits is missing")(
    set_factor(lambda port: port.model.model, "lm_head_multiplier")
)
falcon("no factor of the embeddings", "the factor 2.5 of the embeddings is missing")(
    set_factor(lambda port: port.model.model, "embedding_multiplier")
)
for number, (letter, factor) in enumerate(
    zip(("gate", "v_projected", "k_projected", "q_projected"), ("0.8", "1.5", "1.25", "0.75"), strict=True)
):
    falcon(f"no factor of {letter}", f"the factor {factor} of decoder.2.recall.{letter} is missing")(set_part(number))
falcon("no factor of the step", "the factor 1.1 of the projection of the step Δ is missing")(set_part(4))
granite("logits times their divisor", "the logits are multiplied by")(
    set_factor(lambda port: port.model.config, "logits_scaling", lambda port: 1 / port.model.config.logits_scaling)
)
