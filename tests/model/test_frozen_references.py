"""The same numbers as PyTorch, from arrays frozen by tests/references/make_references.py."""

from functools import cache

import numpy as np
import pytest

from attnkit import model
from tests.places import REFERENCES

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


@cache
def family(name):
    with np.load(REFERENCES / f"{name}.npz") as members:
        return dict(members)


def load(name, case, dtype):
    """The inputs of a case in that dtype, and what PyTorch made of them."""
    members = {key.removeprefix(f"{case}."): array for key, array in family(name).items() if key.startswith(f"{case}.")}
    inputs = {key: array for key, array in members.items() if not key.startswith("float")}
    wide = {key: array.astype(dtype) if array.dtype.kind == "f" else array for key, array in inputs.items()}
    results = {key.removeprefix(f"{dtype}."): array for key, array in members.items() if key.startswith(dtype)}
    return wide, results


CASES = {
    "sdpa": ["bool-mask", "causal", "float-mask", "grouped", "plain", "scale"],
    "multi_head": ["cross", "padding", "self"],
    "norms": ["batch", "layer", "layer-axes", "rms", "running"],
    "layers": [f"{kind}-{place}-{bend}" for kind in ("decoder", "encoder") for place in ("post", "pre")
               for bend in ("gelu", "relu")],
    "activations": ["gelu", "gelu-tanh", "relu", "silu"],
}  # fmt: skip


def same(ours, theirs, dtype):
    assert ours.dtype == theirs.dtype == dtype
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("case", CASES["sdpa"])
def test_scaled_dot_product_attention(case, dtype):
    given, expected = load("sdpa", case, dtype)
    options = {"causal": {"causal": True}, "scale": {"scale": 0.3}}.get(case, {})
    same(model.attention(**given, **options)["heads"], expected["y"], dtype)


@DTYPES
@pytest.mark.parametrize("case", CASES["multi_head"])
def test_multi_head_attention(case, dtype):
    given, expected = load("multi_head", case, dtype)
    x, context, lengths = given.pop("x"), given.pop("context"), given.pop("lengths")
    options = {"lengths": lengths} if case == "padding" else {}
    steps = model.multi_head_attention(x, context, context, given, heads=2, **options)
    same(steps["output"], expected["y"], dtype)
    same(steps["weights"], expected["weights"], dtype)


@DTYPES
@pytest.mark.parametrize("case", CASES["norms"])
def test_norms(case, dtype):
    given, expected = load("norms", case, dtype)
    if case == "layer-axes":
        normalized = model.layer_norm(**given, eps=1e-3, axis=-2)
    else:
        norms = {"layer": model.layer_norm, "rms": model.rms_norm}
        normalized = norms.get(case, model.batch_norm)(**given, eps=1e-5)
    same(normalized.y, expected["y"], dtype)


@DTYPES
@pytest.mark.parametrize("case", CASES["layers"])
def test_layers(case, dtype):
    given, expected = load("layers", case, dtype)
    kind, place, activation = case.split("-")
    operands = [given.pop(name) for name in ("x", "memory") if name in given]
    params = {}
    for key, array in given.items():
        part, name = key.split(".")
        params.setdefault(part, {})[name] = array
    layer = {"encoder": model.encoder_layer, "decoder": model.decoder_layer}[kind]
    y = layer(*operands, params, heads=2, norm_first=place == "pre", activation=activation)
    same(y, expected["y"], dtype)


@DTYPES
@pytest.mark.parametrize("case", CASES["activations"])
def test_activations(case, dtype):
    given, expected = load("activations", case, dtype)
    same(model.ACTIVATIONS[case](given["x"]), expected["y"], dtype)


@pytest.mark.parametrize("name", CASES)
def test_every_frozen_case_is_one_of_these(name):
    assert {key.split(".")[0] for key in family(name)} == set(CASES[name])
