"""attend --engine jax gives the intermediates of NumPy by the same names, and its errors."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import attnkit
from attnkit import model
from attnkit.backends.jax import attention_kernels, record_attention
from attnkit.backends.jax.attention_kernels import Rules
from attnkit.backends.jax.engine import JaxEngine
from attnkit.backends.jax.passes import precision
from attnkit.backends.jax.processes import to_numpy
from attnkit.errors import AttnkitError
from attnkit.model.formulas.dense_attention import MultiHeadOptions

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 7, 8))
MASK = RNG.random((2, 1, 7, 7)) < 0.6
MASK[0, 0, 3] = False  # a query that may not attend to any key
WEIGHTS = {name: RNG.standard_normal((8, 8)) for name in ("wq", "wk", "wv", "wo")} | {"bq": np.ones(8)}
NAMES = ("q", "k", "v", "scores", "scaled", "capped", "masked", "weights", "present_key", "lse")
PAST = {"past_key": RNG.standard_normal((2, 2, 3, 4)), "past_value": RNG.standard_normal((2, 2, 3, 4))}
ADDITIVE = {"wa": RNG.standard_normal((4, 5)), "ua": RNG.standard_normal((4, 5)), "va": np.ones(5)}
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "mask": {"mask": MASK},
    "float mask": {"mask": np.where(MASK, 0.5, -np.inf)},
    "lengths": {"lengths": np.array([7, 4])},
    "softcap": {"softcap": 2.0, "scale": 0.3},
    "bias": {"bias": RNG.standard_normal((2, 7, 7))},
    "past": {**PAST, "causal": True},
    "aligned": {"align": "bottom-right", "causal": True},
    "rounded": {"softmax_dtype": "bfloat16"},
    "additive": {"score": "additive", "score_params": ADDITIVE},
    "general": {"score": "general", "score_params": {"w": RNG.standard_normal((4, 4))}},
    "rotary": {"rotary": (np.cos(np.ones((7, 1))), np.sin(np.ones((7, 1))))},
}
ENGINE = JaxEngine()


def both(options, summary, keep, params=WEIGHTS, x=X, engine=ENGINE):
    options = MultiHeadOptions(heads=2, **options)
    theirs = model.multi_head_attention(x, x, x, params, options, summary=summary, keep=keep)
    return engine.attention(x, x, x, params, options, summary=summary, keep=keep), theirs


def assert_equal(ours, theirs, limit=1e-9):
    assert [*ours] == [*theirs]
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype, name
        np.testing.assert_allclose(ours[name], array, atol=limit, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_every_option(case):
    assert_equal(*both(CASES[case], "full", NAMES))


@pytest.mark.parametrize("case", ["plain", "causal", "mask"])
def test_the_heads_alone(case):
    assert_equal(*both(CASES[case], "full", ("lse",)))


@pytest.mark.parametrize("summary", ["stats", "topk:2", "rows:0,-1"])
def test_summaries_of_the_weights(summary):
    assert_equal(*both({"causal": True}, summary, ("weights", "lse")))
    assert_equal(*both({"causal": True}, summary, ("weights", "lse"), {}, X.astype(np.float32)), 1e-6)


@pytest.mark.parametrize("keep", [("lse",), NAMES])
def test_no_tokens(keep):
    assert_equal(*both({"causal": True}, "full", keep, x=X[:, :0]))


def test_attention_of_one_size_is_compiled_once():
    both({"window": (1, 0)}, "full", ("lse",))
    before = record_attention.compile_kernel.cache_info()
    both({"window": (1, 0)}, "full", ("lse",), x=X + 1)
    after = record_attention.compile_kernel.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


def test_what_memory_cannot_hold_is_an_error():
    with pytest.raises(MemoryError, match="memory"), precision("float32"):
        x = jax.numpy.zeros(1 << 23)
        to_numpy(x[:, None] + x)  # 256 TiB


@pytest.mark.skipif(jax.device_count() < 4, reason="needs 4 devices")
@pytest.mark.parametrize("case", ["causal", "mask", "lengths", "aligned"])
def test_keys_around_a_ring_of_devices(case):
    assert_equal(*both(CASES[case], "full", ("lse",), engine=JaxEngine(mesh={"seq": 4})))


def test_values_of_weight_zero_add_nothing():
    x = X.copy()
    x[:, -1] = np.nan
    ours, theirs = both({"mask": np.arange(7) < 6}, "full", (), {}, x)
    assert np.isfinite(theirs["heads"][..., :6, :]).all()
    np.testing.assert_allclose(ours["heads"], theirs["heads"], atol=1e-9)


@pytest.mark.parametrize(
    ("options", "params", "x"),
    [
        ({}, {"wq": np.ones((3, 8))}, X),
        ({}, {"bq": np.ones(3)}, X),
        ({"mask": np.ones((5, 5), bool)}, {}, X),
        ({"bias": np.ones((5, 5))}, {}, X),
        ({"lengths": np.array([9, 1])}, {}, X),
        ({"kv_heads": 3}, {}, X),
        ({"softcap": -1.0}, {}, X),
        ({}, {}, X[..., :7]),
        ({"mask": 2 * MASK.astype(int)}, {}, X),
        ({"past_key": PAST["past_key"]}, {}, X),
        ({}, {"other": np.ones(1)}, X),
    ],
)
def test_the_errors_are_those_of_numpy(options, params, x):
    options, texts = MultiHeadOptions(heads=2, **options), []
    for attend in (model.multi_head_attention, ENGINE.attention):
        with pytest.raises(AttnkitError) as raised:
            attend(x, x, x, params, options, summary="full", keep=NAMES)
        texts.append((type(raised.value), str(raised.value)))
    assert texts[0] == texts[1]


def test_the_tool_has_the_same_record():
    parameters = {"heads": 2, "seed": 3, "keep": ("weights",), "causal": True}
    ours, theirs = (attnkit.attend(X, **parameters, engine=name) for name in ("jax", "numpy"))
    assert [*ours] == [*theirs] and ours.labels == theirs.labels
    assert {name: ours.axes_of(name) for name in ours} == {name: theirs.axes_of(name) for name in theirs}
    np.testing.assert_allclose(ours["x"], theirs["x"], atol=1e-9)
    assert ours.history[-1]["command"].endswith("--engine jax")


def test_a_layer_of_a_model():
    folder = "tests/references/models/deberta-v2"
    x = RNG.standard_normal((6, 24)).astype(np.float32)
    ours, theirs = (
        attnkit.attend(x, model=folder, layer="encoder.1.self", keep=("weights",), engine=name)
        for name in ("jax", "numpy")
    )
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(0.5, causal=True),
        Rules(0.5, causal=True, window=(2, -1)),
        Rules(0.5, window=(2, 1)),
        Rules(0.5, mask=np.array([[[[True] * 5 + [False] * 3]]])),
        Rules(0.5, causal=True, offset=np.int32(0)),
    ],
)
def test_the_kernel_of_a_gpu_gets_what_it_takes_and_gives_the_heads(monkeypatch, rules):
    q, k, v = (np.random.default_rng(n).standard_normal((2, heads, 8, 8)) for n, heads in enumerate((4, 2, 2)))
    q, k, v = (jax.numpy.asarray(x, "bfloat16") for x in (q, k, v))
    usual, calls = jax.nn.dot_product_attention, []

    def kernel(q, k, v, bias, mask, **options):
        calls.append(options.pop("implementation"))
        assert bias is None and (mask is None or mask.shape[-2:] == (8, 8)) and q.dtype == "bfloat16"
        assert options["local_window_size"] is None or options["is_causal"]
        return usual(q, k, v, bias, mask, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    monkeypatch.setattr(attention_kernels, "has_cudnn", lambda *_: True)
    heads = attention_kernels.fused_attention(q, k, v, rules)
    expected = attention_kernels.dense_attention(*(x.astype("float32") for x in (q, k, v)), rules)
    assert calls == ["cudnn"]
    np.testing.assert_allclose(heads.astype("float32"), expected, atol=0.02)
