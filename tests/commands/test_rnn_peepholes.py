"""Peepholes of an LSTM, by the formula in plain NumPy: several layers, both directions, texts of several lengths."""

import numpy as np
import pytest

import attnkit

D, H, LENGTHS = 3, 4, [5, 3, 1]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_formula(x, params, end):
    """The hidden states of one direction: i and f read the cell state before, o the one after."""
    h, c, states = np.zeros(H), np.zeros(H), []
    of_i, of_f, of_o = params[f"peephole_{end}"]
    for row in x:
        z = params[f"weight_ih_{end}"] @ row + params[f"weight_hh_{end}"] @ h
        i, f, g, o = np.split(z + params[f"bias_ih_{end}"] + params[f"bias_hh_{end}"], 4)
        c = sigmoid(f + of_f * c) * c + sigmoid(i + of_i * c) * np.tanh(g)
        h = sigmoid(o + of_o * c) * np.tanh(c)
        states.append(h)
    return np.array(states)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("endings", [[""], ["", "_reverse"]], ids=["forward", "both"])
def test_peepholes_are_those_of_the_formula(layers, endings):
    rng, params = np.random.default_rng(0), {}
    for layer in range(layers):
        width = D if layer == 0 else H * len(endings)
        for ending in endings:
            end = f"l{layer}{ending}"
            params |= {
                f"weight_ih_{end}": rng.normal(size=(4 * H, width)) / 2,
                f"bias_ih_{end}": rng.normal(size=4 * H),
            }
            params |= {f"weight_hh_{end}": rng.normal(size=(4 * H, H)) / 2, f"bias_hh_{end}": rng.normal(size=4 * H)}
            params[f"peephole_{end}"] = rng.normal(size=(3, H))
    x = rng.normal(size=(len(LENGTHS), max(LENGTHS), D))
    options = {"layers": layers, "bidirectional": len(endings) == 2, "lengths": np.array(LENGTHS)}
    found = attnkit.rnn(x, cell="lstm", params=params, **options)["x"]
    for row, length in enumerate(LENGTHS):
        y = x[row, :length]
        for layer in range(layers):
            forward = by_formula(y, params, f"l{layer}")
            reverse = [by_formula(y[::-1], params, f"l{layer}_reverse")[::-1]] if len(endings) == 2 else []
            y = np.concatenate([forward, *reverse], axis=1)
        np.testing.assert_allclose(found[row, :length], y, rtol=0, atol=1e-12)
        assert not found[row, length:].any()
