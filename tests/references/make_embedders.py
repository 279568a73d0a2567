"""Tiny text encoders of embedders and what transformers makes of them, frozen as make_decoders.py does.

    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_embedders.py [NAME...]

completes embedders.json (see drawn_tables.py), and writes embedders.npz, whose members begin with the name of the
model:

    ids          (1, 17); batch.ids (3, 9) padded on the right, and batch.mask
    hidden.N     (1, 17, D) states in float64: 0 = embeddings, N = after layer N, the last after the final norm, if any
    batch.hidden (3, 9, D) last states of each text alone in float64, zero at padding
    logits, batch.logits   (1, 17, V) and (3, 9, V), or (1, C) and (3, C) of whole texts, where the model has a head, in
                 float64 (.f64), and logits in float32 (.f32) too
"""

import pathlib
import sys

import numpy as np
import torch
from drawn_tables import freeze, load
from make_decoders import texts


def read(name: str, row: dict) -> dict[str, np.ndarray]:
    given = texts(name, row)
    reversed_ = {key: np.ascontiguousarray(given[key][:, ::-1]) for key in ("batch.ids", "batch.mask")}
    return {"ids": given["ids"]} | reversed_


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    model = load(folder, dtype)
    with torch.no_grad():
        output = model(torch.tensor(given["ids"]), output_hidden_states=True)
        has_logits = "logits" in output
        if dtype == "f32":
            return {"logits.f32": output.logits.numpy()} if has_logits else {}
        found = {f"hidden.{at}": state.numpy() for at, state in enumerate(output.hidden_states)}
        found |= {"logits.f64": output.logits.numpy()} if has_logits else {}
        rows = [
            model(torch.tensor(text[real == 1])[None], output_hidden_states=True)
            for text, real in zip(given["batch.ids"], given["batch.mask"], strict=True)
        ]
        found["batch.hidden"] = fill([one.hidden_states[-1][0].numpy() for one in rows], given["batch.mask"])
        if has_logits:
            logits = [one.logits[0].numpy() for one in rows]
            found["batch.logits.f64"] = np.stack(logits) if logits[0].ndim == 1 else fill(logits, given["batch.mask"])
    return found


def fill(rows: list[np.ndarray], mask: np.ndarray) -> np.ndarray:
    """The states of each text as one padded batch, zero at padding."""
    states = np.zeros((*mask.shape, rows[0].shape[-1]))
    for one, real, into in zip(rows, mask, states, strict=True):
        into[real == 1] = one
    return states


if __name__ == "__main__":
    freeze("embedders", read, compute, names=sys.argv[1:])
