"""decode --steps: the candidates of each choice as tensors."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.formats import load
from attnkit.generation.text_generation import StepCandidates, candidate_tensors
from tests import process
from tests.places import FRENCH, STORY

NAMES = [f"candidates.{name}" for name in ("ids", "logits", "probs", "filtered", "chosen")]


def test_candidates_of_texts_of_other_lengths_have_the_width_of_the_fewest():
    def step(*ids):
        ids = np.array(ids)
        return StepCandidates(ids, ids / 2, ids / 4, ids / 8, ids == ids[0])

    no_words = SimpleNamespace(tokenizer=None)
    record = candidate_tensors([[step(5, 6, 7)], [step(8, 9), step(3, 4)]], ("batch",), no_words)
    assert record["candidates.ids"].tolist() == [[[5, 6], [0, 0]], [[8, 9], [3, 4]]]
    assert record["candidates.logits"][1].tolist() == [[4, 4.5], [1.5, 2]]
    assert record.axes_of("candidates.ids") == ("batch", "token", "rank")
    assert candidate_tensors([[step(5, 6)]], (), no_words)["candidates.chosen"].tolist() == [[True, False]]


def test_candidates_are_the_numbers_of_the_logits_themselves():
    options = {"max_tokens": 4, "temperature": 1.5, "top_p": 0.8, "seed": 3}
    logits = attnkit.decode("Every evening the", model=STORY, emit="logits", **options)["x"]
    record = attnkit.decode("Every evening the", model=STORY, steps=True, top=3, **options)
    assert [name for name in record if name.startswith("candidates")] == NAMES
    ids = record["candidates.ids"]
    assert ids.shape == (4, 3) and record.axes_of("candidates.ids") == ("token", "rank")
    picked = np.take_along_axis(logits, ids, axis=-1)
    assert np.array_equal(record["candidates.logits"], picked)
    shares = np.take_along_axis(model.softmax(logits), ids, axis=-1)
    np.testing.assert_allclose(record["candidates.probs"], shares, rtol=1e-5)
    assert len(record.labels["candidates.ids"]) == 4
    assert record.labels["candidates.ids"][0] == ["Ġfox", "Ġrobot", "Ġgirl"]


def test_the_chosen_token_is_marked_or_not_among_them():
    record = attnkit.decode("Every evening the", model=STORY, steps=True, top=2, max_tokens=9, temperature=1.5, seed=1)
    is_chosen = record["candidates.ids"] == record["ids"][:, None]
    assert np.array_equal(record["candidates.chosen"], is_chosen)
    assert not is_chosen.any(axis=1).all() and is_chosen.any()
    own = np.broadcast_to(np.exp(record["x"])[:, None], is_chosen.shape)[is_chosen]
    np.testing.assert_allclose(record["candidates.probs"][is_chosen], own, rtol=1e-5)


def test_tokens_that_the_filters_remove_come_last_with_probability_0():
    record = attnkit.decode("Every evening the", model=STORY, steps=True, top=4, max_tokens=1, top_k=2)
    filtered, probs = record["candidates.filtered"][0], record["candidates.probs"][0]
    assert np.isclose(filtered[:2].sum(), 1) and filtered[2:].tolist() == [0, 0]
    assert (np.diff(probs) <= 0).all() and probs[3] > 0
    assert len(set(record["candidates.ids"][0].tolist())) == 4


def test_a_batch_has_a_row_for_each_text_and_a_stop_pads_it():
    texts = ("Every evening the", "One day a")
    batch = attnkit.decode(texts, model=STORY, steps=True, top=2, max_tokens=4, stop=("looked",))
    assert batch["candidates.ids"].shape == (2, 4, 2) == batch["candidates.chosen"].shape
    assert batch.axes_of("candidates.probs") == ("batch", "token", "rank")
    assert "mask" in batch and not batch["candidates.probs"][0, 2:].any()
    for row, text in enumerate(texts):
        one = attnkit.decode(text, model=STORY, steps=True, top=2, max_tokens=4, stop=("looked",))
        steps = len(one["ids"])
        for name in NAMES:
            assert np.array_equal(batch[name][row, :steps], one[name]), name
        assert batch.labels["candidates.ids"][4 * row : 4 * row + steps] == one.labels["candidates.ids"]
    padding = batch.labels["token"][0][2]
    assert batch.labels["candidates.ids"][2] == [padding, padding]


def test_only_the_candidates_keep_their_words():
    record = attnkit.decode("One day", model=STORY, steps=True, max_tokens=1, only=("candidates.ids",))
    assert list(record) == ["candidates.ids"] and len(record.labels["candidates.ids"][0]) == 5


@pytest.mark.parametrize("options", [{}, {"beam": 2, "steps": True}])
def test_without_steps_and_of_a_beam_search_there_are_none(options):
    assert not [name for name in attnkit.decode("One", model=STORY, max_tokens=2, **options) if "candidates" in name]


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_shell_run_and_python_give_one_record_and_the_history_has_the_number(tmp_path, suffix):
    shell, ran = (str(tmp_path / f"{name}.{suffix}") for name in ("shell", "run"))
    flags = ("--model", STORY, "Once upon", "--max-tokens", "2", "--steps", "--top", "3")
    assert process.run("decode", *flags, "-q", "-o", shell)[0] == 0
    assert (
        process.run("run", f"decode --model {STORY} 'Once upon' --max-tokens 2 --steps --top 3", "-q", "-o", ran)[0]
        == 0
    )
    assert Path(shell).read_bytes() == Path(ran).read_bytes()
    here = attnkit.decode("Once upon", model=STORY, max_tokens=2, steps=True, top=3)
    there = load(shell)
    assert list(here) == list(there) and here.labels == there.labels
    assert all(np.array_equal(here[name], there[name]) for name in here)
    assert "--steps --top 3" in there.history[0]["command"] == here.history[0]["command"]
    assert process.run("history", shell, "--replay")[:2] == (0, b"1 command run again: identical bit for bit\n")


def test_a_translation_has_candidates_too():
    record = attnkit.decode("je suis étudiant", model=FRENCH, steps=True, top=2)
    assert record["candidates.ids"].shape == (len(record["ids"]), 2)
    assert np.array_equal(record["candidates.ids"][:, 0], record["ids"])
