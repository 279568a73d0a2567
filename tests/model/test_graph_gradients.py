"""The law of gradients: those of the graph of a model are those of its recorded pass, and central differences."""

import re
from dataclasses import replace

import numpy as np
import pytest

from attnkit.errors import UsageError
from attnkit.model.backward.tied import cast_parameters, sum_tied
from attnkit.model.config import Config
from attnkit.model.context import Model
from attnkit.model.formulas.experts import ExpertConfig
from attnkit.model.formulas.positions import token_positions
from attnkit.model.graph.graph import Graph, GraphGradients
from attnkit.model.graph.kinds import KINDS
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from attnkit.model.passes.model_graph import model_graph
from tests.model.test_graph import NO_GRAPH, as_inputs, assert_same, wide
from tests.registry import COPIES, REGISTRY, kind_of, load_core, make_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")


def load(name, *lengths):
    """A model with parameters of float64, and a batch."""
    core = load_core(name)
    return core._replace(params=cast_parameters(core.params, np.float64)), make_batch(core.config, *lengths)


@pytest.mark.parametrize("name", [name for name in REGISTRY if not name.startswith(COPIES)])
def test_gradients_of_the_graph_are_those_of_the_recorded_pass(name):
    """Of every parameter and intermediate to 1e-12 of the largest number of each, in float64, and the values too."""
    check_gradients(*load(name))


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3-long"])
def test_gradients_of_texts_that_rotate_by_their_own_lengths(name):
    check_gradients(*load(name, 67, 9))


def stack_inputs(core, batch):
    """What the recorded pass of a model reads."""
    inputs = {}
    for stack in core.config.stacks:
        mask = batch.padding(stack, core.config)
        rules = {} if mask is None else {"mask": mask[:, None], "positions": token_positions(mask)}
        types = None if stack == "decoder" and core.config.encoder else batch.types
        inputs[stack] = StackInputs(wide(batch.first(stack, core.config)), segment_ids=types, **rules)
    return inputs


def check_gradients(core, batch):
    inputs, seen, kept = stack_inputs(core, batch), {}, {}
    y, recorded = run_model(core, inputs, dtype="float64", hook=lambda name: lambda one: seen.setdefault(name, one))
    dy = np.random.default_rng(0).standard_normal(y.shape) * np.isfinite(y)  # some words have the logit −∞
    expected = model_backward(core, recorded, dy, hook=lambda name: lambda one: kept.setdefault(name, one))
    check_slope(core, inputs, dy, expected.params)
    if kind_of(core.config) in NO_GRAPH:
        return
    last = core.config.plan(core.config.stacks[-1])[-1]
    hidden = f"{last.layer}.residual" if last.adds_residual else last.layer
    graph, found, memo = run_graph(core, as_inputs(batch), "logits" if core.config.head else hidden, dy)
    assert len({*seen} & {*memo}) > min(4, len(core.config.plan(core.config.stacks[0])) - 1)
    for site in {*seen} & {*memo}:
        assert_same(memo[site], seen[site], site)
    if not core.config.is_recurrent:  # of states the graph has the gradients that reach them outside their loops
        compare(found.sites, {name: one for name, one in kept.items() if not name.endswith(".relative")})
    assert found.params.keys() == expected.params.keys()
    for layer, names in expected.params.items():
        assert found.params[layer].keys() == names.keys(), layer
        compare(found.params[layer], names, layer)
    for root in {*graph.roots} & {*found.sites}:  # images and sounds
        compare(found.sites, {root: expected.inputs[core.config.stacks[0]]})


def check_slope(core, inputs, dy, gradients):
    """The derivative along a random direction of all parameters, and its central difference; tied ones move as one."""
    rng, ways, slope = np.random.default_rng(1), {}, 0.0
    for layer, names in gradients.items():
        for name, gradient in names.items():
            place = place_in_memory(core.params[layer][name])
            if place not in ways:
                ways[place] = rng.standard_normal(gradient.shape)
                slope += np.vdot(gradient, ways[place])

    def loss(step):
        params = {}
        for layer in core.params:
            params[layer] = dict(core.params[layer])
            for name, array in params[layer].items():
                way = ways.get(place_in_memory(array))
                if way is not None:  # that of a tied parameter may be transposed
                    params[layer][name] = array + step * (way if way.shape == array.shape else way.T)
        y, _ = run_model(core._replace(params=params), inputs, dtype="float64")
        return np.vdot(dy, np.where(np.isfinite(y), y, 0))

    limit = 1e-6 * max(abs(slope), np.abs(dy).max())
    difference = (loss(1e-6) - loss(-1e-6)) / 2e-6
    if abs(difference - slope) > limit:  # the norm of what is read of a state curves much where that is nearly 0
        difference = (loss(1e-7) - loss(-1e-7)) / 2e-7
    assert abs(difference - slope) <= limit, (difference, slope)


def place_in_memory(array):
    return array.__array_interface__["data"][0], array.size


def run_graph(core, inputs, output, dy=None):
    """The graph of a model, its gradients from that of an output [random numbers], and the value of every site."""
    graph, memo = model_graph(core, inputs), {}
    y = graph.evaluate(output, graph.roots, memo=memo)
    dy = np.random.default_rng(0).standard_normal(y.shape) if dy is None else dy
    sites, params = graph.backward({output: dy}, graph.roots, memo)
    return graph, GraphGradients(sites, sum_tied(params, core.params)), memo


def compare(found, expected, layer=""):
    for name, gradient in expected.items():
        # the gradients of the biases of keys are sums that cancel: compare with their weights'
        largest = np.abs(expected.get(re.sub(r"^b([qk])$", r"w\1", name), gradient)).max(initial=1e-300)
        assert np.abs(found[name] - gradient).max(initial=0) <= 1e-12 * largest, (layer, name)


DIFFERENCES = (
    "bert-sequence", "gpt2", "deepseek_v3", "qwen2_moe", "clip:text", "clip:vision", "siglip:vision",
    "dinov2-registers", "waves/layer", "waves/group", "recurrent/bahdanau", "recurrent/luong",
)  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_gradients_of_sites_are_differences(name):
    """Those that no recorded pass has as well: of rows of embeddings, vectors and samples."""
    core, batch = load(name)
    inputs = Inputs(sound=wide(batch.sound), mask=batch.mask) if core.config.sound else as_inputs(batch)
    output = "vector" if core.config.vector_width or core.config.has_probe else "logits"
    graph, found, memo = run_graph(core, inputs, output)
    rng, step, kinds, dy = np.random.default_rng(1), 1e-6, set(), found.sites[output]
    for site, gradient in found.sites.items():  # the last of each kind: differences of the first cancel more digits
        kind = graph.nodes[site].kind if site in graph.nodes else "root"
        if site == output or kind in kinds:
            continue
        kinds.add(kind)
        way = rng.standard_normal(gradient.shape)
        before = {**graph.roots, **memo}[site]
        above, below = (
            np.vdot(dy, graph.evaluate(output, {**graph.roots, site: before + sign * step * way})) for sign in (1, -1)
        )
        assert abs((above - below) / (2 * step) - np.vdot(gradient, way)) <= 1e-6 * np.abs(gradient * way).sum(), site
    assert {"heads", "mask", "norm"} <= kinds or "loop" in kinds


def test_positions_of_an_image_of_another_size_are_interpolated():
    core, batch = load("dinov2-registers")
    cut = core.config.patches
    size = cut.height + cut.patch_height, cut.width
    check_gradients(core, replace(batch, pixels=np.random.default_rng(0).normal(size=(2, cut.channels, *size))))


def test_a_kind_without_a_derivative_says_so():
    """The choice of experts is a constant; the adjoint of a spectrogram is not written; a later pass reads a state."""
    states = {"last window", "final state"}
    assert {name for name, kind in KINDS.items() if kind.pullback is None} == {"choose", "spectrogram"} | states
    nodes = {"chosen": Node("chosen", "choose", ("x",), (1, 1), options={"mixture": ExpertConfig(2, 1, 1)})}
    core, known = Model(Config("", 2), {"": {}}), {"x": np.zeros((1, 2))}
    graph, memo = Graph(core, Inputs(), nodes), {}
    graph.evaluate("chosen", known, memo=memo)
    with pytest.raises(UsageError, match="chosen is 'choose', which has no derivative"):
        graph.backward({"chosen": np.ones((1, 1))}, known, memo)


def test_a_graph_of_two_nodes_has_the_gradients_of_the_chain_rule():
    """y = 3 x w + x: dx = (3 w + 1) dy, dw = 3 x dy."""
    nodes = {
        "xw": Node("xw", "linear", ("x",), (1, 1), options={"names": ("w", "b")}),
        "y": Node("y", "add", ("xw", "x"), (1, 1), options={"factor": 3.0}),
    }
    core, known = Model(Config("", 1), {"": {"w": np.array([[5.0]])}}), {"x": np.array([[2.0]])}
    graph, memo = Graph(core, Inputs(), nodes), {}
    assert graph.evaluate("y", known, memo=memo).tolist() == [[32.0]]
    found = graph.backward({"y": np.array([[10.0]])}, known, memo)
    assert {site: one.item() for site, one in found.sites.items()} == {"y": 10.0, "xw": 30.0, "x": 160.0}
    assert found.params[""]["w"].tolist() == [[60.0]]
    twice = graph.backward({"y": np.array([[10.0]])}, known, memo, hook={"xw": lambda one: 2 * one}.get)
    assert twice.params[""]["w"].tolist() == [[120.0]]
    above = graph.backward({"y": np.array([[10.0]])}, {"xw": memo["xw"], **known}, memo)
    assert above.params == {}, "what a known site is computed from has no gradient"
