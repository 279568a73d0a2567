"""Layouts of recurrent networks and convolutions that right implementations have, found by value."""

import numpy as np
import pytest

from attnkit.checking.callees import open_object
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.verdict import Examiner


def judge(function, name):
    definition = DEFINITIONS[name]
    return Examiner(definition, open_object(definition, function, "numpy", {})).judge(definition.cases)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -80, 80)))


def run_lstm(sums, hidden, h, order, candidate=np.tanh):
    """The states of an LSTM: sums (B, T, 4·H) of the input, hidden (H, 4·H), h (B, H)."""
    c, states = np.zeros_like(h), []
    for at in range(sums.shape[1]):
        gates = dict(zip(order, np.split(sums[:, at] + h @ hidden, 4, -1), strict=True))
        c = sigmoid(gates["f"]) * c + sigmoid(gates["i"]) * candidate(gates["g"])
        h = sigmoid(gates["o"]) * np.tanh(c)
        states.append(h)
    return np.stack(states, 1)


def of_cs231n(x, h0, Wx, Wh, b):
    return run_lstm(x @ Wx + b, Wh, h0, "ifog")


def of_torch(input, weight_ih, weight_hh, bias_ih, bias_hh):
    first = np.zeros((len(input), weight_hh.shape[1]), input.dtype)
    return run_lstm(input @ weight_ih.T + bias_ih + bias_hh, weight_hh.T, first, "ifgo")


def of_each_gate(x, Wi, Wf, Wg, Wo, Ui, Uf, Ug, Uo, bi, bf, bg, bo):
    w, u, b = (np.concatenate(parts) for parts in ((Wi, Wf, Wg, Wo), (Ui, Uf, Ug, Uo), (bi, bf, bg, bo)))
    return run_lstm(x @ w.T + b, u.T, np.zeros((len(x), Ui.shape[0]), x.dtype), "ifgo")[:, -1]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (of_torch, ()),
        (of_cs231n, ("gates: in the order i, f, o, g (CS231n)", "weights: (in, out)")),
        (of_each_gate, ("it returns the last state alone",)),
    ],
)
def test_the_layout_of_an_lstm_is_found(function, found):
    findings = judge(function, "lstm")
    assert findings.is_right and findings.found == found


def test_a_slip_of_an_lstm_is_named_in_another_layout():
    def with_sigmoid(x, h0, Wx, Wh, b):
        return run_lstm(x @ Wx + b, Wh, h0, "ifog", sigmoid)

    findings = judge(with_sigmoid, "lstm")
    assert [cause.slip.name for cause in findings.causes] == ["the candidate has the activation sigmoid, not tanh"]
    assert "gates: in the order i, f, o, g (CS231n)" in findings.found


def test_the_gates_and_the_reset_of_keras_are_found():
    def gru(x, kernel, recurrent_kernel, bias):
        h = np.zeros((len(x), len(recurrent_kernel)), x.dtype)
        uz, ur, un = np.split(recurrent_kernel, 3, -1)
        for at in range(x.shape[1]):
            z, r, n = np.split(x[:, at] @ kernel + bias, 3, -1)
            z = sigmoid(z + h @ uz)
            h = z * h + (1 - z) * np.tanh(n + (sigmoid(r + h @ ur) * h) @ un)
        return h

    findings = judge(gru, "gru")
    assert findings.is_right and findings.found == (
        "gates: in the order z, r, n (ONNX, Keras)",
        "weights: (in, out)",
        "it returns the last state alone",
        "the reset gate multiplies the state, not its product",
    )


def convolve_image(x, w, b, conv_param):
    stride, pad = conv_param["stride"], conv_param["pad"]
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    rows, columns = ((size - w.shape[-1]) // stride + 1 for size in padded.shape[2:])
    answer = np.empty((len(x), len(w), rows, columns), x.dtype)
    for i in range(rows):
        for j in range(columns):
            part = padded[:, :, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]]
            answer[:, :, i, j] = np.tensordot(part, w, ([1, 2, 3], [1, 2, 3])) + b
    return answer


def test_a_convolution_has_its_numbers_by_themselves_or_in_a_dict():
    def channels_last(x, kernel, bias, strides=1):
        image, weight = np.moveaxis(x, -1, 1), kernel.transpose(3, 2, 0, 1)
        return np.moveaxis(convolve_image(image, weight, bias, {"stride": strides, "pad": 0}), 1, -1)

    def turned(x, w, b, conv_param):
        return convolve_image(x, w[..., ::-1, ::-1], b, conv_param)

    assert judge(convolve_image, "conv2d").is_right
    assert judge(channels_last, "conv2d").found == ("channels: last", "weights: (K, K, in, out)")
    assert [cause.slip.name for cause in judge(turned, "conv2d").causes] == [
        "the kernel of the convolution is turned around"
    ]
