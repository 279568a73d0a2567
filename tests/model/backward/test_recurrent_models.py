"""Gradients of whole recurrent models against torch.autograd, frozen by make_recurrent_gradients.py."""

import json
from typing import Any

import numpy as np
import pytest

from attnkit.checkpoints.publishing import assemble_checkpoint, publish_parameters, published_tensors
from attnkit.model import Model
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from tests.places import REFERENCES

MODELS, GRADIENTS = (np.load(REFERENCES / f"recurrent_{name}.npz") for name in ("models", "gradients"))
CASES = [*dict.fromkeys(name.partition("/")[0] for name in MODELS), "classifier"]
TOLERANCES = {"float64": 1e-9, "float32": 1e-5}


def members(archive: Any, case: str) -> dict[str, np.ndarray]:
    """Return the arrays of a case."""
    return {name.removeprefix(f"{case}/"): archive[name] for name in archive if name.startswith(f"{case}/")}


def case_of(case: str) -> dict[str, np.ndarray]:
    """Return the model, the inputs and the logits of a case."""
    return members(GRADIENTS if case == "classifier" else MODELS, case)


def load_case(case: str, dtype: str) -> tuple[dict[str, Any], Model, dict[str, StackInputs]]:
    """Return config.json, the model and the inputs of a case."""
    arrays = case_of(case)
    raw = json.loads(str(arrays["config"]))
    tensors = {key.removeprefix("weights/"): one.astype(dtype) for key, one in arrays.items() if "weights/" in key}
    checkpoint = assemble_checkpoint(raw, tensors)
    if case == "lstm":
        return raw, Model(checkpoint.config, checkpoint.params), {"decoder": StackInputs(arrays["ids"])}
    mask = np.arange(arrays["ids"].shape[1]) < arrays["lengths"][:, None]
    if case == "classifier":
        inputs = {"decoder": StackInputs(arrays["ids"], mask[:, None])}
    else:
        inputs = {"encoder": StackInputs(arrays["ids"], mask[:, None]), "decoder": StackInputs(arrays["target"])}
    return raw, Model(checkpoint.config, checkpoint.params), inputs


STORED = {case: [name[8:] for name in case_of(case) if name.startswith("weights/")] for case in CASES}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_a_padded_batch_are_those_of_autograd(case: str, dtype: str) -> None:
    raw, model, inputs = load_case(case, dtype)
    expected = {name: one for name, one in members(GRADIENTS, case).items() if name in ("slope", *STORED[case])}
    logits, recorded = run_model(model, inputs)
    np.testing.assert_allclose(logits, case_of(case)["logits"], rtol=0, atol=TOLERANCES[dtype] * 10)
    gradients = model_backward(model, recorded, expected.pop("slope").astype(dtype)).params
    found = publish_parameters(published_tensors(raw), gradients)
    assert sorted(found) == sorted(expected)
    for name, gradient in expected.items():
        assert found[name].dtype == dtype
        worst = np.abs(found[name] - gradient).max() / np.abs(gradient).max()
        assert worst <= TOLERANCES[dtype], (name, worst)
