"""A tiny Moonshine and what transformers makes of a sound, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_moonshine.py

completes moonshine.json, the config.json, the shapes of the tensors, and the ids of the texts that are generated (see
drawn_tables.py), and writes moonshine.npz, what the model computes in eager attention. Members begin with its name:

    values       (T,) a sound, as Wav2Vec2FeatureExtractor without do_normalize leaves it
    hidden.N     (1, S, D) states of the encoder in float64: 0 = after the convolutions, N = after layer N
    memory       after the last norm, in float64 (.f64) and float32 (.f32)
    ids, logits  (1, T) a text, and (1, T, N) its logits in float64 (.f64) and float32 (.f32)

In the float64 model every part is computed in float64: see drawn_tables.py.
"""

import pathlib

import numpy as np
import torch
from drawn_tables import freeze, load

from tests.sound_files import make_syllables

NEW = 12


def inputs(name: str, row: dict) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(3).integers(3, row["config"]["vocab_size"], (1, 7))
    ids[0, 0] = 1
    return {"values": make_syllables(0.31, 3).astype(np.float32), "ids": ids}


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    model = load(folder, dtype)
    values = torch.tensor(given["values"], dtype=model.dtype)[None]
    with torch.no_grad():
        output = model(values, decoder_input_ids=torch.tensor(given["ids"]), output_hidden_states=True)
    found = {f"memory.{dtype}": output.encoder_last_hidden_state, f"logits.{dtype}": output.logits}
    if dtype == "f64":
        found |= {f"hidden.{at}": state for at, state in enumerate(output.encoder_hidden_states[:-1])}
    return {key: one.numpy() for key, one in found.items()}


def add_texts(folder: pathlib.Path, given: dict[str, np.ndarray], name: str) -> dict:
    """The tokens that are generated of the sound, and by beam search, without the start."""
    model, values = load(folder, "f64"), torch.tensor(given["values"], dtype=torch.float64)[None]
    texts = []
    for options in ({"no_repeat_ngram_size": 2}, {"num_beams": 3}):
        ids = model.generate(values, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **options)
        texts.append({"options": options, "ids": ids[0, 1:].tolist()})
    return {"texts": texts}


if __name__ == "__main__":
    freeze("moonshine", inputs, compute, add_texts)
