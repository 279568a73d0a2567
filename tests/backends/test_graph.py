"""The graph of every kind of model has the same values under JAX, compiled, as under NumPy."""

from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from attnkit.backends.jax.formulas import JAX
from attnkit.model.graph import recall, recurrence
from attnkit.model.graph.kinds import KINDS
from attnkit.model.passes.model_graph import model_graph
from tests.model.test_graph import as_inputs, assert_same
from tests.registry import load_core, make_batch, shallow

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")
NAMES = [  # every kind of node, pooling, and addition to scores
    "bert-rank", "bloom", "clip:text", "deberta-v2", "deepseek_v3", "dinov2-registers", "dinov3", "gemma3", "gpt_oss",
    "idefics3:vision", "lfm2-biases", "qwen3_5_text", "siglip:vision", "t5", "vit", "waves/group",
]  # fmt: skip
SINGLE = ("deepseek_v3", "vit")
# what NumPy makes of a sound, and states, of which JAX scans over the tokens those of models
OF_THE_HOST = {"spectrogram", "samples", *recurrence.KINDS, *recall.KINDS}
LIMITS = {"float64": 1e-9, "float32": 2e-4}


def graph_of(name):
    core = shallow(load_core(name))
    return model_graph(core, as_inputs(make_batch(core.config)))


def evaluate_all(graph, precision, roots):
    memo = {}
    for site in graph.nodes:
        graph.evaluate(site, roots, precision=precision, memo=memo)
    return memo


@pytest.mark.parametrize("name", NAMES)
def test_the_values_are_those_of_numpy(name):
    graph = graph_of(name)
    for precision in ("float64", "float32") if name in SINGLE else ("float64",):
        expected = evaluate_all(graph, precision, graph.roots)
        with jax.enable_x64(precision == "float64"):
            compiled = jax.jit(lambda roots: evaluate_all(replace(graph, functions=JAX), precision, roots))  # noqa: B023
            values = {site: np.asarray(one) for site, one in compiled(graph.roots).items()}
        for site in graph.nodes:
            assert values[site].dtype.kind == expected[site].dtype.kind, site
            assert_same(values[site], expected[site], site, LIMITS[precision])


@pytest.mark.parametrize("name", ["vit", "dinov2-registers"])  # without and with a kernel that widens
def test_an_image_of_another_size_has_positions_between_those_of_the_model(name):
    core = load_core(name)
    batch = make_batch(core.config)
    graph = model_graph(core, as_inputs(replace(batch, pixels=np.tile(batch.pixels, (1, 1, 1, 2)))))
    site = "encoder.positions"
    expected = graph.evaluate(site, graph.roots)
    with jax.enable_x64(True):
        values = jax.jit(lambda roots: replace(graph, functions=JAX).evaluate(site, roots))(graph.roots)
    assert_same(np.asarray(values), expected, site, LIMITS["float64"])


def test_the_models_have_every_kind_of_node():
    found = {node.kind for graph in map(graph_of, NAMES) for node in graph.nodes.values()}
    assert found | OF_THE_HOST == {*KINDS}
