"""The vectors that sentence-transformers and model2vec make of texts by tiny folders, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 \
        sentence-transformers==6.2.0 model2vec==0.10.0
    PYTHONPATH=. python tests/references/make_sentence_modules.py

writes sentence_modules.json: the texts, and for each folder of tests/sentence_folders.py the vectors by what was asked:

plain, query, document   encode, encode_query and encode_document; `cut`: the first 5 numbers; `unit`: those, normalized

All is computed in float64, as in make_decoders.py, but for the tables of model2vec.
"""

import json
import pathlib
import tempfile
from typing import Any

import model2vec
import numpy as np
import torch
import transformers
from drawn_tables import in_double
from sentence_transformers import SentenceTransformer

from tests.places import REFERENCES
from tests.sentence_folders import FOLDERS, MODEL2VEC, write_model2vec, write_sentences

TEXTS = [
    "the cat sat on the mat",
    "Why?",
    "a book, read every day by the fire: once upon a time",
    "café \u65e5\u672c x",
]


def numbers(vectors: Any) -> list[list[float]]:
    return [[round(float(one), 9) for one in vector] for vector in vectors]


def encode(folder: pathlib.Path) -> dict[str, list[list[float]]]:
    model = SentenceTransformer(str(folder), device="cpu").double()
    each = {
        "plain": lambda text: model.encode([text]),
        "query": lambda text: model.encode_query([text]),
        "document": lambda text: model.encode_document([text]),
        "cut": lambda text: model.encode([text], truncate_dim=5),
        "unit": lambda text: model.encode([text], truncate_dim=5, normalize_embeddings=True),
    }
    return {name: numbers(make(text)[0] for text in TEXTS) for name, make in each.items()}


def main() -> None:
    found: dict[str, Any] = {"texts": TEXTS, "empty": {}}
    with tempfile.TemporaryDirectory() as place:
        for name in FOLDERS:
            folder = write_sentences(name, pathlib.Path(place) / name, np.float64)
            with in_double():
                found[name] = encode(folder)
            print(name, len(found[name]["plain"][0]), flush=True)
        for name in MODEL2VEC:
            folder = write_model2vec(name, pathlib.Path(place) / name)
            static = model2vec.StaticModel.from_pretrained(folder)
            found[name] = {"plain": numbers(static.encode(TEXTS))}
            if "int8" not in name:
                found[name]["sentence-transformers"] = encode(folder)["plain"]
            found["empty"][name] = numbers([static.encode("")])[0]
        found["empty"]["static"] = numbers(SentenceTransformer(str(pathlib.Path(place) / "static")).encode([""]))[0]
    (REFERENCES / "sentence_modules.json").write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main()
