"""Which dtypes operators compute in, and bfloat16 without its package."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnkit import model
from attnkit.errors import DataError
from attnkit.model.dtypes import is_float, rounded


@pytest.mark.parametrize(
    ("dtype", "computed", "given_back"),
    [
        ("float64", "float64", "float64"),
        ("float32", "float32", "float32"),
        ("float16", "float32", "float16"),
        (ml_dtypes.bfloat16, "float32", ml_dtypes.bfloat16),
        ("int8", "float64", "float64"),
        ("bool", "float64", "float64"),
    ],
)
def test_dtypes(dtype, computed, given_back):
    x = np.ones(2, dtype)
    assert model.working(x) == computed
    assert model.output_dtype(x) == given_back


def test_the_widest_operand_decides():
    assert model.working(np.ones(1, np.float16), np.ones(1, ml_dtypes.bfloat16)) == "float32"
    assert model.working(np.ones(1, np.float32), np.ones(1, np.float64)) == "float64"


@pytest.mark.parametrize("dtype", ["complex128", "U3", "object", "datetime64[s]"])
def test_dtypes_that_are_no_numbers(dtype):
    with pytest.raises(DataError, match="not supported"):
        model.working(np.zeros(1, dtype))


@given(st.floats(width=32))
@example(1 + 3 / 256)  # halfway between two numbers, of which the upper one is even
@example(1 + 1 / 256)
def test_rounding_to_bfloat16_is_that_of_the_package(value):
    x = np.array([value], np.float32)
    np.testing.assert_array_equal(rounded(x, "bfloat16"), x.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_norm_and_filter_takes_narrow_floats(name):
    dtype = np.dtype(name if name == "float16" else ml_dtypes.bfloat16)
    x = np.arange(12).reshape(3, 4).astype(dtype)
    assert is_float(x.dtype)
    cos, sin = model.rotary_angles(np.arange(3), 4)
    results = [model.layer_norm(x).y, model.rms_norm(x).y, model.batch_norm(x).y, model.rotate(x, cos, sin)]
    results += [model.scale_embedding(x), model.probabilities(x), model.top_k(x, 2), model.top_p(x, 0.5)]
    results += [model.encoder_layer(x, {"ffn": {"w1": np.eye(4), "w2": np.eye(4)}}, heads=2, activation="gelu")]
    assert {result.dtype for result in results} == {dtype}
    assert model.greedy(x).tolist() == [3, 3, 3]


def test_importing_the_model_is_lazy():
    heavy = {"hashlib", "numpy.random", "ml_dtypes", "typer", "rich", "json"}

    def loaded(module):
        code = f"import {module}, sys; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return heavy & set(done.stdout.split())

    assert loaded("attnkit.model") <= loaded("numpy")
