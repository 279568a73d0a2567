"""Damaged files: every reader either reads them or raises an error of attnkit that names the file."""

import json
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnkit.errors import AttnkitError
from attnkit.tensors import FORMATS, Record, Source, encode, read
from attnkit.tensors.archive import DEFLATED, archive, members

RECORD = Record(
    {
        "x": np.array([[1.5, np.nan]], np.float32),
        "mask": np.array([True, False]),
        "b": np.ones(2, ml_dtypes.bfloat16),
    },
    {"x": ("token", "model")},
    {"token": ["é"]},
    [{"command": "embed", "version": "1", "files": {"a": "0" * 64}}],
)
SAMPLES = {format: b"".join(encode(RECORD.only(["x"]) if format == "npy" else RECORD, format)) for format in FORMATS}
STARTS = [
    b"\x93NUMPY\x01\x00",
    b"\x93NUMPY\x02\x00",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x40" + bytes(7) + b"{",
    b"{",
    b"[",
]
JSONISH = st.text(alphabet='{}[]",:\\-+.0123456789eE truefalsnINy \n\t"tensorsdatashapedtype', max_size=60)


def survives(data: bytes) -> None:
    try:
        for bfloat16 in (False, True):
            for record in read(Source.of(data, "file"), bfloat16=bfloat16):
                assert record.tensors
    except AttnkitError as error:
        assert error.name == "file" and error.exit_code == 3


@pytest.mark.parametrize("format", FORMATS)
def test_every_truncation(format):
    for end in range(len(SAMPLES[format])):
        survives(SAMPLES[format][:end])


@pytest.mark.parametrize("format", FORMATS)
def test_every_byte_changed(format):
    sample = SAMPLES[format]
    for at in range(len(sample)):
        for change in (1, 2, 16, 128, 255):
            survives(sample[:at] + bytes([sample[at] ^ change]) + sample[at + 1 :])


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_pieces_moved_and_replaced(format, data):
    sample = SAMPLES[format]
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(sample))] * 2)))
    survives(sample[:start] + data.draw(st.binary(max_size=20) | st.just(sample[start:end] * 2)) + sample[end:])


@given(st.sampled_from([b"", *STARTS]), st.binary(max_size=200))
@settings(max_examples=400, deadline=None)
def test_random_bytes(start, rest):
    survives(start + rest)


@given(JSONISH)
@settings(max_examples=400, deadline=None)
def test_random_json(text):
    survives(text.encode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    )
)
@settings(max_examples=300, deadline=None)
def test_any_json_value(value):
    text = json.dumps(value)
    survives(text.encode())
    survives(f'{{"tensors":{{"x":{{"dtype":"float16","data":{text}}}}}}}'.encode())
    start = f'{{"tensors":{{"x":{{"dtype":"uint8","shape":{text},"data":1}}}}'
    survives(f'{start},"labels":{text},"history":{text}}}'.encode())


@given(st.binary(max_size=100))
@settings(max_examples=100, deadline=None)
def test_random_deflated_members(packed):
    data = bytearray(b"".join(archive([("x.npy", [packed])])))
    data[data.rindex(b"PK\x01\x02") + 10] = data[8] = DEFLATED
    assert members(data)[0].method == DEFLATED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        survives(bytes(data))
