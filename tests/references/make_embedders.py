"""A tiny EmbeddingGemma and what transformers makes of it, frozen as make_decoders.py does.

    PYTHONPATH=. python tests/references/make_embedders.py

completes embedders.json (see drawn_tables.py), and writes embedders.npz: ids (1, 17), its last states
hidden (1, 17, D) in float64; batch.ids (3, 9) padded on the right, batch.mask, and batch.hidden, zero at padding.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
from drawn_tables import HERE, in_double, load, read_table, save, write_weights
from make_decoders import texts


def main() -> None:
    [(name, row)] = read_table("embedders").items()
    with tempfile.TemporaryDirectory() as place:
        folder, given = pathlib.Path(place), texts(name, row)
        row["config"], row["shapes"] = save(row["config"], folder)
        write_weights(folder, "gemma3_text", row["shapes"], np.float64)
        found = {
            "ids": given["ids"],
            "batch.ids": given["batch.ids"][:, ::-1],
            "batch.mask": given["batch.mask"][:, ::-1],
        }
        with in_double(), torch.no_grad():
            model = load(folder, "f64")
            found["hidden"] = model(torch.tensor(given["ids"])).last_hidden_state.numpy()
            ids, mask = (np.ascontiguousarray(found[f"batch.{name}"]) for name in ("ids", "mask"))
            states = np.zeros((*ids.shape, row["config"]["hidden_size"]))
            for text, real, into in zip(ids, mask, states, strict=True):
                into[real == 1] = model(torch.tensor(text[real == 1])[None]).last_hidden_state[0].numpy()
            found["batch.hidden"] = states
    (HERE / "embedders.json").write_text(json.dumps({name: row}, indent=1) + "\n")
    np.savez_compressed(HERE / "embedders.npz", **found)


if __name__ == "__main__":
    main()
