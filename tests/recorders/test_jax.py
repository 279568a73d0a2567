"""Taps of JAX arrays, in compiled and transformed functions."""

import os

import numpy as np
import pytest

from attnkit.debugger.dumps import open_dump
from attnkit.errors import DataError
from attnkit.recorders import record, recording, tap

jax = pytest.importorskip("jax")
jnp = jax.numpy

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def model(x):
    return jnp.sin(tap("double", x * 2)).sum()


def scan(x):
    return jax.lax.scan(lambda carry, _: (tap("carry", carry + 1), None), x, None, length=3)[0]


def record_call(path, function, *arguments):
    """What a call records, name -> array."""
    with record(path / "mine.npz"):
        function(*arguments)
    return dict(open_dump(str(path / "mine.npz")))


TRANSFORMS = {
    "none": lambda model: model,
    "jit": jax.jit,
    "grad": jax.grad,
    "jit of gradient": lambda model: jax.jit(jax.value_and_grad(model)),
    "gradient of jit": lambda model: jax.grad(jax.jit(model)),
    "checkpoint": lambda model: jax.grad(jax.checkpoint(model)),
    "vmap": jax.vmap,
    "jit of vmap": lambda model: jax.jit(jax.vmap(model)),
    "two vmaps": lambda model: jax.vmap(jax.vmap(model)),
    "vmap of gradient": lambda model: jax.vmap(jax.grad(model)),
    "gradient of vmap": lambda model: jax.grad(lambda x: jax.vmap(model)(x).sum()),
    "all": lambda model: jax.jit(jax.grad(lambda x: jax.vmap(model)(x).sum())),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=[*TRANSFORMS])
def test_transformed_functions_record_the_whole_array(tmp_path, transform):
    found = record_call(tmp_path, transform(model), X)
    assert [*found] == ["double"] and np.array_equal(found["double"], X * 2)


def test_each_step_of_a_scan_is_recorded_in_order(tmp_path):
    found = record_call(tmp_path, jax.jit(scan), X)
    assert [*found] == ["carry", "carry#1", "carry#2"] and np.array_equal(found["carry#2"], X + 3)


def test_a_function_compiled_before_the_recording_is_compiled_again(tmp_path):
    compiled, traced = jax.jit(model), []

    @jax.jit
    def counted(x):
        traced.append(x)
        return compiled(x)

    counted(X)
    assert [*record_call(tmp_path, counted, X)] == ["double"] and len(traced) == 2
    counted(X)
    assert [*record_call(tmp_path, counted, X + 1)] == ["double"] and len(traced) == 2


def test_bfloat16(tmp_path):
    found = record_call(tmp_path, jax.jit(lambda x: tap("h", x.astype(jnp.bfloat16))), X)
    assert found["h"].dtype.name == "bfloat16" and found["h"].astype(int).tolist() == X.tolist()


def test_errors_of_callbacks_are_raised_at_the_end(tmp_path, monkeypatch):
    def refuse(value):
        raise ValueError("no array")

    monkeypatch.setattr(recording, "numpy_array", refuse)
    with pytest.raises(DataError, match="tensor 'double': cannot be recorded: no array"):
        record_call(tmp_path, jax.jit(model), X)
    assert os.listdir(tmp_path) == []


def test_the_same_object_is_handed_back():
    x = jnp.ones(2)
    assert tap("x", x) is x
