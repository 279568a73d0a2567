"""Gradients of attention by PyTorch's autograd, frozen: what tests/model/backward/test_attention.py compares with.

    pip install torch==2.13.0 numpy==2.4.6
    python tests/references/make_attention_gradients.py

writes attention_gradients.npz beside this file, computed on the processor. Members CASE.ARRAY are inputs, float32
numbers; members CASE.grad.ARRAY are the float64 gradients of sum(output * grad_output) with respect to them. Linear
weights are stored (in, out).
"""

import math
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

HERE = pathlib.Path(__file__).parent
INF = math.inf
Arrays = dict[str, torch.Tensor]


def softmax_attention(scores, v, allowed=None, softcap=0.0, bias=None):
    """The average of the values by the softmax of the scores; a query without keys gets zeros."""
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -INF)
        empty = ~allowed.expand_as(scores).any(-1, keepdim=True)
        scores = scores.masked_fill(empty, 0.0)
        return torch.softmax(scores, -1).masked_fill(empty, 0.0) @ v
    return torch.softmax(scores, -1) @ v


def scaled(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def operands(randn, heads=2, groups=2, queries=5, keys=7) -> Arrays:
    return {"q": randn(2, heads, queries, 4), "k": randn(2, groups, keys, 4), "v": randn(2, groups, keys, 3)}


def grid(queries, keys, offset=0):
    return torch.arange(queries)[:, None] + offset, torch.arange(keys)


def plain(x: Arrays):
    return scaled_dot_product_attention(x["q"], x["k"], x["v"])


def causal(x: Arrays):
    return scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True)


def scale(x: Arrays):
    return scaled_dot_product_attention(x["q"], x["k"], x["v"], scale=0.3)


def grouped(x: Arrays):
    return scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True, enable_gqa=True)


def float_mask(x: Arrays):
    return scaled_dot_product_attention(x["q"], x["k"], x["v"], attn_mask=x["mask"])


def bool_mask(x: Arrays):
    return softmax_attention(scaled(x["q"], x["k"]), x["v"], x["mask"])


def bottom_right(x: Arrays):
    i, j = grid(5, 7, 2)
    return softmax_attention(scaled(x["q"], x["k"]), x["v"], j <= i)


def empty_rows(x: Arrays):
    i, j = grid(7, 5, -2)
    return softmax_attention(scaled(x["q"], x["k"]), x["v"], j <= i)


def window(x: Arrays):
    i, j = grid(5, 7, 1)
    return softmax_attention(scaled(x["q"], x["k"]), x["v"], (j >= i - 2) & (j <= i + 1))


def lengths(x: Arrays):
    allowed = torch.arange(7) < torch.tensor([7, 3])[:, None, None, None]
    return softmax_attention(scaled(x["q"], x["k"]), x["v"], allowed)


def softcap(x: Arrays):
    return softmax_attention(scaled(x["q"], x["k"]), x["v"], softcap=0.8, bias=x["bias"])


def past(x: Arrays):
    k, v = torch.cat([x["past_key"], x["k"]], -2), torch.cat([x["past_value"], x["v"]], -2)
    i, j = grid(5, 8, 3)
    return softmax_attention(scaled(x["q"], k), v, j <= i)


def additive(x: Arrays):
    hidden = torch.tanh((x["q"] @ x["wa"])[..., :, None, :] + (x["k"] @ x["ua"])[..., None, :, :])
    return softmax_attention(hidden @ x["va"], x["v"])


def general(x: Arrays):
    return softmax_attention(x["q"] @ x["w"] @ x["k"].mT, x["v"])


def dot(x: Arrays):
    return softmax_attention(x["q"] @ x["k"].mT, x["v"])


CASES = {
    "plain": (plain, lambda r: operands(r)),
    "causal": (causal, lambda r: operands(r)),
    "scale": (scale, lambda r: operands(r)),
    "grouped": (grouped, lambda r: operands(r, heads=4)),
    "float-mask": (float_mask, lambda r: operands(r) | {"mask": r(2, 1, 5, 7)}),
    "bool-mask": (bool_mask, lambda r: operands(r) | {"mask": (r(2, 1, 5, 7) > 0) & (torch.arange(5) != 1)[:, None]}),
    "bottom-right": (bottom_right, lambda r: operands(r)),
    "empty-rows": (empty_rows, lambda r: operands(r, queries=7, keys=5)),
    "window": (window, lambda r: operands(r)),
    "lengths": (lengths, lambda r: operands(r)),
    "softcap": (softcap, lambda r: operands(r) | {"bias": r(2, 1, 7)}),
    "past": (past, lambda r: operands(r, keys=5) | {"past_key": r(2, 2, 3, 4), "past_value": r(2, 2, 3, 3)}),
    "additive": (additive, lambda r: operands(r) | {"wa": r(4, 6), "ua": r(4, 6), "va": r(6)}),
    "general": (general, lambda r: operands(r) | {"w": r(4, 4)}),
    "dot": (dot, lambda r: operands(r)),
}
NAMES = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


def layer_inputs(randn, memory: bool) -> Arrays:
    arrays = {"query": randn(2, 5, 8)} | ({"memory": randn(2, 7, 8)} if memory else {})
    return arrays | {name: 0.4 * randn(*((8, 8) if name[0] == "w" else (8,))) for name in NAMES}


def multi_head(x: Arrays):
    """nn.MultiheadAttention with these parameters, over the memory or, causal, over the query itself."""
    memory = x.get("memory", x["query"])
    blocked = None if "memory" in x else torch.triu(torch.ones(5, 5, dtype=bool), 1)
    output, _ = nn.functional.multi_head_attention_forward(
        *(y.transpose(0, 1) for y in (x["query"], memory, memory)),
        embed_dim_to_check=8,
        num_heads=2,
        in_proj_weight=torch.cat([x["wq"].T, x["wk"].T, x["wv"].T]),
        in_proj_bias=torch.cat([x["bq"], x["bk"], x["bv"]]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=x["wo"].T,
        out_proj_bias=x["bo"],
        attn_mask=blocked,
    )
    return output.transpose(0, 1)


def rotary(x: Arrays):
    """Causal self-attention of 4 heads over 2 groups, with rotated queries and keys, halves of a head paired."""
    angle = torch.arange(5)[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))

    def heads(name, count):
        return (x["query"] @ x[name]).reshape(2, 5, count, 4).transpose(1, 2)

    def rotate(y):
        return y * cos + torch.cat([-y[..., 2:], y[..., :2]], -1) * sin

    q, k = rotate(heads("wq", 4)), rotate(heads("wk", 2))
    output = scaled_dot_product_attention(q, k, heads("wv", 2), is_causal=True, enable_gqa=True)
    return output.transpose(1, 2).reshape(2, 5, 16) @ x["wo"]


def rotary_inputs(randn) -> Arrays:
    shapes = {"query": (2, 5, 8), "wq": (8, 16), "wk": (8, 8), "wv": (8, 8), "wo": (16, 8)}
    return {name: randn(*shape) for name, shape in shapes.items()}


CASES |= {
    "multi-head-self": (multi_head, lambda r: layer_inputs(r, memory=False)),
    "multi-head-cross": (multi_head, lambda r: layer_inputs(r, memory=True)),
    "multi-head-rotary": (rotary, rotary_inputs),
}


def main() -> None:
    members: dict[str, np.ndarray] = {}
    for case, (function, make) in CASES.items():
        generator = torch.Generator().manual_seed(17)
        inputs = make(lambda *shape, g=generator: torch.randn(shape, generator=g))
        wide = {name: x.double().requires_grad_() if x.is_floating_point() else x for name, x in inputs.items()}
        output = function(wide)
        grad = torch.randn(output.shape, generator=generator)
        output.backward(grad.double())
        members |= {f"{case}.{name}": x.numpy() for name, x in inputs.items()} | {f"{case}.grad_output": grad.numpy()}
        members |= {f"{case}.grad.{name}": x.grad.numpy() for name, x in wide.items() if x.is_floating_point()}
    np.savez_compressed(HERE / "attention_gradients.npz", **members)


if __name__ == "__main__":
    main()
