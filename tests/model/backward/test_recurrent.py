"""The adjoints of recurrent cells, compared with finite differences."""

import numpy as np
import pytest

from attnkit.model.backward.recurrent_backward import direction_backward
from attnkit.model.formulas.recurrent import run_direction
from attnkit.model.formulas.recurrent_cells import State
from tests.model.recurrent_cases import VARIANTS, random_layer


@pytest.mark.parametrize(("cell", "more"), VARIANTS)
def test_gradients_are_finite_differences(cell, more, directions):
    rng, parameters = np.random.default_rng(0), random_layer(cell, 3, 4, **more)
    output = more.get("projection", 4)
    arrays = {"x": rng.standard_normal((2, 5, 3)), "h": rng.standard_normal((2, output))} | parameters
    arrays |= {"c": rng.standard_normal((2, 4))} if cell == "lstm" else {}
    grad, lengths = rng.standard_normal((2, 5, output)), np.array([5, 3])

    def run(values):
        own = {name: values[name] for name in parameters}
        state = State(values["h"], values.get("c"))
        return own, run_direction(cell, values["x"], own, state, lengths=lengths, reverse=True)

    own, result = run(arrays)
    back = direction_backward(cell, grad, arrays["x"], own, result, lengths=lengths, reverse=True)
    gradients = {"x": back.x, "h": back.state.hidden, **back.parameters}
    gradients |= {"c": back.state.cell} if cell == "lstm" else {}
    assert set(gradients) == set(arrays)
    directions(lambda values: float((run(values)[1].outputs * grad).sum()), arrays, gradients, rng)
