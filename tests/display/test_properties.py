"""Properties of every tensor, label and style."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from rich.cells import cell_len

from attnkit.display import (
    Candidates,
    Style,
    TensorView,
    candidates_table,
    heatmap,
    heatmap_grid,
    statistics_table,
    tensor_list,
    tensor_table,
)

AXES = ("batch", "head", "query", "key")
ODD = [
    "[pad]",
    "[/s]",
    "",
    " ",
    "\n",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "日本語" * 9,
    "👩\u200d💻",
    "e\u0301",
    "\u0301",
]
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.uint64, np.int8, np.bool_, ml_dtypes.bfloat16]

styles = st.builds(
    Style,
    st.integers(40, 160),
    st.booleans(),
    st.booleans(),
    st.integers(0, 8),
    st.integers(0, 8),
    st.booleans(),
    st.sampled_from([None, range(1), range(2), range(1 << 62)]),
)
words = st.one_of(st.sampled_from(ODD), st.text(max_size=20))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 12, 90]), max_size=4)))
    while np.prod(shape, dtype=int) > 5000:
        shape = shape[1:]
    source_dtype = np.dtype(np.float32) if dtype == ml_dtypes.bfloat16 else dtype
    with np.errstate(over="ignore"):
        return draw(nps.arrays(source_dtype, shape)).astype(dtype)


@st.composite
def labelled(draw: st.DrawFn) -> tuple:
    array = draw(arrays())
    axes = AXES[4 - array.ndim :]
    row = draw(st.lists(words, min_size=1, max_size=8))
    labels = [None if draw(st.booleans()) else [row[i % len(row)] for i in range(n)] for n in array.shape]
    if array.ndim == 4 and array.shape[0] and draw(st.booleans()):
        labels[-1] = [[row[i % len(row)] for i in range(array.shape[-1])]] * array.shape[0]
    mask = draw(st.none() | nps.arrays(bool, array.shape[-2:]))
    return array, axes, labels, mask


def check(text: str, style: Style) -> None:
    """Check that a text fits the width and has only characters that the style allows."""
    visible = re.sub(r"\x1b\[[\d;]*m", "", text) if style.color else text
    for line in visible.split("\n"):
        assert cell_len(line) <= style.width, line
        assert all(c.isprintable() for c in line)
    assert style.unicode or visible.isascii()
    text.encode()


@pytest.mark.slow
@pytest.mark.parametrize("draw", [tensor_table, heatmap, heatmap_grid])
@given(tensor=labelled(), style=styles, name=words, formula=words)
def test_every_tensor_fits(draw, tensor, style, name, formula) -> None:
    array, axes, labels, mask = tensor
    text = draw(TensorView(name, array, axes, labels, style, formula=formula, mask=mask))
    check(text, style)
    assert array.size or text.endswith("empty")


@given(named=st.dictionaries(words, arrays(), max_size=5), style=styles)
def test_every_summary_fits(named, style) -> None:
    check(statistics_table(named, style), style)
    check(tensor_list({name: (array, AXES[4 - array.ndim :]) for name, array in named.items()}, style), style)


@given(
    rows=st.lists(words, max_size=40),
    top=st.integers(1, 9),
    vocabulary=st.none() | st.lists(words),
    style=styles,
)
def test_every_candidate_fits(rows, top, vocabulary, style) -> None:
    ids = np.arange(len(rows) * top).reshape(-1, top)
    check(candidates_table(Candidates(rows, ids, ids / 1000, vocabulary), style), style)


@given(
    array=nps.arrays(np.float32, st.tuples(st.integers(1, 90), st.integers(1, 90))),
    label=st.text("abcdefgh[]/", min_size=1, max_size=20),
    width=st.integers(40, 160),
    keep=st.booleans(),
)
def test_no_cell_of_a_table_is_empty(array, label, width, keep) -> None:
    labels = tuple([f"{label}{at}" for at in range(size)] for size in array.shape)
    mask = np.full(array.shape, keep)
    text = tensor_table(TensorView("x", array, ("query", "key"), labels, Style(width), mask=mask)).splitlines()
    rule = next(i for i, line in enumerate(text) if set(line) == {"─"})
    counts = {
        len(line.split()) for line in text[rule + 1 :] if not line.startswith(("… ", "· masked", "show --heatmap"))
    }
    line = text[rule - 1]  # `… 90 more` is one heading
    headings = re.split(r"  +", line) if " more" in line else line.split()
    assert counts == {len(headings)}
