"""Damaged files: every reader either reads them or raises an error of attnkit that names the file."""

import contextlib
import json
import os
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import AttnkitError
from attnkit.formats import FORMATS, Record, Source, encode, read
from attnkit.formats.zip import DEFLATED, read_archives
from attnkit.records import Tensor
from tests.fuzz import files as fuzz
from tests.fuzz import runner

RECORD = Record(
    {
        "x": Tensor(np.array([[1.5, np.nan]], np.float32), ("token", "model")),
        "mask": np.array([True, False]),
        "b": np.ones(2, ml_dtypes.bfloat16),
    },
    {"token": ["é"]},
    [{"command": "embed", "version": "1", "files": {"a": "0" * 64}}],
)
SAMPLES = {format: b"".join(encode(RECORD.select(["x"]) if format == "npy" else RECORD, format)) for format in FORMATS}
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


@pytest.mark.slow
def test_every_reader_on_damaged_files(tmp_path, monkeypatch):
    """A short form of python -m tests.fuzz; tests/fuzz/runner.py says what each case must obey."""
    monkeypatch.setattr(runner, "SECONDS", 60.0)  # of a case that hangs: the suite counts steps
    outcomes, escapes = runner.run(fuzz.doors(str(tmp_path)), 1000, seed=3)
    assert not escapes
    assert all(counts["accepted"] + counts["refused"] for counts in outcomes.values())


@pytest.mark.parametrize("name", [name for name in fuzz.HOSTILE if "documents" not in name])
def test_hostile_input_is_read_or_refused_in_steps_that_grow_no_faster_than_it(name):
    once, twice = (fuzz.steps(fuzz.HOSTILE[name](size)) for size in (1 << 12, 1 << 13))
    assert twice <= 2.2 * once + 1000


def test_a_flood_of_empty_lists_is_refused_before_its_end():
    readable, writable = os.pipe()
    left = [b"[]," * (1 << 20)] * 32 + [b"["]

    def write():
        with contextlib.suppress(BrokenPipeError), open(writable, "wb", buffering=0) as file:
            while left:
                file.write(left.pop())

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(AttnkitError, match="more than 16777216 empty lists"):
        list(read(Source(readable, "file")))
    os.close(readable)
    writer.join()
    assert len(left) > 10


@pytest.mark.parametrize("text", [b"[true,false]" + b"[" * 70, b"[1]" + b"[" * 70])
def test_a_document_before_one_that_is_nested_too_deep(text):
    stream = iter(read(Source.of(text, "file")))
    assert next(stream)["x"].ndim == 1
    with pytest.raises(AttnkitError, match="nested deeper than 64"):
        next(stream)


@pytest.mark.parametrize("text", ["[1[,2],[3,4]]", "[[1,]2,[3,4]]", "[[1,2]3,[4]]", "[[1][2]]", "[[1,2],,[3,4]]"])
def test_brackets_within_an_element(text):
    with pytest.raises(AttnkitError, match="line 1 column"):
        list(read(Source.of(text.encode(), "file")))


@pytest.mark.parametrize("format", FORMATS)
def test_huge_tensors_without_elements(format):
    """A file of 128 bytes must not cost what its dimensions without the zero multiply to."""
    small = Record({"x": np.zeros((1 << 10, 0, 3), np.float32)})
    [again] = read(Source.of(b"".join(encode(small, format))))
    assert again["x"].shape == (1 << 10, 0, 3)
    with pytest.raises(AttnkitError, match="too large for no elements"):
        encode(Record({"x": np.zeros((20_000_000, 0), np.float32)}), format)
    data = b"".join(encode(Record({"x": np.zeros((16_000_000, 0), np.float32)}), "npy"))
    with pytest.raises(AttnkitError, match=r"file: shape \(26000000, 0\) too large for no elements"):
        list(read(Source.of(data.replace(b"(16", b"(26"), "file")))


def test_huge_tensors_without_elements_in_containers():
    header = b'{"x":{"dtype":"F32","shape":[1000000000,0],"data_offsets":[0,0]}}'
    npy = b"".join(encode(Record({"x": np.zeros((16_000_000, 0))}), "npy")).replace(b"(16", b"(26")
    document = b'{"tensors":{"x":{"shape":[0,1000000000],"data":[]}}}'
    for data in (
        len(header).to_bytes(8, "little") + header,
        b"".join(fuzz.encode_archive([("x.npy", [npy])])),
        document,
    ):
        with pytest.raises(AttnkitError, match="too large for no elements"):
            list(read(Source.of(data, "file")))


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


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_every_byte_changed(format):
    sample = SAMPLES[format]
    for at in range(len(sample)):
        for change in (1, 2, 16, 128, 255):
            survives(sample[:at] + bytes([sample[at] ^ change]) + sample[at + 1 :])


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
def test_pieces_moved_and_replaced(format, data):
    sample = SAMPLES[format]
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(sample))] * 2)))
    survives(sample[:start] + data.draw(st.binary(max_size=20) | st.just(sample[start:end] * 2)) + sample[end:])


@given(st.sampled_from([b"", *STARTS]), st.binary(max_size=200))
def test_random_bytes(start, rest):
    survives(start + rest)


@given(JSONISH)
def test_random_json(text):
    survives(text.encode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    )
)
def test_any_json_value(value):
    text = json.dumps(value)
    survives(text.encode())
    survives(f'{{"tensors":{{"x":{{"dtype":"float16","data":{text}}}}}}}'.encode())
    start = f'{{"tensors":{{"x":{{"dtype":"uint8","shape":{text},"data":1}}}}'
    survives(f'{start},"labels":{text},"history":{text}}}'.encode())


@given(st.binary(max_size=100))
def test_random_deflated_members(packed):
    data = bytearray(b"".join(fuzz.encode_archive([("x.npy", [packed])])))
    data[data.rindex(b"PK\x01\x02") + 10] = data[8] = DEFLATED
    [[member]] = read_archives(Source.of(bytes(data)), lambda name, source: 0)
    assert member.method == DEFLATED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        survives(bytes(data))
