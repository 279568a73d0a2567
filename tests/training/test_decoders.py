"""Training the decoders of today: gradients of their published tensors, and folders that hold what was trained."""

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.training.batches import Batch
from attnkit.training.folder import model_files, write_folder
from attnkit.training.numpy_state import NumpyState, StepPlan
from attnkit.training.recipe import Recipe
from tests.drawing import draw_tensors, drawn_models
from tests.places import arrays

TABLE = drawn_models()
COPIED = (  # whose published tensors hold parameters that no view of them is
    "gemma", "gemma2", "gemma3", "stablelm-parallel", "gpt_neox", "gpt_neox-serial", "falcon-40b", "falcon-11b",
    "falcon-rw", "bloom", "deepseek_v2", "deepseek_v2-greedy", "deepseek_v3", "deepseek_v3-halves",
)  # fmt: skip


def state_of(name, dtype, **recipe):
    """A model in training whose tensors are drawn, and a step on a text of it."""
    raw, shapes = TABLE[name]["config"], TABLE[name]["shapes"]
    tensors = {key: array.astype(dtype) for key, array in draw_tensors(raw["model_type"], shapes).items()}
    ids = arrays("decoders")[f"{name}/ids"][:, :8]
    batch = Batch(ids[:, :-1], ids[:, 1:], None, None, None)
    state = NumpyState(Recipe(**recipe), raw, tensors)
    return state, StepPlan(batch, [slice(0, len(ids))], 1, list(state.parameters), 1.0)


@pytest.mark.parametrize("name", TABLE)
def test_gradients_of_published_tensors_are_those_of_differences(name):
    """The derivative of the loss along a random direction of all tensors, and its difference quotient."""
    state, plan = state_of(name, np.float64)
    state.collect_gradients(plan)
    gradients, start = state.gradients.flat.copy(), state.parameters.flat.copy()
    direction = np.random.default_rng(1).standard_normal(start.size) * (np.abs(start) > 0)

    def loss_at(distance):
        state.parameters.flat[...] = start + distance * direction
        state.load(state)
        return state.collect_gradients(plan)

    slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6
    assert slope == pytest.approx(float(gradients @ direction), rel=1e-6)


@pytest.mark.parametrize("name", TABLE)
def test_a_folder_holds_the_model_that_was_trained(name, tmp_path):
    state, plan = state_of(name, np.float32, lr=1e-2, warmup=0)
    before = {key: array.copy() for key, array in state.parameters.items()}
    for _ in range(2):
        state.step(plan)
    still = [key for key, array in state.parameters.items() if np.array_equal(array, before[key])]
    assert not [key for key in still if state.gradients[key].any()]
    assert not [key for key in still if "norm" in key]
    raw = TABLE[name]["config"]
    write_folder(str(tmp_path), model_files(raw, state.parameters))
    opened = open_checkpoint(str(tmp_path))
    assert set(opened.tensors()) == set(TABLE[name]["shapes"])
    context = model.Context(dtype="float32")
    expected, actual = (
        model.head_logits(one, model.run(one, one.config.plan("decoder"), plan.batch.ids, context))
        for one in (state.model, model.Model(opened.config, opened.params))
    )
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", TABLE)
def test_parameters_are_views_where_a_view_of_their_tensors_can_be(name):
    state, _ = state_of(name, np.float32)
    all_arrays = [array for parameters in state.model.params.values() for array in parameters.values()]
    is_copied = not all(np.shares_memory(array, state.parameters.flat) for array in all_arrays)
    assert is_copied == (name in COPIED)
