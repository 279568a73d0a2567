"""Recurrent layers: PyTorch's and ONNX's numbers, frozen; by hand; the fast path and the formula; cut texts."""

import json
from functools import cache

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.inputs.recurrent_layers import read_recurrent_weights
from attnkit.model.backward.recurrent_backward import stack_backward
from attnkit.model.formulas.recurrent import (
    RecurrentLayer,
    run_direction,
    run_direction_in_blocks,
    run_layer,
    run_long_text,
    run_stack,
    run_token,
)
from attnkit.model.formulas.recurrent_cells import CELLS, State, check_parameters
from tests.model.recurrent_cases import VARIANTS, random_layer
from tests.places import REFERENCES

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


@cache
def load_torch():
    cases = {}
    with np.load(REFERENCES / "recurrent.npz") as members:
        for key in members:
            case, _, name = key.partition("/")
            cases.setdefault(case, {})[name] = members[key]
    return cases


@cache
def load_onnx():
    with np.load(REFERENCES / "onnx_recurrent.npz") as members:
        cases = json.loads(str(members["cases"]))
        for case in cases.values():
            for side in ("inputs", "outputs"):
                case[side] = {name: members[str(place)] for name, place in case[side].items()}
    return cases


def of_torch(case, dtype):
    """The cell, layers, x, states and lengths of a case."""
    members, cell = load_torch()[case], case.partition("-")[0]
    params = {name: array.astype(dtype) for name, array in members.items() if name.startswith(("weight_", "bias_"))}
    layers = read_recurrent_weights(params, cell).layers
    states = pair_states(layers, *(members[name].astype(dtype) for name in ("h_0", "c_0") if name in members))
    return cell, layers, members["x"].astype(dtype), states, members.get("lengths")


def pair_states(layers, hidden, cell=None):
    rows = iter(range(len(hidden)))
    states = []
    for layer in layers:
        pair = [None, None]
        for direction, _ in layer.directions():
            row = next(rows)
            pair[direction] = State(hidden[row], None if cell is None else cell[row])
        states.append(tuple(pair))
    return states


def stacked(states, part):
    return np.stack([getattr(one, part) for pair in states for one in pair if one is not None])


def close(ours, theirs, tolerance):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", sorted(load_torch()))
def test_layers_are_those_of_pytorch(case, dtype):
    cell, layers, x, states, lengths = of_torch(case, dtype)
    runs, members = run_stack(cell, x, layers, states, lengths=lengths), load_torch()[case]
    close(runs[-1].outputs, members[f"{dtype}/output"], TOLERANCE[dtype])
    after = [run.states() for run in runs]
    close(stacked(after, "hidden"), members[f"{dtype}/h_n"], TOLERANCE[dtype])
    if cell == "lstm":
        close(stacked(after, "cell"), members[f"{dtype}/c_n"], TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("case", sorted(load_torch()))
def test_gradients_are_those_of_autograd(case, dtype, tolerance):
    cell, layers, x, states, lengths = of_torch(case, dtype)
    members = {name: array.astype(dtype) for name, array in load_torch()[case].items()}
    runs = run_stack(cell, x, layers, states, lengths=lengths, has_trace=True)
    grads = pair_states(layers, *(members[name] for name in ("grad_h_n", "grad_c_n") if name in members))
    dx, back = stack_backward(cell, members["grad_output"], x, layers, runs, grads, lengths=lengths)
    close(dx, members["grad.x"], tolerance)
    names = read_recurrent_weights({name: members[name] for name in members if name.startswith("weight_")}, cell)
    for name, gradient in names.by_name([one.parameters for one in back]).items():
        close(gradient, members[f"grad.{name}"], tolerance)
    close(stacked([one.states for one in back], "hidden"), members["grad.h_0"], tolerance)
    if cell == "lstm":
        close(stacked([one.states for one in back], "cell"), members["grad.c_0"], tolerance)


@pytest.mark.parametrize("case", sorted(load_onnx()))
def test_the_node_tests_of_onnx(case):
    one = load_onnx()[case]
    inputs, attributes = one["inputs"], one["attributes"]
    cell = {"RNN": "tanh", "GRU": "gru-reset-before", "LSTM": "lstm"}[one["operator"]]
    assert set(attributes) <= {"hidden_size", "layout", "direction"}
    (layer,) = read_recurrent_weights({name: inputs[name] for name in "WRBP" if name in inputs}, cell).layers
    if attributes.get("direction") == "reverse":
        layer = RecurrentLayer(None, layer.forward)
    is_batch_first = attributes.get("layout", 0) == 1
    x = inputs["X"] if is_batch_first else inputs["X"].swapaxes(0, 1)
    state = State(inputs["initial_h"][0], inputs["initial_c"][0]) if "initial_h" in inputs else None
    run = run_layer(cell, x, layer, (state, None), lengths=inputs.get("sequence_lens"))
    y = np.stack(np.split(run.outputs, len(layer.directions()), -1))  # (directions, B, T, H)
    states = [run.states()]
    values = {
        "Y": y.transpose(1, 2, 0, 3) if is_batch_first else y.transpose(2, 0, 1, 3),
        "Y_h": stacked(states, "hidden"),
    }
    values |= {"Y_c": stacked(states, "cell")} if cell == "lstm" else {}
    for name, expected in one["outputs"].items():
        ours = values[name].swapaxes(0, 1) if is_batch_first and name != "Y" else values[name]
        close(ours, expected, 1e-6)


def test_one_token_by_hand():
    one, state = np.ones((1, 1)), State(np.array([[2.0]]))
    zero = np.zeros((3, 1))
    gates = {"input": zero, "hidden": np.array([[0.0], [0.0], [1.0]])}  # r = z = ½
    after = np.tanh(0.5 * 2) / 2 + 2 / 2
    for cell in ("gru", "gru-reset-before"):
        assert run_token(cell, one, state, gates)[0].hidden == pytest.approx(after)
    biased = gates | {"hidden_bias": np.array([0.0, 0.0, 4.0])}
    assert run_token("gru", one, state, biased)[0].hidden == pytest.approx(np.tanh(0.5 * (2 + 4)) / 2 + 1)
    assert run_token("gru-reset-before", one, state, biased)[0].hidden == pytest.approx(np.tanh(0.5 * 2 + 4) / 2 + 1)
    lstm = {"input": np.array([[0.0], [0.0], [3.0], [0.0]]), "hidden": np.zeros((4, 1))}
    after, values = run_token("lstm", one, State(np.zeros((1, 1)), one), lstm)
    assert after.cell == pytest.approx(0.5 + 0.5 * np.tanh(3)) and set(values) == {*CELLS["lstm"].gates}
    peepholes = lstm | {"peephole": np.array([[1.0], [-1.0], [2.0]])}
    cell = 1 / (1 + np.e) + np.tanh(3) / (1 + np.exp(-1))
    after = run_token("lstm", one, State(np.zeros((1, 1)), one), peepholes)[0]
    assert after.cell == pytest.approx(cell) and after.hidden == pytest.approx(np.tanh(cell) / (1 + np.exp(-2 * cell)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, (9, 0, 4)])
@pytest.mark.parametrize(("cell", "more"), VARIANTS)
def test_blocks_are_the_formula(cell, more, lengths, reverse, monkeypatch):
    monkeypatch.setattr("attnkit.model.formulas.recurrent.ROWS", 12)  # blocks of 4 tokens
    parameters, rng = random_layer(cell, 5, 6, **more), np.random.default_rng(0)
    x, lengths = rng.standard_normal((3, 9, 5)), None if lengths is None else np.array(lengths)
    if lengths is not None:
        x[1], x[2, 4:] = np.nan, np.nan  # what follows a text has no influence
    state = State(rng.standard_normal((3, more.get("projection", 6))), rng.standard_normal((3, 6)))
    state = state if cell == "lstm" else State(state.hidden)
    slow = run_direction(cell, x, parameters, state, lengths=lengths, reverse=reverse)
    fast = run_direction_in_blocks(
        cell, x, parameters, state, lengths=lengths, reverse=reverse, offset=3, has_trace=True
    )
    pairs = [
        (slow.outputs, fast.outputs),
        (slow.trace.hidden, fast.trace.hidden),
        *zip(slow.state, fast.state, strict=True),
    ]
    pairs += [(slow.trace.cell, fast.trace.cell)]
    pairs += [(gate, fast.trace.gates[name]) for name, gate in slow.trace.gates.items()]
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cell", CELLS)
def test_a_text_cut_anywhere_gives_the_same_bits(cell, dtype, batch):
    layers = [RecurrentLayer(random_layer(cell, 7, 48, dtype)), RecurrentLayer(random_layer(cell, 48, 48, dtype))]
    x = np.random.default_rng(0).standard_normal((batch, 300, 7)).astype(dtype)
    whole = run_stack(cell, x, layers)
    for cuts in ([1], [7, 64], [127, 128, 129], [299]):
        states, parts, before = None, [], 0
        for part in np.split(x, cuts, 1):
            runs = run_stack(cell, part, layers, states, offset=before)
            states, before = [run.states() for run in runs], before + part.shape[1]
            parts.append(runs[-1].outputs)
        assert np.array_equal(np.concatenate(parts, 1), whole[-1].outputs)
        assert np.array_equal(stacked(states, "hidden"), stacked([run.states() for run in whole], "hidden"))


def test_a_long_text_in_parts_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr("attnkit.model.formulas.recurrent.PART", 50)
    layers = [RecurrentLayer(random_layer("lstm", 7, 12)), RecurrentLayer(random_layer("lstm", 12, 12))]
    x = np.random.default_rng(0).standard_normal((1, 130, 7))
    outputs, states = run_long_text("lstm", x, layers, offset=9)
    runs = run_stack("lstm", x, layers, offset=9)
    assert np.array_equal(outputs, runs[-1].outputs)
    assert np.array_equal(stacked(states, "cell"), stacked([run.states() for run in runs], "cell"))


@pytest.mark.parametrize("cell", CELLS)
def test_a_padded_text_is_that_text_alone(cell):
    layers = [RecurrentLayer(random_layer(cell, 4, 6), random_layer(cell, 4, 6))]
    x, lengths = np.random.default_rng(0).standard_normal((3, 8, 4)), np.array([8, 3, 5])
    (batch,) = run_stack(cell, x, layers, lengths=lengths)
    for row, length in enumerate(lengths):
        (alone,) = run_stack(cell, x[row : row + 1, :length], layers)
        np.testing.assert_allclose(batch.outputs[row, :length], alone.outputs[0], atol=1e-14)
        assert not batch.outputs[row, length:].any()
        np.testing.assert_allclose(
            stacked([batch.states()], "hidden")[:, row], stacked([alone.states()], "hidden")[:, 0]
        )


@pytest.mark.parametrize("run", [run_direction, run_direction_in_blocks])
def test_no_tokens_leave_the_state_as_it_is(run):
    state = State(np.ones((2, 4)), np.full((2, 4), 3.0))
    result = run("lstm", np.zeros((2, 0, 3)), random_layer("lstm", 3, 4), state)
    assert result.outputs.shape == (2, 0, 4) and (result.state.hidden == 1).all() and (result.state.cell == 3).all()
    assert run("lstm", np.zeros((0, 5, 3)), random_layer("lstm", 3, 4)).outputs.shape == (0, 5, 4)


def test_half_precision_is_computed_in_single_precision():
    x, parameters = np.ones((1, 3, 3), np.float16), random_layer("gru", 3, 4, np.float16)
    run = run_direction_in_blocks("gru", x, parameters)
    assert run.outputs.dtype == np.float16 and run.state.hidden.dtype == np.float32


ERRORS = [
    (lambda: run_direction("lstm", np.zeros((3, 3)), random_layer("lstm", 3, 4)), "expected (batch, token, model)"),
    (lambda: run_direction("gru", np.zeros((1, 2, 5)), random_layer("gru", 3, 4)), "takes a width of 3, but x has 5"),
    (lambda: run_direction("gru", np.zeros((1, 2, 3)), random_layer("lstm", 3, 4)), "input weight (16,3): expected"),
    (lambda: run_direction("gru", np.zeros((1, 2, 3)), random_layer("gru", 3, 4), State(np.zeros((1, 5)))),
     "hidden state (1,5): expected (1,4)"),
    (lambda: run_direction("lstm", np.zeros((1, 2, 3)), random_layer("lstm", 3, 4), State(np.zeros((1, 4)))),
     "state with 1 of hidden and cell: a cell lstm needs hidden and cell"),
    (lambda: run_direction("tanh", np.zeros((1, 2, 3)), random_layer("tanh", 3, 4), lengths=np.array([3])),
     "lengths: 3 is not between 0 and 2"),
    (lambda: run_direction("tanh", np.zeros((1, 2, 3)), random_layer("tanh", 3, 4), lengths=np.array([1.5])),
     "lengths (1,) float64: expected 1 whole numbers"),
    (lambda: check_parameters("tanh", {"input": np.zeros((4, 3))}, 3), "no hidden weight"),
    (lambda: check_parameters("gru", random_layer("lstm", 3, 6, projection=2), 3), "gru has no projection"),
    (lambda: run_layer("tanh", np.zeros((1, 2, 3)), RecurrentLayer()), "without parameters of any direction"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "problem"), ERRORS)
def test_errors_name_both_shapes(call, problem):
    with pytest.raises(DataError) as error:
        call()
    assert problem in str(error.value)


def test_an_unknown_cell_is_an_error():
    with pytest.raises(UsageError, match="expected one of tanh, relu, gru"):
        run_token("elman", np.zeros((1, 3)), None, {})
