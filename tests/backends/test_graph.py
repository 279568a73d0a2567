"""The graph of every model has the same values under JAX, compiled, as under NumPy."""

from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from attnkit.backends.jax.formulas import JAX
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from attnkit.model.graph.models import model_graph
from attnkit.model.graph.nodes import Inputs
from tests.drawing import drawn_models, write_model
from tests.model.test_graph import TEXT, load, make_inputs


def evaluate_all(graph, precision, roots):
    memo = {}
    for site in graph.nodes:
        graph.evaluate(site, roots, precision=precision, memo=memo)
    return memo


def assert_same_values(core, inputs):
    graph = model_graph(core, inputs)
    for precision, limit in (("float64", 1e-9), ("float32", 2e-4)):
        expected = evaluate_all(graph, precision, graph.roots)
        with jax.enable_x64(precision == "float64"):
            compiled = jax.jit(lambda roots: evaluate_all(replace(graph, functions=JAX), precision, roots))  # noqa: B023
            values = {site: np.asarray(one) for site, one in compiled(graph.roots).items()}
        for site in graph.nodes:
            ours, known = values[site], expected[site]
            assert ours.shape == known.shape and ours.dtype.kind == known.dtype.kind, site
            finite = np.isfinite(known)
            assert np.array_equal(finite, np.isfinite(ours)), site
            largest = np.abs(known[finite]).max(initial=1e-30)
            assert np.abs(ours[finite] - known[finite]).max(initial=0) <= limit * largest, (site, precision)


@pytest.mark.parametrize("name", [*TEXT, *drawn_models()])
def test_a_padded_batch(name, tmp_path):
    core = load(name, tmp_path)
    assert_same_values(core, make_inputs(core))


@pytest.mark.parametrize("name", ["vit", "dinov2", "dinov2-registers"])
def test_an_image_of_another_size(name, tmp_path):
    core = (
        load(name)
        if name == "vit"
        else layers.complete_model(open_checkpoint(str(write_model(name, tmp_path, kind="vision"))))
    )
    image = np.random.default_rng(0).normal(size=(2, 3, 21, 28)).astype(np.float32)
    assert_same_values(core, Inputs(image=image))
