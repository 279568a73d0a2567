"""CSV, TSV and Markdown: every number and label reads back, by readers that are not ours."""

import csv
import io

import ml_dtypes
import numpy as np
import pytest

from attnkit.display import TensorView
from attnkit.display.cells import Cells, format_cells, tensor_cells

HOSTILE = ["=1+1", "+x", "-x", "@x", 'say "hi"', "a,b", "a\tb", "two\nlines", " space", "", "|", "Ġthe", "NaN", "1"]


def read_back(text, format):
    return list(csv.reader(io.StringIO(text, newline=""), delimiter="\t" if format == "tsv" else ","))


@pytest.mark.parametrize("format", ["csv", "tsv"])
def test_every_label_reads_back(format):
    text = format_cells(tensor_cells(TensorView("x", np.ones((len(HOSTILE), 1)), "tm", (HOSTILE, None)), "x"), format)
    assert [row[0] for row in read_back(text, format)[1:]] == HOSTILE
    assert all(f'"{label}"' in text for label in HOSTILE[:4])
    assert "\nĠthe" in text and not text.endswith("\r\n")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ml_dtypes.bfloat16])
def test_every_float_reads_back_to_its_bits(dtype):
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal(500) * 10.0 ** rng.integers(-4, 4, 500)).astype(dtype)
    rows = read_back(format_cells(tensor_cells(TensorView("x", numbers, ("m",), (None,)), "x"), "csv"), "csv")
    assert (
        rows[0] == ["m", "x"]
        and np.array([row[1] for row in rows[1:]], np.float64).astype(dtype).tobytes() == numbers.tobytes()
    )


def test_what_is_not_finite_is_spelled_as_in_json_and_booleans_too():
    numbers = np.array([np.nan, np.inf, -np.inf])
    assert (
        format_cells(tensor_cells(TensorView("x", numbers, "m", (None,)), "x"), "csv")
        == "m,x\n0,NaN\n1,Infinity\n2,-Infinity\n"
    )
    flags = TensorView("x", np.array([True, False]), "m", (None,))
    assert format_cells(tensor_cells(flags, "x"), "tsv") == "m\tx\n0\ttrue\n1\tfalse\n"


def test_each_rank():
    def written(shape, labels=None):
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        view = TensorView("t", array, "abcd"[: len(shape)], labels or [None] * len(shape))
        return format_cells(tensor_cells(view, "t"), "csv").splitlines()

    assert written(()) == ["t", "0"]
    assert written((2,), [["p", "q"]]) == ["a,t", "p,0", "q,1"]
    assert written((1, 2), [None, ["p", "q"]]) == ["a,p,q", "0,0,1"]
    assert written((2, 0)) == ["a", "0", "1"] and written((0, 2)) == ["a,0,1"] and written((0, 1, 2)) == ["a,b,c,t"]
    assert written((2, 1, 1), [None, ["p"], None]) == ["a,b,b_label,c,t", "0,0,p,0,0", "1,0,p,0,1"]


def test_labels_of_every_batch_row_make_a_row_an_element():
    view = TensorView("x", np.arange(4).reshape(2, 2), ("batch", "token"), (None, [["a", "b"], ["c", "<pad>"]]))
    lines = format_cells(tensor_cells(view, "x"), "csv").splitlines()
    assert lines == ["batch,token,token_label,x", "0,0,a,0", "0,1,b,1", "1,0,c,2", "1,1,<pad>,3"]


def test_markdown_shows_the_characters_of_a_label():
    cells = Cells(["<pad>", "max_abs"], [["a|b", 1], ["*x*", None], ["_y_", 2.5], ["two\nlines", 3]])
    assert format_cells(cells, "markdown").splitlines() == [
        r"| \<pad\> | max_abs |", "| --- | ---: |", r"| a\|b | 1 |", r"| \*x\* |  |", r"| \_y\_ | 2.5 |",
        r"| two\\nlines | 3 |",
    ]  # fmt: skip


def test_decimals_on_request():
    cells = Cells(["x", "n"], [[1 / 3, 2], [np.float32(2), 3], [np.nan, 4]])
    assert format_cells(cells, "csv", 3) == "x,n\n0.333,2\n2.000,3\nNaN,4\n"
