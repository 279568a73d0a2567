"""Make tests/references/slips/: what ports of tiny models compute with one slip each, and which slip it is.

The models are those of tests/references/models and the drawn ones of tests/references/decoders.json, run by
transformers with eager attention, whose function is replaced by one that names every intermediate and can go wrong. A
case is a family, a slip and a dtype; its dump is an .npz of module inputs and outputs by path. With --judge every case
is judged, and the table of confusion is printed and written. decoder_slips.py has the slips of decoders of today,
expert_slips.py those of experts, image_slips.py and sound_slips.py those of models of images and of sounds.

    PYTHONPATH=. python tests/references/make_slips.py --judge [FAMILY …]

Made with torch 2.13.0 and transformers 5.
"""

import argparse
import collections
import contextlib
import copy
import functools
import importlib
import itertools
import json
import math
import pathlib
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers
from make_vision import FloatProcessor
from PIL import Image
from torch import nn
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.debugger.compare import Request, compare_with_model
from attnkit.debugger.dumps import open_dump
from attnkit.debugger.modules import renamed
from attnkit.debugger.names import TensorSource, locate_sites
from attnkit.debugger.report import VerdictReport
from attnkit.inputs import layers as model_layers
from attnkit.records import Record
from tests.drawing import VARIANTS, drawn_models, keep_folders, write_variant
from tests.sound_files import make_syllables

HERE = pathlib.Path(__file__).parent
FAMILIES = (
    "gpt2", "llama", "llama-yarn", "mistral", "qwen2", "bert", "roberta", "electra", "distilbert", "modernbert",
    "albert", "t5", "t5-gated", "marian",
)  # fmt: skip
PICTURE = HERE / "models" / "vit.png"
TOWERS = {"clip": "CLIPVisionModel", "siglip": "SiglipVisionModel"}  # of images, of models with a tower of texts
WIDE = {"dinov2-wide": "dinov2"}  # models that read a wider image than their own, whose positions are resized
# kinds of models whose weights are drawn by their names
DRAWN = ("decoders", "recall", "shortconv", "state_spaces", "vision", "sounds", "waves")


@functools.cache
def drawn_folder(kind: str) -> Callable[..., str]:
    return keep_folders(lambda name: pathlib.Path(tempfile.mkdtemp(prefix=f"{name}-")), kind)


@functools.cache
def folder_of(family: str) -> pathlib.Path:
    """The folder of a model: one of tests/references/models, or a drawn one."""
    if (stored := HERE / "models" / family).exists():
        return stored
    if family in VARIANTS:
        return write_variant(family, pathlib.Path(tempfile.mkdtemp(prefix=f"{family}-")))
    kind = next(one for one in DRAWN if family in drawn_models(one))
    return pathlib.Path(drawn_folder(kind)(family, np.float32))


def processor_of(folder: str, **changes: Any) -> Callable[..., Any]:
    """The processor of images of a folder, as transformers has it with Pillow, with some values changed."""
    values = json.loads((pathlib.Path(folder) / "preprocessor_config.json").read_text())
    kind = values.pop("image_processor_type", "ViTImageProcessor")
    processors = (BitImageProcessorPil, CLIPImageProcessorPil, SiglipImageProcessorPil, ViTImageProcessorPil)
    processor = next((one for one in processors if one.__name__ == f"{kind}Pil"), FloatProcessor)
    return processor(**values | changes)


class Port:
    """A model of transformers, with the path of the module of each layer's parameters."""

    def __init__(self, family: str, dtype: torch.dtype = torch.float32, padded: bool = False) -> None:
        folder = folder_of(WIDE.get(family, family))
        raw = json.loads((folder / "config.json").read_text())
        name = TOWERS.get(family) or (raw.get("architectures") or ["AutoModel"])[0].removeprefix("TF")
        stored = folder.parent == HERE / "models"
        self.family, self.dtype = family, dtype
        has_alibi = raw["model_type"] == "falcon" and raw.get("alibi")  # eager attention of Falcon adds it twice
        options = {"attn_implementation": "sdpa" if has_alibi else "eager", "dtype": dtype}
        if not stored:
            options["experts_implementation"] = "eager"
        self.model = getattr(transformers, name).from_pretrained(folder, **options).eval()
        self.checkpoint = open_checkpoint(f"{folder}:vision" if family in TOWERS else str(folder))
        self.core = model_layers.complete_model(self.checkpoint)
        self.config = self.core.config
        self.modeling = sys.modules[type(self.model).__module__]
        self.paths = {path for path, _ in self.model.named_modules()}
        rng = np.random.default_rng(3)
        self.picture: np.ndarray | None = None
        self.sound: np.ndarray | None = None
        self.types = self.target = None
        if self.config.patches:
            self.read_picture(family)
            return
        if self.config.sound:
            self.hear(padded)
            return
        rows, tokens = 1 + padded, 9 if stored else 21  # more than the windows and original contexts of drawn models
        vocab = self.config.stack(self.config.stacks[0]).vocab
        self.ids = rng.integers(5, vocab, (rows, tokens))
        self.mask = np.ones((rows, tokens), bool)
        if padded:
            self.mask[1, 6:] = False
            self.mask[1] = self.mask[1] if stored else self.mask[1][::-1]
        self.target = rng.integers(5, vocab, (rows, 7)) if self.config.encoder and self.config.decoder else None
        self.types = (np.arange(tokens)[None] >= 4).repeat(rows, 0).astype(int) if self.config.types > 1 else None
        self.arguments: dict[str, Any] = {"input_ids": torch.tensor(self.ids)}
        if padded:
            self.arguments["attention_mask"] = torch.tensor(self.mask.astype(int))
        if padded and not stored:
            self.arguments["position_ids"] = torch.tensor(np.maximum(self.mask.cumsum(-1) - 1, 0))
        if self.target is not None:
            self.arguments["decoder_input_ids"] = torch.tensor(self.target)
        if self.types is not None:
            self.arguments["token_type_ids"] = torch.tensor(self.types)

    def read_picture(self, family: str) -> None:
        """Take the pixels of a picture as what the model reads."""
        place, cut = self.checkpoint.place, self.config.patches
        picture = np.asarray(Image.open(PICTURE).convert("RGB"))
        if family in WIDE:
            pixels = np.asarray(Image.fromarray(picture).resize((5 * cut.patch_width, 4 * cut.patch_height)))
            values = torch.tensor(pixels / 127.5 - 1, dtype=self.dtype).permute(2, 0, 1)[None]
        else:
            self.picture = picture
            values = torch.tensor(processor_of(place)(Image.fromarray(picture), return_tensors="np")["pixel_values"])
        self.arguments: dict[str, Any] = {"pixel_values": values.to(self.dtype)}

    def hear(self, padded: bool) -> None:
        """Take what the extractor of a model makes of a sound, or of two, as what the model reads."""
        samples = [make_syllables(seconds, 3) for seconds in ((0.25, 0.15) if padded else (0.25,))]
        self.sound = None if padded else samples[0]
        read: dict[str, Any] = {"sampling_rate": 16000, "return_tensors": "pt", "padding": True}
        if self.config.sound.spectrogram:
            mels = self.config.sound.spectrogram.mels
            read["padding"] = "max_length"
            extractor = transformers.WhisperFeatureExtractor(feature_size=mels, chunk_length=1)
            ids = np.random.default_rng(3).integers(5, self.config.decoder.vocab, (len(samples), 7))
            self.arguments = {"decoder_input_ids": torch.tensor(ids)}
        else:
            extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=padded)
            self.arguments = {}
        made = extractor(samples, **read)
        given = {name: one.to(self.dtype) if one.is_floating_point() else one for name, one in made.items()}
        self.arguments = {**given, **self.arguments}

    def path(self, layer: str, parameter: str) -> str:
        """The path of the module that holds a parameter."""
        names = renamed(self.config.family, self.checkpoint.params.specs[layer][parameter].names[0])
        stored = [name.rpartition(".")[0] for name in names]
        found = [path for path in self.paths if any(path == one or path.endswith(f".{one}") for one in stored)]
        return min(found, key=len) if found else ""

    def module(self, layer: str, parameter: str) -> nn.Module:
        return self.model.get_submodule(self.path(layer, parameter))

    def replace(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self.model.get_submodule(parent), name, module)

    def attention_layers(self, kind: str = "self") -> list[str]:
        return [one for one in self.config.attention_rules if one.endswith(f".{kind}")]

    def has_taps(self) -> bool:
        """Whether its attention is a function of the module that can be replaced, which scales scores, not queries."""
        return hasattr(self.modeling, "eager_attention_forward") and self.config.family != "whisper"

    def has_rope(self) -> bool:
        return any(rules.rotation for rules in self.config.attention_rules.values())


# recording


def attention_function(port: Port, taps: bool) -> Callable[..., Any]:
    """Eager attention, which names its intermediates with taps; `module.wrong` says what goes wrong in it."""
    layers = collections.defaultdict(list)
    for layer in port.config.attention_rules:
        layers[port.model.get_submodule(port.path(layer, "wq").rpartition(".")[0])].append(layer)
    calls = collections.Counter()

    def tap(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
        if taps and layers[module]:
            attnkit.tap(f"{layers[module][min(calls[module], len(layers[module]) - 1)]}.{name}", tensor)

    def attend(module, q, k, v, mask, scaling=None, dropout=0.0, position_bias=None, softcap=None, **kwargs):
        wrong = getattr(module, "wrong", {})
        scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
        v = wrong.get("values", lambda one: one)(v)
        q, k, v = wrong.get("cut", lambda *three: three)(q, k, v)
        q, k = (wrong.get("turned", lambda one: one)(one) for one in (q, k))
        for name, tensor in zip("qkv", (q, k, v), strict=True):
            tap(module, name, tensor)
        groups = q.shape[1] // k.shape[1]

        def repeat(x):
            return x.repeat(1, groups, 1, 1) if wrong.get("in_turn") else x.repeat_interleave(groups, dim=1)

        scores = q @ repeat(k).transpose(-1, -2)
        tap(module, "scores", scores)
        softcap = wrong.get("softcap", softcap)
        if wrong.get("caps_first"):
            scores = softcap * torch.tanh(scores / softcap)
            tap(module, "capped", scores)
        scores = scores * wrong.get("scale", lambda s, one: s)(scaling, q)
        tap(module, "scaled", scores)
        if softcap and not wrong.get("caps_first"):
            scores = softcap * torch.tanh(scores / softcap)
            tap(module, "capped", scores)
        if position_bias is not None and not wrong.get("no_bias"):
            scores = scores + position_bias
        queries, keys = scores.shape[-2:]
        allowed = torch.ones((1, 1, queries, keys), dtype=torch.bool) if mask is None else mask > -1
        allowed = wrong.get("allowed", lambda one: one)(allowed)
        scores = torch.where(allowed, scores, torch.tensor(wrong.get("fill", -math.inf), dtype=scores.dtype))
        tap(module, "masked", scores)
        if getattr(module, "sinks", None) is not None:
            sinks = module.sinks.reshape(1, -1, 1, 1).expand(len(scores), -1, scores.shape[-2], 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = torch.softmax(scores.float(), dim=wrong.get("axis", -1)).to(q.dtype)[..., :keys]
        weights = torch.nan_to_num(weights)
        weights = nn.functional.dropout(weights, p=wrong.get("dropout", 0.0), training="dropout" in wrong)
        tap(module, "weights", weights)
        heads = weights @ repeat(v)
        tap(module, "heads", heads)
        calls[module] += 1
        if wrong.get("no_transposing"):
            return heads.reshape(heads.shape[0], heads.shape[2], heads.shape[1], -1), weights
        return heads.transpose(1, 2).contiguous(), weights

    return attend


def record(port: Port, path: str, patches: Sequence[Any] = (), taps: bool = True) -> None:
    """Record one call of a model under patches."""
    torch.manual_seed(0)
    with contextlib.ExitStack() as stack, torch.no_grad():
        if port.has_taps():
            attend = attention_function(port, taps)
            stack.enter_context(mock.patch.object(port.modeling, "eager_attention_forward", attend))
        for patch in patches:
            stack.enter_context(patch)
        with attnkit.record(path, port.model):
            port.model(**port.arguments)


# slips: (port) -> patches to run under; they change the port's own copy of the model


class Case(NamedTuple):
    """One slip: the names it may have in the verdict, where it can be, what does it, and the families it is in."""

    names: tuple[str, ...]
    apply: Callable[[Port], list[Any] | None]
    families: Callable[[Port], bool] = lambda port: True
    padded: bool = False
    tried: Sequence[str] = FAMILIES


CASES: dict[str, Case] = {}


def slip(
    key: str,
    *names: str,
    families: Callable[[Port], bool] = lambda port: True,
    padded: bool = False,
    tried: Sequence[str] = FAMILIES,
):
    def add(function):
        CASES[key] = Case(names, function, families, padded, tried)
        return function

    return add


def last_attention(port: Port) -> nn.Module:
    layer = port.attention_layers()[-1]
    return port.model.get_submodule(port.path(layer, "wq").rpartition(".")[0])


def wrong(**options: Any):
    def apply(port: Port):
        last_attention(port).wrong = options
        return []

    return apply


def is_causal(port: Port) -> bool:
    return port.config.decoder is not None


def last_rules(port: Port):
    return port.config.attention_rules[port.attention_layers()[-1]]


slip("no scale", "the scale of the scores is missing", families=lambda p: last_rules(p).factor != 1)(
    wrong(scale=lambda s, q: 1.0)
)
slip("scale twice", "the scale of the scores is applied twice", families=lambda p: last_rules(p).factor != 1)(
    wrong(scale=lambda s, q: s * s)
)
slip("scale of the width", "the scale of the scores is 1/√D of the whole width")(
    wrong(scale=lambda s, q: (q.shape[1] * q.shape[3]) ** -0.5)
)
slip("scale added", "the scale of the scores is 1/√K", families=lambda p: last_rules(p).factor == 1)(
    wrong(scale=lambda s, q: q.shape[3] ** -0.5)
)
slip("softmax over queries", "softmax is over the queries, not the keys")(wrong(axis=-2))
slip("softmax over heads", "softmax is over the heads, not the keys")(wrong(axis=1))
slip("joined flat", "heads are joined without transposing")(wrong(no_transposing=True))
slip(
    "keys in turn",
    "key heads are repeated in turn, not in blocks",
    families=lambda p: last_rules(p).heads != last_rules(p).kv_heads and last_rules(p).kv_heads > 1,
)(wrong(in_turn=True))
slip("attention dropout", "dropout is left on")(wrong(dropout=0.3))
slip("no causal mask", "the causal mask is missing", "the causal mask and the window are missing", families=is_causal)(
    wrong(allowed=torch.ones_like)
)
slip("strict causal mask", "the causal mask excludes the token itself", families=is_causal)(
    wrong(allowed=lambda one: torch.tril(one.expand(one.shape[0], 1, *one.shape[-2:]), -1))
)
slip(
    "causal mask one off",
    "the causal mask is shifted by one: the next token is visible",
    families=lambda p: is_causal(p) and not windowed(p),
)(wrong(allowed=lambda one: torch.tril(torch.ones_like(one), 1)))
slip(
    "causal mask turned",
    "the causal mask is the wrong way round",
    families=lambda p: is_causal(p) and last_rules(p).window == (-1, -1),
)(wrong(allowed=lambda one: torch.triu(torch.ones_like(one))))
slip(
    "causal encoder",
    "a causal mask is applied",
    families=lambda p: not is_causal(p) and last_rules(p).window == (-1, -1),
)(wrong(allowed=lambda one: torch.tril(one.expand(one.shape[0], 1, *one.shape[-2:]))))
for fill in (-1.0, 0.0):
    slip(f"blocked are {fill:g}", f"blocked scores are {fill:g} instead of −∞", families=is_causal)(wrong(fill=fill))
slip("no padding mask", "the padding mask is missing", padded=True, families=lambda p: not is_causal(p))(
    wrong(allowed=torch.ones_like)
)
slip("padding inverted", "the padding mask is inverted", padded=True, families=lambda p: not is_causal(p))(
    wrong(allowed=lambda one: ~one if not one.all() else one)
)
slip(
    "no relative bias",
    "the bias of relative positions is missing",
    families=lambda p: p.config.positions.relative == "t5",
)(wrong(no_bias=True))


def windowed(port: Port) -> bool:
    return last_rules(port).window != (-1, -1)


def shift_window(step: int):
    def apply(port: Port):
        rules = last_rules(port)
        left, right = rules.window

        def allowed(one):
            i, j = torch.arange(one.shape[-2])[:, None], torch.arange(one.shape[-1])
            upper = j <= i if rules.causal else j <= i + right + step
            return ((j >= i - left - step) & upper)[None, None]

        last_attention(port).wrong = {"allowed": allowed}
        return []

    return apply


slip("window longer", "the window is {longer} keys before a query", families=windowed)(shift_window(1))
slip("window shorter", "the window is {shorter} keys before a query", families=windowed)(shift_window(-1))
slip("no window", "the window is missing", families=windowed)(shift_window(100))


# rotary positions


def turned(x, cos, sin, interleaved=False):
    half = x.shape[-1] // 2
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
        c, s = cos[..., :half], sin[..., :half]
        return torch.stack((first * c - second * s, second * c + first * s), dim=-1).flatten(-2)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def rotary(change: Callable[..., Any]):
    def apply(port: Port):
        def apply_rotary(q, k, cos, sin, *others, unsqueeze_dim=1, **kwargs):
            cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            return tuple(one.to(q.dtype) for one in change(q, k, cos, sin))

        return [mock.patch.object(port.modeling, "apply_rotary_pos_emb", apply_rotary)]

    return apply


def rope(key: str, *names: str):
    return slip(key, *names, families=lambda p: Port.has_rope(p) and (key != "values rotated" or is_plain_rope(p)))


rope("interleaved", "rotary pairs are interleaved")(
    rotary(lambda q, k, c, s: (turned(q, c, s, True), turned(k, c, s, True)))
)
rope("keys not rotated", "keys are not rotated")(rotary(lambda q, k, c, s: (turned(q, c, s), k)))
rope("queries not rotated", "queries are not rotated")(rotary(lambda q, k, c, s: (q, turned(k, c, s))))
rope("not rotated", "queries are not rotated", "queries and keys are not rotated")(rotary(lambda q, k, c, s: (q, k)))
rope("rotated twice", "queries are rotated twice", "queries and keys are rotated twice")(
    rotary(lambda q, k, c, s: (turned(turned(q, c, s), c, s), turned(turned(k, c, s), c, s)))
)
rope("other direction", "the rotation turns the other way")(
    rotary(lambda q, k, c, s: (turned(q, c, -s), turned(k, c, -s)))
)


def partial_width(x, cos, sin, share):
    width = x.shape[-1] // share
    places = torch.arange(x.shape[-2], dtype=torch.float32)
    return width, places


@slip(
    "half the width",
    "only {half} of {width} features of a head are rotated",
    families=lambda p: is_plain_rope(p) and last_rules(p).head_dim % 4 == 0,
)
def half_width(port: Port):
    theta = float((last_rules(port).rope or {}).get("rope_theta", 1e4))

    def change(q, k, cos, sin):
        width = q.shape[-1] // 2
        angle = torch.arange(q.shape[-2])[:, None] * theta ** (-torch.arange(0, width, 2) / width)
        c, s = (torch.cat((one, one), dim=-1).to(q.dtype) for one in (angle.cos(), angle.sin()))
        return tuple(torch.cat((turned(x[..., :width], c, s), x[..., width:]), dim=-1) for x in (q, k))

    return rotary(change)(port)


def own_angles(angles: Callable[[Port, int, int], torch.Tensor]):
    """Rotation by other angles (T, K/2)."""

    def apply(port: Port):
        def change(q, k, cos, sin):
            angle = angles(port, q.shape[-2], q.shape[-1])
            c, s = (torch.cat((one, one), dim=-1).to(q.dtype) for one in (angle.cos(), angle.sin()))
            return turned(q, c, s), turned(k, c, s)

        return rotary(change)(port)

    return apply


def plain_angles(theta: float, shift: int = 0):
    def angles(port: Port, tokens: int, width: int):
        return (torch.arange(tokens)[:, None] + shift) * theta ** (-torch.arange(0, width, 2) / width)

    return angles


def is_plain_rope(port: Port) -> bool:
    kinds = {(r.rope or {}).get("rope_type", "default") for r in port.config.attention_rules.values()}
    return port.has_rope() and kinds == {"default"} and port.family != "modernbert"


for theta in (5e5, 1e6):
    slip(
        f"theta {theta:g}",
        f"rope_theta is {theta:g}",
        families=lambda p, t=theta: is_plain_rope(p) and float((last_rules(p).rope or {}).get("rope_theta", 1e4)) != t,
    )(own_angles(plain_angles(theta)))
slip("rotary shift", "rotary positions are shifted by +1", families=lambda p: is_plain_rope(p))(
    lambda port: own_angles(plain_angles(float((last_rules(port).rope or {}).get("rope_theta", 1e4)), 1))(port)
)
slip("yarn ignored", "the scaling of rotary positions (yarn) is ignored", families=lambda p: p.family == "llama-yarn")(
    lambda port: own_angles(plain_angles(float(last_rules(port).rope.get("rope_theta", 1e4))))(port)
)


@rope("values rotated", "values are rotated")
def rotated_values(port: Port):
    theta, width = float((last_rules(port).rope or {}).get("rope_theta", 1e4)), last_rules(port).head_dim

    def value_heads(x):
        angle = plain_angles(theta)(port, x.shape[-2], width)
        c, s = (torch.cat((one, one), dim=-1).to(x.dtype) for one in (angle.cos(), angle.sin()))
        return turned(x, c, s)

    last_attention(port).wrong = {"values": value_heads}
    return []


# norms


class Norm(nn.Module):
    """A norm with everything that may go wrong."""

    def __init__(self, kind, weight, bias, eps, ddof=0, offset=0.0, eps_outside=False):
        super().__init__()
        self.kind, self.eps, self.ddof, self.offset, self.eps_outside = kind, eps, ddof, offset, eps_outside
        self.weight, self.bias = weight, bias

    def forward(self, x):
        wide = x.float()
        if self.kind == "layer":
            wide = wide - wide.mean(-1, keepdim=True)
        square = wide.square().sum(-1, keepdim=True) / (x.shape[-1] - self.ddof)
        y = wide / (square.sqrt() + self.eps) if self.eps_outside else wide / (square + self.eps).sqrt()
        y = y if self.weight is None else y * (self.offset + self.weight.float())
        y = y if self.bias is None else y + self.bias.float()
        return y.to(x.dtype)


def last_norm(port: Port) -> str:
    """The layer of the last norm of a numbered layer."""
    stack = port.config.stacks[-1]
    return [one.layer for one in port.config.plan(stack) if one.op == "layernorm" and re.search(r"\.\d+\.", one.layer)][
        -1
    ]


def change_norm(port: Port, layer: str, **changes: Any) -> None:
    """Put a Norm in place of the norm of a layer, like it but for these arguments."""
    path = port.path(layer, "gamma")
    old = port.model.get_submodule(path)
    options = {
        "kind": port.config.norm,
        "weight": old.weight,
        "bias": getattr(old, "bias", None),
        "eps": port.config.eps,
    }
    port.replace(path, Norm(**{**options, **changes}))


def norm(key: str, name: str, families=lambda port: True, **changes: Any):
    def apply(port: Port):
        change_norm(port, last_norm(port), **changes)
        return []

    slip(key, name, families=families)(apply)


for eps in (1e-3, 1e-5, 1e-12):
    norm(f"eps {eps:g}", f"eps of the norm is {eps:g}", lambda p, e=eps: not math.isclose(p.config.eps, e), eps=eps)
norm("eps outside", "eps of the norm is added to the standard deviation", eps_outside=True)
norm("n minus 1", "the norm divides by n − 1, not by n", ddof=1)
norm("RMS for layer", "the norm does not subtract the mean (RMS norm)", lambda p: p.config.norm == "layer", kind="rms")
norm("layer for RMS", "the norm subtracts the mean (layer norm)", lambda p: p.config.norm == "rms", kind="layer")
norm("1 + weight", "the norm multiplies by 1 + weight, not by weight", offset=1.0)
norm("no norm weight", "the weight of the norm is missing", weight=None)
norm(
    "no norm bias",
    "the bias of the norm is missing",
    lambda p: p.config.norm == "layer" and p.family != "modernbert",
    bias=None,
)


@slip("no norm", "the norm is missing", "{norm} is not applied")
def no_norm(port: Port):
    port.replace(port.path(last_norm(port), "gamma"), nn.Identity())
    return []


def has_final_norm(port: Port) -> bool:
    return port.config.stack(port.config.stacks[-1]).final_norm and port.config.head


@slip("no final norm", "the norm is missing", families=has_final_norm)
def no_final_norm(port: Port):
    port.replace(port.path(f"{port.config.stacks[-1]}.norm", "gamma"), nn.Identity())
    return []


# linear layers


def last_of(port: Port, part: str) -> str:
    return [one for one in port.checkpoint.params.specs if one.endswith(f".{part}")][-1]


def is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def own(module: nn.Module) -> nn.Module:
    """Parameters of a module that are shared with no other."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
    return module


def has_bias(part: str, parameter: str):
    def check(port: Port) -> bool:
        specs = port.checkpoint.params.specs[last_of(port, part)]
        return parameter in specs and specs[parameter].share.is_whole

    return check


for part, weight, bias in (
    ("self", "wq", "bq"),
    ("self", "wv", "bv"),
    ("self", "wo", "bo"),
    ("ffn", "w1", "b1"),
    ("ffn", "w2", "b2"),
):

    def zero_bias(port: Port, part=part, weight=weight):
        nn.init.zeros_(own(port.module(last_of(port, part), weight)).bias)
        return []

    slip(f"no {bias}", f"the bias {bias} is missing", families=has_bias(part, bias))(zero_bias)

for weight in ("wq", "wv", "wo"):

    def is_square(port: Port, weight=weight) -> bool:
        spec = port.checkpoint.params.specs[last_of(port, "self")][weight]
        shape = port.config.parameter_shape(last_of(port, "self"), weight)
        return shape[0] == shape[1] and spec.share.is_whole

    def transpose(port: Port, weight=weight):
        module = own(port.module(last_of(port, "self"), weight))
        module.weight = nn.Parameter(module.weight.T.contiguous(), requires_grad=False)
        return []

    slip(f"{weight} transposed", f"the weight {weight} is transposed", families=is_square)(transpose)


def has_two_layers(port: Port) -> bool:
    return port.config.stack(port.config.stacks[-1]).layers > 1 and port.family != "albert"


for part, parameter in (("self", "wo"), ("ffn", "w2"), ("norm2", "gamma")):

    def neighbour(port: Port, part=part, parameter=parameter):
        layer = last_of(port, part)
        number = int(layer.split(".")[1])
        other = layer.replace(f".{number}.", f".{number - 1}.")
        own(port.module(layer, parameter)).load_state_dict(port.module(other, parameter).state_dict())
        return []

    slip(f"{part} of the layer before", "the parameters are those of {before}" + f".{part}", families=has_two_layers)(
        neighbour
    )


def is_fused(port: Port) -> bool:
    return port.checkpoint.params.specs[last_of(port, "self")]["wq"].share.total == 3


@slip("fused per head", "the fused q, k and v are split per head", families=is_fused)
def fused(port: Port):
    module = own(port.module(last_of(port, "self"), "wq"))
    heads = last_rules(port).heads
    width = port.config.width
    order = torch.arange(3 * width).reshape(heads, 3, -1).transpose(0, 1).reshape(-1)
    weight = module.weight[:, order] if is_conv1d(module) else module.weight[order]
    module.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if getattr(module, "bias", None) is not None:
        module.bias = nn.Parameter(module.bias[order].contiguous(), requires_grad=False)
    return []


# networks

ACTIVATIONS = {
    "relu": nn.ReLU(), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu-tanh": nn.GELU(approximate="tanh"),
    "none": nn.Identity(), "quick-gelu": None,
}  # fmt: skip


def activation_path(port: Port) -> str:
    names = ("act", "act_fn", "activation_fn", "intermediate_act_fn", "activation")
    paths = [
        path
        for path, _ in port.model.named_modules()
        if path.rpartition(".")[2] in names and re.search(r"\.\d+\.", path)
    ]
    return paths[-1] if paths else ""


def set_activation(port: Port, module: nn.Module) -> None:
    path = activation_path(port)
    if path:
        port.replace(path, module)


for activation in ("relu", "silu", "gelu", "gelu-tanh"):

    def change(port: Port, activation=activation):
        set_activation(port, ACTIVATIONS[activation])
        return []

    slip(
        f"activation {activation}",
        f"the activation is {activation} ",
        families=lambda p, a=activation: bool(activation_path(p)) and p.config.activation != a,
    )(change)


@slip("no activation", "the activation is missing", families=lambda p: bool(activation_path(p)))
def no_activation(port: Port):
    set_activation(port, nn.Identity())
    return []


@slip(
    "gate and up",
    "gate and up are exchanged",
    families=lambda p: "w3" in p.checkpoint.params.specs[last_of(p, "ffn")] and p.family != "modernbert",
)
def gate_and_up(port: Port):
    gate, up = (own(port.module(last_of(port, "ffn"), name)) for name in ("w1", "w3"))
    gate.weight, up.weight = up.weight, gate.weight
    return []


# blocks


def llama_block(wiring: str):
    def apply(port: Port):
        block = port.model.get_submodule(port.path(last_of(port, "self"), "wq").rsplit(".", 2)[0])

        def forward(hidden_states, **kwargs):
            x, normed = hidden_states, None
            if wiring == "post":
                y, _ = block.self_attn(hidden_states=x, **kwargs)
                x = block.input_layernorm(x + y)
                return block.post_attention_layernorm(x + block.mlp(x))
            normed = block.input_layernorm(x)
            y, _ = block.self_attn(hidden_states=normed, **kwargs)
            if wiring == "no residual":
                return y + block.mlp(block.post_attention_layernorm(y))
            if wiring == "after the norm":
                x2 = normed + y
                return x2 + block.mlp(block.post_attention_layernorm(x2))
            if wiring == "sum in bfloat16":
                x2 = (x + y).bfloat16().to(x.dtype)
                return x2 + block.mlp(block.post_attention_layernorm(x2))
            return x + y + block.mlp(block.post_attention_layernorm(x))  # parallel

        return [mock.patch.object(block, "forward", forward)]

    return apply


def is_llama(port: Port) -> bool:
    return port.family in ("llama", "mistral", "qwen2")


slip("post-norm", "the norms follow the residuals (post-norm, not pre-norm)", families=is_llama)(llama_block("post"))
slip("no residual", "the residual is missing", families=is_llama)(llama_block("no residual"))
slip("residual after norm", "the residual is added after the norm", families=is_llama)(llama_block("after the norm"))
slip("parallel", "the sub-layers read the same input (parallel, not serial)", families=is_llama)(
    llama_block("parallel")
)


slip(
    "residual sum in bfloat16",
    "{stack}.self.residual is rounded to bfloat16",
    families=lambda p: is_llama(p) and p.dtype == torch.float32,
)(llama_block("sum in bfloat16"))


def bert_output(change):
    def apply(port: Port):
        path = port.path(last_of(port, "norm2"), "gamma").rpartition(".")[0]
        module = port.model.get_submodule(path)

        def forward(hidden_states, input_tensor):
            return change(module, module.dropout(module.dense(hidden_states)), input_tensor)

        return [mock.patch.object(module, "forward", forward)]

    return apply


def is_bert(port: Port) -> bool:
    return port.family in ("bert", "roberta", "electra")


slip("no residual in BERT", "the residual is missing", families=is_bert)(bert_output(lambda m, y, x: m.LayerNorm(y)))
slip("residual outside", "the residual is added after the norm, not before it", families=is_bert)(
    bert_output(lambda m, y, x: m.LayerNorm(y) + x)
)


@slip("pre-norm", "the norms precede the sub-layers (pre-norm, not post-norm)", families=is_bert)
def pre_norm(port: Port):
    block = port.model.get_submodule(port.path(last_of(port, "norm2"), "gamma").rsplit(".", 2)[0])
    first, second = block.attention.output, block.output

    def forward(hidden_states, *others, **kwargs):
        x = hidden_states
        mask = others[0] if others else kwargs.get("attention_mask")
        y, *_ = block.attention.self(first.LayerNorm(x), mask)
        x = first.dense(y) + x
        return second.dense(block.intermediate(second.LayerNorm(x))) + x

    return [mock.patch.object(block, "forward", forward)]


# embeddings


def with_learned(port: Port) -> bool:
    return port.config.positions.kind == "learned" and port.family != "albert"


for shift in (1, 2):

    def move(port: Port, shift=shift):
        port.arguments["position_ids"] = torch.arange(port.ids.shape[1])[None] + port.config.positions.first + shift
        return []

    slip(
        f"positions {shift:+}",
        f"positions are shifted by {shift:+}",
        families=lambda p: with_learned(p) and p.family != "distilbert",
    )(move)


@slip("positions from 0", "positions are shifted by -2", families=lambda p: p.config.positions.first == 2)
def from_zero(port: Port):
    port.arguments["position_ids"] = torch.arange(port.ids.shape[1])[None]
    return []


@slip(
    "no segments",
    "the embeddings of segments are missing",
    families=lambda p: p.config.types > 0 and p.family != "albert",
)
def no_segments(port: Port):
    path = port.path(f"{port.config.stacks[0]}.embed", "types") or next(
        one for one in port.paths if one.endswith("token_type_embeddings")
    )
    module = port.model.get_submodule(path)
    return [
        mock.patch.object(
            module, "forward", lambda ids: torch.zeros((*ids.shape, module.weight.shape[1]), dtype=module.weight.dtype)
        )
    ]


@slip(
    "√D",
    "the embeddings are multiplied by √D",
    families=lambda p: p.config.embed_scale == 1 and p.config.positions.relative != "t5",
)
def scaled_embeddings(port: Port):
    module = port.module(f"{port.config.stacks[0]}.embed", "table")
    forward = module.forward
    return [mock.patch.object(module, "forward", lambda ids: forward(ids) * math.sqrt(port.config.width))]


@slip("no √D", "the factor √D of the embeddings is missing", families=lambda p: p.config.embed_scale != 1)
def unscaled_embeddings(port: Port):
    return [
        mock.patch.object(module, "embed_scale", 1.0)
        for module in port.model.modules()
        if hasattr(module, "embed_scale")
    ]


@slip("no norm of embeddings", "the norm is missing", families=lambda p: p.config.embed_norm)
def no_embed_norm(port: Port):
    port.replace(port.path(f"{port.config.stacks[0]}.embed_norm", "gamma"), nn.Identity())
    return []


@slip(
    "sines alternate",
    "sinusoidal positions have alternating sines and cosines",
    families=lambda p: p.family == "marian",
)
def alternating(port: Port):
    for path in port.paths:
        if path.endswith("embed_positions"):
            module = own(port.model.get_submodule(path))
            half = module.weight.shape[1] // 2
            weight = torch.stack((module.weight[:, :half], module.weight[:, half:]), dim=-1).flatten(-2)
            module.weight = nn.Parameter(weight, requires_grad=False)
    return []


# output head


@slip("no logit scale", "the scale of the logits is missing", families=lambda p: p.config.logit_scale != 1)
def no_logit_scale(port: Port):
    port.model.config.tie_word_embeddings = False
    for name in ("scale_decoder_outputs",):
        if hasattr(port.model.config, name):
            setattr(port.model.config, name, False)
    return []


@slip(
    "no head bias",
    "the bias of the output head is missing",
    families=lambda p: "b" in p.checkpoint.params.specs.get("head", {}),
)
def no_head_bias(port: Port):
    for name, buffer in [*port.model.named_buffers(), *port.model.named_parameters()]:
        if name.endswith(
            ("final_logits_bias", "cls.predictions.bias", "lm_head.bias", "decoder.bias", "vocab_projector.bias")
        ):
            nn.init.zeros_(buffer)
    return []


# rounding and dropout


def rounding(part: str, parameter: str, form: torch.dtype, side: str):
    def apply(port: Port):
        module = port.module(last_of(port, part), parameter)
        forward = module.forward

        def rounded(x):
            if side == "out":
                return forward(x).to(form).to(x.dtype)
            weight = copy.deepcopy(module).to(form).to(x.dtype)
            return type(module).forward(weight, x.to(form).to(x.dtype))

        return [mock.patch.object(module, "forward", rounded)]

    return apply


for form, word in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
    for part, parameter, site in (("ffn", "w2", "ffn.output"), ("self", "wo", "self.output")):
        slip(
            f"{site} in {word}",
            f"{{stack}}.{site} is rounded to {word}",
            families=lambda p: p.dtype == torch.float32 and p.family != "albert",
        )(rounding(part, parameter, form, "out"))
        slip(
            f"inputs of {site} in {word}",
            f"the inputs of {{stack}}.{site} are rounded to {word}",
            families=lambda p: p.dtype == torch.float32 and p.family != "albert",
        )(rounding(part, parameter, form, "in"))


@slip("dropout", "dropout is left on", families=lambda p: p.family in ("bert", "roberta", "gpt2", "electra"))
def dropout(port: Port):
    path = port.path(last_of(port, "self"), "wo").rpartition(".")[0]
    name = "resid_dropout" if port.family == "gpt2" else "dropout"
    module = port.model.get_submodule(f"{path}.{name}")
    module.p = 0.2
    module.train()
    return []


# two slips at once: families, and the keys of both
PAIRS = (
    (("gpt2", "llama", "bert"), "eps 0.001", "no scale"),
    (("gpt2", "llama"), "activation relu", "no causal mask"),
    (("llama", "qwen2"), "interleaved", "gate and up"),
    (("mistral",), "keys in turn", "no norm weight"),
    (("bert", "roberta"), "positions +1", "softmax over queries"),
    (("roberta",), "no bo", "1 + weight"),
    (("gpt2",), "fused per head", "no activation"),
    (("distilbert", "electra"), "no bv", "n minus 1"),
    (("modernbert",), "other direction", "no norm weight"),
    (("t5",), "no relative bias", "activation silu"),
    (("marian",), "sines alternate", "joined flat"),
)


# judging


def experts_of(port: Port) -> dict[str, int]:
    experts = port.config.experts
    return {} if experts is None else {"fewer": experts.chosen - 1, "more": experts.chosen + 1}


def heads_of(port: Port) -> dict[str, int]:
    """The widths of heads of attention, if there are any."""
    if not port.config.attention_rules:
        return {}
    sizes, width = last_rules(port).latent, last_rules(port).head_dim
    latent = {} if sizes is None else {name: getattr(sizes, name) for name in ("content", "rotary", "value")}
    return {"half": width // 2, "width": width, **latent}


def expected_names(port: Port, names: tuple[str, ...]) -> tuple[str, ...]:
    left = max(port.config.stack(port.config.stacks[-1]).windows, default=-1)
    number = port.config.stack(port.config.stacks[-1]).layers - 1
    stack = port.config.stacks[-1]
    words = {
        "longer": left + 1, "shorter": left - 1, **heads_of(port), **experts_of(port),
        "before": f"{stack}.{number - 1}", "stack": f"{stack}.{number}", "norm": last_norm(port),
        "layer": f"{stack}.{number}", "left": left, "one_more": left + 1, "one_less": left - 1,
        "twice": 2 * left + 1, "half_left": left // 2,
    }  # fmt: skip
    return tuple(name.format(**words) for name in names)


def judge(port: Port, path: str) -> VerdictReport:
    audio = None if port.sound is None else Record({"x": port.sound})
    return compare_with_model(port.checkpoint, open_dump(path), Request(why=True), image=port.picture, audio=audio)


def judge_cases(families: Iterable[str], dtypes: Sequence[torch.dtype], only: str, keep: str) -> list[dict[str, Any]]:
    results = []
    for family, dtype, padded, taps in itertools.product(families, dtypes, (False, True), (True, False)):
        if padded and not any(case.padded and family in case.tried for case in CASES.values()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            end = "-modules" * (not taps)
            path = f"{keep or folder}/{dump_name(family, 'clean', dtype)}{end}.npz"
            port = Port(family, dtype, padded)
            if taps and not port.has_taps():
                continue
            record(port, path, taps=taps)
            report = judge(port, path)
            alarms = [(row.site, row.kind, round(row.excess, 2), row.note) for row in report.rows if row.differs]
            most = max(row.excess for row in report.rows)
            print(
                f"== {family} {dtype} padded={padded} taps={taps}: {len(report.rows)} stages, {alarms[:5]}, {most:.2f}"
            )
            for key, case in CASES.items():
                if (only and only not in key) or family not in case.tried:
                    continue
                own_port = Port(family, dtype, padded)
                if case.padded != padded or not case.families(own_port):
                    continue
                path = f"{keep or folder}/{dump_name(family, key, dtype)}{end}.npz"
                record(own_port, path, case.apply(own_port) or (), taps)
                results.append(assess(own_port, key, case, judge(own_port, path), taps))
    return results


def dump_name(family: str, key: str, dtype: torch.dtype) -> str:
    return f"{family}-{key.replace(' ', '-').replace('/', 'by')}-{str(dtype)[6:]}"


def judge_pairs(dtype: torch.dtype, keep: str) -> list[dict[str, Any]]:
    """Judge two slips at once: both must be named, each by a row of its own."""
    results = []
    for families, *keys in PAIRS:
        for family in families:
            port = Port(family, dtype)
            patches = [patch for key in keys for patch in CASES[key].apply(port) or ()]
            with tempfile.TemporaryDirectory() as folder:
                path = f"{keep or folder}/{family}-{'-and-'.join(keys).replace(' ', '-')}.npz"
                record(port, path, patches)
                report = judge(port, path)
            named = {cause.name for row in report.rows if row.verdict == "named" for cause in row.causes}
            wanted = [expected_names(port, CASES[key].names) for key in keys]
            found = [any(name.startswith(one) for name in named for one in names) for names in wanted]
            extra = [name for name in named if not any(name.startswith(one) for names in wanted for one in names)]
            outcome = (
                "right" if all(found) and not extra else "wrong" if extra else "one of two" if any(found) else "unknown"
            )
            print(f"   pair {outcome:10} {family} {keys} {found} extra {extra[:4]}")
            results.append({"family": family, "dtype": str(dtype)[6:], "slip": " and ".join(keys), "outcome": outcome})
    return results


def assess(port: Port, key: str, case: Case, report: VerdictReport, taps: bool) -> dict[str, Any]:
    first = next((row for row in report.rows if row.differs), None)
    named = [cause.name for cause in first.causes] if first is not None and first.verdict == "named" else []
    right = expected_names(port, case.names)
    if first is None:
        outcome = "no effect"
    elif first.verdict != "named":
        outcome = first.verdict or first.kind
    elif any(name.startswith(one) for name in named for one in right):
        outcome = "right"
    else:
        outcome = "wrong"
    result = {
        "family": port.family,
        "dtype": str(port.dtype).removeprefix("torch."),
        "slip": key,
        "outcome": outcome,
        "taps": taps,
    }
    result["site"] = first.site if first is not None else ""
    if outcome not in ("right", "undecidable") or len(named) > 1:
        detail = f"{first.site} added {first.added:.2g} noise {first.noise:.2g}" if first is not None else ""
        causes = [(c.name, f"{c.remaining:.2g}") for c in first.causes][:4] if first is not None else []
        print(f"   {outcome:12} {port.family} {result['dtype']} {key!r}: {detail} {causes}")
    return result


FROZEN = (
    ("gpt2", "fused per head"), ("gpt2", "activation gelu"), ("gpt2", "no scale"), ("gpt2", "no causal mask"),
    ("gpt2", "dropout"), ("gpt2", "no b1"), ("gpt2", "positions +1"), ("gpt2", "softmax over queries"),
    ("llama", "interleaved"), ("llama", "theta 500000"), ("llama", "half the width"), ("llama", "keys in turn"),
    ("llama", "gate and up"), ("llama", "post-norm"), ("llama", "parallel"), ("llama", "residual after norm"),
    ("llama", "1 + weight"), ("llama", "eps 0.001"), ("llama", "keys not rotated"),
    ("llama", "residual sum in bfloat16"),
    ("llama-yarn", "yarn ignored"), ("mistral", "window longer"), ("mistral", "window shorter"), ("qwen2", "no bq"),
    ("bert", "padding inverted"), ("bert", "no segments"), ("bert", "pre-norm"), ("bert", "wv transposed"),
    ("roberta", "positions from 0"), ("electra", "no norm bias"), ("distilbert", "n minus 1"),
    ("modernbert", "other direction"), ("albert", "RMS for layer"), ("t5", "no relative bias"),
    ("t5", "no logit scale"),
    ("t5-gated", "scale added"), ("marian", "sines alternate"), ("marian", "joined flat"),
    ("bloom", "slopes of ALiBi without the rule"), ("falcon-40b", "fused cut in three"), ("gemma", "weight without 1"),
    ("gemma2", "cap before the scale"), ("gemma2", "cap of another size"), ("gemma2", "windows on the other layers"),
    ("gemma2", "norm1 and output_norm1 exchanged"), ("gemma2", "windows twice as wide"),
    ("gemma3", "theta of the other layers"), ("gpt_neox", "pairs of half a head"), ("falcon-40b", "serial"),
    ("granite", "logits multiplied"), ("granite-large", "overflow of the variance"), ("olmo2", "norm of each head"),
    ("phi", "base over the head"), ("phi3-long", "short factors for long"), ("qwen3", "eps 0.0025"),
    ("qwen3", "no norm of q and k"), ("qwen3", "norm after the rotation"), ("qwen3", "norms of q and k exchanged"),
    ("qwen3", "padding ignored"), ("qwen3", "scale of hidden / heads"), ("qwen3", "theta 37000"),
    ("qwen3-factor", "yarn's factor by the formula"), ("smollm3", "NoPE layers rotated"),
    ("t5", "buckets in both directions"), ("cohere-norms", "clean"),
)  # fmt: skip
FROZEN_NARROW = (("llama", "interleaved"), ("gpt2", "no scale"), ("bert", "eps 0.001"), ("mistral", "no window"))
# of larger models the last layer, or the embeddings of an image, alone
EMBEDDINGS = ("pixels", "encoder.embed", "encoder.positions")
FROZEN_PARTS = {
    ("decoder.3.norm1", "decoder.3.shortconv"): (
        ("lfm2", "B and C exchanged"), ("lfm2", "convolution a token late"), ("lfm2-biases", "convolution with silu"),
        ("lfm2-biases", "taps turned around"),
    ),
    ("decoder.3.norm1", "decoder.3.recall"): (
        ("qwen3_next", "heads of values in turn"), ("qwen3_next", "error against the undecayed state"),
        ("qwen3_next", "queries and keys of any length"), ("qwen3_next", "beta without sigmoid"),
        ("qwen3_next", "convolution of a state a token late"), ("qwen3_next", "1 + weight of a state"),
        ("mamba2", "norm before the gate"), ("mamba2", "groups in turn"), ("mamba2", "D after the step"),
    ),
    ("decoder.2.norm2", "decoder.2.self"): (("falcon_h1-gate", "no key factor"),),
    ("decoder.1.norm1", "decoder.1.self"): (("qwen3_next", "queries and gates in halves"),),
    "decoder.0.recall": (("qwen3_next", "padding in a state"),),
    "decoder.0": (("deepseek_v2", "latent rotation in the other layout"),),
    "decoder.0.shortconv": (("lfm2", "padding in the windows"),),
    "decoder.1.shortconv": (("lfm2-biases", "biases of padding in the windows"),),
    "decoder.3": (
        ("mixtral", "two experts exchanged"), ("qwen3_moe", "one expert"), ("olmoe", "softmax after top-k"),
        ("qwen2_moe", "no gate of the shared expert"), ("gpt_oss", "no 1 of the up projection"),
        ("gpt_oss", "experts with SiLU"), ("gpt_oss", "gate and up of experts in halves"),
        ("deepseek_v3", "no correction"), ("deepseek_v3", "correction in the gates"), ("deepseek_v3", "groups ignored"),
        ("deepseek_v3", "no mscale"), ("deepseek_v2", "factor on the shared expert"),
        ("deepseek_v2", "latent keys before values"),
        ("deepseek_v2-greedy", "no norm of the q latent"), ("phi3", "fused gate and up alternate"),
    ),
    EMBEDDINGS: (
        ("vit", "pixels not normalized"), ("vit", "patches by column"), ("dinov2", "mean and deviation of ImageNet"),
        ("dinov2", "not cropped"), ("siglip", "resized by bilinear"), ("siglip", "patches with channels last"),
        ("clip", "class token last"), ("dinov3", "no class token"), ("dinov2-registers", "registers after the patches"),
        ("dinov2-wide", "positions by bilinear with align_corners"),
    ),
    "encoder.2": (("dinov2", "no LayerScale 1"),),
    ("spectrogram", "encoder.conv"): (
        ("whisper", "HTK mels"), ("whisper", "natural logarithm"), ("whisper", "same padding of TensorFlow"),
        ("whisper-english", "activation gelu-tanh of a convolution"),
    ),
    ("decoder.2.self", "decoder.2.norm1"): (("whisper", "queries scaled twice"),),
    ("encoder.norm", "encoder.1.ffn.r", "decoder.2", "decoder.norm", "logits"): (("whisper", "clean"),),
    ("samples", "encoder.conv1"): (("group", "samples not normalized"), ("group", "norm of frames")),
    ("encoder.conv1", "encoder.conv2"): (("short", "stride 1"),),
    ("encoder.projection", "encoder.position_conv"): (
        ("group", "first window cut off"), ("hubert", "weight norm of filters"), ("layer", "padding before positions"),
    ),
    ("encoder", "logits"): (("layer", "clean"), ("hubert", "clean")),
}  # fmt: skip


def around_difference(family: str, dump: str, located: dict[str, TensorSource]) -> dict[str, TensorSource]:
    """The sites of a dump a few stages before and after the first that differs, or the first ones if none does."""
    report = compare_with_model(open_checkpoint(str(folder_of(family))), open_dump(dump), Request(why=True))
    sites = [row.site for row in report.rows if row.site in located]
    first = next((sites.index(row.site) for row in report.rows if row.differs and row.site in located), 9)
    return {site: located[site] for site in sites[max(first - 9, 0) : first + 5]}


def freeze(dumps: pathlib.Path) -> None:
    """Copy the dumps that the tests judge: those of FROZEN in float32, some in bfloat16, and parts of others."""
    folder = HERE / "slips"
    folder.mkdir(exist_ok=True)
    chosen = [(*one, torch.float32, "") for one in FROZEN] + [(*one, torch.bfloat16, "") for one in FROZEN_NARROW]
    chosen += [(*one, torch.float32, part) for part, some in FROZEN_PARTS.items() for one in some]
    for family, key, dtype, part in chosen:
        name = dump_name(family, key, dtype)
        source = next((one for end in ("-modules", "") if (one := dumps / f"{name}{end}.npz").exists()), None)
        if source is None:  # only some families were run
            continue
        names = [*open_dump(str(source))]
        place = folder_of(WIDE.get(family, family))
        model = open_checkpoint(f"{place}:vision" if family in TOWERS else str(place))
        located = locate_sites(names, model).sources
        if part:
            located = {site: one for site, one in located.items() if site.startswith(part)}
        elif not (HERE / "models" / family).exists():
            located = around_difference(family, str(source), located)
        kept = {one.name for one in located.values()} | {name for name in names if name.startswith("input.")}
        with (
            zipfile.ZipFile(source) as before,
            zipfile.ZipFile(folder / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as after,
        ):
            for member in before.infolist():
                content = before.read(member)
                if member.filename == "meta.json":
                    metadata = json.loads(content)
                    halves = [one for one in metadata.get("bfloat16", ()) if one in kept]
                    content = json.dumps({**metadata, "bfloat16": halves} if halves else metadata).encode()
                elif member.filename.removesuffix(".npy") not in kept:
                    continue
                after.writestr(zipfile.ZipInfo(member.filename), content, zipfile.ZIP_DEFLATED, 9)


def count_outcomes(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Slip -> dtype -> outcome -> how many cases: families, with and without taps."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for one in results:
        outcomes = counts.setdefault(one["slip"], {}).setdefault(one["dtype"], {})
        outcomes[one["outcome"]] = outcomes.get(one["outcome"], 0) + 1
    return counts


def table_rows(counts: dict[str, dict[str, dict[str, int]]]) -> Iterator[str]:
    """The table of confusion in Markdown: a row for each slip, and how many cases of each dtype are named."""
    dtypes = ("float32", "bfloat16")
    yield "| slip | " + " | ".join(dtypes) + " |"
    yield "|---|" + "---|" * len(dtypes)
    for key, by_dtype in counts.items():
        cells = []
        for dtype in dtypes:
            outcomes = by_dtype.get(dtype, {})
            total = sum(outcomes.values()) - outcomes.get("no effect", 0)
            others = [f"{number} {word}" for word, number in outcomes.items() if word not in ("right", "no effect")]
            cells.append(", ".join([f"{outcomes.get('right', 0)} of {total}", *others]) if total else "–")
        yield f"| {key} | " + " | ".join(cells) + " |"


def in_order(counts: dict[str, Any]) -> dict[str, Any]:
    """The rows of the table, those of two slips at once last."""
    pairs = {" and ".join(keys) for _, *keys in PAIRS}
    return dict(sorted(counts.items(), key=lambda one: one[0] in pairs))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", default="", help="a folder for the dumps")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--cases", default="", help="the module whose slips are tried")
    parser.add_argument("--update", action="store_true", help="write the rows of the slips of some families anew")
    chosen = parser.parse_args()
    dtypes = [getattr(torch, name) for name in chosen.dtype.split(",")]
    for key in [key for key, case in CASES.items() if chosen.cases not in ("", case.apply.__module__)]:
        del CASES[key]
    tried = dict.fromkeys((*FAMILIES, *(family for case in CASES.values() for family in case.tried)))
    results = judge_cases(chosen.families or tried, dtypes, chosen.only, chosen.keep)
    if not chosen.families:
        results += judge_pairs(torch.float32, chosen.keep)
    counts = count_outcomes(results)
    print("\n".join(table_rows(counts)))
    if chosen.update or not (chosen.families or chosen.only):
        known = json.loads((HERE / "slips.json").read_text()) if chosen.update else {}
        counts = in_order({**known, **counts})
        lines = ",\n".join(f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(one)}" for key, one in counts.items())
        (HERE / "slips.json").write_text(f"{{\n{lines}\n}}\n")
        if chosen.keep:
            freeze(pathlib.Path(chosen.keep))


if __name__ == "__main__":
    importlib.import_module("warnings").simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for cases in (
        "decoder_slips",
        "expert_slips",
        "image_slips",
        "sound_slips",
        "shortconv_slips",
        "recall_slips",
        "space_slips",
    ):  # which add their cases to those of this module
        importlib.import_module(cases)
    importlib.import_module("make_slips").main()
