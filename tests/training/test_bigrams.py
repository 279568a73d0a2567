"""The pieces together: bigram logits, trained on a text to the entropy of its bigrams, stopped and resumed."""

import numpy as np
import pytest

from attnkit.model.formulas.loss import LossOptions, loss_and_gradient
from attnkit.training.batches import block_batch, consecutive_blocks
from attnkit.training.numpy_state import clip_gradients
from attnkit.training.optimizers import Optimizer, ParameterBuffer, optimizer_options
from attnkit.training.schedules import SCHEDULES, ScheduleOptions

SYMBOLS, STEPS = 5, 300
RNG = np.random.default_rng(7)
CHAIN = RNG.dirichlet(np.full(SYMBOLS, 0.4), SYMBOLS)


def draw_text(length):
    ids = [0]
    for _ in range(length - 1):
        ids.append(int(RNG.choice(SYMBOLS, p=CHAIN[ids[-1]])))
    return np.array(ids)


TEXT = draw_text(4000)


class Run:
    """A table (N, N) of logits, row by id, and its optimizer."""

    def __init__(self):
        self.parameters = ParameterBuffer({"table": (SYMBOLS, SYMBOLS)})
        self.optimizer = Optimizer(self.parameters, optimizer_options("adamw", lr=0.1, weight_decay=0.0))
        self.losses = []

    def steps(self, first, last):
        for step in range(first, last + 1):
            batch = block_batch(TEXT, 8, 32, seed=1, step=step)
            logits = self.parameters["table"][batch.ids]
            loss, slope = loss_and_gradient(logits, batch.targets, in_place=True)
            gradients = self.parameters.zeros()
            np.add.at(gradients["table"], batch.ids, slope)
            clip_gradients(gradients.flat, 1.0)
            self.optimizer.step(gradients, SCHEDULES["cosine"](step, ScheduleOptions(STEPS, 20)))
            self.losses.append(float(loss))
        return self


def test_the_loss_falls_to_the_entropy_of_the_text():
    run = Run().steps(1, STEPS)
    counts = np.zeros((SYMBOLS, SYMBOLS))
    np.add.at(counts, (TEXT[:-1], TEXT[1:]), 1)
    entropy = -(counts * np.log(counts / counts.sum(axis=1, keepdims=True), where=counts > 0, out=counts * 0)).sum()
    totals = [
        loss_and_gradient(run.parameters["table"][one.ids], one.targets, LossOptions(reduction="sum"))[0]
        for one in consecutive_blocks(TEXT, 16, 64)
    ]
    assert run.losses[0] == pytest.approx(np.log(SYMBOLS))
    assert entropy <= sum(totals) < 1.02 * entropy


def test_a_run_that_was_stopped_goes_on_with_the_same_bits():
    whole, first, second = Run().steps(1, 30), Run().steps(1, 11), Run()
    second.parameters.flat[...] = first.parameters.flat
    second.optimizer.load_state({name: array.copy() for name, array in first.optimizer.state().items()})
    second.steps(12, 30)
    assert second.losses == whole.losses[11:]
    np.testing.assert_array_equal(second.parameters.flat, whole.parameters.flat)
