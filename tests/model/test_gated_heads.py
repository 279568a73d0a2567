"""Gates of heads: each number of the heads of a token times the sigmoid of a projection of it."""

import numpy as np
import pytest

from attnkit import model
from attnkit.model.backward.attention_backward import multi_head_attention_vjp
from tests.process import run

RNG = np.random.default_rng(3)
X = RNG.normal(size=(2, 5, 6))
PARAMS = {name: RNG.normal(size=(6, width)) for name, width in (("wq", 8), ("wk", 4), ("wv", 4), ("wg", 8))}
PARAMS |= {"wo": RNG.normal(size=(8, 6)), "bg": RNG.normal(size=8)}
OPTIONS = {"heads": 4, "kv_heads": 2, "causal": True}


def test_a_gate_multiplies_the_numbers_of_its_own_head():
    """The gate of head h is columns 2h and 2h + 1 of x wg + bg, after a sigmoid."""
    plain = {name: one for name, one in PARAMS.items() if name not in ("wg", "bg", "wo")}
    heads = model.multi_head_attention(X, X, X, plain, **OPTIONS)["heads"]
    found = model.multi_head_attention(X, X, X, PARAMS, **OPTIONS)
    gate = 1 / (1 + np.exp(-(X @ PARAMS["wg"] + PARAMS["bg"])))
    expected = np.zeros((2, 5, 6))
    for head in range(4):
        columns = slice(2 * head, 2 * head + 2)
        assert np.allclose(1 / (1 + np.exp(-found["gate"][:, head])), gate[..., columns], rtol=1e-14)
        expected += (heads[:, head] * gate[..., columns]) @ PARAMS["wo"][columns]
    assert np.allclose(found["output"], expected, rtol=1e-12)


def test_a_gate_of_zero_lets_half_of_the_heads_through():
    shut = PARAMS | {"wg": np.zeros((6, 8)), "bg": np.zeros(8)}
    plain = {name: one for name, one in PARAMS.items() if name not in ("wg", "bg")}
    half = model.multi_head_attention(X, X, X, plain, **OPTIONS)["output"] / 2
    assert np.allclose(model.multi_head_attention(X, X, X, shut, **OPTIONS)["output"], half, rtol=1e-14)


@pytest.mark.parametrize("has_hook", [False, True])
def test_gradients_of_gates_are_central_differences(has_hook):
    grad = RNG.normal(size=X.shape)
    fields = OPTIONS | ({"hook": lambda name: (lambda one: one) if name == "gate" else None} if has_hook else {})
    _, pullback = multi_head_attention_vjp(X, X, X, PARAMS, **fields)
    inputs, weights = pullback(grad)

    def loss(x=X, **changes):
        return (model.multi_head_attention(x, x, x, PARAMS | changes, **OPTIONS)["output"] * grad).sum()

    step = 1e-5
    for name in ("wg", "bg", "wo"):
        change = RNG.normal(size=PARAMS[name].shape)
        both = [loss(**{name: PARAMS[name] + sign * step * change}) for sign in (1, -1)]
        assert (both[0] - both[1]) / (2 * step) == pytest.approx((weights[name] * change).sum(), rel=1e-7)
    change = RNG.normal(size=X.shape)
    both = [loss(X + sign * step * change) for sign in (1, -1)]
    along = (sum(inputs[name] for name in ("query", "key", "value")) * change).sum()
    assert (both[0] - both[1]) / (2 * step) == pytest.approx(along, rel=1e-7)


@pytest.fixture
def gated(tmp_path):
    np.savez(tmp_path / "gated.npz", **PARAMS)
    np.save(tmp_path / "x.npy", X[0])
    return tmp_path


def test_the_tool_the_engine_and_the_workbook_read_gates(gated):
    expected = model.multi_head_attention(X[0], X[0], X[0], PARAMS, **OPTIONS)
    line = ["attend", "x.npy", "--params", "gated.npz", "--heads", "4", "--kv-heads", "2", "--causal"]
    for more in ([], ["--engine", "jax"]):
        done = run(*line, "--keep", "gate,gated_heads", "-f", "npz", "-o", "out.npz", *more, cwd=gated)
        assert (done.code, done.err) == (0, "")
        with np.load(gated / "out.npz") as found:
            for name, own in (("x", "output"), ("gate", "gate"), ("gated_heads", "gated_heads")):
                assert np.allclose(found[name], expected[own], rtol=1e-6, atol=1e-6), name
    done = run("cost", f"attend x.npy {' '.join(line[2:])}", "-f", "json", cwd=gated)
    parameters, products = 6 * (8 + 4 + 4 + 8) + 8 * 6 + 8, 2 * 5 * 6 * (8 + 4 + 4 + 8 + 8) + 2 * 4 * 25 * 4
    assert f"[{parameters},{products}," in done.out.decode()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--partial"], "--partial: the gate wg applies to the heads of all parts"),
        (["--weights-from", "w.npy"], "w.npy: the gate wg reads queries"),
    ],
)
def test_what_a_gate_does_not_allow(gated, flags, problem):
    np.save(gated / "w.npy", np.full((5, 5), 0.2))
    done = run("attend", "x.npy", "--params", "gated.npz", "--heads", "4", *flags, cwd=gated)
    assert done.code == 2
    assert problem in done.err
