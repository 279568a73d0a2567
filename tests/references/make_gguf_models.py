"""What transformers computes of tiny models that it reads from GGUF files, frozen.

    pip install torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_gguf_models.py

writes gguf_models.npz: MODEL.ids (1, 12) and MODEL.logits (1, 12, V), in float32 and eager attention, of the files
that tests/gguf_models.py makes of the models of the references. Models that transformers reads otherwise than llama.cpp
are left out: those with rope_freqs.weight, which it ignores, those whose width of heads, length or window it does not
read, and T5, of which it reads those with gates and equal depths alone.
"""

import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers

from tests.gguf_models import READ_BY_TRANSFORMERS, convert
from tests.places import REFERENCES


def compute(name: str, content: bytes, ids: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "m.gguf").write_bytes(content)
        options = {"gguf_file": "m.gguf", "dtype": torch.float32, "attn_implementation": "eager"}
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
        with torch.no_grad():
            return model(torch.tensor(ids), use_cache=False).logits.numpy()


members = {}
for name in sys.argv[1:] or READ_BY_TRANSFORMERS:
    ids = np.random.default_rng(len(name)).integers(3, 50, (1, 12))
    words = ["<unk>", *(f"token{at}" for at in range(1, 60))]
    keys = {"tokenizer.ggml.tokens": words}
    members |= {f"{name}.ids": ids, f"{name}.logits": compute(name, convert(name, keys), ids)}
    print(name, members[f"{name}.logits"].shape)
if not sys.argv[1:]:
    np.savez_compressed(REFERENCES / "gguf_models.npz", **members)
