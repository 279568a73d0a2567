"""CSV, TSV and numbers separated by blanks, read as one tensor; what attnkit writes is read again."""

import os
import threading
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnkit.display import TensorView
from attnkit.display.cells import format_cells, tensor_cells
from attnkit.errors import DataError
from attnkit.formats import Record, Source, csv, memory, open_source, read
from attnkit.records import AXES, Tensor
from tests import process


def parse(text):
    source = Source.of(text if isinstance(text, bytes) else text.encode())
    stream = read(source)
    [record] = stream
    assert (stream.source, stream.format) == ("csv", "json")
    return record


@pytest.mark.parametrize(
    "text", ["1,2\n3,4\n", "1\t2\n3\t4", "1 2\r\n3 4\r\n", "  1   2  \n 3 4\n\n", "\ufeff1, 2\n3 , 4", "+1,002\n3,4"]
)
def test_rows_of_numbers_are_a_matrix(text):
    record = parse(text)
    assert record["x"].tolist() == [[1, 2], [3, 4]] and record["x"].dtype == np.int64
    assert record.labels == {} and record.axes_of("x") == ("token", "model")


@pytest.mark.parametrize(
    ("text", "numbers", "labels"),
    [
        ("size,rooms\n1,2\n3,4", [[1, 2], [3, 4]], {"model": ["size", "rooms"]}),
        ("word a b\nThe 1 0\ncat 0 1", [[1, 0], [0, 1]], {"token": ["The", "cat"], "model": ["a", "b"]}),
        (",a,b\n0,1,0\n1,0,1", [[1, 0], [0, 1]], {"model": ["a", "b"]}),  # as pandas writes its index
        ("The,1,2\ncat,3,4", [[1, 2], [3, 4]], {"token": ["The", "cat"]}),
        ("The 0 1\ncat 1 0", [[0, 1], [1, 0]], {"token": ["The", "cat"]}),
        ('"a, b",c\n1,2', [[1, 2]], {"model": ["a, b", "c"]}),
        ('w,"say ""hi"""\n"two\nlines",1\nx,2', [[1], [2]], {"token": ["two\nlines", "x"], "model": ['say "hi"']}),
        ('"1","2"\n"3","4"', [[1, 2], [3, 4]], {}),
        ("w,0,1\n0,5,6\n1,7,8", [[5, 6], [7, 8]], {}),  # which counts the rows where the others count columns
        (
            'token,a,b\n"7",1,3\n"8",2,4',
            [[1, 3], [2, 4]],
            {"token": ["7", "8"], "model": ["a", "b"]},
        ),  # quoted numbers are words
        ('token,a,b\n7,1,3\n"8",2,4', [[1, 3], [2, 4]], {"token": ["7", "8"], "model": ["a", "b"]}),
        ("token,a,b\n7,1,3\n8,2,4", [[7, 1, 3], [8, 2, 4]], {"model": ["token", "a", "b"]}),
        ("x,y\n0,5\n1,6\n2,7", [[0, 5], [1, 6], [2, 7]], {"model": ["x", "y"]}),  # numbers that count, of no axis
        ("position,y\n0.5,5\n1,6", [[0.5, 5], [1, 6]], {"model": ["position", "y"]}),
        ("price\n5\n6", [[5], [6]], {"model": ["price"]}),
        ("query,token,The\na,1,2", [[1, 2]], {"query": ["a"], "key": ["token", "The"]}),
        ("token,0,1\n7,1,2\n7,3,4", [[1, 2], [3, 4]], {"token": ["7", "7"]}),
    ],
)
def test_words_are_labels(text, numbers, labels):
    record = parse(text)
    assert record["x"].tolist() == numbers and record.labels == labels


def test_numbers_of_every_kind():
    assert parse("1 -2.5 .5 5. 1e3").arrays()["x"].tolist() == [[1, -2.5, 0.5, 5, 1000]]
    assert parse("a,b\nnan,inf\n-Infinity,NaN")["x"].tolist()[1][0] == -np.inf
    flags = parse("true FALSE")["x"]
    assert flags.dtype == bool and flags.tolist() == [[True, False]]
    assert parse("18446744073709551615 1")["x"].tolist() == [[2**64 - 1, 1]]
    assert parse("9" * 60 + " 1")["x"].tolist() == [[1e60, 1]]


@pytest.mark.parametrize(
    ("text", "documents"), [("1\n2\n", [1, 2]), ("3.5", [3.5]), ("[1] 2 3", [[1], 2, 3]), ('"NaN"\n', None)]
)
def test_numbers_on_lines_of_their_own_stay_json(text, documents):
    stream = read(Source.of(text.encode()))
    assert stream.source == "json"
    found = [record["x"].tolist() for record in stream]
    assert found == documents or (documents is None and np.isnan(found[0]))


HOSTILE = ["The", "=1+1", 'say "hi"', "a,b", "a\tb", "two\nlines", " space", "", "NaN", "1", "0", "Ġthe", "["]
LABELS = st.lists(st.sampled_from(HOSTILE), min_size=9, max_size=9)
FLOATS = [np.dtype(name) for name in ("float64", "float32", "float16", ml_dtypes.bfloat16)]
NUMBERS = [*FLOATS, *map(np.dtype, ("int64", "int8", "uint64", "bool"))]


@st.composite
def views(draw):
    """A tensor of every rank and dtype, with axes that tools write, some of them labelled."""
    dtype = draw(st.sampled_from(NUMBERS))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=4, max_side=3))
    source = np.dtype("float32") if dtype.name == "bfloat16" else dtype
    array = draw(arrays.arrays(source, shape)).astype(dtype)
    axes = draw(st.permutations(sorted(AXES)))[: array.ndim]
    words = [draw(LABELS)[:size] if draw(st.booleans()) else None for size in shape]
    if "batch" in axes and axes[-1] != "batch" and draw(st.booleans()):
        words[-1] = [draw(LABELS)[: shape[-1]] for _ in range(shape[axes.index("batch")])]
    return TensorView("value", array, tuple(axes), words)


def shape_of(view):
    """The shape that is read: without first dimensions of size 1 of more than a matrix, a labelled column a vector."""
    shape, nested = view.array.shape, any(isinstance(row, list) for one in view.labels for row in one or ())
    while len(shape) > 2 and shape[0] == 1 and not nested:
        shape = shape[1:]
    is_vector = len(shape) == 2 and shape[1] == 1 and view.labels[-1] not in (None, ["0"]) and not nested
    return shape[:1] if is_vector else shape


@pytest.mark.parametrize("format", ["csv", "tsv"])
@given(view=views())
def test_what_is_written_is_read_to_the_same_numbers(format, view):
    text = format_cells(tensor_cells(view, "value"), format)
    record = parse(text) if view.array.ndim else next(iter(read(Source.of(text.encode()))))
    found = record["x"]
    with np.errstate(invalid="ignore", over="ignore"):
        assert found.shape == shape_of(view)
        again, expected = found.astype(view.array.dtype), view.array.reshape(found.shape)
    if expected.dtype.name == "bfloat16":
        again, expected = again.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(again, expected)


def test_labels_and_axes_of_what_is_written_are_read():
    maps = np.arange(8.0).reshape(2, 2, 2)
    view = TensorView("weights", maps, ("head", "query", "key"), (None, ["The", "cat"], ["a", "b"]))
    record = parse(format_cells(tensor_cells(view, "weights"), "csv"))
    assert record["x"].tolist() == maps.tolist() and record.axes_of("x") == ("head", "query", "key")
    assert record.labels == {"query": ["The", "cat"], "key": ["a", "b"]}
    batch = TensorView("ids", np.arange(4).reshape(2, 2), ("batch", "token"), (None, [["a", "b"], ["c", ""]]))
    record = parse(format_cells(tensor_cells(batch, "ids"), "tsv"))
    assert record.labels == {"token": [["a", "b"], ["c", ""]]}
    vector = TensorView("loss", np.array([0.5, 1.5]), ("token",), (["The", "cat"],))
    record = parse(format_cells(tensor_cells(vector, "loss"), "csv"))
    assert record["x"].tolist() == [0.5, 1.5] and record.labels == {"token": ["The", "cat"]}


def test_it_is_read_from_a_pipe_as_it_arrives(tmp_path):
    """A first line of numbers, cut anywhere, is told from JSON without a byte after its end."""
    reader, writer = os.pipe()
    os.write(writer, b"1 2")
    found = []

    def work():
        with open_source(f"/dev/fd/{reader}") as source:
            found.extend(record["x"].tolist() for record in read(source))

    thread = threading.Thread(target=work)
    thread.start()
    for piece in (b" 3", b"\n4", b" 5 6\n7 8 9"):
        os.write(writer, piece)
    os.close(writer)
    thread.join(20)
    os.close(reader)
    assert found == [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]


def test_a_json_number_on_a_pipe_is_read_before_the_next_one_arrives():
    reader, writer = os.pipe()
    os.write(writer, b"1.25\n")
    with open_source(f"/dev/fd/{reader}") as source:
        assert next(iter(read(source)))["x"].tolist() == 1.25
    os.close(writer)
    os.close(reader)


def test_the_memory_is_that_of_the_numbers_not_of_the_text():
    rows, text = 20_000, ",".join(["0.123456789012345"] * 16) + "\n"
    path_bytes = (text * rows).encode()
    source = Source.of(b"")
    pieces = iter([memoryview(path_bytes)[at : at + (1 << 20)] for at in range(0, len(path_bytes), 1 << 20)])
    source.read_available = lambda: next(pieces, b"")
    from attnkit.formats import csv

    tracemalloc.start()
    [record] = csv.read(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record["x"].shape == (rows, 16)
    assert peak < 2 * record["x"].nbytes + (12 << 20)


def test_a_table_larger_than_memory_is_refused(monkeypatch):
    """Two rows of five numbers: 80 bytes, three times while they are joined and written."""
    monkeypatch.setattr(memory, "physical_memory", lambda: 240)
    assert parse("1,2,3,4,5\n6,7,8,9,0\n")["x"].shape == (2, 5)
    monkeypatch.setattr(memory, "physical_memory", lambda: 239)
    with pytest.raises(DataError, match="a table of 2 rows needs 240 B"):
        parse("1,2,3,4,5\n6,7,8,9,0\n")


def test_a_record_that_is_read_is_one_that_is_written():
    record = parse("word,a\nThe,1\ncat,2")
    assert isinstance(record, Record) and record.tensors["x"].axes == ("token", "model")
    assert Tensor(record["x"]).shape == (2, 1)


@pytest.mark.parametrize(
    ("text", "x", "labels"),
    [
        (
            b"wort;a;b\nThe;1,5;2\ncat;-0,25;3e2\n",
            [[1.5, 2], [-0.25, 300]],
            {"token": ["The", "cat"], "model": ["a", "b"]},
        ),
        (b"1;2\n3;4\n", [[1, 2], [3, 4]], {}),
        (b'"a;b";1,5\n"c, d";,5\n', [[1.5], [0.5]], {"token": ["a;b", "c, d"]}),
        (b"a;b,0.5\nc,0.25\n", [[0.5], [0.25]], {"token": ["a;b", "c"]}),
    ],
)
def test_semicolons_separate_numbers_with_decimal_commas(text, x, labels):
    (record,) = read(Source.of(text))
    assert (record["x"].tolist(), record.labels) == (x, labels)


@pytest.mark.parametrize(
    ("text", "x", "labels"),
    [
        (b"layer 1,0.5\nlayer 2,0.7\n", [[0.5], [0.7]], {"token": ["layer 1", "layer 2"]}),
        (b"1, 5\n2, 6\n", [[1, 5], [2, 6]], {}),
        (b"1,5 \n2,6 \n", [[1, 5], [2, 6]], {}),
        (b'"1 2",5\n"3 4",6\n', [[5], [6]], {"token": ["1 2", "3 4"]}),
    ],
)
def test_a_blank_beside_a_comma_is_no_separator(text, x, labels):
    (record,) = read(Source.of(text))
    assert (record["x"].tolist(), record.labels) == (x, labels)


def test_decimal_commas_between_blanks_give_no_half_result():
    run = process.run("show", stdin=b"1,5 2,5\n3 4\n")
    assert (run.code, run.out) == (3, b"") and run.err.endswith("tr , . < FILE replaces decimal commas\n")


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([0, 2**64 - 1], "uint64"),
        ([-1, 2**63], "float64"),
        ([-1, 5, 2**63, 2**63], "float64"),
        ([-1, 2**63 - 1], "int64"),
    ],
)
def test_whole_numbers_of_several_blocks_have_one_dtype(numbers, dtype, monkeypatch):
    """Each block is of int64 if it can be, else of uint64."""
    monkeypatch.setattr(csv, "BLOCK", len(numbers))  # fields, of which a row has two
    found = parse("\n".join(f"{number} {number}" for number in numbers))["x"]
    assert found.dtype == dtype and found.tolist() == [[number] * 2 for number in np.array(numbers, dtype).tolist()]


@pytest.mark.parametrize(("text", "is_one"), [
    ("x y\n1 2\n3 4\n", True), ("x y\n1 2\n--- ---\n", False), ("x, y\n1, 2\n---\n", False),
    ("a, b, c\n1, 2\n", True), ("a b c\n1 x 2\n", False),
    ("x y\n7\n", False), ("x, y\n7\n", False), ("x\n7\n", True), ("token\n7\n", True), ("token\n", False),
    ("token 0\n", True), ("x 0 1\n", True), ("x 0 a\n", False), ("the cat\n1 sat\n", False),
])  # fmt: skip
def test_what_is_a_table(text, is_one):
    """A line of rules below the first row is that of a table for people; prose has no row of numbers."""
    assert csv.is_table(Source.of(text.encode())) is is_one


@pytest.mark.parametrize(("text", "problem"), [
    ("1,2\n3,4\nx,5\n", "line 3 column 1: 'x' is not a number"),
    ("1,2\n3,\n", "line 2 column 3: empty, expected a number"),
    ("1,2\n3," + "x" * 40, f"line 2 column 3: '{'x' * 40}' is not a number"),
    ("1,2\n3," + "x" * 41, f"line 2 column 3: '{'x' * 40}…' is not a number"),
])  # fmt: skip
def test_the_place_of_what_is_no_number(text, problem):
    with pytest.raises(DataError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"<memory>: {problem}")


def test_the_labels_of_a_batch_of_one_text():
    [record] = csv.read(Source.of(b"batch,token,token_label,value\n0,0,The,1\n0,1,cat,2\n"))
    assert [*record] == ["value"] and record["value"].tolist() == [[1, 2]]
    assert record.labels == {"token": ["The", "cat"]}


@pytest.mark.parametrize(("text", "problem"), [
    (b"a\nb\n", "line 1 column 1: 'a'"), (b"1\ncat\n", "line 2 column 1: 'cat'")
])  # fmt: skip
def test_a_column_of_words_alone_is_no_table(text, problem):
    with pytest.raises(DataError, match=f"{problem} is not a number"):
        list(csv.read(Source.of(text)))


@pytest.mark.parametrize(("text", "problem"), [
    ("1,2\n3,4\n0,true\n", "line 3 column 3: 'true' among numbers"),
    ("true,false\ntrue,0\n", "line 2 column 6: '0' among true and false"),
    ("1,2\ntrue,false\n", "line 2 column 1: 'true' among numbers"),
    ("true,false\n3,4\n", "line 2 column 1: '3' among true and false"),
])  # fmt: skip
@pytest.mark.parametrize("block", [2, 100])
def test_a_kind_of_its_own_in_a_block_and_in_another(text, problem, block, monkeypatch):
    monkeypatch.setattr(csv, "BLOCK", block)
    with pytest.raises(DataError, match=f"^<memory>: {problem}$"):
        parse(text)
