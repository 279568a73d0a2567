"""The graph of a model of sounds, and of the vector of a text or image, computes what transformers does.

What the numbers are, and how they were made: tests/references/make_sounds.py, make_waves.py and make_vision.py.
"""

import numpy as np
import pytest

from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests.drawing import assert_near
from tests.places import arrays
from tests.registry import drawn_names, load_core

EXACT, SINGLE = 1e-10, 2e-6  # of the largest number
TOWERS = [f"{name}:{tower}" for name in ("clip", "clip-old", "siglip") for tower in ("text", "vision")]


def evaluate_all(core, inputs):
    """The values of all sites, whose shapes are stated."""
    graph, memo = model_graph(core, inputs), {}
    for site, node in graph.nodes.items():
        assert graph.evaluate(site, graph.roots, memo=memo).shape == node.shape, site
    return graph, memo


@pytest.mark.parametrize("name", drawn_names("sounds"))
def test_the_graph_begins_with_a_sound_of_which_it_makes_the_spectrogram(name):
    core, frozen = load_core(name), lambda key: arrays("sounds")[f"{name}/{key}"]
    graph, values = evaluate_all(core, Inputs(sound=frozen("samples")[None], target=frozen("ids")))
    assert graph.cone("spectrogram", graph.roots) == [graph.nodes["spectrogram"]]
    assert_near(values["spectrogram"], frozen("features").swapaxes(1, 2), SINGLE)
    assert_near(values["logits"], frozen("logits.f64"), 20 * SINGLE)  # of a spectrogram in float32
    given = model_graph(core, Inputs(features=frozen("features").swapaxes(1, 2), target=frozen("ids")))
    assert_near(given.evaluate("encoder.norm", given.roots), frozen("memory.f64"), EXACT)
    assert_near(given.evaluate("logits", given.roots), frozen("logits.f64"), EXACT)


@pytest.mark.parametrize("name", drawn_names("waves"))
def test_the_graph_begins_with_a_sound_whose_samples_it_standardizes(name):
    core, samples = load_core(name), arrays("waves")["samples"][None] / np.float64(32768)
    graph, values = evaluate_all(core, Inputs(sound=samples))
    assert graph.inputs.sound is samples and set(graph.roots) == {"sound"}
    assert_near(values["samples"][0], arrays("waves")["values"], SINGLE)
    plain = model_graph(core, Inputs(sound=samples, standardizes=False))
    assert np.array_equal(plain.evaluate("samples", plain.roots), samples)
    given = model_graph(core, Inputs(features=arrays("waves")["values"][None].astype(np.float64)))
    assert_near(
        given.evaluate("logits", given.roots)[0], arrays("waves")[f"{name.removeprefix('waves/')}/logits.f64"], EXACT
    )


def test_a_sound_of_a_padded_batch_is_that_sound_alone():
    """With a norm of each frame; one of each channel is over the padding too, as in transformers."""
    core, rng = load_core("waves/layer"), np.random.default_rng(0)
    sounds = [rng.normal(size=length) for length in (4000, 2500)]
    padded = np.stack([np.pad(one, (0, 4000 - len(one))) for one in sounds])
    counts = [core.config.sound.frames_after("", len(one)) for one in sounds]
    mask = np.arange(counts[0]) < np.array(counts)[:, None]
    _, together = evaluate_all(core, Inputs(features=padded, mask=mask))
    for at, one in enumerate(sounds):
        _, alone = evaluate_all(core, Inputs(features=one[None]))
        for site in ("encoder.feature_norm", "encoder.position_conv", "encoder.1.self.heads", "encoder.norm", "logits"):
            expected = alone[site][0]
            assert_near(together[site][at][..., : expected.shape[-2], :], expected, 1e-12)


@pytest.mark.parametrize("name", TOWERS)
def test_the_vector_of_a_text_or_image_is_a_node(name):
    core, (place, _, tower) = load_core(name), name.partition(":")

    def frozen(key):
        return arrays("vision")[f"{place}/{key}"]

    if tower == "vision":
        inputs = Inputs(image=frozen("pixels").astype(np.float64))
    else:
        inputs = Inputs(ids=frozen("ids"), mask=None if core.config.text_length else frozen("ids.mask").astype(bool))
    _, values = evaluate_all(core, inputs)
    assert_near(values["vector"], frozen(f"{tower}.vectors.f64"), EXACT)
