"""JSON: section J of `attnkit help faults`, numbers to the last bit, and documents that arrive piece by piece."""

import json
import os
import threading
from dataclasses import replace
from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError
from attnkit.formats import Record, Source, encode, json_text, read
from attnkit.records import Tensor

BOM = b"\xef\xbb\xbf"


def records(data: bytes | str) -> list[Record]:
    return list(read(Source.of(data.encode() if isinstance(data, str) else data, "file")))


def x(data: bytes | str):
    [record] = records(data)
    return record["x"]


def tensor(data, **keys) -> str:
    """A record whose x has this data (JSON text) and these keys."""
    before = "".join(f'"{key}":{json.dumps(value)},' for key, value in keys.items())
    return f'{{"tensors":{{"x":{{{before}"data":{data}}}}}}}'


@pytest.mark.parametrize(
    "text, dtype, value",
    [
        ("[[1, 2], [3, 4]]", "int64", [[1, 2], [3, 4]]),
        ("[[1, 2.5]]", "float64", [[1.0, 2.5]]),
        ("[1, 1e2]", "float64", [1.0, 100.0]),
        ("[1e30, 1]", "float64", [1e30, 1.0]),
        ("[true, false]", "bool", [True, False]),
        ("7", "int64", 7),
        ("-0.5e1 ", "float64", -5.0),
        ("true", "bool", True),
        ('"NaN"', "float64", np.nan),
        ('["Infinity", -1]', "float64", [np.inf, -1.0]),
        (r'["\u004eaN", 1]', "float64", [np.nan, 1.0]),
        ("[]", "float64", []),
        ("[[], []]", "float64", [[], []]),
        ("[[[1]]]", "int64", [[[1]]]),
        ("[9223372036854775807, -9223372036854775808]", "int64", [2**63 - 1, -(2**63)]),
        (tensor("[1.0, 2e1]", dtype="int8"), "int8", [1, 20]),
        (tensor("[18446744073709551615, 1]", dtype="uint64"), "uint64", [2**64 - 1, 1]),
        (tensor("[9007199254740993.0]", dtype="int64"), "int64", [2**53 + 1]),
        (tensor("[]", dtype="bool", shape=[0, 5]), "bool", []),
        (tensor("[[], []]", dtype="int8", shape=[2, 0]), "int8", [[], []]),
        (tensor("3", dtype="float16", shape=[]), "float16", 3.0),
        ('{"tensors":{"x":[[1]]}}', "int64", [[1]]),
        (BOM + b"[1]", "int64", [1]),
        ("[1,\r\n2]\r\n", "int64", [1, 2]),
        ("\r[1,\r2]\r", "int64", [1, 2]),
        (" \t[ 1 , 2 ]   ", "int64", [1, 2]),
    ],
)
def test_good_input(text, dtype, value):
    array = x(text)
    assert array.dtype == dtype
    assert np.array_equal(array, np.array(value, dtype).reshape(array.shape), equal_nan=array.dtype.kind == "f")


@pytest.mark.parametrize(
    "text, message",
    [
        ("'a'", 'line 1 column 1: unexpected "\'", expected a value'),
        ("[1 2]", "line 1 column 4: unexpected '2', expected ',' or ']'"),
        ("[1}", "line 1 column 3: unexpected '}', expected ',' or ']'"),
        ("]", "not a tensor file (looks like text)"),
        ("tru", "not a tensor file (looks like text)"),
        ("trueish", "line 1 column 1: trueish is not JSON"),
        ("null", "the value is null, expected a number"),
        ("[[[1, 2]], [[3, 4, 5]]]", "row [1][0] has 3 elements, row [0][0] has 2"),
        ("[[[1], [2, 3]]]", "row [0][1] has 2 elements, row [0][0] has 1"),
        ("[1, [2]]", "element [1] is nested 1 deep, element [0] is a number"),
        ('{"tensors":[1]}', 'key "tensors" is not an object'),
        (tensor("[1]", dtype="float8"), 'tensor "x": dtype float8 not supported'),
        (tensor("[1]", shape=[True]), "invalid shape (True)"),
        (tensor("[1]", axes="model"), 'key "axes" is not a list of strings'),
        (tensor("[[1, 1e39]]", dtype="float32"), 'tensor "x": element [0][1] is 1e+39, outside float32'),
        (tensor("[3e2]", dtype="uint8"), "element [0] is 3E+2, outside uint8"),
        (tensor("[1e-999999999]", dtype="int64"), "outside int64"),
        (tensor('["NaN"]', dtype="int64"), 'element [0] is "NaN", expected a number'),
        (tensor("[1]", dtype="bool"), "element [0] is 1, expected true or false"),
        (tensor("[true]", dtype="int8"), "element [0] is true, expected a number"),
        ("[9223372036854775808]", "element [0] is 9223372036854775808, outside int64"),
        ("[36893488147419103232]", "outside int64"),
        ('{"tensors":{"x":1},"labels":{"a":[1]}}', 'labels of axis "a" are not a list of strings'),
        ('{"tensors":{"x":1},"labels":[]}', 'key "labels" is not an object'),
        ('{"tensors":{"x":1},"history":["a"]}', 'key "history" is not a list of objects'),
        ('{"tensors":{"x":1},"history":[{}]}', 'entry 0 of key "history" is not an object of "command", "version"'),
        (
            '{"tensors":{"x":{"axes":["a"],"data":[1]}},"labels":{"a":["p","q"]}}',
            "labels of axis 'a': 2 for the 1",
        ),
        (r'{"\x41":1}', "line 1 column 3: invalid escaped sequence in string"),
        ('{"abc', "line 1 column 6: unexpected end of input"),
        ("[1] hello", "line 1 column 5: hello is not JSON"),
        ('["é", x]', "line 1 column 7: x is not JSON"),
    ],
)
def test_bad_input(text, message):
    with pytest.raises(DataError) as caught:
        records(text)
    assert str(caught.value).startswith("file: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_keys_have_a_limit_and_may_be_long():
    with pytest.raises(DataError, match="more than 100000 keys"):
        records('{"tensors":{' + ",".join(f'"{i}":1' for i in range(100_001)) + "}}")
    name = "k" * 1_000_000
    assert list(records(f'{{"tensors":{{"x":1,"{name}":2}}}}')[0]) == ["x", name]


def test_several_documents_and_the_place_of_what_is_none():
    assert [r["x"].tolist() for r in records('[1][2]\n3 4\n{"tensors":{"x":5}}true')] == [
        [1],
        [2],
        3,
        4,
        5,
        True,
    ]
    stream = iter(read(Source.of(b"[1]\n[2] ,", "file")))
    assert [next(stream)["x"].tolist(), next(stream)["x"].tolist()] == [[1], [2]]
    with pytest.raises(DataError, match="line 2 column 5: unexpected ','"):
        next(stream)


def test_empty_lists_have_a_limit_in_each_document(monkeypatch):
    monkeypatch.setattr(json_text, "LARGEST_EMPTY", 2)
    documents = json_text.Documents(partial(next, iter([b"[[],[]]", b"[[],[]]", b"[[],[],[]]"]), b""))
    assert [document.text for _, document in zip(range(2), documents, strict=False)] == [b"[[],[]]"] * 2
    with pytest.raises(DataError, match="more than 2 empty lists"):
        next(iter(documents))


def test_a_short_line_is_as_deep_as_a_document_may_be():
    deepest = json_text.DEPTH_LIMIT
    text = "[" * (deepest + 1) + "]" * (deepest + 1) + "\n"
    with pytest.raises(DataError, match=f"nested deeper than {deepest}"):
        records(text)
    objects = '{"a":' * (deepest + 4) + "1" + "}" * (deepest + 4) + "\n"
    with pytest.raises(DataError, match="nested deeper than"):
        records(objects)


def test_key_order_is_free():
    x = '{"data":[0.1],"axes":["a"],"shape":[1],"dtype":"float32"}'
    text = f'{{"history":[],"labels":{{"a":["p"]}},"tensors":{{"x":{x}}}}}'
    [record] = records(text)
    assert record["x"].dtype == np.float32 and record.tensors["x"].axes == ("a",) and record.labels == {"a": ["p"]}


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@given(data=st.data())
def test_decimals_are_rounded_once(name, data):
    """Decimals a hair from the middle between two floats, where rounding to float64 first would go wrong."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    bits = np.dtype(f"u{dtype.itemsize}")
    limit = int(np.array(np.inf, dtype).view(bits)) - 2
    low = data.draw(st.integers(0, limit))
    a, b = (Fraction(float(np.array(value, bits).view(dtype))) for value in (low, low + 1))
    offset = data.draw(st.sampled_from([-1, 0, 1])) * Fraction(1, 10 ** data.draw(st.integers(15, 40))) * (b - a)
    exact = (a + b) / 2 + offset
    expected = low + (offset > 0 or (offset == 0 and low % 2))
    digits = -(-(exact * 10**400).numerator // (exact * 10**400).denominator) if offset > 0 else exact * 10**400 // 1
    text = f"{digits}e-400"
    if (offset == 0 and digits != exact * 10**400) or Fraction(digits, 10**400) <= a:
        return  # not writable in so many digits
    assert int(x(tensor(f"[{text}]", dtype=name)).view(bits)[0]) == expected


def test_numbers_are_the_shortest():
    written = b"".join(encode(Record({"x": np.array([0.1, 1 / 3, 1e-8, 2**24], np.float32)}), "json"))
    assert b"[0.1,0.33333334,1e-8,16777216.0]" in written
    written = b"".join(encode(Record({"x": np.array([0.1, 1 / 3, 1.0], ml_dtypes.bfloat16)}), "json"))
    assert b"[0.1,0.334,1.0]" in written


def test_one_line_unless_indented():
    record = Record({"x": np.array([[1, 2], [3, 4]]), "e": np.zeros((0, 5))}, labels={"token": ["a\n", "b"]})
    written = b"".join(encode(record, "json"))
    assert written.count(b"\n") == 1 and written.endswith(b"\n")
    rows = b"".join(encode(record, "json", indent=True)).decode().splitlines()
    assert "        [1, 2]," in rows and "        [3, 4]" in rows
    assert rows[0] == "{" and rows[1].startswith('  "') and rows[-1] == "}"
    entry = {"command": "attnkit show", "version": "1"}
    rows = b"".join(encode(replace(record, history=[entry]), "json", indent=True)).decode().splitlines()
    assert rows[-4:] == ['  "history": [', f"    {json.dumps(entry, separators=(',', ':'))}", "  ]", "}"]


class Pieces:
    """A source whose descriptor is a pipe that a thread feeds as told."""

    def __enter__(self):
        reading, self.writing = os.pipe()
        self.source = Source(reading, "pipe")
        return self

    def __exit__(self, *_):
        os.close(self.writing)
        self.source.close()

    def send(self, data: bytes) -> None:
        os.write(self.writing, data)


@pytest.mark.parametrize(
    "document", [b"[[1,2],[3,4]]", b'{"tensors":{"x":[true]}}', b'["NaN", 1.5]', b"[true,false]", b"[[]]"]
)
def test_a_document_is_there_as_soon_as_its_bytes_are(document):
    with Pieces() as pieces:
        pieces.send(document)
        stream = iter(read(pieces.source))
        for _ in range(3):
            first = within_seconds(lambda: next(stream), 5)
            assert "x" in first
            pieces.send(b"\n" + document)


def within_seconds(call, seconds):
    """The result of a call that must not wait for more input."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "still waiting"
    return found[0]


@given(st.integers(1, 40), st.booleans())
def test_pieces_of_any_size_make_the_same_records(size, indent):
    record = Record(
        {"x": np.array([[0.1, np.nan], [np.inf, -3]]), "m": np.eye(2) > 0, 'é\\"': np.array(2)},
        labels={"token": ["\u20ac\n", "\\"]},
        history=[{"command": "a", "version": "1", "n": 1.5, "deep": {"list": [1, None, True, "\u00e9"]}}],
    )
    data = b"".join(encode(record, "json", indent)) * 2
    source = Source.of(b"", "pieces")
    pieces = iter([data[at : at + size] for at in range(0, len(data), size)])
    source.read_available = lambda: next(pieces, b"")
    source.peek = lambda count: data[:count]
    whole, cut = records(data), list(read(source))
    assert [b"".join(encode(r, "json")) for r in cut] == [b"".join(encode(r, "json")) for r in whole]
    assert len(cut) == 2 and cut[0].history == record.history and cut[0].labels == record.labels


def test_a_large_document_in_pieces_is_not_scanned_again_and_again():
    text = b"[" + b",".join([b"[1.25]"] * 300_000) + b"]"
    source = Source.of(b"", "pieces")
    pieces = iter([text[at : at + 4096] for at in range(0, len(text), 4096)])
    seen = []
    source.read_available = lambda: seen.append(1) or next(pieces, b"")
    source.peek = lambda count: text[:count]
    [record] = read(source)
    assert record["x"].shape == (300_000, 1) and len(seen) > 400


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [1, 2]}  \t\r\n[3]\n',
        b'{"x": "]}\\n["}\n"b"\n[]\n',
        b"[1][2]\n{}\n[3",
        b"[1,\n2]\n[3]",
        b"[" * 40 + b"]" * 40 + b"\n[1]\n",
        b"[" + b"[1]," * 70 + b"[2]]\n[3]\n",
    ],
)
def test_documents_end_where_they_end_however_the_text_arrives(text):
    """In whole lines, which a parser reads, and byte by byte, where brackets are counted."""
    whole = list(json_text.Documents(partial(next, iter([text]), b"")))
    single = list(json_text.Documents(partial(next, iter([text[at : at + 1] for at in range(len(text))]), b"")))
    assert [(one.text, one.place) for one in whole] == [(one.text, one.place) for one in single]


def test_an_object_of_names_is_a_record_where_it_is_asked_for():
    """Its numbers are exact too: as doubles these would be 2**53 and 2**64."""
    text = f'{{"w": [[1, {2**53 + 1}]], "b": {{"data": [{2**64 - 1}], "dtype": "uint64"}}}}'.encode()
    [record] = read(Source.of(text), maps=True)
    assert [*record] == ["w", "b"] and record["w"].tolist() == [[1, 2**53 + 1]]
    assert record["b"].tolist() == [2**64 - 1]
    with pytest.raises(DataError, match='unknown key "w"'):
        list(read(Source.of(text)))


@pytest.mark.parametrize(("text", "problem"), [
    (f"[1, {2**64}]", rf"element \[1\] is {2**64}, outside int64"),
    (f"[{2**63}]", rf"element \[0\] is {2**63}, outside int64"),
    (tensor("[1]", dtype="x" * 60), f'dtype "?\'?{"x" * 40}"?\'? '),
    (f"[1, {'x' * 60}]", f"line 1 column 5: .*{'x' * 40}"),
])  # fmt: skip
def test_errors_of_large_numbers_and_of_long_words(text, problem):
    with pytest.raises(DataError, match=problem) as caught:
        records(text)
    assert "x" * 41 not in str(caught.value)


def test_an_indented_record_by_hand():
    entry = {"command": "attnkit mask"}
    record = Record({"x": Tensor(np.array([[1, 2], [3, 4]]), ("a", "b"))}, {"a": ["p", "q"]}, [entry, entry])
    assert (
        b"".join(encode(record, "json", indent=True)).decode()
        == """{
  "tensors": {
    "x": {
      "dtype": "int64",
      "shape": [2,2],
      "axes": ["a","b"],
      "data": [
        [1, 2],
        [3, 4]
      ]
    }
  },
  "labels": {
    "a": ["p","q"]
  },
  "history": [
    {"command":"attnkit mask"},
    {"command":"attnkit mask"}
  ]
}
"""
    )


@pytest.mark.parametrize("labels", [["a", 1], [["a"], ["b", 1]], [["a"], "b"], [1], [[1]], "ab", {"a": 1}])
def test_labels_are_texts_or_lists_of_texts(labels):
    text = json.dumps({"tensors": {"x": [[1, 2], [3, 4]]}, "labels": {"token": labels}})
    with pytest.raises(DataError, match='labels of axis "token" are not a list of strings, nor of such lists'):
        records(text)
