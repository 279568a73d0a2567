"""Models of sounds: spectrograms, states, logits and texts as transformers computes them.

What the numbers are, and how they were made: tests/references/make_sounds.py.
"""

import json

import numpy as np
import pytest

import attnkit
from attnkit import callbacks, model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError, UsageError
from attnkit.generation import fallback
from attnkit.generation.options import Choices, DecodeOptions, Length, SpeechOptions
from attnkit.generation.prompts import make_prompts
from attnkit.generation.text_generation import Generation
from attnkit.generation.transcription import (
    cut_generation,
    join_generations,
    reads_windows,
    segment_cells,
    segment_lines,
    transcribe,
    without_end,
)
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.inputs.sound_inputs import model_spectrogram
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.model.formulas.spectrogram import log_mel
from attnkit.records import Record, Tensor
from tests.drawing import assert_near, drawn_models, keep_folders, write_model
from tests.places import REFERENCES, ROOT, STORY, arrays
from tests.process import run
from tests.sound_files import make_syllables, pack_wav

TABLE = drawn_models("sounds")
TRANSCRIPTIONS = json.loads((REFERENCES / "transcriptions.json").read_text())
EXACT, SINGLE = 1e-10, 2e-6  # of the largest number


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "sounds")


def frozen(name, key):
    return arrays("sounds")[f"{name}/{key}"]


def sound(name="whisper"):
    return Record({"x": frozen(name, "samples")})


@pytest.mark.parametrize(("ids", "kept"), [((5, 3, 7), (5, 3)), ((7, 3, 5), (7, 3, 5)), ((7,), ()), ((), ())])
def test_a_text_ends_before_its_last_token_if_that_is_an_end(ids, kept):
    text = model.GeneratedText(ids, logprobs=tuple(map(float, ids)))
    cut = without_end(Generation([text], np.zeros((len(ids), 2))), (7, 8))
    assert cut.sequences[0].ids == kept and cut.sequences[0].logprobs == kept and len(cut.scores) == len(kept)


@pytest.mark.parametrize("name", TABLE)
def test_the_spectrogram_is_that_of_transformers(folder, name):
    read = open_checkpoint(folder(name)).config.sound
    assert_near(model_spectrogram(sound(name), read, read.spectrogram), frozen(name, "features")[0].T, SINGLE)


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, one in TABLE.items() for at in range(len(one["texts"]))])
def test_texts_are_those_of_transformers_token_for_token(folder, name, at):
    text = TABLE[name]["texts"][at]
    options = {"beam": text["options"].get("num_beams")} | {
        key: value for key, value in text["options"].items() if key != "num_beams"
    }
    features = {"audio": sound(name), "model": folder(name), "dtype": "float64", "max_tokens": 20, "emit": "ids"}
    ids = attnkit.decode(**features, **options)["x"].tolist()
    assert [one for one in ids if one != 2] == text["ids"] and len(text["ids"]) > 3


def test_zeros_after_a_spectrogram_are_not_that_of_silence_after_a_sound(folder):
    read, features = open_checkpoint(folder("whisper")).config.sound, frozen("whisper", "features")[0].T
    alone = log_mel(sound()["x"], read.spectrogram)["output"]
    padded = np.pad(alone, ((0, len(features) - len(alone)), (0, 0)))
    assert np.abs(padded - features).max() > 1e-2


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """The folder of a model with tokens of times."""
    place = write_model("whisper", tmp_path_factory.mktemp("timed"), np.float64, "sounds")
    (place / "generation_config.json").write_text(json.dumps(TRANSCRIPTIONS["generation"]))
    return str(place)


@pytest.mark.parametrize("text", TRANSCRIPTIONS["texts"], ids=lambda text: f"{text['seconds']} s")
def test_times_and_windows_are_those_of_transformers(timed, text):
    options = {"max_tokens": 20, "dtype": "float64", "emit": "ids", "model": timed} | text["options"]
    options |= {"beam": options.pop("num_beams", None)} | ({"max_tokens": None} if options.pop("max_length", 0) else {})
    samples = make_syllables(text["seconds"], text["seed"])
    record = attnkit.decode(audio=samples, timestamps=True, **options)
    assert record["x"].tolist() == [id for ids in text["ids"] for id in ids]
    for name in ("start", "end"):
        np.testing.assert_allclose(record[name], text[name], atol=1e-9)
    if text["seconds"] > 1:  # a sound that is longer than a window has segments in any case
        longer = attnkit.decode(audio=samples, **options)
        np.testing.assert_array_equal(longer["end"], record["end"])


@pytest.mark.parametrize("text", TRANSCRIPTIONS["forced"])
def test_forced_tokens_of_older_files(tmp_path, text):
    write_model("whisper", tmp_path, np.float64, "sounds")
    (tmp_path / "generation_config.json").write_text(json.dumps(text["generation"]))
    sound = Record({"x": make_syllables(0.7, 9)})
    speech = SpeechOptions(sound, **text["options"])
    options = DecodeOptions(open_checkpoint(str(tmp_path)), speech=speech, dtype="float64")
    prompts, _ = make_prompts(None, options, Detokenizer(None, 108, 1))
    ids = attnkit.decode(
        audio=sound, model=str(tmp_path), dtype="float64", max_tokens=20, emit="ids", **text["options"]
    )
    assert [*prompts[0].ids, *(id for id in ids["x"].tolist() if id != 2)] == text["ids"]


def made(ids, reason="eos", scores=None):
    text = model.GeneratedText(ids, tuple(-float(one) for one in ids), reason, -float(sum(ids)))
    return Generation([text], scores, [f"step {one}" for one in ids])


def test_the_texts_of_windows_are_one_after_another():
    joined = join_generations([made((1, 2), scores=np.ones((2, 3))), made((4,), "limit", scores=np.zeros((1, 3)))])
    assert joined.sequences == [model.GeneratedText((1, 2, 4), (-1.0, -2.0, -4.0), "limit", -7.0)]
    assert joined.candidates == ["step 1", "step 2", "step 4"] and joined.scores.sum(axis=1).tolist() == [3, 3, 0]
    assert join_generations([made((1,))]).scores is None
    cut = cut_generation(made((1, 2, 4), scores=np.arange(3)), 2)
    assert (cut.sequences[0].ids, cut.candidates, cut.scores.tolist()) == ((1, 2), ["step 1", "step 2"], [0, 1])


def test_the_segments_of_a_sound_as_lines_and_as_cells():
    times = {name: Tensor(np.array(one), ("segment",)) for name, one in {"start": [0, 1.5], "end": [1.5, 61]}.items()}
    record = Record({}).with_tensors(times, {"segment": [" One", " two "]})
    assert segment_lines(record) == ["[00:00.00 --> 00:01.50]  One", "[00:01.50 --> 01:01.00]  two"]
    assert segment_cells(record) == (["start", "end", "text"], [[0, 1.5, "One"], [1.5, 61, "two"]])


@pytest.mark.parametrize(("seconds", "options", "expected"), [
    (0.7, {}, False),
    (1.5, {}, True),  # longer than a window
    (0.7, {"speech": {"timestamps": True}}, True),
    (1.5, {"length": Length(max_tokens=0)}, False),
    (1.5, {"length": Length(max_tokens=3)}, True),
    (1.5, {"score": "a"}, False),
    (1.5, {"choices": Choices(top=3)}, False),  # of the next word alone
    (1.5, {"choices": Choices(top=3), "length": Length(max_tokens=3)}, True),
])  # fmt: skip
def test_a_sound_is_read_window_by_window_for_times_or_if_it_is_long(timed, seconds, options, expected):
    audio = Record({"x": make_syllables(seconds, 9)})
    speech = SpeechOptions(audio, **options.pop("speech", {})) if "speech" in options else SpeechOptions(audio)
    given = DecodeOptions(open_checkpoint(timed), **{"speech": speech} | options)
    assert reads_windows(audio, given) == expected


def test_a_sound_without_a_window_of_its_own_is_no_transcription():
    assert not reads_windows(Record({"x": np.zeros(9)}), DecodeOptions(open_checkpoint(STORY)))


SPOKEN = str(ROOT / "tests" / "transcripts" / "inputs" / "whisper")


@pytest.mark.parametrize("timestamps", [True, False])
def test_what_is_told_while_a_sound_is_transcribed(timestamps):
    """Lines or texts of segments as they are found, together what is returned; without a reader how far it is."""
    speech = SpeechOptions(Record({"x": make_syllables(2.5, 9)}), timestamps=timestamps)
    options = DecodeOptions(open_checkpoint(SPOKEN), speech=speech, length=Length(max_tokens=8))
    written, told = [], []
    with callbacks.use_callbacks(callbacks.Callbacks(on_text=lambda *part: written.append(part))):
        record = transcribe(speech.audio, options)
    with callbacks.use_callbacks(callbacks.Callbacks(on_progress=told.append)):
        text = transcribe(speech.audio, options._replace(emit="text"))
    assert written[0][0].endswith(record.labels["segment"][0]) and len(written) == len(record.labels["segment"]) > 2
    assert "".join(part for part, _ in written) == text and not any(is_prompt for _, is_prompt in written)
    ends = [round(end) for end in record["end"][[1, 3, 5]]]  # of the windows, which have two segments each
    assert [one for one in told if one.endswith("seconds")] == [f"{end} of 2 seconds" for end in ends]
    assert text == ("\n".join(segment_lines(record)) if timestamps else record.labels["text"][0])


def test_the_choices_of_a_sound_and_its_score_are_told_by_progress_alone():
    speech, written = SpeechOptions(Record({"x": make_syllables(1.5, 9)})), []
    options = DecodeOptions(open_checkpoint(SPOKEN), speech=speech, length=Length(max_tokens=4))
    with callbacks.use_callbacks(callbacks.Callbacks(on_text=lambda *part: written.append(part))):
        for emit, choices in (("ids", Choices()), (None, Choices(steps=True))):
            transcribe(speech.audio, options._replace(emit=emit, choices=choices))
    assert not written


def test_the_text_of_one_sound_is_no_batch(folder):
    made = attnkit.decode(audio=sound(), model=folder("whisper"), emit="ids", max_tokens=2)
    assert made.axes_of("x") == ("token",)


def test_tokens_of_a_sound_of_several_windows_have_their_scores(timed):
    options = {"audio": make_syllables(3.7, 3), "model": timed, "dtype": "float64", "max_tokens": 20}
    record, logits = attnkit.decode(**options, top=3), attnkit.decode(**options, emit="logits")
    assert len(record["x"]) == len(record["ids"]) == len(logits["x"]) == len(record["candidates.ids"])
    np.testing.assert_array_equal(logits["ids"], record["ids"])
    np.testing.assert_allclose(record["x"], model.score_tokens(logits["x"], record["ids"]), atol=1e-12)


def test_a_wav_file_its_samples_and_its_spectrogram_have_one_memory(folder, tmp_path):
    numbers = np.round(frozen("whisper", "samples") * 32767).astype("<i2")
    (tmp_path / "a.wav").write_bytes(pack_wav(numbers.tobytes()))
    (tmp_path / "long.wav").write_bytes(pack_wav(np.tile(numbers, 3).tobytes()))
    of_file = attnkit.encode(model=folder("whisper"), audio=str(tmp_path / "a.wav"))
    samples = (numbers / 32768).astype(np.float32)
    of_samples = attnkit.encode(model=folder("whisper"), audio=samples)
    np.testing.assert_array_equal(of_file["memory"], of_samples["memory"])
    spectrogram = attnkit.mel(samples, seconds=1, mels=16)
    np.testing.assert_array_equal(attnkit.encode(spectrogram, model=folder("whisper"))["x"], of_file["x"])
    with pytest.warns(AttnkitWarning, match=r"the sound is cut to 1 seconds, which the model reads \(of 2.4\)"):
        attnkit.encode(model=folder("whisper"), audio=str(tmp_path / "long.wav"))


def test_the_whole_pipeline_begins_with_the_sound(folder, tmp_path):
    place, file = folder("whisper"), tmp_path / "tone.wav"
    file.write_bytes(pack_wav(frozen("whisper", "samples").astype("<f4").tobytes(), code=3, bits=32))
    encoder = shell_pipeline(open_checkpoint(place).config, place, "all").replace("\\\n", "").splitlines()[0]
    assert encoder.startswith("attnkit mel --seconds 1 --mels 16 SOUND ")
    made = attnkit.run(encoder.replace("SOUND", str(file)).removesuffix(" -o memory.npz"))
    np.testing.assert_array_equal(made["x"], attnkit.encode(model=place, audio=str(file))["x"])


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        ({"language": "xx"}, UsageError, r"no language 'xx' \(expected one of en, de, fr\)"),
        ({"audio": None, "language": "en"}, UsageError, "needs --audio"),
        ({"audio": np.zeros((1, 2, 400))}, DataError, "rank 3, expected 1, the samples of a sound"),
        ({"audio": Record({"x": np.zeros(800), "sample_rate": np.array(0)})}, DataError, "0 samples a second"),
        ({"timestamps": True, "stop": ("a",)}, UsageError, "cannot be combined with --stop"),
        ({"ids": np.array([1])}, UsageError, "cannot be combined with"),
        ({"model": "story"}, UsageError, "takes no sound"),
    ],
)
def test_what_is_refused(folder, options, kind, problem):
    options = {"model": STORY} if options == {"model": "story"} else options
    with pytest.raises(kind, match=problem):
        attnkit.decode(**({"model": folder("whisper"), "audio": sound(), "emit": "ids"} | options))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lang_to_id": {"<|en|>": 200}}, r"lang_to_id: '<|en|>' is 200 \(expected an id below 108\)"),
        ({"task_to_id": {"translate": "x\n"}}, r"task_to_id: 'translate' is 'x\\n'"),
        ({"task_to_id": {"translate": 54}}, "task_to_id has no transcribe"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id is no id"),
        ({"decoder_start_token_id": []}, "decoder_start_token_id is no id"),
        ({"suppress_tokens": [7, 500]}, r"suppress_tokens has 500 \(expected ids below 108\)"),
        ({"forced_decoder_ids": [[1, 500]]}, "forced_decoder_ids is"),
        ({"forced_decoder_ids": [7]}, "forced_decoder_ids is"),
    ],
)
def test_bad_tokens_of_a_folder(tmp_path, changes, problem):
    write_model("whisper", tmp_path, np.float32, "sounds")
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=f"^{path}: .*{problem}"):
        attnkit.decode(model=str(tmp_path), audio=sound(), emit="ids", max_tokens=1)


def test_other_tokens_of_generation_are_no_keys_of_the_model(tmp_path):
    """As published: the token before an earlier text, alignments of heads, and what other libraries add."""
    write_model("whisper", tmp_path, np.float32, "sounds")
    before = attnkit.decode(model=str(tmp_path), audio=sound(), emit="ids", max_tokens=4)
    path = tmp_path / "generation_config.json"
    published = {"prev_sot_token_id": 50361, "assistant_token_id": 7, "image_token_id": 9, "boi_token_id": [1, 2]}
    published |= {"alignment_heads": [[2, 2], [3, 0]], "is_multilingual": True, "return_timestamps": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | published))
    after = attnkit.decode(model=str(tmp_path), audio=sound(), emit="ids", max_tokens=4)
    assert np.array_equal(after["x"], before["x"])


FALLBACKS = json.loads((REFERENCES / "fallback.json").read_text())


@pytest.mark.filterwarnings("ignore:.*is read again at")
@pytest.mark.parametrize("row", FALLBACKS, ids=lambda row: f"{row['seconds']} s, {row['seed']}")
def test_a_window_is_read_again_where_and_as_transformers_reads_it(timed, row, monkeypatch):
    asked, measured = row["options"], []
    options = {name: asked[name] for name in ("task", "compression_ratio_threshold", "logprob_threshold")}
    options |= {"beam": asked.get("num_beams"), "fallback": ",".join(map(str, asked["temperature"]))}
    judge = fallback.find_flaw

    def measure(text, options):
        flaw, best = judge(text, options), text.sequences[0]
        measured.append([fallback.compression_ratio(best.ids, 108), text.logprob or 0, bool(flaw)])
        return flaw

    monkeypatch.setattr(fallback, "find_flaw", measure)
    options |= {"max_tokens": 20, "dtype": "float64", "emit": "ids", "timestamps": True, "model": timed}
    record = attnkit.decode(audio=make_syllables(row["seconds"], row["seed"]), **options)
    assert record["x"].tolist() == [id for ids in row["ids"] for id in ids]
    np.testing.assert_allclose(record["start"], row["start"], atol=1e-9)
    expected = np.array(row["read"])
    assert [one[2] for one in measured] == [one[2] for one in row["read"]]
    np.testing.assert_allclose([one[0] for one in measured], expected[:, 0], rtol=1e-9)
    greedy = [at for at, one in enumerate(measured) if one[1]]  # a beam has a score instead
    np.testing.assert_allclose([measured[at][1] for at in greedy], expected[greedy, 1], rtol=1e-6)
    assert len(greedy) == len(measured) / (2 if "num_beams" in asked else 1)


def test_a_text_without_a_flaw_is_read_once_and_a_note_names_the_flaw(timed):
    options = {"model": timed, "audio": sound(), "task": "transcribe", "max_tokens": 12}
    alone = attnkit.decode(**options)
    once = attnkit.decode(**options, fallback="0,0.5", compression_ratio_threshold=99.0, logprob_threshold=-99.0)
    np.testing.assert_array_equal(once["ids"], alone["ids"])
    with pytest.warns(AttnkitNote, match=r"sound at temperature 0 is read again at 0\.5: its mean log-pro"):
        attnkit.decode(**options, fallback="0,0.5", compression_ratio_threshold=99.0, logprob_threshold=-0.001)
    for wrong in ("0,0", "a", "-1", ""):
        assert run("decode", "--model", timed, "--audio", "x.wav", "--fallback", wrong).code == 2
    with pytest.raises(UsageError, match="cannot be combined with"):
        attnkit.decode(**options, fallback="0,1", score="a")
    with pytest.raises(UsageError, match="needs"):
        attnkit.decode(**options, logprob_threshold=-1.0)


BATCHES = json.loads((REFERENCES / "sound_batches.json").read_text())


def make_batch(sounds, dtype=bool):
    """Sounds as a batch x (B, T), with the mask of their samples."""
    x, mask = (np.zeros((len(sounds), max(map(len, sounds))), kind) for kind in (sounds[0].dtype, dtype))
    for row, sound in enumerate(sounds):
        x[row, : len(sound)], mask[row, : len(sound)] = sound, 1
    return Record({"x": x, "mask": mask})


@pytest.mark.parametrize("row", BATCHES, ids=lambda row: str(row["options"]))
def test_sounds_at_once_have_the_texts_of_transformers_and_those_of_each_alone(timed, row):
    sounds = [make_syllables(*one) for one in row["sounds"]]
    asked = dict(row["options"])
    options = {
        "beam": asked.pop("num_beams", None),
        "no_repeat_ngram": asked.pop("no_repeat_ngram_size", None),
        **asked,
    }
    speech = SpeechOptions(make_batch(sounds), **asked)
    prompts, is_batch = make_prompts(
        None, DecodeOptions(open_checkpoint(timed), speech=speech, dtype="float64"), Detokenizer(None, 108, 1)
    )
    options |= {"model": timed, "max_tokens": 20, "dtype": "float64"}
    record = attnkit.decode(audio=make_batch(sounds), emit="ids", **options)
    assert is_batch and record.axes_of("x") == ("batch", "token")
    texts = (
        record["x"]
        if "mask" not in record
        else [ids[real] for ids, real in zip(record["x"], record["mask"], strict=True)]
    )
    assert [[*prompt.ids, *ids] for prompt, ids in zip(prompts, np.asarray(texts).tolist(), strict=True)] == row["ids"]
    for sound, ids in zip(sounds, texts, strict=True):
        assert attnkit.decode(audio=sound, emit="ids", **options)["x"].tolist() == ids.tolist()


@pytest.mark.filterwarnings("ignore:.*Whisper")
def test_a_batch_of_sounds_is_encoded_as_each_alone_and_its_faults_are_named(timed):
    sounds = [make_syllables(0.8, 1), make_syllables(0.3, 2)]
    memory = attnkit.encode(audio=make_batch(sounds, int), model=timed, dtype="float64")["memory"]
    for states, sound in zip(memory, sounds, strict=True):
        np.testing.assert_array_equal(states, attnkit.encode(audio=sound, model=timed, dtype="float64")["memory"])
    options, batch = {"model": timed, "task": "transcribe", "max_tokens": 4}, make_batch(sounds)
    with pytest.raises(UsageError, match="a batch of sounds is read at once: times and long sounds need a single one"):
        attnkit.decode(audio=batch, timestamps=True, **options)
    with pytest.raises(UsageError, match="a batch of sounds is read at once"):
        attnkit.decode(audio=np.zeros((2, 16001)), **options)
    with pytest.raises(DataError, match="a batch without a sound"):
        attnkit.decode(audio=np.zeros((0, 9)), **options)
    for mask in (batch["mask"][:, ::-1], batch["mask"][:1], batch["mask"] * 2):
        with pytest.raises(DataError, match="is not 1 for the samples of each sound"):
            attnkit.decode(audio=Record({"x": batch["x"], "mask": mask}), **options)
    with pytest.warns(AttnkitNote, match=r"the text of sound [01] at temperature 0 is read again at 0\.5") as notes:
        attnkit.decode(audio=batch, fallback="0,0.5", logprob_threshold=-0.001, **options)
    assert len(notes) == 2
