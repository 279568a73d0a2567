"""The formulas of model/reference.py by numbers worked by hand, and the rest of the core held against them."""

from functools import reduce

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from attnkit.model import reference
from attnkit.model.kernels.row_attention import row_attention
from attnkit.model.kernels.tiled_attention import tiled_attention
from attnkit.model.passes.incremental_decoder import compile_steps
from tests.places import MODELS

CAT = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
PADDED = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1, 1.1, 1.2], [0, 0, 0, 0]])
SHAPES = [  # batch, heads, queries, keys, width of a head
    ((), 1, 1, 1, 1),
    ((), 2, 3, 3, 4),
    ((), 3, 2, 7, 2),
    ((2,), 1, 5, 5, 3),
    ((3,), 4, 6, 2, 5),
]
shapes = pytest.mark.parametrize(("batch", "heads", "queries", "keys", "width"), SHAPES)
masks = pytest.mark.parametrize("masking", ["none", "random", "causal", "padding", "one row", "all"])


def masked(kind, rng, batch, queries, keys):
    """A mask (T, S) or (B, T, S) of a kind; True where nothing is masked."""
    mask = np.ones((*batch, queries, keys), bool)
    if kind == "random":
        mask = rng.random(mask.shape) < 0.5
    elif kind == "causal":
        mask = np.tri(queries, keys, dtype=bool)
    elif kind == "padding":
        mask[..., keys // 2 :] = False
    elif kind == "one row":
        mask[..., queries // 2, :] = False
    elif kind == "all":
        mask[:] = False
    return True if kind == "none" else mask


def given_to_core(mask):
    """The same mask for the core, which takes None where nothing is masked."""
    return None if mask is True else over_heads(mask)


def over_heads(mask):
    """A mask as the reference takes it where q has heads: (..., H, T, S)."""
    return mask if mask is True or mask.ndim == 2 else mask[:, None]


def operands(rng, batch, heads, queries, keys, width):
    """q, k and v with their heads where the core has them: (..., H, T, K)."""
    return [rng.standard_normal((*batch, heads, length, width)) for length in (queries, keys, keys)]


def parameters(rng, width, hidden, cross=False):
    """The parameters of one layer, biases, scales and shifts included."""
    params = {}
    for part in ("self", "cross") if cross else ("self",):
        params[part] = {f"w{letter}": rng.standard_normal((width, width)) for letter in "qkvo"}
        params[part] |= {f"b{letter}": rng.standard_normal(width) for letter in "qkvo"}
    params["ffn"] = {"w1": rng.standard_normal((width, hidden)), "w2": rng.standard_normal((hidden, width))}
    params["ffn"] |= {"b1": rng.standard_normal(hidden), "b2": rng.standard_normal(width)}
    for number in range(1, 4 if cross else 3):
        params[f"norm{number}"] = {name: rng.standard_normal(width) for name in ("gamma", "beta")}
    return params


def same(ours, theirs, tolerance=1e-12):
    """The same numbers, relative to the largest."""
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1, np.abs(theirs).max(initial=0)))


# worked by hand


def test_the_cat_sat():
    weights = [[0.4223, 0.1554, 0.4223], [0.1554, 0.4223, 0.4223], [0.2119, 0.2119, 0.5761]]
    np.testing.assert_allclose(reference.attention_weights(CAT, CAT), weights, atol=5e-5)
    output = [[0.8446, 0.5777, 0.8446, 0.5777], [0.5777, 0.8446, 0.5777, 0.8446], [0.7881] * 4]
    np.testing.assert_allclose(reference.attention(CAT, CAT, CAT), output, atol=5e-5)


def test_scores_are_divided_by_the_square_root_of_the_width():
    q, k = np.array([[2.0, 3, 4, 1]]), np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]])  # scores 6 and 4, scaled 3 and 2
    np.testing.assert_allclose(reference.attention_weights(q, k), [[0.7311, 0.2689]], atol=5e-5)
    np.testing.assert_allclose(reference.softmax(np.array([6.0, 4.0])), [0.8808, 0.1192], atol=5e-5)


def test_padding_and_causal_masks():
    mask = np.array([True, True, True, False]) & np.tri(4, dtype=bool)
    weights = [[1, 0, 0, 0], [0.3729, 0.6271, 0, 0], [0.1152, 0.2668, 0.618, 0], [0.3333, 0.3333, 0.3333, 0]]
    np.testing.assert_allclose(reference.attention_weights(PADDED, PADDED, mask), weights, atol=5.01e-5)
    output = [[0.1, 0.2, 0.3, 0.4], [0.3509, 0.4509, 0.5509, 0.6509], [0.7011, 0.8011, 0.9011, 1.0011]]
    np.testing.assert_allclose(reference.attention(PADDED, PADDED, PADDED, mask)[:3], output, atol=5.01e-5)


def test_a_fully_masked_row_is_zeros():
    mask = np.array([[True, True, False], [False, False, False], [False, True, True]])
    assert reference.attention_weights(CAT, CAT, mask)[1].tolist() == [0, 0, 0]
    assert reference.attention(CAT, CAT, CAT, mask)[1].tolist() == [0, 0, 0, 0]


def test_no_key_at_all_is_zeros():
    assert reference.attention(CAT, CAT[:0], CAT[:0]).tolist() == np.zeros((3, 4)).tolist()


def test_large_scores_do_not_overflow():
    assert reference.softmax(np.array([1e300, 1e300, -1e300])).tolist() == [0.5, 0.5, 0]


def test_positions_of_three_words():
    words = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, 1.0, 1.1, 1.2]])
    expected = [[0.1, 1.2, 0.3, 1.4], [1.3415, 1.1403, 0.71, 1.8], [1.8093, 0.5839, 1.12, 2.1998]]
    np.testing.assert_allclose(words + reference.sinusoidal_positions(3, 4), expected, atol=5.01e-5)


# the core against the formulas


@shapes
@masks
def test_attention(batch, heads, queries, keys, width, masking):
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, batch, heads, queries, keys, width)
    mask = masked(masking, rng, batch, queries, keys)
    steps = model.attention(q, k, v, mask=given_to_core(mask))
    same(steps["weights"], reference.attention_weights(q, k, over_heads(mask)))
    same(steps["heads"], reference.attention(q, k, v, over_heads(mask)))


@shapes
@masks
def test_blocks_of_scores(batch, heads, queries, keys, width, masking):
    rng = np.random.default_rng(1)
    q, k, v = operands(rng, batch, heads, queries, keys, width)
    mask = masked(masking, rng, batch, queries, keys)
    found, lse = tiled_attention(q, k, v, mask=given_to_core(mask), scale=width**-0.5)
    same(found, reference.attention(q, k, v, over_heads(mask)))
    seen = np.broadcast_to(over_heads(mask), (*q.shape[:-1], keys)).any(axis=-1)
    assert np.isneginf(lse).tolist() == (~seen).tolist()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [700, 0]])
def test_blocks_of_many_scores(causal, lengths):
    rng = np.random.default_rng(2)
    q, k, v = operands(rng, (2,), 2, 300, 1100, 8)  # several blocks of keys
    mask = np.ones((2, 1, 300, 1100), bool)
    if lengths:
        mask &= (np.arange(1100) < np.array(lengths)[:, None])[:, None, None]
    if causal:
        mask &= np.tri(300, 1100, dtype=bool)
    found = model.attention(q, k, v, mask=mask, keep=())
    assert set(found) == {"heads"}
    same(found["heads"], reference.attention(q, k, v, mask))


@shapes
@masks
def test_rows_of_scores(batch, heads, queries, keys, width, masking):
    rng = np.random.default_rng(3)
    q, k, v = operands(rng, batch, heads, queries, keys, width)
    mask = masked(masking, rng, batch, queries, keys)
    options = {"mask": given_to_core(mask), "scale": width**-0.5}
    found = row_attention(q, k, v, **options)
    same(found["heads"], reference.attention(q, k, v, over_heads(mask)))


@shapes
@masks
def test_multi_head_attention(batch, heads, queries, keys, width, masking):
    rng = np.random.default_rng(4)
    model_width = heads * width
    query, memory = (rng.standard_normal((*batch, length, model_width)) for length in (queries, keys))
    params, mask = parameters(rng, model_width, 1)["self"], masked(masking, rng, batch, queries, keys)
    ours = model.multi_head_attention(query, memory, memory, params, heads=heads, mask=given_to_core(mask))
    theirs = reference.multi_head_attention(query, memory, memory, params, heads=heads, mask=mask)
    same(ours["output"], theirs)


@pytest.mark.parametrize("shape", [(4,), (3, 8), (2, 5, 6)])
def test_layer_norm(shape):
    rng = np.random.default_rng(5)
    x, gamma, beta = rng.standard_normal(shape), rng.standard_normal(shape[-1]), rng.standard_normal(shape[-1])
    same(model.layer_norm(x, gamma, beta, eps=1e-3).y, reference.layer_norm(x, gamma, beta, eps=1e-3))


def test_feed_forward():
    rng = np.random.default_rng(6)
    x, params = rng.standard_normal((2, 3, 4)), parameters(rng, 4, 7)["ffn"]
    same(model.feed_forward(x, params)["output"], reference.feed_forward(x, **params))


@pytest.mark.parametrize("width", [2, 4, 512])
def test_sinusoidal_positions(width):
    same(model.sinusoidal_positions(np.arange(100), width), reference.sinusoidal_positions(100, width))


def test_embeddings():
    table, ids = np.random.default_rng(7).standard_normal((9, 6)), np.array([[3, 0, 8], [1, 1, 2]])
    x = model.scale_embedding(model.embed(ids, table))
    same(model.add_positions(x, np.arange(3), lambda t: model.sinusoidal_positions(t, 6)), reference.embed(ids, table))


def test_next_token():
    rng = np.random.default_rng(8)
    x, table = rng.standard_normal((2, 3, 4)), rng.standard_normal((9, 4))
    same(model.softmax(model.logits(x, table.T)), reference.next_token(x, table))


@pytest.mark.parametrize("masking", ["none", "random", "padding", "one row", "all"])
def test_encoder_layer(masking):
    rng = np.random.default_rng(9)
    x, params = rng.standard_normal((3, 5, 8)), parameters(rng, 8, 12)
    mask = masked(masking, rng, (3,), 5, 5)
    ours = model.encoder_layer(x, params, heads=2, mask=None if mask is True else mask)
    same(ours, reference.encoder_layer(x, params, heads=2, mask=mask))


@pytest.mark.parametrize("masking", ["none", "random", "padding", "one row", "all"])
def test_decoder_layer(masking):
    rng = np.random.default_rng(10)
    x, memory = rng.standard_normal((3, 4, 8)), rng.standard_normal((3, 6, 8))
    params, mask = parameters(rng, 8, 12, cross=True), masked(masking, rng, (3,), 4, 4)
    real = np.arange(6) < np.array([6, 2, 0])[:, None, None]  # (B, 1, S), the last memory all padding
    ours = model.decoder_layer(x, memory, params, heads=2, mask=None if mask is True else mask, memory_mask=real)
    same(ours, reference.decoder_layer(x, memory, params, heads=2, mask=mask, memory_mask=real))


# a whole model of the family `transformer`, of which the paper's is the one without norms at the end


def stack(core, name):
    """The parameters of the layers of a stack, as the reference takes them."""
    parts = ("self", "cross", "ffn", "norm1", "norm2", "norm3")
    count = core.config.stack(name).layers
    return [{part: core.params[f"{name}.{n}.{part}"] for part in parts if f"{name}.{n}.{part}" in core.params}
            for n in range(count)]  # fmt: skip


def wide(core):
    """The model with its parameters in float64."""
    params = {name: {key: np.asarray(x, np.float64) for key, x in core.params[name].items()} for name in core.params}
    return core._replace(params=params)


@pytest.fixture(scope="module")
def core():
    return wide(layers.core_model(open_checkpoint(str(MODELS / "transformer"))))


def test_stacks_of_a_published_model(core):
    rng = np.random.default_rng(11)
    width, heads = core.config.width, core.config.encoder.heads
    source, target = rng.standard_normal((2, 5, width)), rng.standard_normal((2, 4, width))
    real = np.arange(5) < np.array([5, 3])[:, None, None]  # (B, 1, S)
    memory = model.run(core, core.config.plan("encoder"), source, model.Context(mask=real))
    encoded = reduce(
        lambda x, one: reference.encoder_layer(x, one, heads=heads, mask=real), stack(core, "encoder"), source
    )
    same(memory, reference.layer_norm(encoded, **core.params["encoder.norm"]))
    context = model.Context(memory=memory, memory_mask=real)
    ours = model.run(core, core.config.plan("decoder"), target, context)
    decoded = reduce(
        lambda x, one: reference.decoder_layer(x, memory, one, heads=heads, memory_mask=real),
        stack(core, "decoder"), target,
    )  # fmt: skip
    same(ours, reference.layer_norm(decoded, **core.params["decoder.norm"]))


def test_a_decoder_that_reads_token_by_token(core):
    rng = np.random.default_rng(12)
    width, heads = core.config.width, core.config.decoder.heads
    x, memory = rng.standard_normal((2, 6, width)), rng.standard_normal((2, 5, width))
    expected = reduce(lambda y, one: reference.decoder_layer(y, memory, one, heads=heads), stack(core, "decoder"), x)
    expected = reference.layer_norm(expected, **core.params["decoder.norm"])
    steps, cache = core.config.plan("decoder"), model.KVCache()
    plain = [model.run(core, steps, x[:, t : t + 1], model.Context(memory=memory, cache=cache)) for t in range(3)]
    fast = compile_steps(core, steps, cache)  # goes on from the keys and values of the first three
    same(np.concatenate([*plain, *(fast(x[:, t], {})[:, None] for t in range(3, 6))], axis=1), expected)
