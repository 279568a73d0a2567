"""The adjoint of every operator: numbers worked by hand, finite differences, and torch.autograd's, frozen."""

import copy
import hashlib
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model.formulas.activations import ACTIVATIONS, activation_backward
from attnkit.model.formulas.dropout import dropout, dropout_mask
from attnkit.model.formulas.embedding import embed_backward
from attnkit.model.formulas.experts import ExpertConfig, Experts, mix_experts, mix_experts_vjp
from attnkit.model.formulas.feedforward import feed_forward_vjp
from attnkit.model.formulas.linear import add, linear, linear_backward, sum_to_shape
from attnkit.model.formulas.norms import layer_norm_vjp, norm_steps_backward, rms_norm_vjp
from attnkit.model.formulas.patch_embedding import extract_patches_backward, interpolate_positions_backward
from attnkit.model.formulas.pooling import l2_normalize_backward, last_token_backward, mean_pool_backward
from attnkit.model.formulas.positions import add_positions_backward, t5_bias_backward
from tests.places import REFERENCES

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}  # relative to the largest number of a tensor


def drop(array, names):
    """The arrays of a dict by name, None for those that it lacks."""
    return [array.get(name) for name in names]


def of(gradients):
    """The fields of a result, by name, that are not None."""
    return {name: gradient for name, gradient in gradients._asdict().items() if gradient is not None}


class Linear:
    def forward(arrays, options):
        return linear(*drop(arrays, ("x", "weight", "bias")))

    def backward(dy, arrays, options):
        return of(linear_backward(dy, *drop(arrays, ("x", "weight", "bias"))))


class Add:
    def forward(arrays, options):
        return add(arrays["x"], arrays["y"])

    def backward(dy, arrays, options):
        return {name: sum_to_shape(dy, arrays[name].shape) for name in "xy"}


class Embed:
    def forward(arrays, options):
        return model.embed(options["ids"], arrays["table"])

    def backward(dy, arrays, options):
        return {"table": embed_backward(dy, options["ids"], len(arrays["table"]))}


class Scale:
    def forward(arrays, options):
        return model.scale_embedding(arrays["x"])

    def backward(dy, arrays, options):
        return {"x": model.scale_embedding(dy)}


class Positions:
    def forward(arrays, options):
        where = options["positions"]
        return model.add_positions(arrays["x"], where, lambda part: model.learned_positions(part, arrays["table"]))

    def backward(dy, arrays, options):
        where, table = options["positions"], arrays["table"]
        dcode = add_positions_backward(dy, (*where.shape, table.shape[1]))
        return {"x": dy, "table": embed_backward(dcode, where, len(table), "position")}


class T5Bias:
    def forward(arrays, options):
        return model.t5_bias(options["buckets"], arrays["table"])

    def backward(dy, arrays, options):
        return {"table": t5_bias_backward(dy, options["buckets"], len(arrays["table"]))}


class Rotate:
    def forward(arrays, options):
        return model.rotate(arrays["x"], **options)

    def backward(dy, arrays, options):
        return {"x": model.rotate(dy, **options | {"sin": -options["sin"]})}


class LayerNorm:
    def forward(arrays, options):
        return model.layer_norm(**arrays, **options).y

    def backward(dy, arrays, options):
        return of(layer_norm_vjp(**arrays, **options)[1](dy))


class RMSNorm:
    def forward(arrays, options):
        return model.rms_norm(**arrays, **options).y

    def backward(dy, arrays, options):
        return of(rms_norm_vjp(**arrays, **options)[1](dy))


class BatchNorm:
    def forward(arrays, options):
        return model.batch_norm(**arrays, **options).y

    def backward(dy, arrays, options):
        x, *params = drop(arrays, ("x", "gamma", "beta"))
        statistics, over = tuple(drop(options, ("mean", "variance"))), range(x.ndim - 1)
        return of(norm_steps_backward(dy, x, tuple(params), eps=options["eps"], over=over, statistics=statistics))


class Activation:
    def forward(arrays, options):
        return ACTIVATIONS[options["activation"]](arrays["x"])

    def backward(dy, arrays, options):
        return {"x": activation_backward(options["activation"], dy, arrays["x"])}


class FeedForward:
    def forward(arrays, options):
        params = {name: array for name, array in arrays.items() if name != "x"}
        return model.feed_forward(arrays["x"], params, **options)["output"]

    def backward(dy, arrays, options):
        params = {name: array for name, array in arrays.items() if name != "x"}
        dx, grads = feed_forward_vjp(arrays["x"], params, **options)[1](dy)
        return {"x": dx, **grads}


class Patches:
    def forward(arrays, options):
        return model.extract_patches(arrays["image"], *options["size"])

    def backward(dy, arrays, options):
        return {"image": extract_patches_backward(dy, arrays["image"].shape, *options["size"])}


class Interpolate:
    def forward(arrays, options):
        return model.interpolate_positions(arrays["table"], *options["grids"])

    def backward(dy, arrays, options):
        return {"table": interpolate_positions_backward(dy, *options["grids"])}


class Dropout:
    def forward(arrays, options):
        return dropout(arrays["x"], **options)

    def backward(dy, arrays, options):
        return {"x": dropout(dy, **options)}


def numbers(rng, *shape):
    return rng.standard_normal(shape)


def draw_linear(draw, rng):
    lead, width, out = draw(st.sampled_from([(), (1,), (3,), (2, 3)])), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    arrays = {"x": numbers(rng, *lead, width)}
    if draw(st.booleans()):
        arrays["weight"] = numbers(rng, width, out)
    else:
        out = width
    if draw(st.booleans()):
        arrays["bias"] = numbers(rng, out)
    return arrays, {}


def draw_add(draw, rng):
    shape = draw(st.sampled_from([(2, 3, 4), (3, 4), (4,)]))
    other = draw(st.sampled_from([shape, shape[-1:], (1,), (1, *shape[1:])]))
    return {"x": numbers(rng, *shape), "y": numbers(rng, *other)}, {}


def draw_embed(draw, rng):
    shape = draw(st.sampled_from([(), (5,), (2, 3), (0,)]))
    return {"table": numbers(rng, 4, 3)}, {"ids": rng.integers(0, 4, shape)}


def draw_positions(draw, rng):
    x, where = draw(st.sampled_from([((3, 2), (3,)), ((2, 3, 2), (3,)), ((2, 3, 2), (2, 3)), ((2, 4, 3, 2), (2, 3))]))
    return {"x": numbers(rng, *x), "table": numbers(rng, 5, 2)}, {"positions": rng.integers(0, 5, where)}


def draw_t5_bias(draw, rng):
    queries, keys, two = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.booleans())
    where = np.arange(queries) + draw(st.integers(0, 3))
    buckets = model.t5_buckets(where, np.arange(keys), buckets=8, max_distance=6, bidirectional=two)
    return {"table": numbers(rng, 8, 3)}, {"buckets": buckets}


def draw_rotate(draw, rng):
    width, length = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cos, sin = model.rotary_angles(np.arange(length), width, factor=draw(st.sampled_from([1.0, 1.3])))
    x = numbers(rng, 2, length, width + draw(st.integers(0, 2)))
    return {"x": x}, {"cos": cos, "sin": sin, "interleaved": draw(st.booleans())}


def draw_norm(draw, rng, beta=True):
    axis = draw(st.integers(-3, 2))
    x = draw(st.sampled_from([0.0, 3.0])) + numbers(rng, 2, 3, 4)
    arrays = {"x": x}
    for name in ("gamma", "beta") if beta else ("gamma",):
        shape = draw(st.sampled_from([None, x.shape[axis:], (4,), (1,) * x[0, 0].ndim]))
        arrays |= {} if shape is None else {name: numbers(rng, *shape)}
    return arrays, {"axis": axis, "eps": draw(st.sampled_from([1e-5, 1e-2, 1.0]))}


def draw_rms_norm(draw, rng):
    return draw_norm(draw, rng, beta=False)


def draw_batch_norm(draw, rng):
    lead = draw(st.sampled_from([(5,), (3, 4)]))
    arrays = {"x": 2 + numbers(rng, *lead, 3)}
    arrays |= {name: numbers(rng, 3) for name in ("gamma", "beta") if draw(st.booleans())}
    options = {"eps": draw(st.sampled_from([1e-5, 1e-1]))}
    options |= {"mean": numbers(rng, 3)} if draw(st.booleans()) else {}
    return arrays, options | ({"variance": rng.random(3) + 0.5} if draw(st.booleans()) else {})


def away_from_zero(x):
    """The numbers moved away from 0, where ReLU has no derivative, by more than two steps of a difference."""
    return x + np.copysign(0.05, x)


def draw_activation(draw, rng):
    return {"x": away_from_zero(2 * numbers(rng, 3, 4))}, {"activation": draw(st.sampled_from(list(ACTIVATIONS)))}


def draw_feed_forward(draw, rng):
    arrays = {"x": numbers(rng, 2, 3), "w1": numbers(rng, 3, 4)}
    arrays |= {"w2": numbers(rng, 4, 3)} if draw(st.booleans()) else {}
    arrays |= {"w3": numbers(rng, 3, 4)} if draw(st.booleans()) else {}
    sizes = {"b1": 4} | ({"b2": 3} if "w2" in arrays else {}) | ({"b3": 4} if "w3" in arrays else {})
    arrays |= {name: numbers(rng, size) for name, size in sizes.items() if draw(st.booleans())}
    activation = draw(st.sampled_from(list(ACTIVATIONS)))
    hidden = linear(arrays["x"], arrays["w1"], arrays.get("b1"))
    assume(activation != "relu" or np.abs(hidden).min() > 0.05)
    return arrays, {"activation": activation}


def draw_patches(draw, rng):
    lead = draw(st.sampled_from([(), (2,)]))
    return {"image": numbers(rng, *lead, 3, 4, 6)}, {"size": draw(st.sampled_from([(2, 2), (4, 3), (1, 6)]))}


def draw_interpolate(draw, rng):
    rows, columns, new_rows, new_columns = (draw(st.integers(1, 5)) for _ in range(4))
    return {"table": numbers(rng, 1 + rows * columns, 2)}, {"grids": (rows, columns, new_rows, new_columns)}


def draw_dropout(draw, rng):
    rate, seed = draw(st.sampled_from([0.0, 0.1, 0.5])), draw(st.integers(0, 2**64 - 1))
    return {"x": numbers(rng, 3, 5)}, {"rate": rate, "seed": seed, "step": draw(st.integers(0, 9)), "place": "a"}


def draw_scale(draw, rng):
    return {"x": numbers(rng, 3, draw(st.integers(1, 5)))}, {}


OPERATORS = {
    "linear": (Linear, draw_linear),
    "add": (Add, draw_add),
    "embed": (Embed, draw_embed),
    "scale": (Scale, draw_scale),
    "positions": (Positions, draw_positions),
    "t5-bias": (T5Bias, draw_t5_bias),
    "rotate": (Rotate, draw_rotate),
    "layer-norm": (LayerNorm, draw_norm),
    "rms-norm": (RMSNorm, draw_rms_norm),
    "batch-norm": (BatchNorm, draw_batch_norm),
    "activation": (Activation, draw_activation),
    "feed-forward": (FeedForward, draw_feed_forward),
    "patches": (Patches, draw_patches),
    "interpolate": (Interpolate, draw_interpolate),
    "dropout": (Dropout, draw_dropout),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_are_slopes(name, directions):
    operator, draw_inputs = OPERATORS[name]

    @settings(max_examples=30)
    @given(st.data(), st.integers(0, 2**32 - 1))
    def run(data, seed):
        rng = np.random.default_rng(seed)
        arrays, options = draw_inputs(data.draw, rng)
        y = operator.forward(arrays, options)
        dy = rng.standard_normal(y.shape)
        before = copy.deepcopy((dy, arrays))
        gradients = operator.backward(dy, arrays, options)
        assert set(gradients) == set(arrays)
        np.testing.assert_equal((dy, arrays), before, "inputs are modified")
        directions(lambda moved: np.vdot(dy, operator.forward(moved, options)), arrays, gradients, rng)

    run()


IDS = np.array([[2, 0, 2], [1, 4, 2]])
ANGLES = np.arange(6.0).reshape(3, 2) / 3
ROTATION = {"cos": np.cos(ANGLES), "sin": np.sin(ANGLES)}
RUNNING = {"mean": ANGLES.ravel()[:4], "variance": ANGLES.ravel()[1:5]}

# case of tests/references/gradients.npz -> the operator and its options
FROZEN = {
    "linear": ("linear", {}),
    "add": ("add", {}),
    "embed": ("embed", {"ids": IDS}),
    "scale": ("scale", {}),
    "positions": ("positions", {"positions": IDS[0]}),
    "positions-batch": ("positions", {"positions": IDS}),
    "t5-bias": ("t5-bias", {"buckets": np.array([[0, 1, 3], [1, 0, 3]])}),
    "rotate": ("rotate", ROTATION),
    "rotate-interleaved": ("rotate", ROTATION | {"interleaved": True}),
    "layer-norm": ("layer-norm", {"eps": 1e-5}),
    "layer-norm-axes": ("layer-norm", {"eps": 1e-3, "axis": -2}),
    "layer-norm-plain": ("layer-norm", {"eps": 1.0}),
    "rms-norm": ("rms-norm", {"eps": 1e-5}),
    "rms-norm-axes": ("rms-norm", {"eps": 1e-2, "axis": 1}),
    "batch-norm": ("batch-norm", {"eps": 1e-5}),
    "batch-norm-running": ("batch-norm", {"eps": 1e-5} | RUNNING),
    "feed-forward-gated": ("feed-forward", {"activation": "silu"}),
    "patches": ("patches", {"size": (2, 3)}),
    "interpolate": ("interpolate", {"grids": (2, 3, 4, 2)}),
}
FROZEN |= {f"activation-{name}": ("activation", {"activation": name}) for name in ACTIVATIONS}
FROZEN |= {f"feed-forward-{name}": ("feed-forward", {"activation": name}) for name in ACTIVATIONS}


@cache
def frozen():
    with np.load(REFERENCES / "gradients.npz") as members:
        return dict(members)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", FROZEN)
def test_gradients_are_those_of_torch_autograd(case, dtype):
    name, options = FROZEN[case]
    members = {key.removeprefix(f"{case}/"): x for key, x in frozen().items() if key.startswith(f"{case}/")}
    inputs = {key: x.astype(dtype) for key, x in members.items() if not key.startswith("grad")}
    gradients = OPERATORS[name][0].backward(members["grad_output"].astype(dtype), inputs, options)
    assert set(gradients) == set(inputs)
    for key, gradient in gradients.items():
        theirs = members[f"grad.{key}"]
        assert gradient.dtype == dtype and gradient.shape == theirs.shape
        assert np.abs(gradient - theirs).max() <= TOLERANCE[dtype] * np.abs(theirs).max(), key


@pytest.mark.parametrize("score", ["softmax", "chosen", "sigmoid"])
def test_gradients_of_a_mixture_with_a_gated_shared_network_are_slopes(score, directions):
    rng = np.random.default_rng(0)
    config = ExpertConfig(count=3, chosen=2, hidden=4, shared=4, score=score)
    shapes = {"router": (2, 3), "shared_gate": (2, 1), "w1": (2, 4), "w2": (4, 2), "x": (2, 3, 2)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    others = {number: {name: rng.normal(size=shapes[name]) for name in ("w1", "w2")} for number in range(3)}
    dy = rng.normal(size=shapes["x"])

    def experts(arrays):
        router = {name: arrays[name] for name in ("router", "shared_gate")}
        return Experts(router, others.__getitem__, {name: arrays[name] for name in ("w1", "w2")})

    def loss(arrays):
        return (mix_experts(arrays["x"], experts(arrays), config)["output"] * dy).sum()

    output, pullback = mix_experts_vjp(arrays["x"], experts(arrays), config)
    assert (output * dy).sum() == pytest.approx(loss(arrays))
    found = pullback(dy)
    directions(loss, arrays, {"x": found.x} | found.router | found.shared, rng)


def test_by_hand_the_gradients_of_pooled_texts_of_other_lengths():
    real = np.array([[True, True, False], [True, False, False]])
    grad = np.array([[6.0], [4.0]])
    assert mean_pool_backward(grad, real)[..., 0].tolist() == [[3, 3, 0], [4, 0, 0]]
    assert last_token_backward(grad, real)[..., 0].tolist() == [[0, 6, 0], [4, 0, 0]]
    found = l2_normalize_backward(
        np.array([[1.0, 0], [1, 2], [1, 1]]), np.array([[3.0, 4], [0, 0], [2, 0]])
    )  # y = (0.6, 0.8), none, (1, 0)
    np.testing.assert_allclose(found, [[0.128, -0.096], [1, 2], [0, 0.5]], rtol=1e-14, atol=1e-16)


def test_by_hand_a_linear_layer_sums_over_all_rows():
    x, dy = np.array([[[1.0, 2.0]], [[3.0, 4.0]]]), np.array([[[1.0]], [[10.0]]])
    dx, dw, db = linear_backward(dy, x, np.array([[5.0], [6.0]]), np.zeros(1))
    assert dx.tolist() == [[[5, 6]], [[50, 60]]]
    assert dw.tolist() == [[31], [42]] and db.tolist() == [11]


def test_by_hand_the_slopes_of_the_activations_at_0_and_far_away():
    x = np.array([-50.0, 0.0, 50.0])
    for name, middle in {"relu": 0, "gelu": 0.5, "gelu-tanh": 0.5, "silu": 0.5}.items():
        slopes = activation_backward(name, 2 * np.ones(3), x)
        np.testing.assert_allclose(slopes, [0, 2 * middle, 2], atol=1e-15, err_msg=name)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_slopes_of_the_largest_numbers_are_0_and_1(name, dtype):
    most, left, right = np.finfo(dtype).max, int(name == "identity"), int(name not in ("tanh", "sigmoid"))
    x = np.array([-most, -1e30, 1e30, most], dtype)
    assert activation_backward(name, np.ones(4, dtype), x).tolist() == [left, left, right, right]


def test_by_hand_the_gradient_of_a_norm_is_orthogonal_to_the_normalized_row_and_to_ones():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 5, 8))
    dx = layer_norm_vjp(x, eps=1e-30)[1](dy).x
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=1e-14)
    np.testing.assert_allclose((dx * x).sum(axis=-1), 0, atol=1e-14)
    np.testing.assert_allclose((rms_norm_vjp(x, eps=1e-30)[1](dy).x * x).sum(axis=-1), 0, atol=1e-14)


@pytest.mark.parametrize("power", [-400, 400, 600, 1000])
def test_the_gradient_of_a_norm_scales_with_huge_and_tiny_rows(power):
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((2, 3, 8))
    for norm in (layer_norm_vjp, rms_norm_vjp):
        near, far = (norm(one, eps=1e-300)[1](dy) for one in (x, np.ldexp(x, power)))
        np.testing.assert_allclose(np.ldexp(far.x, power), near.x, rtol=1e-9, atol=1e-12)


def test_float32_rows_around_a_million_keep_their_gradient():
    rng = np.random.default_rng(2)
    x, dy = (1e6 + rng.standard_normal((4, 64))).astype(np.float32), rng.standard_normal((4, 64)).astype(np.float32)
    ours = layer_norm_vjp(x)[1](dy).x
    exact = layer_norm_vjp(x.astype(float))[1](dy.astype(float)).x
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, atol=1e-6 * np.abs(exact).max())


def test_many_blocks_of_rows_and_parts_of_activations_are_one():
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 3, 1200, 96))
    gamma = rng.standard_normal(96)
    whole = layer_norm_vjp(x, gamma, gamma)[1](dy)
    parts = [layer_norm_vjp(x[i], gamma, gamma)[1](dy[i]) for i in range(3)]
    np.testing.assert_allclose(whole.x, np.stack([part.x for part in parts]), atol=1e-14)
    np.testing.assert_allclose(whole.gamma, sum(part.gamma for part in parts), atol=1e-11)
    slopes = activation_backward("gelu-tanh", dy, x)
    np.testing.assert_array_equal(slopes[1], dy[1] * ACTIVATIONS["gelu-tanh"].with_slope(x[1])[1])


def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((2, 4, 900, 96)).astype(np.float32)
    several = layer_norm_vjp(x, x[0, 0])[1](dy)
    monkeypatch.setattr("attnkit.model.processor.threads.os.cpu_count", lambda: 1)
    monkeypatch.setattr("attnkit.model.processor.threads._openblas", lambda: None)
    for ours, theirs in zip(layer_norm_vjp(x, x[0, 0])[1](dy)[:2], several[:2], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_memory_layout_does_not_matter():
    rng = np.random.default_rng(5)
    x, dy, w = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3, 5)), rng.standard_normal((4, 5))
    turned = [np.asfortranarray(array) for array in (dy, x, w)]
    for ours, theirs in zip(linear_backward(*turned), linear_backward(dy, x, w), strict=True):
        assert ours is theirs or np.allclose(ours, theirs, rtol=1e-15)
    ours, theirs = (layer_norm_vjp(each)[1](each).x for each in (np.asfortranarray(x), x))
    np.testing.assert_array_equal(ours, theirs)


def test_embedding_gradients_are_those_of_a_one_hot_product():
    rng = np.random.default_rng(7)
    ids, dy = rng.integers(0, 50, (4, 30)), rng.standard_normal((4, 30, 6))
    rows = model.one_hot(ids, 60, np.float64).reshape(-1, 60)
    np.testing.assert_allclose(embed_backward(dy, ids, 60), rows.T @ dy.reshape(-1, 6), atol=1e-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_backward(np.ones((2, 3)), np.ones((2, 4)), np.ones((4, 5))), "gradient (2,3)"),
        (lambda: sum_to_shape(np.ones(3), (2,)), "(2,) does not broadcast"),
        (lambda: embed_backward(np.ones((2, 3)), [0, 9], 4), "token id 9 at [1] outside 0..3"),
        (lambda: embed_backward(np.ones((3, 3)), [0, 1], 4), "gradient (3,3)"),
        (lambda: layer_norm_vjp(np.ones((2, 4)))[1](np.ones((2, 3))), "gradient (2,3)"),
        (lambda: norm_steps_backward(np.ones((2, 3)), np.ones((2, 4)), over=[0]), "gradient (2,3)"),
        (lambda: activation_backward("relu", np.ones(3), np.ones(4)), "gradient (3,)"),
        (lambda: t5_bias_backward(np.ones((2, 3, 3)), np.zeros((2, 3), int), 4), "gradient (2,3,3)"),
        (lambda: extract_patches_backward(np.ones((3, 12)), (3, 4, 4), 2, 2), "gradient (3,12)"),
        (lambda: interpolate_positions_backward(np.ones((3, 2)), 1, 2, 2, 2), "gradient (3,2)"),
    ],
)
def test_shapes_that_do_not_match(call, message):
    with pytest.raises(DataError) as error:
        call()
    assert message in str(error.value)


def test_empty_arrays_have_empty_gradients():
    dx, dw, db = linear_backward(np.ones((0, 3)), np.ones((0, 4)), np.ones((4, 3)), np.ones(3))
    assert dx.shape == (0, 4) and not dw.any() and not db.any()
    norm = layer_norm_vjp(np.ones((0, 4)), np.ones(4))[1](np.ones((0, 4)))
    assert norm.x.shape == (0, 4) and not norm.gamma.any()
    assert not embed_backward(np.ones((0, 3)), np.zeros(0, int), 4).any()


def test_dropout_masks_depend_on_seed_step_and_place_alone():
    known = {"seed": 3, "step": 9, "place": "encoder.0.ffn"}
    kept = dropout_mask((50, 40), 0.3, **known)
    np.testing.assert_array_equal(kept, dropout_mask((50, 40), 0.3, **known))
    np.testing.assert_array_equal(kept[:10], dropout_mask((10, 40), 0.3, **known))
    for shape in ((50, 40), (50, 3, 7), (50,)):
        np.testing.assert_array_equal(
            dropout_mask(shape, 0.3, **known)[13:], dropout_mask((37, *shape[1:]), 0.3, **known, row=13)
        )
    for changed in ({"seed": 4}, {"step": 10}, {"place": "encoder.1.ffn"}):
        other = dropout_mask((50, 40), 0.3, **{**known, **changed})
        assert 0.3 < (other != kept).mean() < 0.55  # independent masks differ at 2 * 0.3 * 0.7 = 0.42 of the places
    assert abs(kept.mean() - 0.7) < 0.05
    # by NumPy's own generator: the key is [3, the start of SHA-256("encoder.0.ffn")], the counter [0, 0, 0, 9]
    place = int.from_bytes(hashlib.sha256(b"encoder.0.ffn").digest()[:8], "big")
    words = np.random.Philox(key=3 + (place << 64), counter=9 << 192).random_raw(1000)
    halves = np.stack([words & 0xFFFFFFFF, words >> 32], axis=-1).ravel()
    np.testing.assert_array_equal(kept.ravel(), halves >= int(0.3 * 2**32))


def test_dropout_keeps_the_mean():
    x = np.ones((200, 100), np.float32)
    y = dropout(x, 0.25, seed=1, step=2, place="a")
    assert y.dtype == np.float32 and set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert abs(y.mean() - 1) < 0.02


@pytest.mark.parametrize("changed", [{"rate": 1.0}, {"rate": -0.1}, {"rate": np.nan}, {"seed": -1}, {"step": 2**64}])
def test_dropout_values_outside_their_range(changed):
    with pytest.raises(UsageError):
        dropout(np.ones(3), **({"rate": 0.5, "seed": 0, "step": 0, "place": "a"} | changed))
