"""A model split over devices gives what one device gives; every device holds its part of the weights."""

import json
import tracemalloc
from functools import cache

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import attnkit
from attnkit import model
from attnkit.backends.jax.engine import JaxEngine
from attnkit.backends.jax.inputs import bucket
from attnkit.backends.jax.mesh import WIDENED, put
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import UsageError
from attnkit.formats import safetensors
from attnkit.inputs import layers
from tests.backends.test_models import both, check, core, text

MESHES = (("mistral", {"model": 2}), ("mistral", {"seq": 4}), ("recurrent/luong", {"data": 2}),
          ("t5", {"data": 2, "model": 2, "seq": 2}))  # fmt: skip
pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: tests/conftest.py makes them")


@cache
def split(**mesh):
    return JaxEngine(mesh=mesh)


@pytest.mark.parametrize(("name", "mesh"), MESHES, ids=str)
def test_a_mesh_gives_what_one_device_gives(name, mesh):
    check(name, "float32", split(**mesh))


def test_one_text_is_split_over_its_tokens():
    numpy, ours = both("distilbert", split(seq=4))
    x, steps = text("distilbert", "encoder"), numpy.config.plan("encoder")
    theirs, mine = (model.run(each, steps, x, model.Context()) for each in (numpy, ours))
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_tokens_are_generated_by_a_split_model():
    numpy, ours = both("gpt2", split(data=2, model=2))
    ids, settings = text("gpt2", "decoder")[:5], model.SamplingConfig(limit=6)
    decoders = model.CachedDecoder(numpy), split(data=2, model=2).decoder(ours, None)
    theirs, mine = (model.generate(each, ids, settings).ids for each in decoders)
    assert mine == theirs
    keys, known = (dict(each.cache)["decoder.0.self"][0] for each in decoders)
    assert keys.shape == known.shape


def test_every_device_holds_its_part_of_weights_and_tables():
    numpy, ours = both("llama", split(model=2))
    placed = split(model=2).placed(ours, "float32")
    layer = "decoder.0.ffn"
    placed.arrays([layer, "decoder.embed"])
    array = placed.arrays([layer])[f"{layer}.w1"]
    rows, columns = numpy.params[layer]["w1"].shape
    assert {shard.data.shape for shard in array.addressable_shards} == {(rows, columns // 2)}


def test_weights_in_16_bits_are_not_widened_as_a_whole(tmp_path):
    raw = {"model_type": "gpt2", "n_embd": 256, "n_head": 4, "n_layer": 2, "vocab_size": 2000, "n_positions": 64}
    tensors = {name: np.zeros(shape, np.float16) for name, shape in published_tensors(raw).shapes.items()}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").write_bytes(b"".join(safetensors.encode(attnkit.Record(tensors))))
    checkpoint, engine = open_checkpoint(str(tmp_path)), split(model=2)
    ours = layers.core_model(checkpoint)._replace(engine=engine)
    tracemalloc.start()
    try:
        decoder = engine.decoder(ours, None)
        assert np.isfinite(decoder(np.array([[1, 2, 3]]))).all()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not checkpoint.params._tensors and peak < 4 * checkpoint.parameter_count + 5e6


@pytest.mark.parametrize("count", [8, WIDENED // 2])
def test_weights_in_16_bits_are_the_same_numbers_in_32(count):
    """Those that NumPy widens, and large ones that the device widens."""
    array = np.arange(count).astype(np.uint16).view(np.float16)  # all numbers of 16 bits
    placed = put(array, "float32", None, jax.sharding.PartitionSpec())
    assert placed.dtype == np.float32
    np.testing.assert_array_equal(placed, array.astype(np.float32))


@pytest.mark.parametrize(
    ("mesh", "name", "problem"),
    [
        ({"model": 3}, "gpt2", "--mesh: 4 heads are not divisible by model=3"),
        ({"data": 9}, "gpt2", "--mesh: 9 devices, but there are 8: attnkit engines lists them"),
        ({"seq": 2}, "deberta-v2", "--mesh seq: the scores of a deberta-v2 model need all keys at once"),
        (
            {"seq": 2},
            "recurrent/luong",
            "--mesh seq: the layers of a seq2seq model are not split",
        ),
        ({"seq": 2}, "vit", "--mesh seq: an image is not split"),
    ],
)
def test_a_mesh_that_does_not_fit_is_an_error(mesh, name, problem):
    with pytest.raises(UsageError) as raised:
        check(name, "float32", split(**mesh))
    assert str(raised.value).startswith(problem)


def test_the_tokens_after_a_text_are_not_split():
    with pytest.raises(UsageError, match="--mesh seq: splits one long text"):
        split(seq=2).decoder(core("gpt2")._replace(engine=split(seq=2)), None)


def test_a_few_sizes_are_compiled_for_texts_of_all_lengths():
    sizes = {bucket(count) for count in range(1, 4097)}
    assert len(sizes) < 40 and all(bucket(count) <= max(16, 1.25 * count + 4) for count in range(1, 4097))
