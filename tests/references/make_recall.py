"""Tiny models whose layers keep states in place of keys, and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_recall.py [NAME...]

completes recall.json and writes recall.npz, by tests/references/make_decoders.py, whose docstring says what the members
of the archive are. Further ones are

    texts        (1, 200) ids; texts.logits (5, V), the last logits of its first 1, 63, 64, 65 and 200 tokens, float64
                 (.f64) and float32 (.f32): the chunks of transformers have 64 tokens
    right.ids (3, 9), right.mask   a batch padded on the right; right.logits (3, V), of the last token of each text

The slow path of transformers computes the recurrence in float32 even in a float64 model, but for the script, which
turns float32 into float64.
"""

import pathlib
import sys

import make_decoders
import numpy as np
import torch
from drawn_tables import freeze, load

LENGTHS = (1, 63, 64, 65, 200)


def texts(name: str, row: dict) -> dict[str, np.ndarray]:
    given = make_decoders.texts(name, row)
    rng = np.random.default_rng(len(name) + 1)
    right, mask = rng.integers(3, make_decoders.VOCAB, (3, 9)), np.ones((3, 9), np.int64)
    for at, count in enumerate((0, 4, 2)):
        right[at, 9 - count :], mask[at, 9 - count :] = 0, 0
    return given | {
        "texts": rng.integers(3, make_decoders.VOCAB, (1, max(LENGTHS))),
        "right.ids": right,
        "right.mask": mask,
    }


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    found = make_decoders.compute(folder, given, dtype)
    model, ids = load(folder, dtype, experts_implementation="eager"), torch.tensor(given["texts"])
    right, mask = torch.tensor(given["right.ids"]), torch.tensor(given["right.mask"])
    with torch.no_grad():
        last = [model(ids[:, :length], use_cache=False).logits[0, -1].numpy() for length in LENGTHS]
        logits = model(right, attention_mask=mask, use_cache=False).logits
    found[f"texts.logits.{dtype}"] = np.stack(last)
    found[f"right.logits.{dtype}"] = logits[torch.arange(len(mask)), mask.sum(-1) - 1].numpy()
    return found


if __name__ == "__main__":
    freeze("recall", texts, compute, names=sys.argv[1:])
