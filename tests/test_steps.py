"""--steps of every tool of a layer: the intermediates explain the result, and the result keeps its bits."""

import numpy as np
import pytest

import attnkit
from tests.places import STORY

TEXT = attnkit.embed("The cat sat on the mat", dim=8)
BATCH = attnkit.embed(["The cat sat", "A dog"], dim=8)
SCALE, SHIFT = np.arange(1.0, 9.0, dtype=np.float32), np.linspace(-1, 1, 8, dtype=np.float32)
CALLS = [
    (attnkit.layernorm, {}, ["mean", "variance", "inverse_std"]),
    (attnkit.layernorm, {"gamma": SCALE}, ["mean", "variance", "inverse_std", "normalized"]),
    (attnkit.layernorm, {"gamma": SCALE, "beta": SHIFT}, ["mean", "variance", "inverse_std", "normalized", "scaled"]),
    (attnkit.layernorm, {"kind": "rms", "gamma": SCALE}, ["mean_square", "inverse_std", "normalized"]),
    (attnkit.layernorm, {"kind": "batch", "beta": SHIFT}, ["mean", "variance", "inverse_std", "normalized"]),
    (attnkit.posenc, {}, ["angle", "sine", "cosine", "encoding"]),
    (attnkit.posenc, {"alone": True}, ["angle", "sine", "cosine"]),
    (attnkit.posenc, {"kind": "learned", "table": np.ones((9, 8), np.float32)}, ["encoding"]),
    (attnkit.posenc, {"kind": "rotary", "heads": 2}, ["cos", "sin"]),
    (attnkit.posenc, {"kind": "alibi", "heads": 2}, ["slope", "distance"]),
    (attnkit.posenc, {"kind": "t5", "table": np.ones((8, 2)), "heads": 2}, ["bucket"]),
    (attnkit.mask, {"causal": True, "window": (1, 1)}, ["mask.causal", "mask.window"]),
]


@pytest.mark.parametrize("record", [TEXT, BATCH], ids=["one text", "a batch"])
@pytest.mark.parametrize(("tool", "flags", "names"), CALLS)
def test_steps_add_the_intermediates_and_change_no_bit(record, tool, flags, names):
    plain, steps = tool(record, **flags), tool(record, **flags, steps=True)
    if tool is attnkit.mask and "mask" in record:
        names = [*names, "mask.record"]
    assert sorted({*steps} - {*plain}) == sorted(names)
    for name in plain:
        np.testing.assert_array_equal(steps[name], plain[name])
    assert all(steps.tensors[name].formula for name in names)
    steps.check()


@pytest.mark.parametrize("record", [TEXT, BATCH], ids=["one text", "a batch"])
def test_the_steps_of_a_norm_are_its_formula(record):
    steps = attnkit.layernorm(record, gamma=SCALE, beta=SHIFT, steps=True)
    x = record["x"].astype(float)
    np.testing.assert_allclose(steps["variance"], x.var(axis=-1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(steps["inverse_std"], 1 / np.sqrt(steps["variance"] + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(steps["normalized"], (x - steps["mean"]) * steps["inverse_std"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(steps["scaled"], steps["normalized"] * SCALE, rtol=1e-6)
    np.testing.assert_allclose(steps["x"], steps["scaled"] + SHIFT, rtol=1e-6, atol=1e-6)


def test_the_variance_that_batch_norm_is_given_is_the_one_it_shows():
    given = np.full(8, 4.0)
    steps = attnkit.layernorm(TEXT, kind="batch", mean=np.zeros(8), variance=given, steps=True)
    np.testing.assert_array_equal(steps["variance"], given[None])
    assert attnkit.layernorm(TEXT, keep="variance")["variance"].shape == (6, 1)
    with pytest.raises(attnkit.errors.UsageError, match="computes no variance"):
        attnkit.layernorm(TEXT, kind="rms", keep="variance")


def test_x_and_the_encoding_make_the_sum():
    steps = attnkit.posenc(TEXT, steps=True)
    np.testing.assert_allclose(steps["x"], TEXT["x"] + steps["encoding"], rtol=1e-6, atol=1e-6)  # it adds in float64
    np.testing.assert_array_equal(np.sin(steps["angle"]), steps["sine"])
    np.testing.assert_array_equal(steps["encoding"][:, 1::2], steps["cosine"].astype(np.float32))
    model = attnkit.embed("The fox", model=STORY)
    whole = attnkit.posenc(model, model=STORY, steps=True)
    np.testing.assert_array_equal(whole["x"], model["x"] + whole["encoding"])


def test_the_rules_of_a_mask_meet_in_it():
    steps = attnkit.mask(BATCH, causal=True, padding=True, steps=True)
    assert steps.axes_of("mask.padding") == ("batch", "all queries", "key")
    met = steps["mask.causal"] & steps["mask.padding"] & steps["mask.record"]
    np.testing.assert_array_equal(met, steps["mask"])
    assert steps.tensors["mask"].formula == "mask.causal and mask.padding and mask.record"
    alone = attnkit.mask(size=(1, 3), causal=True, invert=True, steps=True)
    assert list(alone) == ["mask.causal", "x"] and alone.tensors["x"].formula == "not (mask.causal)"


def test_embed_shows_ids_and_rows_before_they_are_scaled():
    steps = attnkit.embed("The cat The", dim=4, scale=True, steps=True)
    np.testing.assert_array_equal(steps["rows"], steps["table"][steps["ids"]])
    np.testing.assert_array_equal(steps["rows"] * 2, steps["x"])
    assert "rows" not in attnkit.embed("The cat", dim=4, steps=True)


def test_scores_that_nothing_caps_are_no_step():
    assert "capped" not in attnkit.attend(TEXT, steps=True)
    assert "capped" in attnkit.attend(TEXT, steps=True, softcap=2)
    assert "capped" in attnkit.attend(TEXT, keep="capped")


@pytest.mark.parametrize(
    ("mask", "formula"),
    [
        (np.tri(6, dtype=bool), "scaled, −∞ where the query may not attend"),
        (np.zeros((6, 6)), "scaled + mask"),
    ],
)
def test_the_formula_of_masked_scores_is_that_of_this_mask(mask, formula):
    assert attnkit.attend(TEXT, mask=mask, steps=True).tensors["masked"].formula == formula
