"""Definitions: equal to the kernels of the model, and every slip of theirs is seen and named."""

import numpy as np
import pytest

from attnkit import model
from attnkit.checking.cases import draw_case
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.verdict import Examiner
from attnkit.model.exercises.worked_steps import work
from attnkit.model.formulas.convolution import Convolution, convolve
from attnkit.model.formulas.recurrent import run_direction
from attnkit.model.formulas.recurrent_cells import State
from attnkit.model.formulas.spectrogram import Spectrogram, log_mel
from attnkit.training.numpy_state import clip_gradients
from attnkit.training.optimizers import Optimizer, ParameterBuffer, optimizer_options
from attnkit.training.schedules import ScheduleOptions, cosine_factor
from tests.checking.implementations import Computed, plain_ways

# slips that some others equal in every case
EQUAL = {
    "attend": [{"blocked scores are 0 instead of −∞", "the scores are multiplied by the mask"}],
    "layernorm": [{"eps is missing", "eps is 1e-12"}],
    "rmsnorm": [{"eps is missing", "eps is 1e-12"}],
    "sinusoidal": [{"the exponent is i/D", "the base is 100"}],
}
SAMPLED = {
    "block": 5,
    "gpt-block": 5,
    "encoder-layer": 5,
    "decoder-layer": 9,
    "lm": 9,
    "seq2seq": 13,
}  # wholes of parts
# slips that are right in one way of a convention
RIGHT = {"multihead": {"the causal mask is missing"}, "multihead-rope": {"the causal mask is missing"}}


def answers(definition):
    for case in definition.cases:
        drawn = draw_case(definition, case, 0, "float64")
        given = {**dict.fromkeys(definition.arguments), **drawn.given}
        with np.errstate(all="ignore"):
            yield given, [*work(definition.steps, given).values()][-1]


def rotate(x, positions, theta):
    places = np.arange(x.shape[-2]) if positions is None else positions
    cos, sin = model.rotary_angles(places, x.shape[-1], theta)
    return model.rotate(x, cos, sin, interleaved=True)


def attend_with_heads(x, wq, wk, wv, wqkv, wo, bq, bk, bv, bqkv, bo, heads, mask):
    params = {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "bq": bq, "bk": bk, "bv": bv, "bo": bo}
    params = {name: one for name, one in params.items() if one is not None}
    mask = None if mask is None else mask[:, None]
    return model.multi_head_attention(x, x, x, params, heads=heads, mask=mask)["output"]


def attend(q, k, v, mask):
    if q.ndim == 2:
        return attend(q[None], k[None], v[None], mask)[0]
    return model.attention(q, k, v, mask=mask)["heads"]


def feed_forward(x, activation, **params):
    params = {name: one for name, one in params.items() if one is not None}
    return model.feed_forward(x, params, activation=activation)["output"]


def run_recurrent(cell, letters):
    """The kernel of a cell, whose weights are side by side as rows."""
    marks = [""] if len(letters) == 1 else letters

    def run(x, h0=None, c0=None, **params):
        state = None
        rows = x.reshape(-1, *x.shape[-2:])
        if h0 is not None:
            state = State(h0, c0 if c0 is not None else np.zeros_like(h0) if cell == "lstm" else None)
        kinds = {"input": "w", "hidden": "u", "input_bias": "b", "hidden_bias": "c"}
        parts = {kind: [params[mark + one] for one in marks] for kind, mark in kinds.items()}
        joined = {kind: np.concatenate(one, -1).T for kind, one in parts.items() if one[0] is not None}
        return run_direction(cell, rows, joined, state).outputs.reshape(*x.shape[:-1], -1)

    return run


def convolve_channels_first(x, w, b, stride, padding, params):
    over = w.ndim - 2
    options = Convolution(stride=(stride,), padding=(padding,))
    return np.moveaxis(convolve(np.moveaxis(x, -over - 1, -1), w, b, options)["output"], -1, -over - 1)


def step_adamw(w, b, gw, gb, rates, lr, beta1, beta2, eps, weight_decay, **_):
    parameters = ParameterBuffer.of({"w": w, "b": b}, np.float64)
    optimizer = Optimizer(
        parameters, optimizer_options("adamw", lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
    )
    found = []
    for at in range(len(gw)):
        gradients = ParameterBuffer.of({"w": gw[at], "b": gb[at]}, np.float64)
        optimizer.step(gradients, factor=1.0 if rates is None else rates[at] / lr)
        found.append(np.concatenate([parameters["w"].ravel(), parameters["b"]]))
    return np.stack(found)


def clip(g1, g2, max_norm, **_):
    gradients = np.concatenate([g1.ravel(), g2.ravel()])
    clip_gradients(gradients, max_norm)
    return gradients


def follow_cosine(steps, most, least, warmup, total):
    """The schedule of training counts steps from 1, and begins to fall one step later."""
    options = ScheduleOptions(total=total, warmup=warmup, final=least / most)
    return np.array([most * cosine_factor(int(one) + (one >= warmup), options) for one in steps])


def restore(w, mean, square, step, iteration, **_):
    return np.concatenate([w.ravel(), mean.ravel(), square.ravel(), [step, iteration]])


KERNELS = {
    "rnn": run_recurrent("tanh", "h"),
    "gru": run_recurrent("gru", "rzn"),
    "lstm": run_recurrent("lstm", "ifgo"),
    "conv1d": convolve_channels_first,
    "conv2d": convolve_channels_first,
    "mel": lambda x, rate, size, hop, mels: log_mel(x, Spectrogram(rate, size, hop, mels))["output"],
    "adamw": step_adamw,
    "clip": clip,
    "schedule": follow_cosine,
    "checkpoint": restore,
    "softmax": lambda x, dim: model.softmax(x, axis=dim),
    "attend": attend,
    "multihead": attend_with_heads,
    "linear": lambda x, w, b: model.linear(x, w, b),
    "layernorm": lambda x, gamma, beta, eps: model.layer_norm(x, gamma, beta, eps=eps).y,
    "rmsnorm": lambda x, gamma, eps: model.rms_norm(x, gamma, eps=eps).y,
    "ffn": lambda x, w1, b1, w2, b2: feed_forward(x, w1=w1, b1=b1, w2=w2, b2=b2, activation="relu"),
    "swiglu": lambda x, w1, w2, w3: feed_forward(x, w1=w1, w2=w2, w3=w3, activation="silu"),
    "rope": rotate,
    "sinusoidal": lambda T, D: model.sinusoidal_positions(np.arange(T), D),
    "embed": lambda ids, table: model.embed(ids, table),
    "mask": lambda T: model.causal_mask(T, T),
    "cross-entropy": lambda logits, targets: model.cross_entropy(logits, targets),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_definition_is_the_kernel_of_the_model(name):
    for given, answer in answers(DEFINITIONS[name]):
        np.testing.assert_allclose(KERNELS[name](**given), answer, rtol=0, atol=1e-12 * max(1, np.abs(answer).max()))


def are_eps(named):
    """Whether all slips are of an eps too small to tell from others."""
    return bool(named) and all("eps is" in name for name in named)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_right_implementation_passes_and_has_no_slip(name):
    definition = DEFINITIONS[name]
    findings = Examiner(definition, Computed(definition), fixed=plain_ways(definition)).judge(definition.cases)
    assert findings.is_right and not findings.causes


def near(slip, named):
    """Whether slips are those of small values of eps in a whole, which rounding hides from one another."""
    return slip.name in named and all(one.startswith("norm: eps is") for one in named)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_each_slip_is_seen_and_named(name):
    definition = DEFINITIONS[name]
    wrong, expected = [], {}
    for slip in definition.slips[:: SAMPLED.get(name, 1)]:
        callee = Computed(definition, slip.changes)
        examiner = Examiner(definition, callee, fixed=plain_ways(definition), _expected=expected)
        findings = examiner.judge(definition.cases)
        if all(row.words == "every number is nan" for row in findings.failing) and findings.failing:
            continue  # nothing that tells one slip from another
        named = {cause.slip.name for cause in findings.causes}
        if findings.is_right != (slip.name in RIGHT.get(name, ())) or (
            not findings.is_right
            and named != {slip.name}
            and named not in EQUAL.get(name, [])
            and not near(slip, named)
        ):
            wrong.append((slip.name, findings.is_right, named))
    assert wrong == []
