"""Log-mel spectrograms, frozen: the arrays that tests/model/test_spectrogram.py compares with.

    pip install transformers==5.23.0 torch==2.13.0 numpy==2.4.6
    python tests/references/make_spectrograms.py

spectrograms.npz: CASE.samples (float32), a sound; CASE.shape, CASE.first, CASE.last and CASE.mean of the features
(frame, mel) that WhisperFeatureExtractor computes of it: their shape, 12 frames at each end, and the mean of all;
mel_filters (frequency, mel) are its filters.
"""

import pathlib

import numpy as np
from transformers import WhisperFeatureExtractor
from transformers.models.whisper import feature_extraction_whisper

feature_extraction_whisper.is_torch_available = lambda: False  # whose spectrograms are of float32, and differ by 2e-5

HERE = pathlib.Path(__file__).parent
FRAMES = 12  # at each end


def tone(rate: int, seconds: float, *hertz: float) -> np.ndarray:
    """Tones that rise, with a little noise."""
    time = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(0).standard_normal(len(time)) * 0.01
    return (sum(np.sin(2 * np.pi * one * time * (1 + time)) for one in hertz) / (2 * len(hertz)) + noise).astype("f4")


# name -> sound, options of the extractor, options of a call
CASES = {
    "tones": (tone(16000, 0.5, 220, 1800), {}, {"padding": "longest", "truncation": False}),
    "padded": (tone(16000, 0.3, 440), {"chunk_length": 2}, {}),
    "cut": (tone(16000, 1.3, 440, 3000), {"chunk_length": 1}, {}),
    "mels": (tone(16000, 0.2, 700), {"feature_size": 128}, {"padding": "longest"}),
    "silence": (np.zeros(1600, np.float32), {}, {"padding": "longest"}),
    "sizes": (tone(16000, 0.2, 300), {"n_fft": 512, "hop_length": 100, "feature_size": 40}, {"padding": "longest"}),
}


def main() -> None:
    arrays = {"mel_filters": WhisperFeatureExtractor().mel_filters}
    for name, (samples, options, call) in CASES.items():
        extractor = WhisperFeatureExtractor(**options)
        rate = extractor.sampling_rate
        features = extractor(samples, sampling_rate=rate, return_tensors="np", **call)["input_features"][0].T
        arrays |= {f"{name}.samples": samples, f"{name}.shape": np.array(features.shape)}
        arrays |= {f"{name}.first": features[:FRAMES], f"{name}.last": features[-FRAMES:]}
        arrays[f"{name}.mean"] = features.mean(axis=0, dtype=np.float64)
    np.savez_compressed(HERE / "spectrograms.npz", **arrays)


if __name__ == "__main__":
    main()
