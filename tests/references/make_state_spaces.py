"""Tiny models with state spaces and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_state_spaces.py [NAME...]

completes state_spaces.json and writes state_spaces.npz as make_recall.py does, by the computation without kernels of
CUDA. The states of Mamba-2 are named as those of other models: 0 = embeddings.

Where time_step_limit binds, transformers continues texts without a cache here: with one, it does not clamp the steps of
single tokens.
"""

import pathlib
import sys

import make_recall
import numpy as np
import torch
from drawn_tables import freeze, load


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    found = make_recall.compute(folder, given, dtype)
    if dtype != "f64" or (config := load(folder, dtype).config).model_type != "mamba2":
        return found
    words = load(folder, dtype).backbone.embeddings(torch.tensor(given["ids"])).detach().numpy()
    later = {f"hidden.{at}": found[f"hidden.{at - 1}"] for at in range(1, config.num_hidden_layers)}
    return found | {"hidden.0": words, **later}  # its own begin after the first layer


if __name__ == "__main__":
    freeze("state_spaces", make_recall.texts, compute, names=sys.argv[1:])
