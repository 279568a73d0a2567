"""The law of the graph: it computes what a whole pass, an incremental pass and each text alone compute, by site."""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from attnkit import model
from attnkit.errors import UsageError
from attnkit.model.formulas.positions import token_positions
from attnkit.model.graph.graph import CycleError, Known
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests.registry import REGISTRY, Batch, kind_of, load_core, make_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")
# kinds of models whose graph is refused; their passes agree all the same
NO_GRAPH = {"stacks without embeddings"}
# intermediates of a whole pass that the graph lacks: projections of distances
NO_NODES = re.compile(r"\.self\.relative$")
EXACT, SINGLE = 1e-12, 3e-5  # of the largest number of a site
# its states are read near 0 and normalized: float32 is up to 3.1e-5 off, by the loops of OpenBLAS for four processors
NOISY = {"gguf/qwen3_next": 1e-4}


class Walked(NamedTuple):
    """A model, a padded batch, and every intermediate by site: by its graph, else by its own pass."""

    core: model.Model
    batch: Batch
    sites: dict[str, np.ndarray]
    compute: Callable  # (core, batch) -> such arrays


@pytest.mark.parametrize("name", REGISTRY)
def test_the_graph_is_every_pass_of_a_model(name):
    one = walk(name)
    check_whole_pass(one)
    check_second_text(one)
    if one.core.config.decoder and one.core.config.head and not one.core.config.classes:
        check_incremental_pass(one)
        check_compiled_steps(one, NOISY.get(name, SINGLE))


def walk(name, *lengths):
    core = load_core(name)
    batch = make_batch(core.config, *lengths)
    compute = run_whole if kind_of(core.config) in NO_GRAPH else evaluate
    return Walked(core, batch, compute(core, batch), compute)


def as_inputs(batch):
    return Inputs(
        ids=batch.ids,
        target=batch.target,
        mask=batch.mask,
        target_mask=batch.target_mask,
        types=batch.types,
        image=batch.pixels,
        features=batch.sound,
    )


def evaluate(core, batch):
    """Every node of the graph of a model in float64, by site."""
    graph, memo = model_graph(core, as_inputs(batch)), {}
    for site, node in graph.nodes.items():
        assert graph.evaluate(site, graph.roots, memo=memo).shape == node.shape, site
    return memo


def run_whole(core, batch, dtype="float64"):
    """Every intermediate of the model's own pass, by name."""
    saved, config, fields = {}, core.config, {}

    def hook(name):
        return lambda array: saved.__setitem__(name, array) or array

    for stack in config.stacks:
        mask = batch.padding(stack, config)
        padding = None if mask is None or mask.all() else mask[:, None]
        positions = None if padding is None else token_positions(mask)
        fields |= {"mask": padding, "positions": positions, "segment_ids": batch.types}
        context = model.Context(hook=hook, dtype=dtype, **fields)
        x = model.run(core, config.plan(stack), wide(batch.first(stack, config), dtype), context)
        fields = {"memory": x, "memory_mask": padding, "source_states": context.last_states()}
    if config.pooler:
        model.pool_first(core, x, hook)
    if config.has_probe:
        model.pool_by_probe(core, x, hook)
    if config.head:
        model.head_logits(core, x, hook, padding)
    return saved


def wide(array, dtype="float64"):
    return array.astype(dtype) if array.dtype.kind == "f" else array


def assert_same(found, expected, site, tolerance=EXACT):
    assert found.shape == expected.shape, site
    finite = np.isfinite(expected)
    assert np.array_equal(finite, np.isfinite(found)), site
    largest = np.abs(expected[finite]).max(initial=1e-30)
    assert np.abs(found[finite] - expected[finite]).max(initial=0) <= tolerance * largest, site


def check_whole_pass(walked):
    """The graph, and the pass of a whole padded batch; a graph that is refused, by its sentence."""
    if walked.compute is not evaluate:
        with pytest.raises(UsageError, match="no embeddings"):
            model_graph(walked.core, as_inputs(walked.batch))
        return
    saved = run_whole(walked.core, walked.batch)
    for site, array in saved.items():
        assert (site in walked.sites) != bool(NO_NODES.search(site)), site
        if site in walked.sites:
            assert_same(walked.sites[site], array, site)


def check_second_text(walked):
    """The second text of the batch, which has padding there and none alone."""
    alone = walked.compute(walked.core, walked.batch.alone(1))
    assert {*alone} == {*walked.sites}
    masks = (walked.batch.mask, walked.batch.target_mask)
    real = {(mask.shape[1], mask[1].sum()): np.flatnonzero(mask[1]) for mask in masks if mask is not None}
    for site, array in walked.sites.items():
        if array.ndim > alone[site].ndim:  # rows of positions, which texts without padding share
            expected, found = alone[site], array[1]
        elif len(array) != 2:
            expected, found = alone[site], array
        else:
            expected, found = alone[site][0], array[1]
        for axis, sizes in enumerate(zip(found.shape, expected.shape, strict=True)):
            if sizes in real:
                found = found.take(real[sizes], axis)
        assert_same(found, expected, site)


def check_incremental_pass(walked):
    """The first text token by token: keys and values of all tokens so far, other sites of the token alone."""
    kept = {}
    steps = incremental_steps(walked, "float64", hook=lambda name: lambda one: kept.__setitem__(name, one) or one)
    for at, logits in enumerate(steps):
        assert_same(logits, walked.sites["logits"][:1, at], f"logits of token {at}")
        for site, array in kept.items():
            if site != "logits" and site in walked.sites:
                assert_same(array, at_step(walked.sites[site][:1], array.shape, at), f"{site} of token {at}")
        assert kept
        kept.clear()


def check_compiled_steps(walked, limit):
    """The same in float32 and without a hook, where each token after the first is a compiled step."""
    for at, logits in enumerate(incremental_steps(walked, None)):
        assert_same(logits, walked.sites["logits"][:1, at], f"logits of token {at}", limit)


def incremental_steps(walked, dtype, **fields):
    """The logits after each token of the first text, which is read token by token with a cache."""
    core, text = walked.core, walked.batch.alone(0)
    if core.config.encoder:
        context = model.Context(dtype=dtype)
        source = text.first("encoder", core.config)
        source = wide(source) if dtype else source
        fields["memory"] = model.run(core, core.config.plan("encoder"), source, context)
        fields["source_states"] = context.last_states()
    decoder = model.CachedDecoder(core, dtype=dtype, **fields)
    for token in text.first("decoder", core.config).T:
        yield decoder(token[None])


def at_step(array, shape, at):
    """The part of an array of all tokens that the step of one token computes: its own, or those up to it."""
    for axis, (size, wanted) in enumerate(zip(array.shape, shape, strict=True)):
        if size != wanted:
            array = array.take([at] if wanted == 1 else range(wanted), axis)
    return array


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3-long", "qwen3-yarn", "gpt_oss", "deepseek_v2"])
def test_each_text_of_a_batch_rotates_by_its_own_length(name):
    """The first text is longer than those that the model was first trained with, the second is not."""
    one = walk(name, 67, 9)
    for site, array in run_whole(one.core, one.batch).items():
        assert_same(one.sites[site], array, site)
    check_second_text(one)


@functools.cache
def gpt2():
    core = load_core("gpt2")
    return model_graph(core, as_inputs(make_batch(core.config)))


def test_a_site_is_computed_from_the_nearest_known_sites():
    graph = gpt2()
    ones = np.ones(graph.nodes["decoder.0.ffn.hidden"].shape)
    known = {**graph.roots, "decoder.0.ffn.activated": ones, "decoder.0.ffn.output": ones}
    assert [
        stage.site for stage in graph.cone("decoder.0.ffn.output", Known(known, hidden=["decoder.0.ffn.output"]))
    ] == ["decoder.0.ffn.output"]
    result = graph.evaluate("decoder.0.ffn.output", Known(known, hidden=["decoder.0.ffn.output"]))
    parameters = graph.core.params["decoder.0.ffn"]
    assert np.allclose(result, parameters["w2"].sum(axis=0) + parameters["b2"], rtol=1e-6)  # ones times W2


def test_a_changed_stage_may_not_read_what_is_computed_from_it():
    graph = gpt2()
    norm = graph.nodes["decoder.0.norm1"]._replace(inputs=("decoder.0.self.residual",))
    with pytest.raises(CycleError):
        graph.evaluate("decoder.0.norm1", graph.roots, {norm.site: norm})


def test_sixteen_bits_round_every_stage():
    graph = gpt2()
    for precision, digits in (("bfloat16", 8), ("float16", 11)):
        result = graph.evaluate("decoder.0.norm1", graph.roots, precision=precision)
        mantissa = np.frexp(result)[0] * 2.0**digits  # has so many bits, of which the first is 1
        assert np.array_equal(mantissa, np.round(mantissa)), precision
        assert result.dtype == np.float32
