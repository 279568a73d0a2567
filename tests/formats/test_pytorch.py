"""PyTorch files: what torch.save wrote reads back to the bit, and nothing in a pickle is executed."""

import os
import pickle
import pickletools
import threading
import zipfile

import ml_dtypes
import numpy as np
import pytest

from attnkit.errors import AttnkitError, DataError
from attnkit.formats import Source, encode, load, pytorch, read
from attnkit.formats.pickle_reader import OPERATIONS, REFUSED, Names, read_pickle
from tests.faults.bad_pytorch import BAD, DATA, FOLDER, LEGACY, STATE, TRAPS, archive, call, op, raw, storage, tensor

FILES = ("state.bin", "protocol4.bin", "legacy.bin")
EXPECTED = dict(np.load(FOLDER / "expected.npz"))


def check_state(found):
    assert {*found} == {*EXPECTED}
    for name, expected in EXPECTED.items():
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else expected.dtype
        assert (found[name].shape, found[name].dtype) == (expected.shape, dtype), name
        assert found[name].tobytes() == expected.tobytes(), name
        assert not found[name].flags.writeable or not found[name].size


@pytest.mark.parametrize("file", FILES)
def test_a_state_dict(file):
    record = load(str(FOLDER / file))
    check_state(record.arrays())
    assert [*record] == [*load(str(FOLDER / "state.bin"))]  # in the order of the dict


@pytest.mark.parametrize("file", FILES)
def test_a_mapped_state_dict(file):
    mapped = pytorch.map_tensors(str(FOLDER / file))
    check_state({name: mapped.tensor(name) for name in mapped.entries})
    for name, (dtype, shape) in mapped.entries.items():
        assert (mapped.tensor(name).dtype.name, mapped.tensor(name).shape) == (dtype, shape)


def test_tied_tensors_share_memory():
    record = load(str(FOLDER / "state.bin"))
    assert np.shares_memory(record["0.weight"], record["tied"])
    assert np.shares_memory(record["transposed"], record["part"])


def test_nested_dicts_and_a_lone_tensor():
    nested = load(str(FOLDER / "nested.pt"))
    check_state({name.removeprefix("model."): nested[name] for name in nested if name.startswith("model.")})
    assert np.array_equal(nested["averages.0"], EXPECTED["part"])
    lone = load(str(FOLDER / "tensor.pt"))
    assert [*lone] == ["x"] and np.array_equal(lone["x"], EXPECTED["part"])


def test_any_order_and_compression_of_the_archive():
    """As an archive that another program has packed again."""
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        data = archive({"w": tensor()}, method=method, byteorder=b"little\n")
        [record] = read(Source.of(data), lone_is_x=False)
        assert record["w"].tobytes() == DATA


def test_a_bare_storage():
    [record] = read(Source.of(archive({"w": storage(), "v": tensor((3,), (2,))})))
    assert record["w"].tolist() == [0, 1, 2, 3, 4, 5] and record["v"].tolist() == [0, 2, 4]


def test_the_stride_of_an_axis_of_one_element_is_any():
    [record] = read(Source.of(archive({"w": tensor((1,), (1 << 62,)), "v": tensor((2, 1), (3, 1 << 62))})))
    assert record["w"].tolist() == [0] and record["v"].tolist() == [[0], [3]]


@pytest.mark.parametrize("values", [b"}", b"(", b"]", b"N\x94", b"N\x85", b"Nq\0"], ids=str)
def test_a_pickle_of_more_values_than_tensors_have(values, monkeypatch):
    """Each would take 40 to 140 bytes of memory, for one to three of the file."""
    monkeypatch.setattr("attnkit.formats.pickle_reader.MOST_COSTLY", 1_000)
    with pytest.raises(DataError, match="more than 1,000 containers and stored values"):
        read_pickle(b"\x80\x04" + values * 1_001 + b".", Names({}, str))
    assert read_pickle(b"\x80\x04" + b"}" * 1_000 + b".", Names({}, str))[1] == 1_003


def test_the_pickles_before_the_tensors_are_short():
    data = (FOLDER / "legacy.bin").read_bytes()
    for start in (15, 21):  # of the protocol, of the machine
        with pytest.raises(DataError, match=r"pickles before the storages: .*truncated"):
            list(read(Source.of(data[:start] + b"}" * 3_000_000 + data[start:])))


def test_what_is_written_of_it(tmp_path):
    record = load(str(FOLDER / "state.bin"))
    for format in ("npz", "safetensors", "json"):
        (tmp_path / "file").write_bytes(b"".join(encode(record, format)))
        again = load(str(tmp_path / "file"))
        assert all(again[name].shape == record[name].shape for name in record)
        if format != "json":
            check_state(again.arrays())


def test_a_tensor_as_versions_before_0_4_wrote_it():
    old = call("torch._utils._rebuild_tensor", storage(), 1, (2,), (3,))
    [record] = read(Source.of(archive({"w": old})), lone_is_x=False)
    assert record["w"].tolist() == [1, 4]


def test_a_storage_longer_than_what_is_searched_for_its_end(monkeypatch):
    """Its size is known by the pickle in front of it."""
    monkeypatch.setattr(pytorch, "SCANNED", 64)
    check_state(next(iter(read(Source.of(STATE)))).arrays())


@pytest.mark.parametrize(("shape", "strides", "offset"), [((1, 7), (7, 1), 0), ((6,), (1,), 1), ((1,), (1,), 6)])
def test_a_tensor_beyond_its_storage_is_refused(shape, strides, offset):
    with pytest.raises(DataError, match=r"needs 7 elements of storage '0', which has 6"):
        list(read(Source.of(archive({"w": tensor(shape, strides, offset)}))))
    [record] = read(Source.of(archive({"w": tensor((0, 9), (9, 1), 5)})), lone_is_x=False)
    assert record["w"].shape == (0, 9)


def test_whole_numbers_of_a_pickle_are_signed():
    assert read_pickle(b"\x80\x02\x8a\x01\xff.", Names({}, str))[0] == -1
    assert read_pickle(b"\x80\x02\x8a\x02\xff\x00.", Names({}, str))[0] == 255


def test_reading_unbuffered_pieces():
    """A pipe gives any number of bytes at a time."""
    end, start = os.pipe()

    def feed():
        for at in range(0, len(STATE), 7):
            os.write(start, STATE[at : at + 7])
        os.close(start)

    thread = threading.Thread(target=feed)
    thread.start()
    with Source(end, "pipe") as source:
        [record] = read(source)
    thread.join()
    check_state(record.arrays())


@pytest.mark.parametrize("name", BAD)
def test_mapped_files_are_checked_too(name, tmp_path):
    content, *parts = BAD[name]
    (tmp_path / "x.bin").write_bytes(content)
    try:
        mapped = pytorch.map_tensors(str(tmp_path / "x.bin"))
        for tensor_name in mapped.entries:
            mapped.tensor(tensor_name)
    except AttnkitError as error:
        assert isinstance(error, DataError) and "\n" not in str(error)
        assert all(part in str(error) for part in parts)
    else:
        assert name == "storage damaged"  # the checksum of a mapped storage is not compared


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for trap, _ in TRAPS.values():
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(DataError):
                list(read(Source.of(raw(pickle.dumps(trap, protocol)))))
    assert not [*tmp_path.iterdir()]


def test_every_opcode_is_read_or_has_a_name():
    codes = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    assert {code: codes[code] for code in REFUSED} == REFUSED
    assert {*OPERATIONS} | {*REFUSED} | {ord(".")} == {*codes} and not {*OPERATIONS} & {*REFUSED}


STORED = pytorch.Storage("0", "float32", 24)


@pytest.mark.parametrize(
    ("more", "is_read"),
    [((), True), ((None,), True), ((pytorch.Dict([]),), True), ((None, None), False), ((1,), False)],
)
def test_a_tensor_of_a_stated_dtype(more, is_read):
    arguments = (STORED, 1, (2,), (1,), False, pytorch.Dict([]), "float32", *more)
    if is_read:
        assert pytorch.rebuild_typed(arguments)[1:] == ("float32", 1, (2,), (1,))
    else:
        with pytest.raises(DataError):
            pytorch.rebuild_typed(arguments)


@pytest.mark.parametrize(("axes", "is_read"), [(64, True), (65, False)])
def test_the_most_axes_of_a_tensor(axes, is_read):
    data = archive({"w": tensor((1,) * axes, (1,) * axes)})
    if is_read:
        assert pytorch.read_archive(Source.of(data), pytorch.read_member)[0]["w"].shape == (1,) * axes
    else:
        with pytest.raises(DataError, match="no tuple of at most 64"):
            list(read(Source.of(data)))


def test_what_is_no_tensor_is_left_out_where_it_may_be():
    view = pytorch.View(STORED, "float32", 0, (6,), (1,))
    value = pytorch.Dict([("a", None), ("b", 3), ("c", view), ("d", "x"), ("e", [True, 0.5, view])])
    assert pytorch.flatten(value, skips_others=True) == {"c": view, "e.2": view}
    with pytest.raises(DataError, match="'a' is a NoneType, not a tensor"):
        pytorch.flatten(value)


def test_a_pickle_longer_than_any_is_cut(monkeypatch):
    monkeypatch.setattr("attnkit.formats.pickle_reader.LONGEST", 8)
    text = b"\x80\x02X\1\0\0\0a"
    with pytest.raises(DataError, match=r"^longer than 8 bytes$"):
        read_pickle(text + b".", Names({}, str))
    monkeypatch.setattr("attnkit.formats.pickle_reader.LONGEST", 9)
    assert read_pickle(text + b".", Names({}, str)) == ("a", 9)


@pytest.mark.parametrize("change", [lambda keys: [*keys[1:], 7], lambda keys: keys[1:], lambda keys: "".join(keys)])
def test_an_older_file_names_its_storages(change):
    """The names are a list after the pickles of the protocol, of the machine and of the tensors."""
    at = 15
    for _ in range(3):
        at += read_pickle(LEGACY[at:], pytorch.torch_names({}))[1]
    keys, length = read_pickle(LEGACY[at:], Names({}, str))
    data = LEGACY[:at] + b"\x80\x02" + op(change(keys)) + b"." + LEGACY[at + length :]
    with pytest.raises(DataError, match="its storages are not those of its tensors"):
        list(read(Source.of(data)))
