"""Freeze the losses of a small GPT that PyTorch trains: python tests/references/make_training.py

Made with torch 2.13.0. The initial weights and the batches are attnkit's own, of a recipe that the test repeats; the
model, its gradients, clipping, AdamW and the schedule are PyTorch's. training.json has the loss of each step.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from attnkit.training.initial_model import prepare_model  # noqa: E402
from attnkit.training.recipe import Recipe  # noqa: E402
from tests.benchmarks.training import TorchGPT, Trainer  # noqa: E402

TEXT = HERE.parent.parent / "samples" / "data" / "lighthouse.txt"
RECIPES = {
    "plain": {"layers": 2, "heads": 2, "dim": 32, "batch": 4, "block": 24, "warmup": 5, "lr": 3e-3, "steps": 30},
    "clipped": {
        "layers": 1, "heads": 2, "dim": 16, "batch": 2, "block": 16, "warmup": 0, "lr": 1e-2, "clip": 0.1, "steps": 30,
        "weight_decay": 0.5,
    },
}  # fmt: skip


def main() -> None:
    frozen = {}
    for name, values in RECIPES.items():
        trainer = Trainer(Recipe(**values), prepare_model(Recipe(**values), TEXT.read_text(), TEXT.name))
        other = TorchGPT(trainer)
        losses = [round(other.step(trainer, number), 6) for number in range(1, 31)]
        frozen[name] = {"recipe": values, "losses": losses}
    (HERE / "training.json").write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    main()
