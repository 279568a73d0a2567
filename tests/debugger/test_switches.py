"""Slips in the switches of decoders of today, each made by another value in config.json or another parameter."""

import numpy as np
import pytest
import safetensors.numpy

from tests.drawing import write_model
from tests.process import run


@pytest.mark.parametrize(("name", "changes", "words"), [
    ("gemma2", {"attn_logit_softcapping": None}, "the soft cap of the scores is missing"),
    ("granite", {"residual_multiplier": 1.0}, "the multiplier of the residual branch is missing"),
    ("gpt_oss", {}, "the sinks are missing"),
    ("qwen3_moe", {"norm_topk_prob": False}, "the gates of the chosen experts are not divided by their sum"),
    ("mixtral", {"sliding_window": 7}, "the window is 6 keys before a query instead of 5 (off by one)"),
])  # fmt: skip
def test_a_switch_that_is_off_is_named(name, changes, words, tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    write_model(name, right)
    write_model(name, wrong, **changes)
    if not changes:
        tensors = safetensors.numpy.load_file(wrong / "model.safetensors")
        sinks = {key: np.full_like(one, -1e4) for key, one in tensors.items() if key.endswith("sinks")}
        safetensors.numpy.save_file(tensors | sinks, wrong / "model.safetensors")
    ids, trace = tmp_path / "ids.npy", tmp_path / "trace.npz"
    np.save(ids, np.random.default_rng(1).integers(3, 60, (1, 13)))
    done = run("encode", "--model", wrong, "--ids", ids, "--trace", trace, "-o", tmp_path / "x.npz")
    assert done.code == 0, done.err
    code, out, err = run("diff", "--model", right, trace, "--ids", ids, "--why")
    assert (code, err) == (1, "")
    first = out.decode().partition("first stage")[2].splitlines()[1]
    assert f"if {words}" in first
