"""What is written is what is read: every format, every dtype, bit for bit."""

import io
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnkit.errors import DataError
from attnkit.formats import FORMATS, Record, Source, encode, read, round_trip
from attnkit.formats.dtypes import NAMES, dtype_of, name_of
from attnkit.records import Tensor

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VERSION = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}([ab]|\.dev|rc)?[0-9]?(\+[a-z0-9.]{1,8})?", fullmatch=True)
DIGEST = st.binary(min_size=32, max_size=32).map(bytes.hex)
ENTRY = st.fixed_dictionaries({"command": TEXT, "version": VERSION, "files": st.dictionaries(TEXT, DIGEST)})


@st.composite
def tensors(draw):
    """An array of any dtype, shape and bits, in any memory order."""
    dtype, shape = dtype_of(draw(st.sampled_from(NAMES))), draw(SHAPES)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    array = (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)
    order = draw(st.sampled_from(["as is", "transposed", "big-endian"]))
    if order == "big-endian" and dtype.name != "bfloat16":
        return array.astype(dtype.newbyteorder(">"))
    return array.T if order == "transposed" else array


@st.composite
def records(draw, names=TEXT):
    """A record whose axes and labels fit, its names any text at all."""
    found = draw(st.dictionaries(st.one_of(st.just("x"), names), tensors(), min_size=1, max_size=3))
    axes = {name: tuple(f"{name}{i}" for i in range(a.ndim)) for name, a in found.items() if draw(st.booleans())}
    labels = {
        axis: [f"{i}é\u2028" for i in range(size)]
        for name, names in axes.items()
        for axis, size in zip(names, found[name].shape, strict=True)
        if draw(st.booleans())
    }
    clash = len({axis for names in axes.values() for axis in names}) < sum(map(len, axes.values()))
    history = draw(st.lists(ENTRY, max_size=2))
    described = {name: Tensor(a, None if clash else axes.get(name), formula="a formula") for name, a in found.items()}
    return Record(described, {} if clash else labels, history)


def same(a: Record, b: Record) -> None:
    assert list(a) == list(b)
    for name in a:
        one, other = a[name], b[name]
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
        assert (a.tensors[name].axes, a.tensors[name].formula) == (b.tensors[name].axes, b.tensors[name].formula)
    assert (a.labels, a.history) == (b.labels, b.history)


@pytest.mark.slow
@given(records(), st.booleans())
def test_survive_is_what_a_reader_gets(record, indent):
    for format in FORMATS:
        if format == "npy" and len(record) > 1:
            for whole in (replace(record, required=("b",)), without_x(record)):
                with pytest.raises(DataError, match="-f npz"):
                    encode(whole, "npy")
            if "x" in record:
                [again] = read(Source.of(b"".join(encode(record, "npy"))), bfloat16=True)
                same(round_trip(record, "npy", bfloat16=True), again)
            continue
        data = b"".join(encode(record, format, indent=indent and format == "json"))
        stream = read(Source.of(data), bfloat16=True)
        assert stream.format == format
        [again] = stream
        same(round_trip(record, format, bfloat16=True), again)
        assert all(array.flags.c_contiguous and not array.flags.writeable for array in again.arrays().values())
        if format != "json":
            assert b"".join(encode(again, format)) == b"".join(encode(round_trip(record, format, True), format))


def without_x(record: Record) -> Record:
    """The record with another name for x."""
    return Record({f"not {name}": array for name, array in record.arrays().items()})


@pytest.mark.parametrize("format", ["json", "npy", "npz"])
@given(data=st.lists(tensors(), min_size=1, max_size=4))
def test_streams(format, data):
    records = [Record({"x": array}) for array in data]
    raw = b"".join(b"".join(encode(record, format)) for record in records)
    again = list(read(Source.of(raw), bfloat16=True))
    assert len(again) == len(records)
    for one, other in zip(records, again, strict=True):
        same(round_trip(one, format, bfloat16=True), other)


@given(tensors())
def test_npy_is_what_numpy_writes(array):
    written = io.BytesIO()
    np.save(
        written,
        np.asarray(array, array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else None, order="C"),
    )
    assert b"".join(encode(Record({"x": array}), "npy")) == written.getvalue()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_float_survives_json(name):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    data = b"".join(encode(Record({"x": every}), "json"))
    [again] = read(Source.of(data))
    same(round_trip(Record({"x": every}), "json"), again)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(every)
    assert again["x"][finite].tobytes() == every[finite].tobytes()


def test_16_bit_floats_have_the_shortest_text():
    """As many digits as NumPy's own shortest text for each float16."""
    every = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    text = b"".join(encode(Record({"x": every}), "json"))
    ours = text[text.index(b'"data":[') + 8 : text.index(b"]}}")].decode().split(",")
    numpys = [str(value) for value in every]
    assert [digits(text) for text in ours] == [digits(text) for text in numpys]


def digits(text: str) -> int:
    return len(text.split("e")[0].replace(".", "").strip("0"))


def test_every_step_of_float32_survives_json():
    """A stride through all 2^32 patterns that meets every exponent and sign."""
    every = np.arange(0, 1 << 32, 104_729, dtype=np.uint32).view(np.float32)
    [again] = read(Source.of(b"".join(encode(Record({"x": every}), "json"))))
    same(round_trip(Record({"x": every}), "json"), again)


def test_bfloat16_in_npy_must_be_asked_for():
    record = Record({"x": np.ones(2, ml_dtypes.bfloat16)})
    with pytest.raises(DataError, match="--dtype bfloat16"):
        round_trip(record, "npy")
    with pytest.raises(DataError, match="--dtype bfloat16"):
        list(read(Source.of(b"".join(encode(record, "npy")))))


def test_npz_knows_its_bfloat16():
    record = Record({"x": np.ones(2, ml_dtypes.bfloat16), "v": np.ones(1)})
    [again] = read(Source.of(b"".join(encode(record, "npz"))))
    assert name_of(again["x"].dtype) == "bfloat16"


@pytest.mark.parametrize("format", FORMATS)
def test_a_lone_tensor_is_x(format):
    record = Record({"mask": Tensor(np.ones((2, 2), bool), ("query", "key"))})
    data = b"".join(encode(record, format))
    [again] = read(Source.of(data))
    assert list(again) == ["x"]
    [kept] = read(Source.of(data), lone_is_x=False)
    assert list(kept) == (["x"] if format == "npy" else ["mask"])


@pytest.mark.parametrize("format", FORMATS)
def test_text_that_is_not_unicode_is_refused(format):
    record = Record({"x": np.ones(1), "\udcff": np.ones(1)}, history=[{"command": "cat \udcff"}])
    if format == "npy":  # which has no text
        assert encode(record, format) == encode(record.select(["x"]), format)
        return
    with pytest.raises(DataError):
        encode(record, format)


def test_unsupported_dtypes_are_not_written():
    for format in FORMATS:
        for array in (np.ones(2, complex), np.array(["a"]), np.array([None])):
            with pytest.raises(DataError, match="not supported"):
                encode(Record({"x": array}), format)
            with pytest.raises(DataError, match="not supported"):
                round_trip(Record({"x": array}), format)
