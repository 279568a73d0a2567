"""Models of images: pixels, states, features and logits as transformers computes them.

What the numbers are, and how they were made: tests/references/make_vision.py.
"""

import functools
import json

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.cli import pipeline
from attnkit.inputs import layers
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.model.backward.whole_models import StackInputs, model_backward, run_model
from attnkit.records import Record
from tests import process
from tests.drawing import drawn_models, write_model
from tests.places import MODELS, arrays

TABLE = drawn_models("vision")
CLASSIFIERS = [name for name, one in TABLE.items() if "classifier.weight" in one["shapes"]]
EXACT, SINGLE = 1e-10, 1e-6  # of the largest number
PICTURE = str(MODELS / "vit.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes the folder of a model of a name, once for a dtype."""
    known = {}

    def write(name, dtype=np.float64):
        if (name, dtype) not in known:
            known[name, dtype] = str(write_model(name, tmp_path_factory.mktemp(name), dtype, "vision"))
        return known[name, dtype]

    return write


def frozen(name, key):
    return arrays("vision")[f"{name}/{key}"]


def run(checkpoint, image, dtype="float64"):
    """The last states of an image (1, C, H, W), and every intermediate."""
    kept = {}
    context = model.Context(hook=lambda where: lambda array: kept.setdefault(where, array), dtype=dtype)
    core = layers.core_model(checkpoint)
    return model.run(core, core.config.plan("encoder"), image.astype(dtype), context), kept


def assert_near(actual, expected, tolerance):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("name", TABLE)
def test_an_image_is_prepared_as_the_processor_of_transformers_does(folder, name):
    record = attnkit.encode(model=folder(name), image=PICTURE)
    pixels = frozen(name, "processed")
    np.testing.assert_array_equal(record["x"], attnkit.encode(model=folder(name), image=pixels[0])["x"])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_states_and_logits_are_those_of_transformers(folder, name):
    checkpoint = open_checkpoint(folder(name))
    core = layers.core_model(checkpoint)
    for place in ("", "wide."):
        x, kept = run(checkpoint, frozen(name, f"{place}pixels"))
        assert_near(x, frozen(name, f"{place}normed.f64"), EXACT)
        assert_near(model.head_logits(core, x), frozen(name, f"{place}logits.f64"), EXACT)
        if not place:
            assert_near(kept["encoder.0.self.weights"], frozen(name, "weights.0"), EXACT)
            names = ["encoder.positions", *(f"encoder.{at}.scale2.residual" for at in range(3))]
            for at, where in enumerate(names):
                given = frozen(name, f"hidden.{at}")
                found = np.delete(kept[where], np.s_[len(given[0]) :], axis=1)
                assert_near(found, given, EXACT)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_in_single_precision(folder, name):
    checkpoint = open_checkpoint(folder(name, np.float32))
    for place in ("", "wide."):
        x, _ = run(checkpoint, frozen(name, f"{place}pixels"), "float32")
        logits = model.head_logits(layers.core_model(checkpoint), x)
        assert logits.dtype == np.float32
        assert_near(logits, frozen(name, f"{place}logits.f64"), SINGLE)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_model_is_its_printed_pipeline_bit_for_bit(folder, name, tmp_path):
    image, path = frozen(name, "wide.pixels")[0], str(tmp_path / "image.npz")
    formats.save(Record({"x": image}), path)
    line = shell_pipeline(open_checkpoint(folder(name)).config, folder(name), "encoder").replace("\\\n", "")
    [made] = pipeline.chain_stages(pipeline.parse_stages(line.replace("IMAGE", path))).items
    np.testing.assert_array_equal(made["x"], attnkit.encode(model=folder(name), image=image)["x"])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradients_are_those_of_finite_differences(folder, name):
    checkpoint = open_checkpoint(folder(name))
    core = layers.core_model(checkpoint)
    image = frozen(name, "wide.pixels").astype(np.float64)
    output, recorded = run_model(core, {"encoder": StackInputs(image)})
    rng = np.random.default_rng(1)
    outer = rng.standard_normal(output.shape)
    found = model_backward(core, recorded, outer).params
    for layer, parameter in (
        ("encoder.embed", "cls"),
        ("encoder.embed", "w"),
        ("encoder.positions", "table"),
        ("encoder.1.scale1", "w"),
        ("encoder.2.ffn", "w2"),
        ("head", "w"),
        *[("encoder.embed", "registers")] * ("registers" in checkpoint.params["encoder.embed"]),
    ):
        direction = rng.standard_normal(checkpoint.params[layer][parameter].shape)
        sides = []
        for sign in (1, -1):
            params = {name: dict(checkpoint.params[name]) for name in checkpoint.params}
            params[layer][parameter] = params[layer][parameter] + sign * 1e-6 * direction
            moved, _ = run_model(core._replace(params=params), {"encoder": StackInputs(image)})
            sides.append((moved * outer).sum())
        slope = (sides[0] - sides[1]) / 2e-6
        assert abs((found[layer][parameter] * direction).sum() - slope) < 1e-7 * max(1, abs(slope))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_jax_computes_the_same(folder, name):
    pytest.importorskip("jax")
    image = frozen(name, "wide.pixels")[0]
    single = folder(name, np.float32)
    for tool in (attnkit.encode, functools.partial(attnkit.decode, emit="logits")):
        ours = tool(model=single, image=image)["x"]
        assert_near(tool(model=single, image=image, engine="jax")["x"], ours, 1e-5)


def moved_logits(folder, tmp_path, name, **changes):
    """The difference that keys of config.json make to the logits."""
    changed = open_checkpoint(str(write_model(name, tmp_path, np.float64, "vision", **changes)))
    x, _ = run(changed, frozen(name, "wide.pixels"))
    logits, given = model.head_logits(layers.core_model(changed), x), frozen(name, "wide.logits.f64")
    return np.abs(logits - given).max() / np.abs(given).max()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dinov2", {"layer_norm_eps": 1e-2}),
        ("dinov2", {"hidden_act": "gelu_new"}),
        ("dinov2-registers", {"num_attention_heads": 4}),
    ],
)
def test_traps_show(folder, tmp_path, name, changes):
    assert moved_logits(folder, tmp_path, name, **changes) > 1e-5


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"use_swiglu_ffn": True}, "no tensor 'encoder.layer.0.mlp.weights_in.weight'"),
        ({"mlp_ratio": 0}, "mlp_ratio"),
        ({"image_size": 3}, "image_size 3x3 is smaller than patch_size 7x7"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers 100000000, and only"),
        ({"patch_size": [7, 7, 7]}, "patch_size"),
        ({"register": 3}, "register 3 is not supported by family dinov2"),
    ],
)
def test_hostile_configurations_are_one_line(tmp_path, changes, problem):
    write_model("dinov2", tmp_path, np.float32, "vision", **changes)
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"size": {"shortest_edge": 10**9}}, "size 1000000000x1000000000 (expected at most 4 times"),
        ({"size": {"shortest_edge": 0}}, "shortest_edge"),
        ({"size": {"shortest_edge": 21, "longest_edge": 40}}, "size with longest_edge is not supported"),
        ({"crop_size": {"height": -1, "width": 21}}, "height"),
        ({"crop_size": {"height": 10**6, "width": 21}}, "crop_size 1000000x21 (expected at most 4 times"),
        ({"resample": 9}, "resample"),
        ({"image_mean": [1, 2]}, "image_mean"),
        ({"crop_size": {"height": 20, "width": 21}}, "20 x 21 is not divisible by patches of 7 x 7"),
    ],
)
def test_hostile_preprocessors_are_one_line(tmp_path, settings, problem):
    write_model("dinov2", tmp_path, np.float32, "vision")
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(TABLE["dinov2"]["preprocessor"] | settings))
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


def test_an_image_that_would_become_huge_is_refused(tmp_path):
    from PIL import Image

    write_model("dinov2", tmp_path, np.float32, "vision")
    Image.new("RGB", (1, 60_000_000)).save(tmp_path / "line.png")
    done = process.run("encode", "--model", str(tmp_path), "--image", str(tmp_path / "line.png"))
    assert done.code == 3 and "too narrow to resize" in done.err and done.err.count("\n") == 1, done.err
