"""A model in training: its loss falls, a stopped run goes on with the same bits, parts of a batch are the batch."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitNote, DataError, FileError, UsageError
from attnkit.generation.options import DecodeOptions, Length
from attnkit.generation.text_generation import run_decode
from attnkit.model.processor import threads
from attnkit.training.initial_model import prepare_model
from attnkit.training.loop import Monitor, Run
from attnkit.training.recipe import Recipe
from attnkit.training.reports import Origin, training_script
from attnkit.training.trainer import Trainer
from tests.places import REFERENCES

TEXT = "the cat sat on the mat and the dog sat on the log; a cat and a dog sat.\n" * 12
PAIRS = "".join(f"{a} {b}\t{b} {a}\n" for a in ("un", "le", "la") for b in ("chat", "chien", "oiseau", "livre"))
TINY = Recipe(layers=1, heads=2, dim=16, batch=4, block=16, warmup=0, lr=3e-3, every=4, steps=8, valid="10%")
FAMILIES = ("gpt2", "llama", "lfm2", "qwen3_5_text", "bert", "t5", "marian", "transformer", "seq2seq", "lstm")
PAIR_FAMILIES = ("marian", "transformer", "seq2seq")


def text_of(family):
    return PAIRS if family in PAIR_FAMILIES else TEXT


def trainer_of(recipe):
    return Trainer(recipe, prepare_model(recipe, text_of(recipe.family), "text"))


def collect_gradients(trainer, number):
    """The loss of a step, whose gradients are put in their buffer, and its number of targets."""
    plan = trainer.plan(number)
    return trainer.state.collect_gradients(plan), plan.targets


def run_of(recipe, folder, **monitor):
    run = Run(
        recipe,
        prepare_model(recipe, text_of(recipe.family), "text"),
        Origin("attnkit train", "text", "0", "1.0"),
        folder,
    )
    return run, Monitor(**monitor)


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_every_family_falls(family):
    trainer = trainer_of(replace(TINY, family=family, steps=30))
    before = trainer.evaluate().loss
    losses = [trainer.step(number).loss for number in range(1, 31)]
    assert np.isfinite(losses).all()
    assert trainer.evaluate().loss < before


def test_parameters_and_gradients_are_views_of_their_buffers():
    trainer = trainer_of(TINY)
    state = trainer.state
    for layer, parameters in state.model.params.items():
        for name, array in parameters.items():
            assert np.shares_memory(array, state.parameters.flat)
            assert np.shares_memory(state.gradient_of(f"{layer}.{name}"), state.gradients.flat)
    trainer.step(1)
    table = state.gradients["transformer.wte.weight"]
    np.testing.assert_array_equal(state.gradient_of("head.w"), table.T)  # tied: one gradient
    assert table.any()


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_gradients_of_parts_of_a_batch_add_up_to_those_of_the_batch(family):
    whole = trainer_of(replace(TINY, family=family, batch=6))
    parts = trainer_of(replace(TINY, family=family, batch=2, accumulate=3))
    (loss, count), (other, other_count) = collect_gradients(whole, 1), collect_gradients(parts, 1)
    assert count == other_count
    assert loss == pytest.approx(other, rel=1e-6)
    np.testing.assert_allclose(whole.state.gradients.flat, parts.state.gradients.flat, atol=2e-7)


@pytest.mark.parametrize("changes", [{}, {"family": "marian"}, {"dropout": 0.3}, {"accumulate": 2, "dropout": 0.3}])
def test_large_passes_in_parts_at_once_have_the_same_gradients_on_any_number_of_threads(changes, monkeypatch):
    whole, parts, alone = (trainer_of(replace(TINY, batch=5, **changes)) for _ in range(3))
    loss, count = collect_gradients(whole, 2)
    monkeypatch.setattr("attnkit.training.numpy_state.MANY", 0)
    monkeypatch.setattr("attnkit.training.numpy_state.LARGE", 0)
    with threads.single_blas():
        monkeypatch.setattr(threads, "_saved", [3])  # as if the user had set three threads
        other, other_count = collect_gradients(parts, 2)
        monkeypatch.setattr(threads, "_saved", [1])
        assert collect_gradients(alone, 2) == (other, other_count)
        monkeypatch.undo()
    np.testing.assert_array_equal(alone.state.gradients.flat, parts.state.gradients.flat)
    assert (loss, count) == (pytest.approx(other, rel=1e-6), other_count)
    np.testing.assert_allclose(whole.state.gradients.flat, parts.state.gradients.flat, atol=2e-7)


def test_dropout_is_drawn_from_seed_and_step():
    losses = {rate: [trainer_of(replace(TINY, dropout=rate)).step(1).loss for _ in range(2)] for rate in (0.0, 0.3)}
    assert losses[0.3][0] == losses[0.3][1] != losses[0.0][0] == losses[0.0][1]
    assert trainer_of(replace(TINY, dropout=0.3, seed=1)).step(1).loss != losses[0.3][0]


def test_frozen_parameters_stay_and_count_in_no_norm():
    trainer = trainer_of(replace(TINY, freeze=("decoder.0.ffn", "decoder.positions")))
    before = {name: array.copy() for name, array in trainer.state.parameters.items()}
    trainer.step(1)
    frozen = {name for name in before if np.array_equal(before[name], trainer.state.parameters[name])}
    assert frozen == {name for name in before if ".mlp." in name or ".wpe." in name}
    assert not any(trainer.state.gradients[name].any() for name in frozen)


def test_lower_layers_join_later():
    trainer = trainer_of(replace(TINY, layers=2, unfreeze_every=3))
    sizes = [len(trainer.trainable(number)) for number in (1, 3, 4, 7)]
    assert sizes[0] == sizes[1] < sizes[2] < sizes[3] == len(trainer.state.parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_folder_opens_and_speaks(family, tmp_path):
    run, monitor = run_of(replace(TINY, family=family, steps=3), str(tmp_path))
    assert run.train(monitor) == 0
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.config.family == family
    assert checkpoint.params.unused() == []
    if family != "bert":
        text = "le chat" if family in PAIR_FAMILIES else "the"
        assert isinstance(
            run_decode([text], DecodeOptions(model_=checkpoint, length=Length(max_tokens=4), emit="text")), str
        )


STOPPED = (
    {"optimizer": "adam", "accumulate": 3, "dropout": 0.1},
    {"optimizer": "sgd", "momentum": 0.9, "dropout": 0.2, "schedule": "linear", "warmup": 3},
    {"layers": 2, "unfreeze_every": 4, "freeze": ("decoder.positions",), "layer_decay": 0.5},
    {"family": "bert"},
    {"family": "t5"},
    {"family": "marian"},
)


@pytest.mark.parametrize("changes", STOPPED, ids=lambda changes: " ".join(map(str, changes.values())))
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(changes, tmp_path):
    recipe = replace(TINY, **{"schedule": "cosine", "steps": 11, **changes})
    whole, monitor = run_of(recipe, str(tmp_path / "whole"))
    whole.train(monitor)
    for stop in (1, 4, 6):
        folder = str(tmp_path / f"stopped-{stop}")
        run, monitor = run_of(recipe, folder)
        assert run.train(Monitor(stop_signal=lambda run=run, stop=stop: 2 * (run.progress.step == stop))) == 2
        assert run.progress.step == stop
        run, monitor = run_of(recipe, folder)
        run.resume(folder)
        assert run.train(monitor) == 0
        assert files_of(folder) == files_of(str(tmp_path / "whole"))


@pytest.mark.parametrize("steps", [5, 8, 10])
def test_a_run_that_ended_goes_on_as_if_it_had_not(steps, tmp_path):
    whole, monitor = run_of(replace(TINY, steps=12), str(tmp_path / "whole"))
    whole.train(monitor)
    run, monitor = run_of(replace(TINY, steps=steps), str(tmp_path / "parts"))
    run.train(monitor)
    run, monitor = run_of(replace(TINY, steps=12), str(tmp_path / "parts"))
    run.resume(str(tmp_path / "parts"))
    run.train(monitor)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_the_same_recipe_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run, monitor = run_of(replace(TINY, steps=3, seed=seed), str(tmp_path / name))
        run.train(monitor)
    a, b, c = (files_of(tmp_path / name) for name in "abc")
    assert a == b
    assert a["model.safetensors"] != c["model.safetensors"]


def test_the_best_model_is_kept_and_patience_ends_the_run(tmp_path):
    recipe = replace(TINY, steps=None, patience=2, every=1, lr=0.3, valid="20%")
    run, monitor = run_of(recipe, str(tmp_path))
    run.train(monitor)
    losses = [report.held_out_loss for report in run.curve]
    assert len(losses) - 1 - int(np.argmin(losses)) == 2
    trainer = trainer_of(recipe)
    stored = open_checkpoint(str(tmp_path))
    for name in trainer.state.parameters:
        trainer.state.parameters[name][...] = stored.tensor(name)
    assert trainer.evaluate().loss == min(losses)
    lines = (tmp_path / "training.jsonl").read_text().splitlines()
    assert [json.loads(line)["held_out_loss"] for line in lines] == losses


def test_the_end_of_a_run():
    assert trainer_of(replace(TINY, steps=None, epochs=2)).total == 2 * 13
    assert trainer_of(replace(TINY, steps=7, epochs=2)).total == 7
    assert trainer_of(replace(TINY, steps=None, minutes=1.0)).total is None


def test_a_run_of_no_time_is_saved(tmp_path):
    run, monitor = run_of(replace(TINY, steps=None, minutes=1e-9), str(tmp_path))
    run.train(monitor)
    assert open_checkpoint(str(tmp_path)).config.family == "gpt2"


def test_a_number_that_is_not_finite_names_the_first_stage_and_keeps_the_parameters(tmp_path):
    run, monitor = run_of(TINY, str(tmp_path))
    run.trainer.state.model.params["decoder.0.ffn"]["b1"][3] = np.inf
    before = run.trainer.state.parameters.flat.copy()
    with pytest.raises(
        DataError, match=r"step 1: the loss is not finite: decoder\.0\.ffn\.hidden is inf; attnkit show"
    ):
        run.train(monitor)
    np.testing.assert_array_equal(run.trainer.state.parameters.flat, before)
    with np.load(tmp_path / "step-1.npz") as record:
        assert np.isfinite(record["decoder.0.norm2"]).all()
        assert not np.isfinite(record["decoder.0.ffn.hidden"]).all()


def test_records_of_steps_have_activations_and_gradients_and_change_nothing(tmp_path):
    plain, monitor = run_of(replace(TINY, steps=3), str(tmp_path / "plain"))
    plain.train(monitor)
    run, monitor = run_of(replace(TINY, steps=3, record=(2,)), str(tmp_path / "recorded"))
    run.train(monitor)
    np.testing.assert_array_equal(run.trainer.state.parameters.flat, plain.trainer.state.parameters.flat)
    with np.load(tmp_path / "recorded" / "step-2.npz") as record:
        for name in ("decoder.0.self.weights", "decoder.0.ffn.hidden", "logits", "decoder.0.self.wq"):
            assert f"{name}.grad" in record.files
        assert record["decoder.0.ffn.hidden"].shape == record["decoder.0.ffn.hidden.grad"].shape
        axes = json.loads(record["meta.json"])["axes"]
    assert axes["decoder.0.self.weights"] == axes["decoder.0.self.weights.grad"] == ["batch", "head", "query", "key"]


def test_a_new_run_removes_the_records_of_the_earlier_one_with_a_note_and_a_resumed_one_keeps_them(tmp_path):
    def recorded():
        return sorted(path.name for path in tmp_path.glob("step-*"))

    folder = str(tmp_path)
    for steps, record in ((2, (1, 2)), (4, (3,))):
        run, monitor = run_of(replace(TINY, steps=steps, record=record), folder)
        if steps > 2:
            run.resume(folder)
        run.train(monitor)
    assert recorded() == ["step-1.npz", "step-2.npz", "step-3.npz"]
    run, monitor = run_of(replace(TINY, steps=2, record=(2,)), folder)
    with pytest.warns(AttnkitNote, match=r"removed the recorded steps of the earlier run: step-1.npz, step-3.npz$"):
        run.train(monitor)
    assert recorded() == ["step-2.npz"]


def test_fine_tuning_begins_with_a_published_model(tmp_path):
    run, monitor = run_of(replace(TINY, steps=3), str(tmp_path / "first"))
    run.train(monitor)
    recipe = Recipe(from_=str(tmp_path / "first"), batch=2, block=16, steps=1, lr=1e-9, weight_decay=0.0)
    tuned = Trainer(recipe, prepare_model(recipe, TEXT, "text"))
    stored = open_checkpoint(str(tmp_path / "first"))
    for name, array in tuned.state.parameters.items():
        np.testing.assert_array_equal(array, stored.tensor(name))
    with pytest.raises(DataError, match="n_positions 16, fewer than the 32 tokens"):
        prepare_model(replace(recipe, block=32), TEXT, "text")
    with pytest.raises(DataError, match=r"text: line 1: 'X' is not in the vocabulary"):
        prepare_model(recipe, "X" + TEXT, "text")


@pytest.mark.parametrize(
    ("changes", "text", "error", "problem"),
    [
        ({}, "", DataError, "text: empty text"),
        ({}, "abc", DataError, r"text: \d tokens, fewer than a block of 16 and the token after it"),
        ({"family": "marian"}, "a\tb\nc\n", DataError, "text: line 2: 1 column"),
        ({"family": "marian"}, "a\tb\nc\t\n", DataError, "text: line 2: no target after the tab"),
        ({"family": "marian"}, "a\tb\n", DataError, "no pair is held out: 10% of 1; --valid 0 trains on all"),
        ({"dim": 15}, TEXT, UsageError, "dim 15 is not divisible by heads 2"),
        ({"tokens": "letters"}, TEXT, UsageError, "tokens 'letters'"),
        ({"tokens": "no/such"}, TEXT, FileError, "no/such: no such folder"),
        ({"from_": "no/such"}, TEXT, FileError, "no/such: no such folder"),
    ],
)
def test_what_no_run_can_begin_with(changes, text, error, problem):
    with pytest.raises(error, match=problem):
        prepare_model(replace(TINY, **changes), text, "text")


def test_the_state_of_another_model(tmp_path):
    run, monitor = run_of(replace(TINY, steps=1), str(tmp_path))
    run.train(monitor)
    other, _ = run_of(replace(TINY, dim=32), str(tmp_path))
    with pytest.raises(DataError, match=r"state\.safetensors: tensor .*expected"):
        other.resume(str(tmp_path))


def test_the_command_that_made_a_model(tmp_path):
    run, monitor = run_of(replace(TINY, steps=1), str(tmp_path))
    run.train(monitor)
    assert training_script(str(tmp_path)).splitlines()[-1] == "attnkit train"
    with pytest.raises(FileError, match=r"no training\.json in this folder"):
        training_script(str(tmp_path.parent))


FROZEN = json.loads((REFERENCES / "training.json").read_text())
LIGHTHOUSE = REFERENCES.parent.parent / "samples" / "data" / "lighthouse.txt"


@pytest.mark.parametrize("name", FROZEN)
def test_the_losses_are_those_of_pytorch(name):
    recipe = Recipe(**FROZEN[name]["recipe"])
    trainer = Trainer(recipe, prepare_model(recipe, LIGHTHOUSE.read_text(), LIGHTHOUSE.name))
    losses = [trainer.step(number).loss for number in range(1, len(FROZEN[name]["losses"]) + 1)]
    np.testing.assert_allclose(losses, FROZEN[name]["losses"], atol=1e-3)
