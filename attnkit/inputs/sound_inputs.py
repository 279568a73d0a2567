"""Sounds that stages and models read: samples, and a model's spectrogram."""

import warnings
from typing import NamedTuple

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader, read_preprocessor
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError
from attnkit.formats.memory import check_memory
from attnkit.model.config import SoundConfig
from attnkit.model.dtypes import output_dtype
from attnkit.model.formulas.norms import layer_norm
from attnkit.model.formulas.spectrogram import Spectrogram, find_loudest, log_mel, pad_sound
from attnkit.records import Array, Record

COPIES = 3  # of the result of the first convolution, its norm and its activation
RATE, VARIANCE = 16000, 1e-7  # where that file states no rate, and what is added to the variance of samples


def find_samples(record: Record, rate: int, name: str = "") -> Array:
    """The samples (T,) of a record at this rate, channels averaged.

    A sound whose record states another rate is resampled, with a note.
    """
    x, stated = record["x"], find_rate(record, rate, name)
    if x.ndim == 2 and record.axes_of("x")[0] == "channel":
        if len(x) > 1:
            warnings.warn(f"the {len(x)} channels of the sound are averaged", AttnkitWarning, stacklevel=2)
        x = x.mean(axis=0, dtype=np.float64).astype(x.dtype if x.dtype.kind == "f" else np.float64)
    if stated == rate or x.ndim != 1:
        return x
    from attnkit.model.formulas.resampling import resample

    check_memory(8 * (x.size * rate // stated), f"{x.size} samples at another rate", name)
    resampled = resample(x, stated, rate)
    warnings.warn(f"the sound of {stated} samples a second is resampled to {rate}", AttnkitNote, stacklevel=2)
    return resampled


def find_rate(record: Record, rate: int, name: str) -> int:
    """The rate that a record states for its sound; one without has the expected rate.

    >>> find_rate(Record({"x": np.zeros(9), "sample_rate": np.array(44100)}), 16000, "")
    44100
    """
    stated = record.get("sample_rate")
    if stated is None:
        return rate
    if stated.size != 1:
        raise DataError(f"a sound of several sample_rates (expected {rate})", name)
    number = float(stated.reshape(()))
    if not number >= 1 or not number.is_integer():
        raise DataError(f"a sound of {number:g} samples a second (expected a whole number of at least 1)", name)
    return int(number)


def is_sound_batch(record: Record) -> bool:
    """Whether a record has several sounds, x (B, T), rather than the channels of one.

    >>> is_sound_batch(Record({"x": np.zeros((2, 9))})), is_sound_batch(Record({"x": np.zeros(9)}))
    (True, False)
    """
    return record["x"].ndim == 2 and record.axes_of("x")[0] != "channel"


def split_sounds(record: Record) -> list[Record]:
    """Each sound of a record, without the padding after it that mask (B, T) states.

    DataError for a mask that states more than that.

    >>> batch = Record({"x": np.arange(6.0).reshape(2, 3), "mask": np.array([[1, 1, 0], [1, 1, 1]])})
    >>> [one["x"].tolist() for one in split_sounds(batch)]
    [[0.0, 1.0], [3.0, 4.0, 5.0]]
    """
    if not is_sound_batch(record):
        return [record]
    x = record["x"]
    if not len(x):
        raise DataError("a batch without a sound", "--audio")
    mask = np.asarray(record["mask"] if "mask" in record else np.ones(x.shape, bool))
    if mask.shape != x.shape or not np.isin(mask, (0, 1)).all() or (np.diff(mask.astype(np.int8), axis=1) > 0).any():
        problem = (
            f"mask {mask.shape} is not 1 for the samples of each sound, {x.shape}, and 0 for the padding after them"
        )
        raise DataError(problem, "--audio")
    stated = record.select([name for name in record if name not in ("x", "mask")])
    counts = mask.astype(np.int64).sum(axis=1).tolist()
    return [Record({"x": row[:count]}).with_tensors(stated.tensors) for row, count in zip(x, counts, strict=True)]


def model_sound(record: Record, sound: SoundConfig, folder: str) -> Array:
    """The input of a model for a sound: spectrogram (frame, mel) or samples (T,).

    Spectrograms of several sounds are a batch, (B, frame, mel).
    """
    spectrogram = sound.spectrogram
    if spectrogram is None:
        return model_samples(record, sound, folder)
    if is_sound_batch(record):
        return np.stack([model_spectrogram(one, sound, spectrogram) for one in split_sounds(record)])
    return model_spectrogram(record, sound, spectrogram)


def model_samples(record: Record, sound: SoundConfig, folder: str) -> Array:
    """The samples (T,) that a model reads, with mean 0 and variance 1 by default.

    preprocessor_config.json may say no.
    """
    settings = read_preprocessor(folder)
    samples = find_samples(record, settings.get_int("sampling_rate", RATE), "--audio")
    if samples.ndim != 1:
        raise DataError(f"x of rank {samples.ndim}, expected 1, the samples of a sound", "--audio")
    least = sound.frames_before("", 1)
    if len(samples) < least:
        raise DataError(f"a sound of {len(samples)} samples (expected {least} or more)", "--audio")
    samples = samples.astype(output_dtype(samples), copy=False)
    first = next(iter(sound.convolutions.values()))
    numbers = len(samples) // first.options.stride[0] * first.filters
    check_memory(COPIES * numbers * samples.itemsize, f"a sound of {len(samples)} samples", "--audio")
    return layer_norm(samples, eps=VARIANCE).y if normalizes_samples(settings) else samples


def normalizes_samples(settings: ConfigReader) -> bool:
    """Whether a model reads samples with mean 0 and variance 1.

    preprocessor_config.json states it.
    """
    return settings.get_bool("do_normalize", True)


def model_spectrogram(record: Record, sound: SoundConfig, spectrogram: Spectrogram) -> Array:
    """The spectrogram (frame, mel) of a sound, cut or padded to the model's seconds."""
    rate, most = spectrogram.rate, sound.samples
    samples = find_samples(record, rate, "--audio")
    if samples.ndim == 1 and len(samples) > most:
        problem = f"the sound is cut to {most / rate:g} seconds, which the model reads (of {len(samples) / rate:g})"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    return log_mel(pad_sound(samples, most) if samples.ndim == 1 else samples, spectrogram)["output"]


class SoundWindows(NamedTuple):
    """A sound, whose spectrogram is read window by window; its samples alone are held.

    samples      (T,), with silence to the length of a window
    most         samples of a window
    spectrogram  its numbers, and `loudest` its largest logarithm
    """

    samples: Array
    most: int
    spectrogram: Spectrogram
    loudest: float

    @property
    def frames(self) -> int:
        """The number of all frames."""
        return len(self.samples) // self.spectrogram.hop

    @property
    def size(self) -> int:
        """The number of frames of a window."""
        return self.most // self.spectrogram.hop

    def seconds(self, frame: int) -> float:
        """The time of a frame."""
        return frame * self.spectrogram.hop / self.spectrogram.rate

    def read(self, frame: int) -> Array:
        """The window that begins with a frame, with zeros after the sound: (size, M)."""
        frames = slice(frame, frame + self.size)
        features = log_mel(self.samples, self.spectrogram, frames=frames, loudest=self.loudest)["output"]
        return np.pad(features, ((0, self.size - len(features)), (0, 0)))


def open_windows(record: Record, most: int, spectrogram: Spectrogram) -> SoundWindows:
    """The windows of a sound, equally long; DataError if it is none."""
    samples = find_samples(record, spectrogram.rate, "--audio")
    if samples.ndim == 1 and len(samples) < most:
        samples = pad_sound(samples, most)
    return SoundWindows(samples, most, spectrogram, find_loudest(samples, spectrogram))


def exceeds_window(record: Record, sound: SoundConfig) -> bool:
    """Whether a sound is longer than a model reads at once."""
    if not record["x"].ndim or sound.spectrogram is None:
        return False
    rate = sound.spectrogram.rate
    return bool(record["x"].shape[-1] * rate > sound.samples * find_rate(record, rate, "--audio"))
