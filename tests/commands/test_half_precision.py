"""float16 and bfloat16: computed in float32 from the numbers as they are, and rounded once at the end."""

import ml_dtypes
import numpy as np
import pytest

import attnkit

TOOLS = {
    "attend": lambda x: attnkit.attend(x, heads=2, seed=1, causal=True),
    "layernorm": attnkit.layernorm,
    "ffn": lambda x: attnkit.ffn(x, hidden=32, seed=1),
    "rnn": lambda x: attnkit.rnn(x, hidden=4, cell="gru", seed=1),
    "softmax": attnkit.softmax,
}


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2**-11), (ml_dtypes.bfloat16, 2**-8)])
@pytest.mark.parametrize("tool", TOOLS)
def test_the_result_is_that_of_float32_rounded(tool, dtype, unit):
    x = np.random.default_rng(0).normal(size=(2, 7, 16)).astype(dtype)
    half, single = TOOLS[tool](x)["x"], TOOLS[tool](x.astype(np.float32))["x"]
    assert half.dtype == dtype and single.dtype == np.float32
    weights = {"ffn", "attend", "rnn"}  # which --seed draws in the dtype of x
    allowed = (8 if tool in weights else 1) * unit
    assert np.abs(half.astype(np.float64) - single).max() <= allowed * np.abs(single).max()
