"""Dumps: recordings, and the files and folders that other programs write."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.debugger.dumps import open_dump
from attnkit.errors import AttnkitError, DataError, FileError
from attnkit.formats import Record, Sink, npz, save
from tests.places import REFERENCES

DUMPS = REFERENCES / "dumps"
PYTORCH = REFERENCES / "pytorch"


def opened(path):
    """A dump, whose arrays are as it says."""
    dump = open_dump(str(path))
    for name, array in dump.items():
        assert (array.dtype.name, array.shape) == (dump.dtype(name), dump.shape(name))
    return dump


@pytest.fixture
def recorded():
    return opened(DUMPS / "recorded.npz")


def test_a_recording_has_the_calls_in_order(recorded):
    assert recorded.is_ordered and recorded.digits("scaled") == 0
    assert [name for name in recorded if "layers" not in name] == [
        "input", "input.mask", "embed.input", "embed.output", "scaled", "scaled#1", "head.input", "head.output",
        "output.logits", "output.hidden",
    ]  # fmt: skip
    assert np.array_equal(recorded["scaled#1"], recorded["layers.0.fc#1.output"] * 2)


def test_bfloat16_is_read_as_it_was_recorded():
    dump = opened(DUMPS / "bfloat16.npz")
    assert dump.dtype("embed.output") == "bfloat16" and dump["embed.output"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("folder", ["vllm", "vllm/run", "vllm/run/step_0"])
def test_vllm(folder, recorded):
    dump = opened(DUMPS / folder)
    assert dump.is_ordered and [*dump] == [
        "embed.input.0", "embed.output", "layers.0.input.0", "layers.0.norm.input.0", "layers.0.norm.output",
        "layers.0.fc.input.0", "layers.0.fc.output", "layers.0.output.0", "layers.0#1.input.0", "layers.0#1.output.0",
        "layers.0.norm#1.input.0", "layers.0.norm#1.output", "layers.0.fc#1.input.0", "layers.0.fc#1.output",
        "head.input.0", "head.output",
    ]  # fmt: skip
    for name, array in dump.items():
        assert np.array_equal(array, recorded[name.replace("input.0", "input")])


def test_vllm_without_its_list_of_calls_has_no_order(tmp_path):
    shutil.copytree(DUMPS / "vllm" / "run" / "step_0", tmp_path / "step_3")
    os.remove(tmp_path / "step_3" / "module_calls.txt")
    shutil.copytree(tmp_path / "step_3", tmp_path / "step_10")
    shutil.copy(tmp_path / "step_3" / "head" / "outputs_cpu.pt", tmp_path / "step_3" / "head" / "outputs_a_b_cuda_1.pt")
    dump = opened(tmp_path)
    assert not dump.is_ordered and len(dump) == 17 and "head.output.a_b" in dump
    assert len(dump.left_out) == 16 and {*dump.left_out.values()} == {"of step 10; step 3 is read"}


def test_sglang(recorded):
    dump = opened(DUMPS / "sglang")
    assert dump.is_ordered and [*dump][:3] == ["embed.input.0", "embed.output", "layers.0.norm.input.0"]
    assert np.array_equal(dump["layers.0#1.output"], recorded["layers.0#1.output.0"])
    assert dump["layers.3.q"].tolist() == [1, 1]
    assert [*dump.left_out.values()] == [
        "of step 1; step 0 is read", "no tensor in it", "layers.3.q of rank 0 is read",
    ]  # fmt: skip


def test_sglang_passes(recorded):
    dump = opened(DUMPS / "sglang_passes")
    assert [*dump] == ["embed", "layers.0.norm", "layers.0.fc", "layers.0", "head"]
    assert np.array_equal(dump["head"], recorded["head.output"])
    second = opened(DUMPS / "sglang_passes" / "TP0_PP0_Rank0_pid7" / "Pass00001.pt")
    assert second.is_ordered and np.array_equal(second["head"], recorded["head.output"] + 1)


def test_a_printed_tree_of_transformers(recorded):
    dump = opened(DUMPS / "debugger")
    assert dump.is_ordered and [*dump] == [name for name in recorded if "scaled" not in name and name not in {
        "layers.0.output.0", "layers.0#1.output.0", "output.logits", "output.hidden",
    }]  # fmt: skip
    assert dump.digits("head.output") == 5 and dump.digits("input") == 0
    for name, array in dump.items():
        assert np.allclose(array, recorded[name], rtol=5.01e-5, atol=0)
    file = opened(DUMPS / "debugger" / "Tiny_debug_tree_FULL_TENSORS.json")
    assert [*file] == [*dump]


def test_a_tree_of_transformers_with_files(recorded):
    dump = opened(DUMPS / "debugger_files")
    assert dump.left_out["layers.0.norm.output"].startswith("overwritten by layers.0.norm#1.output")
    assert {"layers.0.norm#1.output", "output.logits", "output.hidden"} <= {*dump}
    for name, array in dump.items():
        assert np.array_equal(array, recorded[name]) and dump.digits(name) == 0


def printed(tmp_path, *lines, **parts):
    """A tree of one tensor, which is printed."""
    tensor = {"shape": "torch.Size([2])", "dtype": "torch.float32", "value": list(lines)} | parts
    file = tmp_path / "M_debug_tree_FULL_TENSORS.json"
    file.write_text(json.dumps({"module_path": "M", "inputs": {"args": [tensor]}, "children": []}))
    return str(file)


@pytest.mark.parametrize(
    "text, shape, dtype, expected",
    [
        ("tensor([ 1.0000e+00, -2.5000e-07], grad_fn=<AddBackward0>)", "[2]", "float32", [1, -2.5e-7]),
        ("tensor([nan, -inf], device='cuda:0', dtype=torch.float16)", "[2]", "float16", [np.nan, -np.inf]),
        ("Parameter containing:\ntensor([[1., 2.],\n        [3., 4.]], requires_grad=True)", "[2, 2]", "float64",
         [[1, 2], [3, 4]]),
        ("tensor(7)", "[]", "int64", 7),
        ("tensor(7., dtype=torch.bfloat16)", "[]", "bfloat16", 7),
        ("tensor([ True, False])", "[2]", "bool", [True, False]),
        ("tensor([9223372036854775807])", "[1]", "int64", [2**63 - 1]),
        ("tensor([], size=(0, 3))", "[0, 3]", "float32", np.zeros((0, 3))),
    ],
)  # fmt: skip
def test_printed_tensors(tmp_path, text, shape, dtype, expected):
    dump = opened(printed(tmp_path, *text.split("\n"), shape=f"torch.Size({shape})", dtype=f"torch.{dtype}"))
    assert np.array_equal(dump["input"], np.array(expected).astype(dump["input"].dtype), equal_nan=dtype != "bool")


@pytest.mark.parametrize(
    "parts, message",
    [
        ({"value": ["tensor([1., 2., 3.])"]}, "3 numbers are printed for shape (2,)"),
        ({"value": ["tensor([1., ..., 3.])"]}, "no tensors in this dump; input: printed with its first and last"),
        ({"value": ["tensor([1.5, 2.0])"], "dtype": "torch.int64"}, "a number that is no int64: invalid literal"),
        ({"value": ["tensor([1, 300])"], "dtype": "torch.uint8"}, "a number that is no uint8: "),
        ({"value": 7}, "tensor 'input': a value that is neither printed nor in a file"),
        (
            {"value": "./../x.safetensors"},
            "tensor 'input': './../x.safetensors' is no safetensors file beside the tree",
        ),
        ({"value": "./x.pt"}, "tensor 'input': './x.pt' is no safetensors file beside the tree"),
        ({"shape": f"torch.Size([{'9' * 5000}])"}, "tensor 'input': shape 'torch.Size([999"),
        ({"shape": "(2,)"}, "tensor 'input': shape '(2,)' (expected torch.Size([2, 3]))"),
        ({"dtype": "torch.complex64"}, "no tensors in this dump; input: dtype complex64 is not supported"),
    ],
)
def test_bad_trees(tmp_path, parts, message):
    with pytest.raises(DataError) as caught:
        opened(printed(tmp_path, "tensor([1., 2.])", **parts))
    assert message in str(caught.value) and "FULL_TENSORS.json: " in str(caught.value)


def test_a_tree_names_a_missing_file(tmp_path):
    dump = open_dump(printed(tmp_path, value="./x.safetensors"))
    with pytest.raises(FileError, match=r"x\.safetensors: No such file"):
        dump["input"]


def test_a_summary_has_no_numbers():
    with pytest.raises(DataError, match="only its statistics are written here; give the file whose name ends in _FULL"):
        open_dump(str(DUMPS / "debugger" / "Tiny_debug_tree_SUMMARY.json"))


FILES = [path for path in sorted(DUMPS.rglob("*")) if path.is_file() and path.suffix != ".txt"]


@pytest.mark.parametrize("path", FILES[:: max(1, len(FILES) // 12)], ids=lambda path: path.name[:40])
@given(st.randoms(use_true_random=False))
def test_damaged_dumps_are_read_or_one_line(path, random):
    """Some bytes of a file are others: what is read is a tensor, and every error is one of attnkit."""
    data = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 4)):
        data[random.randrange(len(data))] = random.choice([0, 34, 48, 57, 91, 93, 123, 255, random.randrange(256)])
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, path.name)
        with open(copy, "wb") as file:
            file.write(data)
        for one in (copy, folder):
            with contextlib.suppress(AttnkitError):
                opened(one)


def deep(depth, make):
    value = []
    for _ in range(depth):
        value = make(value)
    return value


@pytest.mark.parametrize(
    "tree, message",
    [
        ({"inputs": {"kwargs": {"x": deep(300, lambda one: [one])}}}, "values nested more than 64 deep"),
        ({"children": [deep(200, lambda one: {"module_path": "M", "children": [one]})]}, "more than 64 deep"),
        ({"children": [[]]}, "without a path or a list of calls"),
        ({"children": 7}, "without a path or a list of calls"),
        ({}, "no tensors in this dump"),
    ],
)
def test_trees_of_another_form(tmp_path, tree, message):
    file = tmp_path / "tree.json"
    file.write_text(json.dumps({"module_path": "M", **tree}))
    with pytest.raises(DataError, match=message):
        open_dump(str(file))


def test_a_tree_is_read_up_to_64_calls_deep(tmp_path):
    file, leaf = (
        tmp_path / "tree.json",
        {"shape": "torch.Size([1])", "dtype": "torch.float32", "value": ["tensor([2.])"]},
    )
    for depth, is_read in ((60, True), (70, False)):
        tree = {"module_path": "M", "outputs": leaf}
        for _ in range(depth):
            tree = {"module_path": "M", "children": [tree]}
        file.write_text(json.dumps(tree))
        if is_read:
            assert [array.tolist() for array in open_dump(str(file)).values()] == [[2.0]]
        else:
            with pytest.raises(DataError, match="more than 64 deep"):
                open_dump(str(file))


@pytest.mark.parametrize("suffix", ["npz", "npy", "safetensors", "json"])
def test_files_that_attnkit_writes(tmp_path, suffix):
    arrays = {"x": np.ones((2, 3), np.float32)} | ({} if suffix == "npy" else {"b": np.arange(3)})
    save(Record(arrays), str(tmp_path / f"a.{suffix}"))
    dump = opened(tmp_path / f"a.{suffix}")
    assert [*dump] == [*arrays] and dump.is_ordered == (suffix != "safetensors")
    assert all(np.array_equal(dump[name], arrays[name]) for name in arrays)
    assert "nothing" not in dump and dump.get("nothing") is None


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_bfloat16_that_numpy_saves(tmp_path, save):
    save(tmp_path / "a.npz", h=np.arange(3).astype(ml_dtypes.bfloat16), x=np.zeros((300, 300)))
    dump = opened(tmp_path / "a.npz")
    assert dump["h"].astype(int).tolist() == [0, 1, 2] and dump.shape("x") == (300, 300)
    np.save(tmp_path / "h.npy", np.arange(3).astype(ml_dtypes.bfloat16))
    assert opened(tmp_path / "h.npy").dtype("x") == "bfloat16"


def test_a_pytorch_file_gives_its_tensors_alone():
    assert [*opened(PYTORCH / "tensor.pt")] == ["x"]
    assert [*opened(PYTORCH / "nested.pt")][-1] == "averages.0"
    assert np.array_equal(opened(PYTORCH / "legacy.bin")["part"], opened(PYTORCH / "state.bin")["part"])


def write(folder, **files):
    for name, array in files.items():
        path = folder / (name.replace("/", os.sep) + ".npy")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.float32(array))


def test_a_folder_has_no_order_unless_its_names_are_numbered(tmp_path):
    write(tmp_path / "a", **{"layers.10.out": 3, "layers.9.out": 2, "sub/q": 1, "0.weight": 0})
    dump = opened(tmp_path / "a")
    assert not dump.is_ordered and [*dump] == ["0.weight", "layers.9.out", "layers.10.out", "sub.q"]
    write(tmp_path / "b", **{"10_q": 4, "2_q": 3, "1-norm.output": 2, "11_norm.output": 5})
    dump = opened(tmp_path / "b")
    assert dump.is_ordered and {name: float(array) for name, array in dump.items()} == {
        "norm.output": 2, "q": 3, "q#1": 4, "norm#1.output": 5,
    }  # fmt: skip


def test_a_folder_of_files_with_several_tensors(tmp_path):
    np.savez(tmp_path / "a.npz", q=np.ones(1), k=np.zeros(1))
    assert [*opened(tmp_path)] == ["q", "k"]
    save(Record({"x": np.ones(2)}), str(tmp_path / "b.safetensors"))
    (tmp_path / ".hidden.npy").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no tensor")
    assert [*opened(tmp_path)] == ["a.q", "a.k", "b"]


def test_what_two_devices_wrote_is_read_from_the_first(tmp_path):
    folder = tmp_path / "step_0" / "norm"
    folder.mkdir(parents=True)
    for device in ("cuda_1", "cuda_0"):
        shutil.copy(PYTORCH / "tensor.pt", folder / f"outputs_{device}.pt")
    dump = opened(tmp_path)
    assert [*dump] == ["norm.output"] and dump.left_out == {"norm.output of cuda_1": "norm.output of cuda_0 is read"}


RECORDED = (DUMPS / "recorded.npz").read_bytes()
AT = RECORDED.index(b"NUMPY") + 130  # in the numbers of the first tensor


def copy_runs(folder):
    for run in "ab":
        shutil.copytree(DUMPS / "vllm" / "run", folder / run)


def saved(array):
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def copy_into(folder, file, *names):
    folder.mkdir()
    for name in names:
        shutil.copy(file, folder / name)


def write_twice(path):
    with zipfile.ZipFile(path, "w") as made:
        for _ in range(2):
            made.writestr("a.npy", saved(np.ones(2)))


BROKEN = {
    "truncated": lambda path: path.write_bytes(RECORDED[:-100]),
    "damaged": lambda path: path.write_bytes(RECORDED[:AT] + b"x" + RECORDED[AT + 1 :]),
    "text": lambda path: path.write_text("no numbers\nare here\n"),
    "empty": lambda path: path.write_bytes(b""),
    "code": lambda path: shutil.copy(PYTORCH / "module.pt", path),
    "folder of code": lambda path: copy_into(path, PYTORCH / "module.pt", "a.pt"),
    "empty folder": lambda path: (path / "step_0").mkdir(parents=True),
    "twice": lambda path: write(path, **{"a.b": 1, "a/b": 2}),
    "members twice": write_twice,
    "trees": lambda path: copy_into(path, PYTORCH / "module.pt", "A_FULL_TENSORS.json", "B_FULL_TENSORS.json"),
    "runs": copy_runs,
    "records": lambda path: path.write_text("[1] [2]"),
    "npy cut": lambda path: path.write_bytes(saved(np.ones(100))[:-1]),
    "missing": lambda path: None,
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "kind, message",
    [
        ("truncated", "dump: truncated ZIP archive"),
        ("damaged", "dump: member 'input.npy': damaged: its size or checksum differs"),
        ("text", "dump: not a tensor file (looks like text)"),
        ("empty", "dump: empty input"),
        ("code", "dump: data.pkl: at byte 2: the name 'torch.nn.modules.linear.Linear' is refused"),
        ("folder of code", "a.pt: data.pkl: at byte 2: the name 'torch.nn.modules.linear.Linear' is refused"),
        ("empty folder", "dump: no tensors in this folder (expected files .npz, .npy, .safetensors, .pt, .pth, .bin)"),
        ("twice", "dump: two tensors 'a.b': in a.b.npy and in a/b.npy"),
        ("members twice", "dump: duplicate member 'a.npy'"),
        ("trees", "dump: 2 trees of modules; name one of the files, such as A_FULL_TENSORS.json"),
        ("runs", "dump: 2 runs; name one of the folders a, b"),
        ("records", "dump: 2 records (expected 1)"),
        ("npy cut", "dump: truncated: the array needs 928 bytes, the file has 927"),
        ("missing", "dump: No such file or directory"),
    ],
)
def test_bad_dumps_are_one_line(tmp_path, kind, message):
    BROKEN[kind](tmp_path / "dump")
    with pytest.raises(AttnkitError) as caught:
        opened(tmp_path / "dump")
    assert message in str(caught.value).replace(os.sep, "/") and "\n" not in str(caught.value)
    assert caught.value.exit_code in (3, 4)


def test_folders_of_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("attnkit.debugger.dumps.MOST_FILES", 2)
    write(tmp_path, a=1, b=2, c=3)
    with pytest.raises(DataError, match="more than 2 files, or folders nested more than 64 deep"):
        open_dump(str(tmp_path))


def test_folders_that_are_nested_too_deep_are_refused(tmp_path):
    (tmp_path / "/".join("a" * 70)).mkdir(parents=True)
    with pytest.raises(DataError, match="nested more than 64 deep"):
        open_dump(str(tmp_path))


PLACES = ("b.npy", "b.npz", "b.pt", "b.safetensors", "module_calls.txt", "M_debug_tree_FULL_TENSORS.json")
KINDS = {
    "FIFO": (os.mkfifo, "not a regular file"),
    "device": (lambda path: os.symlink("/dev/zero", path), "not a regular file"),
    "link to itself": (lambda path: os.symlink(os.path.basename(path), path), "Too many levels of symbolic links"),
    "link to nothing": (lambda path: os.symlink("nothing", path), "No such file or directory"),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(("make", "reason"), KINDS.values(), ids=KINDS)
def test_a_folder_with_files_that_have_no_end_is_refused(tmp_path, name, make, reason):
    write(tmp_path, a=1)
    make(str(tmp_path / name))
    with pytest.raises(FileError) as caught:
        open_dump(str(tmp_path))
    assert str(caught.value) == f"{tmp_path / name}: {reason}"


def test_links_to_folders_are_not_followed(tmp_path):
    write(tmp_path, a=1)
    os.symlink("..", tmp_path / "up")
    os.symlink("/proc", tmp_path / "proc")
    assert [*open_dump(str(tmp_path))] == ["a"]


@pytest.mark.linux
@pytest.mark.slow
def test_a_large_dump_is_read_in_constant_memory(tmp_path):
    """Forty tensors of 8 MB: the process that reads them never has four of them in memory."""
    with Sink(str(tmp_path / "big.npz")) as sink:
        writer = npz.Writer(sink.write)
        for number in range(40):
            writer.add(f"t{number}", np.full((1 << 20,), number, np.float64))
        writer.finish({})
    code = (
        "import resource, sys; from attnkit.debugger.dumps import open_dump\n"
        "dump = open_dump(sys.argv[1]); start = None\n"
        "for name in dump:\n"
        "    total = dump[name].sum()\n"
        "    now = int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "    start = start or now\n"
        "    assert now - start < 24 << 20, now - start\n"
        "assert total == 39 * 2**20\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "big.npz")], check=True)
