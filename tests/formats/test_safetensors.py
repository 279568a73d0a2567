"""safetensors: section S of `attnkit help faults`, and the library that everyone uses."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from attnkit.errors import DataError
from attnkit.formats import Record, Source, encode, read
from attnkit.formats.safetensors import map_tensors
from attnkit.records import Tensor


def record_of(data: bytes) -> Record:
    [record] = read(Source.of(data, "file"))
    return record


def file(header, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape=None, dtype="F32") -> dict:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


TENSORS = {
    "mask": np.eye(3) > 0,
    "x": np.arange(6.0).reshape(2, 3),
    "half": np.ones(3, np.float16),
    "brain": np.ones(2, ml_dtypes.bfloat16),
    "bytes": np.arange(5, dtype=np.uint8),
    "empty": np.zeros((0, 4), np.int64),
    "scalar": np.array(7, np.int32),
}


def test_the_library_reads_ours():
    x = Tensor(TENSORS["x"], ("token", "model"), {"token": ["a", "b"]})
    record = Record({**TENSORS, "x": x}, history=[{"command": "embed", "version": "1"}])
    data = b"".join(encode(record, "safetensors"))
    assert (8 + int.from_bytes(data[:8], "little")) % 8 == 0
    for name, view in safetensors.deserialize(data):
        array = TENSORS[name]
        assert (view["shape"], bytes(view["data"])) == (list(array.shape), array.tobytes())
    plain = {name: array for name, array in TENSORS.items() if name != "brain"}  # NumPy has no name for its dtype
    loaded = safetensors.numpy.load(b"".join(encode(Record(plain), "safetensors")))
    assert all(np.array_equal(loaded[name], array) for name, array in plain.items())
    about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["attnkit"])
    assert about == {
        "axes": {"x": ["token", "model"]},
        "labels": {"token": ["a", "b"]},
        "history": [{"command": "embed", "version": "1"}],
    }


def test_we_read_the_library():
    again = record_of(safetensors.numpy.save(TENSORS, metadata={"format": "np"}))
    assert set(again.tensors) == set(TENSORS)
    for name, array in TENSORS.items():
        assert again[name].tobytes() == array.tobytes() and again[name].shape == array.shape
        assert again[name].flags.aligned


def test_data_is_not_copied():
    big = np.zeros(1000)
    assert any(np.shares_memory(np.frombuffer(b, np.uint8), big) for b in encode(Record({"x": big}), "safetensors"))


@pytest.mark.parametrize(
    "data, message",
    [
        (
            file({"a": entry(0, 8, [2**40, 2**40])}),
            "tensor 'a': shape [1099511627776, 1099511627776] F32 needs",
        ),
        (file({"a": entry(0, 8, [-2])}, bytes(8)), "tensor 'a': invalid shape (-2)"),
        (file({"a": entry(0, 8, [True])}, bytes(8)), "tensor 'a': invalid shape (True)"),
    ],
)
def test_bad_input(data, message):
    with pytest.raises(DataError) as caught:
        record_of(data)
    assert str(caught.value).startswith("file: ") and message in str(caught.value)


def test_a_tensor_cannot_take_the_name_of_the_metadata():
    with pytest.raises(DataError, match="__metadata__"):
        encode(Record({"__metadata__": np.ones(1)}), "safetensors")


def test_a_mapped_file_ends_with_its_last_tensor(tmp_path):
    data = b"".join(encode(Record({"a": np.ones(3), "b": np.arange(2)}), "safetensors"))
    path, size = tmp_path / "x.safetensors", 3 * 8 + 2 * 8
    path.write_bytes(data)
    mapped = map_tensors(str(path))
    assert {name: mapped.tensor(name).tolist() for name in mapped.entries} == {"a": [1, 1, 1], "b": [0, 1]}
    for other, problem in ((data + b"x", "too long"), (data[:-1], "truncated")):
        path.write_bytes(other)
        there = size + len(other) - len(data)
        with pytest.raises(DataError, match=f"{problem}: the tensors need {size} bytes, the file has {there}$"):
            map_tensors(str(path))
