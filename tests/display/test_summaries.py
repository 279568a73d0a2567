"""Lists, statistics and candidates, read line by line."""

import ml_dtypes
import numpy as np

from attnkit.display import Candidates, Style, candidates_table, statistics_table, tensor_list


def golden(text: str) -> str:
    """A golden text as written below: without its first and last line break."""
    return text.strip("\n")


def test_statistics() -> None:
    named = {
        "x": np.array([[1.0, -2.0], [np.nan, np.inf]], np.float32),
        "ids": np.array([0, 2**62]),
        "mask": np.array([True, False]),
        "none": np.zeros((0, 3)),
    }
    assert statistics_table(named, Style(width=100)) == golden("""
name  shape   dtype    min                  max       mean        std  zeros  nan  inf
──────────────────────────────────────────────────────────────────────────────────────
x     (2, 2)  float32   -2                    1       -0.5        1.5      0    1    1
ids   (2)     int64      0  4611686018427387904  2.306e+18  2.306e+18      1    0    0
mask  (2)     bool       0                    1        0.5        0.5      1    0    0
none  (0, 3)  float64    -                    -          -          -      0    0    0
""")


def test_statistics_of_half_floats_and_extremes() -> None:
    half = np.full(4096, 60000, np.float16)
    named = {"f16": half, "bf16": half.astype(ml_dtypes.bfloat16), "f64": np.array([1.7e308, -1.7e308])}
    rows = [line.split() for line in statistics_table(named, Style(width=100)).splitlines()[2:]]
    assert rows == [
        ["f16", "(4096)", "float16", *["6e+04"] * 3, "0", "0", "0", "0"],
        ["bf16", "(4096)", "bfloat16", *["5.99e+04"] * 3, "0", "0", "0", "0"],
        ["f64", "(2)", "float64", "-1.7e+308", "1.7e+308", "0", "inf", "0", "0", "0"],
    ]


def test_columns_that_tell_least_are_left_out_where_all_do_not_fit() -> None:
    named = {"weights": np.array([[0.5, 0.25]])}
    assert statistics_table(named, Style(width=56)) == golden("""
name      min  max   mean    std  zeros  nan  inf
─────────────────────────────────────────────────
weights  0.25  0.5  0.375  0.125      0    0    0
""")
    assert statistics_table(named, Style(width=40)) == golden("""
name      min  max   mean    std  zeros
───────────────────────────────────────
weights  0.25  0.5  0.375  0.125      0
""")
    named = {"weights": np.array([[0.5, np.nan, 0.0]])}
    assert "nan" in statistics_table(named, Style(width=40)) and "inf" not in statistics_table(named, Style(width=40))


def test_columns_that_do_not_fit_go_on_below() -> None:
    text = statistics_table({"weights": np.array([[0.5, 0.25]])}, Style(width=24))
    assert text == golden("""
name      min  max
──────────────────
weights  0.25  0.5

name      mean    std
─────────────────────
weights  0.375  0.125
""")


def test_listing() -> None:
    named = {
        "wte.weight": (np.zeros((500, 16), np.float32), ("vocab", "model")),
        "[bold]": (np.zeros((), np.int64), ()),
    }
    assert tensor_list(named, Style(), title="gpt2") == golden("""
gpt2
name        shape                  dtype      bytes
───────────────────────────────────────────────────
wte.weight  (vocab 500, model 16)  float32  32.0 kB
[bold]      ()                     int64        8 B
2 tensors, 32.0 kB
""")
    assert tensor_list({}, Style()) == "0 tensors, 0 B"
    assert statistics_table({}, Style()) == "no tensors"


def test_candidates() -> None:
    ids, probs = np.array([[1, 0], [2, 9]]), np.array([[0.75, 0.25], [0.5, 0.125]], np.float32)
    text = candidates_table(
        Candidates(["The", "[pad]"], ids, probs, ["a", "cat", "mañana"], "next", "softmax"), Style(precision=3)
    )
    assert text == golden("""
next   = softmax
position  1st           2nd
───────────────────────────────
The       cat    0.750  a 0.250
[pad]     mañana 0.500  9 0.125
""")
    assert "17 0.750" in candidates_table(
        Candidates(["The"], np.array([[17]]), np.array([[0.75]]), None), Style(precision=3)
    )


def test_candidates_of_a_long_text() -> None:
    ids, probs = np.zeros((100, 2), int), np.ones((100, 2))
    lines = candidates_table(Candidates([f"t{i}" for i in range(100)], ids, probs, None), Style()).splitlines()
    assert lines[21:24] == [
        "t19        0 1.0000  0 1.0000",
        "… 70 more  …         …",
        "t90        0 1.0000  0 1.0000",
    ]
    assert candidates_table(Candidates([], np.zeros((0, 3), int), np.zeros((0, 3)), None), Style()) == "empty"
