"""The tool ffn: what it adds to the arithmetic that it calls, record in, record out."""

import numpy as np
import pytest

import attnkit
from attnkit.errors import DataError, UsageError
from tests.commands.records import of

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


class TestFfn:
    def test_weights_from_a_file_and_from_a_seed(self):
        params = {"w1": RNG.standard_normal((8, 3)), "w2": RNG.standard_normal((3, 8)), "b1": RNG.standard_normal(3)}
        expected = np.maximum(X @ params["w1"] + params["b1"], 0) @ params["w2"]
        assert np.allclose(attnkit.ffn(of(X), params=params)["x"], expected)
        rng = np.random.default_rng(0)
        w1, w2 = rng.standard_normal((8, 16)) / 8**0.5, rng.standard_normal((16, 8)) / 4
        assert np.allclose(attnkit.ffn(of(X), hidden=16)["x"], np.maximum(X @ w1, 0) @ w2)

    def test_gated_with_its_steps(self):
        record = attnkit.ffn(of(X), hidden=4, gated=True, activation="silu", steps=True, residual=True)
        assert list(record) == ["x", "hidden", "activated", "linear", "gated"]
        assert np.allclose(record["gated"], record["activated"] * record["linear"])

    @pytest.mark.parametrize(
        "given", [{}, {"hidden": 2, "params": {}}, {"params": {"w1": X[0], "w2": X[0], "w3": X[0]}}]
    )
    def test_bad_parameters(self, given):
        with pytest.raises(UsageError):
            attnkit.ffn(of(X), **given)

    def test_a_missing_matrix_is_named(self):
        with pytest.raises(DataError, match="no w2"):
            attnkit.ffn(of(X), params={"w1": X[0]})

    def test_intermediates_are_kept_by_name(self):
        steps = attnkit.ffn(of(X), hidden=4, gated=True, steps=True)
        names = ["hidden", "activated", "linear", "gated"]
        assert [name for name in steps if name != "x"] == names
        for name in names:
            kept = attnkit.ffn(of(X), hidden=4, gated=True, keep=name)
            assert sorted(kept) == sorted(["x", name]) and np.array_equal(kept[name], steps[name])
        every = attnkit.ffn(of(X), hidden=4, gated=True, keep="all")
        assert list(every) == list(steps) and np.array_equal(every["x"], steps["x"])
        with pytest.raises(UsageError, match="--keep: a network without a gate has no gated and no linear"):
            attnkit.ffn(of(X), hidden=4, keep=("linear", "gated"))
