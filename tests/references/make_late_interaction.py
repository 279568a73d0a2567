"""The vectors of tokens that PyLate and sentence-transformers make by tiny folders, and their scores, frozen.

    pip install torch==2.13.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 \
        sentence-transformers==6.2.0
    pip install --no-deps pylate==1.6.0
    PYTHONPATH=. python tests/references/make_late_interaction.py

writes late_interaction.json: the queries and documents; for each folder of tests/sentence_folders.py and each library
that opens it the vectors of each query and of each document, and the scores (queries, documents). All is computed in
float64, as in make_decoders.py. PyLate 1.6.0 asks for older versions of its dependencies, but runs with these.
"""

import json
import pathlib
import tempfile
from typing import Any

import numpy as np
import safetensors.torch
import torch
import transformers
from drawn_tables import in_double
from sentence_transformers import MultiVectorEncoder

from tests.places import REFERENCES
from tests.sentence_folders import LATE, write_late, write_stanford

SETTINGS = ("query_prefix", "document_prefix", "query_length", "document_length", "do_query_expansion",
            "attend_to_expansion_tokens", "skiplist_words")  # fmt: skip


def read_sizes(folder: pathlib.Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in config.items() if key != "activation_function"}


QUERIES = ["the cat", "a book by the fire, read every day once upon a time", "b"]
DOCUMENTS = [
    "the cat sat on the mat.",
    "b",
    "a book: read it, once upon a time there was a cat by the fire",
    "c d e f g",
]


def rounded(vectors: Any) -> list[list[float]]:
    return [[round(float(one), 9) for one in vector] for vector in vectors]


def score(queries: list[np.ndarray], documents: list[np.ndarray]) -> list[list[float]]:
    """The sum over the vectors of a query of the largest product with a vector of a document."""
    return rounded([[(query @ document.T).max(axis=1).sum() for document in documents] for query in queries])


def of_sentence_transformers(folder: pathlib.Path) -> dict[str, Any]:
    model = MultiVectorEncoder(str(folder), device="cpu").double()
    queries = [model.encode_query([text])[0] for text in QUERIES]
    documents = [model.encode_document([text])[0] for text in DOCUMENTS]
    scores = model.similarity(queries, documents)
    np.testing.assert_allclose(scores, score(*(as_arrays(one) for one in (queries, documents))), atol=1e-8)
    return found(queries, documents)


def of_pylate(folder: pathlib.Path) -> dict[str, Any]:
    """Its modules are given, and split texts as in the version that it asks for."""
    from pylate import models
    from sentence_transformers.base.modules import Transformer

    first = Transformer(str(folder), model_kwargs={"attn_implementation": "eager"})
    path = folder / "config_sentence_transformers.json"
    if path.exists():
        settings = {key: value for key, value in json.loads(path.read_text()).items() if key in SETTINGS}
        parts = sorted(one.parent for one in folder.glob("*_Dense/config.json"))
        layers = [models.Dense(**read_sizes(part)) for part in parts]
        for layer, part in zip(layers, parts, strict=True):
            tensors = safetensors.torch.load_file(part / "model.safetensors")
            layer.load_state_dict({key: one.to(layer.linear.weight.dtype) for key, one in tensors.items()})
    else:
        metadata = json.loads((folder / "artifact.metadata").read_text())
        names = {"query_token_id": "query_prefix", "doc_token_id": "document_prefix", "query_maxlen": "query_length",
                 "doc_maxlen": "document_length", "attend_to_mask_tokens": "attend_to_expansion_tokens"}  # fmt: skip
        settings = {names[key]: value for key, value in metadata.items() if key in names}
        layers = [models.Dense.from_stanford_weights(str(folder))]

    def tokenize(texts: list[str], padding: Any = True) -> dict[str, Any]:  # as sentence-transformers 5.3 does
        most = first.max_seq_length
        return dict(first.tokenizer(texts, padding=padding, truncation=True, max_length=most, return_tensors="pt"))

    models.ColBERT._text_length = staticmethod(len)
    first.tokenize = tokenize
    model = models.ColBERT(modules=[first, *layers], device="cpu", **settings).double()
    queries, documents = (
        [model.encode([text], is_query=is_query, show_progress_bar=False)[0] for text in texts]
        for texts, is_query in ((QUERIES, True), (DOCUMENTS, False))
    )
    return found(queries, documents)


def as_arrays(vectors: Any) -> list[np.ndarray]:
    return [np.asarray(one) for one in vectors]


def found(queries: Any, documents: Any) -> dict[str, Any]:
    return {
        "queries": [rounded(one) for one in queries],
        "documents": [rounded(one) for one in documents],
        "scores": score(as_arrays(queries), as_arrays(documents)),
    }


def main() -> None:
    frozen: dict[str, Any] = {"queries": QUERIES, "documents": DOCUMENTS}
    with tempfile.TemporaryDirectory() as place:
        for name in (*LATE, "stanford"):
            folder = pathlib.Path(place) / name
            folder = write_stanford(folder, np.float64) if name == "stanford" else write_late(name, folder, np.float64)
            with in_double():
                if name != "native":
                    frozen[f"{name} pylate"] = of_pylate(folder)
                frozen[f"{name} sentence-transformers"] = of_sentence_transformers(folder)
            print(name, flush=True)
    (REFERENCES / "late_interaction.json").write_text(json.dumps(frozen) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main()
