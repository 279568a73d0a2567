"""Slips of short convolutions, for make_slips.py: their thirds, taps, windows, gates, and padding in them."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from make_slips import Port, slip
from torch import nn
from torch.nn import functional

TRIED = ("lfm2", "lfm2-biases")


def last_mixer(port: Port) -> nn.Module:
    return [module for module in port.model.modules() if hasattr(module, "conv") and hasattr(module, "in_proj")][-1]


def in_thirds(order: str) -> Callable[[Port], list[Any]]:
    """The rows of the projection in another order: what is taken as B, C and x."""

    def apply(port: Port) -> list[Any]:
        own = last_mixer(port).in_proj
        parts = dict(zip("bcx", range(3), strict=True))
        for parameter in filter(lambda one: one is not None, (own.weight, own.bias)):
            thirds = parameter.detach().chunk(3)
            taken = {name: thirds[order.index(name)] for name in "bcx"}
            parameter.data = torch.cat([taken[name] for name in parts])
        return []

    return apply


slip("B and C exchanged", "the thirds of the short convolution are taken as C, B, x (they are stored as B, C, x)",
     tried=TRIED)(in_thirds("cbx"))  # fmt: skip
slip("x is the first third", "the thirds of the short convolution are taken as x, B, C (they are stored as B, C, x)",
     tried=TRIED)(in_thirds("xbc"))  # fmt: skip


def instead(function: Callable[[torch.Tensor, torch.Tensor, Any, int], torch.Tensor]) -> Callable[[Port], list[Any]]:
    """Another convolution of the last layer: (x (B, D, T), taps (D, K), bias, K) -> (B, D, T)."""

    def apply(port: Port) -> list[Any]:
        weight, known = last_mixer(port).conv.weight, port.modeling.causal_conv1d_fn

        def convolve(x: torch.Tensor, taps: torch.Tensor, bias: Any = None, *others: Any, **more: Any) -> torch.Tensor:
            if taps.data_ptr() != weight.data_ptr():
                return known(x, taps, bias, *others, **more)
            return function(x, taps, bias, taps.shape[1])

        return [mock.patch.object(port.modeling, "causal_conv1d_fn", convolve)]

    return apply


def run(x: torch.Tensor, taps: torch.Tensor, bias: Any, before: int, after: int) -> torch.Tensor:
    return functional.conv1d(functional.pad(x, (before, after)), taps[:, None], bias, groups=len(taps))


slip("taps turned around", "the taps of the convolution are turned around", tried=TRIED)(
    instead(lambda x, taps, bias, k: run(x, taps.flip(1), bias, k - 1, 0))
)
slip("convolution a token late", "the convolution is shifted by one: a token does not see itself", tried=TRIED)(
    instead(lambda x, taps, bias, k: run(x, taps, bias, k, -1))
)
slip("convolution a token early", "the convolution is shifted by one: a token sees the next one", tried=TRIED)(
    instead(lambda x, taps, bias, k: run(x, taps, bias, k - 2, 1))
)
slip(
    "convolution of later tokens",
    "the convolution sees the tokens after a token, not those before it (the last outputs are kept)",
    tried=TRIED,
)(instead(lambda x, taps, bias, k: run(x, taps, bias, 0, k - 1)))
slip("convolution with silu", "an activation (silu) follows the convolution", tried=TRIED)(
    instead(lambda x, taps, bias, k: functional.silu(run(x, taps, bias, k - 1, 0)))
)
slip(
    "no bias of the convolution",
    "the bias of the convolution is missing",
    families=lambda port: port.family == "lfm2-biases",
    tried=TRIED,
)(instead(lambda x, taps, bias, k: run(x, taps, None, k - 1, 0)))
slip("padding in the windows", "padding enters the windows of the convolution", padded=True, tried=TRIED)(
    lambda port: [mock.patch.object(port.modeling, "apply_mask_to_padding_states", lambda x, mask: x)]
)

slip(  # in transformers 5.23 itself
    "biases of padding in the windows",
    "padding is set to 0 before the projection, whose biases enter the windows of the convolution",
    padded=True,
    families=lambda port: port.family == "lfm2-biases",
    tried=TRIED,
)(lambda port: [])


def with_gates(before: bool, after: bool) -> Callable[[Port], list[Any]]:
    """The last short convolution without one of its gates."""

    def apply(port: Port) -> list[Any]:
        mixer = last_mixer(port)

        def forward(hidden_states: torch.Tensor, **others: Any) -> torch.Tensor:
            b, c, x = mixer.in_proj(hidden_states).transpose(-1, -2).chunk(3, dim=-2)
            taps = mixer.conv.weight[:, 0]
            y = run(b * x if before else x, taps, mixer.conv.bias, taps.shape[1] - 1, 0)
            return mixer.out_proj((c * y if after else y).transpose(-1, -2))

        return [mock.patch.object(mixer, "forward", forward)]

    return apply


slip("no gate before the convolution", "the gate before the convolution is missing", tried=TRIED)(
    with_gates(before=False, after=True)
)
slip("no gate after the convolution", "the gate after the convolution is missing", tried=TRIED)(
    with_gates(before=True, after=False)
)
