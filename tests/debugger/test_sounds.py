"""Models of sounds: dumps of transformers agree, and slips of sounds and convolutions are named.

Each slip is made in the graph, whose values in float32 an implementation has; some were made in a model of torch, whose
dumps tests/references/make_slips.py has written.
"""

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.debugger import slips
from attnkit.debugger.compare import Implementation, Request, compare_with_model
from attnkit.debugger.dumps import Dump, array_entry, open_dump
from attnkit.debugger.graphs import debugged_graph
from attnkit.debugger.names import TensorSource
from attnkit.debugger.verdict import Judge
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.model.graph.nodes import Inputs
from attnkit.records import Record
from tests.drawing import drawn_models
from tests.places import REFERENCES
from tests.places import folder as stored
from tests.process import run
from tests.registry import place_of
from tests.sound_files import make_syllables, pack_wav

SOUND = make_syllables(0.25, 3)  # of which the dumps are
WAVES = drawn_models("waves")


def folder(name):
    return place_of(f"waves/{name}" if name in WAVES else name)


@pytest.fixture(scope="module")
def debugged():
    """The graph of a model with every slip, and its values in float32."""
    graphs = {}

    def read(name):
        if name not in graphs:
            core, memo = layers.complete_model(open_checkpoint(folder(name))), {}
            target = np.random.default_rng(1).integers(3, 90, (1, 7)) if core.config.decoder else None
            sound = make_syllables(0.8, 3)[None].astype(np.float64)
            graph = debugged_graph(core, Inputs(sound=sound, target=target))
            for site in graph.nodes:
                graph.evaluate(site, graph.roots, precision="float32", memo=memo)
            graphs[name] = graph, memo
        return graphs[name]

    return read


# model -> sites at which every slip that is known there is made
SITES = {
    "whisper": ("spectrogram", "encoder.conv1.convolved", "encoder.conv1", "encoder.conv2.convolved"),
    "group": ("samples", "encoder.conv1.convolved", "encoder.conv1.normalized", "encoder.position_conv.convolved"),
    "layer": ("encoder.conv2.convolved", "encoder.conv2.normalized", "encoder.position_conv.residual"),
}


@pytest.mark.parametrize(("name", "site"), [(name, site) for name, sites in SITES.items() for site in sites])
def test_every_slip_of_a_stage_of_sounds_is_named(debugged, name, site):
    graph, values = debugged(name)
    stage = graph.nodes[site]
    known = {one: values[one] for one in stage.inputs if one in values}
    wanted = graph.evaluate(site, graph.roots)
    changes = dict([*slips.slips_of(stage).changes(graph, stage)][:: 5 if site == "spectrogram" else 1])
    assert len(changes) > 1
    for words, changed in changes.items():
        mine = graph.apply(changed, [values.get(one, graph.roots.get(one)) for one in changed.inputs], "float32")
        dump = Dump("mine", {one: array_entry(array) for one, array in {**known, site: mine}.items()}, True)
        own = Implementation(dump, {one: TensorSource(one) for one in dump}, graph)
        row = Judge(graph, own).judge(site, wanted, True)
        assert words in {cause.name for cause in row.causes}, (words, row)


# dump of a slip in a model of torch -> the site that it is found at, and its causes
MADE = {
    "whisper-HTK-mels": ("spectrogram", {"the mel filters are spaced by the HTK scale, not by Slaney's"}),
    "whisper-natural-logarithm": ("spectrogram", {"the logarithm of the spectrogram is natural, not to base 10"}),
    "whisper-same-padding-of-TensorFlow": (
        "encoder.conv2.convolved",
        {
            "the zeros around the input of the convolution are those of TensorFlow's same padding",
            "the zeros of the convolution are all after its input",
        },
    ),
    "whisper-english-activation-gelu-tanh-of-a-convolution": (
        "encoder.conv1",
        {"the activation is gelu-tanh (expected gelu)"},
    ),
    "whisper-queries-scaled-twice": ("decoder.2.self.weights", {"the scale of the scores is applied twice"}),
    "group-samples-not-normalized": ("samples", {"the samples are not brought to mean 0 and variance 1"}),
    "group-norm-of-frames": (
        "encoder.conv1.normalized",
        {"the norm is of each frame (layer norm), not of each channel over all frames"},
    ),
    "short-stride-1": ("encoder.conv2.convolved", {"the stride of the convolution is 1 instead of 3"}),
    "group-first-window-cut-off": (
        "encoder.position_conv.convolved",
        {"the first window of the convolution is cut off, not the last"},
    ),
    "hubert-weight-norm-of-filters": (
        "encoder.position_conv.convolved",
        {"the weight normalization of the convolution is over each filter, not over each place of the kernel"},
    ),
    "layer-padding-before-positions": (
        "encoder.position_conv.convolved",
        {"the padding is not set to 0 before the convolution of positions"},
    ),
}


def judge(dump, audio=None, why=True):
    name = max((one for one in (*WAVES, *drawn_models("sounds")) if dump.startswith(f"{one}-")), key=len)
    mine = open_dump(str(REFERENCES / "slips" / f"{dump}-float32.npz"))
    return compare_with_model(open_checkpoint(folder(name)), mine, Request(why=why), audio=audio)


@pytest.mark.parametrize("name", MADE)
def test_a_slip_of_a_torch_model_of_sounds_is_named(name):
    site, causes = MADE[name]
    report = judge(name, None if name.startswith("layer") else Record({"x": SOUND}))
    row = next(row for row in report.rows if row.differs)
    assert (row.site, row.verdict, {cause.name for cause in row.causes}) == (site, "named", causes)


@pytest.mark.parametrize(("name", "stages"), [("whisper", 26), ("layer", 54), ("hubert", 48)])
def test_a_model_of_sounds_of_transformers_agrees(name, stages):
    """Of layer two sounds of different lengths, with the mask of their padding."""
    report = judge(f"{name}-clean", None if name == "layer" else Record({"x": SOUND}))
    assert report.same and report.facts.found[0] >= stages
    assert report.facts.tokens == (7 if name == "whisper" else 0)
    assert "logits" in {row.site for row in report.rows}


@pytest.mark.parametrize(("name", "stages"), [("whisper", 26), ("hubert", 48)])
def test_a_call_that_does_not_name_what_the_model_hears_agrees(name, stages):
    mine = open_dump(str(REFERENCES / "slips" / f"{name}-clean-float32.npz"))
    heard = next(one for one in mine if one.endswith((".input_features", ".input_values")))
    entries = {"input" if one == heard else one: array_entry(mine[one]) for one in mine}
    sound = Record({"x": SOUND})
    report = compare_with_model(open_checkpoint(folder(name)), Dump("mine", entries, True), Request(), audio=sound)
    assert report.same and report.facts.found[0] >= stages


def test_a_padding_mask_that_leaves_no_state_is_refused():
    mine = open_dump(str(REFERENCES / "slips" / "hubert-clean-float32.npz"))
    entries = {one: array_entry(mine[one]) for one in mine}
    (heard,) = [one for one in mine if one.rpartition(".")[2] == "input_values"]
    mask = np.zeros(mine.shape(heard), np.int64)
    mask[:, :3] = 1
    dump = Dump("mine", entries | {"attention_mask": array_entry(mask)}, True)
    with pytest.raises(DataError, match=r"attention_mask.*a sound of 3 samples without its padding"):
        compare_with_model(open_checkpoint(folder("hubert")), dump, Request())


def test_diff_takes_a_sound_of_a_file(tmp_path):
    """The samples of the dump are those that the model makes of the sound, and not those of another."""
    floats = {"code": 3, "bits": 32}
    (tmp_path / "mine.wav").write_bytes(pack_wav(SOUND.tobytes(), **floats))
    (tmp_path / "other.wav").write_bytes(pack_wav(SOUND[::-1].tobytes(), **floats))
    dump = str(REFERENCES / "slips" / "hubert-clean-float32.npz")
    for file, code in (("mine.wav", 0), ("other.wav", 1)):
        done = run("diff", "--model", folder("hubert"), dump, "--audio", str(tmp_path / file))
        assert done.code == code, (done.out, done.err)


def test_what_is_no_dump_of_a_sound_is_refused(tmp_path):
    checkpoint = open_checkpoint(folder("whisper"))
    with pytest.raises(DataError, match=r"no input_features in it.*--audio FILE gives the sound"):
        compare_with_model(
            checkpoint, Dump("mine", {"encoder.norm": array_entry(np.ones((1, 50, 24)))}, True), Request()
        )
    wrong = Dump("mine", {"input_features": array_entry(np.ones((1, 16, 101)))}, True)
    with pytest.raises(DataError, match=r"shape \(1, 16, 101\) \(expected \(sounds, 16, frames\).*at most 100 frames"):
        compare_with_model(checkpoint, wrong, Request())
    cached = {"input_features": np.ones((1, 16, 100)), "decoder_input_ids": np.array([[7]]), "cache_position": [5]}
    with pytest.raises(DataError, match="a pass over new tokens with a KV cache"):
        arrays = {name: array_entry(np.asarray(array)) for name, array in cached.items()}
        compare_with_model(checkpoint, Dump("mine", arrays, True), Request())
    with pytest.raises(UsageError, match="this gpt2 model reads no sounds"):
        dump = Dump("mine", {"input_ids": array_entry(np.ones((1, 3), int))}, True)
        compare_with_model(open_checkpoint(stored("gpt2")), dump, Request(), audio=Record({"x": SOUND}))
