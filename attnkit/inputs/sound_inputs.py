"""Sounds that stages and models read: their samples, and the spectrogram of a model."""

import warnings
from typing import NamedTuple

import numpy as np

from attnkit.errors import AttnkitWarning, DataError
from attnkit.model.config import SoundConfig
from attnkit.model.spectrogram import find_loudest, log_mel, pad_sound
from attnkit.records import Array, Record


def find_samples(record: Record, rate: int, name: str = "") -> Array:
    """The samples (T,) of a record, which has this rate if it states one; channels are averaged."""
    x = record["x"]
    stated = record.get("sample_rate")
    if stated is not None and (stated.size != 1 or int(stated.reshape(())) != rate):
        has = "several sample_rates" if stated.size != 1 else f"{stated.reshape(()):g} samples a second"
        raise DataError(f"a sound of {has} (expected {rate}); ffmpeg -i IN -ar {rate} OUT.wav converts one", name)
    if x.ndim == 2 and record.axes_of("x")[0] == "channel":
        if len(x) > 1:
            warnings.warn(f"the {len(x)} channels of the sound are averaged", AttnkitWarning, stacklevel=2)
        x = x.mean(axis=0, dtype=np.float64).astype(x.dtype if x.dtype.kind == "f" else np.float64)
    return x


def model_spectrogram(record: Record, sound: SoundConfig) -> Array:
    """The spectrogram (frame, mel) that a model reads of a sound, cut or with silence to its seconds."""
    rate, most = sound.spectrogram.rate, sound.samples
    samples = find_samples(record, rate, "--audio")
    if samples.ndim == 1 and len(samples) > most:
        problem = f"the sound is cut to {most / rate:g} seconds, which the model reads (of {len(samples) / rate:g})"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    return log_mel(pad_sound(samples, most) if samples.ndim == 1 else samples, sound.spectrogram)["output"]


class SoundWindows(NamedTuple):
    """A sound, whose spectrogram is read window by window; its samples alone are held.

    samples  (T,), with silence to the length of a window
    loudest  the largest logarithm of its spectrogram
    """

    samples: Array
    sound: SoundConfig
    loudest: float

    @property
    def frames(self) -> int:
        """The number of all frames."""
        return len(self.samples) // self.sound.spectrogram.hop

    @property
    def size(self) -> int:
        """The number of frames of a window."""
        return self.sound.samples // self.sound.spectrogram.hop

    def seconds(self, frame: int) -> float:
        """The time of a frame."""
        return frame * self.sound.spectrogram.hop / self.sound.spectrogram.rate

    def read(self, frame: int) -> Array:
        """The window that begins with a frame, with zeros after the sound: (size, M)."""
        frames = slice(frame, frame + self.size)
        features = log_mel(self.samples, self.sound.spectrogram, frames=frames, loudest=self.loudest)["output"]
        return np.pad(features, ((0, self.size - len(features)), (0, 0)))


def open_windows(record: Record, sound: SoundConfig) -> SoundWindows:
    """The windows of a sound; DataError if it is none."""
    samples = find_samples(record, sound.spectrogram.rate, "--audio")
    if samples.ndim == 1 and len(samples) < sound.samples:
        samples = pad_sound(samples, sound.samples)
    return SoundWindows(samples, sound, find_loudest(samples, sound.spectrogram))


def exceeds_window(record: Record, sound: SoundConfig) -> bool:
    """Whether a sound is longer than a model reads at once."""
    return bool(record["x"].ndim) and record["x"].shape[-1] > sound.samples
