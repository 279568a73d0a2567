"""Tables of tensors, read line by line."""

import math
import re

import ml_dtypes
import numpy as np
import pytest

from attnkit.display import Style, TensorView, TextTable, draw_signed_bars, format_table, tensor_table
from attnkit.errors import DataError

WORDS = ["The", "cat", "sat"]
SCORES = np.array([[2, 0, 2], [0, 2, 2], [2, 2, 4]], np.float32)
CAUSAL = np.tril(np.ones((3, 3), bool))
NARROW = Style(width=40)


def golden(text: str) -> str:
    """A golden text as written below: without its first and last line break."""
    return text.strip("\n")


def test_one_matrix() -> None:
    text = tensor_table(TensorView("scores", SCORES, ("query", "key"), (WORDS, WORDS), Style(), formula="Q Kᵀ"))
    assert text == golden("""
scores (query 3, key 3) float32   = Q Kᵀ
query\\key     The     cat     sat
─────────────────────────────────
The        2.0000  0.0000  2.0000
cat        0.0000  2.0000  2.0000
sat        2.0000  2.0000  4.0000
""")


def test_ascii() -> None:
    text = tensor_table(
        TensorView(
            "scores", SCORES, ("query", "key"), (WORDS, ["é", "…", "ok"]), Style(unicode=False), formula="Q Kᵀ/√2"
        )
    )
    assert text == golden("""
scores (query 3, key 3) float32   = Q K^T/sqrt 2
query\\key    \\xe9  \\u2026      ok
---------------------------------
The        2.0000  0.0000  2.0000
cat        0.0000  2.0000  2.0000
sat        2.0000  2.0000  4.0000
""")


def test_heads_are_side_by_side_and_masked_is_not_zero() -> None:
    both = np.stack([SCORES, SCORES / -3])
    text = tensor_table(
        TensorView("s", both, ("head", "query", "key"), (None, WORDS, WORDS), Style(precision=1), mask=CAUSAL)
    )
    assert text == golden("""
s (head 2, query 3, key 3) float32
head 0                        head 1
query\\key   The   cat   sat   query\\key   The   cat   sat
───────────────────────────   ───────────────────────────
The         2.0     ·     ·   The        -0.7     ·     ·
cat         0.0   2.0     ·   cat         0.0  -0.7     ·
sat         2.0   2.0   4.0   sat        -0.7  -0.7  -1.3
· masked
""")


def test_rows_and_columns_that_do_not_fit_are_counted() -> None:
    text = tensor_table(
        TensorView("x", np.arange(4000).reshape(100, 40), ("token", "model"), (None, None), NARROW)
    ).splitlines()
    assert (
        text[:4]
        == golden("""
x (token 100, model 40) int64
token\\mod…     0     1     2  +36    39
───────────────────────────────────────
0              0     1     2    …    39
""").splitlines()
    )
    assert (
        text[22:25]
        == golden("""
19           760   761   762    …   799
… 70 more      …     …     …    …     …
90          3600  3601  3602    …  3639
""").splitlines()
    )
    assert len(text) == 3 + 20 + 1 + 10


def test_words_that_are_alike_carry_their_numbers() -> None:
    words = ["the", "cat", "the", "mat"]
    text = tensor_table(TensorView("weights", np.eye(4), ("query", "key"), (words, words), Style(precision=1)))
    assert text.splitlines()[1].split() == ["query\\key", "the", "0", "cat", "the", "2", "mat"]
    assert [line[:7].strip() for line in text.splitlines()[3:]] == ["the 0", "cat", "the 2", "mat"]
    elided = tensor_table(TensorView("x", np.zeros((40, 1)), ("token", "model"), (["a"] * 40, None)))
    assert elided.splitlines()[-1].split() == ["a", "39", "0.0000"]


def test_a_map_without_all_columns_names_the_heat_map() -> None:
    def last_line(axes: tuple[str, str], width: int) -> str:
        return tensor_table(TensorView("w", np.ones((2, 30)), axes, (None, None), Style(width))).splitlines()[-1]

    assert last_line(("query", "key"), 60) == "show --heatmap draws more columns"
    assert "heatmap" not in last_line(("query", "key"), 300) + last_line(("token", "model"), 60)


def test_a_formula_breaks_between_its_parts() -> None:
    formula = "PE, PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same)"
    view = TensorView("x", np.ones((1, 1)), ("token", "model"), (None, None), Style(60), formula)
    assert tensor_table(view).splitlines()[1:3] == [
        "  = PE, PE(pos, 2i) = sin(pos / 10000^(2i/d)),",
        "    PE(pos, 2i+1) = cos(same)",
    ]


def test_matrices_beyond_the_eighth_are_counted() -> None:
    one = tensor_table(TensorView("w", np.ones((12, 1, 1), int), ("head", "query", "key"), (None, None, None), NARROW))
    assert one.splitlines()[-1] == "… 4 more heads"
    two = tensor_table(
        TensorView("w", np.ones((2, 12, 1, 1), int), ("batch", "head", "query", "key"), [None] * 4, NARROW)
    )
    assert two.splitlines()[-1] == "… 16 more matrices"
    assert "batch 0 · head 7" in two


def test_rank_0_and_1() -> None:
    assert tensor_table(TensorView("loss", np.array(0.25), (), (), Style())) == "loss scalar float64\n0.2500"
    assert tensor_table(TensorView("ids", np.array([464, 3797]), ("token",), (["The", "cat"],), Style())) == golden("""
ids (token 2) int64
The   cat
─────────
464  3797
""")


def test_labels_of_each_batch_row() -> None:
    labels = [["a", "b"], ["c", "[pad]"]]
    ids = tensor_table(TensorView("ids", np.array([[1, 2], [3, 0]]), ("batch", "token"), (None, labels), Style()))
    assert ids == golden("""
ids (batch 2, token 2) int64
batch 0    batch 1
a      b   c  [pad]
────────   ────────
1      2   3      0
""")
    x = tensor_table(
        TensorView("x", np.zeros((2, 2, 1), int), ("batch", "token", "model"), (None, labels, None), Style())
    )
    assert [line.split() for line in x.splitlines()[4:]] == [["a", "0", "c", "0"], ["b", "0", "[pad]", "0"]]


def test_labels_are_literal() -> None:
    labels = [
        "[pad]",
        "[/s]",
        "[bold]",
        ":smile:",
        "a\nb",
        "\x1b[31m",
        "",
        " ",
        "\u0301",
        "x" * 17,
        "日本語" * 4,
    ]
    text = tensor_table(TensorView("x", np.zeros((11, 1), int), ("token", "model"), (labels, None), Style()))
    assert [line.rsplit(maxsplit=1)[0].strip() for line in text.splitlines()[3:]] == [
        *["[pad]", "[/s]", "[bold]", ":smile:", "a\\nb", "\\x1b[31m", "''", "' '", "\\u0301"],
        *["xxxxxxxxxxxxxxx…", "日本語日本語日…"],
    ]


@pytest.mark.parametrize(
    ("array", "cells"),
    [
        (np.array([True, False]), "1 0"),
        (np.array([-(2**63), 5]), "-9223372036854775808 5"),
        (np.array([1e9, 0.5]), "1.00e+09 5.00e-01"),
        (np.array([3e-5, -1e-9]), "3.00e-05 -1.00e-09"),
        (np.array([0.5, -1e-9]), "0.50 0.00"),
        (np.array([np.nan, np.inf, -np.inf, 1]), "nan inf -inf 1.00"),
        (np.array([np.nan, np.inf]), "nan inf"),
        (np.array([1.5, 0.1], ml_dtypes.bfloat16), "1.50 0.10"),
        (np.array([65504, 1], np.float16), "65504.00 1.00"),
        (np.array([1.7e308, -1.7e308]), "1.70e+308 -1.70e+308"),
    ],
)
def test_one_style_of_numbers_a_table(array: np.ndarray, cells: str) -> None:
    text = tensor_table(TensorView("x", array, ("model",), (None,), Style(precision=2)))
    assert text.splitlines()[-1].split() == cells.split()


@pytest.mark.parametrize(
    ("array", "cells"),
    [
        (np.array([[5.0, 6e-7, -6e-7, 0.0]]), "5.0000 <0.0001 >-0.0001 0.0000"),
        (np.array([[5.0, 1e-16]]), "5.0000 0.0000"),  # rounding of float64
        (np.array([[5.0, 1e-6]], np.float32), "5.0000 0.0000"),  # rounding of float32
        (np.array([[0.99997, 0.00003]]), ">0.9999 <0.0001"),
        (np.array([[1.0, 0.0]]), "1.0000 0.0000"),
        (np.array([[0.99997, 0.5]]), "1.0000 0.5000"),  # no probabilities
    ],
)
def test_a_number_is_not_rounded_to_0_nor_a_probability_to_1(array: np.ndarray, cells: str) -> None:
    text = tensor_table(TensorView("x", array, ("token", "model"), (None, None)))
    assert text.splitlines()[-1].split()[1:] == cells.split()


def test_the_style_is_that_of_the_numbers_not_masked() -> None:
    text = tensor_table(
        TensorView("s", np.array([0.5, -1e9]), ("key",), (None,), Style(), mask=np.array([True, False]))
    )
    assert text.splitlines()[-2:] == ["0.5000  ·", "· masked"]


def test_empty() -> None:
    text = tensor_table(TensorView("x", np.zeros((0, 5), np.float32), ("token", "model"), (None, None), Style()))
    assert text == "x (token 0, model 5) float32\nempty"


def test_labels_that_do_not_fit_the_shape_give_way_to_indices() -> None:
    text = tensor_table(TensorView("x", np.zeros((2, 1), int), ("token", "model"), (["only"], None), Style()))
    assert [line.split()[0] for line in text.splitlines()[3:]] == ["0", "1"]


def test_a_long_heading_is_wrapped_not_cut() -> None:
    axes = ("batch", "head", "query", "key")
    formula = "softmax(Q Kᵀ / √d_k + mask) V W_o + b_o"
    text = tensor_table(TensorView("weights", np.ones((1, 1, 1, 1)), axes, [None] * 4, NARROW, formula=formula))
    assert (
        text.splitlines()[:4]
        == golden("""
weights (batch 1, head 1, query 1, key
    1) float64
  = softmax(Q Kᵀ / √d_k + mask) V W_o +
    b_o
""").splitlines()
    )


def test_color_marks_name_headings_and_masked() -> None:
    text = tensor_table(TensorView("s", SCORES, ("query", "key"), (WORDS, WORDS), Style(color=True), mask=CAUSAL))
    assert text.startswith("\x1b[1ms\x1b[0m\x1b[2m (query 3, key 3) float32\x1b[0m")
    assert "\x1b[2m" in text.splitlines()[3]


def test_a_mask_that_does_not_broadcast() -> None:
    with pytest.raises(DataError, match=r"mask \(2, 2\) does not broadcast to the tensor \(3, 3\)"):
        tensor_table(TensorView("s", SCORES, ("query", "key"), (None, None), Style(), mask=np.ones((2, 2), bool)))


@pytest.mark.parametrize("unicode", [True, False])
def test_bars_of_both_signs_have_one_look_and_the_colour_of_their_sign(unicode: bool) -> None:
    style = Style(color=True, unicode=unicode)
    bars = draw_signed_bars([1.0, -0.5, math.nan, 0.0], 1.0, style)
    assert bars == ([" " + "█" * 12, "−" + "█" * 6, "", ""] if unicode else [" " + "#" * 12, "-" + "#" * 6, "", ""])
    lines = format_table(
        TextTable(["part", ""], [[name, bar] for name, bar in zip("abcd", bars, strict=True)], signed=(1,)), style
    ).splitlines()
    codes = [re.findall(r"\x1b\[(\d+)m[ −-][█#]", line) for line in lines[2:]]
    assert codes == [["31"], ["34"], [], []]
