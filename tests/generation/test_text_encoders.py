"""Text encoders give what transformers gives, frozen by tests/references/make_text_encoders.py, whole and in pieces."""

import json
import warnings

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.cli import find_tool, parser
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.model.formulas.relative import distance_rows
from attnkit.records import Record
from tests import process
from tests.generation.test_models import DTYPES, MODELS, close, core, frozen, padding, ran, states
from tests.places import folder

NAMES = ("roberta", "xlm-roberta", "camembert", "distilbert", "albert", "albert-groups", "electra",
         "electra-discriminator", "mpnet", "modernbert", "modernbert-biased",
         "deberta-v3", "deberta-v2")  # fmt: skip
WITH_WORDS = ("roberta", "xlm-roberta", "distilbert", "albert", "electra", "mpnet", "modernbert",
              "deberta-v3")  # fmt: skip  # a tokenizer and masked words
LONG = ("mpnet", "modernbert", "modernbert-biased", "deberta-v3", "deberta-v2")
TEXT = "the cat sat on the mat and looked at the rain. " * 40


def tokens(name):
    return json.loads((MODELS / "tokens.json").read_text())[name]


def check_outputs(name, x, given, place, dtype, real=...):
    """Compare what the heads make of the last hidden states x, and x itself, with the reference."""
    close(x, given, f"{place}hidden", name, dtype, real)
    if f"{place}logits.f64" in given:
        logits = model.head_logits(core(name), x)
        logits = logits[..., :1] if core(name).config.classes else logits  # the other class has the logit 0
        close(logits, given, f"{place}logits", name, dtype, real)
    if f"{place}pooled.f64" in given:
        close(model.pool_first(core(name), x), given, f"{place}pooled", name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_states_weights_and_heads(name, dtype):
    given = frozen(name)
    x, kept = ran(name, "encoder", given["ids"], dtype, segment_ids=given.get("types"))
    found = states(name, "encoder", kept, x)
    assert f"hidden.{len(found)}.f64" not in given
    for number, state in enumerate(found):
        close(state, given, f"hidden.{number}", name, dtype)
    close(kept["encoder.0.self.weights"], given, "attentions.0", name, dtype)
    check_outputs(name, x, given, "", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_padded_batches(name, dtype):
    given = frozen(name)
    mask, positions = padding(given["batch_mask"])
    x, _ = ran(name, "encoder", given["batch_ids"], dtype, mask=mask, positions=positions)
    check_outputs(name, x, given, "batch.", dtype, mask[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LONG)
def test_texts_past_windows_and_exact_buckets(name, dtype):
    given = frozen(name)
    x, _ = ran(name, "encoder", given["long_ids"], dtype)
    check_outputs(name, x, given, "long.", dtype)


def test_the_rows_of_distances_of_published_sizes():
    places = distance_rows(np.arange(-600, 601), np.array([0]), 256, 512)[:, 0]
    np.testing.assert_array_equal(places, frozen("deberta-v3")["places"])


@pytest.mark.parametrize("name", NAMES)
def test_a_padded_batch_is_its_texts_one_by_one(name):
    given = frozen(name)
    mask = given["batch_mask"].astype(bool)
    whole = attnkit.encode(
        Record({"x": given["batch_ids"], "ids": given["batch_ids"], "mask": mask}), model=folder(name)
    )
    for row, real in enumerate(mask):
        alone = attnkit.encode(model=folder(name), ids=given["batch_ids"][row, real])
        np.testing.assert_allclose(whole["x"][row, real], alone["x"], rtol=0, atol=2e-6)


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
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_the_printed_pipeline(name, tmp_path):
    np.save(tmp_path / "ids.npy", frozen(name)["ids"][0][:5])
    config = core(name).config
    text = (
        shell_pipeline(config, folder(name), "all").replace("\\\n", "").replace('"TEXT"', f"--ids {tmp_path}/ids.npy")
    )
    target = " | loss --target '1 2 3 4 5'" if config.head and not config.classes else ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", attnkit.errors.AttnkitWarning)  # of an x that is not one number
        (result,) = parser.parse(find_tool("grad"), [text + target, "--check"]).open_stream(None).items
    assert result["check"][2] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_WORDS)
def test_training_goes_on_from_the_folder(name, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    out = str(tmp_path / "out")
    flags = ["--steps", "20", "--block", "16", "--batch", "4", "-o", out, "-q"]
    done = process.run("train", str(tmp_path / "text.txt"), "--from", folder(name), *flags)
    assert done.code == 0, done.err
    before, after = core(name), open_checkpoint(out)
    assert after.config == before.config
    assert (after.params["encoder.0.self"]["wq"] != before.params["encoder.0.self"]["wq"]).any()
