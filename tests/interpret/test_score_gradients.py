"""The gradients of a scored text: slopes of every intermediate and parameter of a model, under the names of a trace."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import UsageError
from attnkit.inputs import layers
from attnkit.model.backward.tied import cast_parameters, tied_parameters
from attnkit.model.formulas.norms import NormGradients, layer_norm_vjp
from tests import process
from tests.places import DATA

STORY, TRANSLATOR = str(DATA / "story"), str(DATA / "fr-en")
TEXTS = {STORY: ("Every evening the fox", " looked at the stars"), TRANSLATOR: ("le chat noir dort", "the black cat")}
STEP = 1e-5


@cache
def core(folder):
    wide = layers.core_model(open_checkpoint(folder))
    return model.Model(wide.config, cast_parameters({layer: wide.params[layer] for layer in wide.params}, np.float64))


def loss(folder, **flags):
    text, continuation = TEXTS[folder]
    return -attnkit.decode(text, model=folder, score=continuation, dtype="float64", **flags)["x"].mean()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The gradients and the trace of each model, in float64."""

    @cache
    def read(folder):
        path = tmp_path_factory.mktemp("records")
        files = {name: str(path / f"{name}.npz") for name in ("grad", "trace")}
        value = loss(folder, **files)
        gradients, trace = formats.load(files["grad"]), formats.load(files["trace"])
        assert float(gradients["loss"]) == pytest.approx(value, rel=1e-12)
        return gradients, trace

    return read


@pytest.mark.parametrize("folder", TEXTS, ids=["decoder", "translator"])
def test_names_shapes_axes_and_order_are_those_of_a_trace(records, folder):
    gradients, trace = records(folder)
    names = [name for name in gradients if name in trace]
    assert names == [*trace]
    assert all(gradients[name].shape == trace[name].shape for name in names)
    assert all(gradients.axes_of(name) == trace.axes_of(name) for name in names)
    parameters = {f"{layer}.{name}" for layer, parts in core(folder).params.items() for name in parts}
    assert {*gradients} - {*trace} - {"loss"} >= parameters - {"encoder.embed.types"}


@pytest.mark.parametrize("folder", TEXTS, ids=["decoder", "translator"])
@pytest.mark.parametrize("part", ["weights", "q", "scores", "heads", "residual", "activated", "norm1", "embed"])
def test_slopes_of_intermediates(records, folder, part):
    gradients, trace = records(folder)
    rng = np.random.default_rng(1)
    for name in [name for name in trace if name.rpartition(".")[2] == part and name.startswith("decoder")]:
        direction = rng.standard_normal(trace[name].shape)
        ends = [loss(folder, patch={name: trace[name] + sign * STEP * direction}) for sign in (1, -1)]
        slope = (gradients[name] * direction).sum()
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * STEP), rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("folder", TEXTS, ids=["decoder", "translator"])
def test_slope_of_all_parameters_together(records, folder, monkeypatch):
    gradients, _ = records(folder)
    params, rng = core(folder).params, np.random.default_rng(2)
    direction = {
        layer: {name: array.std() * rng.standard_normal(array.shape) for name, array in parts.items()}
        for layer, parts in params.items()
    }
    repeated = {name for group in tied_parameters(params) for name in group[1:]}

    def loss_at(step):
        moved = cast_parameters(params, np.float64)
        for layer, parts in moved.items():
            for name, array in parts.items():
                if (layer, name) not in repeated:
                    array += step * direction[layer][name]
        monkeypatch.setattr(layers, "core_model", lambda checkpoint: model.Model(checkpoint.config, moved))
        return loss(folder)

    slope = sum(
        (gradients[f"{layer}.{name}"] * change).sum()
        for layer, parts in direction.items()
        for name, change in parts.items()
        if (layer, name) not in repeated
    )
    assert slope == pytest.approx((loss_at(STEP) - loss_at(-STEP)) / (2 * STEP), rel=1e-6)


def test_patterns_keep_some_and_dtype_is_that_of_the_run(tmp_path):
    path = str(tmp_path / "g.npz")
    attnkit.decode("Every evening", model=STORY, score=" the fox", grad=path, grad_only=("*.weights", "head.w"))
    kept = formats.load(path)
    assert [*kept] == ["loss", *(f"decoder.{n}.self.weights" for n in range(3)), "head.w"]
    assert kept["head.w"].dtype == np.float32 and kept.axes_of("head.w") == ("model", "vocab")
    assert kept.labels["query"] == kept.labels["key"] == ["Every", "Ġevening", "Ġthe", "Ġfox"]


def test_a_memory_from_a_file_ends_the_gradients(tmp_path):
    memory = attnkit.encode("le chat noir dort", model=TRANSLATOR)
    direct, from_file = str(tmp_path / "direct.npz"), str(tmp_path / "file.npz")
    attnkit.decode("le chat noir dort", model=TRANSLATOR, score="the black cat", grad=direct)
    attnkit.decode(memory, model=TRANSLATOR, score="the black cat", grad=from_file)
    whole, part = formats.load(direct), formats.load(from_file)
    assert part["memory"].shape == memory["memory"].shape and part.axes_of("memory") == ("source", "model")
    assert not [name for name in part if name.startswith("encoder.0")]
    np.testing.assert_allclose(part["decoder.0.cross.wq"], whole["decoder.0.cross.wq"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("folder", TEXTS, ids=["decoder", "translator"])
def test_the_check_is_a_line_a_tensor_and_an_exit_code(tmp_path, folder):
    text, continuation = TEXTS[folder]
    done = process.run(
        "decode", "--model", folder, text, "--score", continuation, "--grad", "g.npz", "--check", cwd=tmp_path
    )
    assert done.code == 0 and done.err.startswith("check: derivative ") and done.err.count("\n") == 1
    assert 0 < formats.load(str(tmp_path / "g.npz"))["check"][2] < 1e-6


def test_recurrent_models_have_the_slopes_of_their_loss(tmp_path):
    models, path = Path(__file__).parents[1] / "references" / "models", str(tmp_path / "g.npz")
    translator, text = str(models / "seq2seq"), "je suis un chat"
    for source in (text, attnkit.encode(text, model=translator)):
        attnkit.decode(source, model=translator, score="I am a cat", grad=path, check=True)
        kept = formats.load(path)
        assert kept["check"][2] < 1e-6
        assert {"decoder.cross.weights", "decoder.0.rnn.state", "decoder.0.bridge.w1"} <= {*kept}
        assert ({"memory", "memory_state"} <= {*kept}) == (source is not text)
    attnkit.decode("je", model=str(models / "lstm"), score=" suis un", grad=path, check=True)
    assert formats.load(path)["check"][2] < 1e-6


def test_a_wrong_gradient_fails_the_check(tmp_path, monkeypatch):
    monkeypatch.setattr(
        model.backward.layer_vjps,
        "layer_norm_vjp",
        lambda x, **more: (layer_norm_vjp(x, **more)[0], lambda dy: NormGradients(dy, None, None)),
    )
    path = str(tmp_path / "g.npz")
    attnkit.decode("Every evening", model=STORY, score=" the fox", grad=path, check=True)
    assert formats.load(path)["check"][2] > 1e-3


def test_the_check_of_a_memory_from_a_file(tmp_path):
    path = str(tmp_path / "g.npz")
    memory = attnkit.encode("le chat noir dort", model=TRANSLATOR)
    attnkit.decode(memory, model=TRANSLATOR, score="the black cat", grad=path, check=True)
    assert formats.load(path)["check"][2] < 1e-6


def test_a_cache_has_no_gradients(tmp_path):
    cache_file = str(tmp_path / "cache.npz")
    attnkit.decode("Every evening", model=STORY, max_tokens=1, cache_out=cache_file)
    with pytest.raises(UsageError, match="cannot be combined"):
        attnkit.decode("", model=STORY, cache_in=cache_file, score=" the fox", grad=str(tmp_path / "g.npz"))
