"""Tables and heads that a configuration ties, and that are stored all the same; against transformers (make_ties.py)."""

import warnings

import numpy as np
import pytest
import safetensors.numpy

from attnkit.checkpoints import checkpoint, open_checkpoint
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import AttnkitWarning, DataError
from attnkit.training.initial_model import known_tensors
from tests.checkpoints.test_untied import logits
from tests.drawing import drawn_models, write_model
from tests.places import arrays
from tests.process import run

TIES = drawn_models("ties")
DIFFERS = "which the configuration ties it to: they differ"
ONE_IS_STORED = ("llama-moved", "t5-moved")  # of those that are tied, so that there is nothing to warn of


@pytest.mark.parametrize("name", TIES)
def test_different_numbers_that_are_tied_are_read_as_transformers_reads_them(name, tmp_path):
    frozen = arrays("ties")
    folder, expected = write_model(name, tmp_path, kind="ties"), frozen[f"{name}.logits"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = logits(folder, frozen["ids"])
    assert any(DIFFERS in str(one.message) for one in told) is (name not in ONE_IS_STORED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def stored_again(name, folder, copies, dtype=np.float32):
    """The folder of a model whose tensors are as they were, and some of them copies: {name: name of the original}."""
    write_model(name, folder, dtype, kind="ties")
    file = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(tensors | {name: tensors[other].copy() for name, other in copies.items()}, file)
    return open_checkpoint(str(folder))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("name", "table"), [("llama", "model.embed_tokens.weight"), ("bart", "model.shared.weight")])
def test_an_equal_copy_is_silent_and_shares_its_memory(name, table, dtype, tmp_path):
    copies = [one for one in TIES[name]["shapes"] if one.endswith(("embed_tokens.weight", "lm_head.weight"))]
    copies = [one for one in copies if one != table]
    opened = stored_again(name, tmp_path, dict.fromkeys(copies, table), dtype)
    params = opened.params
    assert np.shares_memory(params["decoder.embed"]["table"], params["head"]["w"])
    assert params.source("head", "w") == params.source("decoder.embed", "table")
    assert params.used.isdisjoint(copies) and params.unused() == []
    alone = write_model(name, tmp_path, dtype, kind="ties")
    tensors = safetensors.numpy.load_file(alone / "model.safetensors")
    safetensors.numpy.save_file(
        {key: one for key, one in tensors.items() if key not in copies}, alone / "model.safetensors"
    )
    assert open_checkpoint(str(alone)).parameter_count == opened.parameter_count


def test_copies_are_compared_when_they_are_read_and_up_to_the_first_difference(tmp_path, monkeypatch):
    opened = stored_again("llama", tmp_path, {"lm_head.weight": "model.embed_tokens.weight"})
    compared = []
    monkeypatch.setattr(checkpoint, "have_same_bits", lambda x, y: compared.append(x.shape) or True)
    opened.params["decoder.embed"], opened.params["decoder.0.self"], opened.params.keeps_layers, opened.params.unread
    assert compared == []
    opened.params["head"], opened.params["head"], opened.params.used
    assert compared == [(17, 8)]
    monkeypatch.undo()
    steps = []
    x, y = np.zeros((3, checkpoint.LARGE), np.float32), np.zeros((3, checkpoint.LARGE), np.float32)
    y[1, 5] = 1
    monkeypatch.setattr(checkpoint.np, "array_equal", lambda a, b: steps.append(a.size) or bool((a == b).all()))
    assert not checkpoint.have_same_bits(x, y)
    assert steps == [checkpoint.LARGE, checkpoint.LARGE]
    assert checkpoint.have_same_bits(x, x[:]) and len(steps) == 2  # the same bytes, which are not read


def test_different_numbers_that_are_tied_are_told_once_when_they_are_read(tmp_path):
    folder = write_model("llama", tmp_path, kind="ties")
    said = f"lm_head.weight is read, and not model.embed_tokens.weight, {DIFFERS}"
    for line, count in (("decode --max-tokens 3", 1), ("encode", 0)):  # which does not read the head
        command = f"{line} --model {folder} --ids - -f json"
        assert run(*command.split(), stdin=b"[[3, 4, 5]]").err.count(said) == count
    assert "weights of its own" in run("show", str(folder), "--facts").out.decode()


def test_a_model_whose_tied_tables_differ_is_not_trained_with_one_of_them(tmp_path):
    opened = open_checkpoint(str(write_model("gpt2", tmp_path, kind="ties")))
    with (
        pytest.warns(AttnkitWarning, match=DIFFERS),
        pytest.raises(DataError, match=r'lm_head\.weight differ.*"tie_word_embeddings": false trains both'),
    ):
        known_tensors(opened, published_tensors(opened.raw))
