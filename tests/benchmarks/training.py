"""What a step of training costs, beside PyTorch: python tests/benchmarks/training.py [small] [large] [--steps N]

small   a GPT of 4 layers, 4 heads and width 128, blocks of 64, batches of 12, characters
large   a GPT of 6 layers, 6 heads and width 384 (10.8 million parameters), blocks of 256, batches of 8

Both train the same initial weights on the same batches with the same options of AdamW, clipping included, and their
losses are compared. Each figure is the median of steps, milliseconds of wall-clock time; they take turns of TURN steps,
of which the first does not count, as threads of the other may still wait actively. `cpu` is the least processor time of
a step with one thread each, which a busy machine changes less. PyTorch runs eagerly, with its fused attention; it is
that of this Python, or the one in the environment that TORCH_ENVIRONMENT names.
"""

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from attnkit.tuning import tune_allocator, tune_blas

tune_blas()  # before NumPy is imported, as the command does
if "TORCH_ENVIRONMENT" in os.environ:
    sys.path += map(str, Path(os.environ["TORCH_ENVIRONMENT"]).glob("lib/python*/site-packages"))

import torch
from torch.nn import functional

from attnkit.model.processor import threads
from attnkit.model.processor.threads import single_blas
from attnkit.training.initial_model import prepare_model
from attnkit.training.parameter_groups import tensor_groups
from attnkit.training.recipe import Recipe
from attnkit.training.trainer import Trainer

TURN = 3  # steps
TEXT = Path(__file__).parent.parent.parent / "samples" / "data" / "lighthouse.txt"
RECIPES = {
    "small": Recipe(layers=4, heads=4, dim=128, block=64, batch=12, steps=2000),
    "large": Recipe(layers=6, heads=6, dim=384, block=256, batch=8, steps=2000),
}


class TorchGPT:
    """The same model in PyTorch: tensors by their published names."""

    def __init__(self, trainer: Trainer) -> None:
        self.config, self.recipe = trainer.config.stack("decoder"), trainer.recipe
        state = trainer.state.fetch()
        self.tensors = {
            name.removeprefix("transformer."): torch.from_numpy(array.copy()).requires_grad_()
            for name, array in state.parameters.items()
        }
        groups, pairs = tensor_groups(trainer.table), list(zip(state.parameters, self.tensors.values(), strict=True))
        decays = [tensor for name, tensor in pairs if groups[name].has_weight_decay]
        others = [tensor for name, tensor in pairs if not groups[name].has_weight_decay]
        options = state.optimizer.options
        rows = [{"params": decays, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(rows, lr=options.lr, fused=False)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (B, T) -> (B, T, N)."""
        t = self.tensors
        x = functional.embedding(ids, t["wte.weight"]) + t["wpe.weight"][: ids.shape[1]]
        for n in range(self.config.layers):
            x = x + self.attend(self.norm(x, f"h.{n}.ln_1"), f"h.{n}.attn")
            hidden = self.linear(self.norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
            x = x + self.linear(functional.gelu(hidden, approximate="tanh"), f"h.{n}.mlp.c_proj")
        return self.norm(x, "ln_f") @ t["wte.weight"].T

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias)

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        rows = torch.addmm(self.tensors[f"{name}.bias"], x.reshape(-1, x.shape[-1]), self.tensors[f"{name}.weight"])
        return rows.reshape(*x.shape[:-1], -1)

    def attend(self, x: torch.Tensor, name: str) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.linear(x, f"{name}.c_attn").split(width, dim=2)
        q, k, v = (part.view(batch, length, self.config.heads, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linear(y.transpose(1, 2).reshape(batch, length, width), f"{name}.c_proj")

    def step(self, trainer: Trainer, number: int) -> float:
        """Do the step of this number; return its loss."""
        batch = trainer.corpus.batch(number)
        logits = self.logits(torch.from_numpy(batch.ids))
        loss = functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.targets).flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.tensors.values(), self.recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr * (min(number / self.recipe.warmup, 1) if self.recipe.warmup else 1)
        self.optimizer.step()
        return float(loss.detach())


class Turn(NamedTuple):
    """The seconds of each step of a turn but the first, and the losses of all."""

    seconds: list[float]
    losses: list[float]


def take_turn(step: Callable[[int], float], numbers: range, clock: Callable[[], float]) -> Turn:
    """Do the steps of these numbers."""
    seconds, losses = [], []
    for number in numbers:
        start = clock()
        losses.append(step(number))
        seconds.append(clock() - start)
    return Turn(seconds[1:], losses)


def take_turns(trainer: Trainer, other: TorchGPT, first: int, steps: int, clock: Callable[[], float]) -> list[Turn]:
    """Do the steps from the first with both, in turns; return all of each as one turn."""
    works = (lambda number: trainer.step(number).loss, lambda number: other.step(trainer, number))
    totals = [Turn([], []), Turn([], [])]
    for start in range(first, first + steps, TURN):
        for work, total in zip(works, totals, strict=True):
            turn = take_turn(work, range(start, start + TURN), clock)
            total.seconds.extend(turn.seconds)
            total.losses.extend(turn.losses)
    return totals


def measure(name: str, steps: int) -> str:
    """Train both in turn; return the medians of their times and the largest difference of a loss as a line."""
    recipe = RECIPES[name]
    text = TEXT.read_text() * (1 if name == "small" else 2)
    trainer = Trainer(recipe, prepare_model(recipe, text, TEXT.name))
    other = TorchGPT(trainer)
    take_turns(trainer, other, 1, TURN, time.perf_counter)
    both = take_turns(trainer, other, 1 + TURN, steps, time.perf_counter)
    torch.set_num_threads(1)
    with single_blas(), patch.object(threads, "_saved", [1]):  # as if the user had set one thread
        alone = take_turns(trainer, other, 1 + 2 * TURN + steps, max(TURN, steps // 4), time.process_time)
    torch.set_num_threads(os.cpu_count() or 1)
    ours, theirs = (1000 * statistics.median(turn.seconds) for turn in both)
    mine, its = (1000 * min(turn.seconds) for turn in alone)
    worst = max(abs(x - y) for pair in (both, alone) for x, y in zip(*(turn.losses for turn in pair), strict=True))
    times = f"{ours:9.1f}{theirs:9.1f}{ours / theirs:7.2f}{mine:9.1f}{its:9.1f}{mine / its:7.2f}"
    return f"{name:8}{trainer.state.fetch().parameters.flat.size / 1e6:6.2f} M{times}{worst:12.1e}"


def main(words: list[str]) -> None:
    tune_allocator(ctypes.CDLL(None))
    chosen = [word for word in words if word in RECIPES] or list(RECIPES)
    steps = int(words[words.index("--steps") + 1]) if "--steps" in words else 0
    print(f"{'':16}{'attnkit':>9}{'torch':>9}{'ratio':>7}{'cpu':>9}{'torch':>9}{'ratio':>7}{'difference':>12}")
    for name in chosen:
        print(measure(name, steps or (90 if name == "small" else 12)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
