"""Log-mel spectrograms of sounds, as Whisper reads them."""

from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.debugger.graphs import spectrogram_steps
from attnkit.debugger.slips import SPECTROGRAMS
from attnkit.model.exercises.worked_steps import Formula
from attnkit.model.formulas.spectrogram import WHISPER
from attnkit.model.slips import Slip

# the steps that a choice of `spectrogram_steps` changes
CHANGED = {
    "scale": "filters", "has_equal_areas": "filters", "window": "windowed", "power": "power", "logarithm": "logs",
    "clamp": "clamped", "rescales": "output", "mode": "frames", "drops": "frames", "transform": "spectrum filters",
}  # fmt: skip


def choose(words: str, **choices: Any) -> Slip[Formula]:
    """The slip of other choices."""
    steps = spectrogram_steps(**choices)
    return Slip(words, {step: steps[step] for choice in choices for step in CHANGED[choice].split()})


def near_silence(given: Any, generator: Any) -> Any:
    """A tone and faint noise, then silence."""
    at = np.arange(SAMPLES)
    return np.where(at < SAMPLES // 2, np.sin(at / 7) + 1e-5 * generator.standard_normal(SAMPLES), 0)


SAMPLES = 3200
OTHER = {"rate": 8000, "size": 64, "hop": 24, "mels": 20}
MEL = Definition(
    "the log-mel spectrogram of a sound, as Whisper reads it",
    {
        "x": Argument("S", "x samples audio waveform sound signal y wav audio_samples"),
        "rate": Argument("", "rate sample_rate sr sampling_rate fs", role="number"),
        "size": Argument("", "size n_fft window_size win_length frame_length window", role="number"),
        "hop": Argument("", "hop hop_length hop_size stride frame_step", role="number"),
        "mels": Argument("", "mels n_mels num_mels n_mel", role="number"),
    },
    spectrogram_steps(),
    {"S": SAMPLES},
    (
        Case("plain", lead=()),
        Case("a sound and silence", lead=(), given={"x": near_silence}),
        Case("a quiet sound", lead=(), given={"x": lambda given, generator: 1e-3 * generator.standard_normal(SAMPLES)}),
        Case("other sizes", sizes={"S": 481}, lead=(), given=OTHER, needs=(*OTHER,)),
    ),
    "F M",
    (
        *(choose(words, **choices) for words, choices in SPECTROGRAMS.items() if {*choices} <= {*CHANGED}),
        choose("the last frame is not left out", drops="none"),
    ),
    {
        "axes": {
            "frames-first": Way(),
            "mels-first": Way(
                "axes: (mels, frames)", steps={"output": lambda clamped: np.swapaxes((clamped + 4) / 4, 0, 1)}
            ),
        }
    },
    "log_mel log_mel_spectrogram mel_spectrogram LogMel MelSpectrogram compute_log_mel logmel mel",
    {"rate": WHISPER.rate, "size": WHISPER.window, "hop": WHISPER.hop, "mels": WHISPER.mels},
)

DEFINITIONS = {"mel": MEL}
