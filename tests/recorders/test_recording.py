"""Recordings: `tap` of NumPy arrays, the file, and what may go wrong."""

import os
import signal
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from attnkit.debugger.dumps import open_dump
from attnkit.errors import DataError, FileError, UsageError
from attnkit.formats import atomic
from attnkit.recorders import record, recording, tap


def test_arrays_are_recorded_in_order_and_handed_back(tmp_path):
    arrays = {"b": np.arange(3), "a": np.ones((2, 2), ml_dtypes.bfloat16), "c": np.float32(2)}
    with record(tmp_path / "mine.npz"):
        for name, array in arrays.items():
            assert tap(name, array) is array
        words = tap("a", [[1, 2]])
    assert words == [[1, 2]]
    found = open_dump(str(tmp_path / "mine.npz"))
    assert [*found] == ["b", "a", "c", "a#1"] and found["a"].dtype == ml_dtypes.bfloat16 and found["c"].shape == ()
    assert os.listdir(tmp_path) == ["mine.npz"]


def test_numpy_reads_a_recording(tmp_path):
    with record(tmp_path / "mine.npz"):
        tap("x", np.eye(2))
        tap("half", np.ones(2, ml_dtypes.bfloat16))
    with np.load(tmp_path / "mine.npz") as found:
        assert np.array_equal(found["x"], np.eye(2))
        assert found["half"].view(ml_dtypes.bfloat16).tolist() == [1, 1]


@pytest.mark.parametrize(
    "value, expected",
    [
        (np.array([1 + 2j, 3j]), np.array([[1.0, 2.0], [0.0, 3.0]])),
        (np.array([0.5, 2], ml_dtypes.float8_e4m3fn), np.array([0.5, 2], np.float32)),
        (np.array([-3, 2], ml_dtypes.int4), np.array([-3, 2], np.int8)),
        (np.arange(6).reshape(2, 3).T[::2], np.array([[0, 3], [2, 5]])),
        (np.array([1, 2], ">i4"), np.array([1, 2], np.int32)),
    ],
)
def test_no_number_changes(tmp_path, value, expected):
    with record(tmp_path / "mine.npz"):
        tap("x", value)
    found = open_dump(str(tmp_path / "mine.npz"))["x"]
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_without_a_recording_nothing_happens():
    assert tap("x", "anything") == "anything" and tap("", None) is None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path, error):
    path = tmp_path / "mine.npz"
    for before in (None, b"as it was"):
        if before:
            path.write_bytes(before)
        with pytest.raises(error), record(path):
            tap("x", np.ones(3))
            assert len(os.listdir(tmp_path)) == 1 + bool(before)
            raise error
        assert [one.read_bytes() for one in tmp_path.iterdir()] == ([before] if before else [])
    with record(path):  # a new one may begin
        tap("x", np.ones(3))


@pytest.mark.parametrize(
    "value, message",
    [
        (np.array([object()]), "tensor 'x': dtype object not supported"),
        (["a", "b"], "tensor 'x': dtype str"),
        ([[1], [1, 2]], "tensor 'x': cannot be recorded: setting an array element with a sequence"),
    ],
)
def test_what_is_no_tensor_ends_the_recording(tmp_path, value, message):
    with pytest.raises(DataError, match=message) as caught, record(tmp_path / "mine.npz"):
        tap("x", value)
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)
    with pytest.raises(DataError, match=message), record(tmp_path / "mine.npz"):
        tap("before", np.ones(2))
        with pytest.raises(DataError):
            tap("x", value)  # the program goes on after the error; the recording is not whole
        tap("after", np.ones(2))
    assert os.listdir(tmp_path) == []


def test_one_recording_at_a_time(tmp_path):
    with record(tmp_path / "a.npz"):
        tap("x", np.ones(2))
        message = r"b\.npz: .*a\.npz is being recorded; one recording at a time"
        with pytest.raises(UsageError, match=message), record(tmp_path / "b.npz"):
            pass
        tap("y", np.ones(2))
    assert os.listdir(tmp_path) == ["a.npz"] and [*open_dump(str(tmp_path / "a.npz"))] == ["x", "y"]


def test_nothing_recorded_leaves_no_file(tmp_path):
    message = r"mine\.npz: nothing was recorded: no tap was reached"
    with pytest.raises(DataError, match=message), record(tmp_path / "mine.npz"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (("mine.npy",), {}, "mine.npy: a recording is an NPZ file, or a JSON file of digests; expected .npz or .json"),
        (("mine",), {}, "mine: a recording is an NPZ file"),
        (("mine.npz",), {"call": 1}, "record: call 1 of no module"),
        (
            ("mine.npz", "gpt2"),
            {},
            "record: expected a torch.nn.Module, got str; tap records arrays of other libraries",
        ),
        (("mine.npz", "gpt2"), {"call": -1}, "record: expected the number of a call, 0 or more, got -1"),
        (("mine.npz", "gpt2"), {"call": True}, "record: expected the number of a call, 0 or more, got True"),
    ],
)
def test_usage(arguments, options, message):
    with pytest.raises(UsageError) as caught, record(*arguments, **options):
        pass
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["", None, 7])
def test_names_of_taps(tmp_path, name):
    message = f"tap: expected the name of a tensor, got {name!r}"
    with pytest.raises(UsageError, match=message), record(tmp_path / "mine.npz"):
        tap(name, np.ones(2))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FileError, match=r"cannot write .*No such file"), record(tmp_path / "no" / "mine.npz"):
        raise AssertionError("the block is not entered")


def test_a_full_disk_is_one_error(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    message = r"mine\.npz: write error: No space left on device"
    with pytest.raises(FileError, match=message), record(tmp_path / "mine.npz"):
        monkeypatch.setattr(atomic.os, "write", full)
        tap("x", np.ones(2))
    assert os.listdir(tmp_path) == []


def test_threads_write_one_file(tmp_path):
    def run(number):
        for _ in range(50):
            tap("x", np.full(100, number))

    with record(tmp_path / "mine.npz"):
        threads = [threading.Thread(target=run, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = open_dump(str(tmp_path / "mine.npz"))
    assert len(found) == 400 and sorted(int(array[0]) for array in found.values()) == sorted([*range(8)] * 50)
    assert all((array == array[0]).all() for array in found.values())


def test_what_is_written_is_not_kept(tmp_path):
    """No reference to an array is left."""
    held = []
    with record(tmp_path / "mine.npz"):
        for number in range(4):
            array = np.full(1000, number, np.float64)
            before = sys.getrefcount(array)
            tap("x", array)
            held.append(sys.getrefcount(array) - before)
    assert held == [0, 0, 0, 0]


@pytest.mark.slow
def test_a_forked_process_does_not_write(tmp_path):
    code = (
        "import os, sys, numpy as np\n"
        "from attnkit.recorders import record, tap\n"
        "with record(sys.argv[1]):\n"
        "    tap('x', np.ones(2))\n"
        "    if (child := os.fork()) == 0:\n"
        "        tap('y', np.ones(2))\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    tap('z', np.ones(2))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "mine.npz")], check=True)
    assert [*open_dump(str(tmp_path / "mine.npz"))] == ["x", "z"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_the_temporary_file(tmp_path, number):
    code = (
        "import os, signal, sys, numpy as np\n"
        "from attnkit.recorders import record, tap\n"
        "with record(sys.argv[1]):\n"
        "    tap('x', np.ones(10))\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    signal.pause()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "mine.npz")], capture_output=True)
    assert done.returncode != 0 and os.listdir(tmp_path) == []


def test_the_recorders_import_no_other_library():
    code = (
        "import sys, numpy as np, tempfile, os\n"
        "from attnkit.recorders import record, tap\n"
        "with record(os.path.join(tempfile.mkdtemp(), 'a.npz')): tap('x', np.ones(2))\n"
        "print({'torch', 'jax', 'onnx', 'onnxruntime', 'mlx'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_a_tap_costs_nothing_without_a_recording(monkeypatch):
    def refuse(*_):
        raise AssertionError("no array is looked at")

    monkeypatch.setattr(recording, "numpy_array", refuse)
    array = np.ones(2)
    assert all(tap("x", array) is array for _ in range(1000))


def test_arrays_of_mlx(tmp_path):
    mlx = pytest.importorskip("mlx.core")
    array = mlx.array([1.0, 2.0])
    with record(tmp_path / "mine.npz"):
        assert tap("x", array) is array
        tap("half", array.astype(mlx.bfloat16))
        tap("later", array @ array)
    found = open_dump(str(tmp_path / "mine.npz"))
    assert [found.dtype(name) for name in found] == ["float32", "bfloat16", "float32"] and found["later"] == 5
    with pytest.raises(DataError, match="tensor 'x': cannot be recorded: "), record(tmp_path / "mine.npz"):
        mlx.compile(lambda x: tap("x", x * 2))(array)
