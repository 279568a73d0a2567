"""A tiny EmbeddingGemma and what transformers makes of it, frozen as make_decoders.py does.

    PYTHONPATH=. python tests/references/make_embedders.py

writes embedders.json, its config.json and the shapes of its tensors, and embedders.npz: ids (1, 17), its last states
hidden (1, 17, D) in float64; batch.ids (3, 9) padded on the right, batch.mask, and batch.hidden, zero at padding.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_decoders import HERE, LLAMA, in_double, texts, write_weights

VALUES = LLAMA | {
    "head_dim": 10, "sliding_window": 6, "query_pre_attn_scalar": 7, "sliding_window_pattern": 3, "rope_theta": 5000.0,
    "rope_local_base_freq": 100.0, "use_bidirectional_attention": True,
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, given = pathlib.Path(place), texts("embeddinggemma")
        config = transformers.AutoConfig.for_model("gemma3_text", **VALUES)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        stored = safetensors.numpy.load_file(folder / "model.safetensors")
        shapes = {key: list(tensor.shape) for key, tensor in sorted(stored.items())}
        written = json.loads((folder / "config.json").read_text())
        written.pop("transformers_version")
        write_weights(folder, "gemma3_text", shapes, np.float64)
        found = {
            "ids": given["ids"],
            "batch.ids": given["batch.ids"][:, ::-1],
            "batch.mask": given["batch.mask"][:, ::-1],
        }
        with in_double(), torch.no_grad():
            options = {"attn_implementation": "eager", "dtype": torch.float64}
            model = transformers.AutoModel.from_pretrained(folder, **options).eval()
            found["hidden"] = model(torch.tensor(given["ids"])).last_hidden_state.numpy()
            ids, mask = (np.ascontiguousarray(found[f"batch.{name}"]) for name in ("ids", "mask"))
            states = np.zeros((*ids.shape, VALUES["hidden_size"]))
            for row, real, into in zip(ids, mask, states, strict=True):
                into[real == 1] = model(torch.tensor(row[real == 1])[None]).last_hidden_state[0].numpy()
            found["batch.hidden"] = states
    table = {"embeddinggemma": {"config": written, "shapes": shapes}}
    (HERE / "embedders.json").write_text(json.dumps(table, indent=1) + "\n")
    np.savez_compressed(HERE / "embedders.npz", **found)


if __name__ == "__main__":
    main()
