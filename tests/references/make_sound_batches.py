"""What transformers writes of several sounds at once, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_sound_batches.py

writes sound_batches.json, for sounds of tests/sound_files.py and the model of make_sounds.py, in float64:

    sounds   seconds and seed of each
    options  of generate
    ids      the tokens of each text, with those that it begins with, without the padding after its end
"""

import json
import pathlib
import tempfile

import numpy as np
import transformers
from drawn_tables import HERE, in_double, write_weights
from make_sounds import TIMED, WHISPER, load, save

from tests.sound_files import make_syllables

SOUNDS = [(0.8, 1), (0.3, 2), (1.0, 3), (0.5, 4)]
EOS = WHISPER["eos_token_id"]
OPTIONS = [
    {"language": "de"},
    {"task": "transcribe"},
    {"language": "en", "num_beams": 3},
    {"language": "fr", "no_repeat_ngram_size": 2},
]


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place, in_double():
        folder = pathlib.Path(place)
        _, _, shapes = save(TIMED, folder)
        write_weights(folder, "whisper", shapes, np.float64)
        model = load(folder, "f64")
        extractor = transformers.WhisperFeatureExtractor(feature_size=WHISPER["num_mel_bins"], chunk_length=1)
        samples = [make_syllables(*one) for one in SOUNDS]
        features = extractor(samples, sampling_rate=16000, return_tensors="pt")["input_features"]
        for options in OPTIONS:
            ids = model.generate(features.double(), max_new_tokens=20, force_unique_generate_call=True, **options)
            texts = [text[: text.index(EOS, 4) + 1] if EOS in text[4:] else text for text in ids.tolist()]
            rows.append({"sounds": SOUNDS, "options": options, "ids": texts})
            print(rows[-1])
    (HERE / "sound_batches.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
