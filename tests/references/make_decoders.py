"""Tiny decoders of today and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_decoders.py [NAME...]

completes decoders.json, each model's config.json and the shapes of its tensors (see drawn_tables.py), and writes
decoders.npz, what it computes in eager attention (Falcon with ALiBi: in sdpa, since eager adds its bias twice). The
weights are those of tests/drawing.py, which draws them by name, so no file holds them. Members of the .npz begin with
the name of the model:

    ids          (1, 17); long.ids (1, 41), past windows and original contexts; batch.ids (3, 9) and batch.mask
    hidden.N     (1, 17, D) states in float64: 0 = embeddings, N = after layer N, the last after the final norm
    logits, long.logits, batch.logits   (.., 4, V) of the last four tokens, in float64 (.f64) and float32 (.f32)
    greedy, beam (1, 17 + 12) prompt and continuation, greedy and the best of 3 beams, of the float64 model

The batch is padded on the left; the three texts are computed one by one where a padded query reads no key. In the
float64 model every part is computed in float64: the casts to float32 inside transformers are turned off by setting
torch.float32 to torch.float64 while it is built and run.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from drawn_tables import freeze, load

VOCAB, NO_LIMIT = 67, (0.0, float("inf"))


def texts(name: str, row: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(name))
    batch, mask = rng.integers(3, VOCAB, (3, 9)), np.ones((3, 9), np.int64)
    for row, count in enumerate((0, 4, 2)):
        batch[row, :count], mask[row, :count] = 0, 0
    return {
        "ids": rng.integers(3, VOCAB, (1, 17)),
        "long.ids": rng.integers(3, VOCAB, (1, 41)),
        "batch.ids": batch,
        "batch.mask": mask,
    }


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of the texts."""
    has_alibi = json.loads((folder / "config.json").read_text()).get("alibi", False)
    attention = "sdpa" if has_alibi else "eager"
    model = load(folder, dtype, attn_implementation=attention, experts_implementation="eager")
    ids = torch.tensor(given["ids"])
    found = {}
    with torch.no_grad():
        output = model(ids, output_hidden_states=True, use_cache=False)
        if dtype == "f64":
            found |= {f"hidden.{at}": state.numpy() for at, state in enumerate(output.hidden_states)}
        found[f"logits.{dtype}"] = output.logits[:, -4:].numpy()
        found[f"long.logits.{dtype}"] = model(torch.tensor(given["long.ids"]), use_cache=False).logits[:, -4:].numpy()
        rows = []
        for row, mask in zip(given["batch.ids"], given["batch.mask"], strict=True):
            rows.append(model(torch.tensor(row[mask == 1])[None], use_cache=False).logits[0, -4:].numpy())
        found[f"batch.logits.{dtype}"] = np.stack(rows)
        if dtype == "f64":
            limit = getattr(model.config, "time_step_limit", NO_LIMIT)
            has_cache = model.config.model_type != "phi3" and tuple(limit) == NO_LIMIT
            plain = {"max_new_tokens": 12, "do_sample": False, "use_cache": has_cache}
            found["greedy"] = model.generate(ids, **plain).numpy()
            found["beam"] = model.generate(ids, num_beams=3, **plain).numpy()
            batch = {"attention_mask": torch.tensor(given["batch.mask"]), **plain}
            found["batch.greedy"] = model.generate(torch.tensor(given["batch.ids"]), **batch).numpy()
    return found


if __name__ == "__main__":
    freeze("decoders", texts, compute, names=sys.argv[1:])
