"""How transformers reads sounds again at other temperatures, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_fallback.py

writes fallback.json, for sounds of tests/sound_files.py and the model of make_sounds.py with times:

    options  of generate; at a temperature of 1e-5 sampling chooses the most probable token
    read     of each reading of a window the compression ratio, the mean log-probability, and whether it is read again
    ids, start, end   the segments of the text

All is computed in float64. Each window begins with the settings of the first one: transformers itself searches with one
beam in all windows after the first that it has sampled.
"""

import copy
import json
import pathlib
import tempfile

import numpy as np
from drawn_tables import HERE, in_double, write_weights
from make_sounds import TIMED, save, transcribe
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin as Whisper

ANY = {"task": "transcribe", "temperature": (0.0, 1e-5), "top_k": 0}
ROWS = [  # seconds, seed, options of generate
    (0.8, 1, ANY | {"compression_ratio_threshold": 1e9, "logprob_threshold": -1e9}),
    (0.8, 1, ANY | {"compression_ratio_threshold": 1.35, "logprob_threshold": -1e9}),
    (1.0, 2, ANY | {"compression_ratio_threshold": 1e9, "logprob_threshold": -1.0}),
    (3.7, 3, ANY | {"compression_ratio_threshold": 1.1, "logprob_threshold": -2.2}),
    (2.6, 5, ANY | {"compression_ratio_threshold": 0.1, "logprob_threshold": -1e9, "num_beams": 3}),
]


def record_readings(into: list) -> None:
    """Note what `_need_fallback` measures, and what it decides."""
    needs = Whisper._need_fallback

    def measure(self, sequence, outputs, index, processors, settings, words, temperature):
        decided = needs(self, sequence, outputs, index, processors, settings, words, temperature)
        ratio = self._retrieve_compression_ratio(sequence, words)
        logprob = float(self._retrieve_avg_logprobs(outputs[index]["scores"], sequence, temperature))
        into.append([round(ratio, 12), round(logprob, 12), bool(decided[0])])
        return decided

    Whisper._need_fallback = measure
    read_window = Whisper.generate_with_fallback

    def read_alike(self, *given, generation_config, **options):
        return read_window(self, *given, generation_config=copy.deepcopy(generation_config), **options)

    Whisper.generate_with_fallback = read_alike


def main() -> None:
    read: list = []
    record_readings(read)
    rows = []
    with tempfile.TemporaryDirectory() as place, in_double():
        folder = pathlib.Path(place)
        _, _, shapes = save(TIMED, folder)
        write_weights(folder, "whisper", shapes, np.float64)
        for seconds, seed, options in ROWS:
            read.clear()
            found = transcribe(folder, seconds, seed, **options)
            rows.append({"seconds": seconds, "seed": seed, "options": options, "read": [*read], **found})
            print(rows[-1])
    (HERE / "fallback.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
