"""Training by JAX gives what NumPy's gives: gradients of its own, and parameters that stay on the devices."""

import json
import runpy
from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import attnkit
from attnkit.backends.jax import formulas
from attnkit.backends.jax.engine import JaxEngine
from attnkit.callbacks import current, use_callbacks
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import DataError, NotFiniteError
from attnkit.training.batches import Batch
from attnkit.training.images import find_images
from attnkit.training.initial_model import prepare_model
from attnkit.training.loop import Monitor, Run
from attnkit.training.numpy_state import NumpyState, StepPlan
from attnkit.training.recipe import Recipe
from attnkit.training.reports import Origin
from attnkit.training.trainer import EngineState, Trainer
from tests.drawing import drawn_models
from tests.places import DATA, MODELS

FAMILIES = ("bert-mlm", "t5", "modernbert", "electra")
ARCHIVE = np.load(MODELS.parent / "recurrent_models.npz")
RECURRENT = ("general",)
COPIED = ("gemma3", "falcon-40b", "deepseek_v3")  # tensors that are not parameters
ONE = {"n_layer": 1, "num_layers": 1, "num_hidden_layers": 1}  # layer
BOTH = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "layer_types": ["sliding_attention", "full_attention"]}
DEPTHS = {"gemma3": BOTH, "deepseek_v3": BOTH}  # which have two kinds of layers
RNG = np.random.default_rng(3)
TEXT = "the cat sat on the mat and the dog ran to the sea\n" * 40
PAIRS = "the cat\tsat on\na dog ran\tto it\nthe\tsea\n" * 9
TINY = Recipe(layers=1, heads=2, dim=16, batch=2, block=16, warmup=0, steps=4, every=2, lr=3e-3)
needs_devices = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: tests/conftest.py makes them")


def by_engine(make, engine):
    """What is made where an engine computes."""
    with use_callbacks(current()._replace(engine=engine)):
        return make()


def trainers(recipe, engine, dtype="float64"):
    """Training of the same model in NumPy and by JAX."""
    start = prepare_model(recipe, PAIRS if recipe.family == "seq2seq" else TEXT, "text")
    return trainers_of(start, recipe, engine, dtype)


def trainers_of(start, recipe, engine, dtype="float64"):
    start = start._replace(tensors={name: array.astype(dtype) for name, array in start.tensors.items()})
    return Trainer(recipe, start), by_engine(lambda: Trainer(recipe, start), engine)


def assert_same(mine, known, limit):
    """That two states have the same parameters, and the same of each in their optimizers."""
    ours, theirs = mine.fetch(), known.fetch()
    for name, array in theirs.parameters.items():
        np.testing.assert_allclose(ours.parameters[name], array, rtol=0, atol=limit, err_msg=name)
    for name, array in theirs.optimizer.state().items():
        np.testing.assert_allclose(ours.optimizer.state()[name], array, rtol=0, atol=limit, err_msg=name)


def config_of(name):
    """The configuration of a model, with one layer of each kind."""
    if name in COPIED:
        raw = drawn_models()[name]["config"]
    else:
        stored = ARCHIVE[f"{name}/config"] if name in RECURRENT else (MODELS / name / "config.json").read_text()
        raw = json.loads(str(stored))
    return raw | {key: value for key, value in DEPTHS.get(name, ONE).items() if key in raw}


@pytest.mark.parametrize("name", [*FAMILIES, *RECURRENT, *COPIED])
def test_gradients_are_those_of_the_adjoints_in_float64(name):
    raw = config_of(name)
    table = published_tensors(raw)
    tensors = {key: 0.2 * RNG.standard_normal(shape) + (len(shape) == 1) for key, shape in table.shapes.items()}
    vocab = min(table.config.stack(stack).vocab for stack in table.config.stacks)
    ids, targets, source = RNG.integers(3, vocab - 1, (3, 2, 6))
    targets[0, 2] = -100
    mask = np.array([[True] * 6, [True] * 4 + [False] * 2])
    is_pair, is_masked = len(table.config.stacks) > 1, "encoder" in table.config.stacks[-1:]
    batch = Batch(ids, targets, source if is_pair else None, mask if is_pair else None, mask if is_masked else None)
    recipe = Recipe(optimizer="sgd", lr=1.0, clip=0.0, smoothing=0.1)
    known, ours = NumpyState(recipe, raw, tensors), by_engine(lambda: EngineState(recipe, raw, tensors), JaxEngine())
    plan = StepPlan(batch, [slice(0, 2)], 1, list(table.shapes), 1.0)
    assert ours.step(plan) == pytest.approx(known.step(plan), rel=1e-9)
    assert_same(ours, known, 1e-9)  # which are what they were, less the gradients


@pytest.mark.parametrize("is_centered", [True, False])
def test_the_gradient_that_norms_are_given_is_what_jax_derives(is_centered):
    with jax.enable_x64(True):
        x, slope = RNG.standard_normal((2, 3, 8))
        ours = jax.vjp(lambda x: formulas.standardize(x, is_centered, 1e-5), x)[1](slope)
        derived = jax.vjp(lambda x: formulas._standardize(x, is_centered, 1e-5)[0], x)[1](slope)
        np.testing.assert_allclose(*ours, *derived, rtol=0, atol=1e-12)


RECIPES = {
    "adamw": replace(TINY, accumulate=2, dropout=0.2, clip=0.5, layer_decay=0.5, schedule="cosine"),
    "adam": replace(TINY, layers=2, optimizer="adam", unfreeze_every=1, freeze=("decoder.positions",), clip=0.0),
    "lstm": replace(TINY, family="lstm", hidden=12, accumulate=2, dropout=0.2, weight_drop=0.3),
    "seq2seq": replace(TINY, family="seq2seq", bidirectional=True, dropout=0.2, weight_drop=0.3, tokens="chars"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_steps_are_those_of_numpy_in_float64(name):
    known, ours = trainers(RECIPES[name], JaxEngine())
    for number in range(1, 4):
        assert ours.step(number) == pytest.approx(known.step(number), rel=1e-9)
    assert ours.evaluate().loss == pytest.approx(known.evaluate().loss, rel=1e-9)
    assert_same(ours.state, known.state, 1e-9)


def test_steps_on_images_are_those_of_numpy_in_float64(tmp_path):
    runpy.run_path(str(DATA / "shapes.py"))["draw_folder"](tmp_path, 3, 0)
    optimizer = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "lr": 0.1, "smoothing": 0.1}
    recipe = replace(TINY, family="vit", size=8, valid="0", dropout=0.2, **optimizer)
    start = prepare_model(recipe, find_images(str(tmp_path)), "shapes")
    batch = start.corpus.batch

    def draw(step):
        return batch(step)._replace(ids=batch(step).ids.astype(float))

    start = start._replace(corpus=replace(start.corpus, batch=draw))
    known, ours = trainers_of(start, recipe, JaxEngine())
    for number in (1, 2):
        assert ours.step(number) == pytest.approx(known.step(number), rel=1e-9)
    assert_same(ours.state, known.state, 1e-9)


@needs_devices
def test_a_mesh_splits_parameters_and_the_state_of_the_optimizer():
    recipe = replace(RECIPES["adamw"], batch=3)  # of which each device of the axis data has two, one of them added
    known, ours = trainers(recipe, JaxEngine(mesh={"data": 2, "model": 2, "seq": 2}), "float32")
    for number in (1, 2):
        assert ours.step(number) == pytest.approx(known.step(number), rel=1e-4)
    assert_same(ours.state, known.state, 1e-5)
    for arrays in ours.state._devices._arrays.values():
        for name, shape in {"ffn.w1": (16, 32), "ffn.w2": (32, 16), "self.wq": (16, 8), "norm1.gamma": (16,)}.items():
            shards = arrays[f"decoder.0.{name}"].addressable_shards
            assert {shard.data.shape for shard in shards} == {shape} and len(shards) == 8


def test_what_is_not_finite_changes_nothing_and_names_the_first_stage(tmp_path):
    start = prepare_model(TINY, TEXT, "text")
    start.tensors["transformer.h.0.mlp.c_fc.bias"][3] = np.inf
    run = by_engine(lambda: Run(TINY, start, Origin("attnkit train", "text", "0", "1.0"), str(tmp_path)), JaxEngine())
    before = {name: array.copy() for name, array in run.trainer.state.fetch().parameters.items()}
    with pytest.raises(NotFiniteError, match="step 1: the loss is not finite"):
        run.trainer.step(1)
    after = run.trainer.state.fetch()
    for name, array in before.items():
        np.testing.assert_array_equal(after.parameters[name], array)
    assert not any(array.any() for array in after.optimizer.state().values())
    with pytest.raises(DataError, match=r"the loss is not finite: decoder\.0\.ffn\.hidden is inf"):
        run.train(Monitor())


def test_a_run_gives_the_log_of_numpy_and_goes_on_in_either(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    options = {"layers": 1, "heads": 2, "dim": 16, "block": 16, "batch": 4, "every": 5, "tokens": "chars"}
    runs = [
        attnkit.train(text, output=str(tmp_path / name), steps=10, engine=name, dropout=0.1, **options)
        for name in ("jax", "numpy")
    ]
    for mine, known in zip(*(run["reports"] for run in runs), strict=True):
        assert mine["step"] == known["step"] and mine["tokens"] == known["tokens"]
        for key in ("loss", "held_out_loss", "gradient_norm"):
            assert mine[key] == pytest.approx(known[key], rel=1e-4)
    last = [
        attnkit.train(text, resume=str(tmp_path / folder), steps=15, engine=name)["held_out_loss"]
        for folder, name in (("jax", "numpy"), ("numpy", "jax"))
    ]
    assert last[0] == pytest.approx(last[1], rel=1e-4)
