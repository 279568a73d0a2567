"""Tiny models of sounds and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_sounds.py

writes tests/transcripts/inputs/whisper, a folder with a tokenizer; sounds.json, each model's config.json and
generation_config.json, the shapes of its tensors as transformers saves them, and the texts that it generates;
transcriptions.json, texts with times, in windows of one second, of sounds of tests/sound_files.py; and sounds.npz, what
it computes in eager attention. The weights are those of tests/drawing.py, which draws them by name, so no file holds
them. Members of the .npz begin with the name of the model:

    samples        (T,) a sound that is shorter than what the model reads, in float32
    features       (1, M, F) what WhisperFeatureExtractor makes of it
    hidden.N       (1, S, D) states of the encoder in float64: 0 = embeddings and positions, N = after layer N
    memory         after the last norm, in float64 (.f64) and float32 (.f32)
    ids, logits    (1, T) a text, and (1, T, N) its logits in float64 (.f64) and float32 (.f32)

In the float64 model every part is computed in float64: see make_decoders.py.
"""

import json
import pathlib
import tempfile

import numpy as np
import safetensors.numpy
import torch
import transformers
from make_decoders import in_double, write_weights
from make_spectrograms import tone

from tests.sound_files import make_syllables

HERE = pathlib.Path(__file__).parent
WORDS = 108
WHISPER = {
    "vocab_size": WORDS,
    "num_mel_bins": 16,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 36,
    "decoder_layers": 3,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 40,
    "max_source_positions": 50,  # a second
    "max_target_positions": 40,
    "decoder_start_token_id": 50,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "begin_suppress_tokens": [2, 7],
}
MULTILINGUAL = {
    "lang_to_id": {"<|en|>": 51, "<|de|>": 52, "<|fr|>": 53},
    "task_to_id": {"translate": 54, "transcribe": 55},
    "is_multilingual": True,
    "no_timestamps_token_id": 56,
    "suppress_tokens": [3, 4, *range(50, WORDS)],  # times too, at which transformers would cut the text
}
ENGLISH = {"is_multilingual": False, "no_timestamps_token_id": 56, "suppress_tokens": [3, 4, *range(50, WORDS)]}
MODELS = {
    "whisper": (WHISPER, MULTILINGUAL),
    "whisper-english": (WHISPER | {"num_mel_bins": 20, "activation_function": "relu"}, ENGLISH),
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


def save(values: dict, generation: dict, folder: pathlib.Path) -> tuple[dict, dict, dict]:
    """Save a model with drawn weights; its configurations and the shapes of its tensors."""
    config = transformers.WhisperConfig(**values)
    model = transformers.WhisperForConditionalGeneration(config)
    model.save_pretrained(folder)
    place = folder / "generation_config.json"
    saved = json.loads(place.read_text())
    saved.pop("_from_model_config", None)  # else it is made of config.json again
    place.write_text(json.dumps(saved | generation))
    path = folder / "model.safetensors"
    shapes = {key: list(tensor.shape) for key, tensor in sorted(safetensors.numpy.load_file(path).items())}
    write_weights(folder, "whisper", shapes, np.float32)
    written = [json.loads((folder / f"{name}.json").read_text()) for name in ("config", "generation_config")]
    config, begins = ({key: one for key, one in each.items() if key != "transformers_version"} for each in written)
    return config, begins, shapes


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of a sound and a text."""
    precision = torch.float64 if dtype == "f64" else torch.float32
    load = transformers.WhisperForConditionalGeneration.from_pretrained
    model = load(folder, attn_implementation="eager", dtype=precision).eval()
    features = torch.tensor(given["features"], dtype=precision)
    with torch.no_grad():
        output = model(features, decoder_input_ids=torch.tensor(given["ids"]), output_hidden_states=True)
    found = {f"memory.{dtype}": output.encoder_last_hidden_state, f"logits.{dtype}": output.logits}
    if dtype == "f64":
        found |= {f"hidden.{at}": state for at, state in enumerate(output.encoder_hidden_states[:-1])}
    return {key: one.numpy() for key, one in found.items()}


def generate(folder: pathlib.Path, features: np.ndarray, **options) -> list[int]:
    """The tokens that are generated of a sound, without the end token."""
    load = transformers.WhisperForConditionalGeneration.from_pretrained
    model = load(folder, attn_implementation="eager", dtype=torch.float64).eval()
    ids = model.generate(torch.tensor(features, dtype=torch.float64), max_new_tokens=20, **options)[0].tolist()
    return [one for one in ids if one != 2]


def transcribe(folder: pathlib.Path, seconds: float, seed: int, **options) -> dict:
    """The tokens of a sound of any length, and the begin and end of each segment."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=WHISPER["num_mel_bins"], chunk_length=1)
    whole = {"truncation": False, "padding": "longest"} if seconds > 1 else {}
    samples = make_syllables(seconds, seed)
    features = extractor(samples, sampling_rate=16000, return_tensors="pt", **whole)["input_features"]
    load = transformers.WhisperForConditionalGeneration.from_pretrained
    model = load(folder, attn_implementation="eager", dtype=torch.float64).eval()
    limits = {} if "max_length" in options else {"max_new_tokens": 20}
    given = {"return_timestamps": True, "return_segments": True} | limits | options
    segments = model.generate(features.double(), **given)["segments"][0]
    found = {name: [round(float(one[name]), 6) for one in segments] for name in ("start", "end")}
    return found | {"ids": [one["tokens"].tolist() for one in segments]}


def write_transcriptions() -> None:
    """Texts with times, of the model whisper with tokens of times allowed."""
    with tempfile.TemporaryDirectory() as place, in_double():
        folder = pathlib.Path(place)
        _, begins, shapes = save(WHISPER, TIMED, folder)
        write_weights(folder, "whisper", shapes, np.float64)
        rows = [
            {"seconds": seconds, "seed": seed, "options": one} | transcribe(folder, seconds, seed, **one)
            for seconds, seed, one in TIMES
        ]
        forced = []
        for generation, one in FORCED:
            _, stated, _ = save(WHISPER, generation, folder)
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
    config, begins, _ = save(WHISPER, TIMED, folder)
    for name, values in (("config", config), ("generation_config", begins)):
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")


def main() -> None:
    table, arrays = {}, {}
    for name, (values, generation) in MODELS.items():
        extractor = transformers.WhisperFeatureExtractor(feature_size=values["num_mel_bins"], chunk_length=1)
        samples = tone(16000, 0.8, 300, 1900)
        features = extractor(samples, sampling_rate=16000, return_tensors="np")["input_features"]
        ids = np.random.default_rng(len(name)).integers(3, WORDS, (1, 9))
        given = {"samples": samples, "features": features, "ids": ids}
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            config, begins, shapes = save(values, generation, folder)
            found = compute(folder, given, "f32")
            write_weights(folder, "whisper", shapes, np.float64)
            with in_double():
                found |= compute(folder, given, "f64")
                texts = [{"options": one, "ids": generate(folder, features, **one)} for one in TEXTS[name]]
        print(name, texts)
        table[name] = {"config": config, "generation": begins, "shapes": shapes, "texts": texts}
        arrays |= {f"{name}/{key}": one for key, one in (given | found).items()}
    (HERE / "sounds.json").write_text(json.dumps(table, indent=1) + "\n")
    np.savez_compressed(HERE / "sounds.npz", **arrays)


if __name__ == "__main__":
    write_whisper()
    write_transcriptions()
    main()
