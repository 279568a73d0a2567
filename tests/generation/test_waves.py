"""Models of the samples of a sound: states, logits and texts as transformers computes them, and their traps.

What the numbers are, and how they were made: tests/references/make_waves.py.
"""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import DataError, UsageError
from attnkit.generation.frame_labels import make_record, spell_rows
from attnkit.inputs import layers
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.inputs.sound_inputs import model_samples
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.model.formulas.convolution import scale_places
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from attnkit.records import Record
from tests.drawing import assert_near, draw_tensors, drawn_models, keep_folders, write_model
from tests.places import REFERENCES, arrays
from tests.process import run
from tests.sound_files import pack_wav

TABLE = drawn_models("waves")
LABELS = json.loads((REFERENCES / "frame_labels.json").read_text())
EXACT, SINGLE = 1e-10, 2e-6  # of the largest number


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "waves", LABELS["files"])


def frozen(key):
    return arrays("waves")[key]


def sound():
    return Record({"x": frozen("samples") / np.float32(32768)})


def compute(place, dtype, **changes):
    """States and logits of the prepared samples, with choices of the configuration changed, and what was kept."""
    core, kept = layers.core_model(open_checkpoint(place)), {}
    core = core._replace(config=replace(core.config, **changes))
    context = model.Context(hook=lambda where: lambda array: kept.setdefault(where, array), dtype=dtype)
    states = model.run(core, core.config.plan("encoder"), frozen("values").astype(dtype), context)
    return states, model.head_logits(core, states), kept


def test_samples_are_those_of_transformers(folder, tmp_path):
    read = open_checkpoint(folder("group")).config.sound
    assert_near(model_samples(sound(), read, folder("group")), frozen("values"), 1e-6)
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    np.testing.assert_array_equal(model_samples(sound(), read, str(tmp_path)), sound()["x"])


def test_weights_under_their_older_names(folder, tmp_path):
    tensors = draw_tensors("wav2vec2", TABLE["group"]["shapes"])
    older = {"original0": "weight_g", "original1": "weight_v"}
    renamed = {
        key if key[-9:] not in older else key.replace(f"parametrizations.weight.{key[-9:]}", older[key[-9:]]): one
        for key, one in tensors.items()
    }
    assert any(key.endswith("conv.weight_v") for key in renamed)
    write_model("group", tmp_path, np.float32, "waves")
    safetensors.numpy.save_file(renamed, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(
        compute(str(tmp_path), "float32")[0], compute(folder("group", np.float32), "float32")[0]
    )


@pytest.mark.parametrize("name", TABLE)
def test_gradients_are_those_of_torch(folder, name):
    gradients = arrays("wave_gradients")
    core = layers.core_model(open_checkpoint(folder(name)))
    _, recorded = run_model(core, {"encoder": StackInputs(gradients["samples"])})
    found = model_backward(core, recorded, gradients[f"{name}/weights"])
    assert_near(found.inputs["encoder"], gradients[f"{name}/samples"], EXACT)
    specs = open_checkpoint(folder(name)).params.specs
    compared = 0
    for layer, params in specs.items():
        for parameter, spec in params.items():
            if f"{name}/{spec.names[0]}" in gradients:
                expected = gradients[f"{name}/{spec.names[0]}"]
                mine = found.params[layer][parameter]
                assert_near(mine.T.reshape(expected.shape), expected, EXACT)
                compared += 1
    assert compared == 8


def test_the_gradient_of_the_samples_of_a_file(folder, tmp_path):
    (tmp_path / "a.wav").write_bytes(pack_wav(frozen("samples").tobytes()))
    record = attnkit.grad(f"encode --model {folder('group')} --audio {tmp_path / 'a.wav'} | softmax", of="x[1,3]")
    assert record.axes_of("1.encode.samples") == ("sample",)
    assert record["1.encode.samples"].shape == frozen("samples").shape and record["1.encode.samples"].any()


@pytest.mark.parametrize("name", ["group", "layer"])
def test_the_lens_reads_the_labels_of_frames(folder, name, tmp_path):
    """The last layer has the labels of the model; the parts add up to their logit."""
    place, run = folder(name), tmp_path / "run.npz"
    attnkit.encode(model=place, audio=sound(), trace=str(run))
    logits = attnkit.decode(model=place, audio=sound(), emit="logits")["x"]
    record = attnkit.lens(str(run), model=place, top=1)
    assert record["ids"][-1, :, 0].tolist() == logits.argmax(axis=-1).tolist()
    assert record.labels["ids"][-1][0] in LABELS["files"]["vocab.json"]
    parts = attnkit.lens(str(run), model=place, direct="E", by="head", position=4)
    column = LABELS["files"]["vocab.json"]["E"]
    assert abs(parts["x"].sum() - logits[4, column]) < 1e-5 and abs(parts["x"][-1]) < 1e-5
    assert parts.labels["part"][0] == "encoder.conv7" and "encoder.position_conv" in parts.labels["part"]
    with pytest.raises(UsageError, match="--direct: 'EE' is not in the vocabulary"):
        attnkit.lens(str(run), model=place, direct="EE")


def test_the_scale_is_of_places_not_of_filters():
    kernel = np.random.default_rng(0).standard_normal((4, 2, 3))
    scaled = scale_places(kernel, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(np.sqrt((scaled**2).sum(axis=(0, 1))), [1, 2, 3])


def test_lengths_of_weights_apply_in_float64_whatever_the_dtype_of_the_file(folder):
    states, _, _ = compute(folder("group", np.float32), "float64")
    assert_near(states, frozen("group/states.f64"), 1e-10)  # all drawn weights are numbers of float32


@pytest.mark.parametrize("text", LABELS["texts"], ids=lambda text: text["text"] or "blank")
def test_texts_of_labels_are_those_of_transformers(folder, text):
    assert open_tokenizer(folder("group")).decode(text["ids"]) == text["text"]


def test_the_text_of_a_sound_and_its_labels(folder):
    options = {"model": folder("group"), "audio": sound(), "dtype": "float64"}
    record, ids = attnkit.decode(**options), attnkit.decode(**options, emit="ids")
    logits, probs = attnkit.decode(**options, emit="logits"), attnkit.decode(**options, top=2)
    assert_near(logits["x"], frozen("group/logits.f64"), 1e-5)  # of samples that are prepared in float32
    np.testing.assert_array_equal(ids["x"], frozen("group/logits.f64").argmax(axis=-1))
    np.testing.assert_array_equal(ids["x"], record["ids"])
    np.testing.assert_allclose(np.exp(record["x"]), probs["x"].max(axis=-1))
    text = attnkit.decode(**options, emit="text")
    assert record.labels["text"] == (text,) or list(record.labels["text"]) == [text]
    states = attnkit.encode(model=folder("group"), audio=sound(), dtype="float64")
    np.testing.assert_array_equal(attnkit.decode(states, model=folder("group"))["x"], record["x"])


def test_the_whole_pipeline_begins_with_the_sound(folder, tmp_path):
    place, file = folder("layer", np.float32), str(tmp_path / "tone.npy")
    np.save(file, sound()["x"])
    line = shell_pipeline(open_checkpoint(place).config, place, "all").replace("\\\n", "")
    assert line.startswith("attnkit layernorm --eps 1e-07 SOUND ")
    of_model = attnkit.decode(model=place, audio=file, emit="logits")
    np.testing.assert_array_equal(attnkit.run(line.replace("SOUND", file))["logits"], of_model["x"])


def test_the_pipeline_of_samples_as_they_are_begins_with_the_first_convolution(tmp_path):
    place = str(write_model("short", tmp_path, kind="waves"))
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    line = shell_pipeline(open_checkpoint(place).config, place, "all")
    assert line.startswith(f"attnkit conv --model {place} --layer encoder.conv1 SOUND ")


def test_a_trace_has_every_convolution(folder, tmp_path):
    attnkit.encode(model=folder("layer"), audio=sound(), trace=str(tmp_path / "run.npz"))
    with np.load(tmp_path / "run.npz") as run:
        for number in range(1, 8):
            assert {f"encoder.conv{number}{part}" for part in ("", ".convolved", ".normalized")} <= {*run.files}
        assert "encoder.position_conv" in run.files


@pytest.mark.parametrize(
    ("tool", "options", "kind", "problem"),
    [
        ("decode", {"audio": np.zeros(399)}, DataError, r"a sound of 399 samples \(expected 400 or more\)"),
        ("decode", {"audio": np.zeros((2, 4000))}, DataError, "rank 2, expected 1"),
        ("decode", {"audio": Record({"x": np.zeros(800), "sample_rate": np.array(0)})}, DataError, "0 samples"),
        ("decode", {"timestamps": True}, UsageError, "--timestamps: needs a model that generates text"),
        ("decode", {"language": "en"}, UsageError, "--language: needs a model that generates text"),
        ("decode", {"beam": 2}, UsageError, "--beam: needs a model that generates text"),
        ("decode", {"temperature": 0.5}, UsageError, "--temperature: needs a model that generates text"),
        ("decode", {"steps": True}, UsageError, "--steps: needs a model that generates text"),
        ("encode", {"audio": np.zeros(10)}, DataError, "a sound of 10 samples"),
    ],
)
def test_what_is_refused(folder, tool, options, kind, problem):
    with pytest.raises(kind, match=problem):
        getattr(attnkit, tool)(**({"model": folder("group"), "audio": sound()} | options))


@pytest.mark.parametrize(
    ("line", "code", "problem"),
    [
        ("decode --model {model} hello", 2, "hello: a wav2vec2 model takes --audio FILE, or hidden states in a file"),
        ("decode --model {model} missing.npz", 4, "missing.npz: No such file or directory"),
        ("encode --model {model} hello", 2, "a wav2vec2 model takes --audio FILE"),
        ("decode --model {model} --audio {sound} --batch", 2, "--audio: cannot be combined with --batch"),
        ("decode --model {model} --audio {sound} --score hi", 2, "--score: needs a model that generates text"),
        (
            "scan --model {model} a --against b --score c --patch '*.residual'",
            2,
            "this wav2vec2 model has no head that gives words",
        ),
        ("train --from {model} {text} -o {new}", 2, "--from: a wav2vec2 model of sounds is not trained"),
    ],
)
def test_lines_that_are_refused(folder, tmp_path, line, code, problem):
    (tmp_path / "words.txt").write_text("some words\n")
    (tmp_path / "a.wav").write_bytes(pack_wav(frozen("samples").tobytes()))
    places = {"model": folder("group"), "sound": tmp_path / "a.wav", "text": tmp_path / "words.txt"}
    result = run(*shlex.split(line.format(**places, new=tmp_path / "new")))
    assert (result.code, result.out) == (code, b"") and problem in result.err
    assert result.err.count("\n") == 1 and not (tmp_path / "new").exists()


def test_a_sound_that_needs_more_than_the_memory_is_refused_before_it_is_computed(folder):
    hours = np.broadcast_to(np.float32(0), 1 << 41)
    with pytest.raises(DataError, match=r"--audio: a sound of 2199023255552 samples needs .* more than this machine"):
        model_samples(Record({"x": hours}), open_checkpoint(folder("group")).config.sound, folder("group"))


def test_a_wav_file_in_place_of_a_text(folder):
    result = run("encode", "--model", folder("group"), stdin=pack_wav(frozen("samples").tobytes()))
    assert (result.code, result.out) == (3, b"")
    assert "a WAV file (expected text or tensors); --audio - reads it" in result.err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"conv_dim": [8, 10]}, r"conv_stride has 7 numbers \(expected 2\)|conv_kernel has 7"),
        ({"conv_dim": "8"}, r"conv_dim is '8' \(expected a list"),
        ({"conv_kernel": [0, 3, 3, 3, 3, 2, 2]}, "conv_kernel is"),
        ({"conv_dim": [1 << 40] * 7}, "conv_dim is"),
        ({"num_conv_pos_embedding_groups": 5}, "24 is not divisible by num_conv_pos_embedding_groups 5"),
        ({"feat_extract_norm": "batch"}, "feat_extract_norm"),
        ({"add_adapter": True}, "not supported by family wav2vec2: an adapter after the encoder"),
        ({"conv_pos_batch_norm": True}, "conv_pos_batch_norm true and"),
        ({"adapter_attn_dim": 16}, "not supported by family wav2vec2: adapters of each language"),
    ],
)
def test_bad_configurations(tmp_path, changes, problem):
    write_model("group", tmp_path, np.float32, "waves", **changes)
    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(tmp_path))


WORDS = ["<pad>", "a", "b"]
FRAMES = np.log([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], [[0.125, 0.125, 0.75], [0.5, 0.25, 0.25]]])
BATCH = Record({"x": np.zeros((2, 2, 4))})
MASKED = BATCH.with_tensors({"mask": np.array([[[True, True]], [[True, False]]])})


def spell(ids):
    return "".join(WORDS[id] for id in ids)


@pytest.mark.parametrize(("record", "ids", "texts"), [
    (BATCH, [[0, 1], [2, 0]], ["<pad>a", "b<pad>"]),
    (MASKED, [[0, 1], [2, 0]], ["<pad>a", "b"]),
    (Record({"x": np.zeros((2, 4))}), [2, 1], ["ba"]),
    (Record({"x": np.zeros((0, 2, 4))}), np.zeros((0, 2), int), []),
    (Record({"x": np.zeros((2, 0, 4))}), np.zeros((2, 0), int), []),
])  # fmt: skip
def test_labels_spell_a_text_for_each_sound(record, ids, texts):
    ids = np.array(ids)
    output = OutputLogits(record, np.zeros((*ids.shape, 3)), WORDS, spell)
    assert spell_rows(ids, output) == texts
    assert spell_rows(ids, output._replace(join=None)) == []


@pytest.mark.parametrize(("emit", "x", "axes"), [
    ("", np.log([[0.5, 0.5], [0.75, 0.5]]), ("batch", "token")),
    ("ids", [[0, 1], [2, 0]], ("batch", "token")),
    ("logits", FRAMES + 1, ("batch", "token", "vocab")),
    ("probs", np.exp(FRAMES), ("batch", "token", "vocab")),
])  # fmt: skip
def test_by_hand_the_record_of_the_labels_of_frames(emit, x, axes):
    output = OutputLogits(BATCH, FRAMES + 1, WORDS, spell)
    record = make_record(output, FRAMES.argmax(axis=-1), ["a", "b"], emit)
    np.testing.assert_allclose(record["x"], x, rtol=1e-12)
    assert record.axes_of("x") == axes and record.labels["text"] == ["a", "b"]
    formulas = {"": "log-probability of each label", "ids": "argmax(logits)", "logits": "head(x)"}
    assert record.tensor("x").formula == formulas.get(emit, "softmax(logits)")
    assert ("ids" in record) == (emit != "ids") and record.labels.get("vocab") == (WORDS if "vocab" in axes else None)
    assert record.labels.get("token") == (None if "vocab" in axes else [["<pad>", "a"], ["b", "<pad>"]])


def test_the_record_of_the_labels_of_one_sound():
    output = OutputLogits(Record({"x": np.zeros((2, 4))}), FRAMES[0], WORDS, spell)
    record = make_record(output, np.array([0, 1]), [], "")
    assert record.labels == {"token": ["<pad>", "a"]} and record.axes_of("ids") == ("token",)
    assert make_record(output._replace(words=[]), np.array([0, 1]), [], "").labels == {}
