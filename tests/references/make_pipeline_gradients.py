"""Gradients of a whole pipeline by torch.autograd, frozen: what tests/interpret/test_gradients.py compares `grad` with.

    pip install torch==2.13.0 numpy==2.4.6
    python tests/references/make_pipeline_gradients.py

writes pipeline_gradients.npz beside this file, in float64 on the processor. Members NAME are the inputs, float32
numbers that are widened; grad.NAME their gradients, and loss the loss of this pipeline, written out in PyTorch:

    embed --table table | posenc | layernorm (gamma1, beta1) | attend (wq … bo) + residual, causal, 2 heads, bias |
    layernorm (gamma2) --kind rms | ffn (w1, b1, w2, b2, gelu) + residual | attend over memory, 1 key head |
    decode with the table | loss with smoothing 0.1
"""

import pathlib

import numpy as np
import torch
from torch.nn import functional

HERE = pathlib.Path(__file__).parent
IDS, TARGETS = [3, 1, 4, 1, 5], [1, 4, 1, 5, 9]
D, V, T, S, F, H = 8, 10, 5, 3, 12, 2


def draw() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(20)
    shapes = {
        "table": (V, D), "gamma1": (D,), "beta1": (D,), "bias": (H, T, T), "memory": (S, D),
        "wq": (D, D), "wk": (D, D), "wv": (D, D), "wo": (D, D), "bq": (D,), "bk": (D,), "bv": (D,), "bo": (D,),
        "gamma2": (D,), "w1": (D, F), "b1": (F,), "w2": (F, D), "b2": (D,),
        "cq": (D, D), "ck": (D, D // H), "cv": (D, D // H), "co": (D, D),
    }  # fmt: skip
    scale = {name: shape[0] ** -0.5 if name[0] in "wc" else 1.0 for name, shape in shapes.items()}
    return {name: (rng.standard_normal(shape) * scale[name]).astype(np.float32) for name, shape in shapes.items()}


def sinusoids() -> torch.Tensor:
    angles = np.arange(T)[:, None] / 10000 ** (np.arange(0, D, 2) / D)
    table = np.empty((T, D))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return torch.from_numpy(table)


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.reshape(len(x), count, -1).transpose(0, 1)


def merged(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def loss_of(p: dict[str, torch.Tensor]) -> torch.Tensor:
    x = p["table"][IDS] + sinusoids()
    x = functional.layer_norm(x, (D,), p["gamma1"], p["beta1"], 1e-5)
    q, k, v = (heads(x @ p[f"w{n}"] + p[f"b{n}"], H) for n in "qkv")
    scores = q @ k.transpose(1, 2) / (D // H) ** 0.5 + p["bias"]
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    x = x + merged(scores.softmax(-1) @ v) @ p["wo"] + p["bo"]
    x = functional.rms_norm(x, (D,), p["gamma2"], 1e-5)
    x = x + functional.gelu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    q, k, v = heads(x @ p["cq"], H), heads(p["memory"] @ p["ck"], 1), heads(p["memory"] @ p["cv"], 1)
    x = merged((q @ k.transpose(1, 2) / (D // H) ** 0.5).softmax(-1) @ v) @ p["co"]
    return functional.cross_entropy(x @ p["table"].T, torch.tensor(TARGETS), label_smoothing=0.1)


def main() -> None:
    inputs = draw()
    leaves = {name: torch.from_numpy(array.astype(np.float64)).requires_grad_() for name, array in inputs.items()}
    loss = loss_of(leaves)
    loss.backward()
    members = inputs | {"loss": loss.detach().numpy(), "ids": np.array(IDS), "targets": np.array(TARGETS)}
    members |= {f"grad.{name}": leaf.grad.numpy() for name, leaf in leaves.items()}
    np.savez(HERE / "pipeline_gradients.npz", **members)


if __name__ == "__main__":
    main()
