"""The tool rnn: weights of files, lengths, states, intermediates, gradients; record in, record out."""

import subprocess
import sys

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.inputs.recurrent_layers import read_recurrent_weights
from attnkit.records import Record, Tensor
from tests import process
from tests.commands.records import of, read_back

RNG = np.random.default_rng(2014)
X = RNG.standard_normal((3, 7, 5))
LENGTHS = np.array([7, 2, 5])
MASK = Tensor((np.arange(7) < LENGTHS[:, None])[:, None], ("batch", "all queries", "key"))
TANH = {"weight_ih_l0": RNG.standard_normal((4, 5)), "weight_hh_l0": RNG.standard_normal((4, 4))}


def by_hand(x):
    h, steps = np.zeros(4), []
    for token in x:
        h = np.tanh(TANH["weight_ih_l0"] @ token + TANH["weight_hh_l0"] @ h)
        steps.append(h)
    return np.array(steps)


def test_weights_from_a_file_and_from_a_seed():
    assert np.allclose(attnkit.rnn(of(X[0]), params=TANH)["x"], by_hand(X[0]))
    rng = np.random.default_rng(3)
    params = {"weight_ih_l0": (rng.standard_normal((5, 12)) / 5**0.5).T}
    params["weight_hh_l0"] = (rng.standard_normal((4, 12)) / 2).T
    own, drawn = (
        attnkit.rnn(of(X[0]), cell="gru", **more)["x"] for more in ({"params": params}, {"hidden": 4, "seed": 3})
    )
    assert np.array_equal(own, drawn)


def test_the_module_of_a_larger_state_dict_and_a_cell_alone():
    expected = by_hand(X[0])
    larger = {f"encoder.rnn.{name}": array for name, array in TANH.items()} | {"head.weight": np.ones((2, 4))}
    alone = {name.removesuffix("_l0"): array for name, array in TANH.items()}
    for params in (larger, alone):
        assert np.allclose(attnkit.rnn(of(X[0]), params=params)["x"], expected)


@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
def test_the_layouts_of_pytorch_and_onnx_are_one_another(cell):
    blocks = {"tanh": 1, "gru": 3, "lstm": 4}[cell]
    shapes = {
        "weight_ih": (blocks * 4, 5),
        "weight_hh": (blocks * 4, 4),
        "bias_ih": (blocks * 4,),
        "bias_hh": (blocks * 4,),
    }
    torch = {
        f"{name}_l0{end}": RNG.standard_normal(shape) for end in ("", "_reverse") for name, shape in shapes.items()
    }
    weights = read_recurrent_weights(torch, cell)
    onnx = weights._replace(layout="onnx").by_name(weights.layers)
    order = {"tanh": [0], "gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}[cell]  # z r h; i o f c
    assert np.array_equal(onnx["W"][0].reshape(blocks, 4, 5), torch["weight_ih_l0"].reshape(blocks, 4, 5)[order])
    results = [attnkit.rnn(of(X), cell=cell, params=params)["x"] for params in (torch, onnx)]
    assert np.array_equal(*results)
    again = read_recurrent_weights(onnx, cell)
    assert all(
        np.array_equal(array, torch[name])
        for name, array in again._replace(layout="torch").by_name(again.layers).items()
    )


def test_the_mask_of_a_padded_batch_gives_its_lengths():
    masked = attnkit.rnn(Record({"x": X, "mask": MASK}), params=TANH, reverse=True)["x"]
    for row, length in enumerate(LENGTHS):
        assert np.allclose(masked[row, :length], by_hand(X[row, :length][::-1])[::-1])
        assert not masked[row, length:].any()
    counted = attnkit.rnn(of(X), params=TANH, reverse=True, lengths=LENGTHS)["x"]
    assert np.array_equal(masked, counted)


def test_directions_and_layers_have_names():
    record = attnkit.rnn(of(X), hidden=4, cell="lstm", layers=2, bidirectional=True, keep=("cell", "forget_gate"))
    names = {
        f"{name}_l{layer}{end}" for name in ("cell", "forget_gate") for layer in (0, 1) for end in ("", "_reverse")
    }
    assert {*record} == {"x", *names} and record["x"].shape == (3, 7, 8)
    assert record.axes_of("cell_l1_reverse") == ("batch", "token", "hidden")
    assert {*attnkit.rnn(record, hidden=2)} == {"x"}  # those of an earlier rnn are removed
    assert {*attnkit.rnn(of(X), hidden=2, steps=True)} == {"x"}  # which is the state
    assert np.array_equal(attnkit.rnn(of(X), hidden=2, keep=("all",))["state"], attnkit.rnn(of(X), hidden=2)["x"])


def test_the_gates_make_the_state():
    record = attnkit.rnn(of(X[0]), hidden=3, cell="lstm", keep=("all",))
    cell = np.zeros(3)
    for t in range(7):
        cell = record["forget_gate"][t] * cell + record["input_gate"][t] * record["candidate"][t]
        assert np.allclose(record["cell"][t], cell)
    assert np.allclose(record["x"], record["output_gate"] * np.tanh(record["cell"]))
    gru = attnkit.rnn(of(X[0]), hidden=3, cell="gru", keep=("gates",))
    before = np.vstack([np.zeros(3), gru["x"][:-1]])
    assert np.allclose(gru["x"], (1 - gru["update_gate"]) * gru["candidate"] + gru["update_gate"] * before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("cell", ["tanh", "gru", "gru-reset-before", "lstm"])
def test_a_text_cut_anywhere_continues_from_a_file(cell, dtype, tmp_path):
    x, flags = RNG.standard_normal((300, 5)).astype(dtype), {"hidden": 24, "cell": cell, "layers": 2}
    whole = attnkit.rnn(of(x), state_out=str(tmp_path / "end.npz"), **flags)["x"]
    for cut in (0, 1, 128, 200, 300):
        first = attnkit.rnn(of(x[:cut]), state_out=str(tmp_path / "state.npz"), **flags)["x"]
        rest = attnkit.rnn(
            of(x[cut:]), state_in=str(tmp_path / "state.npz"), state_out=str(tmp_path / "again.npz"), **flags
        )["x"]
        assert np.array_equal(np.concatenate([first, rest]), whole)
        with np.load(tmp_path / "end.npz") as end, np.load(tmp_path / "again.npz") as again:
            assert all(np.array_equal(end[name], again[name]) for name in end if name != "meta.json")
            assert end["position"] == 300


def test_states_of_a_batch_have_the_shape_of_pytorch(tmp_path):
    path = str(tmp_path / "state.safetensors")
    flags = {"hidden": 4, "cell": "lstm", "layers": 2, "bidirectional": True, "projection": 3}
    attnkit.rnn(of(X), state_out=path, **flags)
    state = formats.load(path)
    assert (state["hidden"].shape, state["cell"].shape) == ((4, 3, 3), (4, 3, 4))
    assert attnkit.rnn(of(X), state_in=path, **flags)["x"].shape == (3, 7, 6)


BAD = [
    ({}, UsageError, "--params FILE, --hidden H or --model DIR"),
    ({"params": {"weight_ih_l0": np.ones((4, 5))}}, DataError, "no weight_hh_l0"),
    ({"params": {"weight_hh_l1": np.ones((4, 4)), **TANH}}, DataError, "no weight_ih_l1"),
    ({"params": {**TANH, "weights": np.ones(3)}}, DataError, "weights is not a name of PyTorch's layout"),
    ({"params": {**TANH, "bias_ih_l0": np.ones(3)}}, DataError, r"input_bias \(3,\): expected \(4,\)"),
    ({"params": {"W": np.ones((1, 4, 5)), "R": np.ones((1, 4, 4)), "Z": np.ones(1)}}, DataError, "Z is not one of: W"),
    ({"params": {"W": np.ones((1, 4, 5)), "R": np.ones((1, 4, 4)), "B": np.ones(8)}}, DataError, r"B \(8,\): expected"),
    ({"params": {"W": np.ones((4, 5)), "R": np.ones((4, 4))}}, DataError, "1 or 2 directions"),
    ({"params": TANH, "cell": "gru"}, DataError, "an RNN without gates"),
    ({"hidden": 2, "state_in": {"hidden": np.ones((2, 3, 2))}}, DataError, r"hidden \(2,3,2\): expected \(1,3,2\)"),
    ({"hidden": 2, "state_in": {"hidden": np.ones((1, 3, 2)), "cell": np.ones(1)}}, DataError, "cell is not one of"),
    ({"hidden": 2, "state_in": {"hidden": np.ones((1, 3, 2)), "position": np.array(-1)}}, DataError, "position"),
    ({"hidden": 2, "state_in": {"hidden": np.ones((1, 3, 2), int)}}, DataError, "expected floats"),
    ({"hidden": 2, "lengths": np.array([1, 2])}, DataError, "expected 3 whole numbers"),
    ({"hidden": 2, "peepholes": True}, UsageError, "needs --cell lstm"),
]


@pytest.mark.parametrize(("flags", "kind", "problem"), BAD)
def test_bad_input(flags, kind, problem):
    with pytest.raises(kind, match=problem):
        attnkit.rnn(of(X), **flags)


def test_a_record_of_no_texts_and_of_no_tokens():
    assert attnkit.rnn(of(np.zeros((0, 3, 5))), hidden=2, cell="lstm", keep=("gates",))["x"].shape == (0, 3, 2)
    assert read_back(attnkit.rnn(of(np.zeros((0, 5))), hidden=2, bidirectional=True))["x"].shape == (0, 4)


GRADIENTS = [
    "--cell tanh --hidden 3",
    "--cell relu --hidden 3 --reverse",
    "--cell gru --hidden 3 --layers 2 --bidirectional",
    "--cell gru-reset-before --hidden 3",
    "--cell lstm --hidden 3 --projection 2 --peepholes --bidirectional",
    "--cell lstm --params {onnx}",
]


@pytest.mark.slow
@pytest.mark.parametrize("flags", GRADIENTS)
def test_the_gradients_of_a_pipeline(flags, tmp_path):
    onnx = {
        "W": RNG.standard_normal((2, 12, 4)),
        "R": RNG.standard_normal((2, 12, 3)),
        "B": RNG.standard_normal((2, 24)),
    }
    np.savez(tmp_path / "onnx.npz", P=RNG.standard_normal((2, 9)), **onnx)
    line = f"embed 'a b c' d --dim 4 | rnn {flags.format(onnx=tmp_path / 'onnx.npz')} | layernorm"
    run = process.run("grad", line, "--check", "-q", "-f", "npz", "-o", tmp_path / "g.npz")
    assert run.code == 0, run.err
    record = formats.load(str(tmp_path / "g.npz"))
    assert record["check"][2] < 1e-6
    names = ("W", "R", "B", "P") if "onnx" in flags else ("weight_ih_l0", "weight_hh_l0")
    assert {f"2.rnn.{name}" for name in names} <= {*record}


@pytest.mark.slow
def test_a_long_text_takes_little_memory_beside_its_files(tmp_path):
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdin=open('x.npy', 'rb'));"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == 'darwin' else 1024))"
    )
    command = [sys.executable, "-m", "attnkit", "rnn", "--cell", "gru", "--hidden", "8", "--layers", "2", "-o", "y.npy"]

    def peak(x):
        np.save(tmp_path / "x.npy", x)
        run = [sys.executable, "-c", code, *command]
        return int(subprocess.run(run, cwd=tmp_path, check=True, capture_output=True).stdout)

    x = np.zeros((160_000, 8), np.float32)
    assert peak(x) < peak(x[:100]) + 2 * x.nbytes + 8e6  # the gates of a layer are 15 MB
