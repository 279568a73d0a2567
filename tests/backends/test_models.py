"""Every reference model by JAX is what it is by NumPy: states, logits, intermediates, tokens, caches and streams."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("jax")

from attnkit import model
from attnkit.backends.jax import formulas
from attnkit.backends.jax.engine import JaxEngine
from attnkit.model.config import parse_layer_name
from attnkit.model.formulas.activations import ACTIVATIONS
from tests import registry
from tests.registry import CAUSAL, TRANSLATORS

ENCODERS = ("bert", "bert-mlm", "bert-old", "bert-sequence", "bert-token", "bert-question", "albert", "albert-groups",
            "camembert", "deberta-v2", "deberta-v3", "distilbert", "electra", "electra-discriminator", "modernbert",
            "modernbert-biased", "mpnet", "roberta", "xlm-roberta", "vit")  # fmt: skip
ARCHIVED = {name: f"recurrent/{name}" for name in registry.RECURRENT}
RECURRENT = (*ARCHIVED, "lstm-classifier")
SEQ2SEQ = (*TRANSLATORS, "transformer", "transformer-prenorm")
# models all of whose layers compute the same: the first and what is around the layers shows it
SAME = (set(CAUSAL) | set(ENCODERS) | set(SEQ2SEQ)) - {"gpt2-scaled", "albert-groups", "mistral", "modernbert", "t5"}
LIMITS = {"float32": 1e-5, "float64": 1e-9}
TOKENS = 11


@cache
def engine():
    return JaxEngine()


@cache
def core(name):
    return registry.load_core(ARCHIVED.get(name, name))


def both(name, one=None):
    """The model by NumPy, and by JAX."""
    return core(name), core(name)._replace(engine=one or engine())


def inputs(config, stack, dtype="float64", rows=()):
    """Ids, vectors or an image of a stack; equal in every call."""
    rng, part = np.random.default_rng(7), config.stack(stack)
    if config.patches:
        return rng.standard_normal((*rows, 3, config.patches.height, config.patches.width)).astype(dtype)
    if part.vocab:
        return rng.integers(3, part.vocab - 1, (*rows, TOKENS))
    return rng.standard_normal((*rows, TOKENS, config.width)).astype(dtype)


def padding(config):
    """The context of a batch of two texts, of which the second has four tokens of padding."""
    if config.patches:
        return {}, np.ones((2, 1), bool)
    mask = np.ones((2, 1, TOKENS), bool)
    mask[1, 0, 7:] = False
    return {"mask": mask, "positions": model.token_positions(mask)}, mask[:, 0]


def assert_close(ours, theirs, dtype, real=...):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    ours, theirs = ours[real], theirs[real]
    same = np.isfinite(theirs)
    assert (same == np.isfinite(ours)).all()
    limit = LIMITS[dtype] * max(1, np.abs(theirs[same]).max(initial=0))
    np.testing.assert_allclose(ours[same], theirs[same], rtol=0, atol=limit)


def first_layer(steps):
    """The steps of the first layer, and those before and after all layers: the other layers are like the first."""
    return [step for step in steps if parse_layer_name(step.layer)[1] in (None, 0)]


def run_both(name, dtype, one=None, choose=list):
    """The last hidden states of every stack of a padded batch, by NumPy and by JAX."""
    numpy, jax = both(name, one)
    config, memory = numpy.config, {}
    for stack in config.stacks:
        context, real = padding(config)
        x, steps = inputs(config, stack, dtype, (2,)), choose(config.plan(stack))
        contexts = [model.Context(dtype=dtype, **context, **memory) for _ in range(2)]
        theirs, ours = (model.run(each, steps, x, one) for each, one in zip((numpy, jax), contexts, strict=True))
        assert_close(ours, theirs, dtype, real if "mask" in context else ...)
        for layer, state in contexts[0].final_states.items():
            for mine, known in zip(contexts[1].final_states[layer], state, strict=True):
                assert known is None or np.abs(mine - known).max() <= LIMITS[dtype]
        memory = {"memory": theirs, "memory_mask": context.get("mask"), "source_states": contexts[0].last_states()}
    return theirs, real[:, None]


@pytest.mark.parametrize("name", [*CAUSAL, *ENCODERS, *SEQ2SEQ, *RECURRENT])
def test_padded_batches_of_every_family_in_float64(name):
    x, real = run_both(name, "float64", choose=first_layer if name in SAME else list)
    if core(name).config.head:
        numpy, jax = both(name)
        logits = [
            model.head_logits(one, x, mask=real if core(name).config.is_head_pooled else None) for one in (jax, numpy)
        ]
        assert_close(*logits, "float64")


@pytest.mark.parametrize("name", ["deberta-v3", "luong"])
def test_float32(name):
    run_both(name, "float32")


@pytest.mark.parametrize("name", ["llama", "t5-gated", "deberta-v2"])
def test_traces_have_the_same_names_shapes_and_numbers(name):
    numpy, jax = both(name)
    stack = numpy.config.stacks[0]
    found = []
    for one in (jax, numpy):
        kept = {}
        context = model.Context(
            hook=lambda name, kept=kept: lambda array: kept.setdefault(name, array), weights="stats"
        )
        model.run(one, one.config.plan(stack), inputs(one.config, stack), context)
        found.append(kept)
    assert [*found[0]] == [*found[1]]
    for key, array in found[1].items():
        assert_close(found[0][key], array, "float32")
    assert found[1][f"{stack}.0.self.weights.lse"].dtype == np.float64


def test_traces_of_a_recurrent_model():
    memory, found = {}, []
    for one in both("luong")[::-1]:
        kept = {}
        for stack in one.config.stacks:
            context = model.Context(
                hook=lambda name, kept=kept: lambda array: kept.update({name: array}) or array, **memory
            )
            x = model.run(one, one.config.plan(stack), inputs(one.config, stack)[:2], context)
            memory = {"memory": x, "source_states": context.last_states()} if stack == "encoder" else {}
        found.append(kept)
    assert [*found[0]] == [*found[1]] and "decoder.1.rnn.forget_gate" in found[0]
    for key, array in found[1].items():
        assert_close(found[0][key], array, "float64")


def test_a_hook_replaces_what_later_layers_see():
    hooks, states = {"decoder.0.self.heads": np.zeros_like, "decoder.0.ffn": None}, []
    for one in both("gpt2"):
        x, steps = inputs(one.config, "decoder"), one.config.plan("decoder")
        states.append([model.run(one, steps, x, model.Context(hook=hook)) for hook in (hooks.get, model.no_hook)])
    assert_close(states[1][0], states[0][0], "float32")
    assert np.abs(states[1][0] - states[1][1]).max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "marian", "luong"])
def test_greedy_tokens_beams_and_caches(name):
    numpy, jax = both(name)
    config, memory = numpy.config, {}
    if config.encoder:
        context = model.Context()
        states = model.run(numpy, config.plan("encoder"), inputs(config, "encoder"), context)
        memory = {"memory": states[None], "source_states": context.last_states()}
    ids, settings = inputs(config, "decoder")[:5], model.SamplingConfig(limit=50 if config.positions.size < 100 else 70)
    theirs, ours = model.CachedDecoder(numpy, **memory), engine().decoder(jax, None, **memory)
    expected, text = model.generate(theirs, ids, settings), model.generate(ours, ids, settings)
    assert text.ids == expected.ids
    np.testing.assert_allclose(text.logprobs, expected.logprobs, atol=1e-5)
    for layer, pair in ours.cache:
        for mine, known in zip(pair, dict(theirs.cache)[layer], strict=True):
            assert_close(mine, known, "float32")
    assert ours.cache.length == theirs.cache.length
    whole = np.array([[*ids, *text.ids]])
    more = [model.CachedDecoder(numpy, theirs.cache, **memory), engine().decoder(jax, ours.cache, **memory)]
    assert_close(*(decoder(whole) for decoder in more[::-1]), "float32")
    few = model.SamplingConfig(limit=4)
    beams = [model.beam_search(decoder, ids, few, 3)[0].ids for decoder in
             (model.CachedDecoder(numpy, **memory), engine().decoder(jax, None, **memory))]  # fmt: skip
    assert beams[0] == beams[1]


def test_a_text_is_continued_from_a_cache_of_numpy():
    numpy, jax = both("gpt2")
    ids, steps = inputs(numpy.config, "decoder")[None], numpy.config.plan("decoder")
    caches = [model.KVCache(), model.KVCache()]
    for part in (ids[:, :6], ids[:, 6:]):
        states = [
            model.run(one, steps, part, model.Context(cache=cached))
            for one, cached in zip((jax, numpy), caches, strict=True)
        ]
        assert_close(*states, "float32")
    assert caches[0].length == caches[1].length == TOKENS


def test_every_activation_has_its_function_of_jax():
    assert {*formulas.ACTIVATIONS} == {*ACTIVATIONS}


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_computing_in_16_bits_gives_float32_nearby(compute):
    numpy, jax = both("bert", JaxEngine(compute))
    x, steps = inputs(numpy.config, "encoder"), numpy.config.plan("encoder")
    theirs, ours = (model.run(one, steps, x, model.Context()) for one in (numpy, jax))
    error = np.abs(ours - theirs).max()
    assert ours.dtype == np.float32 and 1e-5 < error < 0.1


def test_the_first_layer_that_is_not_finite_is_named():
    numpy, jax = both("gpt2")
    params = {layer: dict(numpy.params[layer]) for layer in numpy.params}
    params["decoder.1.ffn"]["b2"] = np.full_like(params["decoder.1.ffn"]["b2"], np.inf)
    named = []
    context = model.Context(on_non_finite=named.append)
    model.run(jax._replace(params=params), jax.config.plan("decoder"), inputs(jax.config, "decoder"), context)
    assert named == ["decoder.1.ffn"]


@pytest.mark.parametrize("name", ["gpt2", "bert-sequence", "deberta-v3", "vit", "t5-gated"])
def test_a_hook_that_reads_nothing_leaves_the_pass_compiled(name, monkeypatch):
    """A trace that keeps nothing costs nothing; the hook is asked for every intermediate of NumPy's pass."""
    for function in ("_run_seen", "_head_seen"):
        monkeypatch.setattr(JaxEngine, function, None)  # which compute one operation after another
    asked = []
    for one in both(name):
        names = set()
        stack = one.config.stacks[0]
        context = model.Context(hook=lambda where, names=names: names.add(where))
        x = model.run(one, one.config.plan(stack), inputs(one.config, stack), context)
        if one.config.head and len(one.config.stacks) == 1:
            model.head_logits(one, x, context.hook)
        asked.append({where for where in names if not where.endswith((".lse", ".present_key", ".present_value"))})
    assert asked[0] == asked[1]
