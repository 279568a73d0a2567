"""Convolution: the examples of ONNX Conv by their figures, PyTorch's results and gradients frozen, small blocks."""

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model.formulas import convolution
from attnkit.model.formulas.convolution import Convolution, convolve, convolve_backward
from tests.places import REFERENCES

FIVE, SEVEN = np.arange(25.0).reshape(5, 5, 1), np.arange(35.0).reshape(7, 5, 1)
ONES = np.ones((1, 1, 3, 3))
PADDED = [[12, 21, 27, 33, 24], [33, 54, 63, 72, 51], [63, 99, 108, 117, 81], [93, 144, 153, 162, 111],
          [72, 111, 117, 123, 84]]  # fmt: skip
# the examples of the operator Conv in the specification of ONNX: a square of ones over the numbers from 0 on
ONNX = {
    "with padding": (FIVE, Convolution(padding=(1, 1, 1, 1)), PADDED),
    "without padding": (FIVE, Convolution(), [[54, 63, 72], [99, 108, 117], [144, 153, 162]]),
    "with strides and padding": (
        SEVEN,
        Convolution((2, 2), (1, 1, 1, 1)),
        [[12, 27, 24], [63, 108, 81], [123, 198, 141], [112, 177, 124]],
    ),
    "with strides and no padding": (SEVEN, Convolution((2, 2)), [[54, 72], [144, 162], [234, 252]]),
    "with strides and padding of one dimension": (
        SEVEN,
        Convolution((2, 2), (1, 0, 1, 0)),
        [[21, 33], [99, 117], [189, 207], [171, 183]],
    ),
    "with SAME_LOWER": (FIVE, Convolution((2, 2), "same-lower"), [[12, 27, 24], [63, 108, 81], [72, 117, 84]]),
}  # fmt: skip
# name -> stride, padding, dilation, groups
CASES = {
    "line": Convolution(),
    "strided": Convolution((2,), (1,)),
    "dilated-groups": Convolution((3,), (2,), (3,), 2),
    "depthwise": Convolution((1,), (2,), (1,), 4),
    "image": Convolution((1, 2), (1, 0)),
    "image-dilated-groups": Convolution((2, 1), (0, 2), (3, 2), 2),
}


def last(x):
    return np.moveaxis(x, 1, -1)


def near(ours, theirs, tolerance=1e-6):
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


@pytest.mark.parametrize("name", ONNX)
def test_the_examples_of_onnx(name):
    x, options, expected = ONNX[name]
    assert convolve(x, ONES, options=options)["output"][..., 0].tolist() == expected


@pytest.mark.parametrize("most", [1, 100, convolution.MOST], ids=["row by row", "in blocks", "at once"])
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_pytorch(name, most, monkeypatch):
    monkeypatch.setattr(convolution, "MOST", most)
    with np.load(REFERENCES / "convolutions.npz") as file:
        arrays = {one: file[f"{name}.{one}"].astype(float) for one in ("x", "w", "b", "y", "dy", "dx", "dw", "db")}
    x, w, options = last(arrays["x"]), arrays["w"], CASES[name]
    near(convolve(x, w, arrays["b"], options)["output"], last(arrays["y"]))
    near(convolve(x[0], w, arrays["b"], options)["output"], last(arrays["y"])[0])
    dx, dw, db = convolve_backward(last(arrays["dy"]), x, w, options)
    near(dx, last(arrays["dx"]))
    near(dw, arrays["dw"])
    near(db, arrays["db"])


def test_an_odd_zero_of_same_is_after_the_input_and_of_same_lower_before_it():
    x, w = np.array([[1.0], [2.0], [4.0]]), np.array([[[1.0, 10.0]]])
    assert convolve(x, w, options=Convolution(padding="same"))["output"].ravel().tolist() == [21, 42, 4]
    assert convolve(x, w, options=Convolution(padding="same-lower"))["output"].ravel().tolist() == [10, 21, 42]
    assert convolve(x, w, options=Convolution((2,), "same"))["output"].ravel().tolist() == [21, 4]


def test_a_causal_window_ends_at_its_own_token():
    """The last number of the kernel meets the newest token; zeros are before the first one."""
    x, w = np.arange(1.0, 6.0)[:, None], np.array([[[0.1, 0.2, 0.3, 0.4]]])
    ours = convolve(x, w, options=Convolution(padding="causal"))["output"].ravel()
    np.testing.assert_allclose(ours, [0.4, 1.1, 2, 3, 4])
    wide = convolve(x, w[..., :2], options=Convolution(padding="causal", dilation=(3,)))["output"].ravel()
    np.testing.assert_allclose(wide, [0.2, 0.4, 0.6, 0.1 + 0.8, 0.2 + 1.0])
    with pytest.raises(UsageError, match="causal for a kernel of two dimensions"):
        convolve(FIVE, ONES, options=Convolution(padding="causal"))


def test_the_steps_are_the_padded_input_and_its_windows():
    x, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones((1, 2, 2))
    steps = convolve(x, w, None, Convolution(padding=(1, 0)), ("padded", "windows"))
    assert steps["padded"].tolist() == [[0, 0], [1, 2], [3, 4]]
    assert steps["windows"].tolist() == [[0, 1, 0, 2], [1, 3, 2, 4]]  # channel by channel, as the kernel is
    assert steps["output"].tolist() == [[3], [10]]


def test_halves_are_added_in_float32_and_integers_in_float64():
    many = np.ones((4096, 1), np.float16)
    assert convolve(many, np.ones((1, 1, 4096), np.float16))["output"].tolist() == [[4096]]
    assert convolve(many, np.ones((1, 1, 3), np.float16))["output"].dtype == np.float16
    assert convolve(np.array([[1], [2]]), np.array([[[1, 1]]]))["output"].dtype == np.float64


@pytest.mark.parametrize(
    ("x", "w", "options", "kind", "problem"),
    [
        ((4, 1), (2, 2), Convolution(), DataError, r"rank 2, expected 3 \(E, C, K\) or 4"),
        ((4, 1), (2, 3, 2), Convolution(), DataError, "a kernel of 3 channels, but x has 1"),
        ((4, 6), (2, 2, 2), Convolution(groups=2), DataError, "2 channels in each of 2 groups, but x has 6"),
        ((4, 4), (3, 2, 2), Convolution(groups=2), DataError, "3 outputs are no multiple of 2"),
        ((4, 1), (2, 1, 9), Convolution(padding=(2,)), DataError, "a window of 9 in an input of 8"),
        ((4, 5, 1), (2, 1, 2, 2), Convolution(dilation=(1, 5)), DataError, "a window of 2 x 6 in an input of 4 x 5"),
        ((0, 1), (2, 1, 1), Convolution(), DataError, "a window of 1 in an input of 0"),
        ((1,), (2, 1, 1), Convolution(), DataError, "expected 2 axes of x or more"),
        ((4, 1), (0, 1, 1), Convolution(), DataError, "an empty kernel"),
        ((4, 1), (1, 1, 1), Convolution((1, 2)), UsageError, "2 numbers of stride for a kernel of one dimension"),
        ((4, 4, 1), (1, 1, 1, 1), Convolution(padding=(1, 2, 3)), UsageError, "expected 1 or 2 or 4"),
    ],
)  # fmt: skip
def test_what_does_not_match(x, w, options, kind, problem):
    with pytest.raises(kind, match=problem):
        convolve(np.ones(x), np.ones(w), None, options)
