"""The tool conv: a kernel over tokens and images, its steps and its gradients."""

import numpy as np
import pytest

import attnkit
from attnkit.errors import DataError
from attnkit.model.formulas.activations import gelu
from attnkit.records import Record, Tensor
from tests import process
from tests.commands.records import of, read_back

X = np.array([[1.0], [2.0], [4.0], [8.0]])
PARAMS = {"w": np.array([[[1.0, 10.0]]]), "b": np.array([100.0])}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--filters", "1000000000000", "--size", "3"], "--filters: a kernel (1000000000000,2,3) needs 48.0 TB"),
        (
            ["--filters", "2", "--size", "3", "--padding", "1000000000000"],
            "an input (2000000000003,2) with its",
        ),
        (["--filters", "2", "--size", "3", "--padding", "99999999999999999"], "an input (200000000000000001,2) wi"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(options, problem):
    done = process.run("conv", *options, stdin=b"[[1,2],[3,4],[5,6]]")
    assert (done.code, done.out) == (3, b"") and problem in done.err


def test_numbers_by_hand():
    record = attnkit.conv(of(X), params=PARAMS)
    assert record["x"].tolist() == [[121], [142], [184]]
    assert record.tensors["x"].formula == "windows W + b"
    assert attnkit.conv(of(X), params=PARAMS, stride=(2,))["x"].tolist() == [[121], [184]]
    assert attnkit.conv(of(X), params=PARAMS, dilation=3)["x"].tolist() == [[181]]


def test_tokens_keep_their_labels_where_there_are_as_many():
    record = attnkit.embed("The cat sat", dim=4)
    same = read_back(attnkit.conv(record, filters=2, size=3, padding=1))
    assert same.axes_of("x") == ("token", "filter") and same.labels["token"] == ["The", "cat", "sat"]
    fewer = read_back(attnkit.conv(record, filters=4, size=3))
    assert fewer.axes_of("x") == ("position", "model") and (fewer["ids"] == record["ids"]).all()


def test_channels_first_is_the_same_convolution():
    image = np.random.default_rng(0).standard_normal((5, 6, 3))
    options = {"filters": 4, "size": (2, 3), "stride": (1, 2), "activation": "gelu", "keep": ("all",)}
    ours = attnkit.conv(image, **options)
    turned = attnkit.conv(np.moveaxis(image, -1, 0), channels="first", **options)
    assert turned["x"].shape == (4, 4, 2) and turned.axes_of("x") == ("filter", "row", "column")
    np.testing.assert_array_equal(np.moveaxis(turned["x"], 0, -1), ours["x"])
    np.testing.assert_array_equal(turned["windows"], ours["windows"])
    named = Record({"x": Tensor(np.moveaxis(image, -1, 0), ("channel", "row", "column"))})
    same = attnkit.conv(named, channels="first", filters=3, size=(3, 3), padding=1)
    assert same.axes_of("x") == ("channel", "row", "column")
    with pytest.raises(DataError, match="a kernel of 5 channels, but x has 3"):
        attnkit.conv(image, params={"w": np.ones((1, 5, 1, 1))})


def test_every_step_follows_from_the_one_before():
    record = attnkit.conv(of(X), params=PARAMS, padding=(1, 0), activation="gelu", steps=True)
    assert record["padded"].ravel().tolist() == [0, 1, 2, 4, 8]
    assert record["windows"].tolist() == [[0, 1], [1, 2], [2, 4], [4, 8]]
    np.testing.assert_array_equal(record["convolved"], record["windows"] @ [[1], [10]] + 100)
    np.testing.assert_array_equal(record["x"], gelu(record["convolved"]))
    assert "windows" not in attnkit.conv(record, params=PARAMS)  # those of an earlier conv


def test_a_step_that_changes_nothing_is_kept_by_its_name_alone():
    named = attnkit.conv(of(X), params=PARAMS, keep=("padded", "convolved"))
    assert named["padded"].tolist() == X.tolist() and named["convolved"].tolist() == named["x"].tolist()
    assert [named.tensors[name].formula for name in ("padded", "x")] == ["as before", "convolved"]
    assert {*attnkit.conv(of(X), params=PARAMS, steps=True)} == {"windows", "x"}


def test_labels_of_an_axis_that_gets_another_size_are_dropped():
    image = Tensor(np.ones((4, 3, 1)), ("row", "column", "channel"))
    record = Record({"x": image}, {"row": list("abcd"), "column": list("xyz")})
    ours = attnkit.conv(record, filters=1, size=(2, 1), padding=(0, 0, 0, 0))
    assert ours["x"].shape == (3, 3, 1) and dict(ours.labels) == {"column": ["x", "y", "z"]}
    same = attnkit.conv(record, filters=1, size=(1, 3), padding=(0, 1), keep="padded")
    assert same.axes_of("padded") == ("row", "column", "channel") and dict(same.labels) == {"row": list("abcd")}


@pytest.mark.parametrize("channels", ["first", "last"])
def test_filters_are_not_labelled_as_the_channels_are(channels):
    axes = ("row", "column", "channel") if channels == "last" else ("channel", "row", "column")
    record = Record({"x": Tensor(np.ones((3, 3, 3)), axes)}, {"channel": list("rgb"), "row": list("abc")})
    ours = attnkit.conv(record, filters=3, size=(1, 1), channels=channels)
    assert ours.axes_of("x") == axes and dict(ours.labels) == {"row": list("abc")}


def test_a_batch_of_nothing_has_steps_too():
    ours = attnkit.conv(np.ones((0, 4, 1)), params=PARAMS, padding=1, steps=True)
    assert [ours[name].shape for name in ("padded", "windows", "x")] == [(0, 6, 1), (0, 5, 2), (0, 5, 1)]
    halves = attnkit.conv(np.ones((4, 1), np.float16), params=PARAMS, steps=True)
    assert {array.dtype for array in halves.arrays().values()} == {np.dtype(np.float16)}


def test_random_weights_are_from_the_seed():
    ours = attnkit.conv(of(X), filters=2, size=2, seed=3)["x"]
    kernel = np.random.default_rng(3).standard_normal((2, 1, 2)) / 2**0.5
    np.testing.assert_allclose(ours, np.hstack([X[:-1], X[1:]]) @ kernel[:, 0].T, rtol=1e-12)
    assert attnkit.conv(X.astype(np.float32), filters=2, size=2)["x"].dtype == np.float32


@pytest.mark.parametrize(
    "line",
    [
        "conv {x} --params {p} --stride 2 --padding 1 --dilation 2 --activation gelu",
        "conv {x} --filters 4 --size 3 --groups 2 --padding same",
        "conv {x} --filters 3 --size 2,1 --channels first --padding 1,0 --activation silu",
    ],
)
def test_gradients_agree_with_finite_differences(tmp_path, line):
    rng = np.random.default_rng(1)
    np.save(tmp_path / "x.npy", rng.standard_normal((2, 5, 2)))
    np.savez(tmp_path / "p.npz", w=rng.standard_normal((3, 2, 2)), b=rng.standard_normal(3))
    pipeline = line.format(x=tmp_path / "x.npy", p=tmp_path / "p.npz")
    record = attnkit.grad(f"{pipeline} | layernorm", of="x[0,1,1]", check=True)
    assert record["check"][2] < 1e-6 and record["1.conv.w"].any() and record["0.input.x"].any()


def test_a_depthwise_causal_convolution_is_continued_by_its_last_tokens(tmp_path):
    """Whole = two halves, also where one is shorter than a window; a state of zeros is no state."""
    state = str(tmp_path / "state.npz")
    rng = np.random.default_rng(5)
    x, params = rng.standard_normal((2, 7, 3)), {"w": rng.standard_normal((3, 1, 3)), "b": rng.standard_normal(3)}
    options = {"params": params, "groups": 3, "padding": "causal", "dilation": 2, "activation": "silu"}
    whole = attnkit.conv(of(x), **options)["x"]
    for cut in (1, 3, 6):
        first = attnkit.conv(of(x[:, :cut]), **options, state_out=state)["x"]
        rest = attnkit.conv(of(x[:, cut:]), **options, state_in=state, state_out=state)["x"]
        np.testing.assert_allclose(np.concatenate([first, rest], axis=1), whole, rtol=0, atol=1e-14)
        with np.load(state) as file:
            np.testing.assert_array_equal(file["tokens"], x[:, 3:])
            assert file["position"] == 7
    zeros = attnkit.conv(of(x), **options, state_in={"tokens": np.zeros((2, 4, 3))})["x"]
    np.testing.assert_array_equal(zeros, whole)
    np.testing.assert_allclose(attnkit.conv(of(x[0]), **options)["x"], whole[0], rtol=0, atol=1e-14)


def test_no_padding_enters_the_state_of_a_convolution(tmp_path):
    state = str(tmp_path / "state.npz")
    x = np.random.default_rng(6).standard_normal((2, 5, 2))
    mask = Tensor(np.array([[[True] * 5], [[True] * 2 + [False] * 3]]), ("batch", "all queries", "key"))
    attnkit.conv(Record({"x": x, "mask": mask}), filters=2, size=4, groups=2, padding="causal", state_out=state)
    with np.load(state) as file:
        np.testing.assert_array_equal(file["tokens"][0], x[0, 2:])
        np.testing.assert_array_equal(file["tokens"][1], [[0, 0], *x[1, :2]])


def test_gradients_after_a_state_are_of_x_alone(tmp_path):
    state = str(tmp_path / "state.npz")
    x = np.random.default_rng(7).standard_normal((6, 2))
    options = "--filters 2 --size 3 --groups 2 --padding causal --activation silu"
    attnkit.conv(of(x[:3]), filters=2, size=3, groups=2, padding="causal", state_out=state)
    found = attnkit.grad(f"conv {options} --state-in {state}", of(x[3:]), of="x[1,0]", check=True)
    assert found["0.input.x"].shape == (3, 2)
    assert found["check"][2] < 1e-6


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"tokens": np.zeros((1, 2))}, r"tokens \(1,2\) float64: expected \(2,2\) floats"),
        ({"tokens": np.zeros((2, 2), int)}, r"tokens \(2,2\) int64: expected \(2,2\) floats"),
        ({"hidden": np.zeros((2, 2))}, "expected tokens and position"),
        ({"tokens": np.zeros((2, 2)), "position": np.array(0.5)}, "position: expected one whole number"),
    ],
)
def test_a_state_of_another_convolution_is_refused(state, problem):
    with pytest.raises(DataError, match=problem):
        attnkit.conv(of(np.ones((3, 2))), filters=2, size=3, padding="causal", state_in=state)
