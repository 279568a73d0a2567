"""The graph of a model computes what the model's own forward pass does, for every family, padded batches included."""

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import UsageError
from attnkit.inputs import layers
from attnkit.model import transformer
from attnkit.model.graph.graph import CycleError, Known
from attnkit.model.graph.models import model_graph
from attnkit.model.graph.nodes import Inputs
from tests.drawing import drawn_models, write_model
from tests.places import folder

TEXT = [
    "albert", "albert-groups", "bert", "bert-mlm", "bert-question", "bert-rank", "bert-score", "bert-sequence",
    "camembert", "deberta-v2", "deberta-v3", "distilbert", "electra", "electra-discriminator", "gpt2",
    "gpt2-scaled", "llama", "llama-dynamic", "llama-linear", "llama-yarn", "llama3", "marian", "mistral",
    "modernbert", "modernbert-biased", "mpnet", "openai-gpt", "qwen2", "roberta", "t5", "t5-gated",
]  # fmt: skip


def load(name, tmp_path=None):
    """A reference model, or a drawn one in a new folder."""
    place = folder(name) if name in TEXT or tmp_path is None else str(write_model(name, tmp_path))
    return layers.complete_model(open_checkpoint(place))


def make_inputs(core, padded=True):
    """Ids of two texts, of which the second is shorter, and of targets for a decoder."""
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(5, 30, (2, 7)), np.ones((2, 7), bool)
    mask[1, 5:] = not padded
    target = rng.integers(5, 30, (2, 6)) if core.config.encoder and core.config.decoder else None
    return Inputs(ids=ids, target=target, mask=mask)


def run_model(core, inputs):
    """Every intermediate of the model's own pass in float64, by name."""
    saved, memory = {}, None

    def hook(name):
        return lambda array: saved.__setitem__(name, array) or array

    for stack in core.config.stacks:
        ids, mask = inputs.of(stack, core.config)
        context = model.Context(hook=hook, dtype="float64")
        if mask is not None:
            context.mask, context.positions = mask[:, None, :], transformer.token_positions(mask)
        if memory is not None:
            context.memory, context.memory_mask = memory, inputs.mask[:, None, :]
        x = inputs.image.astype(np.float64) if ids is None else ids
        memory = x = model.run(core, core.config.plan(stack), x, context)
    if core.config.head:
        mask = inputs.of(core.config.stacks[-1], core.config)[1]
        model.head_logits(core, x, hook, None if mask is None else mask[:, None, :])
    return saved


def check_all_stages(core, inputs):
    graph, memo = model_graph(core, inputs), {}
    saved = run_model(core, inputs)
    assert {one for one in saved if not one.endswith(".relative")} <= {*graph.nodes}
    for site, stage in graph.nodes.items():
        result = graph.evaluate(site, graph.roots, memo=memo)
        assert result.shape == stage.shape, site
        if site in saved:
            expected = saved[site]
            finite = np.isfinite(expected)
            assert np.array_equal(finite, np.isfinite(result)), site
            largest = np.abs(expected[finite]).max(initial=1e-30)
            assert np.abs(result[finite] - expected[finite]).max(initial=0) <= 1e-6 * largest, site


@pytest.mark.parametrize("name", [*TEXT, *drawn_models()])
def test_the_graph_computes_a_padded_batch_as_the_model_does(name, tmp_path):
    core = load(name, tmp_path)
    check_all_stages(core, make_inputs(core))


def test_the_graph_computes_an_image_as_the_model_does():
    core = load("vit")
    cut = core.config.patches
    image = np.random.default_rng(0).normal(size=(2, cut.channels, cut.height, cut.width)).astype(np.float32)
    check_all_stages(core, Inputs(image=image))


@pytest.mark.parametrize("name", ["dinov2", "dinov2-registers"])
def test_the_graph_computes_the_labels_of_an_image_as_the_model_does(name, tmp_path):
    core = layers.complete_model(open_checkpoint(str(write_model(name, tmp_path, kind="vision"))))
    image = np.random.default_rng(0).normal(size=(2, 3, 21, 21)).astype(np.float32)
    check_all_stages(core, Inputs(image=image))


def test_a_site_is_computed_from_the_nearest_known_sites():
    core = load("gpt2")
    graph = model_graph(core, make_inputs(core, padded=False))
    ones = np.ones(graph.nodes["decoder.0.ffn.hidden"].shape)
    known = {**graph.roots, "decoder.0.ffn.activated": ones, "decoder.0.ffn.output": ones}
    assert [
        stage.site for stage in graph.cone("decoder.0.ffn.output", Known(known, hidden=["decoder.0.ffn.output"]))
    ] == ["decoder.0.ffn.output"]
    result = graph.evaluate("decoder.0.ffn.output", Known(known, hidden=["decoder.0.ffn.output"]))
    parameters = core.params["decoder.0.ffn"]
    assert np.allclose(result, parameters["w2"].sum(axis=0) + parameters["b2"], rtol=1e-6)  # ones times W2


def test_a_changed_stage_may_not_read_what_is_computed_from_it():
    core = load("gpt2")
    graph = model_graph(core, make_inputs(core))
    norm = graph.nodes["decoder.0.norm1"]._replace(inputs=("decoder.0.self.residual",))
    with pytest.raises(CycleError):
        graph.evaluate("decoder.0.norm1", graph.roots, {norm.site: norm})


def test_sixteen_bits_round_every_stage():
    core = load("gpt2")
    graph = model_graph(core, make_inputs(core))
    for precision, digits in (("bfloat16", 8), ("float16", 11)):
        result = graph.evaluate("decoder.0.norm1", graph.roots, precision=precision)
        mantissa = np.frexp(result)[0] * 2.0**digits  # has so many bits, of which the first is 1
        assert np.array_equal(mantissa, np.round(mantissa)), precision
        assert result.dtype == np.float32


@pytest.mark.parametrize("name", ["lstm", "seq2seq", "transformer"])
def test_models_without_such_stages_are_refused(name):
    with pytest.raises(UsageError, match=r"recurrent|no embeddings"):
        model_graph(load(name), Inputs(ids=np.ones((1, 3), int)))
