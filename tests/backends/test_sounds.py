"""Models of sounds on the engine JAX: the states, intermediates, logits and texts of NumPy."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import attnkit
from attnkit import model
from attnkit.backends.jax.engine import JaxEngine
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import UsageError
from attnkit.inputs import layers
from attnkit.records import Record
from tests.drawing import drawn_models, keep_folders
from tests.places import arrays

SOUNDS, WAVES = drawn_models("sounds"), drawn_models("waves")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folders = {kind: keep_folders(tmp_path_factory.mktemp, kind) for kind in ("sounds", "waves")}
    return lambda name: folders["sounds" if name in SOUNDS else "waves"](name)


def features(config, rows=(2,)):
    rng, read = np.random.default_rng(1), config.sound
    shape = (2 * read.positions, read.spectrogram.mels) if read.spectrogram else (3000,)
    return rng.standard_normal((*rows, *shape))


@pytest.mark.parametrize("name", [*SOUNDS, *WAVES])
def test_states_and_intermediates_are_those_of_numpy(folder, name):
    known = layers.core_model(open_checkpoint(folder(name)))
    ours, found = known._replace(engine=JaxEngine()), []
    for core in (known, ours):
        kept = {}
        context = model.Context(hook=lambda where, kept=kept: lambda x: kept.setdefault(where, x), dtype="float64")
        kept["x"] = model.run(core, core.config.plan("encoder"), features(core.config), context)
        found.append(kept)
    plain = model.run(ours, ours.config.plan("encoder"), features(ours.config), model.Context(dtype="float64"))
    alone = model.run(ours, ours.config.plan("encoder"), features(ours.config)[1], model.Context(dtype="float64"))
    seen = {}
    context = model.Context(hook=lambda where: lambda x: seen.setdefault(where, x), dtype="float64")
    seen["x"] = model.run(ours, ours.config.plan("encoder"), features(ours.config)[1], context)
    names = [where for where in found[0] if not where.endswith((".lse", ".present_key", ".present_value"))]
    assert names == [*found[1]]
    for where in names:
        np.testing.assert_allclose(found[1][where], found[0][where], rtol=0, atol=1e-9, err_msg=where)
        np.testing.assert_allclose(seen[where], found[1][where][1], rtol=0, atol=1e-9, err_msg=where)
    for array, expected in ((plain, found[0]["x"]), (alone, found[0]["x"][1])):
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-9)


def test_a_sound_is_transcribed_scored_and_encoded_as_by_numpy(folder):
    heard = {"audio": Record({"x": arrays("sounds")["whisper/samples"]}), "model": folder("whisper")}
    texts = [attnkit.decode(**heard, max_tokens=6, emit="ids", engine=one)["x"].tolist() for one in ("numpy", "jax")]
    assert texts[0] == texts[1]
    states = [attnkit.encode(**heard, engine=one)["x"] for one in ("numpy", "jax")]
    np.testing.assert_allclose(states[1], states[0], rtol=0, atol=1e-5)


def test_a_sound_is_not_split(folder):
    with pytest.raises(UsageError, match="a sound is not split"):
        attnkit.encode(audio=Record({"x": np.zeros(4000)}), model=folder(next(iter(WAVES))), engine="jax", mesh="seq=2")
