"""Arrays of other libraries wherever arrays are taken: tensors of torch, arrays of JAX, anything with __array__."""

import ml_dtypes
import numpy as np
import pytest

import attnkit
from attnkit import Record, Tensor, model
from attnkit.errors import UsageError
from attnkit.model.arrays import is_foreign, numpy_array

X = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]], np.float32)
W = {"wq": np.eye(4, dtype=np.float32), "wo": 2 * np.eye(4, dtype=np.float32)}


class Wrapped:
    """An array of a library of its own, as NumPy knows it."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def as_torch(array, bfloat16=False):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(np.array(array))
    tensor = tensor.bfloat16() if bfloat16 else tensor
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def as_jax(array, bfloat16=False):
    jnp = pytest.importorskip("jax.numpy")
    return jnp.asarray(array, jnp.bfloat16 if bfloat16 else None)


def as_wrapped(array, bfloat16=False):
    return Wrapped(array.astype(ml_dtypes.bfloat16) if bfloat16 else array)


CALLS = {
    "an input": lambda one: attnkit.attend(one(X)),
    "an input in a list": lambda one: attnkit.attend([one(row) for row in X]),
    "a record": lambda one: attnkit.attend(Record({"x": one(X)})),
    "a tensor": lambda one: attnkit.attend(Record({"x": Tensor(one(X), ("token", "model"))})),
    "a tensor that is added": lambda one: attnkit.attend(Record({}).with_tensors({"x": one(X)})),
    "parameters": lambda one: attnkit.attend(X, params={name: one(w) for name, w in W.items()}),
    "a mask": lambda one: attnkit.attend(X, mask=one(np.tri(3, dtype=bool)), keep="weights"),
    "ids and a table": lambda one: attnkit.embed(ids=one(np.array([2, 0])), table=one(X)),
    "the input of a pipeline": lambda one: attnkit.run("layernorm | softmax", one(X)),
    "a function of arrays": lambda one: model.softmax(one(X)),
    "a function with parameters": lambda one: model.multi_head_attention(
        one(X), one(X), one(X), {name: one(w) for name, w in W.items()}, mask=one(np.tri(3, dtype=bool)), heads=2
    )["output"],
    "a function of whole models": lambda one: model.cross_entropy(one(X), one(np.array([0, 1, 3]))),
    "a pair": lambda one: model.rotate(one(X), *model.rotary_angles(one(np.arange(3)), 4)),
}


@pytest.mark.parametrize("convert", [as_torch, as_jax, as_wrapped])
@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_other_libraries_compute_as_those_of_numpy(name, convert):
    result, expected = (CALLS[name](one) for one in (convert, np.asarray))
    if not isinstance(result, Record):
        result, expected = Record({"x": result}), Record({"x": expected})
    assert [*result] == [*expected]
    for one in result:
        assert type(result[one]) in (np.ndarray, np.float32)
        assert np.array_equal(result[one], expected[one]) and result[one].dtype == expected[one].dtype


@pytest.mark.parametrize("convert", [as_torch, as_jax, as_wrapped])
def test_bfloat16_stays_bfloat16(convert):
    array = numpy_array(convert(np.array([1.0, 1 / 3], np.float32), bfloat16=True))
    assert array.dtype == ml_dtypes.bfloat16 and array.astype(float).tolist() == [1.0, 0.333984375]
    assert attnkit.softmax(convert(X, bfloat16=True))["x"].dtype == ml_dtypes.bfloat16
    assert model.softmax(convert(X, bfloat16=True)).dtype == ml_dtypes.bfloat16


def test_a_parameter_of_a_module_and_odd_tensors_of_torch():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 2)
    assert np.array_equal(attnkit.softmax(layer.weight)["x"], model.softmax(layer.weight.detach().numpy()))
    assert numpy_array(torch.ones(2, 3).t().to_sparse()).shape == (3, 2)
    assert numpy_array(torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)).tolist() == [0.5, 448.0]
    assert numpy_array(torch.complex(torch.ones(1), torch.zeros(1)).conj()).tolist() == [[1.0, -0.0]]


def test_no_array_of_numpy_and_no_number_is_foreign():
    assert not any(map(is_foreign, (X, X[0, 0], 1.0, [1.0], "text", None, Record({"x": X}))))
    assert model.softmax(X).base is None and numpy_array(X) is X


def test_an_array_of_texts_is_refused_by_name():
    with pytest.raises(UsageError, match="x: expected an array of numbers, got dtype"):
        attnkit.attend(Wrapped(np.array(["a"])))


def test_a_tensor_without_numbers_is_refused_by_name():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    empty, problem = torch.ones(2, 2, device="meta"), "no numbers can be read from this Tensor: Cannot copy"
    with pytest.raises(UsageError, match=f"^x: {problem}"):
        attnkit.attend(empty)
    with pytest.raises(UsageError, match=f"^w: {problem}"):
        attnkit.linear(X, params={"w": empty})
    with pytest.raises(UsageError, match=f"^{problem}"):
        Record({"x": empty})
    with pytest.raises(UsageError, match=f"^{problem}"):
        model.softmax(empty)
    with pytest.raises(UsageError, match=r"^x: no numbers can be read from this PRNGKeyArray: JAX array with PRNGKey"):
        attnkit.attend(jax.random.key(0))
