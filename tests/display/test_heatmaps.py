"""Heat maps, read line by line."""

import re
import sys

import numpy as np
import pytest

from attnkit.display import Style, TensorView, heatmap, heatmap_grid
from attnkit.errors import DataError

WORDS = ["The", "cat", "sat"]
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
CAUSAL = np.tril(np.ones((3, 3), bool))
AXES = ("query", "key")


def golden(text: str) -> str:
    """A golden text as written below: without its first and last line break."""
    return text.strip("\n")


def test_shades_and_masked() -> None:
    text = heatmap(TensorView("weights", WEIGHTS, AXES, (WORDS, WORDS), Style(), formula="softmax(s)", mask=CAUSAL))
    assert text == golden("""
weights (query 3, key 3) float64   = softmax(s)
    The cat sat
The ████ ·   ·
cat ░░░░▓▓▓▓ ·
sat     ▒▒▒▒▒▒▒▒
0  ░▒▓█ 1   · masked
""")


def test_ascii() -> None:
    text = heatmap(TensorView("w", WEIGHTS, AXES, (WORDS, ["é", "b", "c"]), Style(unicode=False), mask=CAUSAL))
    assert text == golden("""
w (query 3, key 3) float64
    \\xe9   b    c
The @@@@@  x    x
cat :::::#####  x
sat      ==========
0  .:-=+*#%@ 1   x masked
""")


def test_labels_of_many_columns_are_vertical() -> None:
    names = ["a", "bc", "日本", "e\u0301e", "[/s]"] + [""] * 15
    text = heatmap(TensorView("w", np.eye(20)[:1], AXES, (["q"], names), Style(width=60)))
    assert text.splitlines()[1:-1] == [
        "          [",
        "          /",
        "    b 日e\u0301 s ' ' ' ' ' ' ' ' ' ' ' ' ' ' '",
        "  a c 本e ] ' ' ' ' ' ' ' ' ' ' ' ' ' ' '",
        "q ██",
    ]


def test_small_multiples_share_one_scale_even_about_zero() -> None:
    both = np.stack([WEIGHTS, -WEIGHTS])
    text = heatmap(TensorView("w", both, ("head", *AXES), (None, WORDS, WORDS), Style()))
    assert text == golden("""
w (head 2, query 3, key 3) float64
head 0       head 1
    T c s        T c s
    h a a        h a a
    e t t        e t t
The ██▒▒▒▒   The   ▒▒▒▒
cat ▒▒██▒▒   cat ▒▒  ▒▒
sat ▒▒▓▓▓▓   sat ▒▒░░░░
-1  ░▒▓█ 1
""")


def test_heads_of_a_few_tokens_have_their_labels() -> None:
    text = heatmap_grid(
        TensorView("w", np.stack([WEIGHTS] * 2), ("head", *AXES), (None, WORDS, WORDS), Style(width=40))
    )
    assert text == golden("""
w (head 2, query 3, key 3) float64
head 0       head 1
    T c s        T c s
    h a a        h a a
    e t t        e t t
The ██       The ██
cat ░░▓▓     cat ░░▓▓
sat   ▒▒▒▒   sat   ▒▒▒▒
0  ░▒▓█ 1
""")


def test_heads_of_many_tokens_are_compact() -> None:
    text = heatmap_grid(
        TensorView("w", np.stack([np.eye(28)[:3]] * 2), ("head", *AXES), (None, WORDS, None), Style(width=64))
    )
    assert text == golden("""
w (head 2, query 3, key 28) float64
head 0                           head 1
  0         10        20    27     0         10        20    27
0 █                              0 █
   █                                █
2   █                            2   █
0  ░▒▓█ 1
""")


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    text = heatmap(TensorView("w", np.tile(np.arange(100), (100, 1)), AXES, (None, None), Style(width=40))).splitlines()
    assert text[1] == "   0         10        20     90      99"
    assert text[2] == "0               ░░░░░░░░░░░…████████████"
    assert text[44:47] == [
        "42              ░░░░░░░░░░░…████████████",
        "… 36 more",
        "79              ░░░░░░░░░░░…████████████",
    ]
    assert text[-3:-1] == ["not shown: 36 of 100 rows, 64 of 100", "    columns"]


def test_not_finite() -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 0.0, 1.0]])
    text = heatmap(TensorView("s", values, AXES, (None, None), Style())).splitlines()
    assert text[-2:] == [
        "0  ?   ?   ·      ████",
        "0  ░▒▓█ 1   · masked   ? not finite",
    ]
    assert (
        heatmap(TensorView("s", values[:, :3], AXES, (None, None), Style())).splitlines()[-1]
        == "· masked   ? not finite"
    )


@pytest.mark.parametrize(
    "array", [np.full((2, 2), 7), np.zeros((2, 2)), np.array([[1.7e308, -1.7e308]]), np.array([[5e-324, 0]])]
)
def test_scales_at_their_limits(array: np.ndarray) -> None:
    assert "?" not in heatmap(TensorView("x", array, AXES, (None, None), Style()))


def test_rank_0_1_and_empty() -> None:
    assert heatmap(TensorView("x", np.array([0, 1]), ("model",), (None,), Style())).splitlines()[1:] == [
        " 0   1",
        "    ████",
        "0  ░▒▓█ 1",
    ]
    assert heatmap(TensorView("x", np.array(2), (), (), Style())) == "x scalar int64\n 0\n▒▒▒▒\n2  ░▒▓█ 2"
    assert heatmap(TensorView("x", np.zeros((2, 0)), AXES, (None, None), Style())).splitlines()[1:] == ["empty"]


def test_colors_follow_the_value_and_carry_the_number() -> None:
    text = heatmap(TensorView("w", WEIGHTS, AXES, (WORDS, WORDS), Style(color=True), mask=CAUSAL))
    cells = re.findall(r"48;2;(\d+);(\d+);(\d+);38;2;\d+;\d+;\d+m ([\d.]+) ", text)
    by_value = {float(value): tuple(map(int, color)) for *color, value in cells}
    assert by_value[0.0] == (68, 1, 84)
    assert by_value[1.0] == (253, 231, 37)
    assert sorted(by_value) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_zero_is_the_neutral_color_of_both_signs() -> None:
    text = heatmap(TensorView("w", np.array([[-2.0, 0.0, 1.0]]), AXES, (None, None), Style(color=True)))
    red, green, blue = map(int, re.findall(r"48;2;(\d+);(\d+);(\d+);38;2;0;0;0m *0\.00", text)[0])
    assert min(red, green, blue) > 230


def test_a_mask_that_does_not_broadcast() -> None:
    with pytest.raises(DataError, match=r"mask \(2, 2\) does not broadcast"):
        heatmap(TensorView("w", WEIGHTS, AXES, (None, None), Style(), mask=np.ones((2, 2), bool)))


@pytest.mark.parametrize("color", [False, True])
def test_64_by_64_takes_few_calls_for_a_cell(color: bool) -> None:
    values, style = np.random.default_rng(0).random((64, 64)), Style(width=200, color=color)
    view = TensorView("w", values, AXES, (None, None), style)
    heatmap(view)  # imports
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        heatmap(view)
    finally:
        sys.setprofile(None)
    assert len(calls) < 4 * values.size
