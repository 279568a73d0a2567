"""Text encoders as tools use them: masked words, replaced tokens, patches and training."""

import json

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.model.formulas.relative import distance_rows
from tests import process
from tests.places import MODELS, folder, frozen
from tests.registry import load_core

NAMES = ("roberta", "xlm-roberta", "camembert", "distilbert", "albert", "albert-groups", "electra",
         "electra-discriminator", "mpnet", "modernbert", "modernbert-biased",
         "deberta-v3", "deberta-v2")  # fmt: skip
WITH_WORDS = ("roberta", "xlm-roberta", "distilbert", "albert", "electra", "mpnet", "modernbert",
              "deberta-v3")  # fmt: skip  # a tokenizer and masked words
TEXT = "the cat sat on the mat and looked at the rain. " * 40


def tokens(name):
    return json.loads((MODELS / "tokens.json").read_text())[name]


def test_the_rows_of_distances_of_published_sizes():
    places = distance_rows(np.arange(-600, 601), np.array([0]), 256, 512)[:, 0]
    np.testing.assert_array_equal(places, frozen("deberta-v3")["places"])


@pytest.mark.parametrize("name", WITH_WORDS)
def test_masked_words(name):
    given, prompt = frozen(name), tokens(name)["prompts"][0]
    record = attnkit.decode(prompt, model=folder(name), emit="logits")
    assert record["ids"].tolist() == given["ids"][0].tolist()
    np.testing.assert_allclose(record["x"], given["logits.f64"][0], rtol=0, atol=1e-4)


def test_a_discriminator_says_which_tokens_were_replaced():
    name = "electra-discriminator"
    record = attnkit.decode(tokens(name)["prompts"][1], model=folder(name))
    assert record.labels["label"] == ["replaced", "original"]
    batch = frozen(name)
    expected = 1 / (1 + np.exp(-batch["batch.logits.f64"][1, batch["batch_mask"][1] == 1, 0]))
    np.testing.assert_allclose(record["x"][:, 0], expected, rtol=0, atol=1e-5)
    is_replaced = expected > 0.5
    words = attnkit.decode(tokens(name)["prompts"][1], model=folder(name), emit="text").split()
    assert words == ["replaced" if one else "original" for one in is_replaced]
    spans = attnkit.decode(tokens(name)["prompts"][1], model=folder(name), aggregate="simple")
    assert spans["x"].shape == (1 + np.count_nonzero(np.diff(is_replaced[1:-1])), 2)


@pytest.mark.parametrize("name", NAMES)
def test_intermediates_are_traced_and_patched(name, tmp_path):
    ids, path = frozen(name)["ids"][0], str(tmp_path / "run.npz")
    whole = attnkit.encode(model=folder(name), ids=ids, trace=path)
    with np.load(path) as run:
        kept = {key: run[key] for key in run.files}
    assert {"encoder.embed", "encoder.0.self.weights", "encoder.1.ffn.hidden"} <= {*kept}
    patch = {"encoder.1.self.weights": kept["encoder.1.self.weights"]}
    np.testing.assert_array_equal(attnkit.encode(model=folder(name), ids=ids, patch=patch)["x"], whole["x"])
    patch["encoder.1.self.weights"] = patch["encoder.1.self.weights"][..., ::-1]
    assert (attnkit.encode(model=folder(name), ids=ids, patch=patch)["x"] != whole["x"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WORDS)
def test_training_goes_on_from_the_folder(name, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    out = str(tmp_path / "out")
    flags = ["--steps", "20", "--block", "16", "--batch", "4", "-o", out, "-q"]
    done = process.run("train", str(tmp_path / "text.txt"), "--from", folder(name), *flags)
    assert done.code == 0, done.err
    before, after = load_core(name), open_checkpoint(out)
    assert after.config == before.config
    assert (after.params["encoder.0.self"]["wq"] != before.params["encoder.0.self"]["wq"]).any()
