"""Training by JAX: its differentiation and the adjoints of model/backward check each other; runs go on in either."""

import json
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import attnkit
from attnkit.backends.jax.engine import JaxEngine
from attnkit.checkpoints.publishing import assemble_checkpoint, published_tensors
from attnkit.errors import UsageError
from attnkit.model.backward.tape import Dropout
from attnkit.model.backward.whole_models import StackInputs, model_backward, run_model
from attnkit.model.loss import LossOptions, loss_and_gradient
from attnkit.training.parameter_buffer import ParameterBuffer
from attnkit.training.trainer import views_as_model

MODELS = Path(__file__).parent.parent / "references" / "models"
FAMILIES = ("gpt2", "llama", "bert-mlm", "t5", "deberta-v2", "modernbert", "electra")
DEPTHS = ("n_layer", "num_hidden_layers")
RNG = np.random.default_rng(3)


def random_model(name, dtype):
    """The configuration of a reference model, of one layer (t5: of two in each stack), and random parameters."""
    raw = json.loads((MODELS / name / "config.json").read_text())
    raw |= {key: 1 for key in DEPTHS if key in raw}
    shapes = published_tensors(raw).shapes
    tensors = {key: 0.2 * RNG.standard_normal(shape) + (len(shape) == 1) for key, shape in shapes.items()}
    return raw, ParameterBuffer.of(tensors, dtype)


def batch(config, rows=2, tokens=6):
    """Inputs of every stack, with padding in those of an encoder, and targets."""
    inputs = {}
    for name in config.stacks:
        stack = config.stack(name)
        mask = np.ones((rows, 1, tokens), bool)
        mask[1, 0, 4:] = False
        ids = RNG.integers(3, stack.vocab - 1, (rows, tokens))
        inputs[name] = StackInputs(ids, mask if name == "encoder" else None)
    targets = RNG.integers(3, stack.vocab - 1, (rows, tokens))
    targets[0, 2] = -100
    return inputs, targets


def gradients(raw, buffer, inputs, targets, dropping, smoothing):
    """The loss and the gradients of NumPy's adjoints, in a buffer like that of the parameters."""
    model, sums = views_as_model(raw, buffer), buffer.zeros()
    logits, recorded = run_model(model, inputs, dropout=dropping)
    options = LossOptions(label_smoothing=smoothing, reduction="sum")
    loss, slope = loss_and_gradient(logits, targets, options, 1 / 7)
    views, done = views_as_model(raw, sums).params, set()
    for layer, parts in model_backward(model, recorded, slope).params.items():
        for name, gradient in parts.items():
            place = views[layer][name].__array_interface__["data"][0], gradient.size
            if place not in done:
                done.add(place)
                views[layer][name][...] += gradient
    return float(loss), sums.flat


def both(name, dtype, engine=None, dropping=None, smoothing=0.0):
    raw, buffer = random_model(name, dtype)
    model = views_as_model(raw, buffer)
    inputs, targets = batch(model.config)

    one = (engine or JaxEngine()).differentiator(
        model, buffer, lambda tensors: assemble_checkpoint(raw, tensors).params
    )
    ours = one.differentiate(buffer.flat, inputs, targets, count=7, smoothing=smoothing, dropping=dropping)
    if engine:  # the other programs are parts of those of the gradients
        np.testing.assert_allclose(one.logits(buffer.flat, inputs), run_model(model, inputs)[0], atol=1e-3)
    return ours, gradients(raw, buffer, inputs, targets, dropping, smoothing)


def assert_equal(ours, theirs, limit):
    assert ours[1].dtype == theirs[1].dtype
    assert abs(ours[0] - theirs[0]) <= limit * abs(theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=limit * np.abs(theirs[1]).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_the_adjoints_in_float64(name):
    assert_equal(*both(name, "float64"), 1e-9)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices")
def test_gradients_of_a_split_model_with_dropout_and_label_smoothing():
    engine = JaxEngine(mesh={"data": 2, "model": 2, "seq": 2})
    assert_equal(*both("gpt2", "float32", engine, dropping=Dropout(0.3, 5, 2), smoothing=0.1), 1e-5)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat and the dog ran to the sea\n" * 40)
    return path


def test_a_run_gives_the_log_of_numpy_and_goes_on_in_either(text, tmp_path):
    options = {
        "layers": 1,
        "heads": 2,
        "dim": 16,
        "block": 16,
        "batch": 4,
        "every": 5,
        "tokens": "chars",
        "dropout": 0.1,
    }
    runs = [
        attnkit.train(text, output=str(tmp_path / name), steps=10, engine=name, **options) for name in ("jax", "numpy")
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


def test_a_recurrent_model_is_trained_by_numpy(text, tmp_path):
    problem = "--engine: jax computes Transformers, not a lstm model; numpy does"
    with pytest.raises(UsageError, match=problem):
        attnkit.train(text, output=str(tmp_path / "lstm"), family="lstm", steps=1, dim=8, hidden=8, engine="jax")
