"""The adjoint of every operator: numbers worked by hand, finite differences, and torch.autograd's, frozen."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnkit import model
from attnkit.errors import DataError, UsageError
from attnkit.model import backward
from attnkit.model.dropout import dropout, dropout_mask
from attnkit.model.feedforward import ACTIVATIONS
from attnkit.model.linear import add, linear

REFERENCES = Path(__file__).parents[2] / "references"
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
        return of(backward.linear_backward(dy, *drop(arrays, ("x", "weight", "bias"))))


class Add:
    def forward(arrays, options):
        return add(arrays["x"], arrays["y"])

    def backward(dy, arrays, options):
        return dict(zip("xy", backward.add_backward(dy, arrays["x"], arrays["y"]), strict=True))


class Embed:
    def forward(arrays, options):
        return model.embed(options["ids"], arrays["table"])

    def backward(dy, arrays, options):
        return {"table": backward.embed_backward(dy, options["ids"], len(arrays["table"]))}


class Scale:
    def forward(arrays, options):
        return model.scale_embedding(arrays["x"])

    def backward(dy, arrays, options):
        return {"x": backward.scale_embedding_backward(dy)}


class Positions:
    def forward(arrays, options):
        where = options["positions"]
        return model.add_positions(arrays["x"], where, lambda part: model.learned_positions(part, arrays["table"]))

    def backward(dy, arrays, options):
        where, table = options["positions"], arrays["table"]
        dx, dcode = backward.add_positions_backward(dy, (*where.shape, table.shape[1]))
        return {"x": dx, "table": backward.learned_positions_backward(dcode, where, len(table))}


class T5Bias:
    def forward(arrays, options):
        return model.t5_bias(options["buckets"], arrays["table"])

    def backward(dy, arrays, options):
        return {"table": backward.t5_bias_backward(dy, options["buckets"], len(arrays["table"]))}


class Rotate:
    def forward(arrays, options):
        return model.rotate(arrays["x"], **options)

    def backward(dy, arrays, options):
        return {"x": backward.rotate_backward(dy, **options)}


class LayerNorm:
    def forward(arrays, options):
        return model.layer_norm(**arrays, **options).y

    def backward(dy, arrays, options):
        return of(backward.layer_norm_backward(dy, **arrays, **options))


class RMSNorm:
    def forward(arrays, options):
        return model.rms_norm(**arrays, **options).y

    def backward(dy, arrays, options):
        return of(backward.rms_norm_backward(dy, **arrays, **options))


class BatchNorm:
    def forward(arrays, options):
        return model.batch_norm(**arrays, **options).y

    def backward(dy, arrays, options):
        return of(backward.batch_norm_backward(dy, **arrays, **options))


class Activation:
    def forward(arrays, options):
        return ACTIVATIONS[options["activation"]](arrays["x"])

    def backward(dy, arrays, options):
        return {"x": backward.activation_backward(options["activation"], dy, arrays["x"])}


class FeedForward:
    def forward(arrays, options):
        params = {name: array for name, array in arrays.items() if name != "x"}
        return model.feed_forward(arrays["x"], params, **options)["output"]

    def backward(dy, arrays, options):
        params = {name: array for name, array in arrays.items() if name != "x"}
        dx, grads, _ = backward.feed_forward_backward(dy, arrays["x"], params, **options)
        return {"x": dx, **grads}


class Patches:
    def forward(arrays, options):
        return model.extract_patches(arrays["image"], *options["size"])

    def backward(dy, arrays, options):
        return {"image": backward.extract_patches_backward(dy, arrays["image"].shape, *options["size"])}


class Interpolate:
    def forward(arrays, options):
        return model.interpolate_positions(arrays["table"], *options["grids"])

    def backward(dy, arrays, options):
        return {"table": backward.interpolate_positions_backward(dy, *options["grids"])}


class Dropout:
    def forward(arrays, options):
        return dropout(arrays["x"], **options)

    def backward(dy, arrays, options):
        return {"x": backward.dropout_backward(dy, **options)}


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
    arrays = {"x": numbers(rng, 2, 3), "w1": numbers(rng, 3, 4), "w2": numbers(rng, 4, 3)}
    arrays |= {"w3": numbers(rng, 3, 4)} if draw(st.booleans()) else {}
    sizes = {"b1": 4, "b2": 3} | ({"b3": 4} if "w3" in arrays else {})
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

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(st.data(), st.integers(0, 2**32 - 1))
    def run(data, seed):
        rng = np.random.default_rng(seed)
        arrays, options = draw_inputs(data.draw, rng)
        y = operator.forward(arrays, options)
        dy = rng.standard_normal(y.shape)
        gradients = operator.backward(dy, arrays, options)
        assert set(gradients) == set(arrays)
        directions(lambda moved: np.vdot(dy, operator.forward(moved, options)), arrays, gradients, rng)

    run()
