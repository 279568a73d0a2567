"""Every kind of model by JAX is what it is by NumPy: states, logits, intermediates, tokens, caches and streams.

A kind of layer is computed once: models have their layers up to the first of each kind (`shallow`), and those are
computed that have a trait which others do not have (`telling_models`).
"""

import itertools
from functools import cache

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from attnkit import model
from attnkit.backends.jax import engine as jax_engine
from attnkit.backends.jax import formulas
from attnkit.backends.jax.engine import JaxEngine
from attnkit.backends.jax.program import is_head_seen, is_seen
from attnkit.model import RecurrentConfig
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.graph.nodes import is_traced
from tests import registry
from tests.drawing import assert_near
from tests.registry import COPIES, REGISTRY, make_batch, shallow
from tests.traits import telling_models

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")
WHOLE = ("albert-groups", "t5")  # two layers of one kind, with parameters of their own group, or a bias of all
HIDDEN = (".lse", ".present_key", ".present_value")  # what NumPy shows besides
LIMITS = {"float32": 1e-5, "float64": 1e-9}
TOKENS = 11


@cache
def engine():
    return JaxEngine()


@cache
def core(name):
    return registry.load_core(name) if name in WHOLE else shallow(registry.load_core(name))


def both(name, one=None):
    """The model by NumPy, and by JAX."""
    return core(name), core(name)._replace(engine=one or engine())


@cache
def inputs(name):
    """A padded batch of two texts, or images or sounds; equal in every call."""
    return make_batch(core(name).config, TOKENS, 7)


def text(name, stack):
    """The first input of a stack by itself, without padding."""
    return inputs(name).alone(0).first(stack, core(name).config)[0]


def assert_close(ours, theirs, dtype, real=...):
    assert ours.shape == theirs.shape and ours.dtype.kind == theirs.dtype.kind
    ours, theirs = ours[real], theirs[real]
    same = np.isfinite(theirs)
    assert (same == np.isfinite(ours)).all()
    limit = LIMITS[dtype] * max(1, np.abs(theirs[same]).max(initial=0))
    np.testing.assert_allclose(ours[same], theirs[same], rtol=0, atol=limit)


def compute(one, batch, dtype, hook=model.no_hook):
    """The last states of every stack, those of recurrent layers, and the logits of a batch: (name, array, real)."""
    config, memory = one.config, {}
    for stack in config.stacks:
        mask = batch.padding(stack, config)
        padding = None if mask is None else mask[:, None]
        positions = None if mask is None else model.token_positions(mask)
        types = batch.types if stack == config.stacks[0] else None
        context = model.Context(padding, positions=positions, segment_ids=types, dtype=dtype, hook=hook, **memory)
        first = batch.first(stack, config)
        first = first.astype(dtype) if first.dtype.kind == "f" else first
        x = model.run(one, config.plan(stack), first, context)
        yield stack, x, ... if mask is None or isinstance(config, RecurrentConfig) else mask  # whose padding is zeros
        for layer, state in context.final_states.items():
            for number, part in enumerate(state):
                if part is not None:
                    yield f"{layer} {number}", part, ...
        memory = {"memory": x, "memory_mask": padding, "source_states": context.last_states()}
    if config.head:
        logits = model.head_logits(one, x, hook, padding)
        yield "logits", logits, ... if mask is None or config.is_head_pooled else mask


def keep_in(kept):
    """A hook that keeps every intermediate by its name."""
    return lambda name: lambda array: kept.setdefault(name, array)


def check(name, dtype, one=None):
    """A padded batch by NumPy and by JAX."""
    theirs, ours = (compute(each, inputs(name), dtype) for each in both(name, one))
    for (site, mine, real), (known, array, _) in zip(ours, theirs, strict=True):
        assert site == known
        assert_close(mine, array, dtype, real)


@pytest.mark.parametrize("name", [name for name in REGISTRY if not name.startswith(COPIES)])
def test_a_padded_batch_of_every_kind_of_model_in_float64(name):
    if name not in (*telling_models(), *WHOLE):
        pytest.skip("has no trait that the models computed here do not have")
    check(name, "float64")


@pytest.mark.parametrize("name", ["deberta-v3", "recurrent/luong"])
def test_float32(name):
    check(name, "float32")


@pytest.mark.parametrize("name", ["waves/short", "whisper"])
def test_one_sound_is_that_of_a_batch(name):
    ours, batch = both(name)[1], inputs(name)
    steps = ours.config.plan("encoder")
    alone = model.run(ours, steps, batch.sound[1], model.Context())
    assert_close(alone, model.run(both(name)[0], steps, batch.sound[1:], model.Context())[0], "float32")


@pytest.mark.parametrize("name", [name for name in REGISTRY if "/" not in name or name.startswith("waves/")])
def test_the_engine_asks_a_hook_for_the_intermediates_of_numpy(name):
    """Those of every step and of the head, whose values are not computed."""
    one, asked, known = registry.load_core(name), [], []
    config = one.config
    if config.is_recurrent:
        pytest.skip("a pass with a hook shows all of them")
    stack = config.stacks[0]
    steps, first = config.plan(stack), make_batch(config).first(stack, config)
    x = model.run(one, steps, first, model.Context(hook=known.append, weights="stats"))
    is_seen(one, steps, first, model.Context(hook=asked.append, weights="stats"))
    if config.head and len(config.stacks) == 1:
        model.head_logits(one, x, known.append)
        if config.pooler and not config.is_head_pooled:
            model.pool_first(one, x, known.append)
        is_head_seen(one, asked.append)
    asked, known = ({where for where in one if not where.endswith(HIDDEN)} for one in (asked, known))
    assert asked == known


@pytest.mark.parametrize("name", ["bert-sequence", "vit"])
def test_a_hook_that_reads_nothing_leaves_the_pass_compiled(name, monkeypatch):
    for function in ("_run_seen", "_head_seen"):
        monkeypatch.setattr(JaxEngine, function, None)  # which compute one operation after another
    [*compute(both(name)[1], inputs(name), "float64", lambda where: None)]


def test_a_recurrent_model_without_a_hook_is_compiled(monkeypatch):
    monkeypatch.setattr(JaxEngine, "_run_seen", None)
    [*compute(both("lstm")[1], inputs("lstm"), "float64")]


@pytest.mark.parametrize("name", ["deberta-v2", "gpt_oss"])
def test_traces_have_the_same_names_shapes_and_numbers(name):
    found = []
    for one in both(name)[::-1]:
        kept, stack = {}, one.config.stacks[0]
        context = model.Context(hook=keep_in(kept), weights="stats")
        model.run(one, one.config.plan(stack)[:6], text(name, stack), context)
        found.append(kept)
    assert [*found[0]] == [*found[1]] and f"{stack}.0.self.weights.lse" in found[0]
    for key, array in found[1].items():
        assert_close(found[0][key], array, "float32")


@pytest.mark.parametrize("name", ["deepseek_v3", "gemma3", "modernbert", "stablelm-parallel", "t5", "vit", "whisper",
                                  "waves/short"])  # fmt: skip
def test_traces_have_their_names_and_shapes_in_order(name, monkeypatch):
    """Those of passes of which nothing is computed: the shapes of JAX alone."""
    numpy, ours = both(name, JaxEngine())  # whose parameters are not kept: they are parts of a trace
    stack, known, found = numpy.config.stacks[0], {}, {}
    steps, first = numpy.config.plan(stack), inputs(name).first(stack, numpy.config)
    model.run(numpy, steps, first, model.Context(hook=keep_in(known)))

    def see(where, x):
        return found.setdefault(where, x) if is_traced(where) else x

    monkeypatch.setattr(jax_engine, "hook_of_arrays", lambda *_: see)
    monkeypatch.setattr(jax_engine, "to_numpy", lambda x, *_: x)
    jax.eval_shape(lambda: model.run(ours, steps, first, model.Context(hook=keep_in({}))))
    known = {where: array.shape for where, array in known.items() if not where.endswith(HIDDEN)}
    assert [*known.items()] == [(where, x.shape) for where, x in found.items()]


def test_traces_of_a_recurrent_model():
    found = []
    for one in both("recurrent/luong")[::-1]:
        kept = {}
        batch = inputs("recurrent/luong").alone(1)
        [*compute(one, batch, None, keep_in(kept))]
        found.append(kept)
    assert [*found[0]] == [*found[1]] and "decoder.0.rnn.forget_gate" in found[0]
    for key, array in found[1].items():
        assert_close(found[0][key], array, str(array.dtype))


def test_a_hook_replaces_what_later_layers_see():
    hooks, states = {"decoder.0.self.heads": np.zeros_like, "decoder.0.ffn": None}, []
    for one in both("gpt2"):
        x, steps = text("gpt2", "decoder"), one.config.plan("decoder")
        states.append([model.run(one, steps, x, model.Context(hook=hook)) for hook in (hooks.get, model.no_hook)])
    assert_close(states[1][0], states[0][0], "float32")
    assert np.abs(states[1][0] - states[1][1]).max() > 1e-3


def read_source(one, name):
    """The memory of one source by NumPy, as a decoder reads it; {} for a decoder alone."""
    if not one.config.encoder:
        return {}
    context = model.Context()
    states = model.run(one, one.config.plan("encoder"), text(name, "encoder"), context)
    return {"memory": states[None], "source_states": context.last_states()}


@pytest.mark.parametrize(
    "name", ["falcon-rw", "phi3-long", "gemma3", "gpt_oss", "deepseek_v3", "lfm2-biases", "t5", "bart"]
)
def test_tokens_after_a_prompt_have_the_logits_of_numpy(name):
    """Of texts longer than a window, and than those of other rotations."""
    numpy, jax = both(name)
    memory, rng = read_source(numpy, name), np.random.default_rng(0)
    ids = rng.integers(3, numpy.config.decoder.vocab - 1, (1, 70 if name == "phi3-long" else 20))
    ours, theirs = engine().decoder(jax, None, **memory), model.CachedDecoder(numpy, **memory)
    ends = (0, ids.shape[1] - 7, *range(ids.shape[1] - 6, ids.shape[1] + 1))
    for start, end in itertools.pairwise(ends):
        assert_near(ours(ids[:, start:end]), theirs(ids[:, start:end]), 4e-6)


@pytest.mark.parametrize("name", ["gpt2", "lfm2", "marian", "recurrent/luong"])
def test_greedy_tokens_beams_and_caches(name):
    numpy, jax = both(name)
    config, memory = numpy.config, read_source(numpy, name)
    ids, settings = text(name, "decoder")[:5], model.SamplingConfig(limit=50 if config.positions.size < 100 else 70)
    theirs, ours = model.CachedDecoder(numpy, **memory), engine().decoder(jax, None, **memory)
    expected, found = model.generate(theirs, ids, settings), model.generate(ours, ids, settings)
    assert found.ids == expected.ids
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-5)
    for layer, pair in ours.cache:
        for mine, known in zip(pair, dict(theirs.cache)[layer], strict=True):
            assert_close(mine, known, "float32")
    assert ours.cache.length == theirs.cache.length
    whole = np.array([[*ids, *found.ids]])
    more = [model.CachedDecoder(numpy, theirs.cache, **memory), engine().decoder(jax, ours.cache, **memory)]
    assert_close(*(decoder(whole) for decoder in more[::-1]), "float32")
    few = model.SamplingConfig(limit=4)
    beams = [model.beam_search(decoder, ids, few, 3)[0].ids for decoder in
             (model.CachedDecoder(numpy, **memory), engine().decoder(jax, None, **memory))]  # fmt: skip
    assert beams[0] == beams[1]


def test_a_text_is_continued_from_a_cache_of_numpy():
    numpy, jax = both("gpt2")
    ids, steps = text("gpt2", "decoder")[None], numpy.config.plan("decoder")
    caches = [model.KVCache(), model.KVCache()]
    for part in (ids[:, :6], ids[:, 6:]):
        states = [
            model.run(one, steps, part, model.Context(cache=cached))
            for one, cached in zip((jax, numpy), caches, strict=True)
        ]
        assert_close(*states, "float32")
    assert caches[0].length == caches[1].length == TOKENS


@pytest.mark.parametrize("is_left", [True, False])
def test_the_padding_of_a_batch_enters_no_state(is_left):
    """Each text, and what continues it, has the states and the numbers of the text alone."""
    numpy, jax = both("lfm2-biases")
    steps, rng = numpy.config.plan("decoder"), np.random.default_rng(0)
    ids, more, mask = rng.integers(3, 60, (2, 9)), rng.integers(3, 60, (2, 3)), np.ones((2, 12), bool)
    mask[1, slice(0, 4) if is_left else slice(5, 9)] = False
    padded, alone, real = model.KVCache(), model.KVCache(), mask[1, :9]
    positions = model.token_positions(mask)
    first = model.Context(mask=mask[:, None, :9], positions=positions[:, :9], cache=padded)
    assert_near(model.run(jax, steps, ids, first)[1, real],
                model.run(numpy, steps, ids[1:, real], model.Context(cache=alone))[0], 4e-6)  # fmt: skip
    for layer, (window,) in padded.states.items():
        assert_near(window[1], alone.states[layer][0][0], 4e-6)
    then = model.Context(mask=mask[:, None], positions=positions[:, 9:], cache=padded)
    assert_near(model.run(jax, steps, more, then)[1],
                model.run(numpy, steps, more[1:], model.Context(cache=alone))[0], 4e-6)  # fmt: skip


def test_every_activation_has_its_function_of_jax():
    assert {*formulas.ACTIVATIONS} == {*ACTIVATIONS}


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_computing_in_16_bits_gives_float32_nearby(compute):
    numpy, jax = both("distilbert", JaxEngine(compute))
    x, steps = text("distilbert", "encoder"), numpy.config.plan("encoder")
    theirs, ours = (model.run(one, steps, x, model.Context()) for one in (numpy, jax))
    error = np.abs(ours - theirs).max()
    assert ours.dtype == np.float32 and 1e-5 < error < 0.1


def test_the_first_layer_that_is_not_finite_is_named():
    """The first step of the second pass that has one, of the layers as the forward pass has them."""
    numpy, jax = both("gpt2")
    params = {layer: dict(numpy.params[layer]) for layer in numpy.params}
    params["decoder.0.ffn"]["b2"] = np.full_like(params["decoder.0.ffn"]["b2"], np.inf)
    named = []
    context = model.Context(on_non_finite=named.append)
    model.run(jax._replace(params=params), jax.config.plan("decoder"), text("gpt2", "decoder"), context)
    assert named == ["decoder.0.ffn"]
