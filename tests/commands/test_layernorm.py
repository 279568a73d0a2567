"""The tool layernorm: what it adds to the arithmetic that it calls, record in, record out."""

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.errors import AttnkitWarning, DataError, UsageError
from tests.commands.records import CAT, of

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


class TestLayernorm:
    def test_statistics_are_kept(self):
        record = attnkit.layernorm(of([[2.0, 4, 6, 8]]), keep="mean,inverse_std")
        assert record["mean"].tolist() == [[5]]
        assert record["inverse_std"][0, 0] == pytest.approx((5 + 1e-5) ** -0.5, rel=1e-15)
        assert np.round(record["x"], 4).tolist() == [[-1.3416, -0.4472, 0.4472, 1.3416]]

    def test_the_variance_is_that_of_what_is_normalized(self):
        record = attnkit.layernorm(of(X), add=X[::-1], keep="all")
        total = X + X[::-1]
        assert np.array_equal(record["residual"], total) and list(record) == [
            "x", "mean", "variance", "inverse_std", "residual",
        ]  # fmt: skip
        np.testing.assert_allclose(record["variance"], total.var(axis=-1, keepdims=True), rtol=1e-14)
        np.testing.assert_allclose(record["inverse_std"], (record["variance"] + 1e-5) ** -0.5, rtol=1e-14)
        whole = attnkit.layernorm(of(X), axis=1, keep="variance")["variance"]
        np.testing.assert_allclose(whole, X.var(axis=(1, 2), keepdims=True), rtol=1e-14)
        columns = attnkit.layernorm(of(X), kind="batch", keep="variance")["variance"]
        np.testing.assert_allclose(columns, X.var(axis=(0, 1), keepdims=True), rtol=1e-14)
        running = attnkit.layernorm(of(X), kind="batch", variance=np.arange(1.0, 9), keep="variance")["variance"]
        assert running.tolist() == [[[1, 2, 3, 4, 5, 6, 7, 8]]]
        with pytest.raises(UsageError, match="--kind rms computes no variance"):
            attnkit.layernorm(of(X), kind="rms", keep="variance")

    def test_kinds(self):
        gamma, beta = RNG.standard_normal(8), RNG.standard_normal(8)
        assert np.array_equal(attnkit.layernorm(of(X), kind="rms", gamma=gamma)["x"], model.rms_norm(X, gamma).y)
        table = np.array([[1200, 2, 45], [1500, 3, 70]])
        assert np.round(attnkit.layernorm(of(table), kind="batch")["x"], 3).tolist() == [[-1, -1, -1], [1, 1, 1]]
        running = attnkit.layernorm(of(X), kind="batch", mean=beta, variance=gamma**2, eps=1e-5)["x"]
        assert np.allclose(running, (X - beta) / np.sqrt(gamma**2 + 1e-5))

    def test_the_pre_norm_residual_travels(self):
        record = attnkit.layernorm(of(X), keep="residual")
        out = attnkit.attend(record, add=":residual")["x"]
        assert np.array_equal(out, attnkit.attend(of(model.layer_norm(X).y))["x"] + X)

    def test_nan_touches_its_row_alone_and_is_told(self):
        x = CAT.copy()
        x[1, 2] = np.nan
        with pytest.warns(AttnkitWarning, match=r"x is nan at \[1\]\[2\]"):
            y = attnkit.layernorm(of(x))["x"]
        assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()
        with pytest.raises(DataError, match=r"x is nan at \[1\]\[2\]"):
            attnkit.layernorm(of(x), check_finite=True)

    def test_overflow_is_told(self):
        with pytest.warns(AttnkitWarning, match=r"inf at \[0\]\[0\]: outside the range of float16"):
            attnkit.layernorm(of(np.array([[1, -1]], np.float16)), gamma=np.full(2, 1e6))
