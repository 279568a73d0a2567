"""Slips of models of sounds, for make_slips.py: of what they hear, of convolutions, their norms and their positions.

What becomes of a sound is computed by torch.stft with a choice of every step, or by the extractors of transformers with
other settings; the modules of a model are replaced by others. The dumps are of Whisper, wav2vec 2.0 and HuBERT.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import transformers
from make_slips import Port, last_attention, own, slip, wrong
from torch import nn
from torch.nn.functional import conv1d, pad
from transformers.audio_utils import mel_filter_bank

HEARD = ("whisper", "whisper-english")
WAVES = ("group", "layer", "hubert", "short")
heard = functools.partial(slip, tried=HEARD)
waves = functools.partial(slip, tried=WAVES)
sound = functools.partial(slip, tried=(*HEARD, *WAVES))


# what a model hears


def spectrogram(
    port: Port,
    *,
    scale: str = "slaney",
    norm: str | None = "slaney",
    size: int = 400,
    window: Callable[[int], torch.Tensor] = torch.hann_window,
    power: int = 2,
    log: Callable[[torch.Tensor], torch.Tensor] = torch.log10,
    clamp: bool = True,
    rescales: bool = True,
    mode: str = "reflect",
    first: int = 0,
    gain: float = 1.0,
    silence: bool = True,
) -> torch.Tensor:
    samples = torch.tensor(port.sound, dtype=torch.float64) * gain
    samples = pad(samples, (0, 16000 - len(samples))) if silence else samples
    whole = torch.stft(samples, size, 160, 400, window(400).double(), center=True, pad_mode=mode, return_complex=True)
    mels = port.config.sound.spectrogram.mels
    filters = mel_filter_bank(size // 2 + 1, mels, 0.0, 8000.0, 16000, norm=norm, mel_scale=scale)
    mel = torch.tensor(filters).double().T @ whole.abs().pow(power)
    logs = log(mel.clamp(min=1e-10))[:, first:]
    logs = logs[:, : len(samples) // 160]
    logs = logs.clamp(min=logs.max() - 8) if clamp else logs
    logs = (logs + 4) / 4 if rescales else logs
    return pad(logs, (0, 100 - logs.shape[1]))[None].to(port.dtype)


def other_spectrogram(key: str, name: str, **changes: Any) -> None:
    def apply(port: Port):
        port.arguments["input_features"] = spectrogram(port, **changes)
        return []

    heard(key, name)(apply)


other_spectrogram("HTK mels", "the mel filters are spaced by the HTK scale, not", scale="htk")
other_spectrogram("mel filters of equal height", "the mel filters have equal heights", norm=None)
other_spectrogram("HTK mels of equal height", "the mel filters are spaced by the HTK scale and have equal heights",
                  scale="htk", norm=None)  # fmt: skip
other_spectrogram("natural logarithm", "the logarithm of the spectrogram is natural", log=torch.log)
other_spectrogram("decibels", "the logarithm of the spectrogram is in decibels", log=lambda x: 10 * x.log10())
other_spectrogram("no clamp", "the spectrogram is not clamped", clamp=False)
other_spectrogram("not rescaled", "the spectrogram is not rescaled", rescales=False)
other_spectrogram("magnitudes", "the spectrum is the magnitude", power=1)
other_spectrogram("no window of frames", "the window of the frames is missing", window=torch.ones)
other_spectrogram("Hamming window", "the window of the frames is a Hamming window", window=torch.hamming_window)
other_spectrogram("symmetric Hann window", "the Hann window of the frames is symmetric",
                  window=lambda size: torch.hann_window(size, periodic=False))  # fmt: skip
other_spectrogram("zeros at the ends", "the sound continues with zeros", mode="constant")
other_spectrogram("first frame left out", "the first frame is left out", first=1)
other_spectrogram("samples of 16 bits", "the samples are not divided by 32768", gain=32768.0)
other_spectrogram("features padded", "silence is added to the spectrogram as zeros", silence=False)


@waves("samples not normalized", "the samples are not brought to mean 0 and variance 1")
def plain_samples(port: Port):
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    made = extractor(port.sound, sampling_rate=16000, return_tensors="pt")
    port.arguments["input_values"] = made["input_values"].to(port.dtype)
    return []


@waves("deviation of n minus 1", "the samples are divided by the deviation with n − 1")
def sample_deviation(port: Port):
    samples = torch.tensor(port.sound, dtype=torch.float64)
    port.arguments["input_values"] = ((samples - samples.mean()) / (samples.var() + 1e-7).sqrt())[None].to(port.dtype)
    return []


# convolutions


def second(port: Port) -> nn.Module:
    return own(port.module("encoder.conv2", "w"))


@sound("kernel turned around", "the kernel of the convolution is turned around")
def turned(port: Port):
    module = second(port)
    module.weight = nn.Parameter(module.weight.flip(-1), requires_grad=False)
    return []


@sound("weights frame by frame", "the weights of the convolution are read frame by frame")
def by_frames(port: Port):
    module = second(port)
    outputs, inputs, size = module.weight.shape
    module.weight = nn.Parameter(module.weight.reshape(outputs, size, inputs).mT.contiguous(), requires_grad=False)
    return []


@sound("no bias of a convolution", "the bias of the convolution is missing",
       families=lambda p: "b" in p.checkpoint.params.specs["encoder.conv2"])  # fmt: skip
def no_bias(port: Port):
    nn.init.zeros_(second(port).bias)
    return []


def moved(left: int, right: int, stride: int = 0):
    def apply(port: Port):
        module = second(port)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return conv1d(pad(x, (left, right)), module.weight, module.bias, stride or module.stride)

        return [mock.patch.object(module, "forward", forward)]

    return apply


heard("causal convolution", "the zeros of the convolution are all before its input")(moved(2, 0))
heard("same padding of TensorFlow", "the zeros around the input of the convolution are those of TensorFlow")(
    moved(0, 1)
)
waves("zeros around", "there are zeros around the input of the convolution",
      families=lambda p: p.config.sound.convolutions["conv2"].size == 3)(moved(1, 1))  # fmt: skip
waves("stride 1", "the stride of the convolution is 1")(moved(0, 0, 1))


class Function(nn.Module):
    """A function of torch as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = function


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": torch.ops.aten.gelu,
    "gelu-tanh": functools.partial(torch.ops.aten.gelu, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": torch.relu,
}


def has_other(kind: str) -> Callable[[Port], bool]:
    return lambda port: port.config.convolution("encoder.conv2").activation != kind


for kind, function in KINDS.items():

    def other_activation(port: Port, function=function):
        if port.family in HEARD:
            return [mock.patch.object(nn.functional, "gelu", function)]
        port.replace(f"{port.path('encoder.conv2', 'w').rpartition('.')[0]}.activation", Function(function))
        return []

    sound(f"activation {kind} of a convolution", f"the activation is {kind} ", families=has_other(kind))(
        other_activation
    )


# norms


class OfFrames(nn.LayerNorm):
    """A norm of each frame, of channels (B, C, F)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mT).mT


def other_norm(make: Callable[[nn.Module], nn.Module]):
    def apply(port: Port):
        path = port.path("encoder.conv1", "gamma")
        old = port.model.get_submodule(path)
        new = make(old)
        for name in ("weight", "bias") if isinstance(new, nn.GroupNorm | nn.LayerNorm) else ():
            setattr(new, name, getattr(old, name))
        port.replace(path, new)
        return []

    return apply


def is_of_channels(port: Port) -> bool:
    return port.config.convolution("encoder.conv1").norm == "channel"


waves("norm of frames", "the norm is of each frame", families=is_of_channels)(
    other_norm(lambda old: OfFrames(old.num_channels))
)
waves("norm of one group", "the norm is over all channels and frames", families=is_of_channels)(
    other_norm(lambda old: nn.GroupNorm(1, old.num_channels))
)
waves("no norm of a convolution", "the norm is missing")(other_norm(lambda old: nn.Identity()))
waves("no norm of features", "the norm is missing")(
    lambda port: port.replace(port.path("encoder.feature_norm", "gamma"), nn.Identity())
)


class OfChannels(nn.GroupNorm):
    """A norm of each channel over all frames, of frames (B, F, C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mT).mT


waves("norm of channels", "the norm is of each channel over all frames", families=lambda p: not is_of_channels(p))(
    other_norm(lambda old: OfChannels(old.normalized_shape[0], old.normalized_shape[0]))
)


# positions


def other_kernel(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
    def apply(port: Port):
        module = port.module("encoder.position_conv", "w")
        given = module.parametrizations.weight
        weight = change(given.original0, given.original1)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return conv1d(x, weight, module.bias, padding=module.padding, groups=module.groups)

        return [mock.patch.object(module, "forward", forward)]

    return apply


waves("weight norm of filters", "the weight normalization of the convolution is over each filter")(
    other_kernel(lambda g, v: g * v / v.norm(dim=(1, 2), keepdim=True))
)
waves("no weight norm", "the weight normalization of the convolution is missing")(other_kernel(lambda g, v: v))
waves("weights not divided", "the weights of the convolution are not divided")(other_kernel(lambda g, v: g * v))
waves("weights not multiplied", "the weights of the convolution are not multiplied")(
    other_kernel(lambda g, v: v / v.norm(dim=(0, 1), keepdim=True))
)


@waves("first window cut off", "the first window of the convolution is cut off",
       families=lambda p: p.config.convolution("encoder.position_conv").size % 2 == 0)  # fmt: skip
def first_cut_off(port: Port):
    path = port.path("encoder.position_conv", "w").rpartition(".")[0]
    module = port.model.get_submodule(f"{path}.padding")
    return [mock.patch.object(module, "forward", lambda x: x[:, :, 1:])]


@waves("no activation of positions", "the activation is missing")
def no_activation(port: Port):
    path = port.path("encoder.position_conv", "w").rpartition(".")[0]
    port.replace(f"{path}.activation", nn.Identity())
    return []


padded = functools.partial(slip, tried=("layer",), padded=True)


@padded("padding before positions", "the padding is not set to 0 before the convolution of positions")
def padding_kept(port: Port):
    """A convolution of positions that reads the projection of padding too."""
    path = port.path("encoder.position_conv", "w").rpartition(".")[0]
    positions, projection = port.model.get_submodule(path), port.module("encoder.projection", "w")
    kept, forward = {}, positions.forward
    projection.register_forward_hook(lambda module, given, output: kept.update(x=output.clone()))
    return [mock.patch.object(positions, "forward", lambda x: forward(kept["x"]))]


padded("padding of a sound not masked", "the padding mask is missing")(wrong(allowed=torch.ones_like))


# attention and the head


@heard("queries scaled twice", "the scale of the scores is applied twice")
def scaled_twice(port: Port):
    module = last_attention(port)
    module.scaling = module.scaling**2
    return []


waves("scores scaled twice", "the scale of the scores is applied twice")(wrong(scale=lambda s, q: s * s))


@heard("no causal mask of the text", "the causal mask is missing")
def no_causal_mask(port: Port):
    return [mock.patch.object(port.modeling, "create_causal_mask", lambda *args, **kwargs: None)]


@heard("no norm of the memory", "the norm is missing")
def no_norm_of_memory(port: Port):
    port.replace(port.path("encoder.norm", "gamma"), nn.Identity())
    return []


@waves("no bias of the labels", "the bias of the output head is missing")
def no_bias_of_labels(port: Port):
    nn.init.zeros_(own(port.module("head", "w")).bias)
    return []
