"""Slips of states by the gated delta rule, and of gates of heads, for make_slips.py.

Each case changes the last layer of its kind of a model of transformers: what its rule reads, the rule itself, its
convolution, its parameters, or the norm and the gate of what it reads.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from make_slips import Port, slip
from torch import nn
from torch.nn import functional

TRIED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
of_state = functools.partial(slip, tried=TRIED)
RULE = "torch_chunk_gated_delta_rule"


def last_mixer(port: Port) -> nn.Module:
    return [module for module in port.model.modules() if hasattr(module, "A_log")][-1]


def in_last_call(change: Callable[..., Any]) -> Callable[[Port], list[Any]]:
    """The rule of the last layer as (rule, q, k, v, options) -> its result; q, k, v (B, T, H, K)."""

    def apply(port: Port) -> list[Any]:
        count, calls = sum(hasattr(module, "A_log") for module in port.model.modules()), []
        known = getattr(port.modeling, RULE)

        def rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
            calls.append(None)
            return known(q, k, v, **options) if len(calls) < count else change(known, q, k, v, options)

        return [mock.patch.object(port.modeling, RULE, rule)]

    return apply


def with_options(**changes: Any) -> Callable[[Port], list[Any]]:
    """The rule with other options, each a function of the usual one."""

    def change(rule: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        return rule(q, k, v, **options | {name: make(options[name]) for name, make in changes.items()})

    return in_last_call(change)


of_state("beta without sigmoid", "the activation is missing (expected sigmoid)")(
    with_options(beta=lambda beta: torch.logit(beta.double()).to(beta.dtype))
)
of_state("no beta", "what is written is not multiplied by its strength, β or Δ")(with_options(beta=torch.ones_like))
of_state("sign of g", "the state grows: the sign of the rate A is wrong")(with_options(g=torch.neg))
of_state("no decay", "the state does not decay")(with_options(g=torch.zeros_like))
of_state("queries and keys of any length", "queries and keys are not normalized to length 1")(
    with_options(use_qk_l2norm_in_kernel=lambda usual: False)
)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def mean_length(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


@of_state("length by the mean", "queries and keys are divided by √(mean x² + eps), not by √(Σ x² + eps)")
@in_last_call
def by_mean(rule: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
    return rule(mean_length(q), mean_length(k), v, **options | {"use_qk_l2norm_in_kernel": False})


@of_state("heads of values in turn", "key heads are repeated in turn, not in blocks")
@in_last_call
def in_turn(rule: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
    return rule(*(one.repeat(1, 1, v.shape[2] // one.shape[2], 1) for one in (q, k)), v, **options)


def by_token(order: str) -> Callable[[Port], list[Any]]:
    """The rule token by token, with a mistake."""

    def change(rule: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        times, beta, decay = v.shape[2] // k.shape[2], options["beta"].double(), options["g"].double().exp()
        q, k = (unit(one.double()).repeat_interleave(times, 2) for one in (q, k))
        q, wide = q * q.shape[-1] ** -0.5, v.double()
        now = torch.zeros(*v.shape[:1], *v.shape[2:3], k.shape[-1], v.shape[-1], dtype=torch.double)
        read = []
        for t in range(v.shape[1]):
            before, factor = now, decay[:, t, :, None, None]
            now = now if order == "decayed late" else now * factor
            held = (k[:, t, :, :, None] * (before if order == "undecayed" else now)).sum(-2)
            error = wide[:, t] if order == "no delta" else wide[:, t] - held
            now = now + k[:, t, :, :, None] * (beta[:, t, :, None] * error)[:, :, None]
            read.append((q[:, t, :, :, None] * (before if order == "read first" else now)).sum(-2))
            now = now * factor if order == "decayed late" else now
        return torch.stack(read, 1).to(v.dtype), now.float()

    return in_last_call(change)


of_state("no delta rule", "what is written is v, not what the state lacks of it (the delta rule)")(by_token("no delta"))
of_state("read before it is written", "the state is read before it is written: no token reads itself")(
    by_token("read first")
)
of_state(
    "error against the undecayed state",
    "the error of the delta rule is against the state before its decay, not after it",
)(by_token("undecayed"))
of_state("decay after the writing", "the state decays after it is written, not before")(by_token("decayed late"))


def convolved(function: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]) -> Callable[[Port], list[Any]]:
    """Another convolution of the last layer: (x (B, C, T), taps (C, K), K) -> (B, C, T), before its activation."""

    def apply(port: Port) -> list[Any]:
        weight, known = last_mixer(port).conv1d.weight, port.modeling.causal_conv1d_fn

        def convolve(x: torch.Tensor, taps: torch.Tensor, bias: Any = None, **more: Any) -> torch.Tensor:
            if taps.data_ptr() != weight.data_ptr():
                return known(x, taps, bias, **more)
            return functional.silu(function(x, taps, taps.shape[1]))

        return [mock.patch.object(port.modeling, "causal_conv1d_fn", convolve)]

    return apply


def run(x: torch.Tensor, taps: torch.Tensor, before: int, after: int) -> torch.Tensor:
    return functional.conv1d(functional.pad(x, (before, after)), taps[:, None], groups=len(taps))


of_state("convolution of a state a token late", "the convolution is shifted by one: a token does not see itself")(
    convolved(lambda x, taps, k: run(x, taps, k, -1))
)
of_state("taps of a state turned around", "the taps of the convolution are turned around")(
    convolved(lambda x, taps, k: run(x, taps.flip(1), k - 1, 0))
)
of_state("no silu after the convolution", "the activation is missing (expected silu)")(
    lambda port: [
        mock.patch.object(
            port.modeling,
            "causal_conv1d_fn",
            functools.partial(plain_convolution, port.modeling.causal_conv1d_fn, last_mixer(port).conv1d.weight),
        )
    ]
)


def plain_convolution(known: Any, weight: Any, x: torch.Tensor, taps: torch.Tensor, bias: Any = None, **more: Any):
    more = more | {"activation": None} if taps.data_ptr() == weight.data_ptr() else more
    return known(x, taps, bias, **more)


of_state(
    "padding in a state",
    "padding is written to the state",
    padded=True,
)(lambda port: [mock.patch.object(port.modeling, "apply_mask_to_padding_states", lambda x, mask: x)])


def with_norm(forward: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Port], list[Any]]:
    """The norm and the gate of what the last layer reads: (module, x, gate) -> x."""

    def apply(port: Port) -> list[Any]:
        norm = last_mixer(port).norm
        return [mock.patch.object(norm, "forward", functools.partial(forward, norm))]

    return apply


def rms(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return norm.weight * x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).to(x.dtype)


of_state("no gate of a state", "the gate is not applied")(with_norm(lambda norm, x, gate: rms(norm, x)))
of_state("sigmoid gate of a state", "the gate is sigmoid (expected silu)")(
    with_norm(lambda norm, x, gate: rms(norm, x) * gate.sigmoid())
)
of_state("gate of a state before the norm", "the norm follows the gate, it does not precede it")(
    with_norm(lambda norm, x, gate: rms(norm, x * functional.silu(gate)))
)
of_state("no norm of a state", "the norm of what is read is missing")(
    with_norm(lambda norm, x, gate: x * functional.silu(gate))
)


@of_state("1 + weight of a state", "the norm multiplies by 1 + weight, not by weight")
def one_more(port: Port) -> None:
    last_mixer(port).norm.weight.data += 1


@of_state("no dt_bias", "the bias dt_bias of the step Δ is missing")
def no_bias(port: Port) -> None:
    last_mixer(port).dt_bias.data.zero_()


@of_state("A_log as A", "A_log is taken for the rate A = −e^A_log")
def logarithm(port: Port) -> list[Any]:
    rate = last_mixer(port).A_log.detach()
    return with_options(g=lambda g: g * (rate / -rate.exp()).to(g.dtype))(port)


# gates of heads


def halves(x: torch.Tensor, count: int, dim: int = -1) -> Any:
    if x.ndim != 4:
        return x.chunk(count, dim=dim)
    return tuple(one.reshape(*x.shape[:-1], -1) for one in x.flatten(-2).split(x.flatten(-2).shape[-1] // 2, -1))


of_state(
    "queries and gates in halves",
    "queries and gates are the halves of their projection (it has those of each head by turns)",
)(lambda port: [mock.patch.object(torch, "chunk", halves)])
of_state("no gate of heads", "the gate is not applied")(
    lambda port: [mock.patch.object(torch, "sigmoid", torch.ones_like)]
)
of_state("silu gate of heads", "the gate is silu (expected sigmoid)")(
    lambda port: [mock.patch.object(torch, "sigmoid", functional.silu)]
)
