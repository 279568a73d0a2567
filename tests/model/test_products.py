"""Matrix products on every core, and of fixed shapes, are those of BLAS."""

import os
import subprocess
import sys

import numpy as np
import pytest

from attnkit.model.processor import products, threads
from attnkit.model.processor.products import ARRANGED, FIXED, matrix_product, row_places
from tests import process
from tests.registry import open_model

fixed = FIXED.matrix


@pytest.mark.parametrize("shape", [(1000, 64), (4, 250, 64), (128, 64), (127, 64), (0, 64), (64,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_equal(shape, dtype, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape).astype(dtype), rng.standard_normal((64, 40)).astype(dtype)
    for right in (y, np.asfortranarray(y)):
        ours = matrix_product(x, right)
        assert ours.dtype == dtype and ours.shape == (*shape[:-1], 40)
        np.testing.assert_allclose(ours, x @ y, rtol=0, atol={"float32": 1e-4, "float64": 1e-12}[dtype])


def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(products, "LARGE", 0)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((777, 96)).astype(np.float32), rng.standard_normal((96, 50)).astype(np.float32)
    results = []
    for count in (1, 2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_saved", [count])
            results.append(matrix_product(x, y))
    assert all((result == results[0]).all() for result in results)


@pytest.mark.parametrize("shape", [(64, 40), (384, 384), (384, 1536), (1536, 384), (130, 61), (130, 901)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_has_the_same_bits_whatever_rows_follow_it_and_on_any_threads(shape, dtype):
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((130, shape[0])).astype(dtype), rng.standard_normal(shape).astype(dtype)
    for right in (y, np.asfortranarray(y)):
        whole = fixed(x, right)
        np.testing.assert_allclose(whole, x @ right, rtol=0, atol={"float32": 1e-3, "float64": 1e-12}[dtype])
        for count in (1, 2, 3, 7, 12, 23, 24, 25, 64, 129):
            np.testing.assert_array_equal(fixed(x[:count], right), whole[:count])
            stack = np.stack([x[:count], x[:count]])
            np.testing.assert_array_equal(fixed(stack, right), np.stack([whole[:count]] * 2))
        with threads.single_blas():
            np.testing.assert_array_equal(fixed(x, right), whole)


def test_rows_of_several_texts_have_the_bits_of_each_alone():
    rng = np.random.default_rng(3)
    texts = [rng.standard_normal((length, 64)).astype(np.float32) for length in (2, 5, 11, 3, 40, 5)]
    y = rng.standard_normal((64, 300)).astype(np.float32)
    places, size = row_places([len(text) for text in texts])
    assert size % 24 == 0 and len({*np.concatenate(places).tolist()}) == 66 and size - 66 < 24
    rows = np.zeros((size, 64), np.float32)
    rows[np.concatenate(places)] = np.concatenate(texts)
    result = ARRANGED.matrix(rows, y)
    for text, place in zip(texts, places, strict=True):
        np.testing.assert_array_equal(result[place], fixed(text, y))


def widths_that_depend_on_the_batch():
    """The shapes of y and thread counts for which a text has other bits alone than in a batch."""
    _, set_threads = threads._openblas()
    rng, found = np.random.default_rng(5), []
    pairs = [(80, 320), (96, 250), (100, 250), (100, 400), (104, 416), (128, 250), (130, 200), (200, 200), (200, 800)]
    for inner, columns in pairs:
        for dtype in ("float32", "float64"):
            y = rng.standard_normal((inner, columns)).astype(dtype)
            for texts in (9, 40):  # the small products of the second are shared by threads
                x = rng.standard_normal((texts, 11, inner)).astype(dtype)
                set_threads(1)
                first = fixed(x, y)
                for count in (1, 2, 4):
                    set_threads(count)
                    alone = np.stack([fixed(text, y) for text in x])
                    same = [np.array_equal(first, fixed(x, y)), np.array_equal(first, alone)]
                    if not all(same) or not np.array_equal(first[3, :5], fixed(x[3, :5], y)):
                        found.append((inner, columns, dtype, texts, count))
    return found


@pytest.mark.parametrize("loops", ["Haswell", "Zen", "Prescott"])
def test_a_text_has_the_same_bits_on_any_loops_and_threads_whatever_its_width(loops):
    if not process.has_loops(loops):
        pytest.skip("the processor has no such instructions")
    code = "from tests.model.test_products import *; print(widths_that_depend_on_the_batch())"
    env = os.environ | {"OPENBLAS_NUM_THREADS": "4", "OPENBLAS_CORETYPE": loops}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert out == "[]\n"


def test_vectors_and_empty_matrices_are_those_of_numpy():
    y = np.random.default_rng(4).standard_normal((8, 5))
    for x in (np.ones(8), np.ones((0, 8)), np.ones((2, 0, 8))):
        np.testing.assert_array_equal(fixed(x, y), x @ y)
    assert fixed(np.ones((3, 0)), np.ones((0, 4))).tolist() == [[0.0] * 4] * 3


@pytest.mark.parametrize(("name", "fixed_layers", "other_layers"), [
    ("bert", ["encoder.0.self", "head"], []),  # an encoder of text, and its head
    ("marian", ["encoder.0.self"], ["decoder.0.self", "decoder.0.cross", "head"]),
    ("gpt2", [], ["decoder.0.self", "head"]),
    ("vit", [], ["encoder.0.self", "head"]),
    ("whisper", [], ["encoder.0.self", "decoder.0.self"]),
])  # fmt: skip
def test_the_layers_of_texts_that_are_computed_together_have_products_of_fixed_shape(name, fixed_layers, other_layers):
    config = open_model(name).config
    assert [layer for layer in fixed_layers + other_layers if config.fixes_shapes(layer)] == fixed_layers
