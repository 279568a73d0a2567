"""Rotations that turn back, and frequencies as published configurations scale them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError, UsageError
from attnkit.model import ROPE_TYPES, rope_frequencies, rotary_angles, rotate
from attnkit.model.formulas.rotary import has_same_rotation


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [8, 4, 0])
def test_rotation_keeps_length_and_turns_back(interleaved, width):
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    cos, sin = rotary_angles(np.arange(5), width)
    turned = rotate(x, cos, sin, interleaved=interleaved)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1))
    np.testing.assert_array_equal(turned[..., width:], x[..., width:])
    np.testing.assert_allclose(rotate(turned, cos, -sin, interleaved=interleaved), x, atol=1e-14)


@given(st.integers(0, 500))
def test_rotated_scores_depend_on_distance_only(shift):
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((4, 8)), rng.standard_normal((4, 8))
    here, there = rotary_angles(np.arange(4), 8), rotary_angles(np.arange(4) + shift, 8)
    np.testing.assert_allclose(
        rotate(q, *there) @ rotate(k, *there).T, rotate(q, *here) @ rotate(k, *here).T, atol=1e-11
    )


def test_interleaved_is_halves_in_another_order():
    x = np.random.default_rng(2).standard_normal((3, 6))
    order = [0, 2, 4, 1, 3, 5]
    angles = rotary_angles(np.arange(3), 6)
    np.testing.assert_array_equal(rotate(x, *angles, interleaved=True)[:, order], rotate(x[:, order], *angles))


def test_angles_of_each_row_of_the_batch():
    x = np.random.default_rng(3).standard_normal((2, 4, 3, 6)).astype(np.float32)
    positions = np.array([[0, 1, 2], [5, 6, 7]])
    cos, sin = rotary_angles(positions, 6)
    both = rotate(x, cos[:, None], sin[:, None])
    assert both.dtype == np.float32
    np.testing.assert_array_equal(both[1], rotate(x[1], cos[1], sin[1]))


def test_rotation_shapes():
    x = np.zeros((2, 3, 4))
    with pytest.raises(DataError, match="rotary width 3 is not even"):
        rotary_angles([0], 3)
    with pytest.raises(DataError, match=r"cos \(3,3\) for x \(2,3,4\): rotary width 6 is too large"):
        rotate(x, *rotary_angles(np.arange(3), 6))
    with pytest.raises(DataError, match=r"cos \(5,2\) for x \(2,3,4\): leading axes do not broadcast"):
        rotate(x, *rotary_angles(np.arange(5), 4))
    with pytest.raises(DataError, match="a single number cannot be rotated"):
        rotate(x, np.zeros(()), np.zeros(()))
    with pytest.raises(DataError, match=r"cos \(3,2\) and sin \(3,1\)"):
        rotate(x, np.zeros((3, 2)), np.zeros((3, 1)))


LLAMA = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 4096}
DEEP = {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 16, "beta_slow": 2,
        "truncate": False}  # fmt: skip
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 16,
    "factor": 4.0,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}

# What ROPE_INIT_FUNCTIONS of transformers 5.23 gives in float32, for a LlamaConfig with these rope_parameters, head_dim
# 8 or 16 and max_position_embeddings 64, called with seq_len 128.
PUBLISHED = [
    ({"rope_type": "linear", "factor": 4.0}, [0.25, 0.025, 0.0025, 0.00025], 1.0),
    (DYNAMIC, [1.0, 0.06933612, 0.004807498, 0.0003333333], 1.0),
    (LLAMA, [1.0, 0.1939228, 0.03760603, 0.007292665, 0.000524846, 3.428102e-05, 6.64787e-06, 1.289173e-06], 1.0),
    (YARN, [1.0, 0.3162278, 0.1, 0.02569351, 0.00625, 0.001383497, 0.00025, 7.905695e-05], 1.138629436111989),
    (DEEP, [1.0, 0.3162278, 0.1, 0.03162278, 0.005790105, 0.0001239525, 2.5e-05, 7.905694e-06], 0.9210423553163399),
]


@pytest.mark.parametrize(
    ("rope", "frequencies", "factor"),
    PUBLISHED,
    ids=lambda given: given["rope_type"] if isinstance(given, dict) else "",
)
def test_frequencies_as_published(rope, frequencies, factor):
    ours, multiplied = rope_frequencies(2 * len(frequencies), rope, 128)
    np.testing.assert_allclose(ours, frequencies, rtol=2e-6)
    assert multiplied == pytest.approx(factor, rel=1e-15)


def test_frequencies_of_the_default_are_the_angles_of_position_one():
    frequencies, factor = rope_frequencies(8, {"rope_theta": 500.0}, 10)
    assert factor == 1.0
    for one, other in zip(
        rotary_angles([1, 7], 8, frequencies=frequencies), rotary_angles([1, 7], 8, 500.0), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-15)


def test_a_factor_of_one_changes_nothing():
    published = rope_frequencies(8, {}, 10)[0]
    for rope in (LLAMA, YARN, {"rope_type": "linear"}):
        scaled, factor = rope_frequencies(8, {**rope, "rope_theta": 10000.0, "factor": 1.0}, 100)
        np.testing.assert_allclose(scaled, published, rtol=1e-14)
        assert factor == 1.0


def test_dynamic_scaling_begins_beyond_the_length_it_was_made_for():
    short, limit, longer = (rope_frequencies(8, DYNAMIC, length)[0] for length in (10, 64, 65))
    np.testing.assert_array_equal(short, limit)
    assert (longer[1:] < limit[1:]).all() and longer[0] == limit[0] == 1


def test_by_hand_the_ramp_of_yarn_ends_at_the_last_feature():
    """Pairs 0 and 1 of 4 features: the ramp from 0 to 3 is 0 and 1/3, of which the frequencies are halved."""
    rope = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 2.0, "original_max_position_embeddings": 1e6}
    frequencies, factor = rope_frequencies(4, rope | {"beta_fast": 2e5, "beta_slow": 1.0}, 9)
    np.testing.assert_allclose(frequencies, [1, (2 / 3 + 1 / 3 / 2) / math.sqrt(10)])
    assert factor == pytest.approx(0.1 * math.log(2) + 1)


def test_a_context_that_does_not_grow_has_no_factor():
    rope = {"rope_type": "longrope", "factor": 1.0, "short_factor": [1.0], "long_factor": [1.0]}
    assert rope_frequencies(2, rope | {"original_max_position_embeddings": 1}, 1) == (np.ones(1), 1.0)


def test_yarn_applies_the_configured_factor():
    assert rope_frequencies(8, {**YARN, "attention_factor": 1.25}, 9)[1] == 1.25
    without = {name: value for name, value in YARN.items() if name != "factor"}
    assert rope_frequencies(8, {**without, "max_position_embeddings": 8192}, 9)[1] == 0.1 * math.log(2) + 1
    cos, sin = rotary_angles([3], 2, factor=2.0)
    np.testing.assert_allclose(cos**2 + sin**2, 4)


def test_older_configurations_say_type():
    np.testing.assert_array_equal(rope_frequencies(4, {"type": "linear", "factor": 2.0}, 9)[0], [0.5, 0.005])


@pytest.mark.parametrize("kind", sorted(set(ROPE_TYPES) - {"default"}))
def test_missing_fields_of_a_rope_type_are_named(kind):
    kinds = {"linear": {"factor": 2.0}, "dynamic": DYNAMIC, "llama3": LLAMA, "yarn": YARN, "longrope": LONG}
    whole, optional = kinds[kind], {"rope_type", "rope_theta", "long_factor"}
    for name in whole.keys() - optional:
        rope = {other: value for other, value in whole.items() if other != name}
        with pytest.raises(DataError, match=f"rope_type '{kind}' needs '"):
            rope_frequencies(8, {**rope, "rope_type": kind}, 9)
        with pytest.raises(DataError, match=f"{name} -1"):
            rope_frequencies(8, {**whole, "rope_type": kind, name: -1}, 9)


def test_longrope_by_hand():
    """Of 4 features: 1 and 1/100, divided by 2 and 5, and by 3 and 10 beyond 16 tokens; sqrt(1 + ln 4 / ln 16)."""
    for length, expected in ((16, [1 / 2, 1 / 500]), (17, [1 / 3, 1 / 1000])):
        frequencies, factor = rope_frequencies(4, {**LONG, "short_factor": [2, 5], "long_factor": [3, 10]}, length)
        np.testing.assert_allclose(frequencies, expected, rtol=1e-15)
        assert math.isclose(factor, math.sqrt(1.5), rel_tol=1e-15)
    with pytest.raises(DataError, match=r"long_factor \[3\] \(expected 2 positive numbers\)"):
        rope_frequencies(4, {**LONG, "long_factor": [3]}, 17)


@pytest.mark.parametrize(
    "kind, before, after, same",
    [
        ("default", 3, 99, True),
        ("dynamic", 3, 8, True),
        ("dynamic", 8, 9, False),
        ("longrope", 3, 16, True),
        ("longrope", 16, 17, False),
        ("longrope", 17, 99, True),
    ],
)
def test_cached_keys_stay_valid_while_the_rotation_is_the_same(kind, before, after, same):
    rope = {"dynamic": {**DYNAMIC, "max_position_embeddings": 8}, "longrope": LONG}.get(kind, {})
    assert has_same_rotation({**rope, "rope_type": kind}, before, after) is same


def test_invalid_frequencies_are_refused():
    names = "default, linear, dynamic, llama3, longrope, yarn"
    with pytest.raises(UsageError, match=f"rope_type 'spiral' \\(expected {names}\\)"):
        rope_frequencies(8, {"rope_type": "spiral"}, 9)
    with pytest.raises(DataError, match="rotary width 7 is not even"):
        rope_frequencies(7, {}, 9)
    with pytest.raises(DataError, match=r"high_freq_factor 1.0 \(expected more than low_freq_factor 1.0\)"):
        rope_frequencies(8, {**LLAMA, "high_freq_factor": 1}, 9)
    with pytest.raises(DataError, match="factor 'big'"):
        rope_frequencies(8, {"rope_type": "linear", "factor": "big"}, 9)
    with pytest.raises(DataError, match="rotary width 2"):
        rope_frequencies(2, DYNAMIC, 9)
    with pytest.raises(DataError, match=r"frequencies \(3,\) for rotary width 8"):
        rotary_angles([1], 8, frequencies=np.ones(3))
