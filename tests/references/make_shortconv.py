"""Tiny models of LFM2 and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=.:tests/references python tests/references/make_shortconv.py [NAME...]

completes shortconv.json and writes shortconv.npz: the members of make_decoders.py, and

    texts.ids        (200,); the texts of 1, 63, 64, 65 and 200 tokens begin it
    texts.N.logits   (1, V) of the last token of N tokens, in float64 (.f64) and float32 (.f32)
    window.N         (D, K - 1) the inputs that the convolution of layer N keeps of `ids`, in float64
"""

import pathlib
import sys

import make_decoders
import numpy as np
import torch
from drawn_tables import freeze, load

LENGTHS = (1, 63, 64, 65, 200)


def texts(name: str, row: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(name))
    return make_decoders.texts(name, row) | {"texts.ids": rng.integers(3, make_decoders.VOCAB, 200)}


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    found = make_decoders.compute(folder, given, dtype)
    model = load(folder, dtype, experts_implementation="eager")
    with torch.no_grad():
        for count in LENGTHS:
            ids = torch.tensor(given["texts.ids"][None, :count])
            found[f"texts.{count}.logits.{dtype}"] = model(ids, use_cache=False).logits[:, -1].numpy()
        if dtype == "f64":
            output = model(torch.tensor(given["ids"]), use_cache=True)
            cache = output.past_key_values if hasattr(output, "past_key_values") else output.cache
            for at, kind in enumerate(model.config.layer_types):
                if kind == "conv":
                    found[f"window.{at}"] = cache.layers[at].conv_states[0].numpy()[0][:, 1:]
    return found


if __name__ == "__main__":
    freeze("shortconv", texts, compute, names=sys.argv[1:])
