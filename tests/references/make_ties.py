"""Tied tables that are stored with different numbers, and what transformers computes with them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_ties.py

reads ties.json, the config.json of tiny models and the shapes of their tensors, and writes ties.npz, NAME.logits in
float64 arithmetic of the float32 parameters for the ids in it. Every configuration ties its head and its tables, and
every one of these is stored. tests/drawing.py draws each tensor by its name, so all of them differ: transformers ties
none of them, and warns. In NAME-moved the head is stored and the table it is tied to is not. The decoder of a
translator reads its start token and the ids from the last to the first.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
import transformers
from make_untied import HERE, IDS, read_logits

from tests.drawing import draw_tensors


def main() -> None:
    frozen = {"ids": np.array(IDS)}
    for name, row in json.loads((HERE / "ties.json").read_text()).items():
        with tempfile.TemporaryDirectory() as place:
            folder, config = Path(place), row["config"]
            (folder / "config.json").write_text(json.dumps(config))
            tensors = draw_tensors(config["model_type"], row["shapes"])
            safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            frozen[f"{name}.logits"] = read_logits(getattr(transformers, config["architectures"][0]), folder)
    np.savez(HERE / "ties.npz", **frozen)


if __name__ == "__main__":
    main()
