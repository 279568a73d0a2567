"""BART and M2M-100 on the engine JAX: the memory and logits of transformers, padded, and the cached steps of NumPy."""

import numpy as np
import pytest

pytest.importorskip("jax")

import attnkit
from attnkit import model
from attnkit.backends.jax.engine import JaxEngine
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from attnkit.model.passes.incremental_decoder import CachedDecoder
from attnkit.records import Record
from tests.generation.test_translators import SINGLE, assert_near, compute, folder, frozen  # noqa: F401 (a fixture)


@pytest.mark.parametrize("name", ["bart", "mbart", "m2m_100-padding"])
def test_the_engine_computes_what_numpy_does(folder, name):  # noqa: F811
    numpy, engine = layers.core_model(open_checkpoint(folder(name, np.float32))), JaxEngine()
    jax = numpy._replace(engine=engine)
    batch = {key: frozen(name, f"batch.{key}") for key in ("source", "ids", "mask")}
    assert_near(compute(jax, **batch, dtype="float32"), frozen(name, "batch.logits.f32"), 2 * SINGLE)
    memory = model.run(numpy, numpy.config.plan("encoder"), frozen(name, "source"), model.Context())
    ids = frozen(name, "ids")
    ours, theirs = (make(one, None, memory=memory) for make, one in ((engine.decoder, jax), (CachedDecoder, numpy)))
    for start, end in ((0, 3), (3, 4), (4, 5)):
        assert_near(ours(ids[:, start:end]), theirs(ids[:, start:end]), 2 * SINGLE)


def test_the_labels_of_bart(folder):  # noqa: F811
    place = folder("bart-labels", np.float32)
    ids = Record(
        {"x": frozen("bart-labels", "batch.source"), "mask": frozen("bart-labels", "batch.mask")[:, None] == 1}
    )
    numpy, jax = (attnkit.decode(model=place, ids=ids, engine=engine)["logits"] for engine in ("numpy", "jax"))
    assert_near(jax, numpy, 2 * SINGLE)
