"""Decoders of today: states, logits and generation as transformers computes them.

What the numbers are, and how they were made: tests/references/make_decoders.py.
"""

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from tests.drawing import drawn_models, write_model
from tests.places import arrays

TABLE = drawn_models()
EXACT, SINGLE = 1e-10, 2e-6  # of the largest number
EXACTNESS = {"bloom": 1e-8}  # whose GELU has a constant of eight digits in transformers


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens the model of a name in a dtype, once."""
    known = {}

    def open_one(name, dtype=np.float64):
        if (name, dtype) not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name, dtype] = open_checkpoint(str(write_model(name, folder, dtype)))
        return known[name, dtype]

    return open_one


def frozen(name, key):
    return arrays("decoders")[f"{name}/{key}"]


def core(checkpoint):
    return model.Model(checkpoint.config, checkpoint.params)


def logits(checkpoint, ids, mask=None):
    """Logits of ids (B, T) padded by a mask (B, T), in the dtype of the weights."""
    mask = None if mask is None else mask[:, None].astype(bool)
    positions = None if mask is None else model.token_positions(mask)
    dtype = str(checkpoint.params["decoder.embed"]["table"].dtype)
    context = model.Context(mask=mask, positions=positions, dtype=dtype)
    x = model.run(core(checkpoint), checkpoint.config.plan("decoder"), ids, context)
    return model.head_logits(core(checkpoint), x)


def assert_near(actual, expected, tolerance):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("name", TABLE)
def test_states_and_logits_are_those_of_transformers(opened, name):
    checkpoint, exact = opened(name), EXACTNESS.get(name, EXACT)
    states = {}

    def hook(where):
        return lambda x: states.setdefault(where, x)

    ids = frozen(name, "ids")
    config = checkpoint.config
    x = model.run(core(checkpoint), config.plan("decoder"), ids, model.Context(hook=hook, dtype="float64"))
    layers = config.decoder.layers
    ends = [model.layer_steps(config, "decoder", number)[-1] for number in range(layers)]
    names = [f"{step.layer}.residual" if step.adds_residual else step.layer for step in ends]
    first = [step.layer for step in config.plan("decoder") if model.parse_layer_name(step.layer)[1] is None]
    first = [layer for layer in first if layer != "decoder.norm"][-1]
    expected = [frozen(name, f"hidden.{number}") for number in range(layers + 1)]
    for where, state in zip([first, *names[:-1]], expected[:-1], strict=True):
        assert_near(states[where], state, exact)
    model.head_logits(core(checkpoint), x, hook)
    last = "head.dense" if config.transform else "decoder.norm" if config.decoder.final_norm else names[-1]
    assert_near(states[last], expected[-1], exact)
    assert_near(logits(checkpoint, ids)[:, -4:], frozen(name, "logits.f64"), exact)
    assert_near(logits(checkpoint, frozen(name, "long.ids"))[:, -4:], frozen(name, "long.logits.f64"), exact)
    batch = logits(checkpoint, frozen(name, "batch.ids"), frozen(name, "batch.mask"))
    assert_near(batch[:, -4:], frozen(name, "batch.logits.f64"), exact)


@pytest.mark.parametrize("name", TABLE)
def test_float32_is_as_near_to_transformers_as_its_rounding(opened, name):
    checkpoint = opened(name, np.float32)
    for text in ("", "long."):
        single, exact = (frozen(name, f"{text}logits.{dtype}") for dtype in ("f32", "f64"))
        rounding = np.abs(single - exact).max() / np.abs(exact).max()  # that of transformers
        assert_near(logits(checkpoint, frozen(name, f"{text}ids"))[:, -4:], single, max(SINGLE, 2 * rounding))


@pytest.mark.parametrize("name", TABLE)
def test_a_cached_token_by_token_pass_equals_the_whole(opened, name):
    """The last tokens of a text longer than any window; tests/model/test_graph.py has each token of short ones."""
    checkpoint, ids = opened(name), frozen(name, "long.ids")
    decoder = model.CachedDecoder(core(checkpoint), dtype="float64")
    for start, end in ((0, 5), (5, -4), (-4, -3), (-3, -2), (-2, -1), (-1, None)):
        row = decoder(ids[:, start:end])
    assert_near(row, logits(checkpoint, ids)[:, -1], EXACT)


@pytest.mark.parametrize("name", TABLE)
def test_greedy_and_beams_write_the_same_tokens(opened, name):
    checkpoint, ids = opened(name), frozen(name, "ids")
    prompt = [int(token) for token in ids[0]]
    for kind, beams in (("greedy", 1), ("beam", 3)):
        text = generate(checkpoint, prompt, beams)
        expected = [int(token) for token in frozen(name, kind)[0]]
        assert prompt + text == expected[: len(prompt) + len(text)]
        assert len(prompt) + len(text) == len(expected) or text[-1] in checkpoint.config.special.eos


def generate(checkpoint, prompt, beams):
    decoder = model.CachedDecoder(core(checkpoint), dtype="float64")
    settings = model.SamplingConfig(limit=12, eos=checkpoint.config.special.eos)
    if beams == 1:
        return [int(token) for token in model.generate(decoder, prompt, settings).ids]
    return [int(token) for token in model.beam_search(decoder, prompt, settings, beams)[0].ids]


@pytest.mark.parametrize("name", TABLE)
def test_gradients_are_those_of_differences(opened, name):
    """The derivative of a sum of logits along a random direction of all parameters, and its difference quotient."""
    checkpoint, ids = opened(name), frozen(name, "ids")[:, :7]
    rng = np.random.default_rng(0)
    params = {layer: dict(checkpoint.params[layer]) for layer in checkpoint.params}
    factors = rng.standard_normal((1, 7, checkpoint.config.decoder.vocab))
    whole = model.Model(checkpoint.config, params)
    inputs = {"decoder": StackInputs(ids)}
    output, recorded = run_model(whole, inputs, dtype="float64")
    gradients = model_backward(whole, recorded, factors).params
    shared = {}  # tied parameters move together
    directions = {
        layer: {
            key: shared.setdefault(address(array), rng.standard_normal(array.size).reshape(array.shape))
            for key, array in parameters.items()
        }
        for layer, parameters in params.items()
    }

    def loss(step):
        moved = {
            layer: {key: array + step * reshaped(directions[layer][key], array) for key, array in one.items()}
            for layer, one in params.items()
        }
        return float((factors * run_model(model.Model(checkpoint.config, moved), inputs, dtype="float64")[0]).sum())

    along, counted = 0.0, set()
    for layer, parameters in gradients.items():
        for key, gradient in parameters.items():
            if (place := address(params[layer][key])) not in counted:
                counted.add(place)
                along += float((gradient * reshaped(directions[layer][key], gradient)).sum())
    assert abs((loss(1e-6) - loss(-1e-6)) / 2e-6 - along) <= 1e-6 * max(abs(along), np.abs(output).max())


def address(array):
    return array.__array_interface__["data"][0], array.size


def reshaped(direction, array):
    """A direction in the shape of a parameter, which may be the transpose of a tied one."""
    return direction if direction.shape == array.shape else direction.T


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 8}
WHOLE = DYNAMIC | {"partial_rotary_factor": 1.0, "rotary_pct": 1.0}


@pytest.mark.parametrize(
    "name, changes",
    [("phi3-long", {}), *((name, DYNAMIC) for name in ("qwen3", "cohere"))],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_in_a_padded_batch_rotates_by_its_own_length(tmp_path, name, changes, side):
    """Short texts have the frequencies that they have alone, though the longest has others."""
    checkpoint = open_checkpoint(str(write_model(name, tmp_path, np.float64, **changes)))
    rng, lengths = np.random.default_rng(0), np.array([5, 30, 8, 17])
    texts = [rng.integers(3, checkpoint.config.decoder.vocab, length) for length in lengths]
    columns = np.arange(30)
    real = columns < lengths[:, None] if side == "right" else columns >= 30 - lengths[:, None]
    ids = np.zeros(real.shape, int)
    ids[real] = np.concatenate(texts)
    batch = logits(checkpoint, ids, real)
    inputs = {"decoder": StackInputs(ids, mask=real[:, None], positions=model.token_positions(real))}
    trained = run_model(core(checkpoint), inputs, dtype="float64")[0]
    for row, (states, is_real, text) in enumerate(zip(batch, real, texts, strict=True)):
        alone = logits(checkpoint, text[None])[0]
        assert_near(states[is_real], alone, 1e-13)
        assert_near(trained[row, is_real], alone, 1e-13)
