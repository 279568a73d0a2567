"""Outputs of PyTorch, frozen: the arrays that tests/model/test_frozen_references.py compares with.

    pip install torch==2.13.0 numpy==2.4.6
    python tests/references/make_references.py

writes one .npz a family beside this file, computed on the processor. Members CASE.ARRAY are inputs: float32
numbers, used as they are and widened to float64. Members CASE.DTYPE.y (and .weights) are what PyTorch made of
them in that dtype. Linear weights are stored (in, out).
"""

import pathlib

import numpy as np
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
RESULTS = ("y", "weights")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
Arrays = dict[str, np.ndarray]


def save(family: str, cases: dict) -> None:
    """Every case, made in both dtypes from the same float32 numbers."""
    members: Arrays = {}
    for case, make in cases.items():
        for name, dtype in DTYPES.items():
            generator = torch.Generator().manual_seed(17)
            torch.manual_seed(17)
            arrays = make(dtype, lambda *shape, g=generator, d=dtype: torch.randn(shape, generator=g).to(d))
            for key, value in arrays.items():
                if key in RESULTS:
                    members[f"{case}.{name}.{key}"] = value.detach().numpy()
                else:
                    narrow = value.float() if value.is_floating_point() else value
                    assert torch.equal(narrow.to(value.dtype), value), f"{case} {key} is not exact in float32"
                    members[f"{case}.{key}"] = narrow.detach().numpy()
    np.savez_compressed(HERE / f"{family}.npz", **members)


def sdpa(kind: str):
    def make(dtype, randn):
        heads, groups = (4, 2) if kind == "grouped" else (2, 2)
        q, k, v = randn(2, heads, 5, 4), randn(2, groups, 7, 4), randn(2, groups, 7, 3)
        given = {"q": q, "k": k, "v": v}
        options = {}
        if kind == "causal":
            options["is_causal"] = True
        if kind == "scale":
            options["scale"] = 0.3
        if kind == "grouped":
            options["enable_gqa"] = True
        if kind == "bool-mask":
            given["mask"] = randn(2, 1, 5, 7) > 0
            given["mask"][0, 0, 1] = False  # a row that may not attend to any key
            options["attn_mask"] = given["mask"]
        if kind == "float-mask":
            given["mask"] = options["attn_mask"] = randn(2, 2, 5, 7)
        return given | {"y": nn.functional.scaled_dot_product_attention(q, k, v, **options)}

    return make


def projections(module: nn.MultiheadAttention, prefix: str = "") -> dict[str, torch.Tensor]:
    wq, wk, wv = module.in_proj_weight.chunk(3)
    bq, bk, bv = module.in_proj_bias.chunk(3)
    named = {"wq": wq.T, "wk": wk.T, "wv": wv.T, "wo": module.out_proj.weight.T}
    named |= {"bq": bq, "bk": bk, "bv": bv, "bo": module.out_proj.bias}
    return {prefix + name: array for name, array in named.items()}


def varied(module: nn.Module, dtype) -> nn.Module:
    """The module with no parameter left at zero or one, where a mistake would not show."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.to(dtype).eval()


def multi_head(kind: str):
    def make(dtype, randn):
        module = varied(nn.MultiheadAttention(8, 2, batch_first=True), dtype)
        x, memory = randn(2, 4, 8), randn(2, 6, 8)
        context = x if kind == "self" else memory
        lengths = torch.tensor([6, 3])
        ignored = torch.arange(6) >= lengths[:, None] if kind == "padding" else None
        y, weights = module(x, context, context, key_padding_mask=ignored, average_attn_weights=False)
        given = {"x": x, "context": context, "lengths": lengths} | projections(module)
        return given | {"y": y, "weights": weights}

    return make


def norm(kind: str):
    def make(dtype, randn):
        x = randn(3, 4, 6) * 4
        if kind == "layer-axes":
            module = varied(nn.LayerNorm((4, 6), eps=1e-3), dtype)
        else:
            kinds = {
                "layer": nn.LayerNorm,
                "rms": nn.RMSNorm,
                "batch": nn.BatchNorm1d,
                "running": nn.BatchNorm1d,
            }
            module = varied(kinds[kind](6, eps=1e-5), dtype)
        given = {"x": x, "gamma": module.weight}
        if kind == "running":
            module.running_mean, module.running_var = randn(6), randn(6).abs()
            given |= {"mean": module.running_mean, "variance": module.running_var}
        if kind == "batch":
            module.train()
        if getattr(module, "bias", None) is not None:
            given["beta"] = module.bias
        features_last = x.swapaxes(-1, -2) if kind in ("batch", "running") else x
        y = module(features_last)
        return given | {"y": y.swapaxes(-1, -2) if kind in ("batch", "running") else y}

    return make


def layer(kind: str, norm_first: bool, activation: str):
    def make(dtype, randn):
        constructor = {"encoder": nn.TransformerEncoderLayer, "decoder": nn.TransformerDecoderLayer}[kind]
        module = constructor(8, 2, 12, 0.0, activation, norm_first=norm_first, batch_first=True)
        module = varied(module, dtype)
        x, memory = randn(2, 4, 8), randn(2, 5, 8)
        given = {"x": x} | projections(module.self_attn, "self.")
        for linear, (weight, bias) in {"linear1": ("w1", "b1"), "linear2": ("w2", "b2")}.items():
            given[f"ffn.{weight}"] = getattr(module, linear).weight.T
            given[f"ffn.{bias}"] = getattr(module, linear).bias
        for name in ("norm1", "norm2") + (("norm3",) if kind == "decoder" else ()):
            given[f"{name}.gamma"], given[f"{name}.beta"] = (
                getattr(module, name).weight,
                getattr(module, name).bias,
            )
        if kind == "encoder":
            return given | {"y": module(x)}
        given |= {"memory": memory} | projections(module.multihead_attn, "cross.")
        ignored = torch.ones(4, 4, dtype=torch.bool).triu(1)
        return given | {"y": module(x, memory, tgt_mask=ignored)}

    return make


def activation(function):
    def make(dtype, randn):
        x = torch.cat([randn(60) * 2, torch.arange(-9, 9.125, 0.25, dtype=dtype)])
        return {"x": x, "y": function(x)}

    return make


if __name__ == "__main__":
    save(
        "sdpa",
        {kind: sdpa(kind) for kind in ("plain", "causal", "bool-mask", "float-mask", "grouped", "scale")},
    )
    save("multi_head", {kind: multi_head(kind) for kind in ("self", "cross", "padding")})
    save("norms", {kind: norm(kind) for kind in ("layer", "layer-axes", "rms", "batch", "running")})
    save(
        "layers",
        {
            f"{kind}-{'pre' if norm_first else 'post'}-{name}": layer(kind, norm_first, name)
            for kind in ("encoder", "decoder")
            for norm_first in (False, True)
            for name in ("relu", "gelu")
        },
    )
    gelu_tanh = nn.GELU(approximate="tanh")
    functions = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu-tanh": gelu_tanh, "silu": nn.SiLU()}
    save("activations", {name: activation(function) for name, function in functions.items()})
