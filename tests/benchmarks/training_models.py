"""What forward and backward pass of a model cost, beside PyTorch: python tests/benchmarks/training_models.py [SIZE…]

small   GPT of 4 layers, 4 heads, width 128; batches of 12 texts of 64 tokens
large   GPT of 6 layers, 6 heads, width 384; batches of 8 texts of 256 tokens

Without size: both. The loss is the mean cross-entropy of the next of 65 characters; both have the same weights and
tokens, and their gradients are compared. The columns are those of training_attention.py, which has the other switches.
"""

import ctypes
import sys

import numpy as np
from training_attention import Work, median_times, processor_times  # first: it sets the threads of OpenBLAS

import torch  # isort: skip
from torch import nn
from torch.nn import functional

from attnkit.__main__ import tune_allocator
from attnkit.model import Model
from attnkit.model.backward.whole_models import StackInputs, model_backward, run_model
from attnkit.model.config import Config, PositionConfig, StackConfig, layer_plan, parameter_shape

WORDS = 65
SIZES = {"small": (4, 4, 128, 12, 64), "large": (6, 6, 384, 8, 256)}  # layers, heads, width, batch, tokens
NAMES = {
    "embed": ("table",),
    "positions": ("table",),
    "self": ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo"),
    "ffn": ("w1", "b1", "w2", "b2"),
    **dict.fromkeys(("norm", "norm1", "norm2"), ("gamma", "beta")),
}


def random_model(layers: int, heads: int, width: int, tokens: int) -> Model:
    """A GPT-2 with random weights and a tied head."""
    stack = StackConfig(layers, heads, 4 * width, heads, width // heads, WORDS, causal=True, final_norm=True)
    positions = PositionConfig("learned", size=tokens)
    config = Config("gpt2", width, decoder=stack, norm_first=True, activation="gelu-tanh", positions=positions)
    rng, params = np.random.default_rng(0), {}
    for step in layer_plan(config, "decoder"):
        names = NAMES[step.layer.split(".")[-1]]
        shapes = {name: parameter_shape(config, step.layer, name) for name in names}
        params[step.layer] = {
            name: (0.02 * rng.standard_normal(shape) + (name == "gamma")).astype(np.float32)
            for name, shape in shapes.items()
        }
    return Model(config, params | {"head": {"w": params["decoder.embed"]["table"].T}})


def our_step(model: Model, ids: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The gradient of the table, after those of all parameters."""
    logits, recorded = run_model(model, {"decoder": StackInputs(ids)})
    probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    probs.reshape(-1, WORDS)[np.arange(targets.size), targets.ravel()] -= 1
    return model_backward(model, recorded, probs / np.float32(targets.size)).params["decoder.embed"]["table"]


class Block(nn.Module):
    """One pre-norm layer, with queries, keys and values as one projection."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The same model in PyTorch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        config, params = model.config, {name: dict(part) for name, part in model.params.items()}
        self.table = nn.Parameter(torch.from_numpy(params["decoder.embed"]["table"].copy()))
        self.positions = nn.Parameter(torch.from_numpy(params["decoder.positions"]["table"].copy()))
        self.blocks = nn.ModuleList(Block(config.decoder.heads, config.width) for _ in range(config.decoder.layers))
        self.norm = nn.LayerNorm(config.width)
        for number, block in enumerate(self.blocks):
            at = f"decoder.{number}"
            attend, ffn = params[f"{at}.self"], params[f"{at}.ffn"]
            joined = {letter: np.concatenate([attend[f"{letter}{part}"] for part in "qkv"], axis=-1) for letter in "wb"}
            fill(block.qkv, joined["w"].T, joined["b"])
            fill(block.out, attend["wo"].T, attend["bo"])
            fill(block.up, ffn["w1"].T, ffn["b1"])
            fill(block.down, ffn["w2"].T, ffn["b2"])
            fill(block.norm1, *params[f"{at}.norm1"].values())
            fill(block.norm2, *params[f"{at}.norm2"].values())
        fill(self.norm, *params["decoder.norm"].values())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table[ids] + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.table.T


def fill(module: nn.Module, weight: np.ndarray, bias: np.ndarray) -> None:
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weight.copy()))
        module.bias.copy_(torch.from_numpy(bias.copy()))


def model_works(layers: int, heads: int, width: int, batch: int, tokens: int) -> tuple[Work, Work]:
    """Forward and backward pass by attnkit and by PyTorch."""
    model = random_model(layers, heads, width, tokens)
    ids, targets = np.random.default_rng(1).integers(0, WORDS, (2, batch, tokens))
    peer, tensors = GPT(model), (torch.from_numpy(ids), torch.from_numpy(targets).flatten())

    def theirs() -> list[np.ndarray]:
        peer.zero_grad()
        functional.cross_entropy(peer(tensors[0]).flatten(0, 1), tensors[1]).backward()
        return [peer.table.grad.numpy()]

    return lambda: [our_step(model, ids, targets)], theirs


def main(sizes: list[str]) -> None:
    tune_allocator(ctypes.CDLL(None))
    print(f"{'':8}{'attnkit':>9}{'torch':>9}{'ratio':>7}{'cpu':>9}{'torch':>9}{'ratio':>7}{'difference':>12}")
    for size in sizes or SIZES:
        works = model_works(*SIZES[size])
        runs = {"small": 20, "large": 3}[size]
        ours, theirs = median_times(works, runs)
        mine, other = processor_times(works, runs)
        (x,), (y,) = (work() for work in works)
        print(
            f"{size:8}{1e3 * ours:9.1f}{1e3 * theirs:9.1f}{ours / theirs:7.2f}"
            f"{1e3 * mine:9.1f}{1e3 * other:9.1f}{mine / other:7.2f}{np.abs(x - y).max() / np.abs(y).max():12.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
