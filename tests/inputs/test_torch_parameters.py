"""Parameters by the names of PyTorch's modules, for attend, ffn, linear and layernorm."""

import json

import numpy as np
import pytest

import attnkit
from attnkit import Record, formats
from attnkit.errors import DataError, UsageError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4))
OWN = {name: RNG.standard_normal((4, 4)) for name in ("wq", "wk", "wv", "wo")} | {"bo": RNG.standard_normal(4)}
OWN |= {name: RNG.standard_normal(4) for name in ("bq", "bk", "bv")}
FUSED = {
    "in_proj_weight": np.concatenate([OWN[name].T for name in ("wq", "wk", "wv")]),
    "in_proj_bias": np.concatenate([OWN[name] for name in ("bq", "bk", "bv")]),
    "out_proj.weight": OWN["wo"].T,
    "out_proj.bias": OWN["bo"],
}
NETWORK = {"w1": RNG.standard_normal((4, 6)), "b1": RNG.standard_normal(6), "w2": RNG.standard_normal((6, 4))}
GATED = {"w1": NETWORK["w1"], "w2": NETWORK["w2"], "w3": RNG.standard_normal((4, 6))}
NORM = {"gamma": RNG.standard_normal(4), "beta": RNG.standard_normal(4)}


def within(prefix, params):
    return {f"{prefix}.{name}": array for name, array in params.items()}


def named(params, **layers):
    """Own weights as linear layers of these names."""
    pairs = [(name, own) for own, name in layers.items()]
    weights = {f"{name}.weight": params[own].T for name, own in pairs}
    biases = {f"{name}.bias": params[own.replace("w", "b")] for name, own in pairs if own.replace("w", "b") in params}
    return weights | biases


LAYER = within("self_attn", FUSED) | named(NETWORK, w1="linear1", w2="linear2")
LAYER |= within("norm1", {"weight": NORM["gamma"], "bias": NORM["beta"]}) | within("norm2", {"weight": np.ones(4)})


@pytest.mark.parametrize(
    ("tool", "own", "published", "options"),
    [
        ("attend", OWN, FUSED, {"heads": 2}),
        ("attend", OWN, within("layers.0.self_attn", FUSED), {"heads": 2}),
        ("attend", OWN, LAYER, {"heads": 2}),
        ("attend", OWN, {f"{one}_proj_weight": OWN[f"w{one}"].T for one in "qkv"} | FUSED, {"heads": 2}),
        *(
            ("attend", OWN, named(OWN, wq="q_proj", wk="k_proj", wv="v_proj", wo=output), {"heads": 2})
            for output in ("o_proj", "out_proj", "output_proj")
        ),
        ("ffn", NETWORK, LAYER, {}),
        ("ffn", NETWORK, named(NETWORK, w1="0", w2="2"), {}),
        ("ffn", GATED, named(GATED, w1="gate_proj", w3="up_proj", w2="down_proj"), {"gated": True}),
        ("ffn", GATED, named(GATED, w1="w1", w3="w3", w2="w2"), {"gated": True}),
        ("linear", {"w": OWN["wq"], "b": OWN["bq"]}, {"weight": OWN["wq"].T, "bias": OWN["bq"]}, {}),
        ("linear", {"w": OWN["wq"]}, {"head.weight": OWN["wq"].T}, {}),
        ("layernorm", NORM, {"weight": NORM["gamma"], "bias": NORM["beta"]}, {}),
        ("layernorm", {"gamma": NORM["gamma"]}, {"weight": NORM["gamma"]}, {"kind": "rms"}),
    ],
)
def test_the_names_of_torch_are_those_of_the_tool(tool, own, published, options):
    function = getattr(attnkit, tool)
    result, expected = (function(X, params=params, **options)["x"] for params in (published, own))
    assert np.allclose(result, expected, rtol=0, atol=1e-14)


def test_gamma_and_beta_are_a_file_too():
    given = attnkit.layernorm(X, params=NORM)["x"]
    assert np.array_equal(given, attnkit.layernorm(X, gamma=NORM["gamma"], beta=NORM["beta"])["x"])


def test_a_file_of_a_layer_has_each_of_its_modules(tmp_path):
    formats.save(Record(LAYER), str(tmp_path / "layer.npz"))
    file = str(tmp_path / "layer.npz")
    assert np.array_equal(attnkit.layernorm(X, params=f"{file}:norm1")["x"], attnkit.layernorm(X, params=NORM)["x"])
    with pytest.raises(DataError, match=r"parameters of several modules: norm1, norm2; --params FILE:NAME reads one"):
        attnkit.layernorm(X, params={name: one for name, one in LAYER.items() if name.startswith("norm")})
    with pytest.raises(UsageError, match=r"layer\.npz: has no module 'norm3'; did you mean norm2"):
        attnkit.layernorm(X, params=f"{file}:norm3")


def test_the_names_of_a_compiled_module(tmp_path):
    """torch.compile puts `_orig_mod` before the names of the module that it wraps, the inner ones of a model too."""
    compiled = {f"_orig_mod.layers.0._orig_mod.{name}": array for name, array in LAYER.items()}
    formats.save(Record(compiled), file := str(tmp_path / "layer.npz"))
    for module in ("layers.0.norm1", "_orig_mod.layers.0.norm1", "_orig_mod.layers.0._orig_mod.norm1"):
        normalized = attnkit.layernorm(X, params=f"{file}:{module}")["x"]
        assert np.array_equal(normalized, attnkit.layernorm(X, params=NORM)["x"])
    with pytest.raises(UsageError, match=r"has no module 'zzz' \(it has layers.0.self_attn, "):
        attnkit.layernorm(X, params=f"{file}:zzz")


@pytest.mark.parametrize("groups", [1, 2])
def test_the_kernel_of_a_convolution_of_torch_is_not_transposed(groups):
    """A kernel with as many filters, channels and places tells no layout by its shape."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.Conv1d(4, 4, 4 // groups, groups=groups)
    x = torch.from_numpy(X.astype(np.float32)).mT.repeat(1, 1, 2)
    params = layer.state_dict()
    for given in (params, {"w": params["weight"], "b": params["bias"]}):
        convolved = attnkit.conv(x, channels="first", groups=groups, params=given)["x"]
        assert np.allclose(convolved, layer(x).detach(), rtol=0, atol=1e-6)


def test_running_statistics_of_a_batch_norm():
    params = {"weight": NORM["gamma"], "bias": NORM["beta"], "running_mean": np.ones(4), "running_var": np.full(4, 4.0)}
    given = attnkit.layernorm(X, kind="batch", params=params | {"num_batches_tracked": np.array(3)}, eps=1e-12)["x"]
    assert np.allclose(given, (X - 1) / 2 * NORM["gamma"] + NORM["beta"])
    with pytest.raises(DataError, match=r"mean is not a parameter of --kind layer \(gamma, beta\)"):
        attnkit.layernorm(X, params=params)


@pytest.mark.parametrize(
    ("tool", "params", "problem"),
    [
        ("attend", FUSED | {"bias_k": np.ones((1, 1, 4))}, "bias_k of add_bias_kv is a key of its own"),
        ("attend", FUSED | {"in_proj_weight": np.ones((10, 4))}, r"in_proj_weight \(10,4\): expected \(3·D, …\)"),
        ("attend", FUSED | {"bias": np.ones(4)}, "bias is no parameter of nn.MultiheadAttention"),
        ("linear", {"linear1.bias": np.ones(4)}, r"no w \(it has linear1.bias\)"),
        ("layernorm", {"bias": np.ones(4)}, r"no gamma \(it has bias\)"),
    ],
)
def test_what_is_no_module(tool, params, problem):
    with pytest.raises((DataError, UsageError), match=problem):
        getattr(attnkit, tool)(X, params=params)


def test_the_modules_of_torch_compute_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).eval()
    torch.nn.init.normal_(layer.self_attn.in_proj_bias)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    file, x = str(tmp_path / "layer.pt"), torch.from_numpy(X.astype(np.float32))
    line = f"attend --heads 2 --params {file} --residual | layernorm --params {file}:norm1"
    line += f" | ffn --params {file} --residual | layernorm --params {file}:norm2"
    assert np.allclose(attnkit.run(line, x)["x"], layer(x).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "encoder.", "model.", "model.encoder."])
@pytest.mark.parametrize("has_norm", [True, False])
def test_a_lone_encoder_is_a_model(tmp_path, prefix, has_norm):
    """The tensors of torch.nn.TransformerEncoder, by the names of its state dict, and the folder that is documented."""
    names = {f"layers.{number}.{name}": array for number in (0, 1) for name, array in LAYER.items()}
    names |= {f"layers.{number}.linear2.bias": np.zeros(4) for number in (0, 1)}
    names |= {f"layers.{number}.norm2.bias": np.zeros(4) for number in (0, 1)}
    names |= {"norm.weight": NORM["gamma"], "norm.bias": NORM["beta"]} if has_norm else {}
    formats.save(
        Record({prefix + name: one.astype(np.float32) for name, one in names.items()}),
        str(tmp_path / "model.safetensors"),
    )
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 0, "d_model": 4, "nhead": 2, "dim_feedforward": 6}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "transformer"} | sizes))
    x = X.astype(np.float32)
    expected = x
    for _ in range(2):
        expected = attnkit.attend(expected, heads=2, params=LAYER, residual=True)
        expected = attnkit.ffn(attnkit.layernorm(expected, params=NORM), params=LAYER, residual=True)
        expected = attnkit.layernorm(expected)
    expected = attnkit.layernorm(expected, params=NORM) if has_norm else expected
    assert np.allclose(attnkit.encode(Record({"x": x}), model=str(tmp_path))["x"], expected["x"], rtol=0, atol=1e-5)
