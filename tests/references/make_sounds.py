"""Tiny models of sounds and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_sounds.py

completes sounds.json, each model's config.json and generation_config.json, the shapes of its tensors, and the texts
that it generates (see drawn_tables.py), and writes tests/transcripts/inputs/whisper, a folder with a tokenizer;
transcriptions.json, texts with times, in windows of one second, of sounds of tests/sound_files.py; and sounds.npz, what
it computes in eager attention. Members begin with the name of the model:

    samples        (T,) a sound that is shorter than what the model reads, in float32
    features       (1, M, F) what WhisperFeatureExtractor makes of it
    hidden.N       (1, S, D) states of the encoder in float64: 0 = embeddings and positions, N = after layer N
    memory         after the last norm, in float64 (.f64) and float32 (.f32)
    ids, logits    (1, T) a text, and (1, T, N) its logits in float64 (.f64) and float32 (.f32)

In the float64 model every part is computed in float64: see drawn_tables.py.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from drawn_tables import HERE, freeze, in_double, load, read_table, write_weights
from drawn_tables import save as save_model
from make_spectrograms import tone

from tests.sound_files import make_syllables

WORDS = 108
WHISPER = read_table("sounds")["whisper"]["config"]
MULTILINGUAL = {
    "lang_to_id": {"<|en|>": 51, "<|de|>": 52, "<|fr|>": 53},
    "task_to_id": {"translate": 54, "transcribe": 55},
    "is_multilingual": True,
    "no_timestamps_token_id": 56,
    "suppress_tokens": [3, 4, *range(50, WORDS)],  # times too, at which transformers would cut the text
}
TEXTS = {  # options of generate
    "whisper": [
        {"task": "transcribe"},
        {"language": "de"},
        {"language": "fr", "task": "translate"},
        {"language": "en", "num_beams": 3},
    ],
    "whisper-english": [{}, {"num_beams": 4}],
}

TIMED = MULTILINGUAL | {"suppress_tokens": [3, 4, *range(50, 57)], "max_initial_timestamp_index": 20}
TIMES = [  # seconds, seed, options of generate
    (0.8, 1, {"language": "de"}),
    (1.0, 2, {"task": "transcribe"}),
    (3.7, 3, {"task": "transcribe"}),
    (5.23, 4, {"language": "fr", "task": "translate"}),
    (2.6, 5, {"language": "en", "num_beams": 3}),
    (3.1, 6, {"language": "fr", "max_length": 40}),  # as many as there are positions
]

WITHOUT_NAMES = {"suppress_tokens": MULTILINGUAL["suppress_tokens"]}
FORCED = [  # generation_config.json and options of generate
    (MULTILINGUAL | {"forced_decoder_ids": [[1, 53], [2, 54]]}, {}),
    (MULTILINGUAL | {"forced_decoder_ids": [[1, None], [2, 54]]}, {}),
    (MULTILINGUAL | {"forced_decoder_ids": [[1, 53], [2, 54]]}, {"language": "en"}),
    (WITHOUT_NAMES | {"forced_decoder_ids": [[1, 52], [2, 55], [3, 56]]}, {}),
]


def save(generation: dict, folder: pathlib.Path) -> tuple[dict, dict, dict]:
    """Save the model whisper with other settings of generation; its configurations and the shapes of its tensors."""
    config, shapes = save_model(WHISPER, folder)
    place = folder / "generation_config.json"
    saved = json.loads(place.read_text())
    del saved["transformers_version"], saved["_from_model_config"]  # else it is made of config.json again
    place.write_text(json.dumps(saved | generation))
    return config, saved | generation, shapes


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of a sound and a text."""
    model = load(folder, dtype)
    features = torch.tensor(given["features"], dtype=model.dtype)
    with torch.no_grad():
        output = model(features, decoder_input_ids=torch.tensor(given["ids"]), output_hidden_states=True)
    found = {f"memory.{dtype}": output.encoder_last_hidden_state, f"logits.{dtype}": output.logits}
    if dtype == "f64":
        found |= {f"hidden.{at}": state for at, state in enumerate(output.encoder_hidden_states[:-1])}
    return {key: one.numpy() for key, one in found.items()}


def generate(folder: pathlib.Path, features: np.ndarray, **options) -> list[int]:
    """The tokens that are generated of a sound, without the end token."""
    model, features = load(folder, "f64"), torch.tensor(features, dtype=torch.float64)
    ids = model.generate(features, max_new_tokens=20, **options)[0].tolist()
    return [one for one in ids if one != 2]


def transcribe(folder: pathlib.Path, seconds: float, seed: int, **options) -> dict:
    """The tokens of a sound of any length, and the begin and end of each segment."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=WHISPER["num_mel_bins"], chunk_length=1)
    whole = {"truncation": False, "padding": "longest"} if seconds > 1 else {}
    samples = make_syllables(seconds, seed)
    features = extractor(samples, sampling_rate=16000, return_tensors="pt", **whole)["input_features"]
    model = load(folder, "f64")
    limits = {} if "max_length" in options else {"max_new_tokens": 20}
    given = {"return_timestamps": True, "return_segments": True} | limits | options
    segments = model.generate(features.double(), **given)["segments"][0]
    found = {name: [round(float(one[name]), 6) for one in segments] for name in ("start", "end")}
    return found | {"ids": [one["tokens"].tolist() for one in segments]}


def write_transcriptions() -> None:
    """Texts with times, of the model whisper with tokens of times allowed."""
    with tempfile.TemporaryDirectory() as place, in_double():
        folder = pathlib.Path(place)
        _, begins, shapes = save(TIMED, folder)
        write_weights(folder, "whisper", shapes, np.float64)
        rows = [
            {"seconds": seconds, "seed": seed, "options": one} | transcribe(folder, seconds, seed, **one)
            for seconds, seed, one in TIMES
        ]
        forced = []
        for generation, one in FORCED:
            _, stated, _ = save(generation, folder)
            write_weights(folder, "whisper", shapes, np.float64)
            extractor = transformers.WhisperFeatureExtractor(feature_size=WHISPER["num_mel_bins"], chunk_length=1)
            samples = make_syllables(0.7, 9)
            features = extractor(samples, sampling_rate=16000, return_tensors="np")["input_features"]
            ids = generate(folder, features, force_unique_generate_call=True, **one)  # with those that it begins with
            forced.append({"generation": stated, "options": one, "ids": ids})
    for row in (*rows, *(one["ids"] for one in forced)):
        print(row)
    table = {"generation": begins, "texts": rows, "forced": forced}
    (HERE / "transcriptions.json").write_text(json.dumps(table, indent=1) + "\n")


def write_whisper() -> None:
    """A whole folder with its tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = HERE.parent / "transcripts" / "inputs" / "whisper"
    folder.mkdir(exist_ok=True)
    words = [*"!\u0120\u0000.,?abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"]
    words[2] = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["startoftranscript", "en", "de", "fr", "translate", "transcribe", "notimestamps"]
    names += [f"{at / 50:.2f}" for at in range(WORDS - 57)]
    tokenizer.add_special_tokens(["<|endoftext|>", *(AddedToken(f"<|{name}|>", special=True) for name in names)])
    assert (len(words), tokenizer.token_to_id("<|notimestamps|>")) == (50, 56)
    tokenizer.save(str(folder / "tokenizer.json"))
    config, begins, _ = save(TIMED, folder)
    for name, values in (("config", config), ("generation_config", begins)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")


def inputs(name: str, row: dict) -> dict[str, np.ndarray]:
    """A sound, its spectrogram, and a text."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=row["config"]["num_mel_bins"], chunk_length=1)
    samples = tone(16000, 0.8, 300, 1900)
    features = extractor(samples, sampling_rate=16000, return_tensors="np")["input_features"]
    ids = np.random.default_rng(len(name)).integers(3, WORDS, (1, 9))
    return {"samples": samples, "features": features, "ids": ids}


def add_texts(folder: pathlib.Path, given: dict[str, np.ndarray], name: str) -> dict:
    """The tokens that are generated of a sound by the settings of generation in the table."""
    settings = read_table("sounds")[name]["generation"]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return {"texts": [{"options": one, "ids": generate(folder, given["features"], **one)} for one in TEXTS[name]]}


if __name__ == "__main__":
    write_whisper()
    write_transcriptions()
    freeze("sounds", inputs, compute, add_texts)
