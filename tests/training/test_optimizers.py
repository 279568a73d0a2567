"""Optimizers and schedules: 50 steps as in torch.optim, and the vectors of ONNX; blocks, resuming, groups."""

import json
from functools import cache

import numpy as np
import pytest

from attnkit.errors import DataError, UsageError
from attnkit.model import Config, StackConfig
from attnkit.training import numpy_state as gradients_module
from attnkit.training import optimizers
from attnkit.training.numpy_state import clip_gradients, gradient_norm
from attnkit.training.optimizers import Optimizer, OptimizerOptions, ParameterBuffer, Update, optimizer_options
from attnkit.training.parameter_groups import match_parameters, parameter_groups, unfrozen_parameters
from attnkit.training.schedules import SCHEDULES, ScheduleOptions, check_schedule
from tests.places import REFERENCES

STEPS, WARMUP, RATE, MAX_NORM = 50, 8, 0.02, 4.0
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
OPTIONS = {
    "adamw": ("adamw", {"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}),
    "adam": ("adam", {"weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-6}),
    "sgd": ("sgd", {"weight_decay": 0.05, "momentum": 0.9, "dampening": 0.2}),
    "sgd-plain": ("sgd", {}),
}
SCHEDULE_OPTIONS = {"linear": ScheduleOptions(STEPS, WARMUP, 0.1), "slanted_triangular": ScheduleOptions(STEPS)}
CONFIG = Config("gpt2", 4, decoder=StackConfig(layers=1, heads=1, hidden=9, kv_heads=1, head_dim=4))


@cache
def frozen():
    with np.load(REFERENCES / "optimizers.npz") as members:
        return dict(members)


def stored(prefix):
    return {key.removeprefix(prefix): array for key, array in frozen().items() if key.startswith(prefix)}


CASES = sorted({key.partition(".")[0] for key in frozen() if "/" in key})


def factor_of(schedule, step):
    return SCHEDULES[schedule](step, SCHEDULE_OPTIONS.get(schedule, ScheduleOptions(STEPS, WARMUP)))


def new_optimizer(name, dtype):
    rule, changes = OPTIONS[name]
    parameters = ParameterBuffer.of(stored("start."), dtype)
    options = optimizer_options(rule, lr=RATE, **changes)
    return Optimizer(parameters, options, parameter_groups(parameters.shapes(), CONFIG))


def gradients_of(step, dtype):
    return ParameterBuffer.of({name: array[step - 1] for name, array in stored("gradients.").items()}, dtype)


@pytest.mark.parametrize("case", CASES)
def test_fifty_steps_are_those_of_pytorch(case):
    name, schedule, clipping, dtype = case.split("/")
    optimizer, norms = new_optimizer(name, dtype), frozen()[f"{case}.norms"]
    for step in range(1, STEPS + 1):
        gradients = gradients_of(step, dtype)
        if clipping == "clipped":
            assert clip_gradients(gradients.flat, MAX_NORM) == pytest.approx(norms[step - 1], rel=TOLERANCE[dtype])
        optimizer.step(gradients, factor_of(schedule, step))
        for key, expected in stored(f"{case}.{step}.").items():
            ours = optimizer.parameters[key]
            assert ours.dtype == expected.dtype == dtype
            np.testing.assert_allclose(ours, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=key)


def test_some_of_the_gradients_were_clipped():
    norms = frozen()["adamw/cosine/clipped/float64.norms"]
    assert (norms > MAX_NORM).any()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_are_those_of_pytorch(schedule):
    rates = [RATE * factor_of(schedule, step) for step in range(1, STEPS + 1)]
    np.testing.assert_allclose(rates, frozen()[f"rates.{schedule}"], rtol=1e-12)


@cache
def onnx_cases():
    with np.load(REFERENCES / "onnx_optimizers.npz") as members:
        cases = json.loads(str(members["cases"]))
        for case in cases.values():
            case |= {side: [members[str(place)] for place in case[side]] for side in ("inputs", "outputs")}
    return cases


@pytest.mark.parametrize("name", sorted(set(onnx_cases()) - {"test_nesterov_momentum"}))
def test_vectors_of_onnx(name):
    case = onnx_cases()[name]
    (rate, step, *arrays), attributes = case["inputs"], case["attributes"]
    kinds = 4 if case["operator"] == "Adam" else 3
    count = len(arrays) // kinds
    xs, gradients, *states = (arrays[index * count : (index + 1) * count] for index in range(kinds))
    assert step == 0  # the first update, which no test of ONNX goes beyond
    update = Update(float(rate), attributes["norm_coefficient"], 0)
    for x, gradient, *state in zip(xs, gradients, *states, strict=True):
        if case["operator"] == "Adam":
            options = OptimizerOptions(betas=(attributes["alpha"], attributes["beta"]), eps=attributes["epsilon"])
            optimizers.adam(x, gradient, dict(zip(("exp_avg", "exp_avg_sq"), state, strict=True)), options, update)
        else:
            options = OptimizerOptions(momentum=attributes["alpha"], dampening=1 - attributes["beta"])
            optimizers.sgd(x, gradient, {"momentum_buffer": state[0]}, options, update)
    for ours, expected in zip([*xs, *(one for group in states for one in group)], case["outputs"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def steps(optimizer, first, last, trainable=None):
    for step in range(first, last + 1):
        optimizer.step(gradients_of(step, optimizer.parameters.flat.dtype), factor_of("cosine", step), trainable)
    return optimizer


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", OPTIONS)
def test_blocks_do_not_change_the_result(name, block, monkeypatch):
    expected = steps(new_optimizer(name, np.float32), 1, 3)
    monkeypatch.setattr(optimizers, "BLOCK", block)
    ours = steps(new_optimizer(name, np.float32), 1, 3)
    np.testing.assert_array_equal(ours.parameters.flat, expected.parameters.flat)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(name):
    whole = steps(new_optimizer(name, np.float32), 1, 20)
    first = steps(new_optimizer(name, np.float32), 1, 8)
    saved = {key: array.copy() for key, array in first.state().items()}
    second = new_optimizer(name, np.float32)
    second.parameters.flat[...] = first.parameters.flat
    second.load_state(saved)
    steps(second, 9, 20)
    np.testing.assert_array_equal(second.parameters.flat, whole.parameters.flat)
    for key, array in whole.state().items():
        np.testing.assert_array_equal(second.state()[key], array)


def test_a_frozen_parameter_keeps_its_value_its_state_and_its_steps():
    optimizer = new_optimizer("adamw", np.float64)
    trainable = {"decoder.0.ffn.w1", "decoder.0.norm1.gamma"}
    before = {name: array.copy() for name, array in optimizer.parameters.items()}
    steps(optimizer, 1, 3, trainable)
    changed = {name for name, array in optimizer.parameters.items() if (array != before[name]).any()}
    assert changed == trainable
    assert dict(zip(optimizer.parameters, optimizer.state()["step"], strict=True)) == {
        name: 3 * (name in trainable) for name in before
    }
    fresh = new_optimizer("adamw", np.float64)
    fresh.step(gradients_of(4, np.float64), 1.0, {"decoder.0.ffn.b1"})
    optimizer.step(gradients_of(4, np.float64), 1.0, {"decoder.0.ffn.b1"})  # its first step, bias-corrected so
    np.testing.assert_array_equal(optimizer.parameters["decoder.0.ffn.b1"], fresh.parameters["decoder.0.ffn.b1"])


def test_the_state_of_other_parameters_is_refused():
    optimizer = new_optimizer("adamw", np.float32)
    state = {key: array.copy() for key, array in optimizer.state().items()}
    with pytest.raises(DataError, match=r"no tensor 'exp_avg.decoder.0.ffn.b1'"):
        optimizer.load_state({key: array for key, array in state.items() if key != "exp_avg.decoder.0.ffn.b1"})
    with pytest.raises(DataError, match=r"'exp_avg.decoder.0.ffn.b1': float32 \(3,\) \(expected float32 \(9,\)\)"):
        optimizer.load_state(state | {"exp_avg.decoder.0.ffn.b1": np.zeros(3, np.float32)})
    with pytest.raises(DataError, match="momentum_buffer"):
        new_optimizer("sgd", np.float32).load_state(state)


def test_gradients_of_other_parameters_are_refused():
    with pytest.raises(DataError, match="the gradients are of other parameters"):
        new_optimizer("sgd", np.float32).step(ParameterBuffer({"decoder.embed.table": (7, 4)}))


def test_layer_decay_scales_the_rate():
    shapes = {"decoder.embed.table": (2, 2), "decoder.0.ffn.w1": (2, 2), "decoder.norm.gamma": (2,)}
    parameters = ParameterBuffer(shapes, np.float64)
    groups = parameter_groups(shapes, CONFIG, layer_decay=0.5)
    gradients = parameters.zeros()
    gradients.flat[...] = 1
    Optimizer(parameters, optimizer_options("sgd", lr=1.0), groups).step(gradients)
    assert [float(parameters[name].flat[0]) for name in shapes] == [-0.25, -0.5, -1.0]


def test_clipping_by_the_norm_of_all_blocks(monkeypatch):
    array = np.random.default_rng(3).normal(size=1000).astype(np.float32)
    expected = float(np.linalg.norm(array.astype(float)))
    monkeypatch.setattr(gradients_module, "BLOCK", 77)
    assert gradient_norm(array) == pytest.approx(expected, rel=1e-12)
    unchanged = array.copy()
    assert clip_gradients(array, expected * 2) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(array, unchanged)
    clip_gradients(array, 1.0)
    assert gradient_norm(array) == pytest.approx(1.0, rel=1e-5)
    array[5] = np.nan
    unchanged = array.copy()
    assert np.isnan(clip_gradients(array, 1.0))
    np.testing.assert_array_equal(array, unchanged)


def test_gradual_unfreezing_goes_from_the_last_layer_down():
    config = Config("gpt2", 4, decoder=StackConfig(layers=3, heads=1, hidden=9, kv_heads=1, head_dim=4))
    names = ["decoder.embed.table", "decoder.0.ffn.w1", "decoder.1.ffn.w1", "decoder.2.ffn.w1", "decoder.norm.gamma"]
    counts = [len(unfrozen_parameters(names, config, step, 5)) for step in (1, 5, 6, 11, 16, 1000)]
    assert counts == [2, 2, 3, 4, 5, 5]
    assert unfrozen_parameters(names, config, 1, 5) == set(names[3:])


def test_patterns_of_parameters():
    names = ["decoder.embed.table", "decoder.0.self.wq", "decoder.0.norm1.gamma", "head.b"]
    assert match_parameters(names, ["decoder.embed*"]) == {names[0]}
    assert match_parameters(names, ["decoder.0"]) == set(names[1:3])
    assert match_parameters(names, []) == set()
    with pytest.raises(UsageError, match=r"no parameter matches 'decoder.embd'; did you mean decoder.embed"):
        match_parameters(names, ["decoder.embd"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimizer_options("adan"), "optimizer 'adan' .expected one of adamw, adam, sgd"),
        (lambda: optimizer_options("adam", lr=-1), "lr -1 .expected 0 or more"),
        (lambda: optimizer_options("adam", betas=(0.9, 1.0)), "beta 1 .expected 0 or more, below 1"),
        (lambda: parameter_groups({}, CONFIG, 0.0), "layer decay 0 .expected above 0, up to 1"),
        (lambda: unfrozen_parameters([], CONFIG, 1, 0), "unfreeze every 0 steps"),
        (lambda: check_schedule("cosin", ScheduleOptions()), "schedule 'cosin' .expected one of constant, linear"),
        (lambda: check_schedule("cosine", ScheduleOptions()), "cosine needs the number of steps"),
        (lambda: check_schedule("inverse_sqrt", ScheduleOptions()), "needs a warm-up"),
        (lambda: check_schedule("linear", ScheduleOptions(10, 10)), "warm-up of 10 steps .expected 0 to 9"),
        (lambda: check_schedule("slanted_triangular", ScheduleOptions(9, cut_frac=1)), "cut_frac between 0 and 1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(UsageError, match=message):
        call()
